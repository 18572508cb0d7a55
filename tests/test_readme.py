"""The README's commands run, and print what it says they print.

python tests/test_readme.py --write     # puts the real output under every command
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def blocks() -> list[str]:
    return BLOCK.findall(README.read_text())


def commands(block: str) -> list[str]:
    return [line[2:] for line in block.splitlines() if line.startswith("$ ")]


def output(command: str, folder: Path) -> str:
    """What a command prints at 100 columns, both streams, in a folder with the samples."""
    if not (folder / "samples").exists():
        (folder / "samples").symlink_to(ROOT / "samples")
    kept = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "GITHUB_ACTIONS")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**kept, "PATH": path, "COLUMNS": "100", "LC_ALL": "C.UTF-8"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return "".join(line.rstrip() + "\n" for line in result.stdout.splitlines())


def rendered(block: str, folder: Path) -> str:
    return "".join(f"$ {command}\n{output(command, folder)}" for command in commands(block))


@pytest.mark.parametrize("block", blocks(), ids=lambda block: commands(block)[0][:60])
def test_commands_print_what_the_readme_says(block, tmp_path):
    assert rendered(block, tmp_path) == block


def test_every_command_is_in_the_readme():
    from grpo_cli.commands.main import COMMANDS

    text = README.read_text()
    assert [name for name in COMMANDS if f"`grpo {name}" not in text] == []


def test_every_alias_is_in_the_readme():
    assert alias_table() in README.read_text()


def alias_table() -> str:
    from grpo_cli.records.fields import ALIASES

    return "".join(f"| {name} | {', '.join(other) or '–'} |\n" for name, other in ALIASES.items())


PARITY = re.compile(r"<!-- parity -->\n(.*?)<!-- /parity -->", re.DOTALL)


def parity_table() -> str:
    """The tables that the parity run's own output makes."""
    script = ROOT / "tests" / "parity" / "report.py"
    found = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    return found.stdout.strip() + "\n"


def test_the_parity_table_is_the_parity_run_s():
    (found,) = PARITY.findall(README.read_text())
    assert found == parity_table()


def write(folder: Path) -> None:
    text = README.read_text()
    text = PARITY.sub(lambda _: f"<!-- parity -->\n{parity_table()}<!-- /parity -->", text)
    text = BLOCK.sub(lambda found: f"```console\n{rendered(found[1], folder)}```", text)
    text = text.replace("<!-- aliases -->\n", alias_table())
    README.write_text(text)


if __name__ == "__main__" and "--write" in sys.argv:
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        write(Path(place))
