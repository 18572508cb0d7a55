"""A record's tokens with the number that colours them, for the terminal and the page alike."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain, count, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.terms import ENTROPY, KL
from grpo_cli.records.record import listed
from grpo_cli.terminal.numbers import brief, counted, shown, visible
from grpo_cli.terminal.palette import STEPS

Row = Mapping[str, Any]

COLORS: Mapping[str, str] = {
    "ratio": "ratio ρ (log scale)",
    "contribution": "contribution to the objective",
    "gradient": "gradient: ∂J/∂log π",
    "kl": "KL estimate",
    "mismatch": "mismatch: log π_old (trainer) − log π_rollout (engine)",
    "difference": "difference: log π_θ − log π_old of the token",
    "log_prob": "log prob: log π_θ of the token",
    "advantage": "advantage A",
    "surrogate": "surrogate s",
    "weight": "weight w",
    "share": "share of Σ|gradient|",
}
"""The quantities that can rank and colour tokens: their names, and formulas after a colon."""


def ranked_by(quantity: str) -> str:
    """The name of what tokens are sorted by: the size of what colours them."""
    return f"|{'log ρ' if quantity == 'ratio' else quantity.replace('_', ' ')}|"


MARKS = {"low": "▾", "high": "▴"}
"""The mark after a clipped token, by the side of the clip, for readers without colours."""

_SATURATED = 0.98


def sign(step: int) -> str:
    """A colour for readers without colours: ⁺ above the middle and ⁻ below, twice where full."""
    return ("⁺" if step > 0 else "⁻") * (abs(step) // 2)


@dataclass(frozen=True)
class Response:
    """One response's tokens: what they say, what colours them, and all their numbers.

    Attributes:
        row: the response as ``rows`` has it.
        texts: [T] each token as text; a number where it has none.
        values: [T] what colours it.
        named: whether the texts are text, not ids or positions.
        completion: the text of the response, if its tokens have none and the record has it.
    """

    row: Row
    texts: Sequence[str]
    values: F64
    named: bool
    completion: str = ""

    @property
    def title(self) -> str:
        """The response in a line."""
        parts = [f"response {self.row['response']}"]
        for name in ("group", "reward", "advantage", "contribution"):
            if self.row[name] is not None and not (name == "group" and self.row[name] == 0):
                parts.append(f"{name} {shown(self.row[name])}")
        return ", ".join([*parts, counted(len(self.texts), "token")])


@dataclass(frozen=True)
class Picture:
    """A record to be drawn.

    Attributes:
        record: as ``rows`` has it, at level token.
        responses: those to draw.
        color_by: what colours the tokens.
        scale: the value at which the colour is full: 98 % of the tokens are within it.
        range: the least and the largest value of the record.
        remark: a note on the colours, where they are not the usual ones.
        mover: what gives clipped tokens their gradient where the policy term gives none.
    """

    record: Row
    responses: Sequence[Response]
    color_by: str
    scale: float
    range: tuple[float, float]
    remark: str | None = None
    mover: str = ""

    @property
    def numbers(self) -> str:
        """What the tokens are drawn as where they have no texts."""
        if not self.responses or self.responses[0].named:
            return ""
        ids = all("token_id" in one.row["tokens"] for one in self.responses)
        return "ids" if ids else "positions"

    @property
    def clipped(self) -> str:
        """How many of the tokens drawn the clip bound, on which side, and what still moves them."""
        rows = [one.row["tokens"] for one in self.responses]
        clips = [clip for row in rows for clip in row["clip"]]
        count = {side: clips.count(side) for side in MARKS}
        bound, tokens = sum(count.values()), counted(len(clips), "token")
        if not bound:
            return f"clipped: none of {tokens}" if clips else ""
        sides = ", ".join(f"{side} {brief(many / len(clips))}" for side, many in count.items())
        line = (
            f"clipped: {bound:,} of {tokens}, clip fraction {brief(bound / len(clips))} ({sides})"
        )
        moved = sum(
            clip is not None and bool(still)
            for row in rows
            for clip, still in zip(row["clip"], row["moved"], strict=True)
        )
        if not moved:
            return line
        which = "these" if moved == bound else f"{moved:,} of these"
        return f"{line}; only {self.mover} gives {which} a gradient"

    @property
    def steps(self) -> Sequence[int]:
        """The colours that occur, and those between them and 0."""
        low, high = map(self.step, self.range)
        return range(min(low, 0), max(high, 0) + 1)

    @property
    def ends(self) -> tuple[str, str]:
        """The least value and the largest, or where the colour is full before: as on the page."""
        low, high = min(self.range[0], 0.0), max(self.range[1], 0.0)
        first = f"≤{self._brief(-self.scale)}" if low < -self.scale else self._brief(low)
        return first, f"≥{self._brief(self.scale)}" if high > self.scale else self._brief(high)

    @property
    def bounds(self) -> list[tuple[str, str]]:
        """Each sign that replaces colours, and the value from which tokens have it."""
        least = {
            sign(step): step for step in sorted(self.steps, key=abs, reverse=True) if sign(step)
        }
        edges = {mark: (step - 0.5 if step > 0 else step + 0.5) for mark, step in least.items()}
        return [
            (mark, f"{'≥' if edge > 0 else '≤'}{self._brief(self.scale * edge / STEPS)}")
            for mark, edge in sorted(edges.items(), key=lambda one: one[1])
        ]

    @property
    def heading(self) -> str:
        """What colours the tokens, and from which value to which."""
        least, most = map(self._brief, self.range)
        return f"{COLORS[self.color_by]}, {least} to {most}"

    def _brief(self, value: float) -> str:
        return brief(float(np.exp(value)) if self.color_by == "ratio" else value)

    def step(self, value: float) -> int:
        """The colour of a value: −STEPS … STEPS."""
        if not self.scale or value != value:
            return 0
        return round(max(-1.0, min(1.0, value / self.scale)) * STEPS)


def picture(
    record: Row,
    *,
    color_by: str | None,
    only: Sequence[int] | None,
    mover: str = "",
    completions: Sequence[str] = (),
) -> Picture:
    """Lays a record out; ``only`` some of its responses are drawn, on the whole record's scale.

    ``completions`` are the texts of the responses, which are shown if the tokens have none.

    By default tokens are coloured by ratio; where all ratios are 1, by gradient.
    """
    words, codes, named = words_of([row["tokens"] for row in record["responses"]])
    each = map(words.__getitem__, codes.tolist())
    texts = [[*islice(each, row["length"])] for row in record["responses"]]
    chosen = color_by or ("ratio" if _scale(record, "ratio") else "gradient")
    replies = [""] * len(texts) if named or not completions else completions
    responses = [
        Response(row, text, _values(row["tokens"], chosen), named, completion)
        for row, text, completion in zip(record["responses"], texts, replies, strict=True)
    ]
    drawn = responses if only is None else [responses[at] for at in only]
    scale, remark = _scale(record, chosen), _remark(record, chosen)
    values = np.concatenate([one.values for one in responses] or [np.zeros(0)])
    values = values[np.isfinite(values)] if np.isfinite(values).any() else np.zeros(1)
    low, high = float(values.min()), float(values.max())
    return Picture(record, drawn, chosen, scale, (low, high), remark, mover)


_TELLING = ("gradient", "contribution", "mismatch", "kl", "advantage")
"""The most informative quantities, the best first."""


def _remark(record: Row, color_by: str) -> str | None:
    """A sentence where the policy has not moved, or where no token has a colour."""
    still = not _scale(record, "ratio")
    bare = not _scale(record, color_by)
    if not (still or bare) or not any(row["length"] for row in record["responses"]):
        return None
    facts = ["every ratio is 1 (on-policy), so no clip acts"] if still else []
    if bare and color_by != "ratio":
        facts.append(f"{color_by} is 0 at every token")
    line = "no colour to show" if bare else f"tokens are coloured by {color_by}"
    others = [name for name in _TELLING if name != color_by and _scale(record, name)]
    more = f"; see also --by {', '.join(others)}"
    return f"{' and '.join(facts)}: {line}{more if others else ''}"


def _scale(record: Row, color_by: str) -> float:
    """The size at which the colour is full: 98 % of what is not 0 is within it."""
    values = [_values(row["tokens"], color_by) for row in record["responses"]]
    sizes = np.abs(np.concatenate([*values, np.zeros(0)]))
    sizes = sizes[np.isfinite(sizes) & (sizes != 0.0)]
    return float(np.quantile(sizes, _SATURATED)) if len(sizes) else 0.0


def _values(tokens: Row, color_by: str) -> F64:
    if color_by == "ratio":
        return np.asarray(tokens["log_ratio"], dtype=np.float64)
    values = tokens.get(color_by)
    if values is None:
        return np.zeros(len(tokens["position"]))
    return np.asarray(values, dtype=np.float64)


def words_of(responses: Sequence[Row]) -> tuple[list[str], NDArray[np.uint32], bool]:
    """The different tokens of responses as text, or ids or positions.

    Returns:
        These, which of them each token of all responses is, and whether they are text.
    """
    named = all("token" in one for one in responses)
    has_ids = all("token_id" in one for one in responses)
    name = "token" if named else "token_id" if has_ids else "position"
    numbers = defaultdict[Any, int](count().__next__)
    every = chain.from_iterable(listed(one[name]) for one in responses)
    codes = np.fromiter(map(numbers.__getitem__, every), np.uint32)
    if not named:
        return [*map(str, numbers)], codes, False
    decode = decoder(numbers)
    return [flowing(decode(token)) for token in numbers], codes, True


# ---- tokens as people read them -----------------------------------------------------------------

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def decoder(tokens: Iterable[str]) -> Callable[[str], str]:
    """What makes text of each token, by the marks that all of them have.

    Byte-level BPE (GPT-2's alphabet, seen by its Ġ and Ċ) is decoded to UTF-8, half a character
    as escaped bytes; SentencePiece's ▁ is a space and its ``<0x0A>`` a byte; others are text.
    """
    everything = "".join(tokens)
    if "Ġ" in everything or "Ċ" in everything:
        return _from_bytes
    return _from_pieces if "▁" in everything else str


@cache
def _alphabet() -> dict[str, int]:
    """GPT-2's character → the byte it encodes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + number): byte for number, byte in enumerate(others)
    }


