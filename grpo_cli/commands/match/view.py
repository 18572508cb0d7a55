"""Prints which conventions reproduce a logged number."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, groupby

from rich.console import Console
from rich.text import Text

from grpo_cli.commands.match.answer import Convention, Matched
from grpo_cli.commands.match.space.changes import UNBOUND
from grpo_cli.terminal.display import chosen
from grpo_cli.terminal.numbers import is_round, shown, visible
from grpo_cli.terminal.prose import as_command, wrapped
from grpo_cli.terminal.screen import Screen, mark

_SHOWN = 3
_NEAR = 1e-3
_NAMES = 6
_MISTAKE = (
    "if your own code computed the number, the code may have a mistake: grpo verify looks for it "
    'in the loss of each record, or better the gradient of each token ("expected": {"loss": X, '
    '"loss_gradient": [[…]]})'
)
_MORE = "more digits or more numbers (--kl, --gradient-norm, --logged)"
_ALSO = 2
_NO_CLIP = {
    f"--{name.replace('_', '-')} {bound:g}": f"no {side} clip"
    for (name, bound), side in zip(UNBOUND.items(), ("lower", "upper"), strict=True)
}
"""Flags of an ε that clips nothing → what they mean."""
_OF_LENGTH = re.compile(
    r"^(\S*\bdr\S*)(?: --aggregate token-sum-norm)? -p (max_completion_length)=(\S+)$"
)
"""Dr. GRPO divided by a length as well, which its authors' code does."""


def print_matches(console: Console, screen: Screen, answer: Matched) -> None:
    """Prints the answer, then each number: the rows that give it, and a command."""
    for line, style in _head(answer):
        console.print(wrapped(Text(line, style), screen.reading, 4 if line[:1] == " " else 2))
        mark(console, "hint")
    if not answer.matches:
        if answer.loss_alone is not None:
            _print(console, screen, [answer.loss_alone])
            return
        near = [one for one in answer.nearest if _is_near(one, answer.target)]
        if near:
            console.print(Text("\nthe nearest simple conventions", "bold"))
        for found in near:
            _print(console, screen, [found])
        return
    entries = [list(same) for _, same in groupby(answer.matches, key=lambda one: one.entry)]
    if answer.consistent is not None and answer.consistent_words:
        (name, *_) = answer.consistent.variants
        entries.sort(key=lambda same: not any(name in one.variants for one in same))
    rest = []
    if not chosen().full:
        plain = {*_agreeing(answer, flipped=False)}  # where chance gives some, no other is worth it
        fits = [answer.reproduced or any(plain & {*one.variants} for one in x) for x in entries]
        likely = [*compress(entries, fits)]
        rest = [same for same in entries if same not in likely[:_SHOWN]]
        entries = likely[:_SHOWN]
    for same in entries:
        _print(console, screen, same)
    if rest:
        less, more = ("less likely ", " too") if entries else ("", " by chance")
        fit = "value fits" if len(rest) == 1 else "values fit"
        console.print(Text(f"\n… {len(rest)} {less}{fit}{more} (--full)", "dim"))
        mark(console, "convention", sum(map(len, rest)))
    advice = [*_advice(answer)] if answer.match_count > 1 and answer.reproduced else []
    console.print("\n" * bool(advice), end="")
    for line in advice:
        console.print(wrapped(Text(line), screen.reading, 2))
        mark(console, "hint")


def _is_near(found: Convention, target: float) -> bool:
    """Whether a convention nearly gives the number, or would with one change."""
    return any(_needed(found.would_need)) or abs(found.difference) <= _NEAR * abs(target)


def _label(found: Convention) -> str:
    """A convention in short: a variant that has it, or the flags that make it."""
    signs = ["−"] if found.sign_flipped else []
    factor = found.factor_meaning
    name = found.variants[0] if found.variants else _OF_LENGTH.sub(r"\1 with \2 \3", _flags(found))
    return " ".join([*signs, name, *([factor] if factor else [])])


