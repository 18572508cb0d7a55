"""``torch.save``'s files without torch: what slime dumps, and what a hostile file tries."""

from __future__ import annotations

import io
import math
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from files import records

from formats.dumps import ADVANTAGES, IDS, NEW, OLD, REF, REWARDS
from grpo_cli.errors import InputError
from grpo_cli.records import Raw, assemble
from grpo_cli.records.tables import torch_file
from grpo_cli.records.tables.torch_file import _Plain, raws
from grpo_cli.records.tables.torch_file import _Storage as TorchStorage
from grpo_cli.records.tables.torch_file import _Tensor as TorchTensor

SLIME = Path(__file__).parent.parent / "data" / "slime" / "train_data" / "7.pt"
"""Made with torch 2.13's save and slime 624b824's own _build_dump_payload, of two ranks."""


def test_slime(tmp_path: Path) -> None:
    notes: dict[str, None] = {}
    (record,) = records(SLIME, notes)
    batch = assemble([record])
    assert batch.log_probs_new.tolist() == [one for row in NEW for one in row]
    assert batch.log_probs_rollout.tolist() == [one for row in OLD for one in row]
    assert batch.log_probs_ref.tolist() == [one for row in REF for one in row]  # in bfloat16
    assert batch.rewards.tolist() == REWARDS
    assert batch.groups.tolist() == [0, 0, 1, 1]
    assert record.token_ids == IDS
    spread = [a for a, row in zip(ADVANTAGES, NEW, strict=True) for _ in row]
    assert batch.token_advantages.tolist() == spread
    assert next(iter(notes)).startswith("read as slime")


def saved(value: Any, path: Path, **storages: bytes) -> Path:
    """A zip as torch's, with any pickle."""
    data = value if isinstance(value, bytes) else pickle.dumps(value, protocol=2)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", data)
        for key, raw in storages.items():
            archive.writestr(f"x/data/{key}", raw)
    return path


def message(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        list(raws(str(path), str(path)))
    return str(caught.value)


class _Runs:
    def __init__(self, function: Any, *given: Any) -> None:
        self.given = function, given

    def __reduce__(self) -> Any:
        return self.given


HOSTILE = {
    "os.system": _Runs(os.system, "touch /nowhere/ran"),
    "builtins.eval": _Runs(eval, "1"),
    "builtins.getattr": _Runs(getattr, "a", "upper"),
    "builtins.exec": _Runs(exec, "import os"),
    "io.open": _Runs(io.open, "/etc/passwd"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_would_run_code_is_refused(name: str, tmp_path: Path) -> None:
    found = message(saved({"samples": [HOSTILE[name]]}, tmp_path / "a.pt"))
    assert "the file wants to load " in found
    assert "which may run code" in found


PICKLES = {
    "torch's own functions but one": b"\x80\x02ctorch\nload\nX\x01\x00\x00\x00a\x85R.",
    "by a dotted name": b"\x80\x04\x8c\x0ccollections\x8c\x14OrderedDict.__init__\x93.",
    "by the extension registry": b"\x80\x02\x82\x01.",
    "no pickle": b"hello",
    "ends early": b"\x80\x02]",
    "of another protocol": b"\x80\x63.",
}


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_written_by_hand(name: str, tmp_path: Path) -> None:
    assert message(saved(PICKLES[name], tmp_path / "a.pt"))


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
    _Pickler(stream, protocol=2).dump(
        [_Tensor(storage, offset, size, stride, False, OrderedDict())]
    )
    own = __name__.encode()
    data = stream.getvalue().replace(b"c" + own + b"\n_NAME", b"ctorch._utils\n_rebuild_tensor_v2")
    data = data.replace(b"c" + own + b"\nFloatStorage", b"ctorch\nFloatStorage")
    return saved(data, path, **{"0": b"\0\0\x80\x3f" * 4})


def test_a_tensor_is_read(tmp_path: Path) -> None:
    (raw,) = raws("a", str(tensor(tmp_path / "a.pt", 0, (2, 2), (2, 1))))
    assert raw.value == [[[1.0, 1.0], [1.0, 1.0]]]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "given",
    [
        (0, (5,), (1,)),
        (3, (2,), (1,)),
        (-1, (2,), (1,)),
        (0, (2,), (-1,)),
        (0, (2, 2), (1,)),
        (0, (10**12,), (0,)),
        (0, (2,), (1,), "../../etc/passwd"),
        (0, (2,), (1,), 7),
        (0, (2,), (1,), "0", "FloatStorage"),
    ],
)
def test_a_tensor_that_cannot_be(given: tuple[Any, ...], tmp_path: Path) -> None:
    found = message(tensor(tmp_path / "a.pt", *given))
    assert "the file is damaged" in found or "values in so small a file" in found


def test_lists_that_hold_each_other_many_times_over(tmp_path: Path) -> None:
    value: list[Any] = [0]
    for _ in range(60):
        value = [value, value]
    assert "values in so small a file" in message(saved(value, tmp_path / "a.pt"))


def test_a_list_that_holds_itself(tmp_path: Path) -> None:
    value: list[Any] = []
    value.append(value)
    assert message(saved(value, tmp_path / "a.pt"))


class _Odd:
    """Something that is neither a number nor a text."""


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"data.pkl": b"", "y/data.pkl": b""}, "expected one data.pkl in it"),
        ({"x": b""}, "expected one data.pkl in it"),
        ({"data.pkl": pickle.dumps(1), "byteorder": b"big"}, "its numbers are big-endian"),
        ({"data.pkl": pickle.dumps([1, {2: b"bytes"}])}, "a bytes in it"),
        ({"data.pkl": pickle.dumps(2j, protocol=2)}, "which may run code"),
    ],
)
def test_a_zip_that_is_none_of_torchs(files: dict[str, bytes], said: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    assert said in message(tmp_path / "a.pt")


def test_a_zip_of_several_disks(tmp_path: Path) -> None:
    """Its end is there, so that it is not said to be cut off."""
    several = struct.pack("<4sIQI", b"PK\6\7", 0, 0, 2)
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, 46, 0, 0)
    (tmp_path / "a.pt").write_bytes(b"PK\3\4" + several + end)
    assert "zipfiles that span multiple disks are not supported" in message(tmp_path / "a.pt")


