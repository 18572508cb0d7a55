"""What a record's ``framework`` says is what is evaluated: settings beside the rows that ran."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from files import each
from rows import choose, completed

from grpo_cli import VARIANTS, evaluate

GOLDEN = Path(__file__).parent.parent / "golden"
VERL = [
    case
    for case in json.loads((GOLDEN / "verl_rollout.json").read_bytes())["cases"]
    if set(case["record"]["hyperparameters"]) == {"beta", "entropy_coef"}
]
"""verl's presets as they are."""
SLIME: dict[str, Any] = json.loads((GOLDEN / "others.json").read_bytes())


@each("case", VERL, ids=lambda case: case["variant"])
def test_rollout_correction_of_verl(case: dict[str, Any]) -> None:
    """The fields of verl's own presets, and the loss that verl returned."""
    preset = case["variant"]
    given = dict(VARIANTS[preset].correction.values)
    if "bypass" in preset:
        given |= {"bypass_mode": True, "loss_type": "reinforce" if "_pg_" in preset else "ppo_clip"}
    chosen = choose({"name": "verl", "policy_loss": "vanilla", "rollout_correction": given})
    made = completed(chosen, advantages_given=True, stages={}, hyperparameters={})
    values: dict[str, Any] = dict(made.flags)
    found = evaluate(case["record"], made.variant, stages=dict(made.swapped), **values)
    assert found.loss == pytest.approx(case["loss"], rel=1e-9)


WORDS = {
    "slime/normalised": {"normalize_advantages": True},
    "slime/opd": {"use_opd": True, "opd_kl_coef": 0.3},
    "slime/opd-normalised": {"use_opd": True, "opd_kl_coef": 0.3, "normalize_advantages": True},
}


@pytest.mark.parametrize("choice", WORDS)
def test_advantages_of_slime(choice: str) -> None:
    """slime's own words, and the advantages that slime returned."""
    chosen = choose({"name": "slime", "advantage_estimator": "grpo", **WORDS[choice]})
    values: dict[str, Any] = dict(chosen.hyperparameters)
    cases = [case for case in SLIME["advantages"] if _is_of(case, choice)]
    assert cases
    for case in cases:
        record = SLIME["batches"][case["batch"]]
        found = evaluate(record, chosen.row, stages=chosen.stages, **values)
        for own, theirs in zip(found.advantages, case["advantages"], strict=True):
            assert own == pytest.approx(theirs, rel=1e-9, abs=1e-9)


def _is_of(case: dict[str, Any], choice: str) -> bool:
    coefficient = case["hyperparameters"].get("opd_kl_coef")
    return (
        case["framework"] == "THUDM/slime"
        and case["stages"] == {"advantage": choice}
        and coefficient == WORDS[choice].get("opd_kl_coef")
    )


ROWS = json.loads((Path(__file__).parent / "settings.json").read_bytes())
"""By framework and source: settings, the row, its stages and hyperparameters."""


@each(
    ("settings", "variant", "stages", "values"),
    [one for rows in ROWS.values() for one in rows],
)
def test_what_settings_come_to(
    settings: dict[str, Any], variant: str, stages: dict[str, str], values: dict[str, Any]
) -> None:
    chosen = choose(settings)
    assert (chosen.row, chosen.stages, chosen.hyperparameters) == (variant, stages, values)


def test_a_choice_in_words_and_as_a_plan() -> None:
    """The trainer's values are the plan's, where flags say nothing else; its estimator is not."""
    chosen = choose({"name": "slime", "use_opd": True, "opd_kl_coef": 0.5, "eps_clip": 0.25})
    made = completed(chosen, advantages_given=False, stages={}, hyperparameters={})
    assert " ".join(made.words) == (
        "-v slime/grpo --advantage slime/opd --epsilon-low 0.25 -p opd_kl_coef=0.5 "
        "--epsilon-high 0.25 --batch record"
    )
    given: dict[str, Any] = {"stages": {"kl": "k3"}, "hyperparameters": {"epsilon_low": 0.125}}
    made = completed(chosen, advantages_given=False, **given)
    assert (made.swapped, made.batch) == ({"advantage": "slime/opd", "kl": "k3"}, "record")
    assert made.flags == {"opd_kl_coef": 0.5, "epsilon_low": 0.125, "epsilon_high": 0.25}
    made = completed(chosen, advantages_given=True, stages={}, hyperparameters={})
    assert (made.swapped, made.flags) == ({}, {"epsilon_low": 0.25, "epsilon_high": 0.25})
    assert made.words[:4] == ["-v", "slime/grpo", "--epsilon-low", "0.25"]
    assert made.words[4:] == ["--epsilon-high", "0.25", "--batch", "record"]


@each("counted", [None, 24])
def test_trl_divides_by_what_a_process_has_of_a_step(counted: int | None) -> None:
    """N/P · accumulation ÷ steps of a generation; N is the batch's tokens where it is not given."""
    row = {"log_probs_new": [[-1.0] * 3, [-1.0]], "advantages": [1.0, -0.5]}
    counts = {"num_processes": 2, "gradient_accumulation_steps": 3, "steps_per_generation": 12}
    loss = evaluate(row, "trl/dapo", num_items_in_batch=counted, beta=0.0, **counts).loss
    assert loss == pytest.approx(-(3 * 1.0 - 0.5) / ((counted or 4) / 2 * 3 / 12))
