"""prime-rl's token exports: ``token_exports/step_{N}/rank_{R}.jsonl``, one line per sequence."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress
from typing import Any

from grpo_cli.records.formats.format import (
    Format,
    Object,
    Translated,
    below_meta,
    carried,
    is_row,
    keys,
)

_NAMES = {
    "log_probs_new": "trainer_logprobs",
    "log_probs_old": "inference_logprobs",
    "log_probs_rollout": "inference_logprobs",
    "entropies": "entropy",
    "mask": "loss_mask",
    "token_ids": "token_ids",
    "advantages": "advantages",
}
_META = ("step", "export_step", "rank", "micro_step", "micro_sequence_idx", "run_id", "env_name")


def _fits(value: Object) -> bool:
    return is_row(value["trainer_logprobs"]) and is_row(value["inference_logprobs"])


def _read(value: Object) -> Iterator[Translated]:
    record: Object = {}
    for name, own in _NAMES.items():
        column = value.get(own)
        if isinstance(column, list) and any(one is not None for one in column):
            record[name] = [column]
    reward = _reward(value.get("rewards"), value["loss_mask"])
    if reward is not None:
        record["rewards"] = [reward]
    record["meta"] = carried(value, *_META)
    spelled = {name: f"{own}[{{t}}]" for name, own in _NAMES.items()} | {"rewards": "rewards{}"}
    yield Translated(record, spelled | below_meta(*_META))


def _reward(column: Any, mask: list[Any]) -> Any:
    """The sequence's reward, which newer versions repeat for every token; None if they differ."""
    if not isinstance(column, list):
        return column
    if len(column) != len(mask):
        raise ValueError("expected a reward for each token")
    kept = {*compress(column, mask)} - {None}
    return kept.pop() if len(kept) == 1 else None


PRIME_RL = Format(
    name="prime-rl",
    title="prime-rl token_exports/step_{N}/rank_{R}.jsonl",
    keys=(keys("trainer_logprobs", "inference_logprobs", "loss_mask"),),
    fits=_fits,
    read=_read,
    lacks=(
        "no old policy: inference_logprobs, the sampling engine's, stand for it, as in prime-rl",
        "no group id: advantages are those in the file",
        "no reference: no KL to it",
        "no version: -v prime-rl/grpo is ipo, the default loss after 0.9.0; before, "
        "-v prime-rl/grpo@0.9.0",
    ),
    source="prime-rl 004274e src/prime_rl/trainer/rl/token_export.py:60-80, 137-166",
)

FORMATS = (PRIME_RL,)
