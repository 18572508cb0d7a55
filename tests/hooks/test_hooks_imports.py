"""``grpo`` needs no framework, and the hooks none before they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

FOREIGN = ("torch", "trl", "verl", "transformers")


@pytest.mark.parametrize(
    ("module", "without"),
    [
        ("grpo_cli", (*FOREIGN, "grpo_cli.hooks")),
        ("grpo_cli.commands.main", (*FOREIGN, "grpo_cli.hooks")),
        ("grpo_cli.hooks.trl", FOREIGN),
        ("grpo_cli.hooks.verl", FOREIGN),
    ],
)
def test_what_an_import_brings_along(module: str, without: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print([m for m in {without} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
