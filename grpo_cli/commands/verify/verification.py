"""The run of ``grpo verify``: judges the records of files, and says why they differ."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from grpo_cli.bundle import Chain
from grpo_cli.commands.options.source import print_errors, print_notes, print_skipped
from grpo_cli.commands.verify.answer import Replayed, Verdict, Verified
from grpo_cli.commands.verify.batches import RECORD, UNITS, read_batches, unit_of
from grpo_cli.commands.verify.causes.located import UNKNOWN, located
from grpo_cli.commands.verify.causes.search import MOST, Explained, Memory
from grpo_cli.commands.verify.causes.suspects import Suspect, suspects
from grpo_cli.commands.verify.expected import METRIC
from grpo_cli.commands.verify.judging import UNTESTED, Judged, Judging
from grpo_cli.commands.verify.naming import Finding, choose, shared_causes
from grpo_cli.commands.verify.replay import Part, replayed, stage_of
from grpo_cli.commands.verify.rows import Rows
from grpo_cli.engine import Reader
from grpo_cli.engine.fold import fold_pieces
from grpo_cli.engine.references import without_kl
from grpo_cli.errors import GrpoError, InputError
from grpo_cli.objective.kl import NO_REFERENCE
from grpo_cli.terminal.numbers import counted, shown
from grpo_cli.variants.plan import Plan
from grpo_cli.variants.trainer import USUAL

_AGAIN = 50
"""Differing records with a cause, and without, kept until others were searched."""
_NO_TOKEN = "nothing was compared: no token counts in a record with expected numbers"
_NOTHING = (
    'no record has "expected": put the result of your own loss there, as {"expected": {"loss": '
    '…, "loss_gradient": [[…]], "advantages": […]}}; with nothing but a logged loss, grpo match '
    "says which formula gives it"
)


def verified(
    make: Callable[..., Judging], reader: Reader, most: int, *, batch: str = "", whole: bool = True
) -> tuple[Verification, Verified]:
    """Returns the run and the answer of ``verify``.

    A trainer logs one loss for a step. Where all records of a step, or of the input, repeat one,
    or only one of a step's has it, and some differ, these are compared as a batch, with their
    gradients, if the batches agree or are explained no less: of losses that records repeat, than
    half of the records.

    Args:
        make, reader, most, whole: as ``Verification`` has them.
        batch: what is compared, as ``--batch`` has it; "" for what the losses are of.
    """
    reader.keep_input()
    made = partial(_answered, make, reader, most=most, whole=whole)
    run, answer = made(batch=batch or RECORD, defers=not batch)
    losses = run.sums.losses
    if batch or not answer.differing or isinstance(answer, Replayed):
        return run, answer
    repeated = (losses.are_repeated or losses.are_one) and _differ(answer)
    why = "the records of {} expect one loss" if repeated else "one record of {} expects a loss"
    least = _CHANCE if repeated and not losses.are_zero else 0.0
    of_batches: list[tuple[Verification, Verified]] = []
    for name in losses.batches(run.reader.facts.steps) if repeated or losses.are_once else ():
        with suppress(GrpoError):  # the records' own answer says what is wrong with them
            found = made(batch=name, inferred=why)
            of_batches += [found] if found[1].records else []
        if of_batches and not of_batches[-1][1].differing:
            break
    # Batches are named where they say more, or where records that repeat a loss say as much.
    best = max(of_batches, key=lambda one: _quality(one[1]), default=None)
    rank = None if best is None else (_quality(best[1]), repeated)
    agreeing, explained = _quality(answer, least)
    if run.deferred and (rank is None or rank <= ((agreeing, 1.0), not repeated)):
        run, answer = made(batch=RECORD)  # which may explain all of them
        agreeing, explained = _quality(answer, least)
    is_best = rank is not None and rank > ((agreeing, explained), not repeated)
    return best if best is not None and is_best else (run, answer)


def _answered(
    make: Callable[..., Judging], reader: Reader, **options: Any
) -> tuple[Verification, Verified]:
    """The run and its answer; with a search for causes where a row gave only the first records."""
    run = Verification(make, reader.only({}), **options)
    answer = run.result()
    if run.rows_failed:
        run = Verification(make, reader.only({}), **options, tries_rows=False)
        answer = run.result()
    return run, answer


def _differ(answer: Verified) -> bool:
    """Whether records that expect one number give several; no copies of one record do."""
    firsts = [one.first for one in answer.records if one.first is not None]
    if any(one.key not in ("loss", "objective") for one in firsts):
        return True  # the gradient, which is of the batch
    pairs = {(f"{one.expected:.12g}", f"{one.got:.6g}") for one in firsts}
    return len(pairs) > len({yours for yours, _ in pairs})


_CHANCE = 0.5
"""The share of records that may agree by chance with their step's loss, if that is not 0."""


