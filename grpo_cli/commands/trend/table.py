"""The numbers of all steps of a run, column by column: some hundred bytes a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import overload

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.trend.step import Place, Step

Worst = Callable[[int], Mapping[str, Place]]
"""The places of a step, by its number."""


class Table:
    """A row for each step, made anew where more of its records come; NaN for None.

    Args:
        names: the columns that every step has.
        whole: those of them that are whole numbers.
    """

    def __init__(self, names: Sequence[str], whole: frozenset[str]) -> None:
        self._fixed, self._whole = len(names), whole
        self._columns = {name: at for at, name in enumerate(names)}
        self._firsts: dict[str, tuple[int, int]] = {}
        self._rows: dict[int, int] = {}
        self._files: list[str] = []
        self._keys: list[str | None] = []
        self._numbers: F64 = np.full((64, len(names)), np.nan)

    def __len__(self) -> int:
        return len(self._rows)

    def file(self, step: int) -> str | None:
        """The first file that has records of a step; None where there is none of it yet."""
        return self._files[self._rows[step]] if step in self._rows else None

    def begin(self, step: int, file: str, key: str | None) -> None:
        """Makes room for a step, of which ``key`` is what says it in the file."""
        self._rows[step] = len(self._files)
        self._files.append(file)
        self._keys.append(key)
        self._grow(len(self._files), self._numbers.shape[1])

    def _grow(self, rows: int, columns: int) -> None:
        room = self._numbers.shape
        if columns > room[1]:
            grown = np.full((room[0], columns), np.nan)
            grown[:, : room[1]] = self._numbers
            self._numbers = grown
        if rows > room[0]:  # in place, where the system can do it
            self._numbers.resize((rows * 5 // 4, columns), refcheck=False)
            self._numbers[room[0] :] = np.nan

    def fill(self, step: int, values: Mapping[str, float | None]) -> None:
        """Puts the numbers of a step in its row; what is not finite is none."""
        fixed = np.array([*values.values()][: self._fixed], dtype=np.float64)
        row = self._rows[step]
        self._numbers[row, : self._fixed] = fixed
        for place, name in enumerate([*values][self._fixed :]):
            if name not in self._columns:
                self._columns[name] = len(self._columns)
                self._grow(len(self._files), len(self._columns))
            self._firsts[name] = min(self._firsts.get(name, (step, place)), (step, place))
            value = values[name]
            self._numbers[row, self._columns[name]] = np.nan if value is None else value
        own = self._numbers[row]
        own[~np.isfinite(own)] = np.nan

    def steps(self, worst: Worst) -> Steps:
        """The steps by number; nothing can be added any more."""
        numbers = sorted(self._rows)
        order = [self._rows[number] for number in numbers]
        values = self._numbers[: len(order)]
        if order != [*range(len(order))]:
            values = values[order]
        others = sorted(self._firsts, key=lambda name: self._firsts[name])
        names = [*[*self._columns][: self._fixed], *others]
        return Steps(
            numbers,
            [self._files[row] for row in order],
            [self._keys[row] for row in order],
            {name: self._columns[name] for name in names},
            self._whole,
            values,
            worst,
        )


class Steps(Sequence[Step]):
    """Steps by number, each of which is made when it is asked for."""

    def __init__(
        self,
        numbers: Sequence[int],
        files: Sequence[str],
        keys: Sequence[str | None],
        columns: Mapping[str, int],
        whole: frozenset[str],
        values: F64,
        worst: Worst,
    ) -> None:
        self._numbers, self._files, self._keys, self._worst = numbers, files, keys, worst
        self.columns, self.whole, self.values = columns, whole, values
        self._shared = {file for file, count in Counter(files).items() if count > 1}

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, at: int) -> Step: ...
    @overload
    def __getitem__(self, at: slice) -> list[Step]: ...
    def __getitem__(self, at: int | slice) -> Step | list[Step]:
        places = range(len(self))[at]
        return self._step(places) if isinstance(places, int) else [*map(self._step, places)]

    def __iter__(self) -> Iterator[Step]:
        return map(self._step, range(len(self)))

    def _step(self, at: int) -> Step:
        number, file = self._numbers[at], self._files[at]
        return Step(
            number,
            file,
            _Row(self, at),
            _Worst(self._worst, number),
            shares_file=file in self._shared,
            key=self._keys[at],
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]  # as lists have none


class _Row(Mapping[str, float | None]):
    """The metrics of a step."""

    __slots__ = ("_at", "_steps")

    def __init__(self, steps: Steps, at: int) -> None:
        self._steps, self._at = steps, at

    def __getitem__(self, name: str) -> float | None:
        steps = self._steps
        value = steps.values.item(self._at, steps.columns[name])
        if value != value:
            return None
        return int(value) if name in steps.whole else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._steps.columns)

    def __len__(self) -> int:
        return len(self._steps.columns)


class _Worst(Mapping[str, Place]):
    """Where a step is worst, which is looked up when it is asked for."""

    __slots__ = ("_number", "_worst")

    def __init__(self, worst: Worst, number: int) -> None:
        self._worst, self._number = worst, number

    def __getitem__(self, name: str) -> Place:
        return self._worst(self._number)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._worst(self._number))

    def __len__(self) -> int:
        return len(self._worst(self._number))


def series_of(steps: Sequence[Step], name: str) -> F64:
    """[n] a metric of each step; NaN where a step has none."""
    if isinstance(steps, Steps):
        return steps.values[:, steps.columns[name]]
    return np.array([step.metrics[name] for step in steps], dtype=np.float64)
