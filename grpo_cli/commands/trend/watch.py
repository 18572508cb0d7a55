"""What makes the answer no (``--fail-on``), and what ``--follow`` prints until it does."""

from __future__ import annotations

import operator
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.options import complete
from grpo_cli.commands.trend.coverage import Coverage
from grpo_cli.commands.trend.events import events, verdict
from grpo_cli.commands.trend.findings import findings
from grpo_cli.commands.trend.follow import Follow
from grpo_cli.commands.trend.metrics import METRICS
from grpo_cli.commands.trend.metrics import metric as metric_of
from grpo_cli.commands.trend.passes import passes_of
from grpo_cli.commands.trend.step import WARNING, Finding, Flags, Step, Steps
from grpo_cli.commands.trend.view import print_command, print_finding, sparing
from grpo_cli.errors import UsageError
from grpo_cli.terminal.grid import print_hidden
from grpo_cli.terminal.messages import say
from grpo_cli.terminal.numbers import escaped_json, shown, visible
from grpo_cli.terminal.screen import screen_of, written

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
            wrong = sum(one.severity == WARNING for one in findings)
            return ("one finding" if wrong == 1 else f"{wrong} findings") if wrong else None
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
    if found is None:
        raise UsageError(f"--fail-on: expected METRIC>NUMBER or {FINDINGS}, got {text!r}")
    name = found[1]
    metric = name if logged or metric_of(name) else complete.known("--fail-on", name, METRICS)
    try:
        bound = float(found[3])
    except ValueError:
        raise UsageError(f"--fail-on: expected a number after {found[2]}, got {found[3]}") from None
    return Condition(text.strip(), metric, found[2], bound)


# ---- what is printed as a run grows -------------------------------------------------------------

_USUAL = (
    *("reward_mean", "length_mean", "nll", "loss", "kl_k3", "gradient_norm", "ratio_p999"),
    *("mismatch.k3",),
)
_STEP, _NUMBER = 6, 10
"""What a step's number takes, and the longest number of four digits."""
_BETWEEN = "  "
_PAUSE = 0.1  # seconds
_KNOWN_AFTER = 4
"""Steps after which a metric that none of them has is not waited for."""


