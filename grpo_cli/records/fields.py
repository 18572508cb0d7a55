"""What the keys of a record mean: canonical names, their aliases, and typing slips."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping
from functools import lru_cache
from itertools import chain, filterfalse
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from grpo_cli import hyperparameters
from grpo_cli.errors import SHORTEST_TYPO, InputError, also_unknown, is_one_slip
from grpo_cli.records.places import first_names, paths_inside
from grpo_cli.records.unread import (
    IF_OLD,
    NEW,
    OLD,
    READ_ELSEWHERE,
    ROLLOUT,
    TRAJECTORIES,
    TWINS,
    Misnamed,
    holds_texts,
    is_list,
    may_mean,
    misnamed,
)

_NAMES: Mapping[str, Any] = orjson.loads(Path(__file__).with_suffix(".json").read_bytes())

ALIASES: Mapping[str, tuple[str, ...]] = {
    name: (*others.split(),) for name, others in _NAMES["aliases"].items()
}
"""Canonical name → what else the frameworks call it: every alias that is known."""

TOKEN_COLUMNS: tuple[str, ...] = (*_NAMES["columns"].split(),)
"""The fields with one number per token, in the order in which they are read."""

EITHER = (
    ("log_probs_new", "ratios"),
    ("log_probs_old", "probs_old"),
    ("log_probs_ref", "probs_ref"),
)
"""Pairs that say the same thing in two ways, so that a record may have only one of the two."""

ACTION = "action_log_probs"
"""The current policy in some dumps; in those that hold the current policy too, the old one."""

_INNOCENT = frozenset((*_NAMES["innocent"].split(), *TRAJECTORIES))
"""Common keys of real dumps that mean what they say, though one letter off a known name."""

_CANONICAL = {name: name for name in ALIASES} | {
    alias: name for name, aliases in ALIASES.items() for alias in aliases
}
METRICS = frozenset(key for key, name in _CANONICAL.items() if name in ("entropies", "values"))
"""Names of columns that trainers also log as one number (``logged_metrics``)."""
_POLICIES = ("log_probs_new", "ratios", ACTION)
POLICY_KEYS = frozenset(key for key, name in _CANONICAL.items() if name in _POLICIES) | {ACTION}
"""The names of what every record has: the policy's log-probs, or ratios."""
_KNOWN = sorted({*_CANONICAL, ACTION, *hyperparameters.KNOWN})
_LONGEST_TYPO = max(map(len, _KNOWN)) + 1


class Fields(NamedTuple):
    """The meaning of a set of keys.

    Attributes:
        names: canonical name → as written.
        columns: (canonical, as written) of the token columns.
        hyperparameters: the hyperparameters at the record's top level, as written.
        unknown: the keys that mean nothing.
        misnamed: column of log-probs that is missing → the unknown keys that resemble it.
        trajectories: the unknown keys that may say the trajectory of each response.
    """

    names: Mapping[str, str]
    columns: tuple[tuple[str, str], ...]
    hyperparameters: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    misnamed: Mapping[str, tuple[Misnamed, ...]] = MappingProxyType({})
    trajectories: tuple[str, ...] = ()


NO_FIELDS = Fields({}, (), ())


MASKS = ("loss_mask", "response_mask")
"""Masks that stand side by side in some dumps; the first is the one that the loss used."""

TOKEN_TEXTS: tuple[str, ...] = (*_NAMES["token_texts"].split(),)
"""Keys of the texts of tokens, where they hold texts; elsewhere they hold ids, or counts."""

GROUPS = "groups"
"""The groups' ids, where it is a list of them and nothing else names the groups."""


def canonical_name(key: str) -> str | None:
    """The canonical name of a key, where that does not depend on the record's other keys."""
    return _CANONICAL.get(key)


def read_fields(record: Mapping[str, object]) -> Fields:
    """The meaning of a record's keys; a key whose value is null counts as absent.

    So does one of ``logged_metrics``.

    Raises:
        InputError: for two names of one thing, or a key that is one typing slip off a known name.
    """
    nulls: tuple[str, ...] = ()
    if None in record.values():
        nulls = tuple(key for key, value in record.items() if value is None)
    if GROUPS in record:
        ids = record[GROUPS]
        if not isinstance(ids, list) or not set(map(type, ids)) <= {str, int}:
            nulls += (GROUPS,)
    if not record.keys().isdisjoint(TOKEN_TEXTS):
        nulls += tuple(key for key in TOKEN_TEXTS if key in record and not holds_texts(record[key]))
    return _read_keys(tuple(record), nulls + logged_metrics(record))


def logged_metrics(record: Mapping[str, object]) -> tuple[str, ...]:
    """The keys of columns under which a record has one plain number, with nested log-probs.

    That is what a trainer logs of a step, such as its mean entropy: no column.
    """
    if METRICS.isdisjoint(record):
        return ()
    found = [key for key in METRICS & record.keys() if type(record[key]) in (int, float)]
    if not found:
        return ()
    policies: Any = (one for key, one in record.items() if _CANONICAL.get(key, key) in _POLICIES)
    nested = any(is_list(one) and len(one) > 0 and is_list(one[0]) for one in policies)
    return tuple(sorted(found)) if nested else ()


