"""A chunk's part of the sums of a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, Batch
from grpo_cli.commands.trend.step import Place
from grpo_cli.commands.trend.sums import NO_NUMBER, Sums
from grpo_cli.engine.chunk import Chunk
from grpo_cli.objective.advantage.weighed import WEIGHTS, summed
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.summary import Summary

DECILES = 10


def measure(sums: Sums, chunk: Chunk, breakdown: Breakdown | None, rewards: F64 | None) -> None:
    """Adds a chunk to the sums of its step.

    Args:
        sums: of the step.
        chunk: records with what a report shows of them.
        breakdown: theirs; None where the objective cannot be evaluated.
        rewards: [R] what ``rewards_of`` says.
    """
    batch = chunk.batch
    sums.counts["tokens"] += batch.responses.total
    sums.counts["records"] += batch.records.count
    _add_rows(sums, chunk, breakdown, rewards)
    _add_functions(sums, batch)
    if not batch.responses.total:
        return
    _note_longest(sums, chunk)
    _add_repetition(sums, chunk)
    if batch.log_probs_new is not None:
        _add(sums, batch, "log_prob", batch.log_probs_new)
        _note(sums, chunk, "nll", -batch.log_probs_new)
    if batch.entropies is not None:
        _add(sums, batch, "entropy", batch.entropies)
    if breakdown is not None:
        _add_ratios(sums, chunk, breakdown)
    if batch.log_probs_ref is not None and batch.log_probs_new is not None:
        _add_reference(sums, chunk, batch.log_probs_ref - batch.log_probs_new)
    trainer = batch.log_probs_new if batch.log_probs_old is None else batch.log_probs_old
    if batch.log_probs_rollout is not None and trainer is not None:
        _add_mismatch(sums, chunk, trainer - batch.log_probs_rollout)


def _add(sums: Sums, batch: Batch, name: str, values: F64) -> None:
    sums.sums[name].add(batch.responses.sum(values))
    sums.counts[name] += len(values)


# ---- responses ------------------------------------------------------------------------------


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


def _add_functions(sums: Sums, batch: Batch) -> None:
    """What each of several reward functions gave, where it gave something."""
    if batch.rewards is None or batch.rewards.ndim == 1:
        return
    names = batch.reward_names or range(batch.rewards.shape[1])
    for name, column in zip(names, batch.rewards.T, strict=True):
        _add_function(sums, f"{EACH}{name}", column[~np.isnan(column)])


def _add_function(sums: Sums, name: str, values: F64) -> None:
    sums.sums[name].add(values)
    sums.counts[name] += len(values)


def _add_rows(sums: Sums, chunk: Chunk, breakdown: Breakdown | None, rewards: F64 | None) -> None:
    batch, rows = chunk.batch, sums.rows
    unknown = np.full(batch.responses.count, NO_NUMBER)
    rows.rewards.frombytes((unknown if rewards is None else rewards).tobytes())
    rows.lengths.frombytes(batch.responses.lengths.astype(np.int64).tobytes())
    rows.gradients.frombytes(_gradients(breakdown, unknown).tobytes())
    rows.groups.extend((batch.groups + len(rows.labels)).tolist())
    rows.labels += _labels(chunk)


def _gradients(breakdown: Breakdown | None, unknown: F64) -> F64:
    """[R] Σ |∂J/∂log π_θ| without the denominators that all responses share."""
    if breakdown is None or not Summary(breakdown).shared:
        return unknown
    (part,) = breakdown.gradient_parts
    factor = part.weights.numerator / part.weights.divisor
    return np.abs(factor) * breakdown.batch.responses.sum(np.abs(part.slope))


def _labels(chunk: Chunk) -> Iterator[Any]:
    """What each group of the chunk is called, in the order of their numbers."""
    groups, owners = chunk.batch.groups, chunk.batch.records.index
    owner = np.zeros(chunk.batch.group_count, dtype=np.int64)
    owner[groups] = owners
    for record, count in zip(
        chunk.records, np.bincount(owner, minlength=len(chunk.records)).tolist(), strict=True
    ):
        labels = record.group_labels or ()
        yield from labels if len(labels) == count else [None] * count


_GRAM = 4


def _add_repetition(sums: Sums, chunk: Chunk) -> None:
    """Of each record's first response, the share of its 4-grams that it had before."""
    shares = []
    for record in chunk.records:
        rows = record.token_ids if record.tokens is None else record.tokens
        row = rows[0] if rows else ()
        count = len(row) - _GRAM + 1
        if count > 0:
            grams = zip(*(row[at : at + count] for at in range(_GRAM)), strict=True)
            shares.append(1.0 - len(set(grams)) / count)
    sums.sums["repetition"].add(np.array(shares))
    sums.counts["repetition"] += len(shares)


ENDINGS = ("truncated", "is_truncated", "finish_reasons", "finish_reason")
VERSIONS = ("weight_versions", "weight_version", "policy_version", "head_version")
SAID = frozenset((*ENDINGS, *VERSIONS, "meta"))
"""What a record may say of its responses that no objective reads."""

