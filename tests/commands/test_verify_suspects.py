"""What each mistake makes of a record, and that several are tried together as each alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import pytest
from files import expressions, some
from numpy.typing import NDArray

from grpo_cli import evaluate, verify
from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.cause import IMPOSSIBLE
from grpo_cli.commands.verify.causes.located import located
from grpo_cli.commands.verify.causes.search import TIERS
from grpo_cli.commands.verify.compare import Tolerance
from grpo_cli.commands.verify.expected import read_expectations
from grpo_cli.records import parse
from grpo_cli.variants.plan import plan

Numbers = NDArray[Any]
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
    return read(drawn(random, at, mistake, masked=masked, row=row))


def read(record: dict[str, Any]) -> Any:
    return parse(orjson.loads(orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY)))


def drawn(
    random: np.random.Generator, at: int, mistake: str, *, masked: bool, row: str
) -> dict[str, Any]:
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
        made["token_ids"] = [[*range(5, 4 + len(one)), 9 - at // 4] for at, one in enumerate(old)]
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
    return made


@np.errstate(all="ignore")
@pytest.mark.parametrize(("mistake", "masked"), some([*product(MISTAKES, [False, True])], 2))
def test_causes_are_tried_on_many_records_as_on_each(mistake, masked) -> None:
    random, within, row = np.random.default_rng(5), Tolerance(), plan(ROW, batch="record")
    records = [record(random, at, mistake, masked=masked) for at in range(3)]
    wanted = [read_expectations(one)[0] for one in records]
    cases = [Case.of([one], [own], row, within) for one, own in zip(records, wanted, strict=True)]
    together = Case.of(records, wanted, row, within)
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


def suspects(row: str, *expected: str) -> Iterator[str]:
    """The words of each mistake that is tried on a record, the loss and Σ n·∂J/∂log π_θ of it.

    ``expected``: what the record expects. Default: its loss and its gradient.
    """
    made = drawn(np.random.default_rng(5), 2, "group-mean", masked=True, row=row)
    for name in {*made["expected"]} - {*expected} if expected else ():
        del made["expected"][name]
    right = read(made)
    case = Case.of([right], [read_expectations(right)[0]], plan(row, batch="record"), Tolerance())
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
    expressions(path, {"suspects": lambda *given: [*suspects(*given)]})


# ---- what is said of gradients and losses that somebody changed ---------------------------------


class Given(NamedTuple):
    """What is known of the tokens of a record, each [N]."""

    ratio: Numbers
    clip: Numbers
    a: Numbers
    policy: Numbers
    rest: Numbers
    response: Numbers
    length: Numbers
    first: Numbers
    last: Numbers
    noise: Numbers

    @classmethod
    def of(cls, case: Case) -> Given:
        b, rows = case.breakdown, case.batch.responses
        return cls(
            b.ratio,
            b.clip,
            b.advantage,
            case.policy_gradient,
            case.without_policy.gradient,
            rows.index,
            rows.spread(rows.lengths),
            np.arange(rows.total) - rows.spread(rows.starts),
            rows.spread(rows.starts + rows.lengths) - 1 - np.arange(rows.total),
            np.random.default_rng(3).uniform(0.3, 1.9, rows.total),
        )


TOKENS: dict[str, Callable[[Given], Any]] = {
    "all": lambda of: of.first >= 0,
    "clipped": lambda of: of.clip != 0,
    "ratio > 1.2": lambda of: of.ratio > 1.2,
    "ratio < 0.8": lambda of: of.ratio < 0.8,
    "ratio outside": lambda of: abs(of.ratio - 1.0) > 0.2,
    "ratio > 1": lambda of: of.ratio > 1.0,
    "ratio < 1": lambda of: of.ratio < 1.0,
    "ratio > 1.1 with A > 0": lambda of: (of.ratio > 1.1) & (of.a > 0),
    "ratio < 0.9 with A < 0": lambda of: (of.ratio < 0.9) & (of.a < 0),
    "A > 0": lambda of: of.a > 0,
    "A < 0": lambda of: of.a < 0,
    "last": lambda of: of.last == 0,
    "first": lambda of: of.first == 0,
    "from the third on": lambda of: of.first >= 2,
    "response 1": lambda of: of.response == 1,
    "responses 0 and 3": lambda of: np.isin(of.response, (0, 3)),
    "one token": lambda of: np.arange(len(of.a)) == 4,
    "two tokens": lambda of: np.isin(np.arange(len(of.a)), (2, 9)),
    "a third": lambda of: of.noise < 0.8,
}
WAYS: dict[str, Callable[[Given], Any]] = {
    "no gradient": lambda of: 0.0 * of.policy,
    "doubled": lambda of: 2.0 * (of.policy + of.rest),
    "the other sign": lambda of: -of.policy + of.rest,
    "the KL alone": lambda of: of.rest,
    "no KL": lambda of: of.policy,
    "1.7 KL": lambda of: of.policy + 1.7 * of.rest,
    "noise": lambda of: of.noise * (of.policy + of.rest),
    "noise of a response": lambda of: of.noise[of.response] * of.policy + of.rest,
    "by length": lambda of: (of.policy + of.rest) * of.length / 5.0,
    "KL by length": lambda of: of.policy + of.rest * of.length / 5.0,
}


def places(row: str) -> Iterator[str]:
    """Where it is found that gradients differ, and in which stages, by what was done to some."""
    own, within = plan(row, batch="record"), Tolerance()
    made = drawn(np.random.default_rng(8), 5, "none", masked=False, row="grpo")
    right = read(made)
    of = Given.of(Case.of([right], [read_expectations(right)[0]], own, within))
    ends = np.flatnonzero(of.last == 0)[:-1] + 1
    names, records = [], []
    for (tokens, which), (way, change), times in product(TOKENS.items(), WAYS.items(), (1.0, 1.5)):
        gradient = times * np.where(which(of), change(of), of.policy + of.rest)
        names.append(f"{tokens}, {way}, × {times:g}")
        records.append(read(made | {"expected": {"gradient": np.split(gradient, ends)}}))
    for name, each in zip(names, records, strict=True):
        found = located(Case.of([each], [read_expectations(each)[0]], own, within))
        yield f"{name}: {found.words} [{', '.join(found.stages)}]"


@pytest.mark.more
def test_where_changed_gradients_differ() -> None:
    path = Path(__file__).parent / "cases" / "places.txt"
    expressions(path, {"places": lambda row: [*places(row)]})


# ---- what is named ------------------------------------------------------------------------------


WRONG: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "ε 0.1": lambda _: {"epsilon_low": 0.1, "epsilon_high": 0.1},
    "ε 0.2 to 0.28": lambda _: {"epsilon_high": 0.28},
    "no lower bound": lambda _: {"epsilon_low": 1.0},
    "no upper bound": lambda _: {"epsilon_high": 99.0},
    "no bounds": lambda _: {"epsilon_low": 1.0, "epsilon_high": 99.0},
    "β 0.1": lambda _: {"beta": 0.1},
    "β 0.0123": lambda _: {"beta": 0.0123},
    "no KL": lambda _: {"beta": 0.0},
    "β 0.1 and ε 0.3": lambda _: {"beta": 0.1, "epsilon_low": 0.3, "epsilon_high": 0.3},
    "std + 0.01": lambda _: {"std_eps": 0.01},
    "std of n": lambda _: {"std_ddof": 0},
    "std of the batch": lambda _: {"stages": {"advantage": "batch-std"}},
    "no std": lambda _: {"stages": {"advantage": "group-mean"}},
    "leave one out": lambda _: {"stages": {"advantage": "leave-one-out"}},
    "k1": lambda _: {"stages": {"kl": "k1"}},
    "k2": lambda _: {"stages": {"kl": "k2"}},
    "mean over tokens": lambda _: {"stages": {"aggregate": "token-mean"}},
    "sum of tokens": lambda _: {"stages": {"aggregate": "token-sum"}},
    "ratio of responses": lambda _: {"stages": {"ratio": "sequence"}},
    "the engine's": lambda one: {"log_probs_old": one["log_probs_rollout"]},
}


def named(row: str, *wrongs: str, losses: int = 0, digits: int = 17) -> Iterator[str]:
    """What is said of a record, or of so many losses alone, that something wrong gave."""
    random, right = np.random.default_rng(4), []
    for at in range(losses or 1):
        one = drawn(random, at + 2, "none", masked=False, row="grpo")
        right.append(orjson.loads(orjson.dumps(one, option=orjson.OPT_SERIALIZE_NUMPY)))
    for wrong in wrongs or [name for name in WRONG if " and " not in name]:
        made = []
        for one in right:
            changes = WRONG[wrong](one)
            columns = {name: value for name, value in changes.items() if name in one}
            rest = {name: value for name, value in changes.items() if name not in one}
            seen = evaluate(one | columns, row, batch="record", **rest)
            expected = {"loss": float(f"{seen.loss:.{digits}g}")}
            if not losses:
                expected["gradient"] = seen.gradient
            made.append(one | {"expected": expected})
        found = verify(made, row, batch="record")
        yield f"{wrong}: {found.differing} differ, {found.explained} explained"
        yield from (f"    {cause}" for cause in found.causes)
        for each in (each.first for each in found.records if each.first):
            yield f"  {each.pattern} [{', '.join(each.located)}]"
            yield from (f"    {cause}" for cause in (*each.causes, *each.possible))


@pytest.mark.parametrize("name", ["named", pytest.param("named_more", marks=pytest.mark.more)])
def test_what_is_named(name: str) -> None:
    path = Path(__file__).parent / "cases" / f"{name}.txt"
    expressions(path, {"named": lambda *given, **more: [*named(*given, **more)]})
