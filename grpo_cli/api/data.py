"""Data in any shape, and how it is read; messages that name arguments where they named flags."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grpo_cli.engine import Reader
from grpo_cli.errors import GrpoError, InputError, UsageError
from grpo_cli.records import Block, DecodedChunk, Piece, Raw, Reading, Source
from grpo_cli.records.choose.grouping import Grouping, read_grouping
from grpo_cli.records.choose.where import read_conditions
from grpo_cli.records.formats import CANONICAL, FORMATS
from grpo_cli.records.open.budget import read_size
from grpo_cli.records.open.folders import files as expanded
from grpo_cli.records.record import in_chunks
from grpo_cli.records.tables.writing import canonical
from grpo_cli.records.translate import Notices
from grpo_cli.variants import STAGES
from grpo_cli.variants.plan import OWN_AGGREGATES

Record = Mapping[str, Any]
Path = str | os.PathLike[str]
Data = Path | Record | Iterable[Path] | Iterable[Record]
"""A path, folder or pattern; a record under any of the names files may use; several of them.

A data frame's rows are records too.
"""


def read(
    files: Path | Iterable[Path],
    *,
    format: str | None = None,
    where: str | Sequence[str] = (),
    group_by: str | Sequence[str] = (),
    group_size: int | None = None,
    record: str | int | None = None,
    unpack: str | int | None = None,
) -> Iterator[dict[str, Any]]:
    """The records of files, one by one, under canonical names.

    They are what ``grpo convert`` writes: whatever the files are (JSON, JSONL, Parquet, Arrow,
    npz, safetensors, packed or not, the dump of a framework), the other functions take these dicts
    and return the same numbers, bit for bit.

    >>> next(read("samples/dr_grpo.json"))["log_probs_new"]
    [[-0.2, -0.3], [-0.1, -0.4]]

    Args:
        files: a path, a folder or a pattern, or several.
        format: as ``grpo formats`` lists them. Default: recognised from the content.
        where: only records that match, as ``"step==120 && env!=math"``. Default: all.
        group_by: rows with the same values here are one group, as ``"uid"`` or ``"step,uid"``.
            Default: each row is a record.
        group_size: every so many rows are one group. Default: as ``group_by`` says.
        record: only this record: its id, or else its number from 0. Default: all.
        unpack: what a packed file may unpack to, as ``"4G"`` or in bytes. Default: by its size.

    Returns:
        An iterator of dicts.

    Raises:
        UsageError: for an argument that cannot be understood.
        InputError: if the data cannot be read, with file, line and place.
    """
    with speaking_of_arguments():
        if format not in (None, CANONICAL, *FORMATS):
            known = ", ".join((CANONICAL, *FORMATS))
            raise UsageError(f"format: expected one of {known}, got {format!r}")
        reading = Reading(
            format=format,
            where=read_conditions(listed(where)),
            grouping=_grouping(group_by, group_size),
            record=None if record is None else str(record),
            unpack=read_size(unpack),
        )
        given = [files] if isinstance(files, str | os.PathLike) else list(files)
        if not given:
            raise UsageError("files: expected at least one path, got none")
        reader = Reader(expanded(os.fspath(path) for path in given), reading)
        for place, (raw, _) in enumerate(reader.records()):
            yield canonical(raw, place)


def _grouping(by: str | Sequence[str], size: int | None) -> Grouping | None:
    return read_grouping(listed(by), None if size is None else whole("group_size", size, 1))


def whole(name: str, value: Any, least: int = 0) -> int:
    """The whole number of an argument.

    Raises:
        UsageError: for anything else, or one below ``least``.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name}: expected a whole number of at least {least}, got {value!r}")
    return int(value)


def not_negative(name: str, value: Any) -> float | None:
    """The number of an argument, or None.

    Raises:
        UsageError: for anything else, or one below 0.
    """
    if value is None:
        return None
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not 0 <= value < float("inf"):
        raise UsageError(f"{name}: expected a number of at least 0, got {value!r}")
    return float(value)


