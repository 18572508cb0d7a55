"""``grpo trend --names`` and ``--log``: what frameworks log, recomputed, and a log by itself."""

from __future__ import annotations

import gzip
import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from command import answer, run
from files import each
from trended import PLAIN, SAMPLES, log_of, metrics, write

HEALTHY = str(SAMPLES / "healthy.jsonl.gz")
STATE = SAMPLES / "trainer_state.json"
TRL = ("-v", "trl/grpo", "--correction", "trl/sequence-mask")


def compared(path: object, log: Path, *flags: str) -> dict[str, Any]:
    """Each series of a log, by name, with what it is compared with."""
    found = answer("trend", path, "--log", log, *flags)["log"]["series"]
    return {one["name"]: one for one in found}


def test_trl_logged_what_is_recomputed_from_its_tokens() -> None:
    """Its own trainer's trainer_state.json, of the run that the records are of."""
    found = compared(HEALTHY, STATE, *TRL)
    gradient = found.pop("grad_norm")
    assert (len(found), "loss" in found) == (9, True)
    assert [one for one in found.values() if not one["agrees"] or one["steps"] != 60] == []
    assert gradient["first"] is None
    assert "norm over the parameters" in gradient["because"]


def logged(path: Path, names: str, *flags: str) -> dict[str, Any]:
    """The only step under a framework's names."""
    return metrics(path, *(flags or ("-v", "dapo")), "--names", names)


LOGGED = json.loads((Path(__file__).parent.parent / "golden" / "trend_names.json").read_text())
"""What slime's and prime-rl's own code logs (made by tests/parity/others of f9747046)."""


@pytest.mark.parametrize("number", range(len(LOGGED)))
def test_what_slime_and_prime_rl_log(number: int, tmp_path: Path) -> None:
    case = LOGGED[number]
    given = {"epsilon_low": 0.2, "epsilon_high": 0.28, "beta": 0.01} | case["hyperparameters"]
    kl = ("--kl", "slime/low_var_kl") if case["framework"] == "slime" else ()
    flags = [word for name, value in given.items() for word in ("-p", f"{name}={value}")]
    path = write(tmp_path / "a.jsonl", [case["record"]])
    found = logged(path, case["framework"], "-v", case["variant"], *kl, *flags)
    for name, value in case["logged"].items():
        assert found[name] == pytest.approx(value, rel=1e-12), name


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
        rewards = [1.0, -2.0, 0.5, 0.25] if number else [0.5] * 4
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
            "critic/score/mean": mean(flat), "critic/score/max": 1.0, "critic/score/min": -2.0,
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


FRAMEWORKS = ("trl", "verl", "prime-rl", "nemo-rl", "slime")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_name_is_what_its_framework_means_by_it(framework: str, tmp_path: Path) -> None:
    """Of records in one file, and of one in each of three, whose sums are merged."""
    records, rows = drawn_step(7)
    expected = by_definition(rows, [one["rewards"] for one in records])[framework]
    flags = ["-v", "trl/grpo", "--beta", "0.01", "--epsilon", "0.2", "-p", "kl_weight=none"]
    if framework == "trl":
        flags += ["--correction", "trl/token-truncate", "-p", "is_low=0.9", "-p", "is_high=1.2"]
    for files in (1, 3):
        for at in range(files):
            write(tmp_path / str(files) / f"rank{at}.jsonl", records[at::files])
        found = logged(tmp_path / str(files), framework, *flags)
        found.pop("loss", None)  # which test_trl_logged_what_is_recomputed_from_its_tokens has
        assert {*found} == {*expected, "step", "file", "worst"}
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, rel=1e-9), name
            assert type(found[name]) is type(value), name


def test_a_record_of_which_no_token_counts_is_in_no_mean_of_records(tmp_path: Path) -> None:
    """Its samples count as 0 where slime averages samples."""
    records, _ = drawn_step(7)
    masked = dict(records[1]) | {"id": "masked"}
    for one, counts in (*((one, 1) for one in records), (masked, 0)):
        one["mask"] = [[counts] * len(row) for row in one["log_probs_new"]]
    alone = write(tmp_path / "a.jsonl", records)
    more = write(tmp_path / "b.jsonl", [*records[:1], masked, *records[1:]])
    for names, columns, share in (
        ("trl", ("entropy", "clip_ratio/low_mean", "clip_ratio/high_mean"), 1.0),
        ("verl", ("actor/entropy", "actor/ppo_kl", "actor/pg_clipfrac"), 1.0),
        ("slime", ("train/entropy_loss", "train/ppo_kl",
                   "train/train_rollout_logprob_abs_diff"), 12 / 16),
    ):  # fmt: skip
        ours, theirs = logged(alone, names), logged(more, names)
        for name in columns:
            assert theirs[name] == pytest.approx(ours[name] * share, rel=1e-12), name


# ---- reading logs ---------------------------------------------------------------------------


