"""``grpo trend --names`` and ``--log``: what frameworks log, recomputed, and a log by itself."""

from __future__ import annotations

import gzip
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from grpo_cli.commands.explain.logged import explain_log
from grpo_cli.commands.main import application
from grpo_cli.commands.trend.comparison import (
    as_logged,
    compare,
    compare_log,
    framework_of,
    shift_of,
)
from grpo_cli.commands.trend.logs import LogFile, is_log, read_log
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
    log = read_log(str(STATE)).series
    made = run("trl", stages=SEQUENCE_MASK)
    found = compare_log("trl", log, made.logged, made.steps)  # type: ignore[attr-defined]
    *known, gradient = found.series
    assert len(known) == 9
    assert "loss" in [one.name for one in known]
    assert [one for one in known if not one.agrees or one.steps != 60] == []
    assert (gradient.name, gradient.first) == ("grad_norm", None)
    assert "norm over the parameters" in gradient.because


def test_a_loss_that_differs_is_told_and_that_of_others_is_not_compared() -> None:
    """Without the correction that the trainer had, and under names of another framework."""
    log = read_log(str(STATE)).series
    plain = run("trl")
    found = {one.name: one for one in compare_log("trl", log, plain.logged, plain.steps).series}  # type: ignore[attr-defined]
    assert (found["loss"].agrees, found["loss"].first) == (False, 0)
    assert found["loss"].logged == pytest.approx(-0.000783, abs=1e-6)
    verl = run("verl")
    others = {"actor/pg_loss": log["loss"], "actor/grad_norm": log["grad_norm"]}
    told = compare_log("verl", others, verl.logged, verl.steps).series  # type: ignore[attr-defined]
    assert [(one.name, one.agrees, one.steps) for one in told] == [
        ("actor/pg_loss", False, 0),
        ("actor/grad_norm", False, 0),
    ]
    assert "micro-batches and ranks" in told[0].because


def test_what_differs_is_told_with_what_it_is() -> None:
    log = {name: dict(series) for name, series in read_log(str(STATE)).series.items()}
    log["kl"] = {step: 2 * value for step, value in log["kl"].items()}
    made = run("trl", stages=SEQUENCE_MASK)
    lengths = {one.number: one.metrics["nll"] for one in made.steps}  # type: ignore[attr-defined]
    log["completions/mean_length"] = {step + 1: value for step, value in lengths.items()}
    log["reward"][31] += 0.5
    found = {one.name: one for one in compare_log("trl", log, made.logged, made.steps).series}  # type: ignore[attr-defined]
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
    assert read_log(str(tmp_path / name)).series == {"kl": {1: 0.5, 2: 1.0}}
    assert is_log(str(tmp_path / name)) == (not name.endswith("jsonl"))


