"""Every paper's row against its formula in 50 digits: J, and the gradient along a direction."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
from files import MORE, each
from mpmath import mpf
from rows import on

from exactness.cases import moved, plain, random_batch
from exactness.formulas import GIVEN, ROWS, SHIFTED, UndecidedError
from grpo_cli import VARIANTS

BATCHES = int(os.environ.get("GRPO_BATCHES", "8" if MORE else "4"))  # .ci/nightly tries 100
STEP = mpf(10) ** -15  # its square, the error of a central difference, is far below a double's


def test_every_row_of_a_paper_has_its_formula():
    assert set(ROWS) == {name for name in VARIANTS if "/" not in name}


@each("name", ROWS)
def test_row_is_the_paper_s_formula(name: str):
    compared = seed = 0
    while compared < BATCHES:
        try:
            compare(name, seed)
            compared += 1
        except UndecidedError:
            assert seed < 1.2 * BATCHES + 5
        seed += 1


def compare(name: str, seed: int) -> None:
    batch = random_batch(seed)
    if name in SHIFTED:
        batch = replace(batch, rewards=batch.rewards - 1.5)  # good and bad ones
    case = plain(batch)
    wanted = ROWS[name](case)
    found = on(batch, name, **GIVEN.get(name, {}))
    scale = float(np.abs(found.contribution).sum())
    assert abs(mpf(float(found.record_objective[0])) - wanted) <= 1e-13 * scale, seed

    direction = np.random.default_rng(seed).normal(size=batch.responses.total).tolist()
    above, below = (ROWS[name](moved(case, direction, step)) for step in (STEP, -STEP))
    slope = (above - below) / (2 * STEP)
    parts = [mpf(g) * mpf(v) for g, v in zip(found.gradient.tolist(), direction, strict=True)]
    assert abs(sum(parts, mpf(0)) - slope) <= 1e-13 * sum(map(abs, parts)) + 1e-25, seed
