"""A row of the table of variants: the names of its choices and the values they have there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from grpo_cli.hyperparameters import Value

T = TypeVar("T")


class Use(NamedTuple):
    """A choice by its name, and its hyperparameters where they are not the usual ones."""

    name: str
    values: Mapping[str, Value]


def use(name: str, /, **values: Value) -> Use:
    """The choice with these values; the others are the choice's usual ones."""
    return Use(name, values)


@dataclass(frozen=True, kw_only=True)
class Row(Generic[T]):
    """One published objective, or one that a released framework computes.

    Where it is written its stages are names (``Row[Use]``); the registry binds them to functions.

    Attributes:
        advantage, ratio, surrogate, kl, correction, aggregate: the stages.
        kl_aggregate: where the KL is aggregated differently from the policy term.
        entropy: the entropy bonus, for a row that has one; a record's ``entropy_coef`` counts then.
        entropy_aggregate: where the entropy is aggregated differently from the policy term.
        reads: the hyperparameters that the framework's released function reads, by our names;
            the others keep the row's values unless a flag swaps their stage. None: all are read.
        title: what it is called, for people.
        paper: the arXiv id, or "" where there is none.
        note: where the literature and the frameworks disagree with this row.
        aliases: other names it answers to.
        checked: how the row was checked: "paper" (against the paper's formula), "executed" (the
            framework's own code ran with ours), "golden" (its executed numbers), or "read".
        version: the framework's version that the row reproduces; "" for a paper.
        until: the framework and the last release that has it, as ``trl 1.7.1``, where a newer
            one has it no more; else "".
    """

    advantage: T
    ratio: T
    surrogate: T
    kl: T
    correction: T
    aggregate: T
    kl_aggregate: T | None = None
    entropy: T | None = None
    entropy_aggregate: T | None = None
    reads: frozenset[str] | None = None
    title: str
    paper: str
    note: str
    aliases: tuple[str, ...] = ()
    checked: str = "paper"
    version: str = ""
    until: str = ""

    def __repr__(self) -> str:
        """Its title, and the names of its stages."""
        stages = (self.advantage, self.ratio, self.surrogate, self.kl, self.correction)
        names = ", ".join(str(getattr(one, "name", one)) for one in (*stages, self.aggregate))
        return f"Variant({self.title!r}: {names})"

    def named(
        self, title: str, note: str, *, paper: str | None = None, aliases: tuple[str, ...] = ()
    ) -> Row[T]:
        """The row under another title; without a ``paper`` it keeps its own."""
        paper = self.paper if paper is None else paper
        return replace(self, title=title, note=note, paper=paper, aliases=aliases)


def vary(row: Row[T], **changes: Any) -> Row[T]:
    """The row with other stages or attributes, and without its aliases.

    That a framework's code ran for a row says nothing of another: ``checked`` is "read" then.
    """
    checked = row.checked if row.checked == "paper" else "read"
    return replace(row, **{"aliases": (), "checked": checked, **changes})


def executed(row: Row[T], **changes: Any) -> Row[T]:
    """The row varied, where the framework's own code ran with ours for these choices too."""
    return vary(row, checked="executed", **changes)


def words(names: str) -> frozenset[str]:
    """The names in a text, as ``Row.reads`` has them."""
    return frozenset(names.split())
