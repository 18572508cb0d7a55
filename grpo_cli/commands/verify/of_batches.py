"""Losses of whole batches in records that are compared one by one, and what is said of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import isclose
from typing import Any

from grpo_cli.commands.verify.answer import Verdict
from grpo_cli.engine import Evaluation, Reader
from grpo_cli.errors import GrpoError
from grpo_cli.terminal.numbers import shell_line
from grpo_cli.variants.plan import Plan

SUMS = ("loss", "objective")


def losses_of_batches(
    reader: Reader, plan: Plan, verdicts: Sequence[Verdict], rtol: float
) -> str | None:
    """The note where records expect the loss of their whole batch, which is right for that.

    A trainer logs one loss for a step. Records of several prompts that repeat it differ from their
    own losses, although nothing is wrong. It costs a pass, and only where no record agrees and
    each shares the number that it expects with another.

    Args:
        reader: the files; they are read again.
        plan: what the records were evaluated as.
        verdicts: on all of them.
        rtol: the relative tolerance.
    """
    firsts = [each.first for each in verdicts if each.first is not None]
    keys = {each.key for each in firsts}
    yours = Counter(each.expected for each in firsts)
    alone = len(firsts) < len(verdicts) or min(yours.values(), default=1) < 2
    if alone or len(keys) > 1 or not keys <= {*SUMS} or "-" in reader.paths:
        return None
    steps = (name for name, values in reader.facts.steps.items() if len(values) > 1)
    batch, (key,) = next(steps, "input"), keys
    run = Evaluation(reader.only({}), replace(plan, batch=batch), encode=None)
    try:
        for _ in run:
            pass
    except GrpoError:
        return None  # verify has said what is wrong with the records
    found: list[Any] = [row[key] for row in run.batches or [run.total]]
    if not all(any(isclose(one, each, rel_tol=rtol) for each in found) for one in yours):
        return None
    whole = "of its whole step" if batch != "input" else "of all records together"
    words = [*replace(plan, batch=batch).words, "--level", "batch", "--only", key]
    command = shell_line(["grpo", "eval", *reader.paths, *words])
    return (
        f"each record expects the {key} {whole}, and grpo's is the same there: verify takes each "
        f"record as a batch of its own; compare with {command}"
    )
