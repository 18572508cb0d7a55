"""``--on ray://HOST:PORT``: the head starts a process for each client, and that may go wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from conftest import headed

ROOT = Path(__file__).parents[2]
_BASH = """#!/bin/sh
# What Ray starts a client's server with: it fails as often as the file beside it says.
case "$*" in *ray.util.client.server*specific-server*)
    if [ "$(cat "$0.left")" -gt 0 ]; then
        echo $(($(cat "$0.left") - 1)) > "$0.left"
        exit 1
    fi;;
esac
exec /bin/bash "$@"
"""


def test_a_client_that_is_not_served_asks_again(text, tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_bytes(text)
    (tmp_path / "bin").mkdir()
    bash = tmp_path / "bin" / "bash"
    bash.write_text(_BASH)
    bash.chmod(0o755)
    left = Path(f"{bash}.left")
    left.write_text("0")
    monkeypatch.setenv("RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S", "20")
    monkeypatch.setenv("PATH", f"{bash.parent}:{os.environ['PATH']}")
    words = ["eval", "a.jsonl", "-v", "dr", "-q", "--level", "batch"]
    with headed() as cluster:
        left.write_text("1")
        found = subprocess.run(
            [sys.executable, "-m", "grpo_cli", *words, "--on", cluster.client],
            cwd=tmp_path,  # not where the cluster was started: the path is understood here
            env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert found.returncode == 0, found.stderr
    assert left.read_text() == "0\n", "it was not served once"
