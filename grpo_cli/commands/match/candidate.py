"""A convention that fits, and what makes several of them one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from grpo_cli.commands.match.fit import Factor
from grpo_cli.engine import probe
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.totals import Totals
from grpo_cli.errors import GrpoError
from grpo_cli.objective.objective import Objective
from grpo_cli.variants.plan import Plan


@dataclass(eq=False)
class Candidate:
    """A convention and what it makes of the data.

    Attributes:
        plan: evaluates it.
        factor: what its loss (or objective) is multiplied by.
        bits: what it costs; of the plainest of its names.
        size: the magnitude that its number is made of.
        chance: how many conventions as plain as it, or plainer, hit such a number by chance.
        measured: which of the options' statistics of the whole input it needs; -1 for none.
        rows: the variants that are this convention.
        members: signatures of the same convention, made otherwise.
        value: the number that it gives; exact once it was evaluated.
        difference: ``value`` less the target.
        needs: what would have to be true for it to fit, where it does not.
        unbound: ε → from where on any value of it gives the same number, as nothing is clipped.
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
    totals: Totals | None = None

    @property
    def times(self) -> float:
        """The factor's value."""
        return self.factor.times


class Families:
    """Tells conventions that are one under several names from those that the data cannot tell."""

    def __init__(self, chunk: Chunk, same: Mapping[str, list[str]]) -> None:
        self._chunk = chunk
        self._same = same
        self._known: list[tuple[Candidate, list[float | None]]] = []
        self._values: dict[object, list[float | None]] = {}

    def add(self, one: Candidate) -> bool:
        """Whether the candidate is none of those before it; else it is listed with its like."""
        objective = self.objective(one.plan)
        values = [None if v is None else one.times * v for v in self._probed(objective)]
        head = next((head for head, theirs in self._known if _alike(values, theirs)), one)
        if head is one:
            self._known.append((one, values))
        elif objective.signature not in head.members:
            head.members.append(objective.signature)
        plain = not one.plan.swapped and not one.plan.flags
        if plain and one.times == head.times:
            names = self._same.get(one.plan.variant, [one.plan.variant])
            head.rows += [name for name in names if name not in head.rows]
        return head is one

    def objective(self, plan: Plan) -> Objective:
        """A plan's objective for the data."""
        return self._chunk.objective(plan)

    def _probed(self, objective: Objective) -> list[float | None]:
        """Its values on three probes, the eps of a std aside."""
        bare = without_eps(objective)
        wanted = tuple((k, b.name, tuple(b.values.items())) for k, b in bare.stages.items())
        if wanted not in self._values:
            values = [probe.value(bare, lacking) for lacking in (_ALL, _FEWER)]
            self._values[wanted] = [*values, probe.value(bare, probable=True)]
        return self._values[wanted]


_ALL: frozenset[str] = frozenset()
_FEWER: frozenset[str] = frozenset({"lengths", "spreads"})


def _alike(left: Sequence[float | None], right: Sequence[float | None]) -> bool:
    return all(map(probe.same, left, right))


def without_eps(objective: Objective) -> Objective:
    """The objective with what is added to a std always the same."""
    bound = objective.advantage
    if "std_eps" not in bound.values:
        return objective
    return replace(objective, advantage=replace(bound, values={**bound.values, "std_eps": 1e-8}))


def apart(matches: Sequence[Candidate], chunk: Chunk, has: set[str]) -> list[str]:
    """What data would tell the matches apart, in words; the first against each of the others.

    Where no single feature does, any batch with those that this data lacks.
    """
    families = Families(chunk, {})
    objectives = [without_eps(families.objective(one.plan)) for one in matches[:20]]
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
