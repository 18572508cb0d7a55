"""Messages about files that no case in text can hold, about the row of records, and flags."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import pickle
import sys
import tarfile
import zipfile
from bz2 import compress as bzip2
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import main, run
from files import blocks_of, each, expressions
from fuzz import product
from rows import HYPERPARAMETERS, HyperparameterError

ROWS = {"log_probs": [[-0.5, -0.3], [-0.2, -0.4]], "rewards": [1.0, 0.0]}
RECORD = json.dumps(ROWS) + "\n"


def made(kind: str) -> bytes:
    """A small file of each kind that is not text."""
    stream = io.BytesIO()
    arrays = {name: np.array(one) for name, one in ROWS.items()}
    if kind == "npz":
        np.savez(stream, **arrays)
    elif kind == "npy":
        np.save(stream, arrays["log_probs"])
    elif kind == "pickle":
        stream.write(pickle.dumps(ROWS, protocol=4))
    elif kind == "tar":
        with tarfile.open(fileobj=stream, mode="w") as archive:
            archive.addfile(tarfile.TarInfo("records.jsonl"))
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist([ROWS]), stream)
    elif kind == "arrow":
        table = pa.Table.from_pylist([ROWS])
        with pa.ipc.new_file(stream, table.schema) as sink:
            sink.write_table(table)
    else:
        with zipfile.ZipFile(stream, "w") as file:
            file.writestr(kind, b"x" * 500)
    return stream.getvalue()


CUT = "is the file cut off?"


@each(
    ("name", "content", "said"),
    [
        ("a", made("folder/records.jsonl"), "this is a zip archive: unzip it"),
        ("a", made("tar"), "this is a tar archive; to read the files in it: tar -xOf FILE | grpo"),
        ("a", made("pickle"), "this is a Python pickle, which can run any code"),
        ("a.npz", made("npz")[:300], f"the file is damaged: its zip has no end; {CUT}"),
        ("a.pt", made("archive/data.pkl")[:300], f"did not write it: its zip has no end; {CUT}"),
        ("a.gz", gzip.compress(RECORD.encode())[:-9], f"the compressed data end too early; {CUT}"),
        ("a.parquet", made("parquet")[:-3], f"is damaged: it does not end with PAR1; {CUT}"),
        ("a.arrow", made("arrow")[:-3], f"is damaged: it does not end with ARROW1; {CUT}"),
        ("a.bz2", bzip2(b"{}"), "this is bzip2; to read it: bunzip2 -c FILE | grpo eval"),
        ("a.json", lzma.compress(b"{}"), "this is xz; to read it: xz -dc FILE | grpo eval"),
        ("a.npy", made("npy"), "a single numpy array without a name: save named arrays with np.sa"),
    ],
    ids=lambda case: case[0] + case[2],
)
def test_a_file_that_is_damaged_or_packed_in_another_way(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content)
    results = [(str(path), run("eval", path, "--beta", "0", "-q"))]
    if name == "a":
        results.append(("<stdin>", run("eval", "-q", stdin=content)))
    for called, result in results:
        (line,) = result.stderr.splitlines()
        assert result.exit_code == 3
        assert line.startswith(f"grpo: {called}: ")
        assert said in line


@each("kind", ["npz", "parquet", "arrow"])
def test_whole_files_are_read(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    path.write_bytes(made(kind))
    assert run("eval", path, "--beta", "0").exit_code == 0


DAPO = {"step": 1, "framework": {"name": "trl", "loss_type": "dapo"}}
SAID = (
    "grpo: note: the records name trl/dapo, but grpo was evaluated: choose -v trl/dapo or -v grpo"
)


@pytest.mark.more
@pytest.mark.parametrize("named", ["trl", None])
def test_only_the_first_object_is_heard_wherever_pieces_are_cut(dump, named):
    other = {"framework": {"name": "verl", "policy_loss": "vanilla"}}
    path = dump(DAPO if named else {"step": 1}, *[DAPO | other] * 700)
    for size in (3000, 1 << 20):
        with blocks_of(size):
            notes = product.run(["eval", str(path), "-f", "csv"]).err.decode().splitlines()
        assert [note for note in notes if "the records name" in note] == ([SAID] if named else [])


# ---- flags: what they accept, what they refuse, and what to type instead -------------------------


# ---- options with one dash, words that are no command, names that are none -----------------------


@pytest.fixture
def typed(monkeypatch, capsys):
    """What the command ``grpo`` says of a line that is wrong."""

    def run(line: str) -> str:
        monkeypatch.setattr(sys, "argv", ["grpo", *line.split()])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        (said,) = capsys.readouterr().err.splitlines()
        return said

    return run


@pytest.mark.parametrize("flag", ["--html", "--svg"])
def test_a_page_without_a_file_to_read(typed, monkeypatch, flag):
    monkeypatch.setattr("sys.stdin", None)
    said = typed(f"show {flag} dump.jsonl")
    assert said.endswith(f"; {flag} names the page to write: grpo show FILE {flag} PAGE")


def test_all_hyperparameters_are_listed(grpo):
    listed = grpo("variants", "--hyperparameters", "-f", "csv").stdout.splitlines()
    assert [line.partition(",")[0] for line in listed] == ["name", *HYPERPARAMETERS]
    shown = grpo("variants", "--hyperparameters").stdout
    assert all(name in shown for name in HYPERPARAMETERS)


def test_what_hyperparameters_may_be():
    """What their formulas allow, by hand."""
    ranges = {name: row.wanted for name, row in HYPERPARAMETERS.items() if not row.words}
    names = {"those": lambda of: [name for name in ranges if ranges[name] == of], "ranges": ranges}
    expressions(Path(__file__).parent / "cases/hyperparameters.txt", names, by_hand=True)
    assert HYPERPARAMETERS["gamma"].check("gamma", 0) == 0.0
    assert HYPERPARAMETERS["gamma"].check("gamma", 1) == 1.0
    for name, value in (("gamma", 1.0001), ("gamma", -1e-9), ("delta", 0.0), ("dual_clip", 1.0)):
        with pytest.raises(HyperparameterError, match=HYPERPARAMETERS[name].wanted):
            HYPERPARAMETERS[name].check(name, value)


@pytest.mark.parametrize("value", [2**63, 2**64, 1e308, 10**400])
def test_a_whole_number_has_at_most_64_bits(value):
    """Arrays hold no larger one, and JSON's writer none of more than 64 bits."""
    for name, row in HYPERPARAMETERS.items():
        if row.integer and name not in ("clip_cov_seed", "rlsd_negative_only"):
            with pytest.raises(HyperparameterError, match=f"{name}: expected a whole number >= "):
                row.check(name, value)
            assert row.check(name, 2**63 - 1) == 2**63 - 1
    seed = HYPERPARAMETERS["clip_cov_seed"]
    assert seed.check("clip_cov_seed", 2**64 - 1) == 2**64 - 1
    with pytest.raises(HyperparameterError, match="<= 9223372036854775807, got "):
        HYPERPARAMETERS["dp_size"].check("dp_size", min(value, 1e308))


