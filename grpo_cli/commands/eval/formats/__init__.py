"""The formats of ``grpo eval``: a file each, which has its ``FORMAT``, imported when it is used.

A file that stands here is a format that ``--format`` knows by the file's name.
"""

from importlib import import_module
from pkgutil import iter_modules

from grpo_cli.commands.eval.format import Format

ONLY = "only"
"""What ``--only`` prints; no name of ``--format``."""


def names() -> tuple[str, ...]:
    """What ``--format`` may be."""
    return tuple(sorted(found.name for found in iter_modules(__path__) if found.name != ONLY))


def format_of(name: str) -> Format:
    """The format that ``--format`` calls so, or that of ``--only``."""
    return import_module(f"{__name__}.{name}").FORMAT
