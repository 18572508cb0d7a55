"""One decoded object → a Record, checked as far as a record alone can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import Value
from grpo_cli.records import fields
from grpo_cli.records.objects import as_object
from grpo_cli.records.open.foreign import log_advice
from grpo_cli.records.parse.columns import (
    Shape,
    derive,
    fill_unscored,
    innermost,
    is_number,
    read_column,
    read_mask,
    read_shape,
    refuse_odd_shape,
)
from grpo_cli.records.parse.scores import (
    count_unknown,
    depth,
    finite,
    per_response,
    read_advantages,
    read_groups,
    read_rewards,
)
from grpo_cli.records.parse.turns import read_of_turns, read_roles, read_trajectories, read_versions
from grpo_cli.records.places import got, paths_inside
from grpo_cli.records.record import Raw, Record, step_of
from grpo_cli.records.settings import framework_of, read_settings, read_value
from grpo_cli.records.unread import misnamed_in


def parse(value: object) -> Record:
    """The record that an object of no file is.

    Raises:
        InputError: as ``record`` returns it.
    """
    made = record(Raw(value, "", None, "", 0))
    if isinstance(made, InputError):
        raise made
    return made


def record(raw: Raw) -> Record | InputError:
    """The record that was decoded, or what is missing, inconsistent or no number in it.

    Log-probs are checked for being numbers here, and for their values when they are assembled.
    """
    try:
        value = as_object(raw.plain())
        try:
            made = _read(value, raw.source, raw.line, raw.prefix)
        except InputError:
            if (unpadded := without_padding(value)) is None:
                raise
            made = _read(unpadded, raw.source, raw.line, raw.prefix)
    except InputError as error:
        error.source, error.line = raw.source, raw.line
        error.path = (raw.prefix + error.path).rstrip(".")
        if raw.origin is not None:
            raw.origin.place(error, raw.prefix)
        return error
    made.origin, made.batch, made.step = raw.origin, raw.batch, step_of(value)
    if raw.nulls is not None:
        raw.nulls.update(made.nulls)
        raw.nulls = None  # so that reading it again counts nothing
    return made


def _read(record: dict[str, Any], source: str, line: int | None, prefix: str) -> Record:
    found = fields.read_fields(record)
    names = found.names
    shape = _shape(source, record, names, found.unknown)
    mask = None
    try:
        if "mask" in names:
            mask = read_mask(names["mask"], record[names["mask"]], shape)
        columns = {
            name: read_column(key, record[key], shape, mask, nulls=name == _ENGINE)
            for name, key in found.columns
        }
    except InputError:
        refuse_odd_shape(shape, {key: record[key] for key in _token_keys(found)})
        raise
    derived = derive(columns, names, shape, mask)
    key = names.get(_ENGINE)
    unscored = 0 if key is None else fill_unscored(columns, key, record[key], shape, mask)
    groups, labels = None, None
    if shape.outer is not None or "group_ids" in names or "group_size" in names:
        groups, labels = read_groups(record, names, shape)
    result = Record(
        source=source,
        line=line,
        prefix=prefix,
        id=record_id(record),
        widths=shape.widths,
        columns=columns,
        nested=shape.nested,
        names=names,
        unknown=fields.names_inside(record, found.unknown),
        misnamed=misnamed_in(record, names, found.misnamed),
        derived=derived,
        shape=shape.outer,
        mask=mask,
        groups=groups,
        group_labels=labels,
        versions=read_versions(record, shape.widths),
        hyperparameters=read_settings([record], found).of_record(0),
        nulls={_ENGINE: unscored} if unscored else {},
    )
    found_trajectories = read_trajectories(record, found, shape, groups, labels)
    if found_trajectories is not None:
        result.trajectories, result.trajectory_labels = found_trajectories
    _add_scores(result, record, shape)
    _add_extras(result, record, shape)
    return result


_ENGINE = "log_probs_rollout"


def _token_keys(found: fields.Fields) -> list[str]:
    """The keys of all columns of tokens."""
    others = (found.names[name] for name in ("mask", "tokens", "token_ids") if name in found.names)
    return [*dict(found.columns).values(), *others]


def without_padding(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """A record without its padding, where some columns lack it already; None where none does.

    The mask says what is padding: there it is 1 up to the last token that counts, and 0 behind.
    """
    found = fields.read_fields(record)
    names, keys = found.names, _token_keys(found)
    own = names.get("advantages")
    if own is not None and depth(record[own]) == depth(record.get(names.get("mask", ""))):
        keys.append(own)
    try:
        mask = record[names["mask"]]
        return {**record, **{key: _unpadded(record[key], mask) for key in keys}}
    except (LookupError, TypeError, ValueError):
        return None


def _unpadded(value: list[Any], mask: list[Any]) -> list[Any]:
    """The elements that count of nested lists, which may be there alone.

    Raises:
        TypeError: where something else than a list is in the place of one.
        ValueError: where lists do not fit the mask, or the mask is 0 before the end.
    """
    if mask and isinstance(mask[0], list):
        return [_unpadded(*pair) for pair in zip(value, mask, strict=True)]
    count = sum(mask)
    if mask != [1] * count + [0] * (len(mask) - count) or len(value) not in (count, len(mask)):
        raise ValueError
    return value[:count]


def _add_scores(result: Record, record: Mapping[str, Any], shape: Shape) -> None:
    key = result.names.get("rewards")
    unknown = 0
    if key is not None and "advantages" in result.names:
        unknown = count_unknown(key, record[key], shape)
    if unknown:
        result.nulls["rewards"] = unknown
    elif key is not None:
        result.rewards, result.reward_names = read_rewards(key, record[key], shape)
        first = result.rewards[0]
        weights = trainer_weights(record, len(first)) if type(first) is list else {}
        if weights:
            settings = {**weights, **result.hyperparameters}
            result.hyperparameters = dict(sorted(settings.items()))
    key = result.names.get("reward_baselines")
    if key is not None:
        result.reward_baselines = finite(*per_response(key, record[key], shape, "baseline"))
    result.of_turns = read_of_turns(record, result.names, shape)
    key = result.names.get("advantages")
    if key is not None:
        result.advantages = read_advantages(key, record[key], shape, result.mask)


def _add_extras(result: Record, record: Mapping[str, Any], shape: Shape) -> None:
    names = result.names
    if "tokens" in names:
        result.tokens = read_words(names["tokens"], record[names["tokens"]], shape, str)
    if "token_ids" in names:
        result.token_ids = read_words(names["token_ids"], record[names["token_ids"]], shape, int)
    if "roles" in names:
        result.roles = read_roles(record[names["roles"]], shape.widths)
    if "expected" in names:
        result.expected = record["expected"]


def _shape(
    source: str, record: Mapping[str, Any], names: Mapping[str, str], unknown: Sequence[str]
) -> Shape:
    key = names.get("log_probs_new") or names.get("ratios")
    if key is None and is_logged(record):
        raise InputError(log_advice(source))
    if key is None and (path := _inner_records(record, unknown)):
        raise InputError(
            f"expected a record, got an object of records: jq -c '{path}' writes one per line"
        )
    held = {key: record[key]} if key and isinstance(record[key], Mapping) else {}
    if key is None or any(paths_inside(held)):  # as {"new": […], "old": […]}
        inside = fields.names_inside(record, [*held, *unknown])
        left = fields.unknown_keys("log_probs_new", names, inside)
        raise InputError(f"expected log_probs_new{left}; grpo formats lists its other names")
    shape = read_shape(key, record[key])
    if shape.nested == 1 and len(shape.value) > 1:
        shape.single = _is_single(record, names, len(shape.value))
    return shape


def _inner_records(record: Mapping[str, Any], unknown: Sequence[str]) -> str:
    """The path, for jq, to records that are in an object inside this one; "" for none."""
    holders = [("", record), *((f'.["{key}"]', record[key]) for key in unknown)]
    for path, held in holders:
        if isinstance(held, Mapping) and _has_log_probs(next(iter(held.values()), None)):
            return f"{path or '.'}[]"
    return ""


def _has_log_probs(value: object) -> bool:
    names = ("log_probs_new", *fields.ALIASES["log_probs_new"])
    known = value if isinstance(value, Mapping) else {}
    return any(isinstance(known.get(name), list) for name in names)


def _is_single(record: Mapping[str, Any], names: Mapping[str, str], length: int) -> bool:
    """Whether a flat list is the tokens of one response, not one number for each of several."""
    rewards, advantages, tokens, ids = (
        record[names[name]] if name in names else None
        for name in ("rewards", "advantages", "tokens", "token_ids")
    )
    by_function = rewards.values() if isinstance(rewards, Mapping) and rewards else [rewards]
    if all(map(is_number, by_function)) or is_number(advantages):
        return True
    words = tokens or ids
    flat = type(words) is list and bool(words) and type(words[0]) is not list
    return flat and not (type(rewards) is list and len(rewards) == length)


def record_id(record: Mapping[str, Any]) -> str | int | float | None:
    """The record's own ``id``, if it is one that can be shown; as text beyond 64 bits."""
    value = record.get("id")
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    return value if isinstance(value, (str, int, float)) else None


