"""TRL's own way from rewards to advantages and importance weights, run without a model.

``_generate_and_score_completions`` is called unbound on a stand-in: generation hands out the
batch's responses, the forward pass its log-probs, the reward functions its rewards. What is
between them is TRL's. Everything runs in double precision (TRL trains in single).
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
from trl import GRPOTrainer, RLOOTrainer

from .batches import Ragged
from .trl_trainers import accelerator, config, double


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
