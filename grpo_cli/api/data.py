"""Data in any shape, and how it is read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grpo_cli.api.arguments import asked, speaking_of_arguments
from grpo_cli.commands.options import complete
from grpo_cli.commands.options.source import read_mapping
from grpo_cli.engine import Reader
from grpo_cli.errors import UsageError
from grpo_cli.records import Block, DecodedChunk, Piece, Raw, Reading, Source
from grpo_cli.records.choose.grouping import read_grouping
from grpo_cli.records.choose.where import read_conditions
from grpo_cli.records.formats import CANONICAL, FORMATS
from grpo_cli.records.open.budget import read_size
from grpo_cli.records.open.folders import files as expanded
from grpo_cli.records.record import in_chunks
from grpo_cli.records.tables.writing import canonical
from grpo_cli.records.translate import Notices

Record = Mapping[str, Any]
Texts = str | Sequence[str]
"""One text or several."""
Path = str | os.PathLike[str]
Data = Path | Record | Iterable[Path] | Iterable[Record]
"""A path, folder or pattern; a record under any of the names files may use; several of them.

A data frame's rows are records too.
"""


@asked
def read(
    data: Data,
    *,
    format: str | None = None,
    where: Texts = (),
    group_by: Texts = (),
    group_size: int | None = None,
    record: str | int | None = None,
    unpack: str | int | None = None,
    map: Mapping[str, str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields the records of data, one by one, under canonical names.

    They are what ``grpo convert`` writes: whatever the data are (JSON, JSONL, Parquet, Arrow,
    npz, packed or not, the dump of a framework), the other functions take these dicts
    and return the same numbers, bit for bit.

    >>> next(read("samples/dr_grpo.json"))["log_probs_new"]
    [[-0.2, -0.3], [-0.1, -0.4]]

    Args:
        data: a path, a folder or a pattern, or several; or records, or a data frame of them.
        format: as ``grpo formats`` lists them. Default: recognised from the content.
        where: only records that match, as ``"step==120 && env!=math"``. Default: all.
        group_by: rows with the same values here are one group, as ``"uid"`` or ``"step,uid"``.
            Default: each row is a record.
        group_size: how many rows, or responses of a record, form one group. Default: as
            ``group_by`` says.
        record: only this record: its id, or else its number from 0. Default: all.
        unpack: what a packed file may unpack to, as ``"4G"`` or in bytes. Default: by its size.
        map: name → the key, or the path of keys, that is read as it, as ``{"rewards": "score"}`` or
            ``{"rewards": "info.score"}``. Default: every name that files may use.

    Returns:
        An iterator of dicts.

    Raises:
        UsageError: for an argument that cannot be understood.
        InputError: if the data cannot be read, with file, line and place.
    """
    if format is not None:
        complete.known("format", str(format), (CANONICAL, *FORMATS))
    how: dict[str, Any] = {"where": where, "group_by": group_by, "group_size": group_size}
    how |= {"format": format, "unpack": read_size(unpack)}
    how["record"] = None if record is None else str(record)
    how["mapped"] = tuple(read_mapping(f"{name}={place}") for name, place in (map or {}).items())
    return _canonical(reader_of(data, **how)[0])


@asked
def convert(
    data: Data,
    path: Path,
    *,
    where: Texts = (),
    group_by: Texts = (),
    group_size: int | None = None,
) -> int:
    """Writes data as canonical JSONL, or as Parquet, which evaluate to the same numbers.

    Args:
        data: as ``evaluate`` takes it.
        path: the file, ``.jsonl`` or ``.parquet``.
        where, group_by, group_size: as ``evaluate`` takes them. Default: all, each row a record.

    Returns:
        How many records were written.

    Raises:
        UsageError: for a file that cannot be written.
        InputError: for data that cannot be read; then there is no file.
    """
    from grpo_cli.commands.convert.command import Conversion
    from grpo_cli.commands.options.place import destination

    place = os.fspath(path)
    if not place.endswith((".jsonl", ".parquet")):
        raise UsageError(f"{place}: a file's name ends in .jsonl or .parquet")
    reader, _ = reader_of(data, where=where, group_by=group_by, group_size=group_size)
    run = Conversion(reader, as_table=place.endswith(".parquet"), as_json=False)
    with destination(place, "path") as stream:
        run.write(stream)
    return run.records


