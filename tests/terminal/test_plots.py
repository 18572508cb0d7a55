"""Plots made of characters. What is expected was drawn by hand."""

from __future__ import annotations

import math

import pytest

from grpo_cli.terminal.plots import Series, bars, chart, small_multiples, spark


def test_a_spark_line_goes_from_the_least_to_the_greatest():
    assert spark([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert spark([0, 1, 2, 3, 4, 5, 6, 7], 8, plain=True) == "_.-:=+*#"
    assert spark([7, None, 0, math.nan], 8) == "█ ▁ "
    assert spark([5, 5, 5], 8) == "▅▅▅"
    assert spark([], 8) == spark([None], 8) == " "


def test_a_spike_survives_a_narrow_spark_line():
    assert spark([1.0] * 50 + [9.0] + [1.0] * 49, 4) == "▁▁█▁"
    assert spark([1.0] * 50 + [-9.0] + [1.0] * 49, 4) == "██▁█"


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


def test_a_gap_is_not_drawn_over():
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


def test_nothing_to_draw_is_drawn_as_nothing():
    lines = small_multiples([Series("a", []), Series("b", [None])], [], 80, height=2)
    assert lines[0].split() == ["a", "–", "b", "–"]
    assert small_multiples([], [], 80) == []


def test_hostile_names_move_no_cursor():
    drawn = chart(Series("\x1b[2J\u202e", [1.0]), ["\x1b[H"], 40)
    assert "\x1b" not in "".join(drawn)
    assert "\u202e" not in "".join(drawn)


def test_bars_go_to_the_side_of_their_sign():
    rows = [("up", 2.0), ("down", -1.0), ("none", None)]
    assert bars(rows, 20, plain=True) == [
        "up       |######  2",
        "down  ###|        -1",
        "none     |        -",
    ]
    assert bars(rows, 20)[0] == "up       │██████  2"


def test_a_label_that_is_cut_says_so():
    rows = [("a-long-name-of-a-variant", 1.0), ("dr", 2.0)]
    first, second = bars(rows, 24, plain=True)
    assert first[:12] == "a-long-na..."
    assert second[:12] == "dr          "
    assert bars(rows, 24)[0][:12] == "a-long-name…"
    assert bars(rows, 60)[0].startswith("a-long-name-of-a-variant  ")
