"""A plan as the command line that evaluates it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from grpo_cli.variants.plan import Plan

_FLAGS = {"epsilon_low": "--epsilon-low", "epsilon_high": "--epsilon-high", "beta": "--beta"}


def command(plan: Plan, paths: Sequence[str], only: str, times: float = 1.0) -> str:
    """``grpo eval … --only loss``, and what multiplies the number where a factor is wanted."""
    words = ["grpo", "eval", *paths, "-v", plan.variant]
    for stage, choice in plan.swapped.items():
        words += [f"--{stage}", choice]
    for name, value in plan.flags.items():
        text = "null" if value is None else repr(value) if isinstance(value, float) else str(value)
        words += [_FLAGS[name], text] if name in _FLAGS else ["-p", f"{name}={text}"]
    if plan.batch != "input":
        words += ["--batch", plan.batch]
    line = shlex.join([*words, "--level", "batch", "--only", only])
    if times == 1.0:
        return line
    scale = f"* {times:g}" if times >= 1.0 else f"/ {1.0 / times:g}"
    return f"""{line} | awk '{{printf "%.17g\\n", $1 {scale}}}'"""
