"""What the ratios are: none at all, impossible ones, and those of another engine."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from grpo_cli.commands.check.finding import Finding
from grpo_cli.commands.check.record_view import View

Pair = tuple[str, str]

_BEYOND = 20.0


def on_policy(view: View) -> Iterator[Finding]:
    """Every ratio is exactly 1: old = new at every token, or no old at all."""
    new, old = view.log_probs.get("log_probs_new"), view.log_probs.get("log_probs_old")
    if new is None or not new.size:
        return
    advice = (
        "nothing to do: on the first pass over a batch the loss value says nothing, its gradient "
        "does; if this is a later pass, the old log-probs were overwritten"
    )
    if view.has("log_probs_old"):
        if old is not None and np.array_equal(new, old):
            words = f"old = new at all {new.size:,} tokens: every ratio is exactly 1"
            yield Finding("on-policy", "info", words, advice, {"tokens": new.size})
    elif not view.has("ratios"):
        words = "log_probs_old is missing: taken as on-policy, every ratio is 1"
        yield Finding("on-policy", "info", words, advice, {"tokens": new.size})


def extreme_ratio(view: View, pair: Pair) -> Iterator[Finding]:
    """A ratio beyond e^±20, which no update makes: zero-filled, misaligned or foreign log-probs."""
    if pair[1] == "log_probs_ref":
        return
    change = view.log_probs[pair[0]] - view.log_probs[pair[1]]
    bad = np.abs(change) > _BEYOND
    if not bad.any():
        return
    at = int(np.argmax(np.abs(change)))
    one, other = (view.key(name) for name in pair)
    zeros = int(sum(np.count_nonzero(view.log_probs[name][bad] == 0.0) for name in pair))
    yield Finding(
        "extreme-ratio",
        "error",
        f"|{one} − {other}| is beyond {_BEYOND:g} at {int(bad.sum()):,} of {change.size:,} tokens, "
        f"at most {change[at]:.4g}" + (f"; {zeros:,} of them are exactly 0.0" if zeros else ""),
        "missing log-probs must not be filled with 0.0; else look at alignment, masks and which "
        "weights computed them",
        {
            "columns": list(pair),
            "tokens": int(bad.sum()),
            "of": change.size,
            "log_ratio": float(change[at]),
            "zeros": zeros,
        },
        **view.place(at),
    )


def extreme_given(view: View) -> Iterator[Finding]:
    """The same of ratios that the record gives itself."""
    ratios = view.column("ratios")
    if ratios is None:
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        bad = ~(np.abs(np.log(ratios)) <= _BEYOND)
    if bad.any():
        at = int(np.argmax(bad))
        yield Finding(
            "extreme-ratio",
            "error",
            f"{view.key('ratios')} is {ratios[at]:g}, beyond e^±{_BEYOND:g}",
            "look at how the ratio was computed",
            {"tokens": int(bad.sum()), "of": ratios.size, "ratio": float(ratios[at])},
            **view.place(at),
        )


_MISMATCH, _TOKENS = 1.05, 30


def rollout_mismatch(view: View, pair: Pair) -> Iterator[Finding]:
    """The engine that sampled and the trainer disagree about the same tokens.

    Reported where the mean of exp|log π_train − log π_rollout| exceeds 1.05, the bound above which
    NeMo-RL plots a sequence as suspect, on 30 tokens or more. Evidence: KL(rollout‖trainer) by
    k1 and k3, the effective sample size of the importance weights as a share of the tokens, and
    the tails, because means hide them.
    """
    if pair[1] != "log_probs_rollout":
        return
    change = view.log_probs[pair[0]] - view.log_probs[pair[1]]
    size = np.abs(change)
    if change.size < _TOKENS:
        return
    error = float(np.exp(np.minimum(size, 50.0)).mean())
    if error <= _MISMATCH:
        return
    weights = np.exp(np.clip(change, -_BEYOND, _BEYOND))
    p50, p99, p999 = (float(value) for value in np.quantile(size, (0.5, 0.99, 0.999)))
    share = float(weights.sum()) ** 2 / (change.size * float(np.square(weights).sum()))
    k3 = float((np.expm1(np.minimum(change, 50.0)) - change).mean())
    yield Finding(
        "rollout-mismatch",
        "warning",
        f"{view.key(pair[0])} and {view.key(pair[1])} differ by {math.log(error):.3g} nats per "
        f"token (KL {k3:.3g}, effective sample size {share:.0%}, 99 % within {p99:.3g})",
        "compare temperature, top-p, precision and weights of the two engines; --correction "
        "weighs or masks the tokens",
        {
            "columns": list(pair),
            "mean_exp_abs": error,
            "kl_k1": float(-change.mean()),
            "kl_k3": k3,
            "effective_sample_size": share,
            "p50": p50,
            "p99": p99,
            "p999": p999,
            "max": float(size.max()),
            "tokens": change.size,
        },
    )
