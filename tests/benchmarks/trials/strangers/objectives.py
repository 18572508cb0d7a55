"""Mistakes of what is averaged: ratios, clips, KL estimates, signs."""

from __future__ import annotations

import numpy as np

from trials.simulate.noise import bfloat16
from trials.strangers.batches import Wish
from trials.strangers.mistake import Mistake, both
from trials.strangers.plain import Array, Case, Recipe, Rows, clamp, detach

TRL = ("trl",)
ENGINE = r"correction|importance.sampling|\btis\b|rollout|vllm|engine|sampling"
KL = r"\b(kl|penalty)\b"


def _old(change: object) -> object:
    """A ratio to other log-probs."""

    def log(rows: Rows, recipe: Recipe) -> Array:
        return rows.new - change(rows)  # type: ignore[operator]

    return lambda case: case.but(log_ratio=log)


def _rolled(rows: Rows) -> Array:
    """The old log-probs of the next token."""
    found = np.roll(rows.old, -1, axis=1)
    return found * rows.mask + rows.new.real * (1 - rows.mask)


def _late_old(rows: Rows) -> Array:
    return np.roll(rows.old, 1, axis=1)


def _product(rows: Rows, recipe: Recipe) -> Array:
    d = (rows.new - rows.old) * rows.mask
    return d.sum(-1, keepdims=True) + 0.0 * d


def _unsummed(rows: Rows, recipe: Recipe) -> Array:
    return (rows.new - rows.old) / np.maximum(rows.lengths, 1.0)[:, None]


def _token(rows: Rows, recipe: Recipe) -> Array:
    return rows.new - rows.old


def _narrow(rows: Rows, recipe: Recipe) -> Array:
    """Old log-probs kept in bfloat16."""
    return rows.new - bfloat16(rows.old.astype(np.float32))


def _without_exp(rows: Rows, recipe: Recipe, rho: Array, adv: Array) -> Array:
    return np.log(rho) * adv


def _unclipped(rows: Rows, recipe: Recipe, rho: Array, adv: Array) -> Array:
    return rho * adv


def _bare_cispo(rows: Rows, recipe: Recipe, rho: Array, adv: Array) -> Array:
    return clamp(rho, -np.inf, recipe.high) * adv


def _summed_weights(rows: Rows, recipe: Recipe) -> Array:
    d = (rows.old - rows.rollout) * rows.mask
    return np.minimum((np.exp(d) * rows.mask).sum(-1, keepdims=True) + 0.0 * d, recipe.cap)


def _estimate(of: object) -> object:
    """Another KL estimate of d = log π_θ − log π_ref."""

    def found(rows: Rows, recipe: Recipe, rho: Array) -> Array:
        k = of(rows.new - rows.ref)  # type: ignore[operator]
        return k * rho if recipe.weighted_kl else k

    return lambda case: case.but(penalty=found)


