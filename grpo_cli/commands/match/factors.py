"""What a loss may have been multiplied by."""

from __future__ import annotations

from dataclasses import replace

from grpo_cli.commands.match.fit import (
    Factor,
)
from grpo_cli.commands.match.space.changes import STEPS
from grpo_cli.engine.chunk import Chunk
from grpo_cli.variants.plan import Plan

_SAID = ("gradient_accumulation_steps", "num_processes", "dp_size", "steps_per_generation")


def factors_of(base: Plan, chunk: Chunk) -> list[Factor]:
    """Signs, and factors with a meaning: what the records say, or else usual accumulation."""
    said = {
        name: value
        for name in _SAID
        if isinstance(value := {**chunk.settings, **base.flags}.get(name), int) and value >= 1
    }
    counts = {value: (1.0, name) for name, value in said.items() if value > 1}
    if len(said) > 1:
        products = {a * b for a in said.values() for b in said.values()} - counts.keys() - {1}
        counts |= {value: (3.0, " × ".join(said)) for value in sorted(products)}
    if "gradient_accumulation_steps" not in said:
        usual = {count: (bits, "accumulated micro-batches") for count, bits in STEPS.items()}
        counts = usual | counts
    factors = [Factor(1.0)]
    for count, (bits, meaning) in counts.items():
        factors.append(Factor(1.0 / count, bits, f"÷ {count} ({meaning})"))
        factors.append(Factor(float(count), bits + 1.0, f"× {count} ({meaning})"))
    flipped = [replace(one, times=-one.times, bits=one.bits + 2.0) for one in factors]
    return [*factors, *flipped]
