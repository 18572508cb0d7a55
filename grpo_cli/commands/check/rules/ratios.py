"""Ratios that no update makes, and engines that disagree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.check.pair import Pair
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rule import Finding, rule
from grpo_cli.commands.check.rules.rewards import are_dead
from grpo_cli.objective.mismatch import k3

_EXTREME = 20.0
_EXTREME_ADVICE = (
    "do not fill missing log-probs with 0.0; otherwise check alignment, masks and which "
    "weights computed each column"
)


@rule("extreme-ratio", "pair")
def find_extreme_ratios(pair: Pair) -> Iterator[Finding]:
    """Finds ratios beyond e^±20: log-probs that are zero-filled, misaligned or of other weights."""
    if pair.to_reference:
        return
    bad = pair.size > _EXTREME
    if not bad.any():
        return
    every = pair.samples.sum(bad.astype(np.int64))
    for sample in np.flatnonzero(every).tolist():
        part = pair.tokens(sample)
        at = part.start + int(np.argmax(pair.size[part]))
        columns = (pair.first, pair.second)
        zeros = int(sum(np.count_nonzero(c[part][bad[part]] == 0.0) for c in columns))
        yield Finding(
            f"|{pair}| is beyond {_EXTREME:g} at {int(every[sample]):,} of "
            f"{part.stop - part.start:,} tokens, at most {pair.log_ratio[at]:.4g}"
            + (f"; {zeros:,} of them are exactly 0.0" if zeros else ""),
            _EXTREME_ADVICE,
            {
                "tokens": int(every[sample]),
                "of": part.stop - part.start,
                "log_ratio": float(pair.log_ratio[at]),
                "zeros": zeros,
            },
            **pair.view.place(at),
        )


@rule("extreme-ratio")
def find_extreme_given_ratios(view: View) -> Iterator[Finding]:
    """Finds given ratios beyond e^±20."""
    ratios = view.columns.get("ratios")
    if ratios is None:
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        bad = ~(np.abs(np.log(ratios)) <= _EXTREME)
    for record in np.flatnonzero(view.count(bad)).tolist():
        part = view.tokens_of(record)
        at = part.start + int(np.argmax(bad[part]))
        yield Finding(
            f"{view.key('ratios')} is {ratios[at]:g}, beyond e^±{_EXTREME:g}",
            "check how the ratio was computed",
            {
                "tokens": int(bad[part].sum()),
                "of": part.stop - part.start,
                "ratio": float(ratios[at]),
            },
            **view.place(at),
        )


# ---- first passes --------------------------------------------------------------------------------

_ON_POLICY_ADVICE = (
    "nothing to do on the first pass over a batch: the loss value says nothing there, the "
    "gradient does. On a later pass, the old log-probs were overwritten"
)
_ON_POLICY_ADVICE_DEAD = (
    "nothing to do on the first pass over a batch, though every group is dead and has no "
    "policy gradient. On a later pass, the old log-probs were overwritten"
)


@rule("on-policy")
def find_on_policy(view: View) -> Iterator[Finding]:
    """Finds records whose ratios are all exactly 1: old = new at every token, or no old at all."""
    new = view.columns.get("log_probs_new")
    if new is None:
        return
    counted = view.tokens > 0
    has_gradient = np.zeros(view.records.count, dtype=np.bool_)
    has_gradient[view.records.index[view.first_members[~are_dead(view)]]] = True
    advice = [
        _ON_POLICY_ADVICE if some else _ON_POLICY_ADVICE_DEAD for some in has_gradient.tolist()
    ]
    old = view.columns.get("log_probs_old")
    if old is not None:
        differs = view.count(new != old)
        for record in np.flatnonzero(counted & (differs == 0)).tolist():
            n = int(view.tokens[record])
            words = f"old = new at all {n:,} tokens: every ratio is exactly 1"
            yield Finding(words, advice[record], {"tokens": n}, record)
    elif not {"log_probs_old", "ratios"} & {*view.packed.columns}:
        for record in np.flatnonzero(counted).tolist():
            words = "log_probs_old is missing: the batch counts as on-policy, and every ratio is 1"
            tokens = {"tokens": int(view.tokens[record])}
            yield Finding(words, advice[record], tokens, record)


_NOTABLE_NOISE = 0.01


@rule("ratio-noise", "pair")
def find_ratio_noise(pair: Pair) -> Iterator[Finding]:
    """Finds old and new log-probs that differ although the record claims the same weights.

    It is a warning if the mean |log ratio| exceeds 0.01: bfloat16 of one kernel gives a few
    thousandths. Records with steps_per_generation or mini-batches claim nothing.
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
            f"the batch is on-policy ({claim}), yet the ratios are not 1: mean |log ratio| "
            f"{mean[sample]:.3g}, {beyond:.1%} of the ratios outside [0.9, 1.1]. The weights "
            "are equal, so precision, kernels or batch shapes cause this noise",
            "take old from the same forward pass (old = new), or give both passes the same "
            "precision, kernel and micro-batches",
            {"mean_abs": float(mean[sample]), "outside": beyond, "claim": claim},
            record=pair.record(sample),
            severity="warning" if mean[sample] > _NOTABLE_NOISE else "info",
        )


