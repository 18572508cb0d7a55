"""A choice at a stage: a pure function, its table, and the function with its values bound.

``@choice("surrogate", "cispo", epsilon_low=1.0, epsilon_high=4.0)`` enters a function into the
table of its stage; the numbers are what its hyperparameters are where a flag swaps it in.
``Inputs`` says what the columns are, in nats; a function describes those alone of which it takes
something special.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.hyperparameters import HYPERPARAMETERS, HyperparameterError, Value
from grpo_cli.objective.signature import MIXED

Function = TypeVar("Function", bound=Callable[..., Any])

ByToken = float | F64
"""A hyperparameter that a stage function takes as a number, or as one for each token [N]."""
ByResponse = float | F64
"""A hyperparameter that a stage function takes as a number, or as one for each response [R]."""
_LEVELS = ("ByToken", "ByResponse")
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Parameters(NamedTuple):
    """What a stage function takes.

    Attributes:
        columns: its positional parameters, which name what it reads (``Inputs``).
        optional: those of them that may be None.
        hyperparameters: its keyword-only parameters.
        nullable: those of them that may be None.
        levels: "ByToken" or "ByResponse" for those of them that may differ by record; records that
            differ in another are evaluated separately.
    """

    columns: tuple[str, ...]
    optional: frozenset[str] = frozenset()
    hyperparameters: tuple[str, ...] = ()
    nullable: frozenset[str] = frozenset()
    levels: Mapping[str, str] = NOTHING

    def __or__(self, other: Parameters) -> Parameters:
        """Both, each once; a column that one of them needs is needed."""
        needed = {*self.columns} - self.optional | {*other.columns} - other.optional
        both = {**self.levels, **other.levels}
        return Parameters(
            tuple(dict.fromkeys((*self.columns, *other.columns))),
            (self.optional | other.optional) - needed,
            tuple(dict.fromkeys((*self.hyperparameters, *other.hyperparameters))),
            self.nullable | other.nullable,
            {name: one for name, one in both.items() if self.agrees(name, one, other)},
        )

    def agrees(self, name: str, level: str, other: Parameters) -> bool:
        """Whether each of two that takes a hyperparameter takes it by that level."""
        takers = [one for one in (self, other) if name in one.hyperparameters]
        return all(one.levels.get(name) == level for one in takers)


@lru_cache(maxsize=1024)
def parameters(function: Callable[..., Any]) -> Parameters:
    """What a function takes by its signature, or by ``parameters`` where it is a ``Composed``."""
    function = inspect.unwrap(function)
    if isinstance(function, Composed):
        return function.parameters
    columns, hyperparameters, optional, nullable = [], [], set(), set()
    levels: dict[str, str] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            kind = str(parameter.annotation)
            hyperparameters.append(name)
            nullable |= {name} if "None" in kind else set()
            levels.update((name, level) for level in _LEVELS if kind.startswith(level))
        else:
            columns.append(name)
            optional |= set() if parameter.default is parameter.empty else {name}
    return Parameters(
        tuple(columns), frozenset(optional), tuple(hyperparameters), frozenset(nullable), levels
    )


Usual = Mapping[str, Any]
"""Usual values of hyperparameters, where several choices share them."""

Arguments = Mapping[str, Any]
"""Columns, or hyperparameters, by name."""


class Composed:
    """A stage function made of others.

    Args:
        takes: what it takes; its columns come in that order.
        run: gets the columns and the hyperparameters by name.
        doc: its docstring.
        returns: the name of the type that it returns.
        measure: as ``Choice`` has it.
    """

    def __init__(
        self,
        takes: Parameters,
        run: Callable[[Arguments, Arguments], Any],
        doc: str | None,
        returns: str = "",
        measure: Callable[..., Any] | None = None,
    ) -> None:
        self.parameters = takes
        self.measure = measure
        self._run = run
        self.__doc__ = doc
        self.__annotations__ = {"return": returns}

    def __call__(self, *columns: Any, **values: Any) -> Any:
        """Takes the columns in the order of ``parameters``."""
        return self._run(dict(zip(self.parameters.columns, columns, strict=True)), values)


def call(function: Callable[..., Any], columns: Arguments, values: Arguments) -> Any:
    """Calls a stage function with those of the columns and values that it takes."""
    takes = parameters(function)
    arguments = [columns[name] for name in takes.columns]
    return function(*arguments, **{name: values[name] for name in takes.hyperparameters})


def reading(function: Callable[..., Any], doc: str, **instead: str) -> Composed:
    """A stage function that reads other columns in the place of some of its own.

    Args:
        function: such a function.
        instead: its column → the one that is read, as ``log_probs_old="log_probs_rollout"``.
    """
    own = parameters(function)
    takes = own._replace(
        columns=tuple(instead.get(name, name) for name in own.columns),
        optional=frozenset(instead.get(name, name) for name in own.optional),
        levels=NOTHING if "responses" in instead else own.levels,
    )

    def run(columns: Arguments, values: Arguments) -> Any:
        return function(*columns.values(), **values)

    return Composed(takes, run, doc, function.__annotations__["return"])


def holding(function: Callable[..., Any], doc: str | None, **held: Any) -> Composed:
    """A stage function some of whose columns or hyperparameters have values that nothing changes.

    Args:
        function: such a function.
        held: its columns, or hyperparameters, and their values.
    """
    own = parameters(function)
    takes = Parameters(
        tuple(name for name in own.columns if name not in held),
        own.optional - held.keys(),
        tuple(name for name in own.hyperparameters if name not in held),
        own.nullable - held.keys(),
        {name: level for name, level in own.levels.items() if name not in held},
    )

    def run(columns: Arguments, values: Arguments) -> Any:
        return call(function, {**columns, **held}, {**values, **held})

    return Composed(takes, run, doc, function.__annotations__["return"])


@dataclass(frozen=True)
class Choice:
    """A stage function, and the values its hyperparameters have when a flag swaps it in.

    The function has no defaults of its own, but for ``= None`` on a column that the records may
    lack.

    Args:
        function: the pure function.
        defaults: hyperparameter → value, for those that have a usual value; one that has none
            must be given by a flag, the record or the variant.
        measure: for a stage that needs statistics of the whole batch: a function of columns that
            returns the sample (values [S], multiplicities [S], record of each [S]) whose moments
            the function then reads as the column ``moments``. Its keyword-only parameters are
            among the function's.
        absent: whether it means no stage at all: no KL, no correction.
        given: whether it takes what the record gives, advantages or ratios, as it is.
        in_reward: for a KL: whether it is taken off the reward, not off the objective.
        unweighted: for a KL: whether a correction's weights leave it alone, but for tokens that it
            drops.
        per_response: for a ratio: whether a response has one; trainers log its mean over responses.
        window: for a surrogate that holds the ratio within [1 − epsilon_low, 1 + epsilon_high]:
            "product" where the smaller of both products counts (PPO's clip), "weight" where the
            bounded ratio is a constant weight (CISPO); None for another kind of bound.
        scales: for a surrogate: whether it is |A| times its value for A = 1 or −1 where a response
            has one advantage. BAPO's is not: what it clips depends on the other responses' signs.
        total: for an aggregation: whether it adds token terms up instead of averaging them.
        stops_gradient: where the slope leaves out a part of the derivative on purpose: which.
    """

    function: Callable[..., Any]
    defaults: Mapping[str, Value] = field(default_factory=dict)
    measure: Callable[..., Any] | None = None
    absent: bool = False
    given: bool = False
    in_reward: bool = False
    unweighted: bool = False
    per_response: bool = False
    window: Literal["product", "weight"] | None = None
    scales: bool = True
    total: bool = False
    stops_gradient: str = ""

    @cached_property
    def parameters(self) -> Parameters:
        """What the function takes."""
        return parameters(self.function)

    @cached_property
    def measured(self) -> Parameters:
        """What ``measure`` takes; nothing where there is none."""
        return parameters(self.measure or (lambda: None))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the function reads."""
        return self.parameters.columns

    @property
    def optional(self) -> frozenset[str]:
        """The columns that the function can do without; it gets None for them then."""
        return self.parameters.optional

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """The hyperparameters that the function takes."""
        return self.parameters.hyperparameters

    @cached_property
    def levels(self) -> Mapping[str, str]:
        """The hyperparameters that may differ by record → "ByToken" or "ByResponse"."""
        own, measured = self.parameters, self.measured
        return {
            name: level for name, level in own.levels.items() if own.agrees(name, level, measured)
        }

    @property
    def penalizes_reference(self) -> bool:
        """For a KL: whether it is a penalty in the loss on the distance to the reference."""
        needed = {*self.columns} - self.optional
        return not self.in_reward and bool(needed & {"log_ratio_ref", "log_probs_ref"})

    @property
    def reads_turns(self) -> bool:
        """Whether turns or trajectories change what it computes."""
        return not _OF_TURNS.isdisjoint(self.columns)

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0].replace("``", "")


