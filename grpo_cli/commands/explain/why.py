"""Why is my loss 0, or negative, or large? The reasons that hold on this data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.explain.facts import DeadGroups, Facts, Steps
from grpo_cli.terminal.numbers import brief, counted, shown

_ZERO = 1e-6
"""|J| below this part of the magnitudes that it is made of is 0 but for float32."""

_MOST = 0.5
_LARGE = 1.0


class Reason(NamedTuple):
    """One reason: a word for programs, a sentence for people."""

    code: str
    text: str


def why(total: Mapping[str, Any], facts: Facts, computes: str) -> list[Reason]:
    """The reasons why the loss is what it is, the decisive first; the gradient comes last.

    Args:
        total: the batch's numbers by name.
        facts: what the data are.
        computes: the choice that would compute advantages where the records give them.
    """
    value = [*_value(total, facts, computes), *rising(facts.steps)]
    return [*value, *_conditions(total, facts, computes)]


def _value(total: Mapping[str, Any], facts: Facts, computes: str) -> Iterator[Reason]:
    loss = float(total["loss"])
    if not total["tokens"]:
        yield Reason("empty", "no token counts, so the loss is 0 and has no gradient")
    elif abs(loss) <= _ZERO * facts.scale:
        yield from _zero(total, facts, computes)
    elif loss < 0:
        yield Reason("negative", _negative(facts))
    else:
        yield Reason("kl" if _dominated(facts) else "positive", _positive(facts))
    if abs(loss) > _ZERO * facts.scale:
        yield from _unequal(total, facts)
        yield from _large(total, facts)


def _zero(total: Mapping[str, Any], facts: Facts, computes: str) -> Iterator[Reason]:
    if total["dead_groups"] == total["groups"]:
        zero = _no_advantage(total["groups"], facts.dead)
        yield Reason("dead", f"the loss is 0: {zero}{_remedy('; ', facts.dead, computes)}")
    elif _on_policy(total) and facts.centred:
        yield Reason(
            "centred",
            "the loss is 0: every ratio is exactly 1, and the advantages of each group add up to 0"
            + (", over responses of equal length" if len({*facts.lengths}) == 1 else ""),
        )
    else:
        adding, taking = ("A > 0", "A < 0") if facts.above.value() > 0 else ("A < 0", "A > 0")
        yield Reason(
            "cancels",
            f"the loss is 0: responses with {adding} and responses with {taking} cancel out",
        )


def _no_advantage(groups: int, dead: DeadGroups) -> str:
    """Why every advantage is 0."""
    though = ""
    if dead.differ:
        though = f", although the rewards differ in {counted(dead.differ, 'group')} of {groups:,}"
    if dead.given:
        return f"all advantages in your data are 0{though}"
    if dead.differ:
        return f"--advantage {', '.join(sorted(dead.computed))} makes all advantages 0{though}"
    if dead.alone == groups:
        return "every group has a single response, so all advantages are 0"
    return "all rewards within each group are equal, so all advantages are 0"


def _remedy(mark: str, dead: DeadGroups, computes: str) -> str:
    """How advantages are computed where the records' own are 0 and need not be."""
    if not (dead.given and dead.differ):
        return ""
    return f"{mark}--advantage {computes} computes advantages from the rewards"


def _negative(facts: Facts) -> str:
    parts = facts.parts
    if parts["positive_advantages"] < 0:  # a surrogate that is not on the scale of a ratio
        return (
            "the loss is negative: the surrogate contains log π_θ, which is negative, so where A "
            f"< 0 it adds {shown(parts['negative_advantages'])} to J"
        )
    return (
        "the loss is negative because J is positive: responses with A > 0 add "
        f"{shown(parts['positive_advantages'])}, those with A < 0 add "
        f"{shown(parts['negative_advantages'])}. This alone is not an error: the policy term can "
        "have either sign"
    )


