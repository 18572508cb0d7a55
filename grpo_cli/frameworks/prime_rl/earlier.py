"""prime-rl up to 0.9.0, whose default loss was DPPO's."""

from __future__ import annotations

from dataclasses import replace

from grpo_cli.frameworks.framework import Change
from grpo_cli.frameworks.prime_rl.rows import ROWS
from grpo_cli.objective.row import use

_DPPO = ROWS["prime-rl/dppo"]
_BEFORE = "As prime-rl up to 0.9.0 computed it"

CHANGES = (
    Change(
        since="0.9.1.dev0",
        what="ipo is the default loss (pull request 3418), and DPPO's, of type default, is gone. "
        "ipo_threshold 0.1 is now eps, 0.3, and kl_tau is 0, not 0.001 (pull request 3586).",
        rows=("prime-rl/grpo", "prime-rl/ipo", "prime-rl/max_rl"),
        before="0.9.0",
    ),
)

EARLIER = {
    "prime-rl/grpo@0.9.0": replace(
        _DPPO,
        title="prime-rl's grpo with its default loss until 0.9.0: DPPO's mask",
        aliases=(),
        until="",
        note=f"{_BEFORE}: prime-rl/dppo.",
    ),
    "prime-rl/max_rl@0.9.0": replace(
        _DPPO,
        title="prime-rl's max_rl with its default loss until 0.9.0: DPPO's mask",
        paper="2602.02710",
        aliases=(),
        advantage=ROWS["prime-rl/max_rl"].advantage,
        until="",
        note=f"{_BEFORE}. {ROWS['prime-rl/max_rl'].note}",
    ),
    "prime-rl/ipo@0.9.0": replace(
        ROWS["prime-rl/ipo"],
        surrogate=use("prime-rl/ipo", ipo_threshold=0.1),
        kl=_DPPO.kl,
        version=_DPPO.version,
        note=f"{_BEFORE} with type ipo, which was not the default.",
    ),
}
