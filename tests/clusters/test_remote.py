"""Files in a store: the same bytes as from a disk, whatever the connection does."""

from __future__ import annotations

import gzip
import json
from functools import partial
from importlib.util import find_spec

import fsspec
import pytest
from command import application
from typer.testing import CliRunner

from grpo_cli import InputError
from grpo_cli.commands.eval.lines import encode_nested
from grpo_cli.engine import Evaluation, Reader
from grpo_cli.records.open import remote
from grpo_cli.records.open.remote import files as addresses
from grpo_cli.variants.plan import plan


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(remote, "_pause", lambda seconds: None)


def run(paths, variant="gspo", **options):
    encode = partial(encode_nested, level="token", fields=None)
    places = [one for path in paths for one in addresses(str(path))]
    found = Evaluation(Reader(places, skip=True, **options), plan(variant), encode=encode)
    pieces = [piece for some in found for piece in some]
    return b"\n".join(pieces), json.dumps(found.total), [str(one) for one in found.skipped]


def as_named(answer, place, name):
    rows, total, skipped = answer
    rows = rows.replace(json.dumps(str(place)).encode(), json.dumps(name).encode())
    return rows, total, [one.replace(str(place), name) for one in skipped]


def put(store, name, data):
    store.client.put_object(Bucket="runs", Key=name, Body=data)
    return f"s3://runs/{name}"


@pytest.fixture
def local(text, tmp_path):
    lines = text.splitlines()
    lines[100] = b'{"log_probs_new": [[0.5]], "rewards": [1]}'
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"\n".join(lines))
    return file


def parquet(path, records):
    import pyarrow as pa
    import pyarrow.parquet

    rows = [{key: one[key] for key in ("id", "log_probs_new", "rewards")} for one in records]
    pa.parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=50)


@pytest.mark.parametrize("share", [0.0, 0.4])
@pytest.mark.parametrize("options", [{}, {"jobs": 2, "block_bytes": 25_000}])
def test_a_store_gives_the_bytes_of_a_disk(store, local, monkeypatch, share, options):
    monkeypatch.setattr(remote, "_STEP", 20_000)
    store.share = share
    name = put(store, "a.jsonl", local.read_bytes())
    assert run([name], **options) == as_named(run([local]), local, name)
    assert len(run([name])[2]) == 1
    assert not share or min(store.faults[kind] for kind in store.kinds)


