"""What a batch's row says of its micro-batches: expected values are sums by hand, in fractions."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import command
import pytest
from planted import write

from grpo_cli import VARIANTS, GrpoError, evaluate

STEPS, RANKS, MICRO = (0, 1), (0, 1), (0, 1)


def step(at: int, rank: int, micro: int, advantages: list[list[int]], **more: Any) -> Any:
    """On-policy: each token's term is its response's advantage, so a loss is a sum by hand."""
    lengths = [len(row) for row in advantages]
    return {
        "step": at,
        "rank": rank,
        "microbatch": micro,
        "log_probs_new": [[-0.5] * length for length in lengths],
        "log_probs_old": [[-0.5] * length for length in lengths],
        "advantages": [row[0] for row in advantages],
        "hyperparameters": {"beta": 0.0, **more},
    }


def rows_of(seed: int) -> list[list[int]]:
    """Advantages of each token of some responses, all of a response's alike."""
    draw = random.Random(seed)
    return [[draw.randint(-9, 9)] * draw.randint(1, 5) for _ in range(draw.randint(1, 4))]


def dump(path: Path, **more: Any) -> dict[tuple[int, int, int], list[list[int]]]:
    made = {
        (at, rank, micro): rows_of(100 * at + 10 * rank + micro)
        for at in STEPS
        for micro in MICRO
        for rank in RANKS
    }
    write(path, [step(*place, rows, **more) for place, rows in made.items()])
    return made


def token_mean(rows: list[list[int]]) -> Fraction:
    return -Fraction(sum(map(sum, rows)), tokens(rows))


def response_mean(rows: list[list[int]]) -> Fraction:
    return -sum((Fraction(sum(row), len(row)) for row in rows), Fraction(0)) / len(rows)


def tokens(rows: list[list[int]]) -> int:
    return sum(map(len, rows))


def summed(loss: Callable[[Any], Fraction], rows: list[Any]) -> Fraction:
    return sum(map(loss, rows), Fraction(0))


def weighted(loss: Callable[[Any], Fraction], size: Any, rows: list[Any]) -> Fraction:
    return summed(lambda one: loss(one) * size(one), rows) / summed(size, rows)


def run(*arguments: object) -> str:
    done = command.run("eval", *arguments)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def batches(*arguments: object) -> list[dict[str, Any]]:
    lines = run(*arguments, "--level", "batch", "-f", "jsonl", "-q").splitlines()
    return [json.loads(line) for line in lines]


GIVEN = {"num_items_in_batch": 60, "num_processes": 2, "gradient_accumulation_steps": 2}
VERL = {"batch_num_tokens": 50, "dp_size": 2}
CASES: list[tuple[str, dict[str, Any], str, Callable[[list[Any]], Fraction]]] = [
    # variant, hyperparameters, rule, the loss of four micro-batches on two ranks
    ("trl/rloo", {}, "mean", lambda rows: summed(response_mean, rows) / 4),
    (
        "trl/grpo",
        {"gradient_accumulation_steps": 2},
        "sum",  # what each record's loss is divided by already, averaged over two ranks
        lambda rows: summed(response_mean, rows) / 2 / 2,
    ),
    ("trl/grpo", {}, "mean", lambda rows: summed(response_mean, rows) / 4),
    (
        "trl/dapo",
        GIVEN,
        "sum",
        lambda rows: summed(lambda one: -Fraction(sum(map(sum, one)), 60), rows) * 2 / 2,
    ),
    (
        "verl/vanilla",
        VERL,
        "sum",
        lambda rows: summed(lambda one: -Fraction(sum(map(sum, one)), 50), rows) * 2 / 2,
    ),
    ("verl/vanilla", {}, "by tokens", lambda rows: weighted(token_mean, tokens, rows)),
    ("nemo-rl/grpo", {}, "by tokens", lambda rows: weighted(token_mean, tokens, rows)),
    ("slime/grpo", {}, "by responses", lambda rows: weighted(response_mean, len, rows)),
    ("prime-rl/max_rl", {}, "by tokens", lambda rows: weighted(token_mean, tokens, rows)),
]