# ---- outliers ------------------------------------------------------------------------------------

_OUTLIER_TOKENS = 100
_OUTLIER_NATS = 3.8
_OUTLIER_ALONE = 8.0
"""A single token that differs by less may be an expert that was routed elsewhere."""
_OUTLIER_TIMES = 12.0
_OUTLIER_MIDDLING = 0.5
_OUTLIER_SHARE = 0.02


@rule("outliers", "pair")
def find_outliers(pair: Pair) -> Iterator[Finding]:
    """Finds samples in which at most 1 token of 50 differs by over 3.8 nats, the others hardly.

    "Hardly": 98 % are below a twelfth of that, and no more tokens are between half a nat and that
    than above it. Mixtures of experts, which route some tokens differently, have errors of all
    sizes.
    """
    if not pair.to_engine or pair.equal.all():
        return
    far = pair.size > _OUTLIER_NATS
    every = pair.samples.sum(far.astype(np.int64))
    some = (every > 0) & (every <= _OUTLIER_SHARE * pair.samples.lengths)
    for sample in np.flatnonzero(some & (pair.samples.lengths >= _OUTLIER_TOKENS)).tolist():
        part = pair.tokens(sample)
        size = pair.size[part]
        near = float(np.quantile(size, 0.98))
        out = size > max(_OUTLIER_NATS, _OUTLIER_TIMES * near)
        middling = np.count_nonzero(size > max(_OUTLIER_MIDDLING, 3.0 * near)) - int(out.sum())
        if out.any() and middling <= out.sum():
            at = part.start + int(np.argmax(size))
            tokens = int(out.sum())
            rows = pair.view.responses
            ends = np.isin(np.flatnonzero(out) + part.start, rows.starts + rows.lengths - 1)
            where = " at the last token of responses" if ends.all() else ""
            yield Finding(
                f"outliers: {tokens:,} of {len(size):,} tokens differ far more than the rest"
                f"{where}, the worst by {float(size.max()):.3g} nats ({pair} = "
                f"{pair.log_ratio[at]:.4g}; 98 % are within {near:.2g})",
                "look at these tokens for a special token that one side does not know, a row that "
                "was cut or joined, or a wrong label: a correction (TIS, masks) only hides them",
                {
                    "tokens": tokens,
                    "of": len(size),
                    "worst": float(pair.log_ratio[at]),
                    "p98": near,
                },
                **pair.view.place(at),
                severity="warning" if tokens > 1 or size.max() > _OUTLIER_ALONE else "info",
            )


# ---- mean weights --------------------------------------------------------------------------------

_WEIGHT_TOKENS = 48
_WEIGHT_SIGMAS = 4.4
_WEIGHT_AWAY = 0.004


@rule("mean-weight", "pair")
def find_biased_weights(pair: Pair) -> Iterator[Finding]:
    """Finds a mean of π_train/π_rollout over the tokens drawn from π_rollout that is not 1.

    Σ_v π_rollout(v) · π_train(v)/π_rollout(v) = 1 at every position, whatever the two policies
    are, if the tokens were drawn from the rollout column's policy: noise, staleness and updates
    leave the mean at 1. Missing mass does not: renormalised over the words that top-p or top-k
    kept, π_rollout is too high by the mass cut off, and every weight too low. Found if the mean is
    4.4 standard errors (one in 90,000) and more than 0.004 from 1. Weights are clipped at ten times
    their typical distance from 1, on both sides, because of heavy tails. It is not found where the
    tail on the other side, unclipped, makes up for it, as of an engine with older weights.
    """
    if not pair.to_engine or pair.equal.all():
        return
    _, _, spread = pair.moments(pair.weight, pair.size < 1.0)
    bound = pair.samples.spread(10.0 * spread + 1e-3)
    low, high = np.maximum(pair.weight, 1.0 - bound), np.minimum(pair.weight, 1.0 + bound)
    mean, error, away = _measure_distance(pair, np.minimum(low, 1.0 + bound))
    with_tail = np.where(
        mean < 1.0, -_measure_distance(pair, low)[2], _measure_distance(pair, high)[2]
    )
    found = (
        (pair.samples.lengths >= _WEIGHT_TOKENS)
        & (np.minimum(np.abs(away), with_tail) > _WEIGHT_SIGMAS)
        & (np.abs(mean - 1.0) > _WEIGHT_AWAY)
    )
    for sample in np.flatnonzero(found).tolist():
        yield _describe_weight(pair, sample, float(mean[sample]), float(error[sample]))


