"""TRL's own loss functions, run on a batch without a model.

``GRPOTrainer._compute_loss`` is called unbound on a stand-in for the trainer that holds the
settings it reads. Only what touches a model or several processes is stubbed: the forward pass
returns our log-probs as a leaf, and an accelerator of one process hands tensors back. All the
arithmetic is TRL's.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from rows import canonical, plan
from trl import GRPOTrainer, RLOOTrainer
from trl.experimental.gmpo import GMPOTrainer

from .agreement import AGREEMENT, FLOOR
from .batches import F64, Ragged, evaluated, flat
from .tiny import CONFIGS


class Computed(NamedTuple):
    """The loss, [R, T] ∂loss/∂per_token_logps, and what the trainer logged."""

    loss: float
    gradient: F64
    metrics: dict[str, float]


def config(trainer: type = GRPOTrainer) -> SimpleNamespace:
    """The config's own defaults, as the dataclass declares them."""
    fields = CONFIGS[trainer].__dataclass_fields__.values()
    return SimpleNamespace(**{f.name: f.default for f in fields})


@contextmanager
def double() -> Iterator[None]:
    """Scalars become float64 tensors too, as a temperature does in ``torch.where``."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def compute(
    batch: Ragged,
    trainer: type = GRPOTrainer,
    *,
    num_processes: int = 1,
    num_items_in_batch: float | None = None,
    training: bool = True,
    importance_sampling_ratio: F64 | None = None,
    with_rollout: bool = False,
    old: bool = True,
    **settings: Any,
) -> Computed:
    """Runs ``_compute_loss`` with the config's defaults but for ``settings``.

    Args:
        batch: one micro-batch.
        trainer: GRPOTrainer, RLOOTrainer or GMPOTrainer.
        num_processes: what the accelerator says.
        num_items_in_batch: None: the tokens of the batch.
        training: whether the model is in training mode.
        importance_sampling_ratio: [R, T] or [R, 1]; given, vLLM's correction is on.
        with_rollout: whether the batch holds sampling_per_token_logps.
        old: whether it holds old_per_token_logps.
        settings: config fields, as ``beta=0.1``.
    """
    args = config(trainer)
    vars(args).update(settings)
    # As the config and the trainer's __init__ complete them.
    args.gradient_accumulation_steps = settings.get("gradient_accumulation_steps", 1)
    args.steps_per_generation = args.steps_per_generation or args.gradient_accumulation_steps
    leaf = torch.tensor(batch.padded("log_probs_new"), requires_grad=True)
    stand_in = trainer_of(trainer, args, batch, leaf, num_processes, training=training)
    stand_in.use_vllm = importance_sampling_ratio is not None
    inputs = inputs_of(batch, num_items_in_batch, with_rollout=with_rollout, old=old)
    if importance_sampling_ratio is not None:
        inputs["importance_sampling_ratio"] = torch.tensor(importance_sampling_ratio)
    with double():
        loss = trainer._compute_loss(stand_in, None, inputs)
        (gradient,) = torch.autograd.grad(loss, leaf, allow_unused=True)
    metrics = stand_in._metrics["train" if training else "eval"]
    return Computed(
        loss.item(),
        np.zeros(leaf.shape) if gradient is None else gradient.numpy(),
        {name: values[-1] for name, values in metrics.items()},
    )


def accelerator(num_processes: int = 1) -> SimpleNamespace:
    """An accelerator of one process that may say that there are more."""
    return SimpleNamespace(
        num_processes=num_processes,
        process_index=0,
        device=torch.device("cpu"),
        sync_gradients=True,
        gather=lambda tensor: tensor,
        gather_for_metrics=lambda tensor: tensor,
        pad_across_processes=lambda tensor, **_: tensor,
        reduce=lambda tensor, **_: tensor,
    )


def trainer_of(
    trainer: type,
    args: SimpleNamespace,
    batch: Ragged,
    leaf: torch.Tensor,
    num_processes: int,
    *,
    training: bool,
) -> SimpleNamespace:
    """What ``_compute_loss`` reads of a trainer."""
    entropies = torch.tensor(batch.padded("entropies"))
    stand_in = SimpleNamespace(**vars(args))
    vars(stand_in).update(
        args=args,
        model=SimpleNamespace(training=training),
        accelerator=accelerator(num_processes),
        current_gradient_accumulation_steps=args.gradient_accumulation_steps,
        epsilon_low=args.epsilon,
        epsilon_high=args.epsilon if args.epsilon_high is None else args.epsilon_high,
        aux_loss_enabled=False,
        _get_per_token_logps_and_entropies=lambda *_, **__: (leaf, entropies, None),
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
    )
    if trainer is not RLOOTrainer:
        stand_in._entropy_bonus_enabled = args.entropy_coef != 0.0
        stand_in.get_off_policy_mask = GRPOTrainer.get_off_policy_mask
        stand_in.get_gamma_weights = GRPOTrainer.get_gamma_weights
        stand_in.get_high_entropy_mask = partial(GRPOTrainer.get_high_entropy_mask, stand_in)
    return stand_in


def inputs_of(
    batch: Ragged, num_items: float | None, *, with_rollout: bool, old: bool
) -> dict[str, Any]:
    """What ``_compute_loss`` reads: prompts are empty, tokens that do not count are tool tokens."""
    mask = torch.tensor(batch.padded("mask"))
    ids = torch.zeros(mask.shape, dtype=torch.long)
    nothing = torch.zeros((batch.count, 0), dtype=torch.long)
    old_log_probs = torch.tensor(batch.padded("log_probs_old"))
    inputs = {
        "prompt_ids": nothing,
        "prompt_mask": nothing,
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": torch.tensor(batch.advantages),
        "ref_per_token_logps": torch.tensor(batch.padded("log_probs_ref")),
        "num_items_in_batch": torch.tensor(float(batch.tokens if num_items is None else num_items)),
        "old_logps": (old_log_probs * mask).sum(1),
    }
    if old:
        inputs["old_per_token_logps"] = old_log_probs
    if with_rollout:
        inputs["sampling_per_token_logps"] = torch.tensor(batch.padded("log_probs_rollout"))
    return inputs


def generate(
    batch: Ragged,
    rewards: Any,
    trainer: type = GRPOTrainer,
    *,
    num_generations: int,
    use_vllm: bool = False,
    reward_weights: list[float] | None = None,
    **settings: Any,
) -> dict[str, torch.Tensor]:
    """What the trainer makes of a generation batch: advantages, importance_sampling_ratio, ...

    Args:
        batch: groups of ``num_generations`` in order, no empty responses.
        rewards: [R] or [R, K], NaN where a function gave none.
        trainer: GRPOTrainer or RLOOTrainer.
        num_generations: responses of each group.
        use_vllm: whether an engine's log-probs come with the responses.
        reward_weights: one per reward function; None: ones.
        settings: config fields.
    """
    table = torch.as_tensor(rewards, dtype=torch.float64).reshape(batch.count, -1)
    args = config(trainer)
    vars(args).update(settings, num_generations=num_generations, steps_per_generation=1)
    args.gradient_accumulation_steps, args.per_device_train_batch_size = 1, batch.count
    stand_in = SimpleNamespace(**vars(args))
    policy, reference = SimpleNamespace(training=True, is_gradient_checkpointing=False), object()
    log_probs = {id(policy): "log_probs_old", id(reference): "log_probs_ref"}
    functions = table.shape[1]
    vars(stand_in).update(
        args=args,
        accelerator=accelerator(),
        model=policy,
        ref_model=reference,
        use_vllm=use_vllm,
        environment_factories=None,
        environments=None,
        _batch_environments=None,
        tools=[],
        _standalone_tools=[],
        pad_to_multiple_of=None,
        _tokenizer=SimpleNamespace(pad_token_id=0),
        _is_vlm=False,
        _generate=lambda prompts: _generated(batch, trainer, use_vllm=use_vllm),
        _get_per_token_logps_and_entropies=lambda model, *_, **__: (
            torch.tensor(batch.padded(log_probs[id(model)])),
            None,
            None,
        ),
        _calculate_rewards=lambda *_: table,
        reward_funcs=[None] * functions,
        reward_func_names=[f"f{k}" for k in range(functions)],
        reward_weights=torch.tensor(reward_weights or [1.0] * functions, dtype=torch.float64),
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
        _logs=defaultdict(list, rewards=defaultdict(list), extra=defaultdict(list)),
        _pending_extra_logs={},
        _pending_metrics={},
    )
    with double():
        output: dict[str, torch.Tensor] = trainer._generate_and_score_completions(
            stand_in, [{"prompt": "p"} for _ in range(batch.count)]
        )
    return output


def _generated(batch: Ragged, trainer: type, *, use_vllm: bool) -> tuple[Any, ...]:
    """What ``_generate`` returns: prompts, responses and, from an engine, their log-probs."""
    prompts = [[1] for _ in range(batch.count)]
    responses = [[1] * len(row) for row in batch.mask]
    texts = [""] * batch.count
    if trainer is RLOOTrainer:
        return prompts, responses, texts
    sampled = [row.tolist() for row in batch.columns["log_probs_rollout"]] if use_vllm else None
    return prompts, responses, [m.tolist() for m in batch.mask], texts, sampled, {}, None, None


FRAMEWORK = "trl 1.16.0"
TABLE = json.loads(Path(__file__).with_name("trl.json").read_bytes())
"""What is asked of TRL, by its names."""
ROWS: dict[str, dict[str, Any]] = TABLE["rows"]

TRAINERS = {"trl/rloo": RLOOTrainer, "trl/gmpo": GMPOTrainer}
"""Of the other rows it is GRPOTrainer."""
FLOORS = {"trl/sapo": 1e-4}
"""Autograd takes 1 − σ after rounding σ, which leaves nothing of it where ρ is great."""


def as_ours(settings: dict[str, Any]) -> dict[str, Any]:
    """TRL's settings by our names; those that our rows have no use for are left out."""
    ours = dict(settings)
    if not ours.pop("training", True):
        ours.pop("gradient_accumulation_steps")
        ours.pop("steps_per_generation")
    if "use_bias_correction_kl" in ours:
        ours["kl_weight"] = "ratio" if ours.pop("use_bias_correction_kl") else "none"
    return ours


