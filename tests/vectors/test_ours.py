"""Ours on the vectors, and the files themselves."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import command
import numpy as np
import pytest
from files import each, some
from mpmath import mpf

from grpo_cli import GrpoError, evaluate
from grpo_cli.vectors import Case, Claims, NotClaimedError, Verdict, cases, claimed, judge
from grpo_cli.vectors.claims import vocabulary
from vectors import make
from vectors.make import faults

# ---- grpo's own evaluator against the vectors, through ``from grpo_cli import evaluate`` ---------


NAMES = {
    "leave-one-out-std": "nemo-rl/grpo",
    "token-whiten": "verl/reinforce_plus_plus_baseline",
    "bnpo": "token-mean",
}
"""The choices that have another name here; the second adds 1e-8 to the variance."""

NOT_OURS = ("variance_eps", "is_batch_normalize")

CLAIMS = Claims(
    **{
        stage: vocabulary()[stage]
        for stage in (
            *("advantage", "ratio", "surrogate", "kl", "correction", "aggregate"),
            *("split", "options"),
        )
    },
    metrics=[
        *("kl", "clip_fraction_low", "clip_fraction_high", "clip_fraction", "ratio_mean"),
        *("dead_groups",),
    ],
    refuses=dict.fromkeys(vocabulary()["refuses"], GrpoError),
    conventions={
        "empty-response": "counted",
        "no-tokens": "0",
        "singleton-group": "0",
        "masked-response": "votes",
        "rejected-tokens": "counted",
        "correction-on-kl": "no",
        "kl-weight-level": "the sequence's ratio",
        "kl-clamp": "none",
        "ratio-clamp": "none",
        "clip-fraction": "of the tokens",
        "entropy-aggregate": "as the policy",
        "dead-groups": "of the prompts",
    },
)
NOT_CLAIMED = {
    "metrics dual_clip_fraction": 1,
    "metrics ppo_kl": 3,
    "metrics rollout_kl": 2,
    "metrics rollout_k3": 2,
    "a loss that is not finite is refused": 1,
}
"""Metrics that ``evaluate`` has not, and the one convention that has no number to compare."""


def compute(case: Case) -> dict[str, Any]:
    if case.topic == "kl-overflow":
        raise NotClaimedError("a loss that is not finite is refused")
    how = {k: v for k, v in case.hyperparameters.items() if k not in NOT_OURS}
    stages = {stage: NAMES.get(name, name) for stage, name in case.choices.items()}
    stages.pop("split", None)
    if "is_batch_normalize" in case.hyperparameters:
        how |= normalised(stages, how)
    bonus = {name: how.pop(name) for name in ("entropy_coef",) if name in how}
    if case.choices.get("surrogate") == "clip-cov":
        how["clip_cov_seed"] = 0  # the case has no more candidates than are drawn
    record = {**case.input, "hyperparameters": how | {"std_min": 0.0}}
    found = evaluate(record, "grpo", stages=stages, **bonus)
    advantages = found.breakdown.response_advantage
    scale = share(case) * case.step.ranks
    return {
        "loss": found.loss * scale,
        "gradient": [
            placed(-row * scale, mask)
            for row, mask in zip(found.gradient, case.input["mask"], strict=True)
        ],
        "advantages": None if advantages is None else advantages,
        "metrics": {**found.total, "dead_groups": found.total["dead_groups"] / case.step.groups},
    }


def normalised(stages: dict[str, str], how: dict[str, Any]) -> dict[str, Any]:
    """By verl's names, which alone have it."""
    level, _, kind = stages["correction"].partition("-")
    stages["correction"] = "verl/decoupled"
    bounds = how["is_high"] if kind == "truncate" else f"{how['is_low']}_{how['is_high']}"
    return {
        "rollout_is": level,
        "rollout_is_threshold": bounds,
        "rollout_is_batch_normalize": "true",
    }


def share(case: Case) -> float:
    """The part of the step's denominator that is in this micro-batch."""
    counts = {
        "token-mean": (int(np.sum(np.concatenate(case.input["mask"]))), case.step.tokens),
        "prompt-mean": (len(set(case.input["group_ids"])), case.step.groups),
        "sum": (1, 1),
        "bnpo": (1, case.step.ranks * case.step.micro_batches),
    }
    rows = (len(case.input["mask"]), case.step.responses)
    inside, whole = counts.get(case.choices.get("aggregate", "sum"), rows)
    return inside / whole if whole else 1.0


def placed(row: Any, mask: list[int]) -> list[float]:
    """One number per token; what the mask removes has no slope."""
    slopes = iter(row.tolist())
    return [next(slopes) if counts else 0.0 for counts in mask]


def outcomes() -> Iterator[tuple[Case, Verdict | str]]:
    """The verdict on each case, or why it is not claimed."""
    for case in cases():
        try:
            yield case, judge(compute, claimed(case, CLAIMS), CLAIMS)
        except NotClaimedError as reason:
            yield case, str(reason)


def test_what_is_claimed_is_right_and_the_rest_is_listed() -> None:
    found = [*outcomes()]
    verdicts = [(case, verdict) for case, verdict in found if isinstance(verdict, Verdict)]
    assert {case.id: verdict.problems for case, verdict in verdicts if verdict.problems} == {}
    assert Counter(verdict for _, verdict in found if isinstance(verdict, str)) == NOT_CLAIMED


