"""TRL's trainers under pairs of options: any two values meet in a run that ``grpo verify`` judges.

    cd tests && python -m parity.trl_pairwise           # all of it, some minutes of one core
    cd tests && python -m parity.trl_pairwise --write   # and writes tests/golden/trl_pairs.json
    python tests/test_readme.py --write checked         # puts its table on `grpo help checked`

Each configuration is trained for two steps on the tiny model, recorded by the project's hook. The
model runs in float32; what it returns is widened, so that all that TRL's loss computes of it is
float64. Numbers that TRL makes of Python's own (rewards, the engine's log-probs) are float64 too.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rows import choose
from transformers import PrinterCallback
from trl import GRPOTrainer

from grpo_cli import evaluate
from grpo_cli.hooks.trl import record

from . import tiny
from .pairwise import SEED, Array, Configuration, Record, relative_error, run
from .trl_trainers import TABLE

PAIRS = TABLE["pairs"]
NAMED: Mapping[str, Mapping[str, Mapping[str, Any]]] = PAIRS["named"]
"""Options that stand for several of TRL's; the others are TRL's own names and values."""
LEFT_OUT: Mapping[str, Sequence[str]] = PAIRS["left_out"]
"""Why options of GRPOConfig and RLOOConfig are not in an array. TRL 1.16.0 has no Liger loss."""


def even(completions: list[str], **_: Any) -> list[float | None]:
    """The length of texts whose length is even; nothing of the others."""
    return [None if len(text) % 2 else len(text) / 5 for text in completions]


FUNCTIONS = {one.__name__: one for one in (tiny.letters, tiny.short, even)}


def known_options(array: Array) -> set[str]:
    """TRL's names of the options that an array has values for."""
    return {
        own
        for name, values in array.options.items()
        for value in values
        for own in settings_of({name: value})
    }


def allowed(row: Configuration) -> bool:
    """Whether TRL takes the configuration; ``REFUSED`` has those that it does not."""
    return not any(fits(row) for fits, _, _ in REFUSED.values())


def _sequence_vespo(row: Configuration) -> bool:
    return row.get("loss_type") == "vespo" and str(row.get("engine")).startswith("sequence")


def _unbounded(row: Configuration) -> bool:
    return row.get("bounds") == "none" and str(row.get("engine")).endswith("truncate")


REFUSED: dict[str, tuple[Callable[[Configuration], bool], Configuration, str]] = {
    "`loss_type` vespo with sequence_truncate or sequence_mask": (
        _sequence_vespo,
        {"loss_type": "vespo", "engine": "sequence_mask", "use_vllm": True},
        "VESPO loss requires `vllm_importance_sampling_mode` to be either 'token_truncate' or "
        "'token_mask'",
    ),
    "a truncating mode with neither clip_min nor clip_max": (
        _unbounded,
        {"engine": "sequence_truncate", "bounds": "none"},
        "At least one of `vllm_importance_sampling_clip_min` or `vllm_importance_sampling_clip_m",
    ),
    "`sync_ref_model` with beta 0": (
        lambda _: False,  # no value of an option above says so
        {"sync_ref_model": True, "beta": 0.0},
        "You passed `sync_ref_model=True` while `beta=0.0`",
    ),
}
"""What TRL refuses: which configurations, one of them, and how its message begins."""


def settings_of(row: Configuration) -> dict[str, Any]:
    """A configuration in TRL's words."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if name in NAMED:
            found |= NAMED[name][value]
        elif name == "engine":
            modes = value not in ("none", "uncorrected")  # no engine; one without the correction
            mode = {"vllm_importance_sampling_mode": value} if modes else {}
            found |= {"vllm_importance_sampling_correction": value != "uncorrected", **mode}
        else:
            found[name] = value
    return found


class Wide:
    """A trainer's forward pass, its numbers as float64: the loss's own arithmetic is."""

    def __init__(self, trainer: Any) -> None:
        self.forward = trainer._get_per_token_logps_and_entropies
        trainer._get_per_token_logps_and_entropies = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return tuple(one if one is None else one.double() for one in self.forward(*args, **kwargs))


def engine(trainer: Any, *, scores_all: bool) -> tiny.Engine:
    """The trainer's own log-probs with noise; the first of a response may be missing."""
    draw, unscored = np.random.default_rng(SEED), 0 if scores_all else 1

    def score(prompt: list[int], response: list[int]) -> list[float | None]:
        taken = tiny.log_probs(trainer, prompt, response, trainer.temperature)
        noise = 0.15 * draw.standard_normal(len(response))
        found = (taken + torch.tensor(noise)).clamp(max=-1e-9).tolist()
        return [None] * unscored + found[unscored:]

    return tiny.Engine(trainer, score)


