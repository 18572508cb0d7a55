"""Messages about files, and about rows that records name."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import struct
import zipfile
from bz2 import compress as bzip2

import numpy as np
import pytest
from files import each
from fuzz import product

# ---- files that are not what they are called, or cannot be opened, or are a trainer's log --------


LOG_PROBS = [[-0.5, -0.3], [-0.2, -0.4]]
RECORD = json.dumps({"log_probs": LOG_PROBS, "rewards": [1.0, 0.0]}) + "\n"


def npz() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, log_probs=np.array(LOG_PROBS), rewards=np.array([1.0, 0.0]))
    return stream.getvalue()


def safetensors() -> bytes:
    entries = {"log_probs": ([2, 2], [0, 32]), "rewards": ([2], [32, 48])}
    header = json.dumps(
        {
            name: {"dtype": "F64", "shape": shape, "data_offsets": at}
            for name, (shape, at) in entries.items()
        }
    ).encode()
    return struct.pack("<Q", len(header)) + header + np.array([*LOG_PROBS, [1.0, 0.0]]).tobytes()


def array() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array(LOG_PROBS))
    return stream.getvalue()


def archive() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr("archive/data.pkl", b"x" * 500)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("a.parquet", "Parquet's PAR1"),
        ("a.arrow", "Arrow's ARROW1"),
        ("a.feather", "Arrow's ARROW1"),
        ("a.npz", "zip's PK, as npz do"),
        ("a.pt", "zip's PK, as torch.save writes"),
        ("a.zip", "zip's PK"),
        ("a.safetensors", "a header's length and {, as safetensors do"),
        ("a.jsonl.gz", "gzip's 1F 8B"),
        ("a.jsonl.zst", "zstd's 28 B5 2F FD"),
        ("a.jsonl.bz2", "bzip2's BZh"),
        ("A.JSONL.XZ", "xz's FD 7zXZ"),
    ],
)
def test_a_file_is_not_what_its_name_says(grpo, tmp_path, name, start):
    path = tmp_path / name
    path.write_text("not found\n")
    ending = name[name.rfind(".") :].lower()
    result = grpo("eval", str(path))
    said = f"grpo: {path}: is named {ending} but does not start with {start}\n"
    assert (result.exit_code, result.stderr) == (3, said)
    path.write_text(RECORD)  # what it is counts, not what it is called
    assert grpo("eval", str(path), "--beta", "0").exit_code == 0


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.npz", npz()[:300], "the file is damaged: its zip has no end; is the file cut off?"),
        (
            "a.pt",
            archive()[:300],
            "torch.save did not write it: its zip has no end; is the file cut off?",
        ),
        ("a.safetensors", safetensors()[:60], "bytes, but only 52 are left; is the file cut off?"),
        (
            "a.safetensors",
            safetensors()[:-8],
            "its tensors need 48 bytes, but the file has 40; is the file cut off?",
        ),
        (
            "a.jsonl.gz",
            gzip.compress(RECORD.encode())[:-9],
            "the compressed data end too early; is the file cut off?",
        ),
        ("a.bz2", bzip2(b"{}"), "this is bzip2; to read it: bunzip2 -c FILE | grpo eval"),
        ("a.json", lzma.compress(b"{}"), "this is xz; to read it: xz -dc FILE | grpo eval"),
        (
            ("a.npy"),
            array(),
            ("this is a single numpy array without a name: save named arrays with np.savez"),
        ),
    ],
)
def test_a_file_is_cut_off_or_packed_in_another_way(grpo, tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content)
    result = grpo("eval", str(path), "--beta", "0", "-q")
    line, *more = result.stderr.splitlines()
    assert result.exit_code == 3
    assert line.startswith(f"grpo: {path}: ")
    assert said in line
    assert all(one.startswith("grpo: incomplete: stopped after ") for one in more)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_table_is_cut_off(grpo, tmp_path, kind):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path, table = tmp_path / f"a.{kind}", pa.Table.from_pylist([json.loads(RECORD)])
    if kind == "parquet":
        parquet.write_table(table, path)
    else:
        with pa.ipc.new_file(str(path), table.schema) as sink:
            sink.write_table(table)
    assert grpo("eval", str(path), "--beta", "0").exit_code == 0
    path.write_bytes(path.read_bytes()[:-3])
    end = "PAR1" if kind == "parquet" else "ARROW1"
    said = f"{path}: the file is damaged: it does not end with {end}; is the file cut off?"
    result = grpo("eval", str(path))
    assert (result.exit_code, result.stderr) == (3, f"grpo: {said}\n")


COMMANDS = ["eval", "check", "compare", "verify", "trend"]
PLAIN = [(command, False) for command in (*COMMANDS, "show", "convert")]


@pytest.mark.parametrize(("command", "as_json"), [*PLAIN, *((one, True) for one in COMMANDS)])
def test_all_files_that_cannot_be_opened_are_told_before_any_work(
    grpo, dump, tmp_path, command, as_json
):
    good = str(dump({"step": 1}))
    empty = str(dump(name="empty.jsonl"))
    paths = [str(tmp_path / "a.jsonl"), good, empty, str(tmp_path / "b.json")]
    result = grpo(command, *paths, *(["--json"] if as_json else []))
    assert (result.exit_code, result.stdout) == (3, "")
    missing, nothing = "no such file", "no records: the input is empty"
    said = [(paths[0], missing), (empty, nothing), (paths[3], missing)]
    if as_json:
        told = [json.loads(line)["error"] for line in result.stderr.splitlines()]
        assert [(one["source"], one["message"]) for one in told] == said
    else:
        assert result.stderr.splitlines() == [f"grpo: {path}: {why}" for path, why in said]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_what_came_before_a_fault_inside_a_file_is_still_evaluated(grpo, dump, jobs):
    paths = [str(dump({}, name="a.jsonl")), str(dump("{", name="b.jsonl"))]
    result = grpo("eval", *paths, "-f", "jsonl", "-j", jobs)
    assert (result.exit_code, result.stdout.count("\n")) == (3, 1)


ROWS = {
    "trl": {"global_step": 2, "log_history": [{"step": 1, "loss": 0.1}]},
    "trl-row": {"step": 1, "loss": 0.1, "reward": 0.5, "epoch": 0.25},
    "verl": {"step": 1, "actor/pg_loss": 0.1, "critic/score/mean": 0.2},
    "verl-file": {"step": 1, "data": {"actor/pg_loss": 0.1, "training/global_step": 1}},
}


@each("command", ["eval", "check", "verify", "match", "show", "split"])
@each("kind", ROWS)
def test_a_trainers_log_is_told_with_the_commands_that_read_it(grpo, dump, command, kind):
    path = str(dump(json.dumps(ROWS[kind])))
    flags = {"match": ["--loss", "0.1"], "split": ["-n", "1"]}.get(command, [])
    result = grpo(command, path, *flags)
    assert result.exit_code == 3
    assert result.stderr == (
        f"grpo: {path}:1: this is a trainer's log, which has no tokens: grpo trend {path} "
        f"shows its series, and grpo trend RUN --log {path} compares it with the records\n"
    )


@pytest.mark.parametrize("kind", ROWS)
def test_the_command_that_is_named_reads_it(grpo, dump, kind):
    path = str(dump(json.dumps(ROWS[kind])))
    for command, line in (("trend", "there is 1\n"), ("explain", "a log of 1 step, 1 to 1\n")):
        result = grpo(command, path)
        assert result.exit_code == 0
        assert line in result.stdout


@pytest.mark.parametrize(
    "row",
    [
        {"step": 1, "rewards": [1.0], "loss": 0.5},
        {"loss": 0.5, "id": "a"},
        {"step": 1, "response": "x", "loss": 0.5},
        {"step": 1, "id": 4},
    ],
)
def test_a_record_without_log_probs_is_no_log(grpo, dump, row):
    assert "trainer's log" not in grpo("eval", str(dump(json.dumps(row)))).stderr


def test_both_runs_of_diff_are_told(grpo, tmp_path):
    paths = [str(tmp_path / name) for name in "ab"]
    result = grpo("diff", *paths)
    assert result.exit_code == 3
    assert result.stderr.splitlines() == [f"grpo: {path}: no such file" for path in paths]


def test_variants_that_were_taken_for_files(grpo, dump):
    result = grpo("compare", str(dump({})), "-v", "grpo", "dr")
    said = "grpo: dr: no such file; dr is a variant: -v A,B joins several\n"
    assert (result.exit_code, result.stderr) == (3, said)


# ---- the row that records name: told by every command that evaluates another ---------------------


DAPO = {"step": 1, "framework": {"name": "trl", "loss_type": "dapo"}}
COMPUTED = "the trainer used trl/dapo"
SAID = f"grpo: note: evaluated as grpo; {COMPUTED}: use -v trl/dapo"
OF_SEVERAL = f"grpo: note: {COMPUTED}, which is not among these variants"
EVALUATING = ["eval", "explain", "compare", "show", "split", "trend", "report"]
FLAGS = {"split": ["-n", "1"]}


def run(grpo, tmp_path, command, *words, **more):
    flags = ["-o", str(tmp_path / "page.html")] if command == "report" else FLAGS.get(command, [])
    return grpo(command, *words, *flags, **more)


@pytest.mark.parametrize("command", EVALUATING)
def test_that_records_name_another_row_is_told_once_in_one_sentence(grpo, dump, tmp_path, command):
    path = str(dump(DAPO, DAPO | {"step": 2}))
    result = run(grpo, tmp_path, command, path)
    assert result.exit_code == 0
    notes = result.stderr.splitlines()
    assert notes.count(OF_SEVERAL if command == "compare" else SAID) == 1
    quiet = run(grpo, tmp_path, command, path, "-q")
    own = run(grpo, tmp_path, command, path, "-v", "trl/dapo")
    nothing = run(grpo, tmp_path, command, str(dump({"step": 1})))
    assert "computed as" not in quiet.stderr + own.stderr + nothing.stderr


def test_a_run_that_is_followed_says_it_once(grpo, dump):
    path = dump(DAPO, DAPO | {"step": 2})
    ends = ("--every", "0.01", "--fail-on", "nll>0")
    result = grpo("trend", str(path), "-v", "dr", "--follow", *ends)
    assert result.exit_code == 1
    assert result.stderr.splitlines().count(SAID.replace("grpo;", "dr;")) == 1


def test_the_row_is_the_one_of_the_records_release(grpo, dump):
    framework = {"name": "trl", "loss_type": "dapo", "version": "1.9.2"}
    said = grpo("eval", str(dump({"framework": framework}))).stderr
    assert "the trainer used trl/dapo@1.9.2: use -v trl/dapo@1.9.2" in said


@pytest.mark.parametrize("size", [3000, 1 << 20])
@pytest.mark.parametrize("named", ["trl", None])
def test_only_the_first_object_is_heard_wherever_pieces_are_cut(dump, size, named):
    other = {"framework": {"name": "verl", "policy_loss": "vanilla"}}
    first = DAPO if named else {"step": 1}
    path = dump(first, *[DAPO | other] * 700)
    with product.blocks_of(size):
        said = SAID.replace("grpo;", "dr;")
        notes = product.run(["eval", str(path), "-v", "dr"]).err.decode().splitlines()
    assert [note for note in notes if "the trainer used" in note] == ([said] if named else [])
