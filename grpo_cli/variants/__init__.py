"""The table of variants, readable top to bottom in the modules of this package."""

from __future__ import annotations

from collections.abc import Mapping

from grpo_cli.variants.areal import AREAL
from grpo_cli.variants.nemo_rl import NEMO_RL
from grpo_cli.variants.open_instruct import OPEN_INSTRUCT
from grpo_cli.variants.openrlhf import OPENRLHF
from grpo_cli.variants.papers import PAPERS
from grpo_cli.variants.papers_advantage import ADVANTAGE_PAPERS
from grpo_cli.variants.papers_correction import CORRECTION_PAPERS
from grpo_cli.variants.papers_surrogate import SURROGATE_PAPERS
from grpo_cli.variants.prime_rl import PRIME_RL
from grpo_cli.variants.roll import ROLL
from grpo_cli.variants.skyrl import SKYRL
from grpo_cli.variants.slime import SLIME
from grpo_cli.variants.tinker import TINKER
from grpo_cli.variants.trl import TRL
from grpo_cli.variants.trl_family import TRL_FAMILY
from grpo_cli.variants.variant import Variant
from grpo_cli.variants.verl import VERL

VARIANTS: Mapping[str, Variant] = {
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
"""Every variant by name. A name without a slash follows a paper; one with a slash reproduces a
released framework."""

NAMES: Mapping[str, str] = {
    **{name: name for name in VARIANTS},
    **{alias: name for name, row in VARIANTS.items() for alias in row.aliases},
}
"""Every name that a variant answers to, and the one it is listed under."""

__all__ = ["NAMES", "VARIANTS", "Variant"]