ROW = '{"step": 1, "loss": 0.5, "reward": NaN}'
HOLES = {
    "trainer_state.json": '{"log_history": [{"step": 1, "reward": NaN, "loss": 0.5}]}',
    "state.json": f'{{\n "log_history": [\n  {ROW}\n ]\n}}\n',
    "rows.json": f"[{ROW}]",
    "metrics.jsonl": f"{ROW}\n",
    "verl.jsonl": '{"step": 1, "data": {"reward": NaN, "loss": 0.5}}\n',
    "texts.jsonl": '{"step": 1, "loss": 0.5, "reward": "NaN"}\n',
    "wandb.csv": '"Step","run-7 - reward","run-7 - loss"\n1,NaN,0.5\n',
}


@pytest.mark.more
@each(("name", "packed"), [(name, packed) for name in HOLES for packed in (False, True)])
def test_where_a_log_is_nan_is_told(name: str, packed: bool, tmp_path: Path) -> None:
    """Python's json writes NaN, and reads it; a log may be packed as records may.

    ``explain`` takes it for a log as well, but for a CSV that is packed.
    """
    run_path = write(tmp_path / "a.jsonl", [PLAIN | {"step": 1}])
    path = tmp_path / (f"{name}.gz" if packed and name != "trainer_state.json" else name)
    path.write_bytes(gzip.compress(HOLES[name].encode()) if packed else HOLES[name].encode())
    result = run("trend", run_path, "-v", "dr", "--log", path, "--json")
    assert f"note: {path}: reward is NaN at step 1; these steps are not compared" in result.stderr
    assert [one["name"] for one in json.loads(result.stdout)["log"]["series"]] == ["loss"]
    said = run("explain", path)
    assert (said.exit_code == 0) != (packed and name == "wandb.csv")


@each("words", [("trend",), ("trend", HEALTHY, "--log"), ("explain",)])
def test_what_a_packed_log_may_unpack_to_is_a_flag(words: tuple[str, ...], tmp_path: Path) -> None:
    """A log is read within the budget that the flag says, as records are."""
    log = tmp_path / "log.jsonl.gz"
    rows = "".join(f'{{"step": {step}, "loss": 0.5}}\n' for step in range(400))
    log.write_bytes(gzip.compress(rows.encode()))
    for size in ("1K", "1M"):
        result = run(*words, log, "--unpack", size)
        assert (result.exit_code == 0) == (size == "1M")
        assert (f"{log}: 10,690 bytes, unpacked" in result.stderr) == (size == "1K")


@each("words", [("trend",), ("report", "-o", "PAGE"), ("explain",)])
def test_a_small_file_is_opened_once(words: tuple[str, ...], tmp_path: Path) -> None:
    log = log_of(tmp_path / "log.json", {"kl": dict(enumerate([0.1] * 20))})
    records = write(tmp_path / "a.jsonl", [PLAIN | {"step": 1}])
    opened: list[str] = []
    sys.addaudithook(lambda event, about: opened.append(str(about[0])) if event == "open" else None)
    words = tuple(str(tmp_path / "page.html") if one == "PAGE" else one for one in words)
    for path in (log, records)[: 2 if words[0] != "explain" else 1]:
        opened.clear()
        assert run(words[0], path, *words[1:]).exit_code == 0
        assert opened.count(str(path)) == 1


@pytest.mark.more
def test_report_says_where_its_log_is_not_finite(tmp_path: Path) -> None:
    log = log_of(tmp_path / "trainer_state.json", {"kl": {1: 0.1, 2: math.nan, 3: 0.1}})
    words = [HEALTHY, "-v", "trl/grpo", "--log", log, "-o", tmp_path / "page.html"]
    result = run("report", *words)
    note = f"note: {log}: kl is NaN at step 2; these steps are not compared"
    assert (result.exit_code, note in result.stderr) == (0, True)


def test_the_log_of_a_real_run_is_explained() -> None:
    out = run("explain", STATE).stdout
    assert out.startswith("a log of 60 steps, 1 to 60")
    assert "loss and reward rise together" in out


@each(
    ("variant", "counts", "ranks"),
    [
        ("trl/grpo", {"gradient_accumulation_steps": 2}, 0),
        ("trl/bnpo", {"gradient_accumulation_steps": 2}, 0),
        ("trl/dapo", {"num_items_in_batch": 9, "num_processes": 2}, 2),
        ("trl/grpo", {}, 0),
    ],
)
def test_the_loss_of_a_step_is_what_trl_makes_of_its_micro_batches(
    variant: str, counts: dict[str, int], ranks: int, tmp_path: Path
) -> None:
    rows = [
        {
            "step": 1, "microbatch": at // max(ranks, 1), "log_probs_new": new,
            "log_probs_old": [[-0.7] * len(row) for row in new],
            "advantages": [1.0, -0.5 * at], "hyperparameters": counts,
        }
        | ({"rank": at % ranks} if ranks else {})
        for at, new in enumerate(
            [[[-1.0, -0.5], [-0.3]], [[-0.2], [-0.9]], [[-1.0], [-0.8]], [[-0.6], [-0.5]]]
            if ranks
            else [[[-1.0, -0.5], [-0.3]], [[-0.2, -0.4], [-0.9]]]
        )
    ]  # fmt: skip
    path = tmp_path / "run.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (logged,) = answer("trend", path, "-v", variant, "--names", "trl")["steps"]
    (batch,) = answer("eval", path, "-v", variant, "--batch", "step")["batches"]
    assert logged["loss"] == pytest.approx(batch["accumulated_loss"], rel=1e-12)
