"""Object stores: Google's, and the client of a cluster."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from command import application
from conftest import headed
from typer.testing import CliRunner

# ---- ``gs://``: a server like Google's, through the package that people have for it --------------


WORDS = ("-v", "gspo", "--level", "token", "--format", "jsonl", "-q")


@pytest.fixture(scope="module")
def bucket() -> Iterator[fsspec.AbstractFileSystem]:
    """The bucket ``runs``; gcsfs finds it by the usual variable."""
    from gcp_storage_emulator.server import create_server

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = create_server("127.0.0.1", port, in_memory=True)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # asks the server by gRPC
        found = fsspec.filesystem("gs")
        found.mkdir("runs")
        yield found
        found.clear_instance_cache()
    server.stop()


def grpo(*words: object) -> tuple[int, bytes, str]:
    made = CliRunner().invoke(application(), ["eval", *map(str, words)])
    return made.exit_code, made.stdout_bytes, made.stderr


@pytest.fixture(scope="module")
def folder(bucket, text, tmp_path_factory):
    """Two files, on the disk and in the bucket."""
    folder = tmp_path_factory.mktemp("disk")
    for number, data in enumerate((text, text[: len(text) // 3].rpartition(b"\n")[0])):
        (folder / f"{number}.jsonl").write_bytes(data)
        bucket.pipe_file(f"runs/d/{number}.jsonl", data)
    return folder


@pytest.mark.parametrize("place", ["0.jsonl", "*.jsonl", ""])
@pytest.mark.parametrize("jobs", [1, 2])
def test_the_same_bytes_as_from_a_disk(folder, place, jobs):
    here = grpo(f"{folder}/{place}", *WORDS, "--jobs", jobs)
    there = grpo(f"gs://runs/d/{place}", *WORDS, "--jobs", jobs)
    assert here[0] == there[0] == 0, there[2]
    assert len(here[1]) > 100_000
    assert here[1].replace(str(folder).encode(), b"gs://runs/d") == there[1]


def test_a_result_is_a_file_when_it_is_whole(folder, bucket):
    expected = grpo(f"{folder}/0.jsonl", *WORDS)
    assert grpo(f"{folder}/0.jsonl", *WORDS, "-o", "gs://runs/out/rows.jsonl")[0] == 0
    assert bucket.cat_file("runs/out/rows.jsonl") == expected[1]
    broken = folder.parent / "broken.jsonl"
    broken.write_bytes(b'{"log_probs_new": [[0.5]], "rewards": [1]}\n')
    assert grpo(broken, *WORDS, "-o", "gs://runs/out/broken.jsonl")[0] == 3
    bucket.invalidate_cache()
    assert not bucket.exists("runs/out/broken.jsonl")


def test_what_is_not_there_is_one_line(bucket):
    code, out, said = grpo("gs://runs/none.jsonl")
    assert (code, out, said) == (3, b"", "grpo: gs://runs/none.jsonl: no such file\n")


# ---- ``--on ray://HOST:PORT``: the head starts a process for each client, and that may go wrong --


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
