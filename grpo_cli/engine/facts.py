"""What commands say of their input: records that were skipped, and facts worth a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from grpo_cli.errors import InputError
from grpo_cli.records import DecodedChunk, Raw
from grpo_cli.records.choose.grouping import steps_in
from grpo_cli.records.fields import METRICS, fields_of, logged_metrics, read_fields
from grpo_cli.records.parse.scores import total_among
from grpo_cli.records.places import count
from grpo_cli.records.settings import framework_of, keys_of_settings
from grpo_cli.records.translate import Notices
from grpo_cli.records.unread import SHARED, Unread, candidates, is_list, look
from grpo_cli.variants.plan import Plan
from grpo_cli.variants.trainer import named_row, unapplied

ERRORS_KEPT = 20
"""Errors of skipped records that are kept."""
GIVEN_ALONE, DEAD_ALONE = ", with its given advantage", ", so every advantage is 0"
"""What follows where each record is a group of its own."""
_TOTAL = (
    "{0} seems to be the total of the other rewards, and all are added up; for the total alone: "
    "--map rewards={0}"
)
_LOGGED = "{} is one number in a record: a logged metric, not read as a column"


@dataclass
class Skipped:
    """The errors of records that were left out, in flat memory.

    Attributes:
        most: how many errors are kept; 0 for all.
        count: how many there were.
        first: those that are kept, in order; without a limit with those that repeat another.
    """

    most: int = ERRORS_KEPT
    count: int = 0
    first: list[InputError] = field(default_factory=list)
    _by_words: dict[Any, InputError] = field(default_factory=dict, repr=False)

    def add(self, error: InputError) -> None:
        """Counts one more."""
        self.merge(Skipped(count=1, first=[error]))

    def merge(self, later: Skipped) -> None:
        """Adds those of a piece of input that follows."""
        self.count += later.count
        for error in later.first:
            words = frozenset(kind[1:] for kind in error.alike)  # whatever the file
            if not self.most:
                self.first.append(error)
            elif (same := self._by_words.get(words)) is not None:
                same.repeats += 1 + error.repeats
                same.sources |= error.sources | {error.source}
            elif sum(map(len, self._by_words)) < self.most:
                self.first.append(error)
                self._by_words[words] = error

    @property
    def more(self) -> int:
        """How many are neither kept nor repeat one that is."""
        return self.count - sum(1 + one.repeats for one in self.first)

    def __len__(self) -> int:
        """How many records were left out."""
        return self.count

    def __iter__(self) -> Iterator[InputError]:
        """The errors that are kept."""
        return iter(self.first)


_NULLS = {
    "log_probs_rollout": ("token", "its log-prob is taken from log_probs_old, weight 1 as in TRL"),
    "rewards": ("response", "the record's advantages are used, and none of its rewards"),
}
"""Field → what may have null there, and what is read instead."""


@dataclass
class InputFacts:
    """Facts of some input that are worth a sentence; they merge.

    Attributes:
        notices: sentences, and the line that first gave rise to each.
        named: the row that its first object names, "" for none; None where it has no object.
        steps: a field that says steps → the steps of the records, and the first file that has each.
        shared: a file → an earlier one, and a step that both have.
        unread: the keys that hold a column which nothing reads.
        keys: canonical name → the key of that object.
        group: the key that the responses of a group seem to share.
        settings: hyperparameter → the key under which that object, or its configuration, gives it.
        nulls: field → how many tokens, or responses, have null there.
        kinds: whether a record is one response → the first that is, or is not, and its fields.
    """

    notices: Notices = field(default_factory=dict)
    named: str | None = None
    steps: dict[str, dict[Any, str]] = field(default_factory=dict)
    shared: dict[str, tuple[str, Any]] = field(default_factory=dict)
    unread: Unread = field(default_factory=Unread)
    keys: Mapping[str, str] = field(default_factory=dict)
    group: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    nulls: Counter[str] = field(default_factory=Counter)
    kinds: dict[bool, tuple[str, int | None, Mapping[str, str]]] = field(default_factory=dict)

    def merge(self, later: InputFacts) -> None:
        """Adds the facts of the input that follows."""
        self.notices |= later.notices
        for name, steps in later.steps.items():
            self._add_steps(name, steps)
        self.shared = later.shared | self.shared
        self.unread.merge(later.unread)
        self.nulls += later.nulls
        self.kinds |= {kind: first for kind, first in later.kinds.items() if kind not in self.kinds}
        if self.named is None:
            self.named, self.keys, self.settings = later.named, later.keys, later.settings
            self.group = later.group

    def stop(self, line: int | None, path: str = "") -> None:
        """Forgets the facts of lines after the one at which work on a file stopped.

        Args:
            line: the line; None in a document.
            path: what the error there says the place of.
        """
        if line is not None:
            behind = [text for text, at in self.notices.items() if at is not None and at > line]
            for text in behind:
                del self.notices[text]
            for kind in [kind for kind, (_, at, _) in self.kinds.items() if (at or 0) > line]:
                del self.kinds[kind]
        self.unread.stop(line, path)

    def sentences(self, *plans: Plan) -> Notices:
        """The notices, and those on keys that nothing reads, or that choose what no plan has."""
        choices = unapplied(self.unread.others, plans, self.named or "", self.keys)
        named = [*chain.from_iterable(choices.values())]
        unread = self.unread.note([plan.values for plan in plans], named)
        nulls = [
            f"{self.keys.get(name, name)} has null for {count(self.nulls[name], word)}: {instead}"
            for name, (word, instead) in _NULLS.items()
            if self.nulls[name]
        ]
        releases = [plan.release for plan in plans]
        more = dict.fromkeys([*filter(None, [*releases, *choices]), *nulls])
        return dict.fromkeys(self._mixed()) | self.notices | unread | more

    def _mixed(self) -> Iterator[str]:
        """That some records are groups of responses, and others one response each."""
        if len(self.kinds) < 2:
            return
        places = {
            kind: source if line is None else f"{source}:{line}"
            for kind, (source, line, _) in self.kinds.items()
        }
        key = self.kinds[True][2].get("group_ids")
        alone = f", the latter with --where '{key}!=null' --group-by {key}" if key else ""
        yield (
            f"records of two kinds: groups of responses (first at {places[False]}) and single "
            f"responses, each a group of its own (first at {places[True]}); evaluate each kind "
            f"alone{alone}"
        )

    def ungrouped(self, records: int, groups: int, responses: int, effect: str = "") -> str | None:
        """What is wrong where every record is one response and says the group that it is of.

        Args:
            effect: what follows from it, as ``DEAD_ALONE``.
        """
        key = self.group
        if not 1 < records == groups == responses or key is None:
            return None
        for name, steps in self.steps.items():
            if len(steps) > 1:  # a prompt may come back in a later step
                key = f"{name},{key}"
        return f"each record is a group of its own{effect}; --group-by {key} joins them"

    def collect(
        self, decoded: Iterable[DecodedChunk], used: Container[str] = ()
    ) -> Iterator[DecodedChunk]:
        """Yields objects unchanged, and keeps the facts of each set of keys that they have.

        Args:
            used: keys that flags read.
        """
        for chunk in decoded:
            if self.named is None:
                self._add_first(getattr(chunk.items[0], "value", None))
            self._add_unread(chunk, used)
            for name, steps in steps_in(chunk).items():
                self._add_steps(name, dict.fromkeys(steps, chunk.items[0].source or ""))
            for raw in chunk.items:
                if isinstance(raw, Raw):
                    raw.nulls = self.nulls
            yield chunk

    def _add_first(self, value: Any) -> None:
        """Adds what the input's first object says of all, and does not keep that object."""
        self.named = named_row(value) or ""
        value = value if isinstance(value, dict) else {}
        with suppress(InputError):
            self.keys = read_fields(value).names
        known = (key for key in SHARED if type(value.get(key)) in (str, int))
        self.group = self.keys.get("group_ids") or next(known, None)
        self.settings = keys_of_settings(value)
        functions = value.get(key := self.keys.get("rewards", ""))
        weighted = "reward_weights" in framework_of(value)
        total = total_among(functions) if isinstance(functions, dict) and not weighted else None
        if total is not None:
            self.notices.setdefault(_TOTAL.format(f"{key}.{total}"), None)

    def _add_steps(self, name: str, found: Mapping[Any, str]) -> None:
        known = self.steps.setdefault(name, {})
        for step, source in found.items():
            first = known.setdefault(step, source)
            if first != source:
                self.shared.setdefault(source, (first, step))

    def _add_unread(self, chunk: DecodedChunk, used: Container[str]) -> None:
        """Adds the keys that no part reads, of the first record with each set of keys."""
        alike = chunk.keys is not None and METRICS.isdisjoint(chunk.keys)
        for raw in chunk.items[:1] if alike else chunk.items:
            row = raw.row if isinstance(raw, Raw) else None
            if not isinstance(raw, Raw) or not isinstance(row, dict):
                continue
            for key in logged_metrics(row):
                self.notices.setdefault(_LOGGED.format(key), raw.line)
            keys = chunk.keys or tuple(row)
            known = fields_of(keys)
            values: Any = None if known is None else row.get(known.names.get("log_probs_new", ""))
            if known is not None and is_list(values) and len(values):
                is_single = not (raw.rows or is_list(values[0]))
                self.kinds.setdefault(is_single, (raw.source, raw.line, known.names))
            if known is None or self.unread.has(keys):
                continue
            if not candidates(known.unknown) and "hyperparameters" not in known.names:
                continue
            with suppress(InputError):  # reported where the record is read
                fields = read_fields(row)
                unread = [key for key in candidates(fields.unknown) if key not in used]
                found = look(row, fields.names, unread, fields.misnamed, raw.line)
                self.unread.add(keys, found)
