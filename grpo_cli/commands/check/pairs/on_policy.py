"""Ratios of a first pass: exactly 1, or nearly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.groups.dead import dead
from grpo_cli.commands.check.pair import Pair
from grpo_cli.commands.check.record_view import View

_ADVICE = (
    "nothing to do: on the first pass over a batch the loss value says nothing, its gradient "
    "does; if this is a later pass, the old log-probs were overwritten"
)
_ADVICE_DEAD = (
    "nothing to do: every group here is dead, so there is no policy gradient either; if this is a "
    "later pass, the old log-probs were overwritten"
)


def _look(view: View) -> Iterator[Finding]:
    """Every ratio is exactly 1: old = new at every token, or no old at all."""
    new = view.column("log_probs_new")
    if new is None:
        return
    counted = view.tokens > 0
    teaches = np.zeros(view.records.count, dtype=np.bool_)
    teaches[view.records.index[view.first_members[~dead(view)]]] = True
    advice = [_ADVICE if one else _ADVICE_DEAD for one in teaches.tolist()]
    if view.has("log_probs_old"):
        old = view.column("log_probs_old")
        assert old is not None
        differs = view.records.sum(view.responses.sum((new != old).astype(np.int64)))
        for record in np.flatnonzero(counted & (differs == 0)).tolist():
            n = int(view.tokens[record])
            words = f"old = new at all {n:,} tokens: every ratio is exactly 1"
            yield Finding("info", words, advice[record], {"tokens": n}, record)
    elif "log_probs_old" not in view.columns and not view.has("ratios"):
        for record in np.flatnonzero(counted).tolist():
            words = "log_probs_old is missing: taken as on-policy, every ratio is 1"
            tokens = {"tokens": int(view.tokens[record])}
            yield Finding("info", words, advice[record], tokens, record)


_NOTABLE = 0.01


def _look_at_noise(pair: Pair) -> Iterator[Finding]:
    """The record says that old and new are of the same weights, and they differ.

    A warning where the mean |log ratio| exceeds 0.01: bfloat16 of one kernel gives a few
    thousandths. Frameworks with steps_per_generation or mini-batches do not claim it.
    """
    if pair.names != ("log_probs_new", "log_probs_old") or pair.equal.all():
        return
    _, mean, _ = pair.moments(pair.size)
    for sample in np.flatnonzero(~pair.equal).tolist():
        claim = pair.view.places[pair.record(sample)].claims
        if not claim:
            continue
        part = pair.tokens(sample)
        beyond = float(np.mean(pair.size[part] > np.log(1.1)))
        yield Finding(
            "warning" if mean[sample] > _NOTABLE else "info",
            f"on policy ({claim}) and yet the ratios are not 1: mean |log ratio| "
            f"{mean[sample]:.3g}, {beyond:.1%} of the ratios outside [0.9, 1.1]; the weights are "
            "the same, so this is noise of precision, kernels or batch shapes",
            "take old from the same forward pass (old = new), or let both passes have the same "
            "precision, kernel and micro-batches",
            {
                "columns": list(pair.names),
                "mean_abs": float(mean[sample]),
                "outside": beyond,
                "claim": claim,
            },
            record=pair.record(sample),
        )


RULES = (
    Rule("on-policy", ("info",), "Every ratio is exactly 1.", 50, _look),
    Rule(
        "ratio-noise",
        ("warning", "info"),
        "Ratios are not 1 although old and new are of the same weights.",
        65,
        _look_at_noise,
        pairs=True,
        about="noise of the ratios",
        needs=("log_probs_old",),
    ),
)
