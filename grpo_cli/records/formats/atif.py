"""ATIF trajectories, of Harbor: the turns of one session of an agent, with log-probs or not.

What the model sampled in all turns is one response; what was said to it in between is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grpo_cli.errors import InputError
from grpo_cli.records.formats.format import Format, Object, Translated, keys
from grpo_cli.records.formats.texts import NoLogProbsError, Signal, number


def _fits(value: Object) -> bool:
    return str(value["schema_version"]).upper().startswith("ATIF") and isinstance(
        value["steps"], list
    )


def _read(value: Object) -> Iterator[Translated]:
    turns = [
        (at, step.get("metrics") or {})
        for at, step in enumerate(value["steps"])
        if step.get("source") == "agent"
    ]
    sampled = [(at, metrics) for at, metrics in turns if metrics.get("logprobs")]
    if not sampled:
        raise _without_log_probs(value, [metrics for _, metrics in turns])
    log_probs: list[Any] = []
    ids: list[Any] = []
    turn_ids: list[int] = []
    for at, metrics in sampled:
        _check(at, metrics["logprobs"], metrics.get("completion_token_ids"))
        log_probs += metrics["logprobs"]
        turn_ids += [at] * len(metrics["logprobs"])
        ids += metrics.get("completion_token_ids") or []
    record: Object = {"id": value.get("session_id"), "log_probs_new": [log_probs]}
    record |= {"token_ids": [ids]} if len(ids) == len(log_probs) else {}
    record["turn_ids"] = [turn_ids]
    record["log_probs_rollout"] = [log_probs]
    reward = _reward(value)
    record |= {} if reward is None else {"rewards": [reward]}
    left_out = [one for _, one in turns if one.get("completion_tokens") and not one.get("logprobs")]
    note = f"atif: {len(left_out)} turns have no log-probs and are skipped"
    notes = (note,) if left_out else ()
    yield Translated(record, {"log_probs_new": f"steps[{sampled[0][0]}].metrics.logprobs"}, notes)


def _check(at: int, log_probs: list[Any], ids: list[Any] | None) -> None:
    if ids and len(ids) != len(log_probs):
        raise InputError(
            f"expected {len(ids)} log-probs (as completion_token_ids has), got {len(log_probs)}",
            path=f"steps[{at}].metrics.logprobs",
        )


def _reward(value: Object) -> float | None:
    """What the session was worth, where the writer put it there: the format has no field for it."""
    for holder in (value, value.get("final_metrics") or {}):
        extra = holder.get("extra") or {}
        if number(extra.get("reward")) is not None:
            return number(extra["reward"])
    return None


def _without_log_probs(value: Object, turns: list[Object]) -> NoLogProbsError:
    lengths = [metrics["completion_tokens"] for metrics in turns if "completion_tokens" in metrics]
    known = bool(lengths) and all(type(one) is int for one in lengths)
    error = NoLogProbsError(
        "the turns of this ATIF trajectory have no metrics.logprobs, so nothing can be "
        "evaluated: have the agent collect rollout details"
    )
    error.signal = Signal([_reward(value)], [sum(lengths) if known else None])
    return error


ATIF = Format(
    name="atif",
    title="ATIF trajectory.json, of Harbor",
    keys=(keys("schema_version", "agent", "steps"),),
    fits=_fits,
    read=_read,
    lacks=(
        "only the agent's policy: it is read as log_probs_new, so every ratio is 1",
        "a trajectory is one response without a group; it only has a reward if "
        "extra.reward has one",
    ),
    source="ATIF v1.4, laude-institute/harbor docs/rfcs/0001-trajectory-format.md, MetricsSchema",
)

FORMATS = (ATIF,)
