"""``grpo verify`` as users run it: streams, exit codes, what is said."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import orjson
import pytest

from grpo_cli import evaluate, verify
from grpo_cli.commands.verify.view import joined

ROLLOUTS = Path(__file__).parent.parent / "data" / "rollouts"
DAPO = ROLLOUTS / "trl-1.16.0-dapo.jsonl"


def planted(tmp_path, change):
    rows = [json.loads(line) for line in DAPO.read_text().splitlines()]
    change(rows[2])
    path = tmp_path / "dump.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_real_dump_agrees_and_the_row_taken_is_said(grpo):
    result = grpo("verify", str(DAPO))
    assert result.exit_code == 0
    assert result.stdout.startswith("8 records agree: loss_gradient, loss, ")
    assert "8 records evaluated as -v trl/dapo" in result.stderr
    assert "not compared: metrics.entropy" in result.stderr
    assert grpo("verify", str(DAPO), "-q").stderr == ""


def test_every_rollout_just_works(grpo):
    assert grpo("verify", *map(str, sorted(ROLLOUTS.glob("*.jsonl")))).exit_code == 0


def test_a_metric_that_differs_does_not_make_the_loss_wrong(grpo, tmp_path):
    def change(row):
        row["expected"]["metrics"]["clip_ratio/low_mean"] = 0.5

    path = planted(tmp_path, change)
    result = grpo("verify", path)
    assert result.exit_code == 0
    (said,) = [line for line in result.stderr.splitlines() if "low_mean differs" in line]
    assert re.fullmatch(
        r"grpo: note: metrics.clip_ratio/low_mean differs in 1 record "
        r"\(\S+: yours 0.5, grpo's \S+\); a metric alone fails no record",
        said,
    )
    assert "metrics.clip_ratio/high_mean" in result.stdout
    assert "metrics.clip_ratio/low_mean" not in result.stdout
    document = json.loads(grpo("verify", path, "--json").stdout)
    assert document["agrees"]
    assert document["metrics_differ"] == {"metrics.clip_ratio/low_mean": 1}
    assert [len(row["metrics"]) for row in document["records"]] == [0, 0, 1, 0, 0, 0, 0, 0]
    assert document["records"][2]["metrics"][0]["expected"] == 0.5
    answer = verify(path)
    assert answer.metrics_differ == document["metrics_differ"]
    assert [one.key for one in answer.records[2].metrics] == ["metrics.clip_ratio/low_mean"]


def test_metrics_decide_where_nothing_else_is_expected(grpo, tmp_path):
    def change(row):
        row["expected"] = {"metrics": {"clip_ratio/low_mean": 0.5}}

    result = grpo("verify", planted(tmp_path, change))
    assert result.exit_code == 1
    assert "metrics.clip_ratio/low_mean (stage metrics)" in result.stdout


def test_metrics_have_a_tolerance_of_their_own(grpo, tmp_path):
    """Trainers log them in float32: 1e-5 of one is nothing, whatever --rtol asks of the loss."""

    def change(row):
        row["expected"]["metrics"]["clip_ratio/high_mean"] *= 1 + 1e-5

    result = grpo("verify", planted(tmp_path, change), "--rtol", "1e-9", "--atol", "1e-6")
    assert "metrics.clip_ratio/high_mean differs" not in result.stderr


WRONG = (
    {"stages": {"surrogate": "unclipped"}},
    {"std_ddof": 0},
    {"beta": 0.1},
)


def differing(count):
    """Records with a mistake that changes; every seventh is right, half of them are masked."""
    random = np.random.default_rng(3)
    for at in range(count):
        rows = [random.uniform(-3, -0.1, length) for length in (4, 6, 3, 5)]
        record = {
            "log_probs_new": [np.minimum(row + random.normal(0, 0.3, len(row)), 0) for row in rows],
            "log_probs_old": rows,
            "log_probs_ref": [row - 0.1 for row in rows],
            "rewards": random.integers(0, 90, 4) / 10 + 0.05 * np.arange(4),
        }
        masked = at // 12 % 2 == 1
        if masked:
            record["mask"] = [[1] * (len(row) - 1) + [0] for row in rows]
        wrong = {} if at % 7 == 6 else WRONG[at % len(WRONG)]
        plain = orjson.loads(orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY))
        seen = evaluate(plain, **wrong)
        gradient = [[*row, None] for row in seen.gradient] if masked else seen.gradient
        noise = 1.0 if at % 11 else 1.3
        record["expected"] = {"loss": noise * seen.loss, "gradient": gradient}
        yield orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY)


def test_no_answer_depends_on_what_is_evaluated_together(grpo, tmp_path, monkeypatch):
    path = tmp_path / "many.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in differing(48)))
    words = ("verify", str(path), "--json", "--causes", "5")
    together = json.loads(grpo(*words).stdout)
    monkeypatch.setattr("grpo_cli.engine.chunk._TOKENS", 1)
    alone = json.loads(grpo(*words).stdout)
    assert together == alone
    assert len({row["first"]["cause"] for row in alone["records"] if row["first"]}) >= len(WRONG)
    assert 36 < alone["differing"] < 48


def test_a_difference_is_1_with_its_place_and_cause(grpo, tmp_path):
    def negate(row):
        row["expected"]["loss"] *= -1
        del row["expected"]["loss_gradient"]

    result = grpo("verify", planted(tmp_path, negate))
    assert result.exit_code == 1
    assert "differs record dapo/2" in result.stdout
    assert "wrong sign" in result.stdout
    assert "1 of 8 records differs" in result.stdout


def test_json_has_the_shape_that_is_promised(grpo, tmp_path):
    def nudge(row):
        row["expected"]["loss_gradient"][3][1] += 1.0

    result = grpo("verify", planted(tmp_path, nudge), "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 1
    assert document["agrees"] is False
    assert [row["agrees"] for row in document["records"]] == [at != 2 for at in range(8)]
    row = document["records"][2]
    assert row["id"] == "dapo/2"
    first = row["first"]
    assert (first["stage"], first["response"], first["token"]) == ("gradient", 3, 1)
    assert first["expected"] - first["got"] == pytest.approx(1.0, rel=1e-3)
    assert first["cause"] is None
    assert document["records"][0]["first"] is None


def test_flags_win_over_what_the_record_says(grpo):
    assert grpo("verify", str(DAPO), "-v", "trl/dapo").exit_code == 0
    assert grpo("verify", str(DAPO), "-v", "dr", "-q").exit_code == 1
    assert grpo("verify", str(DAPO), "--surrogate", "unclipped", "-q").exit_code == 1
    assert "aggregate" in grpo("verify", str(DAPO), "-v", "dr", "-q").stdout


def test_tolerances(grpo, tmp_path):
    def nudge(row):
        row["expected"]["loss"] *= 1.001

    path = planted(tmp_path, nudge)
    assert grpo("verify", path).exit_code == 1
    assert grpo("verify", path, "--rtol", "0.01").exit_code == 0
    assert grpo("verify", path, "--atol", "0.1").exit_code == 0
    assert grpo("verify", path, "--rtol", "-1").exit_code == 2


def test_nothing_expected_is_bad_input_with_a_hint(grpo, dump):
    result = grpo("verify", str(dump({})))
    assert result.exit_code == 3
    assert result.stdout == ""
    assert '"expected"' in result.stderr


def test_records_without_expected_are_counted(grpo, dump):
    loss = json.loads(grpo("eval", str(dump({})), "--json").stdout)["total"]["loss"]
    path = str(dump({}, {"expected": {"loss": loss}}, {}))
    result = grpo("verify", path)
    assert result.exit_code == 0
    assert '2 of 3 records have no "expected"' in result.stderr
    assert "1 record agrees: loss" in result.stdout


def test_a_nan_of_no_token_is_neither_agreement_nor_a_wrong_loss(grpo, dump):
    """verl's mean over nothing is NaN (tests/parity/test_verl_hook.py); a NaN elsewhere differs."""

    def verify(*records):
        return grpo("verify", str(dump(*map(json.dumps, records))))

    verl = {"framework": {"name": "verl", "policy_loss": "gspo"}, "advantages": [1.0, 2.0]}
    nan = {"expected": {"policy_loss": float("nan")}}
    none = verl | nan | {"log_probs_new": [[], []], "log_probs_old": [[], []]}
    some = verl | {"log_probs_new": [[-1.0], []], "log_probs_old": [[-1.0], []]}
    result = verify(none, some | {"expected": {"policy_loss": -1.0}})
    assert result.exit_code == 0
    assert "1 record agrees: policy_loss" in result.stdout
    said = "grpo: note: no token counts in 1 record: your loss is NaN (0/0), grpo's 0; not compared"
    assert said in result.stderr.splitlines()
    assert verify(some | nan).exit_code == 1
    result = verify(none)
    assert result.exit_code == 3
    assert "no token counts in a record that expects a number" in result.stderr


