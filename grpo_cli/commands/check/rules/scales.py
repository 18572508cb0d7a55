"""Columns that are scaled or offset: other bases, temperatures, constants."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from grpo_cli.commands.check.first_record import PER_NAT
from grpo_cli.commands.check.pair import Pair, Scale
from grpo_cli.commands.check.rule import Finding, rule

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
    """Returns the finding of a factor that is a base's, or of a scale that is as large."""
    scale, names = pair.scales[sample], pair.keys
    factor, (slope, noise) = math.exp(scale.factor.median), scale.slope
    divided = _LIKE_BASE_2 if at == 0 else 1.0 / _LIKE_BASE_2
    wanted = PER_NAT[base] if at else 1.0 / PER_NAT[base]
    is_base, is_temperature = (abs(slope - one) <= noise for one in (wanted, divided))
    like_temperature = abs(factor / divided - 1.0) <= doubt and is_base <= is_temperature
    odd, words = pair.compare_with_others(sample)
    scaled = like_temperature or odd == 1 - at
    name = names[at] if odd is None else names[odd]
    if scaled and odd is None:
        name = " or ".join(names)
    evidence = {
        "base": None if scaled else base,
        "factor": slope if is_base < is_temperature else factor,
        "culprit": pair.names[at if odd is None else odd],
    }
    words |= {"base": base, "ln": math.log(base), "name": name}
    return Finding(evidence, pair.record(sample), kind="scaled" if scaled else "", words=words)


# ---- temperatures --------------------------------------------------------------------------------

_STRAIGHT, _STRAIGHT_SHORT, _SHORT = 1.2, 0.7, 100
"""Fewer tokens may share a context, where older weights give a line as well."""
_ALIKE, _NOISY = {False: 0.55, True: 0.35}, {False: 4.0, True: 1.5}
"""Spreads of the shares of sure tokens and about the line: between engines, and after updates."""
_ENGINE_SHARE, _UPDATE_SHARE = 0.02, 0.13
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
    may sharpen a little evenly. Of log-probs that were divided, and not their logits, the quotient
    of both columns is one number.
    """
    owners = {key: f"{key}'s" for key in pair.keys}
    if pair.to_engine:
        owners = dict(zip(pair.keys, ("the trainer's", "the engine's"), strict=True))
    for sample, scale in pair.scales.items():
        if not _is_temperature(pair, scale):
            continue
        even = not scale.is_factor(_DIVIDED_ALIKE)
        alike = scale.odds.is_alike(_ALIKE[pair.names[0] == "log_probs_new"])
        of = scale.factor if not even else scale.odds if alike else scale.line
        slope = (2.0 - of.median) / (2.0 + of.median) if even else math.exp(of.median)
        sharper, flatter = pair.keys if slope < 1.0 else pair.keys[::-1]
        total = int(pair.samples.lengths[sample])
        _, words = pair.compare_with_others(sample)
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
                "whose": owners[sharper],
                "others": owners[flatter],
                "times": max(slope, 1.0 / slope),
                "temperature": min(slope, 1.0 / slope),
            },
            by_training=even and pair.to_old,
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
