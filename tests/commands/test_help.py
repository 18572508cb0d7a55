"""`grpo help`: pages, plain in a pipe and laid out on a terminal, and the flags of a command."""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import fields
from itertools import pairwise, product
from pathlib import Path

import pytest
import zstandard
from command import COMMANDS, run
from files import some
from formats.dumps import of as dump_of

from grpo_cli import evaluate
from grpo_cli.commands.check.rule import codes
from grpo_cli.commands.explain.names import is_choice
from grpo_cli.commands.help.command import flag_pages, flags, look_up_flag
from grpo_cli.commands.help.words import look_up
from grpo_cli.commands.trend.metrics import METRICS, legend
from grpo_cli.commands.trend.onsets import KINDS
from grpo_cli.commands.trend.questions.at import FACTS
from grpo_cli.commands.trend.questions.parts import PartChange
from grpo_cli.engine.rows.fields import FIELDS
from grpo_cli.variants import VARIANTS

ROOT = Path(__file__).parents[2]
WORDS = (ROOT / "grpo_cli/commands/help/words.md").read_text("utf-8")
PAGES = {one.stem: one.read_text("utf-8") for one in ROOT.glob("grpo_cli/commands/help/pages/*.md")}


@pytest.mark.more
@pytest.mark.parametrize(
    ("name", "width"), some([*product(["output", "tour", "runs"], [40, 60, 100])], 3)
)
def test_a_page_is_laid_out_on_a_terminal(grpo, name, width):
    """Prose is wrapped, marks are gone, and an example is a command still."""
    laid_out = grpo("help", name, "--color", "always", "--full", COLUMNS=str(width)).stdout
    text = re.sub(r"\x1b\[[0-9;]*m", "", laid_out)
    assert not re.search(r"```|<!--|\]\(", text)
    joined = " ".join(re.sub(r" \\\n +", " ", text).split())
    examples = re.findall(r"^\$ (grpo .*)$", PAGES[name], re.MULTILINE)
    links = re.findall(r"\]\((\w+)\.md\)", PAGES[name])
    assert examples or links
    for command in examples:
        assert f"$ {' '.join(command.split())}" in joined
    for page in links:
        assert f"(grpo help {page})" in joined


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_is_printed(grpo, name):
    result = grpo("help", name)
    assert result.exit_code == 0
    page = re.sub(r"<!--.*?-->\n?", "", PAGES[name], flags=re.S)
    assert result.output.startswith(page.partition("](")[0].rpartition("\n")[0])
    assert not re.search(r"<!--|\]\((?!https?:)", result.output)


def test_a_command_s_help_is_that_of_its_flag(grpo):
    asked, flag = grpo("help", "compare"), grpo("compare", "--help")
    assert asked.exit_code == flag.exit_code == 0
    assert "--variants" in asked.output
    assert asked.output.split("\n", 1)[1] == flag.output.split("\n", 1)[1]


def example(name: str) -> list[str]:
    """The command lines at the top of a command's help, without what only pipes beside them."""
    _, _, lines, *_ = run(name, "--help").stdout.split("\n\n")
    pieces = (line.strip().split(" | ") for line in lines.splitlines())
    return [next(one for one in parts if one.startswith("grpo ")) for parts in pieces]


FEW = 4
"""Records that examples of one file read; those of a run read 13."""

EXAMPLES = [(name, line) for name in COMMANDS for line in example(name)]


NUMBERS = ("loss", "kl", "gradient-norm")


