"""The same bytes for any jobs, any block size, and by the short way or the careful one."""

from __future__ import annotations

import gzip
import json
import random
from functools import partial
from pathlib import Path

import pytest
from files import evaluation, some

from grpo_cli.commands.eval.nested import encode_nested as encode_json
from grpo_cli.engine import Evaluation, packing
from grpo_cli.errors import InputError
from grpo_cli.variants.plan import plan

SEED = 7


def made(number: int, rng: random.Random) -> dict:
    """A record; some are unusual: masked, without tokens, with ids, with their own settings."""
    lengths = [rng.choice([0, 1, 2, 5, 9]) for _ in range(rng.choice([1, 2, 4]))]

    def column(spread: float) -> list[list[float]]:
        return [[-abs(rng.gauss(1, spread)) for _ in range(length)] for length in lengths]

    record = {
        "id": f"r{number}",
        "log_probs_new": column(0.5),
        "log_probs_old": column(0.6),
        "log_probs_ref": column(0.7),
        "rewards": [rng.choice([0.0, 1.0, 0.3]) for _ in lengths],
    }
    if number % 5 == 0:
        record["mask"] = [[rng.randrange(2) for _ in range(length)] for length in lengths]
    if number % 7 == 0:
        record["group_ids"] = [rng.choice("ab") for _ in lengths]
    if number % 11 == 0:
        record["hyperparameters"] = {"beta": 0.1, "epsilon": 0.3}
    if number % 13 == 0:
        record["tokens"] = [["é\n"] * length for length in lengths]
    return record


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(SEED)
    file = tmp_path_factory.mktemp("data") / "data.jsonl"
    file.write_text("".join(json.dumps(made(n, rng)) + "\n\n" * (n % 3) + "\n" for n in range(50)))
    return file


def run(path: Path, variant: str, batch: str = "input", **options) -> tuple[list[bytes], str, str]:
    encode = partial(encode_json, level="token", fields=None)
    found = evaluation(path, plan(variant, batch=batch), encode=encode, skip=True, **options)
    pieces = [piece for some in found for piece in some]
    return pieces, json.dumps(found.total), found.signature


@pytest.mark.parametrize("batch", ["input", "record"])
@pytest.mark.parametrize("variant", some(["grpo", "gspo", "lite-ppo"], 2))
def test_jobs_and_blocks(path, variant, batch):
    expected = run(path, variant, batch, jobs=1)
    assert len(expected[0]) == 50
    for block_bytes in (1, 700, 5000):
        assert run(path, variant, batch, jobs=1, block_bytes=block_bytes) == expected
    assert run(path, variant, batch, jobs=2, block_bytes=3000) == expected


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.9])
def test_what_comes_before_a_fault_is_evaluated_by_any_jobs(path, tmp_path, cut):
    packed = gzip.compress(path.read_bytes())
    broken = tmp_path / "broken.jsonl.gz"
    broken.write_bytes(packed[: int(len(packed) * cut)])
    found = []
    for jobs, block_bytes in ((1, 1 << 20), (1, 700), (2, 3000), (None, 3000), (None, 1 << 20)):
        encode = partial(encode_json, level="record", fields=None)
        options = {"skip": True, "jobs": jobs, "block_bytes": block_bytes}
        broken_run = evaluation(broken, plan("grpo"), encode=encode, **options)
        pieces: list[bytes] = []
        with pytest.raises(InputError, match="is the file cut off"):
            drain(broken_run, pieces)
        found.append((pieces, json.dumps(broken_run.total)))
    assert found[0][0]
    assert all(one == found[0] for one in found)


def drain(evaluation: Evaluation, pieces: list[bytes]) -> None:
    for few in evaluation:
        pieces += few


def test_the_short_way_is_the_careful_way(path, monkeypatch):
    expected = run(path, "grpo", jobs=1)
    monkeypatch.setattr(packing, "pack", lambda _: None)
    assert run(path, "grpo", jobs=1) == expected


def test_order_of_records_changes_no_bit_of_the_total(path, tmp_path):
    lines = [line for line in path.read_text().splitlines() if line]
    shuffled = tmp_path / "shuffled.jsonl"
    random.Random(SEED).shuffle(lines)
    shuffled.write_text("\n".join(lines))
    assert run(shuffled, "grpo", jobs=1)[1:] == run(path, "grpo", jobs=1)[1:]


@pytest.mark.parametrize("jobs", [1, 2])
def test_errors_are_the_same(path, tmp_path, jobs):
    lines = path.read_text().splitlines()
    lines[60] = '{"log_probs_new": [[0.5]], "rewards": [1]}'
    lines[90] = "{broken"
    bad = tmp_path / "bad.jsonl"
    bad.write_text("\n".join(lines))
    encode = partial(encode_json, level="record", fields=None)
    options = {"skip": True, "jobs": jobs, "block_bytes": 2000}
    found = evaluation(bad, plan("grpo"), encode=encode, **options)
    list(found)
    assert [str(error) for error in found.skipped] == [
        f"{bad}:61: log_probs_new[0][0]: expected a log-prob <= 0, got 0.5",
        f"{bad}:91: malformed JSON at column 2: expected a key in double quotes, got broken",
    ]
