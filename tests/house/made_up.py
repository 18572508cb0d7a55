"""A record with every column that a row may ask for, and what rows need of hyperparameters."""

from __future__ import annotations

import random

NEEDED = {
    "max_completion_length": 20,
    "response_length": 20,
    "num_items_in_batch": 40,
    "batch_num_tokens": 40,
    "global_batch_size": 8,
    "clip_cov_seed": 1,
    "loss_denominator": 30,
}
"""Values of hyperparameters that have no usual one."""


def made_up(seed: int, groups: int = 2) -> dict:
    """A record with every column that a row may ask for; log-probs far enough apart to clip."""
    draw = random.Random(seed)
    record: dict = {"id": f"made-up-{seed}", "group_ids": [], "rewards": []}
    columns = ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout")
    for name in (*columns, "entropies", "tokens", "mask"):
        record[name] = []
    for group in range(groups):
        for _ in range(4):
            length = draw.randint(2, 9)
            old = [-draw.expovariate(0.8) - 0.01 for _ in range(length)]
            near = [[min(x + draw.gauss(0.0, 0.3), -1e-3) for x in old] for _ in range(3)]
            for name, values in zip(columns, (near[0], old, near[1], near[2]), strict=True):
                record[name].append(values)
            record["entropies"].append([draw.uniform(0.05, 2.0) for _ in range(length)])
            words = [draw.choice([" the", "cat", "=", " 4"]) for _ in range(length)]
            record["tokens"].append(words)
            record["mask"].append([int(at != 1 or length < 4) for at in range(length)])
            record["group_ids"].append(f"g{group}")
            record["rewards"].append(round(draw.random(), 2))
    return record