@lru_cache(maxsize=1024)
def _read_keys(keys: tuple[str, ...], nulls: tuple[str, ...]) -> Fields:
    names: dict[str, str] = {}
    settings, unknown = [], []
    for key in keys:
        if key in _CANONICAL:
            name = _CANONICAL[key]
            if key in nulls or (key == MASKS[1] and MASKS[0] in keys):
                continue
            if name in names:
                way = "" if name == "hyperparameters" else ", or name the one to read (--map)"
                raise InputError(f"{names[name]} and {key} both mean {name}; keep one{way}")
            names[name] = key
        elif key in hyperparameters.KNOWN:
            settings.append(key)
        elif key in TOKEN_TEXTS and key not in nulls and "tokens" not in (names.keys() | {*keys}):
            names["tokens"] = key
        elif key not in (ACTION, GROUPS):
            unknown.append(key)
    refuse_slips(unknown, "key", _meant)
    if GROUPS in keys and GROUPS not in nulls:
        names.setdefault("group_ids", GROUPS)
    if ACTION in keys and ACTION not in nulls:  # the policy; or what it was, where that is known
        if "log_probs_new" not in names and "ratios" not in names:
            names["log_probs_new"] = ACTION
        elif "log_probs_old" not in names and "probs_old" not in names:
            names["log_probs_old"] = ACTION
    for one, other in EITHER:
        if one in names and other in names:
            raise InputError(f"{names[one]} and {names[other]} have the same meaning; keep one")
    columns = tuple((name, names[name]) for name in TOKEN_COLUMNS if name in names)
    return Fields(
        names,
        columns,
        tuple(settings),
        tuple(unknown),
        misnamed(names, unknown),
        () if "trajectory_ids" in names else tuple(key for key in TRAJECTORIES if key in keys),
    )


@lru_cache(maxsize=1024)
def fields_of(keys: tuple[str, ...]) -> Fields | None:
    """The meaning of keys where no value is null; None where they contradict each other."""
    try:
        return read_fields(dict.fromkeys(keys, 0))
    except InputError:
        return None


def refuse_slips(keys: Iterable[str], what: str, meant: Callable[[str], str], at: str = "") -> None:
    """Refuses keys that are near misses of known names; the error is at the first.

    Args:
        meant: the known name that a key is meant for; "" where there is none.
        at: what precedes the keys in a path.

    Raises:
        InputError: which names all of them.
    """
    near = {key: name for key in keys if (name := meant(key))}
    if near:
        first, *others = near
        also = also_unknown(near, others)
        if not at and (column := _CANONICAL.get(near[first])):
            also = f" Then: --map {column}={first} reads it{also and f'.{also}'}"
        raise InputError(f"unknown {what}; did you mean {near[first]}?{also}", path=f"{at}{first}")


def _meant(key: str) -> str:
    """The known name that a key is one typing slip off; "" where there is none."""
    if not SHORTEST_TYPO <= len(key) <= _LONGEST_TYPO or key in _INNOCENT:
        return ""
    near = [name for name in _KNOWN if is_one_slip(key, name)]
    listed = {f"{name}s" for name in near if f"{name}s" in _KNOWN}  # a column has the plural
    return min(listed or near, default="")


_SOUND = {
    "rewards": r"(?i:rew|score|return)|\bR\b",
    "mask": "(?!)",
    "group_ids": r"\b(problem|question)_id\b",
    "advantages": "(?<![A-Za-z])adv|Adv",
    "entropies": "(?i:entrop)",
    "values": "(?i:value|critic)",
}
"""Column → names of it that are no aliases; for log-probs there is ``may_mean``."""
_WITH = {NEW: (*TWINS, "rewards", "mask", "group_ids"), "rewards": ("advantages",)}
"""Column → those whose ``--map`` a message names too, so that one command has all of them."""


def names_inside(record: Mapping[str, Any], keys: Iterable[str]) -> dict[str, str]:
    """Keys, or the paths of columns in the object or list that a key has → what each is called."""
    found: dict[str, str] = {}
    for own in keys:
        held = record[own]
        keys_held = held if isinstance(held, Mapping) else ()
        inside = {
            f"{own}.{key}": f"{own}.{key}" for key in keys_held if _CANONICAL.get(key) in _SOUND
        }
        inside |= {str(path): path.name for path in paths_inside({own: held})}
        found |= inside or {own: "" if isinstance(held, str) or holds_texts(held) else own}
    return found


def unknown_keys(column: str, names: Container[str], unknown: Mapping[str, str]) -> str:
    """The end of a message on a missing column: unknown keys, those that resemble it first.

    Args:
        column: which.
        names: the columns that are read.
        unknown: key or path → what its value is called.
    """
    near = {column: _near(column, unknown)}
    for name in _WITH.get(column, ()) if near[column] or column != NEW else ():
        found = (
            [] if name in names else [*filterfalse(near[column].__contains__, _near(name, unknown))]
        )
        if name in TWINS or (len(found) == 1 and canonical_name(unknown[found[0]]) is None):
            near[name] = found
    engine = near.get(ROLLOUT) if OLD not in names and not near.get(OLD) else None
    others = [key for key in unknown if key not in _MEANT]
    keys = list(dict.fromkeys([*chain.from_iterable(near.values()), *others]))
    if not keys:
        return ""
    mapping = " ".join(f"--map {name}={each[0]}" for name, each in near.items() if each)
    mapping += f"; --map {OLD}={engine[0]} {IF_OLD}" if engine else ""
    return f"; ignored keys: {first_names(keys)}{mapping and f' ({mapping})'}"


def _near(column: str, unknown: Mapping[str, str]) -> list[str]:
    """The keys whose names resemble a column's: aliases in an inner object before all others."""
    sound = re.compile(_SOUND.get(column, column))
    inner = {key: canonical_name(own.partition(".")[2]) for key, own in unknown.items()}
    return [key for key, name in inner.items() if name == column and column in _SOUND] or [
        key for key, own in unknown.items() if may_mean(own, column) or sound.search(own)
    ]


_MEANT = READ_ELSEWHERE | {"rank", "microbatch"}
"""Keys that are no columns and mean something elsewhere."""
