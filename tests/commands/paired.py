"""Two columns of log-probs, and what ``grpo check`` finds in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from grpo_cli import check
from grpo_cli.batch import F64

KEYS = {
    "log_probs_new": "logps",
    "log_probs_old": "old_logps",
    "log_probs_rollout": "rollout_logprobs",
    "log_probs_ref": "ref_logps",
}
UPDATE, ENGINE = ("log_probs_new", "log_probs_old"), ("log_probs_old", "log_probs_rollout")
REFERENCE = ("log_probs_new", "log_probs_ref")
Names = tuple[str, str]


class Sample(NamedTuple):
    """Two columns of one record, and the tokens of its responses."""

    a: F64
    b: F64
    widths: list[int]


def sample(a: Any, b: Any, widths: Sequence[int] | None = None) -> Sample:
    a, b = np.array(a, dtype=np.float64), np.array(b, dtype=np.float64)
    return Sample(a, b, [len(a)] if widths is None else list(widths))


def apart(change: Any) -> Sample:
    """Columns that differ so far, at log-probs that have nothing to do with it."""
    change = np.array(change, dtype=np.float64)
    base = -0.25 - 6.0 * (np.arange(len(change)) * 37 % 101 / 101.0) ** 2
    return sample(base + np.minimum(change, 0.0), base - np.maximum(change, 0.0))


def as_record(one: Sample, names: Names, number: int, claims: bool) -> dict[str, Any]:
    """The sample as a record, of other keys than its neighbours: it is compared on its own."""
    cuts = np.cumsum(one.widths)[:-1]
    a, b = ([part.tolist() for part in np.split(column, cuts)] for column in (one.a, one.b))
    record: dict[str, Any] = {KEYS["log_probs_new"]: a, KEYS[names[0]]: a, KEYS[names[1]]: b}
    if names == REFERENCE:
        record[KEYS["log_probs_old"]] = a
    if number % 2:
        record["entropies"] = [[0.5] * width for width in one.widths]
    if number % 4 > 1:
        record["rewards"] = [0.5 + at for at in range(len(one.widths))]
    if number % 8 > 3:
        record["group_ids"] = [0] * len(one.widths)
    return record | ({"ppo_epochs": 1} if claims else {})


def told(samples: Sequence[Sample], names: Names, claims: bool = False) -> list[list[Any]]:
    """The findings in each sample."""
    records = [as_record(one, names, at, claims) for at, one in enumerate(samples)]
    found: list[list[Any]] = [[] for _ in samples]
    for finding in check(records, limit=0).findings:
        found[int(finding.record)].append(finding)
    return found


Said = dict[str, Any]


def same(finding: Any, wanted: Said) -> None:
    """A finding has these words, this place, severity and evidence, and no other evidence."""
    wanted = dict(wanted)
    assert wanted.pop("words", "") in finding.message
    assert finding.message.endswith(wanted.pop("ends", ""))
    for name in ("response", "token"):
        assert getattr(finding, name) == wanted.pop(name, None)
    assert finding.severity == wanted.pop("severity", finding.severity)
    if "columns" not in finding.evidence:
        del wanted["columns"]
    assert {*finding.evidence} == {*wanted}
    for name, value in wanted.items():
        close = (
            value if isinstance(value, str | list) else pytest.approx(value, rel=1e-6, abs=1e-12)
        )
        assert finding.evidence[name] == close, (name, finding, wanted)
