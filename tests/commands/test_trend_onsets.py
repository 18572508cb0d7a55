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
from collections.abc import Callable, Mapping, Sequence
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


def test_what_goes_the_other_way_is_information(tmp_path: Path) -> None:
    path = series(tmp_path / "a.jsonl", {"x": (noisy(1) + 9.0 * (np.arange(60) > 30)).tolist()})
    document = trend(path)
    (one,) = [one for one in document["findings"] if one["metric"] == "rewards/x/mean"]
    assert (one["severity"], one["direction"], one["kind"]) == ("info", "up", "shift")
    assert document["verdict"].startswith("from step 0 on: gradient_norm is 0; also step 31: ")


def test_a_run_that_learns_nothing_says_so(tmp_path: Path) -> None:
    """All rewards equal from the first step on, until they are not; not in one step of five."""
    rows = [PLAIN | {"step": at, "rewards": [0.0, 0.0]} for at in range(20)]
    document = trend(write(tmp_path / "a.jsonl", rows))
    assert document["verdict"].startswith("from step 0 on: groups_equal is 1; ")
    sentence = "groups_equal is 1 from step 0 on, in all of the first 20 steps: nothing is learnt"
    assert sentence in [one["sentence"] for one in document["findings"]]
    for first, wanted in ((8, [(0, 8)]), (4, [])):
        later = [PLAIN | {"step": at} for at in range(first, 20)]
        found = found_in(write(tmp_path / "b.jsonl", [*rows[:first], *later]))
        assert [(one["onset"], one["end"]) for one in found.get("groups_equal", [])] == wanted


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


def test_what_was_found_stays_and_ends(tmp_path: Path) -> None:
    """However many steps follow; what repeats it is no other finding, until it is back."""
    values = noisy(4, 150)
    values[40:60] -= 12.0
    values[100:] -= 12.0
    every = []
    for count in (45, 50, 70, 99, 106, 150):
        found = found_in(series(tmp_path / "a.jsonl", {"x": values[:count].tolist()})).get("x", [])
        every.append([(one["onset"], one["seen"], one["end"]) for one in found])
    assert [len(one) for one in every] == [1, 1, 1, 1, 2, 2]
    assert {one[0][:2] for one in every} == {every[0][0][:2]}
    assert [one[0][2] for one in every] == [None, None, 60, 60, 60, 60]
    assert abs(every[-1][1][0] - 100) <= 1


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


def entropies(path: Path, values: F64) -> Path:
    """A run whose entropy is this number at each step."""
    rows = (PLAIN | {"step": at, "entropies": [[x, x], [x]]} for at, x in enumerate(values))
    return write(path, rows)


def mismatched(path: Path, values: Any) -> Path:
    """A run in which log π_trainer − log π_engine is this number at each step."""
    rows = (
        {"step": at, "log_probs": [[-9.0], [-9.0]], "rewards": [1.0, 0.0]}
        | ({} if x is None else {"log_probs_rollout": [[-9.0 - x], [-9.0 - x]]})
        for at, x in enumerate(values)
    )
    return write(path, rows)


@pytest.mark.more
@each("begin", [20, 30, 31, 40])
def test_a_finding_says_what_was_and_what_is(begin: int, tmp_path: Path) -> None:
    """The numbers are medians of 30 before and 12 after; the worst may be an outlier."""
    for sign in (1, -1):
        values = 10.0 + np.random.default_rng(3).normal(0.0, 0.01, begin + 20)
        values[begin:] += sign * 5.0
        values[begin + 10] += sign * 50.0
        if sign > 0:
            path, name, verb = entropies(tmp_path / "a.jsonl", values), "entropy", "rose"
        else:
            path = series(tmp_path / "a.jsonl", {"x": values.tolist()})
            name, verb = "x", "fell"
        (found,) = found_in(path)[name]
        assert (found["kind"], found["onset"], found["worst_step"]) == ("shift", begin, begin + 10)
        assert found["direction"] == ("up", "down")[sign < 0]
        assert found["seen"] in (begin + 1, begin + 2)
        before = np.median(values[max(begin - 30, 0) : begin])
        later = np.median(values[begin : begin + 12])
        span = f"over the next {min(12, 60 - begin)} steps"
        words = f"{verb} at step {begin}: median {before:.4g} before, {later:.4g} {span}"
        assert found["sentence"].endswith(f" {words}{' (×1.5)' if sign > 0 else ''}")
        assert found["score"] > 100
        assert (found["before"], found["after"]) == pytest.approx((before, later))


