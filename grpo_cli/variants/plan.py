"""From flags to objectives: a variant, the stages that replace its own, and hyperparameters."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher, get_close_matches
from functools import cache, cached_property, partial
from itertools import product
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from grpo_cli.errors import InputError, Listing, UsageError, checked, did_you_mean, nearest
from grpo_cli.hyperparameters import KNOWN, HyperparameterError, Value, canonical, unknown
from grpo_cli.objective.advantage.weighed import WEIGHTS, can_be_weighed, weighed
from grpo_cli.objective.choice import NOTHING, Bound, Choice
from grpo_cli.objective.kl import NO_REFERENCE
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.signature import Parts, plain
from grpo_cli.objective.terms import BONUS
from grpo_cli.papers import UNSERVED
from grpo_cli.variants.registry import NAMES, STAGES, VARIANTS, Variant

S = TypeVar("S")


@dataclass(frozen=True)
class Plan:
    """What the flags ask for; ``objective`` completes it with what a record says.

    Attributes:
        variant: the variant's listed name.
        row: its stages.
        swapped: stage → choice that a flag put in the place of the variant's.
        flags: hyperparameters given as flags, canonical.
        batch: "input", "record", or the fields whose values records of one batch share.
        own: whether the variant's own settings win over those of records, and its advantage over
            theirs.
        asked: whether the user named the variant, so that no note names another.
        name: the variant as it was given, also with a release: ``trl/bnpo@1.9.0``.
    """

    variant: str
    row: Variant
    swapped: Mapping[str, str]
    flags: Mapping[str, Value]
    batch: str
    own: bool = False
    asked: bool = field(default=False, compare=False)
    name: str = field(default="", compare=False)
    _cache: dict[object, Objective] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __reduce__(self) -> tuple[Any, ...]:
        """Travels between processes as the names it was made of, since rows hold functions."""
        swapped, flags = dict(self.swapped), dict(self.flags)
        made = partial(plan, self.variant, stages=swapped, hyperparameters=flags, strict=False)
        return partial(made, batch=self.batch, own=self.own), ()

    @property
    def words(self) -> list[str]:
        """The words of a command line that ask for it."""
        batch = [] if self.batch == "input" else ["--batch", self.batch]
        return as_flags(self.variant, self.swapped, self.flags) + batch

    def of_one_batch(self) -> Plan:
        """The plan, for a command that answers for one batch.

        Raises:
            UsageError: where ``--batch`` names fields.
        """
        if self.batch not in ("input", "record"):
            field = self.batch.partition(",")[0]
            raise UsageError(
                f"--batch {self.batch}: this command answers for one batch; --where {field}==N "
                "chooses its records"
            )
        return self

    @property
    def values(self) -> Mapping[str, Value]:
        """The values of the variant and the flags."""
        return {**own_values(self.variant), **self.flags}

    @cached_property
    def key(self) -> Hashable:
        """What it is, to be looked up."""
        return self.variant, tuple(self.swapped.items()), tuple(self.flags.items())

    @property
    def wants_moments(self) -> bool:
        """Whether the advantage needs statistics of the whole batch."""
        return self._chosen["advantage"][1].measure is not None

    @property
    def compares_groups(self) -> bool:
        """Whether an advantage is made of the rewards of its group."""
        return "groups" in self._chosen["advantage"][1].columns

    def choice(self, stage: str) -> str:
        """The name of the choice at a stage; "" where the stage has none of its own."""
        return self._chosen[stage][0] if stage in self._chosen else ""

    def takes(self) -> set[str]:
        """The hyperparameters that the chosen stages take from flags and records."""
        wanted = {name for stage, _, name in self._wanted() if self._reads(stage, name)}
        return wanted | {"entropy_coef"}

    @cached_property
    def settings(self) -> frozenset[str]:
        """Every hyperparameter of a record that its objective, or a note on it, depends on."""
        given = STAGES["advantage"].choices["given"].hyperparameters
        return frozenset({*self.takes(), *given, *_LENGTHS, WEIGHTS, "beta"})

    @cached_property
    def uniform(self) -> frozenset[str]:
        """The hyperparameters of which a chunk's records have one value.

        Stages that compute element by element take the others as arrays.
        """
        return frozenset({WEIGHTS}) | {
            name
            for stage, (_, choice) in {**self._chosen, "entropy": ("bonus", BONUS)}.items()
            for name in {*choice.hyperparameters} - choice.levels.keys()
            if self._reads(stage, name)
        }

    @cached_property
    def _chosen(self) -> dict[str, tuple[str, Choice]]:
        """Stage → the name of its choice, and the choice: a flag's, or the row's own.

        The aggregations of the KL and the entropy alone are there where a flag or the row has one.
        """
        found = {}
        for stage in (*_STAGES, *OWN_AGGREGATES):
            bound: Bound | None = getattr(self.row, stage)
            if stage in self.swapped:
                listed = STAGES["aggregate" if stage in OWN_AGGREGATES else stage]
                found[stage] = self.swapped[stage], listed.choices[self.swapped[stage]]
            elif bound is not None:
                found[stage] = bound.name, bound.choice
        return found

    def _wanted(self) -> Iterator[tuple[str, str, str]]:
        """Stage, the name of its choice, and a hyperparameter of that; one after the other."""
        for stage, (chosen, choice) in self._chosen.items():
            weighs = stage == "advantage" and can_be_weighed(choice)
            for name in (*choice.hyperparameters, *((WEIGHTS,) if weighs else ())):
                yield stage, chosen, name

    def _reads(self, stage: str, name: str) -> bool:
        """Whether a stage takes a hyperparameter from flags and records.

        A framework's function reads some of what our choice can do; one that a flag put in the
        place of the framework's own takes everything. What several reward functions count belongs
        to the rewards.
        """
        if self.row.reads is None or stage in self.swapped or name in self.row.reads:
            return True
        return stage == "entropy" or name == WEIGHTS

    def objective(
        self,
        record: Mapping[str, Value],
        *,
        advantages_given: bool,
        reference_given: bool = True,
        varied: Mapping[str, NDArray[Any]] = NOTHING,
    ) -> Objective:
        """The objective for a record, or several: flag > record > variant, or flag > ``own``.

        Args:
            record: the record's own hyperparameters, canonical. Those that the chosen stages do
                not take are ignored, since dumps carry whole configurations.
            advantages_given: whether the record gives advantages; they win over rewards unless a
                flag asks for a computed kind.
            reference_given: whether the record has a reference. Without one, a KL penalty that
                only the variant asks for is left out (``leaves_kl_out``).
            varied: hyperparameter → [M] what each of several records gives, where they differ.

        Raises:
            InputError: when a hyperparameter that has no usual value is nowhere given.
        """
        if self.own:
            record, varied = self._without_own(record), self._without_own(varied)
            advantages_given = False
        read = tuple(sorted([one for one in record.items() if one[0] in self.settings]))
        key = read, advantages_given, reference_given
        if key not in self._cache:
            if len(self._cache) >= _MOST_OBJECTIVES:
                self._cache.clear()
            made = self._build(record, advantages_given=advantages_given)
            if not reference_given and self.leaves_kl_out(record):
                made = replace(made, kl=NO_REFERENCE)
            self._cache[key] = made
        return self._varied(self._cache[key], varied) if varied else self._cache[key]

    def _without_own(self, settings: Mapping[str, S]) -> dict[str, S]:
        """The settings of records of which the variant has none; lengths are those of the run."""
        own = own_values(self.variant).keys() - {*_LENGTHS}
        return {name: value for name, value in settings.items() if name not in own}

    def _varied(self, made: Objective, varied: Mapping[str, NDArray[Any]]) -> Objective:
        given = varied.keys() - self.flags.keys()
        return made.vary(
            {
                stage: {name: varied[name] for name in taken if self._reads(stage, name)}
                for stage, bound in made.stages.items()
                if (taken := given & bound.values.keys())
            }
        )

    def leaves_kl_out(self, record: Mapping[str, Value] | None = None) -> bool:
        """Whether the objective of a record without a reference has its KL left out.

        That is so where the KL is a penalty in the loss, the variant's own, and neither a flag nor
        the record gives β. A KL in the reward, or one that a flag asks for, needs the reference.
        """
        kl, asked = self.row.kl, {*self.swapped, *self.flags, *(record or ())}
        own = kl.choice.penalizes_reference and bool(kl.values.get("beta"))
        return own and not asked & {"kl", "beta"}

    def bound(
        self, stage: str, record: Mapping[str, Value], *, advantages_given: bool = False
    ) -> Bound:
        """One of the objective's six stages alone, as ``objective`` has it.

        Raises:
            InputError: when a hyperparameter of it that has no usual value is nowhere given.
        """
        return self._stage(stage, {**record, **self.flags}, advantages_given=advantages_given)

    def _stage(self, stage: str, given: Mapping[str, Value], *, advantages_given: bool) -> Bound:
        """A stage with what flags and the record give."""
        name, choice = self._chosen[stage]
        if stage == "advantage":
            if advantages_given and stage not in self.swapped:
                name, choice = "given", STAGES["advantage"].choices["given"]
            if WEIGHTS in given and can_be_weighed(choice) and self._reads(stage, WEIGHTS):
                choice = weighed(choice)
        return self._bind(stage, name, choice, given)

    def _build(self, record: Mapping[str, Value], *, advantages_given: bool) -> Objective:
        given = {**record, **self.flags}
        bound: dict[str, Bound | None] = {
            stage: self._stage(stage, given, advantages_given=advantages_given) for stage in _STAGES
        }
        has_entropy = self.row.entropy is not None or "entropy_coef" in self.flags
        for stage in OWN_AGGREGATES:
            if stage in self._chosen and (stage == "kl_aggregate" or has_entropy):
                bound[stage] = self._bind(stage, *self._chosen[stage], given)
        if has_entropy:
            bound["entropy"] = self._bind("entropy", "bonus", BONUS, given)
        return Objective(name=self.variant, batch=self.batch, **bound)  # type: ignore[arg-type]

    def _bind(self, stage: str, name: str, choice: Choice, given: Mapping[str, Value]) -> Bound:
        """The choice with what flags and records give; what they do not give is usual.

        A framework's choice that a flag swapped in brings its own usual values; a neutral one keeps
        what the variant has.
        """
        own = "/" in name and name in self.swapped.values()
        row = own_values(self.variant)
        usual = (choice.defaults, row) if own else (row, choice.defaults)
        values: dict[str, Value] = {}
        for wanted in choice.hyperparameters:
            asked = wanted in given and self._reads(stage, wanted)
            source = given if asked else usual[0] if wanted in usual[0] else usual[1]
            if wanted not in source:
                raise InputError(missing(wanted, f"{name} needs it"), path=wanted, record=0)
            values[wanted] = source[wanted]
        key = id(choice), name, *values.values()
        if key not in _KNOWN:
            if len(_KNOWN) > _MOST_BOUND:
                _KNOWN.clear()
            _KNOWN[key] = Bound(name, choice, values)
        return _KNOWN[key]

    def assumed(self, record: Mapping[str, Value]) -> list[str]:
        """The constant lengths that neither a flag nor the record gives, in words.

        J is divided by them, each run sets its own, and nothing in the data shows which.
        """
        given = {**record, **self.flags}
        values = self.bound("aggregate", record).values
        lengths = {name: values.get(name) for name in _LENGTHS if name not in given}
        return [
            f"{name}: {missing(name, f'{self.variant} uses its default of {plain(value)}')}"
            for name, value in lengths.items()
            if value is not None
        ]

    def unused_beta(self, record: Mapping[str, Value]) -> list[str]:
        """That the record gives a β to an objective without a KL, where it does."""
        if not record.get("beta") or "beta" in self.takes():
            return []
        return [
            f"the records' beta {plain(record['beta'])} is not used: {self.variant} has no KL "
            "(--kl k3 adds one)"
        ]

    def replaced(
        self, ran: Parts, stages: Collection[str] = ("surrogate",)
    ) -> dict[str, tuple[Value, Value]]:
        """The values that records put in the place of the variant's own: own and given.

        Nothing else in the numbers shows GSPO's ε of 0.0003 replaced by a trainer's 0.2.

        Args:
            ran: the pieces of the signature of what was evaluated.
            stages: those whose values are compared.
        """
        used = {part.key: dict(part.values) for part in ran}
        bound = {stage: getattr(self.row, stage) for stage in stages}
        return {
            name: (value, used[STAGES[stage].key][name])
            for stage, own in bound.items()
            if self.swapped.get(stage, own.name) == own.name
            for name, value in own.values.items()
            if used.get(STAGES[stage].key, {}).get(name, value) != value and name not in self.flags
        }

    @property
    def release(self) -> str | None:
        """The note on a release that was asked for and has no row of its own."""
        _, _, version = self.name.partition("@")
        if not version or self.name == self.variant or self.row.version.endswith(f" {version}"):
            return None
        return (
            f"{self.name} is evaluated as {self.variant} ({self.row.version}): no change between "
            "these releases is known (grpo variants --changes)"
        )

    @property
    def unusual_flags(self) -> Iterator[str]:
        """The notes for values of flags that hardly anybody means."""
        for stage in ("surrogate", "kl"):
            name, choice = self._chosen[stage]
            known = {one for one in _UNUSUAL if one in choice.hyperparameters}
            given = {one: self.flags[one] for one in known & self.flags.keys()}
            yield from unusual_values(self.variant, Bound(name, choice, given))


def missing(name: str, effect: str) -> str:
    """What to say of a hyperparameter that nobody gives; ``effect`` is what follows from that."""
    return f"missing; {effect}: give -p {name}=VALUE, or put it in the record's hyperparameters"


_LENGTHS = ("max_completion_length", "response_length")
_STAGES = tuple(STAGES)
OWN_AGGREGATES = ("kl_aggregate", "entropy_aggregate")
"""The aggregations that a row, or a flag, may keep for the KL and the entropy alone."""


def plan(
    variant: str,
    *,
    stages: Mapping[str, str] | None = None,
    hyperparameters: Mapping[str, object] | None = None,
    batch: str = "input",
    own: bool = False,
    strict: bool = True,
) -> Plan:
    """Checks names and values against the tables.

    Args:
        variant: a variant's name or alias.
        stages: stage → choice (or a framework's name for it) to put in the variant's place;
            ``kl_aggregate`` and ``entropy_aggregate`` are those of these two terms alone.
        hyperparameters: name → value, as given by flags; they win over a record's.
        batch: "input" (all records are one batch), "record" (each is one), or fields of the
            records, as "step" or "step,rank": those with the same values are one batch.
        own: whether the variant's own settings win over those of records.
        strict: whether the variant itself has to take each hyperparameter; ``match`` also tries
            others, which may.

    Raises:
        UsageError: for an unknown name (the near match is named), a value out of range, or
            a hyperparameter that the chosen stages do not take.
    """
    if (missing := UNSERVED.get(variant.lower().rpartition("/")[2])) is not None:
        raise UsageError(f"{variant} cannot be evaluated: {missing}")
    if variant == "?":
        raise Listing({name: row.title for name, row in VARIANTS.items()})
    variant = variant if variant in NAMES else variant.lower()  # GSPO, as papers write it
    if variant not in NAMES:
        raise UsageError(_no_variant(variant))
    batch = ",".join(part.strip() for part in batch.split(","))
    if batch == "?":
        raise Listing(_BATCHES)
    if not all(part and not part.isdecimal() for part in batch.split(",")):
        raise UsageError(f"--batch: expected input, record or FIELD[,FIELD], got {batch!r}")
    name = NAMES[variant]
    swapped = dict(checked(_stage_choice, (stages or {}).items()))
    given = hyperparameters or {}

    def check(wanted: str) -> None:
        if wanted not in KNOWN:
            if (row := f"{_CHOOSES.get(wanted)}/{given[wanted]}") in NAMES:
                raise UsageError(f"{wanted} chooses a variant: -v {row}")
            takes = Plan(name, VARIANTS[name], swapped, {}, batch).takes()
            read = f"{name} reads {', '.join(sorted(takes))}"
            raise UsageError(f"{wanted}: {unknown(wanted, read)}")

    checked(check, given)
    try:
        flags = canonical(given)
    except HyperparameterError as error:
        raise UsageError(str(error)) from None
    made = Plan(name, VARIANTS[name], swapped, flags, batch, own, name=variant)
    if strict:
        _check_taken(made)
    return made


_CHOOSES = {"loss_type": "trl", "policy_loss": "verl", "loss_mode": "verl"}
"""Settings that choose a framework's variant → the framework."""
_BATCHES = {
    "input": "all records are one batch (the default)",
    "record": "each record is a batch",
    "FIELD[,FIELD]": "records that share these fields are one, as step or step,rank",
}
_FLAGS = {"epsilon_low": "--epsilon-low", "epsilon_high": "--epsilon-high", "beta": "--beta"}


def as_flags(
    variant: str | None, stages: Mapping[str, str], hyperparameters: Mapping[str, object]
) -> list[str]:
    """The words of a command line that ask for these; without -v where there is no variant."""
    words = [] if variant is None else ["-v", variant]
    for stage, choice in stages.items():
        words += [f"--{stage.replace('_', '-')}", choice]
    for name, value in hyperparameters.items():
        flag = None if value is None else _FLAGS.get(name)
        if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
            value = int(value)
        given = f"{name}={'null' if value is None else value}"
        words += ["-p", given] if flag is None else [flag, str(value)]
    return words


_UNUSUAL = {
    "epsilon_low": (
        1.0,
        "the lower bound of the ratio, 1 − epsilon_low, is {low:g}, so nothing is clipped below",
    ),
    "epsilon_high": (10.0, "ratios up to {high:g} are not clipped above"),
    "beta": (10.0, "trainers use 0.001 to 0.1"),
}
"""Hyperparameter → from which value on hardly anybody means it, and what it does."""


def unusual_values(variant: str, *bounds: Bound) -> Iterator[str]:
    """The note for each value that hardly anybody means, with the share that a percentage is.

    Trainers are given an epsilon_low of 1, 10 or 1e9 to switch the lower clip off. A variant
    whose own window has no lower bound (CISPO's) needs no note.
    """
    own = "epsilon_low", VARIANTS[variant].surrogate.values.get("epsilon_low")
    for bound, (name, (least, effect)) in product(bounds, _UNUSUAL.items()):
        values = bound.by_record(name)
        windowless = name == "epsilon_low" and bound.choice.window is None
        if windowless or values is None or np.max(values) < least:
            continue
        for value in dict.fromkeys(np.atleast_1d(values).tolist()):
            if value >= least and (name, value) != own:
                share = f"; did you mean {value / 100.0:g}?" if 10.0 < value < 100.0 else ""
                words = effect.format(low=1.0 - value, high=1.0 + value)
                yield f"{name} is {value:g}: {words}{share}"


_KNOWN: dict[object, Bound] = {}
"""Choices by their values: a search makes thousands of plans of some hundreds."""
_MOST_BOUND = 1 << 14
_MOST_OBJECTIVES = 256
"""Kept of a plan: each record may have settings of its own."""


@cache
def own_values(variant: str) -> Mapping[str, Value]:
    """All the values that a variant's row has."""
    row = VARIANTS[variant]
    bound = [getattr(row, stage) for stage in (*_STAGES, *OWN_AGGREGATES, "entropy")]
    return {name: value for one in bound if one for name, value in one.values.items()}


def _stage_choice(pair: tuple[str, str]) -> tuple[str, str]:
    """A stage and the canonical name of the choice wanted for it."""
    stage, wanted = pair
    if stage not in STAGES and stage not in OWN_AGGREGATES:
        raise UsageError(
            f"unknown stage {stage!r}{did_you_mean(stage, [*STAGES, *OWN_AGGREGATES], 0.5)}"
        )
    listed = "aggregate" if stage in OWN_AGGREGATES else stage
    known = STAGES[listed]
    if wanted == "?":
        raise Listing({name: row.summary for name, row in known.choices.items()})
    if wanted in known.choices:  # which reads no framework's room but the choice's own
        return pair
    wanted = wanted if wanted in known.aliases else wanted.lower()
    name = known.aliases.get(wanted, wanted)
    if name not in known.choices:
        near = did_you_mean(wanted, {*known.choices, *known.aliases} - {stage}, 0.5)
        neutral = ", ".join(name for name in known.choices if "/" not in name)
        expected = near or f"; expected one of {neutral}, or a framework's"
        raise UsageError(f"unknown {stage} {wanted!r}{expected} (grpo variants --stage {listed})")
    return stage, name


def _check_taken(made: Plan) -> None:
    takes = made.takes()
    wanted = {name: (stage, choice) for stage, choice, name in made._wanted()}
    stages = " with these stages" if made.swapped else ""
    listed = ", ".join(sorted(takes)) or "none"
    unused: dict[str, list[str]] = {}
    for name in (one for one in made.flags if one not in takes):
        kl = "; --kl k3 would add a KL term" if name in ("beta", "kl_weight") else ""
        reason = f"{made.variant}{stages} does not use {{it}}; it uses {listed}{kl}"
        if name in wanted:  # only the row keeps flags from it
            stage, choice = wanted[name]
            reason = (
                f"{made.variant} ignores {{it}}, like {made.variant.partition('/')[0]}'s own "
                f"function; add --{stage.replace('_', '-')} {choice} to apply {{it}}"
            )
        unused.setdefault(reason, []).append(name)

    def refuse(reason: str) -> None:
        names = unused[reason]
        it = "them" if names[1:] else "it"
        raise UsageError(f"{' and '.join(names)}: {reason.format(it=it)}")

    checked(refuse, unused)


def _no_variant(name: str) -> str:
    """What to say of a name that no variant has; a stage or a framework may have it."""
    row, _, version = name.partition("@")
    if version and row in NAMES and (until := VARIANTS[NAMES[row]].until):
        return f"{name}: {until} was the last release with {row}"
    for place, stage in STAGES.items():
        choice = stage.aliases.get(name, name)
        if choice in stage.choices:
            rows = [
                row
                for row, variant in VARIANTS.items()
                if "/" not in row and getattr(getattr(variant, place), "name", "") == choice
            ]
            some = f" ({', '.join(rows[:3])} use it)" if rows else ""
            known = name if choice == name else f"{name} = {choice}"
            return (
                f"{name!r} is not a variant but a choice of --{place}, {known}{some}: "
                f"write -v {next(iter(rows), 'grpo')} or --{place} {name}"
            )
    lists = "(grpo variants lists all)"
    if of_framework := [one for one in NAMES if one.startswith(f"{name}/")]:
        some = ", ".join(of_framework[:3])
        return f"{name!r} is a framework: name one of its variants, as {some} {lists}"
    best = nearest(name, NAMES, cutoff=0.5 if len(name) > 3 else 0.8)
    close = [best] if sorted(best) == sorted(name) else _as_near(name, best)
    near = f"; did you mean {' or '.join(close)}?" if best else ""
    return f"unknown variant {name!r}{near} {lists}"


def _as_near(name: str, best: str) -> list[str]:
    """The variants that are as near to a name as the nearest."""
    near = get_close_matches(name, NAMES, n=3, cutoff=0.5)
    ratio = SequenceMatcher(None, name, best).ratio()
    alike = [one for one in near if SequenceMatcher(None, name, one).ratio() == ratio]
    return list({NAMES[one]: one for one in reversed(alike)}.values())[::-1]  # one name of a row
