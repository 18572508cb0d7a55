"""Pages of choices say what the letters of their formulas mean, and mean what is computed."""

import math
import re

import pytest
from command import answer, run
from files import each

from grpo_cli import evaluate

LETTERS = ("d", "ρ", "w", "r", "r̄", "μ", "σ", "c", "δ", "β", "C", "R", "L", "N", "k1", "k2", "k3")
STAGES = answer("variants")["stages"]


def pages(place):
    for name in STAGES[place]["choices"]:
        document = answer("explain", name)  # the page of a variant, if one has that name
        yield from (one for one in document.get("choices", ()) if one["stage"] == place)


@pytest.mark.parametrize("place", STAGES)
def test_no_letter_stays_undefined(place):
    """Those that are hyperparameters are the choice's own."""
    for found in pages(place):
        text = " ".join(one for one in found["description"] if not one.startswith("References"))
        undefined = [one for one in LETTERS if used(one, text) and one not in found["symbols"]]
        assert undefined == [], (found["choice"], text)
        named = [one for one in found["symbols"].values() if re.fullmatch("[a-z]+_[a-z_0-9]+", one)]
        assert {*named} <= {*found["hyperparameters"]}, found["choice"]


def used(letter, text):
    """Alone, as a factor or an argument, neither an index nor part of a word; and not told of."""
    told = rf"{letter}[ₜᵢ]?(?:\(.\))?(?: =| being| and| is| counts|,? the|,? their) "
    factor = rf"(?<![\w^.\-'/]){letter}(?=[ ·)]?[·)−+/,]| [−+/≤>] )"
    return re.search(factor, text) and not re.search(told, text)


@each(
    ("name", "value"),
    [("k1", math.log(2.0)), ("k2", math.log(2.0) ** 2 / 2), ("k3", 0.5 + math.log(2.0) - 1.0)],
)
def test_d_is_the_policy_less_the_reference(name, value):
    """At π_θ = 2·π_ref: d = log 2; the values from Schulman's definitions, r = π_ref/π_θ = ½."""
    shown = run("explain", name).stdout
    assert "d = log π_θ − log π_ref" in re.search(r"(?<![\w(])d\b.*", shown).group(0)
    one = {"log_probs_new": [[math.log(0.5)]], "log_probs_ref": [[math.log(0.25)]]}
    found = evaluate(one | {"advantages": [0.0]}, "dr", stages={"kl": name}, beta=1.0)
    assert found.total["kl"] == pytest.approx(value, rel=1e-15)


def test_a_page_on_the_screen():
    lines = run("explain", "token-truncate").stdout.splitlines()
    (page,) = answer("explain", "token-truncate")["choices"]
    assert page["symbols"] == {
        "ρ": "π_old/π_rollout of the token",
        "π_old": "the policy at the start of the update",
        "π_rollout": "the engine that sampled",
    }
    assert (
        lines[0]
        == f"token-truncate, {', '.join(page['aliases'])}: --correction, " + (page["question"])
    )
    begins = [lines.index(name) for name in ("symbols", "hyperparameters")]
    assert [lines[at - 1] for at in begins] == ["", ""]
    assert lines[begins[0] + 1] == "  ρ  π_old/π_rollout of the token"
    assert lines[begins[1] + 1].startswith("  is_low  ")
    assert " ".join(lines).split("variants that use it: ")[1].split()[0] == "tis,"


def test_what_verl_clamps_is_said_of_its_k3_alone():
    for name, clamped in (("verl/low_var_kl", True), ("verl/kl", False), ("verl/mse", False)):
        (found,) = answer("explain", name)["choices"]
        assert ("clamped to ±20" in " ".join(found["description"])) == clamped
