"""``grpo split``: every aggregation against its weights, added up micro-batch by micro-batch."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command import answer
from planted import write

BETA, BONUS, WIDTH, CONSTANT, LIMIT = 0.3, 0.05, 6.0, 9.0, 7.0
FLAGS = {
    "beta": BETA,
    "entropy_coef": BONUS,
    "response_length": WIDTH,
    "loss_denominator": CONSTANT,
    "max_completion_length": LIMIT,
}


class Response(NamedTuple):
    """A response whose ratios are 1: its group, its A, and d = log π_θ − log π_ref and H by token.

    Groups of one name in two records, q and q2, are two.
    """

    group: str
    advantage: float
    tokens: Sequence[tuple[float, float]]

    @property
    def length(self) -> int:
        return len(self.tokens)

    def values(self) -> Iterator[tuple[float, float]]:
        """Each token's term of J and its slope: A − β·k3 + c·H, and A − β·k3′."""
        for d, entropy in self.tokens:
            yield (
                self.advantage - BETA * (math.exp(-d) + d - 1.0) + BONUS * entropy,
                self.advantage - BETA * (1.0 - math.exp(-d)),
            )


class Step(NamedTuple):
    """What a denominator may count besides its micro-batch."""

    tokens: int
    responses: int
    accumulate: int
    ranks: int
    at_a_time: int
    """Tokens of the micro-batches that the ranks evaluate beside this one."""


def _tokens(seed: int, count: int) -> list[tuple[float, float]]:
    return [(0.1 * ((seed + 3 * at) % 7) - 0.25, 0.2 * ((seed + at) % 5)) for at in range(count)]


RESPONSES = [
    Response("p", 1.0, _tokens(1, 1)),
    Response("q", -0.4, _tokens(2, 4)),
    Response("p", 0.2, _tokens(3, 2)),
    Response("q2", 0.7, _tokens(4, 3)),
    Response("r", -1.1, _tokens(5, 5)),
    Response("r", 0.9, _tokens(6, 0)),
    Response("r", 0.5, _tokens(7, 2)),
]
Weigh = Callable[[Sequence[Response], Response, Step], float]
"""A token's weight: of its micro-batch, its response and the step."""


def _means(less: float) -> Weigh:
    return lambda piece, one, step: 1.0 / len(piece) / (one.length + less)


def _of_group(piece: Sequence[Response], one: Response) -> float:
    groups = {other.group for other in piece}
    return 1.0 / len(groups) / sum(other.length for other in piece if other.group == one.group)


def _total(piece: Sequence[Response]) -> int:
    return sum(one.length for one in piece)


