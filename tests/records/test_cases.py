"""What is read of a record, what is wrong with it, and which of its keys resemble a column.

The cases are files: a record a line (or the name of a sample), and behind ``>`` what is made of it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import answer, run
from files import each, some

from grpo_cli import InputError, evaluate
from grpo_cli.engine import Reader
from grpo_cli.engine.packing import packed_runs
from grpo_cli.records import DecodedChunk, Raw, Record, record
from grpo_cli.records.from_objects import read_records

CASES = Path(__file__).parent / "cases"
COLUMNS = (
    *("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout", "ratios"),
    *("entropies", "values", "sum_pi_squared", "token_advantages", "positions"),
    *("rewards", "reward_baselines", "advantages", "last_masked"),
)
_USUAL = (None, 0.0, 0.2)


def cases(name: str) -> list[tuple[str, str]]:
    """The cases of a file: the line that is read, and the lines behind ``>``."""
    blocks = (CASES / name).read_text().removesuffix("\n\n").split("\n\n")
    return [(line, found) for line, _, found in (block.partition("\n> ") for block in blocks)]


def summary(line: str) -> str:
    """What is read of a record: its numbers, groups and settings."""
    return json.dumps(dict(_summary(evaluate(complete(line)))), default=str)


def complete(line: str) -> dict[str, Any]:
    """A record; without rewards and advantages with a reward for each response."""
    record: dict[str, Any] = json.loads(line)
    for more in ({}, *({"rewards": [1.0] * count} for count in range(1, 5))):
        try:
            evaluate(more | record)
        except InputError as error:
            fault = error
        else:
            return more | record
    raise fault


def _summary(found: Any) -> Iterator[tuple[str, Any]]:
    batch, objective = found.breakdown.batch, found.breakdown.objective
    yield "lengths", batch.responses.lengths.tolist()
    yield "groups", batch.groups.tolist()
    printed = {**found.columns("response"), **found.columns("token")}
    for name in ("id", "group", "token"):
        if {*printed[name].tolist()} not in ({0}, {None}):
            yield name, printed[name].tolist()
    for name in COLUMNS:
        column = getattr(batch, name)
        if column is not None and not (name == "log_probs_old" and column is batch.log_probs_new):
            yield name, column.tolist()
    if batch.reward_names:
        yield "reward_names", batch.reward_names
    settings = {**objective.surrogate.values, "beta": objective.beta}
    yield "settings", {name: one for name, one in settings.items() if one not in _USUAL}


SAMPLES = Path(__file__).parents[2] / "samples"
FINE = '{"log_probs_new": [[-1, -2], [-3]], "advantages": [1, -1]}'
KNOWN = {"logprobs", "rewards", "advantages", "mask", "values", "step", "note", "log_probs_old"}
KNOWN |= {"log_probs_ref", "log_probs_rollout"}


def message(path: Path | str, text: str | None = None) -> str:
    """The error of a file."""
    if text is not None:
        Path(path).write_text(text)
    with pytest.raises(InputError) as caught:
        evaluate(path)
    return str(caught.value)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@each(("line", "found"), cases("read.txt"))
def test_what_is_read(line, found):
    assert summary(line) == found


@pytest.mark.more
def test_records_of_all_kinds_in_one_file_are_as_each_alone():
    """Whatever stands next to a record, and wherever chunks end."""
    lines = [json.dumps(complete(line)) for line, _ in cases("read.txt")]
    random.Random(5).shuffle(lines)
    alone = []
    for line in lines:
        Path("one.jsonl").write_text(line)
        (made,) = answer("eval", "one.jsonl", "--level", "response", "--beta", "0")["records"]
        alone.append(made["responses"])
    Path("all.jsonl").write_text("\n".join(lines))
    found = answer("eval", "all.jsonl", "--level", "response", "--beta", "0", "--batch", "record")
    assert [one["responses"] for one in found["records"]] == alone


@each(
    "more",
    [
        {"mask": [[1, 0], [1]]},
        {"advantages": [3, -3]},
        {"log_probs_old": [[-2, -2], [-2]]},
        {"uid": ["a", "b"]},
        {"epsilon": 0.01, "log_probs_old": [[-3, -3], [-3]]},
    ],
)
def test_keys_that_only_some_records_have(more):
    plain = {"logps": [[-1, -2], [-3]], "rewards": [1, 0]}
    alone = [evaluate(one).objective for one in (plain, plain | more)]
    for records in ([plain, plain | more], [plain | more, plain]):
        Path("d.jsonl").write_text("\n".join(map(json.dumps, records * 2)))
        rows = answer("eval", "d.jsonl", "--level", "record")["records"]
        wanted = alone if records[0] is plain else alone[::-1]
        assert [one["objective"] for one in rows] == wanted * 2


@each(("line", "said"), some(cases("errors.txt"), 80))
def test_message(line, said):
    assert message("d.jsonl", "\n" * 11 + line) == f"d.jsonl:12: {said}"
    if not said.startswith("malformed JSON"):
        inside = message("d.json", f"[{FINE}, {line}, {line}]")
        assert inside.startswith("d.json: [1]")
        assert inside.endswith(said.rpartition("got ")[2].rpartition(": ")[2])


@each(("line", "said"), some(cases("notes.txt"), 40))
def test_note(line, said):
    """What is printed of the keys that nothing reads."""
    Path("d.jsonl").write_text(line)
    printed = run("eval", "d.jsonl", "--level", "batch").stderr.splitlines()
    keys = [key for key in json.loads(line) if key not in KNOWN | {"step"}]
    lines = [one.removeprefix("grpo: ").removeprefix("note: ") for one in printed]
    found = [one.removeprefix("d.jsonl:1: ") for one in lines if any(key in one for key in keys)]
    assert "\n> ".join(found or ["nothing"]) == said


@each(("name", "said"), cases("samples.txt"))
def test_bad_sample(name, said, monkeypatch):
    monkeypatch.chdir(SAMPLES)
    assert message(name) == said


def test_every_bad_sample_is_listed():
    assert {path.name for path in SAMPLES.glob("bad_*")} == {
        name for name, _ in cases("samples.txt")
    }


# ---- text ---------------------------------------------------------------------------------------


def test_a_bad_record_does_not_stop_the_others():
    Path("d.jsonl").write_text(f"{FINE}\n{{]\n[1]\n\n{FINE}\n{{}}\n")
    found = run("eval", "d.jsonl", "--on-error", "skip", "--level", "batch", "--only", "records")
    assert found.stdout == "2\n"
    assert re.findall(r"d\.jsonl:(\d): ", found.stderr) == ["2", "3", "6"]


@each("junk", ["null", "NaN", "Infinity", "7", "-1" + "0" * 400, "true", "false", "0", "9" * 5000])
def test_what_is_masked_does_not_matter(junk):
    line = (
        f'{{"logps": [[-1, {junk}], [-2]], "mask": [[1, 0.0], [true]], "entropy": [[5, {junk}], '
        f'[6]], "advantages": [[5, {junk}], [6]]}}'
    )
    Path("d.jsonl").write_text(line)
    batch = evaluate("d.jsonl").breakdown.batch
    assert batch.log_probs_new.tolist() == [-1, -2]
    assert batch.token_advantages.tolist() == [5, 6]
    assert batch.entropies.tolist() == [5, 6]


@pytest.mark.parametrize("digits", [19, 20, 21])
@pytest.mark.parametrize("sign", ["", "-"])
def test_an_integer_is_what_it_is_next_to_a_nan(digits, sign):
    near = [10 ** (digits - 1), 10**digits - 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1, 2**64]
    for number in near:
        rows = f'"logps": [[-1, -1]], "group_ids": [{sign}{number}], "id": {sign}{number}'
        found = []
        for junk in ("NaN", "0"):
            Path("d.jsonl").write_text(f'{{{rows}, "rewards": 1, "mask": [[1, 0]], "x": {junk}}}')
            made = run("eval", "d.jsonl", "--level", "response", "-q", "-f", "jsonl")
            found.append((made.exit_code, made.stdout, made.stderr))
        assert found[0] == found[1]


def test_half_a_surrogate_pair_is_replaced():
    line = (
        '{"logps": [[-1, -1]], "rewards": 1, "tokens": [["\\ud83d", "\\ud83d\\ude00"]], "x": NaN}'
    )
    Path("d.jsonl").write_text(line)
    assert evaluate("d.jsonl").columns("token")["token"].tolist() == ["?", "😀"]


def test_zeros_are_no_booleans_in_a_long_column():
    row = [-0.5, 0.0, -0.0, 0] * 200
    assert evaluate({"logps": [row], "rewards": 1}).breakdown.batch.log_probs_new.tolist() == row
    for at, value in ((3, False), (799, True)):
        odd = json.dumps({"logps": [[*row[:at], value, *row[at + 1 :]]], "rewards": 1})
        said = f"expected a number, got {str(value).lower()}"
        assert message("d.jsonl", odd) == f"d.jsonl:1: logps[0][{at}]: {said}"


@each(("low", "high", "guessed"), [(800, 200, True), (801, 199, False), (799, 200, False)])
def test_logits_are_known_by_their_share_and_number(low, high, guessed):
    record = {"logps": [[-1.0] * low + [1.0] * high] * 2, "rewards": [1]}
    assert ("in each list of logps look like logits" in message("d", json.dumps(record))) == guessed


def test_the_first_bad_record_is_named_and_guessed_at_alone():
    """Its neighbours hold what would look like something else."""
    bad, fine = ({"logps": [row], "rewards": [1]} for row in ([0.5] * 6, [-9.0] * 50))
    for before in range(3):
        lines = [*[fine] * before, bad, fine, bad]
        found = message("d", "\n".join(map(json.dumps, lines)))
        assert found.startswith(f"d:{before + 1}: logps[0][0]: expected a log-prob <= 0, got 0.5")
        assert "these look like probabilities" in found


def test_sample_level_numbers_are_logarithms():
    record = {"rhos": [1.2, 0.8], "A": [1, -1], "pi_theta_old": [0.9, 1.1], "beta": 0.01}
    batch = evaluate(record | {"pi_theta_ref": [1.0, 0.5]}).breakdown.batch
    assert batch.log_probs_old.tolist() == [math.log(0.9), math.log(1.1)]
    assert batch.log_probs_ref.tolist() == [0.0, math.log(0.5)]
    new = [math.log(0.9) + math.log(1.2), math.log(1.1) + math.log(0.8)]
    assert batch.log_probs_new.tolist() == pytest.approx(new, rel=1e-15)


# ---- records made of packed columns are those that are parsed one at a time ----------------------


TESTS = Path(__file__).parents[1]
GROUPED = {"uid": ["b", "a", "b"], "rewards": [1, 0.5, 0], "logps": [[-1.0], [], [-2.0, -3]]}
MASKS = ("loss_mask", "mask")
"""The first leaves out the same in both records of a pair, the second nothing in one of them."""
MADE_UP = [
    GROUPED,
    GROUPED | {"uid": "b", "mask": [[1], [], [1, 0]], "step": 3, "id": "a", "note": 1},
    GROUPED | {"trajectory_ids": ["t", "u", "t"], "expected": {"loss": 0.5}},
    GROUPED | {"turn_ids": [[0], [], [0, 1]], "weight_versions": [[3], [], [3, 4]]},
    GROUPED | {"advantages": [[1], [], [2, 0.5]], "old_logprob_x": [[-1.0], [], [-2.0, -3]]},
    GROUPED | {"beta": 0.1, "hyperparameters": {"epsilon": 0.3}, "roles": [["a"], [], ["a", "b"]]},
    GROUPED | {"rewards": [1e200, 0, 1]},
    *(GROUPED | {key: [[1], [], [1, 0]], "logps": [[-1.0], [], [-2.0, False]]} for key in MASKS),
]


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, list):
        return type(other) is list and [*map(repr, one)] == [*map(repr, other)]
    return type(one) is type(other) and repr(one) == repr(other)


def check(items: Any, packed: Any) -> int:
    for raw, whole in zip(items, read_records(items, packed), strict=True):
        parsed = record(raw)
        if isinstance(parsed, InputError):
            assert isinstance(whole, InputError)
            continue
        for field in dataclasses.fields(Record):
            pair = getattr(whole, field.name), getattr(parsed, field.name)
            assert is_same(*pair), (field.name, *pair)
    return 0 if packed is None else len(items)


def test_records_of_files_are_those_that_are_parsed():
    folders = (TESTS / "data", TESTS / "data" / "rollouts", TESTS.parent / "samples")
    paths = [path for folder in folders for path in folder.glob("[!b]*.jsonl")]
    count = 0
    for decoded in Reader([*map(str, paths)], skip=True)._decoded():
        count += sum(check(*run) for chunk in decoded for run in packed_runs(chunk))
    assert count > 50


def test_made_up_records_are_those_that_are_parsed():
    def pair(one: dict[str, Any]) -> DecodedChunk:
        full = {"mask": [[1], [], [1, 1]]} if "mask" in one else {}
        return DecodedChunk([Raw(value, "a.jsonl", 1, "", 0) for value in (one, one | full)])

    each = [check(*run) for one in MADE_UP for run in packed_runs(pair(one))]
    assert each.count(0) <= 2
