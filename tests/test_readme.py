"""The commands of the README and of the pages of `grpo help` run, and print what is said there.

python tests/test_readme.py --write          # puts the real output under every command
python tests/test_readme.py --write runs     # of one page: grpo_cli/commands/help/pages/runs.md
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from command import COMMANDS, answer
from files import some

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = ROOT / "grpo_cli" / "commands" / "help" / "pages"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def documents() -> dict[str, Path]:
    pages = {page.stem: page for page in sorted(PAGES.glob("*.md"))}
    return {"README": README, "SKILL": ROOT / "samples" / "SKILL.md"} | pages


def blocks() -> list[tuple[str, str]]:
    """Each block of commands, beside the document that it stands in."""
    return [(name, one) for name, at in documents().items() for one in BLOCK.findall(_text(at))]


def tried() -> list[tuple[str, str]]:
    """The README's, and a quarter of those of the pages."""
    readme = [one for one in blocks() if one[0] in WIDTHS]
    pages = [one for one in blocks() if one[0] not in WIDTHS]
    return [*readme, *some(pages, len(pages) // 4)]


def _text(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def commands(block: str) -> list[str]:
    return [line[2:] for line in block.splitlines() if line.startswith("$ ")]


WIDTHS = {"README": "80", "SKILL": "100"}
"""Columns of a document: the README's are those of a pipe, so that its commands can be pasted."""

PAGE = "78"
"""Columns of a page: what `grpo help` has room for on 80 columns, since it indents examples."""


def output(
    command: str,
    folder: Path,
    commands: Path = Path(sys.executable).parent,
    *,
    width: str = PAGE,
) -> str:
    """What a command prints, both streams, in a folder with the samples."""
    if not (folder / "samples").exists():
        (folder / "samples").symlink_to(ROOT / "samples")
    kept = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "GITHUB_ACTIONS")}
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**kept, "PATH": path, "COLUMNS": width, "LC_ALL": "C.UTF-8"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert "Traceback" not in result.stdout, result.stdout
    return "".join(line.rstrip() + "\n" for line in result.stdout.splitlines())


def rendered(name: str, block: str, *where: Path) -> str:
    width = WIDTHS.get(name, PAGE)
    each = (f"$ {one}\n{output(one, *where, width=width)}" for one in commands(block))
    return "".join(each)


def _name(document: str, block: str) -> str:
    return f"{document} {commands(block)[0][:60]}"


@pytest.mark.parametrize(
    ("name", "block"), [pytest.param(at, block, id=_name(at, block)) for at, block in tried()]
)
def test_commands_print_what_is_said_of_them(name, block, tmp_path, quick):
    assert rendered(name, block, tmp_path, quick) == block


def test_every_command_is_in_the_readme_or_on_a_page():
    text = "".join(map(_text, documents().values()))
    assert [name for name in COMMANDS if f"`grpo {name}" not in text] == []


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_begins_with_a_title_and_is_linked_from_the_readme(page):
    assert _text(page).startswith("# "), "the first line is what `grpo help` lists it by"
    assert f"]({page.relative_to(ROOT)})" in _text(README)


def test_links_between_documents_lead_somewhere():
    broken = [
        f"{name}: {link}"
        for name, at in documents().items()
        for link in re.findall(r"\]\(([^)#:]+)\)", _text(at))
        if not (at.parent / link).exists()
    ]
    assert broken == []


def test_every_alias_is_on_the_page_about_input():
    assert alias_table() in _text(PAGES / "input.md")


def alias_table() -> str:
    names = answer("formats")["names"]
    rows = "".join(f"| {name} | {', '.join(other) or '–'} |\n" for name, other in names.items())
    return f"| name | also accepted |\n|---|---|\n{rows}"


def parity_report() -> ModuleType:
    if (folder := str(ROOT / "tests" / "parity")) not in sys.path:
        sys.path.insert(0, folder)
    return import_module("report")


def parity_table(measured: dict[str, Any] | None = None) -> str:
    """The tables that the parity run itself makes; frameworks/test_golden.py compares them."""
    return "\n".join(parity_report().tables(measured, swapped=False)).strip() + "\n"


def pairs_table(framework: str) -> str:
    """What the trainings of a framework's options in pairs came to."""
    report = parity_report()
    return "\n".join(report.pair_lines(json.loads(report.PAIRS[framework].read_bytes()))) + "\n"


@pytest.mark.parametrize("framework", ["trl", "verl"])
def test_the_table_of_pairs_is_that_of_the_trainings(framework):
    assert marked(_text(PAGES / "checked.md"), f"{framework}-pairs") == pairs_table(framework)


PICTURE = ROOT / "samples" / "tokens.svg"


def picture(*where: Path) -> str:
    """The README's picture, made by the command that stands below it."""
    (command,) = re.findall(r"`(grpo show [^`]* --svg tokens.svg)`", _text(README))
    output(command, *where)
    folder, *_ = where
    return _text(folder / "tokens.svg")


def test_the_picture_is_what_the_command_below_it_makes(tmp_path, quick):
    assert picture(tmp_path, quick) == _text(PICTURE), "python tests/test_readme.py --write README"


GENERATED = {
    "parity": parity_table,
    "trl-pairs": lambda: pairs_table("trl"),
    "verl-pairs": lambda: pairs_table("verl"),
    "aliases": alias_table,
}
"""What stands between <!-- name --> and <!-- /name -->, and what makes it."""


def marked(text: str, name: str) -> str:
    (found,) = _between(name).findall(text)
    return found


def _between(name: str) -> re.Pattern[str]:
    return re.compile(f"<!-- {name} -->\n(.*?)<!-- /{name} -->", re.DOTALL)


def write(name: str, folder: Path) -> None:
    """Writes the document again, with what its commands print and what is generated in it."""
    document = documents()[name]

    def made_again(found: re.Match[str]) -> str:
        return f"```console\n{rendered(name, found[1], folder)}```"

    text = BLOCK.sub(made_again, _text(document))
    for name, made in GENERATED.items():
        if _between(name).search(text):
            marked_as = f"<!-- {name} -->\n{made()}<!-- /{name} -->"
            text = _between(name).sub(lambda _, new=marked_as: new, text)
    document.write_text(text, encoding="utf-8")


if __name__ == "__main__" and "--write" in sys.argv:
    wanted = sys.argv[2:] or list(documents())
    for name in wanted:
        with tempfile.TemporaryDirectory() as place:
            write(name, Path(place))
            if name == "README":
                PICTURE.write_text(picture(Path(place)), encoding="utf-8")
