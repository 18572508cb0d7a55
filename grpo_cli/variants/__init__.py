"""The table of variants, readable top to bottom in the modules of this package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from grpo_cli.frameworks.areal.rows import AREAL
from grpo_cli.frameworks.ms_swift.rows import TRL_FAMILY
from grpo_cli.frameworks.nemo_rl.rows import NEMO_RL
from grpo_cli.frameworks.open_instruct.rows import OPEN_INSTRUCT
from grpo_cli.frameworks.openrlhf.rows import OPENRLHF
from grpo_cli.frameworks.prime_rl.rows import PRIME_RL
from grpo_cli.frameworks.roll.rows import ROLL
from grpo_cli.frameworks.skyrl.rows import SKYRL
from grpo_cli.frameworks.slime.rows import SLIME
from grpo_cli.frameworks.tinker.rows import TINKER
from grpo_cli.frameworks.trl.rows import TRL
from grpo_cli.frameworks.verl.rows import VERL
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.objective import bind
from grpo_cli.objective.row import Row, Use
from grpo_cli.papers.advantage import ADVANTAGE_PAPERS
from grpo_cli.papers.basics import PAPERS
from grpo_cli.papers.correction import CORRECTION_PAPERS
from grpo_cli.papers.surrogate import SURROGATE_PAPERS

Variant = Row[Bound]

_ROWS: Mapping[str, Row[Use]] = {
    **PAPERS,
    **SURROGATE_PAPERS,
    **ADVANTAGE_PAPERS,
    **CORRECTION_PAPERS,
    **TRL,
    **TRL_FAMILY,
    **VERL,
    **SKYRL,
    **ROLL,
    **OPENRLHF,
    **SLIME,
    **NEMO_RL,
    **AREAL,
    **PRIME_RL,
    **OPEN_INSTRUCT,
    **TINKER,
}


def _bound(row: Row[Use]) -> Variant:
    """The row with its names bound to functions."""
    named = {field.name: getattr(row, field.name) for field in fields(row)}
    found: dict[str, Any] = {
        stage: bind(stage, use.name, **use.values)
        for stage, use in named.items()
        if isinstance(use, Use)
    }
    return replace(row, **found)  # type: ignore[return-value]


VARIANTS: Mapping[str, Variant] = {name: _bound(row) for name, row in _ROWS.items()}
"""Every variant by name. A name without a slash follows a paper; one with a slash reproduces a
released framework."""

NAMES: Mapping[str, str] = {
    **{name: name for name in VARIANTS},
    **{alias: name for name, row in VARIANTS.items() for alias in row.aliases},
}
"""Every name that a variant answers to, and the one it is listed under."""

__all__ = ["NAMES", "VARIANTS", "Variant"]
