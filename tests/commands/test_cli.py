"""Real processes: how they start and what they import; answers of yes and no; completion."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import typer
from command import COMMANDS, application, main
from files import some

# ---- what only a real process shows: pipes, terminals, colour, signals ---------------------------


def test_stdin_is_streamed(shell, dump):
    result = shell(f"cat {dump({})} | grpo eval --only tokens --level batch")
    assert (result.returncode, result.stdout) == (0, "3\n")


@pytest.mark.parametrize("variables", [{}, {"TERM": "dumb"}, {"GITHUB_ACTIONS": "true"}])
def test_a_pipe_has_no_colour_and_no_cut_numbers(shell, dump, variables):
    result = shell(f"grpo eval {dump({})} --level token -q", COLUMNS="20", **variables)
    assert "\x1b" not in result.stdout
    assert "…" not in result.stdout.replace("… (--full)", "")
    assert "hidden: " in " ".join(result.stdout.split())
    assert "gradient" in result.stdout


@pytest.mark.parametrize("flag", ["--help", "-h", "--version"])
def test_the_front_page_imports_no_command(flag):
    script = (
        f"import sys; sys.argv = ['grpo', {flag!r}]\n"
        "from grpo_cli.commands.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "sys.exit(sum(one in sys.modules for one in ('numpy', 'grpo_cli.commands.eval.command')))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=True).returncode == 0


def test_a_file_is_never_coloured_by_the_environment(shell, dump, tmp_path):
    """A pipe is, where a variable forces it; test_look.py has the rules."""
    for command in (f"eval {dump({})}", f"compare {dump({})} -v grpo,dr", "variants dr"):
        assert "\x1b[" in shell(f"grpo {command}", FORCE_COLOR="1").stdout
    shell(f"grpo eval {dump({})} -o {tmp_path / 'page'}", FORCE_COLOR="1")
    assert "\x1b" not in (tmp_path / "page").read_text()


def on_terminal(quick: Path, arguments: list[str], width: int, **variables: str) -> tuple[int, str]:
    """Runs the command on a pseudo-terminal of its own."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [str(quick / "grpo"), *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "COLUMNS": str(width), **variables},
    )
    os.close(slave)
    text = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # how Linux says that the other end has closed
            break
        if not piece:
            break
        text += piece
    os.close(master)
    return process.wait(timeout=120), text.decode()


@pytest.mark.parametrize(("lines", "steps"), [(24, 6), (30, 12), (200, 25)])
def test_a_short_terminal_shows_the_mean_the_first_and_the_last_steps(
    quick, tmp_path, lines, steps
):
    record = {"log_probs": [[-1.0, -2.0], [-0.5]], "rewards": [1.0, 0.0]}
    path = tmp_path / "run.jsonl"
    path.write_text("".join(f"{json.dumps(record | {'step': at})}\n" for at in range(25)))
    words = ["eval", str(path), "-v", "dr", "--batch", "step", "-q"]
    code, text = on_terminal(quick, words, 80, LINES=str(lines), NO_COLOR="1")
    printed = text.replace("\r", "").splitlines()
    assert (code, printed[0]) == (0, "mean of 25 batches")
    assert len(printed) < lines
    numbers = [int(line.split()[0]) for line in printed if re.match(r" *\d+ ", line)][:25]
    half = -(-len(numbers) // 2)
    assert numbers[:half] == [*range(half)]
    assert numbers[half:] == [*range(25)][half - len(numbers) :]
    assert len(numbers) >= steps or len(numbers) == 25


def test_a_terminal_has_colour_and_fits(quick, dump):
    path = str(dump({"tokens": [["[red]", "\n"], ["x"]]}))
    code, text = on_terminal(quick, ["eval", path, "--level", "token"], 80, LINES="60")
    assert code == 0
    assert "\x1b[1m" in text
    assert "hidden: " in text
    assert "[red]" in text
    assert "\\n" in text
    code, plain = on_terminal(quick, ["eval", path], 80, NO_COLOR="1")
    assert "\x1b" not in plain
    assert max(len(line) for line in plain.partition("\u2500")[2].splitlines()) <= 80
    assert "\x1b" not in on_terminal(quick, ["eval", path], 80, TERM="dumb")[1]


def test_a_terminal_as_stdin_is_a_usage_error(quick):
    code, text = on_terminal(quick, ["eval"], 80)
    assert code == 2
    assert "no FILE given, and nothing is piped" in text


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [(ZeroDivisionError("ours"), 70, "ZeroDivisionError: ours"), (KeyboardInterrupt(), 130, "")],
)
def test_a_bug_is_70_with_its_traceback_and_ctrl_c_130(monkeypatch, capsys, error, code, said):
    def broken(**_: object) -> None:
        raise error

    monkeypatch.setattr("grpo_cli.commands.main.application", lambda only: broken)
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr().err
    assert (ended.value.code, said in shown, bool(shown)) == (code, True, bool(said))


def test_bare_is_help_and_usage(shell):
    result = shell("grpo")
    assert result.returncode == 2
    assert "grpo help clip" in result.stdout + result.stderr


