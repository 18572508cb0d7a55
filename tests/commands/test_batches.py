"""Rows belong to the batch whose total is printed; ``--batch FIELD`` says which batch that is."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import re
import shlex
from functools import cache
from pathlib import Path

import command
import numpy as np
import pytest
from files import each, some
from made_up import NEEDED as USUAL
from planted import write

from grpo_cli import VARIANTS, GrpoError, InputError, UsageError, evaluate

SAMPLES = Path(__file__).parent.parent.parent / "samples"
ROLLOUTS = Path(__file__).parent.parent / "data" / "rollouts"
NEEDED = USUAL | {"rejection_threshold": 0.5}


def record(draw: random.Random, step: int, rank: int, **more) -> dict:
    """Two groups with every column that a row may ask for, of lengths that differ by record."""
    lengths = [draw.randint(1, 7) for _ in range(6)]

    def column(size: float) -> list[list[float]]:
        return [[-draw.expovariate(size) - 0.01 for _ in range(n)] for n in lengths]

    old = column(0.8)

    def near() -> list[list[float]]:
        return [[min(x + draw.gauss(0, 0.3), -1e-3) for x in row] for row in old]

    return {
        "id": f"s{step}r{rank}",
        "step": step,
        "rank": rank,
        "log_probs_new": near(),
        "log_probs_old": old,
        "log_probs_ref": near(),
        "log_probs_rollout": near(),
        "entropies": [[draw.uniform(0.05, 2.0) for _ in range(n)] for n in lengths],
        "rewards": [round(draw.random(), 2) for _ in lengths],
        "group_ids": ["a", "a", "a", "b", "b", "b"],
        **more,
    }


@pytest.fixture(scope="module")
def records() -> list[dict]:
    """Three steps of two ranks, one rank behind the other: batches do not follow each other."""
    draw = random.Random(25)
    return [record(draw, step, rank) for rank in range(2) for step in range(3)]


@pytest.fixture(scope="module")
def path(records: list[dict], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("run") / "run.jsonl", records)


@cache
def names_read(variant: str) -> str:
    """The hyperparameters of a variant, as it lists them where one is unknown."""
    return command.run("eval", "-", "-v", variant, "-p", "foo=1", stdin="").stderr


def needed(variant: str) -> dict[str, float]:
    takes = re.findall(r"\w+", names_read(variant))
    return {name: value for name, value in NEEDED.items() if name in takes}


def test_rows_of_records_say_their_step(path: Path) -> None:
    table = command.run("eval", path).stdout
    assert re.search(r"^step +id +contribution", table, re.MULTILINE)
    assert command.run("eval", path, "--only", "step").stdout.split() == [*"012012"]
    assert [one["step"] for one in command.answer("eval", path)["records"]] == [0, 1, 2, 0, 1, 2]


def adds_up(parts: list[float], whole: float, size: float, longest: int) -> bool:
    """Whether parts that were each rounded add up to the whole, which was rounded once.

    A contribution is a product of some five doubles, each rounded, and a response's values are
    added up in doubles: ``size`` is Σ |w·c·s| + |w·k·β|, of which all of that is a part.
    """
    return abs(math.fsum(parts) - whole) <= (16 + longest) * 2**-53 * size + 1e-300


def check_rows(result, batches: dict[tuple, dict]) -> None:
    """Σ contribution = J and Σ gradient² = norm², of each batch at each level."""
    token = result.columns("token")
    longest = int(result.columns("response")["length"].max(initial=0))
    policy = np.abs(token["weight"] * token["surrogate"] * token.get("correction", 1.0))
    policy = np.where(np.isnan(policy), 0.0, policy)  # 0·inf, where no correction is
    sizes = policy + np.abs(token["contribution"]) + policy
    for key, total in batches.items():
        size = math.fsum(sizes[of_batch(token, key)])
        for level in ("token", "response", "record"):
            table = result.columns(level)
            own = table["contribution"][of_batch(table, key)].tolist()
            assert adds_up(own, total["objective"], size, longest), (key, level, own)
        squares = np.square(token["gradient"][of_batch(token, key)])
        norm = math.sqrt(math.fsum(squares))
        assert norm == pytest.approx(total["gradient_norm"], rel=1e-12, abs=1e-300)


def of_batch(table: dict, key: tuple) -> np.ndarray:
    chosen = np.ones(len(table["id"]), dtype=bool)
    for name, value in zip(BY, key, strict=False):
        chosen &= table[name] == value
    return chosen


BY = ("step", "rank")


@pytest.mark.more
@each("variant", some(list(VARIANTS), 20))
def test_rows_of_every_row_add_up_to_the_total_of_their_batch(variant: str, records) -> None:
    values = needed(variant)
    reads = VARIANTS[variant].advantage.choice.columns
    given = {"turn_rewards": [0.5], "states": ["a"], "reward_baselines": 0.5}
    for column in given.keys() & {*reads}:
        key = "state_ids" if column == "states" else column
        records = [one | {key: [given[column]] * len(one["rewards"])} for one in records]
    whole = evaluate(records, variant, **values)
    check_rows(whole, {(): whole.total})
    for fields in ("step", "step,rank"):
        found = evaluate(records, variant, batch=fields, **values)
        names = fields.split(",")
        check_rows(found, {tuple(b[name] for name in names): b for b in found.batches})
    alone = evaluate(records, variant, batch="record", **values)
    own = dict(
        zip(alone.columns("record")["id"], alone.columns("record")["objective"], strict=True)
    )
    table = alone.columns("token")
    for name, objective in own.items():
        parts = table["contribution"][table["id"] == name]
        assert math.fsum(parts) == pytest.approx(objective, rel=1e-9, abs=1e-12)


FILES = [*sorted(SAMPLES.glob("*.json*")), *sorted(ROLLOUTS.glob("*.jsonl"))]


@pytest.mark.more
@each("at", some(range(len(FILES)), 10), lambda at: str(FILES[at]))
def test_rows_of_every_sample_add_up(at: int) -> None:
    """Of the usual variants, and of a share of all: every variant has a file."""
    checked, file = 0, FILES[at]
    for variant in {"grpo", "dapo", "dr", "gspo", *some([*VARIANTS][at :: len(FILES)], 3)}:
        for batch in ("input", "step"):
            try:
                result = evaluate(str(file), variant, batch=batch, **needed(variant))
            except GrpoError:
                continue  # what is refused, lacks a column, or says no step
            batches = {(one["step"],): one for one in result.batches} or {(): result.total}
            check_rows(result, batches)
            checked += 1
    assert checked or file.name.startswith(("bad_", "temperature")), file


@each(
    ("variant", "stages"),
    [
        *((name, {}) for name in ("grpo", "dapo", "gspo", "trl/dapo", "reinforce++")),
        *((name, {}) for name in ("prime-rl/ipo", "verl/vanilla")),
        *(("dapo", {"advantage": name}) for name in ("batch-std", "batch-whiten")),
    ],
)
def test_a_batch_has_the_total_of_a_file_of_its_records(variant, stages, records, tmp_path) -> None:
    """The oracle is the evaluation of files that hold one batch each."""
    values = needed(variant)
    found = evaluate(records, variant, stages=stages, batch="step", **values)
    assert [one["step"] for one in found.batches] == [0, 1, 2]
    for one in found.batches:
        alone = [each for each in records if each["step"] == one["step"]]
        file = write(tmp_path / "alone.jsonl", alone)
        of_file = evaluate(str(file), variant, stages=stages, **values)
        assert {name: one[name] for name in of_file.total} == of_file.total
        mine = found.columns("token")
        chosen = mine["step"] == one["step"]
        for name in ("weight", "contribution", "gradient", "advantage"):
            assert mine[name][chosen].tolist() == of_file.columns("token")[name].tolist(), name


def test_the_gradient_is_that_of_the_batch(records) -> None:
    """Central differences of the batch's own J, in one token of its second record."""
    step = 1e-6
    for variant in ("grpo", "dapo", "dr", "gspo", "grpo-unbiased-kl"):
        for batch in ("input", "step"):
            result = evaluate(records, variant, batch=batch)
            table = result.columns("token")
            place = next(at for at, name in enumerate(table["id"]) if name == "s2r1")
            values = []
            for sign in (1, -1):
                moved = json.loads(json.dumps(records))
                other = next(one for one in moved if one["id"] == "s2r1")
                other["log_probs_new"][0][0] += sign * step
                found = evaluate(moved, variant, batch=batch, totals_only=True)
                of = [one for one in found.batches if one["step"] == 2] or [found.total]
                values.append(of[0]["objective"])
            slope = (values[0] - values[1]) / (2 * step)
            assert table["gradient"][place] == pytest.approx(slope, rel=2e-6, abs=1e-9)


