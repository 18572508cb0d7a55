"""A chunk's part of the sums of its steps: made of all its records at once, then cut into steps."""

from __future__ import annotations

from functools import cached_property

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


class Measured:
    """The numbers of a chunk by response and by token, of which steps have theirs.

    Args:
        chunk: records with what a report shows of them.
        breakdown: theirs; None where the objective cannot be evaluated.
        rewards: [R] what ``rewards_of`` says.
    """

    def __init__(self, chunk: Chunk, breakdown: Breakdown | None, rewards: F64 | None) -> None:
        self._chunk = chunk
        self._summary = None if breakdown is None else Summary(breakdown)
        unknown = np.full(chunk.batch.responses.count, NO_NUMBER)
        self._rewards = unknown if rewards is None else rewards
        self._gradients = _gradients(self._summary, unknown)
        self._labels = [*labels(chunk)]
        self._functions = dict(functions(chunk))
        self._repetition = [*repetition(chunk)]
        self._counted: list[str] = []
        self._sums: dict[str, F64] = {}
        self._sizes: dict[str, F64] = {}
        self._tails: dict[str, Whole] = {}
        self._deciles: tuple[F64, I64] | None = None
        if chunk.batch.responses.total:
            self._measure_tokens()

    def _measure_tokens(self) -> None:
        batch = self._chunk.batch
        if batch.log_probs_new is not None:
            self._mean("log_prob", batch.log_probs_new)
            self._sizes["nll"] = -batch.log_probs_new
        if batch.entropies is not None:
            self._mean("entropy", batch.entropies)
        if self._summary is not None:
            self._measure_ratios(self._summary.breakdown)
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

    def _measure_ratios(self, breakdown: Breakdown) -> None:
        with np.errstate(over="ignore"):
            self._sum("ratio_squared", breakdown.ratio * breakdown.ratio)
        self._tails["log_ratio"] = bins(breakdown.log_ratio)
        self._sizes["ratio"] = np.abs(breakdown.log_ratio)

    def _measure_reference(self, difference: F64) -> None:
        """k1 and k3 of π_θ against the reference, with ``difference`` log π_ref − log π_θ."""
        with np.errstate(over="ignore"):
            k3 = np.exp(difference) - difference - 1.0
        self._sum("kl_k1", -difference)
        self._sum("kl_k3", k3)
        self._counted.append("kl")
        self._sizes["kl"] = k3

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
        self._sizes["mismatch"] = size
        self._deciles = self._in_deciles(size)

    def _in_deciles(self, size: F64) -> tuple[F64, I64]:
        """[10, R] Σ |d| and tokens of each tenth of the responses."""
        responses = self._chunk.batch.responses
        ends = np.arange(DECILES + 1) * responses.lengths[:, None]
        cuts = np.ceil(ends / DECILES).astype(np.int64)
        counts: I64 = np.diff(cuts)
        edges = (responses.starts[:, None] + cuts[:, :-1]).ravel()
        parts = np.zeros(counts.size)
        filled = counts.ravel() > 0
        parts[filled] = np.add.reduceat(size, edges[filled])
        return np.ascontiguousarray(parts.reshape(counts.shape).T), counts.T

    # ---- what a step has of it ------------------------------------------------------------------

    def add_to(self, sums: Sums, cut: Cut, batch: str) -> None:
        """Adds some of the records to the sums of their step; ``batch`` as ``--batch`` has it."""
        if self._summary is not None:
            sums.totals = sums.totals or Totals(batch)
            sums.totals.add_some(self._summary, cut)
        records, _, _, tokens = cut.counts
        sums.counts["tokens"] += tokens
        sums.counts["records"] += records
        self._add_rows(sums, cut)
        for name, values in self._functions.items():
            given = values[cut.responses]
            add_function(sums, name, given[~np.isnan(given)])
        if not tokens:
            return
        self._add_repetition(sums, cut.records)
        for name, values in self._sums.items():
            sums.sums[name].add(values[cut.responses])
        for name in self._counted:
            sums.counts[name] += tokens
        for name, tail in self._tails.items():
            sums.tails[name].add_bins(tail[cut.tokens])
        self._add_deciles(sums, cut.responses)
        self._note(sums, cut)

    def _add_rows(self, sums: Sums, cut: Cut) -> None:
        batch, rows = self._chunk.batch, sums.rows
        groups = batch.groups[cut.responses] + (len(rows.labels) - cut.groups.start)
        rows.rewards.frombytes(self._rewards[cut.responses].tobytes())
        rows.lengths.frombytes(batch.responses.lengths[cut.responses].astype(np.int64).tobytes())
        rows.gradients.frombytes(self._gradients[cut.responses].tobytes())
        rows.groups.frombytes(groups.astype(np.int64).tobytes())
        rows.labels += self._labels[cut.groups]

    def _add_repetition(self, sums: Sums, records: slice) -> None:
        shares = [one for one in self._repetition[records] if one is not None]
        if shares:
            sums.sums["repetition"].add(np.array(shares))
            sums.counts["repetition"] += len(shares)

    def _add_deciles(self, sums: Sums, responses: slice) -> None:
        if self._deciles is None:
            return
        parts, counts = self._deciles
        tokens = counts[:, responses].sum(axis=1).tolist()
        for number, (part, count) in enumerate(zip(parts, tokens, strict=True), 1):
            sums.sums[f"decile_{number}"].add(part[responses])
            sums.counts[f"decile_{number}"] += count

    # ---- places ---------------------------------------------------------------------------------

    def _note(self, sums: Sums, cut: Cut) -> None:
        """Keeps the places of the largest."""
        lengths = self._chunk.batch.responses.lengths[cut.responses]
        longest = int(lengths.argmax())
        place = self._of_response(cut.responses.start + longest, None, float(lengths[longest]))
        sums.note("length", place)
        for name, sizes in self._sizes.items():
            if name == "ratio":
                self._note_steepest(sums, cut.records)
            if name != "ratio" or self._moved[cut.tokens].any():
                self._note_largest(sums, name, sizes, cut.tokens)

    def _note_steepest(self, sums: Sums, records: slice) -> None:
        assert self._summary is not None
        squares = self._summary.record_gradient_squares[records]
        steepest = int(squares.argmax())
        first = int(self._chunk.batch.records.starts[records.start + steepest])
        size = float(np.sqrt(squares[steepest]))
        sums.note("gradient", self._of_response(first, None, size))

    @cached_property
    def _moved(self) -> NDArray[np.bool_]:
        """[N] the tokens of which the ratio is not 1."""
        assert self._summary is not None
        return self._summary.breakdown.ratio != 1.0

    def _note_largest(self, sums: Sums, name: str, sizes: F64, tokens: slice) -> None:
        token = tokens.start + int(sizes[tokens].argmax())
        known = sums.worst.get(name)
        if known is None or sizes[token] > known.value:
            sums.note(name, place_of(self._chunk, token, float(sizes[token])))

    def _of_response(self, response: int, token: int | None, value: float) -> Place:
        return _of_response(self._chunk, response, token, value)


def _gradients(summary: Summary | None, unknown: F64) -> F64:
    """[R] Σ |∂J/∂log π_θ| without the denominators that all responses share."""
    if summary is None or not summary.shared:
        return unknown
    (part,) = summary.breakdown.gradient_parts
    factor = part.weights.numerator / part.weights.divisor
    return np.abs(factor) * summary.responses.sum(np.abs(part.slope))


# ---- places ---------------------------------------------------------------------------------


def place_of(chunk: Chunk, token: int, value: float) -> Place:
    """Where a token of a chunk stands."""
    responses = chunk.batch.responses
    response = int(np.searchsorted(responses.starts, token, side="right")) - 1
    positions = chunk.batch.positions
    at = token - int(responses.starts[response]) if positions is None else int(positions[token])
    return _of_response(chunk, response, at, value)


def _of_response(chunk: Chunk, response: int, token: int | None, value: float) -> Place:
    starts: NDArray[np.int64] = chunk.batch.records.starts
    record = int(np.searchsorted(starts, response, side="right")) - 1
    found = chunk.records[record]
    number = response - int(starts[record])
    return Place(found.source, found.line, found.name, number, token, value)
