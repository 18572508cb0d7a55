"""Which tokens count: other masks, everywhere or in one place; tokens that are lost or doubled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.cause import Cause, catalogued, tapped
from grpo_cli.commands.verify.compare import FLOAT32_LOSS
from grpo_cli.commands.verify.expected import Flags
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.inputs import Inputs
from grpo_cli.objective.results import Weights
from grpo_cli.objective.terms import ENTROPY, KL
from grpo_cli.records.places import first_names

# ---- masks, [N as written] ----------------------------------------------------------------------


def _edge(case: Case, *, last: bool, runs: bool = False) -> Flags:
    """The last, or the first, token that counts of each response, or of each run of a mask."""
    counted = np.flatnonzero(case.mask)
    rows = case.written.index[counted] * (len(case.mask) + 1)
    keys = rows + (counted - np.arange(len(counted)) if runs else 0)
    border = np.diff(keys, append=-1) if last else np.diff(keys, prepend=-1)
    picked = np.zeros(len(case.mask), dtype=np.bool_)
    picked[counted[border != 0]] = True
    return picked


def _shorter(case: Case) -> Flags:
    """The tokens of responses that are shorter than the longest."""
    return case.written.spread(case.unpadded < case.unpadded.max(initial=0))


def _ends(case: Case, *, alone: bool = True) -> Flags:
    """The last tokens that are end of text: the id that most responses end with.

    Without ids those of responses shorter than the longest, which are finished. ``alone``: also
    where it is the only token of a response.
    """
    last, ids = _edge(case, last=True), case.record.token_ids
    if ids is None:
        return last & _shorter(case)
    flat = np.array([x for row in ids for x in row])
    values, counts = np.unique(flat[last], return_counts=True)
    found: Flags = last & (flat == values[np.argmax(counts)])
    return found if alone else found & ~_edge(case, last=False)


def _until_last(case: Case) -> Flags:
    """The tokens up to the last that counts."""
    last = np.full(case.written.count, -1)
    np.maximum.at(last, case.written.index, np.where(case.mask, case.written.positions, -1))
    found: Flags = case.written.positions <= case.written.spread(last)
    return found


def _written(case: Case) -> Flags:
    """The tokens before the padding."""
    found: Flags = case.written.positions < case.written.spread(case.unpadded)
    return found


def _moved(case: Case, by: int, *, rolls: bool = False) -> Flags:
    """The mask some tokens later; what leaves a response at one end may enter at the other."""
    widths, moved = case.written.spread(case.written.lengths), case.written.positions - by
    inside = (moved >= 0) & (moved < widths)
    found: Flags = case.mask[case.written.spread(case.written.starts) + moved % widths]
    return found & (inside | rolls)


def _turn(case: Case, *, last: bool) -> Flags:
    """The tokens of the last, or the first, turn of each trajectory."""
    order = Inputs(case.batch).get("turn_order")
    edge = order.following(np.ones(order.turns.count)) == 0.0 if last else order.number == 0
    found = np.zeros(len(case.mask), dtype=np.bool_)
    found[np.flatnonzero(case.mask)] = order.turns.spread(edge)
    return found


MASKS: Sequence[tuple[str, Callable[[Case], Flags]]] = (
    ("masked-count", _written),
    ("masked-count", lambda case: np.ones_like(case.mask)),
    ("masked-count.between", lambda case: case.mask | _until_last(case)),
    ("mask-inverted", lambda case: ~case.mask & _written(case)),
    ("mask-inverted", lambda case: ~case.mask),
    ("mask-inverted.between", lambda case: ~case.mask & _until_last(case)),
    ("mask-shifted.later", lambda case: _moved(case, 1)),
    ("mask-shifted.later", lambda case: _moved(case, 1) & _written(case)),
    ("mask-shifted.later", partial(_moved, by=1, rolls=True)),
    ("mask-shifted.earlier", lambda case: _moved(case, -1)),
    ("mask-shifted.earlier", partial(_moved, by=-1, rolls=True)),
    ("mask-shifted.more", lambda case: case.mask | _moved(case, 1)),
    ("mask-shifted.more", lambda case: case.mask | _moved(case, 1) & _written(case)),
    ("mask-shifted.before", lambda case: case.mask | _moved(case, -1)),
    ("edge-masked.last", lambda case: case.mask & ~_edge(case, last=True)),
    ("edge-masked.first", lambda case: case.mask & ~_edge(case, last=False)),
    ("edge-masked.finished", lambda case: case.mask & ~_ends(case)),
    ("edge-masked.finished", lambda case: case.mask & ~_ends(case, alone=False)),
    ("edge-masked.ends", lambda case: case.mask & ~_edge(case, last=True, runs=True)),
    ("edge-masked.starts", lambda case: case.mask & ~_edge(case, last=False, runs=True)),
    ("edge-masked.longest", lambda case: case.mask & _shorter(case)),
    ("edge-masked.only", partial(_edge, last=True)),
    ("turns-missing.last", partial(_turn, last=True)),
    ("turns-missing.first", partial(_turn, last=False)),
)
"""Key of the catalogue, and the tokens that count instead."""

_OF_RESPONSES = {
    "edge-masked.ends": "edge-masked.last",
    "edge-masked.starts": "edge-masked.first",
}
"""A mask of turns → that of responses, which it is where each has one turn."""

_IN_PLACES: Mapping[str, tuple[str, str]] = {
    "mask-ignored": ("masked-count", "policy kl"),
    "kl-mask": ("masked-count", "kl kl-count"),
    "tool-tokens-penalised": ("masked-count.between", "kl"),
}
"""Mistake → another mask, and where it is used: of "policy" and "kl" the sums whose tokens are
those of this mask, and with "-count" the denominators."""


def masks(case: Case) -> Iterator[Cause]:
    """Yields another mask everywhere, and what the catalogue has of masks in one place."""
    for key, mask in MASKS:
        if key == "edge-masked.only" and case.loss is None and case.gradient is None:
            continue  # a share of that coarseness equals many metrics
        if case.is_masked or key.startswith(("edge-masked", "turns-missing")):
            simpler = _OF_RESPONSES.get(key, "")
            yield catalogued(key, partial(_everywhere, mask=mask), adds_to=simpler)
    for mistake, (key, parts) in _IN_PLACES.items():
        if case.is_masked and (case.objective.beta or "policy" in parts):
            made = partial(_in_place, mask=dict(MASKS)[key], parts=parts.split())
            simpler = "mask-ignored" if mistake == "kl-mask" else ""
            yield catalogued(mistake, made, adds_to=simpler)


def _other(case: Case, mask: Callable[[Case], Flags]) -> Flags:
    """The other mask, if it differs and leaves no gradient that is expected outside.

    Raises:
        ValueError: where it cannot be the cause.
    """
    other = mask(case)
    if np.array_equal(other, case.mask) or not other.any():
        raise ValueError("the mask equals the record's")
    return other


def _refuse_outside(case: Case, counted: Flags) -> None:
    wanted = case.written_gradient
    if wanted is not None and (np.abs(wanted[~counted]) > case.quiet).any():
        raise ValueError("a token outside of the mask has a gradient")


def _everywhere(case: Case, mask: Callable[[Case], Flags]) -> Breakdown:
    other = _other(case, mask)
    _refuse_outside(case, other)
    return case.with_record(mask=other.tobytes())


def _in_place(case: Case, mask: Callable[[Case], Flags], parts: Sequence[str]) -> Breakdown:
    """Counts more tokens, those of another mask, in some sums and denominators."""
    other = _other(case, mask)
    _refuse_outside(case, other)
    if case.breakdown.term(ENTROPY) is not None:
        raise ValueError("an entropy bonus would depend on both masks")
    sequence = case.objective.ratio.choice.per_response
    if "policy" not in parts and (sequence or case.breakdown.correction is not None):
        raise ValueError("a sequence's ratio, or a correction, would depend on both masks")
    again, weights = case.with_record(mask=other.tobytes()), {}
    for term in ["policy", "kl"] if case.objective.beta else ["policy"]:
        made = again if f"{term}-count" in parts else case.breakdown
        weight = made.term_weight(made.term(term) or made.policy)[case.written.index[other]]
        weights[term] = weight if term in parts else np.where(case.mask[other], weight, 0.0)
    return case.weighted(weights["policy"], weights.get("kl"), again.batch)


# ---- tokens and responses that are lost, or count twice ------------------------------------------

_TIMES = ((0.0, "dropped (gradient 0)"), (2.0, "doubled"))


def last(case: Case) -> Flags:
    """[N] the last token of every response."""
    responses = case.batch.responses
    return responses.positions == responses.spread(responses.lengths) - 1


def first(case: Case) -> Flags:
    """[N] the first token of every response."""
    return case.batch.responses.positions == 0


def edges(case: Case) -> Iterator[Cause]:
    """Yields the last or the first token of every response, dropped or doubled."""
    if not case.batch.responses.total:
        return
    for key, pick, times in _EDGES:
        yield catalogued(key, partial(_times, pick=pick, times=times))
    yield catalogued("edge-token.repeated", _repeated, adds_to="edge-token.last2")


_EDGES: Sequence[tuple[str, Callable[[Case], Flags], float]] = (
    ("edge-token.last0", last, 0.0),
    ("edge-token.last2", last, 2.0),
    ("edge-token.first0", first, 0.0),
    ("edge-token.first2", first, 2.0),
    ("edge-token.only", lambda case: ~last(case), 0.0),
)
"""Key of the catalogue, the tokens, and how often they count."""


def _repeated(case: Case) -> Breakdown:
    """The last token of every response twice, as if it were longer by one token."""
    lengths, tokens = case.batch.responses.lengths, np.where(last(case), 2.0, 1.0)

    def longer(weights: Weights) -> Weights:
        own, counts = weights.numerator, weights.counts
        if counts is not None and np.array_equal(counts, lengths):
            counts = counts + 1.0
        elif np.allclose(own * np.maximum(lengths, 1), 1.0):
            own = 1.0 / (lengths + 1)
        return weights._replace(numerator=own, counts=counts, tokens=tokens)

    own, of_kl = case.objective.aggregate, case.objective.kl_aggregate
    stages = {"aggregate": tapped(own, longer), "kl_aggregate": of_kl and tapped(of_kl, longer)}
    return case.evaluated(**stages)


def _times(case: Case, pick: Callable[[Case], Flags], times: float) -> Breakdown:
    """Counts some tokens otherwise, in value and in gradient; the denominators stay."""
    weight, objective = np.where(pick(case), times, 1.0), case.objective
    if objective.ratio.choice.per_response and objective.correction.choice.absent:
        # the gradient of a token's part goes to all tokens of its response
        term = case.breakdown.term(KL)
        own = case.batch.responses.spread(case.breakdown.term_weight(term)) if term else None
        kl = own if own is None else weight * own
        return case.weighted(weight * case.breakdown.token_weight, kl)
    return case.with_terms(lambda term: case.counted(term, weight))


def solved_tokens(case: Case) -> Iterator[Cause]:
    """Yields tokens whose gradient is 0, or twice what it should be, while the others are right."""
    wanted, ours = case.gradient, case.breakdown.gradient
    if wanted is None:
        return
    wrong = ~case.near(wanted, ours)
    if not wrong.any():
        yield from _silent_tokens(case)
    some = wrong.any() and not (wrong | (np.abs(ours) <= case.quiet)).all()
    for times, suffix in _TIMES:
        if some and case.near(wanted, np.where(wrong, times, 1.0) * ours).all():
            picked = _with_silent(case, wrong)
            equal = not times and _may_be_advantages(case, picked)
            yield _cause(_words(case, picked, suffix), picked, times)._replace(equal=equal)
            if not np.array_equal(picked, wrong):
                yield _cause(_words(case, wrong, suffix), wrong, times)


def _silent_tokens(case: Case) -> Iterator[Cause]:
    """Yields a token without gradient, a clipped one, by whose value a loss is off."""
    if case.loss is None:
        return
    quiet = np.abs(case.breakdown.gradient) <= case.quiet
    off = case.loss - float(case.breakdown.record_objective[0])
    room = max(case.loss_room, FLOAT32_LOSS * abs(case.loss))
    for times, suffix in _TIMES:
        left = np.abs((times - 1.0) * case.breakdown.contribution - off)
        fitting = np.flatnonzero(quiet & (left <= room) & (room < _OF_VALUE * abs(off)))
        picked = np.isin(np.arange(len(left)), fitting[:1])
        if len(fitting):
            others = ", or another clipped token of this value" * (len(fitting) > 1)
            yield _cause(_words(case, picked, suffix) + others, picked, times)


_OF_VALUE = 0.01
"""The share of a token's value that the digits of a loss may leave open."""


