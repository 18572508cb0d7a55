"""Ratios that no update makes, engines that disagree, and columns that are scaled or offset."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.check.answer import MismatchFound
from grpo_cli.commands.check.first_record import PER_NAT
from grpo_cli.commands.check.pair import LEAST_TOKENS, Pair, Scale
from grpo_cli.commands.check.record_view import LOG_PROBS, View
from grpo_cli.commands.check.rule import Finding, rule
from grpo_cli.commands.check.rules.rewards import are_dead
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
            kind="pair",
            words={"filled": f"; {zeros:,} of them are exactly 0.0" if zeros else ""},
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
        ratio = ratios[part][np.argmax(bad[part])]
        yield Finding(
            {"tokens": bad[part].sum(), "of": part.stop - part.start, "ratio": ratio},
            **view.first_token(record, bad),
            kind="given",
            words={"name": view.key("ratios")},
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
    sizes.
    """
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
            yield Finding(
                {"tokens": tokens, "of": len(size), "worst": pair.log_ratio[at], "p98": near},
                **pair.view.place(at),
                severity="warning" if tokens > 1 or size.max() > _OUTLIER_ALONE else "info",
                words={"where": where, "size": size.max()},
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
    bound = pair.samples.spread(10.0 * spread + 1e-3)
    low = np.maximum(pair.weight, 1.0 - bound)
    mean, error, away = _measure_distance(pair, np.minimum(low, 1.0 + bound))
    found = (
        (pair.samples.lengths >= _WEIGHT_TOKENS)
        & (np.abs(away) > _WEIGHT_SIGMAS)
        & (np.abs(mean - 1.0) > _WEIGHT_AWAY)
    )
    if not found.any():
        return
    high = np.minimum(pair.weight, 1.0 + bound)
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
"""What weights that are a few steps old give as well, where records do not say their versions."""


@rule("rollout-mismatch", "pair")
def find_mismatch(pair: Pair) -> Iterator[Finding]:
    """Finds a mean of exp|log π_train − log π_rollout| above 1.05, over 30 tokens or more.

    Above that bound NeMo-RL calls a sequence suspect (token_mult_prob_error). The evidence has
    KL(rollout‖trainer) by k1 and k3, and the tails, because means hide them. The message says
    whether the mean weight is outside 0.5 to 2 or the effective sample size below 30 % of the
    tokens, where verl's rollout correction should reject. It is an info where the record says that
    several versions of the weights sampled, of which older ones differ more, and where one token
    alone makes the difference, and up to 1.1 where the weights are hardly uneven.

    References:
        NeMo-RL, docs/guides/dtensor-tp-accuracy.md; verl, docs/algo/rollout_corr.md.
    """
    n, error = pair.means(np.exp(np.minimum(pair.size, 50.0)))
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
def find_uneven_mismatch(found: MismatchFound) -> Iterator[tuple[Finding, int | None]]:
    """Yields that most of a mismatch is at a word, places of responses, or steps; from which step.

    Of a mismatch of which the place or the step explains a fifth or more, by six standard errors.
    It is an info where the mismatch became smaller.
    The first tokens from older weights, of a prefix cache: huggingface/trl#6007.
    """
    since = next((one.step for one in found.causes if one.name == STEP and one.counts), None)
    for cause in found.causes:
        if not cause.counts or cause.name not in (TOKEN, POSITION, STEP):
            continue
        if cause.name == POSITION and found.named not in (POSITION, STEP):
            continue
        odd = [kind for kind in cause.kinds if kind.kl > found.kl]
        tokens = sum(kind.tokens for kind in odd)
        carried = sum(kind.kl * kind.tokens for kind in odd)
        others = sum(kind.tokens for kind in cause.kinds) - tokens
        whole = sum(kind.kl * kind.tokens for kind in cause.kinds)
        *names, last = (one.name for one in sorted(odd, key=lambda one: _PLACE.get(one.name, 0)))
        listed = f"{', '.join(names)} and {last}" if names else last
        rest = (whole - carried) / max(others, 1)
        finding = Finding(
            {"explains": cause.explains, "tokens": tokens, "kl": carried / tokens},
            kind="growing" if cause.grows else cause.name,
            severity="info" if cause.name == STEP and cause.step is None else None,
            words={"step": cause.step, "where": listed, "others": others, "rest": rest},
        )
        yield finding, since if cause.name == TOKEN else cause.step


# ---- bases ---------------------------------------------------------------------------------------

_BASE_WITHIN, _BASE_BIAS, _BASE_SIGMAS = 0.04, 0.01, 4.0
_FACTOR_ALIKE, _DIVIDED_ALIKE, _DIVIDED = 0.3, 0.07, 0.05
_LIKE_BASE_2 = 0.7
"""A usual temperature: log-probs that are divided by it are almost in base 2 (1.4286, 1.4427)."""


@rule("log-base", "pair")
def find_log_bases(pair: Pair) -> Iterator[Finding]:
    """Finds a column that is the other times 1.4427 or 0.4343, at likely and rare tokens alike.

    The median of b/a is within 1 % of the factor and four of its standard errors, 4 % at most, and
    log b/a spreads by at most 0.45 of its median, and 0.3 of what an offset would do. A temperature
    has another b/a at each size, unless the log-probs themselves were divided by it: 0.7 is named
    too, where it is nearer than base 2 or within four standard errors, or alone, where the slope
    excludes base 2. A column that is no larger than all others is not in another base: it was
    scaled, or these are.
    """
    for sample, scale in pair.scales.items():
        if not scale.is_factor(_FACTOR_ALIKE):
            continue
        factor = math.exp(scale.factor.median)
        error = scale.factor.spread / math.sqrt(scale.factor.number)
        within = min(_BASE_WITHIN, _BASE_BIAS + _BASE_SIGMAS * error)
        for base, per_nat in PER_NAT.items():
            for at, wanted in ((1, per_nat), (0, 1.0 / per_nat)):
                off = abs(factor / wanted - 1.0)
                if off <= within:
                    doubt = max(off, _BASE_SIGMAS * error)
                    yield _describe_base(pair, sample, base, at, doubt)


def _describe_base(pair: Pair, sample: int, base: int, at: int, doubt: float) -> Finding:
    """Returns the finding of a factor that is a base's, in which the one or the other may be."""
    scale, names = pair.scales[sample], pair.keys
    factor, (slope, noise) = math.exp(scale.factor.median), scale.slope
    divided = _LIKE_BASE_2 if at == 0 else 1.0 / _LIKE_BASE_2
    wanted = PER_NAT[base] if at else 1.0 / PER_NAT[base]
    is_base, is_temperature = (abs(slope - one) <= noise for one in (wanted, divided))
    like_temperature = abs(factor / divided - 1.0) <= doubt and is_base <= is_temperature
    excluded = like_temperature and is_base < is_temperature
    odd, words = _compare_with_others(pair, sample)
    kind, name = "divided" if like_temperature else "pair", names[at]
    if excluded or odd == 1 - at:
        kind = "scaled" if excluded else "others"
        name = " or ".join(names) if odd is None else names[odd]
    evidence = {
        "base": None if excluded else base,
        "factor": slope if excluded else factor,
        "culprit": pair.names[at if odd is None else odd],
    }
    words |= {"base": base, "ln": math.log(base), "temperature": _LIKE_BASE_2, "name": name}
    return Finding(evidence, pair.record(sample), kind=kind, words=words)


def _compare_with_others(pair: Pair, sample: int) -> tuple[int | None, dict[str, Any]]:
    """Returns which column of a pair all others contradict, and words that say so."""
    odd, others = pair.find_odd(sample)
    if odd is None:
        return None, {"agree": ""}
    listed, verb = " and ".join(others), "agrees" if len(others) == 1 else "agree"
    return odd, {"agree": f". {listed} {verb} with {pair.keys[1 - odd]}"}


# ---- temperatures --------------------------------------------------------------------------------

_STRAIGHT, _STRAIGHT_SHORT, _SHORT = 1.2, 0.7, 100
"""Fewer tokens may share a context, where older weights give a line as well."""
_ALIKE, _NOISY = {False: 0.55, True: 0.35}, {False: 4.0, True: 1.5}
"""Spreads of the shares of sure tokens and about the line: between engines, and after updates."""
_ENGINE_SHARE, _UPDATE_SHARE, _NOTABLE_SHARE = 0.02, 0.13, 0.04
_MOST_VANISHED = 0.02
_CONSTANT_ALIKE = 0.2
_MOST_SHARE = 1.5
"""Of a temperature of 1/7 or of 7: what is beyond them is no temperature."""


@rule("temperature", "pair")
def find_temperatures(pair: Pair) -> Iterator[Finding]:
    """Finds log-odds of sure tokens that one factor scales (``Scale``).

    The share by which they differ spreads by at most 0.35 of its median, 0.55 between engines:
    temperatures of 0.9 and 1.1 have 0.03 in float32, 0.5 in the noisiest fp8; policies that were
    trained have 0.4 to 5, and stale ones 1.6 and more. Or the spread about the line is at most 1.2
    times its slope: those temperatures have 0.3 to 1.2 in bf16, but trained policies 1.3 to 10. Of
    fewer than 100 tokens it is at most 0.7 times the slope: stale ones have 0.6 to 1.2.
    The slope is above 0.02 between engines, or 0.13 where an update is between the columns, which
    may sharpen a little evenly. Log-probs that were themselves divided have one b/a instead.
    """
    for sample, scale in pair.scales.items():
        if not _is_temperature(pair, scale):
            continue
        even = not scale.is_factor(_DIVIDED_ALIKE)
        alike = scale.odds.is_alike(_ALIKE[pair.names[0] == "log_probs_new"])
        of = scale.factor if not even else scale.odds if alike else scale.line
        slope = (2.0 - of.median) / (2.0 + of.median) if even else math.exp(of.median)
        sharper, flatter = pair.keys if slope < 1.0 else pair.keys[::-1]
        total = int(pair.samples.lengths[sample])
        _, words = _compare_with_others(pair, sample)
        yield Finding(
            {"slope": slope, "spread": of.spread, "tokens": of.number, "sharper": sharper},
            pair.record(sample),
            words=words
            | {
                "flatter": flatter,
                "what": "log-odds" if even else "log-probs",
                "share": f"all {of.number:,}"
                if of.number == total
                else f"{of.number:,} of {total:,}",
                "times": max(slope, 1.0 / slope),
            },
            by_training=even and bool(pair.updated[sample]),
        )


def _is_temperature(pair: Pair, scale: Scale) -> bool:
    if pair.to_reference:
        return False  # long training
    updated = pair.names[0] == "log_probs_new"
    least = _UPDATE_SHARE if updated else _ENGINE_SHARE
    even = scale.has_even_odds(_ALIKE[updated]) and scale.line.is_alike(_NOISY[updated])
    if not (updated and scale.odds.number):
        short = scale.line.number < _SHORT
        even = even or scale.line.is_alike(_STRAIGHT_SHORT if short else _STRAIGHT)
    found = even and least < abs(scale.line.median) < _MOST_SHARE
    found |= scale.is_factor(_DIVIDED_ALIKE) and abs(scale.factor.median) > _DIVIDED
    if not found or scale.offset.is_alike(_CONSTANT_ALIKE):
        return False  # one constant at all tokens
    return scale.vanished <= _MOST_VANISHED  # else words that top-p or top-k cut off


@rule("sharper", "pair")
def find_sharper_policies(pair: Pair) -> Iterator[Finding]:
    """Finds sure tokens that are surer in one column, evenly, by 0.04 of their log-odds or more.

    The share spreads by at most 0.55 of its median, as with a temperature, and
    ``find_temperatures`` finds none, as between a policy and its reference: training may do it. It
    makes policies unevenly surer in most healthy runs, which says nothing.
    Logits of the reference that were not divided: huggingface/trl#3029.
    """
    for sample, scale in pair.scales.items():
        even = scale.has_even_odds(_ALIKE[False]) and abs(scale.odds.median) > _NOTABLE_SHARE
        if even and not _is_temperature(pair, scale):
            share = scale.odds.median
            first, second = pair.keys if share > 0.0 else pair.keys[::-1]
            size = abs(share)
            yield Finding(
                {"share": share, "spread": scale.odds.spread, "tokens": scale.odds.number},
                pair.record(sample),
                words={
                    "first": first,
                    "second": second,
                    "size": size,
                    "temperature": (2.0 - size) / (2.0 + size),
                },
            )


# ---- constants -----------------------------------------------------------------------------------

_CONSTANT_TOKENS = 24


@rule("constant-log-ratio", "pair")
def find_constant_log_ratios(pair: Pair) -> Iterator[Finding]:
    """Finds log ratios that are one constant plus little, as after renormalising over top-p.

    The engine's log-probs are over the tokens that top-p leaves, the trainer's over all
    (huggingface/trl#6789).

    A log ratio d of samples from the second policy has mean −KL, about −var(d)/2: far less than
    its spread while the two are close, and no training moves every token alike. Reported where
    the median of d exceeds 1e-3 and 3 times the spread (1.4826 times the median absolute
    deviation), and 4 of 5 tokens have its sign, and are near it.
    """
    n = pair.samples.lengths
    ups, downs = pair.count(pair.log_ratio > 0.0), pair.count(pair.log_ratio < 0.0)
    often = (n >= _CONSTANT_TOKENS) & (np.maximum(ups, downs) >= 0.8 * n)
    for sample in np.flatnonzero(often).tolist():
        change = pair.log_ratio[pair.tokens(sample)]
        middle = float(np.median(change))
        away = np.abs(change - middle)
        spread = 1.4826 * float(np.median(away))
        near = away <= max(0.5 * abs(middle), 3.0 * spread)
        # the median does not see the others where half of the tokens are one that is repeated
        if np.mean(near) >= 0.8 and abs(middle) >= 1e-3 and abs(middle) >= 3.0 * spread:
            evidence = {"log_ratio": middle, "spread": spread, "ratio": math.exp(middle)}
            yield Finding(evidence, pair.record(sample))
