"""ROLL's logging board: ``data_{time}.jsonl``, one line per sample."""

from __future__ import annotations

from collections.abc import Iterator

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
    "log_probs_new": "log_probs2",
    "log_probs_old": "logprobs",
    "log_probs_ref": "ref_logprobs",
    "entropies": "old_log_probs2_entropy",
    "mask": "new_response_mask",
}


def _fits(value: Object) -> bool:
    return is_row(value["logprobs"]) and is_row(value["log_probs2"])


def _read(value: Object) -> Iterator[Translated]:
    record: Object = {
        name: [value[own]] for name, own in _NAMES.items() if value.get(own) is not None
    }
    if value.get("reward") is not None:
        record["rewards"] = [value["reward"]]
    record["meta"] = carried(value, "step")
    record |= carried(value, "prompt")
    spelled = {name: f"{own}[{{t}}]" for name, own in _NAMES.items()} | {"rewards": "reward{}"}
    yield Translated(record, spelled | below_meta("step"))


ROLL_BOARD = Format(
    name="roll-board",
    title="ROLL logging board, data_{time}.jsonl",
    keys=(keys("logprobs", "log_probs2", "new_response_mask"),),
    fits=_fits,
    read=_read,
    lacks=(
        "log_probs2, the second forward pass, is read as log_probs_new, logprobs as log_probs_old",
        "no advantages and no group id, one response a line: to make advantages from the rewards "
        "say --group-by prompt or --group-size N; rewards are normalised already",
    ),
    source="ROLL save_logging_board_dir: roll/pipeline/rlvr, fields of res_dict",
)

FORMATS = (ROLL_BOARD,)
