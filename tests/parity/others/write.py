"""Writes tests/golden/others.json.

``cd tests && python -m parity.others.write OWNER/NAME=CLONE... NAME=WHEEL...`` with a git clone,
which may be bare, of each repository of ``framework_sources.COMMITS``, and each wheel. What ran of
sources that are not given stays as it was written.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..batches import Ragged, apart, far, masked_ends, masked_whole, ragged, scored_twice
from ..framework_sources import COMMITS, Clones, in_float64
from .areal import areal, areal_project
from .areal_advantages import areal_advantages, areal_ends
from .inputs import SIZE, Case, Inputs, Loss
from .liger import liger
from .liger_triton import liger_triton
from .ms_swift import ms_swift, ms_swift_earlier, ms_swift_groups
from .ms_swift_advantages import ms_swift_advantages, ms_swift_gdpo
from .nemo_rl import nemo_advantages, nemo_gdpo, nemo_rl
from .open_instruct import open_instruct
from .openrlhf import openrlhf, openrlhf_advantages
from .papers import dppo, fipo, maxrl
from .prime_rl import prime_rl, prime_rl_advantages, prime_rl_earlier
from .roll import roll
from .skyrl import skyrl, skyrl_advantages
from .slime import slime, slime_advantages
from .tinker import tinker, tinker_advantages
from .trl_earlier import trl_earlier
from .unsloth import unsloth, unsloth_earlier
from .verl_earlier import verl_earlier

NAMED = ("framework", "variant", "stages", "hyperparameters", "batch")
"""What a case is told by."""

GOLDEN = Path(__file__).parent.parent.parent / "golden" / "others.json"
BATCHES = {kind: ragged(5, kind) for kind in ("usual", "near", "extreme", "hollow")}
BATCHES["apart"] = apart(BATCHES["usual"])
FAR = {"far": far(5)}
"""For sequence ratios, on which a small number in a denominator shows."""
GROUPED = {"groups": ragged(5, "usual", group_size=SIZE)}
"""For advantages."""
GROUPED["wide"] = replace(apart(GROUPED["groups"]), rewards=GROUPED["groups"].rewards * 40.0)
LABELLED = masked_whole(GROUPED["groups"])
"""Equal groups, the first response of each without a token that counts."""

ENDS = {"ends": masked_ends(GROUPED["groups"])}
"""For an advantage that depends on whether a response's last token is masked."""
SEVERAL = {"several": scored_twice(GROUPED["groups"])}
"""For advantages of several reward functions."""
NULLS = {"nulls": scored_twice(GROUPED["groups"], nulls=True)}
"""The same where one of them gave none to some of the responses."""

FRAMEWORKS = (
    *(openrlhf, slime, nemo_rl, areal, prime_rl, open_instruct, tinker),
    *(skyrl, areal_project, roll),
    *(trl_earlier, ms_swift, ms_swift_earlier, unsloth, unsloth_earlier, verl_earlier),
    *(fipo, dppo, liger, liger_triton, prime_rl_earlier),
)

ADVANTAGES = (
    *(openrlhf_advantages, slime_advantages, nemo_advantages, areal_advantages),
    *(tinker_advantages, skyrl_advantages, maxrl, prime_rl_advantages, ms_swift_advantages),
)


def evaluated(batch: Ragged, loss: Loss) -> dict[str, Any]:
    """The loss, and ∂(−loss)/∂log π_θ per response, of the tokens that count."""
    inputs = Inputs(batch)
    value = loss(inputs)
    value.backward()
    return {"loss": value.item(), "gradient": rows_of(batch, -inputs.new.grad)}


def rows_of(batch: Ragged, table: torch.Tensor) -> list[list[float]]:
    """The tokens that count, to 13 digits."""
    rows = batch.counted(table.detach())
    return [[float(f"{x:.12e}") for x in row.tolist()] for row in rows]


def described(case: Case) -> dict[str, Any]:
    """Whose case it is, and what of ours should give the same."""
    framework, variant, stages, values, _ = case
    return {
        "framework": framework,
        "variant": variant,
        "stages": stages,
        "hyperparameters": values,
    }


def made() -> Iterator[tuple[str, Any, dict[str, Ragged]]]:
    """What yields cases, and the batches that they run on."""
    for maker in FRAMEWORKS:
        yield "cases", maker, BATCHES
    yield "cases", ms_swift_groups, {"labelled": LABELLED}
    for maker in ADVANTAGES:
        yield "advantages", maker, GROUPED
    yield "advantages", areal_ends, ENDS
    yield "advantages", nemo_gdpo, SEVERAL
    yield "advantages", ms_swift_gdpo, SEVERAL | NULLS


def _ran(clones: Clones) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each case of the sources that are given, on each of its batches."""
    for kind, maker, batches in made():
        try:
            for case in maker(clones):
                more = FAR if kind == "cases" and "gspo" in case[1] else {}
                for name, batch in (batches | more).items():
                    yield kind, described(case) | {"batch": name} | _outcome(kind, batch, case[-1])
        except KeyError as missing:
            if missing.args[0] not in COMMITS:  # else it is a source that is not given
                raise


def _outcome(kind: str, batch: Ragged, function: Loss) -> dict[str, Any]:
    if kind == "cases":
        return evaluated(batch, function)
    return {"advantages": rows_of(batch, function(Inputs(batch)))}


def _merged(
    before: list[dict[str, Any]], ran: list[dict[str, Any]], given: Collection[str]
) -> list[dict[str, Any]]:
    """What ran in the place of what it was before, and what is new behind it."""
    fresh = {json.dumps([entry[name] for name in NAMED]): entry for entry in ran}
    kept = []
    for entry in before:
        if entry["framework"] not in given:
            kept += [entry] if entry["framework"] in COMMITS else []  # else it is named no more
        elif (again := fresh.pop(json.dumps([entry[name] for name in NAMED]), None)) is not None:
            kept.append(again)
    return [*kept, *fresh.values()]


def golden(clones: Clones, before: dict[str, Any]) -> dict[str, Any]:
    """The whole document."""
    ran = [*_ran(clones)]
    found = {
        kind: _merged(before[kind], [entry for name, entry in ran if name == kind], clones.paths)
        for kind in ("cases", "advantages")
    }
    graded = GROUPED | ENDS | SEVERAL | NULLS
    return {
        "provenance": "tests/parity/others: the frameworks' own functions, executed in "
        f"float64 with torch {torch.__version__}",
        "commits": COMMITS,
        "reduced": "slime's and open-instruct's denominators are written out there",
        "batches": {
            **{kind: batch.record() for kind, batch in (BATCHES | FAR).items()},
            "labelled": LABELLED.record(),
            **{kind: batch.record(rewards=True) for kind, batch in graded.items()},
        },
        **found,
    }


if __name__ == "__main__":
    in_float64()
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    clones = Clones({name: Path(path) for name, path in given.items()})
    document = golden(clones, json.loads(GOLDEN.read_text()))
    text = json.dumps(document, separators=(",", ":")).replace("},{", "},\n{")
    GOLDEN.write_text(text + "\n")
