"""A case: what goes into a loss, and the optimiser step that it is part of; all the cases."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from types import SimpleNamespace
from typing import Any, NamedTuple

VERSION = "v1"
FILES = ("advantage", "clip", "kl", "aggregate", "correction", "metrics", "invariance")

TOKEN_COLUMNS = (
    *("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout"),
    *("entropies", "mask"),
)
"""One list per response, one number per token."""

RESPONSE_COLUMNS = ("advantages", "rewards", "group_ids")
"""One entry per response."""


class Tolerance(NamedTuple):
    """A number passes when |found − expected| <= absolute + relative·|expected|."""

    relative: float
    absolute: float


@dataclass(frozen=True)
class Step:
    """What an optimiser step spans: the micro-batches of all ranks.

    Attributes:
        tokens: those that the mask keeps.
        responses: all of them, also those that the mask leaves nothing of.
        groups: prompts.
        ranks: data-parallel processes; their gradients are averaged.
        micro_batches: how many each rank accumulates; their gradients are added.
    """

    tokens: int
    responses: int
    groups: int
    ranks: int
    micro_batches: int


@dataclass(frozen=True)
class Case:
    """One vector, or the micro-batch of one.

    Attributes:
        id: ``file/what-it-shows``.
        comment: what it shows, in a sentence.
        flags: the mistakes of the catalogue that it is there for.
        choices: stage → the choice that defines the number (``{"surrogate": "clip", …}``).
        same_under: stage → further choices that give the same number on this input.
        hyperparameters: name → value.
        input: the columns, ragged; a number that is not finite is a float too.
        result: ``required``, ``convention`` or ``invalid``.
        expected: ``loss``, ``gradient`` (∂loss/∂log_probs_new), ``advantages``, ``metrics``:
            those that the case is about. Empty unless the result is ``required``.
        conventions: signature → expected, where implementations differ and each may.
        topic: what the conventions differ in, or what an invalid case has to be refused for.
        split: rank → micro-batch → the responses in it.
        tolerances: dtype → how near a number has to be; a dtype that is not there is too coarse.
        executed: the released frameworks that were run on it and returned it.
        step: what the whole step spans.
    """

    id: str
    comment: str
    flags: tuple[str, ...]
    choices: Mapping[str, str]
    same_under: Mapping[str, Sequence[str]]
    hyperparameters: Mapping[str, Any]
    input: Mapping[str, Any]
    result: str
    expected: Mapping[str, Any]
    conventions: Mapping[str, Mapping[str, Any]]
    topic: str
    split: Sequence[Sequence[Sequence[int]]]
    tolerances: Mapping[str, Tolerance]
    executed: tuple[str, ...]
    step: Step

    @property
    def file(self) -> str:
        """The file that the case is in, without its ending."""
        return self.id.partition("/")[0]

    def arrays(self, make: Callable[..., Any], **settings: Any) -> SimpleNamespace:
        """The columns in the caller's arrays: ``case.arrays(torch.tensor, dtype=torch.float64)``.

        Args:
            make: makes an array of a list or of a list of rows.
            settings: further arguments of ``make``.

        Returns:
            Columns by name: tokens [R, T], padded with 0 on the right; ``advantages`` [R];
            ``rewards`` [R], or [R, K] of K reward functions; None where the case has none.
            ``group_ids`` stays a list.
        """
        made = SimpleNamespace(**dict.fromkeys((*TOKEN_COLUMNS, *RESPONSE_COLUMNS)))
        for name, column in self.input.items():
            given = self.padded(name) if name in TOKEN_COLUMNS else column
            setattr(made, name, column if name == "group_ids" else make(given, **settings))
        return made

    def padded(self, name: str, fill: float = 0.0) -> list[list[float]]:
        """A token column as rows of equal length."""
        width = max((len(row) for row in self.input["mask"]), default=0)
        return [[*row, *[fill] * (width - len(row))] for row in self.input[name]]

    def parts(self) -> Iterator[tuple[Sequence[int], Case]]:
        """Each micro-batch of each rank: the responses in it, and the case of them alone."""
        for micro_batches in self.split:
            for responses in micro_batches:
                rows = {name: [column[i] for i in responses] for name, column in self.input.items()}
                yield responses, replace(self, input=rows)


@cache
def cases() -> tuple[Case, ...]:
    """All cases, file by file."""
    found: list[Case] = []
    for name in FILES:
        document = json.loads(stored(f"{name}.json"))
        tolerances = {dtype: Tolerance(**one) for dtype, one in document["tolerances"].items()}
        found += [_case(entry, tolerances) for entry in document["cases"]]
    return tuple(found)


def stored(name: str) -> str:
    """The text of one file of this version of the vectors."""
    return files(__package__).joinpath(VERSION, name).read_text(encoding="utf-8")


_OPTIONAL = {
    "same_under": {},
    "hyperparameters": {},
    "expected": {},
    "conventions": {},
    "topic": "",
}
"""What an entry of a file may leave out."""


def _case(entry: Mapping[str, Any], tolerances: Mapping[str, Tolerance]) -> Case:
    given = {**_OPTIONAL, **entry}
    columns = numbers(given["input"])
    split = given.get("split", [[list(range(len(columns["group_ids"])))]])
    made = {
        "flags": tuple(given["flags"]),
        "input": columns,
        "expected": numbers(given["expected"]),
        "conventions": numbers(given["conventions"]),
        "split": split,
        "tolerances": {dtype: tolerances[dtype] for dtype in given.pop("dtypes", tolerances)},
        "executed": tuple(given.get("executed", ())),
        "step": step_of(columns, split),
    }
    return Case(**given | made)


def step_of(columns: Mapping[str, Any], split: list[list[list[int]]]) -> Step:
    """What the whole step of an input spans."""
    return Step(
        tokens=sum(sum(row) for row in columns.get("mask", ())),
        responses=len(columns["group_ids"]),
        groups=len(set(columns["group_ids"])),
        ranks=len(split),
        micro_batches=len(split[0]),
    )


WORDS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
"""JSON has no numbers for these."""


def numbers(value: Any) -> Any:
    """The value with ``"nan"``, ``"inf"`` and ``"-inf"`` as floats."""
    if isinstance(value, str):
        return WORDS.get(value, value)
    if isinstance(value, Mapping):
        return {key: numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [numbers(inner) for inner in value]
    return value
