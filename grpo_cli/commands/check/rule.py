"""What a rule is, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]

ORDER: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing.

    Attributes:
        severity: "error" makes the numbers wrong, "warning" makes them doubtful, "info" explains.
        message: what was found, in words.
        advice: what to do about it.
        evidence: the numbers that it rests on.
        record: the index of the record among those looked at together.
        response, token: the place in it; the token by its position as written.
    """

    severity: Severity
    message: str
    advice: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    record: int = 0
    response: int | None = None
    token: int | None = None


@dataclass(frozen=True)
class Rule:
    """A rule, as its file states it: all that there is to say about one code.

    Attributes:
        code: what its findings are called.
        severity: of its findings; those that a finding may have besides follow it.
        meaning: what is wrong, in a sentence.
        rank: rules are asked from the lowest to the highest; roots come before what they explain.
        look: finds it in a view of records, or in a pair of columns.
        pairs: whether it looks at pairs of columns. The first that finds something in a sample
            explains the rest there.
        explains: whether the log-probs of a record are not compared after such a finding.
        yields: whether it is silent of a record of which a rule that explains has spoken.
        about: what is not looked at without what it needs, in words.
        needs: what records must have beside what it judges: ``a|b`` is either of two. It is not
            asked of those that lack one.
        beside: keys besides, one of which it needs, that no objective reads: ``a|b``.
        better: the setting, or else keys, without which it sees a part only; partly: which.
    """

    code: str
    severity: tuple[Severity, ...]
    meaning: str
    rank: int
    look: Callable[[Any], Iterable[Finding]]
    pairs: bool = False
    explains: bool = False
    yields: bool = False
    about: str = ""
    needs: tuple[str, ...] = ()
    beside: str = ""
    better: str = ""
    partly: str = ""
