"""``grpo report``: what of a run its page keeps; its numbers are those of trend and eval."""

from __future__ import annotations

import json
import math
import re
import statistics
from pathlib import Path

import pytest
from command import answer, run
from trended import BEGINS, SAMPLES, blocks, drifting, series


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "rollouts"
    return folder, drifting(folder)


def trend(path, *flags):
    return answer("trend", path, "-v", "dr", *flags)


def page_of(path, out, *flags: str) -> str:
    result = run("report", path, "-v", "dr", "-o", out, *flags)
    assert (result.exit_code, result.stdout) == (0, "")
    return out.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def pages() -> dict[tuple[str, ...], str]:
    """Flags → the page of the run; made once for all tests that look at it."""
    return {}


@pytest.fixture
def report(made, pages, tmp_path):
    def make(*flags: str) -> str:
        flags = flags if "--jobs" in flags else ("--jobs", "1", *flags)
        if flags not in pages:
            pages[flags] = page_of(made[0], tmp_path / "report.html", "--html", *flags)
        return pages[flags]

    return make


@pytest.fixture
def found_in(dump, tmp_path):
    """What the page of some records has, which have no reference."""

    def find(*records: dict) -> dict[str, dict]:
        path = dump(*({"log_probs_ref": None, "step": 1} | one for one in records))
        return blocks(page_of(path, tmp_path / "report.html"))

    return find


@pytest.mark.more
def test_series_and_findings_are_those_of_trend(report, made):
    page, whole = blocks(report())["run"], trend(made[0])
    assert page["verdict"] == whole["verdict"]
    assert page["steps"] == [step["step"] for step in whole["steps"]] == list(range(40))
    for metric in page["metrics"]:
        assert metric["values"] == [step[metric["name"]] for step in whole["steps"]]
    for at, event in enumerate(whole["events"]):
        told = [one["sentence"] for one in page["findings"] if one["event"] == at]
        found = [one for one in whole["findings"] if one["metric"] in event["metrics"]]
        assert told == [one["sentence"] for one in found]
        news = [one for one in event["check"] if "engine and trainer differ" not in one]
        assert page["events"][at]["check"] == news  # else the metrics say it
        assert not any("(record" in one for one in event["check"] if "mean |log_probs" in one)
    assert [one["fix"] for one in page["events"]] == [one["fix"] for one in whole["events"]]
    printed = run("trend", made[0], "-v", "dr").stdout.replace(
        "\n    # ", "  # "
    )  # the same tokens
    for one in page["events"]:
        assert one["commands"]
        assert all(f"  {command}\n" in printed for command in one["commands"])
    onsets = [one["onset"] for one in page["findings"] if one["metric"] == "mismatch.k3"]
    assert onsets
    assert abs(onsets[0] - BEGINS) <= 5


@pytest.mark.more
def test_a_step_stands_beside_its_neighbours_as_trend_has_them(report, made):
    page = blocks(report("--steps", "40"))["run"]
    found = {one["metric"] for one in page["findings"]}
    shown = {one["name"] for one in page["metrics"] if one["usual"]} | found
    for step in ("0", "20", "39"):
        metrics = trend(made[0], "--at", step)["metrics"]
        wanted = {one["name"]: [one["before"], one["after"], one["size"]] for one in metrics}
        assert page["around"][step] == {name: wanted[name] for name in wanted if name in shown}


def test_a_run_without_findings_says_how_far_it_moved(dump, tmp_path):
    rewards = [0.1, 0.1, 0.2, 0.2, *[0.4] * 8, 0.5, 0.5, 0.5, 0.7]
    logs = {f"log_probs_{name}": [[-0.5], [-0.5]] for name in ("new", "old", "ref")}
    pairs = enumerate([one - 0.1, one + 0.1] for one in rewards)
    path = dump(*(logs | {"step": at, "rewards": pair} for at, pair in pairs))
    page = page_of(path, tmp_path / "page.html")
    assert re.search(r"<h1>No fault found in \d+ series over 16 steps \(.*\)\.</h1>", page)
    moved = "means, first 4 → last 4 steps: reward_mean 0.15 → 0.55"
    assert ["", moved] in blocks(page)["run"]["facts"]


