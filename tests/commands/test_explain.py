"""What explain says of a record and of a log."""

from __future__ import annotations

import json
import math
import os
import random
import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command import answer, run
from files import each, some
from planted import DUMPS, record, telling, write

from grpo_cli import VARIANTS, evaluate

# ---- pages made from the tables, reasons that hold, and arithmetic that adds up as printed -------


def words(*, variant="grpo", record=None, hyperparameters=(), stages=(), batch=None):
    """Options as flags."""
    named = {"--variant": variant, "--record": record, "--batch": batch}
    found = [word for name, value in named.items() if value is not None for word in (name, value)]
    for name, value in dict(hyperparameters).items():
        found += ["-p", f"{name}={value}"]
    return found + [word for name, value in dict(stages).items() for word in (f"--{name}", value)]


def explained(path, **options):
    return answer("explain", path, *words(**options))


def described(name):
    return answer("explain", name)


@pytest.mark.parametrize("name", some([*VARIANTS][::24], 1))
def test_a_variant_has_a_page_with_rows_that_are_near(name):
    row, found = VARIANTS[name], described(name)
    assert (found["title"], found["note"]) == (row.title, row.note)
    assert found["formula"].startswith("J = ")
    assert all(stage["summary"] for stage in found["stages"])
    names = ("advantage", "ratio", "surrogate", "kl", "correction", "aggregate")
    names += ("kl_aggregate", "entropy", "entropy_aggregate")
    bounds = [bound for name in names if (bound := getattr(row, name)) is not None]
    assert [one["stage"] for one in found["stages"]] == [
        name for name in names if getattr(row, name) is not None
    ]
    named = {one["name"] for one in found["hyperparameters"]}
    assert named == {name for bound in bounds for name in bound.values}
    assert name not in found["same"]
    assert all(1 <= len(one["differs"]) <= 2 for one in found["near"])


@pytest.mark.more
def test_what_is_the_same_gives_the_same_numbers():
    one = record(5, [3, 8, 5, 2], [1.0, 0.0, 0.5, 0.2])
    for name in ("dr", "dapo", "gspo", "grpo"):
        for other in described(name)["same"]:
            assert evaluate(one, other).objective == pytest.approx(
                evaluate(one, name).objective, rel=1e-7
            )


def test_a_dual_clip_is_no_plain_clip():
    found = described("grpo")
    dual = next((one for one in found["near"] if one["variant"] == "dual-clip"), None)
    assert "dual-clip" not in found["same"]
    assert dual is None or any("dual_clip" in choice for choice in dual["differs"].values())


def assert_cases(name: str, said: Callable[[list[str]], list[str]]) -> None:
    """Each case of a file of ``cases`` is what ``said`` makes of its lines.

    ``GRPO_WRITE_CASES=1`` writes what is said now into the file, to be read as a diff.
    """
    path = Path(__file__).parent / "cases" / name
    written = path.read_text(encoding="utf-8").rstrip("\n").split("\n\n")
    found = ["\n".join(said(case.splitlines())) for case in written]
    if "GRPO_WRITE_CASES" in os.environ:
        path.write_text("\n\n".join(found) + "\n", encoding="utf-8")
    for now, wanted in zip(found, written, strict=True):
        assert now == wanted


def explain_records(lines: list[str]) -> list[str]:
    """A case: its title, a command, records, what ``why`` says, and which of them is worked out."""
    title, command, *rest = lines
    records = [line for line in rest if line.startswith("{")]
    document = answer(*shlex.split(command)[2:], stdin="\n".join(records))
    reasons = [f"{x['code']}: {x['text']}" for x in document["why"]]
    example = [f"worked out: line {document['record']['line']}"] if len(records) > 1 else []
    return [title, command, *records, *reasons, *example]


def test_every_reason_that_holds_is_given_and_no_other() -> None:
    assert_cases("explain.txt", explain_records)


