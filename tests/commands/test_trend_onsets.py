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

import grpo_cli
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


def test_records_that_nobody_grouped_are_said_first(tmp_path: Path) -> None:
    """Not of advantages that the records give, and not once they are grouped."""
    rows = [
        {"step": at, "uid": name, "log_probs": [[-1.0, -2.0]], "rewards": 1.0 + (uid == at % 2)}
        for at in range(20)
        for uid, name in enumerate("ppqq")
    ]
    path, note = write(tmp_path / "a.jsonl", rows), "each record is a group of its own; "
    told = f"{note}--group-by step,uid joins them"
    document = trend(path)
    assert document["verdict"].startswith(f"{told}; from step 0 on: gradient_norm is 0")
    assert document["events"][0]["fix"] == "--group-by step,uid joins them"
    at = answer("trend", path, "-v", "dr", "--at", "0")
    for found in (document["findings"], at["findings"]):
        (sentence,) = [one["sentence"] for one in found if one["kind"] == "stuck"]
        assert sentence.endswith(
            ", in all of the first 20 steps: each record is a group of its own"
        )
    assert f"note: {told}\n" in run("trend", path, "-v", "dr").stderr
    found = grpo_cli.trend(path, "dr")
    told = told.replace("--group-by step,uid", 'group_by="step,uid"')
    assert told in found.notices
    assert found.verdict.startswith(told)
    given = write(tmp_path / "b.jsonl", [one | {"advantages": 1.0} for one in rows])
    for words in ((path, "--group-by", "step,uid"), (given, "--advantage", "given")):
        assert note not in trend(*words)["verdict"]


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


# ---- which columns are watched for what -------------------------------------------------------


def mismatched(path: Path, values: Any) -> Path:
    """A run in which log π_trainer − log π_engine is this number at each step."""
    rows = (
        {"step": at, "log_probs": [[-9.0], [-9.0]], "rewards": [1.0, 0.0]}
        | ({} if x is None else {"log_probs_rollout": [[-9.0 - x], [-9.0 - x]]})
        for at, x in enumerate(values)
    )
    return write(path, rows)


# ---- --fail-on --------------------------------------------------------------------------------


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


def test_a_finding_without_an_objective_is_shown_by_check(tmp_path: Path) -> None:
    """``show`` and ``eval`` would say again that a column is missing."""
    path = mismatched(tmp_path / "a b.jsonl", [at % 7 / 1000 + 0.5 * (at > 19) for at in range(40)])
    for flags, word in (((), "show"), (("-v", "grpo", "--beta", "0.1"), "check")):
        one = found_in(path, *flags, "--where", "step>=0")["mismatch.k1"][0]
        command = f"grpo {word} '{path}' --record 20"
        assert one["command"].startswith(command), one
        assert one["command"].endswith("  # step 20, position 0 of response 0: |mismatch| 0.506")
        assert " --where 'step>=0'  #" in one["command"]


# ---- the verdict ------------------------------------------------------------------------------

WHOLE = {
    "log_probs_old": [[-0.9, -0.2], [-1.2]],
    "log_probs_ref": [[-1.0, -0.25], [-1.0]],
    "log_probs_rollout": [[-0.9, -0.201], [-1.2]],
    "log_probs_new": [[-0.9, -0.3], [-1.1]],
    "entropies": [[0.5, 0.6], [0.7]],
    "rewards": [1.0, 0.0],
    "tokens": [["a"] * 2, ["b"]],
    "finish_reasons": ["stop", "length"],
    "weight_versions": [0, 0],
}
RATIOS = ("clip_low", "clip_high", "ratio_mean", "ratio_p999", "ess")
NEEDED = {
    "log_probs_ref": ("kl_k3",),
    "log_probs_rollout": ("mismatch.k1", "mismatch.k3", "mismatch.mean_abs", "mismatch.p999"),
    "entropies": ("entropy",),
    "finish_reasons": ("truncated",),
    "weight_versions": ("staleness",),
}
UNWATCHED = {
    "pass_at_1", "objective", "kl", "kl_k1", "mismatch.chi2", "clip_fraction",
    "groups_all_1", "mismatch.mult", "pass_at_k",
}  # fmt: skip
"""What another column says as well, or no change of which means anything."""
LIMITED = {"mismatch.chi2", "mismatch.mult"}


def verdict(path: Path, *flags: str) -> tuple[str, set[str]]:
    """What is printed below the table; and the series that have 16 values."""
    shown = run("trend", path, *flags, "--limit", "2").stdout
    steps = answer("trend", path, *flags)["steps"]
    names = {*steps[0]} - {"step", "file", "worst"}
    long = {name for name in names if sum(step[name] is not None for step in steps) >= 16}
    below = " ".join(shown.partition("no fault found in ")[2].split("\n", 1))
    return "no fault found in " + " ".join(below.split()), long


@pytest.mark.more
@each("lacking", [(), *((one,) for one in NEEDED), (*NEEDED, "log_probs_old")])
def test_a_verdict_says_how_many_series_it_is_of_and_which_there_are_not(
    lacking: tuple[str, ...], tmp_path: Path
) -> None:
    kept = {name: None if name in lacking else value for name, value in WHOLE.items()}
    now = [{"weight_versions": [at] * 2} if kept["weight_versions"] else {} for at in range(20)]
    path = write(tmp_path / "a.jsonl", ({"step": at} | kept | one for at, one in enumerate(now)))
    said, long = verdict(path, "-v", "dr")
    assumed = {*RATIOS, "clip_fraction"} if "log_probs_old" in lacking else set()
    count, unknown = len(long - UNWATCHED - assumed), len(long & UNWATCHED - LIMITED - assumed)
    why = f"{unknown} more are shown but not judged"
    why += ", 6 more are not judged without log_probs_old" if assumed else ""
    assert said.startswith(f"no fault found in {count} series over 20 steps ({why}) no limit of ")
    for column, names in NEEDED.items():
        needs = "needs" if len(names) == 1 else "need"
        assert (f"{', '.join(names)} ({needs} {column})" in said) == (column in lacking)


def test_what_the_objective_lacks_is_why_the_update_has_no_series(tmp_path: Path) -> None:
    kept = WHOLE | {"log_probs_ref": None, "weight_versions": None}
    path = write(tmp_path / "a.jsonl", ({"step": step} | kept for step in range(20)))
    said, long = verdict(path, "-v", "grpo", "--beta", "0.1")
    assert f"in {len(long - UNWATCHED)} series over" in said
    update = "clip_low, clip_high, gradient_norm, ratio_mean, ratio_p999, ess"
    assert f"loss, kl_k3, {update} (need log_probs_ref)" in said
    plain = PLAIN | {"log_probs_ref": [[-1.0] * 2, [-1.0]]}
    write(path, ({"step": step} | plain for step in range(20)))
    said, _ = verdict(path, "-v", "dr", "--fields", "loss,kl_k3,mismatch.k3,mismatch.ess")
    assert "not computed: mismatch.k3, mismatch.ess (need log_probs_rollout) signature" in said


def test_a_few_steps_are_no_run(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [PLAIN | {"step": step} for step in (1, 2)])
    shown = run("trend", path, "-v", "dr").stdout.replace("\n", " ")
    assert "too few steps: shifts and drifts need 16 steps, there are 2" in shown