EACH = "rewards/"
"""Before the name of a reward function, as TRL logs it and its hook records it."""

_CUT_OFF = (True, 1, "length", "max_tokens", "truncated")


def says_more(keys: Iterable[str]) -> bool:
    """Whether records with these keys say what ``measure_said`` adds."""
    return any(key in SAID or key.startswith(EACH) for key in keys)


def measure_said(sums: Sums, step: int, value: Mapping[str, Any]) -> None:
    """Adds how responses ended, how old the policy is that sampled them, and reward functions."""
    for name in value:
        if name.startswith(EACH) and isinstance(value[name], list):
            given = [one for one in value[name] if isinstance(one, int | float)]
            _add_function(sums, name, np.array(given, dtype=np.float64))
    endings = next((value[name] for name in ENDINGS if value.get(name) is not None), None)
    if endings is not None:
        each = endings if isinstance(endings, list) else [endings]
        sums.counts["cut_off"] += sum(one in _CUT_OFF for one in each)
        sums.counts["endings"] += len(each)
    meta = value.get("meta")
    for holder in (value, meta if isinstance(meta, dict) else {}):
        versions = next((holder[name] for name in VERSIONS if name in holder), None)
        if versions is not None:
            each = versions if isinstance(versions, list) else [versions]
            known = [one for one in each if isinstance(one, int) and not isinstance(one, bool)]
            sums.counts["lag"] += sum(step - one for one in known)
            sums.counts["versions"] += len(known)
            return


# ---- tokens ---------------------------------------------------------------------------------


def _add_ratios(sums: Sums, chunk: Chunk, breakdown: Breakdown) -> None:
    responses, ratio = breakdown.batch.responses, breakdown.ratio
    with np.errstate(over="ignore"):
        sums.sums["ratio_squared"].add(responses.sum(ratio * ratio))
    sums.tails["log_ratio"].add(breakdown.log_ratio)
    squares = Summary(breakdown).record_gradient_squares
    steepest = int(squares.argmax())
    first = int(chunk.batch.records.starts[steepest])
    sums.note("gradient", _of_response(chunk, first, None, float(np.sqrt(squares[steepest]))))
    if (ratio == 1.0).all():
        return
    _note(sums, chunk, "ratio", np.abs(breakdown.log_ratio))


def _add_reference(sums: Sums, chunk: Chunk, difference: F64) -> None:
    """k1 and k3 of π_θ against the reference, with ``difference`` log π_ref − log π_θ."""
    with np.errstate(over="ignore"):
        k3 = np.exp(difference) - difference - 1.0
    responses = chunk.batch.responses
    sums.sums["kl_k1"].add(-responses.sum(difference))
    sums.sums["kl_k3"].add(responses.sum(k3))
    sums.counts["kl"] += len(k3)
    _note(sums, chunk, "kl", k3)


def _add_mismatch(sums: Sums, chunk: Chunk, difference: F64) -> None:
    """The trainer against the engine, with ``difference`` d = log π_trainer − log π_engine."""
    responses, size = chunk.batch.responses, np.abs(difference)
    with np.errstate(over="ignore"):
        weight = np.exp(difference)
        square = responses.sum(weight * weight)
        both = np.maximum(weight, 1.0 / weight)
    parts = {"d": difference, "weight": weight, "size": size, "both": both}
    for name, values in parts.items():
        sums.sums[f"mismatch_{name}"].add(responses.sum(values))
    sums.sums["mismatch_square"].add(square)
    sums.counts["mismatch"] += len(difference)
    sums.tails["mismatch"].add(size)
    _add_deciles(sums, chunk.batch, size)
    _note(sums, chunk, "mismatch", size)


def _add_deciles(sums: Sums, batch: Batch, size: F64) -> None:
    """Σ |d| and tokens of each tenth of the responses."""
    lengths, starts = batch.responses.lengths, batch.responses.starts
    cuts = np.ceil(np.arange(DECILES + 1) * lengths[:, None] / DECILES).astype(np.int64)
    counts = np.diff(cuts)
    edges = (starts[:, None] + cuts[:, :-1]).ravel()
    parts = np.zeros(counts.size)
    filled = counts.ravel() > 0
    parts[filled] = np.add.reduceat(size, edges[filled])
    for number, (column, count) in enumerate(
        zip(parts.reshape(counts.shape).T, counts.sum(axis=0).tolist(), strict=True), 1
    ):
        sums.sums[f"decile_{number}"].add(np.ascontiguousarray(column))
        sums.counts[f"decile_{number}"] += count


# ---- places ---------------------------------------------------------------------------------


def _note(sums: Sums, chunk: Chunk, name: str, size: F64) -> None:
    token = int(size.argmax())
    known = sums.worst.get(name)
    if known is None or size[token] > known.value:
        sums.note(name, place_of(chunk, token, float(size[token])))


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


def _note_longest(sums: Sums, chunk: Chunk) -> None:
    lengths = chunk.batch.responses.lengths
    longest = int(lengths.argmax())
    sums.note("length", _of_response(chunk, longest, None, float(lengths[longest])))