def test_the_verdict_is_first_and_the_signature_last(report):
    before, _, after = report().partition("<footer>")
    footer, _, scripts = after.partition("</footer>")
    assert ("|<wbr>adv:" in before, "|<wbr>adv:" in footer) == (False, True)
    assert "<main>" not in scripts


@pytest.mark.more
def test_another_run_is_drawn_as_well(report, made, tmp_path):
    """At the steps of this one; and which part carries each change is in words."""
    other = tmp_path / "other"
    drifting(other, steps=30)
    head = blocks(report("--against", str(other), "--by", "prompt"))["run"]
    assert head["others"] == [str(other)]
    steps = trend(other)["steps"]
    for metric in head["metrics"]:
        assert metric["others"] == [[step[metric["name"]] for step in steps] + [None] * 10]
    assert head["by"]["verdicts"] == trend(made[0], "--by", "prompt")["verdicts"]


@pytest.mark.more
def test_a_page_says_what_differs_from_another_run(tmp_path):
    sides = (SAMPLES / "temperature.jsonl.gz", "--against", SAMPLES / "healthy.jsonl.gz")
    out = tmp_path / "page.html"
    assert run("report", *sides, "--steps", "1", "--groups", "0", "-o", out).exit_code == 0
    head = blocks(out.read_text(encoding="utf-8"))["run"]
    metrics = answer("trend", *sides)["metrics"]
    differing = [one["name"] for one in metrics if one["differs"]]
    assert [*head["against"]["metrics"]] == differing
    assert f"{len(differing)} of {len(metrics)} metrics" in head["against"]["verdict"]
    row = head["against"]["metrics"]["mismatch.k3"]
    assert row["there − here"].startswith(f"{row['there'] - row['here']:.3g}"[:4])


@pytest.mark.more
def test_trend_writes_the_page_of_report(report, made, tmp_path):
    """And the page of report may be named behind --html."""
    out = tmp_path / "trend.html"
    for words, code in (("trend", "--fail-on", "findings"), 1), (("report", "--jobs", "1"), 0):
        result = run(words[0], made[0], "-v", "dr", "--html", out, *words[1:])
        assert (result.exit_code, result.stdout) == (code, "")
        assert blocks(out.read_text(encoding="utf-8")) == blocks(report())


def test_two_runs_are_two_reports(tmp_path):
    for name in "ab":
        drifting(tmp_path / name)
    result = run("report", tmp_path, "-v", "dr", "-o", tmp_path / "page.html")
    assert result.exit_code == 2
    assert "; ".join(f"grpo trend {tmp_path}/{name}" for name in "ab") in result.stderr


@pytest.mark.more
def test_a_log_beside_the_run(report, made, tmp_path):
    rewards = [step["reward_mean"] for step in trend(made[0])["steps"]]
    rows = [{"step": at + 1, "reward": one, "lr": 0.5} for at, one in enumerate(rewards)]
    log = tmp_path / "trainer_state.json"
    log.write_text(json.dumps({"log_history": rows}))
    page = blocks(report("--log", str(log)))["run"]
    assert page["log"]["framework"] == "trl"
    reward, rate = page["log"]["series"]  # TRL logs step 1 when it has done step 0
    assert (reward["name"], reward["verdict"]) == ("log: reward", "agrees reward, 40 steps")
    assert reward["values"] == rewards
    assert (rate["verdict"], set(rate["values"])) == ("", {0.5})


