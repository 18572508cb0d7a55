"""Google's object store: a server like it, through the package that people have for it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import fsspec
import pytest
from command import application
from typer.testing import CliRunner

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
