"""Turns of agents: groups, advantages, rewards, tokens of tools, later prompts, missing turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64
from grpo_cli.commands.check.record_view import Trajectory, View
from grpo_cli.commands.check.rule import Finding, rule
from grpo_cli.records.unread import PROMPT_IDS

_LEAST = 3
"""Responses, or trajectories, that must agree before a finding on their turns."""
_EXACT = 1e-3


def outcome(rewards: F64) -> float:
    """Returns the reward of a trajectory: that of every turn, or the only one; else NaN."""
    if np.ptp(rewards) == 0.0:
        return float(rewards[0])
    return float(rewards.sum()) if np.count_nonzero(rewards) == 1 else np.nan


# ---- groups and their statistics -----------------------------------------------------------------


@rule("turn-groups")
def find_groups_of_turns(view: View) -> Iterator[Finding]:
    """Finds groups of several responses that are all turns of one trajectory.

    Their rewards are those of one attempt: equal ones give advantages of 0. Advantages that do not
    add up to 0 over each trajectory have a baseline from elsewhere, as those of single attempts.
    """
    for record, every in view.turned.items():
        groups: dict[int, list[Trajectory]] = {}
        for one in every:
            groups.setdefault(one.group, []).append(one)
        alone = [some[0] for some in groups.values() if len(some) == 1 and len(some[0].rows) > 1]
        named = bool({"group_ids", "group_size"} & view.names.keys())
        several = len(groups) > 1 if named else "advantages" not in view.names
        if not several or any(len(some) > 1 for some in groups.values()):
            continue
        rewards = view.summed
        equal = [one for one in alone if rewards is not None and np.ptp(rewards[one.rows]) == 0.0]
        dead = len(equal) == len(alone)
        if view.advantages is not None:
            sums = np.array([abs(view.advantages[one.rows].sum()) for one in alone])
            centred = sums.max(initial=0.0) <= _EXACT * np.abs(view.advantages).max()
            dead = dead and not view.advantages[view.rows_of(record)].any()
            if not centred:
                continue
        yield Finding(
            {"groups": len(groups), "turns": sum(len(one.rows) for one in alone)},
            **view.at(int(alone[0].rows[0])),
            severity="error" if dead and named else "warning",
            words={"dead": ", whose rewards are equal: all advantages are 0" if dead else ""},
        )


# ---- advantages on the tokens of another turn ----------------------------------------------------


@rule("turn-advantages")
def find_turn_advantages(view: View) -> Iterator[Finding]:
    """Finds advantages by token that follow the tokens of another turn than their own.

    Turns, each of which is a response, have the advantage of their trajectory at as many tokens as
    its last turn has, and 0 at the others.
    """
    by_token = view.token_advantages
    if by_token is None or view.advantages is not None or not len(by_token):
        return
    starts, lengths = view.responses.starts, view.lengths
    for every in view.turned.values():
        hits, mixed, earlier = [], 0, 0
        for one in every:
            last = int(one.rows[-1])
            own = by_token[starts[last] : starts[last] + lengths[last]]
            if not len(own) or own[0] == 0.0 or np.ptp(own) > 0.0:
                continue
            for row in one.rows[:-1].tolist():
                values = by_token[starts[row] : starts[row] + lengths[row]]
                zero = values == 0.0
                earlier += 1
                if zero.any() and not zero.all() and (zero | (values == own[0])).all():
                    mixed += 1
                    if np.count_nonzero(~zero) == len(own):
                        hits.append(row)
        if len(hits) >= _LEAST and len(hits) >= 0.8 * mixed:
            evidence = {"turns": len(hits), "of": earlier}
            yield Finding(evidence, **view.at(hits[0]))


# ---- rewards of turns ----------------------------------------------------------------------------


@rule("turn-rewards")
def find_turn_rewards(view: View) -> Iterator[Finding]:
    """Finds rewards of masked tokens, which are lost, or the KL of a tool's tokens."""
    written = view.packed.columns.get("token_rewards")
    if written is None or view.mask is None:
        return
    lost = ~view.mask & (written != 0.0)
    inside = view.written.sum(lost.astype(np.int64))
    count, rows = view.records.sum(inside), view.count_rows(inside > 0)
    tokens = view.count(~view.mask)
    for record in np.flatnonzero(rows >= _LEAST).tolist():
        yield Finding(
            {"tokens": count[record], "responses": rows[record]},
            **view.first_row(record, inside > 0),
            kind="masked-kl" if count[record] > 2 * rows[record] else "masked",
            words={"of": tokens[record]},
        )


# ---- tools' tokens -------------------------------------------------------------------------------

_OTHERS = ("tool", "user", "system", "environment", "observation", "function", "developer")
_MARKS = (
    "<tool_response>",
    "<|tool_response>",
    "<|observation|>",
    "<tool_result>",
    "<observation>",
)
_HEADERS = frozenset({151_644, 128_006})
"""Ids that begin a turn: <|im_start|> of Qwen, <|start_header_id|> of Llama 3."""
_RUN, _NATS = 3, -3.0
"""So many tokens of log-prob 0.0 in a row, which the trainer finds this unlikely at least."""
_DOUBT = -0.3


