"""The command ``grpo``: its commands, and how each way of ending becomes an exit code."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import traceback
from collections.abc import Mapping
from importlib import import_module
from io import TextIOWrapper
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import typer.main

from grpo_cli.commands.help.layout import FrontPage, PanelCommand
from grpo_cli.commands.options.everywhere import Command, displayed
from grpo_cli.errors import GrpoError, also_unknown, nearest
from grpo_cli.terminal.messages import print_error, say
from grpo_cli.terminal.numbers import and_more, shell_line
from grpo_cli.version import VERSION

BUG = 70
INTERRUPTED = 130

COMMANDS: Mapping[str, str] = {
    "eval": "eval.command:evaluate",
    "compare": "compare.command:compare",
    "match": "match.command:match_number",
    "explain": "explain.command:explain_topic",
    "verify": "verify.command:verify",
    "check": "check.command:check",
    "trend": "trend.command:trend",
    "diff": "diff.command:diff",
    "show": "show.command:show",
    "report": "trend.command:report",
    "convert": "convert.command:convert",
    "formats": "formats.command:list_formats",
    "variants": "variants.command:list_variants",
    "vectors": "vectors.command:list_vectors",
    "help": "help.command:show_help",
}
"""Command → module:function in this package, in the order of ``grpo --help``."""

FILES = ("report", "convert")
"""Commands that write a file and print no table."""


_VERSION = ("--version", "-V")
_NO_COMMAND = (*_VERSION, "--help", "-h")
"""What needs no command; the front page names them all."""


def _print_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"grpo {VERSION}")
        raise typer.Exit


def _grpo(
    *,
    version: Annotated[
        bool,
        typer.Option(
            *_VERSION,
            help="Print the version.",
            is_eager=True,
            callback=lambda wanted: _print_version(wanted=wanted),
        ),
    ] = False,
) -> None:
    """Evaluate GRPO-family objectives on the log-probs and rewards of a run.

    \b
    LOSS   What are loss, KL and clip fraction?    grpo eval FILE -v dapo
           Why is it 0, or negative, or rising?    grpo explain FILE
           What is this number that I logged?      grpo match FILE --loss 0.0123
           Is my loss right?                       grpo verify FILE
           What would other losses give?           grpo compare FILE -v all
    TOKEN  Which tokens matter, or are clipped?    grpo show FILE
           What does each turn of an agent give?   grpo eval FILE --level turn
    DUMP   Is it sane? Does the engine agree?      grpo check FILE
           How do I save it as JSONL or Parquet?   grpo convert FILE -o x.parquet
           How do I attach it to a bug report?     grpo convert FILE --bundle -o x
    RUN    When did it go wrong?                   grpo trend RUN
           Where do two runs first differ?         grpo diff RUN RUN
           How do I see it in a browser?           grpo report RUN -o run.html
    CODE   From Python, pandas or polars?          grpo help python
           As a gate in CI?                        grpo help ci
    LISTS  Which variants, formats, test cases?    grpo variants, formats, vectors
    HELP   What does a word or a flag mean?        grpo help clip, grpo help
    """  # noqa: D301 - \b is for the help's formatter
    del version


def application(only: str | None = None) -> typer.Typer:
    """The command line, with all commands, or with the one that is going to run, if it is one.

    A command's module is imported when the command is added: that is most of the time that a
    small file takes.
    """
    made = typer.Typer(
        name="grpo",
        cls=FrontPage,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(_grpo)
    for name in COMMANDS if only is None else COMMANDS.keys() & {only}:
        made.command(name, cls=PanelCommand)(displayed(_imported(name), file=name in FILES))
    return made


def _imported(name: str) -> Command:
    module, _, function = COMMANDS[name].partition(":")
    return getattr(import_module(f"grpo_cli.commands.{module}"), function)


def described() -> dict[str, str]:
    """Command → the first line of its help."""
    return {name: (_imported(name).__doc__ or "").partition("\n")[0] for name in COMMANDS}


def main() -> None:
    """Runs the command and exits: 0, 2 usage, 3 input, 70 a bug, 130 Ctrl-C, 141 closed pipe."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # help has letters that Latin-1 has not
    completes = "_GRPO_COMPLETE" in os.environ  # the shell asks, without arguments
    wanted = sys.argv[1] if len(sys.argv) > 1 else "" if completes else "--help"
    try:
        command = application(wanted if wanted in (*COMMANDS, *_NO_COMMAND) else None)
        _interruptible()
        code = command(standalone_mode=False) if wanted in _NO_COMMAND else _settled(command)
        sys.exit(code if isinstance(code, int) else 0)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except GrpoError as error:
        print_error(error, as_json=False)
        sys.exit(error.exit_code)
    except MemoryError:
        say("not enough memory; split long records or documents, or raise the limit (ulimit -v)")
        sys.exit(GrpoError.exit_code)
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno == errno.EMFILE:
            reason = "too many open files; raise the limit (ulimit -n)"
        say(f"{error.filename}: {reason}" if error.filename else reason)
        sys.exit(GrpoError.exit_code)
    except Exception as error:
        if hasattr(error, "format_message"):  # Typer's own: its class is not public
            _print_usage(error)
        traceback.print_exc()
        sys.exit(BUG)


