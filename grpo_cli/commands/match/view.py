"""Prints which conventions reproduce a logged number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import compress, groupby

from rich.console import Console
from rich.text import Text

from grpo_cli.commands.match.answer import CONSTANT_LENGTH, Convention, Matched
from grpo_cli.terminal.display import chosen
from grpo_cli.terminal.numbers import and_more, counted, shown, visible
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


def print_matches(console: Console, screen: Screen, answer: Matched) -> None:
    """Prints the answer, then each number: the rows that give it, and a command."""
    half = (answer.rtol or 0.0) * abs(answer.target)
    for line, style in _head(answer):
        console.print(wrapped(Text(line, style), screen.reading, 4 if line[:1] == " " else 2))
        mark(console, "hint")
    if not answer.matches:
        if answer.loss_alone is not None:
            _print(console, screen, [answer.loss_alone], half)
            return
        near = [x for x in answer.nearest if x.needs or _is_near(answer, x)]
        if near:
            words = "the nearest simple conventions, which do not match"
            console.print(Text(f"\n{words}", "bold"))
        for found in near if chosen().full else near[:_SHOWN]:
            _print(console, screen, [found], half)
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
        _print(console, screen, same, half)
    if rest:
        values = counted(len(rest), "less likely value" if answer.reproduced else "value")
        which = ("fits" if len(rest) == 1 else "fit") + " too" * bool(entries)
        which += "" if answer.reproduced else ", as expected by chance"
        console.print(Text(f"\n… {values} {which} (--full lists them)", "dim"))
        mark(console, "convention", sum(map(len, rest)))
    advice = [*_advice(answer)] if answer.match_count > 1 and answer.reproduced else []
    console.print("\n" * bool(advice), end="")
    for line in advice:
        console.print(wrapped(Text(line), screen.reading, 2))
        mark(console, "hint")


def _is_near(answer: Matched, one: Convention) -> bool:
    return abs(one.difference) <= _NEAR * abs(answer.target)


def _head(answer: Matched) -> Iterator[tuple[str, str]]:
    words = answer.consistent_words
    sure = answer.reproduced and answer.entry_count == 1 and not answer.by_chance
    yield answer.verdict, "bold green" if words or sure else "bold magenta"
    yield from ((line, "") for line in answer.other_sentences)
    yield from ((line, "") for line in _released(answer) if not words)
    if answer.match_count:
        yield _chance(answer), "" if answer.by_chance else "dim"
    elif answer.loss_alone is None:
        yield _MISTAKE, ""


def _advice(answer: Matched) -> Iterator[str]:
    """What decides between the matches."""
    if answer.entry_count < answer.match_count:
        has = " that has " + ", or ".join(answer.separating) if answer.separating else ""
        yield f"conventions that are equal on this data may differ on another step{has}"
    if answer.entry_count > 1:
        yield f"to decide between the {answer.entry_count} values, give {_MORE}"


def _chance(answer: Matched) -> str:
    """How probable such a match is by chance; or how many are expected, where that is likely."""
    expected = answer.matches[0].hits_expected or 0.0
    percent = -100.0 * math.expm1(-expected)
    some = f"about {float(f'{percent:.2g}'):g}%" if percent >= 0.01 else "less than 0.01%"
    by_chance = f"a match this simple happens by chance in {some} of cases"
    if expected >= 1.0:
        by_chance = "a match this simple is expected by chance"
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
    if answer.reproduced and CONSTANT_LENGTH in (answer.matches[0].factor_meaning or ""):
        yield (
            f"{1.0 / answer.matches[0].factor:g} is a constant length or the number of "
            "accumulation steps: look at the run's max_completion_length and "
            "gradient_accumulation_steps"
        )
    released = answer.released
    nearest, recorded = released.nearest, released.recorded
    agree = _agreeing(answer, flipped=False)
    flipped = [] if agree else _agreeing(answer, flipped=True)
    if flipped:
        names = and_more(flipped, _NAMES)
        yield f"unmodified variants that give it with the other sign: {names}"
    elif nearest and not agree and abs(nearest.difference) > nearest.tolerance:
        name = nearest.flags or nearest.variants[0]
        none = "no variant with these flags" if " " in name else "no unmodified variant"
        near = f"; the nearest is {name} with {shown(nearest.value)}"
        near = near if _is_near(answer, nearest) else ""
        if near or answer.matches:
            yield f"{none} gives this number{near}"
    if recorded:
        name = recorded.variants[0]
        gives_it = name in agree or abs(recorded.difference) <= recorded.tolerance
        given = "gives this number" if gives_it else f"gives {shown(recorded.value)} instead"
        yield f"the records name {name}, which {given}"
        yield from (f"changed in {change}" for change in released.changes)


def _agreeing(answer: Matched, *, flipped: bool) -> list[str]:
    found = [x for x in answer.matches if x.factor == 1.0 and x.sign_flipped is flipped]
    return [name for one in found for name in one.variants]


def _print(console: Console, screen: Screen, same: Sequence[Convention], half: float) -> None:
    """Prints conventions that are equal on the data; ``--full`` with their signatures."""
    found = same[0]
    console.print()
    head = Text.assemble((f"{found.value!r}", "bold"), f"  off by {found.difference:.3g}")
    if not found.needs and half < abs(found.difference) <= found.tolerance:
        head.append(f" (float32: ±{found.tolerance:.2g})")
    scale = found.sign_flipped, found.factor
    alike = [one for one in same if (one.sign_flipped, one.factor) == scale and one.variants]
    rows = [_row(one) for one in alike]
    if found.variants and len(rows) == 1:
        head.append(f"  {rows.pop()}", "cyan")
    elif not found.variants:
        head.append(f"  changed: {found.flags}", "cyan")
    if found.sign_flipped:
        head.append("  sign flipped", "magenta")
    if found.factor_meaning:
        head.append(f"  {found.factor_meaning}", "magenta")
    console.print(wrapped(head, screen.width, 4))
    if found.needs:
        needs = Text(f"  would match if {found.needs.words}")
        console.print(wrapped(needs, screen.width, 4))
    for one in same if chosen().full else same[:1]:
        if chosen().full:
            signature = Text(f"  {visible(one.signature)}")
            console.print(wrapped(signature, screen.edge, 4, bars=True))
        console.print(as_command(f"  {one.command}", screen.edge), style="dim")
    mark(console, "convention")
    for at, line in enumerate(rows if found.variants else ()):
        console.print(wrapped(Text(f"  {line}", "cyan"), screen.width, 4))
        mark(console, "convention", min(at, 1))
    others = [one.name for one in same[1:] if one not in alike]
    equal = [name for name in found.also if name not in found.except_eps]
    for words, names in (
        ("equal on any data:", equal),
        ("equal but for an eps:", found.except_eps),
        ("equal on this data:", others),
    ):
        if names:
            most = len(names) if chosen().full else _ALSO
            more = f"; and {len(names) - most} more (--full)" if len(names) > most else ""
            line = f"  {words} {'; '.join(names[:most])}{more}"
            console.print(wrapped(Text(line), screen.width, 4))
            mark(console, "convention", len(names) if names is others else 0)


def _row(one: Convention) -> str:
    """The variants that it is, which are counted once."""
    names = [name for name in one.variants if name not in one.except_eps]
    return ", ".join(names) + " (equal on any data)" * (len(names) > 1)
