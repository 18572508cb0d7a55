"""A whole batch asked for its tokens: one evaluation, of which each chunk gives its first rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_cli.commands.eval.run import Run
from grpo_cli.commands.show.answer import Shown
from grpo_cli.commands.show.ranking import COLUMN, FirstTokens, Ranked
from grpo_cli.commands.show.strings import RANKS, ROW, StringSums, StringTables
from grpo_cli.engine import Evaluation, Reader
from grpo_cli.engine.rows.fields import FIELDS, SHARES
from grpo_cli.engine.rows.having import read_having
from grpo_cli.errors import UsageError
from grpo_cli.records.choose.batches import batch_fields
from grpo_cli.records.choose.where import spelled
from grpo_cli.variants.plan import Plan

Make = Callable[..., Evaluation]

LACKING = {
    "kl": "this objective has no KL; --kl k3 adds one (needs log_probs_ref)",
    "mismatch": "the record has no log_probs_rollout (the engine's log-probs)",
    "log_prob": "the record has ratios instead of log-probs",
    "difference": "the record has ratios instead of log-probs of two policies",
}
"""Quantity → why there is none."""


def show_tokens(
    reader: Reader,
    plan: Plan,
    *,
    by: str,
    top: int,
    having: Sequence[str] = (),
    make: Make = Evaluation,
) -> tuple[Shown, Evaluation]:
    """The tokens of all records that stand out most, and the evaluation that found them.

    Args:
        reader: the files.
        plan: which objective.
        by: the quantity that ranks them.
        top: how many.
        having: what rows must hold.
        make: makes the evaluation.

    Raises:
        UsageError: for a column that there is not, or a quantity that no record has.
    """
    fields = tuple(map(spelled, batch_fields(plan.batch)))
    wanted = read_having(having, "token", (*fields, *FIELDS["token"]))
    needs = wanted is not None and wanted.needs_shares
    rank = COLUMN.get(by, by)
    if by == "share" and plan.batch == "input":
        rank = "gradient"  # which ranks alike, and is known in one pass
    shares = needs or rank in SHARES
    encode = FirstTokens(rank, top)
    run = make(reader, plan, encode=encode, rows=True, shares=shares, having=wanted)
    ranked = Ranked(top)
    for rows in run:
        ranked.add(rows)
    found = ranked.rows()
    if not found and top and run.total["tokens"] and not (wanted and not run.shown):
        raise UsageError(f"--by {by}: {LACKING.get(by, 'no token has it')}")
    for row in found:
        if row["share"] != row["share"]:  # the sizes are known only now
            sizes = zip(SHARES, ("gradient", "contribution"), run.size(row), strict=True)
            row |= {name: abs(row[of]) / size if size else 0.0 for name, of, size in sizes}
    count = run.total["tokens"] if wanted is None else run.shown
    return _answer(plan, run, "token", by, count, found), run


def show_strings(
    reader: Reader,
    plan: Plan,
    *,
    by: str,
    top: int,
    having: Sequence[str] = (),
    make: Make = Evaluation,
) -> tuple[Shown, Evaluation]:
    """What the tokens of each string add up to; as ``show_tokens``."""
    if by not in RANKS:
        raise UsageError(f"--by {by}: token strings are ranked by {', '.join(RANKS)}")
    wanted = read_having(having, "token", ROW)
    run = make(reader, plan, encode=StringSums.of, rows=True)
    tables = StringTables()
    for pieces in run:
        tables.add(pieces)
    rows = [row for row in tables.rows(by) if wanted is None or wanted.holds(row)]
    return _answer(plan, run, "string", by, len(rows), rows[:top]), run


def _answer(
    plan: Plan, run: Evaluation, of: Any, by: str, count: int, rows: Sequence[Mapping[str, Any]]
) -> Shown:
    share = "contribution_share" if by == "contribution" else "share"
    carried = sum(row[share] for row in rows) if plan.batch == "input" else None
    empty = isinstance(run, Run) and run.empty
    total = {} if empty else run.total
    return Shown(plan.variant, run.signature, of, by, count, carried, total, rows, run.notices)
