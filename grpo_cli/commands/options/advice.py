"""What to do where the default variant wants a reference that the records do not have."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from grpo_cli.commands.options.objective import ObjectiveOptions
from grpo_cli.engine import Reader
from grpo_cli.errors import GrpoError
from grpo_cli.objective.inputs import MissingColumnError
from grpo_cli.variants.plan import plan

_DEFAULT = "grpo"


@contextmanager
def advising(command: str, reader: Reader, objective: ObjectiveOptions) -> Iterator[None]:
    """Adds the commands that would work to an error about a missing reference."""
    try:
        yield
    except MissingColumnError as error:
        raise advised(error, command, reader, objective) from None


def advised(
    error: GrpoError, command: str, reader: Reader, objective: ObjectiveOptions
) -> GrpoError:
    """The error; where the default's KL is what lacks a reference, with two commands instead."""
    if not isinstance(error, MissingColumnError) or not error.path.endswith("log_probs_ref"):
        return error
    if objective.variant != _DEFAULT or objective.kl is not None or objective.beta is not None:
        return error
    paths = shlex.join(reader.paths)
    said, mark, keys = error.message.partition("; keys that mean nothing here")
    ways = [f"grpo {command} {paths} {flags}" for flags in _ways(reader.told.named)]
    message = f"{said}: {', or '.join(ways)}{mark}{keys}"
    return MissingColumnError(message, path=error.path, source=error.source, line=error.line)


def _ways(named: str | None) -> list[str]:
    """The row that the records name, or one without a KL; and the default without its KL."""
    if not named:
        return ["--beta 0", "-v dapo (which has none)"]
    flags = " --beta 0" if "beta" in plan(named).takes() else ""
    return [f"-v {named}{flags} (as the records name it)", "--beta 0"]
