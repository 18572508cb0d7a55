"""A whole batch asked for its tokens: one evaluation, of which each chunk gives its first rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from grpo_cli.commands.eval.run import Run
from grpo_cli.commands.show.answer import Shown
from grpo_cli.commands.show.ranking import COLUMN, FirstTokens, Ranked
from grpo_cli.commands.show.strings import RANKS, ROW, StringSums, StringTables
from grpo_cli.engine import Evaluation, Reader
from grpo_cli.engine.rows.fields import FIELDS, SHARES
from grpo_cli.engine.rows.having import read_having
from grpo_cli.errors import UsageError
from grpo_cli.records.choose.grouping import batch_fields
from grpo_cli.records.choose.where import spelled
from grpo_cli.variants.plan import Plan

LACKING = {
    "kl": "this objective has no KL; --kl k3 adds one (needs log_probs_ref)",
    "mismatch": "the record has no log_probs_rollout (the engine's log-probs)",
    "log_prob": "the record has ratios instead of log-probs",
    "difference": "the record has ratios instead of log-probs of two policies",
}
"""Quantity → why there is none."""


def show_rows(
    reader: Reader,
    plan: Plan,
    *,
    by: str,
    top: int,
    strings: bool = False,
    having: Sequence[str] = (),
    make: Callable[..., Evaluation] = Evaluation,
) -> tuple[Shown, Evaluation]:
    """The tokens of all records that stand out most, or the token strings; and the evaluation.

    Args:
        reader: the files.
        plan: which objective.
        by: the quantity that ranks the rows.
        top: how many.
        strings: whether a row is a token string, with what its tokens add up to.
        having: what rows must hold.
        make: makes the evaluation.

    Raises:
        UsageError: for a column that there is not, or a quantity that no record has.
    """
    if strings and by not in RANKS:
        raise UsageError(f"--by {by}: token strings are ranked by {', '.join(RANKS)}")
    fields = tuple(map(spelled, batch_fields(plan.batch)))
    wanted = read_having(having, "token", ROW if strings else (*fields, *FIELDS["token"]))
    rank = COLUMN.get(by, by)
    if by == "share" and plan.batch == "input":
        rank = "gradient"  # which ranks alike, and is known in one pass
    if strings:
        run = make(reader, plan, encode=StringSums.of, rows=True)
    else:
        shares = rank in SHARES or (wanted is not None and wanted.needs_shares)
        encode = FirstTokens(rank, top)
        run = make(reader, plan, encode=encode, rows=True, shares=shares, having=wanted)
    found: Any = StringTables(by) if strings else Ranked(top)
    for pieces in run:
        found.add(pieces)
    rows = found.rows()
    if strings:
        rows = [row for row in rows if wanted is None or wanted.holds(row)]
        count = len(rows)
    else:
        _complete(rows, run)
        count = run.total["tokens"] if wanted is None else run.shown
        if not rows and top and count:
            raise UsageError(f"--by {by}: {LACKING.get(by, 'no token has it')}")
    share = "contribution_share" if by == "contribution" else "share"
    carried = sum(row[share] for row in rows[:top]) if plan.batch == "input" else None
    total = {} if isinstance(run, Run) and run.empty else run.total
    of: Literal["string", "token"] = "string" if strings else "token"
    head = (plan.variant, run.signature, of, by, count, carried, total)
    return Shown(*head, rows[:top], run.notices), run


def _complete(rows: Sequence[dict[str, Any]], run: Evaluation) -> None:
    """Fills in the shares of tokens, whose batch is only known now."""
    for row in rows:
        if row["share"] != row["share"]:
            sizes = zip(SHARES, ("gradient", "contribution"), run.size(row), strict=True)
            row |= {name: abs(row[of]) / size if size else 0.0 for name, of, size in sizes}
