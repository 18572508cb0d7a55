"""Runs that are written as files, and what ``grpo trend`` says of them."""

from __future__ import annotations

import base64
import json
import random
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from command import answer, run

PLAIN = {"log_probs": [[-1.0, -2.0], [-1.0]], "rewards": [1.0, 0.0]}
SAMPLES = Path(__file__).parents[2] / "samples" / "run"

BLOCK = re.compile(r'<script type="application/octet-stream" id="([a-z0-9-]+)">([^<]*)</script>')

Record = Mapping[str, Any]


def write(path: Path, records: Iterable[Record | str]) -> Path:
    """A JSONL file of records, or of lines as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (one if isinstance(one, str) else json.dumps(one) for one in records)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def trend(*words: object) -> Any:
    """What ``grpo trend --json`` prints; ``-v dr`` unless another variant is named."""
    return answer("trend", *words, *(() if "-v" in words else ("-v", "dr")))


def steps(*words: object) -> list[dict[str, Any]]:
    """The steps of a run."""
    found: list[dict[str, Any]] = trend(*words)["steps"]
    return found


def metrics(*words: object) -> dict[str, Any]:
    """The numbers of a run's only step."""
    (found,) = steps(*words)
    return found


def notes(*words: object) -> list[str]:
    """What is printed besides the answer, without the note on a missing log_probs_old."""
    result = run("trend", *words, *(() if "-v" in words else ("-v", "dr")))
    said = result.stderr.replace("grpo: ", "").replace("note: ", "").splitlines()
    return [line for line in said if not line.startswith("log_probs_old is missing")]


def series(path: Path, values: Mapping[str, Sequence[float | None]]) -> Path:
    """A run whose reward functions, of these names, have these values, one a step.

    Of each the steps are those that have a value; a drift down is a finding, one up is none.
    """
    count = max(map(len, values.values()))
    rows = {name: [*each, *[None] * (count - len(each))] for name, each in values.items()}
    return write(
        path,
        (
            {"step": at, "log_probs": [[-1.0]], "rewards": {n: [v[at]] for n, v in rows.items()}}
            for at in range(count)
        ),
    )


def log_of(path: Path, values: Mapping[str, Mapping[int, float | None]]) -> Path:
    """A trainer's log: of each series its values by step."""
    steps = sorted({step for each in values.values() for step in each})
    rows = [
        {"step": at} | {name: each[at] for name, each in values.items() if at in each}
        for at in steps
    ]
    path.write_text(json.dumps({"log_history": rows}))
    return path


def found_in(path: Path, *flags: str) -> dict[str, list[dict[str, Any]]]:
    """The findings of a run, by metric."""
    found: dict[str, list[dict[str, Any]]] = {}
    for one in trend(path, *flags)["findings"]:
        found.setdefault(one["metric"].removeprefix("rewards/").removesuffix("/mean"), []).append(
            one
        )
    return found


BEGINS = 24


def record(draw: random.Random, step: int, number: int) -> dict[str, Any]:
    size = 0.01 if step < BEGINS else 0.01 + 0.01 * (step - BEGINS + 1)
    made: dict[str, Any] = {"id": f"{step}-{number}", "step": step, "prompt": f"what is {number}?"}
    columns: dict[str, list[list[float]]] = {
        name: [] for name in ("log_probs_new", "log_probs_old", "log_probs_rollout")
    }
    for _ in range(4):
        old = [round(-draw.expovariate(1.0) - 0.3, 6) for _ in range(draw.randint(4, 16))]
        columns["log_probs_old"].append(old)
        for name, noise in (("log_probs_new", 0.1), ("log_probs_rollout", size)):
            moved = (min(one + draw.gauss(0.0, noise), -1e-3) for one in old)
            columns[name].append([round(one, 6) for one in moved])
    rewards = [float(draw.random() < 0.5) for _ in range(4)]
    tokens = [[f"Ġt{at}" for at in range(len(row))] for row in columns["log_probs_old"]]
    return made | columns | {"rewards": rewards, "tokens": tokens}


def drifting(folder: Path, steps: int = 40, records: int = 3) -> list[dict[str, Any]]:
    """Writes a file a step; returns all records."""
    folder.mkdir(parents=True, exist_ok=True)
    draw, everything = random.Random(5), []
    for step in range(steps):
        lines = [record(draw, step, number) for number in range(records)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"step_{step}.jsonl").write_text(text, encoding="utf-8")
        everything += lines
    return everything


def blocks(text: str) -> dict[str, dict[str, Any]]:
    """What the page's script reads."""
    found = {}
    for name, data in BLOCK.findall(text):
        if name != "settings":
            whole = zlib.decompress(base64.b64decode(data))
            size = int.from_bytes(whole[:4], "little")
            found[name] = json.loads(whole[4 : 4 + size])
    return found


# ---- a healthy run of four columns, in which faults are planted ----------------------------------

STEP, STEPS, GROUPS = 24, 44, 4
COLUMNS = ("new", "old", "ref", "rollout")
IDS = [[*range(10 * row, 10 * row + 3), 77, *range(200, 212)] for row in range(8)]
Columns = dict[str, Any]


def healthy(seed: int = 7) -> list[Columns]:
    """Log-probs by column, [groups, responses, tokens], and rewards, for each step."""
    draw, rows = np.random.default_rng(seed), []
    for step in range(STEPS):
        old = -draw.exponential(0.7, (GROUPS, 8, 16)) - 1e-3
        sizes = {"new": 0.03, "ref": 0.01 + 0.004 * step, "rollout": 0.006}
        made = {name: old + size * draw.normal(size=old.shape) for name, size in sizes.items()}
        rewards = (draw.random((GROUPS, 8)) < 0.4).astype(float)
        made = {name: np.minimum(one, -1e-5) for name, one in made.items()}
        rows.append(made | {"old": old, "rewards": rewards})
    return rows


def centred(now: Columns) -> Any:
    """r − r̄ in the group."""
    return now["rewards"] - now["rewards"].mean(axis=1, keepdims=True)


def given(now: Columns) -> Any:
    """(r − r̄) / (σ + 1e-4) in the group."""
    return centred(now) / (now["rewards"].std(axis=1, ddof=1, keepdims=True) + 1e-4)


def written(path: Path, rows: list[Columns], **more: Callable[[int, int], Any]) -> Path:
    """Steps as records of a group each, with fields made of their step and group."""
    return write(path, (
        {"step": step, "id": f"{step}/{group}"}
        | {f"log_probs_{n}" if n in COLUMNS else n: one[group].tolist() for n, one in now.items()}
        | {name: make(step, group) for name, make in more.items()}
        for step, now in enumerate(rows)
        for group in range(GROUPS)
    ))  # fmt: skip