def test_the_share_of_the_kl_is_that_of_the_numbers_beside_it():
    """A rise that is steepest in the middle, where slopes and ends differ."""
    rows = [
        {
            "log_probs_new": [[-1.0]],
            "log_probs_ref": [[-1.0 - kl]],
            "advantages": [-policy],
            "rewards": [reward / 12],
        }
        for reward, kl, policy in zip(
            range(12), [0.0] * 4 + [0.5] * 4 + [0.6] * 4, [0.0] * 5 + [0.4] * 7, strict=True
        )
    ]
    words = "explain", "-", "-v", "dr", "-p", "beta=1.0", "--kl", "k1"
    found = answer(*words, stdin="\n".join(map(json.dumps, rows)))
    (text,) = [one["text"] for one in found["why"] if one["code"] == "rising"]
    assert "the loss rises from 0 to 1 while" in text
    assert "; 60% of that is the KL penalty, from 0 to 0.6:" in text


def test_a_kl_over_many_tokens_is_not_0():
    one = {"log_probs_new": [[-1.0] * 1100], "log_probs_ref": [[-1.5] * 1100], "rewards": [1.0]}
    found = answer("explain", "-", "-v", "bnpo", stdin=json.dumps(one))
    assert "kl" in [reason["code"] for reason in found["why"]]


@pytest.mark.parametrize("variant", ["grpo", "dr", "gspo", "cispo"])
def test_parts_and_steps_add_up(variant, tmp_path):
    found = explained(write(tmp_path / "a", telling()), variant=variant)
    assert math.fsum(found["parts"].values()) == pytest.approx(found["total"]["objective"])
    steps = found["record"]
    contributions = [one["contribution"] for one in steps["responses"]]
    assert math.fsum(contributions) == pytest.approx(steps["objective"])
    for one in steps["responses"]:
        tokens = math.fsum(token["contribution"] for token in one["tokens"])
        rest = one["rest"]["contribution"] if one["rest"] else 0.0
        assert tokens + rest == pytest.approx(one["contribution"])


@pytest.mark.parametrize("ddof", [0, 1])
def test_the_printed_std_is_the_root_of_what_is_printed(ddof: int) -> None:
    """σ of the rewards 1, 0, 0, 1: Σ(r − r̄)² = 1, divided by G − ddof."""
    path = Path(__file__).parents[2] / "samples/arithmetic.jsonl"
    said = run("explain", str(path), "-p", f"std_ddof={ddof}").stdout
    divisor, value = re.search(r"σ = √\(Σ\(r − r̄\)² / (\d)\) = (\S+)", said).groups()
    assert int(divisor) == 4 - ddof
    assert float(value) == pytest.approx(math.sqrt(1.0 / (4 - ddof)), rel=1e-5)


def test_large_records_show_what_matters_and_sum_the_rest():
    path = DUMPS / "trl-1.16.0-grpo.jsonl"
    steps = explained(path, record="grpo/5")["record"]
    assert steps["id"] == "grpo/5"
    shown = [one for one in steps["responses"] if "tokens" in one]
    assert 0 < len(shown) < len(steps["responses"])
    for one in shown:
        assert len(one["tokens"]) + (one["rest"]["count"] if one["rest"] else 0) == one["length"]
        assert one["tokens"][0]["token"] is not None


@each("seed", some(range(12), 4))
def test_printed_numbers_add_up(tmp_path, seed):
    """What J is made of, and its terms; ≈ marks where rounding keeps them from it."""
    draw = random.Random(seed)
    lengths = [draw.randint(1, 9) for _ in range(draw.randint(2, 6))]
    one = record(seed, lengths, [draw.random() for _ in lengths])
    shown = " ".join(run("explain", write(tmp_path / "a", [one]), "-v", "grpo").stdout.split())
    number = r"(-?[\d.]+)"
    made = re.search(rf"objective = {number} ([=≈]) (.*?) why", shown)
    total, equals, parts = made[1], made[2], re.findall(r"([−+]? ?)([\d.]+) \(", made[3])
    found = sum(float(text) * (-1 if "−" in sign else 1) for sign, text in parts)
    terms = re.search(rf"= policy − β·kl [=≈] {number} ([−+]) {number}", shown)
    rest = float(terms[3]) * (-1 if terms[2] == "−" else 1)
    places = len(total.partition(".")[2])
    assert len(parts) == 3
    assert equals == "≈" or round(found, places) == float(total)
    places = min(places, len(terms[1].partition(".")[2]))
    assert abs(float(terms[1]) + rest - float(total)) < 1.5 * 10**-places


