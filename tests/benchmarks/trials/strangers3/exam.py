"""The third list: losses with a mistake and without, faults of dumps, runs for ``match``."""

from __future__ import annotations

from typing import Any

from trials.strangers.mistake import Fault, Mistake, listed
from trials.strangers.settings import Wish
from trials.strangers3 import faults, losses
from trials.strangers3.clean import CLEAN

MISTAKES = listed(Mistake, __file__, "mistakes.json", losses)
FAULTS = listed(Fault, __file__, "faults.json", faults)
RIGHTS = {
    **{f"of {name}": Wish((name,)) for name in ("paper", "trl", "verl", "rows")},
    **{f"logged by {name}": Wish((name,)) for name in ("trl", "verl")},
    **{f"as for: {name}": one.wish for name, one in MISTAKES.items()},
}
"""Losses without a mistake."""

SMALL: dict[str, Any] = {"low": 0.02, "high": 0.03}
RUNS = [
    Wish(("paper",), ("response",), beta=True),
    Wish(("trl",), ("token", "response"), beta=False),
    Wish(("trl",), ("items", "sum"), beta=True),
    Wish(("verl",), beta=True),
    Wish(("slime",)),
    Wish(("trl",), ("response",), recipe={"sequence": True, **SMALL}),
    Wish(("trl",), ("token",), recipe={"delta": 1.5}, spec={"update": 0.6}),
    Wish(
        ("slime",),
        recipe={"correction": "token", "cap": 2.0},
        words=("-v", "slime/tis"),
        columns=("rollout",),
        spec={"engine": 0.2},
    ),
]
"""What ``match`` is asked about the losses of."""
__all__ = ("CLEAN", "FAULTS", "MISTAKES", "RIGHTS", "RUNS")
