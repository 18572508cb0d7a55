"""Diverging colours that people with any colour vision tell apart: blue up, red down."""

from __future__ import annotations

Rgb = tuple[int, int, int]

STEPS = 8
"""Colours on either side of none."""

_WHITE: Rgb = (247, 247, 247)
_UP: Rgb = (33, 102, 172)
_DOWN: Rgb = (178, 24, 43)


def background(step: int) -> Rgb:
    """The colour of a step, −STEPS … STEPS; paler the nearer to 0.

    References:
        Brewer's RdBu (colorbrewer2.org), which is safe for the common kinds of colour blindness.
    """
    end, share = (_UP if step > 0 else _DOWN), abs(step) / STEPS
    mixed = [round(white + (full - white) * share) for white, full in zip(_WHITE, end, strict=True)]
    return mixed[0], mixed[1], mixed[2]


def ink(step: int) -> str:
    """Black or white, whichever is read better on that background."""
    red, green, blue = background(step)
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#ffffff"


def style(step: int) -> str:
    """The step as a style of rich's; nothing for no colour."""
    if not step:
        return ""
    red, green, blue = background(step)
    return f"{ink(step)} on #{red:02x}{green:02x}{blue:02x}"
