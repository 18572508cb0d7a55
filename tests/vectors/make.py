"""Makes the vectors: ``cd tests && python -m vectors.make``.

The cases come from ``cases/``, their expected values from ``oracle/``, and the frameworks that
returned them from ``executed.json``, which ``tests/parity/vectors`` writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpmath import mpf

from vectors.cases import (
    advantage,
    aggregate,
    clip,
    corrected,
    correction,
    entropy,
    estimators,
    invalid,
    invariance,
    kl,
    kl_bounds,
    masked,
    metrics,
    sequences,
    soft,
    surrogates,
)
from vectors.cases.vector import Vector
from vectors.oracle.objective import expected
from vectors.oracle.terms import number

HERE = Path(__file__).parent
TARGET = HERE.parents[1] / "grpo_cli/vectors/v1"
FILES: Mapping[str, list[Vector]] = {
    "advantage": [*advantage.CASES, *estimators.CASES],
    "clip": [*clip.CASES, *sequences.CASES, *surrogates.CASES, *soft.CASES, *masked.CASES],
    "kl": [*kl.CASES, *kl_bounds.CASES, *estimators.IN_REWARD],
    "aggregate": [*aggregate.CASES, *entropy.CASES],
    "correction": [*correction.CASES, *corrected.CASES],
    "metrics": metrics.CASES,
    "invariance": invariance.CASES,
}
TOLERANCES = {
    "float64": {"relative": 1e-7, "absolute": 1e-9},
    "float32": {"relative": 2e-5, "absolute": 1e-6},
    "bfloat16": {"relative": 4e-2, "absolute": 1e-2},
}
"""verl adds 1e-8 to some denominators, which a float64 shows."""


def main() -> None:
    executed = json.loads((HERE / "executed.json").read_text(encoding="utf-8"))
    for name in FILES:
        text = rendered(document(name, executed))
        (TARGET / f"{name}.json").write_text(text, encoding="utf-8")


def vectors(name: str) -> list[Vector]:
    """The cases of a file; the invalid ones stand last."""
    return [*FILES[name], *(vector for file, vector in invalid.CASES if file == name)]


def document(name: str, executed: Mapping[str, list[str]]) -> dict[str, Any]:
    cases = [entry(name, vector, executed) for vector in vectors(name)]
    return {"schema": 1, "file": name, "tolerances": TOLERANCES, "cases": cases}


def entry(name: str, vector: Vector, executed: Mapping[str, list[str]]) -> dict[str, Any]:
    case_id = f"{name}/{vector.name}"
    made: dict[str, Any] = {
        "id": case_id,
        "comment": vector.comment,
        "flags": list(vector.flags),
        "choices": vector.choices,
        "same_under": {stage: list(names) for stage, names in vector.same_under.items()},
        "hyperparameters": vector.hyperparameters,
        "split": vector.split,
        "dtypes": list(vector.dtypes) if len(vector.dtypes) < len(TOLERANCES) else None,
        "input": vector.columns,
        "result": vector.result,
        "topic": vector.topic or vector.refuses,
        **answers(vector),
        "executed": executed.get(case_id),
    }
    return {key: value for key, value in made.items() if value not in (None, {}, "")}


def answers(vector: Vector) -> dict[str, Any]:
    """What is expected: of the case, or of each convention."""
    wanted, how = tuple(vector.wanted), {**vector.how, "split": vector.split}
    if vector.refuses:
        return {}
    if not vector.signatures:
        return {"expected": expected(vector.columns, how, wanted)}
    return {
        "conventions": {
            name: {
                "used_by": list(signature.used_by),
                **(signature.value or expected(vector.columns, {**how, **signature.how}, wanted)),
            }
            for name, signature in vector.signatures.items()
        }
    }


# ---- text: one key a line, so that a change is a line --------------------------------------------


def rendered(made: Mapping[str, Any]) -> str:
    head = ",\n".join(f" {json.dumps(k)}: {flat(v)}" for k, v in made.items() if k != "cases")
    cases = ",\n".join(lines(case) for case in made["cases"])
    return f'{{\n{head},\n "cases": [\n{cases}\n ]\n}}\n'


def lines(case: Mapping[str, Any]) -> str:
    inner = ",\n".join(f"   {json.dumps(key)}: {flat(value)}" for key, value in case.items())
    return f"  {{\n{inner}\n  }}"


def flat(value: Any) -> str:
    return json.dumps(words(value), ensure_ascii=False, allow_nan=False)


def words(value: Any) -> Any:
    """Numbers that are not finite as words, which JSON has none for."""
    if isinstance(value, float):
        return number(mpf(value)) if value - value else value
    if isinstance(value, Mapping):
        return {key: words(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [words(inner) for inner in value]
    return value


if __name__ == "__main__":
    main()
