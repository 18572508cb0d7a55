"""Writes tests/golden/others.json.

``cd tests && python -m parity.others.write OWNER/NAME=CLONE... NAME=WHEEL...`` with a git clone,
which may be bare, of each repository of ``framework_sources.COMMITS``, and each wheel.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..batches import Ragged, far, masked_whole, ragged
from ..framework_sources import COMMITS, Clones, in_float64
from .areal import areal, areal_advantages, areal_project
from .inputs import SIZE, Case, Inputs, Loss
from .liger import liger
from .ms_swift import ms_swift, ms_swift_earlier, ms_swift_groups
from .nemo_rl import nemo_advantages, nemo_rl
from .open_instruct import open_instruct
from .openrlhf import openrlhf, openrlhf_advantages, openrlhf_wheel
from .papers import dppo, fipo, maxrl
from .prime_rl import prime_rl, prime_rl_advantages
from .roll import roll
from .skyrl import skyrl, skyrl_advantages
from .slime import slime, slime_advantages
from .tinker import tinker, tinker_advantages
from .trl_earlier import trl_earlier
from .unsloth import unsloth, unsloth_earlier
from .verl_earlier import verl_earlier

GOLDEN = Path(__file__).parent.parent.parent / "golden" / "others.json"
BATCHES = {kind: ragged(5, kind) for kind in ("usual", "near", "extreme", "hollow")}
FAR = {"far": far(5)}
"""For sequence ratios, on which a small number in a denominator shows."""
GROUPED = {"groups": ragged(5, "usual", group_size=SIZE)}
"""For advantages."""
LABELLED = masked_whole(GROUPED["groups"])
"""Equal groups, the first response of each without a token that counts."""


FRAMEWORKS = (
    *(openrlhf, openrlhf_wheel, slime, nemo_rl, areal, prime_rl, open_instruct, tinker),
    *(skyrl, areal_project, roll),
    *(trl_earlier, ms_swift, ms_swift_earlier, unsloth, unsloth_earlier, verl_earlier),
    *(fipo, dppo, liger),
)

ADVANTAGES = (
    *(openrlhf_advantages, slime_advantages, nemo_advantages, areal_advantages),
    *(tinker_advantages, skyrl_advantages, maxrl, prime_rl_advantages),
)


def cases(clones: Clones) -> Iterator[Case]:
    """Every case of every framework."""
    for framework in FRAMEWORKS:
        yield from framework(clones)


def advantage_cases(clones: Clones) -> Iterator[Case]:
    """Every case of every framework that gives advantages [R, T]."""
    for framework in ADVANTAGES:
        yield from framework(clones)


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


def golden(clones: Clones) -> dict[str, Any]:
    """The whole document."""
    found = [
        {**described(case), "batch": kind, **evaluated(batch, case[-1])}
        for case in cases(clones)
        for kind, batch in (BATCHES | (FAR if "gspo" in case[1] else {})).items()
    ]
    found += [
        {**described(case), "batch": "labelled", **evaluated(LABELLED, case[-1])}
        for case in ms_swift_groups(clones)
    ]
    advantages = [
        {**described(case), "batch": kind, "advantages": rows_of(batch, case[-1](Inputs(batch)))}
        for case in advantage_cases(clones)
        for kind, batch in GROUPED.items()
    ]
    return {
        "provenance": "tests/parity/others: the frameworks' own functions, executed in "
        f"float64 with torch {torch.__version__}",
        "commits": COMMITS,
        "reduced": "slime's and open-instruct's denominators are written out there",
        "batches": {
            **{kind: batch.record() for kind, batch in (BATCHES | FAR).items()},
            "labelled": LABELLED.record(),
            **{kind: batch.record(rewards=True) for kind, batch in GROUPED.items()},
        },
        "cases": found,
        "advantages": advantages,
    }


if __name__ == "__main__":
    in_float64()
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    document = golden(Clones({name: Path(path) for name, path in given.items()}))
    text = json.dumps(document, separators=(",", ":")).replace("},{", "},\n{")
    GOLDEN.write_text(text + "\n")
