"""Findings of ``grpo trend``: onsets beside those of their definition, limits, conditions, words.

Series are those of reward functions, whose numbers are free. ``cases/onsets.jsonl`` has 164 with
what the rule gives of each, computed in scalars, one place at a time: ``by_definition`` of this
file in commit d794f6d2 (16 others depended on parts that the rule no longer has). Of whether the
rule is a good one that says nothing: shifts and drifts of known size do
(``test_what_is_found_and_what_is_not``: each is found, of 80 series of noise at most 2), and
``tests/benchmarks/runs.py``, whose judge knows what was planted, not how it is found.
"""

from __future__ import annotations

import gzip
import json
import math
import random
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from command import answer, run
from files import each
from trended import PLAIN, SAMPLES, drifting, found_in, series, trend, write

from grpo_cli.batch import F64


class Onset(NamedTuple):
    at: int
    kind: str
    score: float
    up: bool
    before: float
    after: float


ONSETS = [
    json.loads(line)
    for line in (Path(__file__).parent / "cases" / "onsets.jsonl").read_text().splitlines()
]
"""Levels, slopes, drifts, outliers and whole numbers, around what is told and what is not."""


def seen(path: Path, *every: F64) -> list[Onset | None]:
    """The first fault in each series, all of them in one run."""
    found = found_in(series(path, {str(at): one.tolist() for at, one in enumerate(every)}))
    wrong = {
        name: [one for one in each if one["severity"] == "warning"] for name, each in found.items()
    }
    return [_onset(wrong[str(at)][0]) if wrong.get(str(at)) else None for at in range(len(every))]


_SENTENCE = re.compile(
    r"(rose|fell|began to \w+) at step \d+: median (\S+) before, (\S+) (?:over|at) "
)


def _onset(finding: dict[str, Any]) -> Onset:
    said = _SENTENCE.search(finding["sentence"])
    assert said is not None
    up = said[1] in ("rose", "began to rise")
    numbers = (float(said[at].replace(",", "")) for at in (2, 3))
    before, after = numbers  # of a change that ended, the level while it lasted
    after = after if finding["end"] is None else math.nan
    return Onset(finding["onset"], finding["kind"], finding["score"], up, before, after)


def assert_same(found: Onset | None, wanted: Onset | None) -> None:
    assert (found is None) == (wanted is None), (found, wanted)
    if found is not None and wanted is not None:
        assert (found.at, found.kind, found.up) == (wanted.at, wanted.kind, wanted.up)
        assert found.score == pytest.approx(wanted.score, rel=1e-9)
        assert found.before == pytest.approx(wanted.before, rel=5e-4, abs=1e-9)
        if not math.isnan(found.after):
            assert found.after == pytest.approx(wanted.after, rel=5e-4, abs=1e-9)


def test_onsets_are_those_of_their_definition(tmp_path: Path) -> None:
    every = [np.array(one["values"]) for one in ONSETS]
    for found, one in zip(seen(tmp_path / "a.jsonl", *every), ONSETS, strict=True):
        assert_same(found, Onset(**one["onset"]) if one["onset"] else None)


def noisy(seed: int, count: int = 60, correlation: float = 0.0) -> F64:
    values = np.random.default_rng(seed).standard_normal(count)
    for at in range(1, count):
        values[at] += correlation * values[at - 1]
    return values


def test_what_is_found_and_what_is_not(tmp_path: Path) -> None:
    """A shift or a drift down; not one up, noise, an outlier, or a slope that was there."""
    shifts = [noisy(seed) - 6.0 * (np.arange(60) >= 30) for seed in range(5)]
    drifts = [noisy(seed) - 1.5 * np.maximum(np.arange(60) - 29, 0) for seed in range(5)]
    outlier = noisy(1) + 50.0 * (np.arange(60) == 40)
    slope = noisy(2) - 0.5 * np.arange(60)
    silent = [noisy(seed, 60, correlation) for seed in range(40) for correlation in (0.0, 0.5)]
    found = seen(
        tmp_path / "a.jsonl", *shifts, *drifts, *(-one for one in shifts), outlier, slope, *silent
    )
    for one in found[:10]:
        assert one is not None
        assert (one.up, abs(one.at - 30) <= 4) == (False, True)
    assert found[10:17] == [None] * 7
    assert sum(one is not None for one in found[17:]) <= 2


def test_an_onset_anywhere_in_a_long_series_is_found(tmp_path: Path) -> None:
    """Places are looked at in stretches, of which none hides what is at its border."""
    begins = (10, 57, 265, 266, 267, 521, 522, 700, 797)
    values = np.random.default_rng(5).normal(0.0, 1.0, 801)
    long = [values - 40.0 * (np.arange(801) >= begin) for begin in begins]
    near = [one[max(at - 60, 0) : at + 60] for at, one in zip(begins, long, strict=True)]
    found = seen(tmp_path / "a.jsonl", *long)
    assert [one and one[:2] for one in found] == [(begin, "shift") for begin in begins]
    for one, other in zip(found, seen(tmp_path / "a.jsonl", *near), strict=True):
        assert one is not None
        assert other is not None
        assert (one.kind, one.up, one.before, one.after) == (*other[1:2], *other[3:])


# ---- real runs, and the commands of findings --------------------------------------------------


def test_a_healthy_run_of_trl_is_silent() -> None:
    assert trend(SAMPLES / "healthy.jsonl.gz", "-v", "trl/grpo")["findings"] == []


