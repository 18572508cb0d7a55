"""A record as the loss sees it: flat columns of the tokens that count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from trials import tape
from trials.product import Record
from trials.strangers.dumps import written
from trials.strangers.world import Random, Spec, drawn
from trials.tape import Var

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Data:
    """R responses, N tokens that count, and what the loss is told.

    Attributes:
        new, old, ref: [N] log-probs; ref is new where there is none.
        index: [N] the response of each token.
        count: R.
        advantages: [R] given, or as TRL computes them from the rewards.
        rewards, groups: [R] where the record has them.
        written: [R] tokens of each response with those that the mask takes out.
        kept: [as written] which tokens count.
        hyper: the record's hyperparameters.
        framework: which loss it was.
    """

    new: F64
    old: F64
    ref: F64
    index: I64
    count: int
    advantages: F64
    rewards: F64 | None
    groups: I64
    written: I64
    kept: np.ndarray
    hyper: dict[str, Any]
    framework: dict[str, Any]

    @property
    def lengths(self) -> F64:
        """[R] tokens that count, at least 1."""
        return np.maximum(np.bincount(self.index, minlength=self.count), 1).astype(float)


NAMES = {
    "new": ("per_token_logps", "log_probs_new"),
    "old": ("old_per_token_logps", "log_probs_old"),
    "ref": ("ref_per_token_logps", "log_probs_ref"),
}


def data(record: Record) -> Data:
    """What the loss sees of a record."""
    columns = {name: _column(record, keys) for name, keys in NAMES.items()}
    shape = next(rows for rows in columns.values() if rows)
    written = np.array([len(row) for row in shape])
    mask = record.get("completion_mask") or [[1] * len(row) for row in shape]
    kept = np.concatenate([np.asarray(row, dtype=bool) for row in mask])
    new = _flat(columns["new"], kept)
    index = np.repeat(np.arange(len(shape)), written)[kept]
    scores = record.get("rewards")
    groups = np.unique(record.get("group_ids", [0] * len(shape)), return_inverse=True)[1]
    rewards = None if scores is None else np.array(scores, dtype=float).reshape(len(shape), -1)
    rewards = None if rewards is None else rewards.sum(axis=1)
    return Data(
        new,
        _flat(columns["old"], kept) if columns["old"] else new,
        _flat(columns["ref"], kept) if columns["ref"] else new,
        index,
        len(shape),
        _advantages(record, rewards, groups),
        rewards,
        groups,
        written,
        kept,
        record["hyperparameters"],
        record["framework"],
    )


def _column(record: Record, keys: tuple[str, ...]) -> Any:
    return next((record[key] for key in keys if key in record), None)


def _flat(column: Any, kept: np.ndarray) -> F64:
    return np.concatenate([np.asarray(row, dtype=np.float64) for row in column])[kept]


def _advantages(record: Record, rewards: F64 | None, groups: I64) -> F64:
    if "advantages" in record:
        return np.array(record["advantages"], dtype=np.float64)
    assert rewards is not None
    scaled = record["framework"].get("scale_rewards") != "none"
    return advantages(rewards, groups, scaled=scaled)


def advantages(scores: F64, groups: I64, *, scaled: bool) -> F64:
    """[R] in float32, as TRL computes them: r − r̄, over the group's std + 1e-4 where scaled."""
    scores = scores.astype(np.float32)
    found = np.zeros(len(scores), dtype=np.float32)
    for group in np.unique(groups):
        rows = groups == group
        own = scores[rows]
        if np.ptp(own):
            found[rows] = own - own.mean()
            found[rows] /= own.std(ddof=1) + np.float32(1e-4) if scaled else 1.0
    return found.astype(np.float64)


# ---- the loss and its gradient -------------------------------------------------------------------


@dataclass(frozen=True)
class Steps:
    """The loss as its steps; a wrong implementation is one of these with a step replaced.

    Attributes:
        advantage: data → [N] advantages.
        log_ratio: data, θ → [N].
        policy: data, θ, ρ, A → [N] p.
        kl: data, θ, ρ → [N] β·k; None without KL.
        reduce: data, p, β·k → the loss, before accumulation.
        finish: data, loss → the loss as it is logged and differentiated.
    """

    advantage: Callable[[Data], F64]
    log_ratio: Callable[[Data, Var], Var]
    policy: Callable[[Data, Var, Var, F64], Var]
    kl: Callable[[Data, Var, Var], Var]
    reduce: Callable[[Data, Var, Var], Var]
    finish: Callable[[Data, Var], Var]


