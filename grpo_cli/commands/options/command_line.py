"""The command as it was typed, for what it makes to say."""

from __future__ import annotations

import shlex
import sys


def command_line() -> str:
    """``grpo`` and its arguments, as a shell takes them."""
    return shlex.join(["grpo", *sys.argv[1:]])
