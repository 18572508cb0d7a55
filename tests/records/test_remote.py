"""Files in stores: what is asked for, how often, and what is said where it cannot be had."""

from __future__ import annotations

import errno
import gzip
import io
import json
import pickle
import sys
import threading
from datetime import UTC, datetime
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from files import evaluation

from grpo_cli import GrpoError, InputError, UsageError
from grpo_cli.engine import Evaluation, Reader
from grpo_cli.records.open import blocks, remote, streams
from grpo_cli.records.open import remote as addressing
from grpo_cli.records.open.blocks import Source, cut
from grpo_cli.records.open.remote import CHANGED, Address, Version, address
from grpo_cli.records.open.remote import files as addresses
from grpo_cli.records.tables.files import check_end, package, parquet_file
from grpo_cli.variants.plan import plan

DATA = bytes(range(65, 90))
LINE = b'{"log_probs_new":[[-1,-2]],"rewards":[1]}\n'


@pytest.fixture
def place(store):
    return address(store.put("runs/a", DATA))


def told(call, *words):
    with pytest.raises(GrpoError) as caught:
        call(*words)
    return type(caught.value), str(caught.value)


# ---- a range ----------------------------------------------------------------------------------


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_a_range_is_those_bytes(store, knows_ranges):
    store.ranges = knows_ranges
    place = address(store.put("runs/a", DATA[:5]))
    for start in range(6):
        for end in range(6):
            assert remote.read(place, start, end) == DATA[start:end]
    assert len(store.asked) == 15  # and none for nothing


def test_what_is_cut_short_is_asked_for_again(store, place):
    store.short = 1
    message = "s3://runs/a: cannot be read: expected 10 bytes, got 9 (8 attempts)"
    assert told(remote.read, place, 3, 13) == (InputError, message)
    assert store.asked == [(3, 13)] * 8
    place = address(store.put("runs/a", bytes(3000)))
    assert "cannot be read: expected 3,000 bytes, got 2,999" in told(remote.read, place, 0, 3000)[1]


@pytest.mark.parametrize("data", [DATA[::-1], DATA[:3], DATA * 2])
def test_a_file_that_changed_is_not_read(store, place, data):
    store.put("runs/a", data)
    assert told(remote.read, place, 1, 9) == (InputError, f"s3://runs/a: {CHANGED}")
    assert len(store.asked) == 1


# ---- patience ---------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_each_pause_is_twice_as_long(store, place, monkeypatch, share):
    pauses, between = [], {0.5: min, 1.0: max}[share]
    monkeypatch.setattr(remote, "_pause", pauses.append)
    monkeypatch.setattr(remote, "random", SimpleNamespace(uniform=lambda *ends: between(ends)))
    store.faults = [OSError("reset")] * 7
    assert remote.read(place, 0, 4) == DATA[:4]
    assert pauses == [share * 0.1 * 2**number for number in range(7)]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FileNotFoundError("a"), "no such file"),
        (PermissionError("a"), "no permission to read it"),
        (IsADirectoryError(errno.EISDIR, "a folder"), "cannot be read: [Errno 21] a folder"),
        (NotImplementedError("no ranges"), "cannot be read: no ranges"),
        (type("NoCredentialsError", (Exception,), {})("who?"), "cannot be read: who?"),
        (type("PartialCredentialsError", (Exception,), {})("half"), "cannot be read: half"),
        (type("GatedRepoError", (Exception,), {})("ask\nfor it"), "cannot be read: ask"),
    ],
)  # fmt: skip
def test_what_no_second_attempt_helps(store, place, error, expected):
    store.faults = [error]
    assert told(remote.read, place, 0, 4) == (InputError, f"s3://runs/a: {expected}")
    assert len(store.asked) == 1


@pytest.mark.parametrize(
    ("error", "kind", "expected"),
    [
        (OSError("reset\nby peer"), InputError, "s3://runs/a: cannot be read: reset (8 attempts)"),
        (OSError(), InputError, "s3://runs/a: cannot be read: OSError (8 attempts)"),
        (GrpoError("full"), GrpoError, "full (8 attempts)"),
    ],
)
def test_patience_has_an_end(store, place, error, kind, expected):
    store.faults = [error] * 8
    assert told(remote.read, place, 0, 4) == (kind, expected)
    assert (store.faults, len(store.asked)) == ([], 8)