def test_a_correction_that_takes_tokens_out_has_its_denominator_in_two_passes(records) -> None:
    """Statistics first, then what a rejection leaves of the tokens: contributions still add up."""
    stages = {"advantage": "batch-std", "correction": "verl/decoupled"}
    values = {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.8_1.2"}
    result = evaluate(records, "verl/vanilla", stages=stages, rollout_is=None, **values)
    check_rows(result, {(): result.total})
    kept = result.total["denominator"]
    assert 0 < kept < result.total["tokens"]


@each("kind", ["jsonl", "csv", "json", "parquet"])
def test_every_format_has_the_same_rows(kind: str, grpo, path, tmp_path) -> None:
    out = tmp_path / f"rows.{kind}"
    result = grpo(
        *("eval", str(path), "-v", "dapo", "--batch", "step", "--level", "token", "-q"),
        *("-f", kind, "-o", str(out)),
    )
    assert result.exit_code == 0, result.stderr
    if kind == "parquet":
        import pyarrow.parquet as pq

        rows = pq.read_table(out).to_pylist()
    elif kind == "json":
        document = json.loads(out.read_text())
        assert [one["step"] for one in document["batches"]] == [0, 1, 2]
        rows = [
            {"step": one["step"], "contribution": value}
            for one in document["records"]
            for response in one["responses"]
            for value in response["tokens"]["contribution"]
        ]
    elif kind == "jsonl":
        rows = list(map(json.loads, out.read_text().splitlines()))
    else:
        rows = list(csv.DictReader(io.StringIO(out.read_text())))
    expected = evaluate(str(path), "dapo", batch="step").columns("token")
    assert [int(row["step"]) for row in rows] == expected["step"].tolist()
    assert [float(row["contribution"]) for row in rows] == expected["contribution"].tolist()


def test_totals_of_batches_in_every_format(grpo, path) -> None:
    expected = evaluate(str(path), batch="step")
    words = ("eval", str(path), "--batch", "step", "--level", "batch", "-q")
    lines = grpo(*words, "-f", "jsonl").stdout.splitlines()
    assert [json.loads(line)["loss"] for line in lines] == [b["loss"] for b in expected.batches]
    assert grpo(*words, "-f", "jsonl", "--limit", "2").stdout.splitlines() == lines[:2]
    for level in ("batch", "record"):
        text = grpo(*words, "--level", level, "--limit", "2").stdout
        assert "… 1 more batch (use --limit 0)\n" in text
    table = list(csv.DictReader(io.StringIO(grpo(*words, "-f", "csv").stdout)))
    assert [row["step"] for row in table] == ["0", "1", "2"]
    bare = grpo(*words, "--only", "loss").stdout.split()
    assert list(map(float, bare)) == [b["loss"] for b in expected.batches]
    document = json.loads(grpo(*words, "--json").stdout)
    assert document["batches"] == [dict(one) for one in expected.batches]
    mean = math.fsum(b["objective"] for b in expected.batches) / 3
    assert document["total"]["objective"] == mean
    printed = grpo(*words).stdout.splitlines()
    assert printed[0] == "mean of 3 batches"
    assert "step" in {line.split()[0] for line in printed if line}


def test_two_runs_as_one_input_are_noted(grpo, path, tmp_path) -> None:
    record = json.loads(path.read_text().splitlines()[0])
    names = ["a.jsonl", "b.jsonl", "dump_0.jsonl", "dump_1.jsonl"]
    first, second, *ranks = files = [tmp_path / name for name in names]
    for file in files:
        file.write_text(json.dumps(record) + "\n")
    noted = grpo("eval", str(first), str(second)).stderr
    assert f"{second} both have step {record['step']}; if they are two runs: grpo trend" in noted
    assert "two runs" not in grpo("eval", *map(str, ranks)).stderr  # parts of one run
    assert any("two runs" in note for note in evaluate([str(first), str(second)]).notices)


LACKING = {"log_probs_ref": None, "entropies": None}


@each("variant", ["grpo", "bnpo", "verl/vanilla", "verl/sapo", "skyrl/regular", "trl/dapo"])
def test_a_term_that_only_some_records_have_counts_all_of_them(variant: str, records) -> None:
    """β or entropy_coef 0 in some: J is Σ over terms of Σ coefficient·w·value over the batch."""
    first, second, third = (dict(one) for one in records[:3])
    first["hyperparameters"] = {"beta": 0.1, "entropy_coef": 0.01}
    second = {name: one for name, one in second.items() if name not in LACKING}
    second["hyperparameters"] = {"beta": 0.0}
    third["hyperparameters"] = {"beta": 0.0}
    for some_of in ([first, second], [second, first], [first, third, second]):
        result = evaluate(some_of, variant, **needed(variant))
        check_rows(result, {(): result.total})


def test_what_is_left_out_is_in_no_statistic_of_the_batch(records, grpo, tmp_path) -> None:
    bad = json.loads(json.dumps(records[0]))
    bad["log_probs_old"] = [[-2000.0] * len(row) for row in bad["log_probs_old"]]  # ρ overflows
    bad["rewards"] = [9.0, 0.0, 0.0, 0.0, 0.0, 9.0]
    file = write(tmp_path / "bad.jsonl", [bad, *records[1:3]])
    words = ("--advantage", "batch-std", "--surrogate", "unclipped", "-v", "dapo", "--only", "loss")
    result = grpo("eval", str(file), *words, "--level", "batch", "--on-error", "skip", "-q")
    stages = {"advantage": "batch-std", "surrogate": "unclipped"}
    assert float(result.stdout) == evaluate(records[1:3], "dapo", stages=stages).loss


@each("field", ["source", "id", "loss", "tokens", "variant"])
def test_a_batch_s_field_is_no_column_of_ours(field: str, records, grpo, tmp_path) -> None:
    file = write(tmp_path / "run.jsonl", [records[0] | {field: "a"}])
    result = grpo("eval", str(file), "--batch", field)
    assert result.exit_code == 2
    assert f"rows already have a column {field}" in result.stderr


def test_records_left_out_are_in_no_denominator(records, tmp_path) -> None:
    """With --on-error skip the denominators of rows are those of the totals."""
    bad = json.loads(json.dumps(records))
    bad[1]["log_probs_old"][0][0] = -2000.0  # ρ overflows, which only evaluating shows
    bad[1]["log_probs_new"][0][0] = -0.1
    bad[1]["rewards"] = [1, 0, 0, 1, 0, 0]
    file = write(tmp_path / "bad.jsonl", bad)
    lines = [json.dumps(one) for n, one in enumerate(bad) if n != 1]
    good = evaluate([json.loads(line) for line in lines], "dapo", stages={"surrogate": "unclipped"})
    words = "-v dapo --surrogate unclipped --on-error skip --level token --only contribution -q"
    result = command.run("eval", file, *words.split())
    assert result.exit_code == 3
    mine = list(map(float, result.stdout.split()))
    assert mine == good.columns("token")["contribution"].tolist()


def test_a_field_that_records_lack(records, grpo, path) -> None:
    with pytest.raises(InputError, match="nope"):
        evaluate(records, batch="nope")
    result = grpo("eval", str(path), "--batch", "nope")
    assert result.exit_code == 3
    assert result.stderr.splitlines() == [
        f"grpo: {path}:1: nope: missing; every record needs this field; this one has id, step, rank"
    ]
    with pytest.raises(UsageError, match="FIELD"):
        evaluate(records, batch="step,")
    assert grpo("eval", str(path), "--batch", "").exit_code == 2


def test_a_file_is_a_batch(records, grpo, tmp_path) -> None:
    for number in (0, 1):
        write(tmp_path / f"part{number}.jsonl", records[number : number + 1])
    out = grpo("eval", str(tmp_path), "--batch", "file", "--level", "batch", "-f", "jsonl", "-q")
    rows = list(map(json.loads, out.stdout.splitlines()))
    assert [Path(row["file"]).name for row in rows] == ["part0.jsonl", "part1.jsonl"]


NOTE = "the numbers cover all 3 steps together"


@pytest.mark.more
@each(
    "command",
    [
        "eval --level batch",
        "compare -v grpo,dr",
        "match --loss 0.1234 --kl none --surrogate clip --epsilon 0.2 --clip-fraction 0.9",
        "eval -f csv",
        "show --top 1",
    ],
)
def test_records_of_several_steps_are_noted(command: str, grpo, path) -> None:
    name, *rest = shlex.split(command)
    noted = grpo(name, str(path), *rest)
    in_table = name != "match" and "csv" not in rest
    said = " ".join((noted.stdout if in_table else noted.stderr).split())
    assert f"{NOTE}; {'--where step==N' if name == 'match' else '--batch step'}" in said
    assert " ".join(noted.output.split()).count(NOTE) == 1
    if name != "match":
        for batch in ("step", "record"):
            assert NOTE not in " ".join(
                grpo(name, str(path), *rest, "--batch", batch).output.split()
            )
    else:
        refused = grpo(name, str(path), *rest, "--batch", "step")
        assert refused.exit_code == 2
        assert "--where step==N" in refused.stderr
    assert NOTE not in grpo(name, str(path), *rest, "--where", "step==1").stderr


def test_steps_in_a_table_are_noted(grpo, records, tmp_path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = ("step", "log_probs_new", "log_probs_old", "log_probs_ref", "rewards")
    file = tmp_path / "run.parquet"
    pq.write_table(pa.table({name: [one[name] for one in records] for name in columns}), file)
    assert NOTE in " ".join(grpo("eval", str(file), "--level", "batch").stdout.split())
    found = grpo("eval", str(file), "--level", "batch", "--batch", "step", "-f", "csv", "-q")
    assert [line.split(",")[0] for line in found.stdout.splitlines()] == ["step", "0", "1", "2"]


def test_explain_answers_for_the_last_step(grpo, records, path, tmp_path) -> None:
    document = json.loads(grpo("explain", str(path), "--json").stdout)
    last = evaluate([one for one in records if one["step"] == 2])
    assert document["batch"] == {"step": 2}
    assert document["total"] == dict(last.total)
    said = grpo("explain", str(path), "--json").stderr
    assert "this explains only step 2, the last of 3 batches" in said
    whole = json.loads(grpo("explain", str(path), "--json", "--batch", "input").stdout)
    assert whole["total"] == dict(evaluate(records).total)
    rank = json.loads(grpo("explain", str(path), "--json", "--batch", "rank").stdout)
    assert rank["batch"] == {"rank": 1}
    assert rank["total"]["records"] == 3
    file = write(tmp_path / "run.jsonl", [records[0] | {"step": step} for step in (3, 10, 9)])
    for words in ((), ("--batch", "step")):
        assert json.loads(grpo("explain", str(file), *words, "--json").stdout)["batch"] == {
            "step": 10
        }


def test_compare_has_a_line_for_each_batch(grpo, records, path) -> None:
    document = json.loads(
        grpo("compare", str(path), "-v", "grpo,dr", "--batch", "step", "--json").stdout
    )
    rows = document["variants"]
    assert [(row["step"], row["variant"]) for row in rows] == [
        (step, variant) for step in range(3) for variant in ("grpo", "dr")
    ]
    for row in rows:
        alone = [one for one in records if one["step"] == row["step"]]
        total = evaluate(alone, row["variant"]).total
        assert row["loss"] == total["loss"]
        assert row["gradient_norm"] == total["gradient_norm"]
