"""What the hooks write: columns, lines, files."""

from __future__ import annotations

import gc
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest
from files import expressions, some

from grpo_cli.hooks import columns
from grpo_cli.hooks.writer import WAITING, Writer, of_rank
from grpo_cli.records import cut, decoded
from grpo_cli.records.record import one_by_one

from .stand_ins import Tensor  # noqa: F401 - in columns.txt

# ---- the writer: whole lines, in order, whatever becomes of the training -------------------------


def ids(path: Path) -> list[int]:
    return [raw.value["id"] for block in cut(str(path)) for raw in one_by_one(decoded(block))]


@pytest.mark.parametrize("name", ["r.jsonl", "r.jsonl.gz"])
def test_records_are_lines_in_the_order_in_which_they_came(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with Writer(path) as writer:
        for number in range(3 * WAITING):
            writer.write(lambda number=number: {"id": number, "x": np.array([0.1, np.nan])})
    assert ids(path) == [*range(3 * WAITING)]
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
    opened = gzip.open if name.endswith(".gz") else open
    with opened(path, "rt") as file:
        assert file.readline() == f'{{"run_id":"{writer.run_id}","id":0,"x":[0.1, NaN]}}\n'


def test_an_older_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    for at in (1, 2):
        with Writer(path) as writer:
            writer.write(lambda at=at: {"id": at})
    assert ids(path) == [2]


def test_flush_waits_for_the_disk(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "r.jsonl")
    for at in range(5):
        writer.write(lambda at=at: {"id": at})
    writer.flush()
    assert ids(writer.path) == [0, 1, 2, 3, 4]
    writer.close()
    writer.close()
    writer.write(lambda: {"id": 5})
    writer.flush()
    assert len(ids(writer.path)) == 5


def test_what_waits_is_bounded(tmp_path: Path) -> None:
    gate = threading.Event()
    writer = Writer(tmp_path / "r.jsonl")

    def slow() -> dict[str, int]:
        gate.wait()
        return {"id": 0}

    def fill() -> None:
        for _ in range(WAITING + 2):
            writer.write(slow)

    filling = threading.Thread(target=fill, daemon=True)
    filling.start()
    filling.join(0.2)
    assert filling.is_alive()
    gate.set()
    filling.join(60)
    writer.close()
    assert len(ids(writer.path)) == WAITING + 2


@pytest.mark.parametrize("ending", ["write", "flush", "close"])
def test_a_record_that_cannot_be_made_ends_the_recording_with_a_warning(
    ending: str, tmp_path: Path
) -> None:
    writer = Writer(tmp_path / "r.jsonl")
    writer.write(lambda: {"id": 0})
    writer.write(lambda: {"id": 1 / 0})
    writer.write(lambda: {"id": 2})
    while writer._error is None:
        time.sleep(0.01)
    said = r"r\.jsonl: ZeroDivisionError: division by zero; the recording ends after 1 record,"
    with pytest.warns(RuntimeWarning, match=said) as told:
        writer.write(lambda: {"id": 3}) if ending == "write" else getattr(writer, ending)()
    if ending == "close":
        assert told[0].filename == __file__  # the line of the training script
    writer.write(lambda: {"id": 4})
    writer.close()
    assert ids(writer.path) == [0]


def test_a_folder_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Writer(tmp_path / "nowhere" / "r.jsonl")


SCRIPT = """
import os, sys
from grpo_cli.hooks.writer import Writer
writer = Writer(sys.argv[1])
for number in range(20):
    writer.write(lambda number=number: {"id": number})
"""


def test_a_script_that_never_closes_still_writes_everything(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    subprocess.run([sys.executable, "-c", SCRIPT, str(path)], check=True)
    assert ids(path) == [*range(20)]


@pytest.mark.parametrize("name", ["r.jsonl", "r.jsonl.gz"])
def test_a_killed_script_leaves_whole_lines(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    killed = SCRIPT + "writer.flush(); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", killed, str(path)], check=False)
    assert ids(path) == [*range(20)]


@pytest.mark.parametrize(
    ("name", "of_third"),
    [
        ("r.jsonl", "r.rank3.jsonl"),
        ("r.jsonl.gz", "r.rank3.jsonl.gz"),
        ("run-0.5.jsonl", "run-0.5.rank3.jsonl"),
        ("dump", "dump.rank3"),
    ],
)
def test_each_process_has_a_file_of_its_own(name: str, of_third: str) -> None:
    assert of_rank(f"runs/{name}", 3, 8) == Path("runs") / of_third
    assert of_rank(f"runs/{name}", 0, 1) == Path("runs") / name


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_file_that_another_recording_has_does_not_stay_open(tmp_path: Path) -> None:
    with Writer(tmp_path / "r.jsonl") as writer:
        writer.write(lambda: {"id": 0})
        before = len([*Path("/proc/self/fd").iterdir()])
        for _ in range(3):
            with pytest.raises(OSError, match="another recording writes to it"):
                Writer(tmp_path / "r.jsonl")
        assert len([*Path("/proc/self/fd").iterdir()]) == before
        writer.write(lambda: {"id": 1})
    assert ids(tmp_path / "r.jsonl") == [0, 1]


def test_a_file_is_as_readable_as_the_umask_leaves_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Writer(tmp_path / "r.jsonl").close()
    finally:
        os.umask(before)
    assert (tmp_path / "r.jsonl").stat().st_mode & 0o777 == 0o666


@pytest.mark.more
def test_a_writer_that_is_closed_is_kept_by_nothing(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "r.jsonl")
    known = weakref.ref(writer)
    writer.close()
    del writer
    gc.collect()
    assert known() is None


@pytest.mark.parametrize("handled", [False, True])
@pytest.mark.parametrize("number", some([signal.SIGTERM, signal.SIGHUP], 1))
def test_a_signal_waits_for_what_was_recorded(number: int, handled: bool, tmp_path: Path) -> None:
    """Also while a record is made; a handler of the training's own is left to it."""
    script = (
        "import os, signal, sys, time\n"
        "from grpo_cli.hooks.writer import Writer\n"
        f"if {handled}: signal.signal({number:d}, lambda *_: sys.exit(5))\n"
        "writer = Writer(sys.argv[1])\n"
        "for number in range(100):\n"
        "    writer.write(lambda number=number: time.sleep(0.002) or {'id': number})\n"
        f"os.kill(os.getpid(), {number:d})\n"
        "time.sleep(60)\n"
    )
    path = tmp_path / "r.jsonl"
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False, timeout=60)
    assert done.returncode == (5 if handled else -number)
    assert ids(path) == [*range(100)]


