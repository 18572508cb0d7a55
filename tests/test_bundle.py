"""Bundles: what real runs recorded replays, plants are named at their stage, changes are errors."""

from __future__ import annotations

import gzip
import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from command import answer, run
from files import each, expressions, rows_of

from grpo_cli import verify

SAMPLES = Path(__file__).parent.parent / "samples" / "bundles"
"""Written by ``tests/parity/bundles.py`` of commit 14a7a6f3, where TRL and verl ran."""
KINDS = ("trl", "verl")


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


@cache
def runs() -> list[Any]:
    """A generation of TRL's GRPO over two steps of two micro-batches; first as it should be.

    Then with one thing done in another way at one stage (``name``): ``benchmarks/bundles.py`` of
    commit f4bf7df1, a trainer in plain numpy, trained them.
    """
    packed = (Path(__file__).parent / "data/bundles.jsonl.gz").read_bytes()
    return [json.loads(line) for line in gzip.decompress(packed).splitlines()]


def bundled(records: list[dict[str, Any]], folder: Path) -> Path:
    """The bundle of records, as ``grpo convert`` writes it."""
    plain, path = folder / "plain.jsonl", folder / "step.bundle.jsonl"
    plain.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert run("convert", plain, "--bundle", "-o", path, "-q").exit_code == 0
    return path


def named(path: Path) -> list[str]:
    """The stages that verify says differ."""
    done = run("verify", path, "--json", "-q")
    assert done.exit_code in (0, 1), done.stderr
    answer = json.loads(done.stdout)
    differing = [one["stage"] for one in answer["bundle"]["stages"] if one["differing"]]
    assert answer["bundle"]["first_stage"] == (differing or [None])[0]
    assert done.exit_code == bool(differing)
    return differing


@pytest.mark.more
def test_faults_are_named_at_their_stage(tmp_path: Path) -> None:
    """Each first at its stage; at least 95 of 100 at no other."""
    found = [(one["stage"], named(bundled(one["records"], tmp_path))) for one in runs()[1:]]
    assert [(stage, stages) for stage, stages in found if stages[:1] != [stage]] == []
    assert sum(len(stages) == 1 for _, stages in found) >= 0.95 * len(found) > 60


@pytest.mark.parametrize("kind", KINDS)
def test_a_bundle_evaluates_to_the_same_bytes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, sealed = tmp_path / "plain", tmp_path / "sealed"
    plain.mkdir()
    sealed.mkdir()
    made = [json.loads(line) for line in lines(SAMPLES / f"{kind}.bundle.jsonl")]
    for one in made:
        del one["bundle"]
    (plain / "run.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in made))
    assert (
        run("convert", plain / "run.jsonl", "--bundle", "-o", sealed / "run.jsonl").exit_code == 0
    )
    assert run("verify", sealed / "run.jsonl").exit_code == 0
    for flags in ((), ("--level", "token"), ("-v", "dapo", "--batch", "step")):
        outputs = []
        for folder in (plain, sealed):
            monkeypatch.chdir(folder)
            done = run("eval", "run.jsonl", "--json", *flags)
            outputs.append((done.exit_code, done.stdout, done.stderr))
        assert outputs[0] == outputs[1]


def test_any_jobs_give_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "run.bundle.jsonl"
    for jobs in (1, 2):
        other = tmp_path / f"{jobs}.jsonl"
        source = SAMPLES / "trl.bundle.jsonl"
        assert run("convert", source, "--bundle", "-o", other, "--jobs", jobs).exit_code == 0
    assert (tmp_path / "1.jsonl").read_bytes() == (tmp_path / "2.jsonl").read_bytes()
    shutil.copy(tmp_path / "1.jsonl", path)
    found = [run("verify", path, "--json", "--jobs", jobs).stdout for jobs in (1, 2)]
    assert found[0] == found[1]


CHANGED = rows_of(Path(__file__).parent / "data/changed_bundles.csv")
"""A change of the lines of a file, as an expression of ``texts``, and what is said of it."""


@each("changed", CHANGED, ids=lambda changed: changed["name"])
def test_a_changed_file_is_one_plain_line(changed: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "run.bundle.jsonl"
    assert run("convert", SAMPLES / "trl.bundle.jsonl", "--bundle", "-o", path).exit_code == 0
    texts = eval(changed["change"], {"texts": lines(path)})
    path.write_text("".join(f"{line}\n" for line in texts))
    done = run("verify", path, "-q")
    assert done.exit_code == 3, (done.stdout, done.stderr)
    assert changed["said"] in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_what_is_replayed(folder: Path) -> None:
    def right() -> Any:
        return json.loads(json.dumps(runs()[0]["records"]))

    def fault(name: str) -> Any:
        return next(one["records"] for one in runs() if one["name"] == name)

    def of(records: list[dict[str, Any]]) -> Path:
        return bundled(records, folder)

    def file(record: dict[str, Any]) -> Path:
        (folder / "run.jsonl").write_text(json.dumps(record) + "\n")
        return folder / "run.jsonl"

    def replayed(path: Path, *flags: str) -> list[str]:
        """What differs first, and of each stage what was compared, differs and was skipped."""
        found = answer("verify", path, *flags)
        lines = [
            f"{'agrees' if found['ok'] else 'differs'}, {found['bundle']['first_stage']} first"
        ]
        for one in found["bundle"]["stages"]:
            line = f"{one['stage']}: {one['compared']} compared, {one['differing']} differ"
            lines.append("; ".join([line, *one["skipped"]]))
        return lines

    def stage(path: Path, name: str, *flags: str) -> str:
        lines = replayed(path, *flags)
        return f"{lines[0]}; {next(one for one in lines if one.startswith(f'{name}:'))}"

    names = {one.__name__: one for one in (right, fault, file, replayed, stage, named, run, answer)}
    names |= {kind: SAMPLES / f"{kind}.bundle.jsonl" for kind in KINDS} | {"verify": verify}
    expressions(Path(__file__).parent / "data" / "bundles.txt", names | {"bundled": of})
