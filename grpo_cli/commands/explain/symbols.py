"""What the letters of a choice's formula mean, where its description does not say."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

Meaning = str | tuple[str, ...]
"""In words; or the hyperparameters of which a choice takes one."""

_EVERYWHERE: Mapping[str, Meaning] = {
    "A": "the advantage",
    "|o|": "the number of the response's tokens",
    "oₜ": "the token taken",
    "sg": "sg[…] is a constant: no gradient flows through it",
    "π_θ": "the policy that is trained",
    "π_old": "the policy at the start of the update",
    "π_ref": "the reference",
    "π_rollout": "the engine that sampled",
    "β": ("beta", "dro_beta"),
    "γ": ("gamma",),
    "λ": ("rlsd_lambda", "gae_lambda"),
    "τ": ("real_tau",),
}
_TRAINED = "the ratio of the ratio stage, π_θ against π_old"
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
        "sᵢ": "the ratio that sequence gives",
        "ε": ("count_eps",),
    },
    "surrogate": {
        "ρ": _TRAINED,
        "r": "π_θ/π_rollout",
        "w": "the ratio of the ratio stage, π_θ against π_rollout",
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
_TOLD = (
    r"(?:\(\w\))?"
    r"(?: =| ≥ t| being| and \w (?:being|the) | is (?:the|a) | counts |,? (?:the|their) )"
)


_NOT_BEFORE = {"A": "(?! [a-z])", "s": "(?![−)])"}
"""What follows an article, or the index of a sum."""


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
    said = {name: _said(meaning, taken) for name, meaning in known.items()}
    used = text
    while True:  # what a meaning mentions is told too
        found = {name: one for name, one in said.items() if one and _is_open(name, used, text)}
        more = " ".join([text, *found.values()])
        if more == used:
            return found
        used = more


def _said(meaning: Meaning, taken: Collection[str]) -> str:
    if isinstance(meaning, str):
        return meaning
    return next((name for name in meaning if name in taken), "")


def _is_open(name: str, used: str, text: str) -> bool:
    """Whether the symbol occurs, and the description does not say what it is."""
    pattern = _pattern(name)
    return bool(re.search(pattern, used)) and not re.search(pattern + _TOLD, text)


def _pattern(name: str) -> str:
    if name == "|o|":
        return rf"\|o[{_INDEX}]?\|"
    if name == "sg":
        return r"\bsg(?=\[)"
    index = f"[{_INDEX}]?" if name.isalpha() and len(name) == 1 else ""
    before = r"(?<![\w.\-′'])" if len(name) == 1 or "π" in name else r"(?<![\w.\-′'/])"
    after = r"(?![\w\u0304′₊₋']|[-.][\w+])" + _NOT_BEFORE.get(name, "")
    return before + re.escape(name) + index + after
