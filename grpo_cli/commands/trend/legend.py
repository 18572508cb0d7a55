"""What the metrics of a run are, each in a line with its unit."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files

LEGEND: Mapping[str, Sequence[str]] = json.loads(
    files(__package__).joinpath("legend.json").read_text(encoding="utf-8")
)
"""Column of ``trend`` → what it is, and how it is computed where that does not say so."""


def described(name: str) -> str:
    """What a column is, with its formula; "" of one that ``trend`` has not."""
    return ": ".join(LEGEND.get(name, [legend(name)]))


def unit(name: str) -> str:
    """The unit of a column, for its axis; "" where it has none, or its name says it."""
    about = legend(name)
    found = re.search(r"in (nats per token|nats|tokens)\b", about)
    return found[1] if found else "share" if about.startswith("share ") else ""


def legend(name: str) -> str:
    """What a column is; "" of one that a log has under another name."""
    if found := re.fullmatch(r"mismatch\.decile_(\d+)", name):
        return f"mean |log π_trainer − log π_engine| in tenth {found[1]} of responses, in nats"
    if found := re.fullmatch(r"rewards/(.+)/mean", name):
        return f"mean reward of the function {found[1]}"
    return LEGEND.get(name, [""])[0]
