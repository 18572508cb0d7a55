"""The part of JSON Schema that ``v1/schema.json`` uses, checked without a package for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
}
KNOWN = {
    "$schema",
    "$defs",
    "$ref",
    "title",
    "description",
    "type",
    "enum",
    "const",
    "pattern",
    "anyOf",
    "items",
    "minItems",
    "properties",
    "required",
    "additionalProperties",
}


def faults(
    value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], at: str
) -> Iterator[str]:
    """One line for each place where the value is not what the schema says."""
    assert set(schema) <= KNOWN, f"{at}: {set(schema) - KNOWN} is not understood here"
    if "$ref" in schema:
        yield from faults(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, at)
    if "type" in schema and not _is(value, schema["type"]):
        yield f"{at}: expected {schema['type']}, got {value!r}"
        return
    if "const" in schema and value != schema["const"]:
        yield f"{at}: expected {schema['const']!r}, got {value!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is none of {schema['enum']}"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{at}: {value!r} is not of the form {schema['pattern']}"
    if "anyOf" in schema and all(list(faults(value, s, root, at)) for s in schema["anyOf"]):
        yield f"{at}: {value!r} fits nothing of anyOf"
    if isinstance(value, dict):
        yield from _of_object(value, schema, root, at)
    if isinstance(value, list):
        yield from _of_array(value, schema, root, at)


def _is(value: Any, name: str) -> bool:
    return isinstance(value, TYPES[name]) and not isinstance(value, bool)


def _of_object(
    value: Mapping[str, Any], schema: Mapping[str, Any], root: Mapping[str, Any], at: str
) -> Iterator[str]:
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{at}: {name} is missing"
    for name, inner in value.items():
        if name in properties:
            yield from faults(inner, properties[name], root, f"{at}.{name}")
        elif others is False:
            yield f"{at}: {name} is not known"
        elif isinstance(others, dict):
            yield from faults(inner, others, root, f"{at}.{name}")


def _of_array(
    value: list[Any], schema: Mapping[str, Any], root: Mapping[str, Any], at: str
) -> Iterator[str]:
    if len(value) < schema.get("minItems", 0):
        yield f"{at}: expected at least {schema['minItems']} items, got {len(value)}"
    for index, inner in enumerate(value):
        yield from faults(inner, schema.get("items", {}), root, f"{at}[{index}]")
