"""Two columns of log-probs of the same tokens, one of them displaced."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.check.finding import Finding
from grpo_cli.commands.check.record_view import View

_LEAST, _SHARE, _SIGMAS = 12, 0.6, 4.0


def shifted(view: View, pair: tuple[str, str]) -> Iterator[Finding]:
    """One column agrees better with the next or previous token of the other than with its own.

    A sign test per token: is |a_t − b_{t+k}| smaller than |a_t − b_t|, for k = ±1? Of columns in
    step that is rare, of unrelated ones it is a coin's toss, of displaced ones it is the rule.
    Reported where it holds for more than 3 of 5 tokens and is 4 standard deviations beyond a
    coin (one in 30,000), over all the responses, or else in single ones beyond 5. No assumption
    on the distribution; ties do not count; 12 tokens at least.
    """
    first, second = (view.log_probs[name] for name in pair)
    found = _whole(view, pair, first, second)
    if found is not None:
        yield found
    else:
        yield from _single(view, pair, first, second)


def _wins(view: View, first: F64, second: F64, lag: int) -> tuple[F64, F64]:
    """[N] 1 where the displaced token is nearer, and 1 where either is; at edges neither."""
    index = view.responses.index
    wins, counted = np.zeros(len(first)), np.zeros(len(first))
    if len(first) < 2:
        return wins, counted
    a, b = (first[:-1], second[1:]) if lag > 0 else (first[1:], second[:-1])
    aligned = np.abs(first - second)
    inside = index[:-1] == index[1:]
    own = aligned[:-1] if lag > 0 else aligned[1:]
    displaced = np.abs(a - b)
    at = slice(None, -1) if lag > 0 else slice(1, None)
    wins[at] = inside & (displaced < own)
    counted[at] = inside & (displaced != own)
    return wins, counted


def _beyond(wins: F64, counted: F64, sigmas: float) -> np.ndarray:
    """Which of the counts are too one-sided for a coin."""
    enough = counted >= _LEAST
    trials = np.maximum(counted, 1.0)
    return (
        enough & (wins > _SHARE * counted) & ((wins / trials - 0.5) * 2 * np.sqrt(trials) > sigmas)
    )


def _whole(view: View, pair: tuple[str, str], first: F64, second: F64) -> Finding | None:
    for lag in (1, -1):
        wins, counted = _wins(view, first, second, lag)
        if not _beyond(np.array([wins.sum()]), np.array([counted.sum()]), _SIGMAS)[0]:
            continue
        share = float(wins.sum() / counted.sum())
        return _finding(view, pair, lag, share, int(counted.sum()), None)
    return None


def _single(view: View, pair: tuple[str, str], first: F64, second: F64) -> Iterator[Finding]:
    for lag in (1, -1):
        wins, counted = (view.responses.sum(one) for one in _wins(view, first, second, lag))
        for response in np.flatnonzero(_beyond(wins, counted, 5.0)).tolist():
            share = float(wins[response] / counted[response])
            yield _finding(view, pair, lag, share, int(counted[response]), response)


def _finding(
    view: View, pair: tuple[str, str], lag: int, share: float, tokens: int, response: int | None
) -> Finding:
    one, other = (view.key(name) for name in pair)
    where = "next" if lag > 0 else "previous"
    place = (
        {}
        if response is None
        else dict(zip(("record", "response"), view.local(response), strict=True))
    )
    return Finding(
        "shifted",
        "error",
        f"{one} agrees better with the {where} token's {other} than with its own "
        f"({share:.0%} of {tokens:,} tokens)",
        "log-prob t must belong to token t: logits are one ahead of the tokens they predict "
        "(logits[:, :-1] goes with tokens[:, 1:]); shift one column",
        {"columns": list(pair), "lag": lag, "share": share, "tokens": tokens},
        **place,
    )
