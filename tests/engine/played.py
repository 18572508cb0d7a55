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
        if before:
            before = before[0], self.values.pop(before[1])
        return self.later(tasks.evaluate, self.job, number, portion, *before)

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
        self.values[ref] = found

    def get(self, ref: int, place: str) -> Any:
        found = self.values.pop(ref)
        if isinstance(found, GrpoError):
            raise found
        return found

    def cancel(self, refs: list[int]) -> None:
        for ref in refs:
            self.work.pop(ref, None)
