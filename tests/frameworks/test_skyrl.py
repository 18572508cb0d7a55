"""What SkyRL's losses returned that tests/golden/others.json has no case of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from files import expressions

from grpo_cli import VARIANTS, evaluate

RECORD: dict[str, Any] = {
    "log_probs_old": [[-1.0, -0.5, -2.0], [-0.7, -3.0, -0.2]],
    "log_probs_new": [[-0.6, -0.55, -2.9], [-0.9, -1.4, -0.2]],
    "log_probs_rollout": [[-1.1, -0.45, -2.05], [-0.6, -3.3, -0.2]],
    "log_probs_ref": [[-0.8, -0.6, -2.5], [-1.0, -2.0, -0.2]],
    "advantages": [1.2, -0.8],
    "mask": [[1, 1, 1], [1, 1, 0]],
}
TEXT = Path(__file__).with_name("skyrl.txt")
GOLDEN = {f"skyrl/{name}" for name in re.findall(r'% means\("(\w+)"', TEXT.read_text())}


def loss(variant: str, aggregate: str, record: dict[str, Any] = RECORD, **more: float) -> float:
    """−J without the KL."""
    found = evaluate(record, variant, stages={"aggregate": aggregate}, **more)
    return -float(found.total["policy"])


def near(found: float, wanted: float) -> str:
    close = found == pytest.approx(wanted, rel=1e-7, abs=1e-8)
    return "same" if close else f"{found}, not {wanted}"


def test_skyrl() -> None:
    expressions(TEXT, dict(globals()), by_hand=True)


def test_every_row_is_marked_as_it_was_checked() -> None:
    for name, row in VARIANTS.items():
        if name.startswith(("skyrl/", "roll/")):
            assert row.checked in ("executed", "golden" if name in GOLDEN else "read"), name