def _positive(facts: Facts) -> str:
    parts = facts.parts
    if _dominated(facts):
        return (
            f"the loss is positive because the KL penalty, {shown(-parts['kl_penalty'])}, "
            "outweighs the policy term"
        )
    return (
        f"the loss is positive: responses with A < 0 {_does(parts['negative_advantages'])}, "
        f"those with A > 0 {_does(parts['positive_advantages'])}"
        + (_LOGARITHM if parts["positive_advantages"] < 0 else "")
    )


_LOGARITHM = ": the surrogate contains log π_θ, which is negative"


def _does(part: float) -> str:
    """Says whether a part of J adds to it."""
    return f"add {shown(part)}" if part >= 0 else f"subtract {shown(-part)}"


def _dominated(facts: Facts) -> bool:
    """Whether the KL penalty is larger than the policy term."""
    parts = facts.parts
    policy = parts["positive_advantages"] + parts["negative_advantages"]
    return -parts["kl_penalty"] > abs(policy)


def _unequal(total: Mapping[str, Any], facts: Facts) -> Iterator[Reason]:
    if _on_policy(total) and facts.centred and facts.policy_counts and len({*facts.lengths}) > 1:
        yield Reason(
            "lengths",
            "every ratio is exactly 1 and the advantages add up to 0, yet the policy term is not "
            f"0: lengths differ ({facts.lengths[0]:,} to {facts.lengths[1]:,} tokens), and "
            f"longer responses have more weight with this denominator ({total['denominator_of']})",
        )


def _large(total: Mapping[str, Any], facts: Facts) -> Iterator[Reason]:
    largest, contributions = facts.largest, facts.contributions.value()
    if largest is not None and largest.size > _MOST * contributions:
        unbounded = facts.plain_clip and largest.advantage < 0 and largest.ratio > 1.2
        yield Reason(
            "one-token",
            f"one token makes up {largest.size / contributions:.0%} of all contributions: "
            f"{largest.place}, ratio {shown(largest.ratio)}, A {shown(largest.advantage)}"
            + ("; no upper clip applies to a ratio where A < 0" if unbounded else ""),
        )
    sums = total["denominator"] and total["denominator"] < 0.5 * total["tokens"]
    if abs(float(total["loss"])) > _LARGE and sums and "token" not in total["denominator_of"]:
        yield Reason(
            "sums",
            f"the loss is large because it sums over tokens: {total['tokens']:,} tokens over "
            f"{shown(total['denominator'])} ({total['denominator_of']})",
        )
    far = total["ratio_max"] and total["ratio_max"] > 10.0
    if far and facts.plain_clip and facts.parts["negative_advantages"]:
        yield Reason(
            "ratio",
            f"ratios reach {shown(total['ratio_max'])}: where A < 0, a plain clip does not bound "
            "them from above (dual_clip and delta do)",
        )


def _conditions(total: Mapping[str, Any], facts: Facts, computes: str) -> Iterator[Reason]:
    if total["groups"] and total["dead_groups"] == total["groups"] and total["loss"]:
        yield Reason(
            "all-dead",
            f"{_no_advantage(total['groups'], facts.dead)}: rewards do not enter this loss, so "
            "only the KL or the entropy bonus changes the "
            f"policy{_remedy('; ', facts.dead, computes)}",
        )
    if total["tokens"] and total["clip_fraction"] == 1.0:
        yield Reason(
            "all-clipped",
            "every token is clipped: the policy term has a value but no gradient",
        )
    if 0 < total["dead_groups"] < total["groups"]:
        yield Reason("dead-groups", _some_dead(total, facts.dead, computes))
    if facts.cancelled:
        yield Reason(
            "rewards-cancel",
            f"in {facts.cancelled:,} groups the reward functions differ between responses, but "
            "their sum does not: they cancel out",
        )
    if facts.no_reference:
        yield Reason(
            "no-reference",
            "this loss has no KL: the records have no log_probs_ref, so grpo leaves the KL "
            "penalty out; the trainer's loss may contain it",
        )
    elif facts.betas == {0.0}:
        yield Reason("beta", "this loss has no KL (β = 0), even if the trainer logs a KL")
    elif facts.reference_equal:
        yield Reason("reference", "the policy still equals the reference, so the KL is 0")
    if _on_policy(total) and total["tokens"]:
        yield Reason("on-policy", "every ratio is exactly 1, so nothing is clipped")
    if norm := float(total["gradient_norm"]):
        yield Reason("gradient", f"the gradient is not zero: its norm is {shown(norm)}")
    else:
        text = "the gradient is zero as well: this batch changes nothing"
        yield Reason("no-gradient", text)