@pytest.mark.parametrize("kind", ["gz", "zst", "parquet", "npz"])
def test_other_files(store, local, records, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(remote, "_STEP", 15_000)
    monkeypatch.setattr(remote, "_SHORT_STEP", 5_000)
    store.share = 0.3
    file = tmp_path / f"a.{kind}"
    if kind == "gz":
        file.write_bytes(gzip.compress(local.read_bytes()))
    elif kind == "zst":
        import zstandard

        file.write_bytes(zstandard.compress(local.read_bytes()))
    elif kind == "parquet":
        parquet(file, records)
    else:
        import numpy as np

        np.savez(file, log_probs_new=-np.ones((4, 9)), rewards=np.arange(4.0))
    name = put(store, file.name, file.read_bytes())
    assert run([name], "dr") == as_named(run([file], "dr"), file, name)


def test_row_groups_are_read_alone(store, records, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "_SHORT_STEP", 1_000)
    file = tmp_path / "a.parquet"
    parquet(file, records * 40)
    name = put(store, "a.parquet", file.read_bytes())
    (place,) = addresses(name)
    reading = Reader([place]).reading
    piece = list(reading.pieces(place))[30]
    store.sent.clear()
    assert len(list(reading.raws(piece, {}))) == 50
    assert sum(store.sent.values()) < file.stat().st_size / 4


@pytest.mark.parametrize("jobs", [1, 2])
def test_two_passes_read_each_byte_twice_at_most(store, text, monkeypatch, jobs):
    monkeypatch.setattr(remote, "_STEP", 20_000)
    name = put(store, "a.jsonl", text)
    run([name], "lite-ppo", jobs=jobs, block_bytes=15_000)
    assert sum(store.sent.values()) <= 2 * len(text)
    store.sent.clear()
    run([name], "dr", jobs=jobs, block_bytes=15_000)
    assert sum(store.sent.values()) <= len(text)


def test_folders_and_patterns(store, local, text):
    names = [put(store, f"step/{n}/a.jsonl", local.read_bytes()) for n in (1, 2)]
    put(store, "other/a.txt", b"no")
    assert addresses("s3://runs/step/") == addresses("s3://runs/step/*/a.jsonl") == names
    assert run(["s3://runs/step/"]) == run(names)
    for place in ("s3://runs/none.jsonl", "s3://runs/none/*", "s3://none/a.jsonl"):
        with pytest.raises(InputError, match="no such file"):
            addresses(place)


@pytest.mark.parametrize("what", ["longer", "same size"])
def test_a_file_that_changes_is_an_error(store, text, monkeypatch, what):
    monkeypatch.setattr(remote, "_STEP", 20_000)
    name = put(store, "a.jsonl", text)
    changed = text.replace(b"-0.", b"-1.") + (b"{}" if what == "longer" else b"")
    seen = []

    def change(path):
        seen.append(path)
        if len(seen) == 4:
            put(store, "a.jsonl", changed)

    store.before = change
    with pytest.raises(InputError, match="the file changed while grpo read it"):
        run([name], "dr")


def test_patience_has_an_end(store, text):
    name = put(store, "a.jsonl", text)
    (place,) = addresses(name)
    store.share = 1.0
    with pytest.raises(InputError, match=r"a\.jsonl: cannot be read: .*\(8 attempts\)"):
        run([place])


def test_other_schemes(text, local):
    files = fsspec.filesystem("memory")
    files.pipe("/runs/a.jsonl", text)
    assert run(["memory://runs/"], "dr")[1] == run(["memory://runs/a.jsonl"], "dr")[1]
    with pytest.raises(InputError, match=r"nosuch://.*not known"):
        addresses("nosuch://a/b")
    for scheme, package in (("gs", "gcsfs"), ("az", "adlfs"), ("hf", "huggingface_hub")):
        if find_spec(package) is None:
            with pytest.raises(
                InputError, match=rf"{scheme}:// needs one more package .*{package}"
            ):
                addresses(f"{scheme}://a/b")


def test_the_web(store, text, local):
    put(store, "a.jsonl", local.read_bytes())
    store.client.put_object_acl(Bucket="runs", Key="a.jsonl", ACL="public-read")
    name = f"{store.url}/runs/a.jsonl"
    assert run([name]) == as_named(run([local]), local, name)


# ---- what is written --------------------------------------------------------------------------


LARGE = b'{"log_probs_new": [[-1.0]], "rewards": [1.0], "prompt": "%b"}\n' % (b"x" * (1 << 20)) * 7
"""Two parts of an upload."""


@pytest.fixture
def grpo(monkeypatch):
    import s3fs

    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 5)  # as it is for users
    monkeypatch.setattr(s3fs.S3FileSystem, "default_block_size", 5 << 20)
    app = application()

    def run(*arguments):
        found = CliRunner().invoke(app, [str(one) for one in arguments])
        assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
        return found

    return run


def kept(store, name) -> bytes | None:
    """A file in the store; and no upload is left that is not complete."""
    assert "Uploads" not in store.client.list_multipart_uploads(Bucket="runs")
    names = [one["Key"] for one in store.client.list_objects_v2(Bucket="runs").get("Contents", [])]
    return (
        store.client.get_object(Bucket="runs", Key=name)["Body"].read() if name in names else None
    )


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_a_file_is_written_to_a_store(store, grpo, text, tmp_path, share):
    local, large = tmp_path / "a.jsonl", tmp_path / "large.jsonl"
    local.write_bytes(text)
    large.write_bytes(LARGE)
    store.share_written = share
    for name, words in {
        "large.jsonl": ("convert", large),
        "a.parquet": ("convert", local),
        "a/check.json": ("check", local, "--json"),
        "a/rows.parquet": ("eval", local, "-v", "dr", "--format", "parquet"),
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        code = grpo(*words, "-o", tmp_path / name).exit_code
        assert grpo(*words, "-o", f"s3://runs/{name}").exit_code == code
        assert kept(store, name) == (tmp_path / name).read_bytes()
    assert not share or store.faults["drop PUT"] + store.faults["throttle PUT"]


def test_what_is_not_whole_is_not_there(store, grpo, text, tmp_path):
    local = tmp_path / "a.jsonl"
    words = ("convert", local, "-o", "s3://runs/out.jsonl")
    local.write_bytes(LARGE + b"{broken")
    assert grpo(*words).exit_code == 3
    assert kept(store, "out.jsonl") is None
    put(store, "out.jsonl", b"before")
    assert grpo(*words).exit_code == 3
    assert kept(store, "out.jsonl") == b"before"
    local.write_bytes(text)
    store.share_written = 1.0
    found = grpo(*words)
    assert (found.exit_code, kept(store, "out.jsonl")) == (3, b"before")
    assert found.stderr.splitlines()[-1].startswith("grpo: cannot write s3://runs/out.jsonl: ")
    found = grpo("convert", local, "-o", "s3://none/out.jsonl")
    assert found.exit_code == 2
    assert "cannot write s3://none/out.jsonl: none does not exist" in found.stderr
