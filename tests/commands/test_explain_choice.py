"""Pages of choices say what the letters of their formulas mean, and mean what is computed."""

import math
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from grpo_cli.commands.explain.choice import describe_choice
from grpo_cli.commands.main import app
from grpo_cli.hyperparameters import HYPERPARAMETERS
from grpo_cli.variants import STAGES

LETTERS = ("d", "ρ", "w", "r", "r̄", "μ", "σ", "c", "δ", "β", "C", "R", "L", "N", "k1", "k2", "k3")


def page(place, name):
    (found,) = [one for one in describe_choice(name)["choices"] if one["stage"] == place]
    return found


@pytest.mark.parametrize("place", STAGES)
def test_no_letter_stays_undefined(place):
    for name in STAGES[place].choices:
        found = page(place, name)
        text = " ".join(one for one in found["description"] if not one.startswith("References"))
        undefined = [one for one in LETTERS if used(one, text) and one not in found["symbols"]]
        assert undefined == [], (name, text)


def used(letter, text):
    """Alone, as a factor or an argument, neither an index nor part of a word; and not told of."""
    told = rf"{letter}[ₜᵢ]?(?:\(.\))?(?: =| being| and| is| counts|,? the|,? their) "
    factor = rf"(?<![\w^.\-'/]){letter}(?=[ ·)]?[·)−+/,]| [−+/≤>] )"
    return re.search(factor, text) and not re.search(told, text)


@pytest.mark.parametrize("place", STAGES)
def test_a_letter_that_is_a_hyperparameter_is_one_of_the_choice(place):
    for name in STAGES[place].choices:
        found = page(place, name)
        named = [meaning for meaning in found["symbols"].values() if meaning in HYPERPARAMETERS]
        assert {*named} <= {*found["hyperparameters"]}, name


@pytest.mark.parametrize(
    ("name", "value"),
    [("k1", math.log(2.0)), ("k2", math.log(2.0) ** 2 / 2), ("k3", 0.5 + math.log(2.0) - 1.0)],
)
def test_d_is_the_policy_less_the_reference(name, value):
    """At π_θ = 2·π_ref: d = log 2; the values from Schulman's definitions, r = π_ref/π_θ = ½."""
    shown = CliRunner().invoke(app, ["explain", name]).stdout
    first = re.search(r"(?<![\w(])d\b.*", shown)
    assert first is not None
    assert "d = log π_θ − log π_ref" in first.group(0)
    made = (
        STAGES["kl"]
        .choices[name]
        .function(
            np.array([math.log(0.5) - math.log(0.25)]),
            np.ones(1),
            beta=1.0,
            kl_weight="none",
            kl_input_clamp=None,
            kl_output_clamp=None,
        )
    )
    assert made.value[0] == pytest.approx(value, rel=1e-15)


def test_the_letters_of_a_page():
    assert page("correction", "token-truncate")["symbols"] == {
        "ρ": "π_old/π_rollout of the token",
        "π_old": "the policy at the start of the update",
        "π_rollout": "the engine that sampled",
    }
    assert page("kl", "k1+")["symbols"]["d"] == "log π_θ − log π_ref of the token"
    assert page("surrogate", "fipo")["symbols"]["d"] == "log π_θ − log π_old of the token"
    shown = CliRunner().invoke(app, ["explain", "clip"]).stdout
    assert (
        "symbols\n  ρ  the ratio of the ratio stage, π_θ against π_old\n  c  dual_clip\n" in shown
    )


def test_what_verl_clamps_is_said_of_its_k3_alone():
    for name, clamped in (("verl/low_var_kl", True), ("verl/kl", False), ("verl/mse", False)):
        assert ("clamped to ±20" in " ".join(page("kl", name)["description"])) == clamped
