"""When two numbers agree: tolerances at their edges, half precision, and many records at once."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from files import each
from judged import judge_many, judge_one, metric

from grpo_cli import evaluate
from grpo_cli.batch import F64
from grpo_cli.commands.verify.causes import search
from grpo_cli.commands.verify.causes.case import Case, Cause
from grpo_cli.commands.verify.causes.search import Memory, Tried, causes
from grpo_cli.commands.verify.compare import Column, Tolerance, half_steps, precisions
from grpo_cli.commands.verify.expected import read_expectations
from grpo_cli.commands.verify.quantities import METRICS
from grpo_cli.commands.verify.verification import Verification
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.errors import InputError
from grpo_cli.records import Raw
from grpo_cli.records import record as read
from grpo_cli.variants.plan import plan

NAN, INF = math.nan, math.inf


def column(values: Any, *, scale: float = 10.0, part: float = 0.1, **more: Any) -> Column:
    numbers = np.array([NAN if value is None else value for value in values])
    told = np.array([value is not None for value in values])
    counts = np.array([len(values)])
    return Column(None, numbers, told, counts, scale, part, **more)  # type: ignore[arg-type]


@each(
    ("expected", "got", "agrees"),
    [
        (1.0, 1.0201, True),  # 0.01 of the scale's tenth, and 0.01 of 1.0201
        (1.0201, 1.0, True),
        (1.0, 1.0203, False),
        (-1.0, -1.0201, True),
        (1.0, -1.0, False),
        (0.0, 0.0101, True),
        (0.0, 0.0102, False),
        (NAN, 1.0, False),
        (INF, 1.0, False),
        (-INF, INF, False),
        (INF, INF, True),
        (None, 1.0, True),
        (5.0, NAN, True),
    ],
)
def test_two_numbers_agree_within_the_tolerance(expected, got, agrees) -> None:
    """rtol·part·scale + rtol·max(|e|, |g|), with rtol 0.01, scale 10 and a tenth of it."""
    found = np.array([got])
    assert Tolerance(0.01).agree(column([expected]), found).tolist() == [agrees]


def test_parts_of_the_tolerance() -> None:
    """An absolute one in the place of the scale's; what half precision leaves beside either."""
    found = np.array([1.0, 1.0, 1.0])
    wanted = [1.5 + 0.0151, 1.5 + 0.0152, 0.48]
    assert Tolerance(0.01, 0.5).agree(column(wanted), found).tolist() == [True, False, False]
    assert Tolerance(0.0, 0.5).agree(column([1.5, 1.5 + 1e-15]), found[:2]).tolist() == [
        True,
        False,
    ]
    slack = np.array([0.3, 0.0, 0.3])
    rounded = column([1.32, 1.32, 0.66], slack=slack)
    assert Tolerance(0.01).agree(rounded, found).tolist() == [True, False, False]
    whole = column([1.1, 1.12, 0.9], part=1.0)
    assert Tolerance(0.01).agree(whole, found).tolist() == [True, False, True]


def test_scales_of_what_is_compared() -> None:
    """The largest that is expected; of sums what they are made of; gradients with all of it."""
    rows = [[-1.0, -2.0], [-0.5]]
    row = {"log_probs_new": rows, "advantages": [3.0, -1.0]}
    expected = {
        "loss": 0.1,
        "policy": 0.1,
        "ratio": [[1.0, None], [-7.0]],
        "gradient": [[2.0, -5.0], [NAN]],
    }
    record: Any = read(Raw(row | {"expected": expected}, "data.jsonl", 1, "", 0))
    columns = Case.of(record, plan("dr"), Tolerance()).columns
    made = {one.key: (*{*one.scale.tolist()}, one.noise) for one in columns}  # type: ignore[union-attr]
    assert made == {  # of 3 + 3 + 1, over two responses
        "loss": (3.5, 0.1), "policy": (3.5, 0.1), "ratio": (7.0, 0.1), "gradient": (5.0, 1.0)
    }  # fmt: skip


