"""Advantages that do not follow from the rewards, and scales that are too large."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, Segments
from grpo_cli.commands.check.lines import SHIFT, Lines, Scores
from grpo_cli.commands.check.record_view import Trajectory, View
from grpo_cli.commands.check.rule import Finding, rule
from grpo_cli.commands.check.rules.formulas import LEAST_PAIRS, LEAST_REVERSED
from grpo_cli.commands.check.rules.turns import outcome
from grpo_cli.objective.mismatch import k3

_DISCORDANT, _REVERSED = 0.15, 0.9
_UNEXPLAINED = 0.05
"""Pairs that stay reversed whatever penalty reversed the others; a penalty leaves none."""
_DISPLACED_TOKENS = 4
_KINDS = 4
"""Different advantages, more than which are not given to other rows by chance."""
_LARGE_TIMES, _LARGE_WITHOUT_REWARDS = 5.0, 1000.0


def records_with_scores(
    view: View, wanted: NDArray[np.bool_] | None = None
) -> Iterator[tuple[int, Scores]]:
    """Yields the records, all or the wanted, of several responses with finite scores.

    A trajectory whose turns are responses is one row, with its outcome. Not where its turns have
    advantages of their own: these may follow what the trajectory earns later.
    """
    rewards, advantages = view.summed, view.advantages
    if rewards is None or advantages is None:
        return
    every = range(len(view.counts)) if wanted is None else np.flatnonzero(wanted).tolist()
    for record in every:
        rows = view.rows_of(record)
        given = Scores(rewards[rows], advantages[rows], view.groups[rows])
        if record in view.turned:
            given = _by_trajectory(view.turned[record], rewards, advantages)
        if len(given.groups) > 1 and np.isfinite([given.rewards, given.advantages]).all():
            yield record, given


def _by_trajectory(every: Sequence[Trajectory], rewards: F64, advantages: F64) -> Scores:
    given = [advantages[one.rows] for one in every]
    scores = [
        outcome(rewards[one.rows]) if np.ptp(own) == 0.0 else np.nan
        for one, own in zip(every, given, strict=True)
    ]
    groups = [one.group for one in every]
    return Scores(np.array(scores), np.array([own[0] for own in given]), np.array(groups))


@rule("advantages")
def find_wrong_advantages(view: View) -> Iterator[Finding]:
    """Finds pairs of a group in which the greater reward has the smaller advantage.

    Every estimator orders them alike: group mean or std, leave-one-out, OPO, batch statistics,
    pass@k. Over all pairs of a group whose rewards differ, at least 10, or 3 that are all reversed:
    if more than 9 of 10 are reversed, the sign is wrong; if a stride of rows gives the advantages,
    rows were grouped by position; if more than 15 % are reversed, the order is wrong (chance gives
    50 %), unless a penalty on length or a KL explains it. Several reward functions, which may be
    weighted, are not compared, nor advantages that differ within responses except at their edges,
    where they are those of the neighbour. Responses without group ids are one group: if their
    advantages are those of blocks of one size, that size is named. Where 8 of 10 groups of the
    input follow one formula exactly, each group that follows none is found.
    """
    yield from find_displaced_advantages(view)
    if view.rewards is None or view.rewards.ndim > 1:
        return
    yield from _find_zeros(view)
    found = set[int]()
    for finding in _find_in_records(view):
        found.add(finding.record)
        yield finding
    yield from _find_odd(view, found)


def _find_in_records(view: View) -> Iterator[Finding]:
    """Yields what the advantages of single records show."""
    groups = np.bincount(view.records.index[view.first_members], minlength=len(view.counts))
    for record, given in records_with_scores(view, ~_are_plain(view) | (groups > 1)):
        if "group_ids" not in view.names and (size := _size_of_blocks(given)):
            yield Finding(
                {"size": size, "groups": len(given.groups) // size}, record, kind="blocks"
            )
            continue
        shares = count_discordant(given)
        falls = shares is not None and shares[0] > _REVERSED
        if not falls and (rows := _find_exchanged(given)):
            evidence = {"responses": len(rows), "of": len(given.groups)}
            at = rows[0] if len(given.groups) == view.counts[record] else 0
            yield Finding(evidence, **view.at(view.rows_of(record).start + at), kind="exchanged")
            continue
        if shares is None:
            continue
        wrong, pairs = shares
        order = {"discordant": wrong, "pairs": pairs}
        if wrong > _REVERSED:
            yield Finding(order, record, kind="sign")
        elif stride := find_stride(given):
            yield Finding({"stride": stride}, record, kind="stride")
        elif wrong > _DISCORDANT:
            if _left_reversed(view, record, given) > _UNEXPLAINED:
                yield Finding(order, record, kind="order")
        elif len(given.groups) < view.counts[record]:
            continue  # a statistic of turns is another rule's
        elif mean := _common_mean(given, lines := Lines.fit(given, given.groups)):
            same = np.ptp(given.groups) or (given.advantages == given.rewards).all()
            yield Finding({"mean": mean}, record, kind="baseline" if same else "constant")
        elif times := _extra_scale(given, lines):
            yield Finding({"second": times}, record, kind="twice")
        elif lone := _lone_advantage(given):
            row, wanted = lone
            at = view.rows_of(record).start + row
            numbers = {"advantage": given.advantages[row], "wanted": wanted}
            yield Finding(numbers, **view.at(at), kind="lone")


def find_displaced_advantages(view: View) -> Iterator[Finding]:
    """Yields the records whose advantages per token are displaced."""
    by_token, rows = view.token_advantages, view.responses
    if by_token is None or view.advantages is not None or not len(by_token):
        return
    middle = by_token[np.minimum(rows.starts + rows.lengths // 2, len(by_token) - 1)]
    odd = by_token != np.repeat(middle, rows.lengths)
    count = view.count_tokens(odd)
    for edge, other in (("first", np.roll(middle, 1)), ("last", np.roll(middle, -1))):
        at = rows.starts if edge == "first" else rows.starts + rows.lengths - 1
        value = by_token[np.clip(at, 0, len(by_token) - 1)]
        distinct = (rows.lengths > _DISPLACED_TOKENS) & (middle != other)
        hit = distinct & (count > 0) & (count < _DISPLACED_TOKENS)
        hit &= (value == other) | ((value == 0.0) & (middle != 0.0))
        hits, of = view.count_rows(hit), view.count_rows(distinct)
        for record in np.flatnonzero((hits >= 3) & (hits > 0.6 * of)).tolist():
            row = view.rows_of(record).start + int(np.argmax(hit[view.rows_of(record)]))
            whose = "previous" if edge == "first" else "next"
            evidence = {"responses": hits[record], "tokens": count[row], "edge": edge}
            named = f"{edge} token" if count[row] == 1 else f"{edge} {count[row]:,} tokens"
            words = {"whose": whose, "named": named}
            yield Finding(evidence, **view.at(row), kind="edges", words=words)


def _find_zeros(view: View) -> Iterator[Finding]:
    """Yields records with a group of different rewards whose advantages are all 0."""
    rewards, advantages = view.summed, view.advantages
    if rewards is None or advantages is None or not len(view.sizes):
        return
    low, high = (view.by_group(rewards, reduce) for reduce in (np.minimum, np.maximum))
    zero = view.by_group(np.abs(advantages), np.maximum) == 0.0
    live = high - low > SHIFT * np.maximum(1.0, np.abs(high))
    for group in np.flatnonzero(zero & live).tolist():
        first = int(view.first_members[group])
        if int(view.records.index[first]) not in view.turned:
            yield Finding(
                {"size": view.sizes[group]},
                **view.at(first),
                kind="zero",
                words={"low": low[group], "high": high[group]},
            )


_LATER = {"follow": "{follow:,}", "of": "{of:,}", "formula": "{formula}"}
"""Words that only the whole input gives; see ``Findings.complete``."""


def _find_odd(view: View, found: Collection[int]) -> Iterator[Finding]:
    """Yields groups that follow no formula, of records in which nothing else is found.

    Those whose advantages are in no other order only where no penalty may explain them.
    """
    odd = {group: kind for kind, some in view.odd_groups.items() for group in some.tolist()}
    wanted = np.zeros(len(view.counts), dtype=np.bool_)
    wanted[view.records.index[view.first_members[[*odd]]]] = True
    wanted[[*found]] = False
    scores = dict(records_with_scores(view, wanted))
    for group, kind in sorted(odd.items()):
        place = view.at(first := int(view.first_members[group]))
        given = scores.get(place["record"])
        if given is None:
            continue
        own = given.groups == view.groups[first]
        if kind != "odd" or _left_reversed(view, place["record"], given, own) > _UNEXPLAINED:
            yield Finding({"size": view.sizes[group]}, **place, kind=kind, words=_LATER)


def _left_reversed(
    view: View, record: int, given: Scores, among: NDArray[np.bool_] | slice = slice(None)
) -> float:
    """Returns the least share of pairs that stay reversed if a penalty reversed the others.

    Of all responses of the record, or of those ``among`` them. Rewards are often recorded before
    an overlong penalty or a KL was subtracted. Such a penalty reverses no pair whose better
    response is no longer and has no greater KL, by its estimate.
    """
    rows, tokens = view.rows_of(record), view.tokens_of(record)
    if len(given.groups) != rows.stop - rows.start:
        return 1.0
    responses = Segments(view.lengths[rows])
    policy = view.log_probs.get("log_probs_old", view.log_probs.get("log_probs_new"))
    costs: list[Sequence[F64]] = [(lengths := responses.lengths.astype(np.float64),)]
    if (ref := view.log_probs.get("log_probs_ref")) is not None and policy is not None:
        change = policy[tokens] - ref[tokens]
        kls = (change, np.abs(change), change**2, k3(-change))
        costs = [(lengths, of(kl)) for kl in kls for of in (responses.sum, responses.mean)]
    part = given.part(among)
    every = ([one[among] for one in cost] for cost in costs)
    shares = (count_discordant(part, cost, LEAST_REVERSED) for cost in every)
    return min(share[0] if share else 0.0 for share in shares)


def _find_exchanged(given: Scores) -> Sequence[int]:
    """Returns the rows whose advantages are those of other rows of their group, or none.

    Sorted, the advantages of the group follow its rewards by their mean, over their std or 1, and
    at least 4 rewards differ, of which no others have the same advantages by chance.
    """
    first, second = (np.lexsort((one, given.groups)) for one in given[:2])
    ordered = Scores(given.rewards[first], given.advantages[second], given.groups[first])
    own, lines = Lines.fit(given, given.groups), Lines.fit(ordered, ordered.groups)
    kinds = np.unique(np.column_stack([given.groups, given.rewards]), axis=0)[:, 0]
    hit = (lines.left <= SHIFT) & (lines.offset <= SHIFT) & (own.left > SHIFT)
    hit &= lines.own_std | (np.abs(lines.slope - 1.0) <= SHIFT)
    hit &= np.unique(kinds, return_counts=True)[1] >= _KINDS
    wanted = np.empty(len(given.groups))
    wanted[first] = ordered.advantages
    odd = np.abs(given.advantages - wanted) > SHIFT * np.abs(given.advantages).max(initial=0.0)
    found: list[int] = np.flatnonzero(
        odd & hit[np.unique(given.groups, return_inverse=True)[1]]
    ).tolist()
    return found


def _lone_advantage(given: Scores) -> tuple[int, float] | None:
    """Returns the one response of a group whose advantage the group's statistics do not give.

    The others have theirs by its mean and std, of rewards that include the one's: had a penalty
    changed that reward, it would have moved them all. 0 is what filters leave, and one that is
    nearer to 0 with the same sign may have been clipped.
    """
    order = np.argsort(given.groups, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(given.groups[order])) + 1):
        away = given.rewards[rows] - given.rewards[rows].mean()
        for scale in (away.std(ddof=1), away.std(), 1.0) if len(rows) > _KINDS else ():
            off = np.abs(given.advantages[rows] * scale - away)
            odd = np.flatnonzero(off > 10.0 * SHIFT * scale) if scale > 0.0 else rows
            if len(odd) == 1 and given.advantages[rows[odd[0]]] != 0.0:
                right = np.delete(off, odd) <= SHIFT * scale
                own, wanted = float(given.advantages[rows[odd[0]]]), float(away[odd[0]] / scale)
                bounded = own * wanted > 0.0 and abs(own) < abs(wanted)
                if right.all() and np.ptp(np.delete(away, odd)) > 0.0 and not bounded:
                    return int(rows[odd[0]]), wanted
    return None


def count_discordant(
    given: Scores, costs: Sequence[F64] = (), least: int = LEAST_PAIRS
) -> tuple[float, int] | None:
    """Returns the share of pairs that are reversed, and the number of pairs; None if not enough.

    Args:
        given: the scores.
        costs: [R] each: a pair counts where the better response is no dearer in any of them.
        least: how many pairs there must be.
    """
    first = slice(512)  # pairs grow with the square; the first groups are enough
    given = given.part(first)
    together = given.groups[:, None] == given.groups[None, :]
    for cost in costs:
        together &= cost[first, None] <= cost[None, first]
    reward = given.rewards[:, None] - given.rewards[None, :]
    advantage = given.advantages[:, None] - given.advantages[None, :]
    size = 1e-6 * max(1.0, float(np.abs(given.rewards).max()))
    pairs = together & (reward > size)
    count = int(np.count_nonzero(pairs))
    scale = 1e-6 * max(1.0, float(np.abs(given.advantages).max()))
    wrong = int(np.count_nonzero(pairs & (advantage < -scale)))
    if count < (LEAST_REVERSED if wrong == count else least):
        return None
    return wrong / count, count


def find_stride(given: Scores) -> str:
    """Returns how rows were grouped by position, if that gives the advantages and ids do not."""
    count = len(given.groups)
    _, of, sizes = np.unique(given.groups, return_inverse=True, return_counts=True)
    several = given.part(sizes[of] > 1)
    if len(sizes) < 2 or Lines.fit(several, several.groups).follow():
        return ""
    line = Lines.fit(given, np.zeros_like(given.groups))
    if line.slope[0] > 0.0 and line.left[0] <= SHIFT:
        return ""  # a mean of the batch is the baseline, and some stride may have the same
    rows = np.arange(count)
    for size in range(2, count):
        if count % size == 0 and Lines.fit(given, rows % (count // size)).follow():
            stride = count // size
            return f"groups that take every {stride}th row"
        if count // size < 2:
            continue
        blocks = rows // size
        whole = blocks < count // size
        part = given.part(whole)
        if Lines.fit(part, blocks[whole]).follow():
            return f"groups of {size} consecutive rows"
    return ""


def _size_of_blocks(given: Scores) -> int:
    """Returns the size of the consecutive rows whose groups give one group's advantages, or 0.

    Two blocks at least have different rewards, and no line of the whole group's gives them.
    """
    count = len(given.groups)
    whole = Lines.fit(given, given.groups)
    if len(whole.slope) > 1 or (whole.slope[0] > 0.0 and whole.left[0] <= SHIFT):
        return 0
    for size in range(2, count // 2 + 1):
        if count % size == 0:
            blocks = Lines.fit(given, np.arange(count) // size)
            if np.count_nonzero(blocks.slope) > 1 and blocks.follow():
                return size
    return 0


def _are_plain(view: View) -> NDArray[np.bool_]:
    """Returns [M] which records have advantages on a rising line of mean 0 in every group."""
    lines = view.lines
    if lines is None:
        return np.zeros(len(view.counts), dtype=np.bool_)
    dead = (lines.std[:, 1] == 0.0) & (lines.mean == 0.0)
    odd = ~((lines.slope > 0.0) & (lines.left <= SHIFT) & (lines.offset <= SHIFT) | dead)
    of = np.unique(view.groups, return_inverse=True)[1]
    return view.count_rows(odd[of]) == 0


def _common_mean(given: Scores, lines: Lines) -> float:
    """Returns the mean of the advantages if it is not 0 in a complete group; else 0.

    Parts of groups, as in micro-batches, may have any mean. A group is complete if its advantages
    are over its own std, or if all have one mean; where the advantages are the rewards, the
    greatest group mean is returned.
    """
    means, scale = lines.mean, max(float(given.advantages.std()), 1e-6)
    if np.abs(given.advantages - given.rewards).max() <= 1e-6 * max(1.0, scale):
        most = float(means[np.argmax(np.abs(means))])
        several = len(means) > 1 or len(np.unique(given.rewards)) >= _KINDS
        return most if abs(most) > 0.25 * scale and several else 0.0
    if len(means) > 1:
        mean = float(means.mean()) if np.ptp(means) <= SHIFT * scale else 0.0
    else:
        own = bool(lines.own_std[0])
        mean = float(means[0]) if lines.left[0] <= SHIFT and own else 0.0
    return mean if abs(mean) > 0.02 * scale else 0.0


def _extra_scale(given: Scores, lines: Lines) -> str:
    """Returns by what advantages over their group's std were divided again; empty if by nothing.

    Groups must differ in their std, so that no other scale gives the same. A std of ddof 0 where
    all groups differ gives the batch a std of 1, with one division.
    """
    straight = (lines.left <= SHIFT) & (lines.slope > 0.0)
    stds = lines.std[straight]
    if len(stds) < 2 or stds[:, 0].max() < 1.05 * stds[:, 0].min():
        return ""
    scales = stds * lines.slope[straight][:, None]
    again = (np.abs(scales * stds - 1.0).max(0) < 2.0 * SHIFT) & (np.abs(stds - 1.0).max(0) > 0.05)
    if again.any():
        return "the same std again"
    whitened = any(abs(float(given.advantages.std(ddof=d)) - 1.0) < 1e-3 for d in (0, 1))
    alike = bool((np.ptp(scales, 0) < 2.0 * SHIFT).any())
    scaled = bool((np.abs(scales.mean(0) - 1.0) > 0.02).all())
    return "the std of the batch" if alike and scaled and whitened else ""


_BASELINES_DIFFER = 0.02
"""Two baselines differ where this far from each other, in ranges of the rewards."""


@rule("turns-counted")
def find_counted_turns(view: View) -> Iterator[Finding]:
    """Finds advantages whose baseline is the mean over turns, not over trajectories.

    All turns of a trajectory must have its reward and its advantage. The reward of advantage 0 is
    read off the line through a group's trajectories. One group may have it by chance: two must
    have different baselines, or one the std of its turns too, or many different rewards.
    """
    for record, given in records_with_scores(view) if view.turned else ():
        found = [*_baselines(given, view.turned.get(record, ()))]
        hits = [one for one in found if one[3]]
        zeros = {round(zero, 2) for zero, _, _, _, _ in hits}
        if not hits or len(hits) < len(found) or (len(zeros) < 2 and not any(h[4] for h in hits)):
            continue
        _, by_turn, by_trajectory, _, _ = hits[0]
        yield Finding(
            {"groups": len(hits), "by_turn": by_turn, "by_trajectory": by_trajectory}, record
        )


def _baselines(
    given: Scores, every: Sequence[Trajectory]
) -> Iterator[tuple[float, float, float, bool, bool]]:
    """Yields what the groups show in which the mean over turns is not that over trajectories.

    The reward of advantage 0 in ranges of the rewards, both means, whether the first is the
    baseline, and whether this group alone proves it.
    """
    turns = np.array([len(one.rows) for one in every])
    for group in np.unique(given.groups) if len(every) else ():
        own = given.groups == group
        part, spread = given.part(own), float(np.ptp(given.rewards[own]))
        line = Lines.fit(part, part.groups)
        mean = float(part.rewards.mean())
        by_turn = float(turns[own] @ part.rewards / turns[own].sum())
        straight = line.slope[0] > 0.0 and line.left[0] <= SHIFT
        if straight and abs(by_turn - mean) >= _BASELINES_DIFFER * spread:
            rows = np.repeat(part.rewards, turns[own])
            stds = line.slope[0] * np.array([rows.std(ddof=1), rows.std()])
            alone = (np.abs(stds - 1.0) <= 10.0 * SHIFT).any()
            alone |= len(np.unique(part.rewards)) >= _KINDS
            zero = mean - float(line.mean[0]) / float(line.slope[0])
            hit = abs(zero - by_turn) <= SHIFT * spread
            yield zero / spread, by_turn, mean, hit, bool(alone)


@rule("advantage-scale")
def find_large_advantages(view: View) -> Iterator[Finding]:
    """Finds |A| that no group statistic gives.

    A standardised advantage of G responses is at most (G − 1)/√G; r − r̄ at most the range of the
    rewards. Reported from five times the larger of √G and that range; without rewards, from 1000.
    """
    values = view.advantages
    if values is None or not len(values):
        return
    size = np.abs(values)
    bound = np.full(view.records.count, _LARGE_WITHOUT_REWARDS)
    if view.summed is not None:
        low = np.minimum.reduceat(view.summed, view.records.starts)
        high = np.maximum.reduceat(view.summed, view.records.starts)
        most = np.zeros(view.records.count)
        np.maximum.at(most, view.records.index, np.sqrt(view.sizes[view.groups]))
        bound = _LARGE_TIMES * np.maximum(np.maximum(most, 2.8), high - low)
    greatest = np.maximum.reduceat(size, view.records.starts)
    for record in np.flatnonzero(greatest > bound).tolist():
        several = view.rewards is None or view.rewards.ndim > 1
        given = None if several else dict(records_with_scores(view)).get(record)
        if given is not None and count_discordant(given) and find_stride(given):
            continue  # found by the rule on advantages, which explains the scale too
        place = view.first_row(record, size)
        value = values[view.rows_of(record)][place["response"]]
        evidence = {"advantage": value, "bound": bound[record]}
        yield Finding(evidence, **place, kind="infinite" if abs(value) >= 1e4 else "large")