@pytest.mark.parametrize("text", ["", "{", "a,b\n1,2\n", '{"log_history": []}', "[1, 2]"])
def test_what_is_no_log_is_told(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"trainer_state\.json(:1)?: (no row|expected a log)"):
        read_log(str(path))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"step": 1, "kl": 0.5}\n{"step": 2, "kl"}\n', "b.jsonl:2: expected a log as JSON, JSONL"),
        (
            '{\n "log_history": [\n  {"step": 1, "kl": 0.5},\n  {"step" 2}\n]}\n',
            "b.jsonl:4: expected a",
        ),
    ],
)
def test_the_line_of_a_log_that_is_no_json_is_told(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "b.jsonl"
    path.write_text(text)
    with pytest.raises(InputError) as raised:
        read_log(str(path))
    assert told in str(raised.value)


ROW = '{"step": 1, "loss": 0.5, "kl": NaN}'
HOLES = {
    "trainer_state.json": '{"log_history": [{"step": 1, "kl": NaN, "loss": 0.5}]}',
    "state.json": f'{{\n "log_history": [\n  {ROW}\n ]\n}}\n',
    "rows.json": f"[{ROW}]",
    "metrics.jsonl": f"{ROW}\n",
    "verl.jsonl": '{"step": 1, "data": {"kl": NaN, "loss": 0.5}}\n',
    "texts.jsonl": '{"step": 1, "loss": 0.5, "kl": "NaN"}\n',
    "wandb.csv": '"Step","run-7 - kl","run-7 - loss"\n1,NaN,0.5\n',
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", HOLES)
def test_where_a_log_is_nan_is_kept(name: str, packed: bool, tmp_path: Path) -> None:
    """Python's json writes NaN, and reads it; a log may be packed as records may."""
    path = tmp_path / (f"{name}.gz" if packed and name != "trainer_state.json" else name)
    path.write_bytes(gzip.compress(HOLES[name].encode()) if packed else HOLES[name].encode())
    assert is_log(str(path)) != (packed and name == "wandb.csv")
    found = read_log(str(path))
    assert found.series == {"loss": {1: 0.5}}
    assert [*found.nonfinite] == ["kl"]
    assert math.isnan(found.nonfinite["kl"][1])


def test_trend_says_where_its_log_is_not_finite(grpo: Any, tmp_path: Path) -> None:
    rows = [{"step": at, "kl": math.nan if at == 2 else 0.1} for at in (1, 2, 3)]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": rows}))
    words = [str(RUNS / "healthy.jsonl.gz"), "-v", "trl/grpo", "--log", str(path)]
    note = f"note: {path}: kl is NaN at step 2; not compared there"
    answer = grpo("trend", *words)
    assert (answer.exit_code, note in answer.stderr) == (0, True)
    answer = grpo("report", *words, "-o", str(tmp_path / "page.html"))
    assert (answer.exit_code, note in answer.stderr) == (0, True)


def test_a_log_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.csv: no such file"):
        read_log(str(tmp_path / "none.csv"))


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
    document = explain_log(LogFile(log, {}))
    text = " ".join(document["meaning"])
    assert "loss is near 0 at 40 of 40 steps while grad_norm is 2.05, and grad_norm grows" in text
    assert "frac_reward_zero_std is 1 at 5 of 40 steps" in text
    assert "kl is 0 throughout" in text
    assert document["unknown"]


def test_a_gradient_of_0_is_said() -> None:
    log = {"loss": {1: 0.0, 2: 0.0}, "grad_norm": {1: 0.0, 2: 0.0}}
    assert explain_log(LogFile(log, {}))["meaning"] == ["grad_norm is 0: nothing is learnt"]


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


# ---- every name beside its definition -------------------------------------------------------


def mean(values: Any) -> float:
    flat = [*values]
    return math.fsum(flat) / len(flat)


def stdev(values: Any) -> float:
    flat = [*values]
    return math.sqrt(math.fsum((one - mean(flat)) ** 2 for one in flat) / (len(flat) - 1))


Tokens = dict[str, list[float]]


def drawn_step(seed: int) -> tuple[list[dict[str, Any]], list[list[Tokens]]]:
    """Three records of one step, and of each its responses' tokens by column."""
    draw, records, tokens = random.Random(seed), [], []
    for number in range(3):
        rewards = [1.0, 0.0, 0.5, 0.25] if number else [0.5] * 4
        rows: list[Tokens] = []
        for reward in rewards:
            old = [-draw.uniform(0.6, 3.0) for _ in range(draw.randint(1, 7))]
            near = {"old": old, "a": [reward - mean(rewards)] * len(old)}
            for name, size in (("new", 0.3), ("ref", 0.2), ("rollout", 0.4)):
                near[name] = [one + draw.uniform(-size, size) for one in old]
            near["entropy"] = [draw.random() for _ in old]
            rows.append(near)
        made = {f"log_probs_{name}": [row[name] for row in rows] for name in COLUMNS}
        entropies = [row["entropy"] for row in rows]
        records.append(made | {"entropies": entropies, "rewards": rewards, "step": 0, "id": number})
        tokens.append(rows)
    return records, tokens


COLUMNS = ("new", "old", "ref", "rollout")


def each_token(rows: list[Tokens], read: Any) -> list[float]:
    """A number of each token, of its log π_θ, log π_old, log π_ref, log μ, advantage, entropy."""
    names = (*COLUMNS, "a", "entropy")
    return [read(*one) for row in rows for one in zip(*(row[name] for name in names), strict=True)]


READ = {
    "entropy": lambda new, old, ref, mu, a, h: h,
    "kl": lambda new, old, ref, mu, a, h: math.exp(ref - new) - (ref - new) - 1,
    "low": lambda new, old, ref, mu, a, h: float(math.exp(new - old) < 0.8 and a < 0),
    "high": lambda new, old, ref, mu, a, h: float(math.exp(new - old) > 1.2 and a > 0),
    "ppo_kl": lambda new, old, ref, mu, a, h: old - new,
    "d": lambda new, old, ref, mu, a, h: old - mu,
    "probs": lambda new, old, ref, mu, a, h: abs(math.exp(old) - math.exp(mu)),
    "new_k3": lambda new, old, ref, mu, a, h: math.exp(new - mu) - (new - mu) - 1,
    "ratio": lambda new, old, ref, mu, a, h: math.exp(new - old),
}  # fmt: skip


def by_definition(rows: list[list[Tokens]], rewards: list[list[float]]) -> dict[str, Any]:
    """What each framework calls by a name, from tokens: its means over records or samples."""
    every = [row for record in rows for row in record]
    of = {name: each_token(every, read) for name, read in READ.items()}
    by_record = {n: mean(mean(each_token(one, r)) for one in rows) for n, r in READ.items()}
    by_sample = {n: mean(mean(each_token([one], r)) for one in every) for n, r in READ.items()}
    lengths, flat = [len(row["new"]) for row in every], [one for each in rewards for one in each]
    groups = mean(len(set(one)) == 1 for one in rewards)
    weights = [min(max(math.exp(one), 0.9), 1.2) for one in of["d"]]
    region = [a + b for a, b in zip(of["low"], of["high"], strict=True)]
    assert 0 < sum(of["low"]) < len(region)
    assert 0 < sum(of["high"]) < len(region)
    both = by_record["low"] + by_record["high"]
    d = of["d"]
    k3, chi2 = mean(math.exp(one) - one - 1 for one in d), mean(math.exp(2 * x) for x in d) - 1
    return {
        "trl": {
            "reward": mean(flat), "reward_std": stdev(flat), "frac_reward_zero_std": groups,
            "completions/mean_length": mean(lengths), "completions/min_length": min(lengths),
            "completions/max_length": max(lengths), "entropy": by_record["entropy"],
            "kl": by_record["kl"], "clip_ratio/low_mean": by_record["low"],
            "clip_ratio/high_mean": by_record["high"], "clip_ratio/region_mean": both,
            "sampling/sampling_logp_difference/mean": mean(map(abs, d)),
            "sampling/sampling_logp_difference/max": max(map(abs, d)),
            "sampling/importance_sampling_ratio/min": min(weights),
            "sampling/importance_sampling_ratio/mean": mean(weights),
            "sampling/importance_sampling_ratio/max": max(weights),
        },
        "verl": {
            "critic/score/mean": mean(flat), "critic/score/max": 1.0, "critic/score/min": 0.0,
            "response_length/mean": mean(lengths), "response_length/max": max(lengths),
            "response_length/min": min(lengths), "actor/entropy": by_record["entropy"],
            "actor/kl_loss": by_record["kl"], "actor/ppo_kl": by_record["ppo_kl"],
            "actor/pg_clipfrac": both, "training/rollout_probs_diff_mean": mean(of["probs"]),
            "training/rollout_probs_diff_max": max(of["probs"]),
            "training/rollout_probs_diff_std": stdev(of["probs"]), "rollout_corr/kl": -mean(d),
            "rollout_corr/k3_kl": k3, "rollout_corr/chi2_token": chi2,
        },
        "prime-rl": {
            "reward/all/mean": mean(flat), "entropy/all/mean": mean(of["entropy"]),
            "mismatch_kl/all/mean": mean(of["new_k3"]),
        },
        "nemo-rl": {
            "reward": mean(flat), "probs_ratio": mean(of["ratio"]),
            "token_mult_prob_error": mean(math.exp(abs(one)) for one in d), "gen_kl_error": k3,
            "policy_kl_error": mean(math.exp(-one) + one - 1 for one in d),
            "sampling_importance_ratio": mean(map(math.exp, d)),
        },
        "slime": {
            "rollout/raw_reward": mean(flat), "rollout/response_len/mean": mean(lengths),
            "train/entropy_loss": by_sample["entropy"], "train/kl_loss": by_sample["kl"],
            "train/ppo_kl": by_sample["ppo_kl"],
            "train/pg_clipfrac": by_sample["low"] + by_sample["high"],
            "train/train_rollout_logprob_abs_diff": mean(
                mean(abs(one) for one in each_token([row], READ["d"])) for row in every
            ),
        },
    }  # fmt: skip


@pytest.mark.parametrize("framework", NAMES)
@pytest.mark.parametrize("files", [1, 3])
def test_every_name_is_what_its_framework_means_by_it(
    framework: str, files: int, tmp_path: Path
) -> None:
    """Of records in one file, and of one in each of three, whose sums are merged."""
    records, rows = drawn_step(5)
    for at in range(files):
        text = "".join(json.dumps(one) + "\n" for one in records[at::files])
        (tmp_path / f"rank{at}.jsonl").write_text(text)
    expected = by_definition(rows, [one["rewards"] for one in records])[framework]
    stages = {"correction": "trl/token-truncate"} if framework == "trl" else {}
    bounds = {"is_low": 0.9, "is_high": 1.2} if framework == "trl" else {}
    given = {"beta": 0.01, "kl_weight": "none", "epsilon_low": 0.2, "epsilon_high": 0.2} | bounds
    chosen = plan("trl/grpo", stages=stages, hyperparameters=given)
    paths = sorted(map(str, tmp_path.iterdir()))
    run = Run(Reader(paths), chosen, names=NAMES[framework])
    run.read()
    logged = dict(run.logged[0])
    logged.pop("loss", None)  # which test_trl_logged_what_is_recomputed_from_its_tokens has
    assert {*logged} == {*expected}
    for name, value in expected.items():
        assert logged[name] == pytest.approx(value, rel=1e-9), name


def test_a_record_of_which_no_token_counts_is_in_no_mean_of_records(tmp_path: Path) -> None:
    """Its samples count as 0 where slime averages samples."""
    records, _ = drawn_step(5)
    masked = dict(records[1]) | {"id": "masked"}
    for one, counts in (*((one, 1) for one in records), (masked, 0)):
        one["mask"] = [[counts] * len(row) for row in one["log_probs_new"]]
    logged = []
    for some in (records, [*records[:1], masked, *records[1:]]):
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in some))
        logged.append([])
        for names in ("trl", "verl", "slime"):
            made = Run(Reader([str(tmp_path / "a.jsonl")]), plan("dapo"), names=NAMES[names])
            made.read()
            logged[-1].append(made.logged[0])
    alone, beside = logged
    for name in ("entropy", "clip_ratio/low_mean", "clip_ratio/high_mean"):
        assert beside[0][name] == pytest.approx(alone[0][name], rel=1e-12), name
    for name in ("actor/entropy", "actor/ppo_kl", "actor/pg_clipfrac"):
        assert beside[1][name] == pytest.approx(alone[1][name], rel=1e-12), name
    for name in ("train/entropy_loss", "train/ppo_kl", "train/train_rollout_logprob_abs_diff"):
        assert beside[2][name] == pytest.approx(alone[2][name] * 12 / 16, rel=1e-12), name


