"""Several variants on the same data, and how their gradients lie to each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial as bound

from grpo_cli.commands.compare.answer import Compared, Unserved
from grpo_cli.commands.compare.families import differences, replaced
from grpo_cli.commands.compare.sides import Partial, S, Side, Work
from grpo_cli.engine import Reader
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.references import lacks_kl, without_kl
from grpo_cli.engine.skipped import Skipped
from grpo_cli.errors import InputError
from grpo_cli.records import DecodedChunk
from grpo_cli.variants.plan import Plan


class Comparison:
    """Runs every plan on every piece of the data, in one pass and flat memory.

    A plan that needs statistics of the whole input costs a pass before it. Plans that the data
    cannot serve are set aside with the reason.

    Args:
        plans: the variants; cosines are with the first that can be served.
        source: the data.
    """

    def __init__(self, plans: Sequence[Plan], source: Reader) -> None:
        self._source = source
        self.skipped: dict[str, InputError] = {}
        self._order = [plan.variant for plan in plans]
        source.keep_input()
        source.batch_by(plans[0].batch if plans else "input")
        evaluators = self._measured([Evaluator(plan) for plan in plans])
        self.sides: list[Side] = []
        while evaluators:
            first = evaluators[0].plan.variant
            sums = self._fold(evaluators, Work.sums)
            self.sides = [*sums.values()]
            if first in sums:
                break
            evaluators = [side.evaluator for side in self.sides]
        without = [one.plan for one in self.sides if lacks_kl(one.signed)]
        source.notices.update(without_kl(without))

    def _measured(self, evaluators: Sequence[Evaluator]) -> list[Evaluator]:
        """The variants with the statistics of the whole input, for those that need some."""
        wanting = [one for one in evaluators if one.wants_first_pass]
        moments = self._fold(wanting, Work.moments) if wanting else {}
        return [
            one.after(moments[one.plan.variant]) if one.wants_first_pass else one
            for one in evaluators
            if one.plan.variant not in self.skipped
        ]

    def _fold(
        self,
        evaluators: Sequence[Evaluator],
        what: Callable[[Work, Iterable[DecodedChunk]], Partial[S]],
    ) -> dict[str, S]:
        """The sums of each variant over all data; those that these cannot serve are set aside."""
        source = self._source
        source.skipped = Skipped(source.most_errors)
        work = Work(tuple(evaluators), source.skip, source.most_errors)
        whole: Partial[S] | None = None
        for _, part in source.map(bound(what, work), together=True, by_columns=True):
            source.leave_out(part.bad)
            if whole is None:
                whole = part
            else:
                whole.merge(part)
        if source.reading.selects and (whole is None or not whole.read):
            raise source.nothing()
        found: dict[str, S] = {}
        for name, sums in ({} if whole is None else whole.sums).items():
            if isinstance(sums, InputError):
                self.skipped[name] = sums
            else:
                found[name] = sums
        return found

    def result(self) -> Compared:
        """The answer: lines in the order of the variants, batch by batch."""
        lines = [side.results(self.sides[0]) for side in self.sides]
        batches = self.sides[0].batches.values() if self.sides else ()
        names = ("records", "groups", "responses", "tokens")
        return Compared(
            variants=[line for batch in zip(*lines, strict=True) for line in batch],
            differences=differences(self.sides),
            replaced=replaced(self.sides),
            skipped=[_unserved(it, self.skipped[it]) for it in self._order if it in self.skipped],
            **{name: sum(getattr(one.totals, name) for one in batches) for name in names},
        )


def _unserved(variant: str, reason: InputError) -> Unserved:
    before, _, about = reason.message.partition("missing; ")
    if before or not about:
        return Unserved(variant, str(reason), None, None, None)
    advice = about.partition(" needs ")[2].removeprefix("it: ") or about
    place = str(reason).removesuffix(f": {reason.path}: {reason.message}")
    inside, name = re.fullmatch(_IN_ARRAY, reason.path).groups()  # type: ignore[union-attr]
    return Unserved(variant, str(reason), name, f"{place}: {inside}" if inside else place, advice)


_IN_ARRAY = r"(?s)(?:(\[\d+\])\.)?(.*)"
"""What begins a path where records are of an array or a table: the record's place."""
