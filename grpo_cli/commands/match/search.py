"""Which conventions reproduce a number that a trainer logged?

Every row of the table of variants is tried unmodified, and with one or two changes: another
advantage, ratio, clip, KL or denominator; each with the other sign and the factors of accumulation
and data parallelism. β is solved for if none is given, the usual ε are tried if the plain search
leaves the number unexplained, and then all ε of two digits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from grpo_cli.commands.match.fit import FLOAT32, factors_of
from grpo_cli.commands.match.lengths import with_length
from grpo_cli.commands.match.logged import all_agree, fitting, means_of, others_of, without_kl
from grpo_cli.commands.match.question import LoggedNumber, Question, exactly, unbound
from grpo_cli.commands.match.run import (
    RARE,
    Candidate,
    Families,
    Run,
    Unmodified,
    distinguishing,
    published_first,
)
from grpo_cli.commands.match.space.changes import FINE
from grpo_cli.commands.match.space.options import Sample
from grpo_cli.commands.match.space.space import DOUBTFUL, Depth, build, known
from grpo_cli.commands.match.terms import Measured
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.variants.plan import Plan

_FAR = 12.0
"""Bits beyond a sure convention's from which on another one is not named."""
_PLAINER = 6.0
"""Bits from which on a solved length is named in place of what is no chance either."""
_ALIKE = 2.0
"""Conventions within so many bits are equally simple: of these the nearest is named first."""
_LARGE = 1 << 18
"""Tokens from which the search begins with what is quickly evaluated, and no unusual ε is tried."""
_MOST_WORK = {Depth.QUICK: math.inf, Depth.PLAIN: 4e6, Depth.WIDE: 2e6}
"""Tokens up to which conventions are searched: half a minute's work each."""
TOO_LARGE = "large input"
_NOT_SEARCHED = {
    Depth.QUICK: "only the ratio and the surrogate of each variant were tried",
    Depth.PLAIN: "no other ε, and no β in the reward, was tried",
}


