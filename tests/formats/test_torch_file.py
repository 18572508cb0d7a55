"""``torch.save``'s files without torch: what slime dumps, and what a hostile file tries."""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import answer, run
from files import expressions

from formats.dumps import ADVANTAGES, IDS, NEW, OLD, REF, REWARDS
from grpo_cli import read

SLIME = Path(__file__).parent.parent / "data" / "slime" / "train_data" / "7.pt"
"""Made with torch 2.13's save and slime 624b824's own _build_dump_payload, of two ranks."""


def test_slime() -> None:
    result = run("convert", SLIME)
    found = json.loads(result.stdout)
    assert found["log_probs_new"] == NEW
    assert found["log_probs_rollout"] == OLD
    assert found["log_probs_ref"] == REF  # in bfloat16
    assert found["rewards"] == REWARDS
    assert found["group_ids"] == [0, 0, 1, 1]
    assert found["token_ids"] == IDS
    assert found["advantages"] == [[a] * len(row) for a, row in zip(ADVANTAGES, NEW, strict=True)]
    assert "read as slime" in result.stderr


def saved(value: Any, path: Path, **storages: bytes) -> Path:
    """A zip as torch's, with any pickle."""
    data = value if isinstance(value, bytes) else pickle.dumps(value, protocol=2)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", data)
        for key, raw in storages.items():
            archive.writestr(f"x/data/{key}", raw)
    return path


def message(path: Path) -> str:
    result = run("convert", path)
    assert result.exit_code == 3
    return result.stderr


class _Runs:
    def __init__(self, function: Any, *given: Any) -> None:
        self.given = function, given

    def __reduce__(self) -> Any:
        return self.given


class _Pickler(pickle.Pickler):
    """Writes tensors as torch does."""

    def persistent_id(self, one: Any) -> Any:
        return one.pid if isinstance(one, _Storage) else None

    def reducer_override(self, one: Any) -> Any:
        if isinstance(one, _Tensor):
            return _NAME, one.given
        return NotImplemented


class _Storage:
    def __init__(self, *pid: Any) -> None:
        self.pid = pid


class _Tensor:
    def __init__(self, *given: Any) -> None:
        self.given = given


def _NAME(*_: Any) -> None:
    raise AssertionError


class FloatStorage:
    """Stands for torch's."""


def tensor(
    path: Path, offset: Any, size: Any, stride: Any, key: Any = "0", kind: Any = None
) -> Path:
    stream = io.BytesIO()
    storage = _Storage("storage", FloatStorage if kind is None else kind, key, "cpu", 4)
    made = _Tensor(storage, offset, size, stride, False, OrderedDict())
    _Pickler(stream, protocol=2).dump({"log_probs_new": made, "rewards": [1, 0]})
    own = __name__.encode()
    data = stream.getvalue().replace(b"c" + own + b"\n_NAME", b"ctorch._utils\n_rebuild_tensor_v2")
    data = data.replace(b"c" + own + b"\nFloatStorage", b"ctorch\nFloatStorage")
    return saved(data, path, **{"0": b"\0\0\x80\xbf" * 4})


def test_a_tensor_is_read(tmp_path: Path) -> None:
    (found,) = read(tensor(tmp_path / "a.pt", 0, (2, 2), (2, 1)))
    assert found["log_probs_new"] == [[-1.0, -1.0], [-1.0, -1.0]]
    (found,) = read(tensor(tmp_path / "b.pt", 9, (2, 0), (1, 1)))  # a slice beyond the end
    assert found["log_probs_new"] == [[], []]


@pytest.mark.more
def test_lists_that_hold_each_other_many_times_over(tmp_path: Path) -> None:
    value: list[Any] = [0]
    for _ in range(60):
        value = [value, value]
    assert "values in a file of" in message(saved(value, tmp_path / "a.pt"))


def test_what_is_refused(tmp_path: Path) -> None:
    """What would run code, pickles written by hand, tensors that cannot be, other zips."""
    path, itself = tmp_path / "a.pt", []
    itself.append(itself)

    def zipped(files: dict[str, bytes]) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in files.items():
                archive.writestr(name, data)

    def refused(make: Callable[..., object]) -> Callable[..., str]:
        def said(*given: Any) -> str:
            make(*given)
            return message(path).replace(f"{tmp_path}/", "").removesuffix("\n")

        return said

    names = {
        "pickled": refused(lambda value: saved(value, path)),
        "tensor": refused(lambda *given: tensor(path, *given)),
        "zipped": refused(zipped),
        "ended": refused(lambda *parts: path.write_bytes(b"PK\3\4" + b"".join(parts))),
        "Runs": _Runs,
        "itself": itself,
        "pack": struct.pack,
        "os": os,
        "io": io,
        "pickle": pickle,
    }
    expressions(Path(__file__).with_name("torch_files.txt"), names)


def test_an_integer_beyond_64_bits(tmp_path: Path) -> None:
    """As an id it is text; beyond all floats it is infinite, as in JSON."""
    rest = {"log_probs_new": NEW, "advantages": ADVANTAGES, "id": 2**70}
    saved(rest | {"note": [2**70, -(10**400)]}, tmp_path / "a.pt")
    (found,) = answer("eval", tmp_path / "a.pt", "-v", "dr")["records"]
    assert found["id"] == str(2**70)
    assert [one["note"] for one in read(tmp_path / "a.pt")] == [[2**70, -math.inf]]


@pytest.mark.parametrize("protocol", range(2, 6))
def test_what_is_plain_is_taken_as_it_is(protocol: int, tmp_path: Path) -> None:
    value = {1: [None, True, 2, -300, 70_000, 2**40, 0.5, "a" * 300, (1, 2, 3, 4)], "b": {}}
    value |= {
        "log_probs_new": NEW,
        "advantages": ADVANTAGES,
        "text": [str(at) for at in range(400)],
    }
    saved(pickle.dumps(value, protocol), tmp_path / "a.pt", byteorder=b"little")
    (found,) = read(tmp_path / "a.pt")
    assert found["1"] == [None, True, 2, -300, 70_000, 2**40, 0.5, "a" * 300, [1, 2, 3, 4]]
    assert (found["b"], found["text"]) == ({}, value["text"])


def test_more_than_a_file_may_unpack_to(tmp_path: Path) -> None:
    path = saved(
        {"log_probs_new": [[-1.0]], "rewards": [1]}, tmp_path / "a.pt", **{"0": bytes(900)}
    )
    size = sum(entry.file_size for entry in zipfile.ZipFile(path).infolist())
    assert run("convert", path, "--unpack", size).exit_code == 0
    for most, words in ((size - 1, f"{size} bytes, unpacked, in"), (64 * 5, f"{size} bytes")):
        assert words in run("convert", path, "--unpack", most).stderr