def listed(texts: str | Sequence[str]) -> list[str]:
    """One text, or several, as a list.

    Raises:
        UsageError: for anything else.
    """
    found = [texts] if isinstance(texts, str) or not isinstance(texts, Iterable) else [*texts]
    for one in found:
        if not isinstance(one, str):
            raise UsageError(f"where, having and group_by: expected text, got {one!r}")
    return found


def reader_of(
    data: Data,
    jobs: int | None = 1,
    *,
    where: str | Sequence[str] = (),
    group_by: str | Sequence[str] = (),
    group_size: int | None = None,
) -> tuple[Reader, list[str]]:
    """A reader of the data, and the paths that a command line would name; none of records.

    Args:
        data: in any shape.
        jobs: worker processes; None: as many as the input is worth.
        where, group_by, group_size: as ``read`` takes them.
    """
    how: dict[str, Any] = {"where": read_conditions(listed(where))}
    how["grouping"] = _grouping(group_by, group_size)
    if isinstance(data, Mapping):
        return Reader([_MEMORY], Held(objects=(data,), alone=True, **how)), []
    if hasattr(data, "collect"):  # lazy frames of polars; those with rows have none
        raise UsageError(f"data: expected a data frame, got {type(data).__name__}: .collect() it")
    if hasattr(data, "columns"):
        data = _rows_of_frame(data)
    try:
        given: list[Any] = [data] if isinstance(data, str | os.PathLike) else list(data)
    except TypeError:
        raise _no_data(type(data).__name__) from None
    paths = [os.fspath(one) for one in given if isinstance(one, str | os.PathLike)]
    if given and len(paths) == len(given):
        return Reader(expanded(paths), Reading(**how), jobs=jobs), paths
    records = tuple(one for one in given if isinstance(one, Mapping))
    if not records or len(records) < len(given):
        odd = next((one for one in given if not isinstance(one, Mapping)), None)
        raise _no_data("nothing" if odd is None else type(odd).__name__)
    return Reader([_MEMORY], Held(objects=records, **how)), []


def reading_flags(
    where: str | Sequence[str], group_by: str | Sequence[str], group_size: int | None
) -> list[str]:
    """How the data are read, as words of a command line."""
    fields = ",".join(listed(group_by))
    flags = ["--group-by", fields] if fields else []
    flags += [] if group_size is None else ["--group-size", str(group_size)]
    return flags + [word for test in listed(where) for word in ("--where", test)]


def _rows_of_frame(frame: Any) -> list[Record]:
    """The rows of a data frame of polars, an Arrow table, or a data frame of pandas."""
    for name, words in (("to_dicts", ()), ("to_pylist", ()), ("to_dict", ("records",))):
        if hasattr(frame, name):
            return [*getattr(frame, name)(*words)]
    raise _no_data(type(frame).__name__)


def _no_data(got: str) -> UsageError:
    return UsageError(f"data: expected a record, records, a path or paths, got {got}")


_MEMORY = ""


@dataclass(frozen=True)
class Held(Reading):
    """Records that are in memory already.

    Attributes:
        objects: the records.
        alone: whether it is one that was given by itself, whose errors need not say which it is.
    """

    objects: tuple[Record, ...] = ()
    alone: bool = False

    def pieces(
        self, source: str | Source, size: int = 0, *, as_spans: bool = False
    ) -> Iterator[Piece]:
        """Yields one piece for all of them."""
        del source, size, as_spans
        yield Block(_MEMORY, 1, [])

    def decoded(self, piece: Piece, notices: Notices, **how: Any) -> Iterator[DecodedChunk]:
        """The records, new each time, since evaluating them changes them."""
        del piece, how  # there are no columns to be had
        raws = (
            Raw(plain(one), _MEMORY, None, "" if self.alone else f"[{place}].", _BYTES)
            for place, one in enumerate(self.objects)
        )
        return in_chunks(self.made_of(in_chunks(raws), _MEMORY, notices))


_BYTES = 1024
"""About how many bytes a record has as text: it decides how many are evaluated together."""


