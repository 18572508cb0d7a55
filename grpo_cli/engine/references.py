"""KL penalties that are left out because no record has a reference: what lacks it, and the note."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from grpo_cli.engine.chunk import Chunk, located
from grpo_cli.engine.fold import Accumulator
from grpo_cli.errors import InputError
from grpo_cli.objective.inputs import MissingColumnError, missing
from grpo_cli.objective.kl import NO_REFERENCE
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.signature import MIXED, Parts, plain
from grpo_cli.records import DecodedChunk, Record
from grpo_cli.records.fields import read_fields
from grpo_cli.records.translate import Notices
from grpo_cli.records.unread import may_mean
from grpo_cli.variants.plan import Plan


@dataclass
class References:
    """Which records of an input have a reference, where a KL is left out without one.

    All of them may lack it, or none: a J with the KL of some records only is no objective's.

    Attributes:
        lacking: the error for the first record whose KL was left out; None where there is none.
        first: pieces of output before the first record with a reference (True), and before the
            first whose KL was left out (False).
    """

    lacking: MissingColumnError | None = None
    first: dict[bool, int] = field(default_factory=dict)

    def add(self, chunk: Chunk, plan: Plan, objective: Objective, at: int = 0) -> None:
        """Adds records that follow.

        Args:
            objective: the plan's for these records.
            at: pieces of output before them.
        """
        if chunk.has_reference:
            self.merge(References(first={True: at}))
        elif objective.kl.name == NO_REFERENCE.name:
            self.merge(References(self.lacking or _lacking(chunk, plan), {False: at}))

    def merge(self, later: References, shift: int = 0) -> None:
        """Adds those of records that follow, with ``shift`` pieces of output before them."""
        self.lacking = self.lacking or later.lacking
        self.first = {key: at + shift for key, at in later.first.items()} | self.first

    @property
    def error(self) -> MissingColumnError | None:
        """The error for a KL that was left out though other records have a reference."""
        return self.lacking if True in self.first else None

    def check(self) -> None:
        """Refuses a mix.

        Raises:
            MissingColumnError: where some records have a reference and others were evaluated
                without their KL, with the place of the first of these.
        """
        if self.error is not None:
            raise self.error


def _lacking(chunk: Chunk, plan: Plan) -> MissingColumnError:
    kl = chunk.objective(plan, reference_given=True).kl
    name = next(name for name in kl.choice.columns if name in ("log_ratio_ref", "log_probs_ref"))
    error = missing(name, kl, "kl", " (other records have it)")
    if chunk.packed:  # parsing all of the first record would take longer than its evaluation
        raw = chunk.packed[0]
        keys = read_fields(raw.value).unknown
        unknown = {key: key for key in keys if may_mean(key, "log_probs_ref")}
        culprit = Record(raw.source, raw.line, raw.prefix, None, [], {}, 2, unknown=unknown)
    elif chunk.records:
        culprit = chunk.records[0]
    else:  # a search kept the numbers alone
        return error
    found = located(error, culprit)
    assert isinstance(found, MissingColumnError)
    return found


class ReferenceSearch(Accumulator[None]):
    """Finds out whether any record has a reference.

    Attributes:
        found: whether one has.
    """

    found: bool = False

    def read(self, decoded: Iterable[DecodedChunk]) -> Iterator[InputError]:
        """Reads as far as the first record with a reference; bad records do not count."""
        parts = self.chunks(decoded)
        self.found = any(isinstance(part, Chunk) and part.has_reference for part in parts)
        return iter(())

    @property
    def complete(self) -> bool:
        """Whether a record with a reference was found."""
        return self.found

    def merge(self, later: ReferenceSearch) -> None:
        """Adds the search of records that follow."""
        self.found |= later.found


def lacks_kl(parts: Parts) -> bool:
    """Whether a plan's signature says that its KL was left out, of some records or of all."""
    return any(part.key == "kl" and part.name in (NO_REFERENCE.name, MIXED) for part in parts)


def without_kl(plans: Iterable[Plan], whose: str = "the records have") -> Notices:
    """The note on variants that were evaluated without their KL, if any.

    Args:
        whose: how a sentence on what was evaluated begins.
    """
    left_out = list({plan.variant: plan for plan in plans}.values())
    if not left_out:
        return {}
    if len(left_out) == 1:
        text = f"KL left out of {left_out[0].variant} ({_penalty(*left_out)})"
    else:
        named = [f"{plan.variant} {_penalty(plan)}" for plan in left_out[:_NAMED]]
        more = f"; and {len(left_out) - _NAMED} more" if len(left_out) > _NAMED else ""
        text = f"KL left out of {len(left_out)} variants ({'; '.join(named)}{more})"
    return {f"{text}: {whose} no log_probs_ref": None}


_NAMED = 6
"""Variants that the note names."""


def _penalty(plan: Plan) -> str:
    kl = plan.row.kl
    return f"{kl.name}, β {plain(kl.values['beta'])}"
