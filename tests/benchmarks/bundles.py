"""Bundles of a trainer that goes wrong at one stage, each fault an entry of ``bundles.json``.

A trainer of TRL's GRPO, written here in plain numpy, trains a generation over two steps of two
micro-batches, with one thing done in another way at one stage; everything after it follows from
what it computed there. ``grpo verify`` has to name that stage and no other. Each fault has several
strengths; some change no number of a generation (``changes``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from command import run
from numpy.typing import NDArray

F64 = NDArray[np.float64]
EPS, LOW, HIGH, BETA, WEIGHTS = 1e-4, 0.2, 0.28, 0.04, (1.0, 0.5, 0.25)
GROUPS, SIZE, MICRO, STEPS = 4, 4, 2, 2


class Plant(NamedTuple):
    """A fault, an entry of ``bundles.json``: its stage, and what the trainer does instead."""

    stage: str
    name: str
    does: Mapping[str, Any]


class Data(NamedTuple):
    """A generation of R responses."""

    raw: F64
    groups: NDArray[np.int64]
    mask: list[F64]
    new: list[list[F64]]
    old: list[F64]
    ref: list[F64]
    order: list[NDArray[np.int64]]


def drawn(seed: int) -> Data:
    """A generation, the policy at each step, and how its rows are shuffled into micro-batches."""
    draw = np.random.default_rng(seed)
    count = GROUPS * SIZE
    lengths = draw.integers(2, 12, count)
    old = [-draw.gamma(2.0, 0.4, length) for length in lengths]
    near = [
        [row + draw.normal(0, 0.02 + 0.25 * step, len(row)) for row in old] for step in range(STEPS)
    ]
    return Data(
        raw=np.stack([draw.integers(0, 2, count), draw.random(count), -lengths / 10.0], axis=1),
        groups=np.repeat(np.arange(GROUPS), SIZE),
        mask=[(draw.random(length) > 0.1).astype(float) for length in lengths],
        new=[[np.minimum(row, -1e-4) for row in rows] for rows in near],
        old=old,
        ref=[np.minimum(row + draw.normal(0, 0.1, len(row)), -1e-4) for row in old],
        order=[draw.permutation(count) for _ in range(STEPS)],
    )


# ---- the trainer --------------------------------------------------------------------------------


def shape(data: Data, does: Mapping[str, Any]) -> F64:
    """Raw rewards → shaped rewards."""
    raw = np.clip(data.raw, *does["clipped"]) if "clipped" in does else data.raw
    found = raw @ np.array(does.get("weights", WEIGHTS))
    if "swapped" in does:
        found[[0, does["swapped"]]] = found[[does["swapped"], 0]]
    if "penalty" in does:
        found -= does["penalty"] * (np.array([len(row) for row in data.mask]) > 9)
    return np.asarray(found)


def estimate(data: Data, shaped: F64, does: Mapping[str, Any]) -> F64:
    """Shaped rewards → advantages."""
    groups = np.roll(data.groups, does.get("rolled", 0))
    if does.get("all"):
        groups = np.zeros_like(groups)
    found = np.zeros(len(shaped))
    for group in np.unique(groups):
        own = groups == group
        rows = shaped[own]
        centre = np.median(rows) if does.get("median") else rows.mean()
        if does.get("others"):
            centre = (rows.sum() - rows) / (len(rows) - 1)
        scale = rows.std(ddof=does.get("ddof", 1)) + does.get("eps", EPS)
        scale = shaped.std(ddof=1) + EPS if does.get("batch") else scale
        found[own] = (rows - centre) / (1.0 if does.get("plain") else scale)
    return np.asarray(np.clip(found * does.get("times", 1.0), *does.get("within", (-1e9, 1e9))))


def losses(
    data: Data, step: int, row: int, advantage: float, does: Mapping[str, Any]
) -> tuple[F64, F64, Any]:
    """[T] of a response: each token's loss and its slope, and which are clipped."""
    new, old, ref = data.new[step][row], data.old[row], data.ref[row]
    old = np.roll(old, does.get("shifted", 0))
    log_ratio = (new - old) / does.get("temperature", 1.0)
    slope = np.full(len(new), 1.0 / does.get("temperature", 1.0))
    if does.get("sequence"):
        kept = data.mask[row]
        log_ratio = np.full(len(new), (log_ratio * kept).sum() / max(kept.sum(), 1.0))
    ratio = np.exp(log_ratio)
    low, high = 1.0 - does.get("low", LOW), 1.0 + does.get("high", HIGH)
    clipped = np.clip(ratio, low, high)
    below, above = (advantage < 0) & (ratio < low), (advantage > 0) & (ratio > high)
    policy = np.minimum(ratio * advantage, clipped * advantage)
    slope = ratio * advantage * slope * ~(below | above)
    if "dual" in does and advantage < 0:
        bound = ratio > does["dual"]
        policy, slope = np.where(bound, does["dual"] * advantage, policy), slope * ~bound
    d = ref - new
    kl, kl_slope = np.exp(d) - d - 1.0, 1.0 - np.exp(d)
    if does.get("kl") == "k1":
        kl, kl_slope = -d, np.ones(len(d))
    if does.get("kl") == "k2":
        kl, kl_slope = 0.5 * d * d, -d
    beta = does.get("beta", BETA)
    shown = (below, above, np.exp(d) - d - 1.0)
    return -policy + beta * kl, -slope + beta * kl_slope, shown


