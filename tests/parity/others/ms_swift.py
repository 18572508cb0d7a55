"""ms-swift: GRPOTrainer._compute_loss_and_metrics of two releases; compute_advantages, and what a
teacher adds to them or weighs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import torch

from ..framework_sources import Clones
from .inputs import SIZE, Case, Inputs, Loss

FILE = "swift/rlhf_trainers/grpo_trainer.py"
LOSS = "_compute_loss_and_metrics"
METHODS = (
    "_apply_rollout_importance_sampling",
    "_compute_fipo_influence",
    "_compute_off_policy_sequence_mask",
    "_compute_sequence_level_ratios",
    "_get_rollout_is_correction",
)
WINDOW = ("cispo", "dapo", "fipo")
LEVELS = {"gspo": ("grpo", "sequence"), "gspo-token": ("grpo", "sequence_token")}
STEPS = 3
"""gradient_accumulation_steps of every case, by which the Trainer divides the loss."""


def ms_swift(clones: Clones) -> Iterator[Case]:
    """Every loss type, with a KL, each mask and each rollout correction."""
    run = _runner(clones, "ms-swift")
    for row in ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "fipo", *LEVELS):
        name = f"ms-swift/{row}"
        values = _values(row)
        yield "ms-swift", name, {}, {**values, "beta": 0.0}, run(row)
        yield "ms-swift", name, {}, {**values, "beta": 0.1}, run(row, beta=0.1)
        masked = {"off_policy_mask_threshold": 0.02, "top_entropy_quantile": 0.4, "beta": 0.1}
        theirs = {"off_policy_sequence_mask_delta": 0.02, "top_entropy_quantile": 0.4}
        yield "ms-swift", name, {}, values | masked, run(row, beta=0.1, **theirs)
    for mode in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"):
        stages = {"correction": f"ms-swift/{mode.replace('_', '-')}"}
        values = _values("dapo") | {"is_high": 1.05, "top_entropy_quantile": 0.4, "beta": 0.1}
        theirs = run("dapo", 0.1, mode, top_entropy_quantile=0.4)
        yield "ms-swift", "ms-swift/dapo", stages, values, theirs
    for row in ("grpo", "dapo"):
        values = {"gradient_accumulation_steps": STEPS, "beta": 0.3, "sdar_gate_beta": 2.0}
        stages = {"kl": "ms-swift/sdar", "kl_aggregate": "trl/bnpo"}
        theirs = run(row, sdar_loss_coef=0.3)
        yield "ms-swift", f"ms-swift/{row}", stages, _values(row) | values, theirs
    dual = _values("fipo") | {"delta": 1.2, "beta": 0.0}
    yield "ms-swift", "ms-swift/fipo", {}, dual, run("fipo", delta=1.2)


def ms_swift_earlier(clones: Clones) -> Iterator[Case]:
    """What 4.5 divided by accumulation."""
    run = _runner(clones, "ms-swift@4.5")
    for row in WINDOW:
        values = _values(row) | {"gradient_accumulation_steps": STEPS}
        yield "ms-swift@4.5", f"ms-swift/{row}@4.5", {}, {**values, "beta": 0.1}, run(row, beta=0.1)


def ms_swift_groups(clones: Clones) -> Iterator[Case]:
    """real, which wants equal groups; one response of the batch has no token that counts."""
    run = _runner(clones, "ms-swift")
    for beta in (0.0, 0.1):
        yield "ms-swift", "ms-swift/real", {}, {"beta": beta}, run("real", beta)


def _values(row: str) -> dict[str, Any]:
    """What our rows take of the settings that every case has."""
    if row in WINDOW:
        return {"num_items_in_batch": 50, "num_processes": 2}
    values: dict[str, Any] = {} if row == "real" else {"gradient_accumulation_steps": STEPS}
    return values | ({"max_completion_length": 512} if row == "dr_grpo" else {})


def _runner(clones: Clones, release: str) -> Any:
    same = ("gather_object", "gather", "nanmin", "nanmax")
    known = {"WINDOW_NORMALIZED_LOSS_TYPES": WINDOW, **dict.fromkeys(same, lambda x: x)}
    if release == "ms-swift":  # what 4.5 has no need of
        names = ["_sdar_agg_loss", "compute_sdar_loss"]
        known |= vars(clones.load(release, "swift/rl_core/advantage.py", names))
    own = clones.load(release, FILE, [LOSS, *METHODS], **known)
    with suppress(AssertionError):  # since 4.6
        name = "_undo_gradient_accumulation_scaling"
        own.undo = getattr(clones.load(release, FILE, [name], **known), name)

    def run(row: str, beta: float = 0.0, mode: str | None = None, **settings: Any) -> Loss:
        loss_type, level = LEVELS.get(row, (row, "token"))

        def value(x: Inputs) -> torch.Tensor:
            trainer = _trainer(own, x, loss_type, level, beta, mode, settings)
            batch = SimpleNamespace(
                completion_mask=x.mask.bool(),
                truncated_mask=None,
                ref_per_token_logps=x.ref,
                old_per_token_logps=x.old,
                rollout_per_token_logps=x.gen,
                advantages=x.advantages,
                num_items_in_batch=50,
                teacher_per_token_logps=x.ref if "sdar_loss_coef" in settings else None,
            )
            loss = getattr(own, LOSS)(trainer, None, {}, batch)[0]
            return loss if row == "real" else loss / STEPS

        return value

    return run


def _trainer(
    own: Any,
    x: Inputs,
    loss_type: str,
    level: str,
    beta: float,
    mode: str | None,
    settings: dict[str, Any],
) -> SimpleNamespace:
    """What the loss reads of a trainer."""
    share = settings.get("top_entropy_quantile", 1.0)
    args = SimpleNamespace(
        delta=settings.get("delta"),
        log_entropy=False,
        top_entropy_quantile=share,
        gradient_accumulation_steps=STEPS,
    )
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        args=args,
        loss_type=loss_type,
        importance_sampling_level=level,
        beta=beta,
        kl_in_reward=False,
        epsilon_low=0.2,
        epsilon_high=0.2,
        tau_pos=1.0,
        tau_neg=1.05,
        real_tau=0.5,
        num_generations=SIZE,
        max_completion_length=512,
        fipo_gamma=math.pow(2.0, -1.0 / 32.0),
        fipo_clip_range=0.2,
        fipo_clip_high_only=True,
        fipo_safety_threshold=4.0,
        overlong_filter=False,
        compute_entropy=share < 1.0,
        top_entropy_quantile=share,
        off_policy_sequence_mask_delta=settings.get("off_policy_sequence_mask_delta"),
        rollout_importance_sampling_mode=mode,
        rollout_importance_sampling_threshold=1.05,
        log_rollout_offpolicy_metrics=False,
        disable_rollout_importance_sampling=False,
        _has_teacher=False,
        sdar_loss_coef=settings.get("sdar_loss_coef", 0.0),
        sdar_gate_beta=2.0,
        _metrics=defaultdict(lambda: defaultdict(list)),
        chord_sft_iterator=None,
        model_accepts_loss_kwargs=False,
        compute_loss_func=None,
        accelerator=SimpleNamespace(num_processes=2, gather_for_metrics=lambda value: value),
        _compute_rollout_offpolicy_metrics=lambda *_: {},
        _compute_is_correction_metrics=lambda *_: {},
        _get_per_token_logps_and_entropies=lambda *_, **__: (x.new, x.entropies),
    )
    methods = {name: getattr(own, name) for name in METHODS}
    for name, method in methods.items():
        setattr(trainer, name, lambda *a, method=method, **k: method(trainer, *a, **k))
    if hasattr(own, "undo"):
        trainer._undo_gradient_accumulation_scaling = lambda loss: own.undo(trainer, loss)
    return trainer


_ESTIMATED = {
    ("grpo", "group"): None,
    ("grpo", "none"): "group-mean",
    ("grpo", "batch"): "batch-std",
    ("rloo", "none"): "leave-one-out",
    ("rloo", "group"): "ms-swift/rloo-group",
    ("rloo", "batch"): "ms-swift/rloo-batch",
    ("reinforce_plus_plus", "none"): "group-mean",
    ("reinforce_plus_plus", "group"): None,
    ("reinforce_plus_plus", "batch"): "batch-whiten",
}
"""advantage_estimator and scale_rewards → our advantage; None: the row's."""


