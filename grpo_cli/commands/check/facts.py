"""What is kept of records to compare them with others: sums, digests, labels and prompts."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from grpo_cli.batch import F64, Segments
from grpo_cli.commands.check.kinds import Kinds
from grpo_cli.commands.check.record_view import Place, View
from grpo_cli.commands.check.rules.formulas import (
    compare_formulas,
    compare_orders,
    count_advantages,
)
from grpo_cli.commands.check.rules.rewards import count_sizes
from grpo_cli.commands.check.rules.values import Entropies, collect_entropies
from grpo_cli.records.unread import PROMPT_IDS, PROMPTS, STEP_FIELDS

_TEXT = (str, list, dict, np.ndarray)
COPY_CHANCE = math.log(1e-6)
SCORES = ("rewards", "advantages", "token_rewards", "turn_rewards")
_HASH_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)


STEPS = 3
"""In two the reference may be the policy by right: before the first update, and after one of a
learning rate of 0 (warm-up)."""


@dataclass
class Facts:
    """Sums over records, which merge in the order of the input.

    Attributes:
        kinds: by the formula of their advantages ("formulas"), their order ("orders"), whether
            their reference is the policy ("references"), whether they have rewards or advantages
            ("rewards"), and the size of their groups where it is one ("sizes") kinds of groups or
            records.
        references: how many records have a reference that is the policy to the last bit ("equal",
            "moved" where the old log-probs differ from both) or not ("differing"); and how many
            have old log-probs of the trainer, not of the engine that sampled ("trained").
        referred: the first record of those that have a reference.
        steps: the steps of these records, three at most.
        entropies: by file those of its tokens, against their log-probs.
        advantages: how many responses have which, as given and by formulas of the rewards.
        expected: level of their probability → how many responses repeat one of their group by
            chance, times ``WHOLE``; ``kinds["copies"]`` has the levels of those that do.
    """

    kinds: defaultdict[str, Kinds] = field(default_factory=lambda: defaultdict(Kinds))
    references: Counter[str] = field(default_factory=Counter)
    referred: Place | None = None
    steps: tuple[str, ...] = ()
    entropies: dict[str, Entropies] = field(default_factory=dict)
    advantages: Counter[tuple[int, int]] = field(default_factory=Counter)
    expected: Counter[int] = field(default_factory=Counter)

    def merge(self, later: Facts) -> None:
        """Adds records that follow."""
        for name, kinds in later.kinds.items():
            self.kinds[name].merge(kinds)
        for source, entropies in later.entropies.items():
            if source in self.entropies:
                self.entropies[source].merge(entropies)
            else:
                self.entropies[source] = entropies
        self.references += later.references
        self.referred = self.referred or later.referred
        self.steps = tuple(dict.fromkeys(self.steps + later.steps))[:STEPS]
        self.advantages.update(later.advantages)
        self.expected.update(later.expected)


@dataclass
class Marks:
    """What is compared with other records, of the records of one view.

    Attributes:
        places, counts: [M] where they are in the input, and how many responses they have.
        given, raw: whether advantages are given, and whether they are the rewards.
        label_key, step_key, prompt_key: the user's keys; "" where records have none.
        digests: (record, None or response, digest of all log-probs) of records of several
            responses, then of responses, that are repeated by chance less than once in a million.
        labels: (record, (step, label)) of groups of one response.
        prompts: (record, (step, digest of the prompt)) of records of one response.
        facts: all else.
    """

    places: list[Place]
    counts: list[int]
    given: bool
    label_key: str
    raw: bool = False
    step_key: str = ""
    prompt_key: str = ""
    digests: list[tuple[int, int | None, int]] = field(default_factory=list)
    labels: list[tuple[int, tuple[str, Any]]] = field(default_factory=list)
    prompts: list[tuple[int, tuple[str, bytes]]] = field(default_factory=list)
    facts: Facts = field(default_factory=Facts)


def collect_marks(view: View) -> Marks:
    """Collects what is kept of a view."""
    key, place = view.names.get("group_ids", ""), view.places.__getitem__
    marks = Marks(list(view.places), view.counts.tolist(), "advantages" in view.names, key)
    facts, entropies = marks.facts, collect_entropies(view)
    facts.kinds["formulas"], facts.kinds["orders"] = compare_formulas(view), compare_orders(view)
    has = any(one in view.packed.columns or view.has_field(one) for one in SCORES)
    facts.kinds["rewards"] = Kinds.of(np.full(len(view.counts), has), place)
    facts.advantages = count_advantages(view)
    if entropies is not None:
        facts.entropies[entropies.place.source] = entropies
    if view.advantages is not None and view.summed is not None:
        marks.raw = np.array_equal(view.advantages, view.summed)
    _note_prompts(view, marks)
    new, trainer = view.columns.get("log_probs_new"), view.trainer
    if new is not None and trainer is not None:
        # Two samples are equal with probability e^L, L being the log-prob of the response.
        digests = _fold(
            [column.view(np.uint64) for column in view.log_probs.values()], view.responses
        )
        with np.errstate(invalid="ignore"):
            sums = view.responses.sum(trainer)
            rows = np.flatnonzero(sums < COPY_CHANCE)
            several = np.flatnonzero((view.records.sum(sums) < COPY_CHANCE) & (view.counts > 1))
        whole = _fold([digests], view.records)[several]
        marks.digests = [
            (at, None, one) for at, one in zip(several.tolist(), whole.tolist(), strict=True)
        ]
        records = view.records.index[rows]
        parts = records, rows - view.records.starts[records], digests[rows]
        marks.digests += zip(*(part.tolist() for part in parts), strict=True)
        _note_copies(view, facts, digests, sums)
    if "log_probs_ref" in view.columns and new is not None:
        facts.references, facts.steps, equal = _compare_references(view, new)
        facts.kinds["references"] = Kinds.of(equal, place)
        facts.referred = view.places[0] if facts.references else None
    alike = {record: one for record, one in count_sizes(view).items() if len(one) == 1}
    owners = [record for record, one in alike.items() for _ in range(one.total())]
    sizes = np.array([size for one in alike.values() for size in one.elements()], np.int64)
    facts.kinds["sizes"] = Kinds.of(sizes, lambda at: view.places[owners[at]])
    if key:
        single = np.ones(len(view.counts), dtype=np.bool_)
        np.logical_and.at(single, view.records.index[view.first_members], view.sizes == 1)
        for record in np.flatnonzero(single).tolist():
            value = view.values[record]
            labels = value[key] if isinstance(value[key], list) else [value[key]]
            marks.step_key, step = _step_of(value)
            marks.labels += [(record, (step, label)) for label in dict.fromkeys(labels)]
    return marks


_LEAST_COPIED = 8
_LEVELS = np.log([1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1])
WHOLE = 1 << 40


def _note_copies(view: View, facts: Facts, digests: NDArray[np.uint64], chance: F64) -> None:
    """Adds the responses of 8 tokens or more that repeat one of their group, and what chance gives.

    Two responses are equal with the probability of either; log-probs are equal to the last bit.
    """
    long = np.flatnonzero((view.lengths >= _LEAST_COPIED) & np.isfinite(chance))
    groups, level = view.groups[long], np.digitize(chance[long], _LEVELS)
    order = np.lexsort((digests[long], groups))
    equal = (np.diff(digests[long[order]]) == 0) & (np.diff(groups[order]) == 0)
    copies, records = np.sort(order[1:][equal]), view.records.index[long]
    facts.kinds["copies"] = Kinds.of(level[copies], lambda at: view.places[records[copies[at]]])
    each = np.exp(np.minimum(chance[long], 0.0)) * (view.sizes[groups] - 1) / 2.0
    sums = np.bincount(level, np.rint(each * WHOLE), len(_LEVELS) + 1)
    facts.expected.update(dict(enumerate(map(int, sums.tolist()))))


def _note_prompts(view: View, marks: Marks) -> None:
    """Adds the prompts of records of one response, in each step."""
    for record in np.flatnonzero(view.counts == 1).tolist():
        value = view.values[record]
        texts = (key for key in (*PROMPTS, *PROMPT_IDS) if isinstance(value.get(key), _TEXT))
        if key := next(texts, ""):
            marks.prompt_key = marks.prompt_key or key
            marks.step_key, step = _step_of(value)
            text = orjson.dumps(value[key], option=orjson.OPT_SERIALIZE_NUMPY, default=str)
            digest = hashlib.blake2b(text, digest_size=8).digest()
            marks.prompts.append((record, (step, digest)))


def _step_of(value: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the key and the value of a record's step; "" where there is none."""
    key = next((name for name in STEP_FIELDS if name in value), "")
    return key, str(value.get(key, ""))


