"""Plots made of characters. What is expected was drawn by hand."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest

from grpo_cli.terminal.plots import (
    Series,
    ascii_only,
    ascii_rows,
    braille_rows,
    chart,
    line_of,
    small_multiples,
    spark,
)


def test_a_spark_line_goes_from_the_least_to_the_greatest():
    assert spark([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert spark([0, 1, 2, 3, 4, 5, 6, 7], 8, plain=True) == "_.-:=+*#"
    assert spark([7, None, 0, math.nan], 8) == "█ ▁ "
    assert spark([5, 5, 5], 8) == "▅▅▅"
    assert spark([], 8) == spark([None], 8) == " "


def test_a_spike_survives_a_narrow_spark_line():
    assert spark([1.0] * 50 + [9.0] + [1.0] * 49, 4) == "▁▁█▁"
    assert spark([1.0] * 50 + [-9.0] + [1.0] * 49, 4) == "██▁█"
    assert spark([5.0, 5.0, 0.0, 9.0, 5.0, 5.0], 2) == "▁█"


def test_a_chart_has_its_ends_its_mark_and_its_labels():
    drawn = chart(Series("kl", [0.0, 1.0, 2.0], (1,)), ["a", "b", "c"], 12, height=3, plain=True)
    assert drawn == [
        "kl         2",
        "2 |      ***",
        "  |   ****  ",
        "0 |****     ",
        "  +----^----",
        "   a   b   c",
    ]


@pytest.mark.parametrize(
    ("values", "width", "height", "drawn"),
    [
        ([0, 1], 4, 1, ["⣀⡤⠖⠋"]),  # rows of dots 3 | 2 3, 2 | 1 2, 1 | 0 1, 0
        ([2, 4], 1, 2, ["⢸", "⣸"]),
        ([4, 2], 1, 2, ["⢹", "⢸"]),
        ([5, 5, math.nan], 2, 1, ["⠤⠄"]),
        ([3], 2, 1, ["⠄ "]),
        ([math.nan], 2, 1, ["  "]),
    ],
)
def test_dots(values, width, height, drawn):
    numbers = np.array(values, dtype=float)
    ends = (np.nanmin(numbers), np.nanmax(numbers)) if len(values) > 1 else (3.0, 3.0)
    assert braille_rows(line_of(numbers, *ends), width, height) == drawn


def test_points_of_one_column_are_joined():
    assert ascii_rows(line_of(np.array([0.0, 1.0]), 0.0, 1.0), 1, 3) == ["*", "*", "*"]
    rows = ascii_rows(line_of(np.array([0.0, 0.0, 0.0, 1.0]), 0.0, 1.0), 2, 3)
    assert rows == [" *", " *", "**"]


def test_a_chart_that_has_no_room():
    drawn = chart(Series("kl", [0.5, 0.25]), [], 3, height=2, plain=True)
    assert drawn == ["k 0", " 0.5 |*** ", "0.25 |  **", "     +----", " " * 10]
    assert chart(Series("kl", [None]), [], 12)[1:] == [" │" + " " * 10] * 5 + [
        " └" + "─" * 10,
        " " * 12,
    ]


@pytest.mark.parametrize(
    ("x", "room", "line"),
    [
        (["ab"], 8, "ab      "),
        (["ab", "cd"], 8, "ab    cd"),
        (["abc", "-", "xyz"], 6, "abc   "),
        (["abc", "-", "xyz"], 7, "abc xyz"),
        (["abcdefgh"], 4, "abcd"),
        (["aa", "b", "cc"], 12, "aa    b   cc"),
        (["aa", "mmmm", "c"], 13, "aa  mmmm    c"),
        (list("abcd"), 13, "a       c   d"),
        (["aaa", "m", "z"], 9, "aaa     z"),
        (["aaa", "m", "z"], 11, "aaa  m    z"),
        (["a", "m", "zzzz"], 11, "a      zzzz"),
        (["a", "m", "zzzz"], 13, "a     m  zzzz"),
    ],
)
def test_labels_under_an_axis_keep_two_spaces_between_them(x, room, line):
    drawn = chart(Series("a", [0.0] * len(x)), x, room + 3, plain=True)
    assert drawn[-1] == "   " + line


def test_a_gap_is_not_drawn_over():
    """One value has its label in the middle; names move no cursor."""
    drawn = chart(Series("a", [5.0, 5.0]), "xy", 9, height=4, plain=True)
    assert [line.partition("|")[0] for line in drawn[1:5]] == ["  ", "  ", "5 ", "  "]
    drawn = chart(Series("\x1b[2J\u202e", [1.0]), ["\x1b[H"], 40)
    assert not {"\x1b", "\u202e"} & {*"".join(drawn)}
    drawn = chart(Series("kl", [0.0, None, 2.0, 2.0]), range(4), 12, height=3, plain=True)
    assert [line[3:] for line in drawn[1:4]] == ["     ****", "         ", "*        "]


@pytest.mark.parametrize("plain", [False, True])
def test_charts_stand_side_by_side_over_one_axis(plain):
    series = [Series(f"s{n}", [n * 0.001, float(n), None, 3.0]) for n in range(5)]
    lines = small_multiples(series, range(4), 80, height=4, plain=plain)
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line.startswith("s")] == ["s0", "s2", "s4"]
    places = {place for line in lines for place, mark in enumerate(line) if mark in "|│+└"}
    assert len(places) == 2, "every axis stands under another"
    assert "".join(lines).isascii() is plain


@pytest.mark.parametrize(
    ("count", "width", "ends"),
    [(1, 40, [40]), (2, 67, [67]), (2, 68, [33, 68]), (2, 70, [34, 70]), (2, 71, [34, 70])],
)
def test_as_many_charts_side_by_side_as_have_32_columns_each(count, width, ends):
    lines = small_multiples([Series("s", [0.0, 7.0])] * count, "ab", width)
    assert [at + 1 for at, letter in enumerate(lines[0]) if letter == "7"] == ends
    below = count // len(ends)
    assert len(lines) == below * (1 + 5 + 1 + 1) + below - 1
    assert "⣀" in "".join(lines)
    assert lines[-1].split() == ["a", "b"] * len(ends)


def test_nothing_to_draw_is_drawn_as_nothing():
    lines = small_multiples([Series("a", []), Series("b", [None])], [], 80, height=2)
    assert lines[0].split() == ["a", "–", "b", "–"]
    assert lines[1:] == ["".join((" │", " " * 37, "  ", " │"))] * 2 + [
        "  ".join([" └" + "─" * 37] * 2)
    ] + [""]
    assert small_multiples([], [], 80) == []


@pytest.mark.parametrize(
    ("encoding", "term", "plain"),
    [
        ("utf-8", "xterm", False),
        ("UTF-8", "dumb", True),
        ("ascii", "xterm", True),
        (None, "", False),
    ],
)
def test_where_letters_beyond_ascii_are_known_to_be_shown(monkeypatch, encoding, term, plain):
    class Output(io.StringIO):
        pass

    Output.encoding = encoding
    monkeypatch.setattr("sys.stdout", Output())
    monkeypatch.setenv("TERM", term)
    assert ascii_only() is plain
