"""A batch cut into micro-batches, against arithmetic by hand and TRL's own losses."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command import answer
from planted import DUMPS, telling, write

from grpo_cli import InputError, UsageError, split

# Every ratio is 1, so J is the weighted mean of the advantages and the gradient w·A.
ON_POLICY = {"log_probs_new": [[-1.0], [-1.0] * 4], "advantages": [1.0, 0.2]}


def rows(path, micro_batch, variant="dr", **options):
    answer = split(str(path), micro_batch, variant=variant, **options).document()
    return {row["aggregate"]: row for row in answer["splits"]}


def test_mean_of_means_by_hand(tmp_path):
    found = rows(write(tmp_path / "a", [ON_POLICY]), 1)
    token_mean = found["token-mean"]
    # by hand: (1 + 4·0.2) / 5, and (1 + 0.2) / 2
    assert token_mean["global"] == pytest.approx(-0.36)
    assert token_mean["reported"] == pytest.approx(-0.6)
    assert not token_mean["invariant"]
    # by hand: global gradients 1/5 and 0.2/5, split 1/2 and 0.2/(4·2); projected
    assert token_mean["factor"] == pytest.approx((0.5 * 0.2 + 4 * 0.025 * 0.04) / 0.0464)
    for name in ("response-mean", "token-sum"):
        assert found[name]["invariant"]
        assert found[name]["factor"] == pytest.approx(1.0)
    assert found["sum"]["reported"] == pytest.approx(-0.9)
    assert found["sum"]["factor"] == pytest.approx(0.5)


def test_no_split_changes_nothing(tmp_path):
    path = write(tmp_path / "a", telling())
    for name, row in rows(path, 8, variant="grpo").items():
        assert (row["invariant"], row["invariant_by"]) == (None, None), name
        assert row["reported"] == pytest.approx(row["global"], rel=1e-12), name
        assert row["factor"] == pytest.approx(1.0), name


def test_one_window_of_trl_is_its_two_logged_losses(tmp_path):
    lines = (DUMPS / "trl-1.16.0-dapo.jsonl").read_text().splitlines()[:2]
    expected = sum(json.loads(line)["expected"]["loss"] for line in lines)
    path = tmp_path / "window"
    path.write_text("\n".join(lines))
    found = rows(path, 8, variant="trl/dapo", stages={"aggregate": "trl/dapo"})
    assert found["trl/dapo"]["reported"] == pytest.approx(expected, rel=1e-5)
    assert found["trl/dapo"]["invariant"]


def test_more_ranks_than_micro_batches(tmp_path):
    path = write(tmp_path / "a", telling())  # of 8 responses
    with pytest.raises(UsageError, match="fewer than the ranks"):
        rows(path, 4, ranks=3)


def test_records_of_other_columns_are_no_batch(tmp_path):
    other = ON_POLICY | {"log_probs_old": [[-1.0], [-1.0] * 4]}
    path = write(tmp_path / "a", [ON_POLICY, ON_POLICY, other, other])
    with pytest.raises(InputError, match="other columns") as told:
        rows(path, 1)
    assert told.value.line == 3


def test_a_kl_with_a_denominator_of_its_own_by_tokens(tmp_path):
    # An update that is the same as the whole batch's, part by part, has every number 1.
    found = rows(write(tmp_path / "a", telling()), 8, variant="skyrl/regular")
    own = next(iter(found.values()))
    assert own["own"]
    assert own["norm_factor"] == pytest.approx(1.0)


def test_a_split_that_does_nothing_says_so(grpo, tmp_path):
    path = str(write(tmp_path / "a", telling()))
    told = grpo("split", path, "-n", "8", "-v", "dr").stdout
    assert "nothing is split" in told
    told = grpo("split", path, "-n", "2", "-v", "dr").stdout
    assert "nothing is split" not in told
    assert "token-sum *" in told
    assert sum(line.startswith("not tried") for line in told.splitlines()) <= 1


EQUAL = {"log_probs_new": [[-1.0] * 3] * 4, "advantages": [1.0, 0.2, -0.5, 0.7]}
GROUPED = EQUAL | {"group_ids": [0, 0, 1, 1]}
EMPTY = EQUAL | {"mask": [[1] * 3, [1] * 3, [1] * 3, [0] * 3]}


@pytest.mark.parametrize(
    ("record", "micro_batch", "by"),
    [
        # one length: a mean over tokens is one over responses, though it counts tokens
        (EQUAL, 2, {"token-mean": "data", "response-mean": "formula", "token-sum": "formula"}),
        # micro-batches of other sizes: nothing that counts responses agrees
        (EQUAL, 3, {"token-mean": None, "response-mean": None, "verl/token-sum": "formula"}),
        # groups that no cut goes through, as many to a micro-batch
        (GROUPED, 2, {"prompt-mean": "formula", "token-mean": "data"}),
        (GROUPED, 1, {"prompt-mean": "data"}),
        # no response is empty, and those that are would not be counted
        (EQUAL, 2, {"openrlhf/response-mean": "data", "sum": None, "trl/dapo": "formula"}),
        (EMPTY, 2, {"openrlhf/response-mean": None, "response-mean": "formula"}),
    ],
)
def test_no_difference_on_this_data_is_told_from_none_by_the_formula(
    tmp_path, record, micro_batch, by
):
    found = rows(write(tmp_path / "a", [record]), micro_batch)
    assert {name: found[name]["invariant_by"] for name in by} == by
    for name, why in by.items():
        assert found[name]["invariant"] == (why is not None)


def test_the_table_says_what_holds_only_here(grpo, tmp_path):
    path = str(write(tmp_path / "a", [EQUAL]))
    lines = grpo("split", path, "-n", "2", "-v", "dr").stdout.splitlines()
    cells = {line.split()[0]: line for line in lines if "×" in line}
    assert " here " in cells["token-mean"]
    assert " yes " in cells["response-mean"]
    nothing = grpo("split", path, "-n", "9", "-v", "dr", "--json")
    document = json.loads(nothing.stdout)
    assert (nothing.exit_code, document["cuts_nothing"]) == (0, True)
    assert {row["invariant"] for row in document["splits"]} == {None}


@pytest.mark.parametrize("variant", ["dr", "lite-ppo"])
def test_records_that_cannot_be_read(grpo, tmp_path, variant):
    """Left out, each told once, or the end; a row may need the whole input's statistics first."""
    good = str(write(tmp_path / "good", telling()))
    first, second = (tmp_path / "good").read_text().splitlines(keepends=True)
    path = tmp_path / "bad"
    path.write_text(f"{first}{{broken\n{second}")
    words = ("-n", "2", "-v", variant, "--json", "--jobs", "1")
    wanted = json.loads(grpo("split", good, *words).stdout)
    ended = grpo("split", str(path), *words)
    assert ended.exit_code == 3
    assert json.loads(ended.stderr)["error"]["line"] == 2
    found = grpo("split", str(path), *words, "--on-error", "skip")
    assert found.exit_code == 3
    assert json.loads(found.stdout)["splits"] == wanted["splits"]
    assert found.stderr.count("malformed JSON") == 1


# ---- every aggregation against its weights -------------------------------------------------------


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