def test_one_number_for_each_response_is_that_of_its_first_token() -> None:
    """Of a response without tokens there is none; of a KL that is not there nothing at all."""
    rows: list[list[float]] = [[-1.0, -2.0], [], [-0.5]]
    row = {"log_probs_new": rows, "log_probs_ref": [[-1.5, -2.1], [], [-0.7]]}
    row |= {"advantages": [1.0, 2.0, 3.0], "expected": {"loss": 0.1, "kl": [0.1, 0.2, 0.3]}}
    record: Any = read(Raw(row, "data.jsonl", 1, "", 0))
    case = Case.of(record, plan("grpo"), Tolerance())
    (kl,) = (one for one in case.columns if one.key == "kl")
    found = kl.evaluated(case.breakdown)
    wanted = [math.exp(-0.5) - 0.5, NAN, math.exp(-0.2) - 0.8]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)  # type: ignore[arg-type]
    assert judge_one(record, plan("grpo"), Tolerance()).ignored == ()
    verdict = judge_one(record, plan("dr"), Tolerance())
    assert (verdict.compared, verdict.ignored) == (("loss",), ("kl",))


def test_what_is_told_of_many_records_is_changed_of_none() -> None:
    """Where all numbers are there, records of one length share that."""
    row = {"log_probs_new": [[-1.0, -2.0]], "advantages": [1.0], "expected": {"loss": 0.1}}
    record: Any = read(Raw(row, "data.jsonl", 1, "", 0))
    ((wanted,), _) = read_expectations(record)
    with pytest.raises(ValueError, match="read-only"):
        wanted.given[0] = False


NESTED = [[[-1.0, -2.0], [-0.5]], [[-1.5], [-0.25, -0.75, -1.0]]]


@each(
    ("expected", "level", "values"),
    [
        ({"ratio": [[[1, 2], [3]], [[4], [5, 6, 7]]]}, "token", [1, 2, 3, 4, 5, 6, 7]),
        ({"ratio": [[1, 2], [3], [4], [5, 6, 7]]}, "token", [1, 2, 3, 4, 5, 6, 7]),
        ({"ratio": [[1, 2], [3, 4]]}, "response", [1, 2, 3, 4]),
        ({"advantages": [[1, 2], [3, 4]]}, "response", [1, 2, 3, 4]),
        ({"advantages": [1, 2, 3, 4]}, "response", [1, 2, 3, 4]),
        ({"ratio": 1.5}, "record", [1.5]),
        ({"ratio": [[[1, 2], [3]], [[4], [5, 6]]]}, "expected.ratio[3]", []),
        ({"ratio": [[[1, 2], [3]]]}, "expected.ratio", []),
        ({"ratio": [1, 2, 3]}, "expected.ratio", []),
    ],
)
def test_numbers_are_nested_as_log_probs_are_or_less(expected, level, values) -> None:
    """Groups of responses of tokens: of all, of responses, or of tokens without the groups."""
    row = {"log_probs_new": NESTED, "rewards": [[1.0, 0.0], [0.5, 0.0]], "expected": expected}
    record: Any = read(Raw(row, "data.jsonl", 1, "", 0))
    if not values:
        with pytest.raises(InputError) as told:
            read_expectations(record)
        assert told.value.path == level
        return
    ((wanted,), ignored) = read_expectations(record)
    assert (wanted.level, wanted.values.tolist(), ignored) == (level, values, [])


@each(
    ("expected", "level"),
    [
        ({"ratio": [1, 2]}, "token"), ({"ratio": [[1, 2]]}, "token"), ({"ratio": 1}, "record"),
        ({"advantages": 1.0}, "response"), ({"ratio": [1]}, None), ({"ratio": [[1], [2]]}, None),
    ],
)  # fmt: skip
def test_numbers_of_a_single_response_are_of_its_tokens(expected, level) -> None:
    row = {"log_probs_new": [-1.0, -2.0], "advantages": 1.0, "expected": expected}
    record: Any = read(Raw(row, "data.jsonl", 1, "", 0))
    if level is None:
        with pytest.raises(InputError, match=r"expected [12] numbers \(one per "):
            read_expectations(record)
        return
    ((wanted,), _) = read_expectations(record)
    assert wanted.level == level


