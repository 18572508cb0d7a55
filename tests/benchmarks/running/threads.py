"""Issue threads about runs, as samples: what each describes, and the command that answers it.

Nothing is taken from a thread but what it describes; every number is simulated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from running.dumps import SHAPES
from running.logs import FILES, healthy
from running.policy import Random, correlated
from running.simulate import HEALTHY, SIZE, Change, StepRows, World, conditions, simulate

Record = dict[str, Any]
COLUMNS = ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout", "entropies")
GROUPS = 2
"""Of a step's groups, so many are written."""
ONSET = 24


@dataclass(frozen=True)
class RunThread:
    """A thread: where, its file, what is in it, and the command that answers it.

    Attributes:
        words: the command, ``FILE`` in the place of the file.
        named: what the answer has to say, as a regular expression on standard output.
    """

    name: str
    about: str
    file: str
    made: Callable[[Random], bytes]
    words: str
    named: str


def _lines(records: Sequence[Record]) -> bytes:
    return b"".join(json.dumps(one, separators=(",", ":")).encode() + b"\n" for one in records)


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return [_short(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _records(
    steps: Sequence[StepRows],
    fixed: World,
    columns: Sequence[str],
    more: Callable[[int, int, World], Record] = lambda step, group, fixed: {},
    groups: int = GROUPS,
) -> list[Record]:
    """Records of the first groups of each step, with these columns."""
    left_out = {one for one in (*COLUMNS, "token_ids", "finish_reasons") if one not in columns}
    found = []
    for rows in steps:
        for group, record in enumerate(SHAPES["plain"](rows, fixed.ratios)):
            if group < groups:
                kept = {name: v for name, v in record.items() if name not in left_out}
                found.append(_short({**kept, **more(rows.step, group, fixed)}))
    return found


def _dump(
    random: Random,
    change: Change,
    columns: Sequence[str],
    more: Callable[[int, int, World], Record] = lambda step, group, fixed: {},
    *,
    steps: int = 44,
    groups: int = GROUPS,
) -> bytes:
    fixed, made = simulate(random, change, steps, onset=ONSET)
    return _lines(_records(made, fixed, columns, more, groups))


def slime_1695(random: Random) -> bytes:
    """https://github.com/THUDM/slime/issues/1695

    Training resumes from a checkpoint, and for some steps the engine does not have its weights:
    trainer and engine differ greatly, and few responses are right; after that all is well.
    """

    def change(since: int, world: World) -> Any:
        held = conditions(engine_noise=150.0, hardness=-2.5)
        return held if since < 4 else HEALTHY

    return _dump(random, change, ENGINE)


def vime_64(random: Random) -> bytes:
    """https://github.com/vllm-project/vime/issues/64

    With one engine the mean absolute difference of log-probs remains at 0.011 for thirty steps;
    with another it rises from there to 0.036, step by step, from the first step on.
    """
    noise = correlated(random, 30, 0.2, heavy=False)
    drift = 0.011 + 0.025 * np.arange(30) / 29 + 0.0007 * noise
    reward = 0.35 + 0.004 * np.arange(30) + 0.02 * random.standard_normal(30)
    return _lines(
        [
            {
                "rollout/step": step,
                "step": step,
                "train/train_rollout_logprob_abs_diff": _short(float(drift[step])),
                "rollout/raw_reward": _short(float(reward[step])),
                "train/grad_norm": _short(float(np.exp(random.normal(-1.5, 0.1)))),
            }
            for step in range(30)
        ]
    )


def prime_rl_2478(random: Random) -> bytes:
    """https://github.com/PrimeIntellect-ai/prime-rl/pull/2478

    Several environments are trained at once, and the trainer's metrics are means over all of them:
    which environment has the mismatch cannot be seen. Here the responses of one of two, from
    step 24 on, come from an engine that differs.
    """
    fixed, sound = simulate(np.random.default_rng(5), None, 44, onset=ONSET)
    _, broken = simulate(
        np.random.default_rng(5),
        lambda since, world: conditions(engine_noise=40.0),
        44,
        onset=ONSET,
    )
    math_ = _records(sound, fixed, ENGINE)
    tools = _records(broken, fixed, ENGINE)
    pairs = zip(math_[::GROUPS], tools[1::GROUPS], strict=True)
    return _lines(
        [{**one, "env": env} for pair in pairs for one, env in zip(pair, ENVS, strict=True)]
    )


ENVS = ("math", "tools")
ENGINE = ("log_probs_new", "log_probs_rollout")


def areal_1736(random: Random) -> bytes:
    """https://github.com/areal-project/AReaL/pull/1736

    What rollout and trainer differ by, before PPO overwrites the rollout's log-probs: absolute
    differences, NLL, k1 and k3, tails, and a staleness that weighs valid tokens. Here one group of
    two is a step old, the other three.
    """

    def versions(step: int, group: int, world: World) -> Record:
        return {"weight_versions": [max(step - 1 - 2 * group, 0)] * SIZE}

    return _dump(random, lambda since, world: HEALTHY, ENGINE, versions, steps=24)


def tinker_cookbook_396(random: Random) -> bytes:
    """https://github.com/thinking-machines-lab/tinker-cookbook/issues/396

    The log-probs that sampling returns are exactly 0 at many tokens, as if their probability were
    1, and not those that a second pass over the tokens gives.
    """
    fixed, steps = simulate(random, None, 30)
    (record,) = _records(steps[-1:], fixed, ENGINE)[:1]
    rows = [
        [0.0 if random.random() < 0.35 else value for value in row]
        for row in record["log_probs_rollout"]
    ]
    return _lines([{**record, "log_probs_rollout": rows}])


def gem_113(random: Random) -> bytes:
    """https://github.com/axon-rl/gem/pull/113

    Rewards are normalised in each group; what comes out is normalised once more, over all turns of
    the batch, of which episodes have different numbers.
    """
    fixed, steps = simulate(random, None, 30)
    rows = steps[-1]
    rows.rewards = rows.rewards + 0.2 * random.standard_normal(len(rows.rewards)).round(2)
    grouped = rows.rewards.reshape(-1, SIZE)[:4]
    centred = grouped - grouped.mean(axis=1, keepdims=True)
    once = centred / grouped.std(axis=1, ddof=1, keepdims=True)
    turns = np.repeat(once.ravel(), random.integers(1, 7, once.size))
    twice = (once - turns.mean()) / turns.std()
    groups = list(SHAPES["plain"](rows, fixed.ratios))[: len(twice)]
    return _lines(
        [
            {
                "id": "gem#113",
                "group_size": SIZE,
                "rewards": [_short(one) for group in groups for one in group["rewards"]],
                "log_probs_new": [
                    _short(one) for group in groups for one in group["log_probs_new"]
                ],
                "advantages": twice.ravel().round(6).tolist(),
            }
        ]
    )


def nemo_rl_2269(random: Random) -> bytes:
    """https://github.com/NVIDIA-NeMo/RL/pull/2269

    The engine's weight of a response is exp of the *sum* of thousands of log ratios: with a small,
    harmless mismatch at each token it goes to 0, and so does the gradient. The mean does not.
    """
    lengths = [int(one) for one in random.integers(700, 900, 4)]
    rollout = [-random.gamma(0.3, 0.8, count) - 0.001 for count in lengths]
    new = [
        np.minimum(row * 1.02 + 0.01 * random.standard_normal(len(row)), -1e-4) for row in rollout
    ]
    record = {
        "id": "NeMo-RL#2269",
        "log_probs_new": [row.round(4).tolist() for row in new],
        "generation_logprobs": [row.round(4).tolist() for row in rollout],
        "rewards": [1.0, 0.0, 0.0, 1.0],
    }
    return _lines([record])


def tinker_feedback_22(random: Random) -> bytes:
    """https://github.com/thinking-machines-lab/tinker-feedback/issues/22

    The KL of what was sampled is 0.05 at the first step and 0.1 within twenty, where 0.01 is
    recommended: is it the kernels?
    """

    def change(since: int, world: World) -> Any:
        return conditions(engine_noise=49.0 + 0.9 * since)

    fixed, steps = simulate(random, change, 24, onset=0)
    return _lines(_records(steps, fixed, ENGINE))


def open_r1_257(random: Random) -> bytes:
    """https://github.com/huggingface/open-r1/issues/257

    The reward rises at first; by the end it is 0, and the KL is extremely large.
    """
    series = healthy(random)
    gone = np.clip((np.arange(len(series["kl"])) - 62) / 30.0, 0.0, 1.0)
    series["kl"] = series["kl"] * np.exp(9.0 * gone)
    series["reward"] = series["reward"] * (1.0 - gone) * (gone < 1.0)
    series["gradient"] = series["gradient"] * np.exp(2.5 * gone)
    return FILES["trainer_state.json"][2](series, 110).encode()


def verl_7004(random: Random) -> bytes:
    """https://github.com/verl-project/verl/issues/7004

    Monitoring of reward hacking: the KL accelerates, the entropy collapses, the reward goes on
    rising, and what is held out falls.
    """
    series = healthy(random)
    gone = np.clip((np.arange(len(series["kl"])) - 58) / 40.0, 0.0, 1.0)
    series["kl"] = series["kl"] * np.exp(4.0 * gone)
    series["entropy"] = series["entropy"] * np.exp(-2.0 * gone)
    series["reward"] = series["reward"] + 0.2 * gone
    series["eval"] = series["eval"] * (1.0 - 0.6 * gone)
    return FILES["verl's JSONL"][2](series, 105).encode()


def trl_7047(random: Random) -> bytes:
    """https://github.com/huggingface/trl/issues/7047

    A step has four micro-batches, the last one of an epoch has one; what is logged is a mean over
    micro-batches, in which longer accumulation counts more.
    """
    fixed, steps = simulate(random, None, 12)
    records = []
    for rows in steps:
        groups = list(SHAPES["plain"](rows, fixed.ratios))[: 1 if rows.step % 4 == 3 else 4]
        for number, record in enumerate(groups):
            kept = {k: v for k, v in record.items() if k in ("step", "id", "rewards", *COLUMNS[:3])}
            records.append(_short({**kept, "microbatch": number}))
    return _lines(records)


TREND = "grpo trend FILE"
THREADS = (
    RunThread(
        "open-r1#257",
        "reward 0 and an extreme KL by the end",
        "open-r1-257.trainer_state.json",
        open_r1_257,
        TREND,
        r"step 6\d.*\bkl\b|\bkl\b.*(rise|rose).*6\d",
    ),
    RunThread(
        "trl#7047",
        "metrics of uneven accumulation windows",
        "trl-7047.jsonl.gz",
        trl_7047,
        "grpo trend FILE --fields kl_k3,nll --limit 0",
        r"kl",
    ),
    RunThread(
        "prime-rl#2478",
        "which environment has the mismatch",
        "prime-rl-2478.jsonl.gz",
        prime_rl_2478,
        "grpo trend FILE --by env",
        r"tools",
    ),
    RunThread(
        "NeMo-RL#2269",
        "the weight of a sequence goes to 0",
        "nemo-rl-2269.jsonl",
        nemo_rl_2269,
        "grpo compare FILE -v nemo-rl/gspo,nemo-rl/gspo-is,nemo-rl/grpo-is",
        r"nemo-rl/gspo-is",
    ),
    RunThread(
        "gem#113",
        "advantages normalised twice",
        "gem-113.jsonl",
        gem_113,
        "grpo check FILE",
        r"advantage",
    ),
    RunThread(
        "slime#1695",
        "after a resume the engine differs for some steps",
        "slime-1695.jsonl.gz",
        slime_1695,
        TREND,
        r"step 24.*mismatch",
    ),
    RunThread(
        "vime#64",
        "the difference of log-probs rises from the first step on",
        "vime-64.metrics.jsonl",
        vime_64,
        TREND,
        r"logprob_abs_diff.*(rise|rose|drift)",
    ),
    RunThread(
        "tinker-feedback#22",
        "the sampling KL is high from the first step on, and rises",
        "tinker-feedback-22.jsonl.gz",
        tinker_feedback_22,
        TREND,
        r"mismatch",
    ),
    RunThread(
        "verl#7004",
        "monitoring of reward hacking",
        "verl-7004.metrics.jsonl",
        verl_7004,
        TREND,
        r"kl_loss began to rise",
    ),
    RunThread(
        "AReaL#1736",
        "mismatch and staleness by valid tokens",
        "areal-1736.jsonl.gz",
        areal_1736,
        "grpo trend FILE --fields staleness,nll,mismatch.k1,mismatch.k3,mismatch.p999",
        r"staleness",
    ),
    RunThread(
        "tinker-cookbook#396",
        "sampled log-probs are exactly 0",
        "tinker-cookbook-396.jsonl",
        tinker_cookbook_396,
        "grpo check FILE",
        r"probability 1|exactly 0",
    ),
)