@rule("tool-tokens")
def find_tool_tokens(view: View) -> Iterator[Finding]:
    """Finds counted tokens of other roles, or without a log-prob of the engine.

    Frameworks write 0.0 in the engine's column where a tool wrote. So do engines for tokens that
    they are sure of, but the trainer is sure of these too: three in a row are found if they cost
    it 3 nats, between tokens of the policy; if no mask has holes, in half of the responses and in
    three at least. Without roles or the engine, the text decides: half of the responses have a
    tool's tag or the token that begins a turn, and no mask has a hole.
    Where the record says that its loss is echo's, tools' tokens are trained on purpose.
    """
    foreign = _foreign(view)
    if foreign is None:
        return
    hits = view.count_tokens(foreign)
    tokens, rows = view.records.sum(hits), view.count_rows(hits > 0)
    holes = view.mask is not None and bool((np.diff(view.positions) > 1).any())
    known = holes or "roles" in view.names  # else most responses have to show it
    least = np.ones(len(view.counts)) if known else np.maximum(_LEAST, 0.5 * view.counts)
    for record in np.flatnonzero(rows >= least).tolist():
        meant = "echo" in str(view.values[record].get("framework", "")).lower()
        yield Finding(
            {"tokens": tokens[record], "responses": rows[record]},
            **view.first_token(record, foreign),
            severity="info" if meant else "error",
        )


def _foreign(view: View) -> NDArray[np.bool_] | None:
    """[N] the tokens that count and are a tool's; None if nothing says."""
    kept = slice(None) if view.mask is None else view.mask
    words = view.strings("roles")
    if words is not None:
        return np.isin(words, _OTHERS)[kept]
    engine = view.columns.get("log_probs_rollout")
    if engine is not None and view.policies:
        return _unsampled(view, engine == 0.0, np.maximum.reduce(view.policies))
    if view.ids is None or len(view.holes):
        return None
    by_id = "token_ids" in view.names
    marks = _HEADERS if by_id else {view.words[one] for one in _MARKS if one in view.words}
    marked = np.isin(view.ids, [*marks])[kept]
    if not marked.any():
        return None
    often = view.count_rows(view.count_tokens(marked) > 0)
    return marked & np.repeat(2 * often >= view.counts, view.tokens)


def _unsampled(view: View, zero: NDArray[np.bool_], trainer: Any) -> NDArray[np.bool_]:
    """[N] the runs of 0.0, inside responses, that the trainer finds unlikely.

    That is by its own measure: a column may be off by a constant.
    """
    found, most = np.zeros_like(zero), trainer.max(initial=-np.inf)
    edge = np.flatnonzero(np.diff(np.concatenate(([False], zero, [False]))))
    for start, end in edge.reshape(-1, 2)[np.diff(edge.reshape(-1, 2))[:, 0] >= _RUN].tolist():
        rows = view.responses.owners([start, min(end, len(zero) - 1)])
        inside = end < len(zero) and rows[0] == rows[1]
        inside &= start > view.responses.starts[rows[0]]  # else it is the prompt's
        found[start:end] = inside and float((trainer[start:end] - most).sum()) < _NATS
    return found


@rule("mask-shifted")
def find_shifted_masks(view: View) -> Iterator[Finding]:
    """Finds masks with holes at whose edge the engine has no log-prob, 0.0, in four of five.

    The token before a hole is the tool's first where the mask is late, the token after it the
    tool's last where it is early. The trainer must find it unlikely, and the engine must agree with
    the trainer better at the same token than at a neighbour: else the engine's column is displaced,
    and the mask may be right. A mask that was one token off: verl#3287.
    """
    engine = view.columns.get("log_probs_rollout")
    if view.mask is None or engine is None or not view.policies or not len(view.holes):
        return
    trainer = np.maximum.reduce(view.policies)  # one of them may be wrong
    foreign, own = (engine == 0.0) & (trainer < _DOUBT), np.abs(engine - trainer)
    in_step = np.ones(len(view.counts), dtype=np.bool_)
    for neighbour in (np.roll(trainer, 1), np.roll(trainer, -1)):
        other = np.abs(engine - neighbour)
        in_step &= view.count((own < other) & ~foreign) > view.count((own > other) & ~foreign)
    holes = view.holes
    owner = view.records.index[view.responses.owners(holes)]
    of = np.bincount(owner, minlength=len(view.counts))
    for kind, hit in (("late", foreign[holes]), ("early", foreign[holes + 1])):
        hits = np.bincount(owner, hit, len(of))
        for record in np.flatnonzero(in_step & (hits >= _LEAST) & (hits >= 0.8 * of)).tolist():
            first = int(holes[(owner == record) & hit][0]) + (kind == "early")
            evidence = {"turns": int(hits[record]), "of": of[record]}
            yield Finding(evidence, **view.place(first), kind=kind)


