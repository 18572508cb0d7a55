"""How verl's settings read: what a record's ``framework`` says of the trainer that made it."""

from __future__ import annotations

from grpo_cli.frameworks.framework import Reading, Settings, as_of
from grpo_cli.frameworks.verl.earlier import CHANGES, EARLIER
from grpo_cli.frameworks.verl.rows import ROWS

_STAGES = {"advantage": "adv_estimator", "kl": "kl_loss_type"}


def read(settings: Settings) -> Reading:
    """The row of a ``policy_loss``, with the trainer's other choices swapped in.

    A loss with an aggregation of its own leaves ``loss_agg_mode`` to the KL and the entropy.

    Args:
        settings: verl's own words: ``policy_loss``, ``loss_agg_mode``, ``adv_estimator``,
            ``kl_loss_type``; and the ``version``, for losses that once aggregated themselves.
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
    return Reading(policy_loss, stages)


def _aggregates_itself(name: str, version: str) -> bool:
    listed = [listed for listed, row in ROWS.items() if name in (listed, *row.aliases)]
    rows = [(ROWS | EARLIER)[as_of(CHANGES, row, version)] for row in listed]
    return any(row.kl_aggregate is not None for row in rows)
