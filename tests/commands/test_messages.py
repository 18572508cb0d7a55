"""Messages about files that no case in text can hold, and about the row that records name."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import pickle
import struct
import tarfile
import zipfile
from bz2 import compress as bzip2

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run
from files import each
from fuzz import product

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
    elif kind == "safetensors":
        entries = {"log_probs": ([2, 2], [0, 32]), "rewards": ([2], [32, 48])}
        header = json.dumps(
            {
                name: {"dtype": "F64", "shape": shape, "data_offsets": at}
                for name, (shape, at) in entries.items()
            }
        ).encode()
        stream.write(struct.pack("<Q", len(header)) + header)
        stream.write(b"".join(one.tobytes() for one in arrays.values()))
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
        ("a.safetensors", made("safetensors")[:60], f"bytes, but only 52 are left; {CUT}"),
        ("a.safetensors", made("safetensors")[:-8], f"need 48 bytes, but the file has 40; {CUT}"),
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


@each("kind", ["npz", "safetensors", "parquet", "arrow"])
def test_whole_files_are_read(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    path.write_bytes(made(kind))
    assert run("eval", path, "--beta", "0").exit_code == 0


def test_the_mapping_that_is_proposed_works(grpo, dump):
    bare = ("--beta", "0", "--level", "response", "--only", "reward,advantage", "-q")
    rows = {"log_probs_new": [[-0.5, -0.3], [-0.2]]}
    one = json.dumps(rows | {"token_level_scores": [[0.25, 0.75], [0.25]]})
    other = json.dumps(rows | {"rewards": [1.0, 0.25]})
    mapped = grpo("eval", str(dump(one)), "--map", "rewards=token_level_scores", *bare)
    assert mapped.stdout == grpo("eval", str(dump(other)), *bare).stdout
    assert mapped.exit_code == 0


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_what_came_before_a_fault_inside_a_file_is_still_evaluated(grpo, dump, jobs):
    paths = [str(dump({}, name="a.jsonl")), str(dump("{", name="b.jsonl"))]
    result = grpo("eval", *paths, "-f", "jsonl", "-j", jobs)
    assert (result.exit_code, result.stdout.count("\n")) == (3, 1)


DAPO = {"step": 1, "framework": {"name": "trl", "loss_type": "dapo"}}
SAID = "grpo: note: evaluated as dr; the trainer used trl/dapo: use -v trl/dapo"


def test_a_run_that_is_followed_names_its_own_row_once(grpo, dump):
    path = dump(DAPO, DAPO | {"step": 2})
    ends = ("--every", "0.01", "--fail-on", "nll>0")
    result = grpo("trend", str(path), "-v", "dr", "--follow", *ends)
    assert result.exit_code == 1
    assert result.stderr.splitlines().count(SAID) == 1


def test_a_loss_type_beside_the_names_of_trl_names_the_row(grpo, dump):
    names = {"per_token_logps": [[-0.5], [-0.3]], "old_per_token_logps": [[-0.4], [-0.4]]}
    for own, said in ((names, True), ({"log_probs_new": [[-0.5], [-0.3]]}, False)):
        one = json.dumps(own | {"rewards": [1.0, 0.0], "loss_type": "dapo"})
        assert (SAID in grpo("eval", str(dump(one)), "-v", "dr").stderr.splitlines()) is said


@pytest.mark.parametrize("named", ["trl", None])
def test_only_the_first_object_is_heard_wherever_pieces_are_cut(dump, named):
    other = {"framework": {"name": "verl", "policy_loss": "vanilla"}}
    path = dump(DAPO if named else {"step": 1}, *[DAPO | other] * 700)
    for size in (3000, 1 << 20):
        with product.blocks_of(size):
            notes = product.run(["eval", str(path), "-v", "dr"]).err.decode().splitlines()
        assert [note for note in notes if "the trainer used" in note] == ([SAID] if named else [])
