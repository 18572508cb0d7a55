"""Verdicts on single records, in the process of the test."""

from __future__ import annotations

import math
from collections.abc import Sequence

from grpo_cli.commands.verify.answer import Verdict
from grpo_cli.commands.verify.compare import Tolerance
from grpo_cli.commands.verify.expected import read_expectations
from grpo_cli.commands.verify.quantities import METRICS
from grpo_cli.commands.verify.verdict import Question, judge
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.errors import InputError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.records import Record
from grpo_cli.variants.plan import Plan


def judge_many(records: Sequence[Record], plan: Plan, tolerance: Tolerance) -> list[Verdict]:
    """The verdicts on records of one kind, without causes."""
    breakdown = Chunk.of(records).run(Evaluator(plan).evaluate)
    questions = [Question(record, plan, read_expectations(record)) for record in records]
    verdicts = []
    for judged in judge(questions, breakdown, tolerance):
        if isinstance(judged, InputError):
            raise judged
        verdicts.append(judged.verdict)
    return verdicts


def judge_one(record: Record, plan: Plan, tolerance: Tolerance) -> Verdict:
    """The verdict on a record; where it differs, without a cause."""
    (verdict,) = judge_many([record], plan, tolerance)
    return verdict


def metric(name: str, breakdown: Breakdown) -> float | None:
    """A metric of a single record; None where it has none."""
    found = METRICS[name](breakdown)
    if found is None:
        return None
    (value,) = found.tolist()
    return None if math.isnan(value) else value
