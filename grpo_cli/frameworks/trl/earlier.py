"""TRL before 1.10 where its number is not the newest release's."""

from __future__ import annotations

from dataclasses import replace

from grpo_cli.frameworks.framework import Change
from grpo_cli.frameworks.trl.rows import ROWS
from grpo_cli.objective.row import Row, Use, use

_WINDOW = ("trl/dapo", "trl/cispo", "trl/vespo")
_LOSSES = (
    *("trl/grpo", "trl/bnpo", "trl/dr_grpo", *_WINDOW),
    *("trl/sapo", "trl/luspo", "trl/gspo"),
)

CHANGES = (
    Change(
        since="1.9.1",
        what="dapo, cispo and vespo: num_items_in_batch is brought to one accumulation window "
        "(× gradient_accumulation_steps ÷ steps_per_generation); before, a step was too small "
        "where several are made of one generation batch.",
        rows=_WINDOW,
        before="1.9.0",
    ),
    Change(
        since="1.10.0",
        what="The KL is weighted by the ratio by default (use_bias_correction_kl). The entropy "
        "bonus of dapo, cispo and vespo is the mean over the micro-batch. luspo masks before its "
        "mean, so padding is out of its KL. max_completion_length is 512, not 256.",
        rows=_LOSSES,
        before="1.9.2",
    ),
)


def _unweighted(name: str) -> Row[Use]:
    """The row of 1.9.1 and 1.9.2."""
    row = ROWS[name]
    if name == "trl/dr_grpo":
        row = replace(row, aggregate=use("trl/dr_grpo", max_completion_length=256))
    return replace(
        row,
        version="trl 1.9.2",
        checked="executed",
        kl=use("k3", beta=0.0, kl_weight="none"),
        entropy_aggregate=None if name in _WINDOW else row.entropy_aggregate,
        note="As TRL 1.9.1 and 1.9.2 computed it, and 1.8 and 1.9.0 where they have no row of "
        f"their own. {_PADDED if name == 'trl/luspo' else row.note}",
    )


_PADDED = "With a KL its mean took padding in, which a record does not have."


def _whole_batch(name: str) -> Row[Use]:
    """The row of 1.8 and 1.9.0."""
    return replace(
        _unweighted(name),
        version="trl 1.9.0",
        aggregate=use("trl/num-items"),
        note="As TRL 1.8 and 1.9.0 computed it: num_items_in_batch counts the whole generation "
        "batch, whatever part of it an optimiser step takes.",
    )


EARLIER = {f"{name}@1.9.2": _unweighted(name) for name in _LOSSES} | {
    f"{name}@1.9.0": _whole_batch(name) for name in _WINDOW
}
