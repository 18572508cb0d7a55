"""The formats of ``grpo eval``: a file each, and a line here."""

from grpo_cli.commands.eval.formats import csv, json, jsonl, markdown, only, table
from grpo_cli.commands.eval.formats.format import Format

FORMATS: dict[str, Format] = {
    "table": table.FORMAT,
    "json": json.FORMAT,
    "jsonl": jsonl.FORMAT,
    "csv": csv.FORMAT,
    "markdown": markdown.FORMAT,
    "only": only.FORMAT,
}
"""By the names of ``--format``; ``only`` is what ``--only`` prints."""
