"""A tenth of the pairs of TRL's options (``trl_pairwise.py`` trains all), and what TRL refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from inspect import get_annotations
from pathlib import Path
from typing import Any

import pytest
import torch

from . import tiny
from .pairwise import seeded_part
from .trl_pairwise import (
    ARRAYS,
    GOLDEN,
    LEFT_OUT,
    REFUSED,
    SEED,
    Array,
    known_options,
    measured,
    pairs,
    refusals,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own
LIMIT = 1e-12
"""Relative to what cancels: everything is float64 here."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The same sums in every run, and no fight for cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: array.name)
def test_a_tenth_of_the_configurations_verifies(array: Array, model: str, tmp_path: Path) -> None:
    differing: list[Any] = []

    def keep(row: Any, document: Any) -> None:
        if not document["agrees"]:
            differing.append((row, document["records"]))

    rows = seeded_part(array.rows(), seed=SEED, share=0.1)
    found = measured(array, rows, model, tmp_path, keep)
    assert not differing
    for tally in found.values():
        assert not tally.differ
        assert tally.records
        assert max(tally.loss, tally.gradient, tally.advantages) <= LIMIT
        assert not tally.metrics


@pytest.mark.parametrize("array", ARRAYS[:2], ids=lambda array: array.name)
def test_every_option_has_values_or_a_reason_to_be_left_out(array: Array) -> None:
    left_out = {name for names in LEFT_OUT.values() for name in names}
    known = known_options(array)
    assert not known & left_out
    assert set(get_annotations(array.config)) <= known | left_out


def test_what_trl_refuses(model: str, tmp_path: Path) -> None:
    messages = dict(refusals(model, tmp_path))
    assert messages.keys() == REFUSED.keys()
    for name, (_, _, begins) in REFUSED.items():
        assert messages[name].startswith(begins)


def test_the_table_is_of_these_configurations() -> None:
    kept = json.loads(GOLDEN.read_text())["arrays"]
    for array in ARRAYS:
        rows, known = array.rows(), kept[array.name]
        met, total = pairs(array.options, rows)
        assert (met, total) == (known["pairs"], known["of"])
        assert len(rows) == sum(one["configurations"] for one in known["losses"].values())
        assert not any(one["differ"] or one["metrics"] for one in known["losses"].values())
