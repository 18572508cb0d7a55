"""What makes the answer no (``--fail-on``)."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.options import complete
from grpo_cli.commands.trend.metrics import METRICS
from grpo_cli.commands.trend.metrics import metric as metric_of
from grpo_cli.commands.trend.step import WARNING, Finding, Steps
from grpo_cli.errors import UsageError
from grpo_cli.terminal.numbers import counted, shown

_TESTS: Mapping[str, Callable[[F64, float], NDArray[np.bool_]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_CONDITION = re.compile(r"\s*([\w./-]+)\s*(>=|<=|>|<)\s*(\S+)\s*")
FINDINGS = "findings"


class Condition(NamedTuple):
    """A test of ``--fail-on``; without a metric it holds where anything was found."""

    text: str
    metric: str = ""
    test: str = ""
    bound: float = 0.0

    def answer(self, steps: Steps, findings: Sequence[Finding]) -> str | None:
        """Why it holds, in a sentence; None if it does not."""
        if not self.metric:
            wrong = [one.onset for one in findings if one.severity == WARNING]
            if not wrong:
                return None
            return f"{FINDINGS}: {counted(len(wrong), 'finding')}, the first at step {min(wrong)}"
        values = steps.metrics.get(self.metric, np.zeros(0))
        for at in np.flatnonzero(_TESTS[self.test](values, self.bound)).tolist():
            value = steps.values(self.metric)[at]
            return f"{self.text}: {shown(value)} at step {steps.numbers[at]}"
        return None

    def check(self, steps: Steps) -> None:
        """Refuses a metric that no step has: no value of it would ever fail.

        Raises:
            UsageError: with what the metric needs.
        """
        values = steps.metrics.get(self.metric)
        if not self.metric or not steps or (values is not None and not np.isnan(values).all()):
            return
        column = metric_of(self.metric)
        needs = f"; it needs {column.needs}" if column is not None and column.needs else ""
        raise UsageError(f"--fail-on {self.text}: no step has {self.metric}{needs}")


def read_condition(text: str, *, logged: bool = False) -> Condition:
    """The condition that a flag spells; of a log's series any name may be that of one.

    Raises:
        UsageError: for text that is no condition, or an unknown metric.
    """
    if text.strip() == FINDINGS:
        return Condition(text)
    found = _CONDITION.fullmatch(text)
    if text.strip() == "?":
        complete.known("--fail-on", "?", (FINDINGS, *METRICS))
    if found is None:
        raise UsageError(f"--fail-on: expected METRIC>NUMBER or {FINDINGS}, got {text!r}")
    name = found[1]
    metric = name if logged or metric_of(name) else complete.known("--fail-on", name, METRICS)
    try:
        bound = float(found[3])
    except ValueError:
        raise UsageError(f"--fail-on: expected a number after {found[2]}, got {found[3]}") from None
    return Condition(text.strip(), metric, found[2], bound)
