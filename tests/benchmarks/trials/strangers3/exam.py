"""The third list as an exam."""

from __future__ import annotations

from typing import Any

from trials.strangers.mistake import Exam, listed
from trials.strangers.settings import Wish
from trials.strangers3.clean import CLEAN
from trials.strangers3.faults import FAULTS
from trials.strangers3.losses import MISTAKES as _LOSSES

MISTAKES = listed(__file__, "mistakes.csv", _LOSSES)

SMALL: dict[str, Any] = {"low": 0.02, "high": 0.03}
RUNS = [
    Wish(("paper",), ("response",), beta=True, large=True),
    Wish(("trl",), ("token", "response"), beta=False, large=True),
    Wish(("trl",), ("items", "sum"), beta=True, large=True),
    Wish(("verl",), beta=True, large=True),
    Wish(("slime",), large=True),
    Wish(("trl",), ("response",), recipe={"sequence": True, **SMALL}, large=True),
    Wish(("trl",), ("token",), recipe={"delta": 1.5}, spec={"update": 0.6}, large=True),
    Wish(
        ("slime",),
        recipe={"correction": "token", "cap": 2.0},
        words=("-v", "slime/tis"),
        columns=("rollout",),
        spec={"engine": 0.2},
        large=True,
    ),
]
THIRD = Exam(
    name="third",
    title="unread list",
    mistakes=MISTAKES,
    rights={
        **{f"of {name}": Wish((name,), large=True) for name in ("paper", "trl", "verl", "rows")},
        **{f"logged by {name}": Wish((name,), large=True) for name in ("trl", "verl")},
        **{f"as for: {one.name}": one.wish for one in MISTAKES},
    },
    faults=listed(__file__, "faults.csv", FAULTS),
    clean=CLEAN,
    runs=RUNS,
)