def test_what_rounding_leaves_of_a_constant_is_no_change(tmp_path: Path) -> None:
    steps = [
        {"step": at, "rewards": [0.02 * at, 0.02 * at + 0.1], "log_probs_new": [[-0.5], [-0.3]]}
        for at in range(60)
    ]  # whose stds differ by 1e-16
    assert not found_in(write(tmp_path / "a.jsonl", steps)).get("reward_group_std")


def test_a_change_has_to_matter(tmp_path: Path) -> None:
    """A fifth, of what is positive, however little noise there is."""
    small = np.random.default_rng(4).normal(0.0, 0.001, 60)
    for size, told in ((1.1, False), (1 / 1.1, False), (1.3, True), (1 / 1.3, True)):
        values = np.exp(small + math.log(size) * (np.arange(60) >= 40))
        found = found_in(entropies(tmp_path / "a.jsonl", values))
        assert ([*found] == ["entropy"]) is told


def moved_by(path: Path, column: str, sizes: Any) -> Path:
    """A run in which log π of this column is ± this number off that of the policy, by turns."""
    rows = []
    for step, size in enumerate(sizes):
        off = [[-2.0 + size * (-1) ** at for at in range(20)]] * 2
        rows.append({"step": step, "log_probs": [[-2.0] * 20] * 2, "rewards": [1.0, 0.0]})
        rows[-1] |= {"log_probs_old": [[-2.0] * 20] * 2, column: off}
    return write(path, rows)


@each(("factor", "told"), [(60.0, True), (20.0, False)])
def test_one_step_that_is_too_large(factor: float, told: bool, tmp_path: Path) -> None:
    """Of the effective sample size, whose noise is large, at thirty times its distance from 1."""
    size = 0.03 * np.exp(np.random.default_rng(3).normal(0.0, 0.15, 50))
    size[34] = 0.03 * math.sqrt(factor)
    found = found_in(moved_by(tmp_path / "a.jsonl", "log_probs_old", size)).get("ess", [])
    one = [(one["kind"], one["onset"], one["seen"], one["direction"]) for one in found]
    assert one == [("spike", 34, 34, "down")] * told
    assert all(one["sentence"].startswith("ess dropped at step 34: median 0.9") for one in found)


@pytest.mark.more
@each(
    ("at", "count", "told"), [(0, 40, []), (1, 40, [1]), (9, 21, [9]), (15, 40, [15]), (15, 20, [])]
)
def test_an_early_step_is_judged_once_twenty_others_are_there(
    at: int, count: int, told: list[int], tmp_path: Path
) -> None:
    """Against all of the first 21, so that no later step takes the finding back."""
    values = 0.01 * np.exp(np.random.default_rng(5).normal(0.0, 0.05, count))
    values[at] *= 50.0
    found = found_in(mismatched(tmp_path / "a.jsonl", values)).get("mismatch.k3", [])
    assert [(one["kind"], one["onset"], one["seen"]) for one in found] == [
        ("spike", onset, 20) for onset in told
    ]


@each(
    ("factor", "noise", "told"),
    [(4.0, 0.25, True), (1.6, 0.25, False), (2.0, 0.05, True), (1.1, 0.01, False)],
)
def test_a_kl_that_rises(factor: float, noise: float, told: bool, tmp_path: Path) -> None:
    """By two and a half times, or clearly; what follows is no step of a path that goes on."""
    draw = np.random.default_rng(8)
    kl = 0.002 * np.exp(draw.normal(0.0, noise, 50)) * np.where(np.arange(50) < 36, 1.0, factor)
    kl *= np.maximum(np.arange(50) + 1.0, 12.0) / 50.0  # which a healthy run accumulates
    found = found_in(moved_by(tmp_path / "a.jsonl", "log_probs_ref", np.sqrt(2 * kl)))
    assert [one["direction"] for one in found.get("kl_k3", [])] == ["up"] * told