def _flags(found: Convention) -> str:
    """The row, and the flags that change it."""
    flags = found.command.partition(" -v ")[2].partition(" --level ")[0]
    sides = [words for flag, words in _NO_CLIP.items() if f"{flag} " in f"{flags} "]
    return f"{flags} ({' or '.join(sides)})" if sides else flags


def _head(answer: Matched) -> Iterator[tuple[str, str]]:
    count, entries = answer.match_count, answer.entry_count
    target = f"{answer.target_of} {answer.target!r}"
    numbers, _ = answer.questions
    numbers -= len(answer.other_sentences) if count else 0
    if numbers > 1:
        target += f" and {numbers - 1} more number{'' if numbers == 2 else 's'}"
    tried = f"{answer.tried:,} tried, ±{answer.tolerance:.2g}"
    words = answer.consistent_words
    fit = f"{answer.fitting:,} of {answer.tried:,} conventions give the {target}"
    by_chance = f"no match beyond chance: {fit} (±{answer.tolerance:.2g})"
    if not count:
        loss = answer.loss_alone
        but = f"; {_label(loss)} gives the {answer.target_of}" if loss is not None else ""
        yield f"no convention gives the {target}{but} ({tried})", "bold magenta"
    elif words:
        yield words, "bold green"
    elif not answer.reproduced:
        yield by_chance, "bold magenta"
    else:
        first, style = f"{_label(answer.matches[0])} gives the {target}", "bold green"
        names = len(answer.matches[0].variants)
        also = f"; {names} names are this formula" if names > 1 else ""
        if count > 1:
            others = (
                "1 other formula also gives"
                if count == 2
                else f"{count - 1} other formulas also give"
            )
            also += f"; {others} it on this data"
        if entries > 1:
            first = f"ambiguous: {count} conventions fit the {target}"
            also = f", with {entries} different values; the first is {_label(answer.matches[0])}"
            style = "bold magenta"
        if entries == 1 and answer.by_chance:
            first, style = f"{first}, possibly by chance", "bold magenta"
        yield f"{first}{also} ({tried})", style
    yield from ((line, "") for line in answer.other_sentences)
    yield from ((line, "") for line in _released(answer) if not words)
    if count:
        yield _chance(answer), "" if answer.by_chance else "dim"
    elif answer.loss_alone is None:
        yield _MISTAKE, ""


def _advice(answer: Matched) -> Iterator[str]:
    """What decides between the matches."""
    if answer.tell_apart:
        yield f"to distinguish them, use data with {'; '.join(answer.tell_apart)}"
    if answer.entry_count > 1:
        yield f"to decide between the {answer.entry_count} values, give {_MORE}"


def _chance(answer: Matched) -> str:
    """How probable such a match is by chance; or how many are expected, where that is likely."""
    expected = answer.matches[0].hits_expected or 0.0
    percent = -100.0 * math.expm1(-expected)
    some = f"about {float(f'{percent:.2g}'):g}%" if percent >= 0.01 else "less than 0.01%"
    by_chance = f"a match this simple happens by chance in {some} of cases"
    if expected >= 1.0:
        number = shown(float(f"{expected:.2g}"))
        by_chance = f"about {number} matches this simple are expected by chance"
    if not answer.by_chance:
        return by_chance
    digits = (answer.rtol or 0.0) * abs(answer.target)
    if 2.0 * digits >= answer.tolerance:
        return f"{by_chance}: give {_MORE}"
    return (
        f"{by_chance}, since float32 leaves ±{answer.tolerance:.2g} of a sum of terms as large as "
        "these: give more numbers (--kl, --gradient-norm, --logged)"
    )


