"""The same in pieces, for engines of your own: what a piece comes to, and how pieces merge.

>>> from grpo_cli.fold import merge, partial
>>> first = [{"log_probs_new": [[-0.2], [-0.1]], "rewards": [1, 0]}]
>>> later = [{"log_probs_new": [[-0.3], [-0.2]], "rewards": [0, 1]}]
>>> pieces = [partial(some, "dr") for some in (first, later)]
>>> merge(pieces).total == partial(first + later, "dr").total
True

Partial results are small and can be pickled. They merge exactly: the total is the same to the last
bit however the records were cut and wherever the pieces were evaluated. A group must not straddle
two pieces. Where an objective wants statistics of the whole batch (``batch-std``, ...), fold
``measure`` first and give what it merges to as ``measured``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from grpo_cli.engine.accumulator import Folded, fold_decoded
from grpo_cli.engine.evaluation import EvaluationSums, StatisticsSums
from grpo_cli.engine.evaluator import BatchStatistics, Evaluator
from grpo_cli.engine.facts import InputFacts
from grpo_cli.engine.references import lacks_kl, without_kl
from grpo_cli.errors import InputError, UsageError
from grpo_cli.records import PLAIN, Block, DecodedChunk, Piece, Raw, Reading, Span
from grpo_cli.records.choose.grouping import batch_fields
from grpo_cli.records.objects import decode
from grpo_cli.records.record import in_chunks
from grpo_cli.records.tables.files import Rows
from grpo_cli.records.translate import Notices
from grpo_cli.variants.plan import Plan, plan
from grpo_cli.variants.trainer import other_row

__all__ = ["Partial", "measure", "merge", "partial", "pieces"]

_SIZE = 64 << 20
_ABOUT = 4096  # bytes of an object whose text is not known: so many are looked at together


@dataclass
class Partial:
    """What some records come to."""

    _folded: Folded[EvaluationSums]
    _plan: Plan

    def merge(self, later: Partial) -> None:
        """Adds what the records that follow come to.

        Raises:
            InputError: where a KL was left out of some records, and others have a reference.
        """
        self._folded.merge(later._folded)
        if self._folded.error is not None:
            raise self._folded.error

    @property
    def total(self) -> dict[str, Any]:
        """Their numbers by name, as ``grpo eval --level batch`` prints them."""
        return self._folded.sums.batches.whole.row()

    @property
    def batches(self) -> list[dict[str, Any]]:
        """The numbers of each batch behind the fields that name it, where ``batch`` names some."""
        return self._folded.sums.batches.rows()

    @property
    def signature(self) -> str:
        """One line that names every choice which changes a number."""
        return self._folded.sums.batches.whole.signature()

    @property
    def skipped(self) -> list[InputError]:
        """Why records were left out, of the first of them."""
        return list(self._folded.skipped)

    @property
    def notices(self) -> list[str]:
        """What there is to know of the records, each once."""
        sums, facts = self._folded.sums, self._folded.facts
        other = other_row(facts.named, (self._plan,))
        no_kl = without_kl([self._plan] if lacks_kl(sums.batches.whole.signed) else [])
        return list(other | facts.sentences | sums.sentences | no_kl)


def partial(
    records: Any,
    variant: str = "grpo",
    *,
    stages: Mapping[str, str] | None = None,
    batch: str = "input",
    measured: BatchStatistics | None = None,
    skip: bool = False,
    reading: Reading = PLAIN,
    source: str = "",
    first: int = 1,
    **hyperparameters: float | int | str | None,
) -> Partial:
    """What some records come to.

    Args:
        records: a piece of a file (``pieces``), an Arrow batch or table, the bytes of JSON lines,
            or objects: each a dict, or its JSON.
        variant: a variant's name or alias.
        stages: stage → choice to put in the variant's place, as ``{"kl": "k1"}``.
        batch: which records form one batch: "input", all that is merged; each "record"; or those
            with the same values of fields, as "step" or "step,rank".
        measured: what ``measure`` merged to over all records, where the variant needs it.
        skip: whether to go on behind a record that cannot be evaluated.
        reading: how objects become records.
        source: what errors call the input.
        first: the number of the first line or row there, from 1.
        **hyperparameters: values that win over the records' and the variant's, as ``beta=0.1``.

    Raises:
        InputError: for a record that cannot be evaluated, with its place, unless it is skipped.
        UsageError: for an unknown name, a value outside its meaning, or statistics that are
            wanted and not given.
    """
    made = plan(variant, stages=stages, hyperparameters=hyperparameters, batch=batch)
    evaluator = Evaluator(made, measured)
    if evaluator.wants_first_pass and measured is None:
        raise UsageError(f"{variant} needs statistics over the whole batch: pass measured=")
    facts = InputFacts()
    reading = replace(reading, batch=batch_fields(made.batch))
    with np.errstate(all="ignore"):  # where it is shown, what is not finite is an error
        decoded = _decoded(records, reading, facts.notices, source, first)
        collected = facts.collect(decoded, reading.fields)
        folded = fold_decoded(EvaluationSums(evaluator), collected, facts, skip=skip)
    if folded.error is not None:
        raise folded.error
    return Partial(folded, made)


def measure(
    records: Any,
    variant: str,
    *,
    stages: Mapping[str, str] | None = None,
    batch: str = "input",
    reading: Reading = PLAIN,
    **hyperparameters: float | int | str | None,
) -> BatchStatistics:
    """The part that some records have in the statistics of the whole batch, as in ``partial``."""
    made = plan(variant, stages=stages, hyperparameters=hyperparameters, batch=batch)
    reading = replace(reading, batch=batch_fields(made.batch))
    with np.errstate(all="ignore"):
        sums = StatisticsSums(Evaluator(made))
        for _ in sums.read(_decoded(records, reading, {}, "", 1)):
            pass  # records that cannot be used are in no statistic
        return sums.found


M = TypeVar("M", Partial, BatchStatistics)


def merge(parts: Iterable[M]) -> M:
    """All parts as one, in their order; they stay as they are.

    Raises:
        UsageError: where there are none, or they are of different objectives.
        InputError: where a KL was left out of some records, and others have a reference.
    """
    rest = iter(parts)
    first = next(rest, None)
    if first is None:
        raise UsageError("nothing to merge: no partial result was given")
    whole = deepcopy(first)
    for part in rest:
        whole.merge(part)
    return whole


def pieces(paths: Sequence[str], size: int = _SIZE, *, reading: Reading = PLAIN) -> Iterator[Piece]:
    """The pieces of files, for ``partial`` to read anywhere; no group straddles two of them.

    Args:
        paths: files.
        size: about how many bytes a piece has.
        reading: how they become records; it says what a group is.
    """
    for path in paths:
        yield from reading.pieces(path, size, as_spans=True)


def _decoded(
    records: Any, reading: Reading, notices: Notices, source: str, first: int
) -> Iterator[DecodedChunk]:
    if isinstance(records, bytes | bytearray):
        records = Block(source, first, bytes(records).split(b"\n"))
    if isinstance(records, Block | Span | Rows):
        return reading.decoded(records, notices)
    if hasattr(records, "schema"):
        return in_chunks(reading.made_of(_of_arrow(records, source, first), source, notices))
    return in_chunks(reading.made_of(_of_objects(records, source, first), source, notices))


def _of_arrow(table: Any, source: str, first: int) -> Iterator[Raw | InputError]:
    from grpo_cli.records.tables.cells import rows
    from grpo_cli.records.tables.files import package

    batches = table.to_batches() if hasattr(table, "to_batches") else [table]
    row = first - 1
    for batch in batches:
        yield from rows(package(), batch, source, row)
        row += batch.num_rows


def _of_objects(records: Iterable[Any], source: str, first: int) -> Iterator[Raw | InputError]:
    for line, one in enumerate(records, first):
        try:
            one = one.encode() if isinstance(one, str) else one
            value = decode(one) if isinstance(one, bytes) else one
        except InputError as error:
            error.source, error.line = source, line
            yield error
            continue
        yield Raw(value, source, line, "", _ABOUT)
