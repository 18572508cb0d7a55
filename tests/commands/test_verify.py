"""``grpo verify``: what agrees, what differs and where, what is refused, and what is noted."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from command import answer, run
from files import each, some
from mistakes import FLAGS, LENGTHS, compute, difference
from mistakes import RECORD as WORKED
from planted import record, write

from grpo_cli import InputError, check, evaluate, verify

ROLLOUTS = Path(__file__).parent.parent / "data" / "rollouts"
DAPO = ROLLOUTS / "trl-1.16.0-dapo.jsonl"
RECORD: dict[str, Any] = {
    "log_probs_new": [[-0.9, -0.2], [-1.1]],
    "log_probs_old": [[-1.0, -0.25], [-1.0]],
    "rewards": [1.0, 0.0],
}


def dapo(at: int = 2) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(DAPO.read_text().splitlines()[at])
    return row


def changed(tmp_path: Path, change: Any, *, among: bool = True) -> str:
    """The third of TRL's records with its expected numbers changed, among the others or alone."""
    row = dapo()
    change(row["expected"])
    rows = [dapo(at) for at in range(8)]
    rows[2] = row
    return str(write(tmp_path / "dump.jsonl", rows if among else [row]))


def negate(expected: dict[str, Any]) -> None:
    expected["loss"] *= -1
    expected["loss_gradient"] = [[-x for x in row] for row in expected["loss_gradient"]]


# ---- what agrees --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(ROLLOUTS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_real_dumps_agree_with_what_their_trainer_computed(path) -> None:
    """float32 trainers to 1e-5, verl's float64 cases (with float32 statistics) to 1e-6."""
    rtol = {"trl-1.16.0-grpo": 1e-5, "verl-0.9.1-cases": 1e-6}.get(path.stem)
    found = verify(str(path), **({"rtol": rtol} if rtol else {}))
    assert found.ok, [one.first for one in found.records]
    assert all({"loss", "loss_gradient"} <= {*one.compared} for one in found.records)


@pytest.mark.more
def test_the_truth_of_an_answer_is_no_verdict() -> None:
    """Of any other object ``assert verify(…)`` would pass."""
    for found in (verify(RECORD | {"expected": {"loss": 9.0}}, "dr"), check(RECORD)):
        with pytest.raises(ValueError, match=r"is ambiguous: use \.ok"):
            bool(found)


def test_what_eval_prints_of_its_tokens_can_be_expected(tmp_path) -> None:
    path = write(tmp_path / "a.jsonl", [RECORD | {"log_probs_ref": RECORD["log_probs_old"]}])
    words = ("-f", "jsonl", "--nest", "--level", "token")
    row = json.loads(run("eval", path, *words).stdout)
    expected = {"objective": row["objective"], "kl": row["kl"]}
    for name in ("ratio", "surrogate", "weight", "contribution", "gradient", "log_ratio"):
        expected[name] = [one["tokens"][name] for one in row["responses"]]
    expected["advantages"] = [one["advantage"] for one in row["responses"]]
    write(path, [RECORD | {"log_probs_ref": RECORD["log_probs_old"], "expected": expected}])
    result = run("verify", path, "--rtol", "1e-12", "--atol", "0")
    assert result.exit_code == 0, result.stdout


@pytest.mark.more
def test_sums_that_cancel_are_compared_with_what_cancels() -> None:
    row = {"log_probs_new": [[-1.0], [-2.0]], "rewards": [1.0, 0.0]}
    assert verify(row | {"expected": {"loss": 3e-8}}, "dr").ok
    assert not verify(row | {"expected": {"loss": 3e-5}}, "dr").ok
    ones = [[-1.0]] * 3  # TRL's RLOO gives a response without tokens the term A
    masked = {"log_probs_new": ones, "log_probs_old": ones, "mask": [[0]] * 3, "beta": 0.0}
    masked |= {"advantages": [0.1, 0.2, -0.3]}
    assert evaluate(masked, "trl/rloo").loss != 0.0
    assert verify(masked | {"expected": {"loss": 0.0}}, "trl/rloo").ok


@pytest.mark.more
def test_what_float32_leaves_of_a_kl_of_nothing_is_rounding() -> None:
    """Advantages of 0 and a reference that is the policy but for rounding, k3 in float32."""
    new = np.linspace(-3.0, -0.5, 8, dtype=np.float32)
    ref = new + np.float32(2e-7) * np.arange(-4, 4, dtype=np.float32)
    x = ref - new
    k3 = np.exp(x) - x - np.float32(1.0)
    slope = (np.float32(1.0) - np.exp(x)) * np.float32(0.04 / 8)
    assert np.abs(k3).max() > 100 * np.abs(x.astype(float) ** 2).max()  # nothing but rounding
    rows = {"log_probs_new": [new.tolist()], "log_probs_old": [new.tolist()]}
    rows |= {"log_probs_ref": [ref.tolist()], "advantages": [0.0], "beta": 0.04}
    for more, agrees in ((0.0, True), (1e-6, False)):
        expected = {"loss": float(0.04 * k3.mean()) + more, "loss_gradient": [slope.tolist()]}
        for count in (1, 3):  # one by one, and together
            found = verify([rows | {"expected": expected}] * count, "trl/grpo", causes=0)
            assert found.ok is agrees


