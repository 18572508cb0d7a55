"""Which conventions reproduce a number that a trainer logged?

Every row of the table of variants is tried as it is, and every one or two changes in one: another
advantage, ratio, clip, KL or denominator; each with the other sign and the factors of accumulation
and data parallelism. β is solved for where nobody gives it, ε and a constant length are searched
where the plain search leaves the number unexplained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.match.candidate import Candidate, apart
from grpo_cli.commands.match.confirm import FEW, all_agree, evaluated, without_chance
from grpo_cli.commands.match.factors import factors_of
from grpo_cli.commands.match.fit import FLOAT32
from grpo_cli.commands.match.question import Question
from grpo_cli.commands.match.run import Run
from grpo_cli.commands.match.solving.epsilon import solved as solve
from grpo_cli.commands.match.solving.unequal import pairs
from grpo_cli.commands.match.space.build import build
from grpo_cli.commands.match.space.known import Depth, Known
from grpo_cli.commands.match.space.natures import Natures
from grpo_cli.commands.match.sums.exact import Exactly, exactly
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.variants.plan import Plan

MANY = 0.3
"""Hits by chance from which on a hit says nothing: not well below 1."""


_ROUND = 10
"""Conventions with a round ε that are listed."""


@dataclass(frozen=True)
class Released:
    """What the rows give as they stand, without a change, a factor or the other sign.

    Attributes:
        tried: how many rows there are that the data can serve.
        nearest: the one that comes nearest to the number.
        recorded: the one that the records name; None where they name none.
    """

    tried: int
    nearest: Candidate | None
    recorded: Candidate | None


@dataclass(frozen=True)
class Answer:
    """What was found.

    Attributes:
        matches: the conventions that give the number, the likeliest first.
        nearest: the nearest plain ones, nearest first.
        chance: conventions, of all that were tried, that such a number hits by chance.
        apart: what data would tell the matches apart.
        reasons: what could not be tried, and why.
        tried: how many conventions were.
        released: what the rows give as they stand.
    """

    matches: Sequence[Candidate]
    nearest: Sequence[Candidate]
    chance: float
    apart: Sequence[str]
    reasons: Mapping[str, str]
    tried: int
    released: Released

    @property
    def ambiguous(self) -> bool:
        """Whether several distinct conventions agree on this data."""
        return len(self.matches) > 1

    @property
    def by_chance(self) -> bool:
        """Whether a number of so few digits is hit by conventions as plain as the first."""
        return bool(self.matches) and not self.matches[0].chance < FEW

    @property
    def sure(self) -> bool:
        """Whether a convention gives the number, and chance does not."""
        return bool(self.matches) and not self.by_chance

    @property
    def reproduced(self) -> bool:
        """Whether anything gives the number that chance alone would hardly give."""
        return bool(self.matches) and self.matches[0].chance < MANY


@dataclass(frozen=True)
class Search:
    """Answers for one or more numbers.

    Attributes:
        base: what the flags say; stages that flags swap stay as they are.
        betas: values of β to try; none: the given one, or it is solved for.
        large: whether to begin with what is quickly evaluated, and to stop if that is enough.
        recorded: the row that the records name; "" for none.
    """

    base: Plan
    betas: Sequence[float] = ()
    large: bool = False
    recorded: str = ""

    def answer(self, questions: Sequence[Question]) -> Answer:
        """The conventions that give every number on its data."""
        natures = Natures(questions[0].first.first)
        if self.large:
            found, _ = self._searched(questions, natures, Depth.QUICK)
            if found.sure:
                return found
        found, _ = self._searched(questions, natures, Depth.PLAIN)
        known = Known.of(self.base, questions[0].first)
        settled = known.epsilon and (known.beta or bool(self.betas))
        if found.sure or (found.matches and settled):
            return found
        found, run = self._searched(questions, natures, Depth.WIDE)
        if known.epsilon or self.large or len(questions) > 1 or found.sure:
            return found
        return self._with_epsilon(run, questions[0], found)

    def _searched(
        self, questions: Sequence[Question], natures: Natures, depth: Depth
    ) -> tuple[Answer, Run]:
        first = questions[0].first
        space = build(self.base, natures, self.betas, depth)
        run = Run(space, factors_of(self.base, first), self.base.batch)
        likely = self._likely(questions, depth)
        for question in questions:
            run.ask(question, likely)
        released = self._released(run)
        beside = [one for one in (released.nearest, released.recorded) if one is not None]
        matches = self._exact(run, questions, [*run.matches()], beside)
        nearest = [] if matches else self._exact(run, questions, run.nearest(), fit=False)
        chance = run.chance(63.0, 0.0)
        apart_by = apart(matches, first, run.has) if len(matches) > 1 else []
        answer = Answer(matches, nearest, chance, apart_by, space.reasons, run.tried, released)
        return answer, run

    def _likely(self, questions: Sequence[Question], depth: Depth) -> Exactly:
        """What gets its exact totals while a large input is searched: what is asked for."""
        evaluator = Evaluator(self.base)
        wanted = depth is Depth.QUICK and not evaluator.wants_first_pass
        everything = any(question.others for question in questions)
        return Exactly([evaluator] if wanted else [], everything, self._unsure(questions))

    def _unsure(self, questions: Sequence[Question]) -> bool:
        """Whether it is to be told from which ε on any gives the number."""
        return len(questions) == 1 and not Known.of(self.base, questions[0].first).epsilon

    def _released(self, run: Run) -> Released:
        found = run.released()
        names = {row: run.space.same.get(row, [row]) for row in found}
        tried = sum(map(len, names.values()))
        nearest = next((run.as_released(found[row], names[row]) for row in found), None)
        recorded = next(
            (
                run.as_released(found[row], dict.fromkeys([self.recorded, *names[row]]))
                for row in found
                if self.recorded in names[row]
            ),
            None,
        )
        return Released(tried, nearest, recorded)

    def _with_epsilon(self, run: Run, question: Question, found: Answer) -> Answer:
        """The answer with a round ε, where chance does not give it."""
        sign = -1.0 if question.target.name == "loss" else 1.0
        data = question.data.kept()  # it is gone over some sixty times, and is not large

        def values(plans: Sequence[Plan]) -> F64:
            totals = exactly(
                [Evaluator(plan) for plan in plans], data, everything=False, reaching=False
            )
            sums = [math.nan if one is None else sum(one.parts().values()) for one in totals]
            return sign * np.array(sums)

        for way in (solve, pairs):
            solved = way(run.space, run.every, run.factors, question.target, values)
            matches = self._exact(run, [question], solved[:_ROUND])
            if matches and matches[0].chance < FEW:
                return replace(found, matches=matches, nearest=[], apart=[])
        return found

    def _exact(
        self,
        run: Run,
        questions: Sequence[Question],
        found: list[Candidate],
        beside: Sequence[Candidate] = (),
        *,
        fit: bool = True,
    ) -> list[Candidate]:
        """Those that ``grpo eval`` confirms, with the numbers that it gives of the last question.

        What a scan has found gives all the losses; what was logged beside them is compared here.
        Those ``beside`` get their numbers in the same pass.
        """
        kept = found
        *before, last = zip(questions, run.measured, run.likely, strict=True)
        for question, measured, likely in before:
            if fit and question.others:
                confirmed = evaluated(question, measured, likely, kept, reaching=False)
                kept = [one for one in confirmed if all_agree(one, question)]
        question, measured, likely = last
        unsure = fit and self._unsure(questions)
        known = likely if fit else {}
        confirmed = evaluated(question, measured, known, [*kept, *beside], reaching=unsure)
        kept = [one for one in confirmed if one not in beside]
        if fit:
            near = question.target.half
            kept = [one for one in kept if abs(one.difference) <= near + FLOAT32 * one.size]
            kept = [one for one in kept if all_agree(one, question)]
        if found and any(question.others for question in questions):
            for one in kept:
                one.chance *= len(kept) / (len(found) + 1)
        return without_chance(kept, question.target)