def test_all_that_differs_is_told_in_the_order_of_the_stages() -> None:
    expected = {"loss": 9.0, "ratio": [[9.0, 9.0]], "advantages": [1.0], "gradient": [[9.0, 9.0]]}
    row = {"log_probs_new": [[-1.0, -2.0]], "advantages": [1.0], "expected": expected}
    record: Any = read(Raw(row, "data.jsonl", 1, "", 0))
    found = judge_one(record, plan("dr"), Tolerance())
    assert found.first is not None
    assert (found.first.key, found.first.differing, found.first.of) == ("ratio", 2, 2)
    assert found.also == ("gradient", "loss")
    assert found.compared == ("advantages", "ratio", "gradient", "loss")


# ---- half precision -----------------------------------------------------------------------------

SHORT = 205 / 2048  # eight binary digits: 0.10009765625
LONG = 1639 / 2**14  # eleven


@each(
    ("values", "name"),
    [
        ([SHORT, -131 / 1024, 0.0, 1.5], "bfloat16"),
        ([SHORT, 411 / 4096], "float16"),
        ([LONG, SHORT], "float16"),
        ([3279 / 2**15], ""),
        ([2.0**-30 * SHORT], "bfloat16"),  # float16 ends at 2^-24
        ([70000.0 + 2**16 * SHORT], ""),
        ([0.5, 0.25, 5 / 32], ""),  # five digits may have been typed
        ([9 / 64], "bfloat16"),
        ([SHORT] * 8 + [0.1], ""),
        ([0.5] * 49 + [SHORT], "bfloat16"),
        ([0.5] * 50 + [SHORT], ""),
        ([0.0] * 60 + [SHORT], "bfloat16"),
        ([], ""),
    ],
)
def test_half_precision_is_recognised(values, name) -> None:
    assert precisions(np.array(values), np.array([len(values)])) == [name]


def test_half_a_step_of_half_precision() -> None:
    """bfloat16 has 2^7 numbers from one power of two to the next, float16 2^10."""
    numbers = np.array([1.0, 1.5, -1.5, SHORT, 3.0])
    steps = [1.0, 1.0, 1.0, 0.0625, 2.0]
    assert half_steps("bfloat16", numbers).tolist() == [x / 256 for x in steps]
    assert half_steps("float16", numbers).tolist() == [x / 2048 for x in steps]


# ---- many at once -------------------------------------------------------------------------------

ROWS = [[[-1.0, -0.4], [-0.7]], [[-0.3, -0.9], [-1.2]], [[-0.5, -0.6], [-0.2]]]
RTOL = 1e-3


def near(got: float, absolute: float, times: float) -> float:
    """What is off from a positive number by so much of absolute + rtol·itself."""
    return (got + times * absolute) / (1.0 - times * RTOL)


