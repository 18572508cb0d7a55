"""How pages look: within the screen, words whole, columns by priority; the same rows as tables."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import orjson
import pytest
from files import each, some
from rich.cells import cell_len
from rich.text import Text

import grpo_cli
from grpo_cli.terminal.grid import column
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen, written

SAMPLES = Path(__file__).parents[2] / "samples"


@pytest.fixture
def screen(monkeypatch):
    """Has pages delivered to a terminal of this size."""

    def set_size(width: int, height: int) -> None:
        page = Screen(width, height=height)
        for module in ("terminal.paging", "commands.trend.view"):
            monkeypatch.setattr(f"grpo_cli.{module}.screen_of", lambda _: page)

    return set_size


def test_no_colour_is_one_that_a_light_or_a_dark_terminal_hides():
    """Yellow and white are hardly seen on white, blue and black on black."""
    rooms = (Path(grpo_cli.__file__).parent / room for room in ("commands", "terminal"))
    style = re.compile(r'"(?:bold |dim )?(?:yellow|white|black|blue|bright_\w+)"')
    pages = [page for room in rooms for page in room.rglob("*.py")]
    assert [page.name for page in pages if style.search(page.read_text())] == []


def test_styles_stay_on_their_words():
    text = wrapped(Text.assemble("aaa bbb ", ("ccc", "red"), " ddd"), 8, 2)
    (span,) = [one for one in text.spans if one.style == "red"]
    assert text.plain[span.start : span.end] == "ccc"


def test_lines_end_without_spaces_and_with_their_colours():
    console = Screen(color=True).console()
    console.file.write("a  \x1b[1m  \x1b[0m \nb   \nm\n")
    assert written(console) == "a\x1b[1m\x1b[0m\nb\nm\n"


def test_headings_are_words():
    names = {"A_>_0": "A > 0", "Σ_s": "Σ s", "clip_fraction": "clip\nfraction", "k": "k"}
    assert {name: column(name, [1.0]).header.plain for name in names} == names


FITTED = [
    *("variants", "variants --stage kl", "formats", "eval {} --level token", "explain {}", "help"),
    *("explain {samples}/arithmetic.jsonl", "explain {samples}/run/trainer_state.json"),
    *("compare {} -v all", "check {}", "explain dapo", "variants --changes"),
]


@pytest.mark.parametrize(("command", "width"), some([*product(FITTED, ["80", "120"])], 5))
def test_pages_fit_a_pipe_s_columns(grpo, dump, monkeypatch, command, width):
    monkeypatch.setenv("COLUMNS", width)
    path = dump({"id": "a"})
    text = grpo(*command.format(path, samples=SAMPLES).split()).stdout
    too_long = [line for line in text.splitlines() if cell_len(line) > int(width)]
    # a signature, or a place, is one word that is never broken
    assert [line for line in too_long if "|" not in line and str(path) not in line] == []


@pytest.mark.more
@pytest.mark.parametrize(
    ("flags", "variables", "colored"),
    [
        ("", {"FORCE_COLOR": "1"}, True),
        ("", {"CLICOLOR_FORCE": "1"}, True),
        ("", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ("--color always", {"NO_COLOR": "1"}, True),
        ("--color never", {"FORCE_COLOR": "1"}, False),
    ],
)
def test_one_rule_of_colour_for_every_page(grpo, dump, monkeypatch, flags, variables, colored):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    path = dump({"step": 0}, {"step": 1})
    for command in ("show {}", "trend {}", "help", "help tour", "diff {0} {0}", "explain {}"):
        said = grpo(*command.format(path).split(), *flags.split()).stdout
        assert ("\x1b[" in said) == colored, command


@pytest.fixture
def seen(monkeypatch, tmp_path, screen):
    """What the pager of a terminal of 12 lines got."""
    screen(80, 12)
    monkeypatch.setenv("PAGER", f"cat > {tmp_path / 'seen'}")
    return tmp_path / "seen"


@pytest.mark.parametrize(
    "command",
    some([
        *("show {}", "trend {} --limit 0", "eval {} --full", "help tour", "check --codes"),
        *("vectors", "explain clip/dual-capped"),
    ], 4),
)  # fmt: skip
def test_what_is_longer_than_the_screen_goes_to_one_pager(grpo, dump, seen, command):
    words = command.format(dump(*({"step": step} for step in range(20)))).split()
    page = grpo(*words, "--no-pager")
    assert not seen.exists()
    assert grpo(*words).stdout == ""
    assert seen.read_text() == page.stdout


def test_a_run_fits_a_screen_of_40_lines(grpo, screen):
    """What it comes to, its steps, and the notes; series that followed may be named alone."""
    screen(120, 40)
    result = grpo("trend", "samples/run/temperature.jsonl.gz", "-v", "trl/grpo")
    assert len(f"{result.stdout}{result.stderr}".splitlines()) < 40
    assert "(60 steps in all)" in result.stdout


def test_a_run_on_24_lines_has_its_verdict_the_finding_and_the_steps_around_it(grpo, screen):
    """Before commands and the ends of the run; --full has all of them."""
    screen(80, 24)
    run = ("trend", "samples/run/temperature.jsonl.gz", "-v", "trl/grpo")
    result = grpo(*run)
    lines = result.stdout.splitlines()
    assert len(f"{result.stdout}{result.stderr}".splitlines()) < 24
    assert lines[0] == "step 30: the log-probs of engine and trainer diverged"
    assert lines[1].startswith("  likely cause: sampling_per_token_logps is more peaked than per_")
    assert any(line.startswith("  fix: divide the logits by the sampling") for line in lines)
    assert "last good step: 29 (60 steps in all)" in lines
    assert {"29", "30", "31"} <= {line.split()[0] for line in lines if line.strip()}
    assert "mismatch.k3 4.37e-06 → 0.0866" in " ".join(result.stdout.split())
    assert re.fullmatch(r"… \d+ more lines \(use --full\)", lines[-1])
    every = grpo(*run, "--full", "--no-pager").stdout.splitlines()
    assert sum(bool(re.match(r" +\d+  ", line)) for line in every) == 60


def test_a_run_begins_with_what_it_comes_to_and_shows_the_ends_of_its_steps(grpo, dump, screen):
    screen(80, 24)
    reference = {"log_probs_ref": [[-1.0, -0.5], [-1.0]]}
    path = dump(*({"step": step} | reference for step in range(40)))
    shown = grpo("trend", str(path)).stdout.splitlines()
    assert shown[0].startswith("no fault found in ")
    first = [line.split()[0] for line in shown if line.strip()]
    bars = next(at for at, word in enumerate(first) if word.startswith("▁"))
    steps = first[bars + 1 : first.index("…")]
    assert (steps[0], steps[-1]) == ("0", "39")
    assert f"… {40 - len(steps) + steps.count('⋮')} steps not shown (--full)" in shown
    assert any(line.startswith("not computed: ") for line in shown)


def test_findings_hang_and_break_between_words(grpo):
    shown = grpo("trend", str(SAMPLES / "run" / "temperature.jsonl.gz"), "-v", "trl/grpo").stdout
    said = shown.split("\n\n")[1].splitlines()
    words = [line for line in said if SAMPLES.name not in line and "--" not in line]
    assert max(map(len, words)) <= 80
    assert (said[0], "look at" in said) == ("details", True)
    first = next(at for at, line in enumerate(said) if line.startswith("  limit  mismatch"))
    assert said[first + 1].startswith("    ")
    head = " ".join(shown.split("\n\n")[0].split())
    named = re.findall(r"(mismatch\.\w+) \S+ → \S+", head)
    assert len(named) == 1, "one line for what measures one thing"
    below = " ".join(" ".join(said).split())
    assert "shift mismatch." not in below
    (cause,) = re.findall(r"likely cause: (.*) fix:", head)
    assert f"check of the step: temperature: {cause}" not in below
    assert "check of the step: temperature: the engine's log-odds are " in below
    assert any(line.startswith("  limit  mismatch.mult is above 1.05 from") for line in said)


@pytest.mark.more
def test_a_wide_terminal_stretches_neither_prose_nor_bars(grpo, dump, monkeypatch):
    monkeypatch.setenv("COLUMNS", "240")
    path = str(dump({"expected": {"loss": 1.0}}))
    commands = ("check {}", "check --codes", "verify {}", "explain dapo")
    for command in commands:
        text = grpo(*command.format(path).split()).stdout
        assert max(cell_len(line) for line in text.splitlines() if path not in line) <= 120, command


@pytest.mark.parametrize(
    ("command", "column"),
    some(
        [
            ("compare {} -v grpo,dr", "loss"),
            ("match {} --loss 0.1 --kl none --epsilon 0.2 --batch record", "value"),
            ("check {}", "code"),
            ("check --codes", "code"),
            ("verify {} --causes 0", "agrees"),
            ("formats", "name"),
            ("variants trl/*", "name"),
            ("variants --stage kl", "choice"),
        ],
        3,
    ),
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


@pytest.mark.parametrize("height", [24, 30, 45, 200])
def test_a_table_is_cut_at_its_rows(grpo, dump, screen, height):
    path = str(dump(*[{}] * 30))
    screen(80, height)
    found = grpo("eval", path, "-v", "dr")
    assert "more lines" not in found.stdout
    lines, notes = found.stdout.splitlines(), found.stderr.splitlines()
    (head,) = (at for at, line in enumerate(lines) if line.startswith("───"))
    rows = [line for line in lines[head + 1 :] if line.strip()[:1].isdigit()]
    assert len(lines) + len(notes) < height
    more = f"grpo: … {30 - len(rows)} more records (use --full)"
    assert (more in notes) is (len(rows) < 30)
    assert len(rows) == 30 or len(lines) + len(notes) >= height - 3


LISTS = ["formats", "variants", "variants --changes", "vectors", "vectors --flags", "check --codes"]


@pytest.mark.parametrize(("width", "command"), some([*product([80, 120, 200], LISTS)], 4))
def test_lists_are_alike(grpo, monkeypatch, command, width):
    """A head, a rule, and a row for each name, whose words have a column."""
    monkeypatch.setenv("COLUMNS", str(width))
    head, rule, *rows = grpo(*command.split()).stdout.splitlines()
    words = head.rindex("  ") + 2
    assert set(rule) == {"─"}
    assert rows[0][0] != " "
    assert all(row[:words].strip() == "" or row[0] != " " for row in rows[:20])
    assert max(map(cell_len, [head, rule, *rows[:20]])) <= width


@pytest.mark.parametrize("level", some(["token", "record", "response"], 1))
def test_a_screen_of_24_lines_has_the_loss_rows_and_every_note(grpo, tmp_path, screen, level):
    """What is left out of the rows is counted once, below them."""
    rows = {"logps": [[-0.5, -0.6], [-0.7, -0.9]], "old_logps": [[-0.6, -0.6], [-0.7, -0.7]]}
    framework = {"name": "trl", "loss_type": "dapo"}
    made = (rows | {"step": at, "rewards": [1, at], "framework": framework} for at in range(60))
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, made)))
    screen(80, 24)
    found = grpo("eval", tmp_path / "a.jsonl", "--level", level, "--beta", "0")
    head, _, table = found.stdout.partition("\n\n")
    assert head.startswith("loss ")
    assert re.search(r"\nvariant +grpo \(", head)
    printed = [line for line in table.splitlines() if re.match(r" *\d+ ", line)]
    assert len(printed) >= 3 or level == "token"
    said = found.stderr.splitlines()
    used = len(found.stdout.splitlines()) + len(said)
    assert used == 23 or (used < 23 and level == "token")  # where a new table would begin
    assert max(map(len, [*found.stdout.splitlines(), *said])) <= 80
    assert "\nsignature " in head
    assert "not shown: policy, denominator, objective, ratio (see --full)" in head
    assert (table + found.stderr).count("…") == 1
    count = {"record": 60, "response": 120}.get(level)
    assert count is None or f"… {count - len(printed)} more {level}s" in said[0]
    note = "the records name trl/dapo, but grpo was evaluated: choose -v trl/dapo or -v grpo"
    assert note in " ".join(head.split())
    assert note not in found.stderr


@pytest.mark.more
def test_a_page_that_is_cut_counts_what_is_left_out(grpo, dump, monkeypatch, screen):
    path = dump(*[{}] * 5)
    monkeypatch.chdir(path.parent)  # notes with a long path would take a line more
    words = ["compare", "--variants", "all", path.name]
    whole = grpo(*words).stdout.splitlines()
    header = next(at for at, line in enumerate(whole) if line.startswith(("─", "  ─")))
    rows = whole[header + 1 : whole.index("", header)]
    variants = orjson.loads(grpo(*words, "--json").stdout)["variants"]
    screen(80, 24)
    *kept, last = grpo(*words).stdout.splitlines()
    header = next(at for at, line in enumerate(kept) if line.startswith("─"))
    assert any(line.startswith("cosine: ") for line in kept[:header])
    assert any(line.startswith("hidden: ") for line in kept[:header])
    equal = [re.search(r" \(\+(\d+) equal\)", line) for line in kept[header + 1 :]]
    shown = sum(1 + int(one.group(1) if one else 0) for one in equal)
    assert shown >= len(equal)
    assert last.startswith(f"… {len(variants) - shown} more variants")
    merged = [re.search(r" \(\+(\d+) equal\)", line) for line in rows]
    assert sum(1 + int(one.group(1) if one else 0) for one in merged) == len(variants)
    assert rows[0].split()[0] == variants[0]["variant"]


def test_the_arithmetic_of_a_token_is_one_table_on_a_narrow_screen(grpo, monkeypatch):
    """Without the two numbers of which s is one; in parts where even the others have no room."""
    heads = {}
    for width in ("60", "80", "100"):
        monkeypatch.setenv("COLUMNS", width)
        said = grpo("explain", str(SAMPLES / "arithmetic.jsonl")).stdout
        lines = said[: said.index("3  responses")].splitlines()
        heads[width] = [line.split() for line in lines if line.startswith("position ")]
        left_out = "hidden: gradient, log_ratio, clip(ρ)·A, ρ·A (see --json)"
        assert (left_out in " ".join(said.split())) == (width != "100")
    place, added = ["position", "token"], ["s", "k", "bution"]
    assert heads["60"] == [[*place, "new", "old", "ρ", "clip", "s"], [*place, "k", "bution"]]
    assert heads["80"] == [[*place, "new", "old", "ρ", "clip", *added]]
    assert heads["100"] == [[*place, "new", "old", "ρ", "ρ·A", "clip(ρ)·A", "clip", *added]]


@pytest.mark.more
@each("width", [58, 80])
def test_the_front_page_fits_a_narrow_terminal(width):
    command = [sys.executable, "-m", "grpo_cli", "--help"]
    environment = {**os.environ, "COLUMNS": str(width)}
    page = subprocess.check_output(command, text=True, env=environment).splitlines()
    commands = {line.strip() for line in page if line.startswith(" ")}
    assert max(map(cell_len, page)) <= width
    assert any(line.endswith("grpo explain FILE") for line in commands)
    assert any(line.startswith("grpo explain FILE") for line in commands) == (width < 80)