# ---- where it differs ---------------------------------------------------------------------------


@each(
    ("keys", "factor", "key", "response", "token"),
    [
        (("advantages", "loss"), 1.1, "advantages", 0, None),
        (("ratio", "kl", "gradient"), 1.1, "ratio", 0, 0),
        (("kl", "loss"), 1.1, "kl", 0, 0),
        (("gradient", "loss"), 1.1, "gradient", 0, 0),
        (("loss",), 1.1, "loss", None, None),
    ],
)
def test_the_first_stage_that_differs_is_named_with_its_place(
    keys, factor, key, response, token
) -> None:
    seen = evaluate(WORKED, **FLAGS).breakdown
    j, slopes = compute()
    cuts = np.cumsum(LENGTHS)[:-1]
    by_token = {"ratio": seen.ratio, "kl": seen.kl}
    expected: dict[str, Any] = {
        name: [part.tolist() for part in np.split(factor * values, cuts)]
        for name, values in by_token.items()
    }
    expected |= {"loss": -factor * j, "advantages": [factor * a for a in WORKED["advantages"]]}
    expected["gradient"] = [[factor * slope for slope in row] for row in slopes]
    first = difference({name: expected[name] for name in keys}, flags={"causes": 0})
    assert (first.key, first.response, first.token) == (key, response, token)


def test_all_that_differs_is_listed_in_the_order_of_the_stages() -> None:
    expected = {"loss": 9.0, "ratio": [[9.0, 9.0]], "advantages": [1.0], "gradient": [[9.0, 9.0]]}
    row = {"log_probs_new": [[-1.0, -2.0]], "advantages": [1.0], "expected": expected}
    (found,) = verify(row, "dr", causes=0).records
    assert found.first is not None
    assert (found.first.key, found.first.differing, found.first.of) == ("ratio", 2, 2)
    assert found.also == ("gradient", "loss")
    assert found.compared == ("advantages", "ratio", "gradient", "loss")


def test_tokens_are_named_by_their_position_as_written() -> None:
    row = {"log_probs_new": [[-1.0] * 3] * 2, "mask": [[0, 1, 1], [0, 0, 1]]}
    expected = {"ratio": [[None, 1.0, 1.0], [None, None, 2.0]]}
    (found,) = verify(row | {"rewards": [1.0, 0.0], "expected": expected}, "dr").records
    assert found.first is not None
    assert (found.first.response, found.first.token) == (1, 2)


@pytest.mark.more
def test_a_difference_as_users_run_it(tmp_path) -> None:
    result = run("verify", changed(tmp_path, negate))
    assert result.exit_code == 1
    for said in ("\nrecord dapo/2 of step", "wrong sign", "1 of 8 records differs"):
        assert said in result.stdout
    found = verify(changed(tmp_path, negate)).records[2].first
    assert found is not None
    assert (found.key, found.stage) == ("loss_gradient", "loss")  # the stage of the cause
    assert "wrong sign" in (found.cause or "")

    def nudge(expected: dict[str, Any]) -> None:
        expected["loss_gradient"][3][1] += 1.0

    document = answer("verify", changed(tmp_path, nudge))
    assert [row["agrees"] for row in document["records"]] == [at != 2 for at in range(8)]
    row = document["records"][2]
    first = row["first"]
    assert (row["id"], first["stage"], first["response"], first["token"], first["differing"]) == (
        *("dapo/2", "gradient", 3, 1, 1),
    )
    assert first["expected"] - first["got"] == pytest.approx(1.0, rel=1e-3)
    assert first["cause"] is None
    assert document["records"][0]["first"] is None


@pytest.mark.more
def test_tolerances(tmp_path) -> None:
    def nudge(expected: dict[str, Any]) -> None:
        expected["loss"] *= 1.001
        expected["metrics"]["clip_ratio/high_mean"] *= 1 + 1e-5  # logged in float32

    path = changed(tmp_path, nudge)
    for words, code in (
        ((), 1), (("--rtol", "0.01"), 0), (("--atol", "0.1"), 0), (("--rtol", "-1"), 2),
    ):  # fmt: skip
        result = run("verify", path, *words)
        assert result.exit_code == code, words
        assert "high_mean differs" not in result.stderr
    for words, said in (("--rtol=1e-9", False), ("--metrics-rtol=1e-6", True)):
        assert ("high_mean differs" in run("verify", path, words, "--atol=1e-6").stderr) is said


