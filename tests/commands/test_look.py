"""How pages look: within the screen, words whole, columns by priority; the same rows as tables."""

from __future__ import annotations

import csv
import io
import sys

import orjson
import pytest
from rich.cells import cell_len
from rich.text import Text

from grpo_cli.terminal import paging
from grpo_cli.terminal.display import Display, displaying
from grpo_cli.terminal.grid import column
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen

SIGNATURE = "dapo|adv:group-std[ddof=1,eps=1e-08,min=0]|ratio:token|surrogate:clip[low=0.2]|v:1"


@pytest.mark.parametrize("width", [20, 30, 44, 80])
def test_signatures_break_at_their_bars_and_nothing_is_lost(width):
    text = wrapped(Text(SIGNATURE), width, 2, bars=True).plain
    lines = text.split("\n")
    assert "".join(line.strip() for line in lines) == SIGNATURE
    assert all(line.endswith(("|", ",")) for line in lines[:-1])
    assert all(line.startswith("  ") for line in lines[1:])
    assert max(map(len, lines)) <= max(width, len("surrogate:clip[low=0.2]|") + 2)


@pytest.mark.parametrize("width", [12, 25, 60])
def test_words_are_never_broken(width):
    prose = "the loss is 0: every ratio is exactly 1, and /a/long/path/of/a/file.jsonl is whole"
    lines = wrapped(Text(prose), width, 4).plain.split("\n")
    assert " ".join(line.strip() for line in lines).split() == prose.split()
    assert all(len(line) <= width or " " not in line.strip() for line in lines)
    assert all(line.startswith("    ") for line in lines[1:])


def test_styles_stay_on_their_words():
    text = wrapped(Text.assemble("aaa bbb ", ("ccc", "red"), " ddd"), 8, 2)
    (span,) = [one for one in text.spans if one.style == "red"]
    assert text.plain[span.start : span.end] == "ccc"


@pytest.mark.parametrize(
    ("name", "header"),
    [("A_>_0", "A > 0"), ("Σ_s", "Σ s"), ("clip_fraction", "clip\nfraction"), ("k", "k")],
)
def test_headings_are_words(name, header):
    assert column(name, [1.0]).header.plain == header


PAGE = "".join(f"line {number}\n" for number in range(100))


def delivered(beyond, *, full=False, pager=True, height=24, below=0):
    stream = io.BytesIO()
    with displaying(Display(full=full, pager=pager)):
        paging.deliver(PAGE, stream, Screen(80, height=height), beyond, below=below)
    return stream.getvalue().decode()


def test_an_answer_that_stands_first_is_on_the_screen():
    lines = delivered("cut").splitlines()
    assert lines[:22] == PAGE.splitlines()[:22]
    assert lines[22:] == ["… 78 more lines: --full"]
    assert len(delivered("cut", below=3).splitlines()) == 20
    assert delivered("cut", full=True, pager=False) == PAGE
    assert delivered("print") == PAGE
    assert delivered("cut", height=None) == PAGE
    assert delivered("cut", height=101) == PAGE


def test_wide_lines_take_several_of_the_screen():
    stream = io.BytesIO()
    text = "x" * 200 + "\n" + PAGE
    paging.deliver(text, stream, Screen(80, height=24), "cut")
    assert len(stream.getvalue().decode().splitlines()) == 21


def test_the_pager_gets_the_page(monkeypatch, tmp_path):
    seen = tmp_path / "seen"
    monkeypatch.setenv("PAGER", f"cat > {seen}")
    assert delivered("page") == ""
    assert seen.read_text() == PAGE
    assert delivered("page", pager=False) == PAGE
    seen.unlink()
    assert delivered("page", height=None) == PAGE
    assert delivered("page", height=200) == PAGE
    assert not seen.exists()


@pytest.mark.parametrize("pager", ["", "cat", "no-such-pager-here"])
def test_without_a_pager_the_page_is_printed(monkeypatch, pager):
    monkeypatch.setenv("PAGER", pager)
    assert delivered("page") == PAGE


def test_a_pager_that_leaves_early_is_no_error(monkeypatch):
    monkeypatch.setenv("PAGER", f"{sys.executable} -c 'pass'")
    assert delivered("page") == ""


@pytest.mark.parametrize(
    "command",
    ["variants", "variants --stage kl", "formats", "eval {} --level token", "explain {}", "help",
     "compare {} -v all", "split {} -n 1", "check {}", "explain dapo", "variants --changes"],
)  # fmt: skip
@pytest.mark.parametrize("width", ["80", "120"])
def test_pages_fit_a_pipe_s_columns(grpo, dump, monkeypatch, command, width):
    monkeypatch.setenv("COLUMNS", width)
    path = dump({"id": "a"})
    text = grpo(*command.format(path).split()).stdout
    too_long = [line for line in text.splitlines() if cell_len(line) > int(width)]
    # a signature, or a place, is one word that is never broken
    assert [line for line in too_long if "|" not in line and str(path) not in line] == []


def test_columns_that_have_no_room_are_named(grpo, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert "hidden at 80 columns: " in grpo("variants", "trl/*").stdout


@pytest.mark.parametrize(
    ("command", "column"),
    [
        ("compare {} -v grpo,dr", "loss"),
        ("split {} -n 1", "reported"),
        ("match {} --loss 0.1", "value"),
        ("check {}", "code"),
        ("check --codes", "code"),
        ("verify {}", "agrees"),
        ("formats", "name"),
        ("variants trl/*", "name"),
        ("variants --stage kl", "choice"),
    ],
)
def test_every_table_has_its_formats(grpo, dump, command, column):
    record = {"id": "a|b", "expected": {"loss": 1.0}, "rewards": [1.0, 1.0]}
    words = command.format(dump(record)).split()
    as_csv = [*csv.DictReader(io.StringIO(grpo(*words, "--format", "csv").stdout))]
    as_lines = [orjson.loads(line) for line in grpo(*words, "-f", "jsonl").stdout.splitlines()]
    as_markdown = grpo(*words, "-f", "markdown").stdout.splitlines()
    assert len(as_csv) == len(as_lines) == len(as_markdown) - 2 > 0
    for row, line in zip(as_csv, as_lines, strict=True):
        assert list(row) == list(line)
        value = line[column]
        assert row[column] == (value if isinstance(value, str) else orjson.dumps(value).decode())
    assert as_markdown[0].startswith("| ")
    assert column in as_markdown[0]


def test_a_page_that_is_no_table_says_so(grpo):
    result = grpo("explain", "dr", "--format", "csv")
    assert result.exit_code == 2
    assert result.stderr == "grpo: --format csv: this answer is no table; it has --json\n"
    assert grpo("explain", "dr", "--format", "csv", "--json").exit_code == 2


def test_choices_are_listed_by_stage_and_explained(grpo):
    listed = grpo("variants", "--stage", "kl").stdout
    assert "k3-in-reward" in listed
    assert "token-mean" not in listed
    assert "verl/" not in grpo("variants", "--stage", "kl", "k*").stdout
    for name in ("k3", "low_var_kl"):
        page = grpo("explain", name).stdout
        assert page.startswith("k3, low_var_kl: --kl, how far from the reference?\n")
        assert "grpo, grpo-unbiased-kl" in page
    wrong = grpo("variants", "--stage", "kll")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "unknown name 'kll'; did you mean kl?" in wrong.stderr
    assert grpo("variants", "--stage", "kl", "nothing*").exit_code == 2
