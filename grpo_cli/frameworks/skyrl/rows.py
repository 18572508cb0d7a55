"""SkyRL at commit a9564572 (2026-08-21), with the defaults of its configuration.

The KL is a mean over responses of token means whatever ``loss_reduction`` says, and the entropy a
mean over the tokens of a micro-batch. SkyRL exponentiates in float32. Its off_policy_correction is
``--correction skyrl/off-policy``. SkyRL puts the denominator into the advantages before the loss.
"""

from __future__ import annotations

from dataclasses import replace

from grpo_cli.objective.row import Row, executed, use, vary, words

_READS = words(
    "epsilon_low epsilon_high tau_pos tau_neg divergence_low divergence_high clip_cov_ratio "
    "clip_cov_lb clip_cov_ub clip_cov_seed kl_cov_ratio ppo_kl_coef beta"
)
"""Of AlgorithmConfig; clip_cov_seed replaces SkyRL's random draws."""

_REGULAR = Row(
    title="SkyRL policy loss regular (PPO)",
    paper="1707.06347",
    version="a9564572 (2026-08-21)",
    checked="golden",
    aliases=("skyrl/grpo", "skyrl/ppo"),
    advantage=use("verl/grpo"),
    ratio=use("token", log_ratio_clamp=20.0),
    surrogate=use("clip"),
    kl=use("verl/low_var_kl", beta=0.001),
    correction=use("none"),
    aggregate=use("token-mean"),
    kl_aggregate=use("response-mean"),
    entropy=use("bonus", entropy_coef=0.0),
    entropy_aggregate=use("token-mean"),
    reads=_READS,
    note="The KL is on by default, with β 0.001; without a reference, use --beta 0. For other "
    "reductions, use --aggregate token_mean, sequence_mean, prompt_mean or "
    "seq_mean_token_sum_norm. For kl_estimator_type k1, abs or k2, use --kl with that name; for "
    "use_kl_in_reward, k1-in-reward and the like, of k3 verl/low_var_kl-in-reward, which is "
    "clamped as SkyRL's is.",
)

_SUMMED = executed(_REGULAR, ratio=use("token"), aggregate=use("sum"))

ROWS = {
    "skyrl/regular": replace(_REGULAR, checked="executed"),
    "skyrl/dual_clip": vary(
        _REGULAR,
        checked="golden",
        surrogate=use("clip", dual_clip=3.0),
        reads=_READS | {"dual_clip"},
    ).named(
        "SkyRL policy loss dual_clip", "verl's vanilla, which always has it.", paper="1912.09729"
    ),
    "skyrl/step_wise": executed(_REGULAR, advantage=use("verl/grpo_multi_trajectories")).named(
        "SkyRL policy loss regular with step_wise_trajectories",
        "Only the last step's reward counts, once per trajectory; rewards of earlier steps are "
        "ignored. Denominators still count steps: sequence_mean is a mean over steps.",
        paper="",
    ),
    "skyrl/gspo": vary(_REGULAR, checked="golden", ratio=use("verl/sequence-token")).named(
        "SkyRL policy loss gspo (GSPO-token)",
        "loss_reduction is token_mean by default, and SkyRL only warns; the paper's is "
        "sequence_mean.",
        paper="2507.18071",
    ),
    "skyrl/sapo": vary(
        _REGULAR, checked="golden", surrogate=use("sapo", tau_pos=1.0, tau_neg=1.05)
    ).named(
        "SkyRL policy loss sapo",
        "loss_reduction is token_mean by default; verl always uses the response mean.",
        paper="2511.20347",
    ),
    "skyrl/cispo": vary(
        _REGULAR,
        checked="golden",
        surrogate=use("cispo", epsilon_low=1.0, epsilon_high=4.0),
        reads=_READS - {"epsilon_low", "epsilon_high"},
    ).named(
        "SkyRL policy loss cispo",
        "The window is ScaleRL's [0, 5]; verl's is [0.8, 1.2], ROLL's [0.9, 1.1]. SkyRL reads "
        "cispo.cispo_eps_clip_low and …_high, not eps_clip_low and eps_clip_high. For another "
        "window, use --surrogate cispo --epsilon-low 1 --epsilon-high 3; for cispo_anchor rollout, "
        "--ratio rollout.",
        paper="2510.13786",
    ),
    "skyrl/rollout_is": vary(_REGULAR, checked="golden", surrogate=use("skyrl/rollout_is")).named(
        "SkyRL policy loss rollout_is (GLM-5)",
        "The ratio is π_θ/π_rollout; log_probs_old is not used.",
        paper="2602.15763",
    ),
    "skyrl/dppo": vary(_REGULAR, checked="golden", surrogate=use("skyrl/dppo_tv")).named(
        "SkyRL policy loss dppo (DPPO, binary TV)",
        "The mask uses the engine's log-probs if the record has them, else π_old. verl caps the "
        "ratio and multiplies log π_θ: its gradient is equal up to the cap, its value is not.",
        paper="2602.04879",
    ),
    "skyrl/kl_cov": executed(_SUMMED, surrogate=use("skyrl/kl_cov")).named(
        "SkyRL policy loss kl_cov",
        "SkyRL divides the advantages by the denominator (here that of token_mean), but not the "
        "penalty, which is a plain sum of ppo_kl_coef·|log ρ|; verl averages both. The share of "
        "tokens is 0.2; verl's is 0.0002.",
        paper="2505.22617",
    ),
    "skyrl/clip_cov": executed(_SUMMED, surrogate=use("skyrl/clip_cov")).named(
        "SkyRL policy loss clip_cov",
        "The covariance uses advantages that are already divided by the denominator, so the "
        "bounds 1 and 5 exclude almost no token. SkyRL chooses the tokens at random without a "
        "seed; here clip_cov_seed sets one.",
        paper="2505.22617",
    ),
    "skyrl/dppo-kl": executed(_REGULAR, surrogate=use("skyrl/dppo_kl")).named(
        "SkyRL policy loss dppo with dppo_type binary_kl",
        "The anchor and the thresholds are skyrl/dppo's, but the thresholds bound the binary KL.",
        paper="2602.04879",
    ),
    "skyrl/importance_sampling": vary(_SUMMED, surrogate=use("unclipped")).named(
        "SkyRL policy loss importance_sampling (Tinker's)", "A plain sum.", paper=""
    ),
}
