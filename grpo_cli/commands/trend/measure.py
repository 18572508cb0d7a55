"""A chunk's part of the sums of its steps: made of all its records at once, then cut into steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Cut
from grpo_cli.commands.trend.said import add_function, functions, labels, repetition
from grpo_cli.commands.trend.step import Place
from grpo_cli.commands.trend.sums import NO_NUMBER, Sums
from grpo_cli.commands.trend.tails import Whole, bins
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.totals import Totals
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.summary import Summary

DECILES = 10
_DECILES = tuple(f"decile_{number}" for number in range(1, DECILES + 1))


class Measured:
    """The numbers of a chunk by response and by token, of which steps have theirs.

    Args:
        chunk: records with what a report shows of them.
        breakdown: theirs; None where the objective cannot be evaluated.
        rewards: [R] what ``rewards_of`` says.
        cuts: the records of each step.
    """

    def __init__(
        self, chunk: Chunk, breakdown: Breakdown | None, rewards: F64 | None, cuts: Sequence[Cut]
    ) -> None:
        self._chunk, self._cuts = chunk, cuts
        self._summary = None if breakdown is None else Summary(breakdown)
        unknown = np.full(chunk.batch.responses.count, NO_NUMBER)
        self._rewards = unknown if rewards is None else rewards
        self._gradients = _gradients(self._summary, unknown)
        self._lengths = np.ascontiguousarray(chunk.batch.responses.lengths, dtype=np.int64)
        self._groups = np.ascontiguousarray(chunk.batch.groups, dtype=np.int64)
        self._labels = [*labels(chunk)]
        self._functions = dict(functions(chunk))
        self._repetition = [*repetition(chunk)]
        self._counted: list[str] = []
        self._filled = [cut.tokens.stop > cut.tokens.start for cut in cuts]
        self._sums: dict[str, F64] = {}
        self._tails: dict[str, Whole] = {}
        self._decile_counts: list[list[int]] | None = None
        self._worst: dict[str, list[Place | None]] = {}
        if chunk.batch.responses.total:
            self._measure_tokens()
        self._names = tuple(self._sums)
        rows = np.array([*self._sums.values()], dtype=np.float64)
        self._rows = rows.reshape(len(self._names), chunk.batch.responses.count)

    def _measure_tokens(self) -> None:
        batch = self._chunk.batch
        self._note_longest()
        if batch.log_probs_new is not None:
            self._mean("log_prob", batch.log_probs_new)
            self._note_tokens("nll", batch.log_probs_new, least=True)
        if batch.entropies is not None:
            self._mean("entropy", batch.entropies)
        if self._summary is not None:
            self._measure_ratios(self._summary)
        if batch.log_probs_ref is not None and batch.log_probs_new is not None:
            self._measure_reference(batch.log_probs_ref - batch.log_probs_new)
        trainer = batch.log_probs_new if batch.log_probs_old is None else batch.log_probs_old
        if batch.log_probs_rollout is not None and trainer is not None:
            self._measure_mismatch(trainer - batch.log_probs_rollout)

    def _sum(self, name: str, values: F64) -> None:
        self._sums[name] = self._chunk.batch.responses.sum(values)

    def _mean(self, name: str, values: F64) -> None:
        self._sum(name, values)
        self._counted.append(name)

    def _measure_ratios(self, summary: Summary) -> None:
        breakdown = summary.breakdown
        with np.errstate(over="ignore"):
            self._sum("ratio_squared", breakdown.ratio * breakdown.ratio)
        self._tails["log_ratio"] = bins(breakdown.log_ratio)
        self._note_steepest(summary.record_gradient_squares)
        self._note_tokens("ratio", np.abs(breakdown.log_ratio), of=breakdown.ratio)

    def _measure_reference(self, difference: F64) -> None:
        """k1 and k3 of π_θ against the reference, with ``difference`` log π_ref − log π_θ."""
        with np.errstate(over="ignore"):
            k3 = np.exp(difference)
        k3 -= difference
        k3 -= 1.0
        self._sum("kl_k1", difference)
        self._sums["kl_k1"] *= -1.0
        self._sum("kl_k3", k3)
        self._counted.append("kl")
        self._note_tokens("kl", k3)

    def _measure_mismatch(self, difference: F64) -> None:
        """The trainer against the engine, with ``difference`` d = log π_trainer − log π_engine."""
        size = np.abs(difference)
        with np.errstate(over="ignore"):
            weight = np.exp(difference)
            self._sum("mismatch_square", weight * weight)
            both = np.maximum(weight, 1.0 / weight)
        parts = {"d": difference, "weight": weight, "size": size, "both": both}
        for name, values in parts.items():
            self._sum(f"mismatch_{name}", values)
        self._counted.append("mismatch")
        self._tails["mismatch"] = bins(size)
        self._note_tokens("mismatch", size)
        tenths, counts = self._in_deciles(size)
        self._sums |= dict(zip(_DECILES, tenths, strict=True))
        before = np.zeros((len(counts) + 1, DECILES), dtype=np.int64)
        np.cumsum(counts, axis=0, out=before[1:])
        edges = np.array([(one.responses.start, one.responses.stop) for one in self._cuts])
        self._decile_counts = (before[edges[:, 1]] - before[edges[:, 0]]).tolist()

    def _in_deciles(self, size: F64) -> tuple[F64, I64]:
        """[10, R] Σ |d| and [R, 10] tokens of each tenth of the responses."""
        responses = self._chunk.batch.responses
        ends = np.arange(DECILES + 1) * responses.lengths[:, None]
        cuts = -(-ends // DECILES)
        counts: I64 = np.diff(cuts)
        edges = (responses.starts[:, None] + cuts[:, :-1]).ravel()
        parts = np.zeros(counts.size)
        filled = counts.ravel() > 0
        parts[filled] = np.add.reduceat(size, edges[filled])
        return parts.reshape(counts.shape).T, counts

    # ---- places ---------------------------------------------------------------------------------

    def _note_longest(self) -> None:
        lengths, starts = self._lengths, [cut.responses.start for cut in self._cuts]
        longest = [
            start + int(lengths[cut.responses].argmax()) if some else start
            for start, cut, some in zip(starts, self._cuts, self._filled, strict=True)
        ]
        sizes = lengths.astype(np.float64)[longest].tolist() if longest else []
        self._worst["length"] = [*_places(self._chunk, longest, None, sizes)]

    def _note_steepest(self, squares: F64) -> None:
        """The first response of the record with the largest gradient."""
        records = [cut.records.start + int(squares[cut.records].argmax()) for cut in self._cuts]
        firsts = self._chunk.batch.records.starts[records].tolist()
        sizes = np.sqrt(squares[records]).tolist()
        self._worst["gradient"] = [*_places(self._chunk, firsts, None, sizes)]

    def _note_tokens(
        self, name: str, sizes: F64, of: F64 | None = None, *, least: bool = False
    ) -> None:
        """The largest of each step, or the least; of ratios, where one of them is not 1."""
        tokens, noted = [], []
        place = np.argmin if least else np.argmax
        for cut, some in zip(self._cuts, self._filled, strict=True):
            token = cut.tokens.start + int(place(sizes[cut.tokens])) if some else 0
            if some and of is not None and of[token] == 1.0:
                some = bool((of[cut.tokens] != 1.0).any())
            noted.append(some)
            tokens += [token] if some else []
        values = -sizes[tokens] if least else sizes[tokens]
        places = places_of(self._chunk, tokens, values.tolist())
        self._worst[name] = [next(places) if some else None for some in noted]

    # ---- what a step has of it ------------------------------------------------------------------

    def add_to(self, sums: Sums, number: int, batch: str) -> None:
        """Adds the records of one step to its sums; ``batch`` as ``--batch`` has it."""
        cut = self._cuts[number]
        if self._summary is not None:
            sums.totals = sums.totals or Totals(batch)
            sums.totals.add_some(self._summary, cut)
        tokens = cut.tokens.stop - cut.tokens.start
        sums.counts["tokens"] += tokens
        self._add_rows(sums, cut)
        for name, values in self._functions.items():
            given = values[cut.responses]
            add_function(sums, name, given[~np.isnan(given)])
        if not tokens:
            return
        self._add_repetition(sums, cut.records)
        sums.sums.add_rows(self._names, self._rows[:, cut.responses].copy())
        for name in self._counted:
            sums.counts[name] += tokens
        for name, tail in self._tails.items():
            sums.tails[name].add_bins(tail[cut.tokens])
        if self._decile_counts is not None:
            for name, count in zip(_DECILES, self._decile_counts[number], strict=True):
                sums.counts[name] += count
        for name, places in self._worst.items():
            place = places[number]
            if place is not None:
                sums.note(name, place)

    def _add_rows(self, sums: Sums, cut: Cut) -> None:
        rows = sums.rows
        groups = self._groups[cut.responses] + (len(rows.labels) - cut.groups.start)
        rows.rewards.frombytes(self._rewards[cut.responses].tobytes())
        rows.lengths.frombytes(self._lengths[cut.responses].tobytes())
        rows.gradients.frombytes(self._gradients[cut.responses].tobytes())
        rows.groups.frombytes(groups.tobytes())
        rows.labels += self._labels[cut.groups]

    def _add_repetition(self, sums: Sums, records: slice) -> None:
        shares = [one for one in self._repetition[records] if one is not None]
        if shares:
            sums.sums.add("repetition", np.array(shares))
            sums.counts["repetition"] += len(shares)


def _gradients(summary: Summary | None, unknown: F64) -> F64:
    """[R] Σ |∂J/∂log π_θ| without the denominators that all responses share."""
    if summary is None or not summary.shared:
        return unknown
    (part,) = summary.breakdown.gradient_parts
    factor = part.weights.numerator / part.weights.divisor
    return np.abs(factor) * summary.responses.sum(np.abs(part.slope))


# ---- places ---------------------------------------------------------------------------------


def places_of(chunk: Chunk, tokens: Sequence[int], values: Sequence[float]) -> Iterator[Place]:
    """Where tokens of a chunk stand."""
    responses, positions = chunk.batch.responses, chunk.batch.positions
    places = np.array(tokens, dtype=np.int64)
    found = np.searchsorted(responses.starts, places, side="right") - 1
    inside = places - responses.starts[found] if positions is None else positions[places]
    return _places(chunk, found.tolist(), inside.tolist(), values)


def _places(
    chunk: Chunk, responses: Sequence[int], tokens: Sequence[int] | None, values: Sequence[float]
) -> Iterator[Place]:
    """Where responses stand, or a token of each."""
    starts: NDArray[np.int64] = chunk.batch.records.starts
    records = np.searchsorted(starts, np.array(responses, dtype=np.int64), side="right") - 1
    firsts = starts[records].tolist()
    each = repeat(None, len(responses)) if tokens is None else tokens
    for record, first, response, token, value in zip(
        records.tolist(), firsts, responses, each, values, strict=True
    ):
        found = chunk.records[record]
        yield Place(found.source, found.line, found.name, response - first, token, value)
