"""Records as they are written: canonical names, everything that changes a number, as it was."""

from __future__ import annotations

import json
from typing import Any

import orjson

from grpo_cli.errors import InputError
from grpo_cli.records.fields import canonical_name, read_fields
from grpo_cli.records.record import Raw


def canonical(raw: Raw, place: int) -> dict[str, Any]:
    """A record's object under canonical names.

    It keeps everything else that the object has, and is given the id that reports
    call it by its new place otherwise.

    Args:
        raw: a record that can be read.
        place: its 0-based number where it will be written.
    """
    value = raw.plain()
    fields = read_fields(value)
    own = {key: name for name, key in fields.names.items()}
    kept = {own.get(key, key): one for key, one in value.items() if _stays(key, one, own)}
    return kept if has_id(kept) or raw.number == place else named(kept, raw.number)


def has_id(value: dict[str, Any]) -> bool:
    """Whether reports call a record by an id of its own."""
    return isinstance(value.get("id"), str | int | float)


def named(value: dict[str, Any], number: int) -> dict[str, Any]:
    """A record with a number for its id."""
    return {"id": number} | {name: one for name, one in value.items() if name != "id"}


def _stays(key: str, value: Any, own: dict[str, str]) -> bool:
    """Not where another key has the name, or where it would mean something under it."""
    return key in own or (value is not None and canonical_name(key) not in own.values())


def dumps(value: dict[str, Any]) -> bytes:
    """One line of JSON, without its end; NaN and infinities as Python and JavaScript spell them.

    orjson writes null for them, which would be another error, or none where they are masked.

    Raises:
        InputError: for what JSON cannot hold; its path is the key.
    """
    try:
        data = orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits, or more than 254 levels
        return _by_key(value)
    return _by_key(value) if b"null" in data else data


def _by_key(value: dict[str, Any]) -> bytes:
    parts = (
        f"{json.dumps(key, ensure_ascii=False)}: {_part(key, part)}" for key, part in value.items()
    )
    return f"{{{', '.join(parts)}}}".encode("utf-8", "replace")


def _part(key: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=_other)
    except RecursionError:
        raise InputError("nested too deeply to be written as JSON", path=key) from None
    except TypeError as error:
        kind = str(error).rpartition(" ")[2]
        message = (
            f"expected a value that JSON can hold, got {kind}; convert it to text or leave it out"
        )
        raise InputError(message, path=key) from None


def _other(value: Any) -> Any:
    """A date as orjson writes it."""
    return orjson.loads(orjson.dumps(value))
