"""prime-rl's losses, all of them against the engine that sampled."""

from __future__ import annotations

from dataclasses import replace

from grpo_cli.frameworks.framework import Change
from grpo_cli.objective.row import Row, use, vary, words

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
    "prime-rl/ipo": vary(GRPO).named(
        "prime-rl's ipo, its default loss",
        "IPO stands for Importance Policy Optimization, not Identity Preference Optimization. eps "
        "is -p ipo_threshold. Until 0.9.0 it was named ipo_threshold, 0.1 by default, with a "
        "kl_tau of 0.001 (prime-rl/ipo@0.9.0).",
    ),
    "prime-rl/icepop": vary(GRPO, surrogate=use("prime-rl/icepop"), kl=use("none")).named(
        "prime-rl's icepop",
        "The mask uses π_θ/π_rollout; the paper's (row icepop) uses π_old/π_rollout. ratio_low "
        "and ratio_high are -p is_low and is_high.",
        paper="2510.18855",
    ),
    "prime-rl/dppo": vary(
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
    "prime-rl/max_rl": vary(GRPO, advantage=use("max-rl")).named(
        "prime-rl's max_rl with its default loss, ipo",
        "A = (r − r̄)/r̄, and 0 if r̄ <= 0.",
        paper="2602.02710",
    ),
    "prime-rl/ref_kl": vary(
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
_AGENTS = " The loss is that of 0.9.0, DPPO's; later ones: --surrogate prime-rl/ipo --kl none."
ROWS |= {
    "prime-rl/hierarchical_grpo": vary(
        _DPPO, advantage=use("state-group-mean"), checked="executed", until=""
    ).named(
        "prime-rl's hierarchical_grpo, for proposers and solvers",
        "Needs state_ids: what each agent was given to do, as the episode for the roles of "
        "episode_agents and the role for others. A trace counts once." + _AGENTS,
        paper="",
        aliases=("hierarchical_grpo",),
    ),
    "prime-rl/rae": vary(_DPPO, advantage=use("remax"), checked="executed", until="").named(
        "prime-rl's rae (SPIRAL's role-conditioned advantage)",
        "A = r − b, b the running mean of the agent's rewards before this trace, which prime-rl "
        "keeps from step to step: records give it as reward_baselines." + _AGENTS,
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
    "prime-rl/grpo@0.9.0": vary(_DPPO, until="").named(
        "prime-rl's grpo with its default loss until 0.9.0: DPPO's mask",
        f"{_BEFORE}: prime-rl/dppo.",
    ),
    "prime-rl/max_rl@0.9.0": vary(
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
