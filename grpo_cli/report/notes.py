"""What the totals mean where a number alone misleads: why a loss is 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grpo_cli.report.numbers import shown


def notes(total: Mapping[str, Any]) -> list[str]:
    """One sentence for each thing that the totals hide."""
    return [*_notes(total)]


def _notes(total: Mapping[str, Any]) -> Iterator[str]:
    if not total["tokens"]:
        yield "no token counts: J = 0"
        return
    if on_policy := total["on_policy_records"]:
        which = _all_or(on_policy, total["records"], "record")
        norm = shown(total["gradient_norm"])
        yield (
            f"{which}all ratios are exactly 1 (on-policy): "
            f"the loss value says nothing, the gradient norm is {norm}"
        )
    if dead := total["dead_groups"]:
        yield _dead(dead, total["groups"])
    if empty := total["empty_responses"]:
        yield f"{_of(empty, total['responses'], 'response')} without a token that counts"


def _dead(dead: int, groups: int) -> str:
    if dead == groups:
        return "every group is dead: all advantages are 0"
    are = "is" if dead == 1 else "are"
    return f"{_of(dead, groups, 'group')} {are} dead: all their advantages are 0"


def _all_or(part: int, whole: int, name: str) -> str:
    """Nothing where it is all of them, else how many it is, with a colon."""
    return "" if part == whole else f"{_of(part, whole, name)}: "


def _of(part: int, whole: int, name: str) -> str:
    return f"{part:,} of {whole:,} {name}{'' if whole == 1 else 's'}"