def _released(answer: Matched) -> Iterator[str]:
    """The numbers of the unmodified rows, and of the one that the records name."""
    released = answer.released
    nearest, recorded = released.nearest, released.recorded
    agree = _agreeing(answer, flipped=False)
    flipped = [] if agree else _agreeing(answer, flipped=True)
    if flipped:
        more = f" and {len(flipped) - _NAMES} more" if len(flipped) > _NAMES else ""
        names = ", ".join(flipped[:_NAMES])
        yield f"unmodified variants that give it with the other sign: {names}{more}"
    elif nearest and not agree and abs(nearest.difference) > answer.tolerance:
        name = _flags(nearest) or nearest.variants[0]
        none = "no variant with these flags" if " " in name else "no unmodified variant"
        near = f"; the nearest is {name} with {shown(nearest.value)}"
        near = near if _is_near(nearest, answer.target) else ""
        if near or answer.matches:
            yield f"{none} gives this number{near}"
    if recorded:
        name = recorded.variants[0]
        gives_it = name in agree or abs(recorded.difference) <= answer.tolerance
        given = "gives this number" if gives_it else f"gives {shown(recorded.value)} instead"
        yield f"the records name {name}, which {given}"
        yield from (f"changed in {change}" for change in released.changes)


def _agreeing(answer: Matched, *, flipped: bool) -> list[str]:
    found = [x for x in answer.matches if x.factor == 1.0 and x.sign_flipped is flipped]
    return [name for one in found for name in one.variants]


def _print(console: Console, screen: Screen, same: Sequence[Convention]) -> None:
    """Prints conventions that are equal on the data; ``--full`` with their signatures."""
    found = same[0]
    console.print()
    head = Text.assemble((f"{found.value!r}", "bold"), f"  off by {found.difference:.3g}")
    scale = found.sign_flipped, found.factor
    alike = [one for one in same if (one.sign_flipped, one.factor) == scale and one.variants]
    once = " (equal on any data)"  # of several variants, which are counted once
    rows = [", ".join(one.variants) + once * (len(one.variants) > 1) for one in alike]
    if found.variants and len(rows) == 1:
        head.append(f"  {rows.pop()}", "cyan")
    elif not found.variants:
        head.append(f"  changed: {_flags(found)}", "cyan")
    if found.sign_flipped:
        head.append("  sign flipped", "magenta")
    if found.factor_meaning:
        head.append(f"  {found.factor_meaning}", "magenta")
    console.print(wrapped(head, screen.width, 4))
    for one in same if chosen().full else same[:1]:
        if chosen().full:
            signature = Text(f"  {visible(one.signature)}")
            console.print(wrapped(signature, screen.edge, 4, bars=True))
        console.print(as_command(f"  {one.command}", screen.edge), style="dim")
    for line in _needed(found.would_need):
        console.print(wrapped(Text(f"  {line}", "magenta"), screen.width, 4))
    mark(console, "convention")
    for at, line in enumerate(rows if found.variants else ()):
        console.print(wrapped(Text(f"  {line}", "cyan"), screen.width, 4))
        mark(console, "convention", min(at, 1))
    others = [_label(one) for one in same[1:] if one not in alike]
    for words, names in (("equal on any data:", found.also), ("equal on this data:", others)):
        if names:
            most = len(names) if chosen().full else _ALSO
            more = f"; and {len(names) - most} more (--full)" if len(names) > most else ""
            line = f"  {words} {'; '.join(names[:most])}{more}"
            console.print(wrapped(Text(line), screen.width, 4))
            mark(console, "convention", len(names) if names is others else 0)


def _needed(needs: Mapping[str, float]) -> Iterator[str]:
    ways = []
    if needs.get("beta", -1.0) > 0:
        ways.append(f"with β = {needs['beta']:.6g}")
    factor = needs.get("factor", 1.0)  # a number of more digits gives any other
    if abs(factor - 1.0) > _NEAR and (is_round(factor) or is_round(1.0 / factor)):
        ways.append(f"multiplied by {needs['factor']:.6g}")
    if ways:
        yield f"{', or '.join(ways)}, this gives your number"
