"""A trainer's log in the place of records: how a row of it looks, and which command reads it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

STEPS = ("step", "global_step", "_step", "Step", "training/global_step", "trainer/global_step")
"""Names of steps in logs."""
NESTED = ("data", "metrics", "values", "log")
"""Keys that a row's numbers may be under."""
_HISTORY = "log_history"
_TEXTS = frozenset(("prompt", "input", "response", "completion", "output", "text", "messages"))
_LOGGED = frozenset(("loss", "grad_norm", "learning_rate", "lr", "epoch", "entropy"))


def is_logged(value: Mapping[str, Any]) -> bool:
    """Whether an object is ``trainer_state.json``, or a row of metrics: a step and numbers."""
    if isinstance(value.get(_HISTORY), list):
        return True
    nested: Mapping[str, Any] = next(
        (value[name] for name in NESTED if isinstance(value.get(name), dict)), {}
    )
    numbers = {**value, **nested}
    if _TEXTS & value.keys() or any(isinstance(one, list) for one in numbers.values()):
        return False
    stepped = any(isinstance(numbers.get(name), int | float) for name in STEPS)
    return stepped and any(
        isinstance(one, int | float) and ("/" in name or name in _LOGGED)
        for name, one in numbers.items()
        if name not in STEPS
    )


def advice(source: str) -> str:
    """A sentence on what a log is, and the commands that read it."""
    file = "FILE" if source == "<stdin>" else shlex.quote(source)
    return (
        f"this is a trainer's log, which has no tokens: grpo explain {file} reads it, and grpo "
        f"trend RUN --log {file} compares it with the records"
    )