def _some_dead(total: Mapping[str, Any], dead: DeadGroups, computes: str) -> str:
    has = "has" if total["dead_groups"] == 1 else "have"
    count = f"{total['dead_groups']:,} of {total['groups']:,} groups {has}"
    still = "they still count in the denominator"
    if not (dead.given or dead.differ):
        return f"{count} equal rewards, so their advantages are 0; {still}"
    differ = f"; the rewards differ in {dead.differ:,} of them" if dead.differ else ""
    return f"{count} only advantages of 0; {still}{differ}{_remedy(': ', dead, computes)}"


def _on_policy(total: Mapping[str, Any]) -> bool:
    return bool(total["ratio_min"] == 1.0 == total["ratio_max"])


# ---- why does the loss rise while the reward rises? ----------------------------------------------

_FEWEST = 4
_SURE = 2.0
"""How many standard errors a trend must have to be one."""


def rising(steps: Steps) -> Iterator[Reason]:
    """Why the loss rises, where the reward rises with it."""
    if sum(map(len, steps.losses)) < _FEWEST:
        return
    losses, rewards, penalties = (
        np.concatenate(parts) for parts in (steps.losses, steps.rewards, steps.penalties)
    )
    if not (_trend(losses) > _SURE and _trend(rewards) > _SURE):
        return
    span = f"from {_ends(losses)} while the mean reward rises from {_ends(rewards)}"
    yield Reason(
        "rising",
        f"the loss rises {span} over {len(losses):,} records; {_share(losses, penalties)}. The "
        "loss does not measure progress: advantages are centred in each group whatever the "
        "reward is, so watch the reward, the KL and the clip fraction",
    )


def _share(losses: F64, penalties: F64) -> str:
    """How much of the rise the KL makes."""
    rise, of_kl = _slope(losses), _slope(penalties)
    if of_kl > 0.5 * rise:
        part = f"{min(of_kl / rise, 1.0):.0%}"
        return (
            f"{part} of that is the KL penalty, from {_ends(penalties)}: the policy moves away "
            "from the reference as it learns (a smaller β penalises this less)"
        )
    return (
        "that is the policy term, not the KL: it is near 0 at ratio 1 and depends on the "
        "lengths, on the clip and on how far the policy is from the one that sampled"
    )


def _trend(values: F64) -> float:
    """The slope over the records in standard errors; infinite for a straight line."""
    places = np.arange(len(values)) - (len(values) - 1) / 2.0
    spread = values - values.mean()
    size = math.sqrt(float(places @ places) * float(spread @ spread))
    if not size:
        return 0.0
    correlation = max(-1.0, min(1.0, float(places @ spread) / size))
    free = 1.0 - correlation * correlation
    slope = correlation * math.sqrt(len(values) - 2)
    return slope / math.sqrt(free) if free > 1e-12 else math.copysign(math.inf, correlation)


def _slope(values: F64) -> float:
    places = np.arange(len(values)) - (len(values) - 1) / 2.0
    return float(places @ values) / float(places @ places)


def _ends(values: F64) -> str:
    """About where it begins and ends: the means of the first and the last quarter."""
    quarter = max(len(values) // 4, 1)
    return f"{brief(values[:quarter].mean())} to {brief(values[-quarter:].mean())}"
