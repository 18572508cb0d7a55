"""The answer of ``check``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grpo_cli.commands.answer import Answer, Printed, what_was_counted
from grpo_cli.commands.frames import Frames
from grpo_cli.errors import InputError
from grpo_cli.objective.mismatch import Attribution
from grpo_cli.terminal.numbers import counted, record_name


@dataclass(frozen=True)
class Finding(Answer):
    """Something that is wrong or worth knowing; ``step`` is the record's, if it has one.

    ``record`` is the first of those that were compared together, ``pooled`` records in all.
    """

    code: str
    severity: str
    record: str | int | float
    response: int | None
    token: int | None
    source: str
    line: int | None
    message: str
    evidence: Mapping[str, Any]
    advice: str
    step: int | None = None

    @property
    def records(self) -> int:
        """How many records it is of, of which ``record`` is the first."""
        records: int = self.evidence.get("records", 1)
        return records

    @property
    def pooled(self) -> int:
        """How many short records were compared together; 1 of a record by itself."""
        of_pair = not self.evidence.keys().isdisjoint(("column", "columns"))
        return self.records if of_pair else 1

    @property
    def where(self) -> str:
        """The record, its file, response and token, and how many records were compared together.

        Where no response is named these are the first consecutive records that show it together,
        else all that were compared: up to 64 lines.
        """
        inside = {"response": self.response, "token": self.token}
        named = [f"{name} {at}" for name, at in inside.items() if at is not None]
        place = ", ".join([record_name(self.record, self.line, self.source), *named])
        if self.pooled == 1:
            return place
        if self.response is None:
            return f"{self.pooled:,} short records from {place} on, the first that show it together"
        return f"{place} of {self.pooled:,} short records compared together"


@dataclass(frozen=True)
class NotChecked(Answer):
    """A rule that was skipped, the missing fields, and the number of records."""

    about: str
    codes: Sequence[str]
    missing: Sequence[Sequence[str]]
    partly: str | None
    records: int


@dataclass(frozen=True)
class MismatchFound(Answer, Attribution):
    """How far the trainer's log-probs are from those of the engine that sampled, and why.

    Attributes:
        named: the cause that explains most of the KL; None if none surely explains a fifth.
        normal: whether a known setting without a fault differs as much.
        setting: the mildest such setting, or else the one that differs most.
        floor: how much it differs, in a sentence.
        source: where that was measured.
    """

    named: str | None
    normal: bool
    setting: str
    floor: str
    source: str


@dataclass(frozen=True)
class Checked(Frames, Printed):
    """What ``check`` returns.

    Attributes:
        findings: the first of each code and severity, in the order of the records.
        more: how many others there are, by code.
        more_by_severity: the same, by code and severity.
        not_compared: records whose log-probs were not compared with each other, since a finding
            says what is wrong with them.
        advantages: counts groups by the formula that their advantages follow.
    """

    ok: bool
    findings: Sequence[Finding]
    more: Mapping[str, int]
    counts: Mapping[str, int]
    severities: Mapping[str, int]
    records: int
    responses: int
    tokens: int
    not_checked: Sequence[NotChecked]
    not_compared: int
    mismatch: MismatchFound | None = None
    advantages: Mapping[str, int] = field(default_factory=dict)
    more_by_severity: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    of_views = ("conclusion",)

    @property
    def headline(self) -> str:
        """Whether the data are sane, how many findings there are, and their codes, worst first."""
        codes = ", ".join(dict.fromkeys(row["code"] for row in self.table()))
        fine = "no error" if self.severities.get("warning") else "ok"
        verdict = fine if self.ok else "not ok"
        return f"{verdict}: {' in '.join(self.conclusion)}{codes and f'; {codes}'}"

    def table(self) -> list[dict[str, Any]]:
        """The findings and where they are, the worst first."""
        names = ("severity", "code", "record", "response", "token", "message")
        found = sorted(self.findings, key=lambda one: [*self.severities].index(one.severity))
        return [{name: getattr(one, name) for name in names} for one in found]

    def __repr__(self) -> str:
        """The headline and the table, and which findings are left out of it."""
        left = (f"… {many:,} more {code} (limit=0 for all)" for code, many in self.more.items())
        return "\n".join([super().__repr__(), *left])

    @property
    def conclusion(self) -> tuple[str, str]:
        """How many findings there are of each severity, and in how many records."""
        counts = [
            f"{count:,} {name}" if name == "info" else counted(count, name)
            for name, count in self.severities.items()
            if count
        ]
        if counts and self.severities["info"] == sum(self.severities.values()):
            counts = ["no error or warning", *counts]
        return ", ".join(counts) or "nothing found", what_was_counted(vars(self))


def with_unread(answer: Checked, errors: Iterable[InputError]) -> Checked:
    """The answer with a finding for each record that could not be read, before the others."""
    unread = [
        Finding(
            code="unreadable",
            severity="error",
            record=f"line {record.line}" if record.line else record.path.partition(".")[0],
            response=None,
            token=None,
            source=record.source or "",
            line=record.line,
            message="; ".join(
                f"{one.path}: {one.message}" if one.path else one.message for one in record.each
            ),
            evidence={},
            advice="",
        )
        for record in errors
    ]
    if not unread:
        return answer
    severities = {**answer.severities, "error": answer.severities["error"] + len(unread)}
    return replace(
        answer,
        ok=False,
        findings=[*unread, *answer.findings],
        counts={"unreadable": len(unread), **answer.counts},
        severities=severities,
    )
