"""Two columns of log-probs as rules see them, and what a rule says of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from grpo_cli.batch import F64
from grpo_cli.commands.check.pair import Pair
from grpo_cli.commands.check.record_view import Place, View
from grpo_cli.commands.check.rule import Finding
from grpo_cli.commands.check.rules import rules_of

KEYS = {
    "log_probs_new": "logps",
    "log_probs_old": "old_logps",
    "log_probs_rollout": "engine_logps",
    "log_probs_ref": "ref_logps",
}
UPDATE, ENGINE = ("log_probs_new", "log_probs_old"), ("log_probs_old", "log_probs_rollout")


class Sample(NamedTuple):
    """Two columns of one record, and the tokens of its responses."""

    a: F64
    b: F64
    widths: list[int]


def sample(a: Any, b: Any, widths: Sequence[int] | None = None) -> Sample:
    a, b = np.array(a, dtype=np.float64), np.array(b, dtype=np.float64)
    return Sample(a, b, [len(a)] if widths is None else list(widths))


def view(columns: dict[str, F64], widths: list[list[int]], claims: str = "") -> View:
    """A record of each list of widths."""
    flat = [width for row in widths for width in row]
    counts = np.array([len(row) for row in widths])
    return View(
        places=[Place(at, "dump", at + 1, at, claims) for at in range(len(widths))],
        values=(),
        counts=counts,
        widths=np.array(flat),
        columns=columns,
        mask=None,
        groups=np.repeat(np.arange(len(widths)), counts),
        names=KEYS,
    )


def told(code: str, samples: list[Sample], names: tuple[str, str], claims: str = "") -> Any:
    """What the rule says of each sample, all of which it sees at once: number → findings."""
    columns = {
        names[0]: np.concatenate([one.a for one in samples]),
        names[1]: np.concatenate([one.b for one in samples]),
    }
    (rule,) = [rule for rule in rules_of("pair") if rule.code == code]
    found: dict[int, list[Finding]] = {}
    for finding in rule.find(Pair(view(columns, [one.widths for one in samples], claims), names)):
        found.setdefault(finding.record, []).append(finding)
    return found


Said = dict[str, Any]


def same(finding: Finding, wanted: Said) -> None:
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