def _canonical(reader: Reader) -> Iterator[dict[str, Any]]:
    with speaking_of_arguments():
        for place, (raw, _) in enumerate(reader.records()):
            yield canonical(raw, place)


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


def digits(name: str, number: float | str) -> str:
    """The text of a number.

    Raises:
        UsageError: for one that is not finite.
    """
    text = number if isinstance(number, str) else str(np.asarray(number)[()])
    try:
        finite = abs(float(text)) < float("inf")
    except ValueError:
        finite = False
    if not finite or "_" in text:
        raise UsageError(f"{name}: expected a finite number, got {number!r}")
    return text


def listed(texts: Texts | None) -> list[str]:
    """One text, or several, as a list; none for None.

    Raises:
        UsageError: for anything else.
    """
    texts = () if texts is None else texts
    found = [texts] if isinstance(texts, str) or not isinstance(texts, Iterable) else [*texts]
    for one in found:
        if not isinstance(one, str):
            raise UsageError(f"where, having and group_by: expected text, got {one!r}")
    return found


def reader_of(
    data: Data,
    *,
    where: Texts = (),
    group_by: Texts = (),
    group_size: int | None = None,
    jobs: int | None = 1,
    skip: bool = False,
    **how: Any,
) -> tuple[Reader, list[str]]:
    """A reader of the data, and the paths that a command line would name; none of records.

    Args:
        data: in any shape.
        where, group_by, group_size: as ``read`` takes them.
        jobs: worker processes; None: as many as the input is worth.
        skip: whether records that cannot be read are skipped.
        how: more of ``Reading``.
    """
    size = None if group_size is None else whole("group_size", group_size, 1)
    how |= {
        "where": read_conditions(listed(where)),
        "grouping": read_grouping(listed(group_by), size),
    }
    if isinstance(data, Mapping):
        return Reader([_MEMORY], Held(objects=(data,), alone=True, **how), skip=skip), []
    if hasattr(data, "collect"):  # lazy frames of polars
        data = data.collect()
    if hasattr(data, "columns"):
        data = _rows_of_frame(data)
    try:
        given: list[Any] = [data] if isinstance(data, str | os.PathLike) else list(data)
    except TypeError:
        raise _no_data(type(data).__name__) from None
    paths = [os.fspath(one) for one in given if isinstance(one, str | os.PathLike)]
    if given and len(paths) == len(given):
        return Reader(expanded(paths), Reading(**how), jobs=jobs, skip=skip), paths
    records = tuple(one for one in given if isinstance(one, Mapping))
    if not records or len(records) < len(given):
        odd = next((one for one in given if not isinstance(one, Mapping)), None)
        raise _no_data("nothing" if odd is None else type(odd).__name__)
    return Reader([_MEMORY], Held(objects=records, **how), skip=skip), []


def reading_flags(where: Texts, group_by: Texts, group_size: int | None) -> list[str]:
    """How the data are read, as words of a command line."""
    fields = ",".join(listed(group_by))
    flags = ["--group-by", fields] if fields else []
    flags += [] if group_size is None else ["--group-size", str(group_size)]
    return flags + [word for test in listed(where) for word in ("--where", test)]


def _rows_of_frame(frame: Any) -> list[Record]:
    """The rows of a data frame of polars, an Arrow table, or a data frame of pandas."""
    for name, words in (("to_dicts", ()), ("to_pylist", ()), ("to_dict", ("records",))):
        if hasattr(frame, name):
            rows: list[Record] = getattr(frame, name)(*words)
            return rows
    raise _no_data(type(frame).__name__)


def _no_data(got: str) -> UsageError:
    return UsageError(f"data: expected a record, records, a path or paths, got {got}{_EXAMPLE}")


_EXAMPLE = (
    '; a record is a dict, as {"log_probs_new": [[-0.2, -0.3]], "log_probs_old": [[-0.5, -0.6]], '
    '"rewards": [1.0]}, or of arrays'
)
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
        made = value.tolist()
        of_arrays = isinstance(made, list) and made and hasattr(made[0], "tolist")  # as in pandas
        return [*map(plain, made)] if of_arrays else made
    return np.asarray(value).tolist() if hasattr(value, "__array__") else value


_AS_IN_A_FILE = frozenset({float, int, str, bool, type(None)})
