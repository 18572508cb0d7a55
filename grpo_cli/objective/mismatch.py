"""Where log π_old − log π_rollout comes from: the KL that would go without each cause.

With d = log π_old − log π_rollout of a token that π_rollout sampled, k3 = e^d − 1 − d estimates
KL(π_rollout ‖ π_old) and is negative at no token, so the KL divides among the tokens.

A cause spares some tokens: those of the newest weights, say. It *explains* the share of the KL that
would go if all tokens differed as much, for the room that they have, as those that it spares::

    1 − (Σ k3 / Σ room over the spared) · (Σ room / Σ k3 over all),    room = (1 − p)²

with the smaller of both probabilities p: an error σ of the logits moves log p by about σ·(1 − p),
so a sure token hardly differs whatever the cause, and a hard stretch of text is none. Rounding
spares no token, but the KL that it adds is known: Σ step²/24. What causes explain does not add up
where they overlap (old weights sampled the early turns).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from grpo_cli.batch import F64, I64, Segments, cut_turns
from grpo_cli.objective import kl as estimators
from grpo_cli.objective.arithmetic.exact_sums import ExactSum

OUTLIERS, PRECISION, SUPPORT = "outliers", "precision", "support"
VERSION, TURN, POSITION, STEP = "version", "turn", "position", "step"
TOKEN = "token"
"""Of one id or text: ``check`` adds it, which reads these."""
PLACES = ("first token", "1st quarter", "2nd quarter", "3rd quarter", "4th quarter", "last token")
SIDES = ("rollout surer", "trainer surer")
GRIDS = (("bf16", 0xFFFF, 2.0**-7), ("fp16", 0x1FFF, 2.0**-10))
"""Formats, the bits of a single that they lack, and their steps between 1 and 2."""

_OVERFLOW = 50.0
_WORST = 0.001
_FAR, _FAR_TIMES, _BULK = 1.0, 4.0, 0.98
"""An outlier differs by over a nat, and by four times what 98 % of the tokens do not exceed."""
_LEAST, _SIGMAS, _ALIKE = 0.2, 6.0, 0.85
"""What a cause must explain to be named, how surely, and the share of the most that is as much."""
_LEAST_SPARED, _LEAST_RUNS = 0.05, 8
_NEARLY_ALL, _LEAST_RATE = 0.95, 0.1
"""The share of the KL that some steps have if the others have none, and of its mean by token."""
_AHEAD = 5
_PLACED, _VARIANCE = 2.0, 0.01
"""How much more the places that differ most have to differ than the others, and the share of the
variance of k3 between places: one token or a minority of tokens makes as much uneven by chance."""
_SETTLED = 4096
_CACHED = 1 << 15
"""Tokens that are added together: arrays of so many stay in the cache, four times as fast."""
_BITS = 19
_NOTHING, _ENDLESS = 1e-30, -1e30
"""Differences below and log-probs below which are all alike: their squares are finite."""
_BINS = 1 << (32 - _BITS)
"""Bins of the distribution of d: the leading 13 bits of a single, 16 bins an octave."""


@dataclass(frozen=True)
class Kind:
    """Tokens of one kind, as a cause distinguishes them.

    Attributes:
        name: a version, a turn, a place.
        tokens: how many they are.
        kl: the mean of k3.
        share: of the KL.
    """

    name: str
    tokens: int
    kl: float
    share: float


@dataclass(frozen=True)
class Cause:
    """What a cause explains.

    Attributes:
        name: of the cause.
        explains: the share of the KL that would go without it; 0 of places that do not differ by
            far, or no more than a token explains.
        sigmas: by how many standard errors the spared tokens differ less; None of outliers and of
            rounding, which are no sample.
        kinds: of tokens, those that carry most of the KL first.
        step: from which on it is larger; None of other causes, and where it is smaller.
        grows: whether it becomes larger again after that step.
    """

    name: str
    explains: float
    sigmas: float | None
    kinds: tuple[Kind, ...]
    step: int | None = None
    grows: bool = False

    @property
    def counts(self) -> bool:
        """Whether it explains a fifth and more, surely."""
        return self.explains >= _LEAST and (self.sigmas is None or self.sigmas >= _SIGMAS)

    def is_as_much(self, other: Cause) -> bool:
        """Whether it explains about as much as another, or more."""
        return self.explains >= _ALIKE * other.explains


@dataclass(frozen=True)
class Attribution:
    """The mismatch of some tokens, and what explains it.

    Attributes:
        tokens: how many there are.
        rms, mean_abs: of d, nats.
        kl: the mean of k3.
        worst: the share of the KL in the worst 0.1 % of the tokens.
        causes: the more special first.
    """

    tokens: int
    rms: float
    mean_abs: float
    kl: float
    worst: float
    causes: tuple[Cause, ...]

    @property
    def first(self) -> Cause | None:
        """The cause that explains most; of causes that explain about as much the most special."""
        found = [one for one in self.causes if one.counts]
        most = max(found, key=lambda one: one.explains, default=None)
        return next((one for one in found if most is not None and one.is_as_much(most)), None)


_COLUMNS = 9
"""Of the sums of a kind: tokens, runs, k3, room, |d|, 1 − p, and products of the last two."""


def k3(d: F64) -> F64:
    """[N] e^d − 1 − d of d, or of 50 where d is more; never negative."""
    return estimators.k3(-np.minimum(d, _OVERFLOW))[0]


class Mismatch:
    """An accumulator: ``add`` tokens, ``merge`` others, read the ``result``.

    Sums are exact, so the result depends on the tokens alone and not on how they are cut.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, int], list[ExactSum]] = {}
        self._waiting: list[tuple[str, I64, F64]] = []
        self._held = 0
        self._counts = np.zeros(_BINS, dtype=np.int64)
        self._off_grid = np.zeros((2, len(GRIDS)), dtype=np.int64)

    def add(
        self,
        log_probs_old: F64,
        log_probs_rollout: F64,
        responses: Segments,
        turns: I64 | None = None,
        versions: I64 | None = None,
        steps: I64 | None = None,
    ) -> None:
        """Adds whole responses.

        Args:
            responses: the tokens of each response.
            turns: [N] the number of each token's turn in its trajectory.
            versions: [N] of the weights that sampled each token; negative where unknown.
            steps: [responses] of the training; negative where unknown.
        """
        ends = np.cumsum(responses.lengths)
        for rows in np.split(np.arange(len(ends)), np.flatnonzero(np.diff(ends // _CACHED)) + 1):
            lengths = responses.lengths[rows]
            part = slice(ends[rows[-1]] - lengths.sum(), ends[rows[-1]]) if len(rows) else slice(0)
            self._add_part(
                log_probs_old[part],
                log_probs_rollout[part],
                Segments(lengths),
                None if turns is None else turns[part],
                None if versions is None else versions[part],
                None if steps is None else steps[rows],
            )

    def _add_part(
        self,
        log_probs_old: F64,
        log_probs_rollout: F64,
        responses: Segments,
        turns: I64 | None,
        versions: I64 | None,
        steps: I64 | None,
    ) -> None:
        if not responses.total:
            return
        log_probs_old = np.maximum(log_probs_old, _ENDLESS)
        log_probs_rollout = np.maximum(log_probs_rollout, _ENDLESS)
        d = log_probs_old - log_probs_rollout
        size = np.abs(d)
        freedom = -np.expm1(np.minimum(np.minimum(log_probs_old, log_probs_rollout), 0.0))
        kl = k3(d)
        columns = (kl, freedom * freedom, np.minimum(size, 1.0), freedom)
        for total, values in zip(self._kind("whole", 0, 2), (d * d, size), strict=True):
            total.add(responses.sum(values))
        bins = d.astype(np.float32).view(np.uint32) >> _BITS
        self._counts += np.bincount(bins, minlength=_BINS)
        for at, column in enumerate((log_probs_old, log_probs_rollout)):
            self._add_steps(at, column, responses)
        for side, among in enumerate((d < 0.0, d >= 0.0)):
            marks = among.astype(np.float64)
            sums = [responses.sum(one * marks) for one in columns]
            self._hold(SUPPORT, np.full(responses.count, side), responses.sum(marks), sums)
        if steps is not None:
            sums = [responses.sum(one) for one in columns]
            self._hold(STEP, steps, responses.lengths.astype(np.float64), sums)
        runs = {POSITION: _cut_places(responses)}
        for cause, given in ((TURN, turns), (VERSION, versions)):
            if given is not None:
                cuts = cut_turns(responses, given, None)
                runs[cause] = given[cuts.starts], cuts
        for cause, (kinds, cuts) in runs.items():
            self._hold(
                cause, kinds, cuts.lengths.astype(np.float64), [cuts.sum(one) for one in columns]
            )

    def _add_steps(self, at: int, column: F64, responses: Segments) -> None:
        """Counts the values that no short format holds, and adds the squares of others' steps.

        Of responses all of whose values it holds, so that no cut changes what is added.
        """
        bits = column.astype(np.float32).view(np.uint32)
        for number, (_, lost, step) in enumerate(GRIDS):
            off = responses.sum(((bits & np.uint32(lost)) != 0).astype(np.int64))
            self._off_grid[at, number] += off.sum()
            if not off.all():
                power = (bits & np.uint32(0x7F800000)).view(np.float32) * np.float64(step)
                (total,) = self._kind("steps", at * len(GRIDS) + number, 1)
                total.add(responses.sum(power * power)[off == 0])

    def _kind(self, cause: str, kind: int, count: int) -> list[ExactSum]:
        return self._sums.setdefault((cause, kind), [ExactSum() for _ in range(count)])

    def _hold(self, cause: str, kinds: I64, tokens: F64, sums: list[F64]) -> None:
        """Keeps [runs] kinds, tokens and sums until there are many."""
        _, _, size, freedom = sums
        rows = [tokens, (tokens > 0).astype(np.float64), *sums]
        rows += [size * size, size * freedom, freedom * freedom]
        self._waiting.append((cause, kinds, np.array(rows)))
        self._held += len(kinds)
        if self._held >= _SETTLED:
            self._settle()

    def _settle(self) -> None:
        for cause in dict.fromkeys(held[0] for held in self._waiting):
            held = [(kinds, rows) for name, kinds, rows in self._waiting if name == cause]
            kinds, rows = (np.concatenate(one, axis=-1) for one in zip(*held, strict=True))
            for kind in np.unique(kinds).tolist():
                for total, row in zip(self._kind(cause, kind, _COLUMNS), rows, strict=True):
                    total.add(row[kinds == kind])
        self._waiting, self._held = [], 0

    def merge(self, later: Mismatch) -> None:
        """Adds the tokens of another."""
        later._settle()
        for (cause, kind), sums in later._sums.items():
            for mine, other in zip(self._kind(cause, kind, len(sums)), sums, strict=True):
                mine.merge(other)
        self._counts += later._counts
        self._off_grid += later._off_grid

    def result(self) -> Attribution | None:
        """Returns the attribution; None where the log-probs are equal at every token."""
        self._settle()
        tables: dict[str, dict[int, F64]] = {}
        for (cause, kind), sums in sorted(self._sums.items()):
            tables.setdefault(cause, {})[kind] = np.array([one.value() for one in sums])
        if "whole" not in tables or not tables["whole"][0][0]:
            return None
        count = int(self._counts.sum())
        squares, sizes = (tables["whole"][0] / count).tolist()
        kl = float(sum(sums[2] for sums in tables[POSITION].values()))
        worst, outliers, power = _read_tail(self._counts)
        steps = {at: float(sums[0]) for at, sums in tables.get("steps", {}).items()}
        causes = [outliers, self._rounding(kl, count, steps), _support(tables[SUPPORT])]
        causes += [_spared(cause, tables.get(cause, {})) for cause in (VERSION, TURN, POSITION)]
        if causes[-1] is not None and not _differ_by_place(causes[-1], kl / count, power / count):
            causes[-1] = replace(causes[-1], explains=0.0)
        causes.append(_begun(tables.get(STEP, {})))
        found = tuple(one for one in causes if one is not None)
        return Attribution(count, float(np.sqrt(squares)), sizes, kl / count, worst, found)

    def _rounding(self, kl: float, count: int, steps: dict[int, float]) -> Cause | None:
        """What columns explain all of whose values a short format holds."""
        kinds = []
        for at, column in enumerate(("old", "rollout")):
            held = [number for number in range(len(GRIDS)) if not self._off_grid[at, number]]
            if held and kl:
                added = steps[at * len(GRIDS) + held[0]] / 24.0
                share = min(added / kl, 1.0)
                kinds.append(Kind(f"{column} in {GRIDS[held[0]][0]}", count, added / count, share))
        explains = min(sum(one.share for one in kinds), 1.0)
        return Cause(PRECISION, explains, None, tuple(kinds)) if kinds else None


def _cut_places(responses: Segments) -> tuple[I64, Segments]:
    """The first and the last token of each response, and the quarters of what is between.

    A single token is the last.
    """
    lengths = responses.lengths
    marks = [np.maximum(lengths - 2, 0) * quarter // 4 for quarter in range(5)]
    parts = [(lengths > 1).astype(np.int64), *np.diff(marks, axis=0), np.minimum(lengths, 1)]
    runs = np.array(parts, dtype=np.int64).T.ravel()
    return np.tile(np.arange(len(PLACES)), responses.count), Segments(runs)


# ---- what is explained ---------------------------------------------------------------------------


def _spared(cause: str, table: dict[int, F64]) -> Cause | None:
    """What kinds of tokens explain: the newest version is spared, else the kind that differs least.

    None where there is one kind, or where no kind that could be spared has enough tokens.
    """
    known = {kind: sums for kind, sums in table.items() if sums[0] and kind >= 0}
    tokens = sum(sums[0] for sums in known.values())
    enough = {
        kind: _rate(sums)
        for kind, sums in known.items()
        if sums[0] >= _LEAST_SPARED * tokens and sums[1] >= _LEAST_RUNS and sums[3] > 0.0
    }
    if len(known) < 2 or not enough:
        return None
    spared = max(enough) if cause == VERSION else min(enough, key=lambda kind: enough[kind])
    names = {kind: PLACES[kind] if cause == POSITION else f"{cause} {kind}" for kind in known}
    return _cause(cause, names, known, spared)


def _differ_by_place(cause: Cause, mean: float, power: float) -> bool:
    """Returns whether places differ in their k3, given its mean and the mean of its squares."""
    odd = [one for one in cause.kinds if one.kl > mean]
    tokens, share = sum(one.tokens for one in odd), sum(one.share for one in odd)
    count = sum(one.tokens for one in cause.kinds)
    between = sum(one.tokens * (one.kl - mean) ** 2 for one in cause.kinds) / count
    far = share * (count - tokens) > _PLACED * (1.0 - share) * tokens
    return far and between > _VARIANCE * (power - mean * mean)


def _begun(table: dict[int, F64]) -> Cause | None:
    """What the steps before or from one of them on explain; None without a fifth, surely.

    An engine that samples ahead has the newest weights at first, so that a rise in the first five
    of many steps is none. Where the later of them differ more again, the mismatch grows: from the
    first step on that parts the steps before it as well. Where nearly all of it is in the steps
    from one to another, these.
    """
    known = {one: sums for one, sums in table.items() if one >= 0 and sums[0]}
    found, begin = _part_steps(known), sorted(known)[:_AHEAD]
    if found is not None and found[1].step in begin and len(known) > 3 * _AHEAD:
        known = {one: sums for one, sums in known.items() if one not in begin}
        found = _part_steps(known)
    if found is None:
        return None
    step, cause = found
    later = _part_steps({one: sums for one, sums in known.items() if one >= step})
    if cause.step is None or later is None or later[1].step is None:
        return _bounded(known, cause) or cause
    began: tuple[int, Cause] | None = found
    while began is not None and began[1].step is not None:
        step = began[0]
        began = _part_steps({one: sums for one, sums in known.items() if one < step})
    return _part_at(step, _cut(known, step, np.inf), grows=True)


def _bounded(known: dict[int, F64], cause: Cause) -> Cause | None:
    """Returns the cause of successive steps that have nearly all; None if one is at an end."""
    steps, least = sorted(known), _LEAST_RATE * cause.kinds[0].kl
    high = [at for at, one in enumerate(steps) if known[one][2] > least * known[one][0]]
    first, last = steps[high[0]], steps[high[-1]]
    if not high[0] or high[-1] + 1 == len(steps) or high[-1] - high[0] >= len(high):
        return None
    inside = f"in steps {first} to {last}" if first < last else f"at step {first}"
    parts = _cut(known, first, last)
    found = _part_at(first, parts, inside) if parts[0][3] > 0.0 else cause
    return found if found.kinds[0].share >= _NEARLY_ALL else None


def _cut(known: dict[int, F64], first: int, last: float) -> dict[int, F64]:
    """Returns the sums of the steps from the first to the last (1), and of the others (0)."""
    inside = {one: first <= one <= last for one in known}
    return {
        at: np.sum([sums for one, sums in known.items() if inside[one] == at], axis=0)
        for at in (0, 1)
    }


def _part_steps(table: dict[int, F64]) -> tuple[int, Cause] | None:
    """Returns the step that parts the others best, and its cause.

    None where no step explains a fifth, surely.
    """
    steps = sorted(table)
    if len(steps) < 2:
        return None
    until = np.cumsum([table[step] for step in steps], axis=0)
    found = []
    for step, before in zip(steps[1:], until, strict=False):
        parts = {0: before, 1: until[-1] - before}
        if all(
            sums[0] >= _LEAST_SPARED * until[-1][0] and sums[1] >= _LEAST_RUNS and sums[3] > 0.0
            for sums in parts.values()
        ):
            found.append((step, _part_at(step, parts)))
    best = max(found, key=lambda one: one[1].sigmas or 0.0, default=None)
    return best if best is not None and best[1].counts else None


def _part_at(step: int, parts: dict[int, F64], inside: str = "", *, grows: bool = False) -> Cause:
    """Returns what the steps before a step (0), or else those from it on (1), do not explain.

    Args:
        inside: names the steps of the second part, if others follow.
    """
    rises = _rate(parts[0]) < _rate(parts[1])
    since = f"from step {step} on" + (", more and more" if grows else "")
    names = {0: "at the other steps" if inside else f"before step {step}", 1: inside or since}
    cause = _cause(STEP, names, parts, 0 if rises else 1)
    return replace(cause, step=step if rises else None, grows=grows)


def _support(table: dict[int, F64]) -> Cause | None:
    """What an engine explains that is surer than the trainer, as of renormalised probabilities."""
    if not all(sums[3] > 0.0 for sums in table.values()):
        return None
    return _cause(SUPPORT, dict(enumerate(SIDES)), table, 1)


def _rate(sums: F64) -> float:
    return float(sums[2] / sums[3])


def _cause(cause: str, names: dict[int, str], table: dict[int, F64], spared: int) -> Cause:
    whole = np.sum([*table.values()], axis=0)
    explains = 1.0 - _rate(table[spared]) / _rate(whole) if whole[2] > 0.0 else 0.0
    others = [sums for kind, sums in table.items() if kind != spared]
    (base, noise), (level, error) = _level([table[spared]]), _level(others)
    both = float(np.hypot(error, noise))
    rows = {kind: sums.tolist() for kind, sums in table.items()}
    kinds = [
        Kind(names[kind], int(row[0]), row[2] / row[0], row[2] / float(whole[2] or 1.0))
        for kind, row in rows.items()
    ]
    kinds.sort(key=lambda one: -one.share)
    sigmas = (level - base) / both if both > 0.0 else 0.0
    return Cause(cause, max(explains, 0.0), sigmas, tuple(kinds))


def _level(kinds: list[F64]) -> tuple[float, float]:
    """Σ min(|d|, 1) / Σ (1 − p), and its standard error from how the runs of each kind vary.

    Rare kinds are taken together.
    """
    rare = [sums for sums in kinds if sums[1] < _LEAST_RUNS]
    together = [np.sum(rare, axis=0)] if rare else []
    variance = size = room = 0.0
    for sums in [*(one for one in kinds if one[1] >= _LEAST_RUNS), *together]:
        _, runs, _, _, sizes, freedom, squares, product, freedoms = sums.tolist()
        level = sizes / freedom if freedom > 0.0 else 0.0
        residual = max(squares - 2.0 * level * product + level * level * freedoms, 0.0)
        variance += residual * runs / (runs - 1.0) if runs > 1.0 else np.inf
        size, room = size + sizes, room + freedom
    return (size / room, float(np.sqrt(variance)) / room) if room > 0.0 else (0.0, np.inf)


def _read_tail(counts: I64) -> tuple[float, Cause | None, float]:
    """The share of the KL in the worst tokens, the outliers, and Σ k3².

    Each token is taken to be in the middle of its bin.
    """
    bins = np.flatnonzero(counts)
    d = ((bins << _BITS) + (1 << (_BITS - 1))).astype(np.uint32).view(np.float32).astype(np.float64)
    d[~(np.abs(d) > _NOTHING)] = 0.0
    kl = k3(d)
    order = np.argsort(np.abs(d))[::-1]
    n, kl, size = counts[bins][order].astype(np.float64), kl[order], np.abs(d)[order]
    total, carried, before = n.sum(), n * kl, np.cumsum(n) - n
    whole = carried.sum()
    if not whole > 0.0:
        return 0.0, None, 0.0
    taken = np.clip(max(_WORST * total, 1.0) - before, 0.0, n)
    bulk = float(size[np.searchsorted(before, (1.0 - _BULK) * total, side="right") - 1])
    bound = max(_FAR, _FAR_TIMES * bulk)
    far = size > bound
    worst, share, among = (
        float(one) for one in ((taken * kl).sum(), carried[far].sum(), n[far].sum())
    )
    kind = Kind(f"over {bound:.2g} nats", int(among), share / max(among, 1.0), share / float(whole))
    power = float(carried @ kl)
    if not among:
        return worst / float(whole), None, power
    spared = (float(whole) - share) / (float(total) - among) * float(total)
    return worst / float(whole), Cause(OUTLIERS, 1.0 - spared / float(whole), None, (kind,)), power