AVERAGED: dict[str, Weigh] = {
    "response-mean": _means(0.0),
    "token-mean": lambda piece, one, step: 1.0 / _total(piece),
    "token-sum": lambda piece, one, step: 1.0 / len(piece),
    "token-sum-norm": lambda piece, one, step: 1.0 / len(piece) / LIMIT,
    "prompt-mean": lambda piece, one, step: _of_group(piece, one),
    "response-sum": lambda piece, one, step: 1.0 / one.length,
    "sum": lambda piece, one, step: 1.0,
    "liger/luspo": lambda piece, one, step: one.length / len(piece) / WIDTH,
    "roll/seq-mean-token-sum-norm": lambda piece, one, step: 1.0 / WIDTH,
    "openrlhf/response-mean": lambda piece, one, step: (
        1.0 / sum(other.length > 0 for other in piece) / (one.length + 1e-8)
    ),
    "slime/token-mean": lambda piece, one, step: 1.0 / sum(max(o.length, 1) for o in piece),
    "nemo-rl/response-mean": _means(1e-8),
    "areal/token-mean": lambda piece, one, step: 1.0 / _total(piece),
    "open-instruct/constant": lambda piece, one, step: 1.0 / CONSTANT,
}
"""Trainers that average their micro-batches' losses, over the accumulated and over the ranks."""
ADDED: dict[str, Weigh] = {
    "trl/async": lambda piece, one, step: step.ranks / step.at_a_time / step.accumulate,
    "trl/grpo": lambda piece, one, step: 1.0 / len(piece) / one.length / step.accumulate,
    "trl/bnpo": lambda piece, one, step: 1.0 / _total(piece) / step.accumulate,
    "trl/dr_grpo": lambda piece, one, step: 1.0 / len(piece) / LIMIT / step.accumulate,
    "trl/luspo": lambda piece, one, step: 1.0 / len(piece) / step.accumulate,
    "trl/num-items": lambda piece, one, step: step.ranks / step.tokens,
    "trl/dapo": lambda piece, one, step: step.ranks / step.tokens,
    "ms-swift/dapo": lambda piece, one, step: step.ranks / step.tokens,
    "ms-swift/dapo-accumulated": lambda piece, one, step: (
        step.ranks / step.tokens / step.accumulate
    ),
    "verl/token-mean": lambda piece, one, step: step.ranks / step.tokens,
    "verl/token-sum": lambda piece, one, step: step.ranks,
    "verl/seq-mean-token-sum": lambda piece, one, step: step.ranks / step.responses,
    "verl/seq-mean-token-sum-norm": lambda piece, one, step: step.ranks / step.responses / WIDTH,
    "verl/seq-mean-token-mean": lambda piece, one, step: (
        step.ranks / step.responses / (one.length + 1e-8)
    ),
}
"""Those whose denominators hold the accumulated micro-batches: added up, averaged over ranks."""
OF_TURNS = {"turn-mean", "trajectory-mean", "agent-lightning/per_rollout_mean"}
OF_THE_STEP = {"trl/num-items", "trl/dapo", "ms-swift/dapo", "verl/token-mean"}
OF_THE_STEP |= {"ms-swift/dapo-accumulated", *(n for n in ADDED if n.startswith("verl/seq-"))}
"""Counted once for the step that the input is; where it is more than one, they are to be given."""


def pieces(items: Sequence[Any], size: int) -> list[Any]:
    return [items[at : at + size] for at in range(0, len(items), size)]