def test_half_precision_is_named_and_agrees(tmp_path) -> None:
    def to_half(times: float) -> Any:
        def change(expected: dict[str, Any]) -> None:
            rows = expected["loss_gradient"]
            expected["loss_gradient"] = [[float(np.float16(times * x)) for x in r] for r in rows]

        return change

    result = run("verify", changed(tmp_path, to_half(1.0)))
    assert result.exit_code == 0
    assert "loss_gradient was rounded to float16" in result.stderr
    assert run("verify", changed(tmp_path, to_half(1.01))).exit_code == 1


# ---- metrics ------------------------------------------------------------------------------------


def test_a_metric_that_differs_does_not_make_the_loss_wrong(tmp_path) -> None:
    path = changed(tmp_path, lambda made: made["metrics"].update({"clip_ratio/low_mean": 0.5}))
    result = run("verify", path)
    assert result.exit_code == 0
    (said,) = [line for line in result.stderr.splitlines() if "low_mean differs" in line]
    assert re.fullmatch(
        r"grpo: note: metrics.clip_ratio/low_mean differs in 1 record "
        r"\(\S+: yours 0.5, computed \S+\); metrics do not change the verdict",
        said,
    )
    assert "clip_ratio/high_max agree; clip_ratio/low_mean differs in 1 record" in result.stdout
    document, found = answer("verify", path), verify(path)
    assert document["ok"]
    assert document["metrics_differ"] == found.metrics_differ == {"metrics.clip_ratio/low_mean": 1}
    assert [len(row["metrics"]) for row in document["records"]] == [0, 0, 1, 0, 0, 0, 0, 0]
    assert document["records"][2]["metrics"][0]["expected"] == 0.5
    assert [one.key for one in found.records[2].metrics] == ["metrics.clip_ratio/low_mean"]


def test_metrics_decide_where_nothing_else_is_expected() -> None:
    row = dapo() | {"expected": {"metrics": {"clip_ratio/low_mean": 0.5}}}
    first = verify(row).records[0].first
    assert first is not None
    assert (first.key, first.stage) == ("metrics.clip_ratio/low_mean", "metrics")


@pytest.mark.more
def test_the_names_of_eval_are_compared() -> None:
    """Ratios e^0.1, e^0.05, e^−0.1, none of them beyond 0.2; dr divides by two responses."""
    a = [0.5, 0.5, -0.5]
    slopes = [r * w / 2 for r, w in zip(map(math.exp, (0.1, 0.05, -0.1)), a, strict=True)]
    right = {"clip_fraction": 0.0, "gradient_norm": math.hypot(*slopes)}
    assert verify(RECORD | {"expected": right}, "dr").ok
    for name, value in right.items():
        assert not verify(RECORD | {"expected": right | {name: value + 0.1}}, "dr").ok


# ---- what cannot be compared --------------------------------------------------------------------


@each(
    ("expected", "said"),
    [
        ({}, "expected: nothing was compared"),
        ({"loss": None}, "expected: nothing was compared"),
        ({"loss": [1]}, "expected.loss: expected a number, got a list"),
        ({"loss": "x"}, 'expected.loss: expected a number, got "x"'),
        ([1.0], "expected: expected an object, got a list"),
        ({"gradient": 1.0}, "expected.gradient: expected a list of numbers, got 1"),
        ({"advantages": [1.0]}, "expected.advantages: expected 2 numbers (one per response)"),
        ({"ratio": [[1.0], [1.0]]}, "expected.ratio[0]: expected 2 numbers (one per token), got 1"),
        ({"metrics": {"kl": "x"}}, 'expected.metrics.kl: expected a number, got "x"'),
        ({"metrics": {"mine": 1.0}}, "expected: metrics.mine cannot be compared"),
        ({"metrics": 5}, "expected.metrics: expected an object, got 5"),
        ({"losss": 1.0}, "expected.losss: verify does not know this key; did you mean loss?"),
        ({"loss_grad": [], "zzz": 1, "los": 1}, "metrics) Also unknown: zzz, los (loss?)"),
        ({"clip": []}, "verify does not know this key; did you mean clip_fraction?"),
        ({"adv": []}, "verify does not know this key; did you mean advantage?"),
        (
            {("zzz"): []},
            ("expected.zzz: verify does not know this key; known keys: advantages, advantage,"),
        ),
        ({"loss_gradient": [[None, None], [None]]}, "loss_gradient cannot be compared"),
    ],
)
def test_what_cannot_be_compared_is_bad_input(expected, said) -> None:
    with pytest.raises(InputError) as error:
        verify(RECORD | {"expected": expected}, "dr")
    assert said in str(error.value)


