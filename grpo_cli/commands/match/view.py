"""Prints which conventions reproduce a logged number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from grpo_cli.commands.match.answer import Convention, Matched
from grpo_cli.terminal.numbers import shown, visible
from grpo_cli.terminal.plots import ascii_only, bars
from grpo_cli.terminal.prose import as_command, wrapped
from grpo_cli.terminal.screen import Screen

_SHOWN = 12
_COINCIDENCES = 3
_NAMES = 6


def print_matches(console: Console, screen: Screen, answer: Matched) -> None:
    """Prints the answer, then each convention: its value, its rows, and its command."""
    for line, style in _head(answer):
        console.print(wrapped(Text(line, style), screen.reading, 4 if line[:1] == " " else 2))
    if not answer.matches:
        console.print(Text("\nthe nearest", "bold"))
        for found in answer.nearest:
            _print(console, screen, found)
        return
    most = _SHOWN if answer.reproduced else _COINCIDENCES
    for found in answer.matches[:most]:
        _print(console, screen, found)
    more = len(answer.matches) - most
    if more > 0:
        agree = "agree" if answer.reproduced else "that chance would give as well"
        console.print(Text(f"\n… {more} more conventions {agree} (see --json)", "dim"))


def print_distances(console: Console, screen: Screen, answer: Matched) -> None:
    """Prints the answer, then how far off each convention is, the target between them."""
    for line, style in _head(answer):
        console.print(wrapped(Text(line, style), screen.reading, 4 if line[:1] == " " else 2))
    found = [*answer.matches, *answer.nearest][:_SHOWN]
    tolerance = answer.tolerance
    console.print(Text(f"\noff by, in units of the tolerance of {tolerance:.2g}", "bold"))
    named = [(_label(one), one.difference / tolerance if tolerance else None) for one in found]
    for line in bars(named, screen.reading, plain=ascii_only()):
        console.print(Text(line))


def _label(found: Convention) -> str:
    """A convention in a few words: a variant that has it, or the flags that make it."""
    signs = ["−"] if found.sign_flipped else []
    factor = found.factor_meaning
    name = found.variants[0] if found.variants else _flags(found)
    return " ".join([*signs, name, *([factor] if factor else [])])


def _flags(found: Convention) -> str:
    """The row, and the flags that change it."""
    return found.command.partition(" -v ")[2].partition(" --level ")[0]


def _head(answer: Matched) -> Iterator[tuple[str, str]]:
    target = f"{answer.target_of} {answer.target!r}"
    numbers, _ = answer.questions
    if numbers > 1:
        target += f" and {numbers - 1} more number{'' if numbers == 2 else 's'}"
    tried = f"{answer.tried:,} conventions tried, ±{answer.tolerance:.2g}"
    count, chance = answer.match_count, answer.chance_hits
    if not count:
        yield f"nothing reproduces the {target} ({tried})", "bold magenta"
    elif not answer.reproduced:
        some = "one convention gives" if count == 1 else f"{count} conventions give"
        yield f"nothing beyond chance: {some} the {target} ({tried})", "bold magenta"
    elif count > 1:
        yield f"ambiguous: {count} conventions give the {target} ({tried})", "bold magenta"
    elif answer.by_chance:
        yield (
            f"one convention was found for the {target}, maybe by chance ({tried})",
            "bold magenta",
        )
    else:
        yield f"one convention gives the {target} ({tried})", "bold green"
    yield from ((line, "") for line in _released(answer))
    said = shown(float(f"{chance:.2g}")) if chance >= 1e-4 else "fewer than 0.0001"
    yield f"by chance {said} of all that were tried give such a number", "dim"
    if count and answer.by_chance:
        first = answer.matches[0].hits_expected
        yield (
            f"of those as plain as the first, {first:.2g}: more digits, or more numbers "
            "(--kl, --gradient-norm, --logged), would tell",
            "",
        )
    if count > 1 and answer.tell_apart:
        yield "to tell them apart, data with", "bold"
        yield from ((f"  {one}", "") for one in answer.tell_apart)


def _released(answer: Matched) -> Iterator[str]:
    """The numbers of the unmodified rows, and of the one that the records name."""
    released = answer.released
    nearest, recorded = released.nearest, released.recorded
    agree = _agreeing(answer, flipped=False)
    flipped = [] if agree else _agreeing(answer, flipped=True)
    if agree:
        yield f"as it stands: {_names(agree)}"
    elif flipped:
        yield f"as it stands, but for the sign: {_names(flipped)}"
    elif nearest:
        yield (
            f"none of {released.tried} variants gives it as it stands; "
            f"{nearest.variants[0]} comes nearest, with {shown(nearest.value)}"
        )
    if recorded:
        name = recorded.variants[0]
        given = "it" if name in agree else f"{shown(recorded.value)}: not it"
        yield f"{name}, which the records name, gives {given}"


def _agreeing(answer: Matched, *, flipped: bool) -> list[str]:
    found = [one for one in answer.matches if one.factor == 1.0]
    found = [one for one in found if one.sign_flipped is flipped]
    return [name for one in found for name in one.variants]


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return f"{', '.join(names[:_NAMES])}{more}"


def _print(console: Console, screen: Screen, found: Convention) -> None:
    value, off = found.value, found.difference
    console.print()
    head = Text.assemble((f"{value!r}", "bold"), f"  off by {off:.3g}")
    if found.variants:
        head.append(f"  {', '.join(found.variants)}", "cyan")
    else:
        head.append(f"  changed: {_flags(found)}", "cyan")
    if found.sign_flipped:
        head.append("  sign flipped", "magenta")
    if found.factor_meaning:
        head.append(f"  {found.factor_meaning}", "magenta")
    console.print(wrapped(head, screen.width, 4))
    signature = Text(f"  {visible(found.signature)}")
    console.print(wrapped(signature, screen.edge, 4, bars=True))
    for line in (*_needed(found.would_need), *_unknown(found.any_from)):
        console.print(wrapped(Text(f"  {line}", "magenta"), screen.width, 4))
    console.print(as_command(f"  {found.command}", screen.edge), style="dim")


def _unknown(edges: Mapping[str, float]) -> Iterator[str]:
    """Which ε the number leaves open: those beyond which no token is clipped."""
    if edges:
        # Rounded up: the number shown is no less than the edge.
        ways = [f"any {name} ≥ {math.ceil(edge * 1e4) / 1e4:.4f}" for name, edge in edges.items()]
        yield f"{' and '.join(ways)} gives the same: nothing is clipped there"


def _needed(needs: Mapping[str, float]) -> Iterator[str]:
    ways = []
    if needs.get("beta", -1.0) > 0:
        ways.append(f"β were {needs['beta']:.6g}")
    if "factor" in needs:
        ways.append(f"it were multiplied by {needs['factor']:.6g}")
    if ways:
        yield f"would fit if {', or '.join(ways)}"
