"""One object whose values are lists, one element per response, as ms-swift and ROLL write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grpo_cli.errors import InputError
from grpo_cli.records.fields import ACTION, ALIASES
from grpo_cli.records.formats.format import Format, Object, Translated, keys

_TEXTS = ("completion", "responses", "response", "completions")
_PROMPTS = ("prompt", "prompts")
_KNOWN = {alias: name for name, aliases in ALIASES.items() for alias in (name, *aliases)}


def _text(value: Object) -> list[Any] | None:
    for name in _TEXTS:
        texts = value.get(name)
        if isinstance(texts, list) and texts and isinstance(texts[0], str):
            return texts
    return None


def _fits(value: Object) -> bool:
    texts = _text(value)
    prompts = _prompts(value)
    return texts is not None and prompts is not None and len(prompts) == len(texts)


def _prompts(value: Object) -> list[Any] | None:
    return next((value[one] for one in _PROMPTS if isinstance(value.get(one), list)), None)


def _read(value: Object) -> Iterator[Translated]:
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
    fits=_fits,
    read=_read,
    lacks=("responses to the same prompt form a group, unless a group id says otherwise",),
    source="ms-swift 4.x completions.jsonl; ROLL rollout_dump_dir: trl_family §11, verl_family §9",
    rank=1,
)

FORMATS = (COLUMNS,)
