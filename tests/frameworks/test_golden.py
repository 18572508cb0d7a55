"""What frameworks' and authors' own functions returned in float64, on batches and trajectories.

Each file of tests/golden says how it was made; no number in it is of this program.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import test_readme
from files import each, some
from rows import EARLIER

from grpo_cli import VARIANTS, GrpoError, InputError, evaluate

FOLDER = Path(__file__).parent.parent / "golden"
TRL, VERL, BASELINES, OTHERS, AUTHORS = (
    json.loads((FOLDER / f"{name}.json").read_bytes())
    for name in ("trl", "verl_rollout", "verl_baselines", "others", "authors")
)


class Near(NamedTuple):
    """How near our numbers have to be.

    Attributes:
        loss: relative; ``least``: absolute.
        gradient: relative; ``floor``: of the greatest slope.
        advantages: relative, and absolute.
    """

    loss: float
    least: float
    gradient: float
    floor: float
    advantages: float = 0.0


NEAR = {
    "trl": Near(1e-12, 0.0, 1e-10, 1e-15),
    "verl": Near(1e-9, 0.0, 1e-9, 1e-15, 1e-9),
    # NeMo-RL adds 1e-8 to the counts that its means divide by; we to that of its ratio alone
    "others": Near(2e-8, 1e-12, 2e-8, 1e-9, 2e-8),
    # their token mean adds 1e-8 to the count of tokens; the sums are of ten to hundred tokens
    "authors": Near(1e-9, 1e-12, 1e-9, 1e-12, 1e-12),
}


def flat(rows: Any) -> Any:
    return np.concatenate([*map(np.array, rows)])


@dataclass(frozen=True)
class Case:
    """An input, and what a function returned: loss and [N] ∂J/∂log π_θ, or [N] advantages."""

    file: str
    variant: str
    record: dict[str, Any]
    stages: dict[str, str]
    values: dict[str, Any]
    loss: float = 0.0
    gradient: Any = None
    advantages: Any = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    named: str = ""

    def __str__(self) -> str:
        swapped = [*self.stages.values(), *(f"{k}={v}" for k, v in self.values.items())]
        return " ".join([self.file, self.variant, self.named, *swapped])

    @cached_property
    def ours(self) -> Evaluated:
        """What we make of it."""
        found = evaluate(self.record, self.variant, stages=self.stages, **self.values)
        kl, clip = found.breakdown.kl, found.breakdown.clip
        return Evaluated(found.loss, found.gradient, found.advantages, kl, clip)


class Evaluated(NamedTuple):
    """What is compared of an evaluation."""

    loss: float
    gradient: list[np.ndarray]
    advantages: list[np.ndarray]
    kl: np.ndarray | None
    clip: np.ndarray


def trl() -> Iterator[Case]:
    for entry in TRL["cases"]:
        how = entry["record"], entry["stages"], entry["hyperparameters"]
        gradient = -flat(entry["loss_gradient"])
        yield Case("trl", entry["variant"], *how, entry["loss"], gradient, metrics=entry["metrics"])


def verl() -> Iterator[Case]:
    for entry in VERL["cases"]:
        gradient = -flat(entry["gradient"])
        yield Case("verl", entry["variant"], entry["record"], {}, {}, entry["loss"], gradient)
    for entry in BASELINES["cases"]:
        advantages = flat(entry["advantages"])
        yield Case(
            "verl", "verl/vanilla", entry["record"], entry["stages"], {}, advantages=advantages
        )


def sources(file: str, golden: dict[str, Any]) -> Iterator[Case]:
    for entry in golden["cases"] + golden["advantages"]:
        commit = golden["commits"].get(entry["framework"], entry["framework"])
        yield Case(
            file,
            entry["variant"],
            golden["batches"][entry["batch"]],
            entry["stages"],
            entry["hyperparameters"],
            entry.get("loss", 0.0),
            flat(entry["gradient"]) if "gradient" in entry else None,
            flat(entry["advantages"]) if "advantages" in entry else None,
            named=f"{commit} {entry['batch']}",
        )


FROM_SOURCES = [*sources("others", OTHERS)]
EVERY = [*trl(), *verl(), *FROM_SOURCES, *sources("authors", AUTHORS)]


def part(cases: list[Case]) -> list[Case]:
    """A case of each row's choices, words and settings; all where ``.ci/run`` tries them."""
    rows: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        given = [(name, value) for name, value in case.values.items() if value is not None]
        settings = (pair if isinstance(pair[1], str | bool) else pair[0] for pair in given)
        key = (case.file, case.variant, *case.stages.values(), *settings)
        rows.setdefault(key, []).append(case)
    return [case for row in rows.values() for case in some(row, 1)]


