"""When two numbers agree: tolerances at their edges, half precision, nesting, metrics by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from files import each

from grpo_cli import InputError, evaluate, verify

pytestmark = pytest.mark.more

NAN, INF = math.nan, math.inf


def judge(row: dict[str, Any], variant: str = "dr", **options: Any) -> Any:
    (verdict,) = verify(row, variant, causes=0, **options).records
    return verdict


# ---- tolerances ---------------------------------------------------------------------------------


@each(
    ("expected", "agrees"),
    [
        (1.0101, True),  # 0.01 of 1.0101
        (1.0102, False),
        (0.9901, True),
        (0.9899, False),
        (-1.0, False),
        (NAN, False),
        (INF, False),
        (None, True),
    ],
)
def test_relative_tolerance(expected, agrees) -> None:
    """|e − g| ≤ rtol·max(|e|, |g|), with ratios of 1 and nothing absolute."""
    row = {"log_probs_new": [[-1.0, -2.0]], "advantages": [1.0]}
    made = row | {"expected": {"ratio": [[expected, 1.0]]}}
    assert judge(made, rtol=0.01, atol=0.0).agrees is agrees


def test_absolute_tolerance() -> None:
    """What is given, or rtol of a tenth of the largest number that is expected."""
    row = {"log_probs_new": [[-1.0, -2.0, -3.0]], "advantages": [1.0]}
    for expected, options, agrees in (
        (1.5 + 0.0151, {"atol": 0.5}, True),
        (1.5 + 0.0153, {"atol": 0.5}, False),
        (1.0303, {"atol": None}, True),  # 0.01·1.0303 + 0.01·20/10
        (1.0305, {"atol": None}, False),
    ):
        made = row | {"expected": {"ratio": [[expected, 1.0, None if options["atol"] else 20.0]]}}
        found = judge(made, rtol=0.01, **options).first
        differing = 0 if found is None else found.differing
        assert differing == (not agrees) + (options["atol"] is None), expected


ROWS = [[[-1.0, -0.4], [-0.7]], [[-0.3, -0.9], [-1.2]], [[-0.5, -0.6], [-0.2]]]
RTOL = 1e-3
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


def three(key: str, times: float, *, mask: bool) -> list[dict[str, Any]]:
    """Records that expect what they give; one number of the second is off by so many tolerances.

    A sum's scale is what is added up to it; a gradient's counts whole, others by a tenth.
    """
    rows = []
    for at, new in enumerate(ROWS):
        old, reference = (
            [[x - y for x, y in zip(*rows, strict=True)] for rows in zip(new, moves, strict=True)]
            for moves in ([[0.05, 0.18], [0.1]], [[0.3, 0.5], [0.1]])
        )
        row: dict[str, Any] = {"log_probs_new": new, "log_probs_old": old, "id": at}
        row |= {"log_probs_ref": reference, "advantages": [2.0, -0.5]}
        if mask:
            columns = [name for name in row if name.startswith("log_probs")]
            row |= {name: [[-3.0, *one] for one in row[name]] for name in columns}
            row["mask"] = [[0, 1, 1], [0, 1]]
        seen = evaluate(row, "grpo", beta=0.04).breakdown
        wanted = VALUES[key](seen).astype(float).tolist()
        sums = float(np.abs(seen.contribution).sum())
        scale = sums if len(wanted) == 1 else max(map(abs, wanted))
        if at == 1:
            place = next(n for n, x in enumerate(wanted) if abs(x) < 0.9 * scale)
            noise = 1.0 if "gradient" in key else 0.03 if len(wanted) == 1 else 0.1
            absolute = RTOL * scale * noise
            size = (abs(wanted[place]) + times * absolute) / (1.0 - times * RTOL)
            wanted[place] = math.copysign(size, wanted[place])
        expected: Any = wanted[0] if len(wanted) == 1 else wanted
        if len(wanted) == 3:
            filler = [None] if mask else []
            expected = [filler + wanted[:2], filler + wanted[2:]]
        rows.append(row | {"expected": {key: expected}})
    return rows


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("key", VALUES)
def test_many_are_judged_as_each_alone_at_the_edge_of_the_tolerance(key, mask) -> None:
    for times in (0.998, 1.002):
        rows = three(key, times, mask=mask)
        together = verify(rows, "grpo", causes=0, rtol=RTOL, beta=0.04).records
        assert [one.agrees for one in together] == [True, times < 1.0, True], times
        alone = judge(rows[1], "grpo", rtol=RTOL, beta=0.04)
        assert alone.first == together[1].first
        assert verify(rows, "grpo", causes=0, rtol=RTOL, atol=10.0, beta=0.04).ok


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
    ],
)
@pytest.mark.parametrize("mask", [False, True])
def test_half_precision_is_recognised(values, name, mask) -> None:
    """In what counts, whatever the masked tokens are."""
    row: dict[str, Any] = {"log_probs_new": [[-1.0] * (len(values) + mask)], "advantages": [1.0]}
    if mask:
        row["mask"] = [[0] + [1] * len(values)]
    found = judge(row | {"expected": {"gradient": [[0.1] * mask + values]}})
    assert found.rounded == ({"gradient": name} if name else {})


@each(("name", "number", "step"), [("bfloat16", SHORT, 2.0**-12), ("float16", LONG, 2.0**-15)])
def test_half_a_step_of_half_precision_agrees(name, number, step) -> None:
    """bfloat16 has 2^7 numbers from one power of two to the next, float16 2^10."""
    for off, agrees in ((0.99, True), (1.01, False)):
        a = number + off * step
        row = {"log_probs_new": [[-1.0]], "advantages": [a], "expected": {"advantages": [number]}}
        found = judge(row, rtol=0.0)
        assert (found.rounded, found.agrees) == ({"advantages": name}, agrees)


# ---- numbers are nested as log-probs are, or less -----------------------------------------------

GROUPS = [[[-1.0, -2.0], [-0.5]], [[-1.5], [-0.25, -0.75, -1.0]]]


@each(
    ("new", "expected", "of"),
    [
        (GROUPS, {"ratio": [[[1, 2], [3]], [[4], [5, 6, 7]]]}, 7),
        (GROUPS, {"ratio": [[1, 2], [3], [4], [5, 6, 7]]}, 7),
        (GROUPS, {"ratio": [[1, 2], [3, 4]]}, 4),
        (GROUPS, {"advantages": [[1, 2], [3, 4]]}, 4),
        (GROUPS, {"advantages": [1, 2, 3, 4]}, 4),
        (GROUPS, {"ratio": 1.5}, 1),
        (GROUPS, {"ratio": [[[1, 2], [3]], [[4], [5, 6]]]}, "expected.ratio[3]"),
        (GROUPS, {"ratio": [[[1, 2], [3]]]}, "expected.ratio"),
        (GROUPS, {"ratio": [1, 2, 3]}, "expected.ratio"),
        ([-1.0, -2.0], {"ratio": [7, 2]}, 2),
        ([-1.0, -2.0], {"ratio": [[7, 2]]}, 2),
        ([-1.0, -2.0], {"ratio": 7}, 1),
        ([-1.0, -2.0], {"advantages": 7.0}, 1),
        ([-1.0, -2.0], {"ratio": [1]}, "expected.ratio[0]"),
        ([-1.0, -2.0], {"ratio": [[1], [2]]}, "expected.ratio"),
    ],
)
def test_numbers_are_nested_as_log_probs_are_or_less(new, expected, of) -> None:
    rewards: Any = 1.0 if new[0] == -1.0 else [[3.0, 0.0], [0.5, 0.0]]
    row = {"log_probs_new": new, "rewards" if new is GROUPS else "advantages": rewards}
    if isinstance(of, str):
        with pytest.raises(InputError) as error:
            judge(row | {"expected": expected})
        assert error.value.path == of
        return
    found = judge(row | {"expected": expected})
    assert found.first is not None
    assert found.first.of == of


def test_one_number_for_each_response_is_that_of_its_first_token() -> None:
    """Of a response without tokens there is none; of a KL that is not there nothing at all."""
    rows: list[list[float]] = [[-1.0, -2.0], [], [-0.5]]
    kl = [math.exp(-0.5) - 0.5, 9.0, math.exp(-0.2) - 0.8]
    row = {"log_probs_new": rows, "log_probs_ref": [[-1.5, -2.1], [], [-0.7]]}
    row |= {"advantages": [1.0, 2.0, 3.0], "expected": {"loss": 0.1, "kl": kl}}
    found = judge(row, "grpo", rtol=1e-9)
    assert (found.compared, found.ignored, found.first and found.first.key) == (
        *(("kl", "loss"), (), "loss"),
    )
    found = judge(row)
    assert (found.compared, found.ignored) == (("loss",), ("kl",))
    empty = {"log_probs_new": [[-0.9], []], "log_probs_old": [[-1.0], []], "rewards": [1.0, 0.0]}
    for advantages, agrees in (([0.5, -0.5], True), ([0.5, 0.5], False)):
        assert judge(empty | {"expected": {"advantages": advantages}}).agrees is agrees


# ---- what trainers log, by hand -----------------------------------------------------------------

METRICS = (
    *("clip_fraction", "clip_fraction_low", "clip_fraction_high", "ratio_mean", "ratio_min"),
    *("ratio_max", "gradient_norm", "clip_ratio/low_mean", "clip_ratio/low_min"),
    *("clip_ratio/high_mean", "clip_ratio/high_max", "clip_ratio/region_mean"),
    *("cispo_clip_ratio", "kl", "actor/ppo_kl"),
)


def metrics(
    row: dict[str, Any], variant: str, names: tuple[str, ...] = METRICS, **flags: Any
) -> dict[str, float]:
    """The metrics that a record has, as ``verify`` compares them with others."""
    expected = {"loss": 0.0, "metrics": dict.fromkeys(names, 12345.678)}
    seen = judge(row | {"expected": expected}, variant, **flags)
    return {one.key.removeprefix("metrics."): one.got for one in seen.metrics}


MOVED = [[1.3, 2.0, 1.0], [0.7, 0.5, 1.25, 1.0], [], [1.1]]
LOGGED: dict[str, Any] = {
    "log_probs_new": [[math.log(ratio) - 1.0 for ratio in row] for row in MOVED],
    "log_probs_old": [[-1.0] * len(row) for row in MOVED],
    "log_probs_ref": [[math.log(ratio) - 1.5 for ratio in row] for row in MOVED],
    "advantages": [1.0, -1.0, 0.5, 2.0],
}


def test_metrics_are_those_of_their_definitions() -> None:
    """Of eight tokens two are clipped above, of A > 0, and two below, of A < 0; 1.25 is not."""
    gradient = [x for row in evaluate(LOGGED, beta=0.1).gradient for x in row]
    assert metrics(LOGGED, "grpo", beta=0.1) == pytest.approx({
        "clip_fraction": 4 / 8, "clip_fraction_low": 2 / 8, "clip_fraction_high": 2 / 8,
        "ratio_mean": 8.85 / 8, "ratio_min": 0.5, "ratio_max": 2.0,
        "gradient_norm": math.hypot(*gradient),
        "clip_ratio/low_mean": 2 / 8, "clip_ratio/low_min": 0.0,
        "clip_ratio/high_mean": 2 / 8, "clip_ratio/high_max": 2 / 3,
        "clip_ratio/region_mean": 4 / 8, "kl": math.exp(-0.5) - 0.5,
        "actor/ppo_kl": -math.fsum(math.log(x) for row in MOVED for x in row) / 8,
    })  # fmt: skip
    bare = {"log_probs_new": [[], []], "advantages": [1.0, -1.0]}
    assert metrics(bare, "dr") == {"gradient_norm": 0.0}


def test_metrics_of_many_are_those_of_each_alone() -> None:
    """Whether its ratio is of tokens or of responses, and of a record without tokens."""
    bare = {key: [[]] * 2 if key.startswith("log") else [1.0, 2.0] for key in LOGGED}
    other = {key: value[1:] for key, value in LOGGED.items()}
    expected = {"expected": {"loss": 0.0, "metrics": dict.fromkeys(METRICS, 12345.678)}}
    rejects = {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_1.2"}
    for variant, flags in (
        ("grpo", {}), ("gspo", {}), ("trl/cispo", {}), ("verl/bypass_ppo_clip", rejects)
    ):  # fmt: skip
        rows = [row | expected for row in (LOGGED, bare, other, LOGGED)]
        if flags:
            rows = [row | {"log_probs_rollout": row["log_probs_old"]} for row in rows]
        together = [one.metrics for one in verify(rows, variant, causes=0, **flags).records]
        assert together == [judge(row, variant, **flags).metrics for row in rows]


RATIOS = [1.3, 2.0, 0.7, 1.0]
FOUR: dict[str, Any] = {
    "log_probs_new": [[math.log(ratio) - 1.0] for ratio in RATIOS],
    "log_probs_old": [[-1.0]] * 4,
    "advantages": [1.0, -1.0, -1.0, 1.0],
}
MASKED = FOUR | {"mask": [[1], [1], [1], [0]]}
"""The last response, of A > 0, has no token left."""
LOW = MASKED | {"log_probs_new": [[-2.0]] * 4, "advantages": [-1.0] * 4}
BY_RESPONSE: dict[str, Any] = {"epsilon": 0.2, "beta": 0.0}
SEQUENCE: dict[str, Any] = {"stages": {"ratio": "sequence"}}


@each(
    ("row", "variant", "flags", "wanted"),
    [
        # the second token's ratio is above δ and its A is negative: TRL asks for A > 0
        (FOUR, "trl/grpo", {"delta": 1.5}, {"high_mean": 0.25, "low_mean": 0.25,
                                           "region_mean": 0.5, "high_max": 1.0}),
        # ρ is cut to δ before it is compared with 1 + ε: 1.3 and 2.0 become 1.1
        (FOUR, "trl/grpo", {"delta": 1.1}, {"high_mean": 0.0, "region_mean": 0.25}),
        # responses without tokens count where each has one ratio
        (MASKED, "trl/gspo", BY_RESPONSE, {"high_mean": 1 / 4, "low_mean": 1 / 4, "low_min": 0.0,
                                           "high_max": 1.0}),
        (MASKED, "trl/rloo", BY_RESPONSE, {"high_mean": 1 / 4, "region_mean": 1 / 2}),
        (MASKED, "trl/grpo", BY_RESPONSE, {"high_mean": 1 / 3, "region_mean": 2 / 3}),
        (LOW, "trl/gspo", {}, {"low_min": 0.0}),
        (LOW, "trl/grpo", {}, {"low_min": 1.0}),
        # a mean over responses of what each has; one without tokens has the ratio 1
        (LOGGED, "gspo", {"epsilon": 0.2}, {"low_mean": 0.0, "high_mean": 1 / 4,
                                            "region_mean": 1 / 4}),
        (LOGGED, "gspo", {"epsilon": 0.15}, {"low_mean": 1 / 4, "high_mean": 1 / 4,
                                             "region_mean": 2 / 4}),
        # CISPO's cap of positive advantages: ρ = 1 of no token is above a cap below 1
        (MASKED, "trl/cispo", {"epsilon_high": 0.2}, {"": 1 / 3}),
        (MASKED, "trl/cispo", {"epsilon_high": 0.2} | SEQUENCE, {"": 2 / 4}),
        (MASKED, "trl/cispo", {"epsilon_high": 1.2} | SEQUENCE, {"": 1 / 4}),
        (MASKED, "trl/cispo", {"epsilon_high": 5.0}, {"": 0.0}),
        (FOUR, "trl/grpo", {}, {"": None}),
    ],
)  # fmt: skip
def test_clip_ratios_of_trl(row, variant, flags, wanted) -> None:
    for name, value in wanted.items():
        key = f"clip_ratio/{name}" if name else "cispo_clip_ratio"
        found = metrics(row, variant, (key,), **flags).get(key)
        assert found == (None if value is None else pytest.approx(value)), (name, found)


def test_the_least_and_the_most_that_is_clipped_of_a_response() -> None:
    """Of its own sign: half of the tokens below, a quarter and a half above."""
    moved = [[0.5, 1.0, 0.7, 1.3], [1.3, 1.0, 0.7, 1.0], [1.4, 1.0, 1.3, 0.5]]
    rows = [[math.log(ratio) - 1.0 for ratio in row] for row in moved]
    for name, responses, a, wanted in (
        ("low_min", (0, 1, 2), -1.0, 0.25),
        ("low_min", (0,), -1.0, 0.5),
        ("low_min", (0,), 1.0, 0.0),
        ("high_max", (0, 1, 2), 1.0, 0.5),
        ("high_max", (0, 1), 1.0, 0.25),
        ("high_max", (0,), -1.0, 0.0),
    ):
        row = {"log_probs_new": [rows[at] for at in responses]}
        row |= {"log_probs_old": [[-1.0] * 4] * len(responses), "advantages": [a] * len(responses)}
        key = f"clip_ratio/{name}"
        assert metrics(row, "dapo", (key,))[key] == wanted


FAR = {"log_probs_new": [[-30.0, -1.0]], "log_probs_old": [[-1.0, -4.0]], "advantages": [1.0]}
BYPASS: dict[str, Any] = {
    "log_probs_new": [[-2.0, -1.0]],
    "log_probs_old": [[-9.0, -9.0]],
    "log_probs_rollout": [[-1.5, -4.0]],
    "advantages": [1.0],
}
REJECTS = BYPASS | {"hyperparameters": {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2"}}


@each(
    ("row", "rows", "wanted"),
    [
        (FOUR, ("vanilla",), -math.fsum(map(math.log, RATIOS)) / 4),
        (FOUR, ("kl_cov",), math.fsum(abs(math.log(ratio)) for ratio in RATIOS) / 4),
        # what is far off is cut where verl cuts it
        (FAR, ("vanilla", "sapo", "cispo", "dppo_tv", "dppo_kl"), (20.0 - 3.0) / 2),
        (FAR, ("gspo", "clip_cov", "geo_mean", "dro"), (29.0 - 3.0) / 2),
        (FAR, ("kl_cov",), (29.0 + 3.0) / 2),
        # of the engine, and of the kept tokens, in bypass mode
        (BYPASS, ("bypass_ppo_clip", "bypass_pg_is"), (0.5 - 3.0) / 2),
        (REJECTS, ("bypass_ppo_clip", "bypass_pg_is"), 0.5),
    ],
)
def test_verls_ppo_kl(row, rows, wanted) -> None:
    for name in rows:
        found = metrics(row, f"verl/{name}", ("actor/ppo_kl",))["actor/ppo_kl"]
        assert found == pytest.approx(wanted, rel=1e-12), name


@each(
    ("ours", "loss", "agrees"),
    [
        (0.12344, 0.1234, True),  # as a log of 4 decimals has it
        (0.12344, 0.1235, False),  # 0.00006 off: half of the last decimal is 0.00005
        (0.12344, 0.12339, False),  # 0.00005 off, where 5 decimals leave a tenth of that
        (0.12344, 0.1234001, False),  # too many digits to be a log's
        (0.12304, 0.123, True),  # 0.1230
        (0.12306, 0.123, False),
        (0.00004, 0.0, False),  # 0 has no digits
    ],
)
def test_a_loss_is_compared_to_the_decimals_of_a_log(ours, loss, agrees) -> None:
    row = {"log_probs_new": [[-1.0]], "advantages": [-ours], "expected": {"loss": loss}}
    assert judge(row, rtol=1e-7).agrees is agrees