def records(key: str, times: float, *, mask: bool) -> list[Any]:
    """Three records that expect a number each of what they give; one of the second is off."""
    made = []
    for at, new in enumerate(ROWS):
        old, reference = (
            [[x - y for x, y in zip(*rows, strict=True)] for rows in zip(new, moves, strict=True)]
            for moves in ([[0.05, 0.18], [0.1]], [[0.3, 0.5], [0.1]])
        )
        row: dict[str, Any] = {
            "log_probs_new": new,
            "log_probs_old": old,
            "advantages": [2.0, -0.5],
        }
        row |= {"log_probs_ref": reference}
        if mask:
            row = {
                name: [[-3.0, *each] for each in value] if name.startswith("log") else value
                for name, value in row.items()
            } | {"mask": [[0, 1, 1], [0, 1]]}
        seen = evaluate(row, "grpo", beta=0.04).breakdown
        wanted = VALUES[key](seen).astype(float).tolist()
        sums = float(np.abs(seen.contribution).sum())
        scale = sums if len(wanted) == 1 else max(map(abs, wanted))
        if at == 1:
            place = next(n for n, x in enumerate(wanted) if abs(x) < 0.9 * scale)
            part = 1.0 if "gradient" in key else 0.1
            number, sign = abs(wanted[place]), math.copysign(1.0, wanted[place])
            wanted[place] = sign * near(number, RTOL * part * scale, times)
        told: Any = wanted[0] if len(wanted) == 1 else wanted
        if len(wanted) == 3:
            filler = [None] if mask else []
            told = [filler + wanted[:2], filler + wanted[2:]]
        made.append(read(Raw(row | {"expected": {key: told}}, "data.jsonl", at + 1, "", at)))
    return made


VALUES: dict[str, Any] = {
    "loss": lambda b: -b.record_objective,
    "objective": lambda b: b.record_objective,
    "policy": lambda b: b.record_value("policy"),
    "policy_loss": lambda b: -b.record_value("policy"),
    "kl": lambda b: b.kl,
    "ratio": lambda b: b.ratio,
    "gradient": lambda b: b.gradient,
    "loss_gradient": lambda b: -b.gradient,
    "contribution": lambda b: b.contribution,
    "advantages": lambda b: b.response_advantage,
}


@pytest.mark.parametrize("mask", [False, True])
def test_many_are_judged_as_each_alone(mask) -> None:
    """Also at the edge of the tolerance, and in half precision of what counts."""
    made, within = plan("grpo", hyperparameters={"beta": 0.04}), Tolerance(RTOL)
    for key in VALUES:
        for times in (0.0, 0.998, 0.9995, 1.0005, 1.002, 3.0):
            many = records(key, times, mask=mask)
            alone = [judge_one(record, made, within) for record in many]
            assert [one.agrees for one in alone] == [True, times < 1.0, True], key
            assert judge_many(many, made, within) == alone, (key, times)
            assert all(one.agrees for one in judge_many(many, made, Tolerance(RTOL, 10.0)))


@pytest.mark.parametrize("mask", [False, True])
def test_half_precision_is_that_of_each_record(mask) -> None:
    """Of what counts, whatever the masked tokens are."""
    within, made = Tolerance(RTOL), plan("grpo", hyperparameters={"beta": 0.04})
    many = records("gradient", 3.0, mask=mask)
    filler = [None] if mask else []
    for record in many[:2]:
        record.expected["gradient"] = [[*filler, SHORT, -0.25], [*filler, 0.125]]
    found = judge_many(many, made, within)
    assert [one.rounded for one in found] == [{"gradient": "bfloat16"}] * 2 + [{}]
    assert found == [judge_one(record, made, within) for record in many]


