"""Writes tests/golden/others.json and authors.json.

``cd tests && python -m parity.others.write OWNER/NAME=CLONE... NAME=WHEEL...`` with a git clone,
which may be bare, of repositories of ``framework_sources.COMMITS`` and ``AUTHORS``, and wheels.
What ran of sources that are not given stays as it was written.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ..agreement import GOLDEN
from ..batches import Ragged, apart, far, masked_ends, masked_whole, ragged, scored_twice
from ..framework_sources import AUTHORS, COMMITS, Clones, in_float64
from .areal import areal, areal_advantages, areal_ends, areal_project
from .earlier import trl_earlier, verl_earlier
from .inputs import SIZE, Case, Inputs, Loss
from .liger import liger, liger_triton
from .ms_swift import (
    ms_swift,
    ms_swift_advantages,
    ms_swift_earlier,
    ms_swift_gdpo,
    ms_swift_groups,
)
from .nemo_rl import nemo_advantages, nemo_gdpo, nemo_rl
from .open_instruct import open_instruct
from .openrlhf import openrlhf, openrlhf_advantages
from .papers import bapo, ce_gppo, dcpo, dppo, filtered, fipo, first_step, maxrl, minirl, signed
from .prime_rl import prime_rl, prime_rl_advantages, prime_rl_earlier
from .roll import roll
from .skyrl import skyrl, skyrl_advantages
from .slime import slime, slime_advantages
from .tinker import tinker, tinker_advantages
from .unsloth import unsloth, unsloth_earlier

NAMED = ("framework", "variant", "stages", "hyperparameters", "batch")
"""What identifies a case."""

Batches = Mapping[str, Ragged]
Maker = Callable[[Clones], Iterator[Case]]


def batches(seed: int) -> dict[str, Ragged]:
    return {kind: ragged(seed, kind) for kind in ("usual", "near", "extreme", "hollow")}


BATCHES = batches(5)
BATCHES["apart"] = apart(BATCHES["usual"])
FAR = {"far": far(5)}
"""For sequence ratios, on which a small number in a denominator shows."""
GROUPED = {"groups": ragged(5, "usual", group_size=SIZE)}
"""For advantages."""
GROUPED["wide"] = replace(apart(GROUPED["groups"]), rewards=GROUPED["groups"].rewards * 40.0)
LABELLED = {"labelled": masked_whole(GROUPED["groups"])}
"""Equal groups, the first response of each without a token that counts."""
ENDS = {"ends": masked_ends(GROUPED["groups"])}
"""For an advantage that depends on whether a response's last token is masked."""
SEVERAL = {"several": scored_twice(GROUPED["groups"])}
"""For advantages of several reward functions."""
NULLS = {"nulls": scored_twice(GROUPED["groups"], nulls=True)}
"""Where the second gave none to some of the responses."""

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


def _spread(batch: Ragged) -> Ragged:
    """Log ratios three times as great: what moves BAPO's bounds."""
    new, old = batch.columns["log_probs_new"], batch.columns["log_probs_old"]
    far = [np.minimum(n - 3.0 * (n - o), -1e-3) for n, o in zip(new, old, strict=True)]
    return replace(batch, columns=batch.columns | {"log_probs_old": far})


def _verdicts() -> Ragged:
    """Rewards 1 and 0; every token counts, as the authors' code wants it."""
    batch = ragged(11, "usual", group_size=SIZE).unmasked()
    ones = (np.arange(batch.count) * 7 % 5 < 2).astype(np.float64)
    filled = [row if len(row) else np.ones(1, np.int64) for row in batch.mask]
    assert all(len(row) for row in batch.mask), "no response is empty"
    return replace(batch, rewards=ones, mask=filled)


def _untied() -> Ragged:
    """Groups whose responses all have lengths and rewards per token of their own."""
    for seed in range(1000):
        batch = ragged(seed, "usual", group_size=SIZE).unmasked()
        lengths = np.array([len(row) for row in batch.mask])
        rows = lengths.reshape(-1, SIZE)
        scores = (batch.rewards / np.maximum(lengths, 1)).reshape(-1, SIZE)
        if lengths.all() and all(len({*row}) == SIZE for row in [*rows.tolist(), *scores.tolist()]):
            return batch
    raise AssertionError("no such batch")