def test_records_that_expect_nothing(dump) -> None:
    result = run("verify", dump({}))
    assert (result.exit_code, result.stdout) == (3, "")
    assert '"expected"' in result.stderr
    loss = evaluate(str(dump({}))).loss
    result = run("verify", dump({}, {"expected": {"loss": loss}}, {}))
    assert result.exit_code == 0
    assert '2 of 3 records have no "expected"' in result.stderr
    assert "1 record agrees: loss" in result.stdout


# ---- what the framework says --------------------------------------------------------------------


def test_settings_of_the_framework_are_used() -> None:
    """A < 0 and mean log μ/π above the threshold: the second response is masked out."""
    row = {"log_probs_new": [[-1.0], [-2.0]], "log_probs_old": [[-1.0], [-1.0]]}
    row |= {"advantages": [1.0, -1.0], "expected": {"loss": -0.5}}
    for threshold, agrees in ((0.5, True), (None, False)):
        settings = {"name": "trl", "loss_type": "grpo", "off_policy_mask_threshold": threshold}
        assert verify(row | {"framework": settings}).ok is agrees
    settings = {"name": "trl", "loss_type": "grpo", "scale_rewards": "none"}
    assert verify(RECORD | {"framework": settings, "expected": {"advantages": [0.5, -0.5]}}).ok
    with pytest.raises(InputError, match="name one with stages="):
        verify(RECORD | {"expected": {"loss": 0.0}, "framework": {
            "name": "verl", "loss_agg_mode": "unheard-of",
        }})  # fmt: skip