@each("case", part([case for case in EVERY if case.gradient is not None]), ids=str)
def test_loss_and_gradient(case: Case) -> None:
    near, found = NEAR[case.file], case.ours
    assert found.loss == pytest.approx(case.loss, rel=near.loss, abs=near.least)
    floor = near.floor * np.abs(case.gradient).max()
    np.testing.assert_allclose(flat(found.gradient), case.gradient, rtol=near.gradient, atol=floor)


@each("case", [case for case in EVERY if case.advantages is not None], ids=str)
def test_advantages(case: Case) -> None:
    near = NEAR[case.file].advantages
    ours = flat(case.ours.advantages)
    np.testing.assert_allclose(ours, case.advantages, rtol=near, atol=near)


# ---- TRL


@each("case", [case for case in EVERY if "kl" in case.metrics], ids=str)
def test_kl(case: Case) -> None:
    assert case.ours.kl is not None
    assert case.ours.kl.mean() == pytest.approx(case.metrics["kl"], rel=1e-12)


BY_RESPONSE = ("trl/gspo", "trl/luspo", "trl/rloo")
"""What TRL counts by response."""
COUNTED = [
    case
    for case in EVERY
    if "clip_ratio/low_mean" in case.metrics and case.variant not in BY_RESPONSE
]


@each("case", COUNTED, ids=str)
def test_clip_fractions(case: Case) -> None:
    ours = [np.mean(case.ours.clip < 0), np.mean(case.ours.clip > 0)]
    theirs = [case.metrics[f"clip_ratio/{side}_mean"] for side in ("low", "high")]
    assert ours == pytest.approx(theirs, rel=1e-6)  # TRL's are in single precision


def test_the_cases_are_of_the_version_that_trl_s_rows_name() -> None:
    assert TRL["framework"] == "trl 1.16.0"
    assert len({case.variant for case in trl()}) == 11


# ---- verl: rollout corrections, GAE, ReMax and optimal token baselines


def test_every_row_of_verl_s_corrections_has_golden_numbers() -> None:
    rows = {name for name in VARIANTS if name.startswith(("verl/decoupled", "verl/bypass"))}
    assert {case["variant"] for case in VERL["cases"]} == rows
    assert {VARIANTS[name].version for name in rows} == {f"verl {VERL['version']}"}


@each(
    ("given", "message"),
    [
        ({"rollout_rs": "token_k4"}, "rollout_rs: expected one of token_k1"),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": None}, "expected 1 threshold"),
        ({"rollout_rs": "token_k2", "rollout_rs_threshold": "0.5_2"}, "one upper bound"),
        (
            {"rollout_rs": "token_k2,seq_mean_k2,seq_max_k3", "rollout_rs_threshold": "1,2"},
            "expected 1 threshold, or 3",
        ),
        ({"rollout_is_threshold": "two"}, "LOW_HIGH, got 'two'"),
        ({"rollout_is": "response"}, "one of token, sequence"),
    ],
)
def test_settings_that_verl_refuses_too(given: dict[str, Any], message: str) -> None:
    record = VERL["cases"][0]["record"] | {"hyperparameters": given}
    with pytest.raises(GrpoError, match=message):
        evaluate(record, "verl/decoupled_geo_rs")


@each(
    ("choice", "column", "words"),
    [
        ("verl/gae", "values", "a critic's value of each token"),
        ("verl/remax", "reward_baselines", "the reward of a greedy response"),
        ("verl/optimal_token_baseline", "sum_pi_squared", "the sum of squared probabilities"),
    ],
)
def test_a_missing_column_is_named(choice: str, column: str, words: str) -> None:
    whole = BASELINES["cases"][0]["record"]
    record = {key: value for key, value in whole.items() if key != column}
    with pytest.raises(InputError, match=words) as caught:
        evaluate(record, "verl/vanilla", stages={"advantage": choice})
    assert caught.value.path == column


def test_neutral_gae_is_the_recursion() -> None:
    record = {
        "log_probs": [[-1.0, -1.0, -1.0], [-1.0]],
        "values": [[0.5, 0.25, 1.0], [0.75]],
        "rewards": [2.0, 1.0],
        "hyperparameters": {"gamma": 0.5, "gae_lambda": 0.5},
    }
    found = evaluate(record, "grpo", stages={"advantage": "gae"}, beta=0.0)
    # δ = 0.5·0.25 − 0.5, 0.5·1 − 0.25, 2 − 1 and 1 − 0.75; A = δ + 0.25·A of the next
    wanted = [-0.375 + 0.25 * (0.25 + 0.25 * 1.0), 0.25 + 0.25 * 1.0, 1.0, 0.25]
    np.testing.assert_allclose(np.concatenate(found.advantages), wanted, rtol=1e-15)


# ---- from sources


@pytest.mark.more
def test_the_parity_table_is_the_parity_run_s() -> None:
    """``grpo help checked`` states the errors of these cases."""
    stated = test_readme.marked((test_readme.PAGES / "checked.md").read_text("utf-8"), "parity")
    known = iter(FROM_SOURCES)
    measured = test_readme.parity_report().others(OTHERS, lambda *_: next(known).ours)
    assert stated == test_readme.parity_table(measured)


