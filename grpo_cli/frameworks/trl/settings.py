"""How TRL's settings read: what a record's ``framework`` says of the trainer that made it."""

from __future__ import annotations

from grpo_cli.frameworks.framework import Reading, Settings

_SCALES = {"none": "group-mean", False: "group-mean", "batch": "batch-std"}
"""``scale_rewards`` other than TRL's default → the advantage."""


def read(settings: Settings) -> Reading:
    """The row of a ``loss_type``, with the trainer's other choices swapped in.

    Args:
        settings: TRL's own words: ``loss_type``, ``importance_sampling_level``,
            ``use_bias_correction_kl``, ``off_policy_mask_threshold``, ``scale_rewards`` where it
            is not "group", ``multi_objective_aggregation``, RLOO's ``normalize_advantages``, and
            with vLLM's correction ``vllm_importance_sampling_mode``. ``reward_weights`` is read
            with the rewards that it is for (``records/parse/record.py``), by every command.
    """
    loss_type = str(settings.get("loss_type", "grpo"))
    stages: dict[str, str] = {}
    hyperparameters: dict[str, object] = {}
    level = settings.get("importance_sampling_level")
    if level is not None:
        stages["ratio"] = str(level)
    weighted = settings.get("use_bias_correction_kl")
    threshold = settings.get("off_policy_mask_threshold")
    if threshold is not None:
        hyperparameters["off_policy_mask_threshold"] = threshold
    scaled = settings.get("scale_rewards")
    if scaled in _SCALES:
        stages["advantage"] = _SCALES[scaled]
    if settings.get("multi_objective_aggregation") == "normalize_then_sum":
        stages["advantage"] = "decoupled"
    if settings.get("normalize_advantages"):
        stages["advantage"] = "trl/rloo-normalised"
    if weighted is not None:
        hyperparameters["kl_weight"] = "ratio" if weighted else "none"
    if settings.get("vllm_importance_sampling_mode") is not None:
        mode = str(settings["vllm_importance_sampling_mode"]).replace("_", "-")
        if loss_type == "vespo":  # which has the engine's weight in its surrogate
            stages["surrogate"] = f"trl/vespo-{mode}"
        else:
            stages["correction"] = f"trl/{mode}"
    return Reading(loss_type, stages, hyperparameters)