def test_metrics_of_many_are_those_of_each_alone() -> None:
    """Whether its ratio is of tokens or of responses; of a record without tokens there are few."""
    bare = {key: [[]] * 2 if key.startswith("log") else [1.0, 2.0] for key in LOGGED}
    other = {key: value[1:] for key, value in LOGGED.items()}
    rejects = {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_1.2"}
    for variant, settings in (
        ("grpo", {}), ("gspo", {}), ("trl/cispo", {}), ("verl/bypass_ppo_clip", rejects)
    ):  # fmt: skip
        made = [LOGGED, bare, other, LOGGED]
        if settings:
            made = [{**row, "log_probs_rollout": row["log_probs_old"]} for row in made]
        seen = plan(variant, hyperparameters=settings)
        many: list[Any] = [read(Raw(row, "data.jsonl", 1, "", 0)) for row in made]
        together = Evaluator(seen).evaluate(Chunk.of(many))
        apart = [Evaluator(seen).evaluate(Chunk.of([record])) for record in many]
        for name, of in METRICS.items():
            found, alone = of(together), [of(one) for one in apart]
            if found is None:
                assert alone == [None] * 4, name
            else:
                np.testing.assert_array_equal(found, np.concatenate(alone), err_msg=name)  # type: ignore[arg-type]


# ---- causes over many records -------------------------------------------------------------------


def times(factor: float) -> Cause:
    return Cause(
        "loss",
        f"times {factor}",
        lambda case: case.with_advantages(case.breakdown.advantage * factor),
    )


def case_times(factor: float) -> Case:
    """A record that expects the gradients of other advantages."""
    slopes = [
        [factor * a / 2.0 * math.exp(0.1) for _ in row]
        for a, row in zip((2.0, -1.0), ROWS[0], strict=True)
    ]
    old = [[x - 0.1 for x in row] for row in ROWS[0]]
    row = {"log_probs_new": ROWS[0], "log_probs_old": old, "advantages": [2.0, -1.0]}
    record: Any = read(Raw(row | {"expected": {"gradient": slopes}}, "d", 1, "", 0))
    return Case.of(record, plan("dr"), Tolerance())


def test_what_explained_the_last_ones_is_remembered(monkeypatch) -> None:
    """Three answers, the last used first; so many searches and no more."""
    searched = []

    def search_of(case: Any) -> list[Any]:
        searched.append(case.name)
        return [] if case.name == "none" else [case.name]

    monkeypatch.setattr(search, "causes", search_of)
    monkeypatch.setattr(search, "explains", lambda cause, case: cause == case.name)
    objective = SimpleNamespace(stages={"kl": SimpleNamespace(name="k3", values={"beta": 0.1})})
    other = SimpleNamespace(stages={"kl": SimpleNamespace(name="k3", values={"beta": 0.2})})

    def asked(case: str, objective: Any = objective) -> Any:
        return SimpleNamespace(name=case, objective=objective)

    memory = Memory(6)
    assert [memory.causes(asked(case)) for case in "aabca"] == [["a"], ["a"], ["b"], ["c"], ["a"]]
    assert searched == ["a", "b", "c"]
    assert memory.causes(asked("d")) == ["d"]  # b is forgotten, a was used since
    assert memory.causes(asked("a")) == ["a"]
    assert memory.causes(asked("none")) == []
    assert searched == ["a", "b", "c", "d", "none"]
    assert memory.causes(asked("a", other)) == ["a"]
    assert len(searched) == 6
    assert memory.left_out == 0
    assert memory.causes(asked("b")) is None
    assert memory.causes(asked("b")) is None
    assert memory.left_out == 2
    assert len(searched) == 6
    items = [{"num_items_in_batch": count, "beta": 0.1} for count in (5, 7)]
    made = [SimpleNamespace(stages={"kl": SimpleNamespace(name="k3", values=v)}) for v in items]
    memory = Memory(1)
    assert [memory.causes(asked("a", one)) for one in made] == [["a"], ["a"]]


def test_the_simplest_that_explains_is_named(monkeypatch) -> None:
    """Of the first tier that has any: so many of each source, four in all, each once."""
    case = case_times(2.0)

    def source(*names: str, factor: float = 2.0) -> Any:
        return lambda _: iter([times(factor)._replace(words=name) for name in names])

    def broken(_: Any) -> Any:
        yield times(2.0)._replace(words="x")
        raise ValueError

    def named(*tiers: Any) -> list[str]:
        monkeypatch.setattr(search, "TIERS", tiers)
        return [one.words for one in causes(case)]

    wrong = Tried(source("wrong", factor=3.0))
    assert named((wrong,)) == []
    assert named((wrong, Tried(source("a", "b", "c", "d"))), (Tried(source("e")),)) == [
        "a",
        "b",
        "c",
    ]
    assert named((wrong,), (Tried(source("a", "b"), 1), Tried(source("c"), 2))) == ["a", "c"]
    assert named((Tried(source("a", "b")), Tried(source("b", "c", "d")))) == ["a", "b", "c", "d"]
    assert named((Tried(source("a", "b", "c")), Tried(source("d", "e")))) == ["a", "b", "c", "d"]
    assert named((Tried(broken), Tried(source("a")))) == ["x", "a"]


TIERS = [
    {"negative": 3},
    {
        "named_factors": 1, "solved_tokens": 1, "formulas": 2, "changed": 3, "other_sign": 3,
        "ratios": 3,
        "clips": 3, "reinforce": 3, "weights": 3, "penalties": 3, "mask_ignored": 3, "edges": 3,
        "neutral": 1, "denominators": 2,
    },
    {
        "other_eps": 1, "solved_changes": 1, "discounted": 1, "windows": 1, "solved_cap": 1,
        "reductions": 1, "strength": 3,
    },
    {"weights_and_denominators": 2},
    {"separate_factors": 1, "whole_factor": 3},
    {"any_choice": 1},
]  # fmt: skip
"""What is tried before what, and how many of it are named: as the experiments were judged."""


def test_what_is_tried_before_what() -> None:
    (first, *_) = causes(case_times(-1.0))
    assert first.words == "wrong sign: it is the negative (loss = −objective)"
    made = []
    for tier in search.TIERS:
        made.append({one.source.__name__: one.most for one in tier})
    assert made == TIERS
    assert [*map(list, made)] == [*map(list, TIERS)]


# ---- what trainers log --------------------------------------------------------------------------

MOVED = [[1.3, 2.0, 1.0], [0.7, 0.5, 1.25, 1.0], [], [1.1]]
LOGGED = {
    "log_probs_new": [[math.log(ratio) - 1.0 for ratio in row] for row in MOVED],
    "log_probs_old": [[-1.0] * len(row) for row in MOVED],
    "log_probs_ref": [[math.log(ratio) - 1.5 for ratio in row] for row in MOVED],
    "advantages": [1.0, -1.0, 0.5, 2.0],
}


def test_metrics_are_those_of_their_definitions() -> None:
    """Of eight tokens two are clipped above, of A > 0, and two below, of A < 0; 1.25 is not."""
    breakdown = evaluate(LOGGED, "grpo", beta=0.1).breakdown
    got = {name: metric(name, breakdown) for name in METRICS}
    gradient = float(np.sqrt((breakdown.gradient**2).sum()))
    assert got == pytest.approx({
        "clip_fraction": 4 / 8, "clip_fraction_low": 2 / 8, "clip_fraction_high": 2 / 8,
        "ratio_mean": 8.85 / 8, "ratio_min": 0.5, "ratio_max": 2.0, "gradient_norm": gradient,
        "clip_ratio/low_mean": 2 / 8, "clip_ratio/low_min": 0.0,
        "clip_ratio/high_mean": 2 / 8, "clip_ratio/high_max": 2 / 3,
        "clip_ratio/region_mean": 4 / 8, "kl": math.exp(-0.5) - 0.5, "cispo_clip_ratio": None,
        "actor/ppo_kl": -math.fsum(math.log(x) for row in MOVED for x in row) / 8,
    })  # fmt: skip


def test_the_least_and_the_most_that_is_clipped_of_a_response() -> None:
    """Of its own sign: half of the tokens below, a quarter and a half above."""
    moved = [[0.5, 1.0, 0.7, 1.3], [1.3, 1.0, 0.7, 1.0], [1.4, 1.0, 1.3, 0.5]]
    rows = [[math.log(ratio) - 1.0 for ratio in row] for row in moved]
    old = [[-1.0] * 4] * 3

    def of(name: str, *responses: int, a: float) -> float | None:
        row = {
            "log_probs_new": [rows[at] for at in responses],
            "log_probs_old": [old[at] for at in responses],
            "advantages": [a for _ in responses],
        }
        return metric(f"clip_ratio/{name}", evaluate(row, "dapo").breakdown)

    assert of("low_min", 0, 1, 2, a=-1.0) == 0.25
    assert of("low_min", 0, a=-1.0) == 0.5
    assert of("low_min", 0, a=1.0) == 0.0
    assert of("high_max", 0, 1, 2, a=1.0) == 0.5
    assert of("high_max", 0, 1, a=1.0) == 0.25
    assert of("high_max", 0, a=-1.0) == 0.0


def test_the_rows_that_were_taken_are_told(capsys) -> None:
    """The first five; how many were evaluated otherwise."""
    made = object.__new__(Verification)
    made.rows_taken = {f"-v {name}": at + 1 for at, name in enumerate("abcde")}
    made._tell_rows()
    said = capsys.readouterr().err.splitlines()
    assert [line.partition("note: ")[2] for line in said] == [
        "1 record evaluated as -v a",
        *(
            f"{at} records evaluated as -v {name}"
            for at, name in zip((2, 3, 4, 5), "bcde", strict=True)
        ),
    ]
    made.rows_taken |= {"-v f": 6, "-v g": 7}
    made._tell_rows()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 6
    assert "… and 13 more otherwise" in said[-1]


def test_metrics_of_ratios_of_whole_responses() -> None:
    """A mean over responses of what each has; TRL counts one without tokens, at ratio 1."""
    breakdown = evaluate(LOGGED, "gspo", epsilon=0.2).breakdown
    means = [math.exp(math.fsum(map(math.log, row)) / len(row)) for row in MOVED if row]
    assert [round(x, 3) for x in means] == [1.375, 0.813, 1.1]
    got = {name: metric(f"clip_ratio/{name}_mean", breakdown) for name in ("low", "high", "region")}
    assert got == {"low": 0.0, "high": 1 / 4, "region": 1 / 4}
    breakdown = evaluate(LOGGED, "gspo", epsilon=0.15).breakdown
    got = {name: metric(f"clip_ratio/{name}_mean", breakdown) for name in ("low", "high", "region")}
    assert got == {"low": 1 / 4, "high": 1 / 4, "region": 2 / 4}


def test_metrics_of_no_token_are_none() -> None:
    bare: F64 = evaluate({"log_probs_new": [[], []], "advantages": [1.0, -1.0]}, "dr").breakdown
    got = {name: metric(name, bare) for name in METRICS}
    assert {name for name, value in got.items() if value is not None} == {"gradient_norm"}


def test_what_is_far_off_is_cut_in_verls_kl_where_verl_cuts_it() -> None:
    far = {"log_probs_new": [[-30.0, -1.0]], "log_probs_old": [[-1.0, -4.0]], "advantages": [1.0]}
    for row in ("vanilla", "sapo", "cispo", "dppo_tv", "dppo_kl"):
        breakdown = evaluate(far, f"verl/{row}").breakdown
        assert metric("actor/ppo_kl", breakdown) == (20.0 - 3.0) / 2
    for row in ("gspo", "clip_cov", "geo_mean", "dro"):
        breakdown = evaluate(far, f"verl/{row}").breakdown
        assert metric("actor/ppo_kl", breakdown) == (29.0 - 3.0) / 2
    assert metric("actor/ppo_kl", evaluate(far, "verl/kl_cov").breakdown) == (29.0 + 3.0) / 2


def test_verls_kl_is_of_the_engine_and_of_the_kept_tokens_in_bypass_mode() -> None:
    record = {
        "log_probs_new": [[-2.0, -1.0]],
        "log_probs_old": [[-9.0, -9.0]],
        "log_probs_rollout": [[-1.5, -4.0]],
        "advantages": [1.0],
    }
    rejects = {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2"}
    for row in ("verl/bypass_ppo_clip", "verl/bypass_pg_is"):
        assert metric("actor/ppo_kl", evaluate(record, row).breakdown) == (0.5 - 3.0) / 2
        kept = evaluate(record | {"hyperparameters": rejects}, row).breakdown
        assert metric("actor/ppo_kl", kept) == 0.5
