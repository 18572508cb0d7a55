"""A plan as the command line that evaluates it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

from grpo_cli.engine.chunk import Chunk
from grpo_cli.errors import GrpoError
from grpo_cli.hyperparameters import Value
from grpo_cli.objective.signature import Parts
from grpo_cli.variants.plan import Plan, plan


def command(made: Plan, paths: Sequence[str], only: str, times: float) -> str:
    """``grpo eval … --only loss``, and what multiplies the number where a factor is wanted."""
    words = ["grpo", "eval", *paths, *made.words]
    line = shlex.join([*words, "--level", "batch", "--only", only])
    line = os.fsencode(line).decode("utf-8", "backslashreplace")
    if times == 1.0:
        return line
    scale = f"* {times:g}" if times > 1.0 else f"/ {1.0 / times:g}"
    return f"""{line} | awk '{{printf "%.17g\\n", $1 {scale}}}'"""


def pruned(made: Plan, chunk: Chunk) -> Plan:
    """The plan without the flags that say what the variant and the records say anyway."""
    wanted = _parts(made, chunk)
    for name in list(made.swapped):
        stages = {stage: choice for stage, choice in made.swapped.items() if stage != name}
        made = _fewer(made, stages, made.flags, chunk, wanted)
    for name in list(made.flags):
        flags = {flag: value for flag, value in made.flags.items() if flag != name}
        made = _fewer(made, made.swapped, flags, chunk, wanted)
    return made


def _fewer(
    made: Plan, stages: Mapping[str, str], flags: Mapping[str, Value], chunk: Chunk, wanted: Parts
) -> Plan:
    try:
        less = plan(made.variant, stages=stages, hyperparameters=flags, batch=made.batch)
        return less if _parts(less, chunk) == wanted else made
    except GrpoError:
        return made


def _parts(made: Plan, chunk: Chunk) -> Parts:
    return chunk.objective(made).parts
