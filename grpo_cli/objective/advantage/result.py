"""What an advantage function returns: [R], or ``PerToken``."""

from __future__ import annotations

from typing import NamedTuple

from grpo_cli.batch import F64


class PerToken(NamedTuple):
    """Marks advantages that differ between the tokens of a response: values [N]."""

    values: F64
