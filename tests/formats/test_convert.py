"""What is converted evaluates to the same bytes, to and from every format there is."""

import io
import json
import re
from pathlib import Path

import orjson
import pytest
from command import run
from files import rows_of, some

from formats import dumps
from formats.dumps import NEW, OLD, REWARDS, lines

ROOT = Path(__file__).parents[1]
REAL = sorted([*(ROOT / "data").glob("*.jsonl"), *(ROOT / "data" / "rollouts").glob("*.jsonl")])
SAMPLES = sorted(one for one in (ROOT.parent / "samples").glob("*.json*") if "bad" not in one.name)


@pytest.fixture(scope="module")
def grpo():
    return run


def evaluated(grpo, path, *flags):
    """Everything that eval prints of a file, but for where its records stand."""
    flags = ("--level", "token", "--json", "--on-error", "skip", *flags)
    result = grpo("eval", path, "--kl", "none", *flags)
    assert result.exit_code in (0, 3), result.output
    value = orjson.loads(result.stdout)
    for one in value["records"]:
        del one["source"], one["line"]
    return orjson.dumps(value)


def same(grpo, path, tmp_path, *flags, given=()):
    wanted = evaluated(grpo, path, *flags, *given)
    for name in ("out.jsonl", "out.parquet"):
        out = tmp_path / name
        result = grpo("convert", path, "-o", out, "--on-error", "skip", *flags)
        assert result.exit_code in (0, 3), result.output
        assert evaluated(grpo, out, *given) == wanted
        again = tmp_path / f"again-{name}"
        assert grpo("convert", out, "-o", again).exit_code == 0
        assert evaluated(grpo, again, *given) == wanted


@pytest.mark.parametrize(
    "path", some([*REAL, *SAMPLES], 3), ids=lambda path: f"{path.parent.name} {path.name}"
)
def test_real_dumps(grpo, tmp_path, path):
    same(grpo, path, tmp_path)


MADE_UP = rows_of(Path(__file__).with_name("conversions.csv"))
NAMES = {"of": dumps.of, "NEW": NEW, "OLD": OLD, "REWARDS": REWARDS}


@pytest.mark.parametrize("made", some(MADE_UP, 5), ids=lambda made: made["name"])
def test_made_up_dumps(grpo, tmp_path, made):
    path = tmp_path / "in.jsonl"
    path.write_bytes(lines(eval(made["objects"], NAMES)))
    same(grpo, path, tmp_path, *made["flags"].split(), given=("-v", "dr"))


def test_blank_lines_and_a_bad_record(grpo, tmp_path):
    one, path = {"logps": NEW, "reward": REWARDS}, tmp_path / "in.jsonl"
    path.write_bytes(b"\n" + lines([one, {"logps": 3}]) + b"\n" + lines([one | {"id": 2**70}]))
    same(grpo, path, tmp_path, given=("-v", "dr"))


