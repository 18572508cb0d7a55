"""How slime's arguments read: what a record's ``framework`` says of the trainer that made it."""

from __future__ import annotations

from grpo_cli.frameworks.framework import Reading, Settings

_VALUES = {
    "eps_clip": "epsilon_low",
    "eps_clip_high": "epsilon_high",
    "eps_clip_c": "dual_clip",
    "kl_loss_coef": "beta",
    "tis_clip_low": "is_low",
    "tis_clip": "is_high",
    "opsm_delta": "off_policy_mask_threshold",
    "opd_kl_coef": "opd_kl_coef",
    "entropy_coef": "entropy_coef",
}
_ADVANTAGES = {
    (True, False): "slime/normalised",
    (False, True): "slime/opd",
    (True, True): "slime/opd-normalised",
}
"""(normalize_advantages, use_opd) → the advantage."""


def read(settings: Settings) -> Reading:
    """The row of an ``advantage_estimator``, with the trainer's other choices swapped in.

    Args:
        settings: slime's own words: ``advantage_estimator``, ``normalize_advantages``, ``use_opd``,
            ``use_tis``, ``use_opsm``, ``use_rollout_logprobs``, ``use_unbiased_kl``,
            ``kl_loss_type``, ``calculate_per_token_loss``, and their numbers.
    """
    words = (settings.get(name) for name in ("advantage_estimator", "variant", "loss_type"))
    row = str(next((word for word in words if word), "grpo"))
    stages: dict[str, str] = {}
    values = {own: settings[name] for name, own in _VALUES.items() if name in settings}
    whitened, distilled = bool(settings.get("normalize_advantages")), bool(settings.get("use_opd"))
    if row in ("grpo", "gspo", "cispo") and (whitened or distilled):
        stages["advantage"] = _ADVANTAGES[whitened, distilled]
    for flag, stage, choice in (
        ("use_tis", "correction", "token-truncate"),
        ("use_opsm", "correction", "off-policy-mask-old"),
        ("use_rollout_logprobs", "ratio", "rollout"),
        ("calculate_per_token_loss", "aggregate", "token-mean"),
    ):
        if settings.get(flag):
            stages[stage] = choice
    if settings.get("kl_loss_type") is not None:
        stages["kl"] = str(settings["kl_loss_type"])
    if settings.get("use_unbiased_kl"):
        values["kl_weight"] = "token-ratio"
    return Reading(row, stages, values)
