"""``grpo trend --names`` and ``--log``: what frameworks log, recomputed, and a log by itself."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from grpo_cli.commands.explain.logged import explain_log
from grpo_cli.commands.main import application
from grpo_cli.commands.trend.beside import beside, compare, framework_of
from grpo_cli.commands.trend.logs import is_log, read_log
from grpo_cli.commands.trend.names import NAMES
from grpo_cli.commands.trend.run import Run
from grpo_cli.engine import Reader
from grpo_cli.errors import InputError
from grpo_cli.variants.plan import plan

RUNS = Path(__file__).parent.parent.parent / "samples" / "run"
STATE = RUNS / "trainer_state.json"
SEQUENCE_MASK = {"correction": "trl/sequence-mask"}


def run(names: str, path: Path = RUNS / "healthy.jsonl.gz", **more: Any) -> Run:
    made = Run(Reader([str(path)]), plan("trl/grpo", **more), names=NAMES[names])
    made.steps = made.read()  # type: ignore[attr-defined]
    return made


def test_trl_logged_what_is_recomputed_from_its_tokens() -> None:
    """Its own trainer's trainer_state.json, of the run that the records are of."""
    log = read_log(str(STATE))
    made = run("trl", stages=SEQUENCE_MASK)
    found = beside("trl", log, made.logged, made.steps)  # type: ignore[attr-defined]
    *known, gradient = found.series
    assert len(known) == 9
    assert "loss" in [one.name for one in known]
    assert [one for one in known if not one.agrees or one.steps != 60] == []
    assert (gradient.name, gradient.first) == ("grad_norm", None)
    assert "norm over the parameters" in gradient.because


def test_a_loss_that_differs_is_told_and_that_of_others_is_not_compared() -> None:
    """Without the correction that the trainer had, and under names of another framework."""
    log = read_log(str(STATE))
    plain = run("trl")
    found = {one.name: one for one in beside("trl", log, plain.logged, plain.steps).series}  # type: ignore[attr-defined]
    assert (found["loss"].agrees, found["loss"].first) == (False, 0)
    assert found["loss"].logged == pytest.approx(-0.000783, abs=1e-6)
    verl = run("verl")
    others = {"actor/pg_loss": log["loss"], "actor/grad_norm": log["grad_norm"]}
    told = beside("verl", others, verl.logged, verl.steps).series  # type: ignore[attr-defined]
    assert [(one.name, one.agrees, one.steps) for one in told] == [
        ("actor/pg_loss", False, 0),
        ("actor/grad_norm", False, 0),
    ]
    assert "micro-batches and ranks" in told[0].because


def test_what_differs_is_told_with_what_it_is() -> None:
    log = {name: dict(series) for name, series in read_log(str(STATE)).items()}
    log["kl"] = {step: 2 * value for step, value in log["kl"].items()}
    made = run("trl", stages=SEQUENCE_MASK)
    lengths = {one.number: one.metrics["nll"] for one in made.steps}  # type: ignore[attr-defined]
    log["completions/mean_length"] = {step + 1: value for step, value in lengths.items()}
    log["reward"][31] += 0.5
    found = {one.name: one for one in beside("trl", log, made.logged, made.steps).series}  # type: ignore[attr-defined]
    assert found["kl"].because == "it is 2 times ours at every step"
    assert found["completions/mean_length"].because == "it is nll"
    assert (found["reward"].first, found["reward"].because) == (30, "")


