"""What records say beside the numbers of their tokens: rewards, groups, endings, versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.trend.sums import Sums
from grpo_cli.engine.chunk import Chunk
from grpo_cli.objective.advantage.weighed import WEIGHTS, summed
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.records.record import listed


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


def functions(chunk: Chunk) -> Iterator[tuple[str, F64]]:
    """[R] what each of several reward functions gave; NaN where it gave nothing."""
    batch = chunk.batch
    if batch.rewards is None or batch.rewards.ndim == 1:
        return
    names = batch.reward_names or range(batch.rewards.shape[1])
    for name, column in zip(names, batch.rewards.T, strict=True):
        yield f"{EACH}{name}", column


def add_function(sums: Sums, name: str, values: F64) -> None:
    """Adds what a reward function gave."""
    sums.sums.add(name, values)
    sums.counts[name] += len(values)


def labels(chunk: Chunk) -> Iterator[Any]:
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


def repetition(chunk: Chunk) -> Iterator[float | None]:
    """Of each record's first response, the share of its 4-grams that it had before."""
    for record in chunk.records:
        rows = record.token_ids if record.tokens is None else record.tokens
        row = rows[0] if rows else ()
        count = len(row) - _GRAM + 1
        if count > 0:
            grams = zip(*(row[at : at + count] for at in range(_GRAM)), strict=True)
            yield 1.0 - len(set(grams)) / count
        else:
            yield None


ENDINGS = ("truncated", "is_truncated", "finish_reasons", "finish_reason")
VERSIONS = ("weight_versions", "weight_version", "policy_version", "head_version")
SAID = frozenset((*ENDINGS, *VERSIONS, "meta"))
"""What a record may say of its responses that no objective reads."""

EACH = "rewards/"
"""Before the name of a reward function, as TRL logs it and its hook records it."""

_CUT_OFF = (True, "length", "max_tokens", "truncated")


def cut_off(value: Mapping[str, Any]) -> list[bool] | None:
    """Of each response that a record says so of, whether it was cut; None where it does not."""
    endings = next((value[name] for name in ENDINGS if value.get(name) is not None), None)
    if endings is None:
        return None
    plain = endings.tolist() if hasattr(endings, "tolist") else endings  # of a table's column
    return [one in _CUT_OFF for one in (plain if isinstance(plain, list) else [plain])]


def tells(key: str) -> bool:
    """Whether ``measure_said`` reads what stands under a key."""
    return key in SAID or key.startswith(EACH)


def says_more(keys: Iterable[str]) -> bool:
    """Whether records with these keys say what ``measure_said`` adds."""
    return any(map(tells, keys))


def more(value: Mapping[str, Any]) -> dict[str, Any] | None:
    """What of a record ``measure_said`` reads; None where there is nothing."""
    return {key: one for key, one in value.items() if tells(key)} or None


Tokens = Callable[[], Sequence[tuple[int, Sequence[int]]]]
"""[R] how many tokens each response has as written, and the indices of those that count."""


def measure_said(
    sums: Sums, step: int, value: Mapping[str, Any], tokens: Tokens = lambda: ()
) -> None:
    """Adds how responses ended, how old the policy is that sampled them, and reward functions.

    Args:
        sums: of the step.
        step: its number.
        value: what ``more`` says of a record.
        tokens: the record's, which are counted only where it says a version of each.
    """
    for name in value:
        if name.startswith(EACH) and isinstance(value[name], list):
            given = [one for one in value[name] if isinstance(one, int | float)]
            add_function(sums, name, np.array(given, dtype=np.float64))
    endings = cut_off(value)
    if endings is not None:
        sums.counts["cut_off"] += sum(endings)
        sums.counts["endings"] += len(endings)
    meta = value.get("meta")
    for holder in (value, meta if isinstance(meta, dict) else {}):
        said = next((holder[name] for name in VERSIONS if name in holder), None)
        if said is not None:
            known = [one for one in _versions(listed(said), tokens) if _is_whole(one)]
            sums.counts["lag"] += sum(step - one for one in known)
            sums.counts["versions"] += len(known)
            return


def _versions(said: Any, tokens: Tokens) -> Iterator[Any]:
    """The versions that count: one of a record, of each response, or of each of its tokens.

    Of tokens, those that count in the objective; a negative version is that of a token that no
    policy sampled (AReaL).
    """
    rows = said if isinstance(said, list) else [said]
    if not any(isinstance(one, list) for one in rows):
        of_one = len(rows) > 1 and [width for width, _ in tokens()] == [len(rows)]
        if not of_one:
            yield from rows
            return
        rows = [rows]
    if any(isinstance(one, list) for row in rows if isinstance(row, list) for one in row):
        rows = [row for group in rows for row in group]
    spans = dict(enumerate(tokens()))
    for at, row in enumerate(rows):
        width, kept = spans.get(at, (0, ()))
        each = row if isinstance(row, list) else [row]
        counted = [each[token] for token in kept] if len(each) == width else each
        yield from (one for one in counted if not (_is_whole(one) and one < 0))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
