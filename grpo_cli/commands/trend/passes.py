"""What a run showed in the steps that it trained again after it was resumed from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo_cli.commands.answer import Answer
from grpo_cli.commands.trend.events import Event, events
from grpo_cli.commands.trend.findings import findings
from grpo_cli.commands.trend.step import WARNING, Finding, Flags, Steps


@dataclass(frozen=True)
class Pass(Answer):
    """A pass over steps that the run, resumed from a checkpoint, trained again.

    Attributes:
        number: 1 for the first.
        first_step, last_step: the steps that were trained again.
        events: what happened in these, as the run was then.
        sentence: all of it, in words.
    """

    number: int
    first_step: int
    last_step: int
    events: Sequence[Event]
    sentence: str

    def fields(self) -> dict[str, Any]:
        """What the JSON has of it; its findings are those that the run as it went on lacks."""
        named = super().fields()
        found = [finding for event in self.events for finding in event.findings]
        return {"pass": named.pop("number"), **named, "findings": found}


def passes_of(steps: Steps, found: Sequence[Finding], flags: Flags) -> list[Pass]:
    """The passes of a run that did not go on, the first one first.

    Args:
        steps: of the run as it went on.
        found: its findings.
        flags: what goes into the commands of findings.
    """
    whole, made = steps.whole, list[Pass]()
    known = {(one.metric, one.onset) for one in found}
    for number in range(1, max(whole.passes, default=1)):
        then = whole.until(number)
        begun = whole.numbers[whole.passes.index(number + 1)]
        own = [
            one
            for one in findings(then, flags)
            if one.seen >= begun and (one.metric, one.onset) not in known
        ]
        happened = events(own, then)
        wrong = [one.summary for one in happened if one.severity == WARNING]
        sentence = (
            f"steps {begun:,} to {then.numbers[-1]:,} were trained twice: the run was "
            f"resumed at step {begun:,}; the first time (pass {number}), "
            f"{'; '.join(wrong) if wrong else 'nothing else was found'}"
        )
        made.append(Pass(number, begun, then.numbers[-1], happened, sentence))
    return made
