"""What ``grpo check`` finds in small records: the files of ``cases/check``, one for each code.

A case is a comment, records as JSON lines, and the findings of that code that they give, a line
each; none where the records are just below a threshold. ``several.txt`` has all findings of its
records. ``GRPO_WRITE_CASES=1`` writes what is found now into the files, to be read as a diff.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import expressions
from test_check_turns import drawn
from trials.strangers3.exam import FAULTS

from grpo_cli import check
from grpo_cli.errors import InputError

CASES = sorted((Path(__file__).parent / "cases" / "check").glob("*.txt"))


def cut(text: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yields the title, the records and the findings of each case."""
    for case in text.split("\n\n"):
        title, *lines = case.splitlines()
        records = [line for line in lines if line.startswith("{")]
        yield title, records, [line for line in lines if not line.startswith("{")]


def shortened(value: Any) -> Any:
    """Rounds numbers to nine digits, which do not depend on the processor."""
    if isinstance(value, dict):
        return {name: shortened(one) for name, one in value.items()}
    if isinstance(value, list):
        return [*map(shortened, value)]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def line_of(finding: Any) -> str:
    places = (("record", finding.record), ("response", finding.response), ("token", finding.token))
    place = ", ".join(f"{name} {at}" for name, at in places if at is not None)
    evidence = json.dumps(shortened(dict(finding.evidence)), ensure_ascii=False)
    return f"{finding.severity} {place}: {finding.message} {evidence}"


def findings(records: list[str], code: str) -> list[str]:
    found = check([json.loads(one) for one in records], limit=0).findings
    if code == "several":
        return [f"{one.code} {line_of(one)}" for one in found]
    return [line_of(one) for one in found if one.code == code]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_what_is_found(path: Path) -> None:
    cases = [*cut(path.read_text(encoding="utf-8"))]
    found = [findings(records, path.stem) for _, records, _ in cases]
    if "GRPO_WRITE_CASES" in os.environ:
        blocks = zip(cases, found, strict=True)
        text = "\n\n".join("\n".join([title, *rows, *now]) for (title, rows, _), now in blocks)
        path.write_text(f"{text}\n", encoding="utf-8")
    assert any(found)
    assert not all(found) or path.stem == "several", "no case is just below a threshold"
    for (title, _, wanted), now in zip(cases, found, strict=True):
        assert now == wanted, title


# ---- what several records show, and files ------------------------------------------------------


def test_infos_hide_no_warning_of_their_code() -> None:
    cases = [*cut((CASES[0].parent / "ratio-noise.txt").read_text(encoding="utf-8"))]
    (warned,), (noted,) = (records for _, records, _ in cases[:2])
    other = {"log_probs_new": [[-1.0]]}  # small records that follow each other are one sample
    records = [json.loads(one) for one in [*[noted] * 4, warned]]
    found = check([one for record in records for one in (record, *[other] * 63)], limit=2)
    of_code = [one for one in found.findings if one.code == "ratio-noise"]
    assert [(one.severity, one.record) for one in of_code] == [
        ("info", 0), ("info", 64), ("warning", 256),
    ]  # fmt: skip
    assert found.more["ratio-noise"] == 2
    assert found.more_by_severity["ratio-noise"] == {"info": 2}
    rows = [one["severity"] for one in found.table() if one["code"] == "ratio-noise"]
    assert rows[:1] == ["warning"]


# ---- all findings of faults of whole dumps -------------------------------------------------------


def found_in(records: list[Any]) -> Iterator[str]:
    """The findings of records, or the error that they are."""
    try:
        yield from (f"{one.code} {line_of(one)}" for one in check(records, limit=0).findings)
    except InputError as error:
        yield f"refused: {error}"


def of_dumps(seed: int) -> Iterator[str]:
    for name, fault in FAULTS.items():
        for strength in fault.strengths:
            yield f"{name}, {strength}"
            records = fault.records(np.random.default_rng([seed, len(name)]), strength)
            yield from (f"  {line}" for line in found_in(records))


def of_turns() -> Iterator[str]:
    for fault, line in drawn("faults"):
        yield fault["name"]
        yield from (f"  {line}" for line in found_in([json.loads(line)]))


def test_all_findings_of_faults() -> None:
    names = {"dumps": lambda seed: [*of_dumps(seed)], "turns": lambda: [*of_turns()]}
    expressions(Path(__file__).parent / "cases" / "faults.txt", names)
