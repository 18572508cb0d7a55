"""What is said when a recording ends early: once, and never as an error of the training."""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from pathlib import Path


def warn(path: Path, error: BaseException, written: int) -> None:
    """Warns that ``error`` ended the recording to ``path`` after so many records.

    A training script may make errors of warnings; this one goes to standard error then.
    """
    records = "1 record" if written == 1 else f"{written} records"
    message = f"grpo: {path}: {reason(error)}; recording ends after {records}, training goes on"
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=3)
    except Warning:
        with suppress(OSError, ValueError):  # standard error may be closed
            sys.stderr.write(message + "\n")


def reason(error: BaseException) -> str:
    """An error in few words; what the system says of a file is enough by itself."""
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    said = str(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
