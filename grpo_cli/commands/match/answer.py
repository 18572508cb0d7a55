"""The answer as ``--json`` shows it."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_cli.commands.match.candidate import Candidate
from grpo_cli.commands.match.question import LoggedNumber
from grpo_cli.commands.match.search import Answer, Released
from grpo_cli.engine.chunk import Chunk
from grpo_cli.errors import GrpoError
from grpo_cli.hyperparameters import Value
from grpo_cli.objective.signature import Parts
from grpo_cli.variants.plan import Plan, plan

_FLIPPED = {"loss": "objective", "objective": "loss"}


def document(
    answer: Answer,
    chunk: Chunk,
    places: Sequence[str],
    targets: Sequence[LoggedNumber],
    of: Sequence[int],
) -> dict[str, Any]:
    """The whole answer.

    Args:
        answer: what was found.
        chunk: the first records.
        places: the words of a command line that read the data.
        targets: the numbers that were asked for.
        of: how many numbers, and how many records they were logged of.
    """
    target = targets[0]

    def rows(found: Sequence[Candidate]) -> list[dict[str, Any]]:
        return [described(one, chunk, places, target) for one in found]

    return {
        "target": target.value,
        "target_of": target.name,
        "tolerance": target.half,
        "rtol": target.rtol if math.isfinite(target.rtol) else None,
        "targets": {one.name: one.value for one in targets},
        "questions": list(of),
        "matches": rows(answer.matches),
        "ambiguous": answer.ambiguous,
        "match_count": len(answer.matches),
        "chance_hits": answer.chance,
        "by_chance": answer.by_chance,
        "reproduced": answer.reproduced,
        "tell_apart": list(answer.tell_apart),
        "nearest": rows(answer.nearest),
        "tried": answer.tried,
        "released": _released(answer.released, rows),
        "not_tried": dict(answer.reasons),
    }


def _released(
    released: Released, rows: Callable[[Sequence[Candidate]], list[dict[str, Any]]]
) -> dict[str, Any]:
    """What the rows give as they stand; those that could not be evaluated in the end are null."""
    both = {"nearest": released.nearest, "recorded": released.recorded}
    known = {name: one for name, one in both.items() if one is not None and one.totals is not None}
    found = {name: rows([one])[0] for name, one in known.items()}
    return {"tried": released.tried, **dict.fromkeys(both), **found}


def described(
    one: Candidate, chunk: Chunk, places: Sequence[str], target: LoggedNumber
) -> dict[str, Any]:
    """A candidate: what it is, what it gives, and the command that gives that."""
    made = pruned(one.plan, chunk)
    flipped = one.times < 0
    only = _FLIPPED[target.name] if flipped else target.name
    assert one.totals is not None
    return {
        "signature": one.totals.signature(),
        "value": one.value,
        "difference": one.difference,
        "command": command(made, places, only, abs(one.times)),
        "variants": one.rows,
        "factor": abs(one.times),
        "factor_meaning": one.factor.meaning or None,
        "sign_flipped": flipped,
        "same": list(dict.fromkeys(one.members)),
        "bits": one.bits,
        "hits_expected": None if math.isnan(one.chance) else one.chance,
        "would_need": dict(one.needs),
        "any_from": dict(one.unbound),
    }


# ---- command lines -------------------------------------------------------------------------------


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