def test_what_was_taken_for_granted_when_reading_is_told(grpo, dump):
    masks = {"loss_mask": [[1, 1], [1]], "response_mask": [[1, 1], [1]]}
    one = {"log_probs_new": [[-0.5, -0.2], [-0.3]], "rewards": [1, 0], "expected": {"loss": 9.0}}
    path = str(dump(one | masks))
    (note,) = grpo("eval", path, "-v", "grpo", "--beta", "0").stderr.splitlines()[:1]
    assert "mask" in note
    assert note in grpo("verify", path, "-v", "grpo", "--beta", "0").stderr.splitlines()
    assert not grpo("verify", path, "-v", "grpo", "--beta", "0", "--quiet").stderr


def test_bad_records_stop_or_are_skipped(grpo, dump):
    path = str(
        dump('{"log_probs_new": [[1.0]], "expected": {"loss": 0}}', {"expected": {"loss": 9}})
    )
    assert grpo("verify", path).exit_code == 3
    result = grpo("verify", path, "--on-error", "skip")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"grpo: {path}:1: ")
    assert "skipped 1 of 2 records" in result.stderr


def test_what_grpo_says_of_its_tokens_can_be_expected(grpo, dump):
    path = str(dump({}))
    record = json.loads(grpo("eval", path, "-f", "jsonl", "--nest", "--level", "token").stdout)
    expected = {"objective": record["objective"], "kl": record["kl"]}
    for name in ("ratio", "surrogate", "weight", "contribution", "gradient", "log_ratio"):
        expected[name] = [one["tokens"][name] for one in record["responses"]]
    expected["advantages"] = [one["advantage"] for one in record["responses"]]
    result = grpo("verify", str(dump({"expected": expected})), "--rtol", "1e-12", "--atol", "0")
    assert result.exit_code == 0, result.stdout


