"""Last tokens with the log-prob of another token: labels that were rolled over a boundary."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.pair import Pair

_LEAST = 3
_NATS = 1.0
_CHANCE = 1e-6
_TIMES = 4.0


def _look(pair: Pair) -> Iterator[Finding]:
    """The columns are further apart at the last token of responses than anywhere else.

    Among n tokens of which m differ by more than 1 nat, k of R last ones do with a probability of
    at most (e·R·q/k)^k, q being m/n of the tokens before the last (Chernoff). Reported below one
    in a million, from 3 responses on, where the last token differs four times as often as the one
    before it.
    """
    rows = pair.view.responses
    filled = np.flatnonzero(rows.lengths > 2)
    if pair.to_reference or not len(filled) or pair.equal.all():
        return
    far = pair.size > _NATS
    if not far.any():
        return
    last = np.zeros(rows.count, dtype=np.int64)
    before = np.zeros(rows.count, dtype=np.int64)
    ends = (rows.starts + rows.lengths)[filled]
    last[filled], before[filled] = far[ends - 1], far[ends - 2]
    hits, near = pair.rows.sum(last), pair.rows.sum(before)
    every = pair.samples.sum(far.astype(np.int64))
    for sample in np.flatnonzero((hits >= _LEAST) & (hits > _TIMES * near)).tolist():
        count, k = int(pair.rows.lengths[sample]), int(hits[sample])
        others = int(pair.samples.lengths[sample]) - count
        rate = (int(every[sample]) - k + 1) / others
        if k * (1.0 + np.log(count * rate / k)) < np.log(_CHANCE):
            start = int(pair.rows.starts[sample])
            row = start + int(np.argmax(last[start : start + count]))
            yield _finding(pair, k, count, rate, row)


def _finding(pair: Pair, hits: int, of: int, rate: float, row: int) -> Finding:
    token = int(pair.view.responses.starts[row] + pair.view.responses.lengths[row]) - 1
    return Finding(
        "error",
        f"{pair.keys[0]} and {pair.keys[1]} differ by more than 1 nat at the last token of {hits} "
        f"of {of} responses, elsewhere at {rate:.1%} of the tokens",
        "labels that were shifted over the whole packed batch give the last token of a sequence "
        "the first one of the next: shift within each sequence, or mask its last token",
        {"columns": list(pair.names), "responses": hits, "of": of, "elsewhere": rate},
        **pair.view.place(token),
    )


RULES = (
    Rule(
        "last-token",
        ("error",),
        "The last token of responses has the log-prob of another one (packed boundary).",
        25,
        _look,
        pairs=True,
        about="other tokens and fillers",
        needs=("log_probs_old|log_probs_rollout",),
    ),
)
