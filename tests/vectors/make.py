"""Computes what the vectors expect: ``cd tests && python -m vectors.make``.

A case is written by hand into a file of grpo_cli/vectors/v1: input, choices, flags, and what it
expects, with null for each number. This fills in the numbers, by the oracle, and which frameworks
returned them (``executed.json``, of ``pytest tests/parity/vectors --write-golden``).

Every log-prob, reward and advantage is a multiple of 1/32 below 8 where a case has bfloat16 among
its dtypes: such numbers are exact in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vectors.oracle.objective import expected

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
