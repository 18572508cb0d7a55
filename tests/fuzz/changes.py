"""Changes of JSON values that know what a record looks like; each is drawn from one seeded source.

A value may hold ``Raw`` text, which ``text_of`` writes as it is: numbers that Python cannot hold,
keys that stand twice, half a surrogate pair.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from formats import dumps

from fuzz.product import ROOT, run

Holder = list[Any] | dict[str, Any]


class Raw(str):
    """JSON text that is written as it is."""


_NUMBERS: list[Any] = [
    *(0, 1, -1, 2, 0.5, -0.0, 1e-320, 5e-324, -1e-300, 1e308, -1e308, 1.7976931348623157e308),
    *(2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 2**70, 2**70 + 1, -700.0, -745.0, -1e4),
    *(-9999.0, 0.1, 3, 7, 1e-8, -1e-17, 88.0, 709.0, 710.0),
    *map(Raw, ("NaN", "Infinity", "-Infinity", "1e400", "-1e999", "1E5", "-0", "1.0e-0", "01")),
    *map(Raw, ("9" * 19, "9" * 20, "9" * 309, "-" + "9" * 399, "9" * 400, "9" * 5000, ".5", "+1")),
]
_TEXTS: list[Any] = [
    *("", " ", "x", "a", "nan", "null", "1", "-0.5", "é", "日本", "\U0001f600", "token_id:5"),
    *("\n", "\r", "\t", "\0", "\x1b[31mred\x1b[0m", "\x7f", "\x9b31m"),
    *("\u202e", "\u2028", "\ufeff"),
    *("=1+1", "<script>alert(1)</script>", "[red]", "[/oops]", "a,b", 'q"', "&&", "x" * 300),
    *map(Raw, (r'"\ud800"', r'"\udc00x"', r'"\u0000"', r'"st\u0065p"', '"\x01"')),
]
_HOLDERS: list[Callable[[], Any]] = [
    *(list, dict, lambda: [[]], lambda: [None], lambda: [[None]], lambda: [-0.5, -1.0]),
    *(lambda: [[-0.5], [-1.0, -2.0]], lambda: [[[-0.5]], [[-1.0]]], lambda: {"a": 1}),
    *(lambda: [True, False], lambda: ["a", "b"], lambda: [["a"], 1], lambda: [0] * 50),
]
_DEPTHS = (2, 5, 30, 120, 255, 256, 1000, 1500, 5000)


def nasty(draw: random.Random) -> Any:
    """A value that is seldom right."""
    kind = draw.random()
    if kind < 0.5:
        return draw.choice(_NUMBERS)
    if kind < 0.7:
        return draw.choice(_TEXTS)
    if kind < 0.8:
        return draw.choice([None, True, False])
    if kind < 0.97:
        return draw.choice(_HOLDERS)()
    return nested(draw.choice(_DEPTHS), draw.choice(["[]", "{}", "1", '"x"']), draw)


def nested(depth: int, inner: str, draw: random.Random) -> Raw:
    """Something deep inside lists, or objects."""
    if draw.random() < 0.7:
        return Raw("[" * depth + inner + "]" * depth)
    return Raw('{"a":' * depth + inner + "}" * depth)


def changed(objects: list[Any], draw: random.Random) -> None:
    """Changes one thing in the objects, or in their list."""
    if draw.random() < 0.12:
        draw.choice(_OF_ALL)(objects, draw)
    else:
        draw.choice(_CHANGES)(draw.choice([*_holders(objects)]), draw)


def _holders(value: Any) -> Iterator[Holder]:
    """Every list and object in a value, itself included."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list | dict):
            yield one
            waiting += one.values() if isinstance(one, dict) else one[:40]


def _places(holder: Holder) -> list[Any]:
    return list(holder) if isinstance(holder, dict) else list(range(len(holder)))


def _replace(holder: Holder, draw: random.Random) -> None:
    if places := _places(holder):
        holder[draw.choice(places)] = nasty(draw)


def _nudge(holder: Holder, draw: random.Random) -> None:
    """Other numbers, still of the right kind."""
    for place in _places(holder):
        if type(holder[place]) in (int, float) and draw.random() < 0.5:
            holder[place] = draw.choice((-1, 1, 1, -0.01)) * draw.choice((0.0, 0.1, 1.0, 3.0, 40.0))


