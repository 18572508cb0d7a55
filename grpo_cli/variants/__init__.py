"""The registry of choices and rows, and the plan that flags make of them."""

from grpo_cli.variants.registry import (
    EARLIER,
    NAMES,
    STAGES,
    VARIANTS,
    Variant,
    bind,
    changed,
    framework_of,
)

__all__ = ["EARLIER", "NAMES", "STAGES", "VARIANTS", "Variant", "bind", "changed", "framework_of"]
