"""Tokens of turns: those that tools wrote, prompts that repeat the turns before, missing turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64
from grpo_cli.commands.check.record_view import LOG_PROBS, Trajectory, View
from grpo_cli.commands.check.rule import Finding, rule
from grpo_cli.records.unread import PROMPT_IDS

_LEAST = 3
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
    three at least. Without roles or the engine, the text tells: half of the responses have a
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
    """[N] the tokens that count and are a tool's; None if nothing tells."""
    kept = slice(None) if view.mask is None else view.mask
    words = view.strings("roles")
    if words is not None:
        return np.isin(words, _OTHERS)[kept]
    engine, trainer = view.columns.get("log_probs_rollout"), _trainer(view)
    if engine is not None and trainer is not None:
        return _unsampled(view, engine == 0.0, trainer)
    if view.ids is None or len(view.holes):
        return None
    by_id = "token_ids" in view.names
    marks = _HEADERS if by_id else {view.words[one] for one in _MARKS if one in view.words}
    marked = np.isin(view.ids, [*marks])[kept]
    if not marked.any():
        return None
    often = view.count_rows(view.count_tokens(marked) > 0)
    return marked & np.repeat(2 * often >= view.counts, view.tokens)


def _trainer(view: View) -> F64 | None:
    """[N] the trainer's log-probs; of several columns, which may be wrong, the greatest."""
    columns = [view.columns[name] for name in LOG_PROBS[:2] if name in view.columns]
    return np.maximum.reduce(columns) if columns else None


def _unsampled(view: View, zero: NDArray[np.bool_], trainer: Any) -> NDArray[np.bool_]:
    """[N] the runs of 0.0, inside responses, that the trainer finds unlikely.

    That is by its own measure: a column may be off by a constant.
    """
    found, most = np.zeros_like(zero), trainer.max(initial=-np.inf)
    edge = np.flatnonzero(np.diff(np.concatenate(([0], zero, [0]))))
    for start, end in edge.reshape(-1, 2)[np.diff(edge.reshape(-1, 2))[:, 0] >= _RUN].tolist():
        rows = view.responses.index[[start, min(end, len(zero) - 1)]]
        inside = end < len(zero) and rows[0] == rows[1]
        inside &= start > view.responses.starts[rows[0]]  # else it is the prompt's
        found[start:end] = inside and float((trainer[start:end] - most).sum()) < _NATS
    return found


@rule("mask-shifted")
def find_shifted_masks(view: View) -> Iterator[Finding]:
    """Finds masks with holes at whose edge the engine has no log-prob, 0.0, in four of five.

    The token before a hole is the tool's first where the mask is late, the token after it the
    tool's last where it is early. The trainer must find it unlikely. A mask that was one token off:
    verl#3287.
    """
    engine, trainer = view.columns.get("log_probs_rollout"), _trainer(view)
    if view.mask is None or engine is None or trainer is None:
        return
    foreign = (engine == 0.0) & (trainer < _DOUBT)
    holes = view.holes
    owner = view.records.index[view.responses.index[holes]]
    of = np.bincount(owner, minlength=len(view.counts))
    sides = {"late": foreign[holes], "early": foreign[holes + 1]}
    count = {word: np.bincount(owner, hit, len(of)) for word, hit in sides.items()}
    found = {word: (hits >= _LEAST) & (hits >= 0.8 * of) for word, hits in count.items()}
    for record in np.flatnonzero(found["late"] | found["early"]).tolist():
        words = [word for word in sides if found[word][record]]
        first = holes[(owner == record) & sides[words[0]]][0] + (words[0] == "early")
        shift = "both" if len(words) > 1 else words[0]
        yield Finding(
            {"turns": int(count[words[0]][record]), "of": of[record], "shift": shift},
            **view.place(int(first)),
            kind=shift,
        )


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