def read_words(key: str, value: object, shape: Shape, kind: type) -> list[list[Any]]:
    """[R] lists of token strings (``kind`` str) or token ids (int), masked ones included.

    Raises:
        InputError: for another shape than the token columns', or an element of another kind.
    """
    rows = innermost(key, value, shape, "token")
    kinds = set(map(type, chain.from_iterable(rows)))
    if not kinds <= {kind}:
        every = enumerate(chain.from_iterable(rows))
        at, other = next(one for one in every if type(one[1]) is not kind)
        wanted = "a string" if kind is str else "a whole number"
        came = repr(other) if isinstance(other, float) else got(other)
        ids = " (ids are read under token_ids: --map token_ids=KEY)" if kinds == {int} else ""
        raise InputError(f"expected {wanted}, got {came}{ids}", path=key + shape.place(at))
    return rows if shape.nested > 1 or shape.single else [[one] for one in rows[0]]


def trainer_weights(record: Mapping[str, Any], functions: int) -> Mapping[str, Value]:
    """The weights of several reward functions, where the record's ``framework`` gives them.

    That is how TRL's settings say it. Rewards that are one number have the weights in them already.

    Raises:
        InputError: for weights that are none, or another number of them than reward functions.
    """
    weights = framework_of(record).get("reward_weights")
    if weights is None:
        return {}
    path = "framework.reward_weights"
    found = read_value(path, "reward_weights", weights)
    if (given := str(found["reward_weights"]).count(",") + 1) != functions:
        raise InputError(f"expected {functions} (one per reward function), got {given}", path=path)
    return found


STEPS = ("step", "global_step", "_step", "Step", "training/global_step", "trainer/global_step")
"""Names of steps in logs."""
NESTED = ("data", "metrics", "values", "log")
"""Keys that a row's numbers may be under."""
_HISTORY = "log_history"
_TEXTS = frozenset(("prompt", "input", "response", "completion", "output", "text", "messages"))
_LOGGED = frozenset(("loss", "grad_norm", "learning_rate", "lr", "epoch", "entropy"))


def is_logged(value: Mapping[str, Any]) -> bool:
    """Whether an object is ``trainer_state.json``, or a row of metrics: a step and numbers."""
    if isinstance(value.get(_HISTORY), list):
        return True
    nested: Mapping[str, Any] = next(
        (value[name] for name in NESTED if isinstance(value.get(name), dict)), {}
    )
    numbers = {**value, **nested}
    if _TEXTS & value.keys() or any(isinstance(one, list) for one in numbers.values()):
        return False
    stepped = any(isinstance(numbers.get(name), int | float) for name in STEPS)
    return stepped and any(
        isinstance(one, int | float) and ("/" in name or name in _LOGGED)
        for name, one in numbers.items()
        if name not in STEPS
    )
