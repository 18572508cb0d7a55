"""Nothing printed moves the cursor, and small files take little memory."""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from files import some
from forked import PEAK

# ---- no string of the data moves a cursor, is a workflow command, or ends a cell, in any output --


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


FEW = ("--kl", "none", "--aggregate", "token-mean", "--surrogate", "clip", "--epsilon", "0.2")
COMMANDS = [
    *(("eval", "-f", kind, "--level", "token") for kind in ("table", "csv", "markdown", "jsonl")),
    *(("trend", "-f", kind) for kind in ("table", "csv", "markdown", "jsonl", "json")),
    *(("check", "-f", kind) for kind in ("table", "csv", "markdown", "json")),
    ("eval", "--level", "response", "--only", "id,group"),
    ("eval", "--level", "token", "--only", "token"),
    ("eval", "-f", "json", "--level", "token"),
    ("eval", "--where", f"id=='{EVIL}'"),
    ("match", "-v", "dr", "--loss", "0.0543", *FEW, "--record", f"{EVIL}1"),
    ("match", "-v", "dr", "--loss", "0.0543", *FEW, "--json", "--record", f"{EVIL}1"),
    ("compare", "-v", "dr,grpo", "--beta", "0"),
    ("explain", "--record", f"{EVIL}1"),
    ("explain",),
    ("verify", "--record", f"{EVIL}1"),
    ("verify", "--record", f"{EVIL}1", "-f", "markdown"),
    ("verify", "--record", f"{EVIL}1", "-v", "dr", "-f", "csv"),
    ("show",),
    ("show", "--record", f"{EVIL}1", "--svg", "x.svg", "--html", "x.html"),
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


# ---- memory is bounded whatever comes, or an error names the limit and the flag that raises it ---
# The bound is 300 MB for a megabyte; here, for the time that it takes, 150 MB for half of one.


MEGABYTES = 150
TOKENS = 100_000


class Used(NamedTuple):
    """What became of a command: the most megabytes that it had, exit code, standard error."""

    megabytes: float
    code: int
    err: str


Measure = Callable[..., Used]


@pytest.fixture
def measured(quick: Path, tmp_path: Path) -> Measure:
    """Runs a command that has all imports from its start: some megabytes more than it needs."""
    peak = tmp_path / ".peak"

    def run(*words: str) -> Used:
        done = subprocess.run(
            [quick / "grpo", *words],
            env={**os.environ, PEAK: str(peak)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        return Used(int(peak.read_text()) / 1024, done.returncode, done.stderr)

    return run


@pytest.fixture
def bounded(measured: Measure) -> Callable[[list[str]], bool]:
    """Whether a command stays below that, and an error is one line."""

    def run(words: list[str]) -> bool:
        done = measured(*words)
        refused = done.code == 3 and done.err.count("\n") == 1
        return done.megabytes < MEGABYTES and (done.code == 0 or refused)

    return run


@pytest.fixture
def grown(measured: Measure) -> Callable[[list[str], str, int], float]:
    """How much more memory so many lines take than a tenth of them."""

    def run(words: list[str], line: str, count: int) -> float:
        peaks = []
        for lines in (count // 10, count):
            Path("in.jsonl").write_text("".join(line.replace("#", str(at)) for at in range(lines)))
            peaks.append(measured(*words).megabytes)
        return peaks[1] - peaks[0]

    return run


@pytest.mark.more
@pytest.mark.parametrize("command", some(["eval", "compare", "verify", "check", "convert"], 2))
def test_errors_that_are_skipped_are_not_kept(grown, command):
    """8,000 lines that cannot be read are 48 MB where every error is kept."""
    words = {"eval": ["--level", "batch"]}.get(command, [])
    assert grown([command, *words, "--on-error", "skip", "in.jsonl"], BAD_LINE, 8_000) < 20


BAD_LINE = '{"log_probs_new": [[-0.5, "x"]], "rewards": [1]}\n'


def long_response() -> None:
    """One response of many tokens, in half a megabyte."""
    row = [-0.5, -1.0] * (TOKENS // 2)
    Path("in.jsonl").write_text(json.dumps({"log_probs_new": [row], "rewards": [1.0]}) + "\n")


@pytest.mark.more
@pytest.mark.parametrize(
    "words",
    some(
        [
            ["show"],
            ["eval", "--level", "batch"],
            ["eval", "--level", "token"],
            ["eval", "--level", "token", "-f", "jsonl"],
            ["eval", "--level", "token", "-f", "csv"],
        ],
        3,
    ),
    ids=" ".join,
)
def test_a_long_response(bounded, words):
    long_response()
    assert bounded([*words, "-v", "dr", "in.jsonl"])


@pytest.mark.more
@pytest.mark.parametrize("filling", some([b"\0", b"[", b"\n", b"1,"], 2), ids=ascii)
def test_a_small_gzip_of_a_large_text(bounded, filling):
    size = 4_000_000 if filling == b"\n" else 40_000_000
    text = b'{"log_probs_new": [[' + filling * (size // len(filling))
    Path("in.jsonl.gz").write_bytes(gzip.compress(text, 3))
    assert bounded(["eval", "in.jsonl.gz"])


def test_the_errors_that_are_told_in_full_can_be_limited(grpo, dump):
    name = dump(*[f'{{"log_probs_new": {5 + at}}}' for at in range(30)])
    outcome = grpo("eval", "--on-error", "skip", "--max-errors", "3", name)
    told = [line for line in outcome.err.splitlines() if b"log_probs_new" in line]
    assert (outcome.code, len(told)) == (3, 3)
    assert b"30" in outcome.err


@pytest.mark.more
@pytest.mark.parametrize("own", ['"id": #, "step": #', '"uid": #'], ids=["id-step", "uid"])
def test_memory_is_flat_in_groups_and_steps(grown, own):
    """A group, an id and a step of its own for each of many records."""
    row = f'{{"log_probs": [-0.5, -1], "rewards": [1, 0], {own}, "group_ids": [#, -1]}}\n'
    assert grown(["eval", "-v", "dr", "-f", "csv", "in.jsonl"], row, 6_000) < 12


def test_a_group_of_many_responses_is_shown_in_part(grpo, dump, monkeypatch):
    monkeypatch.setattr("grpo_cli.commands.show.view._MOST", 100)
    many = {name: [[-1.0]] * 110 for name in ("log_probs_new", "log_probs_old")}
    out = grpo("show", "-v", "dr", dump({**many, "rewards": [1.0, 0.0] * 55})).out.decode()
    assert "\nresponse 99," in out
    assert "\nresponse 100," not in out
    assert "… 10 more responses" in out
