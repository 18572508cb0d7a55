"""What the totals mean where a number alone misleads: why a loss is 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grpo_cli.terminal.numbers import counted, shown


def notes(total: Mapping[str, Any]) -> list[str]:
    """One sentence for each thing that the totals hide."""
    return [*_notes(total)]


def _notes(total: Mapping[str, Any]) -> Iterator[str]:
    if not total["tokens"]:
        yield "no token counts: J = 0"
        return
    if total["denominator"] is None:
        yield (
            "the records' own denominators differ, so they are not one batch: the total adds up "
            "what each gives; --batch record takes their mean"
        )
    if on_policy := total["on_policy_records"]:
        yield _on_policy(on_policy, total["records"], total["gradient_norm"])
    if dead := total["dead_groups"]:
        yield _dead(dead, total["groups"])
    if empty := total["empty_responses"]:
        yield f"{_of(empty, total['responses'], 'response')} without a token that counts"


def _dead(dead: int, groups: int) -> str:
    if dead == groups:
        return "every group is dead: all advantages are 0"
    are = "is" if dead == 1 else "are"
    return f"{_of(dead, groups, 'group')} {are} dead: all their advantages are 0"


def _on_policy(still: int, records: int, gradient_norm: float) -> str:
    if still == records:
        return (
            "all ratios are exactly 1 (on-policy): the loss value says nothing, "
            f"the gradient norm is {shown(gradient_norm)}"
        )
    return (
        f"{_of(still, records, 'record')}: all ratios are exactly 1 (on-policy); "
        "their gradient says what they do, their loss does not"
    )


def _of(part: int, whole: int, name: str) -> str:
    return f"{part:,} of {counted(whole, name)}"
