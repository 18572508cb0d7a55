"""verl's rollout corrections by the names that its ``RolloutCorrectionConfig`` gives them.

A decoupled one leaves the ratio to π_old and corrects it for the engine; in bypass mode the engine
takes π_old's place, in PPO's clip or in REINFORCE. The geometric and the k3 rejection read the mean
over the response: of log π_rollout/π within log of the bounds, and of k3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from grpo_cli.frameworks.verl.rows import VANILLA
from grpo_cli.hyperparameters import Value
from grpo_cli.objective.row import Row, Use, use

_SEQ_TIS: dict[str, Value] = {"rollout_is": "sequence", "rollout_is_threshold": 2.0}
_TOKEN_TIS: dict[str, Value] = {"rollout_is": "token", "rollout_is_threshold": 2.0}
_ICEPOP: dict[str, Value] = {"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"}
_NONE: dict[str, Value] = {"rollout_is": None}
_GEO: dict[str, Value] = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.999_1.001"}
_K3: dict[str, Value] = {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.01}
_MIS: dict[str, Value] = {"rollout_rs": "seq_sum_k1", "rollout_rs_threshold": "0.5_2.0"}

_DECOUPLED: dict[str, dict[str, Value]] = {
    "token_is": _TOKEN_TIS,
    "seq_is": _SEQ_TIS,
    "token_icepop": _ICEPOP,
    "seq_is_rs": _SEQ_TIS | _MIS,
    "geo_rs": _NONE | _GEO,
    "geo_rs_seq_tis": _SEQ_TIS | _GEO,
    "geo_rs_token_tis": _TOKEN_TIS | _GEO,
    "k3_rs": _NONE | _K3,
    "k3_rs_seq_tis": _SEQ_TIS | _K3,
    "k3_rs_token_tis": _TOKEN_TIS | _K3,
}
_CLIP: dict[str, dict[str, Value]] = {
    "ppo_clip": {},
    "ppo_clip_geo_rs": _GEO,
    "ppo_clip_k3_rs": _K3,
}
_REINFORCE: dict[str, dict[str, Value]] = {
    "pg_is": _SEQ_TIS,
    "pg_token_icepop": _ICEPOP,
    "pg_geo_rs": _NONE | _GEO,
    "pg_geo_rs_seq_tis": _SEQ_TIS | _GEO,
    "pg_geo_rs_token_tis": _TOKEN_TIS | _GEO,
}


def _named(mode: str, table: dict[str, dict[str, Value]], choice: str) -> Iterator[tuple[str, Use]]:
    for name, values in table.items():
        yield f"{mode}_{name}", use(choice, **values)


def _row(name: str, correction: Use, note: str, row: Row[Use]) -> Row[Use]:
    said = ", ".join(f"{key}={value}" for key, value in correction.values.items())
    return replace(
        row,
        title=f"verl vanilla with rollout_correction {name}",
        aliases=(),
        correction=correction,
        note=f"{note} {said or 'nothing is rejected'}.",
    )


_ENGINE = replace(VANILLA, ratio=use("rollout", log_ratio_clamp=20.0))
_PG = replace(_ENGINE, ratio=use("rollout"), surrogate=use("reinforce"), paper="")

_NOTES = {
    "decoupled": "π_old/π_rollout weighs and rejects; the rejected leave every denominator:",
    "clip": "The engine takes π_old's place in the ratio, and no weight is applied:",
    "pg": "log π_θ·A weighed with π_θ/π_rollout, which the policy term's denominator follows:",
}

ROWS = {
    f"verl/{name}": _row(name, correction, _NOTES[note], row)
    for note, row, named in (
        ("decoupled", VANILLA, _named("decoupled", _DECOUPLED, "verl/decoupled")),
        ("clip", _ENGINE, _named("bypass", _CLIP, "verl/bypass-rejection")),
        ("pg", _PG, _named("bypass", _REINFORCE, "verl/bypass")),
    )
    for name, correction in named
}
