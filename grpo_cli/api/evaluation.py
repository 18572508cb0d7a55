"""``evaluate``: one record, many, or files."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from grpo_cli.api.arguments import asked, of_arguments
from grpo_cli.api.data import Data, Texts, plain, reader_of
from grpo_cli.api.evaluated import Evaluated
from grpo_cli.batch import F64
from grpo_cli.commands.eval.run import total_notes, two_runs
from grpo_cli.engine.batches import BatchTotals
from grpo_cli.engine.evaluation import Evaluation
from grpo_cli.engine.rows.source import Source
from grpo_cli.engine.totals import record_sizes
from grpo_cli.errors import UsageError
from grpo_cli.variants import NAMES
from grpo_cli.variants.plan import Plan, plan

Hyperparameter = float | int | str | Sequence[float] | None
"""A value; of ``reward_weights`` a sequence."""


@asked
def evaluate(
    data: Data,
    variant: str = "grpo",
    *,
    stages: Mapping[str, str] | None = None,
    batch: str = "input",
    where: Texts = (),
    group_by: Texts = (),
    group_size: int | None = None,
    totals_only: bool = False,
    **hyperparameters: Hyperparameter,
) -> Evaluated:
    """Evaluates the objective of records, or of files of them.

    J = Σₜ wₜ·cₜ·sₜ − β·Σₜ w′ₜ·kₜ over the tokens that the mask keeps; loss = −J. The variant's
    page (``grpo explain VARIANT``) has its formula and its paper.

    >>> result = evaluate("samples/dr_grpo.json", "dr")
    >>> round(result.loss, 6), result.clip_fraction
    (0.074929, 0.5)
    >>> [row.tolist() for row in result.clip]
    [['high', 'high'], [None, None]]

    Args:
        data: a record (a dict), several, a path, folder or pattern, several paths, or a data frame
            whose rows are records.
            A record has, under any of the names that files may use, ``log_probs_new`` and
            ``log_probs_old`` as [G], [G][T] or [B][G][T] natural log-probs (nats, ragged or with
            a ``mask``), ``rewards`` [G] or ``advantages`` [G] or [G][T], ``log_probs_ref``, and
            ``hyperparameters``.
        variant: a variant's name or alias. Default: "grpo".
        stages: stage → choice that replaces the variant's, as ``{"kl": "k1"}``; or each as an
            argument, as ``kl="k1"``. Default: none.
        batch: which records form one batch: "input", all of them; each "record"; or those with
            the same values of fields, as "step" or "step,rank". Default: "input".
        where: only records that match, as ``"step==120 && env!=math"``. Default: all.
        group_by: rows with the same values here are one group, as ``"uid"`` or ``"step,uid"``.
            Default: each row is a record.
        group_size: how many rows, or responses of a record, form one group. Default: as
            ``group_by`` says.
        totals_only: keeps only the totals, so that files of any size need little memory.
            Default: False.
        **hyperparameters: values that win over the record's and the variant's, as ``beta=0.1``;
            ``grpo explain VARIANT`` lists those of a variant, ``grpo variants --hyperparameters``
            all.

    Returns:
        The totals as attributes (``loss``, ``policy``, ``clip_fraction``, …; ``total`` has all by
        name), ``signature``, ``notices``, lists of one array per response (``ratio``, ``kl``,
        ``advantage``, …; ``total["kl"]`` is the batch's), and rows by ``to_polars``,
        ``to_pandas``, ``to_arrow`` and ``columns``.

    Raises:
        UsageError: for an unknown name, or a value out of range.
        InputError: for data that cannot be read, with its place in the record.

    References:
        Shao et al., DeepSeekMath, 2024 (arXiv 2402.03300), for ``grpo``; ``VARIANTS[name].paper``.
    """
    made = planned(one_variant(variant), stages, hyperparameters, batch)
    one = isinstance(data, Mapping)  # a batch of its own: no pass over it for denominators
    how: dict[str, Any] = {"where": where, "group_by": group_by, "group_size": group_size}
    found = _evaluated(data, made, how, totals_only=totals_only, rows=not one)
    if one and found.total["records"] != 1:
        found = _evaluated(data, made, how, totals_only=totals_only, rows=True)
    return found


def _evaluated(
    data: Data, made: Plan, how: Mapping[str, Any], *, totals_only: bool, rows: bool
) -> Evaluated:
    reader, _ = reader_of(data, **how)
    parts: list[Source] = []

    def keep(source: Source) -> list[bytes]:
        parts.append(source)
        return []

    encode = None if totals_only else keep
    run = Evaluation(reader, made, encode=encode, rows=rows and not totals_only)
    for _ in run:
        pass
    notes_found = (*run.notices, *two_runs(reader), *total_notes(run))
    notices = [of_arguments(note) for note in notes_found]
    if made.batch != "record":  # whose sizes each part has
        batches = run.sums.batches if rows else None
        parts = [Source(one.records, one.breakdown, partial(_sizes, batches, one)) for one in parts]
    return Evaluated(run.total, run.signature, notices, parts, run.batches, made.variant)


def _sizes(batches: BatchTotals | None, source: Source) -> F64:
    """[M, 2] the ``Sizes`` of each record's batch; without batches it is its own."""
    if batches is None:
        return record_sizes(source.breakdown)
    return np.array([batches.size(one.batch or {}) for one in source.records])


def one_variant(variant: Any) -> Any:
    """The variant of a function that takes one.

    Raises:
        UsageError: for several, or no name.
    """
    if not isinstance(variant, str):
        expected = f'expected a name, as "dr", got {variant!r} (compare takes several)'
        raise UsageError(f"variant: {expected}")
    return variant


def several_variants(given: Any) -> list[str]:
    """The names of variants.

    Raises:
        UsageError: for a second run in their place.
    """
    found = [given] if isinstance(given, str) or not isinstance(given, Iterable) else [*given]
    for one in found:
        is_file = isinstance(one, str) and one not in NAMES and pathlib.Path(one).exists()
        if is_file or not isinstance(one, str) or hasattr(given, "columns"):
            got = f"the file {one}" if is_file else type(given).__name__
            raise UsageError(
                f'variants: expected names, as "dr,dapo", got {got}; diff(first, second) compares '
                "two runs"
            )
    return found


def planned(
    variant: str,
    stages: Mapping[str, str] | None,
    hyperparameters: Mapping[str, Hyperparameter],
    batch: str = "input",
    *,
    strict: bool = True,
) -> Plan:
    """The objective.

    Raises:
        UsageError: for a name or value that cannot be used.
    """
    if not isinstance(stages, Mapping | None):
        raise UsageError(f'stages: expected a dict, as {{"kl": "k1"}}, got {stages!r}')
    for stage, choice in (stages or {}).items():
        if not isinstance(choice, str):
            raise UsageError(f"{stage}: expected the name of a choice, got {choice!r}")
    if not isinstance(batch, str):
        expected = 'expected text, as "input", "record" or "step,rank"'
        raise UsageError(f"batch: {expected}, got {batch!r}")
    given = plain(hyperparameters)
    made = plan(variant, stages=stages, hyperparameters=given, batch=batch, strict=strict)
    return replace(made, asked=variant != "grpo")  # the default, of which nobody may have thought