class Watch:
    """Prints what is new.

    Args:
        follow: the files.
        stream: where to.
        fields: the columns; None for those that say most.
        as_json: whether a step is a JSON object, and a finding another.
        conditions: what ends it with exit code 1.
        flags: what goes into the commands of findings.
    """

    def __init__(
        self,
        follow: Follow,
        stream: BinaryIO,
        *,
        fields: Sequence[str] | None,
        as_json: bool,
        conditions: Sequence[Condition],
        flags: Flags,
    ) -> None:
        self._follow, self._stream = follow, stream
        self._fields, self._hidden = [*(fields or _USUAL)], list[str]()
        self._screen, self._asked = screen_of(stream), fields
        if fields is None:
            self._fields, self._hidden = _fitting(self._fields, self._screen.width)
        self._as_json, self._conditions, self._flags = as_json, conditions, flags
        self._before: Sequence[Step] = []
        self._pass, self._passes = 0, 1
        self._printed: set[object] = set()
        self._begun = False

    def run(self, every: float, wait: Callable[[float], None] = time.sleep) -> int:
        """Goes on until a condition holds (1) or it is interrupted.

        Raises:
            KeyboardInterrupt: when the last step is printed.
            UsageError: where the first steps lack the metric of a condition.
        """
        with _interrupted() as stop:
            while not stop:
                if not self._follow.poll():
                    _slowly(wait, every, stop)
                elif (answer := self._show(last=False)) is not None:
                    say(f"--fail-on {answer}")
                    return 1
        self._show(last=True)
        raise KeyboardInterrupt

    def _show(self, *, last: bool) -> str | None:
        for note in self._follow.notices:
            if note not in self._printed:
                say(f"note: {note}")
                self._printed.add(note)
        steps = self._follow.steps()
        done = steps if last else steps[:-1]  # the last one may still change
        found = findings(done, self._flags, self._follow.ungrouped)
        if (passes := max(steps.whole.passes, default=1)) > self._passes:
            for gone in passes_of(steps, found, self._flags)[self._passes - 1 :]:
                row = {"pass": gone.number, "sentence": gone.sentence}
                self._write(row, visible(gone.sentence))
            self._passes = passes
        known = {(step.in_pass or 1, step.number): step.metrics for step in self._before}
        every = steps.whole if last else steps.whole[:-1]
        for step in every:
            if known.get((step.in_pass or 1, step.number)) != step.metrics:
                self._write_step(step)
        self._before = every
        if len(done) >= _KNOWN_AFTER:
            for condition in self._conditions:
                condition.check(done)
        for one in found:
            if (one.metric, one.seen) not in self._printed and one.severity == WARNING:
                self._printed.add((one.metric, one.seen))
                console = self._screen.console()
                print_finding(console, self._screen, one)
                print_command(console, self._screen, one)
                self._write({"finding": one}, written(console).removesuffix("\n"))
        if (last and not self._as_json) or any(one.severity == WARNING for one in found):
            sentence = verdict(done, events(found), Coverage(done, ()))
            claim = sentence.rpartition("; ")[0]
            if claim not in self._printed:
                self._printed.add(claim)
                self._write({"verdict": sentence}, visible(sentence))
        self._stream.flush()
        answers = (one.answer(done, found) for one in self._conditions)
        return next(filter(None, answers), None)

    def _write_step(self, step: Step) -> None:
        row = step.fields()
        del row["worst"]
        values = [row.get(name) for name in self._fields]
        if not self._begun and not self._as_json:
            console = self._screen.console()
            print_hidden(console, self._screen, self._hidden, "--fields")
            names = [f"{visible(name):>{_width(name)}}" for name in self._fields]
            head = _BETWEEN.join(["step".rjust(_STEP), *names])
            self._stream.write(f"{written(console).lstrip(chr(10))}{head}\n".encode())
        self._begun = True
        if step.in_pass != self._pass and not self._as_json:
            self._stream.write(f"pass {step.in_pass}\n".encode())
        self._pass = step.in_pass
        cells = [f"{step.number:>{_STEP}}"] + [
            f"{_cell(value):>{_width(name)}}"
            for name, value in zip(self._fields, values, strict=True)
        ]
        if self._asked is not None:
            first = [name for name in ("step", "pass", "file") if name in row]
            row = {name: row.get(name) for name in (*first, *self._asked)}
        self._write(row, _BETWEEN.join(cells))

    def _write(self, row: object, text: str) -> None:
        line = escaped_json(orjson.dumps(row)) if self._as_json else text.encode()
        self._stream.write(line + b"\n")


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return visible(value)
    return "–" if value is None else f"{value:.4g}"


def _width(name: str) -> int:
    return max(len(visible(name)), _NUMBER)


def _fitting(names: Sequence[str], width: int | None) -> tuple[list[str], list[str]]:
    """The columns that there is room for, and the others."""
    kept, hidden = [*names], list[str]()
    for name in sparing(names):
        if width is None or _STEP + sum(len(_BETWEEN) + _width(one) for one in kept) <= width:
            break
        if name in kept:
            kept.remove(name)
            hidden.append(name)
    return kept, hidden


@contextmanager
def _interrupted() -> Iterator[list[int]]:
    """A list that is empty until Ctrl-C, which waits for what is being written."""
    stop: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: stop.append(number))
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def _slowly(wait: Callable[[float], None], seconds: float, stop: list[int]) -> None:
    """Waits in small parts, so that Ctrl-C ends it soon."""
    while seconds > 0 and not stop:
        wait(min(seconds, _PAUSE))
        seconds -= _PAUSE
