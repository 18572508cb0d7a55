"""Every option of every command completes without an error, and the names are there."""

from __future__ import annotations

import pytest
import typer
from command import COMMANDS, application


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
