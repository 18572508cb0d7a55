"""Rows in numbered parts: each whole or absent, listed, kept by a run that goes on with them."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from test_flow import SEED, Played, files, lines  # noqa: F401 - fixtures
from typer.testing import CliRunner

from grpo_cli.commands.convert.command import PACKS
from grpo_cli.commands.convert.conversion import Conversion
from grpo_cli.commands.emit import JSONL
from grpo_cli.commands.eval.lines import encode_lines
from grpo_cli.commands.eval.parquet import batch_of, write_batches
from grpo_cli.commands.main import application
from grpo_cli.engine import Evaluation, Reader
from grpo_cli.engine.cluster import run
from grpo_cli.engine.cluster.parts import PartFolder, Parts, joined
from grpo_cli.errors import InputError, UsageError
from grpo_cli.variants.plan import plan

FIELDS = ("id", "source", "line", "loss")
ENCODE = partial(encode_lines, level="record", fields=FIELDS, lines=JSONL)


@pytest.fixture(autouse=True)
def cluster(monkeypatch):
    monkeypatch.setattr(run, "session", lambda on, jobs: None)
    monkeypatch.setattr(run, "Cluster", lambda connected, job, jobs: Played(job, 3, SEED))


def write(paths, folder, *, resume=False, skip=True, size=2_000, variant="dr", head=b""):
    reader = Reader(paths, skip=skip, on="ray", task_bytes=size)
    about = {"objective": variant, "inputs": reader.inputs}
    part_folder = PartFolder(
        Parts(str(folder), ".jsonl", partial(joined, head=head)), about, resume=resume
    )
    found = Evaluation(reader, plan(variant), encode=ENCODE, part_folder=part_folder)
    complete = False
    try:
        assert [row for rows in found for row in rows] == []
        complete = True
    finally:
        part_folder.close(complete=complete)
    return found, part_folder


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*"))


def expected(paths) -> bytes:
    found = Evaluation(Reader(paths, skip=True), plan("dr"), encode=ENCODE)
    return b"".join(row for rows in found for row in rows)


def test_the_parts_are_the_rows(files, tmp_path):  # noqa: F811
    folder = tmp_path / "out"
    write(files, folder)
    assert b"".join(part.read_bytes() for part in parts(folder)) == expected(files)
    assert len(parts(folder)) > 10
    assert sorted(folder.iterdir()) == parts(folder)


def test_each_part_has_its_head(files, tmp_path):  # noqa: F811
    write(files, tmp_path / "out", head=b"id\n")
    assert all(part.read_bytes().startswith(b"id\n{") for part in parts(tmp_path / "out"))


def test_what_is_there_is_kept(files, tmp_path):  # noqa: F811
    folder = tmp_path / "out"
    write(files, folder)
    whole = expected(files)
    first, *rest = parts(folder)
    first.unlink()
    (folder / f".{first.name}.0a1b2c3d").write_bytes(b"{")  # as where a worker was killed
    before = {part: part.stat().st_mtime_ns for part in rest}
    found, made = write(files, folder, resume=True)
    assert b"".join(part.read_bytes() for part in parts(folder)) == whole
    assert sorted(folder.iterdir()) == parts(folder)
    kept = [part for part in rest if part.stat().st_mtime_ns == before[part]]
    assert made.kept == len(kept) > 5
    assert any("parts were there" in notice for notice in found.notices)
    # records that are left out are told again, so their parts are made again
    assert len(found.skipped) == 3
    assert [part.name.count("-1-skipped") for part in rest if part not in kept] == [1] * 3


def test_other_parts_are_not_mixed(files, tmp_path):  # noqa: F811
    folder = tmp_path / "out"
    write(files, folder)
    with pytest.raises(UsageError, match="has parts already: --resume goes on"):
        write(files, folder)
    with pytest.raises(UsageError, match="of another run: of other input, another objective"):
        write(files, folder, resume=True, variant="grpo")
    with open(files[0], "ab") as stream:  # noqa: PTH123
        stream.write(b"\n")
    with pytest.raises(UsageError, match="of another run"):
        write(files, folder, resume=True)
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "mine.txt").touch()
    with pytest.raises(UsageError, match="is not empty"):
        write(files, folder)


def test_an_error_leaves_whole_parts_before_it(files, tmp_path):  # noqa: F811
    folder = tmp_path / "out"
    with pytest.raises(InputError, match=r"a\.jsonl:21"):
        write(files, folder, skip=False, size=900)
    assert len(parts(folder)) > 3
    assert expected(files).startswith(b"".join(part.read_bytes() for part in parts(folder)))
    assert not list(folder.glob(".part-*"))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_converted_parts_are_the_records(files, tmp_path, kind):  # noqa: F811
    def rows(paths) -> bytes:
        fields = ("id", "ratio", "gradient")
        encode = partial(encode_lines, level="token", fields=fields, lines=JSONL)
        found = Evaluation(Reader(paths, skip=True), plan("dr"), encode=encode)
        return b"".join(row for some in found for row in some)

    def convert(*, resume: bool) -> PartFolder:
        reader = Reader(files, skip=True, on="ray", task_bytes=2_000)
        made = Parts(str(tmp_path / "out"), f".{kind}", PACKS[kind])
        listed = PartFolder(made, {"inputs": reader.inputs}, resume=resume)
        Conversion(reader, as_table=kind == "parquet", as_json=False).write_parts(listed)
        return listed

    assert convert(resume=False).kept == 0
    written = parts(tmp_path / "out")
    assert len(written) > 10
    assert rows([str(part) for part in written]) == rows(files)
    before = [part.read_bytes() for part in written]
    written[0].unlink()
    assert convert(resume=True).kept > 5
    assert [part.read_bytes() for part in written] == before


def test_parquet_parts_are_the_rows(files, tmp_path):  # noqa: F811
    folder = tmp_path / "out"
    reader = Reader(files, skip=True, on="ray", task_bytes=4_000)
    listed = PartFolder(Parts(str(folder), ".parquet", write_batches), {}, resume=False)
    encode = partial(batch_of, level="token", fields=("line", "position", "ratio"))
    found = Evaluation(reader, plan("dr"), encode=encode, part_folder=listed)
    assert [row for rows in found for row in rows] == []
    listed.close(complete=True)
    tables = [pyarrow.parquet.read_table(part) for part in parts(folder)]
    assert len(tables) > 5
    alone = Evaluation(Reader(files, skip=True), plan("dr"), encode=encode)
    whole = pyarrow.Table.from_batches([row for rows in alone for row in rows])
    for name in whole.column_names:
        ours = [value for table in tables for value in table.column(name).to_pylist()]
        assert ours == whole.column(name).to_pylist()


def test_what_convert_and_eval_say_of_parts(files, tmp_path):  # noqa: F811
    app, out = application(), tmp_path / "out"

    def grpo(*words) -> tuple[int, str]:
        found = CliRunner().invoke(app, [*map(str, words), "--on-error", "skip"])
        return found.exit_code, found.stderr.splitlines()[-1]

    alone = grpo("convert", *files, "-o", tmp_path / "alone.jsonl")
    assert alone[0] == 3
    assert grpo("convert", *files, "--on", "ray", "-o", f"{out}/") == alone
    assert len(parts(out)) == 1
    rows = ("eval", files[0], "-v", "dr", "--on", "ray", "-o", f"{out}/", "--resume")
    assert "of another run" in grpo(*rows, "--format", "parquet")[1]
    for words, said in {
        ("convert", files[0], "-o", f"{out}/"): "out/ is a folder; parts are for --on",
        ("convert", files[0], "--resume"): "--resume goes on with the parts of a folder",
        ("convert", files[0], "--on", "ray", "--to", "parquet"): "Parquet in parts: -o FOLDER/",
        ("convert", files[0], "-j", "2", "--to", "parquet"): "one process writes a Parquet file",
        rows: "parts hold all rows: --format jsonl, csv, parquet",
    }.items():
        code, told = grpo(*words)
        assert code == 2
        assert said in told