@each("seed", some(range(12), 4))
def test_equal_numbers_are_printed_alike(tmp_path, seed):
    """Without a clip the surrogate is ρ·A, to the digits that both columns have."""
    draw = random.Random(seed)
    path = write(tmp_path / "a", [record(seed, [9, 7, 8], [draw.random() for _ in range(3)])])
    text = run("explain", path, "-v", "grpo", "--full", COLUMNS="200").stdout
    rows = re.findall(r"^\d+ .*? (-?[\d.]+) +-?[\d.]+ +· +(-?[\d.]+)", text, re.MULTILINE)
    assert len(rows) > 5
    for product, surrogate in rows:
        places = min(len(one.partition(".")[2]) for one in (product, surrogate))
        assert abs(float(product) - float(surrogate)) < 0.501 * 10**-places, (product, surrogate)


# ---- answers that were wrong --------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["cispo", "rloo", "opo", "gpg", "max-rl"])
def test_a_surrogate_of_log_probs_adds_where_a_is_negative(variant, tmp_path):
    one = {
        "log_probs_new": [[-3.0, -2.0], [-0.1, -0.2], [-0.3, -0.1]],
        "log_probs_ref": [[-3.0, -2.0], [-0.1, -0.2], [-0.3, -0.1]],
        "rewards": [1.0, 0.0, 0.2],
    }
    found = explained(write(tmp_path / "a", [one]), variant=variant)
    text = next(one["text"] for one in found["why"] if one["code"] == "positive")
    assert found["parts"]["negative_advantages"] > 0 > found["parts"]["positive_advantages"]
    assert "A < 0 add" in text
    assert "A > 0 subtract" in text


@pytest.mark.parametrize("batch", ["input", "record"])
@pytest.mark.parametrize("variant", ["trl/gmpo", "trl/rloo"])
def test_a_response_without_tokens_counts_by_the_sign_of_its_advantage(variant, batch, tmp_path):
    """TRL gives it s = A: of two responses with A = ±1, the one without tokens adds ∓1/2."""
    for sign, full, empty in ((1, "positive", "negative"), (-1, "negative", "positive")):
        one = {
            "log_probs_new": [[-0.2, -0.3], []],
            "log_probs_old": [[-0.2, -0.3], []],
            "advantages": [sign, -sign],
        }
        parts = explained(write(tmp_path / "a", [one]), variant=variant, batch=batch)["parts"]
        assert parts[f"{full}_advantages"] == pytest.approx(sign / 2, rel=1e-12)
        assert parts[f"{empty}_advantages"] == pytest.approx(-sign / 2, rel=1e-12)


@pytest.mark.parametrize("sign", [1, -1])
def test_responses_of_one_sign_that_are_all_masked_are_the_reason(sign, tmp_path):
    """Not that lengths differ, which they then do as well."""
    one = record(1, [2, 3, 1, 2], [sign, 0, 0, 0])
    one["log_probs_old"] = one["log_probs_new"]
    one["mask"] = [[0, 0], [1, 1, 1], [1], [1, 1]]
    rows = [one, one | {"id": "other"}]
    why = explained(write(tmp_path / "a", rows), variant="dr")["why"]
    (reason,) = [each["text"] for each in why if each["code"] == "no-tokens"]
    assert f"A {'>' if sign > 0 else '<'} 0 (2)" in reason
    assert "lengths" not in [each["code"] for each in why]
    rows[1] = rows[1] | {"mask": [[1, 0], [1, 1, 1], [1], [1, 1]]}
    why = explained(write(tmp_path / "b", rows), variant="dr")["why"]
    assert "no-tokens" not in [each["code"] for each in why]


def test_of_records_without_a_token_nothing_is_said_to_be_equal(tmp_path):
    """Neither the policy and its reference, nor a group that counts in a denominator of 0."""
    live, dead = (record(seed, [3, 2], rewards) for seed, rewards in ((1, [1, 0]), (2, [1, 1])))
    rows = [one | {"mask": [[0, 0, 0], [0, 0]], "beta": 0.1} for one in (live, dead)]
    why = explained(write(tmp_path / "a", rows), variant="trl/dapo")["why"]
    assert [one["code"] for one in why] == ["empty", "no-gradient"]


