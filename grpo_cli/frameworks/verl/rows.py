"""verl 0.9.1: its policy losses, with the defaults of its configuration.

``use_kl_loss`` is off there, so β is 0 until ``--beta`` is given (``kl_loss_coef``, 0.001). The KL
and the entropy follow ``loss_agg_mode``; where a loss has an aggregation of its own, theirs are the
stages ``kl_aggregate`` and ``entropy_aggregate``. verl's advantage estimators are ``--advantage
verl/…``, its KL penalties ``--kl verl/…`` and its modes ``--aggregate verl/…``. A record is a
micro-batch.
"""

from __future__ import annotations

from dataclasses import replace

from grpo_cli.frameworks.framework import Change
from grpo_cli.hyperparameters import Value
from grpo_cli.objective.row import Row, Use, executed, use, words

_TOKEN_MEAN = use("verl/token-mean")
_FREE = use("token")
_READS = words(
    "epsilon_low epsilon_high dual_clip tau_pos tau_neg dro_beta clip_cov_ratio clip_cov_lb "
    "clip_cov_ub clip_cov_seed kl_cov_ratio ppo_kl_coef beta dp_size batch_num_tokens "
    "global_batch_size loss_scale_factor response_length rollout_is rollout_is_threshold "
    "rollout_is_batch_normalize rollout_rs rollout_rs_threshold"
)
"""What verl's losses read of ActorConfig, PolicyLossConfig and RolloutCorrectionConfig; the clamps
on log ratios are constants of its code. clip_cov_seed replaces its random draws."""

VANILLA = Row(
    title="verl policy loss vanilla (PPO with dual clip)",
    paper="1707.06347",
    version="verl 0.9.1",
    checked="executed",
    aliases=("verl/grpo", "verl/ppo"),
    advantage=use("verl/grpo"),
    ratio=use("token", log_ratio_clamp=20.0),
    surrogate=use("clip", dual_clip=3.0),
    kl=use("verl/low_var_kl", beta=0.0),
    correction=use("none"),
    aggregate=_TOKEN_MEAN,
    entropy=use("bonus", entropy_coef=0.0),
    reads=_READS,
    note="The dual clip is always on; TRL and the papers have none. The numbers are equal if no "
    "ratio with A < 0 exceeds 3. clip_ratio alone has no effect in verl: clip_ratio_low and "
    "clip_ratio_high override it, 0.2 by default. If all tokens are masked, verl's loss is NaN "
    "(0/0); here it is 0.",
)

OWN_AGGREGATE = executed(VANILLA, kl_aggregate=_TOKEN_MEAN, entropy_aggregate=_TOKEN_MEAN)
"""The policy term has an aggregation of its own; KL and entropy follow loss_agg_mode."""

ROWS = {
    "verl/vanilla": VANILLA,
    "verl/multi_trajectories": executed(
        VANILLA, advantage=use("verl/grpo_multi_trajectories")
    ).named(
        "verl policy loss vanilla, agent loops with several outputs",
        "Only the reward of a session's final output counts in the group, once per session; its "
        "other outputs get the same advantage. In token means, long sessions still have more "
        "weight (use --aggregate trajectory-mean). Estimators other than grpo count every output.",
        paper="",
    ),
    "verl/gspo": executed(
        VANILLA,
        ratio=use("verl/sequence-token"),
        surrogate=use("clip"),
        reads=_READS - {"dual_clip"},
    ).named(
        "verl policy loss gspo (GSPO-token)",
        "The loss follows loss_agg_mode, token-mean by default. For the paper's mean, use "
        "--aggregate verl/seq-mean-token-mean; verl up to 0.9.0 always uses it (verl/gspo@0.9.0). "
        "ε is 0.2 by default; the paper's is 3e-4 and 4e-4.",
        paper="2507.18071",
    ),
    "verl/sapo": executed(
        OWN_AGGREGATE,
        surrogate=use("sapo", tau_pos=1.0, tau_neg=1.05),
        aggregate=use("verl/seq-mean-token-mean"),
    ).named(
        "verl policy loss sapo",
        "The policy term is always seq-mean-token-mean; only KL and entropy follow loss_agg_mode.",
        paper="2511.20347",
    ),
    "verl/gpg": executed(VANILLA, ratio=_FREE, surrogate=use("reinforce")).named(
        "verl policy loss gpg (REINFORCE)",
        "For verl's gpg estimator, add --advantage verl/gpg.",
        paper="2504.02546",
    ),
    "verl/clip_cov": executed(
        VANILLA, ratio=_FREE, surrogate=use("verl/clip_cov", clip_cov_seed=0)
    ).named(
        "verl policy loss clip_cov",
        "verl chooses the tokens at random without a seed; here clip_cov_seed sets one. There is "
        "no dual clip and no clamp on the ratio.",
        paper="2505.22617",
    ),
    "verl/kl_cov": executed(VANILLA, ratio=_FREE, surrogate=use("verl/kl_cov")).named(
        "verl policy loss kl_cov",
        "There is no clip. ppo_kl_coef is 0.1 in verl's configuration, 1 in its code and the "
        "paper. Where covariances tie, as in a micro-batch whose advantages are all equal, verl "
        "holds back whichever tokens torch.topk returns, and a loss can differ from grpo's.",
        paper="2505.22617",
    ),
    "verl/geo_mean": executed(
        OWN_AGGREGATE,
        ratio=_FREE,
        surrogate=use("verl/geo_mean"),
        aggregate=use("response-mean"),
    ).named(
        "verl policy loss geo_mean (GMPO)",
        "The policy term is always the mean over the rows of a micro-batch, including rows "
        "without tokens; only KL and entropy follow loss_agg_mode. ε is 0.2 by default; the "
        "paper's is 0.4.",
        paper="2507.20673",
        aliases=("verl/gmpo",),
    ),
    "verl/dppo_tv": executed(VANILLA, surrogate=use("verl/dppo_tv")).named(
        "verl policy loss dppo_tv (DPPO, binary TV)",
        "ε bounds the change of the probability from π_old. The ratio is capped at clip_ratio_c, "
        "3 by default; the paper advises against a cap.",
        paper="2602.04879",
    ),
    "verl/dppo_kl": executed(VANILLA, surrogate=use("verl/dppo_kl")).named(
        "verl policy loss dppo_kl (DPPO, binary KL)",
        "ε bounds the binary KL from π_old. The ratio is capped at clip_ratio_c, 3 by default.",
        paper="2602.04879",
    ),
    "verl/dro": executed(VANILLA, ratio=_FREE, surrogate=use("dro", dro_beta=0.1)).named(
        "verl policy loss dro (Direct Reward Optimization)",
        "verl has no default for dro_beta; 0.1 is the default of ROLL's kimi15, an equal loss.",
        paper="",
    ),
    "verl/cispo": executed(
        VANILLA, surrogate=use("cispo", epsilon_low=0.2, epsilon_high=0.2)
    ).named(
        "verl policy loss cispo",
        "The window is [0.8, 1.2] by default; verl's recipe has no lower bound, and ScaleRL's "
        "window is [0, 5]. The ratio is first clamped to e^±20.",
        paper="2506.13585",
    ),
}


