"""slime's and miles' ``train_data/{rollout_id}.pt``: what the trainer had of one rollout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grpo_cli.records.formats.format import Format, Object, Translated, is_row, keys

_NAMES = {
    "log_probs": "log_probs_new",
    "ref_log_probs": "log_probs_ref",
    "rollout_log_probs": "log_probs_rollout",
    "entropy": "entropies",
    "advantages": "advantages",
    "loss_masks": "mask",
}
"""Of each sample, the response's tokens alone."""


def _fits(value: Object) -> bool:
    return any(
        isinstance(sample, dict) and "response_lengths" in sample for sample in _samples(value)
    )


def _samples(value: Object) -> list[Object]:
    """A dict for each sample, also of files that have a list for each field."""
    if "samples" in value:
        return list(value["samples"])
    columns = value["rollout_data"]
    count = len(columns["response_lengths"])
    lists = {
        name: column
        for name, column in columns.items()
        if isinstance(column, list) and len(column) == count
    }
    return [{name: column[at] for name, column in lists.items()} for at in range(count)]


def _read(value: Object) -> Iterator[Translated]:
    samples = _samples(value)
    record: Object = {"id": f"rollout-{value['rollout_id']}", "step": value["rollout_id"]}
    spelled = {"step": "rollout_id"}
    for own, name in _NAMES.items():
        if all(sample.get(own) is not None for sample in samples):
            record[name] = [sample[own] for sample in samples]
            spelled[name] = f"samples[{{r}}].{own}[{{t}}]"
    record["rewards"] = _rewards(value, samples)
    if all("truncated" in sample for sample in samples):
        record["truncated"] = [sample["truncated"] for sample in samples]
    rollouts = [sample.get("rollout_ids") for sample in samples]
    if None not in rollouts and len(set(rollouts)) < len(rollouts):
        record["rollout_ids"] = rollouts
    ids: list[Any] = [sample.get("tokens") for sample in samples]
    if all(isinstance(row, list) for row in ids):
        cuts = [
            len(row) - int(one["response_lengths"]) for row, one in zip(ids, samples, strict=True)
        ]
        record["token_ids"] = [row[cut:] for row, cut in zip(ids, cuts, strict=True)]
        prompts = [tuple(row[:cut]) for row, cut in zip(ids, cuts, strict=True)]
        numbers = {prompt: at for at, prompt in enumerate(dict.fromkeys(prompts))}
        record["group_ids"] = [numbers[prompt] for prompt in prompts]
    yield Translated(record, spelled | {"rewards": "raw_reward[{r}]"})


def _rewards(value: Object, samples: list[Object]) -> list[Any]:
    """As they were scored; ``rewards`` are those that slime has centred in their groups."""
    raw = value.get("raw_reward")
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
    fits=_fits,
    read=_read,
    lacks=(
        "one policy of the trainer's, that before the update: it is read as log_probs_new too",
        "no group id: samples with one prompt are a group",
    ),
    source="slime 624b824 slime/observability/train_data_utils.py:112-188, 191-242; "
    "rollout_ids, of several samples a rollout: slime/ray/rollout.py:640-670",
)


def _is_columns(value: Object) -> bool:
    return is_row(value["tokens"]) and is_row(value["rollout_log_probs"])


def _read_columns(value: Object) -> Iterator[Translated]:
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
    fits=_is_columns,
    read=_read_columns,
    lacks=(
        "one policy only, the engine's: it is read as log_probs_new, so every ratio is 1",
        "no rewards and no groups: they are in train_data/{rollout_id}_{rank}.pt",
    ),
    source="miles 31f1ca9 miles/ray/rollout/debug_data.py:36-72, 113",
)

FORMATS = (SLIME, MILES)
