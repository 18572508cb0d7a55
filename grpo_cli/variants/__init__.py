"""The table of variants, readable top to bottom in the modules of this package."""

from __future__ import annotations

from collections.abc import Mapping

from grpo_cli.variants.papers import PAPERS
from grpo_cli.variants.variant import Variant

VARIANTS: Mapping[str, Variant] = {**PAPERS}
"""Every variant by name. A name without a slash follows a paper; one with a slash reproduces a
released framework."""

NAMES: Mapping[str, str] = {
    **{name: name for name in VARIANTS},
    **{alias: name for name, row in VARIANTS.items() for alias in row.aliases},
}
"""Every name that a variant answers to, and the one it is listed under."""

__all__ = ["NAMES", "VARIANTS", "Variant"]
