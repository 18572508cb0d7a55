"""Dumps with a line for each response: of open-instruct, prime-rl and ROLL's logging board."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import compress
from typing import Any

import numpy as np

from grpo_cli.errors import InputError
from grpo_cli.records.fields import TOKEN_COLUMNS, canonical_name
from grpo_cli.records.formats.format import (
    Format,
    Object,
    Translated,
    below_meta,
    carried,
    is_row,
    is_rows,
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


_OF_OPEN_INSTRUCT = _response(
    {"log_probs_new": "logprobs", "log_probs_rollout": "logprobs", "token_ids": "response_tokens"},
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
    fits=lambda value: is_row(value["response_tokens"]),
    read=_read_open_instruct,
    lacks=(
        "no trainer log-probs: vLLM's logprobs are read as log_probs_new, so every ratio is 1",
        "one response per line: the advantages of the file are used; to compute them from the "
        "rewards, use --group-by step,prompt_idx",
        "no mask: tool tokens count as well",
        "no reference, so there is no KL",
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
_PRIME_RL_PLACES = {name: f"{own}[{{t}}]" for name, own in _PRIME_RL.items()}
_PRIME_RL_PLACES |= {"rewards": "rewards{}"} | below_meta(*_META)


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
    yield Translated(record, _PRIME_RL_PLACES)


def _reward(column: Any, mask: list[Any]) -> Any:
    """The sequence's reward, which newer versions repeat for every token; None if they differ."""
    if not isinstance(column, list):
        return column
    if len(column) != len(mask):
        raise ValueError("expected a reward for each token")
    rest = column[mask.index(True) :] if True in mask else []
    if rest and rest.count(rest[0]) == len(rest):  # faster than a set of those that count
        return rest[0]
    kept = {*compress(column, mask)} - {None}
    return kept.pop() if len(kept) == 1 else None


PRIME_RL = Format(
    name="prime-rl",
    title="prime-rl token_exports/step_{N}/rank_{R}.jsonl",
    keys=(keys("trainer_logprobs", "inference_logprobs", "loss_mask"),),
    fits=lambda value: is_row(value["trainer_logprobs"]) and is_row(value["inference_logprobs"]),
    read=_read_prime_rl,
    lacks=(
        "no old policy: the engine's inference_logprobs are used instead, as in prime-rl",
        "no group id: the advantages of the file are used",
        "no reference, so there is no KL",
        "no version: -v prime-rl/grpo is ipo, the default loss after 0.9.0; for earlier releases "
        "use -v prime-rl/grpo@0.9.0",
    ),
    source="prime-rl 004274e src/prime_rl/trainer/rl/token_export.py:60-80, 137-166",
)

