"""Records as flat arrays, as the rules see them: impossible values are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments, cut_turns
from grpo_cli.commands.check.lines import ANOTHER, FORMULAS, SHIFT, Lines, Scores
from grpo_cli.commands.check.tokens import LOG_PROBS, TURN, Place, Tokens, count_marked
from grpo_cli.objective.arithmetic.turns import order_turns
from grpo_cli.records import Packed
from grpo_cli.records.packed import LARGEST


class Trajectory(NamedTuple):
    """One trajectory of several responses, a turn each: [turns] their numbers, in order."""

    record: int
    group: int
    rows: I64


@dataclass(eq=False)
class View(Tokens):
    """Consecutive records with the same columns, and everything that they hold.

    Nothing is refused: log-probs may be positive or not finite.

    Attributes:
        packed: the columns as written, W tokens in all.
        values: [M] the decoded objects.
    """

    packed: Packed = field(kw_only=True)
    values: Sequence[dict[str, Any]] = field(kw_only=True)

    @classmethod
    def of(
        cls,
        packed: Packed,
        places: Sequence[Place],
        values: Sequence[dict[str, Any]],
        names: Mapping[str, str],
    ) -> View:
        """Returns the view of records that were packed."""
        written, mask = Segments(packed.widths), packed.mask
        columns: dict[str, NDArray[Any]] = {
            name: column if mask is None else column[mask]
            for name, column in packed.columns.items()
            if name not in packed.derived and name != BY_TOKEN
        }
        if packed.versions is not None:
            versions = packed.versions if mask is None else packed.versions[mask]
            columns["weight_versions"] = versions
        responses, positions = written, written.positions
        if mask is not None:
            responses = Segments(np.bincount(written.index[mask], minlength=written.count))
            positions = positions[mask]
        if "log_probs_rollout" in columns:
            holes = None if mask is None else positions
            turns = cut_turns(responses, columns.get("turn_ids"), holes)
            order = order_turns(turns, responses, packed.trajectories)
            columns[TURN] = turns.spread(order.number.astype(np.int32))
        samples = np.array([place.number for place in places], dtype=np.int64)
        view = cls(
            *(places, names, packed.counts, responses.lengths, positions, columns, samples),
            packed=packed,
            values=values,
        )
        view.written, view.responses = written, responses
        return view

    @property
    def mask(self) -> NDArray[np.bool_] | None:
        """[W] which tokens count; None if all do."""
        return self.packed.mask

    @property
    def groups(self) -> I64:
        """[R] a number for each group of each record, in order."""
        return self.packed.groups

    @property
    def widths(self) -> I64:
        """[R] tokens of each response as written."""
        return self.packed.widths

    def count(self, tokens: NDArray[np.bool_]) -> I64:
        """Returns [M] how many of the tokens that count, or of those as written, are marked."""
        if len(tokens) == self.responses.total:
            return count_marked(self.record_tokens, tokens)
        found: I64 = self.records.sum(count_marked(self.written, tokens))
        return found

    @cached_property
    def written(self) -> Segments:
        """The tokens of each response as written."""
        return Segments(self.widths)

    def has_field(self, name: str) -> bool:
        """Whether the records have a field; all records of a view have it, or none."""
        if name in LOG_PROBS:
            return name in self.columns
        return name in self.names or (name == "rewards" and self.rewards is not None)

    # ---- rewards and groups ---------------------------------------------------------------

    @cached_property
    def rewards(self) -> F64 | None:
        """[R], or [R, K] of several functions, NaN if not finite; None if there are none."""
        return _without_infinities(self.packed.scores.get("rewards"))

    @cached_property
    def advantages(self) -> F64 | None:
        """[R], NaN if not finite; None if there are none, or several in one response."""
        given = self.packed.scores.get("advantages")
        by_token = self.token_advantages
        if given is None and by_token is not None and len(by_token):
            first = by_token[np.minimum(self.responses.starts, len(by_token) - 1)]
            if (by_token == np.repeat(first, self.lengths)).all():
                given = np.where(self.lengths > 0, first, np.nan)
        return _without_infinities(given)

    @cached_property
    def token_advantages(self) -> F64 | None:
        """[N] of the tokens that count; None if advantages are given per response, or not."""
        written = self.packed.columns.get(BY_TOKEN)
        return written if written is None or self.mask is None else written[self.mask]

    @cached_property
    def summed(self) -> F64 | None:
        """[R] one reward per response, several functions added up."""
        if self.rewards is None or self.rewards.ndim == 1:
            return self.rewards
        return np.nansum(self.rewards, axis=1)

    @cached_property
    def sizes(self) -> I64:
        """[groups] responses of each group."""
        return np.bincount(self.groups)

    @cached_property
    def _grouped(self) -> tuple[I64, I64]:
        order = np.argsort(self.groups, kind="stable")
        return order, np.cumsum(self.sizes) - self.sizes

    @property
    def places_in_groups(self) -> I64:
        """[R] the place of each response in its group, from 0 on."""
        order, starts = self._grouped
        found = np.empty_like(order)
        found[order] = np.arange(len(order)) - starts[self.groups[order]]
        return found

    @cached_property
    def trajectories(self) -> list[Trajectory]:
        """Those of the records that write each turn as a response; none where none does."""
        numbers = self.packed.trajectories
        if numbers is None or len(np.unique(numbers)) == len(numbers):
            return []
        turns, written = np.zeros(len(numbers)), self.packed.columns.get("turn_ids")
        if written is not None and len(written):
            first = np.minimum(self.written.starts, len(written) - 1)
            turns = np.where(self.widths > 0, written[first], 0)
        order = np.lexsort((np.arange(len(numbers)), turns.astype(np.int64), numbers))
        rows = np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)
        records = self.records.index
        return [Trajectory(int(records[one[0]]), int(self.groups[one[0]]), one) for one in rows]

    @cached_property
    def turned(self) -> dict[int, list[Trajectory]]:
        """Record → its trajectories, if some of them have several turns."""
        found: dict[int, list[Trajectory]] = {}
        for one in self.trajectories:
            found.setdefault(one.record, []).append(one)
        return {key: some for key, some in found.items() if any(len(t.rows) > 1 for t in some)}

    @cached_property
    def lines(self) -> Lines | None:
        """[groups] from rewards to advantages; None without advantages, or of turns."""
        if self.summed is None or self.advantages is None or self.turned:
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            return Lines.fit(Scores(self.summed, self.advantages, self.groups), self.groups)

    @cached_property
    def sorted_lines(self) -> Lines | None:
        """[groups] as ``lines``, with rewards and advantages of each group sorted."""
        if self.lines is None or self.summed is None or self.advantages is None:
            return None
        first, second = (np.lexsort((one, self.groups)) for one in (self.summed, self.advantages))
        with np.errstate(over="ignore", invalid="ignore"):
            given = Scores(self.summed[first], self.advantages[second], self.groups[first])
            return Lines.fit(given, given.groups)

    @cached_property
    def odd_groups(self) -> dict[str, I64]:
        """The groups whose advantages follow no formula, and are not all 0, by their kind.

        "reordered" where the advantages follow one of three formulas if both are sorted, "negated"
        where they do with the opposite sign, else "odd".
        """
        lines, sorted_ones, given = self.lines, self.sorted_lines, self.advantages
        several = self.rewards is not None and self.rewards.ndim > 1
        if lines is None or sorted_ones is None or given is None or several:
            return {}
        odd = lines.formulas == FORMULAS.index(ANOTHER)
        odd &= self.by_group(np.abs(given), np.maximum) > 0.0
        fits = [
            (one.left <= SHIFT) & (one.offset <= SHIFT) & one.have_scales(slope).any(axis=1)
            for one, slope in ((sorted_ones, sorted_ones.slope), (lines, -lines.slope))
        ]
        kinds = np.where(odd, np.select(fits, [1, 2], 3), 0)
        names = "", "reordered", "negated", "odd"
        return {name: np.flatnonzero(kinds == at) for at, name in enumerate(names) if at}

    def members(self, group: int) -> I64:
        """Returns the responses of a group."""
        order, starts = self._grouped
        return order[starts[group] : starts[group] + self.sizes[group]]

    def by_group(self, values: F64, reduce: np.ufunc) -> F64:
        """Returns [groups] the values of each group's responses, reduced."""
        order, starts = self._grouped
        found: F64 = reduce.reduceat(values[order], starts) if len(order) else values
        return found

    @cached_property
    def first_members(self) -> I64:
        """[groups] the first response of each group."""
        order, starts = self._grouped
        return order[starts]

    # ---- words ----------------------------------------------------------------------------

    @cached_property
    def ids(self) -> I64 | None:
        """[W] a number for each token as written: its id, or else that of its string."""
        for name in ("token_ids", "tokens"):
            if name in self.names:
                return self._numbers(self.names[name])
        return None

    def _numbers(self, key: str) -> I64 | None:
        rows, total = [value[key] for value in self.values], self.written.total
        parts = [*chain.from_iterable(rows)]
        arrays = {getattr(part, "dtype", None) for part in parts} == {np.dtype(np.int64)}
        try:
            if {*map(type, parts)} == {list} and sum(map(len, parts)) == total:
                every = chain.from_iterable(parts)
                if type(next(every, None)) is int:  # half of the time that the list takes
                    return np.fromiter(chain.from_iterable(parts), np.int64, total)
            found = np.concatenate(parts) if arrays else flat(rows, total)
            if len(found) != total:
                return None
            if len(found) and isinstance(found[0], str):
                numbers = self.words if key == self.names.get("tokens") else _numbered(found)
                found = [numbers[word] for word in found]
            return np.asarray(found, dtype=np.int64)
        except (TypeError, ValueError, OverflowError):
            return None

    @cached_property
    def words(self) -> Mapping[str, int]:
        """The number of each different string in ``tokens``, as in ``ids``.

        Raises:
            TypeError: where tokens are nested in several ways.
        """
        key = self.names["tokens"]
        return _numbered(flat([value[key] for value in self.values], self.written.total))

    def strings(self, name: str) -> NDArray[Any] | None:
        """[W] the strings of a field with one for each token as written; None if it has not."""
        if name not in self.names:
            return None
        words = flat([value[self.names[name]] for value in self.values], self.written.total)
        return np.array(words, dtype=object) if len(words) == self.written.total else None

    @cached_property
    def counted_ids(self) -> I64 | None:
        """[N] a number for each token that counts."""
        return self.ids if self.ids is None or self.mask is None else self.ids[self.mask]

    def word(self, number: int) -> str:
        """Returns the name of a token in messages: its id, or its string."""
        if "token_ids" not in self.names:
            return repr(list(self.words)[number])
        text = self.text_of(number).get(number)
        return name_token(number, text).removeprefix("" if text is None else "token ")

    def text_of(self, number: int) -> dict[int, str]:
        """Returns id → the string of its first token; empty where records have no strings."""
        texts = self.strings("tokens")
        if texts is None or self.ids is None:
            return {}
        return {number: str(texts[int(np.argmax(self.ids == number))])}


