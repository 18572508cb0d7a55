"""How verl's settings read: what a record's ``framework`` says of the trainer that made it."""

from __future__ import annotations

from collections.abc import Mapping

from grpo_cli.frameworks.framework import Reading, Settings, as_of
from grpo_cli.frameworks.verl.earlier import CHANGES, EARLIER
from grpo_cli.frameworks.verl.rows import ROWS

_ROLLOUT = {
    *("rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize"),
    *("rollout_rs", "rollout_rs_threshold"),
}
_STAGES = {"advantage": "adv_estimator", "kl": "kl_loss_type"}


def read(settings: Settings) -> Reading:
    """The row of a ``policy_loss``, with the trainer's other choices swapped in.

    A loss with an aggregation of its own leaves ``loss_agg_mode`` to the KL and the entropy.

    Args:
        settings: verl's own words: ``policy_loss``, ``loss_agg_mode``, ``adv_estimator``,
            ``kl_loss_type``; ``rollout_correction`` with verl's names in it; and the ``version``,
            for losses that once aggregated themselves.
    """
    policy_loss = str(settings.get("policy_loss", "vanilla"))
    stages = {
        stage: str(settings[key]) for stage, key in _STAGES.items() if settings.get(key) is not None
    }
    mode = settings.get("loss_agg_mode")
    if mode is not None:
        own = _aggregates_itself(f"verl/{policy_loss}", str(settings.get("version", "")))
        terms = ("kl_aggregate", "entropy_aggregate") if own else ("aggregate",)
        stages |= dict.fromkeys(terms, str(mode))
    correction = settings.get("rollout_correction")
    if not isinstance(correction, Mapping):
        return Reading(policy_loss, stages)
    values = {"rollout_is": None, **{name: correction[name] for name in _ROLLOUT & set(correction)}}
    if correction.get("bypass_mode") or policy_loss == "bypass_mode":
        clip = correction.get("loss_type", "ppo_clip") == "ppo_clip"
        return Reading("bypass_ppo_clip" if clip else "bypass_pg_is", stages, values)
    return Reading(policy_loss, {**stages, "correction": "decoupled"}, values)


def _aggregates_itself(name: str, version: str) -> bool:
    listed = [listed for listed, row in ROWS.items() if name in (listed, *row.aliases)]
    rows = [(ROWS | EARLIER)[as_of(CHANGES, row, version)] for row in listed]
    return any(row.kl_aggregate is not None for row in rows)
