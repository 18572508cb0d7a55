"""Breakdown → one dict per record, with its responses and their tokens where they are asked for.

Arrays stay arrays (contiguous slices), so that no loop runs over tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from grpo_cli.engine.rows.fields import RECORD_FIELDS, RESPONSE_FIELDS, Level
from grpo_cli.engine.rows.lists import bounds, exact_sums, extreme, fraction, plain, whole
from grpo_cli.engine.rows.tokens import token_rows
from grpo_cli.objective.summary import Summary
from grpo_cli.objective.terms import ENTROPY, KL, POLICY

if TYPE_CHECKING:
    from grpo_cli.objective.breakdown import Breakdown
    from grpo_cli.records.record import Record

Row = dict[str, Any]


def rows(records: Sequence[Record], breakdown: Breakdown, level: Level) -> list[Row]:
    """One dict per record, in the order of ``RECORD_FIELDS``.

    At level ``response`` and ``token`` each has ``responses``, and at level ``token`` each of
    those has ``tokens``: a dict of columns.
    """
    if not records:
        return []
    summary = Summary(breakdown)
    result = _record_rows(records, summary)
    if level in ("response", "token"):
        responses = _response_rows(records, summary)
        if level == "token":
            for row, tokens in zip(responses, token_rows(records, breakdown), strict=True):
                row["tokens"] = tokens
        for row, (begin, end) in zip(result, pairwise(bounds(summary.records)), strict=True):
            row["responses"] = responses[begin:end]
    return result


def _record_rows(records: Sequence[Record], summary: Summary) -> list[Row]:
    breakdown, count = summary.breakdown, len(records)
    tokens = summary.record_tokens.lengths.tolist()
    values = {
        "id": [_number(one) if one.id is None else one.id for one in records],
        "source": [one.source for one in records],
        "line": [one.line for one in records],
        "objective": plain(breakdown.record_objective),
        "loss": plain(-breakdown.record_objective),
        "policy": plain(breakdown.record_value(POLICY)),
        "kl": [None] * count if breakdown.kl_unknown else plain(breakdown.record_value(KL)),
        "entropy": _entropies(breakdown),
        "denominator": whole(breakdown.denominator),
        "denominator_of": [breakdown.policy.weights.of] * count,
        "groups": breakdown.record_groups.tolist(),
        "response_count": summary.records.lengths.tolist(),
        "tokens": tokens,
        **_clip_columns(summary, summary.records.sum, tokens),
        "ratio_mean": fraction(exact_sums(summary.ratio_sums, summary.records), tokens),
        "ratio_min": extreme(np.minimum, breakdown.ratio, summary.record_tokens),
        "ratio_max": extreme(np.maximum, breakdown.ratio, summary.record_tokens),
        "gradient_norm": np.sqrt(summary.record_gradient_squares).tolist(),
        "dead_groups": summary.dead_groups.tolist(),
        "signature": [breakdown.objective.signature] * count,
    }
    return _zipped(values, RECORD_FIELDS)


def _number(record: Record) -> int:
    """What stands for an id: the record's 0-based line, or its index in a JSON array."""
    if record.line is not None:
        return record.line - 1
    index = record.prefix.strip("[].")
    return int(index) if index.isdigit() else 0


def _response_rows(records: Sequence[Record], summary: Summary) -> list[Row]:
    breakdown, responses = summary.breakdown, summary.responses
    lengths = responses.lengths.tolist()
    values = {
        "index": [place for size in summary.records.lengths.tolist() for place in range(size)],
        "group": [*_group_names(records, summary)],
        "reward": _rewards(breakdown),
        "advantage": _advantages(breakdown),
        "length": lengths,
        "weight": plain(breakdown.weight),
        "policy": plain(breakdown.weight * breakdown.policy.sums),
        "kl": _response_kl(breakdown),
        "contribution": plain(breakdown.response_contribution),
        **_clip_columns(summary, lambda counts: counts, lengths),
        "ratio_mean": fraction(summary.ratio_sums.tolist(), lengths),
        "ratio_min": extreme(np.minimum, breakdown.ratio, responses),
        "ratio_max": extreme(np.maximum, breakdown.ratio, responses),
        "gradient_norm": summary.response_gradient_norms.tolist(),
    }
    return _zipped(values, RESPONSE_FIELDS)


def _zipped(values: dict[str, list[Any]], names: tuple[str, ...]) -> list[Row]:
    return [
        dict(zip(names, row, strict=True))
        for row in zip(*(values[name] for name in names), strict=True)
    ]


def _clip_columns(summary: Summary, over: Any, tokens: list[int]) -> dict[str, list[float | None]]:
    low, high = over(summary.clipped_low), over(summary.clipped_high)
    return {
        "clip_fraction": fraction((low + high).tolist(), tokens),
        "clip_fraction_low": fraction(low.tolist(), tokens),
        "clip_fraction_high": fraction(high.tolist(), tokens),
    }


def _entropies(breakdown: Breakdown) -> list[Any]:
    if breakdown.term(ENTROPY) is None:
        return [None] * breakdown.batch.records.count
    return plain(breakdown.record_value(ENTROPY))


def _response_kl(breakdown: Breakdown) -> list[Any]:
    term = breakdown.term(KL)
    if term is None:
        return [None if breakdown.kl_unknown else 0.0] * breakdown.batch.responses.count
    return plain(breakdown.term_weight(term) * term.sums)


def _rewards(breakdown: Breakdown) -> list[Any]:
    """[R] one number, or with several reward functions a list or dict of them."""
    rewards, names = breakdown.batch.rewards, breakdown.batch.reward_names
    if rewards is None:
        return [None] * breakdown.batch.responses.count
    values = plain(rewards)
    if rewards.ndim == 2 and names:
        return [dict(zip(names, row, strict=True)) for row in values]
    return values


def _advantages(breakdown: Breakdown) -> list[Any]:
    """[R] None where the tokens of a response have advantages of their own."""
    if breakdown.response_advantage is None:
        return [None] * breakdown.batch.responses.count
    return plain(breakdown.response_advantage)


def _group_names(records: Sequence[Record], summary: Summary) -> Iterator[Any]:
    """[R] what the user calls each response's group, or its number in the record."""
    cuts = pairwise(bounds(summary.records))
    for record, (begin, end) in zip(records, cuts, strict=True):
        numbers, labels = summary.local_groups[begin:end], record.group_labels
        yield from numbers if labels is None else (labels[number] for number in numbers)
