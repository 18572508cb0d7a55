"""open-instruct's ``{run}_rollouts_{shard}.jsonl``: one line per response, NaN allowed."""

from __future__ import annotations

from collections.abc import Iterator

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


def _fits(value: Object) -> bool:
    return is_row(value["response_tokens"])


def _read(value: Object) -> Iterator[Translated]:
    if value.get("logprobs") is None:
        raise InputError("this open-instruct run saved no log-probs: nothing can be evaluated")
    record: Object = {
        "log_probs_new": [value["logprobs"]],
        "log_probs_rollout": [value["logprobs"]],
        "token_ids": [value["response_tokens"]],
        "group_ids": [value["prompt_idx"]],
    }
    for name, own in (("rewards", "reward"), ("advantages", "advantage")):
        if value.get(own) is not None:
            record[name] = [value[own]]
    record["meta"] = carried(value, "step", "sample_idx", "finish_reason", "dataset")
    yield Translated(record, _SPELLED)


_SPELLED = {
    "log_probs_new": "logprobs[{t}]",
    "log_probs_rollout": "logprobs[{t}]",
    "token_ids": "response_tokens[{t}]",
    "group_ids": "prompt_idx{}",
    "rewards": "reward{}",
    "advantages": "advantage{}",
    **below_meta("step"),
}

OPEN_INSTRUCT = Format(
    name="open-instruct",
    title="open-instruct {run}_rollouts_{shard}.jsonl",
    keys=(keys("sample_idx", "prompt_idx", "prompt_tokens", "response_tokens"),),
    fits=_fits,
    read=_read,
    lacks=(
        "no trainer log-probs: logprobs, vLLM's, are read as log_probs_new, so every ratio is 1",
        "one response a line: advantages are those in the file; to make them from the rewards, "
        "say --group-by step,prompt_idx",
        "no mask: tokens of tools count as well",
        "no reference: no KL",
    ),
    source="open-instruct 00feb3a open_instruct/rl_utils.py:22-45, 84-128",
)

FORMATS = (OPEN_INSTRUCT,)
