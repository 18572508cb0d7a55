"""A batch as lists of mpmath numbers; what the mask removes is not in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mpmath import mp, mpf, sqrt

mp.dps = 60

COLUMNS = {
    "new": "log_probs_new",
    "old": "log_probs_old",
    "ref": "log_probs_ref",
    "rollout": "log_probs_rollout",
    "entropy": "entropies",
}


@dataclass
class Token:
    """One token; ``frozen`` is log π_θ wherever a formula stops the gradient."""

    position: int
    new: mpf
    old: mpf
    ref: mpf
    rollout: mpf
    entropy: mpf
    frozen: mpf


@dataclass
class Response:
    """One response with the tokens that count. ``rewards`` has one for each reward function.

    ``turns`` are its turns in order: how many tokens each has, and its reward; ``states`` are those
    that they began in.
    """

    tokens: list[Token]
    rewards: list[mpf]
    advantage: mpf | None
    group: int
    trajectory: int = 0
    turns: Sequence[tuple[int, mpf]] = ()
    states: Sequence[int] = ()


Batch = list[Response]
Values = list[list[mpf]]
"""One number per response and token."""


def read_batch(columns: Mapping[str, Any]) -> Batch:
    """The batch of an input; doubles are taken over exactly."""
    return [_response(columns, i) for i in range(len(columns["group_ids"]))]


def _response(columns: Mapping[str, Any], i: int) -> Response:
    rewards = columns.get("rewards", [0.0] * (i + 1))[i]
    given = columns.get("advantages")
    mask = columns["mask"][i]
    return Response(
        [_token(columns, i, t) for t in range(len(mask)) if mask[t]],
        [mpf(r) for r in (rewards if isinstance(rewards, list) else [rewards])],
        None if given is None else mpf(given[i]),
        columns["group_ids"][i],
    )


def _token(columns: Mapping[str, Any], i: int, t: int) -> Token:
    row = {name: mpf(columns[c][i][t]) if c in columns else mpf(0) for name, c in COLUMNS.items()}
    if "log_probs_old" not in columns:
        row["old"] = row["new"]
    return Token(t, **row, frozen=row["new"])


def moved(batch: Batch, i: int, t: int, step: mpf) -> Batch:
    """The batch with log π_θ of one token moved, and what is frozen left where it was."""
    copy = [replace(response, tokens=list(response.tokens)) for response in batch]
    token = copy[i].tokens[t]
    copy[i].tokens[t] = replace(token, new=token.new + step)
    return copy


def mean(numbers: list[mpf]) -> mpf:
    return sum(numbers, mpf(0)) / len(numbers)


def std(numbers: list[mpf], ddof: int) -> mpf:
    m = mean(numbers)
    return mp.sqrt(sum((x - m) ** 2 for x in numbers) / (len(numbers) - ddof))


def clamp(x: mpf, low: object, high: object) -> mpf:
    x = x if low is None else max(x, mpf(low))
    return x if high is None else min(x, mpf(high))


# ---- one advantage per response ------------------------------------------------------------------


How = Mapping[str, Any]


def advantages(batch: Batch, choice: str, how: How) -> list[mpf]:
    if choice == "given":
        return [response.advantage for response in batch]
    return ADVANTAGES[choice](batch, how)


def _scores(batch: Batch, how: How) -> list[mpf]:
    """The reward of each response, less β·Σ(log π_old − log π_ref) for the KL in the reward."""
    scores = [sum(response.rewards, mpf(0)) for response in batch]
    if how.get("kl") != "k1-in-reward":
        return scores
    kl = [sum((t.old - t.ref for t in response.tokens), mpf(0)) for response in batch]
    return [r - mpf(how["beta"]) * k for r, k in zip(scores, kl, strict=True)]


def _members(batch: Batch, i: int, how: How) -> list[int]:
    """The responses of the same prompt; those without tokens may have no vote."""
    same = [j for j in range(len(batch)) if batch[j].group == batch[i].group]
    if how.get("masked-response") == "has no vote":
        return [j for j in same if batch[j].tokens]
    return same


def _by_group(
    batch: Batch,
    how: How,
    formula: Callable[[mpf, list[mpf]], mpf],
    scores: list[mpf] | None = None,
) -> list[Any]:
    """A formula of the own score and the group's; 0 where all of them are equal."""
    scores = _scores(batch, how) if scores is None else scores
    out = []
    for i, score in enumerate(scores):
        members = _members(batch, i, how)
        group = [scores[j] for j in members]
        if len(group) == 1 and members == [i]:
            out.append(_alone(score, how))
        elif i not in members:
            out.append(None)  # no loss has it
        elif len(set(group)) == 1:
            out.append(mpf(0))
        else:
            out.append(formula(score, group))
    return out


