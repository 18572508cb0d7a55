"""The part of a chunk in the sums of its steps: computed for all its records, then cut into steps.

What frameworks log is rarely a mean over a step's tokens. TRL and verl average a micro-batch (a
record), and then the micro-batches; slime averages a sample, and then the samples, those without a
token that counts as 0. The numbers for that are computed only where their names are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Cut
from grpo_cli.commands.trend.step import Place
from grpo_cli.commands.trend.sums import DECILES, EACH, NO_NUMBER, StepSums
from grpo_cli.commands.trend.tails import I32, Tail, bins
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.totals import Totals
from grpo_cli.objective.advantage.weighed import WEIGHTS, summed
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.summary import Summary

_GRAM = 4


def rewards_of(chunk: Chunk, breakdown: Breakdown | None) -> F64 | None:
    """[R] the reward of each response, its functions weighted as the objective weighs them.

    Where it does not (advantages are given), as the record says.

    Raises:
        HyperparameterError: where there are not as many weights as functions.
    """
    rewards = chunk.batch.rewards
    if rewards is None or rewards.ndim == 1:
        return rewards
    values = {} if breakdown is None else breakdown.objective.advantage.values
    weights = values.get(WEIGHTS, chunk.settings.get(WEIGHTS))
    return chunk.batch.summed_rewards if weights is None else summed(rewards, weights)


class ChunkNumbers:
    """The numbers of a chunk by response, by record and by token, and what each step has of them.

    Args:
        chunk: records with what a report shows of them.
        breakdown: of the chunk; None where the objective cannot be evaluated.
        rewards: [R] as ``rewards_of`` has them.
        cuts: the records of each step.
        logged: whether the sums of frameworks' metrics are wanted too.
    """

    def __init__(
        self,
        chunk: Chunk,
        breakdown: Breakdown | None,
        rewards: F64 | None,
        cuts: Sequence[Cut],
        *,
        logged: bool = False,
    ) -> None:
        self._chunk, self._cuts, self._logged = chunk, cuts, logged
        self._summary = None if breakdown is None else Summary(breakdown)
        unknown = np.full(chunk.batch.responses.count, NO_NUMBER)
        self._rewards = unknown if rewards is None else rewards
        self._gradients = _gradients(self._summary, unknown)
        self._lengths = np.ascontiguousarray(chunk.batch.responses.lengths, dtype=np.int64)
        self._groups = np.ascontiguousarray(chunk.batch.groups, dtype=np.int64)
        self._labels = [*_labels(chunk)]
        self._functions = dict(_functions(chunk))
        self._repetition = [*_repetition(chunk)]
        self._counted: list[str] = []
        self._filled = [cut.tokens.stop > cut.tokens.start for cut in cuts]
        self._sums: dict[str, F64] = {}
        self._tails: dict[str, I32] = {}
        self._decile_counts: list[list[int]] | None = None
        self._worst: dict[str, list[Place | None]] = {}
        self._averaged: dict[str, _Series] = {}
        self._extremes: dict[str, _Series] = {}
        if chunk.batch.responses.total:
            self._measure_tokens()
        self._names = tuple(self._sums)
        rows = np.array([*self._sums.values()], dtype=np.float64)
        self._rows = rows.reshape(len(self._names), chunk.batch.responses.count)

    def _measure_tokens(self) -> None:
        batch = self._chunk.batch
        self._find_longest()
        if batch.log_probs_new is not None:
            self._add_mean("log_prob", batch.log_probs_new)
            self._find_tokens("nll", batch.log_probs_new, least=True)
        if batch.entropies is not None:
            self._add_mean("entropy", batch.entropies)
        if self._summary is not None:
            self._measure_ratios(self._summary)
        if batch.log_probs_ref is not None and batch.log_probs_new is not None:
            self._measure_reference(batch.log_probs_ref - batch.log_probs_new)
        trainer = batch.log_probs_new if batch.log_probs_old is None else batch.log_probs_old
        if batch.log_probs_rollout is not None and trainer is not None:
            self._measure_mismatch(trainer - batch.log_probs_rollout)
            if self._logged and batch.log_probs_new is not None:
                self._measure_engine(trainer, batch.log_probs_new, batch.log_probs_rollout)
        if self._logged and self._summary is not None:
            self._measure_logged(self._summary)

    def _add_sum(self, name: str, values: F64) -> None:
        self._sums[name] = self._chunk.batch.responses.sum(values)

    def _add_mean(self, name: str, values: F64) -> None:
        self._add_sum(name, values)
        self._counted.append(name)

    def _measure_ratios(self, summary: Summary) -> None:
        breakdown = summary.breakdown
        with np.errstate(over="ignore"):
            self._add_sum("ratio_squared", breakdown.ratio * breakdown.ratio)
        self._tails["log_ratio"] = bins(breakdown.log_ratio)
        self._find_steepest(summary.record_gradient_squares)
        self._find_tokens("ratio", np.abs(breakdown.log_ratio), of=breakdown.ratio)

    def _measure_reference(self, difference: F64) -> None:
        """k1 and k3 of π_θ against the reference, with ``difference`` log π_ref − log π_θ."""
        k3 = _k3(difference)
        self._add_sum("kl_k1", difference)
        self._sums["kl_k1"] *= -1.0
        self._add_sum("kl_k3", k3)
        self._counted.append("kl")
        self._find_tokens("kl", k3)

    def _measure_mismatch(self, difference: F64) -> None:
        """The trainer against the engine, with ``difference`` d = log π_trainer − log π_engine."""
        size = np.abs(difference)
        with np.errstate(over="ignore", divide="ignore"):
            weight = np.exp(difference)
            self._add_sum("mismatch_square", weight * weight)
            both = np.maximum(weight, 1.0 / weight)
            if self._logged:
                self._add_sum("inverse_weight", np.exp(-difference))
        parts = {"d": difference, "weight": weight, "size": size, "both": both}
        for name, values in parts.items():
            self._add_sum(f"mismatch_{name}", values)
        self._counted.append("mismatch")
        self._tails["mismatch"] = bins(size)
        self._find_tokens("mismatch", size)
        tenths, counts = self._in_deciles(size)
        self._sums |= dict(zip(DECILES, tenths, strict=True))
        before = np.zeros((len(counts) + 1, len(DECILES)), dtype=np.int64)
        np.cumsum(counts, axis=0, out=before[1:])
        edges = np.array([(one.responses.start, one.responses.stop) for one in self._cuts])
        self._decile_counts = (before[edges[:, 1]] - before[edges[:, 0]]).tolist()

    def _in_deciles(self, size: F64) -> tuple[F64, I64]:
        """[10, R] Σ |d| and [R, 10] tokens of each tenth of the responses."""
        responses, tenths = self._chunk.batch.responses, len(DECILES)
        ends = np.arange(tenths + 1) * responses.lengths[:, None]
        cuts = -(-ends // tenths)
        counts: I64 = np.diff(cuts)
        edges = (responses.starts[:, None] + cuts[:, :-1]).ravel()
        parts = np.zeros(counts.size)
        filled = counts.ravel() > 0
        parts[filled] = np.add.reduceat(size, edges[filled])
        return parts.reshape(counts.shape).T, counts

    # ---- what frameworks log --------------------------------------------------------------------

    def _measure_engine(self, old: F64, new: F64, rollout: F64) -> None:
        """The policy, and the policy before the update, against the engine."""
        distance = np.abs(np.exp(old) - np.exp(rollout))
        self._add_mean("probs_diff", distance)
        self._add_mean("probs_diff_2", distance * distance)
        self._add_mean("new_k3", _k3(new - rollout))
        size = np.abs(old - rollout)
        means = self._chunk.batch.responses.mean(size)
        self._averaged["sample_logp_difference"] = _Series("responses", means)
        self._extremes["probs_diff_max"] = _Series("tokens", distance)
        self._extremes["logp_difference_max"] = _Series("tokens", size)

    def _measure_logged(self, summary: Summary) -> None:
        batch, breakdown = self._chunk.batch, summary.breakdown
        bound = breakdown.clip * (np.sign(breakdown.advantage) == breakdown.clip)
        columns = {
            "clip_low": (bound < 0).astype(np.float64),
            "clip_high": (bound > 0).astype(np.float64),
            "clip_region": (bound != 0).astype(np.float64),
            "clip": (breakdown.clip != 0).astype(np.float64),
        }
        if breakdown.kl is not None:
            columns["kl"] = breakdown.kl
        if batch.log_probs_old is not None and batch.log_probs_new is not None:
            columns["ppo_kl"] = batch.log_probs_old - batch.log_probs_new
        if batch.entropies is not None:
            columns["entropy"] = batch.entropies
        tokens = summary.record_tokens
        for name, values in columns.items():
            self._averaged[f"sample_{name}"] = _Series("responses", batch.responses.mean(values))
            if name == "ppo_kl":  # as verl's compute_policy_loss has it; slime does not clamp
                values = np.clip(values, -20.0, 20.0)
            means = tokens.mean(values)
            self._averaged[f"record_{name}"] = _Series("records", means, tokens.lengths > 0)
        if breakdown.correction is not None:
            self._measure_weights(breakdown, breakdown.correction)

    def _measure_weights(self, breakdown: Breakdown, weights: F64) -> None:
        """TRL's ratios as they are after truncation, one a token, or one a sequence."""
        responses, series = breakdown.batch.responses, _Series("tokens", weights)
        if "sequence" in breakdown.objective.correction.name:
            series = _Series("responses", responses.mean(weights), responses.lengths > 0)
        self._averaged["weights"] = self._extremes["weights_max"] = series
        self._extremes["weights_min"] = series._replace(values=-series.values)

    # ---- places ---------------------------------------------------------------------------------

    def _find_longest(self) -> None:
        lengths, starts = self._lengths, [cut.responses.start for cut in self._cuts]
        longest = [
            start + int(lengths[cut.responses].argmax()) if some else start
            for start, cut, some in zip(starts, self._cuts, self._filled, strict=True)
        ]
        sizes = lengths.astype(np.float64)[longest].tolist() if longest else []
        self._worst["length"] = [*self._places(longest, None, sizes)]

    def _find_steepest(self, squares: F64) -> None:
        """The first response of the record with the largest gradient."""
        records = [cut.records.start + int(squares[cut.records].argmax()) for cut in self._cuts]
        firsts = self._chunk.batch.records.starts[records].tolist()
        self._worst["gradient"] = [*self._places(firsts, None, np.sqrt(squares[records]).tolist())]

    def _find_tokens(
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
        places = self._token_places(tokens, values.tolist())
        self._worst[name] = [next(places) if some else None for some in noted]

    def _token_places(self, tokens: Sequence[int], values: Sequence[float]) -> Iterator[Place]:
        responses, positions = self._chunk.batch.responses, self._chunk.batch.positions
        places = np.array(tokens, dtype=np.int64)
        found = np.searchsorted(responses.starts, places, side="right") - 1
        inside = places - responses.starts[found] if positions is None else positions[places]
        return self._places(found.tolist(), inside.tolist(), values)

    def _places(
        self, responses: Sequence[int], tokens: Sequence[int] | None, values: Sequence[float]
    ) -> Iterator[Place]:
        """The places of responses, or of a token of each."""
        starts = self._chunk.batch.records.starts
        records = np.searchsorted(starts, np.array(responses, dtype=np.int64), side="right") - 1
        firsts = starts[records].tolist()
        each = repeat(None, len(responses)) if tokens is None else tokens
        for record, first, response, token, value in zip(
            records.tolist(), firsts, responses, each, values, strict=True
        ):
            found = self._chunk.records[record]
            yield Place(found.source, found.line, found.name, response - first, token, value)

    # ---- what a step has of it ------------------------------------------------------------------

    def add_to(self, sums: StepSums, number: int, batch: str) -> None:
        """Adds the records of one step to its sums; ``batch`` as ``--batch`` has it."""
        cut = self._cuts[number]
        if self._summary is not None:
            sums.totals = sums.totals or Totals(batch)
            sums.totals.add_some(self._summary, cut)
        tokens = cut.tokens.stop - cut.tokens.start
        sums.counts["tokens"] += tokens
        sums.counts["samples"] += cut.responses.stop - cut.responses.start
        self._add_rows(sums, cut)
        for name, values in self._functions.items():
            given = values[cut.responses]
            sums.add_values(name, given[~np.isnan(given)])
        if not tokens:
            return
        self._add_repetition(sums, cut.records)
        sums.sums.add_rows(self._names, self._rows[:, cut.responses].copy())
        for name in self._counted:
            sums.counts[name] += tokens
        for name, found in self._tails.items():
            sums.tails.setdefault(name, Tail()).add_bins(found[cut.tokens])
        if self._decile_counts is not None:
            for name, count in zip(DECILES, self._decile_counts[number], strict=True):
                sums.counts[name] += count
        for name, places in self._worst.items():
            place = places[number]
            if place is not None:
                sums.add_place(name, place)
        for name, series in self._averaged.items():
            sums.add_values(name, series.of(cut))
        for name, series in self._extremes.items():
            sums.add_extreme(name, float(series.of(cut).max()))

    def _add_rows(self, sums: StepSums, cut: Cut) -> None:
        rows = sums.rows
        groups = self._groups[cut.responses] + (len(rows.labels) - cut.groups.start)
        rows.rewards.frombytes(self._rewards[cut.responses].tobytes())
        rows.lengths.frombytes(self._lengths[cut.responses].tobytes())
        rows.gradients.frombytes(self._gradients[cut.responses].tobytes())
        rows.groups.frombytes(groups.tobytes())
        rows.labels += self._labels[cut.groups]

    def _add_repetition(self, sums: StepSums, records: slice) -> None:
        shares = [one for one in self._repetition[records] if one is not None]
        if shares:
            sums.add_values("repetition", np.array(shares))


class _Series(NamedTuple):
    """Numbers of each token, response or record, and which of them count; None: all."""

    unit: Literal["tokens", "responses", "records"]
    values: F64
    counted: NDArray[np.bool_] | None = None

    def of(self, cut: Cut) -> F64:
        """Those of one step."""
        part: slice = getattr(cut, self.unit)
        values = self.values[part]
        return values if self.counted is None else values[self.counted[part]]


def _k3(difference: F64) -> F64:
    """k3 = e^d − d − 1, where ``difference`` is d, from the policy that sampled to the other."""
    with np.errstate(over="ignore"):
        found = np.exp(difference)
    found -= difference
    found -= 1.0
    return found


def _gradients(summary: Summary | None, unknown: F64) -> F64:
    """[R] Σ |∂J/∂log π_θ| without the denominators that all responses share."""
    if summary is None or not summary.shared:
        return unknown
    (part,) = summary.breakdown.gradient_parts
    factor = part.weights.numerator / part.weights.divisor
    return np.abs(factor) * summary.responses.sum(np.abs(part.slope))


def _functions(chunk: Chunk) -> Iterator[tuple[str, F64]]:
    """[R] the rewards of each of several reward functions; NaN where it gave nothing."""
    batch = chunk.batch
    if batch.rewards is None or batch.rewards.ndim == 1:
        return
    names = batch.reward_names or range(batch.rewards.shape[1])
    for name, column in zip(names, batch.rewards.T, strict=True):
        yield f"{EACH}{name}", column


def _labels(chunk: Chunk) -> Iterator[Any]:
    """The name of each group of the chunk, in the order of their numbers."""
    groups, owners = chunk.batch.groups, chunk.batch.records.index
    owner = np.zeros(chunk.batch.group_count, dtype=np.int64)
    owner[groups] = owners
    for record, count in zip(
        chunk.records, np.bincount(owner, minlength=len(chunk.records)).tolist(), strict=True
    ):
        labels = record.group_labels or ()
        yield from labels if len(labels) == count else [None] * count


def _repetition(chunk: Chunk) -> Iterator[float | None]:
    """For each record's first response, the share of its 4-grams that it had before."""
    for record in chunk.records:
        rows = record.token_ids if record.tokens is None else record.tokens
        row = rows[0] if rows else ()
        count = len(row) - _GRAM + 1
        if count > 0:
            grams = zip(*(row[at : at + count] for at in range(_GRAM)), strict=True)
            yield 1.0 - len(set(grams)) / count
        else:
            yield None
