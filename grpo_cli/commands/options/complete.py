"""Shell completion and near matches, from the same tables that the values are checked against."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches

from grpo_cli.engine.rows.fields import Level, at_other_levels
from grpo_cli.engine.rows.rows import Having, read_having
from grpo_cli.errors import Listing, UsageError, nearest
from grpo_cli.variants import VARIANTS


def variants(incomplete: str) -> list[tuple[str, str]]:
    """The variants that begin so, each with its title."""
    return [(name, row.title) for name, row in VARIANTS.items() if name.startswith(incomplete)]


def among(names: Iterable[str]) -> Callable[[str], list[str]]:
    """A completion of one of ``names``.

    (A lambda inside an annotation would not see its module's names.)
    """
    every = list(names)
    return lambda incomplete: [name for name in every if name.startswith(incomplete)]


_LISTED, _NEAREST = 12, 5
"""Names that an error lists all, and how many it lists of more."""


def known(flag: str, name: str, names: Iterable[str], advice: str = "") -> str:
    """Returns ``name`` if it is one of ``names``.

    Raises:
        Listing: for ``?``: all of them, with what they mean.
        UsageError: naming the near match, or else the ``advice``; and the nearest names, or all.
    """
    if name == "?":
        raise Listing(_meanings(names))
    names = list(names)
    if name in names:
        return name
    spelled = name.casefold().replace(" ", "_")  # as the head of a table has it
    spelled = "id" if spelled == "record" else spelled
    if len(same := [one for one in names if one.casefold() == spelled]) == 1:
        return same[0]
    near = nearest(name, names)
    hint = f"; did you mean {near}?" if near else advice
    listed = f"one of {', '.join(names)}"
    if len(names) > _LISTED:
        some = [one for one in names if spelled and spelled in one][:_NEAREST]
        some = some or get_close_matches(name, names, n=_NEAREST, cutoff=_ALIKE)
        listed = f"nearest: {', '.join(some)}; " if some and not near else ""
        listed += f"{flag.partition(' ')[0]} '?' lists all {len(names)}"
    raise UsageError(f"{flag}: unknown name {name!r}{hint} ({listed})")


def known_column(flag: str, name: str, level: Level, names: Iterable[str], advice: str = "") -> str:
    """As ``known``, of the columns of a level; the error names the levels that have another."""
    names = [*names]
    if name not in names and (hint := at_other_levels(name, level)):
        raise UsageError(f"{flag}: unknown name {name!r}{hint}")
    return known(flag, name, names, advice)


def having(tests: Sequence[str] | None, level: Level, names: Iterable[str]) -> Having | None:
    """What ``--having`` asks of rows with these columns; for ``?`` all of them, as ``known``."""
    names = [*names]
    if "?" in (tests or ()):
        known("--having", "?", names)
    return read_having(tests, level, names)


_ALIKE = 0.5
"""How much of two names must be the same for one to be listed for the other (1: all)."""


def _meanings(names: Iterable[str]) -> dict[str, str]:
    """Names → what they mean: as the mapping says, or as ``grpo help`` does."""
    if isinstance(names, Mapping):
        return dict(names)
    from grpo_cli.commands.help.words import look_up  # rich comes with it

    found = {name: look_up(name) for name in names}
    own = {one.word: one.meaning for one in found.values() if one is not None}
    return {name: own.get(name, "") for name in found}
