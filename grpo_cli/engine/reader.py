"""The one reader: files → pieces, shared out among processes or a cluster.

It stops at a bad record or skips it, keeps standard input in a file where it is read twice, and
collects the facts of the input that commands report.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.facts import ERRORS_KEPT, InputFacts, Skipped
from grpo_cli.engine.packing import chunks, packed_runs
from grpo_cli.engine.rows.fields import KINDS, OWN, STEP
from grpo_cli.errors import InputError, UsageError, until_error
from grpo_cli.records import PLAIN, DecodedChunk, Piece, Raw, Reading, Record, Source
from grpo_cli.records.choose.grouping import batch_fields
from grpo_cli.records.choose.rows import responses_of
from grpo_cli.records.choose.where import Condition, read_path, spelled
from grpo_cli.records.from_objects import read_records
from grpo_cli.records.open.remote import Version, is_remote
from grpo_cli.records.open.streams import BLOCK, version_of
from grpo_cli.records.translate import Notices
from grpo_cli.variants.plan import Plan
from grpo_cli.variants.trainer import other_row

if TYPE_CHECKING:
    from grpo_cli.engine.accumulator import A, Folded, FoldPiece
    from grpo_cli.engine.cluster.parts import PartFolder

G = TypeVar("G")


def of_runs(reading: Reading, runs: Sequence[Sequence[str]]) -> list[Reading]:
    """How each of several runs is read: only rows are grouped, where another run has groups."""
    bare = replace(reading, grouping=None)
    if reading == bare or any("-" in run for run in runs):
        return [reading] * len(runs)
    counts = [*map(_first_responses, (Reader(run, bare) for run in runs))]
    return [bare if 1 in counts and count > 1 else reading for count in counts]


def _first_responses(reader: Reader) -> int:
    """How many responses the first record has; 0 if it cannot be read."""
    with suppress(InputError):
        return responses_of(reader.peek())
    return 0


EACH_STEP = "--batch FIELD gives one per step"
ONE_STEP = "--where FIELD==N selects one"
_KEPT = 64
"""Small files whose bytes a reader keeps for another pass."""
_WORTH_IT = 4
"""Blocks that an input must have for worker processes to be started unasked."""


class Reader:
    """Reads the files of a command, in order and in flat memory; may read them again.

    Args:
        paths: files; ``-`` is standard input.
        reading: how the files become records.
        skip: whether to go on behind records that cannot be read.
        most_errors: how many of their errors are kept; 0 for all.
        jobs: worker processes of ``run``; None: the cores available where the input is large.
        block_bytes: text that is read, or goes to a worker, at once.
        on: the Ray that ``run`` works on, as ``--on`` names it; None: this machine.
        task_bytes: text of a task there; None: as it suits.

    Attributes:
        paths: the files, as the user named them.
        sources: the files, and the bytes of small ones.
        skipped: the errors of records that were left out.
        facts: what commands say once of the input.
    """

    def __init__(
        self,
        paths: Sequence[str],
        reading: Reading = PLAIN,
        *,
        skip: bool = False,
        most_errors: int = ERRORS_KEPT,
        jobs: int | None = 1,
        block_bytes: int = BLOCK,
        on: str | None = None,
        task_bytes: int | None = None,
    ) -> None:
        self.paths = list(paths)
        self.reading = reading
        self.skip = skip
        self.most_errors = most_errors
        self.skipped = Skipped(most_errors)
        self.facts = InputFacts()
        for path, count in Counter(self.paths).items():
            if count > 1:
                again = f"{path} is given {count} times, so each record counts {count} times"
                self.notices[again] = None
        self.sources = [Source.of(path) for path in paths]
        for source in self.sources[_KEPT:]:
            source.keep = False
        self._jobs = jobs
        self._block_bytes = block_bytes
        self._ahead: Iterator[tuple[Raw, Record]] | None = None
        self.on = on
        self.task_bytes = task_bytes

    @property
    def notices(self) -> Notices:
        """Sentences on the files, each once; commands add more."""
        return self.facts.notices

    def notes(self, *plans: Plan) -> Notices:
        """All of them, and what the plans say: another row than the records', odd values."""
        unusual: Notices = dict.fromkeys(chain(*(plan.unusual_flags for plan in plans)))
        return self.other_row(*plans) | self.facts.sentences(*plans) | unusual

    def other_row(self, *plans: Plan) -> Notices:
        """That the records name another row than those that were evaluated unasked."""
        return dict.fromkeys(other_row(self.facts.named, plans))

    def ungrouped(self, records: int, groups: int, responses: int, effect: str = "") -> str | None:
        """What is wrong where every record is one response and says the group that it is of."""
        if self.reading.grouping is not None:
            return None
        return self.facts.ungrouped(records, groups, responses, effect)

    def pooled(self, batch: str, advice: str = EACH_STEP) -> Notices:
        """That records of several steps were evaluated as one batch, where they were.

        Args:
            advice: what to do about it; ``FIELD`` is replaced by the field that says the step.
        """
        for field, steps in self.facts.steps.items():
            if len(steps) > 1 and batch == "input":
                text = f"the numbers cover all {len(steps):,} steps together"
                return {f"{text}; {advice.replace('FIELD', field)}": None}
        return {}

    def only(
        self,
        fields: Mapping[str, Sequence[Any]],
        paths: Collection[str] | None = None,
        others: Sequence[str] = (),
    ) -> Reader:
        """A reader of the records whose fields have some of these values, in these files or all.

        One of ``others`` may have the value of a field in its place.
        """
        narrowed = copy(self)
        if paths is not None:
            pairs = zip(self.paths, self.sources, strict=True)
            chosen = [(path, source) for path, source in pairs if path in paths]
            narrowed.paths = [path for path, _ in chosen]
            narrowed.sources = [source for _, source in chosen]
        narrowed.facts = InputFacts()
        conditions = [
            Condition(
                *(read_path(name, "--batch"), "in", values),
                others=tuple(read_path(one, "--batch") for one in others),
            )
            for name, values in fields.items()
        ]
        narrowed.reading = replace(self.reading, where=(*self.reading.where, *conditions))
        return narrowed

    def batch_by(self, batch: str) -> None:
        """Has each record say which batch it belongs to, where ``batch`` names fields.

        Raises:
            UsageError: for a field that is named as a column of the rows that are printed.
        """
        for field in map(spelled, batch_fields(batch)):
            if field in KINDS and field != STEP.name:
                raise UsageError(
                    f"--batch {field}: rows already have a column {field}; use a field with "
                    "another name"
                )
        self.reading = replace(self.reading, batch=batch_fields(batch))

    def chunks(self, plan: Plan | None = None) -> Iterator[Chunk]:
        """The chunks of all files, whose records agree in all that a plan needs one value of.

        Without a plan they agree in all their hyperparameters.

        Raises:
            InputError: at the first bad record, unless it is to be skipped.
        """
        self.keep_input()
        settings, uniform = (plan.settings, plan.uniform) if plan else (None, None)
        found = (chunks(decoded, settings=settings, uniform=uniform) for decoded in self._decoded())
        return self._good(chain.from_iterable(found), needed=self.reading.selects)

    def peek(self) -> Raw:
        """The first record, which the next call of ``records`` yields again.

        Raises:
            InputError: where there is none.
        """
        found = self.records()
        first = next(found, None)
        if first is None:
            raise InputError("no record can be read")
        self._ahead = chain((first,), found)
        return first[0]

    def records(self) -> Iterator[tuple[Raw, Record]]:
        """The records of all files one by one, with the objects that they were read from.

        Raises:
            InputError: at the first bad record, unless it is to be skipped.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            return ahead

        def read(chunk: DecodedChunk) -> Iterator[tuple[Raw, Record] | InputError]:
            for items, packed in packed_runs(chunk):
                for raw, found in zip(items, read_records(items, packed), strict=True):
                    if isinstance(found, InputError):
                        yield found
                    elif isinstance(raw, Raw):
                        yield raw, found

        found = chain.from_iterable(map(read, chain.from_iterable(self._decoded())))
        return self._good(found, needed=True)

    def _decoded(self) -> Iterator[Iterator[DecodedChunk]]:
        """The objects of each piece."""
        for piece in self._pieces(as_spans=False):
            decoded = self.reading.decoded(piece, self.notices)
            yield self.facts.collect(decoded, self.reading.fields)

    def _good(self, found: Iterable[G | InputError], *, needed: bool) -> Iterator[G]:
        self.skipped = Skipped(self.most_errors)
        self.facts.nulls.clear()
        for one in found:
            needed = False
            if isinstance(one, InputError):
                self.bad(one)
            else:
                yield one
        if needed:
            raise self.nothing()

    def nothing(self) -> InputError:
        """What to say where no record is left, and which there are; none of standard input."""
        reading, files = self.reading.everything, [one for one in self.sources if one.path != "-"]
        pieces = chain.from_iterable(map(reading.pieces, files))
        error = self.reading.nothing(raw for piece in pieces for raw in reading.raws(piece, {}))
        for name in {spelled(one.path) for one in self.reading.where} & {*OWN["token"]}:
            if f"no field {name}" in error.message:
                error.message += f"; {name} is a column of results, which --having tests"
        return error

    @property
    def nodes(self) -> int:
        """How many machines of a cluster work on it; none before ``run``, and without a cluster."""
        if self.on is None:
            return 0
        from grpo_cli.engine.cluster import session  # an extra

        return session.nodes()

    @property
    def inputs(self) -> list[tuple[str, int, str]]:
        """The files, each with its size and what identifies its version."""
        return [
            (one.name, *(Version(0, "") if _only_once(one.path) else version_of(one.path)))
            for one in self.sources
            if _only_once(one.path) or is_remote(one.path) or Path(one.path).exists()
        ]

    def bad(self, error: InputError) -> None:
        """Stops at a bad record, or remembers it.

        Raises:
            InputError: the error, unless it is to be skipped.
        """
        if not self.skip:
            raise error
        self.skipped.add(error)

    def keep_input(self) -> list[str]:
        """Keeps what can be read only once in files that can be read again; the names of these."""
        once = [at for at, one in enumerate(self.sources) if _only_once(one.path)]
        for at in once:
            self.sources[at] = Source(self.sources[at].name, self._copy(self.sources[at].path))
        return [self.sources[at].name for at in once]

    def _copy(self, path: str) -> str:
        """The name of a temporary file with what comes from standard input or a pipe."""
        import shutil
        from tempfile import NamedTemporaryFile  # slow to import, and rarely needed

        with NamedTemporaryFile(prefix="grpo-", delete=False) as kept:
            weakref.finalize(self, _remove, kept.name, os.getpid())
            if path != "-":
                with Path(path).open("rb") as stream:
                    shutil.copyfileobj(stream, kept)
            elif sys.stdin is not None:
                shutil.copyfileobj(sys.stdin.buffer, kept)
        return kept.name

    def run(
        self, work: FoldPiece[A], *, together: bool = False, part_folder: PartFolder | None = None
    ) -> Iterator[tuple[int, Folded[A]]]:
        """Yields the bytes and the sums of every piece, in order; of all before, on an error.

        Args:
            work: adds up pieces; it travels between processes.
            together: whether a cluster may merge the sums of pieces that follow each other.
            part_folder: the folder to which workers of a cluster write the output.
        """
        if self.on is not None:
            from grpo_cli.engine.cluster.run import on_ray  # an extra

            yield from on_ray(
                self.on,
                work,
                self.sources,
                jobs=self._jobs,
                size=self.task_bytes,
                together=together,
                part_folder=part_folder,
            )
            return
        faults: list[Exception] = []
        each = until_error(self._pieces(as_spans=self._jobs != 1), faults)
        pieces = _together(each, self._block_bytes // 2 if work.make().bundles else 0)
        jobs = self._jobs
        if jobs is None:
            beginning = list(islice(pieces, _WORTH_IT))
            pieces = chain(beginning, pieces)
            jobs = 1 if len(beginning) < _WORTH_IT else 0
        found: Iterator[tuple[Sequence[Piece], Folded[A]]] = ((some, work(some)) for some in pieces)
        if jobs != 1:
            from grpo_cli.engine.pool import cores, in_order  # processes are slow to import too

            jobs = jobs or cores()
            found = in_order(work, pieces, jobs) if jobs > 1 else found
        for some, part in found:
            yield sum(piece.size for piece in some), part
        if faults:
            raise faults[0]

    def _pieces(self, *, as_spans: bool) -> Iterator[Piece]:
        for source in self.sources:
            yield from self.reading.pieces(source, self._block_bytes, as_spans=as_spans)


def _remove(path: str, owner: int) -> None:
    """Removes a file of this process; a fork of it, which forgets its reader too, leaves it."""
    if os.getpid() == owner:
        Path(path).unlink(missing_ok=True)


def _only_once(path: str) -> bool:
    """Whether it is standard input, or a pipe with a name."""
    return path == "-" or Path(path).is_fifo()


def _together(pieces: Iterable[Piece], room: int) -> Iterator[Sequence[Piece]]:
    """The pieces, small ones together: as many as have ``room`` bytes."""
    waiting: list[Piece] = []
    held = 0
    for piece in pieces:
        waiting.append(piece)
        held += piece.size if room else 0
        if held >= room:
            yield tuple(waiting)
            waiting, held = [], 0
    if waiting:
        yield tuple(waiting)