def test_the_first_line_names_the_variant_and_a_formula_has_no_letter_that_is_not_introduced(
    tmp_path,
):
    rows = [record(1, [3, 2], [1.0, 0.0], step=step) for step in (1, 2)]
    shown = run("explain", write(tmp_path / "a", rows), "-v", "trl/dapo", "--batch", "step").stdout
    assert shown.startswith("trl/dapo, step 2, the last of 2: loss "), shown
    shown = " ".join(shown.split())
    assert "Σ over tokens ÷ tokens of an accumulation window." in shown
    assert "N/P" not in shown


# ---- ``grpo explain`` of a trainer's log, and of a choice: what is said when, and how it looks ---


def explain_log(lines: list[str], folder: Path) -> list[str]:
    """A case: its title, its series, and what is said of the log whose steps are from 3 on."""
    title, text = lines[:2]
    series = json.loads(text)
    steps = range(max(map(len, series.values())))
    rows = [
        {"step": at + 3} | {name: values[at] for name, values in series.items() if at < len(values)}
        for at in reversed(steps)  # out of order
    ]
    path = folder / "trainer_state.json"
    path.write_text(json.dumps({"log_history": rows}))
    found = answer("explain", path)
    head = f"{found['steps']} steps, {found['first']} to {found['last']}: "
    return [title, text, head + ", ".join(found["series"]), *found["meaning"]]


def test_what_a_log_says_and_when(tmp_path: Path) -> None:
    assert_cases("explain-log.txt", partial(explain_log, folder=tmp_path))


def test_the_command_that_is_printed_for_a_log_reads_it(grpo: Any, tmp_path: Path) -> None:
    """The command in the error of `eval` is run: it used to print the same error again."""
    logs = {
        "trainer_state.json": '{"log_history": [{"step": 1, "loss": 0.1, "kl": NaN}]}',
        "a log.jsonl": '{"step": 1, "data": {"loss": 0.1, "kl": NaN}}\n',
        "state.json": '{\n "log_history": [\n {"step": 1, "loss": 0.1, "kl": NaN}]}\n',
    }
    for name, text in logs.items():
        (tmp_path / name).write_text(text)
        error = grpo("eval", str(tmp_path / name)).stderr
        (command,) = re.findall(r"grpo (trend .*) shows its series", error)
        answer = grpo(*shlex.split(command))
        assert answer.exit_code == 0, answer.stderr
        assert "kl is NaN" in answer.stdout


def lines_of(text: str) -> list[str]:
    """The lines, those that go on joined to the one that they belong to."""
    return re.sub(r"(?<=[^\n ])\n +(?=\S)", " ", text).splitlines()


def test_a_log_on_the_screen(grpo: Any, tmp_path: Path) -> None:
    level = [0.1, -0.1, 0.2, 0.0] * 5
    reward = [*level, *(one + 5.0 for one in level)]
    rows = [{"step": at, "reward": one, "kl": 0.0} for at, one in enumerate(reward, 1)]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": rows}))
    document = json.loads(grpo("explain", str(path), "--json").stdout)
    (onset,) = document["onsets"]
    assert (onset["series"], onset["step"]) == ("reward", 21)
    every = answer("trend", path)["findings"]
    (found,) = (one for one in every if one["severity"] == "warning")
    assert (onset["kind"], onset["text"]) == (found["kind"], found["sentence"])
    shown = grpo("explain", str(path)).stdout
    assert max(map(len, shown.splitlines())) <= 80
    advice = (
        "record(trainer, path) from grpo_cli.hooks.trl records the tokens. Then run: grpo trend"
    )
    assert "".join(" ".join(lines_of(shown)).split()) == "".join(
        " ".join(
            [
                "a log of 40 steps, 1 to 40",
                "reward, kl",
                *document["meaning"],
                f"step 21  {onset['kind']}  {onset['text']}",
                "a log does not show",
                *document["unknown"],
                f"{advice} RUN --log LOG",
            ]
        ).split()
    )
    blank = [at for at, line in enumerate(shown.splitlines()) if not line]
    assert [shown.splitlines()[at + 1][:5] for at in blank] == ["kl is", "step ", "a log"]
