"""Which conventions reproduce a number that a trainer logged?

Every row of the table of variants is tried as it is, and every combination of a standard deviation,
a ratio and clip, a KL and a denominator (``axes``); each also with the other sign and with the
factors of accumulation and data parallelism. A combination that fits only with another sign or
factor is told of when nothing fits without, or when it is a hundred times nearer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.match.candidate import Candidate, Target, apart, families
from grpo_cli.commands.match.scan import Scan, scan
from grpo_cli.commands.match.search_space import BETAS, axes
from grpo_cli.commands.match.sums import Data
from grpo_cli.engine.totals import Totals
from grpo_cli.errors import GrpoError
from grpo_cli.variants import VARIANTS
from grpo_cli.variants.plan import Plan, plan

RTOL = 1e-5
"""Default tolerance: ten times what adding up in float32 usually costs."""

_FLOAT32 = 2.0**-23
_MUCH_NEARER = 100.0
_ADJUSTED = 10
"""What a wrong sign or a factor costs: more than any choice of stages."""

_POWERS = (2, 4, 8, 16, 32, 64)
_FACTORS = ("gradient_accumulation_steps", "num_processes", "dp_size", "steps_per_generation")
_MOST = 300
NEAREST = 5


@dataclass(frozen=True)
class Answer:
    """What was found: the conventions within the tolerance, and the nearest ones, nearest first.

    ``apart`` says what data would tell the matches apart; ``reasons`` what could not be tried;
    ``tried`` how many conventions were.
    """

    matches: Sequence[Candidate]
    nearest: Sequence[Candidate]
    apart: Sequence[str]
    reasons: Mapping[str, str]
    tried: int

    @property
    def ambiguous(self) -> bool:
        """Whether several distinct conventions agree on this data."""
        return len(self.matches) > 1


class Search:
    """All candidates, as flat arrays: J, the magnitude of its parts, the cost, and the plans.

    Made once, it answers for any number of targets.

    Args:
        base: what the flags say; stages that flags swap stay as they are.
        data: the records.
        betas: values of β to try; by default the given one, or a few usual ones.
    """

    def __init__(self, base: Plan, data: Data, betas: Sequence[float] = ()) -> None:
        rows = [*_rows(base, data)]
        found = _scan(base, data, betas)
        self._data = data
        self._reasons = found.reasons
        self._rows = [made for made, *_ in rows]
        self._scan = found
        self._values = np.concatenate([np.array([value for _, value, _ in rows]), found.values])
        self._scales = np.concatenate([np.array([scale for *_, scale in rows]), found.scales])
        own = np.array([0 if made is base else 1 for made in self._rows], dtype=np.int64)
        self._costs = np.concatenate([own, found.costs + 2])
        self._times = _times(data)

    def answer(self, target: Target) -> Answer:
        """The conventions that give the target on the data."""
        self._target = target
        matches = families(self._fitting(), self._data)
        nearest = families(self._nearest(4 * NEAREST), self._data)[:NEAREST]
        tried = int(np.isfinite(self._values).sum())
        apart_by = apart(matches, self._data)
        return Answer(matches, nearest, apart_by, self._reasons, tried)

    def _off(self, times: float) -> F64:
        """[C] how far each value is from the target, with a factor and a sign."""
        off = np.abs(times * self._target.sign * self._values - self._target.number)
        return np.where(np.isfinite(off), off, np.inf)

    def _allowed(self, times: float) -> F64:
        return self._target.rtol * abs(self._target.number) + _FLOAT32 * abs(times) * self._scales

    def _fitting(self) -> list[Candidate]:
        """Those within the tolerance; nearest first, the plainer first among equals."""
        plain = self._within(1.0)
        best = min((abs(one.difference) for one in plain), default=math.inf)
        plain = [one for one in plain if abs(one.difference) <= self._agreeing(best)]
        if self._target.number == 0.0:
            return _sorted(plain)
        others = [one for times in self._times for one in self._within(times)]
        near = [one for one in others if abs(one.difference) * _MUCH_NEARER < best]
        return _sorted([*plain, *near])

    def _agreeing(self, best: float) -> float:
        """What is far further off than the nearest is no match for a number with many digits."""
        return max(1000.0 * best, 1e-7 * abs(self._target.number), 1e-12)

    def _within(self, times: float) -> list[Candidate]:
        off = self._off(times)
        found = np.flatnonzero(off <= self._allowed(times))
        order = np.lexsort((self._costs[found], off[found]))[:_MOST]
        return [self._candidate(int(at), times) for at in found[order]]

    def _nearest(self, count: int) -> list[Candidate]:
        """The nearest as they are; those with another sign or factor only if they are nearer."""
        found = []
        for times in (1.0, *self._times):
            off = self._off(times)
            kept = min(count if times == 1.0 else 1, len(off) - 1)
            order = np.argpartition(off, kept)[:kept] if kept > 0 else np.arange(len(off))
            found += [self._candidate(int(at), times) for at in order if np.isfinite(off[at])]
        return _sorted(found)

    def _candidate(self, at: int, times: float) -> Candidate:
        value = times * self._target.sign * float(self._values[at])
        made = self._rows[at] if at < len(self._rows) else self._scan.plan(at - len(self._rows))
        cost = int(self._costs[at]) + (0 if times == 1.0 else _ADJUSTED)
        return Candidate(made, value + 0.0, value - self._target.number, cost, times)


def _sorted(found: list[Candidate]) -> list[Candidate]:
    """Nearest first; among those that are as near as rounding can tell, the plainest first."""
    found.sort(key=lambda one: abs(one.difference))
    steps: list[Candidate] = []
    ranked: list[tuple[int, int, Candidate]] = []
    for one in found:
        noise = 1e-12 * max(abs(one.value), 1e-3)
        if not steps or abs(one.difference) > abs(steps[-1].difference) + noise:
            steps.append(one)
        ranked.append((len(steps), one.cost, one))
        one.difference = math.copysign(abs(steps[-1].difference), one.difference)
    ranked.sort(key=lambda entry: entry[:2])
    return [one for *_, one in ranked]


def _rows(base: Plan, data: Data) -> Iterator[tuple[Plan, float, float]]:
    """The plan itself and every row of the table: J, and the magnitude of its parts."""
    for made in [base, *_variants(base)]:
        totals, scale = Totals(made.batch), 0.0
        try:
            evaluator = data.evaluator(made)
            for chunk in data.chunks:
                breakdown = chunk.run(evaluator.evaluate)
                totals.add(breakdown)
                scale += float(np.abs(breakdown.policy.weighted).sum())
        except GrpoError:
            continue
        row = totals.row()
        counted = totals.records if made.batch == "record" else totals.count("policy")
        yield made, float(str(row["objective"])), scale / max(counted, 1.0)


def _variants(base: Plan) -> Iterator[Plan]:
    """Every other row that has the stages that flags ask for, with the flags that it takes."""
    for name in VARIANTS:
        bare = plan(name, stages=base.swapped, batch=base.batch)
        takes = bare.takes()
        flags = {flag: value for flag, value in base.flags.items() if flag in takes}
        if name != base.variant and (len(flags) == len(base.flags) or not base.swapped):
            yield plan(name, stages=base.swapped, hyperparameters=flags, batch=base.batch)


def _scan(base: Plan, data: Data, betas: Sequence[float]) -> Scan:
    first = data.chunks[0]
    known = "beta" in base.flags or all("beta" in chunk.settings for chunk in data.chunks)
    tried = tuple(betas) or (() if known else BETAS)
    found = axes(
        base,
        rewards=first.batch.rewards is not None,
        advantages=first.advantages_given,
        betas=tried,
    )
    return scan(base, found, data)


def _times(data: Data) -> list[float]:
    """Factors and signs other than none: powers of two, and what the records say."""
    said = {
        int(value)
        for chunk in data.chunks
        for name in _FACTORS
        if isinstance(value := chunk.settings.get(name), int) and value > 1
    }
    counts = sorted({*_POWERS, *said, *(a * b for a in said for b in said)})
    factors = [factor for count in counts for factor in (1.0 / count, float(count))]
    return [-1.0, *factors, *(-factor for factor in factors)]
