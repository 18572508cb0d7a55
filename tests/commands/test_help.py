"""`grpo help`: pages, plain in a pipe and laid out on a terminal, and the flags of a command."""

from __future__ import annotations

import pytest
from rich.console import Console

from grpo_cli.commands.help.topics import PAGES, topics
from grpo_cli.commands.help.view import print_topic
from grpo_cli.commands.main import COMMANDS
from grpo_cli.terminal.screen import Screen, written

PAGE = """\
# What it says

Prose with `code`, [a link](input.md), and a line that is far longer than a terminal is wide.

<!-- made -->
| name | other |
|---|---|
| a | b |
<!-- /made -->

```console
$ grpo eval data.jsonl --variant dr --fields id,objective,loss,tokens,clip_fraction
  objective  # not a heading
```

## And then
the end
"""


def laid_out(width: int | None) -> list[str]:
    screen = Screen(width, height=None if width is None else 24)
    console: Console = screen.console()
    print_topic(console, screen, PAGE)
    return written(console).rstrip().splitlines()


def test_a_pipe_gets_the_page_as_it_was_written():
    assert laid_out(None) == PAGE.splitlines()


def test_prose_is_wrapped_and_examples_keep_their_lines():
    lines = laid_out(40)
    assert lines[0] == "What it says"
    example = next(line for line in lines if "$ grpo" in line)
    assert (
        example
        == "  $ grpo eval data.jsonl --variant dr --fields id,objective,loss,tokens,clip_fraction"
    )
    assert "    objective  # not a heading" in lines
    assert max(len(line) for line in lines if "$ grpo" not in line) <= 40
    assert lines[-3:] == ["And then", "", "the end"]
    text = " ".join(lines)
    assert "a link (grpo help input)" in text
    assert "<!--" not in text
    assert "```" not in text


def test_the_list_has_every_command_and_every_page(grpo):
    result = grpo("help")
    assert result.exit_code == 0
    for name in [*COMMANDS, *topics()]:
        assert f"\n  {name} " in result.output


@pytest.mark.parametrize("name", sorted(topics()))
def test_a_page_is_printed(grpo, name):
    result = grpo("help", name)
    assert result.exit_code == 0
    assert result.output.startswith((PAGES / f"{name}.md").read_text(encoding="utf-8").rstrip())


def test_a_command_s_help_is_that_of_its_flag(grpo):
    asked, flag = grpo("help", "split"), grpo("split", "--help")
    assert asked.exit_code == flag.exit_code == 0
    assert "--micro-batch" in asked.output
    assert asked.output.split("\n", 1)[1] == flag.output.split("\n", 1)[1]


def test_an_unknown_topic_is_one_line_with_the_near_match(grpo):
    result = grpo("help", "inptu")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("grpo: grpo help: unknown name 'inptu'; did you mean input? (one of ")