def test_the_attempts_before_it_are_told(store, place):
    store.faults = [OSError("reset"), NotImplementedError("no ranges")]
    words = "s3://runs/a: cannot be read: no ranges (2 attempts)"
    assert told(remote.read, place, 0, 4) == (InputError, words)


@pytest.mark.parametrize("error", [UsageError("no container"), InputError("gone", source="b")])
def test_what_is_told_already_is_told_so(error):
    def attempt():
        raise error

    with pytest.raises(GrpoError) as caught:
        remote.patiently(attempt, "a")
    assert caught.value is error


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({"size": 3, "ETag": "x", "mtime": 5}, (3, "x")),
        ({"size": 3, "ETag": None, "mtime": 5, "created": 7}, (3, "5")),
        ({"size": None, "created": 7}, (0, "7")),
        ({"size": 3, "mtime": 0, "created": 7}, (3, "")),
        ({"LastModified": datetime(1970, 1, 1, 0, 0, 9, tzinfo=UTC)}, (0, "9.0")),
        ({}, (0, "")),
    ],
)
def test_a_version_is_size_and_stamp(store, monkeypatch, about, expected):
    monkeypatch.setattr(store, "info", lambda place: about)
    assert remote.version("s3://runs/a") == Version(*expected)


# ---- names ------------------------------------------------------------------------------------


def test_the_files_that_a_path_names(store):
    names = [store.put(f"runs/{name}", DATA) for name in ("b", "a")]
    store.put("other/a", b"")
    assert addresses("s3://runs/a") == ["s3://runs/a"]
    assert addresses("s3://runs/") == sorted(names)
    assert {one.version for one in addresses("s3://runs")} == {Version(25, "1")}
    for pattern in ("s3://runs/*", "s3://runs/?", "s3://runs/[ab]"):
        assert addresses(pattern) == [f"{pattern}="]
    store.put("there/a", DATA)
    assert addresses("http://there/a") == ["http://there/a"]
    assert told(addresses, "s3://none") == (InputError, "s3://none: no such file")
    assert told(addresses, "http://there") == (InputError, "http://there: no such file")


def test_a_store_is_asked_again_for_names(store):
    store.put("runs/a", DATA)
    for path in ("s3://runs/a", "s3://runs", "s3://runs/*"):
        store.faults = [OSError(), None, OSError()]
        assert len(addresses(path)) == 1


def test_what_no_package_speaks_to(store, monkeypatch):
    words = "gs://a: gs:// needs one more package (Please install gcsfs)"
    assert told(addresses, "gs://a") == (InputError, words)
    words = "nosuch://a: cannot be read: protocol not known: nosuch"
    assert told(addresses, "nosuch://a") == (InputError, words)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    words = "s3://a: s3:// needs fsspec: pip install fsspec"
    assert told(addresses, "s3://a") == (InputError, words)


def test_what_a_file_begins_with_is_read_once(store, monkeypatch):
    monkeypatch.setattr(addressing, "HEAD", 4)
    place = address(store.put("runs/a", DATA))
    assert [place.head, place.head, store.asked] == [DATA[:4], DATA[:4], [(0, 4)]]
    assert address(place) is place
    short = address(store.put("runs/b", DATA[:3]))
    assert short.head == DATA[:3]
    again = pickle.loads(pickle.dumps(place))
    assert (type(again), again, again.version) == (Address, place, place.version)
    assert addressing.is_remote(again)
    assert [addressing.is_remote(one) for one in ("s3://a", "g+s-2.x://", "c://", "a/s3://b")] == [
        *(True, True), *(False, False),
    ]  # fmt: skip


# ---- streams ----------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(addressing, "HEAD", 4)
    monkeypatch.setattr(remote, "_STEP", 10)
    monkeypatch.setattr(remote, "_SHORT_STEP", 6)
    monkeypatch.setattr(remote, "_BUFFER", 2)


@pytest.mark.parametrize(
    ("whole", "asked"),
    [(True, [(0, 4), (4, 14), (14, 24), (24, 25)]), (False, [(0, 6), (6, 12), (12, 18), (18, 24)])],
)
def test_a_stream_reads_each_byte_once(store, place, small, whole, asked):
    with streams.opened(place, whole=whole) as stream:
        assert stream.readable()
        assert stream.seekable()
        assert [stream.read(1) for _ in DATA] == [DATA[at : at + 1] for at in range(25)]
        assert stream.read(1) == b""
    assert stream.closed
    assert [one for one in store.asked if one[0] < one[1]] == [*asked, *[(24, 25)][: not whole]]