@pytest.mark.more
def test_the_rows_that_were_taken_are_noted(tmp_path) -> None:
    """The first, and how many were evaluated otherwise; with --full all."""
    losses = ["grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "gspo"]
    rows = []
    for at, loss in enumerate(losses):
        settings = {"name": "trl", "loss_type": loss} if loss != "gspo" else {
            "name": "trl", "loss_type": "grpo", "importance_sampling_level": "sequence"
        }  # fmt: skip
        rows += [RECORD | {"framework": settings, "expected": {"loss": 0.0}}] * (at + 1)
        rows[-1] |= {"hyperparameters": {"max_completion_length": 64}}
    path = write(tmp_path / "a.jsonl", rows)
    for words, count in (((), 1), (("--full",), 7)):
        stderr = run("verify", path, "--causes", "0", *words).stderr
        said = [line.partition("note: ")[2] for line in stderr.splitlines()]
        taken = [line for line in said if "evaluated as" in line]
        assert len(taken) == count
        assert taken[0].startswith("1 record evaluated as -v trl/")
        more = "27 records evaluated with other settings (--full lists them)"
        assert (more in said) is (not words)
    assert taken[6].startswith("7 records evaluated as -v trl/")


# ---- many records -------------------------------------------------------------------------------


@pytest.mark.more
def test_what_explained_one_record_is_tried_on_the_next(tmp_path) -> None:
    """With a search allowed for none, one and all; the same whatever the processes."""
    negative = -evaluate(RECORD, "dr").loss
    path = write(tmp_path / "a.jsonl", [RECORD | {"expected": {"loss": negative}}] * 4)
    outputs = set()
    for most, named in (("0", 0), ("1", 4), ("9", 4)):
        for jobs in ("1", "2"):
            words = ("verify", path, "-v", "dr", "--json", "--causes", most, "--jobs", jobs)
            output = run(*words).stdout
            rows = json.loads(output)["records"]
            assert sum(row["first"]["cause"] is not None for row in rows) == named
            outputs.add(output)
    assert len(outputs) == 2


@pytest.mark.more
def test_one_verdict_comes_first_and_then_a_record_for_each_cause(tmp_path) -> None:
    """Two mistakes in three records; --full prints each record that differs."""
    rows = [dapo(at) for at in range(4)]
    for row, factor in zip(rows[1:], (-1.0, -1.0, -0.37), strict=True):
        row["expected"] = {"loss": factor * row["expected"]["loss"]}
    path = write(tmp_path / "a.jsonl", rows)
    result = run("verify", path, "--quiet")
    lines = result.stdout.splitlines()
    assert lines[0].startswith(
        "3 of 4 records differ, 2 of them explained by: wrong sign: your loss"
    )
    assert "record dapo/1" in result.stdout
    assert "record dapo/2" not in result.stdout
    assert "record dapo/3" in result.stdout
    assert "  yours    " in result.stdout
    assert "  computed " in result.stdout
    assert lines[-1] == "… 1 more record differs (see --full or --json)"
    full = run("verify", path, "--quiet", "--full").stdout
    assert all(f"record dapo/{at}" in full for at in (1, 2, 3))
    document = answer("verify", path)
    assert (document["explained"], len(document["causes"])) == (2, 1)
    found = [row["first"]["mistakes"] for row in document["records"][1:]]
    assert found == [["loss-sign"], ["loss-sign"], []]
    write(path, rows[1:3])
    said = run("verify", path).stdout
    assert said.startswith("2 of 2 records differ, all explained by: wrong sign")
    for row, number in zip(rows[1:3], (0.3, 0.7), strict=True):  # one mistake, two numbers
        seen = evaluate(row)
        slopes = [[number * x for x in one] for one in seen.gradient]
        row["expected"] = {"objective": number * seen.objective, "gradient": slopes}
    write(path, rows[1:3])
    said = " ".join(run("verify", path).stdout.split())
    words = "the same cause in all 2 records, with another number in each; in record "
    assert said.startswith(f"2 of 2 records differ: {words}{rows[1]['id']}: ")


@pytest.mark.more
def test_no_more_is_said_of_records_that_are_not_searched(tmp_path) -> None:
    """Mistakes that nothing explains; where they are is said of the first and of those searched."""
    row = RECORD | {"expected": {"gradient": [[0.013, -0.2], [0.37]]}}
    path = write(tmp_path / "a.jsonl", [row] * 4)
    for most in (0, 1, 9):
        result = run("verify", path, "-v", "dr", "--json", "--causes", most)
        firsts = [row["first"] for row in json.loads(result.stdout)["records"]]
        assert [first["cause"] for first in firsts] == [None] * 4
        located = ("3 of 3 gradients differ" in (first["pattern"] or "") for first in firsts)
        assert sum(located) == min(max(most, 1), 4)
        note = (
            f"no cause was searched for in {4 - most} of 4 differing records "
            "(--causes 4 searches all)"
        )
        assert (note in result.stderr) is (most < 4)
        table = run("verify", path, "-v", "dr", "--causes", most).stdout
        assert "where    3 of 3 gradients differ" in table


def test_what_is_remembered_is_not_said_of_other_settings() -> None:
    """β twice as large in two records whose β are not the same: each has its own cause."""
    rows = []
    for beta in (0.1, 0.3):
        row = RECORD | {"log_probs_ref": [[-1.3, -0.1], [-1.4]]}
        seen = evaluate(row, beta=2 * beta)
        expected = {"objective": seen.objective, "gradient": seen.gradient}
        rows.append(row | {"hyperparameters": {"beta": beta}, "expected": expected})
    found = [row.first.cause for row in verify(rows, "grpo").records if row.first]
    assert found == [
        "β is 0.2 instead of 0.1 (-p beta=0.2)",
        "β is 0.6 instead of 0.3 (-p beta=0.6)",
    ]


def test_what_is_remembered_serves_records_of_other_token_counts() -> None:
    """verl counts the tokens of each micro-batch: one search is enough for all of them."""
    rows = []
    for tokens in (3, 5, 7):
        row = RECORD | {"advantages": [1.0, -0.5], "hyperparameters": {"batch_num_tokens": tokens}}
        seen = evaluate(row, "verl/vanilla", batch="record")
        expected = {"loss": -seen.loss, "loss_gradient": seen.gradient}
        rows.append(row | {"expected": expected})
    found = verify(rows, "verl/vanilla", causes=1).records
    assert [row.first.mistakes for row in found if row.first] == [("loss-sign",)] * 3


WRONG = ({"stages": {"surrogate": "unclipped"}}, {"std_ddof": 0}, {"beta": 0.1})


def differing(count: int) -> list[dict[str, Any]]:
    """Records with a mistake that changes; every seventh is right, half of them are masked."""
    random = np.random.default_rng(3)
    rows = []
    for at in range(count):
        old = [random.uniform(-3, -0.1, length) for length in (4, 6, 3, 5)]
        record: dict[str, Any] = {
            "log_probs_new": [np.minimum(row + random.normal(0, 0.3, len(row)), 0) for row in old],
            "log_probs_old": old,
            "log_probs_ref": [row - 0.1 for row in old],
            "rewards": random.integers(0, 90, 4) / 10 + 0.05 * np.arange(4),
        }
        masked = at // 6 % 2 == 1
        if masked:
            record["mask"] = [[1] * (len(row) - 1) + [0] for row in old]
        record = orjson.loads(orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY))
        wrong: dict[str, Any] = {} if at % 7 == 6 else WRONG[at % len(WRONG)]
        seen = evaluate(record, **wrong)
        gradient = [[*row, None] for row in seen.gradient] if masked else seen.gradient
        record["expected"] = {"loss": seen.loss * (1.0 if at % 11 else 1.3), "gradient": gradient}
        rows.append(orjson.loads(orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY)))
    return rows


