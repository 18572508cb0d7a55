"""What a record may expect: what is refused, what differs, and what is compared as what."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

ROLLOUTS = Path(__file__).parent.parent / "data" / "rollouts"

RECORD = {
    "log_probs_new": [[-0.9, -0.2], [-1.1]],
    "log_probs_old": [[-1.0, -0.25], [-1.0]],
    "rewards": [1.0, 0.0],
}


def write(tmp_path, *expected, **more):
    path = tmp_path / "dump.jsonl"
    rows = [json.dumps(RECORD | more | {"expected": one}) + "\n" for one in expected]
    path.write_text("".join(rows))
    return str(path)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e400"])
@pytest.mark.parametrize("where", ['{"loss": X}', '{"loss_gradient": [[X, 0.1], [0.2]]}'])
def test_what_is_not_finite_never_agrees(grpo, tmp_path, value, where):
    path = tmp_path / "dump.jsonl"
    text = json.dumps(RECORD)[:-1] + ', "expected": ' + where.replace("X", value) + "}\n"
    path.write_text(text)
    assert grpo("verify", str(path), "-v", "dr").exit_code in (1, 3)


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ({}, "expected: nothing is there to be compared"),
        ({"loss": None}, "expected: nothing is there to be compared"),
        ({"loss": [1]}, "expected.loss: expected a number, got a list"),
        ({"metrics": {"kl": "x"}}, 'expected.metrics.kl: expected a number, got "x"'),
        ({"metrics": {"mine": 1.0}}, "expected: metrics.mine cannot be compared"),
        ({"metrics": 5}, "expected.metrics: expected an object, got 5"),
        ({"losss": 1.0}, "expected.losss: verify knows no such key; did you mean loss?"),
        ({"loss": 0.1, "loss_grad": []}, "did you mean loss_gradient?"),
        ({"adv": []}, "verify knows no such key; did you mean advantage?"),
        ({"log": 1.0}, "expected.log: verify knows no such key; did you mean loss?"),
        (
            {"clip": []},
            "expected.clip: verify knows no such key; known are advantages, advantage, ",
        ),
        ({"loss_gradient": [[None, None], [None]]}, "loss_gradient cannot be compared"),
    ],
)
def test_what_cannot_be_compared_is_bad_input(grpo, tmp_path, expected, said):
    result = grpo("verify", write(tmp_path, expected), "-v", "dr")
    assert result.exit_code == 3
    assert said in result.stderr


def test_the_names_of_eval_are_compared(grpo, tmp_path):
    """Ratios e^0.1, e^0.05, e^−0.1, none of them beyond 0.2; dr divides by two responses."""
    a = [0.5, 0.5, -0.5]
    slopes = [r * w / 2 for r, w in zip(map(math.exp, (0.1, 0.05, -0.1)), a, strict=True)]
    right = {"clip_fraction": 0.0, "gradient_norm": math.hypot(*slopes)}
    path = write(tmp_path, right)
    assert grpo("verify", path, "-v", "dr").exit_code == 0
    for name in right:
        wrong = write(tmp_path, right | {name: right[name] + 0.1})
        assert grpo("verify", wrong, "-v", "dr").exit_code == 1


def test_advantages_of_a_response_without_tokens(grpo, tmp_path):
    more = {"log_probs_new": [[-0.9], []], "log_probs_old": [[-1.0], []]}
    for advantages, code in (([0.5, -0.5], 0), ([0.5, 0.5], 1)):
        path = write(tmp_path, {"advantages": advantages}, **more)
        assert grpo("verify", path, "-v", "dr").exit_code == code


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_framework_that_is_not_known_is_told_with_its_place(grpo, tmp_path, name):
    """Of lines, and of an array in which the object has a place of its own."""
    named = [{"name": "trl", "loss_type": loss} for loss in ("grpo", "nope")]
    rows = [RECORD | {"expected": {"loss": 0.1}, "framework": one} for one in named]
    text = "\n".join(map(json.dumps, rows)) if name == "a.jsonl" else json.dumps(rows)
    path = tmp_path / name
    path.write_text(text)
    said = "no variant reproduces trl's 'nope'; name one with -v"
    place = f"{path}:2: framework" if name == "a.jsonl" else f"{path}: [1].framework"
    result = grpo("verify", str(path))
    assert (result.exit_code, result.stderr) == (3, f"grpo: {place}: {said}\n")
    assert grpo("verify", str(path), "-v", "dr").exit_code == 1


def test_settings_of_the_framework_are_used(grpo, tmp_path):
    """A < 0 and mean log μ/π above the threshold: the second response is masked out."""
    more = {
        "log_probs_new": [[-1.0], [-2.0]],
        "log_probs_old": [[-1.0], [-1.0]],
        "advantages": [1.0, -1.0],
        "framework": {"name": "trl", "loss_type": "grpo", "off_policy_mask_threshold": 0.5},
    }
    assert grpo("verify", write(tmp_path, {"loss": -0.5}, **more)).exit_code == 0
    more["framework"]["off_policy_mask_threshold"] = None
    assert grpo("verify", write(tmp_path, {"loss": -0.5}, **more)).exit_code == 1


def test_scale_rewards_is_used(grpo, tmp_path):
    settings = {"name": "trl", "loss_type": "grpo", "scale_rewards": "none"}
    path = write(tmp_path, {"advantages": [0.5, -0.5]}, framework=settings)
    assert grpo("verify", path).exit_code == 0


def real(tmp_path, change):
    rows = (ROLLOUTS / "trl-1.16.0-dapo.jsonl").read_text().splitlines()
    made = json.loads(rows[3])
    made["expected"]["loss_gradient"] = [
        [change(value) for value in row] for row in made["expected"]["loss_gradient"]
    ]
    path = tmp_path / "real.jsonl"
    path.write_text(json.dumps(made) + "\n")
    return str(path)


def test_half_precision_is_named_and_agrees(grpo, tmp_path):
    result = grpo("verify", real(tmp_path, lambda value: float(np.float16(value))))
    assert result.exit_code == 0
    assert "loss_gradient was rounded to float16" in result.stderr
    nudged = real(tmp_path, lambda value: float(np.float16(value * 1.01)))
    assert grpo("verify", nudged).exit_code == 1


def test_an_unknown_difference_says_what_is_known(grpo, tmp_path):
    path = real(tmp_path, lambda value: value * (1.37 if value > 0 else 1.0))
    result = grpo("verify", path, "--json")
    first = json.loads(result.stdout)["records"][0]["first"]
    assert first["cause"] is None
    assert first["pattern"].endswith("by a constant factor: expected is ours times 1.37")


def test_when_all_else_fails_it_says_what_match_says(grpo, tmp_path):
    """A surrogate of another family, which no cause is written for."""
    record = RECORD | {"log_probs_new": [[-0.7, -0.4], [-1.3]]}
    path = write(tmp_path, None, log_probs_new=record["log_probs_new"])
    words = ("--surrogate", "gmpo", "--epsilon", "0.2", "--level", "token", "--json")
    seen = json.loads(grpo("eval", path, "-v", "dr", *words).stdout)["records"][0]
    tokens = [row["tokens"]["gradient"] for row in seen["responses"]]
    write(
        tmp_path, {"loss": seen["loss"], "gradient": tokens}, log_probs_new=record["log_probs_new"]
    )
    first = json.loads(grpo("verify", path, "-v", "dr", "--json").stdout)["records"][0]["first"]
    assert first["cause"] == "surrogate gmpo where clip is meant"
    assert first["stages"] == ["surrogate"]


def test_the_stage_is_the_culprits(grpo, tmp_path):
    path = real(tmp_path, lambda value: -value)
    row = json.loads(path and Path(path).read_text())
    row["expected"]["loss"] *= -1
    Path(path).write_text(json.dumps(row) + "\n")
    first = json.loads(grpo("verify", path, "--json").stdout)["records"][0]["first"]
    assert (first["key"], first["stage"]) == ("loss_gradient", "loss")
    assert "wrong sign" in first["cause"]


def test_what_explained_one_record_is_tried_on_the_next(grpo, tmp_path):
    """With a search allowed for none, one and all records; the same whatever the processes."""
    loss = json.loads(grpo("eval", write(tmp_path, None), "-v", "dr", "--json").stdout)
    negative = -loss["total"]["loss"]
    path = write(tmp_path, *[{"loss": negative}] * 4)
    outputs = []
    for most, named in (("0", 0), ("1", 4), ("9", 4)):
        for jobs in ("1", "2"):
            result = grpo("verify", path, "-v", "dr", "--json", "--causes", most, "--jobs", jobs)
            rows = json.loads(result.stdout)["records"]
            assert sum(row["first"]["cause"] is not None for row in rows) == named
            outputs.append(result.stdout)
    assert len({*outputs}) == 2


def test_no_more_is_said_of_records_that_are_not_searched(grpo, tmp_path):
    """Mistakes that nothing explains: a pattern is told of as many as are searched for a cause."""
    gradient = [[0.013, -0.2], [0.37]]
    path = write(tmp_path, *[{"gradient": gradient}] * 4)
    for most in (0, 1, 9):
        result = grpo("verify", path, "-v", "dr", "--json", "--causes", str(most))
        firsts = [row["first"] for row in json.loads(result.stdout)["records"]]
        assert [first["cause"] for first in firsts] == [None] * 4
        assert sum(first["pattern"] is not None for first in firsts) == min(most, 4)
        assert ("no cause was searched for" in result.stderr) is (most < 4)


def said_together(grpo, path, rows):
    """The verdicts on records of one file, which are those on each of them alone."""

    def said(*few):
        path.write_text("".join(json.dumps(row) + "\n" for row in few))
        verdicts = json.loads(grpo("verify", str(path), "-v", "dr", "--json").stdout)["records"]
        return [verdict | {"line": None} for verdict in verdicts]

    alone = [verdict for row in rows for verdict in said(row)]
    together = said(*rows)
    assert together == alone
    return together


def test_records_compared_together_say_what_each_says_alone(grpo, tmp_path):
    """Agreeing and differing records of two layouts mixed; an error stands in its place."""
    rows = []
    for at in range(9):
        row = RECORD | {"id": at, "mask": [[1, at % 2], [1]]} if at > 4 else RECORD | {"id": at}
        path = tmp_path / "one.jsonl"
        path.write_text(json.dumps(row))
        loss = json.loads(grpo("eval", str(path), "-v", "dr", "--json").stdout)["total"]["loss"]
        rows.append(row | {"expected": {"loss": loss * (1.01 if at in (1, 7) else 1.0)}})
    together = said_together(grpo, path, rows)
    assert [row["agrees"] for row in together] == [at not in (1, 7) for at in range(9)]
    rows[3] = RECORD | {"log_probs_new": [[0.9, -0.2], [-1.1]], "expected": {"loss": 0.0}}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert grpo("verify", str(path), "-v", "dr").stderr.startswith(f"grpo: {path}:4: ")
    skipped = grpo("verify", str(path), "-v", "dr", "--json", "--on-error", "skip")
    assert [row["id"] for row in json.loads(skipped.stdout)["records"]] == [0, 1, 2, 4, 5, 6, 7, 8]


def test_advantages_of_many_records_say_what_each_says_alone(grpo, tmp_path):
    """A number per response; where one differs, its response is named within its own record."""
    rows = []
    for at, rewards in enumerate([[1.0, 0.0], [0.3, 0.5], [2.0, -1.0], [0.1, 0.7]]):
        mean = sum(rewards) / 2
        advantages = [reward - mean for reward in rewards]
        if at == 2:
            advantages[1] *= 1.5
        rows.append(RECORD | {"id": at, "rewards": rewards, "expected": {"advantages": advantages}})
    together = said_together(grpo, tmp_path / "rows.jsonl", rows)
    assert [row["agrees"] for row in together] == [True, True, False, True]
    first = together[2]["first"]
    assert (first["response"], first["token"]) == (1, None)
    assert (first["expected"], first["got"], first["differing"], first["of"]) == (-2.25, -1.5, 1, 2)


def test_what_is_remembered_is_not_said_of_other_settings(grpo, tmp_path):
    """β twice as large in two records whose β are not the same: each is told its own."""
    more = {"log_probs_ref": [[-1.3, -0.1], [-1.4]]}
    rows = []
    for beta in (0.1, 0.3):
        path = write(tmp_path, None, **more)
        words = ("-v", "grpo", "--beta", str(2 * beta), "--json", "--level", "token")
        made = json.loads(grpo("eval", path, *words).stdout)["records"][0]
        gradient = [[-g for g in one["tokens"]["gradient"]] for one in made["responses"]]
        expected = {"loss": made["loss"], "loss_gradient": gradient}
        rows.append(RECORD | more | {"hyperparameters": {"beta": beta}, "expected": expected})
    path = tmp_path / "two.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = json.loads(grpo("verify", str(path), "-v", "grpo", "--json").stdout)["records"]
    assert [row["first"]["cause"] for row in found] == [
        "β is 0.2 where 0.1 is meant",
        "β is 0.6 where 0.3 is meant",
    ]
