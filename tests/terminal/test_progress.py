"""The progress bar: where it is wanted, what it says."""

from __future__ import annotations

import io

from grpo_cli.records.open.address import Address, Version
from grpo_cli.terminal import progress
from grpo_cli.terminal.progress import Bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_says_bytes_tokens_and_nodes(monkeypatch, tmp_path):
    local = tmp_path / "a.jsonl"
    local.write_bytes(b"x" * 1_000_000)
    far = Address("s3://runs/a.jsonl", Version(3_000_000, "1"))
    for nodes, said in ((0, "Mtoken/s "), (1, "on 1 node "), (3, "on 3 nodes ")):
        screen = Terminal()
        monkeypatch.setattr("sys.stderr", screen)
        monkeypatch.setattr(progress, "_PATIENCE", 0.0)
        monkeypatch.setenv("COLUMNS", "120")
        with Bar([str(local), far], wanted=True, nodes=lambda nodes=nodes: nodes) as bar:
            bar.advance(1_000_000, 500)
        assert "1.0/4.0 MB" in screen.getvalue()
        assert said in screen.getvalue()