def test_verl_and_slime_average_differently(tmp_path: Path) -> None:
    """Token means of records, and of samples, spelled out."""
    draw = random.Random(3)
    records: list[dict[str, Any]] = []
    for number in range(3):
        rows = [[-draw.random() for _ in range(draw.randint(1, 9))] for _ in range(4)]
        old = [[one + draw.gauss(0, 0.2) - 1 for one in row] for row in rows]
        new = [[one - 1 for one in row] for row in rows]
        engine = [[one - 1.1 for one in row] for row in rows]
        record = {"step": 0, "log_probs_new": new, "log_probs_old": old, "rewards": [1, 0, 0, 1]}
        records.append(record | {"log_probs_rollout": engine, "id": number})
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in records))

    def made(names: str) -> dict[str, Any]:
        found = Run(Reader([str(path)]), plan("dapo"), names=NAMES[names])
        found.read()
        return found.logged[0]

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    moved = [
        [
            [one - other for one, other in zip(old, new, strict=True)]
            for old, new in zip(each["log_probs_old"], each["log_probs_new"], strict=True)
        ]
        for each in records
    ]
    verl = mean([mean([one for row in rows for one in row]) for rows in moved])
    slime = mean([mean(row) for rows in moved for row in rows])
    assert made("verl")["actor/ppo_kl"] == pytest.approx(verl)
    assert made("slime")["train/ppo_kl"] == pytest.approx(slime)
    assert made("prime-rl")["mismatch_kl/all/mean"] == pytest.approx(2.718281828**0.1 - 1.1)
    assert abs(verl - slime) > 1e-4


LENGTHS, SCORES = [[3, 1, 4], [2, 6, 5]], [[1.0, 0.0, 0.5], [-2.0, 0.25, 0.0]]
BY_HAND = {
    "trl": {
        "completions/mean_length": 3.5,
        "completions/min_length": 1,
        "completions/max_length": 6,
        "reward": -0.25 / 6,
    },
    "verl": {
        "critic/score/mean": -0.25 / 6,
        "critic/score/max": 1.0,
        "critic/score/min": -2.0,
        "response_length/mean": 3.5,
        "response_length/max": 6,
        "response_length/min": 1,
    },
}


