"""Objects that hold a list of objects, one for each response, as ``{"rollouts": [{…}, …]}``.

They are read as if each key of the inner objects were a list in the outer one. A list of tokens may
be one of objects too. If lists are nested deeper, as groups in steps, each group is a record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from grpo_cli.errors import InputError
from grpo_cli.records.choose.where import Missing, Path, look_up, spelled
from grpo_cli.records.fields import POLICY_KEYS, TOKEN_COLUMNS, canonical_name
from grpo_cli.records.formats.format import Format, Object, Translated, Unit
from grpo_cli.records.places import PathInside, first_inside, paths_inside

_BY_TOKEN = frozenset((*TOKEN_COLUMNS, "mask", "advantages", "tokens", "token_ids", "roles"))
_TURNS = frozenset(("turns", "steps", "messages", "segments"))
"""Keys of lists of an agent's turns: with a list of responses around, they are joined."""
_OF_TURNS = _BY_TOKEN - {"roles", "tokens", "token_ids"} | {"rewards"}
_OF_RECORDS = 2
"""Levels of lists in a record: responses and their tokens."""


def unnest(value: Object, policy: Path) -> Iterator[Translated]:
    """The records of an object whose policy's log-probs are in lists of objects.

    Args:
        value: the object.
        policy: the path of the log-probs, which leads through lists.
    """
    levels = _levels(value, policy)
    if "nodes" in policy:
        raise InputError("these are nodes of a graph, not turns in order", path=spelled(policy))
    if _are_turns(policy, levels):
        value = _join_turns(value, policy[:-1], policy[-1])
        levels = _levels(value, policy)
    for unit, path, place in _records(
        value, policy, min(sum(levels) - _OF_RECORDS, sum(levels[:-1]))
    ):
        yield _lift(unit, path, policy[: len(policy) - len(path)], place)


def _are_turns(path: Path, levels: Sequence[int]) -> bool:
    """Whether a column is in lists of turns, with a list of responses around them."""
    return not _TURNS.isdisjoint(path[-2:-1]) and any(levels[:-2])


def _join_turns(value: Any, turns: Path, policy: str | int) -> Any:
    """The object with the columns of each list of turns joined, and the turn of each token."""
    if isinstance(value, list):
        return [_join_turns(one, turns, policy) for one in value]
    if not isinstance(value, dict) or turns[0] not in value:
        return value
    held, *inner = value[turns[0]], *turns[1:]
    if inner:
        return {**value, turns[0]: _join_turns(held, (*inner,), policy)}
    own = [one for one in held or () if isinstance(one, dict) and one.get(policy)]  # no tool's
    columns = {
        key: [*chain.from_iterable(one[key] for one in own)]
        for key in (own[0] if own else ())
        if _named(key) != "rewards"
        if all(isinstance(one.get(key), list) and len(one[key]) == len(one[policy]) for one in own)
    }
    for key in {*chain.from_iterable(own)} - {*columns}:
        if _named(key) in _OF_TURNS:
            raise InputError("expected one per token in each turn", path=f"{spelled(turns)}.{key}")
    ids = [number for number, one in enumerate(own) for _ in one[policy]]
    return {**value, turns[0]: columns, "turn_ids": ids}


def is_inside_list(value: Object, path: Path) -> bool:
    """Whether a path leads through a list of objects."""
    return len(path) > 1 and any(_levels(value, path)[:-1])


def _policy(value: Object) -> Path | None:
    """The only path under a known name of the policy, directly in a list of objects."""
    found = [
        one.keys
        for one in paths_inside(value)
        if one.in_list and one.lists[-2] and "nodes" not in one.keys
        if _TURNS.isdisjoint(one.keys[-2:-1]) or _are_turns(one.keys, one.lists)
        if not POLICY_KEYS.isdisjoint((one.keys[-1], f"{one.keys[-1]}s"))
    ]
    return found[0] if len(found) == 1 else None