OF_AUTHORS = batches(11)
OF_AUTHORS["spread"] = _spread(ragged(12, "usual"))
WEIGHED = {kind: batch for kind, batch in OF_AUTHORS.items() if kind != "extreme"}
"""For MiniRL, whose weights are capped at e^20."""
VERDICTS, UNTIED = {"verdicts": _verdicts()}, {"untied": _untied()}
"""For an advantage by verdicts of 1 and 0, and for a filter."""


class Golden(NamedTuple):
    """A file: its sources' commits, what it says of itself, and what runs on which batches."""

    name: str
    commits: Mapping[str, str]
    provenance: str
    reduced: str
    cases: list[tuple[Maker, Batches]]
    advantages: list[tuple[Maker, Batches]]


DOCUMENTS = (
    Golden(
        "others",
        COMMITS,
        "tests/parity/others: the frameworks' own functions, executed in float64 with torch",
        "slime's and open-instruct's denominators are written out there",
        [*((maker, BATCHES) for maker in FRAMEWORKS), (ms_swift_groups, LABELLED)],
        [
            *((maker, GROUPED) for maker in ADVANTAGES),
            *((areal_ends, ENDS), (nemo_gdpo, SEVERAL), (ms_swift_gdpo, SEVERAL | NULLS)),
        ],
    ),
    Golden(
        "authors",
        AUTHORS,
        "tests/parity/others: the papers' functions, executed in float64 with torch",
        "MiniRL's sum over tokens is written out there, and its weight not capped",
        [*((maker, OF_AUTHORS) for maker in (ce_gppo, dcpo, bapo)), (minirl, WEIGHED)],
        [(signed, VERDICTS), (first_step, VERDICTS), (filtered, UNTIED)],
    ),
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


def _ran(
    clones: Clones, kind: str, makers: list[tuple[Maker, Batches]]
) -> Iterator[dict[str, Any]]:
    """Each case of the sources that are given, on each of its batches."""
    for maker, batches in makers:
        try:
            for case in maker(clones):
                more = FAR if batches is BATCHES and "gspo" in case[1] else {}
                for name, batch in {**batches, **more}.items():
                    yield described(case) | {"batch": name} | _outcome(kind, batch, case[-1])
        except KeyError as missing:
            if missing.args[0] not in COMMITS | AUTHORS:  # else it is a source that is not given
                raise


def _outcome(kind: str, batch: Ragged, function: Loss) -> dict[str, Any]:
    if kind == "cases":
        return evaluated(batch, function)
    return {"advantages": rows_of(batch, function(Inputs(batch)))}


def _merged(
    before: list[dict[str, Any]],
    ran: list[dict[str, Any]],
    given: Collection[str],
    known: Collection[str],
) -> list[dict[str, Any]]:
    """What ran in the place of what it was before, and what is new behind it."""
    fresh = {json.dumps([entry[name] for name in NAMED]): entry for entry in ran}
    kept = []
    for entry in before:
        if entry["framework"] not in given:
            kept += [entry] if entry["framework"] in known else []  # else it is named no more
        elif (again := fresh.pop(json.dumps([entry[name] for name in NAMED]), None)) is not None:
            kept.append(again)
    return [*kept, *fresh.values()]


def golden(made: Golden, clones: Clones, before: dict[str, Any]) -> dict[str, Any]:
    """The whole document."""
    graded = {name: batch for _, batches in made.advantages for name, batch in batches.items()}
    plain = {name: batch for _, batches in made.cases for name, batch in batches.items()}
    plain |= FAR if made.commits is COMMITS else {}
    records = {name: batch.record() for name, batch in plain.items()}
    records |= {name: batch.record(rewards=True) for name, batch in graded.items()}
    found = {
        kind: _merged(before[kind], [*_ran(clones, kind, makers)], clones.paths, made.commits)
        for kind, makers in (("cases", made.cases), ("advantages", made.advantages))
    }
    return {
        "provenance": f"{made.provenance} {torch.__version__}",
        "commits": made.commits,
        "reduced": made.reduced,
        "batches": {name: records[name] for name in [*before["batches"], *records]},
        **found,
    }


if __name__ == "__main__":
    in_float64()
    paths = dict(argument.split("=", 1) for argument in sys.argv[1:])
    clones = Clones({name: Path(path) for name, path in paths.items()})
    for made in DOCUMENTS:
        path = GOLDEN / f"{made.name}.json"
        document = golden(made, clones, json.loads(path.read_text()))
        text = json.dumps(document, separators=(",", ":")).replace("},{", "},\n{")
        path.write_text(text + "\n")