@pytest.mark.more
def test_groups_have_the_rewards_and_lengths_of_their_records(report, made):
    page = blocks(report("--steps", "100"))["run"]
    assert set(page["kept"]) == {str(number) for number in range(40)}
    records = {one["id"]: one for one in made[1]}
    for step, groups in page["groups"].items():
        assert [group["record"] for group in groups] == [f"{step}-{number}" for number in range(3)]
        for group in groups:
            record = records[group["record"]]
            lengths = [len(row) for row in record["log_probs_new"]]
            assert group["reward_mean"] == pytest.approx(statistics.mean(record["rewards"]))
            assert group["reward_std"] == pytest.approx(statistics.stdev(record["rewards"]))
            assert group["length_mean"] == statistics.mean(lengths)
            assert (group["length_max"], group["tokens"]) == (max(lengths), sum(lengths))
            pairs = zip(record["log_probs_new"], record["log_probs_old"], strict=True)
            changes = [abs(a - b) for new, old in pairs for a, b in zip(new, old, strict=True)]
            assert group["log_ratio_max"] == pytest.approx(max(changes))
            new = [one for row in record["log_probs_new"] for one in row]
            assert group["nll"] == pytest.approx(-statistics.mean(new))


@pytest.mark.more
def test_groups_are_worst_in_what_trend_says(report, made):
    groups = blocks(report("--steps", "40"))["run"]["groups"]
    for step in ("0", "20"):
        listed = trend(made[0], "--at", step)["groups"]  # in another order
        found = {one["record"]: {*one["worst_in"]} for one in listed}
        here = {one["record"]: {*one["worst_in"]} for one in groups[step] if one["worst_in"]}
        assert here == found


def test_what_findings_point_at_is_kept(report):
    found = blocks(report("--steps", "3", "--groups", "0"))
    page = found["run"]
    for finding in page["findings"]:
        assert page["kept"][str(finding["onset"])] == "onset"
        assert page["kept"][str(finding["worst_step"])] in ("onset", "worst")
        place = finding["worst"]
        if place is not None:
            (group,) = (
                one
                for one in page["groups"][str(finding["worst_step"])]
                if one["record"] == place["record"]
            )
            assert place["response"] in group["pointed"]
            assert found[group["block"]]["prompts"] == [f"what is {place['record'].split('-')[1]}?"]


def test_a_group_is_pointed_at_in_its_own_step(tmp_path):
    """Records of all steps have one id; each is the worst of its own step in another response."""
    path = tmp_path / "a.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for step in range(4):
            new = [[-3.0 if at == step else -0.5] * 3 for at in range(4)]
            row = {"step": step, "id": "p", "log_probs_new": new, "rewards": [1.0, 0.0, 0.0, 1.0]}
            file.write(json.dumps(row) + "\n")
    groups = blocks(page_of(path, tmp_path / "page.html"))["run"]["groups"]
    for step in range(4):
        (group,) = groups[str(step)]
        (nll,) = [at for at in group["pointed"] if group["worst_in"].count("nll") and at == step]
        assert nll == step
        assert {*group["pointed"]} <= {0, step}  # of all else the first


def kept_tokens(page: dict) -> list[tuple[str, int]]:
    """The step and place of each group whose tokens are kept."""
    steps = page["groups"].items()
    return [(step, at) for step, groups in steps for at, one in enumerate(groups) if one["block"]]


@pytest.mark.more
def test_the_rest_is_sampled_by_seed(report):
    pages = {seed: blocks(report("--steps", "25", "--seed", seed))["run"] for seed in "01"}
    kept = {seed: set(page["kept"]) for seed, page in pages.items()}
    assert len(kept["0"]) == len(kept["1"]) == 25
    assert kept["0"] != kept["1"]
    with_tokens = {seed: kept_tokens(page) for seed, page in pages.items()}
    assert with_tokens["0"] != with_tokens["1"]


