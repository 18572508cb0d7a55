"""The answer of ``match``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_cli.commands.answer import Answer
from grpo_cli.commands.frames import Frames
from grpo_cli.commands.match.space.changes import UNBOUND
from grpo_cli.terminal.numbers import counted, shown


@dataclass(frozen=True)
class Requirement(Answer):
    """What would make a convention give a number that it does not give.

    Attributes:
        setting: "beta", "epsilon", "epsilon_low" or "epsilon_high"; "factor" or "divisor".
        value: what it would have to be.
        instead: what it is; of a factor or a divisor the number of the records that is near it.
        meaning: what that number is: "the mean length"; "" of a setting.
    """

    setting: str
    value: float
    instead: float
    meaning: str = ""

    @property
    def words(self) -> str:
        """``β 0.0213 instead of 0.04``, ``divided by 187.3 (the mean length is 187.25)``."""
        if not self.meaning:
            return f"{_SYMBOLS[self.setting]} {self.value:.6g} instead of {self.instead:g}"
        by = "×" if self.setting == "factor" else "divided by"
        return f"{by} {self.value:.4g} ({self.meaning} is {self.instead:.6g})"


_SYMBOLS = {"beta": "β", "epsilon": "ε", "epsilon_low": "ε_low", "epsilon_high": "ε_high"}


@dataclass(frozen=True)
class Convention(Answer):
    """A convention, its number on the data, and the command that evaluates it.

    Attributes:
        entry: counts distinct numbers; conventions of one entry are equal on these records.
        signature: names every choice.
        value, difference: its number, and this number minus the logged one.
        tolerance: how far off it may be: by the digits, and by what float32 leaves of its sum.
        command: prints the number; of data in memory, the call of Python.
        variants: the variants that are this convention.
        also: variants that become it with other hyperparameters or a factor.
        except_eps: of ``variants`` and ``also`` those that are it but for an eps, so that their
            numbers differ in late digits; the others are equal on any data.
        factor, factor_meaning: what the loss is multiplied by, and why trainers do that.
        sign_flipped: whether the number has the other sign.
        bits: the cost of its changes; each bit halves the prior probability.
        hits_expected: how many equally simple conventions give such a number by chance.
        needs: of one that does not give the number, what would make it do; None where that says
            nothing.
    """

    entry: int
    signature: str
    value: float
    difference: float
    tolerance: float
    command: str
    variants: Sequence[str]
    also: Sequence[str]
    except_eps: Sequence[str]
    factor: float
    factor_meaning: str | None
    sign_flipped: bool
    bits: float
    hits_expected: float | None
    needs: Requirement | None = None

    @property
    def flags(self) -> str:
        """The row, and the flags that change it."""
        flags = self.command.partition(" -v ")[2].partition(" --level ")[0]
        sides = [words for flag, words in _NO_CLIP.items() if f"{flag} " in f"{flags} "]
        return f"{flags} ({' or '.join(sides)})" if sides else flags

    @property
    def name(self) -> str:
        """A variant that it is, or the flags that make it."""
        changed = self.flags or f"{self.signature.partition('|')[0]} (changed)"
        name = self.variants[0] if self.variants else _OF_LENGTH.sub(r"\1 with \2 \3", changed)
        flipped = "(sign flipped)" if self.sign_flipped else ""
        return " ".join(filter(None, [name, self.factor_meaning, flipped]))


@dataclass(frozen=True)
class Released(Answer):
    """The unmodified rows: how many, the nearest, and the one that the records name.

    Attributes:
        changes: what changed between the releases of the recorded row and of the first match,
            where these are one row.
    """

    tried: int
    nearest: Convention | None
    recorded: Convention | None
    changes: Sequence[str]


@dataclass(frozen=True)
class OtherNumber(Answer):
    """A number that was logged with the loss and that the first match does not give.

    Attributes:
        name, logged: the number.
        value: the convention's own; None where it has none.
        agrees: whether both are equal.
        value_is, logged_is: of a KL, which mean either is: "the mean over tokens of k3"; "" for
            none that is usual.
    """

    name: str
    logged: float
    value: float | None
    agrees: bool
    value_is: str
    logged_is: str

    @property
    def sentence(self) -> str:
        """Which number each is."""
        own = "unknown" if self.value is None else shown(self.value)
        own += f" ({self.value_is})" if self.value_is else ""
        yours = f"your {shown(self.logged)}"
        if self.logged_is:
            return f"its {self.name} is {own}; {yours} is {self.logged_is}"
        of_kl = f", and {yours} is none of its usual means" if self.name == "kl" else ""
        return f"its {self.name} is {own}{of_kl or f', not {yours}'}"


@dataclass(frozen=True)
class Matched(Frames, Answer):
    """What ``match`` returns.

    Attributes:
        target, target_of, tolerance, rtol: the logged number, its name, how far off the first
            match may be: by its digits, and by what sums in float32 are rounded.
        questions: how many numbers were given, and of how many records or steps.
        matches: the conventions that give all numbers, the likeliest entry first.
        separating: what another step needs, for conventions of one entry to differ on it.
        ambiguous: whether several do; ``match_count`` is how many, in ``entry_count`` entries.
        fitting: how many of those that were tried do, listed or not; one that several rows and
            changes make counts as often, as in ``tried``.
        chance_hits: conventions, of all that were tried, that hit such numbers by chance.
        by_chance, reproduced: whether the first may be a chance hit; whether it is more than that.
        nearest: the nearest plain conventions, if none matches.
        tried: how many conventions were tried.
        released: the unmodified rows.
        not_tried: what was not tried → why.
        others: the other numbers, if the first match, or ``loss_alone``, does not give all.
        loss_alone: the convention that gives only the loss, if none gives all numbers.
    """

    target: float
    target_of: str
    tolerance: float
    rtol: float | None
    questions: Sequence[int]
    matches: Sequence[Convention]
    separating: Sequence[str]
    ambiguous: bool
    match_count: int
    fitting: int
    entry_count: int
    chance_hits: float
    by_chance: bool
    reproduced: bool
    nearest: Sequence[Convention]
    tried: int
    released: Released
    not_tried: Mapping[str, str]
    others: Sequence[OtherNumber] = ()
    loss_alone: Convention | None = None

    of_views = ("consistent_words", "other_sentences", "verdict")

    @property
    def consistent(self) -> Convention | None:
        """The row that the records name, where it gives the numbers to their digits."""
        recorded = self.released.recorded
        if recorded is None or not self.matches:
            return None
        plain = [one for one in self.matches if one.factor == 1.0 and not one.sign_flipped]
        listed = any(recorded.variants[0] in one.variants for one in plain)
        alone = self.questions[0] == 1 and abs(recorded.difference) <= recorded.tolerance
        return recorded if listed or alone else None

    @property
    def consistent_words(self) -> str:
        """That the records' row gives the number, where others come first; "" otherwise."""
        row = self.consistent
        if row is None or (self.reproduced and row.variants[0] in self.matches[0].variants):
            return ""
        count = (self.match_count if self.reproduced else self.fitting) - 1
        others = f"{count:,} other conventions" if count > 1 else "another convention"
        return (
            f"consistent with {row.variants[0]}, which the records name; {self.target_of} "
            f"{self.target!r} (±{row.tolerance:.2g}) does not distinguish it from {others}"
        )

    @property
    def other_sentences(self) -> list[str]:
        """Explains the logged numbers that the first match does not give."""
        return [one.sentence for one in self.others if not one.agrees]

    @property
    def headline(self) -> str:
        """The verdict, and what the other numbers are."""
        others = [] if self.consistent_words else self.other_sentences
        return "; ".join([self.verdict, *others])

    @property
    def verdict(self) -> str:
        """Whether the number was reproduced, and by which convention."""
        count, entries, alone = self.match_count, self.entry_count, self.loss_alone
        target = f"{self.target_of} {self.target!r}"
        more = self.questions[0] - 1 - (len(self.other_sentences) if count else 0)
        if more > 0:
            target += f" and {counted(more, 'more number')}"
        tried = f"({self.tried:,} tried, ±{self.tolerance:.2g})"
        if self.consistent_words:
            return self.consistent_words
        if not count:
            but = f"; {alone.name} gives the {self.target_of}" if alone is not None else ""
            return f"no convention gives the {target}{but} {tried}"
        if not self.reproduced:
            fit = f"{self.fitting:,} of {self.tried:,} conventions give the {target}"
            return f"no match beyond chance: {fit} (±{self.tolerance:.2g})"
        first = self.matches[0]
        if entries > 1:
            return self._ambiguous(target)
        chance = ", possibly by chance" if self.by_chance else ""
        also = ""
        if count > 1:
            give = "convention also gives" if count == 2 else "conventions also give"
            also = f"; {count - 1} other {give} it on this data"
        return f"{first.name} gives the {target}{chance}{also} (±{self.tolerance:.2g})"

    def _ambiguous(self, target: str) -> str:
        """How many numbers fit: those as near as the first may be, and those of larger sums."""
        near = [one for one in self.matches if abs(one.difference) <= self.tolerance]
        values, within = len({one.entry for one in near}), f"±{self.tolerance:.2g}"
        far, more = self.match_count - len(near), self.entry_count - values
        of = counted(far, "convention")
        fit = f"{'fits' if more == 1 else 'fit'} only within what float32 leaves of larger sums"
        beyond = f"; {more} more, from {of}, {fit}" if more else ""
        first, losses = self.matches[0].name, {"loss": "losses"}.get(self.target_of, "objectives")
        if values == 1:
            return f"ambiguous: {first} gives the {target} ({within}){beyond}"
        return (
            f"ambiguous: {values} different {losses} lie within {within} of the {target}, from "
            f"{len(near)} conventions{beyond}; the first is {first}"
        )

    def table(self) -> list[dict[str, Any]]:
        """A convention of each value that fits, the likeliest first; else the nearest."""
        entries = {one.entry: one for one in reversed([*(self.matches or self.nearest)])}
        return [
            {
                "value": one.value,
                "difference": one.difference,
                "variant": one.name,
                "command": one.command,
            }
            for one in sorted(entries.values(), key=lambda one: one.entry)[:_ENTRIES]
        ]


_NO_CLIP = {
    f"--{name.replace('_', '-')} {bound:g}": f"no {side} clip"
    for (name, bound), side in zip(UNBOUND.items(), ("lower", "upper"), strict=True)
}
"""Flags of an ε that clips nothing → what they mean."""
_OF_LENGTH = re.compile(
    r"^(\S*\bdr\S*)(?: --aggregate token-sum-norm)? -p (max_completion_length)=(\S+)$"
)
"""Dr. GRPO divided by a length as well, which its authors' code does."""


CONSTANT_LENGTH = "a constant length"
"""What a sum over tokens may be divided by, in words."""
_ENTRIES = 5
"""Values that a prompt lists; ``matches`` has all."""
