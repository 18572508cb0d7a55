"""A tenth of the covering array over verl's settings; ``GRPO_PART`` picks another one.

The whole is ``python -m parity.verl_pairwise``.
"""

from __future__ import annotations

import json
import os

from .pairwise import seeded_part
from .verl_pairwise import (
    GOLDEN,
    RAISES,
    STEPS,
    configurations,
    every_pair,
    judged,
    pairs,
    raising,
    train,
)


def test_a_tenth_of_the_array_agrees_with_verl() -> None:
    part = seeded_part(configurations(), seed=int(os.environ.get("GRPO_PART", "0")), share=0.1)
    result = judged(part)
    assert not result.raised
    assert result.differing == []
    for loss, row in result.losses.items():
        assert row["records"] >= STEPS * row["configurations"], loss
        assert not row["metrics"], loss


def test_every_pair_is_in_the_array_that_the_page_tells_of() -> None:
    found, written = configurations(), json.loads(GOLDEN.read_text())
    array = written["arrays"]["actor"]
    assert (array["pairs"], array["of"]) == (len(pairs(found)), every_pair())
    assert sum(row["configurations"] for row in array["losses"].values()) == len(found)
    assert not sum(row["differ"] for row in array["losses"].values())


def test_a_setting_without_which_verl_raises(tmp_path) -> None:  # type: ignore[no-untyped-def]
    one = raising()
    assert RAISES.items() <= one.items()
    ran = train(one, tmp_path, 0)
    assert ran.raised == (
        "ValueError: policy_loss.dro_beta must be a positive value when using DRO"
    )


def test_ratios_move_between_the_steps(tmp_path) -> None:  # type: ignore[no-untyped-def]
    one = next(one for one in configurations() if one["loss_mode"] == "vanilla")
    ran = train(one, tmp_path, 0)
    first, *_, last = [record for record in ran.records if "hook" not in record["id"]]
    assert first["log_probs_new"][0].tolist() == first["log_probs_old"][0].tolist()
    moved = abs(last["log_probs_new"][0] - last["log_probs_old"][0])
    assert moved.max() > 0.05
