"""The answer of ``match``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_cli.commands.answer import Answer
from grpo_cli.commands.frames import Frames
from grpo_cli.terminal.numbers import shown


@dataclass(frozen=True)
class Convention(Answer):
    """A convention, its number on the data, and the command that evaluates it.

    Attributes:
        entry: counts distinct numbers; conventions of one entry are equal on these records.
        signature: names every choice.
        value, difference: its number, and this number minus the logged one.
        command: prints the number; of data in memory, the call of Python.
        variants: the variants that are this convention.
        also: variants that become it with other hyperparameters or a factor.
        factor, factor_meaning: what the loss is multiplied by, and why trainers do that.
        sign_flipped: whether the number has the other sign.
        same: signatures of other ways to make this convention.
        bits: the cost of its changes; each bit halves the prior probability.
        hits_expected: how many equally simple conventions give such a number by chance.
        would_need: the ``factor`` or the ``beta`` with which it would fit.
    """

    entry: int
    signature: str
    value: float
    difference: float
    command: str
    variants: Sequence[str]
    also: Sequence[str]
    factor: float
    factor_meaning: str | None
    sign_flipped: bool
    same: Sequence[str]
    bits: float
    hits_expected: float | None
    would_need: Mapping[str, float]

    @property
    def name(self) -> str:
        """The first variants that are this convention, or the one of which it is a change."""
        if not self.variants:
            return f"{self.signature.partition('|')[0]} (changed)"
        first, *also = self.variants
        more = f" and {len(also) - _ALSO} more" if len(also) > _ALSO else ""
        return f"{first} (also {', '.join(also[:_ALSO])}{more})" if also else first


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
        also: the other usual means that are the logged KL to its digits.
    """

    name: str
    logged: float
    value: float | None
    agrees: bool
    value_is: str
    logged_is: str
    also: Sequence[str] = ()

    @property
    def sentence(self) -> str:
        """Which number each is."""
        own = "unknown" if self.value is None else shown(self.value)
        own += f" ({self.value_is})" if self.value_is else ""
        yours = f"your {shown(self.logged)}"
        if self.logged_is:
            also = f", or one of {len(self.also)} other means that fit" if self.also else ""
            if len(self.also) == 1:
                also = f", or {self.also[0]}"
            return f"its {self.name} is {own}; {yours} is {self.logged_is}{also}"
        of_kl = f", and {yours} is none of its usual means" if self.name == "kl" else ""
        return f"its {self.name} is {own}{of_kl or f', not {yours}'}"


@dataclass(frozen=True)
class Matched(Frames, Answer):
    """What ``match`` returns.

    Attributes:
        target, target_of, tolerance, rtol: the logged number, its name, how far off it may be:
            by its digits, and by what sums in float32 are rounded.
        targets: name → every logged number.
        questions: how many numbers were given, and of how many records or steps.
        matches: the conventions that give all numbers, the likeliest entry first.
        ambiguous: whether several do; ``match_count`` is how many, in ``entry_count`` entries.
        fitting: how many of those that were tried do, under all their names, listed or not.
        chance_hits: conventions, of all that were tried, that hit such numbers by chance.
        by_chance, reproduced: whether the first may be a chance hit; whether it is more than that.
        tell_apart: what data would distinguish the matches.
        nearest: the nearest conventions, if none matches.
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
    targets: Mapping[str, float]
    questions: Sequence[int]
    matches: Sequence[Convention]
    ambiguous: bool
    match_count: int
    fitting: int
    entry_count: int
    chance_hits: float
    by_chance: bool
    reproduced: bool
    tell_apart: Sequence[str]
    nearest: Sequence[Convention]
    tried: int
    released: Released
    not_tried: Mapping[str, str]
    others: Sequence[OtherNumber] = ()
    loss_alone: Convention | None = None

    of_views = ("consistent_words", "other_sentences")

    @property
    def consistent(self) -> Convention | None:
        """The row that the records name, where it gives the numbers to their digits."""
        recorded = self.released.recorded
        if recorded is None or not self.matches:
            return None
        plain = [one for one in self.matches if one.factor == 1.0 and not one.sign_flipped]
        listed = any(recorded.variants[0] in one.variants for one in plain)
        alone = self.questions[0] == 1 and abs(recorded.difference) <= self.tolerance
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
            f"{self.target!r} (±{self.tolerance:.2g}) does not distinguish it from {others}"
        )

    @property
    def other_sentences(self) -> list[str]:
        """Explains the logged numbers that the first match does not give."""
        return [one.sentence for one in self.others if not one.agrees]

    @property
    def headline(self) -> str:
        """Whether the number was reproduced, and by which convention."""
        if self.consistent_words:
            return self.consistent_words
        number = f"{self.target_of} {self.target!r}"
        if self.loss_alone is not None:
            return f"{number}: {self.loss_alone.name} gives it; {'; '.join(self.other_sentences)}"
        if not self.matches:
            return f"{number}: no convention of {self.tried:,} gives it"
        match, count = self.matches[0], self.match_count
        sure = "" if self.reproduced else "by chance, "
        others = ""
        if count > 1:
            values = "are equal on this data"
            if self.entry_count > 1:
                values = f"have {self.entry_count} different values"
            others = f"; {count} conventions fit and {values}"
        found = f"{number}: {sure}{match.name} gives {match.value!r}{others}"
        return "; ".join([found, *self.other_sentences])

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


_ALSO = 2
_ENTRIES = 5
"""Values that a prompt lists; ``matches`` has all."""