@pytest.mark.parametrize("whole", [True, False])
def test_a_stream_is_that_file_from_every_place(place, small, whole):
    for first in range(0, 27, 3):
        with remote.opened(place, whole=whole) as stream:
            assert stream.seek(first) == stream.tell() == first
            assert stream.read(5) == DATA[first : first + 5]
            assert stream.seek(-3, io.SEEK_END) == 22
            assert stream.read() == DATA[22:]
            assert stream.seek(-1, io.SEEK_CUR) == 24
            assert stream.read() == DATA[24:]
            assert stream.seek(first) == first
            assert stream.raw.read(12) == DATA[first : first + 12][: len(stream.raw._part)]


def test_a_file_is_read_on_beside_the_work_where_all_of_it_is_read(store, place, small):
    with streams.opened(place) as stream:
        stream.read(1)
    assert store.asked == [(0, 6)]
    store.asked.clear()
    with streams.unpacked(place) as stream:
        assert stream.read() == DATA
    assert store.asked == [(0, 4), (4, 14), (14, 24), (24, 25)]


def test_an_empty_file_in_a_store(store):
    with pytest.raises(InputError, match="no records: the input is empty"):
        list(cut(store.put("runs/a", b"")))


def test_a_stream_asks_for_what_is_wanted_at_once(store, place, small):
    stream = remote.opened(place, whole=False).raw
    assert stream.read(9) == DATA[:9]
    assert stream.read(2) == DATA[9:11]
    assert stream.read(40) == DATA[11:15]
    assert stream.read(40) == DATA[15:]
    assert store.asked == [(0, 9), (9, 15), (15, 25)]


def test_a_stream_that_is_closed_waits_for_nothing(store, place, small):
    stream, go, sent = remote.opened(place, whole=True), threading.Event(), []
    others = set(threading.enumerate())
    assert stream.read(4) == DATA[:4]
    store.before = lambda: threading.current_thread() in others or (go.wait(5), sent.append(1))
    assert stream.raw.read(2) == DATA[4:6]  # and the next part is fetched beside it, and waits
    stream.seek(20)
    assert stream.read(1) == DATA[20:21]
    stream.seek(1)
    assert stream.raw.read(1) == DATA[1:2]
    (thread,) = set(threading.enumerate()) - others
    stream.close()
    assert sent == []
    go.set()
    thread.join()
    assert sent == [1]


# ---- what is read of them ---------------------------------------------------------------------


def written(path, kind):
    rows = [{"log_probs_new": [[-1.0, -2.0], [-0.5]], "rewards": [1.0, 0.0]}] * 9
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if kind in ("jsonl", "gz"):
        path.write_bytes(gzip.compress(lines) if kind == "gz" else lines)
    elif kind == "npz":
        columns = {"log_probs_new": -np.ones((2, 3)), "rewards": np.arange(2.0)}
        np.savez(path, **columns)
    else:
        pa = package()
        table = pa.Table.from_pylist(rows)
        if kind == "parquet":
            pa.parquet.write_table(table, path, row_group_size=3)
            return
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)


@pytest.mark.parametrize("kind", ["jsonl", "gz", "npz", "parquet", "arrow"])
def test_a_file_in_a_store_means_what_it_means_here(store, tmp_path, small, monkeypatch, kind):
    monkeypatch.setattr(addressing, "HEAD", 9)
    file = tmp_path / f"a.{kind}"
    written(file, kind)
    here = evaluation(file, plan("dr"))
    places = addresses(store.put(f"runs/{file.name}", file.read_bytes()))
    there = Evaluation(Reader(places), plan("dr"), encode=None)
    assert [list(here), list(there)]
    assert there.total == here.total
    assert there.total["records"]


def test_columns_that_lie_side_by_side_are_fetched_together(store, tmp_path, small):
    pa, noise = package(), np.random.default_rng(1)
    table = pa.table({name: noise.random(20_000) for name in "abc"})
    pa.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=10_000)
    place = address(store.put("runs/a.parquet", (tmp_path / "a.parquet").read_bytes()))
    file = parquet_file(place)
    store.asked.clear()
    assert file.read_row_group(0).num_rows == 10_000
    assert max(end - start for start, end in store.asked) >= 3 * 10_000 * 8


def test_what_is_known_of_a_file_before_it_is_read(store, place):
    assert streams.unopened(place) is None
    assert streams.version_of(place).size == 25
    check_end("a", place, "parquet")  # that costs a connection: reading it will tell


