"""How prime-rl's settings read: what a record's ``framework`` says of the trainer that made it."""

from __future__ import annotations

from grpo_cli.errors import InputError
from grpo_cli.frameworks.framework import Reading, Settings

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