# ---- a small file takes no longer than what it needs, and a quick end leaves nothing behind ------


BUFFERED = {**os.environ, "PYTHONUNBUFFERED": ""}

WATCHED = """
import atexit, os, sys
words = sys.argv[1].split(",")
atexit.register(lambda: print(*[word for word in words if word in sys.modules], file=sys.stderr))
del sys.argv[1]
from grpo_cli.__main__ import main
main()
"""


def imported(modules: str, *arguments: str) -> list[str]:
    """Those of the modules that a command imports; exit functions run, however it ends."""
    command = [sys.executable, "-c", WATCHED, modules, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stderr.split()


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_version_needs_no_numpy_and_no_command(flag):
    assert imported("typer,numpy,grpo_cli.commands.eval", flag) == ["typer"]


@pytest.mark.more
def test_rich_is_imported_where_it_prints(dump):
    path = str(dump({}))
    assert imported("numpy,rich", "eval", path, "-f", "jsonl", "-q") == ["numpy"]
    assert imported("numpy,rich", "eval", path, "-q") == ["numpy", "rich"]


def test_what_was_kept_of_standard_input_is_removed(real_shell, dump, tmp_path: Path):
    kept = tmp_path / "kept"
    kept.mkdir()
    command = f"cat {dump({}, {})} | grpo eval --advantage batch-std --level batch --json"
    done = real_shell(command, TMPDIR=str(kept))
    assert done.returncode == 0
    assert "temporary file" in done.stderr
    assert [*kept.iterdir()] == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize(
    ("unbuffered", "command"),
    some([*product(["", "1"], ["grpo --version", "grpo help", "grpo eval {} --json"])], 2),
)
def test_what_cannot_be_written_is_an_error(real_shell, dump, command, unbuffered):
    line = f"{command.format(dump({}))} > /dev/full"
    done = real_shell(line, PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 3
    (told,) = done.stderr.splitlines()
    assert told.startswith("grpo: ")
    assert told.endswith("No space left on device")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_what_cannot_be_written_at_the_very_end_is_one_too():
    code = "from grpo_cli.__main__ import _leave; print(1); _leave(0)"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, env=BUFFERED
        )
    assert done.returncode == 3
    assert done.stderr == b"grpo: standard output: No space left on device\n"


# ---- ``grpo compare``, ``match`` and ``explain`` as users run them --------------------


UNEQUAL = {
    "log_probs_new": [[-0.9, -0.2, -1.3], [-1.1], [-0.4, -2.0]],
    "log_probs_old": [[-1.0, -0.25, -1.6], [-1.0], [-0.9, -1.9]],
    "log_probs_ref": [[-1.0, -0.3, -1.5], [-1.0], [-0.7, -1.7]],
    "rewards": [1.0, 0.0, 0.3],
}


def test_a_path_that_exists_is_a_file(grpo, dump, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trl").mkdir()
    dump({}, name="trl/dapo")
    dump({}, name="dapo")
    assert "4  sum" in grpo("explain", "trl/dapo").stdout
    assert "Decoupled Clip" in grpo("explain", "dapo").stdout
    assert "4  sum" in grpo("explain", "./dapo").stdout


@pytest.mark.more
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
        ("show", "--by", "g", "gradient"),
    ],
)
def test_names_complete(command, option, incomplete, expected):
    assert expected in completions(command, option, incomplete)


SAMPLE = str(Path(__file__).parents[2] / "samples" / "arithmetic.jsonl")


@pytest.mark.parametrize("command", ["eval", "show", "compare", "check"])
@pytest.mark.parametrize(
    ("suffix", "format"), [("csv", "csv"), ("json", "json"), ("jsonl", "jsonl"), ("md", "markdown")]
)
def test_the_suffix_of_a_file_says_its_format(grpo, tmp_path, command, suffix, format):
    by_suffix, by_flag = tmp_path / f"a.{suffix}", tmp_path / "b"
    grpo(command, SAMPLE, "-o", by_suffix)
    grpo(command, SAMPLE, "-f", format, "-o", by_flag)
    assert by_suffix.read_bytes() == by_flag.read_bytes()


def test_a_suffix_that_a_command_cannot_write_is_refused(grpo, tmp_path):
    done = grpo("compare", SAMPLE, "-o", tmp_path / "c.parquet")
    assert done.exit_code == 2
    words = "the name must end in .csv, .json, .jsonl or .md, or write the table under any name"
    assert done.stderr == f"grpo: -o {tmp_path / 'c.parquet'}: {words} with -f table\n"
    assert grpo("show", SAMPLE, "--record", "0", "-o", tmp_path / "s.html").exit_code == 0
    assert (tmp_path / "s.html").read_text().startswith("<!doctype html>")


def test_a_table_in_a_file_has_all_rows(grpo, tmp_path):
    many = tmp_path / "many.jsonl"
    many.write_text('{"log_probs_new": [[-1.0], [-2.0]], "rewards": [0, 1]}\n' * 60)
    out = tmp_path / "table.txt"
    assert "more" not in grpo("eval", many, "-o", out).stderr
    assert "59  " in out.read_text()
