"""``report`` and ``convert`` as functions: they write a file."""

from __future__ import annotations

import os
from typing import Any, Literal, cast

from grpo_cli.api.arguments import asked
from grpo_cli.api.data import Data, Path, Texts, reader_of
from grpo_cli.api.evaluation import Hyperparameter
from grpo_cli.api.questions import Stages, trend
from grpo_cli.commands.trend.comparison import Trend
from grpo_cli.errors import UsageError


@asked
def report(
    data: Data,
    path: Path,
    variant: str = "grpo",
    *,
    step: str | None = None,
    one_run: bool = False,
    where: Texts = (),
    group_by: Texts = (),
    group_size: int | None = None,
    stages: Stages = None,
    batch: Literal["input", "record"] = "input",
    **hyperparameters: Hyperparameter,
) -> Trend:
    """Writes a run as one HTML page: its series, steps, groups and tokens.

    Args:
        data: the run, as ``trend`` takes it.
        path: the page, ``.html``.
        variant, step, one_run, where, group_by, group_size, stages, batch, **hyperparameters: as
            ``trend`` takes them.

    Returns:
        What ``trend`` finds in the run.

    Raises:
        UsageError: for an unknown name, or a page that cannot be written.
        InputError: for data that cannot be read, or without a step.
    """
    how: dict[str, Any] = {"where": where, "group_by": group_by, "group_size": group_size}
    how |= {"step": step, "one_run": one_run, "stages": stages, "batch": batch, **hyperparameters}
    return cast("Trend", trend(data, variant, html=path, **how))


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
    from grpo_cli.commands.convert.conversion import Conversion
    from grpo_cli.commands.options.place import destination

    place = os.fspath(path)
    if not place.endswith((".jsonl", ".parquet")):
        raise UsageError(f"{place}: a file's name ends in .jsonl or .parquet")
    reader, _ = reader_of(data, where=where, group_by=group_by, group_size=group_size)
    run = Conversion(reader, as_table=place.endswith(".parquet"), as_json=False)
    with destination(place, "path") as stream:
        run.write(stream)
    return run.records
