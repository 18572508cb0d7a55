"""Tokens of turns: those that tools wrote, and prompts that repeat the turns before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.check.record_view import LOG_PROBS, View
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
