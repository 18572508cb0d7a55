"""One object whose values are lists, one element per response, as ms-swift and ROLL write."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from grpo_cli.errors import InputError
from grpo_cli.records.fields import ACTION, ALIASES, canonical_name
from grpo_cli.records.formats.format import COMMON, Format, Object, Translated, keys

_TEXTS = ("completion", "responses", "response", "completions")
_PROMPTS = ("prompt", "prompts")
_KNOWN = {alias: name for name, aliases in ALIASES.items() for alias in (name, *aliases)}


def _is_columns(value: Object) -> bool:
    """Whether there is a list of texts and one of as many prompts."""
    each = (value[one] for one in _TEXTS if isinstance(value.get(one), list))
    texts = next((one for one in each if one and isinstance(one[0], str)), None)
    prompts = _prompts(value)
    return texts is not None and prompts is not None and len(prompts) == len(texts)


def _prompts(value: Object) -> list[Any] | None:
    return next((value[one] for one in _PROMPTS if isinstance(value.get(one), list)), None)


def _read_columns(value: Object) -> Iterator[Translated]:
    record = dict(value)
    known = {_KNOWN.get(key, "log_probs_new") for key in value if key in _KNOWN or key == ACTION}
    if not known & {"log_probs_new", "ratios"}:
        others = sorted(one for one in known if one.startswith("log_probs_"))
        if others:
            raise InputError(
                f"this dump has {' and '.join(others)}, but not log_probs_new: have the trainer "
                "write the policy's own log-probs as well, one list per response"
            )
        raise InputError(
            "this dump has texts and rewards but no log-probs, so nothing can be evaluated: have "
            "the trainer write the log-probs as well, one list per response"
        )
    prompts = _prompts(value) or []
    if "group_ids" not in known:
        numbers = {repr(one): number for number, one in enumerate(prompts)}
        record["group_ids"] = [numbers[repr(one)] for one in prompts]
    if "rewards" not in known and (functions := _functions(value, len(prompts))):
        record["rewards"] = functions
    yield Translated(record, {"group_ids": "prompt"} if "group_ids" not in known else {})


def _functions(value: Object, count: int) -> Object:
    """The columns of the reward functions, where their names say that they are."""
    return {
        key: one
        for key, one in value.items()
        if "reward" in key.lower()
        and key not in _KNOWN
        and isinstance(one, list)
        and len(one) == count
        and all(type(number) in (int, float) for number in one)
    }


COLUMNS = Format(
    name="columns",
    title="ms-swift completions.jsonl, ROLL rollout_dump_data.step_{N}.jsonl: one list per field",
    keys=tuple(keys(prompt, text) for prompt in _PROMPTS for text in _TEXTS),
    fits=_is_columns,
    read=_read_columns,
    lacks=("responses to the same prompt form a group, unless a group id says otherwise",),
    source="ms-swift 4.x completions.jsonl; ROLL rollout_dump_dir: trl_family §11, verl_family §9",
    rank=1,
)


def _are_ids(value: Object) -> bool:
    first = value["tokens"]
    while isinstance(first, list | np.ndarray) and len(first):
        first = first[0]
    return isinstance(first, int | np.integer) and not isinstance(first, bool)


def _read_ids(value: Object) -> Iterator[Translated]:
    record = {key: one for key, one in value.items() if key != "tokens"}
    if "token_ids" in map(canonical_name, record):
        yield Translated(record, arrays=True)
    else:
        record["token_ids"] = value["tokens"]
        yield Translated(record, {"token_ids": "tokens"}, arrays=True)


TOKEN_IDS = Format(
    name="token-ids",
    title="whole numbers in tokens are token_ids, unless another key has those",
    keys=(keys("tokens"),),
    fits=_are_ids,
    read=_read_ids,
    source="dumps of users",
    arrays=True,
    rank=COMMON,
)


_LOG_PROBS = {*ALIASES["log_probs_new"], *ALIASES["ratios"], "log_probs_new", "ratios", ACTION}


class Signal(NamedTuple):
    """What a dump without log-probs still says of its responses.

    Attributes:
        rewards: one a response; None where it is not known.
        lengths: tokens of each; None where they are not known.
        group: what the group is called; None where it has no name.
        step: the step; None where the object does not say it.
        key: the field that does.
    """

    rewards: list[float | None]
    lengths: list[int | None]
    group: Any = None
    step: int | None = None
    key: str = "step"


class NoLogProbsError(InputError):
    """A record that cannot be evaluated; ``signal`` is what it says, ``key`` that of its group."""

    signal: Signal
    key: Any = None


def _text(
    name: str,
    title: str,
    has: str,
    source: str,
    signal: Callable[[Object], Signal],
    *wanted: str,
    advice: str = "have the trainer write log-probs as well",
) -> Format:
    def read(value: Object) -> Iterator[Translated]:
        lacks = "no log-probs: nothing can be evaluated"
        error = NoLogProbsError(f"this is {title}, which has {has} but {lacks}; {advice}")
        error.signal = signal(value)
        raise error
        yield

    return Format(
        name=name,
        title=title,
        keys=(keys(*wanted),),
        fits=lambda _: True,
        read=read,
        lacks=("no log-probs: nothing can be evaluated",),
        source=source,
        rank=2,
        without=frozenset(_LOG_PROBS),
    )


def number(value: Any) -> float | None:
    """A finite number; None for anything else."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _verl(value: Object) -> Signal:
    return Signal([number(value["score"])], [None], value["input"], _whole(value.get("step")))


