"""Two columns of which one is scaled or offset: bases, temperatures and constant factors."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from grpo_cli.commands.check.pair import Pair
from grpo_cli.commands.check.rule import Finding, rule
from grpo_cli.commands.check.scale import Scale

# ---- bases ---------------------------------------------------------------------------------------

_BASES = {"2": 1.0 / math.log(2.0), "10": 1.0 / math.log(10.0)}
_BASE_WITHIN = 0.04
_FACTOR_ALIKE, _DIVIDED_ALIKE, _DIVIDED = 0.3, 0.07, 0.05


@rule("log-base", "pair")
def find_log_bases(pair: Pair) -> Iterator[Finding]:
    """Finds a column that is the other times 1.4427 or 0.4343, at likely and rare tokens alike.

    The median of b/a is within 4 % of the factor, and log b/a spreads by at most 0.45 of its
    median, and 0.3 of what an offset would do. A temperature has another b/a at each size.
    """
    for sample, scale in pair.scales.items():
        if not scale.is_factor(_FACTOR_ALIKE):
            continue
        factor = math.exp(scale.factor.median)
        for base, per_nat in _BASES.items():
            for at, wanted in ((1, per_nat), (0, 1.0 / per_nat)):
                if abs(factor / wanted - 1.0) <= _BASE_WITHIN:
                    yield Finding(
                        f"{pair.keys[at]} is in base {base}: {pair.keys[1]} is {factor:.4f} "
                        f"times {pair.keys[0]}",
                        f"multiply it by ln {base} = {math.log(float(base)):.4f}: grpo expects "
                        "natural logarithms",
                        {"base": int(base), "factor": factor, "culprit": pair.names[at]},
                        record=pair.record(sample),
                    )


# ---- temperatures --------------------------------------------------------------------------------

_STRAIGHT = 1.2
_ALIKE, _NOISY = {False: 0.55, True: 0.35}, {False: 4.0, True: 1.5}
"""Spreads of the shares of sure tokens and about the line: between engines, and after updates."""
_ENGINE_SHARE, _UPDATE_SHARE, _NOTABLE_SHARE = 0.02, 0.13, 0.04
_MOST_VANISHED = 0.02
_MOST_SHARE = 1.5
"""Of a temperature of 1/7 or of 7: what is beyond them is no temperature."""


@rule("temperature", "pair")
def find_temperatures(pair: Pair) -> Iterator[Finding]:
    """Finds log-odds of sure tokens that one factor scales (``Scale``).

    The share by which they differ spreads by at most 0.35 of its median, 0.55 between engines:
    temperatures of 0.9 and 1.1 have 0.03 in float32, 0.5 in the noisiest fp8; policies that were
    trained have 0.4 to 5, and stale ones 1.6 and more. Or the spread about the line is at most 1.2
    times its slope: those temperatures have 0.3 to 1.2 in bf16, but trained policies 1.3 to 10.
    The slope is above 0.02 between engines, or 0.13 where an update is between the columns, which
    may sharpen a little evenly. Log-probs that were themselves divided have one b/a instead.
    """
    for sample, scale in pair.scales.items():
        if _is_temperature(pair, scale):
            yield _describe_temperature(pair, scale, sample)


def _is_temperature(pair: Pair, scale: Scale) -> bool:
    if pair.to_reference or scale.vanished > _MOST_VANISHED:
        return False  # long training, or words that top-p or top-k cut off
    updated = pair.names[0] == "log_probs_new"
    least = _UPDATE_SHARE if updated else _ENGINE_SHARE
    even = scale.odds.is_alike(_ALIKE[updated]) and scale.line.is_alike(_NOISY[updated])
    even |= scale.line.is_alike(_STRAIGHT) and (not scale.odds.number or not updated)
    if even and least < abs(scale.line.median) < _MOST_SHARE:
        return True
    return scale.is_factor(_DIVIDED_ALIKE) and abs(scale.factor.median) > _DIVIDED


def _describe_temperature(pair: Pair, scale: Scale, sample: int) -> Finding:
    first, second = pair.keys
    even = not scale.is_factor(_DIVIDED_ALIKE)
    alike = scale.odds.is_alike(_ALIKE[pair.names[0] == "log_probs_new"])
    of = scale.factor if not even else scale.odds if alike else scale.line
    slope = (2.0 - of.median) / (2.0 + of.median) if even else math.exp(of.median)
    sharper, flatter = (first, second) if slope < 1.0 else (second, first)
    what = "log-odds" if even else "log-probs"
    return Finding(
        f"{sharper} is sharper than {flatter}, as if only one side applied the temperature: the "
        f"{what} are {max(slope, 1.0 / slope):.3f} times as large at all {of.number:,} tokens "
        f"(spread {of.spread:.2g})",
        "divide the logits by the sampling temperature on both sides or on neither (vLLM returns "
        "raw log-probs unless logprobs_mode is processed_logprobs)",
        {"slope": slope, "spread": of.spread, "tokens": of.number, "sharper": sharper},
        record=pair.record(sample),
    )


@rule("sharper", "pair")
def find_sharper_policies(pair: Pair) -> Iterator[Finding]:
    """Finds sure tokens that are surer in one column by 0.04 or more of their log-odds."""
    for sample, scale in pair.scales.items():
        share = scale.odds.median
        if abs(share) > _NOTABLE_SHARE and not _is_temperature(pair, scale):
            first, second = pair.keys if share > 0.0 else pair.keys[::-1]
            yield Finding(
                f"{first} is sharper than {second}: the log-odds of likely tokens are "
                f"{abs(share):.0%} larger (median; spread {scale.odds.spread:.0%}), too unevenly "
                "or too little for another temperature",
                "many steps, an entropy bonus or dropout on one side cause this; a temperature "
                "scales all tokens equally",
                {"share": share, "spread": scale.odds.spread, "tokens": scale.odds.number},
                record=pair.record(sample),
            )


# ---- constants -----------------------------------------------------------------------------------

_CONSTANT_TOKENS = 24


@rule("constant-log-ratio", "pair")
def find_constant_log_ratios(pair: Pair) -> Iterator[Finding]:
    """Finds log ratios that are one constant plus little, as after renormalising over top-p.

    A log ratio d of samples from the second policy has mean −KL, about −var(d)/2: far less than
    its spread while the two are close, and no training moves every token alike. Reported where
    the median of d exceeds 1e-3 and 3 times the spread (1.4826 times the median absolute
    deviation), and 4 of 5 tokens have its sign.
    """
    if pair.to_reference or pair.equal.all():
        return
    n, _, _ = pair.moments(pair.log_ratio)
    ups, downs = pair.count_sides(np.ones(len(pair.size), dtype=np.bool_))
    for sample in np.flatnonzero(
        (n >= _CONSTANT_TOKENS) & (np.maximum(ups, downs) >= 0.8 * n)
    ).tolist():
        change = pair.log_ratio[pair.tokens(sample)]
        middle = float(np.median(change))
        spread = 1.4826 * float(np.median(np.abs(change - middle)))
        if abs(middle) >= 1e-3 and abs(middle) >= 3.0 * spread:
            yield Finding(
                f"{pair} is about {middle:.4g} at every token (spread {spread:.2g}): every ratio "
                f"is multiplied by {math.exp(middle):.4g}",
                "compute both over the whole vocabulary: one side was renormalised over top-p or "
                "top-k (the factor is the kept mass), or lacks a normaliser",
                {"log_ratio": middle, "spread": spread, "ratio": math.exp(middle)},
                record=pair.record(sample),
            )
