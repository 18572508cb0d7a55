"""What the hooks touch of torch and of TRL, without either."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np


class Tensor:
    """An array with what the hooks call of a tensor; shares its memory as torch does."""

    requires_grad = False

    def __init__(self, values: Any, dtype: Any = None) -> None:
        self.values = np.asarray(values, dtype=dtype)
        self.dtype = self.values.dtype

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor(self.values[key])

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def detach(self) -> Tensor:
        return self

    def is_floating_point(self) -> bool:
        return np.issubdtype(self.dtype, np.floating)

    def float(self) -> Tensor:
        return Tensor(self.values.astype(np.float32))

    def to(self, device: str, *, copy: bool) -> Tensor:
        assert (device, copy) == ("cpu", True)
        return Tensor(self.values.copy())

    def numpy(self) -> Any:
        assert self.dtype != np.float16, "as bfloat16, which numpy has not"
        return self.values

    def sum(self, *, dim: int) -> Tensor:
        return Tensor(self.values.sum(axis=dim))

    def item(self) -> Any:
        return self.values.item()

    def new_tensor(self, values: Any, *, device: str) -> Tensor:
        assert device == "cpu"
        return Tensor(values)


class Trainer:
    """One generation of four rows, two groups, in one micro-batch, shuffled as TRL does."""

    loss_type = "grpo"
    importance_sampling_level = "token"
    scale_rewards = "group"
    epsilon_low = epsilon_high = 0.2
    beta = 0.0
    max_completion_length = 4
    num_generations = 2
    current_gradient_accumulation_steps = 1
    aux_loss_enabled = False
    top_entropy_quantile = 1.0
    reward_func_names = ("right",)

    def __init__(self, rank: int = 0, ranks: int = 1) -> None:
        self.model = SimpleNamespace(training=True)
        self.accelerator = SimpleNamespace(process_index=rank, num_processes=ranks)
        self.args = SimpleNamespace(use_bias_correction_kl=True, steps_per_generation=1, delta=None)
        self.state = SimpleNamespace(global_step=0)
        self.processing_class = SimpleNamespace(decode=lambda ids: f"t{ids[0]}")
        self.reward_weights = Tensor([1.0], np.float32)
        self._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
        self.rewards = np.arange(4.0 * ranks, dtype=np.float32)[:, None]
        self.mask = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]])
        self.tool_mask: Any = None
        self.log_probs = Tensor(-1.0 - np.arange(12.0).reshape(4, 3), np.float32)
        self.micro_batches = 1

    def train(self) -> str:
        output = self._generate_and_score_completions([{"prompt": "p"}] * 4)
        order = [2, 0, 3, 1]
        mixed = {k: v[order] if v.values.ndim else v for k, v in output.items()}
        for _ in range(self.micro_batches):
            self._compute_loss(self.model, mixed)
        return "trained"

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        rewards = self._calculate_rewards(inputs, None, None, None)
        assert len(rewards) == 4 * self.accelerator.num_processes
        output = {
            "completion_ids": Tensor(np.arange(12).reshape(4, 3)),
            "completion_mask": Tensor(self.mask),
            "advantages": Tensor([10.0, 20.0, 30.0, 40.0], np.float32),
            "num_items_in_batch": Tensor(9),
        }
        if self.tool_mask is not None:
            output["tool_mask"] = Tensor(self.tool_mask)
        return output

    def _calculate_rewards(self, *_: Any) -> Any:
        return Tensor(self.rewards)

    def _get_per_token_logps_and_entropies(self, *_: Any) -> Any:
        return self.log_probs, Tensor(np.ones((4, 3))), None

    def _compute_loss(self, model: Any, inputs: Any) -> Tensor:
        self._get_per_token_logps_and_entropies(model)
        self._metrics["train"]["entropy"].append(1.0)
        return Tensor(0.25)