@pytest.mark.parametrize("what", ["file", "folder"])
@pytest.mark.parametrize("name", ["r.jsonl", "r.jsonl.gz"])
def test_a_file_that_is_deleted_is_made_again(what: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "run" / name
    path.parent.mkdir()
    writer = Writer(path)
    writer.write(lambda: {"id": 0})
    writer.flush()
    path.unlink() if what == "file" else shutil.rmtree(path.parent)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for number in (1, 2):
            writer.write(lambda number=number: {"id": number})
            writer.flush()
        writer.close()
    assert len(told) == 1
    said = "deleted, with 1 record; the recording continues in a new file"
    assert str(told[0].message).endswith(said)
    assert ids(path) == [1, 2]


def test_a_file_that_was_deleted_at_the_end_is_a_warning(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "r.jsonl")
    writer.write(lambda: {"id": 0})
    writer.flush()
    writer.path.unlink()
    with pytest.warns(RuntimeWarning, match="deleted, with 1 record$"):
        writer.close()


def test_a_file_that_is_renamed_is_written_on(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "r.jsonl")
    writer.write(lambda: {"id": 0})
    writer.flush()
    writer.path.rename(tmp_path / "r.1")
    writer.write(lambda: {"id": 1})
    writer.close()
    assert ids(tmp_path / "r.1") == [0, 1]


def test_half_a_character_is_escaped(tmp_path: Path) -> None:
    with Writer(tmp_path / "r.jsonl") as writer:
        writer.write(lambda: {"id": 0, "tokens": [["a", "\ud83d"], ["ä"]], "n\udce9": np.ones(1)})
        writer.write(lambda: {"id": 1})
    first, second = map(json.loads, writer.path.read_text().splitlines())
    assert (first["tokens"], first["n\\udce9"]) == ([["a", "\\ud83d"], ["ä"]], [1.0])
    assert second == {"run_id": first["run_id"], "id": 1}


def test_recordings_have_different_ids(tmp_path: Path) -> None:
    assert len({Writer(tmp_path / f"{n}.jsonl").run_id for n in range(3)}) == 3


# ---- padded columns → the ragged lists of a record -----------------------------------------------


MASK = np.array([[1, 1, 0], [1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]])


def test_columns() -> None:
    expressions(Path(__file__).with_name("columns.txt"), globals() | vars(columns), by_hand=True)
