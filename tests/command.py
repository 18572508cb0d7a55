"""The command, in this process."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import typer.main
import typer.testing
from typer.testing import CliRunner, Result

from grpo_cli.commands import main as module
from grpo_cli.commands.options import everywhere

# To build all commands and to look up the types of their options takes longer than most commands.
module.application = cache(module.application)
typer.main.get_command = typer.testing._get_command = cache(typer.main.get_command)
everywhere._parameters = cache(everywhere._parameters)

COMMANDS, application, main = module.COMMANDS, module.application, module.main
app = application()

__all__ = ["COMMANDS", "answer", "app", "application", "main", "names_at", "run"]


def run(*words: object, stdin: str | bytes | None = None, **variables: str) -> Result:
    """``grpo`` with these words: ``exit_code``, ``stdout`` and ``stderr`` of the result."""
    return CliRunner().invoke(app, [*map(str, words)], input=stdin, env=variables or None)


def answer(*words: object, **more: Any) -> Any:
    """What ``--json`` of a command prints, decoded; its errors fail the test."""
    result = run(*words, "--json", **more)
    assert result.exit_code in (0, 1), result.stderr
    return json.loads(result.stdout)


def names_at(path: Path, level: str) -> list[str]:
    """All names that ``--fields`` takes."""
    listed = run("eval", path, "--level", level, "--fields", "?").stdout.splitlines()[2:]
    return [line.split()[0] for line in listed if not line.startswith(" ")]
