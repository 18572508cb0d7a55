"""What to type instead: options with one dash, words that are no command, names that are none."""

from __future__ import annotations

import sys

import pytest

from grpo_cli.commands.main import main
from grpo_cli.hyperparameters import HYPERPARAMETERS


@pytest.fixture
def typed(monkeypatch, capsys):
    """What the command ``grpo`` says of a line that is wrong."""

    def run(line: str) -> str:
        monkeypatch.setattr(sys, "argv", ["grpo", *line.split()])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        (said,) = capsys.readouterr().err.splitlines()
        return said

    return run


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("eval x -variant dr", "grpo: no such option: -variant; two dashes: --variant"),
        ("eval x -epsilon=0.1", "grpo: no such option: -epsilon; two dashes: --epsilon=0.1"),
        ("version", "grpo: no such command 'version'; type: grpo --version"),
        (
            "-v dr eval x",
            "grpo: no such option: -v; options follow the command: grpo eval -v dr x",
        ),
        ("x.jsonl -v dr", "grpo: no such command 'x.jsonl'; for a file: grpo eval x.jsonl -v dr"),
        ("show --html", "grpo: option '--html' requires an argument (see grpo show --help)"),
    ],
)
def test_what_to_type_instead(typed, line, said):
    assert typed(line) == said


def test_a_command_that_is_nearly_one_is_named(typed):
    assert typed("evla x").startswith("grpo: no such command 'evla'. Did you mean 'eval'?")


def test_letters_may_stand_at_their_values(grpo, dump):
    path = str(dump({}))
    assert grpo("eval", path, "-vdr", "--only", "loss").exit_code == 0


@pytest.mark.parametrize("flag", ["--html", "--svg"])
def test_a_page_without_a_file_to_read(typed, monkeypatch, flag):
    monkeypatch.setattr("sys.stdin", None)
    said = typed(f"show {flag} dump.jsonl")
    assert said.endswith(f"; {flag} names the page to write: grpo show FILE {flag} PAGE")


def test_an_unknown_hyperparameter_names_those_that_the_variant_reads(grpo, dump):
    path = str(dump({}))
    result = grpo("eval", path, "-v", "dr", "-p", "foo=1")
    assert (result.exit_code, result.stderr) == (
        2,
        "grpo: foo: unknown hyperparameter; dr reads delta, dual_clip, entropy_coef, "
        "epsilon_high, epsilon_low, log_ratio_clamp, reward_weights; "
        "grpo variants --hyperparameters lists all\n",
    )
    near = grpo("eval", path, "-v", "dr", "-p", "epsilom=1").stderr
    assert near == "grpo: epsilom: unknown hyperparameter; did you mean epsilon?\n"
    record = grpo("eval", str(dump({"hyperparameters": {"foo": 1}}))).stderr
    assert record.endswith("unknown hyperparameter; grpo variants --hyperparameters lists all\n")


def test_all_hyperparameters_are_listed(grpo):
    listed = grpo("variants", "--hyperparameters", "-f", "csv").stdout.splitlines()
    assert [line.partition(",")[0] for line in listed] == ["name", *HYPERPARAMETERS]
    shown = grpo("variants", "--hyperparameters").stdout
    assert all(name in shown for name in HYPERPARAMETERS)


IDS = [{"id": f"a{number}", "step": number} for number in range(7)]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--where", "step==1 or step==2"), 2, "--where: 'or' cannot be said: all tests have to"),
        (("--where", "stepp==1"), 3, "the first records have no field stepp, but step, "),
        (("--where", "step==9"), 3, "no record matches --where; step is 0, 1, 2, 3, 4, …"),
        (("--record", "a9"), 3, "no record matches --record a9; the first ids are a"),
        (("--html", "/nowhere/page.html"), 2, "--html: cannot write /nowhere/page.html"),
        (("--svg", "/nowhere/page.svg"), 2, "--svg: cannot write /nowhere/page.svg"),
    ],
)
def test_what_is_not_there_is_answered_by_what_is(grpo, dump, words, code, said):
    result = grpo("show", str(dump(*IDS)), *words)
    assert result.exit_code == code
    assert said in result.stderr


def test_what_an_option_takes_is_listed_or_the_command_that_lists_it(grpo):
    """Every option that takes a word: its words stand there, or a command that is run here."""
    text = " ".join(grpo("eval", "--help").stdout.split())
    for option, lists in {
        "--variant NAME": "grpo variants",
        "Which objective": "grpo variants --stage kl",
        "--from FORMAT": "grpo formats",
        "--param NAME=VALUE": "grpo variants --hyperparameters",
    }.items():
        assert f"`{lists}`" in text[text.index(option) :][:150], option
        assert grpo(*lists.split()[1:]).exit_code == 0
    for choices in ("--level <batch|record|", "--format <table|json|", "--on-error <stop|skip>"):
        assert choices in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--kl", "k33"), "unknown kl 'k33'; did you mean k3? (grpo variants --stage kl)"),
        (
            ("--aggregate", "x"),
            "unknown aggregate 'x'; expected one of response-mean, token-mean, token-sum, "
            "token-sum-norm, prompt-mean, response-sum, sum, or a framework's "
            "(grpo variants --stage aggregate)",
        ),
        (
            ("--kl-aggregate", "token-meen"),
            "unknown kl_aggregate 'token-meen'; did you mean token-mean? "
            "(grpo variants --stage aggregate)",
        ),
    ],
)
def test_an_unknown_choice_is_answered_by_the_near_one_or_by_the_neutral_ones(
    grpo, dump, words, said
):
    result = grpo("eval", str(dump({})), *words)
    assert (result.exit_code, result.stderr) == (2, f"grpo: {said}\n")
