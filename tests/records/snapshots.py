"""Cases in files: a record a line, and behind ``>`` what is made of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_cli import InputError, evaluate

CASES = Path(__file__).parent / "cases"
COLUMNS = (
    *("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout", "ratios"),
    *("entropies", "values", "sum_pi_squared", "token_advantages", "positions"),
    *("rewards", "reward_baselines", "advantages", "last_masked"),
)
_USUAL = (None, 0.0, 0.2)


def cases(name: str) -> list[tuple[str, str]]:
    """The cases of a file: the line that is read, and the lines behind ``>``."""
    blocks = (CASES / name).read_text().removesuffix("\n\n").split("\n\n")
    return [(line, found) for line, _, found in (block.partition("\n> ") for block in blocks)]


def summary(line: str) -> str:
    """What is read of a record: its numbers, groups and settings."""
    return json.dumps(dict(_summary(evaluate(complete(line)))), default=str)


def complete(line: str) -> dict[str, Any]:
    """A record; without rewards and advantages with a reward for each response."""
    record: dict[str, Any] = json.loads(line)
    for more in ({}, *({"rewards": [1.0] * count} for count in range(1, 5))):
        try:
            evaluate(more | record)
        except InputError as error:
            fault = error
        else:
            return more | record
    raise fault


def _summary(found: Any) -> Iterator[tuple[str, Any]]:
    batch, objective = found.breakdown.batch, found.breakdown.objective
    yield "lengths", batch.responses.lengths.tolist()
    yield "groups", batch.groups.tolist()
    printed = {**found.columns("response"), **found.columns("token")}
    for name in ("id", "group", "token"):
        if {*printed[name].tolist()} not in ({0}, {None}):
            yield name, printed[name].tolist()
    for name in COLUMNS:
        column = getattr(batch, name)
        if column is not None and not (name == "log_probs_old" and column is batch.log_probs_new):
            yield name, column.tolist()
    if batch.reward_names:
        yield "reward_names", batch.reward_names
    settings = {**objective.surrogate.values, "beta": objective.beta}
    yield "settings", {name: one for name, one in settings.items() if one not in _USUAL}