def _delete(holder: Holder, draw: random.Random) -> None:
    if places := _places(holder):
        del holder[draw.choice(places)]


def _double(holder: Holder, draw: random.Random) -> None:
    if isinstance(holder, list) and holder:
        holder.insert(draw.randrange(len(holder) + 1), draw.choice(holder))


def _insert(holder: Holder, draw: random.Random) -> None:
    if isinstance(holder, list):
        holder.insert(draw.randrange(len(holder) + 1), nasty(draw))
    else:
        holder[_key(draw)] = nasty(draw)


def _many(holder: Holder, draw: random.Random) -> None:
    if isinstance(holder, list) and len(holder) < 50:
        holder *= draw.choice((0, 2, 17))


def _wrap(holder: Holder, draw: random.Random) -> None:
    """One level more."""
    if places := _places(holder):
        place = draw.choice(places)
        holder[place] = [holder[place]]


def _unwrap(holder: Holder, draw: random.Random) -> None:
    """One level less."""
    lists = [p for p in _places(holder) if isinstance(holder[p], list) and holder[p]]
    if lists:
        place = draw.choice(lists)
        holder[place] = draw.choice(holder[place])


def _swap(holder: Holder, draw: random.Random) -> None:
    if len(places := _places(holder)) > 1:
        one, other = draw.sample(places, 2)
        holder[one], holder[other] = holder[other], holder[one]


def _rename(holder: Holder, draw: random.Random) -> None:
    if isinstance(holder, dict) and holder:
        key = draw.choice(list(holder))
        holder[_key(draw, key)] = holder.pop(key)


_KEYS = ("expected", "loss", "metrics", "id", "grpo_json", "rewards/\x1b[31m", "x\u202e", 'a"|\n')


def _key(draw: random.Random, key: str = "step") -> str:
    kind = draw.random()
    if kind < 0.6:
        return draw.choice(names()["keys"])
    if kind < 0.8:
        return draw.choice([*names()["settings"], *_KEYS])
    if kind < 0.9 and len(key) > 2:
        at = draw.randrange(len(key))
        return key[:at] + draw.choice(("", "x", key[at] * 2)) + key[at + 1 :]
    text = draw.choice(_TEXTS)
    return "k" if isinstance(text, Raw) else text


def _add_known(holder: Holder, draw: random.Random) -> None:
    """A field that the product knows, with a value of the right kind."""
    if isinstance(holder, dict):
        value = draw.choice((0.5, 2, 0, None, [1.0, 0.0], [[-0.5, -1.0], [-1.0]], {"beta": 0.1}))
        holder[_key(draw)] = value


def _ragged(holder: Holder, draw: random.Random) -> None:
    if isinstance(holder, list):
        del holder[draw.randrange(len(holder) + 1) :]


_CHANGES = (
    *(_replace, _replace, _replace, _nudge, _nudge, _nudge, _delete, _double, _insert, _many),
    *(_wrap, _unwrap, _swap, _rename, _add_known, _add_known, _ragged),
)


def _no_objects(objects: list[Any], draw: random.Random) -> None:
    objects[draw.randrange(len(objects) + 1) :] = [nasty(draw)]


def _shuffle(objects: list[Any], draw: random.Random) -> None:
    draw.shuffle(objects)


def _alike(objects: list[Any], draw: random.Random) -> None:
    if objects:
        objects += json.loads(json.dumps(objects[:1] * draw.randrange(30), default=str))


def _twice(objects: list[Any], draw: random.Random) -> None:
    """A key that stands twice."""
    if objects and isinstance(objects[0], dict) and objects[0]:
        key, value = draw.choice([*objects[0].items()])
        pair = f"{json.dumps(key)}: {text_of(value)}"
        whole = text_of(objects[0])
        objects[0] = Raw(f"{whole[:-1]}, {pair}}}")


_OF_ALL = (_no_objects, _shuffle, _alike, _alike, _twice)

_MARK = "\0raw\0"
_RAW = re.compile(r'"\\u0000raw\\u0000(\d+)"')