@pytest.mark.more
def test_no_answer_depends_on_what_is_evaluated_together(tmp_path) -> None:
    """A record is judged with its neighbours of one layout, or alone in its file."""
    rows = [row | {"id": at} for at, row in enumerate(differing(24))]
    unsearched = "--causes", "0"  # what is found in one record is tried on those after it
    together = answer("verify", write(tmp_path / "all.jsonl", rows), *unsearched)["records"]
    for at, (row, found) in some([*enumerate(zip(rows, together, strict=True))], 8):
        (alone,) = answer("verify", write(tmp_path / "all.jsonl", [row]), *unsearched)["records"]
        for row in (alone, found):  # where one differs is said of the first of several
            row["first"] = row["first"] and row["first"] | {"pattern": None, "located": []}
        assert alone == found | {"line": 1}, at
    assert 16 < sum(not row["agrees"] for row in together) < 24


@pytest.mark.more
def test_a_missing_kl_has_no_factor_that_rounding_made(tmp_path) -> None:
    """Where the policy term is off by a factor as well, what is left of the KL is 0."""
    rows = []
    for row in differing(6):
        gradient = evaluate({**row, "expected": None}, beta=0.0).gradient
        expected = {"gradient": [[0.9 * value for value in one.tolist()] for one in gradient]}
        rows.append({**row, "mask": None, "expected": expected})
    found = answer("verify", write(tmp_path / "some.jsonl", rows), "--causes", "0")
    pattern = found["records"][0]["first"]["pattern"]
    assert "times 0.9" in pattern
    assert "e-" not in pattern


@pytest.mark.more
def test_an_error_among_records_that_are_judged_together(tmp_path) -> None:
    rows = [row | {"id": at} for at, row in enumerate(differing(6))]
    rows[3] = RECORD | {"log_probs_new": [[0.9, -0.2], [-1.1]], "expected": {"loss": 0.0}}
    path = write(tmp_path / "some.jsonl", rows)
    assert run("verify", path).stderr.startswith(f"grpo: {path}:4: ")
    skipped = json.loads(run("verify", path, "--json", "--on-error", "skip").stdout)
    assert [row["id"] for row in skipped["records"]] == [0, 1, 2, 4, 5]


# ---- records of a framework, read without a variant ----------------------------------------------

TRL: dict[str, Any] = {
    "per_token_logps": [[-0.9, -0.2, -1.3], [-1.1], [-0.7, -0.6]],
    "old_per_token_logps": [[-1.0, -0.25, -1.2], [-1.0], [-0.9, -0.5]],
    "ref_per_token_logps": [[-0.8, -0.3, -1.0], [-1.4], [-0.2, -0.9]],
    "rewards": [1.0, 0.0, 0.25],
}


def expecting(variant: str, **settings: float) -> dict[str, Any]:
    """The record with what a variant gives of it, a gradient for each token of a response."""
    made = evaluate(TRL, variant, **settings)
    lost = [(-each).tolist() for each in made.gradient]
    return TRL | {"expected": {"loss": made.loss, "loss_gradient": lost}}


@pytest.mark.more
def test_the_usual_row_of_the_framework_that_names_the_fields_is_noted(tmp_path: Path) -> None:
    shown = run("verify", write(tmp_path / "a.jsonl", [expecting("trl/grpo")]))
    assert shown.exit_code == 1
    assert "the fields have TRL's names; -v trl/dapo is its usual loss" in shown.stderr


@pytest.mark.more
def test_a_record_with_a_cause_is_shown_before_those_without(tmp_path: Path) -> None:
    rows = [record(number, [7, 5], [1.0, 0.25]) for number in range(3)]
    for row, factor in zip(rows, (36.195, -1.0, -1.0), strict=True):
        row["expected"] = {"loss": factor * evaluate(row, "dapo").total["loss"]}
    path = write(tmp_path / "a.jsonl", rows)
    shown = " ".join(run("verify", path, "-v", "dapo").stdout.split())
    places = [shown.index(f"a.jsonl:{line}) differs from dapo's loss") for line in (2, 1)]
    assert places == sorted(places)
    assert shown.index("cause not recognised") > places[1]


@each(
    ("row", "said"),
    [
        ("trl/grpo", {"loss_type": "grpo"}),
        ("trl/bnpo", {"hyperparameters": {"loss_type": "bnpo"}}),
        ("trl/gspo", {"config": {"loss_type": "grpo", "importance_sampling_level": "sequence"}}),
        ("cispo", {"variant": "cispo"}),
    ],
)
def test_records_are_evaluated_as_what_they_name(row, said) -> None:
    found = verify(expecting(row) | said)
    assert found.ok, found
    assert not any("loss_type" in notice for notice in found.notices), "it is not ignored"