def name_token(number: int | None, text: str | None) -> str:
    """Returns the name of a token in messages: ``token ' the' (id 5)``, or what is known of it."""
    if text is None:
        return f"token id {number}"
    return f"token {text!r}" + (f" (id {number})" if number is not None else "")


BY_TOKEN = "token_advantages"
"""The column of advantages per token, which is not among ``columns``."""


def find_bad(scores: F64) -> NDArray[np.bool_]:
    """Returns which scores nothing can be computed with; of several functions NaN is none given."""
    bad: NDArray[np.bool_] = ~(np.abs(scores) <= LARGEST)
    return bad if scores.ndim == 1 else bad & ~np.isnan(scores)


def _without_infinities(scores: F64 | None) -> F64 | None:
    """Returns scores with NaN, which no comparison holds of, for those beyond ``LARGEST``."""
    if scores is None or not find_bad(scores).any():
        return scores
    return np.where(np.abs(scores) <= LARGEST, scores, np.nan)


def _numbered(words: Iterable[str]) -> dict[str, int]:
    return {word: number for number, word in enumerate(dict.fromkeys(words))}


def flat(rows: list[Any], count: int) -> list[Any]:
    """Returns the elements of nested lists of any depth; ``count``: how many there should be."""
    found, nested = rows, {list, np.ndarray}
    while (
        found and (len(found) != count or type(found[0]) in nested) and nested & {*map(type, found)}
    ):
        lists = [x.tolist() if isinstance(x, np.ndarray) else x for x in found]
        found = [*chain.from_iterable([x if isinstance(x, list) else [x] for x in lists])]
    return found
