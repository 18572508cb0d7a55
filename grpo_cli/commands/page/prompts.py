"""The prompts that a record has beside its responses, as text."""

from __future__ import annotations

from typing import Any

from grpo_cli.commands.show.words import flowing
from grpo_cli.records import Raw

KEYS = (
    "prompt",
    "prompts",
    "prompt_text",
    "messages",
    "question",
    "query",
    "problem",
    "prompt_ids",
)
"""Where a prompt may stand, the likeliest first."""


def prompts_of(raw: Raw, responses: int) -> list[str]:
    """One prompt for all responses, or one for each; none where the record has none."""
    value = raw.value if isinstance(raw.value, dict) else {}
    for key in KEYS:
        found = _prompts(value.get(key), responses)
        if found:
            return found[:1] if len(set(found)) == 1 else found
    return []


def _prompts(value: Any, responses: int) -> list[str]:
    if isinstance(value, list) and not _is_one(value):
        each = [_text(one) for one in value]
        if responses and len(each) and responses % len(each) == 0 and all(each):
            share = responses // len(each)
            return [text for text in each if text is not None for _ in range(share)]
        return []
    text = _text(value)
    return [] if text is None else [text]


def _is_one(value: list[Any]) -> bool:
    """Whether a list is one prompt: messages, or ids."""
    return bool(value) and all(_is_message(one) or type(one) is int for one in value)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and "content" in value


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return _part(value) if value else None
    if not isinstance(value, list) or not _is_one(value):
        return None
    if all(map(_is_message, value)):
        return "\n".join(map(_message, value))
    return "ids " + " ".join(map(str, value))


def _message(value: dict[str, Any]) -> str:
    role = f"{_part(value['role'])}: " if value.get("role") else ""
    return role + _part(value["content"])


def _part(value: Any) -> str:
    return flowing(value if isinstance(value, str) else str(value)).replace("↵\n", "\n")