@dataclass(frozen=True)
class Search:
    """Answers for one or more numbers.

    Attributes:
        base: what the flags ask for; stages that flags swap stay fixed.
        betas: values of β to try; none: the given one, or it is solved for.
        recorded: the row that the records name; "" for none.
        doubted: whether ε and β are searched although the records give them.
    """

    base: Plan
    betas: Sequence[float] = ()
    recorded: str = ""
    doubted: bool = False

    def answer(self, questions: Sequence[Question]) -> Run:
        """The conventions that give every number on its data; a KL may be any usual mean of it.

        That is tried where no convention has the logged KL as its own.
        """
        run = self._answer(questions)
        if run.matches or not any(question.others for question in questions):
            return run
        if not run.fitting and sum(question.data.work for question in questions) > _LARGE:
            return run  # no unusual ε is tried, so nothing gives the losses either
        alone = self._answer([replace(question, others=()) for question in questions])
        if not alone.sure:
            return run
        return self._with_means(run, alone, questions)

    def _with_means(self, run: Run, alone: Run, questions: Sequence[Question]) -> Run:
        """What gives the losses, if it has the other numbers too, the KL as a usual mean of it.

        Else the first run, with what its losses alone would say.

        Args:
            run: nothing gives all the numbers as grpo eval does.
            alone: the answer to the losses.
            questions: all numbers.
        """
        first, kept, fits = alone.matches[0], [*alone.matches], dict[str, None]()
        for at, (question, measured) in enumerate(zip(questions, alone.measured, strict=True)):
            kept = evaluate(question, measured, kept)
            kept = [one for one in kept if all_agree(one, without_kl(question))]
            means = means_of(question)
            here = fitting(question, means)
            fits = {words: None for words in here if not at or words in fits}
        evaluate(questions[-1], alone.measured[-1], [first])
        if kept and fits:
            alone.matches, first = kept, kept[0]
        answer = alone if kept and fits else run
        answer.others = others_of(first, questions[-1], means, [*fits])
        answer.loss_alone = None if answer is alone else first
        return answer

    def _answer(self, questions: Sequence[Question]) -> Run:
        """The conventions that give every number on its data.

        The more there is to evaluate, the less is searched.
        """
        sample = Sample(questions[0].first, self.recorded)
        work = sum(question.data.work for question in questions)
        given = known(self.base, questions[0].first, doubted=self.doubted)
        settled = "epsilon" in given and ("beta" in given or bool(self.betas))
        depths = [depth for depth in Depth if work <= _MOST_WORK.get(depth, 0.0)]
        if work <= _LARGE:
            depths.remove(Depth.QUICK)
        for depth in depths:
            enough = depth is Depth.PLAIN and settled
            run = self._search(questions, sample, depth, last=enough or depth is depths[-1])
            if run.sure or (enough and run.matches):
                return run
        if depths[-1] is not Depth.WIDE:
            text = f"{_NOT_SEARCHED[depths[-1]]}; --where selects fewer records"
            run.reasons[TOO_LARGE] = text
        unknown = "epsilon" not in given and work <= _LARGE and not run.sure
        # if chance gives a number of so many digits, no ε could be named either
        if unknown and run.chance(min(FINE.values())) < RARE:
            fine = self._search(questions, sample, Depth.FINE, last=True)
            run = fine if fine.sure else run
        doubtful = DOUBTFUL & questions[0].first.settings.keys() - self.base.flags.keys()
        if not run.matches and doubtful and not self.doubted and work <= _LARGE:
            other = replace(self, doubted=True)._answer(questions)
            if other.sure:
                return other
        return run

    def _search(
        self, questions: Sequence[Question], sample: Sample, depth: Depth, *, last: bool
    ) -> Run:
        """One space asked; what only chance gives is confirmed by the last search alone."""
        first = questions[0].first
        large = sum(question.data.work for question in questions) > _LARGE
        space = build(self.base, sample, self.betas, depth, large=large, doubted=self.doubted)
        run = Run(space, factors_of(self.base, first), self.base.batch)
        for question in questions:
            run.ask(question)
        found = [*run.candidates()]
        lengths = [*with_length(run, questions[-1].target, Families(first, space))]
        needed = last or lengths or any(question.others for question in questions)
        if not needed and all(one.chance >= RARE for one in found):
            run.close()
            return run
        run.unmodified = self._unmodified(run)
        rows = [one for one in run.unmodified[1:] if one is not None]
        run.matches = self._confirm(run, questions, found, rows)
        plainer = (
            [one for one in lengths if one.bits + _PLAINER < run.matches[0].bits]
            if run.sure
            else lengths
        )
        run.matches = self._with_all(run, questions, plainer) or run.matches
        if not run.reproduced:
            run.matches.sort(key=lambda one: (one.bits // _ALIKE, abs(one.difference)))
        if not run.matches:
            run.nearest = self._confirm(run, questions, run.near(), fit=False)
        if len(run.matches) > 1:
            run.matches = published_first(run.matches)
            run.tell_apart = distinguishing(run.matches, first, run.has)
        run.close()
        return run

    def _with_all(
        self, run: Run, questions: Sequence[Question], solved: Sequence[Candidate]
    ) -> list[Candidate]:
        """Those that give all the numbers, of candidates that give the last one."""
        kept = [*solved]
        for question, measured in zip(questions[:-1], run.measured, strict=False) if kept else ():
            kept = evaluate(question, measured, kept)
            kept = [one for one in kept if _gives(one, question)]
        return self._confirm(run, questions, kept) if kept else []

    def _unmodified(self, run: Run) -> Unmodified:
        found = run.bare()
        names = {row: run.space.same.get(row, [row]) for row in found}
        nearest = next((run.row(found[row], names[row]) for row in found), None)
        named = next((row for row in found if self.recorded in names[row]), None)
        recorded = None
        if named is not None:
            recorded = run.row(found[named], dict.fromkeys([self.recorded, *names[named]]))
        return sum(map(len, names.values())), nearest, recorded

    def _confirm(
        self,
        run: Run,
        questions: Sequence[Question],
        found: list[Candidate],
        rows: Sequence[Candidate] = (),
        *,
        fit: bool = True,
    ) -> list[Candidate]:
        """Those that ``grpo eval`` confirms, with its numbers of the last question.

        What a scan has found gives all the losses; the other numbers are compared here.

        Args:
            run: found them.
            questions: the numbers.
            found: candidates.
            rows: candidates that get their numbers in the same pass, and are not listed.
            fit: whether candidates have to give the numbers.
        """
        kept = found
        *before, last = zip(questions, run.measured, strict=True)
        for question, measured in before:
            if fit and question.others:
                confirmed = evaluate(question, measured, kept)
                kept = [one for one in confirmed if all_agree(one, question)]
        question, measured = last
        confirmed = evaluate(question, measured, [*kept, *rows])
        kept = [one for one in confirmed if one not in rows]
        if fit:
            kept = [one for one in kept if _gives(one, question)]
            kept = [one for one in kept if all_agree(one, question)]
            given = known(self.base, question.first, doubted=self.doubted)
            if len(questions) == 1 and "epsilon" not in given:
                for one in confirmed:
                    assert one.totals is not None
                    objective = question.first.objective(one.plan)
                    one.unbound = unbound(objective, one.totals.reached)
        if found and any(question.others for question in questions):
            for one in kept:
                one.chance *= len(kept) / (len(found) + 1)
        return without_chance(kept, question.target)


def evaluate(question: Question, measured: Measured, found: Sequence[Candidate]) -> list[Candidate]:
    """The candidates with their numbers on a question's records, of those that can be evaluated."""
    evaluators = [Evaluator(one.plan, measured.get(one.measured)) for one in found]
    kept = []
    for one, total in zip(found, exactly(evaluators, question.data), strict=True):
        if total is not None and math.isfinite(total.objective):
            one.totals = total
            one.value = one.times * (question.target.sign * total.objective) + 0.0
            one.difference = one.value - question.target.value
            kept.append(one)
    return kept


def _gives(one: Candidate, question: Question) -> bool:
    """Whether a candidate that was evaluated gives the question's number."""
    return abs(one.difference) <= question.target.half + FLOAT32 * one.size


def without_chance(found: Sequence[Candidate], target: LoggedNumber) -> list[Candidate]:
    """The candidates; if the first is sure, without those that it makes implausible.

    Those are of other digits where chance gives some, or cost far more than the first.
    """
    if not found or not found[0].chance < RARE:
        return [*found]
    near = [target.half + 1e-12 * max(abs(one.value), one.size) for one in found]
    return [
        one
        for one, room in zip(found, near, strict=True)
        if (one.chance <= 1.0 or abs(one.difference) <= room) and one.bits <= found[0].bits + _FAR
    ]