def _measure_distance(pair: Pair, weight: F64) -> tuple[F64, F64, F64]:
    """Returns [S] the mean weight, its standard error, and by how many of them it is above 1."""
    n, mean, sigma = pair.moments(weight)
    error = sigma / np.sqrt(np.maximum(n, 1.0))
    return mean, error, (mean - 1.0) / np.where(error > 0.0, error, np.inf)


def _describe_weight(pair: Pair, sample: int, mean: float, error: float) -> Finding:
    part = pair.tokens(sample)
    change = pair.log_ratio[part]
    higher = float(np.count_nonzero(change > 0.0) / np.count_nonzero(change))
    first, second = pair.keys
    if mean < 1.0:
        reading = (
            f"{first} is below {second}: {second} was renormalised over the tokens that top-p "
            "or top-k kept, or has another one-sided bias"
        )
    else:
        reading = (
            f"{first} is above {second}: a one-sided error, such as a penalty on one side or a "
            "missing normaliser"
        )
    return Finding(
        f"the mean weight exp({pair}) is {mean:.4f} ± {error:.2g}, not 1; {reading}",
        "compute both over the same tokens, the whole vocabulary or the kept ones, and apply "
        "penalties (repetition, presence) on both sides or on neither",
        {
            "mean_weight": mean,
            "standard_error": error,
            "sigmas": (mean - 1.0) / error,
            "higher": higher,
            "tokens": part.stop - part.start,
        },
        record=pair.record(sample),
    )


# ---- mismatch ------------------------------------------------------------------------------------

_MISMATCH_BOUND, _MISMATCH_TOKENS = 1.05, 30
_LOW, _HIGH, _EFFECTIVE = 0.5, 2.0, 0.3


@rule("rollout-mismatch", "pair")
def find_mismatch(pair: Pair) -> Iterator[Finding]:
    """Finds a mean of exp|log π_train − log π_rollout| above 1.05, over 30 tokens or more.

    Above that bound NeMo-RL calls a sequence suspect (token_mult_prob_error). The evidence has
    KL(rollout‖trainer) by k1 and k3, and the tails, because means hide them. The message says
    whether the mean weight is outside 0.5 to 2 or the effective sample size below 30 % of the
    tokens, where verl's rollout correction should reject. It is an info where the record says that
    several versions of the weights sampled, of which older ones differ more, and where one token
    alone makes the difference.

    References:
        NeMo-RL, docs/guides/dtensor-tp-accuracy.md; verl, docs/algo/rollout_corr.md.
    """
    if not pair.to_engine or pair.equal.all():
        return
    n, error, _ = pair.moments(np.exp(np.minimum(pair.size, 50.0)))
    for sample in np.flatnonzero((n >= _MISMATCH_TOKENS) & (error > _MISMATCH_BOUND)).tolist():
        versions = pair.view.versions
        stale = versions is not None and np.ptp(versions[pair.tokens(sample)]) > 0
        worst = float(np.exp(min(pair.size[pair.tokens(sample)].max(), 50.0)))
        rest = (float(error[sample] * n[sample]) - worst) / (float(n[sample]) - 1.0)
        found = _describe_mismatch(pair, sample, float(error[sample]))
        yield replace(found, severity="info") if stale or rest <= _MISMATCH_BOUND else found


def _describe_mismatch(pair: Pair, sample: int, error: float) -> Finding:
    part = pair.tokens(sample)
    change, size, weight = pair.log_ratio[part], pair.size[part], pair.weight[part]
    p50, p99, p999 = (float(value) for value in np.quantile(size, (0.5, 0.99, 0.999)))
    share = float(weight.sum()) ** 2 / (size.size * float(np.square(weight).sum()))
    kl = float(k3(change).mean())
    mean = float(weight.mean())
    bad = not _LOW <= mean <= _HIGH or share < _EFFECTIVE
    return Finding(
        f"engine and trainer differ: mean |{pair}| is {float(size.mean()):.3g} nats per token, "
        f"mean exp|·| {error:.4g} (bound 1.05), KL {kl:.3g}, effective sample size "
        f"{share:.0%}, 99 % of tokens within {p99:.3g}"
        + ("; the weights exceed what verl corrects" if bad else ""),
        "compare temperature, top-p, precision and weights of engine and trainer; --correction "
        "weights or masks the tokens",
        {
            "mean_abs": float(size.mean()),
            "mean_exp_abs": error,
            "mean_weight": mean,
            "kl_k1": float(-change.mean()),
            "kl_k3": kl,
            "effective_sample_size": share,
            "p50": p50,
            "p99": p99,
            "p999": p999,
            "max": float(size.max()),
            "tokens": size.size,
        },
        record=pair.record(sample),
    )