_NOT_REWARDS = ("step", "prompt", "completion", "advantage", "images")


def _trl(value: Object) -> Signal:
    """A column for each reward function, which count equally: their weights are not there."""
    each = [number(one) for name, one in value.items() if name not in _NOT_REWARDS]
    known = [one for one in each if one is not None]
    prompt = value["prompt"]
    group = prompt if isinstance(prompt, str) else repr(prompt)
    return Signal([sum(known) if known else None], [None], group, _whole(value["step"]))


def _areal(value: Object) -> Signal:
    length = int(value["seqlen"]) - int(value["prompt_len"])
    step = _whole(value.get("tail_version"))
    return Signal([number(value.get("reward"))], [length], value["task_id"], step, "tail_version")


def _tinker(value: Object) -> Signal:
    turns = value.get("steps") or []
    lengths = [_whole(turn.get("ac_len")) for turn in turns if isinstance(turn, dict)]
    length = sum(one for one in lengths if one is not None) if lengths else None
    step = _whole(value.get("iteration"))
    return Signal([number(value["total_reward"])], [length], value["group_idx"], step, "iteration")


def _nemo(value: Object) -> Signal:
    rewards = value.get("rewards") or []
    return Signal([number(one) for one in rewards], [None] * len(rewards))


FORMATS = (
    COLUMNS,
    TOKEN_IDS,
    _text(
        "verl",
        "verl's rollout_data_dir/{step}.jsonl",
        "texts and scores",
        "verl ray_trainer.py:454-546",
        _verl,
        *("input", "output", "gts", "score"),
        advice="use grpo_cli.hooks.verl to write them",
    ),
    _text(
        "trl-completions",
        "TRL's completions_{step}.parquet",
        "texts, rewards and advantages",
        "TRL 1.16.0 grpo_trainer.py, log_completions",
        _trl,
        *("step", "prompt", "completion", "advantage"),
        advice="use record(trainer, path) from grpo_cli.hooks.trl to write them",
    ),
    _text(
        "areal",
        "AReaL's {version}/{task_id}.jsonl",
        "texts and rewards",
        "AReaL workflow_executor.py:818-921",
        _areal,
        *("task_id", "sample_idx", "seqlen", "prompt_len", "completion"),
    ),
    _text(
        "tinker",
        "Tinker's *_rollout_summaries.jsonl",
        "rewards and lengths",
        "tinker-cookbook rl/rollout_logging.py:72-146",
        _tinker,
        *("group_idx", "traj_idx", "total_reward"),
    ),
    _text(
        "nemo-rl-texts",
        "NeMo-RL's train_data_step{N}.jsonl without log-probs",
        "texts and rewards",
        "NeMo-RL nemo_rl/utils/logger.py:1071-1096",
        _nemo,
        *("content", "input_lengths", "idx"),
    ),
)