def plain(value: Any) -> Any:
    """Arrays, tensors and tuples as the lists that a file would have."""
    if isinstance(value, (list, tuple)):
        return [*value] if _AS_IN_A_FILE.issuperset(map(type, value)) else [*map(plain, value)]
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if hasattr(value, "tolist"):
        return value.tolist()
    return np.asarray(value).tolist() if hasattr(value, "__array__") else value


_AS_IN_A_FILE = frozenset({float, int, str, bool, type(None)})


# ---- messages that speak of flags, as a caller from Python reads them: of arguments --------------

_SPELLED = {"from": "format"}
_PARAMETER = re.compile(r"-p (\w+=[^\s;,)]+)")
_ANYWHERE = re.compile(r"--group-anywhere joins (?:them|rows of one step)")
"""A flag that no function has: the rows can be sorted."""
_MAP = re.compile(r"--map (\w+)=([^\s;,:)]+)")
_FLAG = re.compile(r"--([a-z][a-z-]*)(?:[ =]([^\s;,:)]+(?:,\w[^\s;,:)]*)*))?")
_COMMAND = re.compile(
    r"(\bgrpo (?:eval|compare|match|explain|verify|check|trend|diff|show|report|convert|variants) "
    r"(?:[^;,)]|,(?=\S))*)"
)
_VARIANT = re.compile(r"(?<![\w-])-v ([\w/@.,-]*\w)")
_KEY = re.compile(r"\w*[_,][\w,]*|uid|prompt|step|task")
"""What is a field, and no word of the sentence, after ``--group-by``."""
_VALUE = re.compile(r"[A-Z…]+|[-+.\d][\d.e+-]*")


class speaking_of_arguments:  # noqa: N801 - read as a verb phrase: with speaking_of_arguments()
    """Errors that pass here name arguments where they named flags, and no frame of ours below."""

    def __enter__(self) -> None:
        """Does nothing."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, GrpoError):
            if isinstance(error, InputError):
                error.message = of_arguments(error.message)
            error.args = tuple(of_arguments(str(word)) for word in error.args)
            error.__traceback__, error.__suppress_context__ = None, True


def of_arguments(text: str) -> str:
    """The text with ``--beta 0`` as ``beta=0`` and ``--kl k3`` as ``stages={"kl": "k3"}``.

    ``--map rewards=score`` is ``record["rewards"] = record["score"]``; commands stay as they are.
    """
    parts = _COMMAND.split(text)
    return "".join(part if at % 2 else _in_python(part) for at, part in enumerate(parts))


def _in_python(words: str) -> str:
    words = _MAP.sub(_assignment, words)
    words = _ANYWHERE.sub("rows sorted by it are joined", words)
    words = _VARIANT.sub(r'variant="\1"', words)
    return _FLAG.sub(_argument, _PARAMETER.sub(r"\1", words))


def _assignment(found: re.Match[str]) -> str:
    place = "".join(f'["{key}"]' for key in found[2].split("."))
    return f'record["{found[1]}"] = record{place}'


def _argument(found: re.Match[str]) -> str:
    name, after = found[1].replace("-", "_"), found[2]
    if name == "hyperparameters":  # of the command that lists them
        return found[0]
    stage = STAGES.get("aggregate" if name in OWN_AGGREGATES else name)
    rest = f" {after}" if after else ""
    if stage is not None:
        if after is not None and (after in stage.choices or after in stage.aliases):
            return f'stages={{"{name}": "{after}"}}'
        rest = "" if after == "NAME" else rest
        return f'stages={{"{name}": …}}{rest}'
    name = _SPELLED.get(name, name)
    if name == "unpack" and after:
        return f'read(…, unpack="{after}")'
    quoted = {"batch": after, "step": after == "file", "where": after and "==" in after}
    quoted["group_by"] = after and _KEY.fullmatch(after)
    if quoted.get(name):
        return f'{name}="{after}"'
    return f"{name}={after}" if after and _VALUE.fullmatch(after) else f"{name}{rest}"
