"""Ten diverging colours that people with any colour vision can distinguish: blue up, red down."""

from __future__ import annotations

Rgb = tuple[int, int, int]

STEPS = 5
"""Colours on either side of none."""

_UP = (153, 111, 69, 26, 19)
_DOWN = (223, 216, 209, 167, 124)
"""Entries of xterm's 256 colours, so that these are shown as they are at either depth.

Either side grows darker with each step; blue and red are as light as each other, or nearly.
"""
_LEVELS = (0, 95, 135, 175, 215, 255)


def number(step: int) -> int:
    """The colour of a step, −STEPS … STEPS but 0, among xterm's 256; paler the nearer to 0."""
    return (_UP if step > 0 else _DOWN)[abs(step) - 1]


def background(step: int) -> Rgb:
    """The colour of a step as red, green and blue; white for 0."""
    if not step:
        return 255, 255, 255
    cube = number(step) - 16
    return _LEVELS[cube // 36], _LEVELS[cube // 6 % 6], _LEVELS[cube % 6]


def luminance(color: Rgb) -> float:
    """How light a colour is, from 0 to 1 (the relative luminance of WCAG 2.2)."""
    parts = [one / 255 for one in color]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def ink(step: int) -> str:
    """Black or white, whichever is read better on that background."""
    light = luminance(background(step))
    return "#000000" if (light + 0.05) / 0.05 >= 1.05 / (light + 0.05) else "#ffffff"


def style(step: int) -> str:
    """The step as a style of rich's; nothing for no colour."""
    if not step:
        return ""
    red, green, blue = background(step)
    return f"{ink(step)} on #{red:02x}{green:02x}{blue:02x}"
