"""What ``--json`` prints of each command, as frozen dataclasses.

A field has its name in JSON, but for ``global_``, since ``global`` is a word of Python's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Self, get_args, get_type_hints

from grpo_cli.api.html import page, table

Json = Any


class Answer:
    """The base of all answers."""

    @classmethod
    def from_document(cls, document: Mapping[str, Json]) -> Self:
        """Makes an answer of what ``--json`` prints."""
        named = {_spelled(name): value for name, value in document.items()}
        hints = get_type_hints(cls)
        return cls(**{name: _made(hint, named[name]) for name, hint in hints.items()})

    def document(self) -> dict[str, Json]:
        """The same as ``--json`` prints it."""
        assert is_dataclass(self)
        return {f.name.rstrip("_"): _plain(getattr(self, f.name)) for f in fields(self)}

    def _repr_html_(self) -> str:
        """What a notebook shows: what there are several of as tables, the rest below."""
        named = self.document()
        rows = {name: value for name, value in named.items() if _is_rows(value)}
        rest = [f"{name}: {value}" for name, value in named.items() if name not in rows and value]
        tables = [table([*few[0]], ([*row.values()] for row in few)) for few in rows.values()]
        return page(tables, rest)


def _is_rows(value: Json) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _spelled(name: str) -> str:
    return "global_" if name == "global" else name


def _made(hint: Any, value: Json) -> Json:
    kinds = [kind for kind in (hint, *get_args(hint)) if isinstance(kind, type)]
    answer = next((kind for kind in kinds if issubclass(kind, Answer)), None)
    if isinstance(value, list | tuple):
        return tuple(value if answer is None else map(answer.from_document, value))
    return value if answer is None or value is None else answer.from_document(value)


def _plain(value: Json) -> Json:
    if isinstance(value, Answer):
        return value.document()
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value


# ---- compare -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ComparedVariant(Answer):
    """A variant's line: totals, and how its gradient lies to the first one's."""

    variant: str
    signature: str
    objective: float
    loss: float
    policy: float
    kl: float | None
    clip_fraction: float | None
    clip_fraction_low: float | None
    clip_fraction_high: float | None
    ratio_mean: float | None
    gradient_norm: float | None
    cosine: float | None
    longest_quarter: float | None
    longest_quarter_tokens: float | None
    positive_advantage: float | None
    negative_advantage: float | None
    denominator: float | None
    denominator_of: str


@dataclass(frozen=True)
class FamilyDifference(Answer):
    """Which values tell the first row of a family from others, and at which stages choices do."""

    variants: Sequence[str]
    hyperparameters: Mapping[str, Sequence[Any]]
    stages: Sequence[str]


@dataclass(frozen=True)
class Unserved(Answer):
    """A variant that the data cannot serve, and why."""

    variant: str
    reason: str
    missing: str | None
    place: str | None
    advice: str | None


@dataclass(frozen=True)
class Replaced(Answer):
    """A variant whose own hyperparameters the records replace: the own value, and that used."""

    variant: str
    hyperparameters: Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Compared(Answer):
    """What ``compare`` returns."""

    variants: Sequence[ComparedVariant]
    differences: Sequence[FamilyDifference]
    replaced: Sequence[Replaced]
    skipped: Sequence[Unserved]
    records: int
    groups: int
    responses: int
    tokens: int


# ---- match -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Convention(Answer):
    """A convention: what it is, what it gives, and the command that gives that."""

    signature: str
    value: float
    difference: float
    command: str
    variants: Sequence[str]
    factor: float
    factor_meaning: str | None
    sign_flipped: bool
    same: Sequence[str]
    bits: float
    hits_expected: float | None
    would_need: Mapping[str, float]
    any_from: Mapping[str, float]


@dataclass(frozen=True)
class Released(Answer):
    """What the rows give as they stand: the nearest, and the one that the records name."""

    tried: int
    nearest: Convention | None
    recorded: Convention | None


@dataclass(frozen=True)
class Matched(Answer):
    """What ``match`` returns."""

    target: float
    target_of: str
    tolerance: float
    rtol: float | None
    targets: Mapping[str, float]
    questions: Sequence[int]
    matches: Sequence[Convention]
    ambiguous: bool
    match_count: int
    chance_hits: float
    by_chance: bool
    reproduced: bool
    tell_apart: Sequence[str]
    nearest: Sequence[Convention]
    tried: int
    released: Released
    not_tried: Mapping[str, str]


# ---- verify ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference(Answer):
    """Where a record first differs from what it expects, and why."""

    key: str
    stage: str
    response: int | None
    token: int | None
    expected: float
    got: float
    differing: int
    of: int
    cause: str | None
    causes: Sequence[str]
    stages: Sequence[str]
    pattern: str | None


@dataclass(frozen=True)
class MetricDifference(Answer):
    """A metric that differs, which decides nothing beside a loss."""

    key: str
    expected: float
    got: float


@dataclass(frozen=True)
class Verdict(Answer):
    """What became of a record that expects something."""

    id: str | int | float
    source: str
    line: int | None
    agrees: bool
    variant: str
    signature: str
    compared: Sequence[str]
    ignored: Sequence[str]
    first: Difference | None
    also: Sequence[str]
    metrics: Sequence[MetricDifference]
    rounded: Mapping[str, str]


@dataclass(frozen=True)
class Verified(Answer):
    """What ``verify`` returns."""

    agrees: bool
    rtol: float
    atol: float | None
    verified: int
    differing: int
    without_expected: int
    metrics_differ: Mapping[str, int]
    undefined: int
    records: Sequence[Verdict]


# ---- check -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding(Answer):
    """One thing that is wrong, or worth knowing."""

    code: str
    severity: str
    record: str | int | float
    response: int | None
    token: int | None
    source: str
    line: int | None
    message: str
    evidence: Mapping[str, Any]
    advice: str


@dataclass(frozen=True)
class Denominator(Answer):
    """Whether what teaches nothing counts in the denominator of a loss that records name."""

    variant: str
    denominator: str
    empty_responses: int
    empty_responses_count: bool
    dead_groups: int
    dead_groups_count: bool
    records: int


@dataclass(frozen=True)
class NotChecked(Answer):
    """What could not be looked at, for want of what, and in how many records."""

    about: str
    codes: Sequence[str]
    missing: Sequence[Sequence[str]]
    partly: str | None
    records: int


@dataclass(frozen=True)
class Checked(Answer):
    """What ``check`` returns."""

    ok: bool
    findings: Sequence[Finding]
    more: Mapping[str, int]
    counts: Mapping[str, int]
    severities: Mapping[str, int]
    records: int
    responses: int
    tokens: int
    denominators: Sequence[Denominator]
    not_checked: Sequence[NotChecked]


# ---- split -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SplitAggregate(Answer):
    """What cutting the batch does under one aggregation."""

    aggregate: str
    own: bool
    reported: float
    global_: float
    invariant: bool | None
    invariant_by: str | None
    factor: float | None
    norm_factor: float | None
    gradient_difference: float | None


@dataclass(frozen=True)
class UnservedAggregate(Answer):
    """An aggregation that the data cannot serve, and why."""

    aggregate: str
    reason: str


@dataclass(frozen=True)
class SplitUp(Answer):
    """What ``split`` returns."""

    variant: str
    splits: Sequence[SplitAggregate]
    skipped: Sequence[UnservedAggregate]
    responses: int
    micro_batch: int
    micro_batches: int
    accumulate: int
    ranks: int
    steps: int
    cuts_nothing: bool
