"""Verdicts on single records, in the process of the test."""

from __future__ import annotations

import math
from dataclasses import replace

from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.search import causes, pattern
from grpo_cli.commands.verify.compare import Tolerance
from grpo_cli.commands.verify.expected import read_expectations
from grpo_cli.commands.verify.quantities import METRICS
from grpo_cli.commands.verify.verdict import Verdict, judge
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.errors import InputError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.records import Record
from grpo_cli.variants.plan import Plan


def judge_one(record: Record, plan: Plan, tolerance: Tolerance) -> Verdict:
    """The verdict on a record; where it differs, without a cause."""
    breakdown = Chunk.of([record]).run(Evaluator(plan).evaluate)
    wanted = read_expectations(record)
    (verdict,) = judge([record], [wanted], breakdown, tolerance, plan.variant)
    if isinstance(verdict, InputError):
        raise verdict
    return verdict


def explain_one(record: Record, plan: Plan, tolerance: Tolerance) -> Verdict:
    """The verdict on a record, and why it differs."""
    verdict = judge_one(record, plan, tolerance)
    if verdict.agrees:
        return verdict
    case = Case.of(record, plan, tolerance)
    found = causes(case)
    return replace(verdict, causes=tuple(found), pattern="" if found else pattern(case))


def metric(name: str, breakdown: Breakdown) -> float | None:
    """A metric of a single record; None where it has none."""
    found = METRICS[name](breakdown)
    if found is None:
        return None
    (value,) = found.tolist()
    return None if math.isnan(value) else value