@pytest.mark.parametrize("value", [10**400, -(10**400)])
def test_a_whole_number_beyond_all_floats_is_not_finite(value):
    with pytest.raises(HyperparameterError, match=r"beta: expected .*, got -?inf"):
        HYPERPARAMETERS["beta"].check("beta", value)


def test_what_an_option_takes_is_listed_or_the_command_that_lists_it(grpo):
    """Every option that takes a word: its words stand there, or a command that is run here."""
    text = " ".join(grpo("eval", "--help-all").stdout.split())
    for option, lists in {
        "--variant NAME": "grpo variants",
        "Objective (": "grpo variants --stage kl",
        "--from FORMAT": "grpo formats",
        "--param NAME=VALUE": "grpo variants --hyperparameters",
    }.items():
        assert f"`{lists}`" in text[text.index(option) :][:150], option
        assert grpo(*lists.split()[1:]).exit_code == 0
    for choices in ("batch, record,", "table, json, jsonl,", "--on-error stop|skip"):
        assert choices in text


# ---- flags: what they accept, what they refuse, and how they say so ------------------------------


@pytest.mark.parametrize(
    ("command", "flag"), [("eval", "-o"), ("check", "-o"), ("show", "--html"), ("show", "--svg")]
)
def test_the_input_is_never_replaced(grpo, dump, tmp_path, command, flag):
    path = dump({})
    before = path.read_bytes()
    for place in (str(path), str(tmp_path)):
        result = grpo(command, place, flag, str(path))
        assert result.exit_code == 2
        assert result.stderr == f"grpo: {flag} {path} is the input: name another file\n"
        assert path.read_bytes() == before
    other = tmp_path / "other"
    assert grpo(command, str(path), flag, str(other)).exit_code in (0, 1)
    assert grpo(command, str(path), flag, str(other)).exit_code in (0, 1)  # what it made itself


def test_output_appears_whole_or_not_at_all(grpo, dump, tmp_path):
    path, out = str(dump({})), tmp_path / "out.json"
    out.write_text("before")
    out.chmod(0o640)
    assert grpo("eval", path, "-v", "nope", "-o", str(out)).exit_code == 2
    assert out.read_text() == "before"
    result = grpo("eval", path, "--json", "-o", str(out))
    assert (result.exit_code, result.stdout) == (0, "")
    assert json.loads(out.read_text())["total"]["records"] == 1
    assert out.stat().st_mode & 0o777 == 0o640
    broken = str(dump({}, '{"rewards": 1}'))
    assert grpo("eval", broken, "-f", "jsonl", "-o", str(tmp_path / "new")).exit_code == 3
    assert not (tmp_path / "new").exists()
    assert grpo("eval", str(dump({})), "-o", str(tmp_path)).exit_code == 2


