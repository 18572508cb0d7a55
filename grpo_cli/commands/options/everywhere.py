"""Commands for Typer: options in dataclasses, the flags that every command has, what was typed."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from grpo_cli.errors import InputError, UsageError
from grpo_cli.terminal.display import Display, When, displaying
from grpo_cli.terminal.messages import failures
from grpo_cli.terminal.numbers import shell_line


def bundled(command: Callable[..., None]) -> Callable[..., None]:
    """Spreads every parameter that is a dataclass into its fields, for Typer to read as options.

    The command still receives the dataclass; its fields, with their ``Annotated`` options and
    defaults, take the parameter's place in the signature and so in ``--help``.
    """
    hints = get_type_hints(command, include_extras=True)
    bundles: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}

    @functools.wraps(command)
    def spread(**values: Any) -> None:
        for name, kind in bundles.items():
            values[name] = kind(**{one.name: values.pop(one.name) for one in fields(kind)})
        command(**values)

    parameters = [
        one
        for given in inspect.signature(command).parameters.values()
        for one in _parameters(given, hints[given.name])
    ]
    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread.__annotations__ = {one.name: one.annotation for one in parameters}
    return spread


def _parameters(given: inspect.Parameter, hint: Any) -> Iterator[inspect.Parameter]:
    if not is_dataclass(hint):
        yield given.replace(annotation=hint)
        return
    hints = get_type_hints(hint, include_extras=True)
    for one in fields(hint):
        default = inspect.Parameter.empty if one.default is MISSING else one.default
        yield inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=hints[one.name],
        )


_PANEL = "on a terminal"

Color = Annotated[
    When,
    typer.Option(
        "--color",
        help="auto: on a terminal, unless NO_COLOR is set; or FORCE_COLOR, CLICOLOR_FORCE.",
        rich_help_panel=_PANEL,
    ),
]
Full = Annotated[
    bool,
    typer.Option("--full", help="All of a page, also beyond the screen.", rich_help_panel=_PANEL),
]
NoPager = Annotated[
    bool,
    typer.Option(
        "--no-pager", help="Never through PAGER (else less, more).", rich_help_panel=_PANEL
    ),
]

_OPTIONS: dict[str, tuple[Any, object]] = {
    "color": (Color, "auto"),
    "full": (Full, False),
    "no_pager": (NoPager, False),
}


def displayed(command: Callable[..., None]) -> Callable[..., None]:
    """The command with these flags, those that it does not have already."""
    signature = inspect.signature(command)
    hints = get_type_hints(command, include_extras=True)
    added = {name: option for name, option in _OPTIONS.items() if name not in signature.parameters}

    @functools.wraps(command)
    def run(**values: Any) -> None:
        given = {name: values.pop(name) for name in added}
        given |= {name: values[name] for name in _OPTIONS if name in values}
        display = Display(given["color"], full=given["full"], pager=not given["no_pager"])
        with displaying(display):
            with failures(as_json=bool(values.get("json") or values.get("as_json"))):
                refuse_input_as_output(values)
            command(**values)

    parameters = [
        one.replace(annotation=hints.get(name, one.annotation))
        for name, one in signature.parameters.items()
    ]
    parameters += [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )
        for name, (annotation, default) in added.items()
    ]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def command_line() -> str:
    """``grpo`` and its arguments, as a shell takes them."""
    return shell_line(["grpo", *sys.argv[1:]])


_FLAGS = {"output": "-o", "html": "--html", "svg": "--svg"}


def refuse_input_as_output(values: Mapping[str, Any]) -> None:
    """Refuses to write a result over a file that is read.

    ``convert``, which has ``to``, may do so with a file that is named: what it writes evaluates to
    the same numbers. In a folder it would be read with the others the next time.

    Raises:
        UsageError: for an option that names such a file.
    """
    given = values.get("files") or []
    named = given if "to" in values else ()
    for name, flag in _FLAGS.items():
        target = values.get(name)
        if isinstance(target, str) and Path(target).is_file():
            from grpo_cli.records.open.folders import files as expanded  # numpy comes with it

            with suppress(InputError):  # of what cannot be read the command says more
                for path in expanded(given):
                    same = Path(path).exists() and Path(path).samefile(target)
                    if same and path not in named:
                        raise UsageError(f"{flag} {target} is the input: name another file")
