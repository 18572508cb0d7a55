"""What to do where the default variant wants a reference that the records do not have."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from grpo_cli.commands.options.everywhere import command_line
from grpo_cli.commands.options.objective import ObjectiveOptions
from grpo_cli.engine import Reader
from grpo_cli.errors import GrpoError
from grpo_cli.objective.inputs import MissingColumnError
from grpo_cli.variants.plan import plan

_DEFAULT = "grpo"
_FEW, _LONG = 3, 200


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
    typed = _typed(command, reader.paths)
    said, mark, keys = error.message.partition("; keys that mean nothing here")
    ways = [f"{typed} {flags}" for flags in _ways(reader.facts.named)]
    message = f"{said}: {', or '.join(ways)}{mark}{keys}"
    return MissingColumnError(message, path=error.path, source=error.source, line=error.line)


def unserved(
    missing: Iterable[GrpoError], command: str, reader: Reader, objective: ObjectiveOptions
) -> dict[str, None]:
    """The same as notes, of a command that goes on without an evaluation."""
    told = [advised(error, command, reader, objective) for error in missing]
    return {f"no columns of the update: {error}": None for error in told}


def _typed(command: str, paths: Sequence[str]) -> str:
    """The command as it was typed, with all its flags; without them where that is long."""
    line = command_line()
    if line.startswith(f"grpo {command} ") and len(line) <= _LONG:
        return line
    return f"grpo {command} {shlex.join(paths) if len(paths) <= _FEW else 'FILE…'}"


def _ways(named: str | None) -> list[str]:
    """The row that the records name, or one without a KL; and the default without its KL."""
    if not named:
        return ["--beta 0", "-v dapo (which has none)"]
    flags = " --beta 0" if "beta" in plan(named).takes() else ""
    return [f"-v {named}{flags} (as the records name it)", "--beta 0"]
