"""Ratios that no update makes, and engines that disagree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.check.answer import MismatchFound
from grpo_cli.commands.check.pair import LEAST_TOKENS, Pair
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rule import Finding, rule
from grpo_cli.commands.check.rules.rewards import are_dead
from grpo_cli.commands.check.tokens import LOG_PROBS
from grpo_cli.objective.mismatch import PLACES, POSITION, STEP, TOKEN, k3

_EXTREME = 20.0


@rule("extreme-ratio", "pair")
def find_extreme_ratios(pair: Pair) -> Iterator[Finding]:
    """Finds ratios beyond e^±20: log-probs that are zero-filled, misaligned or of other weights.

    Importance ratios that explode: huggingface/trl#4772.
    """
    bad = pair.size > _EXTREME
    every = pair.count(bad) if bad.any() else np.zeros(0)
    for sample in np.flatnonzero(every).tolist():
        part = pair.tokens(sample)
        at = part.start + int(np.argmax(pair.size[part]))
        columns = (pair.first, pair.second)
        zeros = sum(np.count_nonzero(c[part][bad[part]] == 0.0) for c in columns)
        evidence = {"tokens": every[sample], "of": part.stop - part.start}
        yield Finding(
            evidence | {"log_ratio": pair.log_ratio[at], "zeros": zeros},
            **pair.view.place(at),
            words={"filled": f"; {zeros:,} of them are exactly 0.0" if zeros else ""},
        )


# ---- first passes --------------------------------------------------------------------------------


@rule("on-policy")
def find_on_policy(view: View) -> Iterator[Finding]:
    """Finds records whose ratios are all exactly 1: old = new at every token, or no old at all.

    It is an error if a key that nothing reads resembles the missing column, as in every command.
    """
    new = view.columns.get("log_probs_new")
    if new is None:
        return
    has_gradient = np.zeros(view.records.count, dtype=np.bool_)
    has_gradient[view.records.index[view.first_members[~are_dead(view)]]] = True
    old, equal = view.columns.get("log_probs_old"), view.tokens > 0
    if old is not None:
        equal &= view.count(new != old) == 0
    elif {"log_probs_old", "ratios"} & {*view.packed.columns}:
        return
    unread = None if old is not None else view.packed.misnamed.get("log_probs_old")
    for record in np.flatnonzero(equal).tolist():
        evidence = {"tokens": view.tokens[record]}
        if unread is not None:
            words = {"name": unread.key, "fix": unread.advice}
            yield Finding(evidence, record, kind="misnamed", words=words)
            continue
        kind = ("missing" if old is None else "equal") + ("" if has_gradient[record] else "-dead")
        yield Finding(evidence, record, kind=kind)


_NOTABLE_NOISE = 0.01


@rule("ratio-noise", "pair")
def find_ratio_noise(pair: Pair) -> Iterator[Finding]:
    """Finds old and new log-probs that differ although the record claims the same weights.

    It is a warning if the mean |log ratio| exceeds 0.01: bfloat16 of one kernel gives a few
    thousandths. Records with steps_per_generation or mini-batches claim nothing. Ratios that were
    not 1 before the first update: huggingface/trl#454.
    """
    _, mean = pair.means(pair.size)
    for sample in np.flatnonzero(~pair.equal).tolist():
        claim = pair.place(sample).claims
        if not claim:
            continue
        beyond = np.mean(pair.size[pair.tokens(sample)] > np.log(1.1))
        yield Finding(
            {"mean_abs": mean[sample], "outside": beyond, "claim": claim},
            pair.record(sample),
            severity="warning" if mean[sample] > _NOTABLE_NOISE else "info",
        )


# ---- the reference's weights ---------------------------------------------------------------------

_ENGINE_NOISE, _FAR, _TIMES = 0.02, 0.02, 4.0
_AHEAD = 3
"""The last step that an engine which samples ahead may do with the initial weights."""


@rule("reference", "pair")
def find_engines_with_reference_weights(pair: Pair) -> Iterator[Finding]:
    """Finds an engine that agrees with the reference, and neither with the policy.

    Engine and reference differ by 0.02 nats at most, as with equal weights (``floors.json``), and
    by a quarter of what either differs from the old and the new policy. Those two are nearer to
    each other: where they are not, one of them is at fault.
    """
    columns = pair.view.log_probs
    if len(columns) < len(LOG_PROBS):
        return
    new, old, reference, engine = (columns[name] for name in LOG_PROBS)

    def differ(first: F64, second: F64) -> F64:
        return pair.means(np.abs(first - second))[1]

    near, moved = differ(engine, reference), differ(new, old)
    far, other = (np.minimum(differ(one, new), differ(one, old)) for one in (engine, reference))
    least = np.maximum(np.maximum(_FAR, _TIMES * near), moved)
    hit = (near <= _ENGINE_NOISE) & (np.minimum(far, other) > least)
    for sample in np.flatnonzero(hit & (pair.samples.lengths >= LEAST_TOKENS)).tolist():
        if 0 <= pair.place(sample).step <= _AHEAD:
            continue
        yield Finding(
            {"to_reference": near[sample], "to_policy": far[sample]},
            pair.record(sample),
            kind="engine",
            words={"engine": pair.keys[1], "reference": pair.view.key("log_probs_ref")},
        )


_OFF, _NEARER, _NEARER_AT = 0.01, 5.0, 0.65
_OFF_ALONE, _COMMON = 0.05, 0.9


@rule("old-log-probs", "pair")
def find_odd_old_log_probs(pair: Pair) -> Iterator[Finding]:
    """Finds old log-probs that are five times as far from the engine's as the nearest column is.

    By 0.01 nats or more on average, and farther at 2 of 3 tokens: the old policy sampled, so that
    it should be the nearest. That may be the new policy, or the reference where the new policy is
    nearer to it than to the old one; else the engine has the reference's weights. From 0.05 nats
    on the new policy need not be so near: errors of the old log-probs alone are in both
    differences, so that the slope of new − old on rollout − old is above 0.9; it is 0 or below
    where engine and update have errors of their own.
    """
    columns = pair.view.log_probs
    others = [name for name in ("log_probs_new", "log_probs_ref") if name in columns]
    if pair.names[0] != "log_probs_old" or "log_probs_new" not in others:
        return
    tokens, update = pair.samples.lengths, columns["log_probs_new"] - pair.first
    far, moved = (pair.means(np.abs(change))[1] for change in (pair.log_ratio, update))
    power = pair.samples.sum(pair.log_ratio * pair.log_ratio)
    alone = -pair.samples.sum(pair.log_ratio * update) > _COMMON * power
    away = {name: np.abs(columns[name] - pair.second) for name in others}
    near = {name: pair.means(size)[1] for name, size in away.items()}
    least = np.minimum.reduce([*near.values()])
    for name, size in away.items():
        nearer, other = pair.count(size < pair.size), pair.count(size != pair.size)
        hit = far >= np.maximum(_OFF, _NEARER * least)
        hit |= (name == "log_probs_new") & alone & (far >= _OFF_ALONE)
        hit &= (near[name] == least) & (tokens >= LEAST_TOKENS) & (nearer > _NEARER_AT * other)
        hit &= least > 0.0  # else it is a copy of the engine's
        hit &= pair.means(np.abs(columns["log_probs_new"] - columns[name]))[1] < moved
        for sample in np.flatnonzero(hit).tolist():
            evidence = {"nearest": name, "to_nearest": least[sample], "to_old": far[sample]}
            yield Finding(
                evidence | {"new_to_old": moved[sample], "tokens": tokens[sample]},
                pair.record(sample),
                kind=name.removeprefix("log_probs_"),
                words={"other": pair.view.key(name)},
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
    sizes. The old log-probs alone are off where the new ones are at most a twelfth as far from the
    engine's.
    """
    new = pair.view.log_probs.get("log_probs_new", pair.first)
    far = pair.size > _OUTLIER_NATS
    every = pair.count(far)
    some = (every > 0) & (every <= _OUTLIER_SHARE * pair.samples.lengths)
    for sample in np.flatnonzero(some & (pair.samples.lengths >= _OUTLIER_TOKENS)).tolist():
        part = pair.tokens(sample)
        size = pair.size[part]
        near = float(np.quantile(size, 0.98))
        out = size > max(_OUTLIER_NATS, _OUTLIER_TIMES * near)
        middling = np.count_nonzero(size > max(_OUTLIER_MIDDLING, 3.0 * near)) - int(out.sum())
        if out.any() and middling <= out.sum():
            at = part.start + int(np.argmax(size))
            tokens = np.count_nonzero(out)
            rows = pair.view.responses
            ends = np.isin(np.flatnonzero(out) + part.start, rows.starts + rows.lengths - 1)
            where = " at the last token of responses" if ends.all() else ""
            differ = "differs" if tokens == 1 else "differ"
            which = "" if tokens == 1 else "the worst "
            alone = np.abs(new - pair.second)[part][out] < size[out] / _OUTLIER_TIMES
            single = tokens == 1 and not alone.all() and size.max() <= _OUTLIER_ALONE
            yield Finding(
                {"tokens": tokens, "of": len(size), "worst": pair.log_ratio[at], "p98": near},
                **pair.view.place(at),
                kind="old" if alone.all() else "",
                severity="info" if single else "warning",
                words={"differ": differ, "where": where, "which": which, "size": size.max()}
                | {"other": pair.view.key("log_probs_new")},
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
    _, _, spread = pair.moments(pair.weight, pair.size < 1.0)
    bound = 10.0 * spread + 1e-3
    least, most = 1.0 - bound, 1.0 + bound
    clipped = pair.weight
    np.maximum(clipped, pair.samples.spread(least), out=clipped)
    np.minimum(clipped, pair.samples.spread(most), out=clipped)
    mean, error, away = _measure_distance(pair, clipped)
    found = (
        (pair.samples.lengths >= _WEIGHT_TOKENS)
        & (np.abs(away) > _WEIGHT_SIGMAS)
        & (np.abs(mean - 1.0) > _WEIGHT_AWAY)
    )
    if not found.any():
        return
    low = np.maximum(pair.weight, pair.samples.spread(least))
    high = np.minimum(pair.weight, pair.samples.spread(most))
    with_tail = np.where(
        mean < 1.0, -_measure_distance(pair, low)[2], _measure_distance(pair, high)[2]
    )
    found &= with_tail > _WEIGHT_SIGMAS
    for sample in np.flatnonzero(found).tolist():
        part = pair.tokens(sample)
        change, own, uncertainty = pair.log_ratio[part], mean[sample], error[sample]
        yield Finding(
            {
                "mean_weight": own,
                "standard_error": uncertainty,
                "sigmas": (own - 1.0) / uncertainty,
                "higher": np.count_nonzero(change > 0.0) / np.count_nonzero(change),
                "tokens": part.stop - part.start,
            },
            pair.record(sample),
            kind="low" if own < 1.0 else "high",
        )


def _measure_distance(pair: Pair, weight: F64) -> tuple[F64, F64, F64]:
    """Returns [S] the mean weight, its standard error, and by how many of them it is above 1."""
    n, mean, sigma = pair.moments(weight)
    error = sigma / np.sqrt(np.maximum(n, 1.0))
    return mean, error, (mean - 1.0) / np.where(error > 0.0, error, np.inf)


# ---- mismatch ------------------------------------------------------------------------------------

_MISMATCH_BOUND, _MISMATCH_TOKENS = 1.05, 30
_LOW, _HIGH, _EFFECTIVE = 0.5, 2.0, 0.3
_PLACE = {name: at for at, name in enumerate(PLACES)}
_MILD, _EFFECTIVE_MILD = 1.1, 0.97
"""What weights that are some steps old give as well, where records do not say their versions."""


@rule("rollout-mismatch", "pair")
def find_mismatch(pair: Pair) -> Iterator[Finding]:
    """Finds a mean of exp|log π_train − log π_rollout| above 1.05, over 30 tokens or more.

    Above that bound NeMo-RL calls a sequence suspect (token_mult_prob_error). The evidence has
    KL(rollout‖trainer) by k1 and k3, and the tails, because means hide them: p99 is the size of
    log π_train − log π_rollout, in nats, that 99 % of the tokens do not exceed (their ratios are
    between e^−p99 and e^p99); p50, p999 and max likewise. The message says whether the mean weight
    is outside 0.5 to 2 or the effective sample size below 30 % of the tokens, where verl's rollout
    correction should reject. It is an info where the record says that several versions of the
    weights sampled, of which older ones differ more, and where one token alone makes the
    difference, and up to 1.1 where the weights are hardly uneven.

    References:
        NeMo-RL, docs/guides/dtensor-tp-accuracy.md; verl, docs/algo/rollout_corr.md.
    """
    times = np.minimum(pair.size, 50.0)
    n, error = pair.means(np.exp(times, out=times))
    for sample in np.flatnonzero((n >= _MISMATCH_TOKENS) & (error > _MISMATCH_BOUND)).tolist():
        versions = pair.view.whole_numbers("weight_versions")
        stale = versions is not None and np.ptp(versions[pair.tokens(sample)]) > 0
        worst = float(np.exp(min(pair.size[pair.tokens(sample)].max(), 50.0)))
        rest = (float(error[sample] * n[sample]) - worst) / (float(n[sample]) - 1.0)
        found = _describe_mismatch(pair, sample, float(error[sample]))
        mild = error[sample] <= _MILD and found.evidence["effective_sample_size"] >= _EFFECTIVE_MILD
        some = stale or mild or rest <= _MISMATCH_BOUND
        yield replace(found, severity="info") if some else found


def _describe_mismatch(pair: Pair, sample: int, error: float) -> Finding:
    part = pair.tokens(sample)
    change, size, weight = pair.log_ratio[part], pair.size[part], pair.weight[part]
    p50, p99, p999 = np.quantile(size, (0.5, 0.99, 0.999))
    share = float(weight.sum()) ** 2 / (size.size * float(np.square(weight).sum()))
    mean = float(weight.mean())
    bad = not _LOW <= mean <= _HIGH or share < _EFFECTIVE
    return Finding(
        {
            "mean_abs": size.mean(),
            "mean_exp_abs": error,
            "mean_weight": mean,
            "kl_k1": -change.mean(),
            "kl_k3": k3(change).mean(),
            "effective_sample_size": share,
            "p50": p50,
            "p99": p99,
            "p999": p999,
            "max": size.max(),
            "tokens": size.size,
        },
        pair.record(sample),
        words={"bad": "; the weights exceed what verl corrects" if bad else ""},
    )


@rule("rollout-mismatch", "input")
def find_uneven_mismatch(
    found: MismatchFound, equal: Mapping[int, int]
) -> Iterator[tuple[Finding, int | None]]:
    """Yields that most of a mismatch is at a word, places of responses, or steps; from which step.

    One finding, of the cause that explains a fifth or more, by six standard errors. It is an info
    where the mismatch became smaller. It is of the old log-probs where these equal the new ones at
    all tokens from the step on, and in no record before; ``equal``: step → how many such tokens.
    The first tokens from older weights, of a prefix cache: huggingface/trl#6007.
    """
    causes = {one.name: one for one in found.causes if one.counts}
    listed = [causes[name] for name in (TOKEN, POSITION, STEP) if name in causes]
    cause = next((one for one in listed if one.name == found.named), None)
    cause = cause or next((one for one in listed if one.name != POSITION), None)
    if cause is None:
        return
    step = causes[STEP].step if STEP in causes else None
    odd = [kind for kind in cause.kinds if kind.kl > found.kl]
    tokens, others = (sum(kind.tokens for kind in kinds) for kinds in (odd, cause.kinds))
    carried, whole = (sum(one.kl * one.tokens for one in kinds) for kinds in (odd, cause.kinds))
    *names, last = (one.name for one in sorted(odd, key=lambda one: _PLACE.get(one.name, 0)))
    where = f"{', '.join(names)} and {last}" if names else last
    begun = cause.name != STEP and step is not None
    since, changed = f", from step {step} on", f"; and at what changed at step {step}"
    rest = (whole - carried) / max(others - tokens, 1)
    words = {"step": step, "where": where, "others": others - tokens, "rest": rest}
    overwritten = step is not None and min(equal, default=None) == step
    overwritten &= cause.name == STEP and sum(equal.values()) == tokens
    finding = Finding(
        {"explains": cause.explains, "tokens": tokens, "kl": carried / tokens},
        kind="overwritten" if overwritten else "growing" if cause.grows else cause.name,
        severity="info" if cause.name == STEP and step is None else None,
        words=words | {"since": since * begun, "changed": changed * begun},
    )
    yield finding, step
