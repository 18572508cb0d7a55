"""A tenth of the pairs of TRL's and verl's options, and what these refuse.

``python -m parity.trl_pairwise`` and ``parity.verl_pairwise`` train all; ``GRPO_PART`` picks
another tenth of verl's.
"""

from __future__ import annotations

import json
import os
from inspect import get_annotations
from pathlib import Path

import pytest
from trl import GRPOConfig, RLOOConfig

from .agreement import GOLDEN
from .pairwise import ERRORS, SEED, Array, judged, pairs, seeded_part
from .trl_pairwise import ARRAYS, LEFT_OUT, REFUSED, known_options, refusals
from .verl_pairwise import ACTOR, RAISES, RAISING, STEPS, raised, train

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own
LIMIT = 1e-12
"""Of TRL's numbers, relative to what cancels: everything is float64 there."""

EVERY = [("trl", array) for array in ARRAYS] + [("verl", ACTOR)]
IDS = [array.name for _, array in EVERY]


@pytest.mark.parametrize(("framework", "array"), EVERY, ids=IDS)
def test_a_tenth_of_the_configurations_verifies(
    framework: str, array: Array, tmp_path: Path
) -> None:
    is_trl = framework == "trl"
    seed = SEED if is_trl else int(os.environ.get("GRPO_PART", "0"))
    part = seeded_part(array.rows(), seed=seed, share=0.1)
    tallies, differing = judged(array, part, tmp_path)
    assert differing == []
    for loss, tally in tallies.items():
        assert tally.records >= (1 if is_trl else STEPS * tally.configurations), loss
        assert not tally.metrics, loss
        if is_trl:
            assert max(getattr(tally, name) for name in ERRORS) <= LIMIT, loss


@pytest.mark.parametrize(("framework", "array"), EVERY, ids=IDS)
def test_the_table_is_of_these_configurations(framework: str, array: Array) -> None:
    kept = json.loads((GOLDEN / f"{framework}_pairs.json").read_text())["arrays"][array.name]
    rows, losses = array.rows(), kept["losses"].values()
    assert pairs(array.options, rows) == (kept["pairs"], kept["of"])
    assert len(rows) == sum(loss["configurations"] for loss in losses)
    assert not any(loss["differ"] or loss["metrics"] for loss in losses)


@pytest.mark.parametrize(
    ("array", "config"), [*zip(ARRAYS[:2], (GRPOConfig, RLOOConfig), strict=True)], ids=IDS[:2]
)
def test_every_option_of_trl_has_values_or_a_reason_to_be_left_out(
    array: Array, config: type
) -> None:
    left_out = {name for names in LEFT_OUT.values() for name in names}
    known = known_options(array)
    assert not known & left_out
    assert set(get_annotations(config)) <= known | left_out


def test_what_trl_refuses(tmp_path: Path) -> None:
    messages = dict(refusals(tmp_path))
    assert messages.keys() == REFUSED.keys()
    for name, (_, _, begins) in REFUSED.items():
        assert messages[name].startswith(begins)


def test_a_setting_without_which_verl_raises(tmp_path: Path) -> None:
    assert RAISES.items() <= RAISING.items()
    error = "ValueError: policy_loss.dro_beta must be a positive value when using DRO"
    assert raised(tmp_path) == error


def test_ratios_move_between_the_steps_of_verl(tmp_path: Path) -> None:
    vanilla = next(row for row in ACTOR.rows() if row["loss_mode"] == "vanilla")
    records = train(vanilla, tmp_path, 0)
    first, *_, last = [record for record in records if "hook" not in record["id"]]
    assert first["log_probs_new"][0].tolist() == first["log_probs_old"][0].tolist()
    assert abs(last["log_probs_new"][0] - last["log_probs_old"][0]).max() > 0.05
