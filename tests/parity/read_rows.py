"""The rows whose functions no parity is seen to run: what they are, or why there are none.

``parity.drift`` compares these functions as it does those that it sees run;
tests/frameworks/test_fingerprints.py finds a row that is neither here nor there.
"""

from __future__ import annotations

_SKYRL = "skyrl/backends/skyrl_train/utils/ppo_utils.py"
_ROLL = "roll/pipeline/base_worker.py:ActorWorker.loss_func"
_ROLL_AGENTIC = "roll/pipeline/agentic/agentic_actor_pg_worker.py:ActorWorker"


def _roll(*names: str) -> list[str]:
    """The agentic worker's loss_func, which picks the pg_variant, and the variant's own."""
    return [f"{_ROLL_AGENTIC}.{name}" for name in ("loss_func", *names)]


_TRITON = "liger_kernel/ops/grpo_loss.py"

READ: dict[str, dict[str, list[str]]] = {
    "liger-kernel": {
        "liger/luspo": [
            *(f"{_TRITON}:GrpoLossFunction.{name}" for name in ("forward", "backward")),
            *(f"{_TRITON}:_grpo_loss_{way}_kernel_seq" for way in ("fwd", "bwd")),
            f"{_TRITON}:_reduce_loss",
            "liger_kernel/transformers/grpo_loss.py:triton_grpo_loss",
        ],
    },
    "NovaSky-AI/SkyRL": {
        "skyrl/dual_clip": [f"{_SKYRL}:ppo_policy_loss"],
        "skyrl/gspo": [f"{_SKYRL}:gspo_policy_loss"],
        "skyrl/sapo": [f"{_SKYRL}:sapo_policy_loss"],
        "skyrl/cispo": [f"{_SKYRL}:compute_policy_loss_cispo"],
        "skyrl/rollout_is": [f"{_SKYRL}:rollout_is_policy_loss"],
        "skyrl/dppo": [f"{_SKYRL}:dppo_policy_loss"],
        "skyrl/importance_sampling": [f"{_SKYRL}:importance_sampling_loss"],
    },
    "alibaba/ROLL": {
        "roll/ppo": [_ROLL, "roll/utils/functionals.py:agg_loss"],
        "roll/dual_clip": [_ROLL],
        "roll/gspo": [_ROLL],
        "roll/vanilla": _roll("_compute_vanilla_pg_loss"),
        "roll/tis": _roll("_compute_tis_loss"),
        "roll/topr": _roll("_compute_topr_loss"),
        "roll/cispo": _roll("_compute_cispo_loss"),
        "roll/kimi15": _roll("_compute_kimi15_loss"),
    },
}
"""Source → row → ``path:name`` of each function that the row reproduces."""

_SERVERS = "Tinker's servers compute it; its documentation is what there is to read"

NO_SOURCE = {
    f"tinker/{loss}": _SERVERS for loss in ("importance_sampling", "ppo", "gspo", "cispo", "dro")
}
"""Row → why no function of its framework can be compared."""