_OF_TURNS = frozenset(
    {"turns", "turn_order", "turn_rewards", "turn_scores", "trajectories", "states"}
)


class Table(NamedTuple):
    """The choices of a stage by name, and other names for them."""

    choices: dict[str, Choice]
    aliases: dict[str, str]


_TABLES: dict[tuple[str, str], Table] = {}


def table(stage: str, framework: str = "") -> Table:
    """The choices registered at a stage: a framework's, or those that belong to none."""
    return _TABLES.setdefault((stage, framework), Table({}, {}))


def place_of(choice: Choice) -> tuple[str, str] | None:
    """The stage and the name under which a choice is registered; None where it is not."""
    places = ((stage, name, one) for (stage, _), t in _TABLES.items() for name, one in t[0].items())
    return next(((stage, name) for stage, name, one in places if one is choice), None)


def choice(
    stage: str,
    name: str,
    *aliases: str,
    measure: Callable[..., Any] | None = None,
    **words: Any,
) -> Callable[[Function], Function]:
    """Enters a function into the table of its stage, in the order of such calls.

    Args:
        stage: which of the six.
        name: what rows and flags call it; the part before a slash is its framework.
        aliases: other names, as frameworks have them.
        measure: as ``Choice`` has it.
        words: attributes of ``Choice`` as it has them (``total``, ``stops_gradient``, …), and the
            values of its hyperparameters where a flag swaps it in.
    """
    facts = {name: words.pop(name) for name in _FACTS & words.keys()}

    def register(function: Function) -> Function:
        measured = measure or getattr(function, "measure", None)
        listed = table(stage, name.partition("/")[0] if "/" in name else "")
        listed.choices[name] = Choice(function, words, measured, **facts)
        listed.aliases.update(dict.fromkeys(aliases, name))
        return function

    return register


