"""Dumps with a line for each response: of open-instruct, prime-rl and ROLL's logging board."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import compress
from typing import Any

from grpo_cli.errors import InputError
from grpo_cli.records.formats.format import (
    Format,
    Object,
    Translated,
    below_meta,
    carried,
    is_row,
    keys,
)

_Read = Callable[[Object], Iterator[Translated]]


def _response(
    tokens: Mapping[str, str], scores: Mapping[str, str], meta: tuple[str, ...], *kept: str
) -> _Read:
    """What makes a record of a response.

    Args:
        tokens: canonical name → the field with a value for each token.
        scores: canonical name → the field with a value for the response.
        meta: fields that say which response it is.
        kept: fields that go over as they are.
    """
    spelled = {name: f"{own}[{{t}}]" for name, own in tokens.items()}
    spelled |= {name: f"{own}{{}}" for name, own in scores.items()}
    if "step" in meta:
        spelled |= below_meta("step")

    def read(value: Object) -> Iterator[Translated]:
        record: Object = {
            name: [value[own]]
            for name, own in {**tokens, **scores}.items()
            if value.get(own) is not None
        }
        record["meta"] = carried(value, *meta)
        yield Translated(record | carried(value, *kept), spelled)

    return read


def _rows(*names: str) -> Callable[[Object], bool]:
    """Whether each of these fields is a list of one response's tokens."""
    return lambda value: all(is_row(value[name]) for name in names)


_OF_OPEN_INSTRUCT = _response(
    {
        "log_probs_new": "logprobs",
        "log_probs_rollout": "logprobs",
        "token_ids": "response_tokens",
    },
    {"group_ids": "prompt_idx", "rewards": "reward", "advantages": "advantage"},
    ("step", "sample_idx", "finish_reason", "dataset"),
)


def _read_open_instruct(value: Object) -> Iterator[Translated]:
    if value.get("logprobs") is None:
        raise InputError("this open-instruct run saved no log-probs, so nothing can be evaluated")
    if value["prompt_idx"] is None:
        raise InputError("expected a string or a number, got null", path="prompt_idx")
    return _OF_OPEN_INSTRUCT(value)


OPEN_INSTRUCT = Format(
    name="open-instruct",
    title="open-instruct {run}_rollouts_{shard}.jsonl",
    keys=(keys("sample_idx", "prompt_idx", "prompt_tokens", "response_tokens"),),
    fits=_rows("response_tokens"),
    read=_read_open_instruct,
    lacks=(
        "no trainer log-probs: vLLM's logprobs are read as log_probs_new, so every ratio is 1",
        "one response per line: the advantages of the file are used; to compute them from the "
        "rewards, use --group-by step,prompt_idx",
        "no mask: tool tokens count as well",
        "no reference: no KL",
    ),
    source="open-instruct 00feb3a open_instruct/rl_utils.py:22-45, 84-128",
)


_PRIME_RL = {
    "log_probs_new": "trainer_logprobs",
    "log_probs_old": "inference_logprobs",
    "log_probs_rollout": "inference_logprobs",
    "entropies": "entropy",
    "mask": "loss_mask",
    "token_ids": "token_ids",
    "advantages": "advantages",
}
_META = ("step", "export_step", "rank", "micro_step", "micro_sequence_idx", "run_id", "env_name")


def _read_prime_rl(value: Object) -> Iterator[Translated]:
    record: Object = {}
    rows: Object = {}
    for name, own in _PRIME_RL.items():
        column = value.get(own)
        if isinstance(column, list) and any(one is not None for one in column):
            record[name] = rows.setdefault(own, [column])
    reward = _reward(value.get("rewards"), value["loss_mask"])
    if reward is not None:
        record["rewards"] = [reward]
    record["meta"] = carried(value, *_META)
    spelled = {name: f"{own}[{{t}}]" for name, own in _PRIME_RL.items()} | {"rewards": "rewards{}"}
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
    fits=_rows("trainer_logprobs", "inference_logprobs"),
    read=_read_prime_rl,
    lacks=(
        "no old policy: the engine's inference_logprobs are used instead, as in prime-rl",
        "no group id: the advantages of the file are used",
        "no reference: no KL to it",
        "no version: -v prime-rl/grpo is ipo, the default loss after 0.9.0; for earlier releases "
        "use -v prime-rl/grpo@0.9.0",
    ),
    source="prime-rl 004274e src/prime_rl/trainer/rl/token_export.py:60-80, 137-166",
)

ROLL_BOARD = Format(
    name="roll-board",
    title="ROLL logging board, data_{time}.jsonl",
    keys=(keys("logprobs", "log_probs2", "new_response_mask"),),
    fits=_rows("logprobs", "log_probs2"),
    read=_response(
        {
            "log_probs_new": "log_probs2",
            "log_probs_old": "logprobs",
            "log_probs_ref": "ref_logprobs",
            "entropies": "old_log_probs2_entropy",
            "mask": "new_response_mask",
        },
        {"rewards": "reward"},
        ("step",),
        "prompt",
    ),
    lacks=(
        "log_probs2 (second forward pass) is read as log_probs_new, logprobs as log_probs_old",
        "no advantages and no group id, one response per line: to compute advantages from the "
        "rewards, use --group-by prompt or --group-size N; the rewards are already normalised",
    ),
    source="ROLL save_logging_board_dir: roll/pipeline/rlvr, fields of res_dict",
)

FORMATS = (OPEN_INSTRUCT, PRIME_RL, ROLL_BOARD)
