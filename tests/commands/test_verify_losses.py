"""A wrong ε or β, where only losses are recorded: one value has to give all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from files import each

from grpo_cli import evaluate, verify

pytestmark = pytest.mark.more

OWN = {"epsilon_low": 0.2, "epsilon_high": 0.2, "beta": 0.04}
STD_EPS = "std_eps 0.0001 instead of 1e-08 (-p std_eps=0.0001), and"
EQUAL = "ε is 0.3 instead of 0.2 (-p epsilon_low=0.3 -p epsilon_high=0.3)"
MISSING = "clip missing (or an ε that no ratio reaches)"
WRONG: list[tuple[dict[str, float], str]] = [
    ({"epsilon_low": 1.0, "epsilon_high": 9.0, "std_eps": 1e-4}, f"{STD_EPS} {MISSING}"),
    ({"epsilon_high": 9.0, "std_eps": 1e-4}, f"{STD_EPS} upper {MISSING}"),
    ({"epsilon_low": 0.28}, "epsilon_low 0.28 instead of 0.2 (-p epsilon_low=0.28)"),
    ({"epsilon_high": 0.28}, "epsilon_high 0.28 instead of 0.2 (-p epsilon_high=0.28)"),
    ({"epsilon_low": 0.225}, "epsilon_low 0.225 instead of 0.2 (-p epsilon_low=0.225)"),
    ({"epsilon_low": 0.3, "epsilon_high": 0.3}, EQUAL),
    (
        {"epsilon_low": 0.1, "epsilon_high": 0.35},
        "epsilon_low 0.1 instead of 0.2 (-p epsilon_low=0.1), "
        "epsilon_high 0.35 instead of 0.2 (-p epsilon_high=0.35)",
    ),
    ({"beta": 0.015}, "β is 0.015 instead of 0.04 (-p beta=0.015)"),
    (
        {"epsilon_high": 0.28, "beta": 0.015},
        "β is 0.015 instead of 0.04 (-p beta=0.015), "
        "and epsilon_high 0.28 instead of 0.2 (-p epsilon_high=0.28)",
    ),
    (
        {"epsilon_low": 0.3, "epsilon_high": 0.3, "std_eps": 1e-4},
        f"{STD_EPS} {EQUAL}",
    ),
]


def record(random: np.random.Generator) -> dict[str, Any]:
    """Six responses with ratios far beyond both bounds."""
    old = [random.uniform(-3, -0.1, length) for length in random.integers(5, 30, 6)]
    new = [np.minimum(row + random.normal(0, 0.3, len(row)), -1e-3) for row in old]
    ref = [np.minimum(row + random.normal(0, 0.2, len(row)), -1e-3) for row in old]
    columns = {"log_probs_new": new, "log_probs_old": old, "log_probs_ref": ref}
    return {
        **{name: [row.tolist() for row in rows] for name, rows in columns.items()},
        "rewards": (random.integers(0, 4, 6) + 0.03 * np.arange(6)).tolist(),
        "hyperparameters": OWN,
    }


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    random = np.random.default_rng(3)
    return [record(random) for _ in range(4)]


def loss_of(records: Any, wrong: dict[str, float], digits: int = 17) -> float:
    """The loss with wrong settings, as a log has it."""
    several = [records] if isinstance(records, dict) else records
    made = [{**one, "hyperparameters": {**OWN, **wrong}} for one in several]
    return float(f"{evaluate(made, 'grpo').loss:.{digits}g}")


@each(("digits", "wrong", "words"), [(17 if at % 2 else 6, *one) for at, one in enumerate(WRONG)])
def test_one_value_that_gives_all_losses_is_named(records, wrong, words, digits) -> None:
    made = [{**one, "expected": {"loss": loss_of(one, wrong, digits)}} for one in records]
    answer = verify(made, "grpo")
    assert answer.causes == (words,)
    assert answer.explained == answer.differing >= 3


@each(
    ("epsilon", "beta", "unique"),
    [
        (0.3, 0.01, True),
        (0.3, 0.012, True),
        (0.225, 0.01, True),
        (0.27, 0.0127, False),  # nobody sets this β
        (0.27, 0.02, False),  # 0.5 with 0.15 gives this loss too
    ],
)
def test_one_loss_names_both_settings_where_no_other_pair_gives_it(records, epsilon, beta, unique):
    wrong = {"epsilon_low": epsilon, "epsilon_high": epsilon, "beta": beta}
    expected = {"loss": loss_of(records[0], wrong, 9)}
    answer = verify(records[0] | {"expected": expected}, "grpo")
    words = f"β is {beta:g} instead of 0.04 (-p beta={beta:g}), and ε is {epsilon:g} instead of 0.2"
    words += f" (-p epsilon_low={epsilon:g} -p epsilon_high={epsilon:g})"
    assert answer.causes == ((words,) if unique else ())


@each(
    "wrong", [WRONG[-2][0], {"epsilon_high": 0.28, "std_eps": 1e-4}, {"beta": 0.1, "std_eps": 1e-4}]
)
def test_two_wrong_settings_are_named_together(records, wrong) -> None:
    """Of records with nearly equal rewards, whose std an ε of 1e-4 changes."""
    one = records[0] | {"rewards": [0.1 * reward for reward in records[0]["rewards"]]}
    made = evaluate(one | {"hyperparameters": OWN | wrong}, "grpo")
    answer = verify(one | {"expected": {"loss": made.loss, "gradient": made.gradient}}, "grpo")
    words = {"epsilon_high": "epsilon_high 0.28 ", "beta": f"β is {wrong.get('beta')} "}
    words["std_eps"] = "std_eps 0.0001 "
    assert all(words[name] in answer.causes[0] for name in wrong), answer


FORMULAS = [
    ("the rewards are not centred (no baseline)", lambda r: r / (r.std(ddof=1) + 1e-4)),
    ("group-mean: advantages not divided by the std", lambda r: r - r.mean()),
    ("ddof 0 instead of 1", lambda r: (r - r.mean()) / (r.std() + 1e-4)),
]


@each(("words", "wrong"), FORMULAS)
def test_another_formula_is_named_where_records_have_advantages(records, words, wrong) -> None:
    """Their own say by which formula they come from the rewards; half of these have std 0.5."""
    for beta, missing in ((OWN["beta"], ""), (0.0, "KL missing (β = 0), and ")):
        made = []
        for at, one in enumerate(records):
            half = (at + 1) % 2
            r = np.array([0, 1, 0, 0, half, half], float)
            own = {"rewards": r.tolist(), "advantages": (r - r.mean()) / (r.std(ddof=1) + 1e-4)}
            loss = loss_of(one | own | {"advantages": wrong(r)}, {"beta": beta})
            made.append(one | own | {"expected": {"loss": loss}})
        answer = verify(made, "grpo")
        assert answer.causes[0] == missing + words
        every = [cause for row in answer.records if row.first for cause in row.first.causes]
        assert not any("the root" in cause for cause in every)
        assert answer.explained == 4


def test_records_of_two_mistakes(records) -> None:
    """Without their KL, some with another ε besides."""
    wrong = [{"beta": 0.0}] * 4 + [{"beta": 0.0, "epsilon_high": 0.28}] * 4
    pairs = zip([*records, *records], wrong, strict=True)
    made = [one | {"expected": {"loss": loss_of(one, some)}} for one, some in pairs]
    causes = [row.first.causes for row in verify(made, "grpo").records]
    both = "KL missing (β = 0), and epsilon_high 0.28 instead of 0.2 (-p epsilon_high=0.28)"
    assert causes == [("KL missing (β = 0)",)] * 4 + [(both,)] * 4


def rows_of(one: dict[str, Any]) -> Iterator[tuple[float, Any, Any]]:
    """The sign of A, the ratios, and log π_ref − log π_θ of each response."""
    signs = np.sign(np.array(one["rewards"]) - np.mean(one["rewards"])).tolist()
    columns = (one[f"log_probs_{name}"] for name in ("new", "old", "ref"))
    for sign, new, old, ref in zip(signs, *columns, strict=True):
        yield sign, np.exp(np.subtract(new, old)), np.subtract(ref, new)


def test_clipped_tokens_of_both_signs_are_no_swapped_epsilons(records) -> None:
    """ε_low and ε_high are equal: to swap them changes nothing."""
    made = []
    for one in records:
        beyond = np.concatenate([abs(ratio - 1.0) > 0.2 for _, ratio, _ in rows_of(one)])
        expected = {"loss": evaluate(one, "grpo").loss, "clip_fraction": float(beyond.mean())}
        made.append(one | {"expected": expected})
    answer = verify(made, "grpo")
    assert [text.startswith("the clip fraction counts all tokens") for text in answer.causes] == [1]
    assert answer.explained == 4


@each(
    ("factor", "words"),
    [(0.0, "KL missing (β = 0)"), (-1.0, "β with the wrong sign (−β)")],
)
def test_a_kl_that_is_not_taken_off_the_rewards_is_named(records, factor, words) -> None:
    made = []
    for one in records:
        pairs = zip(one["log_probs_old"], one["log_probs_ref"], strict=True)
        penalties = [factor * OWN["beta"] * np.subtract(*pair).sum() for pair in pairs]
        scored = {"rewards": np.subtract(one["rewards"], penalties), "hyperparameters": {}}
        loss = evaluate(one | scored, "rloo", beta=0.0).loss
        made.append(one | {"expected": {"loss": loss}})
    answer = verify(made, "rloo")
    assert [text.split(":")[0] for text in answer.causes] == [words]
    assert answer.explained == 4


def test_a_kl_of_kept_tokens_alone_is_named(records) -> None:
    made = []
    for one in records:
        lost = [
            np.mean((sign * (ratio - 1.0) > 0.2) * (np.expm1(d) - d))
            for sign, ratio, d in rows_of(one)
        ]
        loss = evaluate(one, "grpo").loss - OWN["beta"] * float(np.mean(lost))
        made.append(one | {"expected": {"loss": loss}})
    answer = verify(made, "grpo")
    words = "KL left out on the tokens that the clip drops"
    assert [text.split(":")[0] for text in answer.causes] == [words]
    assert answer.explained == 4


def test_losses_of_0_among_others_are_explained_by_nothing(records) -> None:
    """A ratio of 1 gives them, as much else does; it does not give the others."""
    own = {"hyperparameters": OWN | {"beta": 0.0}}
    others = [1.137 * evaluate(one | own, "grpo").loss for one in records]
    zeros = [-(2.0**-55), 2.0**-54, -(2.0**-54)]
    several = zip([*records, *records[:3]], [*others, *zeros], strict=True)
    answer = verify([one | own | {"expected": {"loss": loss}} for one, loss in several], "grpo")
    assert (answer.causes, answer.explained, answer.differing) == ((), 0, 7)
    assert not any(row.rounded for row in answer.records)


def test_no_value_is_named_where_each_record_needs_its_own(records) -> None:
    """Any loss is given by some ε_low: without all of them together, it is no cause."""
    epsilons = np.linspace(0.1213, 0.2717, len(records)).tolist()
    made = [
        {**one, "expected": {"loss": loss_of(one, {"epsilon_low": epsilon})}}
        for one, epsilon in zip(records, epsilons, strict=True)
    ]
    answer = verify(made, "grpo")
    assert (answer.causes, answer.explained) == ((), 0)


def test_where_a_group_has_the_kl_alone_the_sign_of_beta_is_named(records) -> None:
    """Of the KL alone −β is the whole loss negated: both are named, and β alone of all records."""
    made = []
    for at, one in enumerate(records):
        one = one | {"hyperparameters": OWN} | ({"rewards": [1.0] * 6} if at == 0 else {})
        total = evaluate(one, "grpo").total
        made.append(one | {"expected": {"loss": -(total["policy"] + OWN["beta"] * total["kl"])}})
    dead = [text.split(":")[0] for text in verify(made[:1], "grpo").causes]
    assert dead == ["β with the wrong sign (−β)", "wrong sign"]
    every = verify(made, "grpo")
    assert [text.split(":")[0] for text in every.causes] == dead[:1]
    assert every.explained == len(made)


# ---- log-probs that were rounded after the loss was computed -------------------------------------


def rounded_records(places: int, count: int = 8, **setting: Any) -> list[dict[str, Any]]:
    """Records whose losses are of exact log-probs, which then have so many decimals."""
    random = np.random.default_rng(20260301)
    made = []
    for at in range(count):
        old = [-random.gamma(2.0, 0.9, size) for size in random.integers(5, 15, 6)]
        columns = {"log_probs_old": old}
        for name, spread in (("log_probs_new", 0.13), ("log_probs_ref", 0.2)):
            columns[name] = [np.minimum(x + random.normal(0, spread, len(x)), -1e-3) for x in old]
        record: dict[str, Any] = {"id": at, "rewards": [0.0, 0.1, 0.3, 0.3, 0.5, 0.1 * (at % 5)]}
        exact = {name: [part.tolist() for part in parts] for name, parts in columns.items()}
        record["expected"] = {"loss": evaluate(record | exact, "grpo", **setting).loss}
        short = {name: [part.round(places).tolist() for part in x] for name, x in columns.items()}
        made.append(record | short)
    return made


@pytest.mark.parametrize("places", [6, 5])
def test_a_cause_is_named_within_what_rounded_log_probs_leave_open(places: int) -> None:
    answer = verify(rounded_records(places, std_eps=1e-3), "grpo", std_eps=1e-8)
    assert answer.causes == ("std_eps 0.001 instead of 1e-08 (-p std_eps=0.001)",)
    assert answer.explained == answer.differing >= 6


@pytest.mark.parametrize("times", [2, 3])
def test_a_plain_factor_comes_before_two_mistakes(times: int) -> None:
    records = rounded_records(6)
    for record in records:
        record["expected"]["loss"] *= times
    answer = verify(records, "grpo")
    words = f"off by a constant factor: yours is the computed loss times {times}"
    assert answer.causes == (words,)
    assert answer.explained == 8


@pytest.mark.parametrize(("length", "row"), [(16, "grpo"), (16, "dr"), (512, "dr")])
def test_a_constant_length_that_no_record_states_is_named_before_accumulation(
    records, length: int, row: str
) -> None:
    summed = [{**one, "hyperparameters": {}} for one in records]
    stages = {"aggregate": "token-sum"}
    losses = [evaluate(one, row, stages=stages).loss / length for one in summed]
    pairs = zip(summed, losses, strict=True)
    expecting = [{**one, "expected": {"loss": loss}} for one, loss in pairs]
    answer = verify(expecting, row)
    first, *others = answer.causes
    assert f"a constant length of {length}" in first
    assert [f"gradient accumulation of {length}" in one for one in others] == [True] * (length < 65)
    if others:  # a gradient would be equal by both
        assert not any("loss_gradient" in (one.first.pattern or "") for one in answer.records)
    stages = {"aggregate": "token-sum-norm"}
    assert verify(expecting, row, stages=stages, max_completion_length=length).ok


def test_a_mistake_in_one_loss_whose_std_has_ddof_0_is_named(records) -> None:
    """As with numpy's std: no setting says so, and the loss is all that there is."""
    own, bare = ({"std_ddof": 0, "beta": beta} for beta in (OWN["beta"], 0.0))
    unclipped = loss_of(records[0], own | {"epsilon_low": 1.0, "epsilon_high": 9.0})
    negative = 2.0 * loss_of(records[0], bare) - loss_of(records[0], own)
    for loss, words in (
        (unclipped, MISSING),
        (negative, "β with the wrong sign (−β): the KL is added to the objective"),
    ):
        answer = verify(records[0] | {"expected": {"loss": loss}}, "grpo")
        assert answer.causes == (f"ddof 0 instead of 1 (-p std_ddof=0), and {words}",)


