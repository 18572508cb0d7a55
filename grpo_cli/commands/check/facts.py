"""What is kept of records to compare them with others: sums, digests, labels and prompts."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from grpo_cli.batch import F64, Segments
from grpo_cli.commands.check.kinds import Kinds
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rules.formulas import (
    compare_formulas,
    compare_orders,
    count_advantages,
)
from grpo_cli.commands.check.rules.rewards import compare_sources, count_sizes
from grpo_cli.commands.check.rules.values import Entropies, collect_entropies
from grpo_cli.commands.check.tokens import Place
from grpo_cli.records.unread import PROMPT_IDS, PROMPTS, STEP_FIELDS

_TEXT = (str, list, dict, np.ndarray)
COPY_CHANCE = math.log(1e-6)
SCORES = ("rewards", "advantages", "token_rewards", "turn_rewards")
_HASH_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)


STEPS = 3
"""In two the reference may be the policy by right: before the first update, and after one of a
learning rate of 0 (warm-up)."""


class Keys(NamedTuple):
    """The user's keys of a record's step and of what it is grouped by, and whether that is done."""

    step: str
    group: str
    grouped: bool

    def join(self, steps: Iterable[str]) -> str:
        """Returns what ``--group-by`` takes, where the rows are of these steps."""
        return f"{self.step},{self.group}" if len({*steps}) > 1 else self.group


@dataclass
class Facts:
    """What is kept of records to compare them with others, in the order of the input.

    Attributes:
        kinds: by the formula of their advantages ("formulas"), their order ("orders"), whether
            their reference is the policy ("references"), whether they have rewards or advantages
            ("rewards"), what their rewards are equal to ("sources"), the size of their groups where
            it is one ("sizes"), and the level of the
            probability of responses that repeat one of their group ("copies") kinds of groups,
            records or responses.
        counts: how many records have a reference that is the policy to the last bit ("equal",
            "moved" where the old log-probs differ from both) or not ("differing"), and how many
            have old log-probs of the trainer, not of the engine that sampled ("trained"), all in
            "references"; how many responses have which advantage, as given and by formulas of the
            rewards ("advantages"); by level how many repeat one of their group by chance, times
            ``WHOLE`` ("copies").
        referred: the first record of those that have a reference.
        steps: the steps of these records, three at most.
        entropies: by file those of its tokens, against their log-probs.
        digests: of records their place, the number of responses, a digest of all log-probs, and
            the index and digest of responses; of those that are repeated by chance less than once
            in a million.
        labels: (step, label) of groups of one response.
        prompts: (step, digest of the prompt) of records of one response.
    """

    kinds: defaultdict[str, Kinds] = field(default_factory=lambda: defaultdict(Kinds))
    counts: defaultdict[str, Counter[Any]] = field(default_factory=lambda: defaultdict(Counter))
    referred: Place | None = None
    steps: tuple[str, ...] = ()
    entropies: dict[str, Entropies] = field(default_factory=dict)
    digests: list[tuple[Place, int, int | None, list[tuple[int, int]]]] = field(
        default_factory=list
    )
    labels: list[tuple[tuple[str, Any], Place, Keys]] = field(default_factory=list)
    prompts: list[tuple[tuple[str, bytes], Place, Keys]] = field(default_factory=list)

    def merge(self, later: Facts) -> None:
        """Adds records that follow, except what is compared one by one."""
        for name, kinds in later.kinds.items():
            self.kinds[name].merge(kinds)
        for name, counts in later.counts.items():
            self.counts[name].update(counts)
        for source, entropies in later.entropies.items():
            if source in self.entropies:
                self.entropies[source].merge(entropies)
            else:
                self.entropies[source] = entropies
        self.referred = self.referred or later.referred
        self.steps = tuple(dict.fromkeys(self.steps + later.steps))[:STEPS]


def collect_facts(view: View) -> Facts:
    """Collects what is kept of a view."""
    facts, entropies, place = Facts(), collect_entropies(view), view.places.__getitem__
    facts.kinds["formulas"], facts.kinds["orders"] = compare_formulas(view), compare_orders(view)
    facts.kinds["sources"] = compare_sources(view)
    has = any(one in view.packed.columns or view.has_field(one) for one in SCORES)
    facts.kinds["rewards"] = Kinds.of(np.full(len(view.counts), has), place)
    facts.counts["advantages"] = count_advantages(view)
    if entropies is not None:
        facts.entropies[entropies.place.source] = entropies
    _note_groups(view, facts)
    new, chances = view.columns.get("log_probs_new"), view.chances
    if new is not None and chances is not None:
        _note_copies(view, facts, chances)
        if "log_probs_ref" in view.columns:
            _note_references(view, facts, new)
    alike = {record: one for record, one in count_sizes(view).items() if len(one) == 1}
    owners = [record for record, one in alike.items() for _ in range(one.total())]
    sizes = np.array([size for one in alike.values() for size in one.elements()], np.int64)
    facts.kinds["sizes"] = Kinds.of(sizes, lambda at: view.places[owners[at]])
    return facts


def _note_groups(view: View, facts: Facts) -> None:
    """Adds the labels of groups of one response, and the prompts of records of one response."""
    key, given = view.names.get("group_ids", ""), "advantages" in view.names
    advantages, rewards, raw = view.advantages, view.summed, False
    if advantages is not None and rewards is not None:
        raw = np.array_equal(advantages, rewards)
    single = np.full(len(view.counts), bool(key))
    np.logical_and.at(single, view.records.index[view.first_members], view.sizes == 1)
    for record in np.flatnonzero(single | (view.counts == 1)).tolist():
        value, place = view.values[record], view.places[record]
        step_key, step = _step_of(value)
        if single[record]:
            labels = value[key] if isinstance(value[key], list) else [value[key]]
            keys = Keys(step_key, key, given)
            facts.labels += [((step, label), place, keys) for label in dict.fromkeys(labels)]
        texts = (one for one in (*PROMPTS, *PROMPT_IDS) if isinstance(value.get(one), _TEXT))
        prompt = next(texts, "") if view.counts[record] == 1 else ""
        if prompt:
            text = orjson.dumps(value[prompt], option=orjson.OPT_SERIALIZE_NUMPY, default=str)
            digest = hashlib.blake2b(text, digest_size=8).digest()
            keys = Keys(step_key, prompt, given and not raw)
            facts.prompts.append(((step, digest), place, keys))


def _step_of(value: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the key and the value of a record's step; "" where there is none."""
    key = next((name for name in STEP_FIELDS if name in value), "")
    return key, str(value.get(key, ""))