RAN = {
    case.variant
    for case in FROM_SOURCES
    if not case.variant.startswith("tinker/")  # whose losses run on its servers alone
    and (not case.variant.startswith("trl/") or "@" in case.variant)  # of another's loss
}
"""The rows whose framework's own loss or advantage ran."""


def test_rows_state_the_commits_that_ran() -> None:
    commits = set(OTHERS["commits"].values())
    for variant in (name for name in RAN if "/" in name):  # papers have no version
        row = VARIANTS[variant]
        assert row.version in commits or commits & set(row.version.split())
        assert row.checked == "executed"


def test_rows_that_claim_to_have_run_did() -> None:
    elsewhere = ("trl/", "verl/")  # tests/parity runs them
    claimed = {
        name
        for name, row in {**VARIANTS, **EARLIER}.items()
        if row.checked == "executed" and not (name.startswith(elsewhere) and "@" not in name)
    }
    of_agents = json.loads((Path(__file__).parents[1] / "golden" / "agents.json").read_text())
    ran = RAN | {case.get("variant", "") for cases in of_agents.values() for case in cases}
    ran -= {"verl/multi_trajectories"}
    assert {name for name in claimed if "/" in name} == {name for name in ran if "/" in name}


# ---- from papers' authors


def test_the_bounds_of_bapo_went_every_way() -> None:
    """Some cases balance at once, some on the way, some at the end of the ranges."""
    losses: dict[Any, set[float]] = {}
    for entry in AUTHORS["cases"]:
        if entry["variant"] == "bapo":
            where = entry["batch"], entry["hyperparameters"]["bapo_low_max"]
            losses.setdefault(where, set()).add(entry["loss"])
    assert max(len(found) for found in losses.values()) >= 4


def test_kl_cov_holds_back_the_share_of_the_authors_script() -> None:
    """recipe/dapo/32b_kl_cov.sh of PRIME-RL/Entropy-Mechanism-of-RL 8850579: k_percent=0.02."""
    draw = np.random.default_rng(3)
    old = -draw.uniform(1.0, 2.0, size=10_000)
    new = old + draw.normal(scale=0.1, size=10_000)
    record = {
        "log_probs_new": [new],
        "log_probs_old": [old],
        "advantages": [draw.normal(size=10_000)],
    }
    found = evaluate(record, "kl-cov")
    moved = found.surrogate[0] != found.ratio[0] * found.advantage[0]
    assert moved.sum() == 0.02 / 100 * 10_000


# ---- agents of several turns (tests/parity/agents.py of f9747046)

KEPT = json.loads((Path(__file__).parents[1] / "golden" / "agents.json").read_text())
CASES = {
    f"{case['source']} {case['function']} {number}": case
    for cases in KEPT.values()
    for number, case in enumerate(cases)
}


def record_of(columns: dict[str, Any]) -> dict[str, Any]:
    """The columns by response; what is by turn has as many numbers as a row has turns."""
    named = {key: np.array(value) for key, value in columns.items() if value is not None}
    ends = np.cumsum(named.pop("lengths"))[:-1]
    rows = np.split(named["turn_ids"], ends)
    turns = np.cumsum([len(np.unique(row)) for row in rows])
    record = {"group_ids": named.pop("groups"), "rewards": named.pop("rewards")}
    if "trajectories" in named:
        record["trajectory_ids"] = named.pop("trajectories")
    if "reward_baselines" in named:
        record["reward_baselines"] = named.pop("reward_baselines")
    for key in ("turn_rewards", "state_ids"):
        value = named.pop(key, np.zeros(0))
        if len(value) == turns[-1]:  # MT-GRPO knows no states
            record[key] = np.split(value, turns[:-1])
    record |= {key: np.split(value, ends) for key, value in named.items()}
    return {
        key: [row.tolist() for row in value] if isinstance(value, list) else value.tolist()
        for key, value in record.items()
    }


@each("name", list(CASES))
def test_frameworks_numbers(name: str) -> None:
    case = CASES[name]
    stages, values = {"kl": "none"} | case.get("stages", {}), case.get("hyperparameters", {})
    found = evaluate(record_of(case["batch"]), case.get("variant", "dr"), stages=stages, **values)
    advantages, gradient = map(np.concatenate, (found.advantages, found.gradient))
    assert advantages == pytest.approx(case["advantages"], rel=1e-9, abs=1e-12)
    assert found.loss == pytest.approx(case["loss"], rel=1e-9, abs=1e-12)
    assert gradient == pytest.approx(case["gradient"], rel=1e-9, abs=1e-12)


def test_every_source_ran() -> None:
    assert len(KEPT) == 10
    assert all(KEPT.values())
