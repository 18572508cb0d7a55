"""A choice at a stage explained: what it computes, what it takes, and which variants make it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from grpo_cli.hyperparameters import HYPERPARAMETERS
from grpo_cli.objective.choice import Bound
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen
from grpo_cli.variants import STAGES, VARIANTS


def is_choice(name: str) -> bool:
    """Whether a stage has a choice of that name, or under that name of a framework."""
    return any(name in stage.choices or name in stage.aliases for stage in STAGES.values())


def describe_choice(name: str) -> dict[str, Any]:
    """All that the tables know of the choice, at each stage that has it."""
    found = {
        place: stage.aliases.get(name, name)
        for place, stage in STAGES.items()
        if name in stage.choices or name in stage.aliases
    }
    return {"choices": [_described(place, choice) for place, choice in found.items()]}


def _described(place: str, name: str) -> dict[str, Any]:
    stage = STAGES[place]
    choice = stage.choices[name]
    description = _paragraphs(inspect.getdoc(choice.function) or choice.summary)
    return {
        "stage": place,
        "question": stage.question,
        "choice": name,
        "aliases": [alias for alias, of in stage.aliases.items() if of == name],
        "description": description,
        "symbols": symbols(place, description, choice.hyperparameters),
        "hyperparameters": {one: HYPERPARAMETERS[one].meaning for one in choice.hyperparameters},
        "variants": [
            row
            for row, variant in VARIANTS.items()
            if isinstance(bound := getattr(variant, place), Bound) and bound.name == name
        ],
    }


def _paragraphs(doc: str) -> list[str]:
    """The paragraphs of a docstring, without those for programmers."""
    sections = [section.replace("``", "") for section in doc.split("\n\n")]
    wanted = [one for one in sections if not one.startswith(("Args:", "Returns:", "Raises:"))]
    return [" ".join(one.split()) for one in wanted]


def print_choice(console: Console, screen: Screen, page: Mapping[str, Any]) -> None:
    """Prints a page for each stage that has the choice."""
    width = screen.reading
    for at, one in enumerate(page["choices"]):
        names = ", ".join([one["choice"], *one["aliases"]])
        about = f": --{one['stage']}, {one['question']}"
        console.print(Text.assemble("\n" if at else "", (names, "bold cyan"), about))
        console.print()
        for paragraph in one["description"]:
            console.print(wrapped(Text(f"  {paragraph}"), width, 2))
        if one["symbols"]:
            console.print(Text("\nsymbols", "bold"))
        for symbol, meaning in one["symbols"].items():
            console.print(wrapped(Text.assemble("  ", (symbol, "cyan"), f"  {meaning}"), width, 4))
        if one["hyperparameters"]:
            console.print(Text("\nhyperparameters", "bold"))
        for name, meaning in one["hyperparameters"].items():
            console.print(wrapped(Text.assemble("  ", (name, "cyan"), f"  {meaning}"), width, 4))
        made = ", ".join(one["variants"]) or "none"
        console.print()
        console.print(wrapped(Text(f"variants that use it: {made}"), width, 2))


# ---- what the letters of a formula mean, where the description does not say ----------------------

Meaning = str | tuple[str, ...]
"""In words; or the hyperparameters of which a choice takes one."""

_EVERYWHERE: Mapping[str, Meaning] = {
    "A": "the advantage",
    "|o|": "the number of the response's tokens",
    "oₜ": "the sampled token",
    "sg": "sg[…] is a constant: no gradient flows through it",
    "π_θ": "the policy in training",
    "π_old": "the policy at the start of the update",
    "π_ref": "the reference",
    "π_rollout": "the engine that sampled",
    "β": ("beta", "dro_beta"),
    "γ": ("gamma",),
    "λ": ("rlsd_lambda", "gae_lambda", "turn_advantage_coef"),
    "τ": ("real_tau",),
}
_TRAINED = "the ratio of the ratio stage, π_θ over π_old"
_SYMBOLS: Mapping[str, Mapping[str, Meaning]] = {
    "advantage": {
        "r": "the response's reward",
        "s": "the response's score, its reward",
        "r̄": "the mean reward of its group",
        "μ": "the mean score of its group",
        "σ": "the standard deviation over the group",
        "σ_batch": "the standard deviation over the batch",
        "G": "the number of responses in the group",
        "kₜ": "the token's KL estimate (--kl …-in-reward)",
        "β": "the KL's coefficient, beta",
        "k": ("gfpo_keep",),
        "m": "the mean of A over the tokens",
        "v": "the variance of A over the tokens",
        "w": ("num_output_tokens_weight",),
        "wₖ": "the weight of a reward function",
        "w₊": ("positive_weight",),
        "w₋": ("negative_weight",),
        "ε_w": ("rlsd_clip_range",),
        "V": "the critic's value",
    },
    "ratio": {
        "d": "log π_θ − log π_old of the token",
        "ρ": "the ratio",
        "sᵢ": "the ratio of the choice `sequence`",
        "ε": ("count_eps",),
    },
    "surrogate": {
        "ρ": _TRAINED,
        "r": "π_θ/π_rollout",
        "w": "the ratio of the ratio stage, π_θ over π_rollout",
        "d": "log π_θ − log π_old of the token",
        "c": ("dual_clip",),
        "δ": ("delta",),
        "δ_low": ("divergence_low",),
        "δ_high": ("divergence_high",),
        "W": "the product of the response's ratios",
        "μ": "the engine that sampled",
        "β₁": ("gppo_beta1",),
        "β₂": ("gppo_beta2",),
    },
    "kl": {
        "k1": "d",
        "k2": "d²/2",
        "k3": "e^(−d) + d − 1",
        "absolute": "|d|",
        "d": "log π_θ − log π_ref of the token",
        "k": "the estimate",
        "k′": "its slope in log π_θ",
        "ρ": _TRAINED,
        "g_β": ("sdar_gate_beta",),
    },
    "correction": {
        "c": "the weight of the token's surrogate",
        "ρ": "π_old/π_rollout of the token",
        "μ": "the engine that sampled",
        "C": ("is_high",),
        "H": "the entropy of the policy at the token",
    },
    "aggregate": {
        "R": "the number of responses",
        "L": ("max_completion_length",),
        "N": ("num_items_in_batch", "global_n_tokens", "loss_denominator"),
        "P": ("num_processes",),
    },
}
_INDEX = "ₜᵢⱼₖₛ"
_DEFINED = (
    r"(?:\(\w\))?(?: =| being| and \w (?:being|the) | is (?:the|a) | counts |,? (?:the|their) )"
)
_NOT_BEFORE = {"A": "(?! [a-z])", "s": "(?![−)])"}
"""Excludes an article, and the index of a sum."""


def symbols(stage: str, paragraphs: Iterable[str], taken: Collection[str]) -> dict[str, str]:
    """Each symbol that a description uses and does not define → what it means at that stage.

    Args:
        stage: the stage's name.
        paragraphs: the description.
        taken: the hyperparameters of the choice.
    """
    text = " ".join(one for one in paragraphs if not one.startswith("References:"))
    of_stage = _SYMBOLS.get(stage, {})
    known = {**of_stage, **_EVERYWHERE, **of_stage}  # in this order, the stage's own meanings
    meanings = {name: _meaning(meaning, taken) for name, meaning in known.items()}
    used = text
    while True:  # symbols in a meaning have meanings as well
        found = {name: one for name, one in meanings.items() if one and _is_open(name, used, text)}
        more = " ".join([text, *found.values()])
        if more == used:
            return found
        used = more


def _meaning(meaning: Meaning, taken: Collection[str]) -> str:
    if isinstance(meaning, str):
        return meaning
    return next((name for name in meaning if name in taken), "")


def _is_open(name: str, used: str, text: str) -> bool:
    """Whether the symbol occurs, and the description does not say what it is."""
    pattern = _pattern(name)
    return bool(re.search(pattern, used)) and not re.search(pattern + _DEFINED, text)


def _pattern(name: str) -> str:
    index = f"[{_INDEX}]?" if len(name) == 1 else ""
    if name == "|o|":
        return rf"\|o[{_INDEX}]?\|"
    after = _NOT_BEFORE.get(name, "")
    return rf"(?<![\w.\-′']){re.escape(name)}{index}(?![\w\u0304′₊₋'-]){after}"
