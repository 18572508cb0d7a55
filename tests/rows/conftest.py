"""Records and their breakdowns, from the records' own text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from grpo_cli.objective import pipeline
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.records import Record, assemble, parse
from grpo_cli.variants.plan import plan

Evaluated = tuple[list[Record], Breakdown]


@pytest.fixture
def evaluated() -> Callable[..., Evaluated]:
    """Evaluates records together, as one chunk."""

    def evaluate(*values: dict[str, Any], variant: str = "dr", **flags: object) -> Evaluated:
        records = [parse(one, source="x.jsonl", line=n) for n, one in enumerate(values, 1)]
        given = records[0].advantages is not None
        chosen = plan(variant, hyperparameters=flags)
        objective = chosen.objective(records[0].hyperparameters, advantages_given=given)
        return records, pipeline.evaluate(assemble(records), objective)

    return evaluate
