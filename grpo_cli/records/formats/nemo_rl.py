"""NeMo-RL's ``train_data_step{N}.jsonl``: one line per sequence, the prompt and padding in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grpo_cli.records.formats.format import (
    Format,
    Object,
    Translated,
    below_meta,
    carried,
    is_rows,
    keys,
)

_NAMES = {
    "prev_logprobs": "log_probs_new",
    "generation_logprobs": "log_probs_rollout",
    "reference_policy_logprobs": "log_probs_ref",
    "token_ids": "token_ids",
    "advantages": "advantages",
}


def _fits(value: Object) -> bool:
    return is_rows(value["token_ids"]) and is_rows(value["prev_logprobs"])


def _read(value: Object) -> Iterator[Translated]:
    """Log-prob t belongs to token t; index 0 has none, so the loss begins at 1."""
    mask, spelled = _mask(value), {"mask": "token_loss_mask"}
    record: Object = {"mask": mask}
    for own, name in _NAMES.items():
        if value.get(own) is not None:
            record[name] = value[own]
            spelled[name] = own
    # With dynamic sampling "rewards" has the samples that were dropped as well.
    rewards = "filtered_rewards" if value.get("filtered_rewards") is not None else "rewards"
    if value.get(rewards) is not None:
        record["rewards"] = value[rewards]
        spelled["rewards"] = rewards
    record["meta"] = carried(value, "idx", "step", "agent_ref")
    if len(mask) == 1:
        record["prompt"] = _prompt(value["token_ids"][0], mask[0])
    yield Translated(record, spelled | below_meta("step"))


def _mask(value: Object) -> list[list[Any]]:
    """The tokens of the loss: masked in, below the input length, of a sample that counts."""
    rows = value["token_loss_mask"]
    lengths = value.get("input_lengths") or [len(row) for row in rows]
    samples = value.get("sample_loss_mask") or [1] * len(rows)
    return [
        _row(row, int(length), bool(sample))
        for row, length, sample in zip(rows, lengths, samples, strict=True)
    ]


def _row(bits: list[Any], length: int, sample: bool) -> list[Any]:  # noqa: FBT001
    if not sample:
        return [0] * len(bits)
    kept = [int(bit) if bit in (0, 1) else bit for bit in bits[1:length]]
    return [0] * min(1, len(bits)) + kept + [0] * (len(bits) - max(length, 1))


def _prompt(tokens: list[Any], mask: list[Any]) -> list[Any]:
    return tokens[: mask.index(1)] if 1 in mask else tokens


NEMO_RL = Format(
    name="nemo-rl",
    title="NeMo-RL train_data_step{N}.jsonl",
    keys=(keys("token_ids", "token_loss_mask", "prev_logprobs"),),
    fits=_fits,
    read=_read,
    lacks=(
        "no current policy: prev_logprobs are read as log_probs_new, so every ratio is 1",
        "no group id: the advantages of the file are used; to compute them from the rewards, use "
        "--group-size N or --group-by prompt",
        "no reference: no KL",
    ),
    source="NeMo-RL nemo_rl/algorithms/grpo.py:3629-3654, nemo_rl/utils/logger.py:1071-1096",
)

FORMATS = (NEMO_RL,)
