"""Objects as they were decoded → objects under the names that ``parse`` knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

from grpo_cli.errors import InputError, did_you_mean
from grpo_cli.records.choose.where import Missing, Path, look_up, spelled
from grpo_cli.records.fields import EITHER, MASKS, POLICY_KEYS, canonical_name
from grpo_cli.records.formats import CANONICAL, FORMATS, Format, Translated, candidates
from grpo_cli.records.formats.format import COMMON
from grpo_cli.records.formats.nested import NESTED, is_inside_list, template, unnest
from grpo_cli.records.formats.trainers import sum_tokens
from grpo_cli.records.places import Origin, first_names, paths_inside
from grpo_cli.records.record import Raw, listed
from grpo_cli.records.unread import STEP_FIELDS, TWINS, resembled

Notices = dict[str, int | None]
"""Sentences to print once, and the line that first gave rise to each."""
Mapped = tuple[tuple[str, Path], ...]
_PARTNERS = {one: other for pair in EITHER for one, other in (pair, pair[::-1])}
_WRONG = (TypeError, LookupError, ValueError, AttributeError, OverflowError)


def translated(
    raws: Sequence[Raw | InputError], insisted: str | None, mapped: Mapped, notices: Notices
) -> Iterator[Raw | InputError]:
    """The records of objects in any format; canonical ones pass as they are."""
    common, each = _read_together(raws, insisted)
    for raw in raws:
        if isinstance(raw, InputError) or type(raw.value) is not dict:
            yield raw
            continue
        if common is not None:
            _note_masks(raw, notices)
        elif insisted is None and not mapped and not worth_a_look([raw], notices):
            yield raw
            continue
        try:  # the records have no name here, so that nothing keeps those that were dropped
            yield from _translate(
                raw, insisted, mapped, notices, common, each.pop(0) if each else ()
            )
        except InputError as error:
            error.source, error.line = raw.source, raw.line
            error.path = (raw.prefix + error.path).rstrip(".")
            yield error


def _read_together(
    raws: Sequence[Raw | InputError], insisted: str | None
) -> tuple[Format | None, list[Sequence[Translated]]]:
    """The format that all objects are of, and the records of each.

    None of any where one of them cannot be read, or they are of several formats.
    """
    values: list[Any] = [
        raw.value if isinstance(raw, Raw) and not raw.arrays else None for raw in raws
    ]
    if {*map(type, values)} == {dict}:
        chosen = format_of(values[0], insisted)
        if chosen is not None:
            with suppress(InputError, *_WRONG):
                if all(format_of(value, insisted) is chosen for value in values):
                    if chosen.together is not None:
                        return chosen, [(one,) for one in chosen.together(values)]
                    return chosen, [(*chosen.read(value),) for value in values]
    return None, []


def worth_a_look(raws: Sequence[Raw], notices: Notices) -> bool:
    """Whether objects with the keys of the first may be of some format; else they are records.

    The keys say so, but for a format that one common key may be of, which looks at each object.
    """
    _note_masks(raws[0], notices)
    known = candidates(tuple(raws[0].value))
    return any(one.rank < COMMON or any(one.fits(raw.value) for raw in raws) for one in known)


def _note_masks(raw: Raw, notices: Notices) -> None:
    used, other = MASKS
    if other in raw.value and raw.value.get(used) is not None:
        notices.setdefault(f"{used} was used instead of {other}, which also exists", raw.line)


def format_of(value: dict[str, Any], insisted: str | None) -> Format | None:
    """The format of an object; None for a canonical record, or one that nothing is known of."""
    if insisted is not None:
        return None if insisted == CANONICAL else FORMATS[insisted]
    try:
        return next((one for one in candidates(tuple(value)) if one.fits(value)), None)
    except _WRONG:  # it has the keys and nothing else
        return None


def _translate(
    raw: Raw,
    insisted: str | None,
    mapped: Mapped,
    notices: Notices,
    chosen: Format | None = None,
    made: Sequence[Translated] = (),
) -> list[Raw]:
    value = raw.value
    chosen = chosen or format_of(value, insisted)
    if raw.arrays and (chosen is None or not chosen.arrays):
        value = raw.plain()
        chosen = format_of(value, insisted)
    if chosen is None and not mapped:
        return [raw]
    policy = _mapped_policy(value, mapped) if chosen in (None, NESTED) else None
    try:
        made = [*unnest(value, policy)] if policy else made
        made = made or ([Translated(value)] if chosen is None else [*chosen.read(value)])
    except _WRONG as error:
        assert chosen is not None
        raise InputError(
            f"this does not look like {chosen.title} ({type(error).__name__}: {error}); grpo "
            "formats lists the supported formats"
        ) from None
    if mapped and len(made) != 1 and made[0].unit is None:
        raise InputError(f"--map needs one record per object; this object has {len(made)}")
    found = []
    for number, one in enumerate(made):
        lines = list(one.notes)
        if chosen is not None:
            lacks = [f"{chosen.name}: {lack}" for lack in chosen.lacks]
            if chosen.rank < COMMON:  # of others only a key has another name
                lines = [f"read as {chosen.name} ({chosen.title})", *lacks, *lines]
            if len(made) == 1:
                for key in _unread_twins(tuple(value), "\n".join(one.spelled.values())):
                    one.value.setdefault(key, value[key])
        if mapped:
            _map(one, value, mapped)
        for line in lines:
            notices.setdefault(line, raw.line)
        size, origin = raw.size // len(made), Origin(one.spelled)
        again = None if raw.again is None else partial(_again, raw, insisted, mapped, number)
        place = raw.source, raw.line, raw.prefix
        found.append(Raw(one.value, *place, size, again, origin, one.arrays))
    raw.drop()
    return found


@lru_cache(maxsize=1024)
def _unread_twins(keys: tuple[str, ...], places: str) -> list[str]:
    """The keys that may be a missing column, and that a format which reads ``places`` does not."""
    return [
        key
        for key in keys
        if canonical_name(key) is None and resembled(key) in TWINS and key not in places
    ]


def _again(raw: Raw, insisted: str | None, mapped: Mapped, number: int) -> Any:
    """The value of one of the records that an object was translated to."""
    return _translate(raw, insisted, mapped, {})[number].kept


def _mapped_policy(value: dict[str, Any], mapped: Mapped) -> Path | None:
    """The path that ``--map`` gives the policy, where it leads through a list of objects."""
    with suppress(*_WRONG):
        return next(
            (path for name, path in mapped if name in POLICY_KEYS and is_inside_list(value, path)),
            None,
        )
    return None


def _map(one: Translated, value: dict[str, Any], mapped: Mapped) -> None:
    """Puts what ``--map`` names in the place of what the record has under that name."""
    record, places = dict(one.value), dict(one.spelled)
    unit = one.unit
    if unit is not None:
        value, mapped = unit.value, tuple((name, unit.path(path)) for name, path in mapped)
    for name, path in mapped:
        try:
            found = look_up(value, path)
        except Missing:
            inside = [*map(str, paths_inside(value))]
            near = did_you_mean(spelled(path), inside) or f"; this object has {first_names(inside)}"
            message = f"expected {name} here (--map), found nothing{near}"
            raise InputError(message, path=spelled(path)) from None
        replaced = {name, _PARTNERS.get(name, name)}
        if name == "token_ids" and canonical_name(str(path[-1])) == "tokens":
            replaced.add("tokens")  # they are no texts
        for key in [key for key in record if canonical_name(key) in replaced]:
            del record[key]
        if name == "rewards" and str(path[-1]).startswith("token_level_"):
            found = sum_tokens(listed(found), value, spelled(path))
        place = spelled(path) if unit is None else unit.place + template(unit.value, path)
        for key in [key for key, own in one.spelled.items() if own == place and unit is not None]:
            if canonical_name(key) is None:
                record.pop(key, None)  # as below
        record[name], places[name] = found, place
    for key in {str(path[0]) for _, path in mapped if len(path) == 1} - {*STEP_FIELDS}:
        if canonical_name(key) is None:
            record.pop(key, None)  # read under its new name: it is no unknown key
    one.value, one.spelled = record, places