def update(name: str, cut: Sequence[Any], accumulate: int, ranks: int) -> tuple[float, list[float]]:
    """J, and its slope at each token, averaged over the steps that micro-batches are cut into."""
    weigh, added = (ADDED[name], True) if name in ADDED else (AVERAGED[name], False)
    steps = pieces(cut, accumulate * ranks)
    value, slopes = 0.0, []
    for step in steps:
        everything = [*chain(*step)]
        for at, piece in enumerate(step):
            turn = [*chain(*step[at // ranks * ranks :][:ranks])]
            counted = Step(_total(everything), len(everything), accumulate, ranks, _total(turn))
            share = 1.0 / len(steps) / (ranks if added else len(step))
            for one in piece:
                for term, slope in one.values():
                    weight = share * weigh(piece, one, counted)
                    value += weight * term
                    slopes.append(weight * slope)
    return value, slopes


def dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(left, right, strict=True))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The responses as two records; masked tokens stand where a response has fewer."""
    lines = []
    for part in (RESPONSES[:3], RESPONSES[3:]):
        rows = [[*one.tokens, (5.0, 5.0)] for one in part]
        lines.append(
            {
                "log_probs_new": [[-1.5] * len(row) for row in rows],
                "log_probs_ref": [[-1.5 - d for d, _ in row] for row in rows],
                "entropies": [[entropy for _, entropy in row] for row in rows],
                "mask": [[1] * one.length + [0] for one in part],
                "advantages": [one.advantage for one in part],
                "group_ids": [one.group[0] for one in part],
                "hyperparameters": FLAGS,
            }
        )
    return write(tmp_path_factory.mktemp("split") / "a.jsonl", lines)


@pytest.mark.parametrize(
    ("size", "accumulate", "ranks"),
    [(2, None, 1), (3, None, 2), (1, 4, 2), (2, 2, 2), (2, 1, 2), (3, 1, 1)],
)
def test_every_row_is_that_of_its_weights(
    grpo: Any, path: Path, size: int, accumulate: int | None, ranks: int
) -> None:
    words = ["split", str(path), "-v", "bnpo", "-n", str(size), "--ranks", str(ranks), "--json"]
    words += ["-p", f"entropy_coef={BONUS}"]
    words += [] if accumulate is None else ["--accumulate", str(accumulate)]
    document = json.loads(grpo(*words).stdout)
    cut = pieces(RESPONSES, size)
    accumulate = accumulate or math.ceil(len(cut) / ranks)
    steps = math.ceil(len(cut) / accumulate / ranks)
    found = {row["aggregate"]: row for row in document["splits"]}
    for name in found:
        value, slopes = update(name, cut, accumulate, ranks)
        whole, plain = update(name, pieces(RESPONSES, size * accumulate * ranks), 1, 1)
        off = [a - b for a, b in zip(slopes, plain, strict=True)]
        row, square = found[name], dot(plain, plain)
        wanted = {
            "reported": -value,
            "global": -whole,
            "factor": dot(slopes, plain) / square,
            "norm_factor": math.sqrt(dot(slopes, slopes) / square),
        }
        assert {key: row[key] for key in wanted} == pytest.approx(wanted, rel=1e-11), name
        distance = math.sqrt(dot(off, off) / square)
        assert row["gradient_difference"] == pytest.approx(distance, rel=1e-9, abs=1e-9), name
        same = abs(value - whole) < 1e-9 and distance < 1e-9
        assert row["invariant"] == (None if document["cuts_nothing"] else same), name
    missing = {one["aggregate"]: one["reason"] for one in document["skipped"]}
    assert {*missing} == OF_TURNS | (set() if steps == 1 else OF_THE_STEP)
    for name, reason in missing.items():
        if name in OF_TURNS:
            assert reason.endswith("counts turns or trajectories, which split does not support")
            continue
        assert reason.endswith("missing; the input has more than one step"), name
    stages = answer("variants", "--stage", "aggregate")["stages"]
    assert {*found, *missing} == {*stages["aggregate"]["choices"]}
    names = ("responses", "micro_batch", "micro_batches", "accumulate", "ranks", "steps")
    sizes = (7, size, len(cut), accumulate, ranks, steps)
    assert tuple(document[one] for one in names) == sizes
    assert document["cuts_nothing"] == (accumulate == ranks == 1)


def _of_tokens(step: Sequence[Any], piece: Sequence[Response]) -> float:
    return _total(piece) / _total([*chain(*step)])


TRAINERS = [
    ("areal/grpo", "by tokens", _of_tokens, AVERAGED["token-mean"]),
    ("tinker/ppo", "sum", lambda step, piece: 0.5, AVERAGED["sum"]),
]
"""A row, its framework's rule, what a micro-batch counts in a step on two ranks, and its weights.

AReaL averages by the tokens of the micro-batches (areal/engine/fsdp_engine.py, loss_weight_fn);
Tinker's losses are sums, and ranks are averaged.
"""


@pytest.mark.parametrize(("row", "rule", "counts", "weigh"), TRAINERS)
def test_micro_batches_are_added_up_as_the_trainer_does(
    grpo: Any, path: Path, row: str, rule: str, counts: Any, weigh: Weigh
) -> None:
    words = ["split", str(path), "-v", row, "-n", "2", "--ranks", "2", "--json", "--kl", "none"]
    words += ["--correction", "none", "--surrogate", "unclipped", "--ratio", "token"]
    found = json.loads(grpo(*words, "--advantage", "given").stdout)["splits"][0]
    cut = pieces(RESPONSES, 2)
    at = Step(17, 7, 2, 2, 0)
    value = math.fsum(
        counts(cut, piece) * weigh(piece, one, at) * one.advantage * one.length
        for piece in cut
        for one in piece
    )
    assert found["own"]
    assert found["accumulation"] == rule
    assert found["reported"] == pytest.approx(-value, rel=1e-11)


@pytest.mark.parametrize("row", ["nemo-rl/grpo", "slime/grpo", "open-instruct/dapo"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_denominators_of_the_whole_step_are_not_cut(
    grpo: Any, path: Path, row: str, size: int
) -> None:
    """Of an uneven last micro-batch too."""
    words = ["split", str(path), "-v", row, "-n", str(size), "--ranks", "2", "--json"]
    found = json.loads(grpo(*words, "--correction", "none").stdout)["splits"]
    assert found[0]["accumulation"] == "whole step"
    assert (found[0]["reported"], found[0]["invariant_by"]) == (found[0]["global"], "formula")
    assert found[1]["accumulation"] == "mean"  # another aggregation is cut as by a neutral trainer