def test_advantages_were_rounded_too() -> None:
    """By half a unit in all tokens of a response, which is more than its log-probs' errors."""
    random, made = np.random.default_rng(5), []
    for at in range(6):
        old = [-random.gamma(2.0, 0.9, size) for size in random.integers(200, 400, 6)]
        columns = {"log_probs_old": old}
        for name, spread in (("log_probs_new", 0.13), ("log_probs_ref", 0.4)):
            columns[name] = [np.minimum(x + random.normal(0, spread, len(x)), -1e-3) for x in old]
        rewards = np.array([0.0, 0.1, 0.3, 0.3, 0.5, 0.1 * (at % 5)])
        columns["advantages"] = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
        exact = {name: [part.tolist() for part in parts] for name, parts in columns.items()}
        record = {"rewards": rewards.tolist()}
        loss = evaluate(record | exact, "trl/dapo@1.9.2", beta=0.02).loss
        short = {name: [part.round(6).tolist() for part in x] for name, x in columns.items()}
        made.append(record | short | {"expected": {"loss": loss}})
    answer = verify(made, "trl/dapo", beta=0.02)
    assert answer.explained == answer.differing >= 4
    assert answer.causes[0].startswith("KL not weighted by the ratio (as TRL ")
    assert not any(", and " in one for one in answer.causes)


