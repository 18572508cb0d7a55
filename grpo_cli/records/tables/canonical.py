"""Records as they are written: canonical names, everything that changes a number, as it was."""

from __future__ import annotations

import json
from typing import Any

import orjson

from grpo_cli.records.fields import canonical_name, read_fields
from grpo_cli.records.record import Raw


def canonical(raw: Raw, place: int) -> dict[str, Any]:
    """A record's object under canonical names.

    It keeps everything else that the object has beside them, and is given the id that reports
    call it by where it stands elsewhere now.

    Args:
        raw: a record that can be read.
        place: its 0-based number where it will be written.
    """
    value = raw.plain()
    fields = read_fields(value)
    own = {key: name for name, key in fields.names.items()}
    kept = {own.get(key, key): one for key, one in value.items() if _stays(key, one, own)}
    if not isinstance(kept.get("id"), str | int | float) and raw.number != place:
        return {"id": raw.number} | {name: one for name, one in kept.items() if name != "id"}
    return kept


def _stays(key: str, value: Any, own: dict[str, str]) -> bool:
    """Not where another key has the name, or where it would mean something under it."""
    return key in own or (value is not None and canonical_name(key) not in own.values())


def dumps(value: Any) -> bytes:
    """One line of JSON, without its end; NaN and infinities as Python and JavaScript spell them.

    orjson writes null for them, which would be another error, or none where they are masked.
    """
    try:
        data = orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    if b"null" in data:
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    return data
