"""A logged number, the records that it was logged of, and passes over these."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import BatchStatistics, Evaluator, usable
from grpo_cli.engine.fold import Accumulator, fold
from grpo_cli.engine.packing import chunks
from grpo_cli.engine.references import References
from grpo_cli.engine.totals import Totals
from grpo_cli.errors import GrpoError, InputError, UsageError
from grpo_cli.hyperparameters import KNOWN
from grpo_cli.records import DecodedChunk
from grpo_cli.records.packed import LARGEST
from grpo_cli.variants.plan import Plan

FLOAT32 = 2.0**-23
ROUNDING = 1e-14
"""How far off our own sums may be, relatively."""

_PARTS = re.compile(r"[+-]?(\d*)\.?(\d*)(?:[eE]([+-]?\d+))?")


@dataclass(frozen=True)
class LoggedNumber:
    """A logged number.

    Attributes:
        name: "loss", "objective", or another total of ``grpo eval``.
        value: the number.
        half: by how much the number before rounding may differ: half a unit of the last digit.
        noise: what rounding may add, of the size of its terms: float32's, or with ``rtol`` our own.
    """

    name: str
    value: float
    half: float
    noise: float = FLOAT32

    @classmethod
    def parse(cls, name: str, text: str, rtol: float | None = None) -> LoggedNumber:
        """Reads a number; its digits are the tolerance unless ``rtol`` is given."""
        value = float(text)
        if abs(value) > LARGEST:
            raise UsageError(f"--{name}: expected at most {LARGEST:g} in size, got {text}")
        if rtol is None:
            return cls(name, value, half_unit(text))
        return cls(name, value, rtol * abs(value), ROUNDING)

    @property
    def rtol(self) -> float:
        """The tolerance relative to the number; infinite for 0."""
        return self.half / abs(self.value) if self.value else float("inf")

    @property
    def sign(self) -> float:
        """What J is multiplied by to be compared with the number: −1 for a loss."""
        return -1.0 if self.name == "loss" else 1.0


def half_unit(text: str) -> float:
    """Half a unit of the last digit: 0.0256 → 0.00005, 1.20e-3 → 0.000005."""
    found = _PARTS.fullmatch(text)
    assert found is not None  # the caller's number was parsed
    exponent = int(found[3] or 0) - len(found[2])
    return 0.5 * 10.0**exponent


_UNIFORM = KNOWN - {"num_items_in_batch", "batch_num_tokens"}
"""All hyperparameters but the counts that differ from micro-batch to micro-batch."""


_MOST = 1 << 24
"""Tokens that are read at most: half a gigabyte."""
_START = 8192
"""Tokens that are evaluated in the time that a chunk takes to start."""


class _Loaded(Accumulator[None]):
    """The chunks of the input, without what only a report shows.

    Attributes:
        base: the plan that is searched around; a record that it cannot use is bad.
        kept: the chunks.
    """

    settings = ("base",)

    def __init__(self, base: Evaluator) -> None:
        self.base = base
        self.kept: list[Chunk] = []

    def chunks(self, decoded: Iterable[DecodedChunk]) -> Iterator[Chunk | InputError]:
        """Records that are evaluated together."""
        return chunks(
            decoded, make_records=None, uniform=_UNIFORM, together=1 << 21, in_order=False
        )

    def evaluate(self, chunk: Chunk) -> None:
        """Checks that the base plan can use the records.

        Raises:
            InputError: where it cannot.
        """
        self.base.check(chunk)

    def add(self, chunk: Chunk, found: None) -> None:
        """Keeps a chunk."""
        del found
        self._keep([replace(chunk, records=(), packed=())])

    def merge(self, later: _Loaded) -> None:
        """Keeps the chunks of other records."""
        self._keep(later.kept)

    def _keep(self, more: Sequence[Chunk]) -> None:
        self.kept += more
        if sum(one.batch.responses.total for one in self.kept) > _MOST:
            self.error = InputError(
                f"match reads at most {_MOST:,} tokens; --where selects fewer records"
            )


def by_response(chunks: Sequence[Chunk]) -> list[Chunk]:
    """The chunks, with advantages by response where all tokens of each response have one.

    verl writes them by token. Where any response has several, all stay as they are.
    """
    found = [*map(_by_response, chunks)]
    alike = all(one.batch.token_advantages is None for one in found)
    return found if alike else [*chunks]


def _by_response(chunk: Chunk) -> Chunk:
    rows, values = chunk.batch.responses, chunk.batch.token_advantages
    if values is None or not len(values):
        return chunk
    own = np.where(rows.lengths > 0, values[np.minimum(rows.starts, len(values) - 1)], 0.0)
    if (values != rows.spread(own)).any():
        return chunk
    return replace(chunk, batch=replace(chunk.batch, advantages=own, token_advantages=None))


@dataclass(frozen=True)
class Data:
    """Records in memory."""

    chunks: Sequence[Chunk]
    _statistics: dict[Hashable, BatchStatistics] = field(default_factory=dict)
    _totals: dict[Hashable, Totals | None] = field(default_factory=dict)

    def evaluator(self, plan: Plan) -> Evaluator:
        """Evaluates a plan, with the statistics of all records where it needs some."""
        return Evaluator(plan, self.statistics(plan))

    def statistics(self, plan: Plan) -> BatchStatistics | None:
        """The statistics of all records that a plan needs; None where it needs none."""
        if plan.batch != "input" or not plan.wants_moments:
            return None
        if plan.key not in self._statistics:
            evaluator, found = Evaluator(plan), BatchStatistics()
            for chunk in self.chunks:
                with suppress(GrpoError):
                    found.merge(evaluator.measure(chunk))
            self._statistics[plan.key] = found
        return self._statistics[plan.key]

    def totals(self, plan: Plan) -> Totals | None:
        """The totals that ``grpo eval`` gives, to the bit; None where it gives an error."""
        wanted = plan.key, plan.batch
        if wanted not in self._totals:
            with suppress(GrpoError):
                self._totals[wanted] = self._evaluated(plan)
        return self._totals.setdefault(wanted)

    def _evaluated(self, plan: Plan) -> Totals:
        evaluator, totals, references = self.evaluator(plan), Totals(plan.batch), References()
        for chunk in self.chunks:
            references.add(chunk, plan, evaluator.objective(chunk))
            references.check()
            with np.errstate(all="ignore"):
                totals.add(evaluator.evaluate(chunk))
        return totals

    @property
    def work(self) -> float:
        """How long a pass takes, in tokens."""
        sizes = (one.batch.responses for one in self.chunks)
        return sum(_START + one.total + one.count for one in sizes)


def load(reader: Reader, base: Evaluator) -> tuple[Chunk, Data]:
    """The first chunk, with its records, and all records.

    Raises:
        InputError: where no record can be read; at a bad record, unless these are skipped; and
            where there are too many.
    """
    for part in usable(reader.chunks(), base):
        if isinstance(part, Chunk):
            return part, Data(by_response(fold(reader, partial(_Loaded, base)).kept))
        reader.bad(part)
    raise InputError("no record can be read")


@dataclass(frozen=True)
class Question:
    """A number, and the records that it was logged of.

    Attributes:
        target: the loss or the objective.
        data: the records; ``first`` is their first chunk.
        others: other numbers of the same records: kl, clip_fraction, gradient_norm.
    """

    target: LoggedNumber
    data: Data
    first: Chunk
    others: Sequence[LoggedNumber] = ()
