"""verl before 0.9.1 where its number is not the newest release's."""

from __future__ import annotations

from dataclasses import replace

from grpo_cli.frameworks.framework import Change
from grpo_cli.frameworks.verl.rows import ROWS
from grpo_cli.objective.row import use

_GSPO = ROWS["verl/gspo"]

CHANGES = (
    Change(
        since="0.9.1",
        what="gspo follows loss_agg_mode, token-mean by default; before, it was "
        "seq-mean-token-mean whatever loss_agg_mode said.",
        rows=("verl/gspo",),
        before="0.9.0",
    ),
)

EARLIER = {
    "verl/gspo@0.9.0": replace(
        _GSPO,
        version="verl 0.9.0",
        aggregate=use("verl/seq-mean-token-mean"),
        kl_aggregate=_GSPO.aggregate,
        entropy_aggregate=_GSPO.aggregate,
        note="As verl 0.8.0 and 0.9.0 computed it: seq-mean-token-mean whatever loss_agg_mode "
        "says; KL and entropy follow it.",
    ),
}
