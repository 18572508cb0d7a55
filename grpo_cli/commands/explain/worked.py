"""One record's arithmetic, step by step: advantages, ratios, clips, sums, the denominator."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.explain.names import formula, summary_of
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.rows.source import Source
from grpo_cli.objective.advantage.weighed import WEIGHTS, summed
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.terms import ENTROPY, KL, POLICY

SMALL = 48
"""A record of so many tokens is shown in full."""

TOP = 5
"""Of a larger one, so many tokens of so many responses."""

Row = dict[str, Any]


def worked(chunk: Chunk, breakdown: Breakdown, *, full: bool = False) -> Row:
    """The arithmetic of a chunk that is one record.

    Args:
        chunk: the record.
        breakdown: what it evaluates to, as a batch of its own.
        full: show all tokens.
    """
    record, objective = chunk.records[0], breakdown.objective
    full = full or breakdown.batch.responses.total <= SMALL
    shown: Sequence[int] = range(breakdown.batch.responses.count)
    if not full:
        sizes = breakdown.batch.responses.sum(np.abs(breakdown.gradient))
        shown = np.argsort(-sizes, kind="stable")[:TOP].tolist()
    entropy, bonus = breakdown.term(ENTROPY), {}
    if entropy is not None:
        value = float(breakdown.record_value(ENTROPY)[0])
        bonus = {"entropy": value, "entropy_coef": entropy.coefficient}
    return {
        "id": record.id,
        "source": record.source,
        "line": record.line,
        "signature": objective.signature,
        "stages": {name: summary_of(bound) for name, bound in objective.stages.items()},
        "formula": formula(objective),
        "groups": [*_groups(chunk, breakdown)],
        "responses": [
            _response(chunk, breakdown, at, full=full if at in shown else None)
            for at in range(chunk.batch.responses.count)
        ],
        "denominator": float(breakdown.denominator[0]),
        "denominator_of": breakdown.counted,
        "policy": float(breakdown.record_value(POLICY)[0]),
        "kl": None if breakdown.kl_unknown else float(breakdown.record_value(KL)[0]),
        "beta": breakdown.beta,
        **bonus,
        "objective": float(breakdown.record_objective[0]) + 0.0,
        "loss": -float(breakdown.record_objective[0]) + 0.0,
    }


def _groups(chunk: Chunk, breakdown: Breakdown) -> Iterator[Row]:
    rewards = chunk.batch.rewards
    if rewards is None or breakdown.objective.advantage.choice.given:
        return
    values_of = breakdown.objective.advantage.values
    whole = chunk.batch.summed_rewards
    assert whole is not None
    if WEIGHTS in values_of:
        whole = summed(rewards.reshape(len(whole), -1), values_of[WEIGHTS])
    ddof = values_of.get("std_ddof")
    labels, own = chunk.records[0].group_labels, breakdown.response_advantage
    order = np.argsort(chunk.batch.groups, kind="stable")
    ends = np.cumsum(np.bincount(chunk.batch.groups, minlength=chunk.batch.group_count))
    for group, members in enumerate(np.split(order, ends[:-1])):
        values = whole[members].tolist()
        mean = math.fsum(values) / len(values)
        std, free = None, len(values) - ddof if isinstance(ddof, int) else 0
        if free > 0:
            std = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / free)
        yield {
            "group": group if labels is None else labels[group],
            "responses": members.tolist(),
            "rewards": values,
            "mean": mean,
            "std": std,
            "std_ddof": ddof,
            "advantages": None if own is None else own[members].tolist(),
        }


def _response(chunk: Chunk, breakdown: Breakdown, at: int, *, full: bool | None) -> Row:
    """The arithmetic of a response; ``full``: whether with all tokens, None without any."""
    responses = chunk.batch.responses
    start, length = int(responses.starts[at]), int(responses.lengths[at])
    own = breakdown.response_advantage

    def sums(term: str) -> float | None:
        found = breakdown.term(term)
        return None if found is None else float(found.sums[at])

    row: Row = {
        "index": at,
        "advantage": None if own is None else float(own[at]),
        "length": length,
        "weight": float(breakdown.weight[at]),
        "surrogate_sum": float(breakdown.policy.sums[at]),
        "kl_sum": sums(KL),
        **({} if breakdown.term(ENTROPY) is None else {"entropy_sum": sums(ENTROPY)}),
        "contribution": float(breakdown.response_contribution[at]),
        "gradient_norm": float(np.linalg.norm(breakdown.gradient[start : start + length])),
    }
    if full is not None:
        columns, words = _columns(breakdown, slice(start, start + length)), chunk.records[0].tokens
        row["tokens"], row["rest"] = _tokens(columns, words[at] if words else None, full=full)
    return row


def _tokens(
    columns: Mapping[str, F64], words: Sequence[str] | None, *, full: bool
) -> tuple[list[Row], Row | None]:
    """The tokens of a response that matter, in order, and the sum of the others."""
    length = len(columns["position"])
    all_shown = full or length <= 2 * TOP
    size = np.abs(columns["gradient"]) + np.abs(columns["contribution"])
    order = np.argsort(-size, kind="stable")
    kept = np.arange(length) if all_shown else np.sort(order[:TOP])
    rows = []
    for token in kept.tolist():
        row = {name: values[token].item() for name, values in columns.items()}
        row["position"] = int(row["position"])
        row["token"] = words[row["position"]] if words else None
        rows.append(row)
    others = np.setdiff1d(np.arange(length), kept)
    if not len(others):
        return rows, None
    sums = ("surrogate", "kl", "entropy", "contribution")
    return rows, {
        "count": len(others),
        **{name: math.fsum(columns[name][others].tolist()) for name in sums if name in columns},
    }


def _columns(breakdown: Breakdown, tokens: slice) -> dict[str, F64]:
    """The steps of some tokens, from log-probs to their parts of J."""
    batch, bound = breakdown.batch, breakdown.objective.surrogate

    def part(values: NDArray[Any] | None) -> F64 | None:
        return None if values is None else values[tokens].astype(np.float64)

    ratio, advantage, surrogate = (
        one[tokens] for one in (breakdown.ratio, breakdown.advantage, breakdown.surrogate)
    )
    correction = part(breakdown.correction)
    columns: dict[str, F64 | None] = {
        "position": part(Source((), breakdown).positions),
        "log_probs_new": part(batch.log_probs_new),
        "log_probs_old": part(batch.log_probs_old),
        "log_ratio": part(breakdown.log_ratio),
        "ratio": ratio,
        "advantage": advantage if breakdown.response_advantage is None else None,
    }
    if bound.choice.window == "product":
        low, high = (float(bound.values[name] or 0.0) for name in ("epsilon_low", "epsilon_high"))
        columns["free"] = ratio * advantage
        columns["bounded"] = np.clip(ratio, 1.0 - low, 1.0 + high) * advantage
    columns |= {
        "clip": part(breakdown.clip),
        "correction": correction,
        "surrogate": surrogate if correction is None else correction * surrogate,
        "kl": part(breakdown.kl) if breakdown.beta else None,
        "entropy": None if breakdown.term(ENTROPY) is None else part(batch.entropies),
        "contribution": part(breakdown.contribution),
        "gradient": part(breakdown.gradient),
    }
    return {name: column + 0.0 for name, column in columns.items() if column is not None}
