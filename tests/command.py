"""The command, in this process."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner, Result

from grpo_cli.commands.main import COMMANDS, app, application, main

__all__ = ["COMMANDS", "answer", "app", "application", "main", "run"]


def run(*words: object, stdin: str | bytes | None = None, **variables: str) -> Result:
    """``grpo`` with these words: ``exit_code``, ``stdout`` and ``stderr`` of the result."""
    return CliRunner().invoke(app, [*map(str, words)], input=stdin, env=variables or None)


def answer(*words: object, **more: Any) -> Any:
    """What ``--json`` of a command prints, decoded; its errors fail the test."""
    result = run(*words, "--json", **more)
    assert result.exit_code in (0, 1), result.stderr
    return json.loads(result.stdout)