def test_an_integer_beyond_64_bits(tmp_path: Path) -> None:
    """As an id it is text; beyond all floats it is infinite, as in JSON."""
    rest = {"log_probs_new": NEW, "advantages": ADVANTAGES}
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr(
            "data.pkl", pickle.dumps(rest | {"id": 2**70, "note": [2**70, -(10**400)]})
        )
    (record,) = records(tmp_path / "a.pt", {})
    assert record.id == str(2**70)
    (raw,) = raws("a.pt", str(tmp_path / "a.pt"))
    assert isinstance(raw, Raw)
    assert raw.value["note"] == [2**70, -math.inf]


def test_what_is_plain_is_taken_as_it_is(tmp_path: Path) -> None:
    value = {1: [None, True, 2, 0.5, "a", (1,)], "b": {}}
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps(value))
        archive.writestr("x/byteorder", b"little")
    (raw,) = raws("a", str(tmp_path / "a.pt"))
    assert raw.value == {"1": [None, True, 2, 0.5, "a", [1]], "b": {}}  # type: ignore[union-attr]


def test_as_many_values_as_a_file_may_hold() -> None:
    assert _Plain(4).of([1, [2]]) == [1, [2]]
    tensor_of_3 = TorchTensor(TorchStorage(b"\0" * 12, "<f4"), 0, (3,), (1,))
    assert _Plain(4).of(tensor_of_3) == [0.0] * 3
    for value in ([1, [2]], tensor_of_3):
        with pytest.raises(InputError, match="more than 3 values in so small a file"):
            _Plain(3).of(value)


def test_more_than_a_file_may_unpack_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved([1], tmp_path / "a.pt", **{"0": b"\0" * 100})
    size = sum(entry.file_size for entry in zipfile.ZipFile(path).infolist())
    for most in (size, size - 1):
        monkeypatch.setattr(torch_file, "most_unpacked", lambda _, most=most: most)
        if most == size:
            assert list(raws("a", str(path)))
        else:
            assert "tensors of more than 0 MiB, unpacked" in message(path)