def test_the_cause_of_a_record_is_first_the_one_that_explains_all(tmp_path: Path) -> None:
    rows = []
    old = [[-1.0, -0.25, -1.2], [-1.0, -0.9, -0.6], [-0.4, -0.8, -1.3]]
    others = [[-0.95, -0.93, -0.6], [-0.41, -0.79, -1.33]]
    for new, advantage in ((-0.78, 1.0), (-1.25, -1.0)):  # above and below the clip's bounds
        row: dict[str, Any] = {"log_probs_new": [[new, -0.2, -1.3], *others], "log_probs_old": old}
        row["advantages"] = [advantage, -0.3, 0.6]
        made = evaluate(row, "grpo", stages={"surrogate": "unclipped"})
        gradient = [part.tolist() for part in made.gradient]
        rows.append(row | {"expected": {"loss": made.loss, "gradient": gradient}})
    shown = run("verify", write(tmp_path / "rows.jsonl", rows), "-v", "grpo").stdout
    assert ", all explained by: clip missing (unclipped)" in shown
    assert "  cause " not in shown  # said once


def test_a_policy_term_that_is_not_negated_beside_a_right_kl() -> None:
    total = evaluate(TRL, "trl/grpo", beta=0.04).total
    row = TRL | {"beta": 0.04, "expected": {"loss": total["policy"] + 0.04 * total["kl"]}}
    first = verify([row], "trl/grpo").records[0].first
    assert first is not None
    assert first.cause == "wrong sign of the policy term: it is not negated, and the KL is right"


def test_a_factor_that_is_a_count_names_it() -> None:
    ours = evaluate(TRL, "grpo").loss
    first = (
        verify([TRL | {"expected": {"loss": ours * len(TRL["rewards"])}}], "grpo").records[0].first
    )
    assert first is not None
    words = "and 3 is the number of responses in a group: the mean over them is missing"
    assert words in first.pattern


def test_a_beta_that_the_variant_does_not_use_is_solved_for() -> None:
    found = verify([expecting("trl/grpo", beta=0.05)], "trl/grpo")
    first = found.records[0].first
    assert first is not None
    assert first.cause is not None
    assert first.cause.startswith("β is 0.05 instead of 0: your loss has a KL (k3")
    assert "kl" in first.located


def test_a_usual_convention_comes_before_an_oddity() -> None:
    loss = evaluate(TRL, "trl/grpo", stages={"aggregate": "token-mean"}).loss
    first = verify([TRL | {"expected": {"loss": loss}}], "trl/grpo").records[0].first
    assert first is not None
    assert len(first.causes) > 1
    assert "token-mean" in first.causes[0]


@pytest.mark.more
def test_a_lone_loss_tells_another_epsilon_or_beta_and_k3_without_its_one(tmp_path: Path) -> None:
    made = [record(seed, [5, 9, 7, 4], [1.0, 0.0, 0.3, 0.6]) for seed in range(4)]
    for flags, offset, words in (
        ({"epsilon": 0.1}, 0.0, "ε is 0.1 instead of 0.2"),
        ({"beta": 0.1}, 0.0, "β is 0.1 instead of 0.04 (-p beta=0.1)"),
        ({}, 0.04, "k3 without its −1"),
    ):
        losses = [evaluate(one, "grpo", **flags).loss + offset for one in made]
        pairs = zip(made, losses, strict=True)
        rows = [one | {"expected": {"loss": loss}} for one, loss in pairs]
        found = verify(str(write(tmp_path / "dump.jsonl", rows)), "grpo")
        assert not found.ok
        assert all(words in str(one.first and one.first.cause) for one in found.records), flags


# ---- a loss that is no number -------------------------------------------------------------------

OLD = RECORD["log_probs_old"]


def test_what_explains_one_record_of_several_is_no_verdict(tmp_path) -> None:
    """Two records with a mistake each: their causes stand with them, and the hint once."""
    rows = [dapo(at) for at in range(2)]
    rows[0]["expected"] = {"loss": -rows[0]["expected"]["loss"]}
    rows[1]["expected"] = {"loss": evaluate(rows[1], stages={"ratio": "sequence"}).loss}
    shown = " ".join(run("verify", write(tmp_path / "a.jsonl", rows), "--full").stdout.split())
    assert "2 of 2 records differ; no cause explains more than one of them" in shown
    assert shown.count("losses alone fit many mistakes") == 1
    assert shown.count(" cause ") == 1 + 2  # the verdict, and each record