def _advantages(clones: Clones) -> Any:
    utils = clones.load("ms-swift", "swift/utils/torch_utils.py", ["nanstd"], **_TYPES)
    names = ["apply_rlsd_reweight", "compute_advantages", "compute_teacher_logratio"]
    return clones.load(
        "ms-swift",
        "swift/rl_core/advantage.py",
        [*names, "expand_advantage_to_per_token"],
        nanstd=utils.nanstd,
    )


_TYPES = {"Optional": None, "Union": None}


def ms_swift_advantages(clones: Clones) -> Iterator[Case]:
    """compute_advantages, with a KL in the reward and without; what a teacher adds or weighs."""
    own = _advantages(clones)

    def base(x: Inputs, estimator: str = "grpo", scale: str = "group", beta: float = 0.0) -> Any:
        kl = ((x.old - x.ref) * x.mask).sum(-1)
        given = (x.rewards[:, None], torch.ones(1), SIZE, estimator, scale, beta > 0, beta, kl)
        return own.compute_advantages(*given)[0]

    def run(estimator: str, scale: str, beta: float) -> Loss:
        return lambda x: base(x, estimator, scale, beta)[:, None] * x.mask

    for (estimator, scale), choice in _ESTIMATED.items():
        stages = {} if choice is None else {"advantage": choice}
        eps = {"std_eps": 1e-4} if choice in ("batch-std", "batch-whiten") else {}
        yield "ms-swift", "ms-swift/grpo", stages, {"beta": 0.0, **eps}, run(estimator, scale, 0.0)
        inside = {**stages, "kl": "ms-swift/k1-in-reward"}
        yield "ms-swift", "ms-swift/grpo", inside, {"beta": 0.1, **eps}, run(estimator, scale, 0.1)

    def distilled(x: Inputs) -> torch.Tensor:
        return own.expand_advantage_to_per_token(base(x), x.mask, x.ref, x.old, 0.3)

    opd = {"std_eps": 1e-4, "opd_kl_coef": 0.3, "beta": 0.0}
    yield "ms-swift", "ms-swift/grpo", {"advantage": "slime/opd"}, opd, distilled

    def weighed(share: float, wide: float, *, negative: bool) -> Loss:
        return lambda x: own.apply_rlsd_reweight(
            base(x), x.mask, x.ref, x.old, share, wide, negative
        )

    for share, wide, negative in ((0.5, 0.2, False), (1.0, 0.05, True), (0.3, 0.5, True)):
        values = {
            "rlsd_lambda": share,
            "rlsd_clip_range": wide,
            "rlsd_negative_only": int(negative),
        }
        stages = {"advantage": "ms-swift/rlsd"}
        theirs = weighed(share, wide, negative=negative)
        yield "ms-swift", "ms-swift/grpo", stages, {**values, "beta": 0.0}, theirs


def ms_swift_gdpo(clones: Clones) -> Iterator[Case]:
    """compute_advantages of several reward functions, which count alike or not."""
    own = _advantages(clones)

    def run(weights: list[float], scale: str) -> Loss:
        def value(x: Inputs) -> torch.Tensor:
            found = own.compute_advantages(x.rewards, torch.tensor(weights), SIZE, "grpo", scale)
            return found[0][:, None] * x.mask

        return value

    for weights in ([1.0, 1.0], [1.0, -0.25]):
        how = {"reward_weights": weights, "beta": 0.0}
        yield "ms-swift", "ms-swift/grpo", {}, how, run(weights, "group")
        gdpo = {"advantage": "decoupled"}
        yield "ms-swift", "ms-swift/grpo", gdpo, {**how, "std_eps": 1e-8}, run(weights, "gdpo")