_LEAST_COPIED = 4
_LEVELS = np.log([1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1])
"""Log-probs of responses between which copies are counted together."""
WHOLE = 1 << 32


def _note_copies(view: View, facts: Facts, chance: F64) -> None:
    """Adds digests of the log-probs of records and responses, and which repeat one of their group.

    Two samples are equal with probability e^L, L being the log-prob of the response. Of likely
    ones, of 4 tokens or more, only how many there are, and how many chance gives.
    """
    rows, columns = view.responses, view.log_probs.values()
    digests = _fold([column.view(np.uint64) for column in columns], rows)
    with np.errstate(invalid="ignore"):
        several = (view.records.sum(chance) < COPY_CHANCE) & (view.counts > 1)
        unlikely = chance < COPY_CHANCE
    whole, each = _fold([digests], view.records).tolist(), digests.tolist()
    for record in np.flatnonzero(several | (view.count_rows(unlikely) > 0)).tolist():
        mine = view.rows_of(record)
        found = [(at, each[mine.start + at]) for at in np.flatnonzero(unlikely[mine]).tolist()]
        own = whole[record] if several[record] else None
        facts.digests.append((view.places[record], mine.stop - mine.start, own, found))
    long = np.flatnonzero((view.lengths >= _LEAST_COPIED) & np.isfinite(chance))
    groups, level = view.groups[long], np.digitize(chance[long], _LEVELS)
    order = np.lexsort((digests[long], groups))
    equal = (np.diff(digests[long[order]]) == 0) & (np.diff(groups[order]) == 0)
    copies, records = np.sort(order[1:][equal]), view.records.index[long]
    facts.kinds["copies"] = Kinds.of(level[copies], lambda at: view.places[records[copies[at]]])
    by_chance = np.exp(np.minimum(chance[long], 0.0)) * (view.sizes[groups] - 1) / 2.0
    sums = np.bincount(level, np.rint(by_chance * WHOLE), len(_LEVELS) + 1)
    facts.counts["copies"].update(dict(enumerate(map(int, sums.tolist()))))


def _note_references(view: View, facts: Facts, new: F64) -> None:
    """Adds which references are the policy to the last bit."""
    old, reference = view.columns.get("log_probs_old", new), view.columns["log_probs_ref"]

    def differ(first: F64, second: F64) -> NDArray[np.bool_]:
        return view.count(first != second) > 0

    differs, moved = differ(reference, new), differ(old, new)
    trained = ~moved | differ(view.columns.get("log_probs_rollout", old), old)
    kinds = {"equal": ~differs, "differing": differs, "moved": ~differs & moved, "trained": trained}
    for kind, found in kinds.items():
        facts.counts["references"][kind] += int((found & (view.tokens > 0)).sum())
    steps = (_step_of(value)[1] for value in view.values)
    facts.steps = tuple(dict.fromkeys(steps))[:STEPS]
    kept = ~(differs & differ(reference, old))
    facts.kinds["references"] = Kinds.of(kept, view.places.__getitem__)
    facts.referred = view.places[0] if any(facts.counts["references"].values()) else None


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