@pytest.fixture
def dumps(made, monkeypatch):
    """The files that the examples name are in the folder that they run in."""
    folder, *given = made
    monkeypatch.chdir(folder)
    return given


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the files that the examples name, a few records for standard input, numbers."""
    folder = tmp_path_factory.mktemp("dumps")
    group = {
        "log_probs_new": [[-0.9, -0.2], [-1.1], [-0.3, -0.4], [-0.5]],
        "log_probs_old": [[-1.0, -0.25], [-1.0], [-0.35, -0.5], [-0.45]],
        "log_probs_ref": [[-1.0, -0.25], [-1.0], [-0.3, -0.4], [-0.5]],
        "rewards": [1.0, 0.0, 0.5, 0.0],
        "tokens": [["a", "b"], ["c"], ["a", "d"], ["e"]],
    }
    total = evaluate(group).total
    group |= {"metrics": {"loss": total["loss"]}, "expected": {"loss": total["loss"]}}
    total |= {"gradient_norm": total["gradient_norm"] / math.sqrt(FEW)}  # of so many equal records
    records = [group | {"id": f"step-{step}", "step": step, "rank": 0} for step in range(13)]
    lines = "".join(f"{json.dumps(record)}\n" for record in records)
    few = "".join(lines.splitlines(keepends=True)[-FEW:])
    for name in ("rollouts.jsonl", "dump.jsonl", "run.jsonl", "before.jsonl", "after.jsonl"):
        (folder / name).write_text(few)
    for name in ("run/rollouts", "run-a/rollouts", "run-b/rollouts", "steps"):
        (folder / name).mkdir(parents=True)
        (folder / name / "step.jsonl").write_text(lines)
    (folder / "steps/0.jsonl.zst").write_bytes(zstandard.compress(lines.encode()))
    rows = dump_of("nemo-rl") * 4
    logged = [{"step": step, "loss": 0.0, "grad_norm": 0.1 * step} for step in range(13)]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": logged}))
    packed = "".join(f"{json.dumps(row)}\n" for row in rows)
    (folder / "train_data_step7.jsonl").write_text(packed)
    logged = {f"--{name}": repr(total[name.replace("-", "_")]) for name in NUMBERS}
    return folder, few, logged


@pytest.mark.parametrize(("name", "line"), some(EXAMPLES, 14), ids=str)
def test_the_examples_of_a_command_run(grpo, dumps, name, line):
    lines, logged = dumps
    words = shlex.split(line.partition(" > ")[0])[1:]
    if name == "match":  # a number that nothing gives is searched for long
        words = [words[0], *(logged.get(flag, word) for flag, word in pairwise(words))]
    result = grpo(*words, stdin=lines)
    asks = name in ("match", "verify", "check", "diff", "trend")
    assert result.exit_code in ((0, 1) if asks else (0,)), result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_two_examples_of_itself(name):
    assert len(example(name)) >= 2
    assert all(line.split()[1] == name for line in example(name))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_the_usual_options_and_help_all_the_others(grpo, name):
    usual, every = (grpo(name, flag).stdout for flag in ("--help", "--help-all"))
    assert usual.startswith("Usage: ")
    for width in ("60", "80"):  # a flag that begins a line looks like an option
        prose = grpo(name, "--help", COLUMNS=width).stdout.partition("\nOptions:\n")[0]
        assert not re.search("^ *`?--?[a-z]", prose, re.MULTILINE)
    first, _, panels = every.partition("\n\nOutput:\n")
    assert "  --color auto" in panels
    assert "--color auto" not in first + usual
    options = re.findall(r"^  (?:-\w, )?--[\w-]+", usual, re.MULTILINE)
    assert len(options) <= 15
    more = int(re.search(r" --help-all shows (\d+) more options\n$", usual)[1])
    assert len(re.findall(r"^  (?:-\w, )?--[\w-]+", every, re.MULTILINE)) == len(options) + more


def test_the_help_of_eval_fits_a_terminal(grpo):
    lines = grpo("eval", "--help", COLUMNS="80").stdout.splitlines()
    assert len(lines) <= 26
    assert max(map(len, lines)) <= 80
    panels = ("\nOptions:", "\nObjective (", "\nInput:", "\nOutput:", "\nRunning:")
    every = grpo("eval", "--help-all").stdout
    assert sorted(every.index(title) for title in panels) == [every.index(one) for one in panels]


FLAG_PAGES = flag_pages()


@pytest.mark.parametrize("name", some(sorted(FLAG_PAGES), 3))
def test_a_flag_s_page_has_an_example_that_runs(grpo, monkeypatch, tmp_path, name):
    page = grpo("help", "full" if name == "--full" else name)  # which is help's own
    assert page.exit_code == 0
    assert "\nRelated: " in page.stdout
    (example,) = re.findall(r"^    (grpo .*)$", FLAG_PAGES[name], re.MULTILINE)
    assert f"$ {example}" in re.sub(r" \\\n +", " ", page.stdout)
    words = [re.sub(r"^samples/", f"{ROOT}/samples/", word) for word in shlex.split(example)]
    monkeypatch.chdir(tmp_path)
    assert words[1] in {flag.partition(" ")[0] for flag in COMMANDS}
    assert any(word.partition("=")[0] in _spellings(name) for word in words)
    skips = name == "--on-error"  # counts what it skipped, and says so by its exit code
    assert grpo(*words[1:]).exit_code == (3 if skips else 0)


def _spellings(name: str) -> set[str]:
    return {one for flag in look_up_flag(name) for one in flag.spelling.replace(",", "").split()}


def test_the_usual_flags_have_a_page(grpo):
    usual = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", grpo("eval", "--help").stdout, re.MULTILINE))
    assert usual <= {*FLAG_PAGES}
    related = set(re.findall(r"--[a-z-]+", "".join(FLAG_PAGES.values())))
    assert related <= {*flags()}


def test_a_flag_has_one_text_in_all_commands(grpo):
    texts: dict[str, set[str]] = {}
    for name in COMMANDS:
        for flag, text in re.findall(
            r"^  (?:-\w, )?(--[\w-]+)[^\n]*?(?:  |\n) *([A-Z0-9a-z].*(?:\n {8}.*)*)",
            grpo(name, "--help-all", COLUMNS="200").stdout,
            re.MULTILINE,
        ):
            texts.setdefault(flag, set()).add(" ".join(text.split()))
    several = {flag for flag, found in texts.items() if len(found) > 1}
    assert several <= {"--batch", "--by", "--fail-on", "--format", "--quiet"}


def test_every_column_of_a_table_is_explained():
    columns = {name for names in FIELDS.values() for name in names} | {*METRICS}
    assert [one for one in columns if look_up(one) is None and not is_choice(one)] == []
    found = [*KINDS, *(row["code"] for row in codes())]
    assert [one for one in found if look_up(one) is None] == []
    metrics = {name: look_up(name) for name in METRICS}
    assert [name for name, word in metrics.items() if legend(name) and word.word != name] == []
    mismatch = (one for one in METRICS if one.startswith("mismatch.") and "decile" not in one)
    assert all("d = log π_old − log π_rollout" in metrics[name].meaning for name in mismatch)
    of_eval = {name: look_up(name) for names in FIELDS.values() for name in names}
    assert [name for name, word in of_eval.items() if word is None or word.word != name] == []


@pytest.mark.parametrize("code", [row["code"] for row in codes()])
def test_a_finding_says_when_check_finds_it(grpo, code):
    """By its rules, whose bounds are there, also where the code is a word of its own."""
    printed = grpo("help", code).stdout
    assert "\ncheck finds\n  · " in printed
    assert not re.search(r"``|Yields|Args:|References:", printed)


def test_every_heading_of_an_answer_about_a_run_is_explained():
    """Of ``--at``, ``--by`` and ``--against``, as they print them."""
    of_at = {"metric", "before", "at", "after", "size", "record", "group", "worst_in", *FACTS}
    of_parts = {one.name for one in fields(PartChange)}
    of_runs = {"first", "second", "difference", "since"}
    assert [one for one in of_at | of_parts | of_runs if look_up(one) is None] == []


def test_every_word_that_a_screen_prints_as_a_term_is_explained():
    words = (
        "error, warning, info, quarter, first token, last token, RMS, effective sample size, "
        "likely cause, fix, last good step, standard errors, pass, yours, "
        "computed, stage, mistake, convention, by chance, A>0, A<0, ≠, engine, trainer, low, high, "
        "new, old, ref, log π, σ, quantile, cosine, denominator, signature, nats, drifts"
    )
    assert [one for one in words.split(", ") if look_up(one) is None] == []


@pytest.mark.parametrize("words", ["0", "is 0", "negative", "is negative", "rising", "rises"])
def test_why_the_loss_is_0_negative_or_rising_is_explained(grpo, words):
    """As ``grpo --help`` asks it, with and without the word loss."""
    for question in (words, f"loss {words}") if words.isalpha() else (f"loss {words}",):
        assert grpo("help", *question.split()).stdout.endswith("grpo explain FILE\n")


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("why is my loss negative", "Why is it negative?"),
        ("why is the loss zero?", "Why is my loss 0?"),
        ("which tokens are clipped", "Which tokens were clipped"),
        ("is my loss right", "I wrote a loss. Is it right?"),
        ("when did the run go wrong", "A run went wrong."),
        ("two runs", "Two runs:"),
    ],
)
def test_a_question_in_other_words_has_its_part_of_the_page(grpo, question, answer):
    printed = grpo("help", *question.split()).stdout
    assert printed.startswith(f"**{answer}")
    assert printed.count("\n**") == 0, "one part"
    assert "grpo " in printed


def test_what_a_value_that_is_set_changes_is_with_the_formula(grpo):
    """δ of the two-sided clip, c of the dual clip; nothing of either where it is off."""
    pages = [
        " ".join(grpo("help", name).stdout.split()) for name in ("two-sided", "verl/grpo", "dapo")
    ]
    said = [("min(ρ, δ)" in page, "c·A if A < 0" in page) for page in pages]
    assert said == [(True, False), (False, True), (False, False)]


def test_words_that_all_questions_share_are_no_question(grpo):
    assert "did you mean loss?" in grpo("help", "my", "loss").stderr


def test_a_column_of_trend_is_suggested_where_it_is_misspelt(grpo):
    assert "did you mean ratio_p999?" in grpo("help", "ratio_p99").stderr


def test_a_hyperparameter_has_the_defaults_of_the_papers():
    meaning = look_up("beta").meaning
    for name, value in (("grpo", 0.04), ("grpo-unbiased-kl", 0.01)):
        assert VARIANTS[name].kl.values["beta"] == value, "as in the tables"
        assert re.search(rf"\b{value} \([^)]*\b{name}\b", meaning)
    assert VARIANTS["trl/grpo"].kl.values["kl_weight"] == "ratio"
    assert re.search(r"\bratio \([^)]*\btrl/grpo\)", look_up("kl_weight").meaning)


def test_the_page_of_words_names_commands_that_run(grpo):
    commands = re.findall(r"\| `grpo (.*)` \|$", WORDS, re.MULTILINE)
    assert len(commands) > 20
    for words in {one for one in commands if "FILE" not in one}:
        assert grpo(*words.split()).exit_code == 0
    assert {one.split()[0] for one in commands} <= {*COMMANDS}


@pytest.mark.more
def test_the_table_of_exit_codes_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = Path(__file__).parents[2] / "samples"
    plain, other = samples / "arithmetic.jsonl", samples / "temperature.jsonl"
    wrong = tmp_path / "wrong.jsonl"
    record = json.loads((samples / "dr_grpo.json").read_text())
    wrong.write_text(json.dumps(record | {"expected": {"loss": 123.0}}))
    healthy = samples / "run" / "healthy.jsonl.gz"
    limit = ("--fail-on", "reward_mean>-1")
    for code, *words in (
        (0, "eval", plain),
        (0, "check", plain),
        (0, "match", plain, "--loss", "0.2630925"),  # the other sign of dapo's
        (1, "verify", wrong, "-v", "dr"),
        (1, "diff", plain, other),
        (1, "match", plain, "--loss", "123.456789", "--epsilon", "0.2", "-v", "dr"),
        (1, "check", other),
        (1, "trend", healthy, "-v", "trl/grpo", *limit),
        (2, "eval", plain, "-v", "nothing"),
        (3, "eval", samples / "bad_nan.json"),
        (3, "eval", tmp_path / "none.jsonl"),
    ):
        assert run(*words).exit_code == code, words
    monkeypatch.chdir(tmp_path)
    assert "in the folder of the project" in run("eval", "samples/first.jsonl").stderr
