"""What frameworks changed between their releases, and the rows that keep the number before."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import typer

from grpo_cli.variants.registry import FRAMEWORKS, framework


def changed(pattern: str | None) -> list[dict[str, Any]]:
    """Every change of rows that fit the pattern, framework by framework, as it was released.

    Raises:
        BadParameter: where none fits.
    """
    found = [
        {
            "framework": name,
            "since": change.since,
            "rows": list(rows),
            "before": [f"{row}@{change.before}" for row in rows],
            "what": change.what,
        }
        for name in FRAMEWORKS
        for change in framework(name).changes
        if (rows := [row for row in change.rows if pattern is None or fnmatchcase(row, pattern)])
    ]
    if not found:
        raise typer.BadParameter(f"no change is known of {pattern!r}; grpo variants --changes")
    return found
