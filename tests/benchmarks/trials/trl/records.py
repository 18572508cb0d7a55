"""Records that TRL's hook would write: the real ones of the repository, and simulated ones."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import orjson

from trials.product import Record
from trials.simulate.policy import Random, Sharpness
from trials.simulate.run import simulate
from trials.simulate.setup import Dump, Moves, Rewards, Setup, Text
from trials.simulate.write import records
from trials.trl.data import data
from trials.trl.loss import evaluate, expected

_DATA = Path(__file__).parents[3] / "data"

SETUP = Setup(
    prompts=2,
    group=6,
    sharpness=Sharpness(sure=0.3, sure_to=12.0),
    moves=Moves(update=0.35, reference=0.3, same_pass=False),
    text=Text(length=22, spread=0.6, shortest=3, longest=50),
)
"""Two groups of six: a tenth of the ratios clips, the reference has moved, some text is cut."""


@cache
def real() -> tuple[Record, ...]:
    """The micro-batches of TRL 1.16 that have ratios off 1 (an epoch later than the first)."""
    found = []
    for path in sorted(_DATA.rglob("trl-*.jsonl")):
        for line in path.read_bytes().splitlines():
            record = orjson.loads(line)
            if record["per_token_logps"] != record["old_per_token_logps"]:
                found.append(record)
    return tuple(found)


def simulated(random: Random, *, rewarded: bool) -> Record:
    """A micro-batch of a loss drawn at random, with the loss and gradient that TRL would write.

    ``rewarded``: the advantages are left to the rewards, whose groups are whole then. Else they
    are given, and the micro-batch has eight of the twelve rows, shuffled, as TRL's have.
    """
    kind = "continuous" if random.random() < 0.5 else "shaped"
    rewards = Rewards(kind=kind, given="" if rewarded else "group-std")
    masked = random.random() < 0.5
    dump = Dump(
        words="trl",
        ref=True,
        ids=True,
        padding="right" if masked else "",
        layout="record" if rewarded else "micro",
        micro=8,
    )
    setup = replace(SETUP, rewards=rewards, dump=dump)
    batch = simulate(setup, random)
    made = records(batch, dump, random, "simulated")[0]
    if masked and random.random() < 0.5:
        _truncate(made)
    made["hyperparameters"], made["framework"] = _settings(random, made)
    if made["hyperparameters"]["beta"] == 0.0:
        del made["ref_per_token_logps"]
    seen = data(made)
    made["expected"] = expected(seen, *evaluate(seen))
    return made


def _truncate(made: Record) -> None:
    """mask_truncated_completions: the longest response, which was cut, counts no longer."""
    mask = made["completion_mask"]
    row = max(range(len(mask)), key=lambda at: sum(mask[at]))
    mask[row] = [0] * len(mask[row])


def _settings(random: Random, made: Record) -> tuple[dict[str, object], dict[str, object]]:
    loss = str(random.choice(["grpo", "dapo", "dr_grpo", "bnpo", "cispo"]))
    sequence = loss != "cispo" and random.random() < 0.25
    tokens = int(sum(map(sum, made.get("completion_mask") or _ones(made))))
    steps = int(random.choice([1, 2, 4]))
    hyper = {
        "epsilon_low": 0.02 if sequence else float(random.choice([0.1, 0.2])),
        "epsilon_high": _upper(random, loss, sequence=sequence),
        "beta": float(random.choice([0.0, 0.01, 0.04, 0.1])),
        "max_completion_length": 64,
        "num_items_in_batch": int(tokens * steps * random.uniform(0.8, 1.25)),
        "gradient_accumulation_steps": steps,
        "steps_per_generation": steps,
    }
    framework = {
        "name": "trl",
        "version": "1.16.0",
        "loss_type": loss,
        "importance_sampling_level": "sequence" if sequence else "token",
        "use_bias_correction_kl": bool(random.random() < 0.5),
        "off_policy_mask_threshold": None,
        "scale_rewards": "group",
    }
    return hyper, framework


def _upper(random: Random, loss: str, *, sequence: bool) -> float:
    if loss == "cispo":
        return 1.2
    return 0.03 if sequence else float(random.choice([0.2, 0.28]))


def _ones(made: Record) -> list[list[int]]:
    return [np.ones(len(row), dtype=int).tolist() for row in made["per_token_logps"]]