@lru_cache(maxsize=1 << 16)
def _from_bytes(token: str) -> str:
    known = _alphabet()
    if any(character not in known for character in token):
        return token  # an added token, such as a chat mark, is plain text
    return bytes(known[one] for one in token).decode("utf-8", "backslashreplace")


@lru_cache(maxsize=1 << 16)
def _from_pieces(token: str) -> str:
    byte = _BYTE_TOKEN.fullmatch(token)
    if byte is None:
        return token.replace("▁", " ")
    return bytes([int(byte.group(1), 16)]).decode("utf-8", "backslashreplace")


@lru_cache(maxsize=1 << 16)
def flowing(text: str) -> str:
    """A token in running text: line ends show and still end the line; nothing is empty."""
    if not text:
        return "∅"
    if text.isprintable():
        return text
    return "".join("↵\n" if one == "\n" else visible(one) for one in text)


_MOVERS = {KL: "the KL", ENTROPY: "the entropy bonus"}


def moves_clipped(breakdown: Breakdown) -> tuple[NDArray[np.bool_], str]:
    """[N] the tokens that have a gradient and none of the policy term; and what gives it."""
    moving = {term.name: term.slope for term in breakdown.active if term.slope is not None}
    policy = moving.pop(breakdown.policy.name, None)
    still = np.ones(len(breakdown.gradient), np.bool_) if policy is None else policy == 0.0
    moved = [name for name, slope in moving.items() if slope[still].any()]
    names = [_MOVERS.get(name, name) for name in moved]
    return still & (breakdown.gradient != 0.0), " and ".join(names)