def taken(row: str, settings: dict[str, Any], stages: dict[str, str]) -> dict[str, Any]:
    """The settings that the row takes; TRL's config has them all."""
    takes = plan(row, stages=stages).takes()
    return {k: v for k, v in canonical(settings).items() if k in takes}


def compare(
    row: str,
    batch: Ragged,
    settings: dict[str, Any],
    *,
    stages: dict[str, str] | None = None,
    label: str = "",
    **only_theirs: Any,
) -> dict[str, Any]:
    """Loss, gradient, KL and clip fractions of a row against the trainer's; what this gave."""
    stages, trainer = stages or {}, TRAINERS.get(row, GRPOTrainer)
    theirs = compute(batch, trainer, **(ROWS.get(row, {}) | only_theirs), **settings)
    columns = ["log_probs_new"]
    if {"top_entropy_quantile", "entropy_coef"} & set(settings):
        columns.append("entropies")
    if only_theirs.get("old", True):
        columns.append("log_probs_old")
    if settings.get("beta"):
        columns.append("log_probs_ref")
    if only_theirs.get("with_rollout") or "importance_sampling_ratio" in only_theirs:
        columns.append("log_probs_rollout")
    given = taken(row, as_ours(settings), stages)
    ours = evaluated(batch, row, stages=stages, columns=tuple(columns), **given)
    case = f"{batch.kind} {batch.seed} {settings}"
    name = label or row
    AGREEMENT.close(FRAMEWORK, name, "loss", ours.loss, theirs.loss, case=case)
    AGREEMENT.close(
        FRAMEWORK,
        name,
        "gradient",
        -flat(ours.gradient),
        flat(batch.counted(theirs.gradient)),
        case=case,
        floor=FLOORS.get(row, FLOOR),
    )
    if settings.get("beta") and trainer is GRPOTrainer:
        kl = ours.breakdown.kl
        mean = float(np.sum(kl)) / max(batch.tokens, 1)
        AGREEMENT.close(FRAMEWORK, name, "kl", mean, theirs.metrics["kl"], case=case)
    clips(name, batch, ours, theirs.metrics, case)
    return {
        "loss": theirs.loss,
        "loss_gradient": batch.counted(theirs.gradient),
        "metrics": {name: v for name, v in theirs.metrics.items() if name.startswith(METRICS)},
    }