def build(trainer: type, row: Configuration, folder: Path) -> Any:
    """The trainer of a configuration."""
    given = {"max_steps": 2, "reward_funcs": ["letters"]} | settings_of(row)
    given["reward_funcs"] = [FUNCTIONS[name] for name in given["reward_funcs"]]
    return tiny.trainer(folder, trainer, **given)


def train(kind: type, row: Configuration, folder: Path, number: int) -> list[Record]:
    """Trains a configuration for two steps; its records."""
    path = folder / "rollouts.jsonl"
    trainer = build(kind, row, folder)
    trainer.remove_callback(PrinterCallback)
    Wide(trainer)
    if row.get("engine", "none") != "none":
        # A token without one is said to agree with the old policy or with the current one: TRL's
        # correction takes the first, its off-policy mask the second, and a record has one number.
        both = row["engine"] != "uncorrected" and row.get("off_policy_mask_threshold") is not None
        engine(trainer, scores_all=both)
    torch.set_default_dtype(torch.float64)
    try:
        with record(trainer, path):
            trainer.train()
    finally:
        torch.set_default_dtype(torch.float32)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line | {"id": f"{number}/{at}"} for at, line in enumerate(lines)]


def advantage_error(row: Configuration, lines: Sequence[Record]) -> float:
    """The largest |Δ advantage| of the largest one, over whole generations."""
    if row.get("reward_clip_range") is not None:
        return 0.0  # no choice has it; the record's advantages are used as they are
    worst = 0.0
    for joined, theirs in generations(row, lines):
        chosen = choose(joined["framework"])
        stages = {k: v for k, v in chosen.stages.items() if k == "advantage"}
        ours = evaluate(joined, chosen.row, stages=stages).breakdown.response_advantage
        worst = max(worst, relative_error(ours, theirs))
    return worst


_COLUMNS = ("per_token_logps", "old_per_token_logps", "ref_per_token_logps", "group_ids")


def generations(
    row: Configuration, lines: Sequence[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], Any]]:
    """The micro-batches of each generation as one record without advantages, and those."""
    steps, paid = NAMED["steps"][row["steps"]], NAMED["rewards"][row["rewards"]]
    size = steps.get("steps_per_generation", steps["gradient_accumulation_steps"])
    functions = [f"rewards/{name}" for name in paid["reward_funcs"]]
    weights = paid.get("reward_weights", [1.0] * len(functions))
    for first in range(0, len(lines), size * row["num_iterations"]):
        parts = lines[first : first + size]
        joined: dict[str, Any] = {
            name: [one for part in parts for one in part[name]]
            for name in _COLUMNS
            if name in parts[0]
        }
        names = functions if len(functions) > 1 else ["rewards"]
        table = [[one for part in parts for one in part[name]] for name in names]
        joined["rewards"] = [
            [None if value is None or np.isnan(value) else value for value in one]
            for one in zip(*table, strict=True)
        ]
        joined["hyperparameters"] = parts[0]["hyperparameters"] | {
            "entropy_coef": 0.0,
            "top_entropy_quantile": 1.0,
            "reward_weights": ",".join(map(str, weights)),
        }
        joined["framework"] = parts[0]["framework"]
        yield joined, np.array([one for part in parts for one in part["advantages"]])


def _array(trainer: type) -> Array:
    """The options of a trainer; "" has the names of those that are as GRPOTrainer's."""
    options, usual = dict(PAIRS["arrays"][trainer.__name__]), PAIRS["arrays"]["GRPOTrainer"]
    options = {name: usual[name] for name in options.pop("", [])} | options

    def loss_of(row: Configuration) -> str:
        return str(row["loss_type"]) if trainer is GRPOTrainer else trainer.__name__

    trained = partial(train, trainer)
    return Array(trainer.__name__, options, trained, loss_of, allowed, advantage_error)


ARRAYS = tuple(map(_array, tiny.CONFIGS))


def refusals(folder: Path) -> Iterator[tuple[str, str]]:
    """What TRL refuses, and its message."""
    for name, (_, row, _) in REFUSED.items():
        try:
            build(GRPOTrainer, row, folder)
        except ValueError as error:
            yield name, str(error)
        else:
            yield name, ""


if __name__ == "__main__":
    run("trl 1.16.0", ARRAYS, refused=dict(refusals(Path(tempfile.mkdtemp()))))