@pytest.mark.more
@pytest.mark.parametrize("factor", [1.01, 36.195])
def test_one_factor_of_all_losses_is_in_the_first_line(tmp_path: Path, factor: float) -> None:
    """Whether or not somebody may have typed it."""
    rows = [record(number, [7, 5], [1.0, 0.25]) for number in range(3)]
    losses = [row.total["loss"] for row in (evaluate(one, "dapo") for one in rows)]
    for row, loss in zip(rows, losses, strict=True):
        row["expected"] = {"loss": factor * loss}
    words = f"3 of 3 records differ: your loss is the computed one times {factor:g} in each"
    path = write(tmp_path / "a.jsonl", rows)
    printed = run("verify", path, "-v", "dapo", "--causes", "0").stdout
    assert " ".join(printed.split()).startswith(f"{words} (rtol 0.0001) ")
    assert words in verify(rows, "dapo").headline


@pytest.mark.more
@pytest.mark.parametrize("factor", [1.01, 36.195])
def test_a_factor_that_one_loss_lacks_is_not_in_the_first_line(
    tmp_path: Path, factor: float
) -> None:
    rows = [record(number, [7, 5], [1.0, 0.25]) for number in range(3)]
    for row in rows:
        row["expected"] = {"loss": factor * evaluate(row, "dapo").total["loss"]}
    rows[1]["expected"]["loss"] *= 1.001
    path = write(tmp_path / "a.jsonl", rows)
    first, *lines = run("verify", path, "-v", "dapo").stdout.splitlines()
    assert first == "3 of 3 records differ (rtol 0.0001)"
    own = any(f"where    your loss is the computed one times {factor:g}" in line for line in lines)
    assert own is (factor == 1.01)  # which somebody may have typed
    assert verify(rows, "dapo").headline.endswith("differ: cause not recognised")


@pytest.mark.more
@each(
    ("flags", "lacks"),
    [(("-v", "dapo"), True), (("-v", "grpo", "--beta", "0"), True), (("-v", "grpo"), False)],
)
def test_a_kl_that_the_loss_lacks_is_called_that(tmp_path, flags, lacks) -> None:
    """Also of a β of 0 without a reference; where there is one, the KL has a number."""
    one = dapo(0) | {"expected": {"kl": 0.5}}
    if not lacks:
        new = next(one[key] for key in ("log_probs_new", "per_token_logps") if key in one)
        one |= {"log_probs_ref": [[x - 0.1 for x in row] for row in new]}
    path = write(tmp_path / "a.jsonl", [one])
    assert ("no KL in the loss" in run("verify", path, *flags).stdout) is lacks


@pytest.mark.more
def test_the_command_that_asks_match_finds_the_record_whose_loss_it_has(tmp_path) -> None:
    """An id comes back at each step, so the step is named too."""
    rows = [dapo(at) | {"id": "p0", "step": at} for at in range(2)]
    for at, row in enumerate(rows):
        row["expected"] = {"loss": 12.34567 + at}
    path = write(tmp_path / "a.jsonl", rows)
    shown = " ".join(run("verify", path, "--full").stdout.split())
    assert "--record p0 --where step==0 --loss 12.34567" in shown
    assert "--record p0 --where step==1 --loss 13.34567" in shown


def test_losses_that_end_in_zeros_by_chance_are_counted(tmp_path) -> None:
    """One of several has four decimals: only this one is compared to them, and the note says so."""
    rows = [dapo(at) for at in range(6)]
    for at, row in enumerate(rows):
        loss = row["expected"]["loss"]
        row["expected"] = {"loss": round(loss, 4) if at == 2 else loss}
    note = run("verify", write(tmp_path / "a.jsonl", rows)).stderr
    assert "loss was rounded to 4 decimals in 1 of 6 records, and compared" in note
    for row in rows:
        row["expected"] = {"loss": round(row["expected"]["loss"], 4)}
    note = run("verify", write(tmp_path / "a.jsonl", rows)).stderr
    assert "loss was rounded to 4 decimals, and compared" in note


def test_the_computed_number_has_as_many_digits_as_yours_needs(tmp_path) -> None:
    """Two more than are written; all of them in JSON, and where they decide."""
    row = dapo(0)
    loss = row["expected"]["loss"]
    row["expected"] = {"loss": round(3.0 * loss, 3)}
    path = write(tmp_path / "a.jsonl", [row])
    (computed,) = re.findall(r"computed (-?\d\S+)", run("verify", path).stdout)
    whole = answer("verify", path)["records"][0]["first"]["got"]
    assert whole == pytest.approx(loss, rel=1e-7)
    assert float(computed) == pytest.approx(whole, rel=1e-7)
    assert float(computed) != whole
    assert len(computed.strip("-0.")) <= 8
    row["expected"] = {"loss": math.nan}
    shown = run("verify", write(path, [row])).stdout
    assert "by nan" not in shown
    assert "--loss nan" not in shown