METRICS = ("kl", "clip_ratio/low_mean", "clip_ratio/high_mean", "cispo_clip_ratio")


def clips(row: str, batch: Ragged, ours: Any, metrics: dict[str, float], case: str) -> None:
    """How many are clipped, counted as TRL counts: per token, or per row at sequence level."""
    capped = "cispo_clip_ratio" in metrics
    if capped:
        metrics = {"clip_ratio/low_mean": 0.0, "clip_ratio/high_mean": metrics["cispo_clip_ratio"]}
    if "clip_ratio/low_mean" not in metrics:
        return
    low, high = ours.breakdown.clip < 0, ours.breakdown.clip > 0
    high &= ours.breakdown.advantage > 0  # TRL does not count what delta cuts at A < 0
    count = max(batch.tokens, 1)
    if ours.breakdown.objective.ratio.name != "token":
        responses = ours.breakdown.batch.responses
        low, high = (responses.sum(side.astype(int)) > 0 for side in (low, high))
        if capped:  # TRL counts a response without tokens, whose ratio of 1 exceeds the 0.2
            high |= (responses.lengths == 0) & (batch.advantages > 0)
        count = batch.count
    for name, side in (("low", low), ("high", high)):
        theirs = metrics[f"clip_ratio/{name}_mean"] * count  # a fraction in single precision
        assert abs(theirs - round(theirs)) < 1e-4
        AGREEMENT.close(FRAMEWORK, row, "clip", side.sum(), round(theirs), case=case)


def advantages(
    label: str,
    row: str,
    batch: Ragged,
    made: dict[str, torch.Tensor],
    stages: dict[str, str],
    hyperparameters: dict[str, Any],
    **more: Any,
) -> None:
    """Our advantage of every token against TRL's of its response; ``more``: in the record."""
    columns = ("log_probs_new", "log_probs_old", "log_probs_ref")
    ours = evaluated(
        batch, row, stages=stages, columns=columns, rewards=True, more=more, **hyperparameters
    ).breakdown.response_advantage
    # TRL leaves rounding noise where a group's rewards are equal; ours is exactly 0 there.
    theirs = made["advantages"].numpy()
    theirs = np.where(np.abs(theirs) < 1e-11, 0.0, theirs)
    case = f"{batch.kind} {batch.seed}"
    AGREEMENT.close(FRAMEWORK, label, "advantages", ours, theirs, case=case, floor=1e-4)
