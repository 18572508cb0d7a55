"""Lines that fit, numbers that add up, colours: what is expected was written by hand, much of it in
``cases/texts.txt``.
"""

from __future__ import annotations

import io
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from files import expressions
from rich.text import Text

from grpo_cli import UsageError
from grpo_cli.terminal import grid, messages, numbers, paging, palette, prose
from grpo_cli.terminal.destination import destination, naming
from grpo_cli.terminal.display import Display, chosen, colored, displaying
from grpo_cli.terminal.grid import column, fitting, total_width, with_words
from grpo_cli.terminal.paging import deliver
from grpo_cli.terminal.screen import Screen, screen_of, written


def printed(shown):
    console = Screen().console()
    console.print(shown)
    return written(console)


def test_what_was_written_by_hand():
    modules = (math, grid, numbers, paging, palette, prose)
    names = {name: one for module in modules for name, one in vars(module).items()}
    path = Path(__file__).with_name("cases") / "texts.txt"
    expressions(path, names | {"printed": printed}, by_hand=True)


@pytest.mark.parametrize(
    ("color", "environment", "on_terminal", "elsewhere"),
    [
        ("auto", {}, True, False),
        ("always", {"NO_COLOR": "1"}, True, True),
        ("never", {"FORCE_COLOR": "1"}, False, False),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False, False),
        ("auto", {"NO_COLOR": ""}, True, False),
        ("auto", {"FORCE_COLOR": "1"}, True, True),
        ("auto", {"CLICOLOR_FORCE": "1", "TERM": "dumb"}, True, True),
        ("auto", {"CLICOLOR_FORCE": "0", "FORCE_COLOR": ""}, True, False),
        ("auto", {"TERM": "dumb"}, False, False),
        ("auto", {"CLICOLOR": "0"}, False, False),
        ("auto", {"CLICOLOR": "1"}, True, False),
    ],
)
def test_where_there_is_colour(monkeypatch, color, environment, on_terminal, elsewhere):
    for name in ("NO_COLOR", "CLICOLOR_FORCE", "FORCE_COLOR", "CLICOLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with displaying(Display(color)):
        assert (colored(terminal=True), colored(terminal=False)) == (on_terminal, elsewhere)
    assert chosen() == Display("auto"), "the choice holds inside the block"


def test_what_there_is_no_room_for_is_named_and_nothing_else():
    columns = [column(name, [name * 4]) for name in ("a", "b", "c")]
    assert total_width(columns) == 4 + 2 + 4 + 2 + 4
    spare = ["z", "b", "a"]

    def names(width):
        kept, hidden = fitting(columns, spare, width)
        return [one.name for one in kept], hidden

    assert names(None) == names(16) == (["a", "b", "c"], [])
    assert names(15) == names(10) == (["a", "c"], ["b"])
    assert names(9) == names(1) == (["c"], ["b", "a"])


def test_the_last_column_is_words_that_keep_44_cells():
    words = "word " * 20
    columns = [column("a", [1.0]), column("b", [2.0]), column("c", [words.strip()], show=str)]
    assert with_words(columns, ["a"], None) == (columns, [])
    for width, names, lines in ((49, ["b", "c"], 3), (50, ["a", "b", "c"], 3), (56, [*"abc"], 2)):
        kept, hidden = with_words(columns, ["a"], width)
        assert [one.name for one in kept] == names
        assert hidden == [name for name in "a" if name not in names]
        (text,) = kept[-1].cells
        assert text.plain.count("\n") + 1 == lines
        assert not kept[-1].numeric
        longest = max(map(len, text.plain.split("\n")))
        assert total_width(kept[:-1]) + 2 + longest <= width


def test_colours_are_the_terminals_own_but_for_shades(monkeypatch):
    monkeypatch.setenv("COLORTERM", "truecolor")

    def drawn(color, **options):  # rich keeps how it wrote a colour for the first time
        console = Screen(color=True).console(**options)
        console.print(Text(":smile: [b]", color))
        console.print("[b]:smile:")
        return written(console)

    assert drawn("#af0000") == "\x1b[31m:smile: [b]\x1b[0m\n[b]:smile:\n"
    assert drawn("#0000af", shades=True).startswith("\x1b[38;2;0;0;175m")
    monkeypatch.setenv("COLORTERM", "")
    assert drawn("#005fd7", shades=True).startswith("\x1b[38;5;26m")
    assert Screen(color=False).console(shades=True).color_system is None


@pytest.mark.parametrize(("given", "width"), [(None, 80), ("33", 33), ("0", 80), ("x", 80)])
def test_a_page_is_as_wide_as_columns_says(monkeypatch, given, width):
    monkeypatch.delenv("COLUMNS", raising=False)
    if given is not None:
        monkeypatch.setenv("COLUMNS", given)
    assert screen_of(io.BytesIO()) == Screen(width)


def delivered(height, beyond="page", *, text="a\nb\n", below=0):
    """The lines that a page leaves on a terminal of so many lines."""
    stream = io.BytesIO()
    deliver(text, stream, Screen(40, height=height), beyond, below=below)
    return stream.getvalue().decode().splitlines()


@pytest.mark.parametrize(
    ("height", "below", "kept"),
    [(2, 0, 1), (3, 0, 1), (4, 0, 2), (6, 0, 6), (4, 2, 1), (5, 1, 2), (6, 1, 3), (6, 2, 2)],
)
def test_a_page_that_is_higher_than_the_terminal_is_cut(height, below, kept):
    """A line is left for the prompt and one for what is missing; the first is always there."""
    rest = [] if kept > 5 else [f"… {5 - kept} more lines (use --full)"]
    found = delivered(height, "cut", text="a\nb\nc\nd\ne\n", below=below)
    assert found == [*"abcde"[:kept], *rest]


def test_a_page_is_there_at_once_and_in_the_terminals_own_colours(monkeypatch):
    """Unless shades are asked for; what comes next may be written by another."""

    class Buffered(io.BytesIO):
        seen = b""

        def flush(self):
            self.seen = self.getvalue()

    monkeypatch.setattr(paging, "screen_of", lambda stream: Screen(40, color=True))
    monkeypatch.setenv("COLORTERM", "truecolor")
    cases = (("#808000", {}, b"33"), ("#808001", {"shades": True}, b"38;2;128;128;1"))
    for style, options, codes in cases:  # a style keeps the codes that it had first

        def draw(console, screen, style=style):
            console.print("a", style=style)

        stream = Buffered()
        paging.print_page(stream, draw, "print", **options)
        assert stream.seen == b"\x1b[%bma\x1b[0m\n" % codes


def test_ctrl_c_is_the_pagers_while_it_shows(monkeypatch):
    """And it may end before it has read all."""
    seen = []

    class Shown(subprocess.Popen):
        def communicate(self, data):
            seen.extend([data, *map(signal.getsignal, watched)])
            return super().communicate(data)

    watched = (signal.SIGINT, signal.SIGPIPE)
    handlers = [signal.default_int_handler, signal.SIG_DFL]
    before = [signal.signal(*one) for one in zip(watched, handlers, strict=True)]
    monkeypatch.setattr(subprocess, "Popen", Shown)
    monkeypatch.setenv("PAGER", "cat > /dev/null")
    delivered(2)
    assert seen == [b"a\nb\n", signal.SIG_IGN, signal.SIG_IGN]
    after = [signal.signal(*one) for one in zip(watched, before, strict=True)]
    assert after == handlers


@pytest.mark.parametrize(
    ("given", "term", "there", "command"),
    [
        ("less -R | cat", "dumb", "less more", ["sh", "-c", "less -R | cat"]),
        *[(nothing, "xterm", "less more", []) for nothing in ("", " ", "cat", " cat ")],
        (None, "xterm", "less more", ["/bin/less"]),
        (None, "xterm", "more", ["/bin/more"]),
        (None, "xterm", "", []),
        (None, "dumb", "less more", []),
        (None, None, "less more", []),
    ],
)
def test_which_pager_there_is(monkeypatch, given, term, there, command):
    for name, value in (("PAGER", given), ("TERM", term)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    found = {name: f"/bin/{name}" for name in there.split()}
    monkeypatch.setattr(paging.shutil, "which", found.get)
    assert paging._pager() == command


@pytest.mark.parametrize(
    ("pager", "lines"),
    [
        ("exit 127", ["a", "b"]),
        *((f"cat >/dev/null; exit {code}", []) for code in (126, 1)),  # is its own
    ],
)
def test_without_a_pager_a_page_is_printed(monkeypatch, pager, lines):
    monkeypatch.setenv("PAGER", pager)
    assert delivered(2) == lines
    if lines:
        monkeypatch.setattr(paging, "_pager", lambda: ["/none/such"])
        assert delivered(2) == lines


def test_less_ends_at_once_where_a_page_fits_unless_told_otherwise(monkeypatch, tmp_path):
    for given, expected in ((None, "FRX"), ("S", "S")):
        monkeypatch.delenv("LESS", raising=False)
        if given is not None:
            monkeypatch.setenv("LESS", given)
        monkeypatch.setenv("PAGER", f"cat >/dev/null; printenv LESS >{tmp_path}/said")
        delivered(2)
        assert (tmp_path / "said").read_text().strip() == expected


@pytest.mark.parametrize("beyond", ["cut", "page", "print"])
@pytest.mark.parametrize(("height", "below"), [(3, 0), (4, 1), (9, 0), (None, 0), (None, 9)])
def test_a_page_that_fits_is_printed(monkeypatch, beyond, height, below):
    """With what follows it, and a line for the prompt."""
    monkeypatch.setattr(paging, "_paged", lambda text: pytest.fail("it fits"))
    assert delivered(height, beyond, below=below) == ["a", "b"]


# ---- where results go -------------------------------------------------------------------------


@pytest.mark.parametrize("known", [None, "b"])
def test_an_error_of_writing_names_its_place(known):
    error = OSError(28, "No space left on device", known)
    with pytest.raises(OSError, match="No space") as caught, naming("a"):
        raise error
    assert (caught.value.filename, caught.value is error) == (known or "a", True)


@pytest.mark.parametrize("before", [None, 0o600, 0o755])
def test_a_file_is_there_when_it_is_whole(tmp_path, before):
    place = tmp_path / "a"
    if before is not None:
        place.write_bytes(b"old")
        place.chmod(before)

    def write(text, *, fails):
        with destination(str(place)) as stream:
            stream.write(text)
            stream.flush()
            (beside,) = set(tmp_path.iterdir()) - {place}
            assert (beside.stat().st_mode & 0o777, beside.name[:3]) == (0o600, ".a.")
            assert place.exists() == (before is not None)
            if fails:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(b"half", fails=True)
    assert [one.read_bytes() for one in tmp_path.iterdir()] == [b"old"][: before is not None]
    write(b"new", fails=False)
    (tmp_path / "b").touch()
    usual = (tmp_path / "b").stat().st_mode & 0o777
    assert (place.read_bytes(), place.stat().st_mode & 0o777) == (b"new", before or usual)


def test_what_standard_output_does_not_take_is_told_while_its_name_is_known(monkeypatch):
    class Full(io.BytesIO):
        def flush(self):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("sys.stdout", SimpleNamespace(buffer=Full()))
    with pytest.raises(OSError, match="No space left") as caught, destination(None) as stream:
        stream.write(b"new")
    assert caught.value.filename == "standard output"


def test_a_file_that_cannot_be_opened_says_why(tmp_path):
    place = tmp_path / "none" / "a"
    said = f"--csv: cannot write {place}: No such file or directory"
    with pytest.raises(UsageError) as caught, destination(str(place), "--csv"):
        pass
    assert caught.value.args == (said,)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002, 0o117])
