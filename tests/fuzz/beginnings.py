"""What is changed: small inputs of every shape and format that is read."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from formats import dumps

from fuzz.product import ROOT, run

Object = dict[str, Any]

NEW = [[-0.9, -0.2, -1.5], [-1.1], [-0.3, -2.0], [-0.7, -0.4]]
OLD = [[-1.0, -0.25, -1.25], [-1.0], [-0.5, -1.75], [-0.9, -0.3]]
REF = [[-1.0, -0.5, -1.0], [-1.25], [-0.25, -2.25], [-0.6, -0.5]]
REWARDS = [1.0, 0.0, 0.5, 1.0]

_TOKENS: Object = {
    "log_probs_new": NEW,
    "log_probs_old": OLD,
    "log_probs_ref": REF,
    "log_probs_rollout": [[x - 0.125 for x in row] for row in OLD],
    "rewards": REWARDS,
}


def _shapes() -> dict[str, list[Object]]:
    """Records under canonical names in every shape."""
    padded = [[*row, 0.0, 0.0][:3] for row in NEW]
    mask = [([1] * len(row) + [0, 0])[:3] for row in NEW]
    pair = {name: [rows[:2], rows[2:]] for name, rows in _TOKENS.items()}
    flat = {name: [row[0] for row in rows] for name, rows in list(_TOKENS.items())[:3]}
    return {
        "plain": [{"id": at, **_TOKENS} for at in range(3)],
        "words": [_TOKENS | {"tokens": [[f"t{x}" for x in r] for r in NEW], "token_ids": _ids()}],
        "sequence": [flat | {"rewards": REWARDS}],
        "nested": [pair],
        "flat groups": [_TOKENS | {"group_ids": ["a", "a", "b", "b"], "advantages": [1, -1, 0, 2]}],
        "group size": [_TOKENS | {"group_size": 2, "advantages": NEW}],
        "padded": [{"log_probs_new": padded, "mask": mask, "rewards": REWARDS}],
        "two masks": [{"logps": padded, "loss_mask": mask, "response_mask": mask, "A": REWARDS}],
        "ratios": [{"ratios": NEW and [[1.1, 0.9], [1.0]], "advantages": [1.0, -1.0]}],
        "probabilities": [
            {
                "ratios": [1.1, 0.9],
                "probs_old": [0.5, 0.25],
                "probs_ref": [0.4, 0.3],
                "advantages": [1.0, -1.0],
            }
        ],
        "entropies": [_TOKENS | {"entropies": [[0.5] * len(row) for row in NEW]}],
        "several rewards": [_TOKENS | {"rewards": {"right": REWARDS, "form": [1, 1, 0, 1]}}],
        "settings": [_TOKENS | {"hyperparameters": {"epsilon": 0.1, "beta": 0.01}, "step": 3}],
        "rows": [
            {"uid": at // 2, "step": 120, "env": "math", "logps": NEW[at], "reward": REWARDS[at]}
            for at in range(4)
        ],
    }


def _ids() -> list[list[int]]:
    return [[7 + at for at, _ in enumerate(row)] for row in NEW]


def _expected() -> dict[str, list[Object]]:
    """Records that say what they evaluate to, with everything that may stand there."""
    small = {"log_probs_new": NEW[:2], "log_probs_old": OLD[:2], "advantages": [1.0, -1.0]}
    numbers = {"loss": 0.1, "objective": -0.1, "policy_loss": 0.1, "advantages": [1.0, -1.0]}
    columns = {"ratio": NEW[:2], "kl": NEW[:2], "gradient": NEW[:2], "loss_gradient": NEW[:2]}
    metrics = {"metrics": {"kl": 0.01, "clip_ratio/low_mean": 0.0, "ppo_kl": 0.1}}
    trl = {"framework": {"name": "trl", "version": "1.16.0", "loss_type": "grpo"}}
    return {
        "expected": [small | {"expected": numbers | columns | metrics}],
        "expected of trl": [_TOKENS | trl | {"expected": {"loss": 0.1} | metrics}],
        "expected loss": [small | {"hyperparameters": {"beta": 0}, "expected": {"loss": 0.0}}],
    }


def _formats() -> dict[str, list[Object]]:
    """One of each format that ``grpo formats`` lists."""
    batch_line = {"custom_id": "r1", "response": {"body": dumps.chat()}}
    return {
        "nemo-rl": dumps.nemo_rl(),
        "prime-rl": dumps.prime_rl(),
        "open-instruct": dumps.open_instruct(),
        "roll-board": dumps.roll_board(),
        "columns": [dumps.ms_swift()],
        "columns of roll": [dumps.roll_columns()],
        "unipo": [dumps.unipo()],
        "unipo lines": dumps.unipo_lines(),
        "openai-chat": [dumps.chat(), batch_line],
        "openai-completion": [dumps.completion()],
        "sglang": dumps.sglang(),
        "verifiers": dumps.verifiers(),
        "atif": [dumps.atif()],
        "miles": dumps.miles(),
        "rllm": [dumps.rllm()],
        **{name: [one] for name, one in dumps.texts().items()},
    }


def _dumped() -> dict[str, list[Object]]:
    """Samples, and the first record of each recorded run, cut to two responses of four tokens."""
    found = {}
    for path in sorted((ROOT / "samples").glob("*.json*")):
        found[f"samples/{path.name}"] = _read(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "tests" / "data").glob("**/*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            found[f"data/{path.name}"] = [_cut(json.loads(next(lines)), 2)]
    return {name: objects for name, objects in found.items() if objects}


def _read(text: str) -> list[Object]:
    """The objects of a sample; none where it is malformed on purpose."""
    for parts in ([text], text.splitlines()):
        try:
            values = [json.loads(part) for part in parts if part.strip()]
        except ValueError:
            continue
        return [one for value in values for one in (value if isinstance(value, list) else [value])]
    return []


def _cut(value: Any, depth: int) -> Any:
    """Lists of at most two, and of four where they are inside others."""
    if isinstance(value, dict):
        return {key: _cut(one, depth) for key, one in value.items()}
    if isinstance(value, list):
        return [_cut(one, depth - 1) for one in value[: 2 if depth > 1 else 4]]
    return value


@cache
def objects() -> dict[str, str]:
    """Name → the JSON text of a list of objects, so that each use gets its own copy."""
    every = {**_shapes(), **_expected(), **_formats(), **_dumped()}
    return {name: json.dumps(value) for name, value in every.items()}


@cache
def usable() -> list[str]:
    """The names of those that can be evaluated as they are."""
    return [name for name in objects() if "bad_" not in name and name not in dumps.texts()]


@cache
def names() -> dict[str, list[str]]:
    """What the product itself says it knows: formats, fields of records, variants, choices, …"""
    formats = json.loads(run(["formats", "--json"]).out)
    catalogue = json.loads(run(["variants", "--json"]).out)
    choices = {stage: [*one["choices"]] for stage, one in catalogue["stages"].items()}
    settings = {
        name
        for stage in catalogue["stages"].values()
        for choice in stage["choices"].values()
        for name in choice["hyperparameters"]
    }
    aliases = [name for canonical, others in formats["names"].items() for name in others]
    return {
        "formats": [one["name"] for one in formats["formats"]],
        "keys": [*formats["names"], *aliases, "action_log_probs", "groups", "framework"],
        "variants": [one["name"] for one in catalogue["variants"]],
        "settings": sorted(settings | {"epsilon"}),
        **{f"fields of {level}": _fields(level) for level in LEVELS},
        **{f"choices of {stage}": every for stage, every in choices.items()},
    }


LEVELS = ("batch", "record", "response", "token")


def _fields(level: str) -> list[str]:
    """The fields of a level, which the complaint about an unknown one lists."""
    said = run(["eval", "-", "--level", level, "--only", "?"], b" ").err.decode()
    return said.rpartition("(one of ")[2].strip().rstrip(")").split(", ")