@pytest.mark.parametrize(("variant", "more", "rule", "loss"), CASES)
def test_the_rule_and_what_it_comes_to(
    variant: str,
    more: dict[str, Any],
    rule: str,
    loss: Callable[[list[Any]], Fraction],
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.jsonl"
    made = dump(path, **more)
    if variant.startswith("prime-rl"):  # its ratio is to the engine's policy
        text = path.read_text().replace('"log_probs_old"', '"log_probs_rollout"')
        path.write_text(text)
    rows = batches(path, "-v", variant, "--batch", "step")
    for row in rows:
        own = [rows for (at, _, _), rows in made.items() if at == row["step"]]
        assert (row["micro_batches"], row["accumulation"]) == (4, rule)
        assert row["accumulated_loss"] == pytest.approx(float(loss(own)), rel=1e-15)


def test_all_formats_have_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    dump(path)
    flags = [path, "-v", "nemo-rl/grpo", "--batch", "step", "--level", "batch"]
    expected = [row["accumulated_loss"] for row in batches(*flags[:-2])]
    header, *rows = run(*flags, "-f", "csv").splitlines()
    assert header.endswith("on_policy_records,micro_batches,accumulation,accumulated_loss")
    assert [row.split(",")[-3:] for row in rows] == [
        ["4", "by tokens", json.dumps(loss)] for loss in expected
    ]
    document = json.loads(run(*flags, "-f", "json"))
    assert [row["accumulated_loss"] for row in document["batches"]] == expected
    markdown = run(*flags, "-f", "markdown").splitlines()
    assert markdown[0].endswith("| micro_batches | accumulation | accumulated_loss |")
    assert all("| 4 | by tokens |" in line for line in markdown[2:])
    assert run(*flags, "--only", "accumulated_loss").split() == [json.dumps(x) for x in expected]
    assert "by tokens" in run(*flags)
    run(*flags, "-f", "parquet", "-o", tmp_path / "out.parquet")
    from pyarrow import parquet

    table = parquet.read_table(tmp_path / "out.parquet").to_pydict()
    assert table["accumulated_loss"] == expected
    assert table["micro_batches"] == [4, 4]


def test_records_of_one_micro_batch_are_pooled(tmp_path: Path) -> None:
    """prime-rl's token export has a record for each sequence of a micro-batch."""
    parts = [[[3], [1, 1]], [[-2] * 4], [[5] * 3]]
    rows = [step(0, 0, micro, part) for micro, part in zip((0, 0, 1), parts, strict=True)]
    (row,) = batches(write(tmp_path / "run.jsonl", rows), "-v", "trl/rloo", "--batch", "step")
    loss = (response_mean(parts[0] + parts[1]) + response_mean(parts[2])) / 2
    assert row["micro_batches"] == 2
    assert row["accumulated_loss"] == pytest.approx(float(loss), rel=1e-15)


def test_a_rank_alone_makes_each_record_a_micro_batch(tmp_path: Path) -> None:
    parts = [[[3], [1, 1]], [[-2] * 4], [[5] * 3]]
    rows = [step(0, rank, 0, part) for rank, part in zip((0, 0, 1), parts, strict=True)]
    for row in rows:
        del row["microbatch"]
    (row,) = batches(write(tmp_path / "run.jsonl", rows), "-v", "trl/rloo", "--batch", "step")
    first, second, third = map(response_mean, parts)
    assert row["micro_batches"] == 3
    assert row["accumulated_loss"] == pytest.approx(float(((first + second) / 2 + third) / 2))


def test_a_batch_of_one_rank_accumulates_its_own(tmp_path: Path) -> None:
    made = dump(tmp_path / "run.jsonl")
    for row in batches(tmp_path / "run.jsonl", "-v", "trl/rloo", "--batch", "step,rank"):
        place = row["step"], row["rank"]
        own = [rows for (at, rank, _), rows in made.items() if (at, rank) == place]
        assert row["micro_batches"] == 2
        expected = float(summed(response_mean, own) / 2)
        assert row["accumulated_loss"] == pytest.approx(expected, rel=1e-15)


def test_a_kl_with_a_denominator_of_its_own(tmp_path: Path) -> None:
    """SkyRL: the policy by tokens of the step, the KL of a micro-batch by its responses."""
    parts = [[[3], [1, 1]], [[-2] * 4]]
    rows = [step(0, 0, micro, part, beta=0.5) for micro, part in enumerate(parts)]
    for row, gap in zip(rows, (0.25, -0.5), strict=True):
        row["log_probs_ref"] = [[one + gap for one in line] for line in row["log_probs_new"]]
    flags = ["-v", "skyrl/regular", "--kl", "k1", "--batch", "step"]
    (row,) = batches(write(tmp_path / "run.jsonl", rows), *flags)
    policy = weighted(token_mean, tokens, parts)
    kl = Fraction(-1, 4) * 2 / 3 + Fraction(1, 2) / 3  # k1 of 2 and of 1 responses
    assert row["accumulation"] == "by tokens"
    assert row["accumulated_loss"] == pytest.approx(float(policy + kl / 2), rel=1e-14)


@pytest.mark.more
@pytest.mark.parametrize("variant", ["trl/rloo", "nemo-rl/grpo", "verl/geo_mean", "areal/grpo"])
def test_the_same_bytes_for_any_cut(variant: str, tmp_path: Path) -> None:
    draw = random.Random(5)
    rows = []
    for at in range(60):
        one = step(at // 12, at % 3, at // 3 % 4, rows_of(at))
        for name in ("log_probs_new", "log_probs_old"):
            one[name] = [[-draw.random() for _ in line] for line in one[name]]
        one["log_probs_rollout"] = one["log_probs_old"]
        rows.append(one)
    path = write(tmp_path / "run.jsonl", rows)
    flags = [path, "-v", variant, "--batch", "step", "--level", "batch", "-f", "csv"]
    once = run(*flags, "--jobs", "1")
    assert once.count("\n") == 6
    assert run(*flags, "--jobs", "2") == once
    # the order of the records, and so of all sums, changes nothing either
    draw.shuffle(rows)
    rows.sort(key=lambda row: row["step"])
    write(path, rows)
    assert run(*flags) == once


NEEDED = {
    "max_completion_length": 20,
    "response_length": 20,
    "global_batch_size": 8,
    "clip_cov_seed": 1,
    "loss_denominator": 30,
    "rejection_threshold": 0.5,
}
"""Values of hyperparameters that have no usual one."""


def test_every_framework_says_how_its_trainer_accumulates() -> None:
    """By some row of its own, on records that name their micro-batches."""
    told: dict[str, set[str | None]] = {}
    rows = [step(0, 0, micro, rows_of(micro), **NEEDED) for micro in (0, 1)]
    for row in rows:
        row |= dict.fromkeys(("log_probs_ref", "log_probs_rollout"), row["log_probs_old"])
    for name in VARIANTS:
        framework, slash, _ = name.partition("/")
        if slash and not any(told.get(framework, ())):
            try:
                (batch,) = evaluate(rows, name, batch="step").batches
            except GrpoError:
                continue  # a column or a setting that these lack
            told.setdefault(framework, set()).add(batch["accumulation"])
    assert len(told) >= 16  # a new framework is one more
    assert [name for name, rules in told.items() if not any(rules)] == []