def test_a_new_file_has_the_mode_that_umask_leaves(tmp_path, mask):
    before = os.umask(mask)
    try:
        with destination(str(tmp_path / "a")) as stream:
            stream.write(b"new")
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_disk_that_is_full_at_the_end_leaves_what_was_there(tmp_path, monkeypatch):
    class Full(io.FileIO):
        def write(self, data):
            raise OSError(28, "No space left on device")

    def opened(path, mode, opener):
        return io.BufferedWriter(Full(path, "xb"))

    place = tmp_path / "a"
    place.write_bytes(b"old")
    monkeypatch.setattr("grpo_cli.terminal.destination.open", opened, raising=False)
    with pytest.raises(OSError, match="No space left"), destination(str(place)) as stream:
        stream.write(b"new")
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == {"a": b"old"}


def test_a_full_standard_error_changes_nothing(monkeypatch):
    def full(*_, **more):
        assert more == {"err": True}
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(messages.typer, "echo", full)
    monkeypatch.setattr("sys.stderr", io.StringIO())
    messages._print("grpo: x")
    assert sys.stderr is None


def test_a_terminal_has_its_size(monkeypatch):
    stream = io.BytesIO()
    stream.isatty = lambda: True
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((50, 20)))
    for variable, colour in (("NO_COLOR", False), (None, True)):
        for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE"):
            monkeypatch.delenv(name, raising=False)
        if variable:
            monkeypatch.setenv(variable, "1")
        monkeypatch.setenv("TERM", "xterm")
        assert screen_of(stream) == Screen(50, colour, 20)


def test_nothing_moves_a_cursor():
    console = Screen(color=True).console()
    console.print(Text("a\x1b[2J\u202eb\nc", "#800000"))
    assert written(console).replace("\x1b[0m", "").split("\n")[0].endswith("ma\\x1b[2J\\u202eb")


@pytest.mark.parametrize("terminal", [True, False, None])
def test_a_message_is_broken_on_a_terminal_alone(monkeypatch, terminal):
    said, stream = [], io.StringIO()
    stream.isatty = lambda: bool(terminal)
    monkeypatch.setattr("sys.stderr", None if terminal is None else stream)
    monkeypatch.setattr(messages.typer, "echo", lambda line, *, err: said.append((line, err)))
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((20, 20)))
    messages.say("aaaa bbbb cccc\x1b dddd")
    broken = "grpo: aaaa bbbb\n      cccc\\x1b dddd"
    assert said == [(broken if terminal else broken.replace("\n     ", ""), True)]