@pytest.mark.parametrize("size", [7, 41, 42, 43, 84, 1000])
def test_ranges_of_a_file_in_a_store_are_its_lines(store, small, monkeypatch, size):
    monkeypatch.setattr(remote, "_AT_ONCE", 16)
    monkeypatch.setattr(blocks, "_BEYOND", 5)
    data = LINE * 3 + LINE[:-1]
    place = address(store.put("runs/a", data))
    made = blocks.ranges(Source.of(place), size)
    assert [one.start for one in made] == list(range(0, len(data), size))
    assert [b.start for b in made[1:]] == [a.end for a, b in pairwise(made)][: len(made) - 1]
    first = store.asked[:]
    found, before = [], 0
    for one in made:
        count, kept = blocks.look(one)
        for block in blocks.blocks_of(one, before, kept):
            assert block.line == len(found) + 1
            found += block.lines
        before += count
    assert found == data.splitlines()
    assert all(end - start <= 16 for start, end in store.asked[len(first) :])


# ---- what is written --------------------------------------------------------------------------


def test_a_file_is_there_when_it_is_whole(store):
    store.put("runs/a", b"before")
    with remote.uploading("s3://runs/b") as stream:
        stream.write(DATA)
        stream.flush()
        assert [one.data for one in store.opened] == [DATA]
        stream.write(DATA)
        assert "runs/b" not in store.kept
    assert store.kept["runs/b"] == DATA * 2
    assert (store.transaction.files, store.opened[0].discarded) == ([], False)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("broken")])
def test_what_is_not_whole_is_given_up(store, error):
    store.put("runs/a", b"before")

    def broken():
        with remote.uploading("s3://runs/a") as stream:
            stream.write(DATA)
            raise error

    with pytest.raises(type(error)):
        broken()
    (file,) = store.opened
    assert (store.kept["runs/a"], store.transaction.files) == (b"before", [])
    assert (file.discarded, file.closed) == (True, True)  # or it would be completed at the end


def write(data):
    with remote.uploading("s3://runs/b", "--out") as stream:
        stream.write(data)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (PermissionError(), UsageError, "no permission"),
        (OSError("the disk\nis full"), GrpoError, "the disk"),
        (OSError(), GrpoError, "OSError"),
    ],
)
@pytest.mark.parametrize("at", ["open", "write", "close"])
def test_a_store_that_takes_nothing(store, error, kind, words, at):
    store.put("runs/a", b"before")
    store.faults = [*[None] * ("open", "write", "close").index(at), None, error]
    assert told(write, DATA) == (kind, f"cannot write s3://runs/b: {words}")
    assert [*store.kept] == ["runs/a"]


def test_a_container_has_to_be_there(store):
    words = "--out: cannot write s3://runs/b: runs does not exist"
    assert told(write, DATA) == (UsageError, words)
    words = "--out: cannot write s3://runs/b: cannot be read: reset (8 attempts)"
    store.faults = [OSError("reset")] * 8
    assert told(write, DATA) == (UsageError, words)
    with remote.uploading("file:///b") as stream:  # no container in such a name
        stream.write(DATA)
    assert store.kept["/b"] == DATA


def test_what_is_sent_is_all_of_a_stream(store, monkeypatch):
    monkeypatch.setattr(remote, "_COPIED", 4)
    store.put("runs/a", b"")
    stream = io.BytesIO(DATA)
    store.faults = [None, None, None, None, OSError("reset")]
    remote.send(stream, "s3://runs/a")
    assert (store.kept["runs/a"], stream.tell(), store.faults) == (DATA, 25, [])
    stream.seek(3)
    store.faults = [None, *[PermissionError()]] * 8
    words = "cannot write s3://runs/a: no permission"
    assert told(remote.send, stream, "s3://runs/a") == (UsageError, words)
    assert (stream.tell(), len(store.faults)) == (25, 14)


def test_the_names_in_a_folder(store):
    for name in ("a", "b"):
        store.put(f"runs/x/{name}", DATA)
    store.faults = [OSError("reset")]
    assert remote.names("s3://runs/x") == ["a", "b"]
    assert remote.names("s3://runs/y") == []
    assert (remote.is_folder("s3://runs"), remote.is_folder("s3://none")) == (True, False)
    store.faults = [OSError("reset")]
    remote.remove("s3://runs/x/a")
    remote.remove("s3://runs/x/a")
    assert remote.names("s3://runs/x") == ["b"]
