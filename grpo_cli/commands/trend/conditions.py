"""``--fail-on``: what makes the exit code 1, as ``mismatch.k3>0.01`` or ``findings``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from grpo_cli.commands.options import complete
from grpo_cli.commands.trend.metrics import METRICS
from grpo_cli.commands.trend.metrics import metric as column_of
from grpo_cli.commands.trend.step import Finding, Step
from grpo_cli.errors import UsageError
from grpo_cli.terminal.numbers import shown

_TESTS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_CONDITION = re.compile(r"\s*([\w./-]+)\s*(>=|<=|>|<)\s*(\S+)\s*")
FINDINGS = "findings"


class Condition(NamedTuple):
    """One condition; without a metric it is that anything was found."""

    text: str
    metric: str = ""
    test: str = ""
    bound: float = 0.0

    def answer(self, steps: Sequence[Step], findings: Sequence[Finding]) -> str | None:
        """Why it holds, in a sentence; None where it does not."""
        if not self.metric:
            one = "one finding" if len(findings) == 1 else f"{len(findings)} findings"
            return one if findings else None
        for step in steps:
            value = step.metrics.get(self.metric)
            if value is not None and _TESTS[self.test](value, self.bound):
                return f"{self.text}: {shown(value)} at step {step.number}"
        return None


def read_condition(text: str) -> Condition:
    """The condition that a flag spells.

    Raises:
        UsageError: for what cannot be understood, or an unknown metric.
    """
    if text.strip() == FINDINGS:
        return Condition(text)
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise UsageError(f"--fail-on: expected METRIC>NUMBER or {FINDINGS}, got {text!r}")
    name = found[1]
    metric = name if column_of(name) else complete.known("--fail-on", name, METRICS)
    try:
        bound = float(found[3])
    except ValueError:
        raise UsageError(f"--fail-on: expected a number after {found[2]}, got {found[3]}") from None
    return Condition(text.strip(), metric, found[2], bound)