def weights(data: Data, rows: Any, does: Mapping[str, Any]) -> list[F64]:
    """[R] of a micro-batch: the weight of each token in its loss."""
    masks = [data.mask[row] for row in rows]
    tokens = sum(mask.sum() for mask in masks)
    divisor = {
        "tokens": lambda mask: max(tokens, 1.0),
        "length": lambda mask: 12.0 * len(rows),
        "padded": lambda mask: len(mask) * len(rows),
    }.get(does.get("by", ""), lambda mask: max(mask.sum(), 1.0) * len(rows))
    accumulated = does.get("accumulated", MICRO)
    return [mask / divisor(mask) / accumulated * does.get("scaled", 1.0) for mask in masks]


def trained(seed: int, does: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The records of a run, without the hashes."""
    data = drawn(seed)
    shaped = shape(data, does)
    advantages = estimate(data, shaped, does)
    records: list[dict[str, Any]] = []
    for step in range(STEPS):
        batch = [
            _micro(data, step, micro, rows, (shaped, advantages), does)
            for micro, rows in enumerate(np.split(data.order[step], MICRO))
        ]
        own = [record["expected"]["loss"] for record in batch]
        total = {"mean": np.mean(own), "last": own[-1], "twice": 2.0 * sum(own)}
        logged = {
            name: float(np.mean([record["expected"]["metrics"][name] for record in batch]))
            for name in batch[0]["expected"]["metrics"]
        }
        if step == 0:
            logged |= {"reward": float(shaped.mean()), "reward_std": float(shaped.std(ddof=1))}
            logged["rewards/f0/mean"] = float(data.raw[:, 0].mean())
        if does.get("logged") == "last":
            logged |= batch[-1]["expected"]["metrics"]
        if "metric" in does and does["metric"] in logged:
            logged[does["metric"]] = logged[does["metric"]] * does["wrong"] + 1e-3
        loss = total.get(does.get("step", ""), sum(own) * does.get("step_times", 1.0))
        batch[-1]["expected"] |= {"step_loss": float(loss), "step_metrics": logged}
        records += batch
    return records


def _micro(
    data: Data, step: int, micro: int, rows: Any, given: Any, does: Mapping[str, Any]
) -> dict[str, Any]:
    shaped, advantages = given
    made = [losses(data, step, row, advantages[row], does) for row in rows]
    scales = weights(data, rows, does)
    loss = sum(float((scale * one[0]).sum()) for scale, one in zip(scales, made, strict=True))
    kept = np.concatenate([data.mask[row] for row in rows])
    share = [np.concatenate([one[2][at] for one in made]) for at in range(3)]
    low, high, kl = (float((kept * one).sum() / kept.sum()) for one in share)
    region = low + high
    if does.get("over") == "responses":
        kl = float(
            np.mean(
                [
                    (data.mask[r] * one[2][2]).sum() / max(data.mask[r].sum(), 1)
                    for r, one in zip(rows, made, strict=True)
                ]
            )
        )
    if does.get("over") == "padding":
        low, high, kl = (float(one.mean()) for one in share)
        region = low + high
    metrics = {"kl": kl, "clip_ratio/low_mean": low, "clip_ratio/high_mean": high}
    metrics["clip_ratio/region_mean"] = region + does.get("region", 0.0)
    return {
        "id": f"{step}/{micro}",
        "step": step,
        "microbatch": micro,
        "group_ids": data.groups[rows].tolist(),
        "log_probs_new": [data.new[step][row].tolist() for row in rows],
        "log_probs_old": [data.old[row].tolist() for row in rows],
        "log_probs_ref": [data.ref[row].tolist() for row in rows],
        "mask": [data.mask[row].astype(int).tolist() for row in rows],
        "rewards": shaped[rows].tolist(),
        **{f"rewards/f{k}": data.raw[rows, k].tolist() for k in range(3)},
        "advantages": advantages[rows].tolist(),
        "hyperparameters": {
            "epsilon_low": LOW,
            "epsilon_high": HIGH,
            "beta": BETA,
            "gradient_accumulation_steps": MICRO,
        },
        "framework": {
            "name": "trl",
            "version": "1.16.0",
            "loss_type": "grpo",
            "use_bias_correction_kl": False,
            "reward_weights": [*WEIGHTS],
        },
        "expected": {
            "loss": loss,
            "loss_gradient": [
                (scale * one[1]).tolist() for scale, one in zip(scales, made, strict=True)
            ],
            "metrics": metrics,
        },
        "bundle": {
            "format": "grpo-bundle/1",
            "generation": 0,
            "generation_size": GROUPS * SIZE,
            "rows": rows.tolist(),
            "micro_batches": MICRO,
        },
    }


_TABLE = json.loads(Path(__file__).with_suffix(".json").read_bytes())
PLANTS = [Plant(**one) for one in _TABLE]


# ---- the experiment -----------------------------------------------------------------------------


def bundled(records: list[dict[str, Any]], folder: Path) -> Path:
    """The bundle of records, as ``grpo convert`` writes it."""
    plain, path = folder / "plain.jsonl", folder / "step.bundle.jsonl"
    plain.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert run("convert", plain, "--bundle", "-o", path, "-q").exit_code == 0
    return path


def named(path: Path) -> list[str]:
    """The stages that verify says differ."""
    done = run("verify", path, "--json", "-q")
    assert done.exit_code in (0, 1), done.stderr
    answer = json.loads(done.stdout)
    differing = [one["stage"] for one in answer["bundle"]["stages"] if one["differing"]]
    assert answer["bundle"]["first_stage"] == (differing or [None])[0]
    assert done.exit_code == bool(differing)
    return differing


def changes(seed: int, does: Mapping[str, Any]) -> bool:
    """Whether a fault changes anything by more than a tenth of a percent."""
    pairs = zip(_numbers(trained(seed, {})), _numbers(trained(seed, does)), strict=True)
    return any(abs(a - b) > 1e-3 * max(abs(a), abs(b)) + 1e-9 for a, b in pairs)


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _numbers(one)
    elif isinstance(value, int | float):
        yield float(value)