def _settled(command: typer.Typer) -> Any:
    """Runs a command that computes, without numpy's warnings: results say what is not finite."""
    import numpy as np

    from grpo_cli.engine import memory  # both are slow to import, and --help needs neither

    memory.settle()
    with np.errstate(all="ignore"):
        return command(standalone_mode=False)


def _interruptible() -> None:
    """Signals that end the command are exceptions from here on: temporary files go with them."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)


ended_by: list[int] = []
"""The signal that ends the command; what it runs may turn the end into a code of its own."""


def _end(number: int, _: object) -> NoReturn:
    """Ends the command as the signal would, when what has to be removed is removed."""
    ended_by.append(number)
    raise SystemExit(128 + number)


_OPTION = re.compile(r"No such option: (--?[\w-]+)")
_LISTED = re.compile(r"\. Did you mean|\W+Possible options")


def _option_meant(flag: str) -> str:
    """What an option that the command does not have may have been meant for."""
    from grpo_cli.hyperparameters import parameter_of

    if flag in _SORTED and sys.argv[1] not in ("show", "compare"):
        return "rows are in the order of the input: -f csv | sort, or grpo show --by ranks tokens"
    flags_of = _flags_of()
    own = sorted((one for one in flags_of.get(sys.argv[1], ()) if one[:2] == "--"), key=len)
    inside = (one for one in own if one.startswith(flag) or flag.endswith(one[1:]))
    same = _SAME.get(flag)
    if near := same if same in own else next(inside, ""):
        return f"did you mean {near}?"
    if "--format" in own and (kind := _FORMATS.get(flag)):
        return f"write -f {kind}"
    if flag == "--step" and "--where" in own and (step := _typed_value(flag)).isdecimal():
        return f"write --where step=={step}"
    if others := [name for name, flags in flags_of.items() if flag in flags]:
        have = "have" if others[1:] else "has"
        return f"{and_more(others, 3)} {have} it (grpo help {flag})"
    parameter = parameter_of(flag.lstrip("-").replace("-", "_"))
    if parameter and "--param" in own:
        spelled = f"--{parameter.replace('_', '-')}"
        return f"did you mean {spelled}?" if spelled in own else _as_param(flag, parameter)
    meant = {name: name for name in own} | {name: one for name, one in _SAME.items() if one in own}
    near = meant.get(nearest(flag, meant, cutoff=0.75), "")
    return f"did you mean {near}?" if near else ""


def _flags_of() -> dict[str, set[str]]:
    """The options of each command."""
    every = typer.main.get_command(application()).commands  # type: ignore[attr-defined]
    return {
        name: {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)}
        for name, command in every.items()
    }


def _others_unknown(first: str) -> str:
    """The other options on the line that the command does not have, with what is near each."""
    own = [*_flags_of().get(sys.argv[1], ()), "--help", first]
    words = takewhile("--".__ne__, sys.argv[2:])
    typed = dict.fromkeys(one.partition("=")[0] for one in words if one.startswith("--"))
    others = [flag for flag in typed if flag not in own]
    return also_unknown({one: nearest(one, own, cutoff=0.75) for one in others}, others)


_FORMATS = {f"--{name}": name for name in ("csv", "jsonl", "markdown", "table")}
_ASKED = {
    "eval": "loss, KL, clip fraction",
    "check": "is it sane?",
    "trend": "when did it go wrong? (of records with a step)",
}
"""Commands for a file, and what each answers."""
_SORTED = ("--sort", "--sort-by", "--order-by")
_SAME = {
    "--clip": "--epsilon",
    "--loss-type": "--variant",
    "--algorithm": "--variant",
    "--color-by": "--by",
    **dict.fromkeys(_SORTED, "--by"),
    "--set": "--param",
    "--strict": "--fail-on",
    "--ignore": "--quiet",
}
"""Other tools' names for a flag."""


