"""``grpo vectors`` and ``grpo explain CASE`` as users run them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from files import some

import grpo_cli
from grpo_cli.vectors import cases
from grpo_cli.vectors.case import FILES, stored

CASE = "clip/dual-positive"


@pytest.fixture(scope="module")
def threads():
    """Flag → its thread: the mistakes of the catalogue that some case is flagged with."""
    rows = json.loads((Path(grpo_cli.__file__).parent / "mistakes.json").read_text("utf-8"))
    return {
        name: row["thread"]
        for name, row in rows.items()
        if not any("vector" in key.split() for key in row)
    }


def test_every_case_is_listed_with_what_it_shows(grpo):
    rows = json.loads(grpo("vectors", "--json").stdout)["vectors"]
    assert [row["id"] for row in rows] == [case.id for case in cases()]
    text = grpo("vectors").stdout
    assert all(case.id in text for case in cases())
    assert f"{len(cases())} cases" in text


def test_cases_are_chosen_by_name_flag_and_result(grpo):
    found = grpo("vectors", "clip/*", "--flag", "dual-clip-dropped", "--result", "required")
    wanted = [
        case.id for case in cases() if case.file == "clip" and "dual-clip-dropped" in case.flags
    ]
    assert [line.split()[0] for line in found.stdout.splitlines() if line[:5] == "clip/"] == wanted
    assert len(wanted) > 1


def test_the_bugs_are_listed_with_their_threads(grpo, threads):
    rows = json.loads(grpo("vectors", "--flags", "--json").stdout)["flags"]
    assert [row["flag"] for row in rows] == [*threads]
    text = grpo("vectors", "--flags").stdout
    for thread in threads.values():
        repository, _, number = thread.split("/")[-3:]
        assert repository in text
        assert number in text


def test_the_files_are_exported_as_they_are(grpo, threads, tmp_path):
    result = grpo("vectors", "--export", str(tmp_path / "new"))
    assert result.exit_code == 0
    for name in (*FILES, "fails", "schema", "flags"):
        place = tmp_path / "new" / "v1" / f"{name}.json"
        assert str(place) in result.stdout.splitlines()
        if name != "flags":
            assert place.read_text(encoding="utf-8") == stored(f"{name}.json")
    table = json.loads(place.read_text(encoding="utf-8"))["flags"]
    assert {name: row["thread"] for name, row in table.items()} == threads


def test_a_case_is_explained(grpo, threads):
    text = grpo("explain", CASE).stdout
    assert text.startswith(f"{CASE}  required\n")
    assert threads["dual-clip-positive"] in text
    assert "dual_clip     3.0" in text
    (case,) = [case for case in cases() if case.id == "clip/masked-nan-reinforce"]
    shown = json.loads(grpo("explain", case.id, "--json").stdout)
    assert "nan" in json.dumps(shown["input"])  # what is not finite stays a word
    assert "null" not in json.dumps(shown["input"])
    assert shown["expected"] == case.expected


def test_every_case_can_be_shown(grpo):
    for case in some([*cases()], 60):
        text = grpo("explain", case.id, COLUMNS="200").stdout
        assert case.comment.split(";")[0][:40] in text
        assert all(name in text for name in (*case.input, *case.conventions, case.topic))


def test_a_file_of_that_name_is_read(grpo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("clip").mkdir()
    record = {"log_probs_new": [[-1.0], [-1.0]], "rewards": [1.0, 0.0]}
    Path("clip/dual-positive").write_text(json.dumps(record), encoding="utf-8")
    assert grpo("explain", CASE, "-v", "dr").stdout.startswith("loss")