# ---- prompts -------------------------------------------------------------------------------------

_TEMPLATE, _TAIL, _SHIFT = 2, 8, 8


@rule("turn-prompt")
def find_turn_prompts(view: View) -> Iterator[Finding]:
    """Finds prompts that differ from the turns before: encoded again, or shortened.

    A history that was decoded and encoded again has other ids for the same text, and goes on as
    before within 8 tokens. One that was shortened on purpose (thinking taken out, a summary) does
    not. The last two tokens may be the template's.
    """
    key = next((key for key in PROMPT_IDS if key in view.values[0]), None)
    if key is None or view.ids is None or "token_ids" not in view.names:
        return
    for record, every in view.turned.items():
        prompts = view.values[record].get(key)
        if not isinstance(prompts, list) or len(prompts) != view.counts[record]:
            continue
        if not all(isinstance(prompt, list) for prompt in prompts):
            continue
        pairs = [pair for one in every for pair in zip(one.rows, one.rows[1:], strict=False)]
        kinds = [_compare_prompts(view, record, prompts, *pair) for pair in pairs]
        count = Counter(kind for kind, _ in kinds)
        for kind in ("again", "rewritten"):
            if count[kind]:
                number = next(number for number, (name, _) in enumerate(kinds) if name == kind)
                yield Finding(
                    {"turns": count[kind], "of": len(pairs), "key": key},
                    **view.at(int(pairs[number][1])),
                    kind=kind,
                    words={"at": kinds[number][1]},
                )


def _compare_prompts(
    view: View, record: int, prompts: list[Any], before: int, after: int
) -> tuple[str, int]:
    """Returns how the prompt of a turn departs from the turn before, and from which token on."""
    assert view.ids is not None
    first = int(view.records.starts[record])
    start = int(view.written.starts[before])
    response = view.ids[start : start + int(view.widths[before])]
    history = [*prompts[before - first], *response.tolist()]
    prompt = prompts[after - first]
    at = next(
        (k for k, pair in enumerate(zip(history, prompt, strict=False)) if len({*pair}) > 1),
        min(len(history), len(prompt)),
    )
    if at >= len(history) - _TEMPLATE:
        return "", at
    end = len(history) - _TEMPLATE
    tail = history[end - _TAIL : end]
    near = range(end - _TAIL - _SHIFT, end - _TAIL + _SHIFT + 1)
    same = at < end and any(prompt[k : k + _TAIL] == tail for k in near if k >= 0)
    return ("again" if same else "rewritten"), at


# ---- missing turns -------------------------------------------------------------------------------


@rule("turns-missing")
def find_missing_turns(view: View) -> Iterator[Finding]:
    """Finds trajectories whose turns are numbered one by one, but for gaps.

    Nine of ten steps from turn to turn must be 1, so that numbers which count the messages of
    tools too are not taken for gaps. Where a third of the trajectories have gaps, turns were
    sampled or filtered, which is an info.
    """
    written = view.packed.columns.get("turn_ids")
    if written is None or not len(written):
        return
    ids = written.astype(np.int64)
    for record in range(len(view.counts)):
        found = view.turned.get(record) or [
            Trajectory(record, 0, np.array([row]))
            for row in range(view.rows_of(record).start, view.rows_of(record).stop)
        ]
        numbers = [_numbers(view, ids, one.rows) for one in found]
        numbers = [one for one in numbers if len(one)]
        steps = np.concatenate([np.diff(one) for one in numbers]) if numbers else np.zeros(0)
        begin = min((int(one[0]) for one in numbers), default=0)
        gaps = [at for at, one in enumerate(numbers) if (np.diff(one) > 1).any() or one[0] > begin]
        usual = np.count_nonzero(steps == 1) >= 0.9 * len(steps) and len(steps) > 2 * _LEAST
        if not gaps or not usual or begin > 1:
            continue
        turns = numbers[gaps[0]].tolist()
        listed = f"{', '.join(map(str, turns[:8]))}{' …' if len(turns) > 8 else ''}"
        yield Finding(
            {"trajectories": len(gaps), "of": len(numbers), "turns": turns},
            **view.at(int(found[gaps[0]].rows[0])),
            severity="info" if 3 * len(gaps) >= len(numbers) else "warning",
            words={"listed": listed},
        )


def _numbers(view: View, ids: I64, rows: I64) -> I64:
    """Returns the numbers of a trajectory's turns up to its last token that counts, in order."""
    rows = rows[view.lengths[rows] > 0]
    last = view.positions[view.responses.starts[rows] + view.lengths[rows] - 1]
    pairs = zip(view.written.starts[rows], last, strict=True)
    parts = [ids[start : start + size + 1] for start, size in pairs]
    return np.unique(np.concatenate([*parts, ids[:0]]))
