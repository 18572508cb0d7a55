"""rLLM's episodes: trajectories of steps, each of which is a response of its own prompt."""

from __future__ import annotations

from collections.abc import Iterator

from grpo_cli.errors import InputError
from grpo_cli.records.formats.format import Format, Object, Translated, keys

_STEPS = "trajectories[].steps[]"


def _fits(value: Object) -> bool:
    trajectories = value["trajectories"]
    return isinstance(trajectories, list) and all("steps" in one for one in trajectories)


def _read(value: Object) -> Iterator[Translated]:
    steps = [
        (trajectory, step)
        for trajectory in value["trajectories"]
        for step in trajectory["steps"]
        if step.get("logprobs")
    ]
    if not steps:
        raise InputError(
            "no step of this rLLM episode has logprobs: nothing can be evaluated; write "
            "Episode.to_dict(), where EpisodeLogger saves only texts"
        )
    log_probs = [step["logprobs"] for _, step in steps]
    record: Object = {"id": value.get("id"), "log_probs_new": log_probs}
    record["log_probs_rollout"] = log_probs
    record["trajectory_ids"] = [trajectory["uid"] for trajectory, _ in steps]
    record["turn_rewards"] = [[step["reward"]] for _, step in steps]
    if all(trajectory.get("reward") is not None for trajectory, _ in steps):
        record["rewards"] = [trajectory["reward"] for trajectory, _ in steps]
    for own, name in (("response_ids", "token_ids"), ("advantage", "advantages")):
        column = [step.get(own) for _, step in steps]
        if all(one is not None for one in column):
            record[name] = column
    record["weight_versions"] = [step.get("weight_version") for _, step in steps]
    spelled = {"log_probs_new": f"{_STEPS}.logprobs", "advantages": f"{_STEPS}.advantage"}
    yield Translated(record, spelled | {"turn_rewards": f"{_STEPS}.reward"})


RLLM = Format(
    name="rllm",
    title="rLLM's episodes, Episode.to_dict() as JSON",
    keys=(keys("trajectories", "task", "is_correct"),),
    fits=_fits,
    read=_read,
    lacks=(
        "the engine's policy only: it is read as log_probs_new, so every ratio is 1",
        "one episode per object, whose trajectories are one group; --group-by task joins episodes",
        "no tool tokens: a step holds only its own response",
    ),
    source="rLLM 9beb6e0 rllm/types.py:88-190, 222-290, 349",
)

FORMATS = (RLLM,)