def test_help_and_version(grpo):
    for arguments in ((), ("-h",), ("--help",)):
        assert "grpo match FILE --loss 0.0123" in grpo(*arguments).output
    assert "--epsilon-low NUMBER" in grpo("eval", "--help-all").stdout
    result = grpo("eval", "-h")
    assert "zcat dump.jsonl.gz | grpo eval" in result.stdout
    assert "[FILE…]" in result.stdout
    assert grpo("-V").stdout == grpo("--version").stdout == "grpo 0.3.0\n"


def test_variants_as_json_and_as_a_table(grpo):
    document = json.loads(grpo("variants", "--json").stdout)
    rows = {row["name"]: row for row in document["variants"]}
    assert rows["dr"]["stages"]["advantage"] == "group-mean"
    assert "dr_grpo" in rows["dr"]["aliases"]
    assert rows["dapo"]["paper"] == "2503.14476"
    assert document["stages"]["kl"]["choices"]["k3"]["aliases"] == ["low_var_kl"]
    table = " ".join(grpo("variants").stdout.split())
    assert "Decoupled Clip and Dynamic Sampling Policy Optimization" in table
    assert "seq-mean-token-mean" in table
    some = grpo("variants", "trl/*").stdout
    assert "trl/dapo" in some
    assert "verl/" not in some
    assert grpo("variants", "x").exit_code == 2


RESPONSE = {
    "log_probs_new": [-1.0, -2.0, -0.5],
    "log_probs_old": [-1.1, -2.1, -0.4],
    "mask": [1, 1, 1],
    "advantage": 1.0,
}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("eval - --fields ?", "loss "),
        ("eval - --only ?", "loss "),
        ("eval - --level token --fields ?", "log_ratio "),
        ("eval - --map ?", "log_probs_old "),
        ("eval - --from ?", "verl "),
        ("eval - --batch ?", "record "),
        ("eval - --kl ?", "k3 "),
        ("eval - -v ?", "dapo "),
        ("eval - -p ?", "epsilon_low "),
        ("trend - --fail-on ?", "findings"),
        ("trend - --fields ?", "clip_low"),
    ],
)
def test_a_question_mark_lists_what_a_flag_takes(words: str, name: str) -> None:
    result = run(*words.split(), stdin=json.dumps(RESPONSE))
    assert (result.exit_code, result.stderr) == (0, "")
    assert any(line.startswith(name) for line in result.stdout.splitlines())


def test_keys_that_other_commands_read_are_not_called_ignored() -> None:
    """``check`` and ``trend`` read which responses were cut off."""
    record = {"truncated": [False], "rank": 0, "logprobs_policy": [[-1.0]], "rewards": [1.0]}
    error = run("eval", "-", stdin=json.dumps(record)).stderr
    assert "ignored keys: logprobs_policy (--map log_probs_new=logprobs_policy)" in error
    assert "truncated" not in error


def test_what_is_no_number_or_no_array_of_numbers(tmp_path) -> None:
    record = RESPONSE | {"log_probs_new": [[-1.0], [-2.0]], "log_probs_old": [[-1.0], [-2.0]]}
    record = {**record, "mask": [[1], [1]], "rewards": [True, False]}
    del record["advantage"]
    (path := tmp_path / "a.jsonl").write_text(f"{json.dumps(record)}\n" * 3)
    told = run("check", path, "--max-errors", "2").stderr.splitlines()
    assert "a.jsonl:1: rewards: expected numbers, got true and false; write 1 and 0" in told[0]
    assert "the same error in 2 more records" in told[1]
    assert "--where; rewards is a list of 2" in run("eval", path, "--where", "rewards>0").stderr
    np.savez(tmp_path / "a.npz", log_probs=np.array([[-1.0], [-2.0, -3.0]], dtype=object))
    told = run("eval", tmp_path / "a.npz").stderr
    assert "an array of objects (dtype=object)" in told
    assert "damaged" not in told


@each(
    ("command", "flags", "names"),
    [
        ("eval", ("--epsilon", "20"), ["epsilon_low", "epsilon_high"]),
        ("compare", ("--epsilon-high", "28", "-v", "grpo"), ["epsilon_high"]),
        ("eval", ("--beta", "100"), ["beta"]),
        ("eval", ("--beta", "1", "--epsilon-high", "5"), []),
    ],
)
def test_a_value_that_hardly_anybody_means_is_noted(tmp_path, command, flags, names) -> None:
    """Once, and the share that a percentage may stand for; nothing is changed and no error."""
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({**ROWS, "log_probs_ref": ROWS["log_probs"]}) + "\n")
    found = run(command, path, *flags)
    notes = [line for line in found.stderr.splitlines() if f" is {flags[1]}:" in line]
    assert found.exit_code == 0
    assert [note.split()[2] for note in notes] == names
    if flags[0].startswith("--epsilon"):
        assert all(f"did you mean 0.{flags[1].rstrip('0')}?" in note for note in notes)
