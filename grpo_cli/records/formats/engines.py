"""What inference servers answer: OpenAI and vLLM chat and completions, SGLang."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from grpo_cli.errors import InputError
from grpo_cli.records.formats.format import Format, Object, Translated, carried, keys

SENTINEL = -9999.0
"""What OpenAI and vLLM write for a log-prob that they do not know."""

_UNKNOWN = "tokens without a log-prob (null, or the sentinel -9999.0) do not count"
_ECHO = (
    "with echo, the answer contains the prompt but not its length: all its tokens except the "
    "first count"
)
_OWN = ("rewards", "advantages", "hyperparameters", "expected", "group_ids", "log_probs_ref")
_BEYOND = (
    "only the engine's policy: it is read as log_probs_new, so every ratio is 1",
    "no rewards and no advantages: add `rewards` or `advantages` to the answers, or use --map",
    "no reference, so there is no KL",
)


def _choices(value: Object) -> Any:
    if "choices" in value:
        return value["choices"]
    return ((value.get("response") or {}).get("body") or {}).get("choices")  # OpenAI's batch output


def _has_logprobs(value: Object) -> bool:
    choices = _choices(value)
    return (
        isinstance(choices, list)
        and bool(choices)
        and all(isinstance(one, dict) and "logprobs" in one for one in choices)
    )


def _logprobs(value: Object) -> list[Object]:
    choices = _choices(value)
    for number, choice in enumerate(choices):
        if not isinstance(choice.get("logprobs"), dict):
            raise InputError(
                "expected log-probs (ask the server for logprobs), got none",
                path=f"choices[{number}].logprobs",
            )
    return [choice["logprobs"] for choice in choices]


def _is_completion(value: Object) -> bool:
    return _has_logprobs(value) and any(
        isinstance(one["logprobs"], dict) and "token_logprobs" in one["logprobs"]
        for one in _choices(value)
    )


def _read_chat(value: Object) -> Iterator[Translated]:
    contents = [one.get("content") or [] for one in _logprobs(value)]
    numbers = [[token.get("logprob") for token in content] for content in contents]
    words = [[_word(token) for token in content] for content in contents]
    yield _answer(value, numbers, words, "logprobs.content[{t}].logprob")


def _read_completion(value: Object) -> Iterator[Translated]:
    logprobs = _logprobs(value)
    numbers = [list(one["token_logprobs"]) for one in logprobs]
    words = [one.get("tokens") for one in logprobs]
    notes = []
    if any(row and row[0] is None for row in numbers):
        prompt = (value.get("usage") or {}).get("prompt_tokens")
        for row in numbers:
            if isinstance(prompt, int) and row and row[0] is None:
                row[:prompt] = [None] * min(prompt, len(row))
        notes = [] if isinstance(prompt, int) else [_ECHO]
    yield _answer(value, numbers, words, "logprobs.token_logprobs[{t}]", *notes)


def _answer(
    value: Object, numbers: list[list[Any]], words: list[Any], place: str, *notes: str
) -> Translated:
    """The choices of one answer are one group."""
    record: Object = carried(value, "id", *_OWN)
    if "custom_id" in value:
        record["id"] = value["custom_id"]
    record["log_probs_new"] = record["log_probs_rollout"] = numbers
    if all(isinstance(row, list) for row in words):
        _put_words(record, words, [choice.get("token_ids") for choice in _choices(value)])
    known = [[_is_known(one) for one in row] for row in numbers]
    if not all(map(all, known)):
        record["mask"] = known
        notes += (_UNKNOWN,)
    where = f"choices[{{r}}].{place}"
    return Translated(record, {"log_probs_new": where, "log_probs_rollout": where}, notes)


def _is_known(one: object) -> bool:
    return one is not None and one != SENTINEL


def _put_words(record: Object, words: list[list[Any]], ids: list[Any]) -> None:
    lengths = [len(row) for row in words]
    if all(type(one) is str and one.startswith("token_id:") for row in words for one in row):
        ids = [[int(one.removeprefix("token_id:")) for one in row] for row in words]
    else:
        record["tokens"] = words
    if all(isinstance(row, list) for row in ids) and [len(row) for row in ids] == lengths:
        record["token_ids"] = ids


def _word(token: Object) -> Any:
    """The token's text; its bytes where it is a piece of a character."""
    text, data = token.get("token"), token.get("bytes")
    if isinstance(data, list) and data and isinstance(text, str) and "\ufffd" in text:
        return bytes(data).decode("utf-8", "backslashreplace")
    return text


def _read_sglang(value: Object) -> Iterator[Translated]:
    """Triples of log-prob, token id and text; the text may be null or missing."""
    info = value["meta_info"]
    triples = info["output_token_logprobs"]
    numbers = [one[0] for one in triples]
    record: Object = carried(value, "id", "reward", "advantage", *_OWN)
    record["log_probs_new"] = record["log_probs_rollout"] = [numbers]
    record["token_ids"] = [[one[1] for one in triples]]
    if all(len(one) > 2 and one[2] is not None for one in triples):
        record["tokens"] = [[one[2] for one in triples]]
    if "id" in info:
        record.setdefault("id", info["id"])
    notes: tuple[str, ...] = ()
    if not all(map(_is_known, numbers)):
        record["mask"] = [[_is_known(one) for one in numbers]]
        notes = (_UNKNOWN,)
    where = "meta_info.output_token_logprobs[{t}]"
    columns = {"log_probs_new": f"{where}[0]", "log_probs_rollout": f"{where}[0]"}
    yield Translated(record, columns | {"token_ids": f"{where}[1]", "tokens": f"{where}[2]"}, notes)


CHAT = Format(
    name="openai-chat",
    title="OpenAI, vLLM chat completions with logprobs",
    keys=(keys("choices"), keys("custom_id", "response")),
    fits=lambda value: _has_logprobs(value) and not _is_completion(value),
    read=_read_chat,
    lacks=_BEYOND,
    source="OpenAI API reference, chat completion object: choices[].logprobs.content[]",
)

COMPLETION = replace(
    CHAT,
    name="openai-completion",
    title="OpenAI, vLLM completions with logprobs",
    fits=_is_completion,
    read=_read_completion,
    source="OpenAI API reference, completion object: choices[].logprobs.token_logprobs",
)

SGLANG = Format(
    name="sglang",
    title="SGLang /generate with return_logprob",
    keys=(keys("meta_info"),),
    fits=lambda value: (
        isinstance(value["meta_info"], dict)
        and isinstance(value["meta_info"].get("output_token_logprobs"), list)
    ),
    read=_read_sglang,
    lacks=("one response per object: use --group-size N or --group-by FIELD", *_BEYOND),
    source="SGLang docs, native API: meta_info.output_token_logprobs = [[logprob, id, text], ...]",
)

FORMATS = (CHAT, COMPLETION, SGLANG)