@pytest.mark.more
def test_what_spans_orders_of_magnitude_is_looked_at_by_its_logarithm(tmp_path: Path) -> None:
    """A tenth of what was small beside its noise is a shift there; a 0 is half of the least."""
    draw = np.random.default_rng(6)
    values = np.exp(draw.normal(0.0, 0.4, 60)) / 10
    values[40:] *= 0.02
    for scale in (1.0, 1e-3):
        found = found_in(mismatched(tmp_path / "a.jsonl", scale * values))
        assert [one["onset"] for one in found["mismatch.mean_abs"]] == [40]
    values = np.exp(draw.normal(0.0, 0.02, 60)) / 10
    values[[20, 33]] = 0.0
    for zeros in (values, np.zeros(60)):
        assert "mismatch.mean_abs" not in found_in(mismatched(tmp_path / "a.jsonl", zeros))


@pytest.mark.more
@each(
    ("zero_from", "count", "told"),
    [(10, 16, True), (9, 16, False), (12, 15, False), (10, 30, True), (20, 24, True)],
)
def test_from_when_on_numbers_are_exactly_0(
    zero_from: int, count: int, told: bool, tmp_path: Path
) -> None:
    """Ten steps before must have been another number, and all are 0 to the end of the change."""
    values = np.arange(1.0, count + 1) / 100
    values[zero_from:] = 0.0
    for later in (0.0, 0.07):
        values[zero_from + 4 :] = later
        found = found_in(mismatched(tmp_path / "a.jsonl", values)).get("mismatch.mean_abs", [])
        said = [one["sentence"] for one in found if "exactly 0" in one["sentence"]]
        before = f"median {(zero_from + 1) / 200:.6g}"
        words = f"mismatch.mean_abs is exactly 0 from step {zero_from} on: {before} before"
        lasts = count >= zero_from + 8 or not values[zero_from:].any()
        assert [one.partition(", through")[0] for one in said] == [words] * (told and lasts)


LIMITS = [
    ("mismatch.mult", 1.05, "above", "NeMo-RL's documentation has this limit for the mean of"),
    ("mismatch.chi2", 1.0, "above", "verl's documentation has this limit for the χ² of"),
]


@each(("name", "bound", "side", "source"), LIMITS)
def test_limits(name: str, bound: float, side: str, source: str, tmp_path: Path) -> None:
    """Three of five steps beyond the bound, of few most; steps without it are none of the five."""
    least = math.log(bound) if name == "mismatch.mult" else math.log(1 + bound) / 2
    fine, beyond, worst = 0.98 * least, 1.01 * least, 1.2 * least

    def limits(values: list[float | None]) -> list[dict[str, Any]]:
        found = found_in(mismatched(tmp_path / "a.jsonl", values)).get(name, [])
        return [one for one in found if one["kind"] == "limit"]

    values = [fine, beyond, fine, fine, beyond, fine, fine, beyond, fine, beyond, fine, worst, fine]
    (found,) = limits([*values])
    assert (found["onset"], found["worst_step"], found["score"]) == (7, 11, None)
    assert found["sentence"].startswith(f"{name} is mostly {side} {bound} from step 7 on, ")
    assert f" at its worst; {source} " in found["sentence"]
    values[9] = fine  # of five, two are left
    assert limits([*values]) == []
    (found,) = limits([None, *values[:6], None, beyond, None, beyond, None, beyond])
    assert (found["onset"], found["worst_step"]) == (5, 5)
    for few, passed in (([worst], 1), ([worst, fine], 0), ([fine, worst, worst], 1)):
        assert len(limits([*few])) == passed


def test_too_few_effective_tokens_are_below_a_limit(tmp_path: Path) -> None:
    rows = {"log_probs": [[-9.0] * 9], "log_probs_rollout": [[-9.0] * 8 + [-15.0]], "rewards": [1]}
    path = write(tmp_path / "a.jsonl", [rows | {"step": step} for step in range(3)])
    (found,) = [one for one in trend(path)["findings"] if one["metric"] == "mismatch.ess"]
    assert found["sentence"].startswith("mismatch.ess is below 0.3 from step 0 on, ")
    assert "; verl's documentation has this limit for the effective " in found["sentence"]


# ---- --fail-on --------------------------------------------------------------------------------


@each(
    ("text", "step"),
    [
        ("entropy>2", 3), ("entropy>=2", 2), ("entropy<2", 1), ("entropy<=0.5", None),
        (" entropy <= 1.0 ", 1), ("entropy>3.5", None), ("entropy>=3.5", 3),
        ("entropy>-1e-3", 1), ("findings", None),
    ],
)  # fmt: skip
def test_a_condition_names_the_first_step_that_it_holds_for(
    text: str, step: int | None, tmp_path: Path
) -> None:
    values = [1.0, 2.0, 3.5, 3.5]
    rows = (PLAIN | {"step": at, "entropies": [[x, x], [x]]} for at, x in enumerate(values, 1))
    result = run("trend", write(tmp_path / "a.jsonl", rows), "-v", "dr", "--fail-on", text)
    told = f"grpo: --fail-on {text.strip()}: {values[(step or 0) - 1]:g} at step {step}"
    assert (result.exit_code, told in result.stderr) == (int(step is not None), step is not None)