@pytest.mark.parametrize("names", BY_HAND)
def test_lengths_and_rewards_of_a_step_by_hand(tmp_path: Path, names: str) -> None:
    """Two records of one step, neither of which has both the shortest and the longest."""
    rows = [
        {"step": 0, "log_probs_new": [[-0.5] * length for length in lengths], "rewards": scores}
        for lengths, scores in zip(LENGTHS, SCORES, strict=True)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = Run(Reader([str(tmp_path / "a.jsonl")]), plan("dapo"), names=NAMES[names])
    made.read()
    for name, value in BY_HAND[names].items():
        assert made.logged[0][name] == pytest.approx(value, rel=1e-15), name


def test_nemo_rl(tmp_path: Path) -> None:
    """Six tokens on which NeMo-RL's own ClippedPGLossFn was run, in float64."""
    ratios, engine = [[1.5, 0.9], [0.7, 1.1, 1.3, 4.0]], [[1.0, 3.0], [0.4, 1.0, 1.2, 0.9]]
    old = [[-2.0] * len(row) for row in ratios]
    record = {
        "step": 0,
        "advantages": [1.0, -1.0],
        "log_probs_old": old,
        "log_probs_new": [[-2.0 + math.log(one) for one in row] for row in ratios],
        "log_probs_rollout": [[-2.0 - math.log(one) for one in row] for row in engine],
    }
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    made = Run(Reader([str(tmp_path / "a.jsonl")]), plan("dapo"), names=NAMES["nemo-rl"])
    made.read()
    expected = {
        "probs_ratio": 1.583333,
        "token_mult_prob_error": 1.635185,
        "gen_kl_error": 0.206786,
        "policy_kl_error": 0.172843,
        "sampling_importance_ratio": 1.25,
    }
    for name, value in expected.items():
        assert made.logged[0][name] == pytest.approx(value, abs=1e-6), name


# ---- reading logs ---------------------------------------------------------------------------

FILES = {
    "trainer_state.json": json.dumps(
        {"log_history": [{"step": 1, "kl": 0.5}, {"step": 2, "kl": 1}]}
    ),
    "metrics.jsonl": '{"step": 1, "kl": 0.5, "note": "x"}\n{"step": 2, "kl": 1, "n": null}\n',
    "verl.jsonl": '{"step": 1, "data": {"kl": 0.5}}\n{"step": 2, "data": {"kl": 1.0}}\n',
    "wandb.csv": '"Step","run-7 - kl","run-7 - kl__MIN"\n1,0.5,0.1\n2,1.0,\n',
    "run-x-tag-kl.csv": "Wall time,Step,Value\n1700000000.0,1,0.5\n1700000001.0,2,1.0\n",
}


@pytest.mark.parametrize("name", FILES)
def test_logs_are_read(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FILES[name])
    assert read_log(str(tmp_path / name)) == {"kl": {1: 0.5, 2: 1.0}}
    assert is_log(str(tmp_path / name)) == (not name.endswith("jsonl"))


@pytest.mark.parametrize("text", ["", "{", "a,b\n1,2\n", '{"log_history": []}', "[1, 2]"])
def test_what_is_no_log_is_told(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"trainer_state\.json: (no row|expected a log)"):
        read_log(str(path))


def test_the_framework_is_the_one_whose_names_are_there() -> None:
    assert framework_of({"actor/ppo_kl": {}, "critic/score/mean": {}}, NAMES) == "verl"
    assert framework_of({"reward": {}, "kl": {}}, NAMES) == "trl"


def test_a_series_that_was_not_recomputed_is_unknown() -> None:
    (one,) = compare({"entropy": {1: 0.5}}, {"entropy": {1: None}}, {})
    assert (one.agrees, one.steps, one.because) == (False, 0, "the records lack what it is made of")


# ---- a log alone ----------------------------------------------------------------------------


def test_a_loss_of_0_beside_a_growing_gradient() -> None:
    steps = range(1, 41)
    log = {
        "loss": {step: 1e-9 * (-1) ** step for step in steps},
        "grad_norm": {step: 0.1 * step for step in steps},
        "frac_reward_zero_std": {step: float(step > 35) for step in steps},
        "kl": dict.fromkeys(steps, 0.0),
    }
    document = explain_log(log)
    text = " ".join(document["meaning"])
    assert "loss is near 0 at 40 of 40 steps while grad_norm is 2.05, and grad_norm grows" in text
    assert "frac_reward_zero_std is 1 at 5 of 40 steps" in text
    assert "kl is 0 throughout" in text
    assert document["unknown"]


def test_a_gradient_of_0_is_said() -> None:
    log = {"loss": {1: 0.0, 2: 0.0}, "grad_norm": {1: 0.0, 2: 0.0}}
    assert explain_log(log)["meaning"] == ["grad_norm is 0: nothing is learnt"]


def test_the_commands(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert not application("explain")(["explain", str(STATE)], standalone_mode=False)
    out = capsysbinary.readouterr().out.decode()
    assert out.startswith("a log of 60 steps (steps 1 to 60)")
    assert "loss and reward rise together" in out
    words = ["trend", str(RUNS / "healthy.jsonl.gz"), "-v", "trl/grpo", "--names", "trl"]
    assert not application("trend")([*words, "--log", str(STATE), "--json"], standalone_mode=False)
    document = json.loads(capsysbinary.readouterr().out)
    assert document["log"]["framework"] == "trl"
    assert "clip_ratio/region_mean" in document["steps"][0]


LOGGED = json.loads((Path(__file__).parent.parent / "golden" / "trend_names.json").read_text())
"""What slime's and prime-rl's own code logs (tests/parity/others/trend_names.py)."""


@pytest.mark.parametrize("number", range(len(LOGGED)))
def test_what_slime_and_prime_rl_log(number: int, tmp_path: Path) -> None:
    case = LOGGED[number]
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(case["record"]))
    given = {"epsilon_low": 0.2, "epsilon_high": 0.28, "beta": 0.01} | case["hyperparameters"]
    kl = {"kl": "slime/low_var_kl"} if case["framework"] == "slime" else {}
    chosen = plan(case["variant"], stages=kl, hyperparameters=given)
    run = Run(Reader([str(path)]), chosen, names=NAMES[case["framework"]])
    run.read()
    for name, value in case["logged"].items():
        assert run.logged[0][name] == pytest.approx(value, rel=1e-12), name
