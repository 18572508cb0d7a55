"""How verl's settings read: what a record's ``framework`` says of the trainer that made it."""

from __future__ import annotations

from collections.abc import Mapping

from grpo_cli.errors import InputError
from grpo_cli.frameworks.framework import Reading, Settings, as_of
from grpo_cli.frameworks.verl.rows import CHANGES, EARLIER, ROWS

_ROLLOUT = {
    *("rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize"),
    *("rollout_rs", "rollout_rs_threshold"),
}
_NO_STD = {"grpo", "grpo_passk"}
"""The estimators that read norm_adv_by_std_in_grpo."""


def read(settings: Settings) -> Reading:
    """The row of a ``policy_loss``, with the trainer's other choices swapped in.

    A loss with an aggregation of its own leaves ``loss_agg_mode`` to the KL and the entropy. In
    bypass mode its losses take the place of the ``policy_loss``, as its trainer before v1 and its
    hook have it.

    Args:
        settings: verl's own words: ``policy_loss``, ``loss_agg_mode``, ``adv_estimator`` with
            ``norm_adv_by_std_in_grpo``, ``kl_loss_type``, or ``use_kl_in_reward`` with
            ``kl_penalty``; ``rollout_correction`` with verl's names in it; and the ``version``,
            for losses that once aggregated themselves.

    Raises:
        InputError: for a KL in the reward and another in the loss.
    """
    policy_loss = str(settings.get("policy_loss", "vanilla"))
    correction = settings.get("rollout_correction")
    given = correction if isinstance(correction, Mapping) else {}
    bypass = bool(given) and (bool(given.get("bypass_mode")) or policy_loss == "bypass_mode")
    stages = _advantage(settings) | _kl(settings)
    mode = settings.get("loss_agg_mode")
    if mode is not None:
        version = str(settings.get("version", ""))
        own = not bypass and _aggregates_itself(f"verl/{policy_loss}", version)
        terms = ("kl_aggregate", "entropy_aggregate") if own else ("aggregate",)
        stages |= dict.fromkeys(terms, str(mode))
    if not isinstance(correction, Mapping):
        return Reading(policy_loss, stages)
    values = {"rollout_is": None, **{name: given[name] for name in _ROLLOUT & set(given)}}
    if bypass:
        clip = given.get("loss_type", "ppo_clip") == "ppo_clip"
        return Reading("bypass_ppo_clip" if clip else "bypass_pg_is", stages, values)
    name = "decoupled-geometric" if policy_loss in ("geo_mean", "gmpo") else "decoupled"
    return Reading(policy_loss, {**stages, "correction": name}, values)


def _advantage(settings: Settings) -> dict[str, str]:
    estimator = settings.get("adv_estimator")
    if estimator is None:
        return {}
    plain = settings.get("norm_adv_by_std_in_grpo") is False and estimator in _NO_STD
    return {"advantage": f"{estimator}_nostd" if plain else str(estimator)}


def _kl(settings: Settings) -> dict[str, str]:
    kind = settings.get("kl_loss_type")
    if not settings.get("use_kl_in_reward"):
        return {} if kind is None else {"kl": str(kind)}
    if kind is not None:
        raise InputError(
            "use_kl_in_reward and kl_loss_type: grpo has one KL; give the advantages, and leave "
            "use_kl_in_reward out",
            path="framework",
        )
    return {"kl": f"{settings.get('kl_penalty', 'kl')}-in-reward"}


def _aggregates_itself(name: str, version: str) -> bool:
    listed = [listed for listed, row in ROWS.items() if name in (listed, *row.aliases)]
    rows = [(ROWS | EARLIER)[as_of(CHANGES, row, version)] for row in listed]
    return any(row.kl_aggregate is not None for row in rows)
