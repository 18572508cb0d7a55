"""What each mistake makes of a record, and that several are tried together as each alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from files import expressions, some

from grpo_cli import evaluate
from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.cause import IMPOSSIBLE
from grpo_cli.commands.verify.causes.located import located
from grpo_cli.commands.verify.causes.search import TIERS
from grpo_cli.commands.verify.compare import Tolerance
from grpo_cli.commands.verify.expected import read_expectations
from grpo_cli.records import parse
from grpo_cli.variants.plan import plan

ROW = "trl/dapo"
MISTAKES: dict[str, dict[str, Any]] = {
    "response-mean": {"stages": {"aggregate": "response-mean"}},
    "unclipped": {"stages": {"surrogate": "unclipped"}},
    "sequence": {"stages": {"ratio": "sequence"}},
    "epsilon": {"epsilon_low": 0.1, "epsilon_high": 0.1},
    "group-mean": {"stages": {"advantage": "group-mean"}},
    "none": {},
    "typed": {},
}


def record(
    random: np.random.Generator, at: int, mistake: str, *, masked: bool, row: str = ROW
) -> Any:
    count = 3 + at % 3
    old = [random.uniform(-3, -0.1, length) for length in random.integers(2, 9, count)]
    made: dict[str, Any] = {
        "log_probs_new": [np.minimum(row + random.normal(0, 0.3, len(row)), 0) for row in old],
        "log_probs_old": old,
        "rewards": random.integers(0, 90, count) / 10 + 0.05 * np.arange(count),
        "hyperparameters": {"num_items_in_batch": 17 + at, "gradient_accumulation_steps": 2},
    }
    if row != ROW:
        for name in ("log_probs_ref", "log_probs_rollout"):
            made[name] = [np.minimum(one + random.normal(0, 0.2, len(one)), 0) for one in old]
        made["entropies"] = [random.uniform(0.1, 2.0, len(one)) for one in old]
    if at:
        made["group_ids"] = [0, 0, *[1] * (count - 2)]
    if masked:
        made["mask"] = [[*(int(k % 4 != 2) for k in range(len(one) - 1)), 0] for one in old]
    made = orjson.loads(orjson.dumps(made, option=orjson.OPT_SERIALIZE_NUMPY))
    wrong = MISTAKES[mistake]
    seen = evaluate(made, row, batch="record", **wrong)
    gradient = seen.gradient
    if masked:
        each = (iter(one) for one in gradient)
        gradient = [
            [next(rest) if kept else None for kept in mask]
            for rest, mask in zip(each, made["mask"], strict=True)
        ]
    loss = seen.loss * (1.0 if wrong else 1.5)
    loss = float(f"{loss:.5g}") if mistake == "typed" else loss
    made["expected"] = {"loss": loss, "gradient": gradient}
    return parse(orjson.loads(orjson.dumps(made, option=orjson.OPT_SERIALIZE_NUMPY)))


@np.errstate(all="ignore")
@pytest.mark.parametrize(("mistake", "masked"), some([*product(MISTAKES, [False, True])], 2))
def test_causes_are_tried_on_many_records_as_on_each(mistake, masked) -> None:
    random, within, row = np.random.default_rng(5), Tolerance(), plan(ROW, batch="record")
    records = [record(random, at, mistake, masked=masked) for at in range(3)]
    wanted = [read_expectations(one)[0] for one in records]
    cases = [Case.of([one], [own], row, within) for one, own in zip(records, wanted, strict=True)]
    together = Case.of(records, wanted, row, within)
    assert located(together) == [located(case)[0] for case in cases]
    tried = fitting = 0
    for source in (source for tier in TIERS for source, _ in tier):
        causes = []
        with suppress(*IMPOSSIBLE):
            causes += [cause for cause in source(cases[0]) if cause.by_record]
        for cause in causes:
            try:
                many = cause.evaluate(together)
            except IMPOSSIBLE:  # then it is tried on each alone
                continue
            each = [cause.evaluate(case) for case in cases]
            misfits = [case.misfit(one) for case, one in zip(cases, each, strict=True)]
            assert together.misfits(many).tolist() == misfits, cause.words
            for name in ("gradient", "record_objective"):
                alone = np.concatenate([getattr(one, name) for one in each])
                assert np.array_equal(getattr(many, name), alone, equal_nan=True), cause.words
            tried, fitting = tried + 1, fitting + int(np.isfinite(misfits).sum())
    assert tried > 30
    assert fitting >= 3 or not MISTAKES[mistake]


def suspects(row: str) -> Iterator[str]:
    """The words of each mistake that is tried on a record, the loss and Σ n·∂J/∂log π_θ of it."""
    made = record(np.random.default_rng(5), 2, "group-mean", masked=True, row=row)
    case = Case.of([made], [read_expectations(made)[0]], plan(row, batch="record"), Tolerance())
    for source in (source for tier in TIERS for source, _ in tier):
        with suppress(*IMPOSSIBLE):
            for cause in source(case):
                with suppress(*IMPOSSIBLE):
                    found = cause.evaluate(case)
                    moment = found.gradient @ np.arange(1.0, len(found.gradient) + 1.0)
                    numbers = round(-float(found.record_objective[0]), 6), round(float(moment), 5)
                    yield f"{cause.words}: {numbers[0] + 0.0:.6f} {numbers[1] + 0.0:.5f}"


@np.errstate(all="ignore")
def test_what_each_mistake_makes_of_a_record() -> None:
    path = Path(__file__).parent / "cases" / "suspects.txt"
    expressions(path, {"suspects": lambda row: [*suspects(row)]})
