"""Why is my loss 0, or negative, or large? The reasons that hold on this data."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.explain.facts import DeadGroups, Facts
from grpo_cli.terminal.numbers import brief, counted, shown

_ZERO = 1e-6
"""|J| below this part of the magnitudes that it is made of is 0 but for float32."""

_MOST = 0.5
_LARGE = 1.0

NOTHING = ("empty", "dead", "centred", "cancels")
"""Codes of the reasons why a loss is 0."""


class Reason(NamedTuple):
    """One reason: a word for programs, a sentence for people."""

    code: str
    text: str


_SENTENCES: Mapping[str, str] = json.loads(
    files(__package__).joinpath("reasons.json").read_text(encoding="utf-8")
)
"""The sentence of each code, or of each ``code.kind``."""


def _reason(name: str, **words: Any) -> Reason:
    """Returns a reason by its name in the table; numbers of any size are shown in short."""
    texts = {key: shown(one) if isinstance(one, float) else one for key, one in words.items()}
    return Reason(name.partition(".")[0], _SENTENCES[name].format(**texts))


def why(total: Mapping[str, Any], facts: Facts, computes: str) -> list[Reason]:
    """The reasons why the loss is what it is, the decisive first; the gradient comes last.

    Args:
        total: the batch's numbers by name.
        facts: what the data are.
        computes: the choice that would compute advantages where the records give them.
    """
    value = [*_value(total, facts, computes), *_rising(facts.by_record)]
    return [*value, *_conditions(total, facts, computes)]


def _value(total: Mapping[str, Any], facts: Facts, computes: str) -> Iterator[Reason]:
    loss, parts = float(total["loss"]), facts.parts
    above, below = parts["positive_advantages"], parts["negative_advantages"]
    if not total["tokens"]:
        yield _reason("empty")
    elif abs(loss) <= _ZERO * facts.scale:
        yield _zero(total, facts, computes)
    elif loss < 0:  # where A > 0 takes away, the surrogate is not on the scale of a ratio
        adds = {"above": _adds(above), "below": _adds(below)}
        yield _reason("negative.log", below=below) if above < 0 else _reason("negative", **adds)
    elif -parts["kl_penalty"] > abs(above + below):
        alone = not facts.policy_counts and not parts.get("entropy_bonus")
        yield _reason("kl.alone" if alone else "kl", penalty=-parts["kl_penalty"])
        if alone and total["dead_groups"] < total["groups"]:
            yield _cancelled(total, facts, "the policy term", "")
    else:
        log = ": the surrogate contains log π_θ, which is negative" if above < 0 else ""
        yield _reason("positive", below=_adds(below), above=_adds(above), log=log)
    if abs(loss) > _ZERO * facts.scale:
        yield from _sizes(total, facts)


def _adds(part: float) -> str:
    """What a part of J does to it, in words."""
    return f"add {shown(part)}" if part >= 0 else f"subtract {shown(-part)}"


def _zero(total: Mapping[str, Any], facts: Facts, computes: str) -> Reason:
    but = " except for rounding" if total["loss"] else ""
    if total["dead_groups"] == total["groups"]:
        zero = _no_advantage(total["groups"], facts.dead)
        return _reason("dead", but=but, zero=zero, remedy=_remedy("; ", facts.dead, computes))
    return _cancelled(total, facts, "the loss", but)


def _cancelled(total: Mapping[str, Any], facts: Facts, what: str, but: str) -> Reason:
    """Why the loss, or the policy term, is 0 though some advantages are not."""
    if _on_policy(total) and facts.centred:
        alike = ", over responses of equal length" if len({*facts.lengths}) == 1 else ""
        return _reason("centred", what=what, but=but, alike=alike)
    adding, taking = (">", "<") if facts.above.value() > 0 else ("<", ">")
    return _reason("cancels", what=what, but=but, adding=adding, taking=taking)


def _no_advantage(groups: int, dead: DeadGroups) -> str:
    """Why every advantage is 0."""
    though = ""
    if dead.differ:
        though = f", although the rewards differ in {counted(dead.differ, 'group')} of {groups:,}"
    if dead.given:
        why = "all rewards within each group are equal, so " if dead.equal == groups else ""
        return f"{why}all advantages in your data are 0{though}"
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


def _sizes(total: Mapping[str, Any], facts: Facts) -> Iterator[Reason]:
    """Why the loss is as large as it is."""
    of, low, high = total["denominator_of"], *(facts.lengths or (0, 0))
    silent = [sign for sign, n in facts.without_tokens.items() if n and n == facts.responses[sign]]
    for sign in silent:
        yield _reason("no-tokens", count=facts.responses[sign], sign=sign)
    uneven = low != high and not silent
    if _on_policy(total) and facts.centred and facts.policy_counts and uneven:
        yield _reason("lengths", low=low, high=high, of=of)
    largest, contributions = facts.largest, facts.contributions.value()
    if largest is not None and largest.size > _MOST * contributions:
        unbounded = facts.plain_clip and largest.advantage < 0 and largest.ratio > 1.2
        yield _reason(
            "one-token",
            part=f"{largest.size / contributions:.0%}",
            place=largest.place,
            ratio=largest.ratio,
            advantage=largest.advantage,
            clip="; no upper clip applies to a ratio where A < 0" if unbounded else "",
        )
    count = total["denominator"]
    sums = count and count < 0.5 * total["tokens"] and "token" not in of
    if abs(float(total["loss"])) > _LARGE and sums:
        yield _reason("sums", tokens=total["tokens"], count=shown(count), of=of)
    far = total["ratio_max"] and total["ratio_max"] > 10.0
    if far and facts.plain_clip and facts.parts["negative_advantages"]:
        yield _reason("ratio", most=shown(total["ratio_max"]))


def _conditions(total: Mapping[str, Any], facts: Facts, computes: str) -> Iterator[Reason]:
    dead, groups, given = total["dead_groups"], total["groups"], facts.dead
    if groups and dead == groups and total["loss"]:
        zero = _no_advantage(groups, given)
        names = {"kl_penalty": "the KL", "entropy_bonus": "the entropy bonus"}
        left = " and ".join(text for part, text in names.items() if facts.parts.get(part))
        verb = "change" if " and " in left else "changes"
        rest = f"only {left} {verb} the policy" if left else "rewards do not enter this loss"
        yield _reason("all-dead", zero=zero, rest=rest, remedy=_remedy("; ", given, computes))
    if total["tokens"] and total["clip_fraction"] == 1.0:
        yield _reason("all-clipped")
    if 0 < dead < groups and total["tokens"]:
        differ = f"; the rewards differ in {given.differ:,} of these groups" if given.differ else ""
        yield _reason(
            "dead-groups.zero" if given.given or given.differ else "dead-groups",
            have=f"{dead:,} of {groups:,} groups {'has' if dead == 1 else 'have'}",
            differ=differ + _remedy(": ", given, computes),
        )
    if facts.cancelled:
        yield _reason("rewards-cancel", groups=facts.cancelled)
    if facts.no_reference:
        yield _reason("no-reference")
    elif facts.betas == {0.0}:
        kind = "beta.set" if facts.overridden_beta else "beta"
        yield _reason(kind, recorded=facts.overridden_beta)
    elif facts.reference_equal:
        yield _reason("reference")
    if _on_policy(total) and total["tokens"]:
        yield _reason("on-policy")
    norm = float(total["gradient_norm"])
    yield _reason("gradient", norm=norm) if norm else _reason("no-gradient")


def _on_policy(total: Mapping[str, Any]) -> bool:
    return bool(total["ratio_min"] == 1.0 == total["ratio_max"])


# ---- why does the loss rise while the reward rises? ----------------------------------------------

_FEWEST = 4
_SURE = 2.0
"""How many standard errors a trend must have to be one."""


def _rising(by_record: Sequence[tuple[F64, F64, F64]]) -> Iterator[Reason]:
    """Why the loss rises, where the reward rises with it; ``by_record`` as ``Facts`` has it."""
    if sum(len(losses) for losses, *_ in by_record) < _FEWEST:
        return
    losses, rewards, penalties = map(np.concatenate, zip(*by_record, strict=True))
    if not (_trend(losses) > _SURE and _trend(rewards) > _SURE):
        return
    quarter = max(len(losses) // 4, 1)  # whose means are the first and the last
    ends = [
        (float(one[:quarter].mean()), float(one[-quarter:].mean()))
        for one in (losses, rewards, penalties)
    ]
    (first, last), _, (without, with_kl) = ends
    share = (with_kl - without) / (last - first) if last > first else 0.0
    words = [f"{brief(one)} to {brief(other)}" for one, other in ends]
    yield _reason(
        "rising.kl" if share > 0.5 else "rising",
        losses=words[0],
        rewards=words[1],
        records=len(losses),
        part=f"{min(share, 1.0):.0%}",
        penalties=words[2],
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