# verl's rollout corrections by the names that its ``RolloutCorrectionConfig`` gives them.
#
# A decoupled one leaves the ratio to π_old and corrects it for the engine; in bypass mode the
# engine takes π_old's place, in PPO's clip or in REINFORCE. The geometric and the k3 rejection read
# the mean over the response: of log π_rollout/π within log of the bounds, and of k3.

_SEQ_TIS: dict[str, Value] = {"rollout_is": "sequence", "rollout_is_threshold": 2.0}
_TOKEN_TIS: dict[str, Value] = {"rollout_is": "token", "rollout_is_threshold": 2.0}
_ICEPOP: dict[str, Value] = {"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"}
_NO_WEIGHT: dict[str, Value] = {"rollout_is": None}
_GEO: dict[str, Value] = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.999_1.001"}
_K3: dict[str, Value] = {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.01}
_MIS: dict[str, Value] = {"rollout_rs": "seq_sum_k1", "rollout_rs_threshold": "0.5_2.0"}


def _corrected(
    row: Row[Use], correction: str, note: str, **settings: dict[str, Value]
) -> dict[str, Row[Use]]:
    """The row with each setting of a correction, by verl's name of that."""
    found = {}
    for name, values in settings.items():
        listed = ", ".join(f"{key}={value}" for key, value in values.items())
        found[f"verl/{name}"] = executed(row, correction=use(correction, **values)).named(
            f"verl vanilla with rollout_correction {name}",
            f"{note} {listed or 'nothing is rejected'}.",
        )
    return found


_ENGINE = executed(VANILLA, ratio=use("rollout", log_ratio_clamp=20.0))

ROWS |= _corrected(
    VANILLA,
    "verl/decoupled",
    "Weights and rejects tokens by π_old/π_rollout; denominators exclude rejected tokens:",
    decoupled_token_is=_TOKEN_TIS,
    decoupled_seq_is=_SEQ_TIS,
    decoupled_token_icepop=_ICEPOP,
    decoupled_seq_is_rs=_SEQ_TIS | _MIS,
    decoupled_geo_rs=_NO_WEIGHT | _GEO,
    decoupled_geo_rs_seq_tis=_SEQ_TIS | _GEO,
    decoupled_geo_rs_token_tis=_TOKEN_TIS | _GEO,
    decoupled_k3_rs=_NO_WEIGHT | _K3,
    decoupled_k3_rs_seq_tis=_SEQ_TIS | _K3,
    decoupled_k3_rs_token_tis=_TOKEN_TIS | _K3,
)
ROWS |= _corrected(
    _ENGINE,
    "verl/bypass-rejection",
    "The ratio uses the engine's policy instead of π_old, without a weight:",
    bypass_ppo_clip={},
    bypass_ppo_clip_geo_rs=_GEO,
    bypass_ppo_clip_k3_rs=_K3,
)
ROWS |= _corrected(
    executed(_ENGINE, ratio=use("rollout"), surrogate=use("reinforce"), paper=""),
    "verl/bypass",
    "Weights log π_θ·A by π_θ/π_rollout; rejected tokens leave the policy term's denominator:",
    bypass_pg_is=_SEQ_TIS,
    bypass_pg_token_icepop=_ICEPOP,
    bypass_pg_geo_rs=_NO_WEIGHT | _GEO,
    bypass_pg_geo_rs_seq_tis=_SEQ_TIS | _GEO,
    bypass_pg_geo_rs_token_tis=_TOKEN_TIS | _GEO,
)

_GSPO = ROWS["verl/gspo"]

CHANGES = (
    Change(
        since="0.9.1",
        what="gspo follows loss_agg_mode, token-mean by default. Before, it always used "
        "seq-mean-token-mean.",
        rows=("verl/gspo",),
        before="0.9.0",
    ),
)

EARLIER = {
    "verl/gspo@0.9.0": replace(
        _GSPO,
        version="verl 0.9.0",
        aggregate=use("verl/seq-mean-token-mean"),
        kl_aggregate=_GSPO.aggregate,
        entropy_aggregate=_GSPO.aggregate,
        note="In verl 0.8.0 and 0.9.0 the policy term is always seq-mean-token-mean; only KL and "
        "entropy follow loss_agg_mode.",
    )
}
