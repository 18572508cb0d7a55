"""No string of the data moves a cursor, is a workflow command, or ends a cell, in any output."""

from __future__ import annotations

import csv
import json
import subprocess
import unicodedata
from pathlib import Path

import pytest
from files import some

EVIL = '\x1b[2J\x9b31m\x7f\u202e\u2066<b>|"\n::error::\r'
NAME = "\x1b[2J\u202e it's.jsonl"


def record(step: int) -> dict:
    old = [[-0.5, -1.0], [-0.25], [-0.75, -0.5], [-1.5]]
    return {
        "id": f"{EVIL}{step}",
        "step": step,
        "log_probs_new": [[one + 0.01 * step for one in row] for row in old],
        "log_probs_old": old,
        "rewards": [1.0, 0.0, 0.5, step / 10],
        f"rewards/{EVIL}": [1.0, 0.0, 0.0, 1.0],
        "reward_functions": {EVIL: [1.0, 0.0, 0.0, 1.0]},
        "tokens": [[EVIL, "a"], ["b"], [EVIL, "c"], ["d"]],
        "group_ids": [EVIL, EVIL, "b", "b"],
        "expected": {"loss": 1.0},
        EVIL: 1,
    }


@pytest.fixture
def evil(folder) -> str:
    Path(NAME).write_text("".join(json.dumps(record(step)) + "\n" for step in range(12)))
    return NAME


def harmless(text: str) -> bool:
    return not [
        one for one in text if unicodedata.category(one) in ("Cc", "Cf") and one not in "\n\t"
    ]


COMMANDS = [
    *(("eval", "-f", kind, "--level", "token") for kind in ("table", "csv", "markdown", "jsonl")),
    *(("trend", "-f", kind) for kind in ("table", "csv", "markdown", "jsonl", "json")),
    *(("check", "-f", kind) for kind in ("table", "csv", "markdown", "json")),
    ("eval", "--level", "response", "--only", "id,group"),
    ("eval", "--level", "token", "--only", "token"),
    ("eval", "-f", "json", "--level", "token"),
    ("eval", "--where", f"id=='{EVIL}'"),
    ("match", "--loss", "0.0543", "--record", f"{EVIL}1"),
    ("match", "--loss", "0.0543", "--json", "--record", f"{EVIL}1"),
    ("compare", "-v", "dr,grpo", "--beta", "0"),
    ("explain", "--record", f"{EVIL}1"),
    ("explain",),
    ("verify",),
    ("verify", "-f", "markdown"),
    ("verify", "-v", "dr", "-f", "csv"),
    ("show",),
    ("show", "--record", f"{EVIL}1", "--svg", "x.svg", "--html", "x.html"),
    ("split", "-n", "2", "--beta", "0"),
    ("diff", NAME),
    ("report", "-o", "x.html"),
    ("trend", "--html", "x.html"),
    ("convert",),
    ("eval", "--html", NAME),
]


@pytest.mark.parametrize("words", some(COMMANDS, 11), ids=lambda words: ascii(" ".join(words)))
def test_no_control_character_is_printed(grpo, evil, words):
    outcome = grpo(*words, evil)
    assert outcome.code in (0, 1, 2, 3), outcome.err
    for text in (outcome.out, outcome.err, *(path.read_bytes() for path in Path().glob("x.*"))):
        assert harmless(text.decode()), text


@pytest.mark.parametrize("level", ["record", "token"])
def test_rows_stay_rows(grpo, evil, level):
    """What a name contains ends no cell and no row."""
    words = ("eval", "-v", "dr", "--level", level, evil)
    number = len(grpo(*words, "-f", "jsonl").out.splitlines())
    rows = list(csv.reader(grpo(*words, "-f", "csv").out.decode().splitlines(keepends=True)))
    assert {len(row) for row in rows} == {len(rows[0])}
    marked = grpo(*words, "-f", "markdown").out.decode().splitlines()
    assert (len(rows) - 1, len(marked) - 2) == (number, number)
    assert len({line.replace("\\|", "").count("|") for line in marked}) == 1
    assert "<b>" not in "".join(marked).replace("\\<", "")


def test_no_line_of_a_table_begins_with_what_a_name_says(grpo, evil, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")  # so that columns are hidden
    lines = grpo("trend", evil).out.decode().splitlines()
    assert not [line for line in lines if line.strip().startswith("::error")]


def test_a_name_makes_no_link_or_image_of_markdown(grpo, folder):
    name = "![x](http://example.org/a.png)"
    Path("link.jsonl").write_text(json.dumps({**record(1), "id": name}) + "\n")
    marked = grpo("eval", "-v", "dr", "-f", "markdown", "link.jsonl").out.decode()
    assert "![x]\\(http://example.org/a.png)" in marked


def test_a_suggested_command_names_the_file(grpo, evil):
    """As a shell takes it: it prints the number that was looked for."""
    loss = grpo("eval", "-v", "dr", "--level", "batch", "--only", "loss", evil).out.decode()
    said = grpo("match", "--loss", loss.strip(), "-v", "dr", "--batch", "input", evil).out.decode()
    assert harmless(said)
    line = said[said.index("grpo eval") :].replace("\\\n", "").split("\n")[0]
    said = subprocess.run(
        ["bash", "-c", line.replace("grpo eval", "printf '%s\n'", 1)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.startswith(NAME)


def test_a_formula_is_left_as_it_is(grpo, folder):
    """CSV is for programs: a spreadsheet has to import it as text."""
    cells = ["=1+1", "@x", "+1", "-1", "\t="]
    rows = [{**record(1), "id": one, "expected": {}} for one in cells]
    Path("a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    out = grpo("eval", "-v", "dr", "-f", "csv", "--fields", "id", "a.jsonl").out.decode()
    assert [row[0] for row in csv.reader(out.splitlines())] == ["id", *cells]