def _may_be_advantages(case: Case, picked: Flags) -> bool:
    """Whether these are responses whose advantage may be 0: several, or alone in their group."""
    rows = np.unique(case.batch.responses.index[picked])
    if case.batch.rewards is None or case.objective.advantage.choice.given or case.objective.beta:
        return False
    lone = np.bincount(case.batch.groups)[case.batch.groups[rows]] == 1
    return len(rows) > 1 or bool(lone.all())


def _cause(words: str, picked: Flags, times: float) -> Cause:
    def pick(case: Case) -> Flags:
        if len(picked) != case.batch.responses.total:
            raise ValueError("these tokens belong to another record")
        return picked

    lost = "response-lost" if words.startswith("response") else "token-lost"
    return Cause(lost, words, partial(_times, pick=pick, times=times))


def _with_silent(case: Case, wrong: Flags) -> Flags:
    """Adds the tokens without gradient of responses whose other tokens are all wrong."""
    responses = case.batch.responses
    seen = np.abs(case.breakdown.gradient) > case.quiet
    whole = (responses.sum((seen & ~wrong).astype(int)) == 0) & (
        responses.sum(wrong.astype(int)) > 0
    )
    picked: Flags = wrong | (responses.spread(whole) & ~seen)
    return picked


def _words(case: Case, picked: Flags, suffix: str) -> str:
    responses = case.batch.responses
    rows = np.unique(responses.index[picked])
    of_rows = responses.spread(np.isin(np.arange(responses.count), rows))
    count = int(picked.sum())
    if np.array_equal(picked, of_rows):
        names = first_names(rows.tolist(), 5)
        what = f"response {names} is" if len(rows) == 1 else f"responses {names} are"
        return f"{what} {suffix}: {count} of {responses.total} tokens"
    at = int(np.argmax(picked))
    row = int(responses.index[at])
    inside = at - int(responses.starts[row])
    if inside == responses.lengths[row] - 1:
        place = f"the last token of response {row}"
    else:
        positions = case.batch.positions
        place = f"token {inside if positions is None else int(positions[at])} of response {row}"
    verb = "tokens is" if count == 1 else "tokens are"
    place = f"{'the first is ' if count > 1 else ''}{place}"
    return f"{count} of {responses.total} {verb} {suffix}: {place}"