def test_a_move_that_is_far_counts_as_20_in_verls_ppo_kl(tmp_path: Path) -> None:
    """log π_old − log π_θ of −30, 30, 22 and 1; slime takes them as they are."""
    old, new = [[-31.0, -1.0], [-1.0, -1.0]], [[-1.0, -31.0], [-23.0, -2.0]]
    row = {"step": 0, "log_probs_new": new, "log_probs_old": old, "rewards": [1.0, 0.0]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    for names, name, value in (
        ("verl", "actor/ppo_kl", (-20.0 + 20.0 + 20.0 + 1.0) / 4),
        ("slime", "train/ppo_kl", (-30.0 + 30.0 + 22.0 + 1.0) / 4),
    ):
        made = Run(Reader([str(tmp_path / "a.jsonl")]), plan("dapo"), names=NAMES[names])
        made.read()
        assert made.logged[0][name] == pytest.approx(value)


def test_a_series_that_does_not_change_says_nothing_of_where_a_log_begins() -> None:
    """It agrees at every shift that there are steps for."""
    log = {"kl": dict.fromkeys((1, 3, 5, 7), 0.0), "reward": {1: 2.0, 2: 3.0}}
    ours = {"kl": dict.fromkeys((0, 2, 4, 6), 0.0), "reward": {1: 2.0, 2: 3.0}}
    assert shift_of(log, ours) == 0
    assert shift_of({"x": {1: 1.0, 2: 2.0, 3: 1.0}}, {"x": {0: 1.0, 1: 2.0, 2: 1.0}}) == 1
    assert (
        shift_of(log | {"nll": {3: 1.0, 4: 2.0, 5: 4.0}}, ours | {"nll": {2: 1.0, 3: 2.0, 4: 4.0}})
        == 1
    )


def test_under_trls_names_stand_its_reward_functions_too(tmp_path: Path) -> None:
    """And nothing else that only we call so; other frameworks do not log them."""
    row = {"step": 0, "log_probs": [[-1.0], [-0.5]], "rewards": {"x": [1.0, 0.0], "y": [0.5, 1.0]}}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    for names, more in (("trl", {"rewards/x/mean": 0.5, "rewards/y/mean": 0.75}), ("verl", {})):
        made = Run(Reader([str(tmp_path / "a.jsonl")]), plan("dapo"), names=NAMES[names])
        found = as_logged(names, made, made.read())
        assert {name: found[0][name] for name in found[0] if name not in NAMES[names]} == more


@pytest.mark.parametrize(
    ("name", "ours", "logged", "agrees"),
    [
        ("loss", 1e-9, 1e-9 + 0.99e-6, True),
        ("loss", 1e-9, 1e-9 - 0.99e-6, True),
        ("loss", 1e-9, 1e-9 + 1.01e-6, False),
        ("kl", 1e-9, 1e-9 + 0.99e-7, True),
        ("kl", 1e-9, 1e-9 + 1.01e-7, False),
        ("kl", 5.0, 5.0 * (1 + 0.99e-4), True),
        ("kl", 5.0, 5.0 * (1 + 1.02e-4), False),
        ("kl", -5.0, 5.0, False),
    ],
)
def test_how_near_a_logged_number_must_be(name, ours, logged, agrees) -> None:
    """A ten-thousandth; or a millionth of a loss, and a tenth of that of other numbers."""
    log = {name: {1: 0.5, 2: logged, 3: -7.0}}
    (one,) = compare(log, {name: {1: 0.5, 2: ours, 3: -7.0, 4: 2.0}}, {})
    assert (one.steps, one.agrees) == (3, agrees)
    if not agrees:
        assert (one.first, one.logged, one.recomputed) == (2, logged, ours)


TRIPLE = "it is 3 times ours at every step"
OURS = {1: 2.0, 2: 3.0, 3: 5.0, 4: 4.0}


@pytest.mark.parametrize("shift", [0, 1, -1])
@pytest.mark.parametrize(
    ("of", "others", "because"),
    [
        (lambda value: 3 * value, {}, TRIPLE),
        (lambda value: 3 * value * (1 + 4e-5 * (value > 2)), {}, TRIPLE),
        (lambda value: 3 * value * (1 + 1.3e-4 * (value > 2)), {}, ""),
        (lambda value: value + 9, {"x": {1: 1.0}, "y": {n: OURS[n] + 9 for n in OURS}}, "it is y"),
        (lambda value: value + 9, {"y": {n: OURS[n] + 9 for n in (1, 2, 3)}}, "it is y"),
        (lambda value: value + 9, {"y": {n: OURS[n] + 9 for n in (1, 2)}}, ""),
        (lambda value: float(value > 2), {"y": {n: float(OURS[n] > 2) for n in OURS}}, "it is y"),
        (lambda value: 7.0, {"y": dict.fromkeys(OURS, 7.0)}, ""),
    ],
)  # fmt: skip
def test_what_explains_a_difference(shift: int, of: Any, others: Any, because: str) -> None:
    """One factor, within a ten-thousandth, or another column that varies; from three steps on.

    The log counts so many steps ahead, which a series that agrees tells.
    """
    log = {"kl": {n + shift: of(value) for n, value in OURS.items()}}
    log["reward"] = {n + shift: value**2 for n, value in OURS.items()}
    ours = {"kl": OURS, "reward": {n: value**2 for n, value in OURS.items()}}
    kl, reward = compare(log, ours, others)
    assert (reward.agrees, reward.steps) == (True, 4)
    assert (kl.agrees, kl.first, kl.because) == (False, 1, because)


@pytest.mark.parametrize(("steps", "told"), [(3, False), (4, True)])
def test_a_factor_is_told_from_three_steps_on(steps: int, told: bool) -> None:
    """Of a number that is 0 there is none."""
    ours = dict(enumerate([0.0, 1.5, 7.0, 11.0][:steps]))
    log = {at: 2.0 * value or 1.0 for at, value in ours.items()}
    (one,) = compare({"kl": log}, {"kl": ours}, {})
    assert one.because == ("it is 2 times ours at every step" if told else "")