@pytest.mark.more
def test_a_page_has_no_more_tokens_than_it_may(report):
    page = blocks(report("--tokens", "0"))["run"]
    groups = [group for several in page["groups"].values() for group in several]
    worst = [one["worst"] for one in page["findings"] if one["worst"]]
    wanted = {place["record"] for place in worst}
    assert {group["record"] for group in groups if group["block"]} == wanted
    assert page["lost"] > 0
    found = sum(group["tokens"] for group in groups if group["block"])
    budget = 500
    some = blocks(report("--tokens", str(budget)))["run"]
    kept = sum(some["groups"][step][at]["tokens"] for step, at in kept_tokens(some))
    assert found < kept <= found + budget
    assert 0 < some["lost"] < page["lost"]


@pytest.mark.more
def test_the_same_bytes_however_it_is_read(report):
    assert report("--jobs", "1") == report("--jobs", "3")


def test_a_record_of_several_groups_is_cut_into_them(found_in, tmp_path):
    found = found_in({
        "log_probs_new": [[-0.1, -0.9], [-0.5], [-0.3, -0.2, -0.4], [-1.0]],
        "log_probs_old": [[-0.4, -0.5], [-0.1], [-0.3, -0.2, -0.9], [-1.1]],
        "rewards": [1.0, 0.0, 0.0, 1.0],
        "group_ids": ["a", "b", "a", "b"],
        "step": 3,
    })  # fmt: skip
    first, second = found["run"]["groups"]["3"]
    numbers = ("group", "tokens", "responses", "length_mean", "length_max", "clip_fraction")
    # by hand: A = ±0.5; e^0.3 is above 1.2 where A > 0, e^−0.4 below 0.8 where A < 0
    assert [first[name] for name in numbers] == ["a", 5, 2, 2.5, 3, 1 / 5]
    assert [second[name] for name in numbers] == ["b", 2, 2, 1.0, 1, 1 / 2]
    for group, far in ((first, 0.5), (second, 0.4)):
        assert group["log_ratio_max"] == pytest.approx(far)
        assert group["reward_mean"] == 0.5
        assert group["reward_std"] == pytest.approx(0.5**0.5)
    whole = answer("eval", tmp_path / "dump.jsonl", "-v", "dr", "--level", "response")
    for group, rows in ((first, (0, 2)), (second, (1, 3))):
        block = found[group["block"]]
        assert [one["response"] for one in block["responses"]] == list(rows)
        for one in block["responses"]:
            wanted = whole["records"][0]["responses"][one["response"]]
            assert one == {name: wanted[name] for name in one}


def test_nothing_of_the_run_s_is_markup(dump, tmp_path):
    hostile = "</script><script>alert(1)</script>"
    path = dump({"id": hostile, "prompt": hostile, "step": 1, "log_probs_ref": None})
    text = page_of(path, tmp_path / "report.html")
    assert ("alert(1)" in text, text.count("<script>")) == (False, 1)


def test_records_without_a_reference_still_have_their_groups(dump, tmp_path):
    out = tmp_path / "report.html"
    record = {"step": 1, "log_probs_ref": None, "beta": 0.04}
    result = run("report", dump(record), "-o", out)
    assert result.exit_code == 0
    page = blocks(out.read_text(encoding="utf-8"))["run"]
    assert [group["block"] for group in page["groups"]["1"]] == [None]
    assert "loss, KL and ratios are not computed" in result.stderr


