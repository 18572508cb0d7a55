"""Rows in numbered parts: each whole or absent, listed, kept by a run that goes on with them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import mixed
import pytest
from command import run

pq = pytest.importorskip("pyarrow.parquet")

FLAGS = ("-v", "dr", "--level", "record", "-f", "jsonl", "--on-error", "skip")


@pytest.fixture(autouse=True)
def tasks(cut: Callable[..., None]) -> None:
    cut(task=2_000)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "in").mkdir()
    return mixed.files(tmp_path / "in")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def write(files: list[str], out: Path, *more: str, flags: tuple[str, ...] = FLAGS) -> list[str]:
    """What is said of a run that writes parts."""
    result = run("eval", *files, *flags, "--on", "ray", "-o", f"{out}/", *more)
    assert result.stdout == ""
    return result.stderr.splitlines()


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*"))


def joined(folder: Path) -> str:
    return "".join(part.read_text() for part in parts(folder))


def test_the_parts_are_the_rows(files: list[str], out: Path) -> None:
    told = write(files, out)
    alone = run("eval", *files, *FLAGS)
    assert joined(out) == alone.stdout
    assert told == alone.stderr.splitlines()
    assert len(parts(out)) > 10
    assert sorted(out.iterdir()) == parts(out)


def test_each_part_of_csv_has_its_head(files: list[str], out: Path) -> None:
    write(files, out, "--fields", "id,loss", flags=(*FLAGS[:-4], "-f", "csv", *FLAGS[-2:]))
    assert len(parts(out)) > 10
    assert all(part.read_text().startswith("id,loss\n") for part in parts(out))


def test_what_is_there_is_kept(files: list[str], out: Path) -> None:
    write(files, out)
    whole = joined(out)
    first, *rest = parts(out)
    first.unlink()
    (out / f".{first.name}.0a1b2c3d").write_bytes(b"{")  # as where a worker was killed
    before = {part: part.stat().st_mtime_ns for part in rest}
    told = write(files, out, "--resume")
    assert joined(out) == whole
    assert sorted(out.iterdir()) == parts(out)
    kept = [part for part in rest if part.stat().st_mtime_ns == before[part]]
    assert len(kept) > 5
    assert (
        f"grpo: note: {len(kept)} parts already existed; their records are not in any total" in told
    )
    # records that are left out are told again, so their parts are made again
    assert "skipped 3 of " in told[-1]
    assert [part.name.count("-1-skipped") for part in rest if part not in kept] == [1] * 3


def test_other_parts_are_not_mixed(files: list[str], out: Path) -> None:
    write(files, out)
    assert "already has parts: --resume continues" in write(files, out)[-1]
    for other in (
        ("--advantage", "group-std"),
        ("--level", "token"),
        ("--fields", "id"),
        ("--where", "a==1"),
    ):
        told = write(files, out, "--resume", *other)[-1]
        assert "belong to another run (other input, objective" in told
    with Path(files[0]).open("ab") as stream:
        stream.write(b"\n")
    assert "belong to another run" in write(files, out, "--resume")[-1]
    shutil.rmtree(out)
    out.mkdir()
    (out / "mine.txt").touch()
    assert "is not empty" in write(files, out)[-1]


def test_an_error_leaves_whole_parts_before_it(
    files: list[str], out: Path, cut: Callable[..., None]
) -> None:
    cut(task=900)
    assert "a.jsonl:21: " in write(files, out, flags=FLAGS[:-2])[-1]
    assert len(parts(out)) > 3
    assert run("eval", *files, *FLAGS).stdout.startswith(joined(out))
    assert not list(out.glob(".part-*"))


@pytest.mark.more
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_converted_parts_are_the_records(files: list[str], out: Path, kind: str) -> None:
    words = ("convert", *files, "--on-error", "skip", "--on", "ray", "--to", kind, "-o", f"{out}/")
    rows = ("-v", "dr", "--level", "token", "-f", "csv", "--fields", "id,ratio,gradient")
    run(*words)
    written = parts(out)
    assert len(written) > 10
    again = run("eval", *written, *rows)
    assert again.stdout == run("eval", *files, *rows, "--on-error", "skip").stdout
    before = [part.read_bytes() for part in written]
    written[0].unlink()
    assert "parts already existed" in run(*words, "--resume").stderr
    assert [part.read_bytes() for part in written] == before


@pytest.mark.more
def test_parquet_parts_are_the_rows(files: list[str], out: Path, tmp_path: Path) -> None:
    flags = ("-v", "dr", "--level", "token", "--on-error", "skip", "-f", "parquet")
    fields = ("--fields", "line,position,ratio")
    write(files, out, *fields, flags=flags)
    run("eval", *files, *flags, *fields, "-o", tmp_path / "alone")
    tables = [pq.read_table(part).to_pylist() for part in parts(out)]
    assert len(tables) > 5
    rows = [row for table in tables for row in table]
    assert rows == pq.read_table(tmp_path / "alone").to_pylist()


def test_what_convert_and_eval_say_of_parts(files: list[str], out: Path, tmp_path: Path) -> None:
    alone = run("convert", *files, "--on-error", "skip", "-o", tmp_path / "alone.jsonl", "-q")
    words = ("convert", *files, "--on-error", "skip", "--on", "ray", "-q", "-o", f"{out}/")
    assert (alone.exit_code, run(*words).stderr) == (3, alone.stderr)
    rows = ("eval", files[0], "-v", "dr", "--on", "ray", "-o", f"{out}/", "--resume")
    for refused, said in {
        ("convert", files[0], "-o", f"{out}/"): "out/ is a folder; only --on writes to one",
        ("convert", files[0], "--resume"): "--resume continues the parts of a folder",
        ("convert", files[0], "--on", "ray", "--to", "parquet"): "Parquet in parts: -o FOLDER/",
        ("convert", files[0], "-j", "2", "--to", "parquet"): "one process writes a Parquet file",
        rows: "parts need --format jsonl, csv, parquet",
        (*rows, "-f", "jsonl", "--limit", "2"): "leave out --limit and --level batch",
    }.items():
        result = run(*refused)
        assert result.exit_code == 2
        assert said in result.stderr
