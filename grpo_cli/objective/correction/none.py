"""No correction."""

from __future__ import annotations

from grpo_cli.objective.choice import Choice


def none() -> None:
    """No correction: c = 1."""


CHOICES = {"none": Choice(none, absent=True)}