def _compare_references(
    view: View, new: F64
) -> tuple[Counter[str], tuple[str, ...], NDArray[np.bool_]]:
    old = view.columns.get("log_probs_old", new)

    def differ(first: F64, second: F64) -> NDArray[np.bool_]:
        return view.count(first != second) > 0

    reference = view.columns["log_probs_ref"]
    differs, moved = differ(reference, new), differ(old, new)
    trained = ~moved | differ(view.columns.get("log_probs_rollout", old), old)
    kinds = {"equal": ~differs, "differing": differs, "moved": ~differs & moved, "trained": trained}
    steps = (_step_of(value)[1] for value in view.values)
    return (
        Counter({kind: int((found & (view.tokens > 0)).sum()) for kind, found in kinds.items()}),
        tuple(dict.fromkeys(steps))[:STEPS],
        ~(differs & differ(reference, old)),
    )


def _fold(columns: Sequence[NDArray[np.uint64]], parts: Segments) -> NDArray[np.uint64]:
    """Returns [S] a hash of the columns of each segment, in the order of its elements.

    The bits of each element, with its place added, are multiplied by odd numbers and folded as in
    splitmix64. The sums over two different segments, modulo 2⁶⁴, are equal once in 10¹⁹.
    """
    bits = (parts.positions + 1).view(np.uint64)
    for column in columns:
        bits *= np.uint64(_HASH_FACTORS[0])
        bits ^= bits >> np.uint64(31)
        bits += column
    for shift, factor in zip((30, 27), _HASH_FACTORS[1:], strict=True):
        bits ^= bits >> np.uint64(shift)
        bits *= np.uint64(factor)
    return parts.sum(bits ^ (bits >> np.uint64(31)))
