"""Computes what the vectors expect: ``cd tests && python -m vectors.make``.

A case is written by hand into a file of grpo_cli/vectors/v1: input, choices, flags, and what it
expects, with null for each number. This fills in the numbers, by the oracle, and which frameworks
returned them (``executed.json``, of ``pytest tests/parity/vectors --write-golden``).

Every log-prob, reward and advantage is a multiple of 1/32 below 8 where a case has bfloat16 among
its dtypes: such numbers are exact in it.

Before it, the part of JSON Schema that ``v1/schema.json`` uses, checked without a package for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vectors.oracle.objective import expected

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


HERE = Path(__file__).parent
TARGET = HERE.parents[1] / "grpo_cli/vectors/v1"
FILES = ("advantage", "clip", "kl", "aggregate", "correction", "metrics", "invariance")
CLAMPED = {"kl-clamp", "kl-overflow"}
"""The topics whose conventions are a clamp of the estimate, "10", or none."""


def main() -> None:
    for name in FILES:
        path = TARGET / f"{name}.json"
        path.write_text(rendered(document(json.loads(path.read_text("utf-8")))), encoding="utf-8")


def document(written: Mapping[str, Any]) -> dict[str, Any]:
    """A file with its numbers computed."""
    executed = json.loads((HERE / "executed.json").read_text(encoding="utf-8"))
    cases = [
        {name: value for name, value in case.items() if name != "executed"}
        | answers(case)
        | ({"executed": executed[case["id"]]} if case["id"] in executed else {})
        for case in written["cases"]
    ]
    return {**written, "cases": cases}


def answers(case: Mapping[str, Any], **other: str) -> dict[str, Any]:
    """What a case expects, or each of its conventions; ``other``: choices in place of its own."""
    how = {**case["choices"], **case.get("hyperparameters", {}), **other}
    how["split"] = case.get("split")
    if "expected" in case:
        return {"expected": computed(case, case["expected"], how)}
    if "conventions" not in case:
        return {}
    conventions = {}
    for name, stated in case["conventions"].items():
        chosen = {"kl_output_clamp": 10.0} if case["topic"] in CLAMPED and name == "10" else {}
        conventions[name] = computed(case, stated, how | {case["topic"]: name} | chosen)
    return {"conventions": conventions}


def computed(
    case: Mapping[str, Any], stated: Mapping[str, Any], how: Mapping[str, Any]
) -> dict[str, Any]:
    """Loss, gradient, advantages and metrics, those that are stated.

    What is not finite stays as it is stated: the oracle has no such number.
    """
    if isinstance(stated.get("loss"), str):
        return dict(stated)
    names = [name for name in stated if name not in ("used_by", "metrics")]
    wanted = (*names, *stated.get("metrics", {}))
    return {**stated, **expected(case["input"], how, wanted)}


# ---- text: one key a line, so that a change is a line --------------------------------------------


def rendered(made: Mapping[str, Any]) -> str:
    head = ",\n".join(f" {json.dumps(k)}: {flat(v)}" for k, v in made.items() if k != "cases")
    cases = ",\n".join(lines(case) for case in made["cases"])
    return f'{{\n{head},\n "cases": [\n{cases}\n ]\n}}\n'


def lines(case: Mapping[str, Any]) -> str:
    inner = ",\n".join(f"   {json.dumps(key)}: {flat(value)}" for key, value in case.items())
    return f"  {{\n{inner}\n  }}"


def flat(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


if __name__ == "__main__":
    main()