def _quality(answer: Verified, least: float = 0.0) -> tuple[float, float]:
    """The share of records that agree, and of those that differ the share that is explained.

    A share that is not above the least is 0.
    """
    explained = max(answer.explained, answer.agreeing) / max(answer.differing, 1)
    agreeing = 1.0 - answer.differing / max(answer.verified, 1)
    return agreeing if agreeing > least else 0.0, explained if explained > least else 0.0


class Verification:
    """Judges the records of files; remembers what there is to say afterwards.

    Causes are searched for here, in the order of the records, so that what is remembered from one
    to the next does not depend on how the work was shared out.

    Args:
        make: makes what judges the records, in any process.
        reader: the files.
        most: how many differing records are searched for a cause.
        whole: whether to report everything: of every differing record where it is wrong, else of
            the first with each answer; and the notes that change nothing about the verdict.
        batch: what is compared, as ``--batch`` has it; below, a record is any of these.
        inferred: why, where no flag says that.
        defers: whether no cause is searched for while each step has one loss: steps may agree.
        tries_rows: whether another row may give the numbers. Where nothing names the variant and
            no cause explains the first record, the others are not searched if one does.

    Attributes:
        sums: what the records that were judged have in common.
        deferred: whether a record was not searched since steps may agree.
        rows_failed: whether some were not searched since a row gave them, which not all do.
    """

    def __init__(
        self,
        make: Callable[[], Judging],
        reader: Reader,
        most: int,
        *,
        whole: bool = True,
        batch: str = RECORD,
        inferred: str = "",
        defers: bool = False,
        tries_rows: bool = True,
    ) -> None:
        self._make = make
        self.reader = reader
        self._batch, self._unit, self._inferred = batch, unit_of(batch), inferred
        self._whole = whole
        self._defers, self._waits, self.deferred = defers, False, False
        self._answers: set[tuple[str, ...]] = set()
        self.sums = make()
        self._memory = Memory(most)
        self._rows = Rows(self.sums) if tries_rows else None
        self._has_cause, self.rows_failed = False, False
        self._is_answered = False  # by a row that gives all numbers
        self._chains: dict[str, Chain] = {}
        self._parts: list[Part] = []
        self._judged: list[tuple[Verdict, str | None]] = []
        self._within = self.sums.tolerance()
        self._without_kl: list[Plan] = []
        self._verdicts: Sequence[Verdict] = ()
        self._good = 0
        self._differing = 0
        self._kept: Counter[bool] = Counter()
        self.without_expected = 0
        self.undefined = 0
        self._words: dict[Hashable, str] = {}
        self._rows_taken: Counter[str] = Counter()

    def result(self) -> Verified:
        """Judges every record that expects anything.

        Raises:
            InputError: at the first record that cannot be judged, unless those are skipped.
        """
        items = [*self._items()]
        findings = [one for one in items if isinstance(one, Finding)]
        choose(findings, self._memory)
        verdicts = tuple(one.verdict() if isinstance(one, Finding) else one for one in items)
        self._verdicts = verdicts
        within = self._within
        causes, explained = shared_causes(findings)
        rows = self._rows if self._rows and self._rows.given == len(findings) > explained else None
        self._is_answered = rows is not None
        found = Verified(
            ok=all(verdict.agrees for verdict in verdicts),
            rtol=within.rtol,
            atol=within.atol,
            metrics_rtol=within.metrics,
            verified=len(verdicts),
            differing=sum(not verdict.agrees for verdict in verdicts),
            without_expected=self.without_expected,
            causes=causes,
            explained=explained,
            agrees_with=rows.words if rows else (),
            agreeing=rows.given if rows else 0,
            metrics_differ=dict(Counter(x.key for one in verdicts for x in one.metrics)),
            undefined=self.undefined,
            batch=self._batch,
            records=verdicts,
        )
        if not self._parts:
            return found
        hashes = [str(chain.last["sha256"]) for chain in self._chains.values() if chain.last]
        bundle = replayed(self._parts, self._judged, within, hashes)
        ok = found.ok and bundle.first_stage is None
        return Replayed(**{**found.fields(), "ok": ok}, bundle=bundle)

    def nothing(self) -> InputError:
        """What to say where no record was judged: how the records get what they lack for that."""
        return InputError(_NO_TOKEN if self.undefined else _NOTHING)

    def _items(self) -> Iterator[Verdict | Finding]:
        for sums in self._sums(self.reader, self._make):
            self.sums = sums
            items, sums.items = sums.items, []  # not kept
            self._waits = self._defers and bool(sums.losses.batches({}))
            self._good += len(items)
            if sums.error is not None:
                continue  # which is raised next
            self._follow(sums)
            of_item = suspects(items)
            for item in items:
                if item is None:
                    self.without_expected += 1
                    continue
                self._within = item.within
                self.undefined += item.undefined
                if item.verdict.compared:
                    yield self._verdict(item, of_item.get(id(item)))
        for source, chain in self._chains.items():
            if (why := chain.end()) is not None:
                raise InputError(why, path="bundle", source=source)

    def _follow(self, sums: Judging) -> None:
        """Checks that records of bundles follow each other, unless only some records are read.

        Raises:
            InputError: where one does not follow the one before.
        """
        parts, sums.parts = sums.parts, []  # as the items, which were seen once
        self._parts += parts
        for part in parts if not self.reader.reading.selects else ():
            source, line = part.record.source, part.record.line
            why = self._chains.setdefault(source, Chain()).add(part.seal)
            if why is not None:
                raise InputError(why, path="bundle", source=source, line=line)

    def _sums(self, reader: Reader, make: Callable[[], Judging]) -> Iterator[Judging]:
        if self._batch == RECORD:
            return fold_pieces(reader, make)
        judging = make()
        for error in judging.read_batches(read_batches(reader, self._batch, judging.seen)):
            reader.bad(error)
        if judging.error is not None:
            raise judging.error
        return iter([judging])

    def _verdict(self, item: Judged, suspect: Suspect | None) -> Verdict | Finding:
        found = self._found(item, suspect)
        stage = None
        if self._parts and isinstance(found, Finding) and suspect is not None:
            case, causes = suspect.case, [cause.stage for cause in found.causes]
            own = next(x.expectation.stage for x in case.columns if x.key == found.first.key)
            stage = stage_of(own, causes, weighted=case.other_weights)
        self._judged.append((item.verdict, stage))
        return found

    def _found(self, item: Judged, suspect: Suspect | None) -> Verdict | Finding:
        verdict, plan, record = item.verdict, item.plan, item.record
        if NO_REFERENCE.name in verdict.signature:
            self._without_kl.append(plan)
        if plan.key not in self._words:
            self._words[plan.key] = shlex.join(replace(plan, batch=self._batch).words)
        self._rows_taken[self._words[plan.key]] += 1
        if record is None or suspect is None:
            return verdict
        if self._waits and not self._parts:
            assert verdict.first is not None
            self.deferred = True
            return Finding(verdict, verdict.first, where=UNKNOWN)
        self._differing += 1
        rows = self._rows if self._differing == 1 or (self._rows and self._rows.given) else None
        if rows and rows.given and not self._has_cause:
            if rows.give(item) and verdict.first is not None:
                return Finding(verdict, verdict.first)
            self.rows_failed = True
        found = self._explained(verdict, suspect)
        known, is_named = bool(found.causes or found.of_all), self.sums.is_named
        self._has_cause |= known or (is_named and bool(found.possible))
        if rows and not (is_named and found.causes):
            rows.give(item)
        self._kept[known] += 1
        if self._kept[known] <= _AGAIN:
            found.suspect = suspect.alone
        return found

    def _explained(self, verdict: Verdict, suspect: Suspect) -> Finding:
        """Why a record differs, or what is known of that."""
        assert verdict.first is not None
        with np.errstate(all="ignore"):  # what is tried need not make sense for this record
            searched = self._memory.explained(suspect)
            found = searched or Explained(None)
            words = tuple(cause.words for cause in found.causes)
            where = found.where or UNKNOWN
            if found.where is None and words not in self._answers:
                where = located(suspect.case)
            for_all = any(cause.for_all for cause in found.causes)
            of_all = found.causes if for_all else ()
            if not for_all and self._kept[bool(found.causes)] >= _AGAIN:
                of_all = self._memory.for_all(suspect)  # now, as it is not kept to be asked later
        self._answers.add(words)
        return Finding(
            verdict,
            verdict.first,
            where=where,
            causes=() if for_all else found.causes,
            of_all=of_all,
            possible=[cause.words for cause in found.possible[:MOST]],
            searched=searched is not None,
        )

    def print_messages(self, *, as_json: bool, quiet: bool) -> None:
        """Prints the errors and the notes."""
        skipped = self.reader.skipped
        total = self._good + len(skipped)
        print_errors(skipped, as_json=as_json)
        print_skipped(skipped, total)
        print_notes(self.notes(), quiet=quiet)

    def notes(self) -> Iterator[str]:
        """What was assumed of the records, and what was not compared or not searched."""
        yield from self.reader.notes() | without_kl(self._without_kl)
        total = self._good + len(self.reader.skipped)
        if not self.sums.variant:
            rows = [*self._rows_taken.items()]
            frameworks = self.sums.frameworks if self._differing and not self._is_answered else ()
            listed = rows if self._whole else rows[:1]
            for words, count in listed:
                yield f"{self._counted(count)} evaluated as {words}"
            if more := sum(count for _, count in rows[len(listed) :]):
                yield f"{self._counted(more)} evaluated with other settings (--full lists them)"
            for framework in frameworks:
                if framework in USUAL:
                    name, row = USUAL[framework]
                    yield f"the fields have {name}'s names; -v {row} is its usual loss"
        if self.sums.logged:
            keys = ", ".join(f'"{key}"' for key in self.sums.logged)
            yield f"comparing with {keys} of each {self._unit}"
        if self.without_expected and self.without_expected < total:
            what = UNITS[self._unit]
            yield f'{self.without_expected} of {total} {what} have no "expected"'
        if self._inferred:
            whole = "the input" if self._batch == "input" else f"each {self._unit}"
            yield (
                f"{self._inferred.format(whole)}, so {whole} is compared as one batch; "
                "--batch record compares each record alone"
            )
        acting = self.sums.acting
        never = {name for name, _ in acting} - {name for name, acts in acting if acts}
        idle = [why for name, why in UNTESTED.items() if name in never]
        if idle and not self._differing:
            yield f"these records do not test {', '.join(idle)}"
        if self.undefined:
            records = self._counted(self.undefined)
            why = "not compared, since your loss is NaN (0/0) and the computed loss is 0"
            yield f"no token counts in {records}: {why}"
        yield from self._of_keys()
        if left := self._memory.left_out:
            records = f"{left} of {self._counted(self._differing, 'differing ')}"
            enough = self._memory.enough
            yield f"no cause was searched for in {records} (--causes {enough} searches all)"

    def _of_keys(self) -> Iterator[str]:
        """Which keys were not compared, which were rounded, and which metrics differ.

        Without --full of metrics, which decide nothing, only the first that differs is noted.
        """
        verdicts, total = self._verdicts, len(self._verdicts)

        def noted(keys: Iterable[str]) -> list[str]:
            return [key for key in keys if self._whole or not key.startswith(METRIC)]

        if ignored := noted(dict.fromkeys(key for one in verdicts for key in one.ignored)):
            yield f"not compared: {', '.join(ignored)}"
        rounded = dict.fromkeys(key for one in verdicts for key in one.rounded)
        forms: dict[tuple[str, int], list[str]] = {}
        for key in rounded:
            of_key = [one.rounded[key] for one in verdicts if key in one.rounded]
            forms.setdefault((max(of_key), len(of_key)), []).append(key)  # of decimals the most
        for (form, count), keys in forms.items():
            if names := noted(keys):
                verb = "was" if len(names) == 1 else "were"
                where = "" if count == total else f" in {count:,} of {self._counted(total)}"
                what = f"{', '.join(names)} {verb} rounded to {form}{where}"
                yield f"{what}, and compared to that precision{' there' * bool(where)}"
        differing = [(one, metric) for one in verdicts for metric in one.metrics]
        counts = Counter(metric.key for _, metric in differing)
        for key, count in [*counts.items()][: None if self._whole else 1]:
            one, metric = next(pair for pair in differing if pair[1].key == key)
            first = f"{shown(one.id)}: yours {metric.expected:g}, computed {metric.got:g}"
            records = f"{self._counted(count)} ({first})"
            yield f"{key} differs in {records}; metrics do not change the verdict"

    def _counted(self, count: int, which: str = "") -> str:
        """How many records, or what is compared instead of them."""
        return counted(count, f"{which}{self._unit}", f"{which}{UNITS[self._unit]}")