_FACTS = {one.name for one in fields(Choice)} - {"function", "defaults", "measure"}


def union(functions: Iterable[Callable[..., Any]]) -> Parameters:
    """What several functions take together, each name once."""
    found = Parameters(())
    for function in functions:
        found |= parameters(function)
    return found


@dataclass(frozen=True)
class Bound:
    """A choice with values for its hyperparameters.

    One that has no usual value may be missing in a row of a table; a flag or the record must give
    it then.

    Attributes:
        name: what rows and flags call the choice.
        values: those of the first record, where records differ.
        varied: hyperparameter → [M] the value of each record, where records differ.

    Raises:
        TypeError: when a hyperparameter is not taken; a row of a table is wrong then.
        HyperparameterError: for a value that is not allowed, or null where one is needed.
    """

    name: str
    choice: Choice
    values: Mapping[str, Value]
    varied: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def by_record(self, name: str) -> Any:
        """A hyperparameter's value; [M] those of the records where they differ."""
        return self.varied.get(name, self.values.get(name))

    def shared_by(self, records: slice) -> Mapping[str, Value]:
        """The values that some of the records have in common; ``MIXED`` where they differ."""
        if not self.varied:
            return self.values
        own = {name: column[records].tolist() for name, column in self.varied.items()}
        return {
            **self.values,
            **{name: one[0] if len({*one}) == 1 else MIXED for name, one in own.items()},
        }

    @cached_property
    def key(self) -> tuple[str, tuple[tuple[str, Value], ...]]:
        """What it is, to be looked up."""
        return self.name, tuple(self.values.items())

    def __post_init__(self) -> None:
        takes = self.choice.parameters
        if not set(self.values) <= set(takes.hyperparameters):
            wanted = sorted(takes.hyperparameters)
            raise TypeError(f"{self.name} takes {wanted}, got {sorted(self.values)}")
        given = [name for name in takes.hyperparameters if name in self.values]
        checked = {name: HYPERPARAMETERS[name].check(name, self.values[name]) for name in given}
        for name, value in checked.items():
            if value is None and name not in takes.nullable:
                raise HyperparameterError(name, f"{self.name} needs a value here, got null")
        object.__setattr__(self, "values", checked)
