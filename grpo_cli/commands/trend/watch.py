"""``--follow``: a line for each step that is done, and each finding once, as files grow."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

import orjson

from grpo_cli.commands.trend.conditions import Condition
from grpo_cli.commands.trend.findings import findings
from grpo_cli.commands.trend.follow import Follow, finished
from grpo_cli.commands.trend.step import Step
from grpo_cli.terminal.escapes import escaped_json
from grpo_cli.terminal.messages import say
from grpo_cli.terminal.numbers import visible

_USUAL = (
    *("reward_mean", "length_mean", "nll", "loss", "kl_k3", "gradient_norm", "ratio_p999"),
    *("mismatch.k3",),
)
_WIDTH = 13
_PART = 0.1  # seconds


class Watch:
    """Prints what is new.

    Args:
        follow: the files.
        stream: where to.
        fields: the columns; None for those that say most.
        as_json: whether a step is a JSON object, and a finding another.
        conditions: what ends it with exit code 1.
        words: flags that go into the commands of findings.
    """

    def __init__(
        self,
        follow: Follow,
        stream: BinaryIO,
        *,
        fields: Sequence[str] | None,
        as_json: bool,
        conditions: Sequence[Condition],
        words: Sequence[str],
    ) -> None:
        self._follow, self._stream = follow, stream
        self._fields = [*(fields or _USUAL)]
        self._as_json, self._conditions, self._words = as_json, conditions, words
        self._before: list[Step] = []
        self._told: set[str] = set()
        self._begun = False

    def run(self, every: float, wait: Callable[[float], None] = time.sleep) -> int:
        """Goes on until a condition holds (1) or it is interrupted.

        Raises:
            KeyboardInterrupt: when the last step is printed.
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
            if note not in self._told:
                say(f"note: {note}")
                self._told.add(note)
        steps = self._follow.steps()
        done = steps if last else steps[:-1]
        for step in finished(self._before, steps, last=last):
            self._write_step(step)
        self._before = done
        found = findings(done, self._words)
        for one in found:
            if one.metric not in self._told:
                self._told.add(one.metric)
                text = f"step {one.onset}  {one.kind}  {one.sentence}\n  {visible(one.command)}"
                self._write({"finding": one}, text)
        self._stream.flush()
        answers = (one.answer(done, found) for one in self._conditions)
        return next(filter(None, answers), None)

    def _write_step(self, step: Step) -> None:
        values = [step.metrics[name] for name in self._fields]
        if not self._begun and not self._as_json:
            names = "".join(f"{name:>{_WIDTH + 1}}" for name in self._fields)
            self._stream.write(f"{'step':>6}{names}\n".encode())
        self._begun = True
        cells = ("–" if one is None else f"{one:.4g}" for one in values)
        row = {"step": step.number, "file": step.file, **step.metrics}
        self._write(row, f"{step.number:>6}" + "".join(f"{one:>{_WIDTH + 1}}" for one in cells))

    def _write(self, row: object, text: str) -> None:
        line = escaped_json(orjson.dumps(row)) if self._as_json else text.encode()
        self._stream.write(line + b"\n")


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
        wait(min(seconds, _PART))
        seconds -= _PART
