"""A convention that fits, and which of several are one under several names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from grpo_cli.commands.match.fit import Factor
from grpo_cli.commands.match.sums.exact import Exact
from grpo_cli.engine import probe
from grpo_cli.engine.chunk import Chunk
from grpo_cli.errors import GrpoError
from grpo_cli.objective.objective import Objective
from grpo_cli.variants.plan import Plan


@dataclass(eq=False)
class Candidate:
    """A convention and its number on the data.

    Attributes:
        plan: evaluates it.
        factor: what its loss (or objective) is multiplied by.
        bits: what it costs; of its cheapest name.
        size: the magnitude that its number is made of.
        chance: conventions of no more bits that hit such a number by chance.
        measured: which of the options' statistics of the whole input it needs; -1 for none.
        rows: the variants that are this convention.
        members: signatures of other ways to make this convention.
        value: its number; exact once it was evaluated.
        difference: ``value`` less the target.
        needs: what would have to be true for it to fit, where it does not.
        unbound: ε → the value from which on any gives the same number, as nothing is clipped.
        totals: its totals, once it was evaluated.
    """

    plan: Plan
    factor: Factor
    bits: float = 0.0
    size: float = 0.0
    chance: float = math.nan
    measured: int = -1
    rows: list[str] = field(default_factory=list)
    members: list[str] = field(default_factory=list)
    value: float = math.nan
    difference: float = math.nan
    needs: dict[str, float] = field(default_factory=dict)
    unbound: dict[str, float] = field(default_factory=dict)
    totals: Exact | None = None

    @property
    def times(self) -> float:
        """The factor's value."""
        return self.factor.times


class Families:
    """Separates conventions that are one under several names from those that differ.

    Two that give one number on the probe are one, whatever they give on the data.
    """

    def __init__(self, chunk: Chunk, same: Mapping[str, list[str]]) -> None:
        self._chunk = chunk
        self._same = same
        self._heads: list[tuple[Candidate, list[float | None]]] = []
        self._probed: dict[object, list[float | None]] = {}

    def add(self, one: Candidate) -> bool:
        """Adds a candidate to the convention that it is; returns whether it is a new one."""
        objective = self._chunk.objective(one.plan)
        values = [None if v is None else one.times * v for v in self._values(objective)]
        heads = (head for head, known in self._heads if all(map(probe.same, values, known)))
        head = next(heads, one)
        if head is one:
            self._heads.append((one, values))
        elif objective.signature not in head.members:
            head.members.append(objective.signature)
        plain = not one.plan.swapped and not one.plan.flags
        if plain and one.times == head.times:
            names = self._same.get(one.plan.variant, [one.plan.variant])
            head.rows += [name for name in names if name not in head.rows]
        return head is one

    def _values(self, objective: Objective) -> list[float | None]:
        """J on three probes, whatever the eps of a std."""
        bare = _without_eps(objective)
        wanted = tuple((k, b.name, tuple(b.values.items())) for k, b in bare.stages.items())
        if wanted not in self._probed:
            lacking = frozenset({"lengths", "spreads"})
            values = [probe.value(bare), probe.value(bare, lacking)]
            self._probed[wanted] = [*values, probe.value(bare, probable=True)]
        return self._probed[wanted]


def _without_eps(objective: Objective) -> Objective:
    """The objective with a fixed eps in its std."""
    bound = objective.advantage
    if "std_eps" not in bound.values:
        return objective
    return replace(objective, advantage=replace(bound, values={**bound.values, "std_eps": 1e-8}))


def distinguishing(matches: Sequence[Candidate], chunk: Chunk, has: set[str]) -> list[str]:
    """What data would distinguish the first match from the others, in words.

    Where no single feature does, any batch with those that this data lacks.
    """
    objectives = [_without_eps(chunk.objective(one.plan)) for one in matches[:20]]
    missing = frozenset(probe.FEATURES.keys() - has)
    needed: set[str] = set()
    for one, objective in zip(matches[1:20], objectives[1:], strict=True):
        if one.times == matches[0].times:
            try:
                needed |= probe.tell_apart(objectives[0], objective, missing)
            except GrpoError:
                continue
    chosen = needed or missing - {"rollout", "reference", "probable"}
    return [words for name, words in probe.FEATURES.items() if name in chosen]
