"""The portions of an input through a cluster: a bounded number at once, answers in order.

What is held here does not grow with the input: portions are made as they are needed, bytes stay on
the nodes that read them, and small results of many tasks are merged there too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from grpo_cli.engine.cluster.place import Cluster, Ref
from grpo_cli.engine.cluster.portions import Files, Part, Portion
from grpo_cli.engine.cluster.tasks import Answer
from grpo_cli.errors import InputError
from grpo_cli.records import Piece
from grpo_cli.records.open.ranges import Ends, Range
from grpo_cli.records.open.streams import LIMIT, Limit

_TOGETHER = 32  # results that one task merges
_AHEAD = 2 * _TOGETHER


@dataclass
class _Reading:
    """A range that is being read.

    Attributes:
        number: its place among the portions.
        wanted: the range.
        last: whether it is the last of its file.
        ends, rest: references to what it comes to.
        known: its ends, when they are there.
    """

    number: int
    wanted: Range
    last: bool
    ends: Ref
    rest: Ref
    known: Ends | Exception | None = None


@dataclass
class _Group:
    """Answers that are merged before they come here; of one alone, that."""

    place: str
    most: int
    refs: list[Ref] = field(default_factory=list)
    merged: Ref = None

    @property
    def full(self) -> bool:
        return len(self.refs) >= self.most


class Flow:
    """Runs portions; iterate it for their answers.

    Args:
        cluster: where.
        portions: the input.
        together: whether answers of portions that follow each other may come merged.
    """

    def __init__(self, cluster: Cluster, portions: Iterator[Portion], *, together: bool) -> None:
        self._cluster = cluster
        self._portions = portions
        self._together = together
        self._more = True
        self._reading: deque[_Reading | tuple[int, Files | Piece]] = deque()
        self._begun = 0
        self._working: dict[Ref, None] = {}
        self._groups: deque[_Group] = deque()
        self._made = 0
        self._line = 1
        self._fault: Exception | None = None

    def __iter__(self) -> Generator[Answer]:
        try:
            while True:
                self._feed()
                self._evaluate()
                self._close()
                if self._front_is_ready():
                    group = self._groups.popleft()
                    yield self._cluster.get(group.merged, group.place)
                elif not self._more and not self._reading and not self._groups:
                    break
                else:
                    self._wait()
            if self._fault is not None:
                raise self._fault
        finally:
            self._cluster.cancel([*self._working, *self._pending()])

    # ---- giving work out ----------------------------------------------------------------------

    def _feed(self) -> None:
        """Begins as many portions as there is room for."""
        most = self._cluster.room()
        ahead = _AHEAD if self._together else 0
        while self._more:
            waiting = sum(len(group.refs) for group in self._groups)
            begun = len(self._reading)
            if waiting + begun >= 2 * most + ahead or begun > 1 + most // 2:
                return
            self._begin()

    def _begin(self) -> None:
        try:
            following = next(self._portions, None)
        except Exception as fault:
            self._stop(fault)
            return
        if following is None:
            self._more = False
        elif isinstance(following, Part):
            refs = self._cluster.read(following.range)
            self._reading.append(_Reading(self._begun, following.range, following.last, *refs))
        else:
            self._reading.append((self._begun, following))
        self._begun += 1

    def _stop(self, fault: Exception) -> None:
        """Gives nothing out any more; what was given out before is still answered."""
        self._more = False
        self._fault = self._fault or fault

    def _evaluate(self) -> None:
        """Has evaluated what can be: portions in order, ranges when their last line is whole."""
        self._look_at_ends()
        most = self._cluster.room()
        while self._reading and len(self._working) < most:
            first = self._reading[0]
            if not isinstance(first, _Reading):
                self._give(self._cluster.evaluate(*first), _place(first[1]))
            elif first.known is None:
                return
            elif isinstance(first.known, Exception):
                self._lose(first.known)
                return
            else:
                begins = not first.wanted.start or first.known.closes
                completion = self._completion(first) if begins else []
                if completion is None:
                    return
                self._give_range(first, first.known, completion)
            self._reading.popleft()

    def _give_range(self, first: _Reading, ends: Ends, completion: list[bytes]) -> None:
        if not first.wanted.start:
            self._line = 1
        line = self._line + ends.closes
        if ends.rest or any(completion):
            lines = first.wanted._replace(start=first.wanted.end - ends.rest, head=b"")
            ref = self._cluster.evaluate_range(first.number, lines, line, first.rest, completion)
            self._give(ref, f"{first.wanted.source}, at or after line {line}")
        self._line = line + ends.lines

    def _lose(self, fault: Exception) -> None:
        self._cluster.cancel(self._pending())
        self._reading.clear()
        self._stop(fault)

    def _completion(self, first: _Reading) -> list[bytes] | None:
        """What ends the last line of a range; None as long as it is not known."""
        completion: list[bytes] = []
        if first.last:
            return completion
        for at in range(1, len(self._reading)):
            following = self._reading[at]
            if not isinstance(following, _Reading) or following.known is None:
                return None
            if isinstance(following.known, Exception):
                self._lose(following.known)
                return None
            completion.append(following.known.head)
            if sum(map(len, completion)) > LIMIT:
                self._lose(InputError(Limit(LIMIT).too_long(), source=first.wanted.source))
                return None
            if following.known.closes or following.last:
                return completion
        return None

    def _give(self, ref: Ref, place: str) -> None:
        self._working[ref] = None
        if not self._groups or self._groups[-1].full or self._groups[-1].merged is not None:
            self._made += 1
            most = min(_TOGETHER, 1 + self._made // 4) if self._together else 1
            self._groups.append(_Group(place, most))
        self._groups[-1].refs.append(ref)

    def _close(self) -> None:
        """Has groups merged that are full, and the last when nothing comes any more."""
        ended = not self._more and not self._reading
        for group in self._groups:
            if group.merged is None and (group.full or ended):
                if len(group.refs) == 1:
                    group.merged = group.refs[0]
                elif all(ref not in self._working for ref in group.refs):
                    group.merged = self._cluster.merge(group.refs)

    # ---- waiting ------------------------------------------------------------------------------

    def _pending(self) -> list[Ref]:
        """The ranges that are being read."""
        return [
            one.ends for one in self._reading if isinstance(one, _Reading) and one.known is None
        ]

    def _look_at_ends(self) -> None:
        pending = self._pending()
        there = set(self._cluster.ready(pending, at_least=0)) if pending else set()
        for one in self._reading:
            if isinstance(one, _Reading) and one.known is None and one.ends in there:
                one.known = self._cluster.get(one.ends, one.wanted.source)

    def _front_waits(self) -> bool:
        return bool(self._groups) and self._groups[0].merged is not None

    def _front_is_ready(self) -> bool:
        if not self._front_waits():
            return False
        ref = self._groups[0].merged
        if not self._cluster.ready([ref], at_least=0):
            return False
        self._working.pop(ref, None)
        return True

    def _wait(self) -> None:
        """Until any of what is awaited is there."""
        awaited = [*self._working, *self._pending()]
        awaited += [self._groups[0].merged] if self._front_waits() else []
        if not awaited:  # all that is here waits for the end of a line
            self._begin()
            return
        for ref in self._cluster.ready(list(dict.fromkeys(awaited)), at_least=1):
            self._working.pop(ref, None)


def _place(portion: Files | Piece) -> str:
    if isinstance(portion, Files):
        return portion.sources[0].name
    return f"{portion.source}, at or after line {portion.line}"
