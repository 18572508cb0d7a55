"""What ``grpo check`` finds in records, in the process of the test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from grpo_cli.commands.check.findings import Findings
from grpo_cli.commands.check.run import Check
from grpo_cli.records import Raw
from grpo_cli.records.record import in_chunks


def checked(pieces: Iterable[Sequence[Raw]], limit: int = 0) -> Check:
    """What is found in records that can be read, cut into pieces of the input."""
    whole = Check(limit)
    for piece in pieces:
        part = Check(limit)
        assert not [*part.read(in_chunks(piece))]
        whole.merge(part)
    whole.finish()
    return whole


def rows_of(findings: Findings) -> list[dict[str, Any]]:
    """The findings as JSON has them."""
    return [row.document() for row in findings.rows]
