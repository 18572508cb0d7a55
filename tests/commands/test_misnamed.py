"""Nobody becomes on-policy by a misspelt key: what every command says, however records are read."""

import gzip
import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from files import blocks_of, each, some
from formats import dumps
from fuzz import product

DATA = {
    "nemo-rl": dumps.of("nemo-rl"),
    "prime-rl": dumps.of("prime-rl"),
    "open-instruct": dumps.of("open-instruct"),
    "roll-board": dumps.of("roll-board"),
    "unipo": dumps.of("unipo lines"),
    "openai-chat": dumps.of("openai-chat"),
    "openai-completion": dumps.of("openai-completion"),
    "sglang": dumps.of("sglang"),
    "verifiers": dumps.of("verifiers"),
    "miles": dumps.of("miles"),
    "atif": dumps.of("atif"),
}
"""What frameworks write: the records of each."""

# ---- every way of reading ---------------------------------------------------------------------


def made(count, seed=5, **keys):
    """Records of unequal sizes; every third has a name that is not read."""
    random_ = random.Random(seed)
    found = []
    for at in range(count):
        widths = [random_.randint(1, 6) for _ in range(random_.randint(1, 4))]
        rows = [[-random_.random() for _ in range(width)] for width in widths]
        one = {"log_probs_new": rows, "rewards": [random_.random() for _ in rows]}
        if at % 3:
            one["log_probs_old"] = [[x - 0.1 for x in row] for row in rows]
        for key, make in keys.items():
            one[key] = make(at, rows)
        found.append(one)
    return found


def outcome(path, *flags, jobs=1, size=1 << 22):
    """Everything that an evaluation says."""
    words = ["eval", str(path), *(flags or ("-v", "dr")), "--level", "batch", "-f", "csv"]
    with blocks_of(size):
        made = product.run([*words, "--jobs", str(jobs)])
    notices = [line.removeprefix("grpo: note: ") for line in made.err.decode().splitlines()]
    return made.code, notices, made.out


def old_lp(at, rows):
    return [[x - 0.2 for x in row] for row in rows]


def odd(at, rows):
    """A column, but in the first record."""
    return "none" if at == 0 else rows


KEYS = {"old_lp": old_lp, "odd": odd, "returns": lambda at, rows: rows, "note": lambda *_: "x"}


@pytest.mark.more
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("kind", ["lines", "array", "gzip"])
def test_the_same_wherever_text_is_cut(tmp_path, kind, skip):
    """The first record with a set of keys decides, not the first of a block."""
    records = made(60, **KEYS)[1:] + made(60, **KEYS)
    text = "".join(json.dumps(one) + "\n" for one in records)
    path = tmp_path / "a"
    if kind == "array":
        text = json.dumps(records)
    path.write_bytes(gzip.compress(text.encode()) if kind == "gzip" else text.encode())
    flags = ("-v", "dr", "--on-error", "skip") if skip else ("-v", "dr")
    ways = ((1, 1), (2, 700), (1, 900), (3, 2000))
    found = [outcome(path, *flags, jobs=1, size=1 << 22)]
    found += [outcome(path, *flags, jobs=jobs, size=size) for jobs, size in some(ways, 2)]
    assert all(one == found[0] for one in found)
    code, notices, _ = found[0]
    assert code == 3
    place = "[2].old_lp" if kind == "array" else ":3: old_lp"
    assert any(place in one for one in notices[:2])
    (said,) = [one for one in notices if one.startswith("ignored columns")]
    assert "returns" in said
    assert "note" not in said


def test_the_first_record_with_its_keys_decides(tmp_path):
    """Here ``odd`` is no column; whatever stands behind it, and wherever blocks end."""
    path = tmp_path / "a.jsonl"
    records = made(40, odd=odd, returns=lambda at, rows: rows)
    for one in records:
        one.pop("log_probs_old", None)
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    found = [outcome(path, size=size) for size in (1 << 22, 1, 500)]
    assert all(one == found[0] for one in found)
    assert "ignored columns: returns" in found[0][1]


def rows_of_a_group():
    rows = [
        {"logprobs": [-0.5 - at / 8] * (1 + at % 3), "reward": at % 2 + 0.5, "uid": f"u{at // 2}"}
        for at in range(8)
    ]
    return [
        one | {"old_lp": [x - 0.5 for x in one["logprobs"]], "returns": one["logprobs"]}
        for one in rows
    ]


@pytest.mark.more
@pytest.mark.parametrize("row", ["dr", "opo"])
@pytest.mark.parametrize(
    "kind", some(["parquet", "arrow", "npz", "lines by uid", "parquet by uid"], 3)
)
def test_tables_and_rows_of_a_group(tmp_path, kind, row):
    """A group's is told by its first row's place, in the names of the file."""
    rows = [[-0.5, -0.25, -0.125], [-0.75, -1.0, -0.5]]
    one = {"logprobs": rows, "old_lp": rows, "returns": rows, "rewards": [1.0, 0.5]}
    many, (form, *by) = [one] * 5, kind.split(" by ")
    path, flags = tmp_path / f"a.{form}", ["-v", row]
    if by:
        many, flags = rows_of_a_group(), [*flags, "--group-by", *by]
    if form == "npz":
        np.savez(path, **one)
    elif form == "lines":
        path.write_text("".join(json.dumps(one) + "\n" for one in many))
    elif form == "parquet":
        pq.write_table(pa.Table.from_pylist(many), path, row_group_size=2 + len(by))
    else:
        table = pa.Table.from_pylist(many)
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    found = [outcome(path, *flags, jobs=jobs, size=size) for jobs, size in ((1, 1 << 22), (2, 1))]
    assert found[0] == found[1]
    code, notices, _ = found[0]
    if row == "opo":
        assert code == 0
        assert notices[0] == "ignored columns: old_lp (--map log_probs_old=old_lp), returns"
    else:
        said = "old_lp: log_probs_old is missing, but the variant dr needs it; is it this key? Then"
        assert said in notices[-1] or said.replace("old_lp: ", "") in notices[-1]
        assert not by or (":1: " if form == "lines" else "[0].") in notices[-1]


