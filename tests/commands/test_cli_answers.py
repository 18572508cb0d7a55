"""Answers of yes and no on the command line, and its completion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from command import COMMANDS, application

# ---- ``grpo compare``, ``match``, ``split`` and ``explain`` as users run them --------------------


DUMPS = Path(__file__).parent.parent / "data" / "rollouts"
GSPO = str(DUMPS / "trl-1.16.0-gspo.jsonl")
UNEQUAL = {
    "log_probs_new": [[-0.9, -0.2, -1.3], [-1.1], [-0.4, -2.0]],
    "log_probs_old": [[-1.0, -0.25, -1.6], [-1.0], [-0.9, -1.9]],
    "log_probs_ref": [[-1.0, -0.3, -1.5], [-1.0], [-0.7, -1.7]],
    "rewards": [1.0, 0.0, 0.3],
}


@pytest.mark.parametrize(
    "command",
    [
        ["compare"],
        ["match", "--loss", "1", "--kl", "none", "--aggregate", "token-mean"],
        ["split", "-n", "1"],
    ],
)
def test_bad_input(grpo, dump, command):
    path = dump({}, '{"log_probs_new": [[-1.0], [0.5]], "rewards": [1, 0]}')
    result = grpo(*command, str(path))
    assert result.exit_code == 3
    assert "dump.jsonl:2: log_probs_new[1][0]" in result.stderr
    result = grpo(*command, str(path), "--json")
    assert json.loads(result.stderr.splitlines()[-1])["error"]["line"] == 2
    skipped = grpo(*command, str(path), "--on-error", "skip")
    assert skipped.exit_code == 3
    assert skipped.stderr.count("skipped 1 ") == 1
    assert skipped.stdout


def test_nothing_can_be_served(grpo, dump):
    path = dump('{"log_probs_new": [[-1.0], [-2.0]], "rewards": [1, 0]}')
    result = grpo("compare", str(path), "--variants", "rloo", "--json")
    assert result.exit_code == 3
    document = json.loads(result.stdout)
    assert document["variants"] == []
    assert "log_probs_ref" in document["skipped"][0]["reason"]


def test_split_table_of_one_aggregation(grpo):
    result = grpo("split", GSPO, "-n", "16", "--ranks", "2", "--aggregate", "token-mean", "-q")
    assert result.exit_code == 0
    assert "token-mean" in result.stdout
    assert "response-mean" not in result.stdout
    assert "4 micro-batches of 16, 2 accumulated on 2 ranks" in result.stdout


def test_a_path_that_exists_is_a_file(grpo, dump, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trl").mkdir()
    dump({}, name="trl/dapo")
    dump({}, name="dapo")
    assert "evaluated alone" in grpo("explain", "trl/dapo").stdout
    assert "Decoupled Clip" in grpo("explain", "dapo").stdout
    assert "evaluated alone" in grpo("explain", "./dapo").stdout


def test_match_commands_read_the_same_records(grpo, shell, dump):
    path = dump(UNEQUAL | {"id": "a"}, UNEQUAL | {"id": "b", "rewards": [0.5, 0.0, 2.0]})
    flags = [str(path), "--record", "b"]
    loss = grpo("eval", *flags, "--level", "batch", "--only", "loss").stdout.strip()
    document = json.loads(grpo("match", *flags, "--loss", loss, "--json").stdout)
    assert "--record b" in document["matches"][0]["command"]
    assert float(shell(document["matches"][0]["command"]).stdout) == float(loss)


def test_explain_the_first_seed(grpo, dump):
    seed = {
        "log_probs_new": [[-0.2, -0.3], [-0.1, -0.4]],
        "log_probs_old": [[-0.5, -0.6], [-0.4, -0.7]],
        "rewards": [1.0, 0.0],
        "epsilon": 0.2,
    }
    text = grpo("explain", str(dump(json.dumps(seed))), "-v", "dr").stdout
    assert "(1 + 0) / 2 = 0.5" in text
    assert "objective = 0.600000 + (-0.674929) = -0.074929" in text
    assert "the gradient is not zero" in text
    assert "denominator 2: responses" in text


# ---- every option of every command completes without an error, and the names are there -----------


def completions(command: str, option: str, incomplete: str) -> list[str]:
    group = typer.main.get_command(application())
    found = group.commands[command]
    with found.make_context(command, [], resilient_parsing=True) as context:
        (parameter,) = (one for one in found.params if option in one.opts)
        return [one.value for one in parameter.shell_complete(context, incomplete)]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_can_be_completed(command):
    group = typer.main.get_command(application())
    found = group.commands[command]
    with found.make_context(command, [], resilient_parsing=True) as context:
        for parameter in found.params:
            parameter.shell_complete(context, "")


@pytest.mark.parametrize(
    ("command", "option", "incomplete", "expected"),
    [
        ("eval", "--variant", "d", "dr"),
        ("eval", "--from", "n", "nemo-rl"),
        ("eval", "--kl", "k", "k3"),
        ("compare", "--variants", "grpo,d", "grpo,dr"),
        ("show", "--color-by", "g", "gradient"),
    ],
)
def test_names_complete(command, option, incomplete, expected):
    assert expected in completions(command, option, incomplete)
