"""Conformance vectors for losses of the GRPO family, and the pytest plugin that runs them.

An author of a loss writes a fixture that returns a ``Loss`` and runs ``pytest --grpo-vectors``;
``grpo help vectors`` shows it. Nothing here imports the rest of ``grpo_cli`` but its catalogue
of mistakes: it is tested against the same vectors.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_cli.vectors.case import Case, Step, Tolerance, cases
    from grpo_cli.vectors.catalogue import describe, export, listed, listed_flags
    from grpo_cli.vectors.claims import Claims, Loss, NotClaimedError, claimed
    from grpo_cli.vectors.verdict import Verdict, judge

HOMES = {
    "case": ("Case", "Step", "Tolerance", "cases"),
    "catalogue": ("describe", "export", "listed", "listed_flags"),
    "claims": ("Claims", "Loss", "NotClaimedError", "claimed"),
    "verdict": ("Verdict", "judge"),
}
"""Module → what is taken from it when it is asked for: pytest imports this package at its start."""

__all__ = [
    "Case",
    "Claims",
    "Loss",
    "NotClaimedError",
    "Step",
    "Tolerance",
    "Verdict",
    "cases",
    "claimed",
    "describe",
    "export",
    "judge",
    "listed",
    "listed_flags",
]


def __getattr__(name: str) -> object:
    for module, names in HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
