"""What explained one record is tried on others together: the outcome is that of each one alone."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import orjson
import pytest
from files import some

from grpo_cli import evaluate
from grpo_cli.commands.verify.causes.case import IMPOSSIBLE, Case
from grpo_cli.commands.verify.causes.search import TIERS, misfit
from grpo_cli.commands.verify.causes.suspects import suspects
from grpo_cli.commands.verify.compare import Tolerance
from grpo_cli.commands.verify.expected import read_expectations
from grpo_cli.commands.verify.judging import Judged
from grpo_cli.records import parse
from grpo_cli.variants.plan import plan

ROW = "trl/dapo"
MISTAKES: dict[str, dict[str, Any]] = {
    "response-mean": {"stages": {"aggregate": "response-mean"}},
    "unclipped": {"stages": {"surrogate": "unclipped"}},
    "sequence": {"stages": {"ratio": "sequence"}},
    "none": {},
    "typed": {},
}


def record(random: np.random.Generator, at: int, mistake: str, *, masked: bool) -> Any:
    count = 3 + at % 3
    old = [random.uniform(-3, -0.1, length) for length in random.integers(2, 9, count)]
    made: dict[str, Any] = {
        "log_probs_new": [np.minimum(row + random.normal(0, 0.3, len(row)), 0) for row in old],
        "log_probs_old": old,
        "rewards": random.integers(0, 90, count) / 10 + 0.05 * np.arange(count),
        "hyperparameters": {"num_items_in_batch": 17 + at, "gradient_accumulation_steps": 2},
    }
    if at:
        made["group_ids"] = [0, 0, *[1] * (count - 2)]
    if masked:
        made["mask"] = [[1] * (len(row) - 1) + [0] for row in old]
    made = orjson.loads(orjson.dumps(made, option=orjson.OPT_SERIALIZE_NUMPY))
    wrong = MISTAKES[mistake]
    seen = evaluate(made, ROW, batch="record", **wrong)
    gradient = [[*row, None] for row in seen.gradient] if masked else seen.gradient
    loss = seen.loss * (1.0 if wrong else 1.5)
    loss = float(f"{loss:.5g}") if mistake == "typed" else loss
    made["expected"] = {"loss": loss, "gradient": gradient}
    return parse(orjson.loads(orjson.dumps(made, option=orjson.OPT_SERIALIZE_NUMPY)))


@pytest.mark.parametrize("masked", some([True, False], 1))
@pytest.mark.parametrize("mistake", some([*MISTAKES], 2))
def test_causes_are_tried_on_many_records_as_on_each(mistake, masked) -> None:
    random, within, row = np.random.default_rng(5), Tolerance(), plan(ROW, batch="record")
    records = [record(random, at, mistake, masked=masked) for at in range(3)]
    unused: Any = None
    judged = [
        Judged(unused, row, False, one, None, within, False, read_expectations(one)[0])
        for one in records
    ]
    found = [*suspects(judged).values()]
    cases = [Case.of(one, row, within) for one in records]
    told = fitting = 0
    for source in (source for tier in TIERS for source, _ in tier):
        causes = []
        with suppress(*IMPOSSIBLE):
            causes += [cause for cause in source(cases[0]) if cause.by_record]
        for cause in causes:
            each = np.array([one.misfit(cause) for one in found])
            alone = np.array([misfit(cause, case) for case in cases])
            known = ~np.isnan(each)
            assert (each[known] == alone[known]).all(), cause.words
            told, fitting = told + int(known.sum()), fitting + int(np.isfinite(each).sum())
    if mistake == "typed":  # where one number alone differs, its digits matter
        assert told == 0
    else:
        assert told > 100
        assert fitting >= 5 or mistake == "none"
