"""What an answer has in addition to findings: skipped rules, what mismatch is normal."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import I64
from grpo_cli.commands.check.answer import MismatchFound, NotChecked
from grpo_cli.commands.check.record_view import View, name_token
from grpo_cli.commands.check.rule import Topic, table, topics
from grpo_cli.objective.mismatch import POSITION, TOKEN, Attribution, Cause, Kind, k3

FEWER_THAN = "fewer than "
"""Begins the reason of a skipped rule if the input has too little of something, not no field."""


class SkippedRules(NamedTuple):
    """Rules that are skipped together, and why.

    Attributes:
        topic: what they look for, in words.
        fallback: the part that they still find; empty if they find nothing.
        missing: the fields that records lack; ``a|b`` is either.
    """

    topic: str
    fallback: str
    missing: tuple[str, ...]


def missing_needs(topic: Topic, view: View) -> tuple[str, ...]:
    """Returns the fields that rules of a topic need and that the records of a view lack."""
    lacking = [need for need in topic.needs if not any(map(view.has_field, need.split("|")))]
    by_id = view.has_field("token_ids") and any("token_ids" in need for need in topic.needs)
    return (*lacking, *[_COMPARABLE] * (by_id and view.ids is None))


_COMPARABLE = "token_ids below 2^63"


def count_skipped(view: View) -> Counter[SkippedRules]:
    """Counts the records of a view for which rules are skipped, by what they lack."""
    found: Counter[SkippedRules] = Counter()
    pairs = zip(view.packed.settings, view.values, strict=True)
    kinds = Counter(
        (frozenset(settings), frozenset([key for key, one in value.items() if one is not None]))
        for settings, value in pairs
    )
    for topic in topics():
        missing, count = missing_needs(topic, view), len(view.counts)
        if topic.needs_key:
            keys = topic.needs_key.split("|")
            bare = sum(many for (_, given), many in kinds.items() if given.isdisjoint(keys))
            found[SkippedRules(topic.topic, "", (*missing, topic.needs_key))] = bare
            count -= bare
        if missing:
            found[SkippedRules(topic.topic, "", missing)] = count
        if wanted := topic.full_coverage_needs:
            partly = SkippedRules(topic.topic, topic.fallback, (wanted,))
            setting, *keys = wanted.split("|")
            found[partly] = sum(
                many
                for (settings, given), many in kinds.items()
                if setting not in settings and given.isdisjoint(keys)
            )
    return +found


def count_short(
    skipped: Counter[SkippedRules], found: Iterable[str], records: int, tokens: int
) -> Counter[SkippedRules]:
    """Counts the records of an input without enough tokens for rules that lack nothing else.

    Not where a rule of the topic found something: it needs fewer tokens than the others.
    """
    lacking = {one.topic for one in skipped if not one.fallback and skipped[one] == records}
    lacking |= {rule.topic.topic for rule in table() if rule.code in {*found}}
    return Counter(
        {
            SkippedRules(topic.topic, "", (f"{FEWER_THAN}{topic.least_tokens} tokens",)): records
            for topic in topics()
            if 0 < tokens < topic.least_tokens and topic.topic not in lacking
        }
    )


def not_checked(counts: Mapping[SkippedRules, int]) -> tuple[NotChecked, ...]:
    """Returns the skipped rules as the answer has them, in the order of the topics."""
    order = [topic.topic for topic in topics()]
    codes = {name: [rule.code for rule in table() if rule.topic.topic == name] for name in order}
    return tuple(
        NotChecked(
            about=skipped.topic,
            codes=tuple(dict.fromkeys(codes[skipped.topic])),
            missing=tuple(tuple(need.split("|")) for need in skipped.missing),
            partly=skipped.fallback or None,
            records=counts[skipped],
        )
        for skipped in sorted(counts, key=lambda item: (order.index(item.topic), item.missing))
    )


_UNITS = {"rms": "nats RMS", "mean_abs": "nats mean size", "kl": "nats of KL"}


class Floor(NamedTuple):
    """How far log-probs of equal weights differ in a setting in which nothing is wrong.

    Attributes:
        setting: what differs between the two sides.
        measure: ``rms``, ``mean_abs`` or ``kl``, in nats per token.
        low, high: the range that was found.
        models: the models, engines and versions.
        source: the page that says so, or the script that measures it.
    """

    setting: str
    measure: str
    low: float
    high: float
    models: str
    source: str

    def describe(self, *, normal: bool) -> str:
        """Says what the setting gives, for a mismatch that is normal or too large."""
        low, high = f"{self.low:.3g}", f"{self.high:.3g}"
        span = low if low == high else f"{low} to {high}"
        size = f"{span} {_UNITS[self.measure]}"
        if normal:
            return f"normal: at most the {size} reported for {self.setting} ({self.models})"
        known = f"the largest reported without a fault is {size}"
        return f"too large: {known}, for {self.setting} ({self.models})"


@cache
def floors() -> tuple[Floor, ...]:
    """The atlas, the mildest setting first."""
    text = files(__package__).joinpath("floors.json").read_text(encoding="utf-8")
    return tuple(Floor(**row) for row in json.loads(text))


_DIFFERS, _LARGEST, _UNIT = 0.05, 1e3, 2.0**20
_LEAST_TOKENS, _LEAST_EXPLAINED = 8, 0.5
_VOCABULARY = 1 << 18
"""Ids below this are counted in a table, which is five times as fast as sorting them."""
_MOST_WORDS = 1 << 20


class WordSums:
    """What differs by over 0.05 nats between trainer and engine, by id or text of the token.

    Attributes:
        texts: of ids that have most of it in some records; of all numbers that stand for texts.
    """

    def __init__(self) -> None:
        # [words] numbers, how many tokens, and Σ k3 in whole units, which add up in any order
        self._parts: list[tuple[I64, I64, I64]] = []
        self.texts: dict[int, str] = {}

    def merge(self, later: WordSums) -> None:
        """Adds other tokens."""
        self._parts += later._parts
        self.texts.update(later.texts | self.texts)
        if sum(len(words) for words, _, _ in self._parts) > _MOST_WORDS:
            self._parts = [self.sums()]

    def sums(self) -> tuple[I64, I64, I64]:
        """Returns [words] numbers of tokens, how many differ, and Σ k3 in units of 2⁻²⁰."""
        if not self._parts:
            return (np.zeros(0, dtype=np.int64),) * 3
        words, counts, kl = map(np.concatenate, zip(*self._parts, strict=True))
        words, at = np.unique(words, return_inverse=True)
        sums = np.zeros((2, len(words)), dtype=np.int64)
        for mine, given in zip(sums, (counts, kl), strict=True):
            np.add.at(mine, at, given)
        return words, *sums

    def add(self, view: View, compared: NDArray[np.bool_]) -> None:
        """Adds the tokens of a view; ``compared``: [M] the records to take."""
        trainer = view.log_probs.get("log_probs_old", view.log_probs.get("log_probs_new"))
        engine = view.log_probs.get("log_probs_rollout")
        if trainer is None or engine is None:
            return
        d = trainer - engine
        far = np.abs(d) > _DIFFERS
        if not compared.all():
            far &= np.repeat(compared, view.tokens)
        ids = view.counted_ids if far.any() else None
        if ids is None:
            return
        d, at, numbers = d[far], ids[far], np.arange(_VOCABULARY)
        if at.min() < 0 or at.max() >= _VOCABULARY:
            numbers, at = np.unique(at, return_inverse=True)
        counts = np.bincount(at)
        kl = np.bincount(at, np.rint(np.minimum(k3(d), _LARGEST) * _UNIT))
        seen = np.flatnonzero(counts)
        words, counts, kl = numbers[seen], counts[seen], kl[seen].astype(np.int64)
        if "token_ids" not in view.names:
            texts = [*view.words]
            named = {_number(texts[word]): texts[word] for word in words.tolist()}
            words = np.array([*named], dtype=np.int64)
            self.texts.update(named)
        elif 2 * kl.max() > kl.sum() and (most := int(words[kl.argmax()])) not in self.texts:
            self.texts.update(view.text_of(most))
        self._parts.append((words, counts, kl))


def _number(text: str) -> int:
    """Returns a negative number that no other text has, as no id has either."""
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return -1 - (int.from_bytes(digest, "big") >> 1)


def _word_cause(found: Attribution, sums: WordSums) -> Cause | None:
    """Returns what the word with most of the KL explains; None if that is less than half."""
    words, counts, kl = sums.sums()
    if not len(words):
        return None
    at = int(kl.argmax())
    word, count = int(words[at]), int(counts[at])
    own, whole, others = int(kl[at]) / _UNIT, found.kl * found.tokens, found.tokens - count
    if count < _LEAST_TOKENS or not others:
        return None
    rest = max(whole - own, 0.0)
    explains = 1.0 - rest / others / found.kl
    text = sums.texts.get(word)
    number = None if text is not None and word < 0 else word
    kinds = (
        Kind(name_token(number, text), count, own / count, own / whole),
        Kind("other tokens", others, rest / others, rest / whole),
    )
    return Cause(TOKEN, explains, None, kinds) if explains > _LEAST_EXPLAINED else None


def judge(found: Attribution | None, sums: WordSums) -> MismatchFound | None:
    """The mismatch, and the mildest setting that is known to differ as much.

    Args:
        sums: by word; one of them explains no mismatch that is normal.
    """
    if found is None:
        return None
    reaching = [one for one in floors() if getattr(found, one.measure) <= one.high]
    floor = reaching[0] if reaching else floors()[-1]
    word = None if reaching else _word_cause(found, sums)
    if word is not None:
        others = [
            replace(one, explains=0.0) if one.name == POSITION and word.is_as_much(one) else one
            for one in found.causes
        ]
        found = replace(found, causes=(word, *others))
    return MismatchFound(
        **vars(found),
        named=None if found.first is None else found.first.name,
        normal=bool(reaching),
        setting=floor.setting,
        floor=floor.describe(normal=bool(reaching)),
        source=floor.source,
    )