ROLL_BOARD = Format(
    name="roll-board",
    title="ROLL logging board, data_{time}.jsonl",
    keys=(keys("logprobs", "log_probs2", "new_response_mask"),),
    fits=lambda value: is_row(value["logprobs"]) and is_row(value["log_probs2"]),
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


_SLIME = {
    "log_probs": "log_probs_new",
    "ref_log_probs": "log_probs_ref",
    "rollout_log_probs": "log_probs_rollout",
    "entropy": "entropies",
    "advantages": "advantages",
    "loss_masks": "mask",
}
"""Of each sample, the response's tokens alone."""


def _samples(value: Object) -> list[Object]:
    """A dict for each sample, also of files that have a list for each field."""
    if "samples" in value:
        return list(value["samples"])
    columns = {name: _row(column) for name, column in value["rollout_data"].items()}
    count = len(columns["response_lengths"])
    lists = {
        name: column
        for name, column in columns.items()
        if isinstance(column, list) and len(column) == count
    }
    return [{name: column[at] for name, column in lists.items()} for at in range(count)]


def _row(column: Any) -> Any:
    """A column with a number for each sample, as a list."""
    return column.tolist() if isinstance(column, np.ndarray) else column


def _read_slime(value: Object) -> Iterator[Translated]:
    samples = _samples(value)
    record: Object = {"id": f"rollout-{value['rollout_id']}", "step": value["rollout_id"]}
    spelled = {"step": "rollout_id"}
    for own, name in _SLIME.items():
        if all(sample.get(own) is not None for sample in samples):
            record[name] = [sample[own] for sample in samples]
            spelled[name] = f"samples[{{r}}].{own}[{{t}}]"
    record["rewards"] = _raw_rewards(value, samples)
    if all("truncated" in sample for sample in samples):
        record["truncated"] = [sample["truncated"] for sample in samples]
    rollouts = [sample.get("rollout_ids") for sample in samples]
    if None not in rollouts and len(set(rollouts)) < len(rollouts):
        record["rollout_ids"] = rollouts
    ids: list[Any] = [sample.get("tokens") for sample in samples]
    if all(isinstance(row, list | np.ndarray) for row in ids):
        cuts = [
            len(row) - int(one["response_lengths"]) for row, one in zip(ids, samples, strict=True)
        ]
        record["token_ids"] = [row[cut:] for row, cut in zip(ids, cuts, strict=True)]
        prompts = [tuple(_row(row[:cut])) for row, cut in zip(ids, cuts, strict=True)]
        numbers = {prompt: at for at, prompt in enumerate(dict.fromkeys(prompts))}
        record["group_ids"] = [numbers[prompt] for prompt in prompts]
    yield Translated(record, spelled | {"rewards": "raw_reward[{r}]"}, arrays=True)


def _raw_rewards(value: Object, samples: list[Object]) -> list[Any]:
    """As they were scored; ``rewards`` are those that slime has centred in their groups."""
    raw = _row(value.get("raw_reward"))
    places = [sample.get("rollout_position") for sample in samples]
    if isinstance(raw, list) and len(raw) == len(samples):
        in_order = all(isinstance(place, int) and 0 <= place < len(raw) for place in places)
        return [raw[place] for place in places] if in_order else raw  # type: ignore[index]
    own = "raw_reward" if "raw_reward" in samples[0] else "rewards"
    return [sample[own] for sample in samples]


SLIME = Format(
    name="slime",
    title="slime's and miles' train_data/{rollout_id}.pt",
    keys=(keys("rollout_id", "samples"), keys("rollout_id", "rollout_data")),
    fits=lambda value: any("response_lengths" in sample for sample in _samples(value)),
    read=_read_slime,
    arrays=True,
    lacks=(
        "only one trainer policy, from before the update: it is also read as log_probs_new",
        "no group id: samples with the same prompt form a group",
    ),
    source="slime 624b824 slime/observability/train_data_utils.py:112-188, 191-242; "
    "rollout_ids, of several samples a rollout: slime/ray/rollout.py:640-670",
)


def _read_miles(value: Object) -> Iterator[Translated]:
    count = int(value["response_length"])
    ids = list(value["tokens"])
    record: Object = {
        "id": value["sample_index"],
        "log_probs_new": [value["rollout_log_probs"]],
        "log_probs_rollout": [value["rollout_log_probs"]],
        "token_ids": [ids[len(ids) - count :]],
    }
    if value.get("loss_mask") is not None:
        record["mask"] = [value["loss_mask"]]
    own = {"log_probs_new": "rollout_log_probs[{t}]", "log_probs_rollout": "rollout_log_probs[{t}]"}
    yield Translated(record, own | {"mask": "loss_mask[{t}]"})


MILES = Format(
    name="miles",
    title="miles' dashboard_columns/rollout_{rollout_id}.parquet",
    keys=(keys("sample_index", "total_length", "tokens", "rollout_log_probs"),),
    fits=lambda value: is_row(value["tokens"]) and is_row(value["rollout_log_probs"]),
    read=_read_miles,
    lacks=(
        "only the engine's policy: it is read as log_probs_new, so every ratio is 1",
        "no rewards and no groups: they are in train_data/{rollout_id}_{rank}.pt",
    ),
    source="miles 31f1ca9 miles/ray/rollout/debug_data.py:36-72, 113",
)


_NEMO_RL = {
    "prev_logprobs": "log_probs_new",
    "generation_logprobs": "log_probs_rollout",
    "reference_policy_logprobs": "log_probs_ref",
    "token_ids": "token_ids",
    "advantages": "advantages",
}


def _read_nemo_rl(value: Object) -> Iterator[Translated]:
    """Log-prob t belongs to token t; index 0 has none, so the loss begins at 1."""
    mask, spelled = _loss_mask(value), {"mask": "token_loss_mask"}
    record: Object = {"mask": mask}
    for own, name in _NEMO_RL.items():
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
        tokens = value["token_ids"][0]
        record["prompt"] = tokens[: mask[0].index(1)] if 1 in mask[0] else tokens
    yield Translated(record, spelled | below_meta("step"))


def _loss_mask(value: Object) -> list[list[Any]]:
    """The tokens of the loss: masked in, below the input length, of a sample that counts."""
    rows = value["token_loss_mask"]
    lengths = value.get("input_lengths") or [len(row) for row in rows]
    samples = value.get("sample_loss_mask") or [1] * len(rows)
    masks = []
    for bits, length, sample in zip(rows, map(int, lengths), samples, strict=True):
        kept = [int(bit) if bit in (0, 1) else bit for bit in bits[1:length]] if sample else []
        masks.append([0] * min(1, len(bits)) + kept + [0] * (len(bits) - len(kept) - 1))
    return masks


NEMO_RL = Format(
    name="nemo-rl",
    title="NeMo-RL train_data_step{N}.jsonl",
    keys=(keys("token_ids", "token_loss_mask", "prev_logprobs"),),
    fits=lambda value: is_rows(value["token_ids"]) and is_rows(value["prev_logprobs"]),
    read=_read_nemo_rl,
    lacks=(
        "no current policy: prev_logprobs are read as log_probs_new, so every ratio is 1",
        "no group id: the advantages of the file are used; to compute them from the rewards, use "
        "--group-size N or --group-by prompt",
        "no reference, so there is no KL",
    ),
    source="NeMo-RL nemo_rl/algorithms/grpo.py:3629-3654, nemo_rl/utils/logger.py:1071-1096",
)

_VERL_REWARDS = ("token_level_rewards", "token_level_scores")
"""The rewards, less a KL where that is in them, from which verl computes advantages; else the
scores without that KL."""


def _verl_reads(value: Object) -> dict[str, str]:
    """Field → key, of what verl calls otherwise; none where the record has the field itself."""
    given = {canonical_name(key) for key, one in value.items() if one is not None}
    ids, found = value.get("responses"), {}
    while isinstance(ids, list | np.ndarray) and len(ids):
        ids = ids[0]
    if isinstance(ids, int | np.integer) and "token_ids" not in given:
        found["token_ids"] = "responses"
    nested = _depth(_tokens(value)) or -1
    rewards = [key for key in _VERL_REWARDS if _depth(value.get(key)) == nested]
    if rewards and "rewards" not in given:
        found["rewards"] = rewards[0]
    return found


def _read_verl(value: Object) -> Iterator[Translated]:
    found = _verl_reads(value)
    record = {key: one for key, one in value.items() if key not in found.values()}
    record |= {name: value[key] for name, key in found.items()}
    if "rewards" in found:
        record["rewards"] = sum_tokens(record["rewards"], value, found["rewards"])
    yield Translated(record, found, arrays=True)


def sum_tokens(rewards: Any, record: Object, key: str) -> Any:
    """Rewards by token, as deep as the record's log-probs, as exact sums; others as they are.

    Raises:
        InputError: where one is no number, or there are more or fewer than tokens.
    """
    model = _tokens(record)
    return _sums(rewards, model, key) if _depth(rewards) == _depth(model) else rewards


def _sums(rewards: Any, tokens: Any, path: str) -> Any:
    if len(rewards) != len(tokens):
        wanted = f"{len(tokens)} (as the log-probs have)"
        raise InputError(f"expected {wanted}, got {len(rewards)}", path=path)
    if _depth(rewards) > 1:
        pairs = enumerate(zip(rewards, tokens, strict=True))
        return [_sums(one, model, f"{path}[{at}]") for at, (one, model) in pairs]
    try:
        return math.fsum(rewards)
    except (TypeError, ValueError, OverflowError):
        raise InputError("expected finite numbers, one per token", path=path) from None


def _depth(value: Any) -> int:
    """How deep lists are nested; 0 for no list, and for one without an element."""
    if not isinstance(value, list | np.ndarray) or not len(value):
        return 0
    filled = (one for one in value if not isinstance(one, list | np.ndarray) or len(one))
    return 1 + _depth(next(filled, 0))


def _tokens(record: Object) -> Any:
    """The first column of log-probs; None where there is none."""
    columns = (one for key, one in record.items() if canonical_name(key) in TOKEN_COLUMNS)
    return next((one for one in columns if _depth(one)), None)


VERL_BATCH = Format(
    name="verl-batch",
    title="verl's batch: ids in responses, rewards are sums of token_level_rewards or _scores",
    keys=(
        *(keys(name) for name in _VERL_REWARDS),
        keys("responses", "response_mask"),
        keys("responses", "old_log_probs"),
    ),
    fits=lambda value: bool(_verl_reads(value)),
    read=_read_verl,
    source="verl 0.9.1 trainer/ppo/ray_trainer.py: compute_advantage, agent_loop.py",
    arrays=True,
    rank=1,
)


FORMATS = (VERL_BATCH, OPEN_INSTRUCT, PRIME_RL, ROLL_BOARD, SLIME, MILES, NEMO_RL)
