"""A convention that was tried, and what makes several of them one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grpo_cli.commands.match.command_line import command, pruned
from grpo_cli.commands.match.features import present
from grpo_cli.commands.match.sums import Data
from grpo_cli.engine import probe
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.totals import Totals
from grpo_cli.objective.objective import Objective
from grpo_cli.variants.plan import Plan


@dataclass(eq=False)
class Candidate:
    """A convention and what it makes of the data.

    Attributes:
        plan: evaluates it.
        value: the loss (or objective) that it gives, with ``times``.
        difference: ``value`` less the target.
        cost: the plainer, the smaller.
        times: what the plan's own loss (or objective) is multiplied by; negative for a wrong sign.
        rows: the variants that are the same convention.
        members: other conventions that differ only in an ``std_eps`` too small to matter here.
    """

    plan: Plan
    value: float
    difference: float
    cost: int
    times: float
    rows: list[str] = field(default_factory=list)
    members: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Target:
    """The number that was logged.

    Attributes:
        number: as it was given.
        of: "loss" or "objective".
        rtol: how far off a value may be, relatively; added to it is one part in 2²³ of the
            magnitudes that cancel in the value, since trainers add up in float32.
    """

    number: float
    of: str
    rtol: float

    @property
    def sign(self) -> float:
        """The target is this times J."""
        return -1.0 if self.of == "loss" else 1.0


def families(found: Sequence[Candidate], data: Data) -> list[Candidate]:
    """Conventions that are one under several names, or but for a small eps, taken together."""
    known: list[tuple[Candidate, list[float | None]]] = []
    for one in found:
        objective = Evaluator(one.plan).objective(data.chunks[0])
        values = _probed(objective, one.times)
        alike = (head for head, theirs in known if all(map(probe.same, values, theirs)))
        head = next(alike, one)
        if head is one:
            known.append((one, values))
        else:
            head.members.append(objective.signature)
        if not one.plan.swapped and one.times == 1.0 and one.plan.variant not in head.rows:
            head.rows.append(one.plan.variant)
    return [head for head, _ in known]


def _probed(objective: Objective, times: float) -> list[float | None]:
    """What a convention is: its values on two probes, the eps of a std aside."""
    bare = without_eps(objective)
    values = [probe.value(bare, lacking) for lacking in (frozenset(), _FEWER)]
    return [None if value is None else times * value for value in values]


_FEWER: frozenset[str] = frozenset({"lengths", "spreads"})


def without_eps(objective: Objective) -> Objective:
    """The objective with what is added to a std always the same."""
    bound = objective.advantage
    if "std_eps" not in bound.values:
        return objective
    return replace(objective, advantage=replace(bound, values={**bound.values, "std_eps": 1e-8}))


def apart(matches: Sequence[Candidate], data: Data) -> list[str]:
    """What data would tell the matches apart, in words; the first against each of the others.

    Where no single feature does, any batch with those that this data lacks.
    """
    if len(matches) < 2:
        return []
    first, *others = (
        (one, without_eps(Evaluator(one.plan).objective(data.chunks[0]))) for one in matches[:20]
    )
    has = present([chunk.batch for chunk in data.chunks])
    missing = frozenset(probe.FEATURES.keys() - has)
    needed: set[str] = set()
    for other, objective in others:
        if other.times == first[0].times:
            needed |= probe.tell_apart(first[1], objective, missing)
    chosen = needed or missing - {"rollout", "reference"}
    return [words for name, words in probe.FEATURES.items() if name in chosen]


def described(one: Candidate, data: Data, paths: Sequence[str], target: Target) -> dict[str, Any]:
    """A candidate as ``--json`` shows it."""
    made = pruned(one.plan, data)
    totals = Totals(made.batch)
    for chunk in data.chunks:
        totals.signatures.setdefault(
            Evaluator(made).objective(chunk).signature, Evaluator(made).objective(chunk).parts
        )
    flipped = one.times < 0
    only = target.of if not flipped else {"loss": "objective", "objective": "loss"}[target.of]
    return {
        "signature": totals.signature(),
        "value": one.value,
        "difference": one.difference,
        "command": command(made, paths, only, abs(one.times)),
        "variants": one.rows,
        "factor": abs(one.times),
        "sign_flipped": flipped,
        "same": list(dict.fromkeys(one.members)),
    }