@pytest.mark.more
@pytest.mark.parametrize("flags", [(), ("--group-by", "step,uid"), ("--jobs", "2")])
def test_records_of_rewards_alone_have_groups_without_tokens(tmp_path, flags):
    """As verl's dumps of rollouts: a line for each response."""
    rewards = {"a": [1.0, 0.0, 1.0], "b": [0.5, 0.25, 0.75]}
    rows = [
        {
            "step": step,
            "uid": uid,
            "input": uid,
            "output": "x",
            "score": rewards[uid][at],
            "gts": "",
        }
        for step in (1, 2)
        for uid in "ab"
        for at in range(3)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    page = tmp_path / "page.html"
    assert run("report", path, *flags, "-o", page).exit_code == 0
    head = blocks(page.read_text(encoding="utf-8"))["run"]
    for first, step in ((1, "1"), (7, "2")):
        groups = head["groups"][step]
        assert [one["rewards"] for one in groups] == [*rewards.values()]
        assert [one["line"] for one in groups] == [first, first + 3]
        assert [one["reward_mean"] for one in groups] == [2 / 3, 0.5]
        assert [one["reward_std"] for one in groups] == pytest.approx([3**-0.5, 0.25])
        assert {one["block"] for one in groups} == {None}


def test_groups_have_their_mean_entropy_and_kl(found_in):
    record = {"rewards": [1, 0, 1, 0], "groups": ["a", "b", "a", "b"]}
    record["log_probs_new"] = [[-0.25, -0.5], [-1e-6], [-1.0], [-1e-6, -1.0, -1e-6]]
    record["log_probs_ref"] = [[-0.5, -0.5], [-0.5], [-2.0], [-0.5, -0.5, -1e-6]]
    record["entropies"] = [[0.5, 1.5], [0.1], [4.0], [0.2, 2.0, 0.3]]
    record["log_probs_old"] = None
    a, b = found_in(record)["run"]["groups"]["1"]
    assert (a["group"], b["group"]) == ("a", "b")
    assert (a["entropy"], a["nll"]) == (2.0, 1.75 / 3)
    assert b["entropy"] == pytest.approx(0.65)
    k3 = [math.expm1(d) - d for d in (-0.25, 0.0, -1.0)]
    assert a["kl_k3"] == pytest.approx(sum(k3) / 3)


def test_a_group_of_one_has_no_standard_deviation(found_in):
    found = found_in({"log_probs_new": [[-0.5]], "log_probs_old": [[-0.5]], "rewards": [2.0]})
    (group,) = found["run"]["groups"]["1"]
    assert (group["reward_mean"], group["reward_std"]) == (2.0, None)


@pytest.mark.parametrize(
    "fields",
    [("step", "step"), ("step", "global_step"), ("meta", "meta"), (None, None), ("step", None)],
)
@pytest.mark.parametrize("steps", [1, 2])
def test_a_kept_step_has_all_its_groups_whatever_says_the_step(tmp_path, fields, steps):
    """Fields may differ within a step; None: the file's name says it."""
    for rank, field in enumerate(fields):
        for step in range(4):
            head = {"step": step} if field == "meta" else step
            head = {} if field is None else {field: head}
            record = head | {"log_probs_new": [[-0.5], [-1.0]], "rewards": [1.0, 0.0]}
            path = tmp_path / "run" / f"step_{step}" / f"rank_{rank}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(record))
    page = page_of(tmp_path / "run", tmp_path / "page.html", "--steps", str(steps))
    found = blocks(page)["run"]
    assert {"0", "3"} <= {*found["kept"]} == {*found["groups"]}
    assert {len(groups) for groups in found["groups"].values()} == {2}


# ---- what is kept --------------------------------------------------------------------------------


@pytest.mark.more
def test_the_least_tokens_go_to_what_matters_most(report):
    """What findings point at, the worst of steps, each step's first sampled group, its second."""
    whole = blocks(report("--tokens", "99999"))["run"]
    ranks = {}
    for step, several in whole["groups"].items():
        sampled = 0
        for at, group in enumerate(several):
            if group["block"] and not group["pointed"]:
                sampled += 1
            ranks[step, at] = len(several) if group["pointed"] else 0
        assert sampled <= 2
    before: set[tuple[str, int]] = set()
    for budget in (0, 300, 700, 1500, 99_999):
        page = blocks(report("--tokens", str(budget)))["run"]
        kept = {*kept_tokens(page)}
        assert before <= kept
        assert page["lost"] == len(kept_tokens(whole)) - len(kept)
        counts = [
            sum((step, at) in kept for at, one in enumerate(several) if not one["pointed"])
            for step, several in page["groups"].items()
            if any(one["block"] for one in whole["groups"][step] if not one["pointed"])
        ]
        if max(counts) == 2:  # a second one, where every step has its first
            assert min(counts) >= 1
        if max(counts):  # a sampled one, where all that is worst has its tokens
            pointed = {
                (step, at)
                for step, several in page["groups"].items()
                for at, one in enumerate(several)
                if one["pointed"]
            }
            assert pointed <= kept
        before = kept


@pytest.mark.more
def test_a_long_run_keeps_what_matters_and_a_sample(tmp_path):
    shift = [at % 7 / 100 + 5.0 * (at >= 200) + 2.0 * (at == 250) for at in range(300)]
    path = series(tmp_path / "run.jsonl", {"x": shift})

    def kept(*flags: str) -> dict[str, str]:
        return blocks(page_of(path, tmp_path / "page.html", *flags))["run"]["kept"]

    found = kept()
    assert len(found) == 12
    assert [*map(int, found)] == sorted(map(int, found))
    # in none of its steps there is a gradient: the first is where that is found
    whys = {"0": "onset", "199": "before", "200": "onset", "250": "worst"}
    assert {n: found[n] for n in whys} == whys
    assert {n for n, why in found.items() if why == "end"} == {"299"}
    assert kept() == found
    assert kept("--seed", "1") != found
    assert [*kept("--steps", "1")] == ["0", "199", "200", "250", "299"]
    assert len(kept("--steps", "6")) == 6
    pages = (kept("--steps", "40", "--seed", str(seed)) for seed in range(8))
    inner = [int(n) for page in pages for n, why in page.items() if why == "sampled"]
    assert statistics.mean(inner) == pytest.approx(150, abs=20)  # ± 87/√280 = 5
    path = series(tmp_path / "short.jsonl", {"x": shift[:4]})
    assert [*kept().values()] == ["end", "all", "all", "end"]


@pytest.mark.more
def test_the_heading_and_the_fix_are_what_check_names(tmp_path: Path) -> None:
    page, sample = tmp_path / "a.html", SAMPLES / "temperature.jsonl.gz"
    assert run("report", sample, "-v", "trl/grpo", "-o", page).exit_code == 0
    (title,) = re.findall("<h1>(.*?)</h1>", page.read_text())
    assert title == "Step 30: the log-probs of engine and trainer diverged."
    facts = dict(blocks(page.read_text())["run"]["facts"])
    assert facts["likely cause"].startswith("sampling_per_token_logps is more peaked than per_")
    (event, *_) = answer("trend", sample, "-v", "trl/grpo")["events"]
    assert event["fix"] == facts["fix"]
    assert event["fix"].startswith("divide the logits by the sampling temperature")


def test_a_record_that_was_skipped_has_no_group(tmp_path):
    """One process keeps the records that it read; with several they are read again.

    What overflows is a finding.
    """
    path, out, reference = tmp_path / "run.jsonl", tmp_path / "page.html", [[-0.5], [-0.7]]
    news = [[-0.5], [-0.6]], [[-0.5], [-900.0]], [[-0.5], [-0.6]]  # e^900 is not finite
    rows = [{"step": 1, "log_probs_new": one, "log_probs_ref": reference} for one in news]
    path.write_text("".join(json.dumps(row | {"rewards": [1, 0]}) + "\n" for row in rows))
    for jobs in "12":
        assert run("report", path, "--on-error", "skip", "--jobs", jobs, "-o", out).exit_code == 0
        groups = blocks(out.read_text(encoding="utf-8"))["run"]["groups"]["1"]
        assert [one["line"] for one in groups] == [1, 3]


def test_the_series_of_an_environment_says_what_it_is(tmp_path):
    path, out = tmp_path / "run.jsonl", tmp_path / "page.html"
    logs = {"log_probs_new": [[-0.5], [-0.6]], "rewards": [1, 0]}
    rows = [logs | {"step": step, "env": env} for step in range(3) for env in ("code", "maths")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    metrics = {one["name"]: one for one in blocks(page_of(path, out))["run"]["metrics"]}
    assert "env=code" in metrics["reward_mean/env=code"]["about"]
