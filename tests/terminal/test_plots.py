"""Plots and progress."""

from __future__ import annotations

import io
import threading
from math import nan  # noqa: F401 - in expressions
from pathlib import Path

import numpy as np
import pytest
from files import expressions

from grpo_cli.records.open.remote import Address, Version
from grpo_cli.terminal import plots, progress
from grpo_cli.terminal.plots import Series, braille_rows, chart, line_of, small_multiples
from grpo_cli.terminal.progress import Bar

# ---- plots made of characters. What is expected was drawn by hand --------------------------------


def dots(values, width, height):
    numbers = np.array(values, dtype=float)
    ends = (np.nanmin(numbers), np.nanmax(numbers)) if len(values) > 1 else (3.0, 3.0)
    return braille_rows(line_of(numbers, *ends), width, height)


def test_what_was_drawn_by_hand():
    path = Path(__file__).with_name("cases") / "plots.txt"
    expressions(path, vars(plots) | globals(), by_hand=True)


def test_names_move_no_cursor():
    drawn = chart(Series("\x1b[2J\u202e", [1.0]), ["\x1b[H"], 40)
    assert not {"\x1b", "\u202e"} & {*"".join(drawn)}


def test_charts_stand_side_by_side_over_one_axis():
    series = [Series(f"s{n}", [n * 0.001, float(n), None, 3.0]) for n in range(5)]
    lines = small_multiples(series, range(4), 80, height=4)
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line.startswith("s")] == ["s0", "s2", "s4"]
    places = {place for line in lines for place, mark in enumerate(line) if mark in "│└"}
    assert len(places) == 2, "every axis stands under another"


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


# ---- the progress bar: where it is wanted, what it says ------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_says_bytes_tokens_and_nodes(monkeypatch, tmp_path):
    local = tmp_path / "a.jsonl"
    local.write_bytes(b"x" * 1_000_000)
    far = Address("s3://runs/a.jsonl", Version(3_000_000, "1"))
    for nodes, said in ((0, "Mtoken/s "), (1, "on 1 node "), (3, "on 3 nodes ")):
        screen = Terminal()
        monkeypatch.setattr("sys.stderr", screen)
        monkeypatch.setattr(progress, "_PATIENCE", 0.0)
        monkeypatch.setenv("COLUMNS", "120")
        with Bar([str(local), far], wanted=True, nodes=lambda nodes=nodes: nodes) as bar:
            bar.advance(1_000_000, 500)
        assert "1.0/4.0 MB" in screen.getvalue()
        assert said in screen.getvalue()


def test_the_rate_is_of_the_time_since_it_began(monkeypatch, tmp_path):
    """Nothing is shown in the first second; 3 million tokens in 2 seconds are 1.5 in one."""
    times = iter([100.0, 101.0, 102.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", "120")
    bar = Bar([str(tmp_path / "a.jsonl.gz")], wanted=True)
    bar.advance(1_000_000, 1_000_000)
    assert not screen.getvalue()
    monkeypatch.setattr(progress.time, "monotonic", lambda: 102.0)
    with bar:
        bar.advance(1_000_000, 2_000_000)
    assert " 1.5 Mtoken/s" in screen.getvalue().replace("\x1b[0m", "")
    assert "2.0/? MB" in screen.getvalue()
    assert not bar._progress.live.is_started


def test_no_bar_where_none_is_wanted(monkeypatch, tmp_path):
    monkeypatch.setattr(progress, "_PATIENCE", -1.0)
    for screen, wanted in ((Terminal(), False), (io.StringIO(), True), (None, True)):
        monkeypatch.setattr("sys.stderr", screen)
        with Bar([str(tmp_path)], wanted=wanted) as bar:
            bar.advance(1, 1)
        assert screen is None or not screen.getvalue()


def test_a_bar_leaves_nothing_on_the_screen_and_starts_no_thread(monkeypatch):
    """A thread beside the worker processes would be forked in the middle of something."""
    monkeypatch.setattr(progress, "_PATIENCE", -1.0)
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    before = threading.active_count()
    with Bar([], wanted=True) as bar:
        bar.advance(1, 1)
        assert threading.active_count() == before
    up_and_cleared = "\x1b[1A\x1b[2K"
    assert screen.getvalue().endswith(up_and_cleared)
    assert "token/s" in screen.getvalue()
    assert "node" not in screen.getvalue()  # there is one machine


def test_every_block_is_shown_when_it_is_done(monkeypatch, tmp_path):
    """Of all bytes, an empty file's too; in colour, unless that is not wanted."""
    monkeypatch.setattr(progress, "_PATIENCE", -1.0)
    for name, value in (("TERM", "xterm"), ("COLUMNS", "120")):
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    for name, size in (("a", 400), ("b", 0), ("c", 99)):
        (tmp_path / name).write_bytes(b"x" * size)
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    with Bar([str(tmp_path / name) for name in "abc"], wanted=True) as bar:
        for block, done in ((100, 100), (150, 250)):
            bar.advance(block, 1)
            assert f"\x1b[32m{done}/499 bytes\x1b[0m" in screen.getvalue()
