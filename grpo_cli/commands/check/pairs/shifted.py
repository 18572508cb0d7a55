"""Two columns of log-probs of the same tokens, one of them displaced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import I64
from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.pair import Pair

_SHARE = 0.6
_SIGMAS, _SIGMAS_ALONE = 4.0, 5.0


def _look(pair: Pair) -> Iterator[Finding]:
    """One column agrees better with the next or previous token of the other than with its own.

    A sign test per token: is |a_t − b_{t+k}| smaller than |a_t − b_t|, for k = ±1? Of columns in
    step that is rare, of unrelated ones it is a coin's toss, of displaced ones it is the rule.
    Reported where it holds for more than 3 of 5 tokens and is 4 standard deviations beyond a
    coin (one in 30,000), over all the responses, or else in single ones beyond 5. No assumption
    on the distribution; ties do not count. Fewer than 17 tokens are never so far from a coin.
    """
    if pair.equal.all():
        return
    for ahead in (True, False):
        wins, counted = _wins(pair, ahead=ahead)
        whole = [pair.rows.sum(values) for values in (wins, counted)]
        found = _beyond(whole[0], whole[1], _SIGMAS)
        for sample in np.flatnonzero(found).tolist():
            share = float(whole[0][sample] / whole[1][sample])
            place = {"record": pair.record(sample)}
            yield _finding(pair, share, int(whole[1][sample]), place, ahead=ahead)
        for response in np.flatnonzero(_beyond(wins, counted, _SIGMAS_ALONE)).tolist():
            if not found[pair.rows.index[response]]:
                share = float(wins[response] / counted[response])
                place = pair.view.at(response)
                yield _finding(pair, share, int(counted[response]), place, ahead=ahead)


def _wins(pair: Pair, *, ahead: bool) -> tuple[I64, I64]:
    """[R] tokens where the displaced one is nearer, and where either is; at edges neither."""
    first, second = pair.first, pair.second
    index = pair.view.responses.index
    a, b = (first[:-1], second[1:]) if ahead else (first[1:], second[:-1])
    own = pair.size[:-1] if ahead else pair.size[1:]
    inside = index[:-1] == index[1:]
    displaced = np.abs(a - b)
    at = slice(None, -1) if ahead else slice(1, None)
    wins, counted = np.zeros((2, len(first)), dtype=np.int64)
    wins[at] = inside & (displaced < own)
    counted[at] = inside & (displaced != own)
    return pair.view.responses.sum(wins), pair.view.responses.sum(counted)


def _beyond(wins: NDArray[Any], counted: NDArray[Any], sigmas: float) -> NDArray[np.bool_]:
    """Which of the counts are too one-sided for a coin."""
    trials = np.maximum(counted, 1)
    away = (wins / trials - 0.5) * 2 * np.sqrt(trials)
    found: NDArray[np.bool_] = (wins > _SHARE * counted) & (away > sigmas)
    return found


def _finding(
    pair: Pair, share: float, tokens: int, place: dict[str, int], *, ahead: bool
) -> Finding:
    one, other = pair.keys
    where, lag = ("next", 1) if ahead else ("previous", -1)
    return Finding(
        "error",
        f"{one} agrees better with the {where} token's {other} than with its own "
        f"({share:.0%} of {tokens:,} tokens)",
        "log-prob t must belong to token t: logits are one ahead of the tokens they predict "
        "(logits[:, :-1] goes with tokens[:, 1:]); shift one column",
        {"columns": list(pair.names), "lag": lag, "share": share, "tokens": tokens},
        **place,
    )


RULES = (
    Rule(
        "shifted",
        ("error",),
        "A column of log-probs is one token early or late against another.",
        20,
        _look,
        pairs=True,
        about="shifts and bases",
        needs=("log_probs_old|log_probs_ref|log_probs_rollout",),
    ),
)