def test_a_setting_that_one_loss_is_solved_for_is_not_named_with_another(records) -> None:
    """A penalty on the length: some β of two digits gives its loss if the KL is another."""
    one = records[0]
    lengths = [len(row) for row in one["log_probs_new"]]
    rewards = [x - 0.02 * size for x, size in zip(one["rewards"], lengths, strict=True)]
    loss = evaluate(one | {"rewards": rewards}, "grpo").loss
    assert verify(one | {"expected": {"loss": loss}}, "grpo").causes == ()


def test_gradients_are_0_at_a_place_only_if_all_of_them_there_are(records) -> None:
    """Max in the place of min: outside of the range some are 0, and some that have to be are not.

    The others have factors of their own, so that no cause is found.
    """
    one = records[0]
    new, old = (np.concatenate(one[f"log_probs_{name}"]) for name in ("new", "old"))
    ratio = np.exp(new - old)
    own = np.concatenate(evaluate(one, "dapo", epsilon_high=0.2).gradient)
    outside = (ratio < 0.8) | (ratio > 1.2)
    odd = np.linspace(0.5, 1.7, len(own))
    for silent, words in ((outside & (own == 0.0), ""), (np.zeros_like(outside), "yours are 0")):
        wanted = np.where(outside, np.where(silent, 0.01, 0.0), odd * own)
        cuts = np.cumsum([len(row) for row in one["log_probs_new"]])[:-1]
        wanted = [row.tolist() for row in np.split(wanted, cuts)]
        answer = verify(one | {"expected": {"gradient": wanted}}, "dapo", epsilon_high=0.2)
        assert words in answer.records[0].first.pattern
        assert bool(words) == ("yours are 0" in answer.records[0].first.pattern)
