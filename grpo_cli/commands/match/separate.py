"""What data would separate conventions that are equal on the data at hand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from grpo_cli.batch import Batch
from grpo_cli.commands.match.run import Candidate, Probes, without_eps
from grpo_cli.engine import probe
from grpo_cli.engine.chunk import Chunk
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.objective import Objective

_EPOCH = "ratios other than 1 (a later epoch over its rollouts)"
_FARTHER = "ratios farther from 1, with A > 0 and with A < 0 (a later epoch over its rollouts)"
_SAME_FORMULA = 1e-12
"""Of J on the probe: a fixed eps of 1e-8 in a std changes more."""


def is_equal(one: Candidate, other: Candidate, probes: Probes) -> bool:
    """Whether two conventions give one number on any data, the eps of their std included."""
    mine, theirs = (probes.valued(each.plan) for each in (one, other))
    return mine is theirs or probe.alike(theirs, mine, other.times / one.times, _SAME_FORMULA)


def separating(found: Sequence[Candidate], chunks: Sequence[Chunk], first: Chunk) -> list[str]:
    """What a step has on which conventions of one value differ, without what the data has.

    Args:
        found: conventions that are equal on the data, the likeliest first.
        chunks: the data; ``first``: the chunk whose settings the conventions are bound to.
    """
    facts = _Facts([one.batch for one in chunks])
    needed: dict[str, float] = {}
    for other in found[1:]:
        if other.times != found[0].times:
            needed.setdefault("another number of responses", 0.0)
        mine, theirs = (without_eps(first.objective(one.plan)) for one in (found[0], other))
        for words, bound in _between(mine, theirs, facts):
            # The farther bound separates the conventions of the nearer one too.
            farther = min if "below" in words else max
            needed[words] = farther(needed.get(words, bound), bound)
    return [words.format(f"{bound:.6g}") for words, bound in needed.items()]


def _between(mine: Objective, theirs: Objective, facts: _Facts) -> Iterator[tuple[str, float]]:
    """What the data lacks that separates two objectives: words, and the bound in these."""
    stages = {name: theirs.stages.get(name) for name in {**mine.stages, **theirs.stages}}
    swapped = {name: replace(mine, **{name: bound}) for name, bound in stages.items()}  # type: ignore[arg-type]
    differing = [
        name
        for name, one in swapped.items()
        if one != mine and not probe.alike(probe.Valued(mine), probe.Valued(one))
    ]
    for stage in differing:
        own, other = mine.stages.get(stage), stages[stage]
        if len(differing) > 1 and facts.separate(mine, swapped[stage]):
            continue
        if stage in ("ratio", "surrogate") and not facts.moved:
            yield _EPOCH, 0.0
        elif stage == "surrogate" and own is not None and other is not None:
            yield from _of_clips(own, other)
        else:
            yield from ((words, 0.0) for words in facts.lacking(stage))


def _of_clips(own: Bound, other: Bound) -> Iterator[tuple[str, float]]:
    """Tokens that two surrogates treat differently."""
    mine, theirs = map(_limits, (own, other))
    differing = [words for words in {**mine, **theirs} if mine.get(words) != theirs.get(words)]
    for words in differing:
        nearest = max if "below" in words else min
        yield words, nearest(one[words] for one in (mine, theirs) if words in one)
    if not differing:
        yield _FARTHER, 0.0


def _limits(one: Bound) -> Mapping[str, float]:
    """From where on a surrogate clips or drops tokens, or by which sign of A it treats them."""
    by_change, found = "dppo" in one.name, dict[str, float]()
    for name, value in one.values.items():
        words = (_OF_CHANGES if by_change else _OF_RATIOS).get(name)
        if words is None or not isinstance(value, int | float):
            continue
        if "kl" in one.name:
            words = words.replace("more than", "a binary KL above")
        if not by_change and (sign := _SIDES.get(name)):
            value = math.exp(sign * value) if one.name in _OF_LOGS else 1.0 + sign * value
        if value > 0.0:
            found[words] = min(value, found.get(words, math.inf))
    return found


_SIDES = {"epsilon_low": -1.0, "epsilon_high": 1.0}
_OF_LOGS = ("gmpo", "trl/gmpo", "verl/geo_mean")
"""Surrogates whose ε bounds the log ratio."""
_OF_RATIOS = {
    **dict.fromkeys(("delta", "dual_clip"), "a ratio above {} with A < 0"),
    "epsilon_low": "a ratio below {} with A < 0",
    "epsilon_high": "a ratio above {} with A > 0",
    "tau_pos": "tokens with A > 0",
    "tau_neg": "tokens with A < 0",
}
_FALLS = "a token whose probability falls by more than {} with A < 0"
_RISES = "a token whose probability rises by more than {} with A > 0"
_OF_CHANGES = {
    **dict.fromkeys(("epsilon_low", "divergence_low"), _FALLS),
    **dict.fromkeys(("epsilon_high", "divergence_high"), _RISES),
    "dual_clip": "a ratio above {}",
}
"""What the hyperparameters of surrogates bound: ratios, or (DPPO) changes of the probability."""


class _Facts:
    """What the data has that separates conventions."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = batches
        given = any(one.ratios is not None for one in batches)
        self.moved = given or self._differ("log_probs_old")

    def separate(self, mine: Objective, theirs: Objective) -> bool:
        """Whether two objectives differ on the data."""
        pairs = ((probe.value(mine, one), probe.value(theirs, one)) for one in self._batches)
        return any(
            own is not None and other is not None and not probe.same(own, other)
            for own, other in pairs
        )

    def lacking(self, stage: str) -> Iterator[str]:
        """What separates two choices of a stage, unless the data has it."""
        lengths = np.concatenate([one.responses.lengths for one in self._batches])
        if stage == "advantage":
            if len(self._spreads()) < 2:
                yield "groups whose rewards have different std"
        elif stage == "ratio":
            if lengths.max(initial=0) < 2:
                yield "responses of several tokens"
        elif stage in ("kl", "correction"):
            name, of, base = _POLICIES[stage]
            more = "farther" if self._differ(name) else "different"
            yield f"log-probs of {of} that are {more} from {base}"
        elif stage == "entropy":
            yield "another entropy"
        elif len(np.unique(lengths)) < 2:
            yield "responses of unequal lengths"
        elif sum(one.group_count for one in self._batches) < 2:
            yield "several groups"

    def _differ(self, name: str) -> bool:
        """Whether another policy's log-probs differ from what they are compared with."""
        base = "log_probs_old" if name == "log_probs_rollout" else "log_probs_new"
        pairs = ((getattr(one, base), getattr(one, name)) for one in self._batches)
        found = [pair for pair in pairs if pair[0] is not None and pair[1] is not None]
        return any(bool((left != right).any()) for left, right in found)

    def _spreads(self) -> set[float]:
        """The groups' std of rewards."""
        found: set[float] = set()
        for one in self._batches:
            if (rewards := one.summed_rewards) is not None:
                ends = np.cumsum(np.bincount(one.groups))[:-1]
                groups = np.split(rewards[np.argsort(one.groups, kind="stable")], ends)
                found |= {round(float(group.std()), 9) for group in groups if len(group)}
        return found - {0.0}


_POLICIES = {
    "kl": ("log_probs_ref", "the reference", "the policy's"),
    "correction": ("log_probs_rollout", "the engine", "the trainer's"),
}