def test_a_cause_that_has_two_names_here_is_said_once(grpo):
    """Nothing is masked, so a response's tokens and its tokens as written are one number."""
    shown = grpo("verify", "samples/trl_grpo.jsonl", "-v", "dr", "-q").stdout
    (cause,) = re.findall(r"cause    (another .*(?:\n {11}.*)*)", shown)
    assert " ".join(cause.split()) == (
        "another denominator: each token is divided by its response's tokens × the number of "
        "responses (response-mean: mean over responses of each one's) × the accumulation steps, "
        "where responses are meant"
    )


@pytest.mark.parametrize(
    ("causes", "said"),
    [
        ([], ""),
        (["a wrong sign"], "a wrong sign"),
        (["a wrong sign", "a cost for a reward"], "a wrong sign or a cost for a reward"),
        (["cut by a, where x", "cut by b by c, where x"], "cut by a or by b by c, where x"),
        (["cut by a, where x", "cut by a, where y"], "cut by a, where x or cut by a, where y"),
        (["no cut, where x", "none, where x"], "no cut, where x or none, where x"),
    ],
)
def test_what_causes_begin_and_end_with_is_said_once(causes, said):
    assert joined(causes) == said


def test_what_cancels_between_responses_without_tokens_is_rounding(grpo, tmp_path):
    """TRL's RLOO gives a response without tokens the term A: three of them add up to 0, nearly."""
    record = {
        "log_probs_new": [[-1.0], [-1.0], [-1.0]],
        "log_probs_old": [[-1.0], [-1.0], [-1.0]],
        "mask": [[0], [0], [0]],
        "advantages": [0.1, 0.2, -0.3],
        "beta": 0.0,
        "expected": {"loss": 0.0},
    }
    path = tmp_path / "masked.jsonl"
    path.write_text(json.dumps(record) + "\n")
    assert evaluate(record, "trl/rloo").loss != 0.0
    assert grpo("verify", str(path), "-v", "trl/rloo").exit_code == 0


def on_the_reference(loss=0.0):
    """Advantages of 0 and a reference that is the policy but for rounding, k3 in float32."""
    new = np.linspace(-3.0, -0.5, 8, dtype=np.float32)
    ref = new + np.float32(2e-7) * np.arange(-4, 4, dtype=np.float32)
    x = ref - new
    k3 = np.exp(x) - x - np.float32(1.0)
    slope = (np.float32(1.0) - np.exp(x)) * np.float32(0.04 / 8)
    assert np.abs(k3).max() > 100 * np.abs(x.astype(float) ** 2).max()  # nothing but rounding
    return {
        "log_probs_new": [new.tolist()],
        "log_probs_old": [new.tolist()],
        "log_probs_ref": [ref.tolist()],
        "advantages": [0.0],
        "beta": 0.04,
        "expected": {"loss": float(0.04 * k3.mean()) + loss, "loss_gradient": [slope.tolist()]},
    }


def test_what_float32_leaves_of_a_kl_of_nothing_is_rounding(grpo, tmp_path):
    path = tmp_path / "dead.jsonl"
    for count in (1, 3):  # one by one, and together
        path.write_text(count * (json.dumps(on_the_reference()) + "\n"))
        assert grpo("verify", str(path), "-v", "trl/grpo").exit_code == 0
        path.write_text(count * (json.dumps(on_the_reference(loss=1e-6)) + "\n"))
        assert grpo("verify", str(path), "-v", "trl/grpo").exit_code == 1