MISTAKES = [
    Mistake(
        "log ratio for the ratio",
        "XiaolongTang23/Plan-R1#7",
        lambda case: case.but(surrogate=_without_exp),
        r"log.?ratio|not exponentiat|without (the )?exp|exp.{0,20}(missing|left)|reinforce"
        r"|log.?prob|\bd\b ?[·*]|\bd·A",
        Wish(TRL, ("response", "token"), beta=False),
    ),
    Mistake(
        "ratio to the policy itself",
        "meta-pytorch/torchforge#571",
        _old(lambda rows: detach(rows.new)),
        r"on-?policy|ratio.{0,60}\b1\b|old.{0,80}(ignor|not used|unused|detach|replac|current|same"
        r"|missing|itself)|reinforce|detach|log_probs_old (is|are|equal)",
        Wish(),
    ),
    Mistake(
        "ratio without a gradient",
        "Goekdeniz-Guelmez/mlx-lm-lora#50",
        lambda case: case.but(ratio=lambda rows, recipe, log: np.ones(rows.mask.shape)),
        r"no (policy )?gradient|(policy|surrogate|ratio).{0,80}(detach|constant|without|no grad)"
        r"|only (of )?the (kl|penalty)|(kl|penalty)('s)? (alone|only)|detach|stop-?grad",
        Wish(beta=True),
        value=False,
    ),
    Mistake(
        "product of the response's ratios",
        "rasbt/reasoning-from-scratch#243",
        lambda case: case.but(log_ratio=_product),
        r"product|\bsum(med)?\b.{0,40}(log|ratio)|sequence|whole response|joint",
        Wish(),
    ),
    Mistake(
        "token's log ratio over the length",
        "agentscope-ai/Trinity-RFT#154",
        lambda case: case.but(log_ratio=_unsummed),
        r"(ratio|log|d).{0,60}(divided by|over|÷|/).{0,30}length|not summed|1/L|root",
        Wish(("trl", "paper"), ("response",), sequence=True),
    ),
    Mistake(
        "token's ratio for the sequence's",
        "MakazhanAlpamys/Soup#723",
        lambda case: case.but(log_ratio=_token),
        r"token.?level|(per|each|every) ?-?token|tokens? ?'?s? (own )?ratio|ratio.{0,40}\btokens?\b"
        r"|level.{0,20}token",
        Wish(("trl", "paper"), ("response",), sequence=True),
    ),
    Mistake(
        "old log-probs one token off",
        "PrimeIntellect-ai/prime-rl#1525",
        lambda case, late: _old(_late_old if late else _rolled)(case),
        r"shift|off.by.one|(next|previous|another) (token|position)|one (token|position)|displac"
        r"|neighbou?r",
        Wish(),
        strengths=(False, True),
    ),
    Mistake(
        "engine's log-probs for the old policy's",
        "THUDM/slime#846",
        _old(lambda rows: rows.rollout),
        r"rollout|sampling|sampled|engine|inference|vllm",
        Wish(rollout=True),
    ),
    Mistake(
        "old log-probs in bfloat16",
        "PrimeIntellect-ai/prime-rl#568",
        lambda case: case.but(log_ratio=_narrow),
        r"bf16|bfloat|half|precision|8 bits|fp16|float16|16.?bit|mantissa",
        Wish(),
    ),
    Mistake(
        "correction for the engine left out",
        "linkedin/Liger-Kernel#1082",
        lambda case: case.by(correction=""),
        both(
            ENGINE,
            r"\bnone\b|missing|left out|\bno\b|without|not (applied|used)|ignor|unweigh|absent"
            r"|lacks|trl/masks",
        ),
        Wish(
            TRL,
            ("response", "token", "constant"),
            rollout=True,
            more=(("correction", ("token", "sequence")),),
        ),
    ),
    Mistake(
        "weights of a sequence summed for multiplied",
        "unslothai/unsloth-zoo#870",
        lambda case: case.but(weights=_summed_weights),
        both(ENGINE, r"\bsum|added|adds|not multiplied"),
        Wish(
            TRL,
            ("response", "token", "constant"),
            rollout=True,
            more=(("correction", "sequence"), ("cap", 20.0)),
        ),
    ),
    Mistake(
        "no clip",
        "xiaomi-research/time-r1#20",
        lambda case: case.but(surrogate=_unclipped),
        r"un-?clipped|no clip|without (a |the )?clip|clip.{0,60}(missing|left out|absent|off|not"
        r"|never|nothing)|not clipped|never clip|unbounded|epsilon.{0,30}(inf|large)",
        Wish(),
    ),
    Mistake(
        "upper epsilon ignored",
        "modelscope/ms-swift#3599",
        lambda case: case.by(high=case.recipe.low),
        r"epsilon_high|upper|ε_high|eps\w*.?high|symmetric|both sides|high ?=|above",
        Wish(more=(("low", 0.2), ("high", (0.28, 0.4))), move=0.4),
    ),
    Mistake(
        "cispo as a clipped ratio",
        "allenai/open-instruct#1269",
        lambda case: case.but(surrogate=_bare_cispo),
        r"log.?prob|log ?π|detach|stop-?grad|clipp?e?d? (ratio|surrogate)|surrogate clip|\bppo\b"
        r"|\bgrpo\b|gradient.{0,60}(ratio|weight)",
        Wish(TRL, ("items",), more=(("cispo", True), ("high", (1.2, 1.5))), move=0.4),
    ),
    Mistake(
        "delta of the two-sided clip ignored",
        "huggingface/trl#5690",
        lambda case: case.by(delta=None),
        r"delta|two-?sided|δ",
        Wish(TRL, ("response", "token", "constant"), more=(("delta", (1.3, 1.5)),), move=0.5),
    ),
    Mistake(
        "no dual clip",
        "verl-project/verl#784",
        lambda case: case.by(dual=None),
        r"dual|clip_ratio_c|c·A|\bc\b ?=",
        Wish(("verl",), move=0.9, more=(("dual", (1.5, 2.0, 3.0)),)),
    ),
    Mistake(
        "KL subtracted",
        "qiancheng0/ToolRL#52",
        lambda case: case.by(beta=-case.recipe.beta),
        both(
            KL + r"|beta|β",
            r"\bsign\b|subtract|maximi|negat|wrong way|reward|minus|[-−–] ?(beta|β)",
        ),
        Wish(beta=True),
    ),
    Mistake(
        "KL of the reference to the policy",
        "RLinf/RLinf#129",
        _estimate(lambda d: np.exp(d) - d - 1.0),
        both(
            KL,
            r"revers|swap|exchang|direction|other way|forward|sign of (d|the log)|invert|turned"
            r"|e\^d|exp\(d\)|log π_ref [-−–] log π_θ",
        ),
        Wish(beta=True),
    ),
    Mistake(
        "KL as the square of the log ratio",
        "PrimeIntellect-ai/prime-rl#1701",
        _estimate(lambda d: d * d),
        r"squar|\bd²|d\^2|d \*\* ?2|\bmse\b|\bk2\b",
        Wish(beta=True),
    ),
    Mistake(
        "KL as the log ratio",
        "OpenRLHF/OpenRLHF#525",
        _estimate(lambda d: d),
        r"\bk1\b|(plain|naive|linear|itself).{0,30}(kl|log ratio)|log ratio (itself|alone)"
        r"|\bkl\b estimator",
        Wish(beta=True),
    ),
    Mistake(
        "KL not weighted by the ratio",
        "huggingface/trl#5690",
        lambda case: case.by(weighted_kl=False),
        both(KL + r"|kl_weight", r"bias.?correction|kl_weight|unbiased|ratio|importance|weight"),
        Wish(TRL, beta=True, more=(("weighted_kl", True), ("beta", (0.04, 0.1))), move=0.4),
    ),
    Mistake(
        "KL left out",
        "OpenRLHF/OpenRLHF#773",
        lambda case: case.by(beta=0.0),
        both(
            KL + r"|beta|β",
            r"\bno\b|without|missing|left out|absent|lack|not (added|there|in)|\b0(?![.\d])",
        ),
        Wish(beta=True),
    ),
    Mistake(
        "sign of the loss",
        "fla-org/flash-linear-attention#1073",
        lambda case: Case(case.rows, case.recipe, case.steps, -1.0),
        r"\bsign\b|negat|\bminus\b|maximi[sz]|times -1|[-−–]1\b",
        Wish(),
    ),
]