def advantage(data: Data) -> F64:
    return data.advantages[data.index]


def log_ratio(data: Data, new: Var) -> Var:
    change = new - data.old
    if data.framework["importance_sampling_level"] == "token":
        return change
    return tape.spread(tape.rows(change, data.index, data.count) / data.lengths, data.index)


def bounds(data: Data) -> tuple[float, float]:
    return 1.0 - data.hyper["epsilon_low"], 1.0 + data.hyper["epsilon_high"]


def policy(data: Data, new: Var, ratio: Var, advantage: F64) -> Var:
    if data.framework["loss_type"] == "cispo":
        return -(tape.stop(tape.clamp(ratio, 0.0, data.hyper["epsilon_high"])) * advantage * new)
    return -tape.least(ratio * advantage, tape.clamp(ratio, *bounds(data)) * advantage)


def kl(data: Data, new: Var, ratio: Var) -> Var:
    weighted = data.framework.get("use_bias_correction_kl")
    return data.hyper["beta"] * k3(data, new) * (ratio if weighted else 1.0)


def k3(data: Data, new: Var) -> Var:
    change = data.ref - new
    return np.exp(change) - change - 1.0


def reduce(data: Data, policy: Var, kl: Var) -> Var:
    return reduced(data, policy + kl, data.framework["loss_type"])


def reduced(data: Data, loss: Var, kind: str) -> Var:
    """The reduction of a loss type, before accumulation."""
    if kind == "grpo":
        return (loss / data.lengths[data.index]).sum() / data.count
    return loss.sum() / denominator(data, kind)


def denominator(data: Data, kind: str) -> float:
    if kind == "dr_grpo":
        return float(data.count * data.hyper["max_completion_length"])
    if kind == "bnpo":
        return float(max(len(data.new), 1))
    return float(max(data.hyper["num_items_in_batch"], 1))


def accumulated(data: Data) -> float:
    """What the loss is divided by; dapo and cispo have it in their denominator."""
    whole = data.framework["loss_type"] in ("dapo", "cispo")
    return 1.0 if whole else float(data.hyper.get("gradient_accumulation_steps", 1))


def finish(data: Data, loss: Var) -> Var:
    return loss / accumulated(data)


RIGHT = Steps(advantage, log_ratio, policy, kl, reduce, finish)


def evaluate(data: Data, steps: Steps = RIGHT) -> tuple[float, F64]:
    """The loss, and its gradient by each token's log-prob [N]."""
    new = Var(data.new)
    ratio = np.exp(steps.log_ratio(data, new))
    judged = steps.advantage(data)
    loss = steps.finish(
        data, steps.reduce(data, steps.policy(data, new, ratio, judged), steps.kl(data, new, ratio))
    )
    loss.backward()
    return float(loss.value), new.slope


def expected(data: Data, loss: float, gradient: F64, *, single: bool = True) -> dict[str, Any]:
    """What a trainer would have written: float32 numbers, a gradient of 0 at masked tokens."""
    whole = [0.0] * len(data.kept)
    kept = [at for at, one in enumerate(data.kept) if one]
    for at, value in zip(kept, gradient.tolist(), strict=True):
        whole[at] = float(np.float32(value)) if single else value
    rows, start = [], 0
    for length in data.written.tolist():
        rows.append(whole[start : start + length])
        start += length
    return {"loss": float(np.float32(loss)) if single else loss, "loss_gradient": rows}


# ---- records -------------------------------------------------------------------------------------


_DATA = Path(__file__).parents[2] / "data"

SPEC = Spec(
    prompts=2, size=6, length=22, spread=0.6, shortest=3, longest=50, sure=0.3, surety=7.0,
    update=0.35, reference=0.3, rewards="graded",
)  # fmt: skip
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
    masked = bool(random.random() < 0.5)
    world = drawn(random, SPEC)
    del world.columns["log_probs_rollout"]
    given = None if rewarded else advantages(world.rewards, world.groups, scaled=True)
    how: dict[str, Any] = {"layout": "record", "words": "trl", "padded": masked}
    (made,) = written(world, columns=("ref",), advantages=given, **how)
    if not rewarded:
        order = random.permutation(len(world.lengths))[:8]
        made |= {
            key: [rows[at] for at in order] for key, rows in made.items() if isinstance(rows, list)
        }
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
