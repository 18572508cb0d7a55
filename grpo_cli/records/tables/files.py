"""Pyarrow, and the files that it opens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from grpo_cli.errors import InputError
from grpo_cli.records.open.address import Address
from grpo_cli.records.open.streams import opened


def package() -> Any:
    """Pyarrow, imported when it is needed.

    Raises:
        InputError: where it is not installed.
    """
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError:
        advice = "pip install 'grpo-cli[parquet]'"
        raise InputError(f"Parquet and Arrow need one more package: {advice}") from None
    return pyarrow


@contextmanager
def damage(pa: Any, source: str) -> Iterator[None]:
    """Says of a file that it is damaged, in one line, where it cannot be read."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        what = (str(error).splitlines() or ["?"])[0]
        raise InputError(f"the file is damaged: {what}", source=source) from None


def parquet_file(pa: Any, path: str) -> Any:
    """A Parquet file, wherever it is."""
    if isinstance(path, Address):
        return pa.parquet.ParquetFile(opened(path), pre_buffer=True)
    return pa.parquet.ParquetFile(path)


def mapped(pa: Any, path: str) -> Any:
    """An Arrow file, wherever it is, as a stream."""
    return pa.PythonFile(opened(path)) if isinstance(path, Address) else pa.memory_map(path)
