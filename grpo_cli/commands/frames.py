"""Columns of rows as arrays, and as the tables of packages that have data frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.engine.rows.fields import KINDS
from grpo_cli.errors import PackageError

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]
    import polars  # type: ignore[import-not-found]

Array = NDArray[Any]
Columns = Mapping[str, Array]
"""Name → one value a row; NaN for a number that is unknown or of nothing, None for a text."""


class Frames:
    """What has rows, as data frames; what is unknown is null, and NaN or NA in pandas.

    ``columns`` has every column, a data frame those that have a value.
    """

    def table(self) -> Sequence[Mapping[str, Any]]:
        """The rows that a prompt shows."""
        raise NotImplementedError

    def columns(self) -> Columns:
        """The rows as arrays by name; a number that is unknown is NaN."""
        return columns_of(self.table())

    def to_arrow(self) -> Any:
        """The rows as an Arrow table.

        Raises:
            PackageError: where pyarrow is not installed.
        """
        return arrow_table(with_values(self.columns()))

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a data frame of pandas."""
        return pandas_frame(with_values(self.columns()))

    def to_polars(self) -> polars.DataFrame:
        """The rows as a data frame of polars."""
        return polars_frame(with_values(self.columns()))


def with_values(found: Columns) -> Columns:
    """The columns that have a value in some row; all where there are no rows.

    ``clip`` is always there, since null says that nothing clips the token.
    """
    return {n: one for n, one in found.items() if not len(one) or n == "clip" or _has_value(one)}


def _has_value(values: Array) -> bool:
    if values.dtype == object:
        return any(value is not None for value in values)
    return not (values != values).all()


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """Rows of the same keys as arrays by name; a number that is unknown is NaN."""
    return {name: array([row[name] for row in rows]) for name in (rows[0] if rows else ())}


def arrow_table(found: Columns) -> Any:
    """An Arrow table; what is unknown is null.

    Raises:
        PackageError: where pyarrow is not installed.
    """
    arrow = _package("pyarrow")
    types = _types(found, text=arrow.string(), whole=arrow.int64())
    return arrow.table(
        {n: arrow.array(one, type=types.get(n), from_pandas=True) for n, one in found.items()}
    )


def pandas_frame(found: Columns) -> pandas.DataFrame:
    """A data frame of pandas; a number that is unknown is NaN, a whole one NA.

    Raises:
        PackageError: where pandas is not installed.
    """
    pandas = _package("pandas")
    text = pandas.Series([""]).dtype  # "object" before pandas 3
    return pandas.DataFrame(dict(found)).astype(_types(found, text=text, whole="Int64"))


def polars_frame(found: Columns) -> polars.DataFrame:
    """A data frame of polars; what is unknown is null.

    Raises:
        PackageError: where polars is not installed.
    """
    polars = _package("polars")
    # Of texts among NaN polars makes objects; of lists, texts and nulls.
    data = {n: one.tolist() if one.dtype == object else one for n, one in found.items()}
    types = _types(found, text=polars.String, whole=polars.Int64)
    return polars.DataFrame(data, schema_overrides=types, nan_to_null=True)


def _package(name: str) -> Any:
    """A package that rows are handed to, imported where it is asked for.

    Raises:
        PackageError: with the command that installs it.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            needs = f"{name} needs {error.name}, which is not installed: pip install {error.name}"
            raise PackageError(needs, name=name) from error
        raise PackageError(f"{name} is not installed: pip install {name}", name=name) from None
    except ImportError as error:
        why = " ".join(str(error).split())
        raise PackageError(f"{name} cannot be imported: {why}", name=name) from error


def _types(found: Columns, *, text: Any, whole: Any) -> dict[str, Any]:
    """The types that arrays do not show: of texts without a value, of whole numbers and NaN."""
    types = {n: text for n, one in found.items() if one.dtype == object and not _has_value(one)}
    floats = (n for n, one in found.items() if one.dtype == np.float64)
    return types | {n: whole for n in floats if n in _WHOLE}


_WHOLE = {"record", "token", *(name for name, kind in KINDS.items() if kind == "whole")}
"""Columns of whole numbers; where one is unknown, arrays have floats. ``check`` counts tokens."""


def array(values: Any) -> Array:
    """Numbers as numbers, None among them as NaN; anything else as objects.

    Numbers among texts are texts, as in Parquet: data frames have columns of one kind.
    """
    if isinstance(values, np.ndarray):
        return values
    values = list(values)
    given = [value for value in values if value is not None]
    if given and all(type(value) is int for value in given) and len(given) == len(values):
        with suppress(OverflowError):
            return np.array(values, dtype=np.int64)
        return np.array(values, dtype=object)
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in given):
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    if str in map(type, given):
        values = [str(value) if isinstance(value, int | float) else value for value in values]
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found
