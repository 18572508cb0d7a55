"""The formats of ``grpo eval``: a file each, which has its ``FORMAT``, imported when it is used."""

from importlib import import_module

from grpo_cli.commands.eval.formats.format import Format


def format_of(name: str) -> Format:
    """The format that ``--format`` calls so; ``only`` is what ``--only`` prints."""
    return import_module(f"{__name__}.{name}").FORMAT