# ---- silence ----------------------------------------------------------------------------------


@each("text", [
    *("".join(json.dumps(one) + "\n" for one in records) for records in DATA.values()),
    *(json.dumps(dumps.of(name)[0]) for name in ("columns", "columns of roll", "unipo")),
    *(json.dumps(dumps.of(name)[0]) for name, one in dumps.DUMPS.items() if one.get("texts")),
])  # fmt: skip
def test_what_frameworks_write_is_read_in_silence(tmp_path, grpo, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    result = grpo("check", str(path), "--on-error", "skip")
    assert "look like columns" not in result.stderr


# ---- names that say little, and values that say the rest ----------------------------------------

NAMES = (
    *("behaviour_logp", "log_prob_olds", "sampler_lp", "mu_logprobs", "pi_old"),
    *("logp_behav", "lps_o", "olds", "log_pi_old", "logprobs_t0", "rollout_lp"),
    *("vllm_lp", "actor_old_lp", "oldlp", "prevs", "start_logprobs", "my_old"),
    *("frozen_lp", "logprobs_inference", "cached_logps", "target_logprobs", "iter0"),
    *("logits_old"),
)
OTHERS = ("teacher_logprobs", "returns", "kl_to_ref", "old_values", "entropy_bonus", "grad_logp")


def lines(path, key, values, *, engine=False, odd=False):
    """Records with old log-probs, or other numbers, under a key; ``odd`` ones are not packed."""
    records = made(6)
    for at, one in enumerate(records):
        rows = [[-0.3 - (at + x) % 5 for x in range(6)] for _ in range(4)]
        one |= {"log_probs_new": rows, "rewards": [0, 1, 0, 1], key: values(at, rows)}
        one.pop("log_probs_old", None)
        one |= {"log_probs_rollout": rows} if engine else {}
        one |= {f"note{at}": "x"} if odd else {}
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


@pytest.mark.parametrize(
    ("engine", "odd"), some([(False, False), (True, False), (True, True), (False, True)], 1)
)
def test_old_log_probs_under_any_name_stop(tmp_path, engine, odd):
    for name in NAMES:
        path = lines(tmp_path / "a.jsonl", name, old_lp, engine=engine, odd=odd)
        code, notices, _ = outcome(path)
        assert code == 3, name
        assert f"--map log_probs_old={name}" in notices[-1]
        assert outcome(path, "-v", "dr", "--map", f"log_probs_old={name}")[0] == 0, name


def test_rows_of_a_group_stop_by_the_values_of_a_key(tmp_path):
    rows = rows_of_a_group()
    rows = [{"log_prob_olds" if key == "old_lp" else key: one[key] for key in one} for one in rows]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    code, notices, _ = outcome(path, "-v", "dr", "--group-by", "uid")
    assert code == 3
    assert "--map log_probs_old=log_prob_olds" in notices[-1]


def test_other_numbers_under_a_key_do_not_stop(tmp_path):
    for name in OTHERS:
        assert outcome(lines(tmp_path / "a.jsonl", name, old_lp))[0] == 0, name
    random_ = random.Random(1)
    for numbers in (
        lambda at, rows: rows,  # the policy's: every ratio is 1 with them, too
        lambda at, rows: [[-random_.random() for _ in row] for row in rows],
        lambda at, rows: [[0.0 for _ in row] for row in rows],
        lambda at, rows: [[-x for x in row] for row in rows],
        lambda at, rows: [row[:-1] for row in rows],
        lambda at, rows: [-1.0 for _ in rows],
    ):
        assert outcome(lines(tmp_path / "a.jsonl", "x", numbers))[0] == 0


def test_numbers_that_only_one_record_of_many_has_stop(tmp_path):
    draw = random.Random(2)

    def numbers(at, rows):
        return [
            [x - 0.01 * draw.random() if at == 3 else -draw.random() for x in row] for row in rows
        ]

    code, notices, _ = outcome(lines(tmp_path / "a.jsonl", "mine", numbers))
    assert code == 3
    assert "a.jsonl:4:" in notices[-1]


@pytest.mark.parametrize("form", ["lines", "table"])
def test_nulls_among_old_log_probs_under_any_name_are_passed_over(tmp_path, form):
    def numbers(at, rows):
        return [
            [None if place == 3 else x - 0.01 * at for place, x in enumerate(row)] for row in rows
        ]

    path = lines(tmp_path / "a.jsonl", "mine", numbers)
    if form == "table":
        records = [json.loads(line) for line in path.read_text().splitlines()]
        path = tmp_path / "a.parquet"
        pq.write_table(pa.Table.from_pylist(records), path)
    code, notices, _ = outcome(path)
    assert code == 3
    assert "--map log_probs_old=mine" in notices[-1]