def _alone(score: mpf, how: How) -> mpf:
    """Where the reward stays, the mean is taken for 0, and a std for 1."""
    if how.get("singleton-group") != "its reward":
        return mpf(0)
    return score / (1 + mpf(how["std_eps"])) if how["advantage"] == "group-std" else score


def group_mean(batch: Batch, how: How) -> list[mpf]:
    return _by_group(batch, how, lambda r, g: r - mean(g))


def _standard(how: How) -> Callable[[mpf, list[mpf]], mpf]:
    ddof, eps = int(how["std_ddof"]), mpf(how["std_eps"])
    return lambda r, g: (r - mean(g)) / (std(g, ddof) + eps)


def group_std(batch: Batch, how: How) -> list[mpf]:
    return _by_group(batch, how, _standard(how))


def batch_std(batch: Batch, how: How) -> list[mpf]:
    sigma = std(_scores(batch, how), int(how["std_ddof"])) + mpf(how["std_eps"])
    return [x / sigma for x in group_mean(batch, how)]


def batch_whiten(batch: Batch, how: How) -> list[mpf]:
    offsets = group_mean(batch, how)
    sigma = std(offsets, int(how["std_ddof"])) + mpf(how["std_eps"])
    return [x / sigma for x in offsets]


def token_whiten(batch: Batch, how: How) -> list[mpf]:
    """Each response counts as often as it has tokens; the epsilon is added to the variance."""
    offsets = group_mean(batch, how)
    flat = [x for x, r in zip(offsets, batch, strict=True) for _ in r.tokens]
    m, variance = mean(flat), std(flat, int(how["std_ddof"])) ** 2
    return [(x - m) / sqrt(variance + mpf(how["variance_eps"])) for x in offsets]


def leave_one_out(batch: Batch, how: How) -> list[mpf]:
    return _by_group(batch, how, lambda r, g: r - (sum(g) - r) / (len(g) - 1))


def leave_one_out_std(batch: Batch, how: How) -> list[mpf]:
    def formula(r: mpf, g: list[mpf]) -> mpf:
        others = list(g)
        others.remove(r)
        offset = r - mean(others)
        sigma = std(others, 1) if len(others) > 1 else mpf(0)
        return offset / (sigma + mpf(how["std_eps"])) if sigma else offset

    return _by_group(batch, how, formula)


def length_weighted(batch: Batch, how: How) -> list[mpf]:
    scores = _scores(batch, how)
    out = []
    for i, score in enumerate(scores):
        group = _members(batch, i, how)
        tokens = sum(len(batch[j].tokens) for j in group)
        weighed = sum(len(batch[j].tokens) * scores[j] for j in group)
        out.append(score - weighed / tokens if tokens else mpf(0))
    return out


def pass_at_k(batch: Batch, how: How) -> list[mpf]:
    def formula(r: mpf, g: list[mpf]) -> mpf:
        best, second = sorted(g, reverse=True)[:2]
        return best - second if r == best else mpf(0)

    return _by_group(batch, how, formula)


def max_rl(batch: Batch, how: How) -> list[mpf]:
    return _by_group(batch, how, lambda r, g: (r - mean(g)) / mean(g) if mean(g) > 0 else mpf(0))


def decoupled(batch: Batch, how: How) -> list[mpf]:
    """Each reward function standardised in the group, the sum standardised in the batch."""
    summed = [mpf(0)] * len(batch)
    for k in range(len(batch[0].rewards)):
        column = [response.rewards[k] for response in batch]
        scaled = _by_group(batch, how, _standard(how), column)
        summed = [a + b for a, b in zip(summed, scaled, strict=True)]
    m, sigma = mean(summed), std(summed, int(how["std_ddof"]))
    return [(x - m) / (sigma + mpf(how["std_eps"])) for x in summed]


ADVANTAGES: dict[str, Callable[[Batch, How], list[mpf]]] = {
    "group-mean": group_mean,
    "group-std": group_std,
    "batch-std": batch_std,
    "batch-whiten": batch_whiten,
    "token-whiten": token_whiten,
    "leave-one-out": leave_one_out,
    "leave-one-out-std": leave_one_out_std,
    "length-weighted": length_weighted,
    "pass-at-k": pass_at_k,
    "max-rl": max_rl,
    "decoupled": decoupled,
}