@pytest.mark.more
def test_a_temperature_on_one_side_is_found_where_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its commands, which are run, show that token and say why."""
    monkeypatch.setenv("COLUMNS", "200")
    document = trend(SAMPLES / "temperature.jsonl.gz", "-v", "trl/grpo")
    found = [one for one in document["findings"] if one["severity"] == "warning"]
    (event,) = [one for one in document["events"] if one["severity"] == "warning"]
    assert (event["step"], event["metrics"][0]) == (30, "mismatch.k3")
    first = next(one for one in found if one["metric"] == "mismatch.k3")
    assert event["check"] == named_by_check(first["worst"] | {"record": "30/0"})
    assert event["check"] != named_by_check(first["worst"])  # which is of another step
    assert event["check"][0].startswith("temperature: ")
    fact = "step 30: the log-probs of engine and trainer diverged"
    for text in (document["verdict"], document["events"][0]["summary"]):
        assert text.startswith(fact)
        assert "likely: sampling_per_token_logps is more peaked " in text
    assert {one["onset"] for one in found} == {30}
    assert {"mismatch.k3", "mismatch.mult"} <= {one["metric"] for one in found}
    for one in found:
        words = shlex.split(one["command"], comments=True)
        if one["worst"] is None:  # no single record shows a fall
            assert words[words.index("--where") + 1] == "step==30"
            continue
        assert words[words.index("--record") + 1] == "30/0"  # the onset, not the worst step
        assert f" {one['worst_step']}/0 " in one["worst_command"]
        told = re.search(
            r"# step 30, position (\d+) of response (\d+): .* ([\d.]+)$", one["command"]
        )
        assert told is not None
        place, response, size = told.groups()
        top = run(*words[1:]).stdout.rpartition("─\n")[2].split("\n")[0].split()
        assert top[:2] == [response, place]
        sizes = [abs(float(one)) for one in top if re.fullmatch(r"[-−]?[\d.]+", one)]
        nearest = min(sizes, key=lambda one: abs(one - float(size)))
        assert float(size) == pytest.approx(nearest, 1e-3)
        assert "error temperature" in run(*shlex.split(one["cause"])[1:]).stdout


def named_by_check(worst: dict[str, Any]) -> list[str]:
    """The errors and warnings of a record."""
    rows = answer("check", worst["source"], "--record", worst["record"])["findings"]
    place = f"(record {worst['record']})"
    return [f"{one['code']}: {one['message']} {place}" for one in rows if one["severity"] != "info"]


@pytest.mark.more
@each("kind", ["folder", "lines", "packed"])
def test_what_check_names_in_the_worst_record(kind: str, tmp_path: Path) -> None:
    """Of a file, wherever in it the record is, and of a pipe, which is kept."""
    folder, path = tmp_path / "steps", tmp_path / "run.jsonl"
    rows = drifting(folder)
    if kind == "folder":
        path = folder
    else:
        write(path, [PLAIN | {"step": 0}, *rows])
    if kind == "packed":
        data, path = path.read_bytes(), tmp_path / "run.jsonl.gz"
        path.write_bytes(gzip.compress(data))
    document = trend(path)
    first = next(one for one in document["events"] if one["severity"] == "warning")
    likely = next(one for one in document["findings"] if one["metric"] == first["metrics"][0])
    later = f"at step {likely['worst_step']}: "  # where the step at which it began has it not
    named = [one.removeprefix(later) for one in first["check"]]
    words = shlex.split(likely["command"], comments=True)
    begun = likely["worst"] | {"source": words[2], "record": words[words.index("--record") + 1]}
    by_code = {one.partition(": ")[0]: one for one in named_by_check(begun)}
    codes = [one.partition(": ")[0] for one in named_by_check(likely["worst"])]
    assert [one.partition(": ")[0] for one in named] == codes != []
    assert all(one == by_code.get(one.partition(": ")[0], one) for one in first["check"])
    assert "rollout-mismatch" not in first["summary"]
    if kind == "folder":
        return
    piped = json.loads(run("trend", "-", "-v", "dr", "--json", stdin=path.read_bytes()).stdout)
    assert [one["check"] for one in piped["events"]] == [one["check"] for one in document["events"]]


@pytest.mark.more
def test_every_kind_of_finding_has_commands_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of which everything becomes another at step 30."""
    monkeypatch.setenv("COLUMNS", "200")
    draw, rows = random.Random(1), []
    for step in range(60):
        far = 20.0 if step >= 30 else 1.0
        old = [[-1.0 - far * draw.random() / 20 for _ in range(6)] * int(2 + far) for _ in range(4)]
        row: dict[str, Any] = {"id": f"{step}/0", "step": step, "log_probs_old": old}
        for name, size in (("new", 0.1), ("ref", 0.02), ("rollout", 0.01)):
            moved = ([x - far * size * draw.uniform(0.2, 0.9) for x in each] for each in old)
            row[f"log_probs_{name}"] = [*moved]
        row["rewards"] = [draw.random() * far for _ in old]
        row["entropies"] = [[far + draw.random()] * len(x) for x in old]
        rows.append(row)
    path = write(tmp_path / "run.jsonl", rows)
    flags = ("-v", "trl/grpo", "--beta", "0.1", "--from", "canonical")
    found = answer("trend", path, *flags)["findings"]
    pairs = [(one["command"], one["cause"]) for one in found if one["onset"] == 30]
    assert len(pairs) > 15
    lines = dict.fromkeys(line for pair in pairs for line in pair)
    kinds = {tuple(line.split()[:2]) for line in lines}
    assert kinds == {("grpo", word) for word in ("show", "check", "eval", "explain")}
    for line in lines:
        words = shlex.split(line, comments=True)
        result = run(*words[1:])
        assert result.exit_code in ((0, 1) if words[1] == "check" else (0,)), result.stderr
        assert words[1] == "trend" or "30/0" in result.stdout
        if words[1] == "check":  # which has no objective, and reads as the others do
            where = (["--record", "30/0"], ["--where", "step==30"])
            assert words[3:] in [[*one, "--from", "canonical"] for one in where]
