"""A line of open-instruct whose prompt has no number."""

from __future__ import annotations

import json
from pathlib import Path

from command import run

from formats import dumps


def test_a_prompt_without_a_number_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    rows = [one | {"prompt_idx": None} for one in dumps.open_instruct()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = run("eval", path, "-v", "dr")
    assert result.exit_code == 3
    assert "prompt_idx: expected a string or a number, got null" in result.stderr
