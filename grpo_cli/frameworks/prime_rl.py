"""prime-rl's advantages and losses, all against the engine that sampled, and how its settings read.

The ratio is ``rollout``, w = π_θ/π_rollout. Sums over tokens are divided by rl_scale, the tokens of
the step on all ranks: src/prime_rl/trainer/rl/train.py.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.errors import InputError
from grpo_cli.frameworks.framework import Change, Framework, Reading, Settings
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import ByToken, choice
from grpo_cli.objective.results import PerToken, Surrogate
from grpo_cli.objective.row import Row, executed, use, words
from grpo_cli.objective.surrogate.gates import dropping


@choice("advantage", "prime-rl/length-penalty", num_output_tokens_weight=0.25)
def length_penalty(
    rewards: F64, lengths: I64, groups: Groups, *, num_output_tokens_weight: float
) -> F64:
    """A = x − x̄ over the group, x = r − w·r̄·|o|/max|o|: the longest response loses w·r̄.

    Args:
        num_output_tokens_weight: w. Its other two terms, of input tokens and of turns, need the
            number of each, which records do not have.

    References:
        prime-rl's ``LinearLengthPenaltyConfig``.
    """
    tokens = lengths.astype(np.float64)
    longest = np.maximum(groups.reduce(lambda rows: rows.max(axis=1), tokens), 1.0)
    means = groups.sum(rewards) / np.maximum(groups.sizes, 1)
    share = tokens / longest[groups.index]
    return groups.offsets(rewards - means[groups.index] * (num_output_tokens_weight * share))


@choice("advantage", "prime-rl/ref_kl", stops_gradient="the distance to the teacher is a constant")
def from_teacher(log_ratio_ref: F64) -> PerToken:
    """On-policy distillation: A = sg[log π_ref − log π_θ], where π_ref is the teacher.

    References:
        Lu et al., On-Policy Distillation, 2025; prime-rl's ``opd``. NeMo-RL uses log π_old instead
        of log π_θ, Tinker log π_rollout.
    """
    return PerToken(-log_ratio_ref)


@choice("surrogate", "prime-rl/ipo", ipo_threshold=0.3)
def ipo(
    ratio: F64, advantage: F64, log_probs_new: F64, log_probs_rollout: F64, *, ipo_threshold: float
) -> Surrogate:
    """prime-rl's ipo: s = w·A, or 0 if |π_θ − π_rollout| > threshold, for either sign of A.

    It is not Identity Preference Optimization.

    Args:
        ratio: [N] w.
        ipo_threshold: in probability; prime-rl's ``eps``.
    """
    moved = np.exp(log_probs_new) - np.exp(log_probs_rollout)
    high, low = moved > ipo_threshold, moved < -ipo_threshold
    return dropping(ratio, advantage, high & (advantage != 0), low & (advantage != 0))


@choice("surrogate", "prime-rl/icepop", is_low=0.2, is_high=5.0)
def icepop(
    ratio: F64,
    advantage: F64,
    log_probs_new: F64,
    log_probs_rollout: F64,
    *,
    is_low: float | None,
    is_high: float | None,
) -> Surrogate:
    """prime-rl's icepop: s = w·A, or 0 if w is outside [low, high].

    Args:
        ratio: [N] w.
        log_probs_new, log_probs_rollout: [N] nats; their difference is compared, not w.
        is_low, is_high: prime-rl's ``ratio_low`` and ``ratio_high``; None: no bound.
    """
    least = math.log(is_low) if is_low else -math.inf
    most = math.inf if is_high is None else math.log(is_high) if is_high else -math.inf
    log_ratio = log_probs_new - log_probs_rollout
    high, low = log_ratio > most, log_ratio < least
    return dropping(ratio, advantage, high & (advantage != 0), low & (advantage != 0))


@choice(
    "surrogate",
    "prime-rl/ref_kl",
    scales=False,
    stops_gradient="the distance to the teacher is a constant weight",
    divergence_low=0.2,
)
def ref_kl(
    ratio: F64,
    log_ratio_ref: F64,
    log_probs_new: F64,
    log_probs_rollout: F64,
    *,
    divergence_low: ByToken,
) -> Surrogate:
    """prime-rl's on-policy distillation: s = w·sg[log π_ref − log π_θ]; rewards are not used.

    Tokens with π_θ − π_rollout < −δ_low are dropped.

    Args:
        ratio: [N] w.
        log_ratio_ref: [N] log π_θ − log π_ref, π_ref being the teacher, nats.
        divergence_low: δ, in probability.
    """
    low = np.exp(log_probs_new) - np.exp(log_probs_rollout) < -divergence_low
    return dropping(ratio, -log_ratio_ref, np.zeros_like(low), low)


_VALUES = {
    "eps": "ipo_threshold",
    "ipo_threshold": "ipo_threshold",
    "dppo_mask_low": "divergence_low",
    "dppo_mask_high": "divergence_high",
    "ratio_low": "is_low",
    "ratio_high": "is_high",
    "kl_tau": "beta",
}
"""The numbers of ``[trainer.loss]`` → hyperparameters; ``ipo_threshold`` is ``eps`` since 0.9.1."""

_DISTILLED = ("opd", "opsd", "ref_kl")
_KNOWN = (
    *("", "default", "dppo", "ipo", "icepop", "grpo", "max_rl"),
    *("hierarchical_grpo", "rae"),
)
"""What else an algorithm or a loss may be; a paper's row of the same name is not prime-rl's."""


def read(settings: Settings) -> Reading:
    """The row of an algorithm and a loss type, with the loss's numbers.

    Args:
        settings: prime-rl's own words: ``algorithm`` (the ``type`` of
            ``[orchestrator.train.algo]``), ``loss_type`` (that of ``[trainer.loss]``), and the
            loss's ``eps`` or ``ipo_threshold``, ``dppo_mask_low``, ``dppo_mask_high``,
            ``ratio_low``, ``ratio_high``, ``kl_tau`` and ``adv_tau``.

    Raises:
        InputError: where ``adv_tau`` is not 1, or no row has the algorithm or the loss.
    """
    if settings.get("adv_tau", 1.0) != 1.0:
        raise InputError(
            f"no variant of prime-rl's has adv_tau {settings['adv_tau']!r}: multiply the "
            "advantages by it",
            path="framework.adv_tau",
        )
    algorithm, loss = (str(settings.get(name) or "") for name in ("algorithm", "loss_type"))
    algorithm = algorithm or str(settings.get("variant") or "")
    values = {own: settings[name] for name, own in _VALUES.items() if name in settings}
    if algorithm in _DISTILLED or loss in _DISTILLED:
        return Reading("ref_kl")
    for name, word in (("algorithm", algorithm), ("loss_type", loss)):
        if word not in _KNOWN:
            raise InputError(
                f"no variant reproduces prime-rl's {word!r}; name one with -v",
                path=f"framework.{name}",
            )
    stages = {"advantage": "max-rl"} if algorithm == "max_rl" and loss else {}
    return Reading(loss or algorithm or "grpo", stages, values)


GRPO = Row(
    title="prime-rl's grpo with its default loss, ipo: a symmetric trust region",
    paper="",
    advantage=use("group-mean"),
    ratio=use("rollout"),
    surrogate=use("prime-rl/ipo", ipo_threshold=0.3),
    kl=use("square-rollout", beta=0.0),
    correction=use("none"),
    aggregate=use("token-mean"),
    reads=words("divergence_low divergence_high ipo_threshold is_low is_high beta"),
    checked="executed",
    version="349283d",
    note="The ratio is π_θ/π_rollout, without a clip. Tokens with |π_θ − π_rollout| > eps (-p "
    "ipo_threshold) are masked, for either sign of A. Until 0.9.0 the default loss was "
    "prime-rl/dppo (prime-rl/grpo@0.9.0). kl_tau, 0 by default, is --beta: the penalty is (log "
    "w)² without ½, also on masked tokens. Later commits have no kl_tau and cap w at 10⁴. For "
    "length_penalty on output tokens, use --advantage prime-rl/length-penalty; on input tokens "
    "and turns it is not covered.",
)

ROWS = {
    "prime-rl/grpo": GRPO,
    "prime-rl/ipo": executed(GRPO).named(
        "prime-rl's ipo, its default loss",
        "IPO stands for Importance Policy Optimization, not Identity Preference Optimization. eps "
        "is -p ipo_threshold. Until 0.9.0 it was named ipo_threshold, 0.1 by default, with a "
        "kl_tau of 0.001 (prime-rl/ipo@0.9.0).",
    ),
    "prime-rl/icepop": executed(GRPO, surrogate=use("prime-rl/icepop"), kl=use("none")).named(
        "prime-rl's icepop",
        "The mask uses π_θ/π_rollout; the paper's (variant icepop) uses π_old/π_rollout. ratio_low "
        "and ratio_high are -p is_low and is_high.",
        paper="2510.18855",
    ),
    "prime-rl/dppo": executed(
        GRPO,
        surrogate=use("dppo-tv-rollout", divergence_low=0.2, divergence_high=0.2),
        kl=use("square-rollout", beta=1e-3),
        version="559b447 (2026-08-21)",
        until="prime-rl 0.9.0",
    ).named(
        "prime-rl's loss of type default: DPPO's mask and Kimi's squared log ratio",
        "The ratio is π_θ/π_rollout, without a clip. Tokens with a large change of probability "
        "are masked. The KL is (log w)² without ½, also on masked tokens; it needs no reference "
        "(arXiv 2602.02276). dppo_mask_low and dppo_mask_high are -p divergence_low and "
        "divergence_high.",
        paper="2602.04879",
        aliases=("prime-rl/default",),
    ),
    "prime-rl/max_rl": executed(GRPO, advantage=use("max-rl")).named(
        "prime-rl's max_rl with its default loss, ipo",
        "A = (r − r̄)/r̄, and 0 if r̄ <= 0.",
        paper="2602.02710",
    ),
    "prime-rl/ref_kl": executed(
        GRPO,
        advantage=use("prime-rl/ref_kl"),
        surrogate=use("prime-rl/ref_kl", divergence_low=0.2),
        kl=use("square-rollout", beta=1e-3),
        reads=frozenset(),
    ).named(
        "prime-rl's on-policy distillation (opd, opsd)",
        "log_probs_ref is the teacher's; rewards and advantages are not used. prime-rl hard-codes "
        "the constants. Later commits have no (log w)² (--kl none) and cap w at 10⁴.",
        aliases=("prime-rl/opd", "prime-rl/opsd"),
    ),
}

_DPPO = ROWS["prime-rl/dppo"]
_AGENTS = (
    " The loss is DPPO's, as in 0.9.0; for later releases use --surrogate prime-rl/ipo --kl none."
)
ROWS |= {
    "prime-rl/hierarchical_grpo": executed(
        _DPPO, advantage=use("state-group-mean"), until=""
    ).named(
        "prime-rl's hierarchical_grpo, for proposers and solvers",
        "Needs state_ids, which say what each agent was asked to do: the episode for roles in "
        "episode_agents, the role for others. Each trace counts once." + _AGENTS,
        paper="",
        aliases=("hierarchical_grpo",),
    ),
    "prime-rl/rae": executed(_DPPO, advantage=use("remax"), until="").named(
        "prime-rl's rae (SPIRAL's role-conditioned advantage)",
        "A = r − b, where b is the running mean of the agent's earlier rewards over all steps. "
        "Records must give b as reward_baselines." + _AGENTS,
        paper="2506.24119",
        aliases=("rae",),
    ),
}
_BEFORE = "As prime-rl up to 0.9.0 computed it"

CHANGES = (
    Change(
        since="0.9.1.dev0",
        what="ipo is the default loss (pull request 3418), and DPPO's, of type default, was "
        "removed. ipo_threshold (0.1) was renamed to eps (0.3), and kl_tau is 0 instead of 0.001 "
        "(pull request 3586).",
        rows=("prime-rl/grpo", "prime-rl/ipo", "prime-rl/max_rl"),
        before="0.9.0",
    ),
)

EARLIER = {
    "prime-rl/grpo@0.9.0": executed(_DPPO, until="").named(
        "prime-rl's grpo with its default loss until 0.9.0: DPPO's mask",
        f"{_BEFORE}: prime-rl/dppo.",
    ),
    "prime-rl/max_rl@0.9.0": executed(
        _DPPO, advantage=ROWS["prime-rl/max_rl"].advantage, until=""
    ).named(
        "prime-rl's max_rl with its default loss until 0.9.0: DPPO's mask",
        f"{_BEFORE}. {ROWS['prime-rl/max_rl'].note}",
        paper="2602.02710",
    ),
    "prime-rl/ipo@0.9.0": replace(
        ROWS["prime-rl/ipo"],
        surrogate=use("prime-rl/ipo", ipo_threshold=0.1),
        kl=_DPPO.kl,
        version=_DPPO.version,
        note=f"{_BEFORE} with type ipo, which was not the default.",
    ),
}


FRAMEWORK = Framework(
    name="prime-rl",
    rows=ROWS,
    earlier=EARLIER,
    changes=CHANGES,
    read=read,
    accumulation="whole step",
)