def test_a_condition_on_what_the_records_lack_is_an_error(tmp_path: Path) -> None:
    """It would never hold, and the run would pass for sound."""
    path = write(tmp_path / "a.jsonl", [PLAIN | {"step": 1}])
    for name, needs in (("kl", "log_probs_ref"), ("mismatch.k3", "log_probs_rollout")):
        result = run("trend", path, "-v", "dr", "--fail-on", f"{name}>0.1")
        words = f"grpo: --fail-on {name}>0.1: no step has {name}; it needs {needs}\n"
        assert (result.exit_code, words in result.stderr) == (2, True)


def test_a_condition_on_findings_counts_them(tmp_path: Path) -> None:
    shift = (noisy(1) - 9.0 * (np.arange(60) > 30)).tolist()
    for names, told in (("x", "2 findings"), ("xy", "3 findings")):  # and the gradient is 0
        path = series(tmp_path / "a.jsonl", dict.fromkeys(names, shift))
        flags = ("-p", "reward_weights=" + ",".join("0" for _ in names), "--fail-on", " findings ")
        result = run("trend", path, "-v", "dr", *flags)
        held = f"--fail-on findings: {told}" in result.stderr
        assert (result.exit_code, held) == (1, True), result.stderr


@each("text", ["nothing", "rewards/>1", "k3>1", "mismatch.k3>x", "loss=1"])
def test_conditions_that_cannot_be_read(text: str, tmp_path: Path) -> None:
    result = run("trend", write(tmp_path / "a.jsonl", [PLAIN | {"step": 1}]), "--fail-on", text)
    assert (result.exit_code, "--fail-on" in result.stderr) == (2, True)


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