def _levels(value: Any, path: Path) -> list[int]:
    """How many lists each step of a path leads into, in the first of each list that has any."""
    found = []
    for step in path:
        value, depth = first_inside(value[step])
        found.append(depth)
    return found


def _records(
    value: Object, path: Path, outer: int, place: str = ""
) -> Iterator[tuple[Object, Path, str]]:
    """The objects that are a record each, with the path in them and their place.

    Args:
        outer: how many levels of lists are around them; numbers and texts there go into each.
    """
    at = _steps_to_list(value, path)
    if outer < 1 or at == len(path):
        yield value, path, place
        return
    own = str(path[at - 1])
    around = {
        key: one for key, one in value.items() if key != path[0] and not isinstance(one, list)
    }
    for number, one in enumerate(look_up(value, path[:at])):
        here = f"{place}{spelled(path[:at])}[{number}]"
        if isinstance(one, list):
            yield from _records(
                {**around, "id": here, own: one}, path[at - 1 :], outer - 1, f"{here}."
            )
        else:
            yield from _records({**around, "id": here, **one}, path[at:], outer - 1, f"{here}.")


def _lift(value: Object, policy: Path, above: Path, place: str) -> Translated:
    """A record with the columns of the list of objects through which the policy's path leads."""
    at = _steps_to_list(value, policy)
    record = {key: one for key, one in value.items() if key != policy[0] or isinstance(one, dict)}
    lifted: Object = {}
    places = {key: place + key for key in record} if place else {}
    for path in paths_inside(value):
        if path.keys[:at] != policy[:at] or len(path.keys) == at or path.keys[-1] == "id":
            continue
        try:
            column = look_up(value, path.keys)
        except Missing:  # it is null in all of them
            continue
        key = _key(path)
        if canonical_name(path.keys[-2]) == "rewards" and not path.lists[-2]:  # by function
            key = path.keys[-2]
            column = lifted.get(key, {}) | {path.keys[-1]: column}
        elif key in lifted:
            key = str(path)
        lifted[key], places[key] = column, place + template(value, path.keys)
    made = record | lifted if lifted else value
    return Translated(made, places, unit=Unit(value | lifted, above, place))


def _steps_to_list(value: Object, path: Path) -> int:
    """How many steps of a path lead to its first list of objects; all of them if there is none."""
    with suppress(Missing):
        lists = (at for at in range(1, len(path)) if type(look_up(value, path[:at])) is list)
        return next(lists, len(path))
    return len(path)


def _key(path: PathInside) -> str:
    """The key of a column: its own, if it is directly in a list of objects."""
    own = path.keys[-1]
    name = _named(own)
    of_token = sum(path.lists[:-1]) == _OF_RECORDS
    if of_token and name == "rewards":
        return "token_rewards"
    in_list = path.lists[-2] or not _TURNS.isdisjoint(path.keys[-2:-1])
    if not in_list or (of_token and name not in {*_BY_TOKEN, None}):
        return str(path)
    return own if canonical_name(own) or name is None else f"{own}s"


def _named(key: str | int) -> str | None:
    """The canonical name of a key, which may be in the singular: it is of one token or response."""
    return canonical_name(str(key)) or canonical_name(f"{key}s")


def template(value: Object, path: Path) -> str:
    """A path with ``{r}`` and ``{t}`` at its lists, as ``Origin`` has it."""
    try:
        levels = _levels(value, path)
    except (LookupError, TypeError):  # an index, or not in the first of a list
        return spelled(path)
    names = iter(("[{r}]", "[{t}]"))
    return ".".join(
        str(step) + "".join(next(names, "") for _ in range(depth))
        for step, depth in zip(path, levels, strict=True)
    )


NESTED = Format(
    name="nested",
    title='a list of objects, one per response: {"rollouts": [{"logprobs": […]}, …]}',
    keys=(frozenset(),),
    without=POLICY_KEYS,
    fits=lambda value: _policy(value) is not None,
    read=lambda value: unnest(value, _policy(value) or ()),
    many=True,
    rank=2,
)

FORMATS = (NESTED,)