def test_errors_and_skipping(grpo, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(lines([{"logps": NEW, "reward": REWARDS}, {"logps": 3}]))
    result = grpo("convert", path, "-o", tmp_path / "out.jsonl")
    assert result.exit_code == 3
    assert "in.jsonl:2: logps: expected a list of numbers, got 3" in result.stderr
    assert not (tmp_path / "out.jsonl").exists()
    result = grpo("convert", path, "--on-error", "skip")
    assert result.exit_code == 3
    assert "skipped 1 of 2 records" in result.stderr
    assert len(result.stdout.splitlines()) == 1


def test_formats(grpo):
    result = grpo("formats")
    assert result.exit_code == 0
    assert re.search(r"nemo-rl +NeMo-RL train_data_step\{N\}.jsonl", result.stdout)
    assert "prev_logprobs" in result.stdout
    document = json.loads(grpo("formats", "--json").stdout)
    names = [one["name"] for one in document["formats"]]
    assert names[0] == "canonical"
    assert {"atif", "miles", "nemo-rl"} <= {*names}
    assert document["names"]["rewards"] == ["reward", "scores", "score"]


@pytest.mark.parametrize("flags", [[], ["--bundle"]])
def test_records_without_ids_are_called_by_their_lines(grpo, tmp_path, flags):
    """Lines are counted from 0, blank ones too, as every report does."""
    one = json.dumps({"logps": [[-0.5, -1.0]], "reward": [1.0]})
    odd = json.dumps({"logps": [[-0.5]], "reward": [1.0], "id": [1]})
    (tmp_path / "in.jsonl").write_text(f"\n{one}\n\n{one}\n{odd}\n")
    rows = grpo("convert", tmp_path / "in.jsonl", *flags).stdout.splitlines()
    assert [json.loads(row)["id"] for row in rows] == [1, 3, 4]


def test_records_are_written_in_their_order(grpo, tmp_path):
    """Which are looked at one by one, and wait until there are more."""
    parquet = pytest.importorskip("pyarrow.parquet")
    plain = {"logps": NEW, "rewards": REWARDS}
    other = {"logps": NEW, "rewards": {"x": REWARDS}, "note": 1}
    data = [{"id": at, **(other if at in (2, 5) else plain)} for at in range(9)]
    (tmp_path / "in.jsonl").write_bytes(lines(data))
    assert grpo("convert", tmp_path / "in.jsonl", "-o", tmp_path / "out.parquet").exit_code == 0
    rows = parquet.read_table(tmp_path / "out.parquet")["grpo_json"].to_pylist()
    assert [json.loads(one)["id"] for one in rows] == [*range(9)]


def test_records_that_wait_to_be_written_are_few(monkeypatch):
    pytest.importorskip("pyarrow")
    from grpo_cli.records.tables import writing

    monkeypatch.setattr(writing, "_WAITING", 1000)
    stream = io.BytesIO()
    waiting = []
    with writing.Table(stream) as table:
        for at in range(200):
            table.add_record({"id": at, "log_probs_new": [[-1.0] * 9], "rewards": [1.0]})
            waiting.append(len(table._waiting))
    assert 1 < max(waiting) < 20
    assert waiting.count(0) > 10
    assert writing.package().parquet.read_table(stream).num_rows == 200


def test_what_has_a_column_of_its_own(grpo, tmp_path):
    """Numbers of tokens and responses; whatever else the record has is JSON."""
    parquet = pytest.importorskip("pyarrow.parquet")
    tokens = {name: [[value] * len(row) for row in NEW] for name, value in
              (("tokens", "a"), ("entropies", 0.5))}  # fmt: skip
    other = {"uid": list("aabb"), "note": [[1.0], [2.0]], "id": "r", "reward_baselines": REWARDS}
    for name, values, kind in (
        ("advantages", REWARDS, "list<element: double>"),
        ("advantages", NEW, "list<element: list<element: double>>"),
        ("rewards", REWARDS, "list<element: double>"),
    ):
        (tmp_path / "in.jsonl").write_bytes(lines([{"logps": NEW, name: values} | tokens | other]))
        assert grpo("convert", tmp_path / "in.jsonl", "-o", tmp_path / "a.parquet").exit_code == 0
        table = parquet.read_table(tmp_path / "a.parquet")
        assert {field.name: str(field.type) for field in table.schema} == {
            "log_probs_new": "list<element: list<element: double>>",
            name: kind,
            "tokens": "list<element: list<element: string>>",
            "entropies": "list<element: list<element: double>>",
            "grpo_json": "string",
        }
        (rest,) = table["grpo_json"].to_pylist()
        assert json.loads(rest) == {
            "group_ids": list("aabb"), "note": [[1.0], [2.0]], "id": "r",
            "reward_baselines": REWARDS,
        }  # fmt: skip


@pytest.mark.more
def test_row_groups_of_some_megabytes(grpo, tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")

    monkeypatch.setattr("grpo_cli.records.tables.writing.GROUP_BYTES", 1 << 14)
    path = tmp_path / "in.jsonl"
    path.write_bytes(lines([{"logps": [[-0.5] * 100] * 4, "reward": REWARDS}] * 2000))
    assert grpo("convert", path, "-o", tmp_path / "out.parquet").exit_code == 0
    assert parquet.ParquetFile(tmp_path / "out.parquet").metadata.num_row_groups > 5