def test_an_engine_that_comes_nearer_is_called_so(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    rows = [
        {"step": at, "log_probs": old.tolist(), "rewards": [1.0, 0.0] * 2}
        | {"log_probs_rollout": (old + size * draw.normal(size=old.shape)).tolist()}
        for at in range(40)
        for size in [0.03 if at < 20 else 0.01]
        for old in [-draw.uniform(0.5, 3.0, (4, 60))]
    ]
    (event,) = trend(write(tmp_path / "a.jsonl", rows))["events"]
    assert event["severity"] == "info"
    assert "the log-probs of engine and trainer came nearer to each other" in event["summary"]


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


def test_an_event_begins_with_its_cause_not_with_an_effect(tmp_path: Path) -> None:
    """Longer responses from step 15 on lower the gradient norm, whose onset is found at 14."""
    levels = {
        "length_mean": lambda step: 13.0 if step >= 15 else 6.5,
        "gradient_norm": lambda step: 0.05 if step >= 14 else 0.075,
    }
    found = answer("trend", log_of(tmp_path, around(levels, 30, seed=3)))
    assert [one["onset"] for one in found["findings"]] == [14, 15]
    assert found["events"][0]["step"] == 15
    assert found["last_good_step"] == 13


def log_of(folder: Path, columns: Mapping[str, Sequence[float]]) -> Path:
    """A trainer's log of these columns, a value for each step."""
    path, steps = folder / "log.csv", zip(*columns.values(), strict=True)
    rows = [",".join(map(str, (step, *values))) for step, values in enumerate(steps)]
    path.write_text("\n".join([",".join(("step", *columns)), *rows]))
    return path


def around(
    levels: Mapping[str, Callable[[int], float]], count: int, seed: int = 0
) -> dict[str, Sequence[float]]:
    """What each column is at each step, and a little noise."""
    return {
        name: [level(step) + 1e-3 * noise for step, noise in enumerate(noisy(seed + at, count))]
        for at, (name, level) in enumerate(levels.items())
    }


def test_the_last_good_step_is_before_a_part_of_the_event_that_is_over(tmp_path: Path) -> None:
    """The clipping of steps 15 to 26 ends because nothing is learnt by then."""
    levels = {
        "clip_ratio": lambda step: 0.2 if 15 <= step < 27 else 0.01,
        "entropy": lambda step: 0.5 if step >= 20 else 1.0,
    }
    found = answer("trend", log_of(tmp_path, around(levels, 40)))
    (event,) = found["events"]
    assert (event["step"], found["last_good_step"]) == (15, 14)


def test_what_changes_after_the_ratios_is_not_their_cause(tmp_path: Path) -> None:
    """A learning rate × 6 from step 15 on: a step later the policy is surer of its tokens."""
    levels = {
        "clip_high": lambda step: 0.2 if step >= 15 else 0.01,
        "entropy": lambda step: 0.5 if step >= 16 else 1.0,
    }
    found = answer("trend", log_of(tmp_path, around(levels, 40)))
    (event,) = found["events"]
    assert (event["step"], found["last_good_step"]) == (15, 14)
    assert event["metrics"][0] == "clip_high"
    assert "learning rate" in event["fix"]
    assert "ε_high" not in event["fix"]


def test_a_share_that_mostly_is_0_changes_at_what_exceeds_the_steps_before(
    tmp_path: Path,
) -> None:
    """The share of step 21 is less than that of step 1."""
    shares = [0.0, 0.0148, 0.0104, 0.0, 0.0, 0.0, 0.0127, 0.0, 0.0, 0.0, 0.0047, 0.0, 0.005]
    shares += [0.0, 0.0, 0.0, 0.0, 0.0107, 0.0, 0.0, 0.0, 0.0115, 0.1527, 0.3186, 0.2546, 0.2581]
    shares += [0.1267, 0.1525, 0.1878, 0.1898, 0.1512]
    found = answer("trend", log_of(tmp_path, {"clip_ratio": shares}))
    assert (found["findings"][0]["onset"], found["last_good_step"]) == (22, 21)


def responses(
    path: Path, lengths: Sequence[Sequence[int]], *, seed: int = 5, padded: int | None = None
) -> Path:
    """A run of these lengths, a step each, with rewards that differ.

    From the step ``padded`` on all have 30 tokens, and there are log-probs of a reference.
    """
    noise, rows = np.random.default_rng(seed), []
    for at, counts in enumerate(lengths):
        new = [-noise.exponential(1.0, n) - 1e-3 for n in counts]
        rows.append({"step": at, "rewards": [float(n % 2) for n in range(len(counts))]})
        columns = {"log_probs": new}
        if padded is not None:
            columns["ref_log_probs"] = [
                np.minimum(a + noise.normal(0, 0.1, len(a)), 0) for a in new
            ]
        for name, column in columns.items():
            pad = 30 * (padded is not None and at >= padded)
            rows[-1][name] = [[*a.tolist(), *[0.0] * (pad - len(a))] for a in column]
    return write(path, rows)


@pytest.mark.more
def test_padding_that_is_counted_is_the_cause_of_what_it_changes(tmp_path: Path) -> None:
    """The KL, which in the second run falls two steps earlier by chance, is of that event."""
    draw = random.Random(1)
    for seed in range(2):
        free = [[draw.randint(5, 30) for _ in range(16)] for _ in range(40)]
        found = trend(responses(tmp_path / "a.jsonl", free, seed=seed, padded=18))
        assert found["verdict"].startswith("step 18: all responses of a step have one length: ")
        assert "responses end with up to " in found["verdict"]
        assert "; last good step 17; " in found["verdict"]
        assert [one["step"] for one in found["events"]] == [18]
        assert {one["onset"] for one in found["findings"]} == {18}
        assert "16" not in " ".join(one["sentence"] for one in found["findings"])


@pytest.mark.more
def test_every_response_of_one_length_is_a_finding(tmp_path: Path) -> None:
    """Not where it always was so, where most were, nor where there is one response."""
    draw = random.Random(1)
    free = [[draw.randint(5, 30) for _ in range(8)] for _ in range(40)]
    capped = [
        [*each[:18], *[[20] * 8] * 22] for each in (free, [[20] * 7 + [one[0]] for one in free])
    ]
    found = trend(responses(tmp_path / "a.jsonl", capped[0]))
    assert found["verdict"].startswith(
        "step 18: all responses of a step have one length: cut off, or with padding; "
    )
    assert found["events"][0]["fix"].startswith("if they are cut at max_tokens, ")
    single = [*free[:18], *([one[0]] for one in free[18:])]
    pairs = [[draw.randint(3, 4) for _ in range(2)] for _ in range(60)]
    for lengths in ([[20] * 8] * 40, capped[1], single, pairs):
        assert "at_longest" not in found_in(responses(tmp_path / "b.jsonl", lengths))


def collapsed(path: Path, **late: Any) -> Path:
    """A run whose log-probs, entropies and rewards collapse at step 20."""
    draw = np.random.default_rng(2)
    rows = []
    for step in range(40):
        nll = np.abs(draw.exponential(0.6, (4, 20))) * (0.02 if step >= 20 else 1.0)
        rows.append(
            {"step": step, "log_probs": (-nll).tolist(), "rewards": [0.0, 1.0, 0.0, 1.0],
             "entropies": (2.0 * nll).tolist()} | (late if step >= 20 else {})
        )  # fmt: skip
    return write(path, rows)


def test_a_collapse_comes_before_the_rewards_that_follow_from_it(tmp_path: Path) -> None:
    document = trend(collapsed(tmp_path / "a.jsonl", rewards=[0.0] * 4))
    assert document["verdict"].startswith("step 20: the policy became too sure of its tokens; ")
    assert {"groups_equal", "reward_mean"} <= {*document["events"][0]["metrics"]}
    assert document["events"][0]["fix"].startswith("raise ε_high")


def test_a_doubt_of_the_entropies_is_no_headline_where_the_log_probs_fell_too(
    tmp_path: Path,
) -> None:
    """It is where the entropies alone fell."""
    path = collapsed(tmp_path / "a.jsonl", entropies=[[1e-5] * 20] * 4)
    event = trend(path)["events"][0]
    assert event["check"][0].startswith("entropies: ")
    assert event["summary"].startswith("step 20: the policy became too sure of its tokens (")
    shown = run("trend", path, "-v", "dr").stdout
    assert shown.index("fix: raise ε_high") < shown.index("check of the step: entropies: ")


def test_one_value_that_is_back_by_chance_does_not_move_the_onset(tmp_path: Path) -> None:
    """Steps 30 to 35 are far below, but for one; before them one alone is below."""
    noise = np.random.default_rng(8).normal(0.0, 0.02, 60)
    values = 0.6 + noise - 0.2 * (np.arange(60) >= 30)
    values[27], values[33] = 0.4, 0.61
    (found,) = found_in(series(tmp_path / "a.jsonl", {"a": values.tolist()}))["a"]
    assert (found["kind"], found["onset"]) == ("shift", 30)


def test_a_step_that_moved_too_far_comes_before_the_rewards_of_later_steps(tmp_path: Path) -> None:
    """Its ratios do not follow from what changed after it."""
    draw = np.random.default_rng(2)
    rows = []
    for step in range(50):
        old = -draw.exponential(1.0, (8, 20))
        new = np.minimum(old + (0.9 if step == 30 else 0.05) * draw.normal(size=old.shape), -1e-4)
        right = draw.permutation(8) < 4
        rewards = right * (0.01 if 30 < step < 40 else 1.0)
        columns = {"log_probs_new": new, "log_probs_old": old}
        rows.append(
            {"step": step, "rewards": rewards.tolist()}
            | {name: one.tolist() for name, one in columns.items()}
        )
    verdict = trend(write(tmp_path / "a.jsonl", rows))["verdict"]
    assert verdict.startswith("step 30: the ratios π_θ/π_old moved away from 1 for one step; ")


def write_log(path: Path, name: str, values: F64) -> Path:
    """A trainer's log with one series that changes."""
    rows = enumerate(values.tolist())
    return write(path, ({"step": at, "grad_norm": 0.03, name: value} for at, value in rows))


def logged(path: Path, name: str, values: F64) -> list[dict[str, Any]]:
    """What is wrong with one series of a trainer's log: its findings that are no information."""
    write_log(path, name, values)
    return [one for one in answer("trend", path)["findings"] if one["severity"] == "warning"]


def learning(name: str, count: int = 40) -> F64:
    """A series of a healthy run that learns fastest in its first steps."""
    steps, noise = np.arange(count), 1.0 + 0.03 * noisy(8, count)
    return {
        "kl": 1e-5 * (steps + 1.0) ** 1.5 * noise,
        "entropy": (1.0 + 2.0 * np.exp(-steps / 6.0)) * (1.0 + 0.01 * noisy(9, count)),
        "grad_norm": 0.03 * noise,
        "reward": 0.3 + 0.4 * (1.0 - np.exp(-steps / 8.0)) + 0.02 * noisy(10, count),
        "completion_length": 300.0 * (1.0 + np.minimum(steps, 10) / 10.0) * noise,
        "clip_ratio": np.minimum(steps, 8) / 80.0 * noise,
    }[name]


LEARNT = "kl", "entropy", "grad_norm", "reward", "completion_length", "clip_ratio"


@pytest.mark.parametrize("name", LEARNT)
def test_what_is_learnt_in_the_first_steps_is_no_jump(name: str, tmp_path: Path) -> None:
    for first in range(8):  # a log may begin later
        assert logged(tmp_path / "log.jsonl", name, learning(name)[first:]) == []


@pytest.mark.parametrize("at", [3, 5, 9])
@pytest.mark.parametrize(
    ("name", "factor"), [("kl", 400.0), ("grad_norm", 1e-3), ("completion_length", 0.3)]
)
def test_a_jump_in_the_first_ten_steps(name: str, factor: float, at: int, tmp_path: Path) -> None:
    values = learning(name) * np.where(np.arange(40) >= at, factor, 1.0)
    (found,) = logged(tmp_path / "log.jsonl", name, values)
    assert (found["kind"], found["onset"], found["end"]) == ("shift", at, None)
    assert found["direction"] == ("up" if factor > 1.0 else "down")
    few = logged(tmp_path / "log.jsonl", name, values[: at + 6])
    assert [one["onset"] for one in few] == [at]  # six steps show it, and no fewer
    assert logged(tmp_path / "log.jsonl", name, values[: at + 5]) == []


def test_an_early_jump_ends_where_its_values_are_back(tmp_path: Path) -> None:
    inside = (np.arange(40) >= 4) & (np.arange(40) < 20)
    (found,) = logged(tmp_path / "log.jsonl", "kl", learning("kl") * np.where(inside, 1e4, 1.0))
    assert (found["onset"], found["end"]) == (4, 20)


@pytest.mark.parametrize("at", [2, 4, 15])
def test_steps_before_a_shift_are_no_spikes(at: int, tmp_path: Path) -> None:
    """They are far from most of the first 21 values, and from none before them."""
    values = learning("grad_norm") * np.where(np.arange(40) >= at, 1e-3, 1.0)
    found = logged(tmp_path / "log.jsonl", "grad_norm", values)
    assert [one["kind"] for one in found if one["onset"] < at] == []
    values = learning("grad_norm")
    values[4] *= 30.0
    (spike,) = logged(tmp_path / "log.jsonl", "grad_norm", values)
    assert (spike["kind"], spike["onset"]) == ("spike", 4)


def test_runs_that_differ_from_one_of_their_first_steps_on(tmp_path: Path) -> None:
    other = learning("kl") * (1.0 + 0.1 * noisy(5, 40))
    runs = {"a": other, "b": learning("kl") * np.where(np.arange(40) >= 5, 400.0, 1.0)}
    for name, values in runs.items():
        write_log(tmp_path / f"{name}.jsonl", "kl", values)
    found = answer("trend", tmp_path / "a.jsonl", "--against", tmp_path / "b.jsonl")
    assert [(one["name"], one["since"]) for one in found["metrics"] if one["differs"]] == [
        ("kl", 5)
    ]


@pytest.mark.parametrize(
    ("sizes", "severity"),
    [([0.001, 0.002, 0.002, 0.002, 0.3], "warning"), ([0.001, 0.03, 0.06, 0.09, 0.12], "info")],
)
def test_older_weights_make_no_jump(sizes: list[float], severity: str, tmp_path: Path) -> None:
    """An engine that is some steps behind by design differs more with each of the first steps."""
    draw, rows = np.random.default_rng(4), []
    for step in range(24):
        new = -0.5 - draw.exponential(1.0, (8, 20))
        rollout = new + sizes[min(step, 4)] * draw.choice([-1.0, 1.0], new.shape)
        rewards = (draw.permutation(8) < 4).astype(float)
        columns = {"log_probs_new": new, "log_probs_rollout": rollout, "rewards": rewards}
        rows.append({"step": step} | {name: one.tolist() for name, one in columns.items()})
    found = trend(write(tmp_path / "a.jsonl", rows))["findings"]
    passed = [one["severity"] for one in found if one["metric"] == "mismatch.mult"]
    assert passed == [severity]
    assert any(one["severity"] == "warning" for one in found) == (severity == "warning")