def text_of(value: Any, indent: int | None = None) -> str:
    """The value as JSON, ``Raw`` parts as they are."""
    raws: list[str] = []
    text = json.dumps(_marked(value, raws), indent=indent, ensure_ascii=bool(raws))
    return _RAW.sub(lambda found: raws[int(found[1])], text)


def _marked(value: Any, raws: list[str]) -> Any:
    if isinstance(value, Raw):
        raws.append(value)
        return f"{_MARK}{len(raws) - 1}"
    if isinstance(value, dict):
        return {key: _marked(one, raws) for key, one in value.items()}
    return [_marked(one, raws) for one in value] if isinstance(value, list) else value


# ---- what is changed: small inputs of every shape and format that is read ------------------------


Object = dict[str, Any]


def _records() -> dict[str, list[Object]]:
    """Records under canonical names in every shape, and some that say what they evaluate to."""
    return json.loads(Path(__file__).with_name("records.json").read_bytes())


def _formats() -> dict[str, list[Object]]:
    """One of each format that ``grpo formats`` lists."""
    found = {name: dumps.of(name) for name in dumps.DUMPS}
    body = found["openai-chat"][0]
    found["openai-chat"] += [{"custom_id": "r1", "response": {"body": body}}]
    return found


def _dumped() -> dict[str, list[Object]]:
    """Samples, and the first record of each recorded run, cut to two responses of four tokens."""
    found = {}
    for path in sorted((ROOT / "samples").glob("*.json*")):
        found[f"samples/{path.name}"] = _read(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "tests" / "data").glob("**/*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            found[f"data/{path.name}"] = [_cut(json.loads(next(lines)), 2)]
    return {name: objects for name, objects in found.items() if objects}


def _read(text: str) -> list[Object]:
    """The objects of a sample; none where it is malformed on purpose."""
    for parts in ([text], text.splitlines()):
        try:
            values = [json.loads(part) for part in parts if part.strip()]
        except ValueError:
            continue
        return [one for value in values for one in (value if isinstance(value, list) else [value])]
    return []


def _cut(value: Any, depth: int) -> Any:
    """Lists of at most two, and of four where they are inside others."""
    if isinstance(value, dict):
        return {key: _cut(one, depth) for key, one in value.items()}
    if isinstance(value, list):
        return [_cut(one, depth - 1) for one in value[: 2 if depth > 1 else 4]]
    return value


@cache
def objects() -> dict[str, str]:
    """Name → the JSON text of a list of objects, so that each use gets its own copy."""
    every = {**_records(), **_formats(), **_dumped()}
    return {name: json.dumps(value) for name, value in every.items()}


@cache
def usable() -> list[str]:
    """The names of those that can be evaluated as they are."""
    texts = {name for name, dump in dumps.DUMPS.items() if dump.get("texts")}
    return [name for name in objects() if "bad_" not in name and name not in texts]


@cache
def names() -> dict[str, list[str]]:
    """What the product itself says it knows: formats, fields of records, variants, choices, …"""
    formats = json.loads(run(["formats", "--json"]).out)
    catalogue = json.loads(run(["variants", "--json"]).out)
    choices = {stage: [*one["choices"]] for stage, one in catalogue["stages"].items()}
    settings = {
        name
        for stage in catalogue["stages"].values()
        for choice in stage["choices"].values()
        for name in choice["hyperparameters"]
    }
    aliases = [name for canonical, others in formats["names"].items() for name in others]
    return {
        "formats": [one["name"] for one in formats["formats"]],
        "keys": [*formats["names"], *aliases, "action_log_probs", "groups", "framework"],
        "variants": [one["name"] for one in catalogue["variants"]],
        "settings": sorted(settings | {"epsilon"}),
        **{f"fields of {level}": _fields(level) for level in LEVELS},
        **{f"choices of {stage}": every for stage, every in choices.items()},
    }


LEVELS = ("batch", "record", "response", "token")


def _fields(level: str) -> list[str]:
    """The fields of a level, which the complaint about an unknown one lists."""
    said = run(["eval", "-", "--level", level, "--only", "?"], b" ").err.decode()
    return said.rpartition("(one of ")[2].strip().rstrip(")").split(", ")