def _as_param(flag: str, parameter: str) -> str:
    """How a hyperparameter without a flag of its own is set to the value that was typed."""
    value = _typed_value(flag)
    return f"write -p {parameter}={value if re.search('^[^-].*|^-[0-9]', value) else 'VALUE'}"


def _typed_value(flag: str) -> str:
    words = iter([*sys.argv, f"{flag}="])
    _, equals, value = next(one for one in words if one.partition("=")[0] == flag).partition("=")
    return value if equals else next(words, "")


_VALUE = re.compile(
    r"Invalid value for '(--[\w-]+)': (?:expected a finite number, got )?'(.*?)'(.*)"
)


def _value_meant(flag: str, value: str, after: str) -> str:
    """What a value that a flag does not take may have been meant for."""
    if near := nearest(value, re.findall(r"'(.*?)'", after)):
        return f"did you mean {near}?"
    if flag == "--level" and value.isidentifier():
        return f"to print one row per {value}: --batch {value} --level batch"
    low, comma, high = value.partition(",")
    if flag == "--epsilon" and comma:
        return f"write --epsilon-low {low} --epsilon-high {high}"
    return ""


def _meant(message: str) -> str:
    """The command that a wrong word may have been meant for."""
    words = sys.argv[1:]
    word = words[0] if words else ""
    if message.startswith("No such option") and word.startswith("-"):
        command = next((one for one in words if one in COMMANDS), None)
        if command is None:
            return ""
        words.remove(command)
        return f"options go after the command: grpo {shell_line([command, *words])}"
    if unknown := _OPTION.match(message):
        return _option_meant(unknown[1])
    if wrong := _VALUE.match(message):
        return _value_meant(*wrong.groups())
    if not message.startswith("No such command"):
        return ""
    from grpo_cli.commands.explain.names import is_choice
    from grpo_cli.commands.help.words import COMMAND_OF, look_up, names_of_words, topics
    from grpo_cli.variants import NAMES

    if word in COMMAND_OF:
        return f"type: grpo {COMMAND_OF[word]}"

    if Path(word).exists() or word.endswith((".json", ".jsonl", ".gz", ".zst", ".parquet")):
        line = shell_line(sys.argv[1:])
        if sys.argv[2:]:  # flags, which other commands may not have
            return f"for a file: grpo eval {line}"
        return "for a file:" + "".join(f"\ngrpo {one} {line}  # {_ASKED[one]}" for one in _ASKED)
    if word in NAMES:
        return f"{word} is a variant: grpo eval FILE -v {word}, or grpo explain {word}"
    if word in topics():
        return f"for the page: grpo help {word}"
    if is_choice(word) or look_up(word) is not None:
        return f"for its meaning: grpo explain {word}"
    every = [*COMMAND_OF, *COMMANDS, *NAMES, *topics(), *names_of_words()]
    near = nearest(word, every, cutoff=0.7)
    if near in COMMAND_OF:
        return f"type: grpo {COMMAND_OF[near]}"
    how = "" if near in COMMANDS else "explain " if near in NAMES else "help "
    return f"did you mean grpo {how}{near}?" if near else ""


_PLAINER = {
    r"('[^']*') is not a valid int(?:eger)?(?: range)?$": r"expected a whole number, got \1",
    r"^Missing argument '(.*)'$": r"missing: \1",
    r"^Got unexpected extra argument(?:s|\(s\))? \((.*)\)$": r"too many arguments: \1",
    r"(\S+) is not in the range x>=(\d+)$": r"expected at least \2, got \1",
    r"(\S+) is not in the range (\d+)<=x<=(\d+)$": r"expected \2 to \3, got \1",
}
"""Typer's words for a bad number → ours."""


def _print_usage(error: Any) -> NoReturn:
    """Typer's complaint about the command line, in one line; or its help, where it has that."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
    else:
        message = error.format_message().rstrip(".")
        context = getattr(error, "ctx", None)
        command = sys.argv[1:2] if sys.argv[1:2] and sys.argv[1] in COMMANDS else []
        path = " ".join(["grpo", *command]) if context is None else context.command_path
        for typers, ours in _PLAINER.items():
            message = re.sub(typers, ours, message)
        text, meant = f"{message[:1].lower()}{message[1:]}", _meant(message)
        text = _LISTED.split(text)[0] if meant or _OPTION.match(message) else text
        if "did you mean" not in text:
            text = f"{text}; {meant}" if meant else f"{text} (see {path} --help)"
        if (unknown := _OPTION.match(message)) and command:
            text += _others_unknown(unknown[1])
        for line in text.split("\n"):
            say(line)
    sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
