"""UNIPO's canonical logs: a JSON document, or JSONL of a header and one step a line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import orjson

from grpo_cli import hyperparameters
from grpo_cli.errors import InputError
from grpo_cli.records.formats.format import Format, Object, Translated, carried, keys

if TYPE_CHECKING:
    from grpo_cli.records.open.blocks import Block

_TOKENS = {
    "log_probs_new": "log_probs",
    "log_probs_old": "old_log_probs",
    "log_probs_ref": "ref_log_probs",
    "advantages": "advantages",
    "tokens": "strings",
    "token_ids": "ids",
}
_SETTINGS = {"clip_eps": "epsilon", "kl_coef": "beta"}
_IS_STEP = re.compile(rb'\{(?=[^\n]{0,200}?"type"\s*:\s*"step")')
_RESPONSES = {"rewards": "reward", "advantages": "advantage"}


def _fits(value: Object) -> bool:
    if "entries" in value:
        return isinstance(value["entries"], list) and isinstance(value["header"], dict)
    return value["type"] == "header" or (value["type"] == "step" and "step" in value)


def _read(value: Object) -> Iterator[Translated]:
    header = value.get("header")
    hparams = header.get("hparams") if isinstance(header, dict) else None
    given = hparams if isinstance(hparams, dict) else {}
    settings = {
        known: one
        for name, one in given.items()
        if (known := _SETTINGS.get(name, name)) in hyperparameters.KNOWN
    }
    if "entries" not in value:
        if value["type"] == "step":
            yield from _entry(value, "", settings)
        return
    for number, entry in enumerate(value["entries"]):
        yield from _entry(entry, f"entries[{number}].", settings)


def header_of(first: bytes) -> bytes:
    """What each step of a file with this first line begins with: nothing, but of a header.

    Any process can read any line then, wherever the file is cut.
    """
    if b'"header"' not in first or b'"hparams"' not in first:
        return b""
    try:
        value = orjson.loads(first)
    except orjson.JSONDecodeError:
        return b""
    if not isinstance(value, dict) or value.get("type") != "header":
        return b""
    return b'{"header":' + orjson.dumps({"hparams": value.get("hparams")}) + b","


def with_header(blocks: Iterator[Block]) -> Iterator[Block]:
    """The blocks of a file, each step with the settings of the header in its first line."""
    header = None
    for block in blocks:
        if header is None:
            first = next(filter(bytes.strip, block.lines), b"")
            header = header_of(first) if first and not block.document else b""
        if header:
            own = [header + line[1:] if _IS_STEP.match(line) else line for line in block.lines]
            block = block._replace(lines=own)
        yield block


def headed_objects(values: list[Any]) -> list[Any]:
    """The steps of one array, with the settings of its first object if that is a header."""
    first = values[0]
    if not isinstance(first, dict) or first.get("type") != "header" or "hparams" not in first:
        return values
    header = {"header": {"hparams": first["hparams"]}}
    steps = (isinstance(one, dict) and one.get("type") == "step" for one in values)
    return [header | one if step else one for one, step in zip(values, steps, strict=True)]


def _entry(entry: Object, before: str, settings: Object) -> Iterator[Translated]:
    for number, prompt in enumerate(entry.get("prompts") or ()):
        made = _group(prompt["responses"], f"{before}prompts[{number}].responses[{{r}}]")
        step = entry.get("step")
        if isinstance(step, int | str):
            made.value["id"] = f"{step}.{number}"
        made.value |= carried(entry, "step")
        if settings:
            made.value["hyperparameters"] = settings
        yield made


def _group(responses: list[Any], place: str) -> Translated:
    record: Object = {}
    spelled = {}
    for name, own in _TOKENS.items():
        values = [one["tokens"].get(own) for one in responses]
        if _in_all(values, f"{place}.tokens.{own}"):
            record[name] = values
            spelled[name] = f"{place}.tokens.{own}[{{t}}]"
    for name, own in _RESPONSES.items():
        values = [one.get(own) for one in responses]
        if name not in record and _in_all(values, f"{place}.{own}"):
            record[name] = values
            spelled[name] = f"{place}.{own}"
    return Translated(record, spelled)


def _in_all(values: list[Any], place: str) -> bool:
    """Whether all responses of a prompt have a field, where they do not all lack it."""
    lacking = [number for number, value in enumerate(values) if value is None]
    if lacking and len(lacking) < len(values):
        raise InputError(
            "expected a value, since other responses to the prompt have one, got none; give it "
            "to all of them or to none",
            path=place.format(r=lacking[0]),
        )
    return not lacking


UNIPO = Format(
    name="unipo",
    title="UNIPO canonical JSON or JSONL",
    keys=(keys("header", "entries"), keys("type", "algorithm"), keys("type", "prompts")),
    fits=_fits,
    read=_read,
    lacks=(
        "only some prompts of each step: totals cover these prompts, not the whole step",
        "token_objective and token_kl are ignored; grpo computes them",
    ),
    source="poloclub/unipo a9c9acf docs/canonical_schema.json, scripts/build_data.py",
    many=True,
)

FORMATS = (UNIPO,)