# ---- the vectors' files: the oracle's numbers, the schema, each flag used and each case sound ----


TEXTS = {path.stem: path.read_text("utf-8") for path in make.TARGET.glob("*.json")}
FILES = {name: json.loads(TEXTS[name]) for name in make.FILES}
SCHEMA = json.loads(TEXTS["schema"])


@pytest.mark.more
@pytest.mark.parametrize("name", FILES)
def test_the_oracle_computes_what_is_in_a_file(name: str) -> None:
    assert make.rendered(make.document(FILES[name])) == TEXTS[name]


@pytest.mark.parametrize("name", FILES)
def test_file_is_of_the_schema(name: str) -> None:
    assert list(faults(FILES[name], SCHEMA, SCHEMA, name)) == []
    assert FILES[name]["file"] == name


def test_the_schema_tells_what_is_wrong() -> None:
    document = json.loads(TEXTS["clip"])
    document["cases"][0] |= {"result": "perhaps", "odd": 1, "flags": []}
    document["cases"][1]["input"]["mask"] = [[2]]
    del document["cases"][2]["input"]
    assert list(faults(document, SCHEMA, SCHEMA, "clip")) == [
        "clip.cases[0].flags: expected at least 1 items, got 0",
        "clip.cases[0].result: 'perhaps' is none of ['required', 'convention', 'invalid']",
        "clip.cases[0]: odd is not known",
        "clip.cases[1].input.mask[0][0]: 2 is none of [0, 1]",
        "clip.cases[2]: input is missing",
    ]


def test_all_files_are_under_a_megabyte() -> None:
    assert TEXTS.keys() == {*FILES, "schema"}
    assert sum(len(text.encode()) for text in TEXTS.values()) < 1_000_000


def test_names_are_given_once() -> None:
    assert [name for name, count in Counter(c.id for c in cases()).items() if count > 1] == []


def flags() -> set[str]:
    return {row["flag"] for row in command.answer("vectors", "--flags")["flags"]}


def test_every_flag_of_a_case_is_a_mistake_of_the_catalogue() -> None:
    assert {flag for case in cases() for flag in case.flags} <= flags()


def test_there_are_cases_of_each_result_in_number() -> None:
    counts = Counter(case.result for case in cases())
    assert set(counts) == {"required", "convention", "invalid"}
    assert counts["required"] >= 300


@pytest.mark.parametrize("name", FILES)
def test_cases_are_small_and_whole(name: str) -> None:
    wrong = [case.id for case in cases() if case.file == name and not _small_and_whole(case)]
    assert wrong == []


def _small_and_whole(case: Case) -> bool:
    lengths = [len(row) for row in case.input["mask"]]
    parts = sorted(i for rank in case.split for part in rank for i in part)
    return (
        len(lengths) <= 8
        and max(lengths) <= 6
        and sum(lengths) <= 24
        and parts == list(range(len(lengths)))
        and bool(case.expected) == (case.result == "required")
        and bool(case.conventions) == (case.result == "convention")
        and bool(case.topic) == (case.result != "required")
    )


@each("case", [c for c in cases() if c.conventions], ids=lambda case: case.id)
def test_conventions_differ(case: Case) -> None:
    """Else an answer would follow two at once."""
    values = [
        json.dumps({k: v for k, v in expected.items() if k != "used_by"})
        for expected in case.conventions.values()
    ]
    assert len(set(values)) == len(values) >= 2


@pytest.mark.more
@pytest.mark.parametrize("name", FILES)
def test_the_number_is_the_same_under_the_choices_that_say_so(name: str) -> None:
    for case in FILES[name]["cases"]:
        for stage, choices in case.get("same_under", {}).items():
            for choice in some(choices, 2):
                other = make.answers(case, **{stage: choice})
                assert _near(other, {key: case[key] for key in other}), (case["id"], choice)


def _near(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return all(_near(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return all(_near(a, b) for a, b in zip(found, wanted, strict=True))
    return bool(found == wanted or abs(mpf(found) - mpf(wanted)) <= 1e-15)


def test_inputs_are_exact_in_bfloat16_where_it_is_fine_enough() -> None:
    """A multiple of 1/32 below 8 has at most eight binary digits."""
    assert [c.id for c in cases() if "bfloat16" in c.tolerances and not _exact(c)] == []


def _exact(case: Case) -> bool:
    columns = [v for k, v in case.input.items() if k not in ("mask", "group_ids")]
    return all(_eight_digits(x) for x in _numbers(columns))


def _numbers(value: Any) -> list[float]:
    return [x for inner in value for x in _numbers(inner)] if isinstance(value, list) else [value]


def _eight_digits(x: float) -> bool:
    if x != x or x in (float("inf"), 0.0):
        return True
    numerator, _ = abs(x).as_integer_ratio()
    while numerator % 2 == 0:
        numerator //= 2
    return numerator < 256


def test_the_oracle_knows_nothing_of_the_evaluator() -> None:
    for path in make.HERE.glob("oracle/*.py"):
        assert not re.search(r"^(from|import) grpo_cli", path.read_text("utf-8"), re.MULTILINE)
