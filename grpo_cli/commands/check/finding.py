"""What a rule finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]

ORDER: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing.

    Attributes:
        code: the rule.
        severity: "error" makes the numbers wrong, "warning" makes them doubtful, "info" explains.
        message: what was found, in words.
        advice: what to do about it.
        evidence: the numbers that it rests on.
        record: the index of the record among those looked at together.
        response, token: the place in it; the token by its position as written.
    """

    code: str
    severity: Severity
    message: str
    advice: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    record: int = 0
    response: int | None = None
    token: int | None = None
