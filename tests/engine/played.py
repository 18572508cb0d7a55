"""A cluster that is played by this process: what it is given is done late, in any order."""

from __future__ import annotations

import random
from typing import Any

from grpo_cli.engine.cluster import tasks
from grpo_cli.engine.cluster.tasks import Answer, Job
from grpo_cli.errors import GrpoError
from grpo_cli.records.open import blocks


class Played:
    """In the place of ``grpo_cli.engine.cluster.run.Cluster``."""

    def __init__(self, job: Job[Any] | None, room: int, seed: int) -> None:
        self.job, self.limit, self.random = job, room, random.Random(seed)
        self.values: dict[int, Any] = {}
        self.counts: dict[int, Any] = {}  # of ranges: other tasks refer to them
        self.work: dict[int, Any] = {}
        self.most = self.count = 0

    def room(self) -> int:
        return self.limit

    def later(self, function: Any, *arguments: Any) -> int:
        self.count += 1
        self.work[self.count] = (function, arguments)
        self.most = max(self.most, len(self.work))
        return self.count

    def look(self, wanted: Any) -> tuple[int, int]:
        ref = self.later(blocks.look, wanted)
        return ref, -ref

    def evaluate(self, number: int, portion: Any, *before: Any) -> int:
        return self.later(self._evaluated, number, portion, *before)

    def _evaluated(self, number: int, portion: Any, *before: Any) -> Answer:
        """What Ray makes of it: references become values, once what they refer to is done."""
        if before:
            data, lines, *counts = before
            for ref in (-data, *counts):
                if ref in self.work:
                    self._do(ref)
                if isinstance(self.counts[ref], GrpoError):
                    raise self.counts[ref]
            before = self.values.pop(data), lines, *(self.counts[ref] for ref in counts)
        assert self.job is not None
        return tasks.evaluate(self.job, number, portion, *before)

    def wait(self, refs: list[int]) -> list[int]:
        waiting = [ref for ref in refs if ref in self.work]
        if len(waiting) == len(refs) or (waiting and self.random.random() < 0.3):
            self._do(self.random.choice(waiting))
        return [ref for ref in refs if ref not in self.work]

    def _do(self, ref: int) -> None:
        function, arguments = self.work.pop(ref)
        try:
            found = function(*arguments)
        except GrpoError as error:
            found = error
        if isinstance(found, tuple) and not isinstance(found, Answer):  # of a range
            found, self.values[-ref] = found
        if function is blocks.look or isinstance(found, int):
            self.counts[ref] = found
        else:
            self.values[ref] = found

    def get(self, ref: int, place: str) -> Any:
        found = self.counts[ref] if ref in self.counts else self.values.pop(ref)
        if isinstance(found, GrpoError):
            raise found
        return found

    def cancel(self, refs: list[int]) -> None:
        for ref in refs:
            self.work.pop(ref, None)
