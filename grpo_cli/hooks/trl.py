"""What TRL's GRPOTrainer and RLOOTrainer compute, as records; read from trl 1.16.0.

::

    from grpo_cli.hooks.trl import record

    record(trainer, "rollouts.jsonl")
    trainer.train()

One line for each micro-batch of the training: the log-probs as ``_compute_loss`` saw them, the
loss that it returned before the backward pass, and what it logged. TRL shuffles the rows of a
generation batch before it cuts it into micro-batches; rewards and group ids travel with the rows,
but a micro-batch rarely holds whole groups, so the advantages that a record gives are the ones to
use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from grpo_cli.hooks.columns import Array, copied, gradient_of, number, ragged, record_of, widths
from grpo_cli.hooks.writer import Writer, of_rank


def record(
    trainer: Any, path: str | Path, *, gradient: bool = True, stages: bool = False
) -> Writer:
    """Writes every micro-batch that ``trainer`` trains on to ``path``, until the writer is closed.

    The file is complete when ``trainer.train()`` returns; an older one is replaced. With several
    processes each writes what it saw into a file of its own (``rollouts.rank0.jsonl``, ...),
    without TRL's metrics, which are over all of them.

    Args:
        trainer: a GRPOTrainer, an RLOOTrainer, or a subclass with a loss of its own.
        path: where to; packed if it ends in ``.gz``.
        gradient: also write ∂loss/∂per_token_logps, from one more backward pass through the loss
            alone (not through the model).
        stages: write a bundle, which ``grpo verify`` replays stage by stage: also what each
            reward function returned and counts, which responses were generated together, and the
            loss and the metrics that TRL logs of a step.
    """
    accelerator = trainer.accelerator
    own = of_rank(path, accelerator.process_index, accelerator.num_processes)
    writer = Writer(own, sealed=stages)
    Recording(trainer, writer, gradient=gradient, stages=stages)
    return writer


def _around(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Puts ``wrapper`` in the place of a method, which it is given first."""
    original = getattr(owner, name)
    setattr(owner, name, wraps(original)(partial(wrapper, original)))


class Recording:
    """What has to be remembered between the trainer's methods.

    Attributes:
        scored: what the forward passes of the method that runs returned; None outside of one.
        rewards: [P, K] what the reward functions returned last, over all processes.
        groups: how many groups were generated before.
        step, micro: the optimiser step, and the micro-batch in it.
        waiting, expected: the record that waits for what TRL logs of its step, and what it expects.
        generation, generated: the generations before this one, and the responses of this one.
        logged_at: the step before which TRL logged last.
    """

    def __init__(self, trainer: Any, writer: Writer, *, gradient: bool, stages: bool) -> None:
        self.trainer = trainer
        self.writer = writer
        self.gradient = gradient
        self.stages = stages
        self.waiting: Callable[..., Any] | None = None
        self.expected: dict[str, Any] = {}
        self.generation = -1
        self.generated = 0
        self.logged_at = 0
        self.scored: list[Any] | None = None
        self.rewards: Any = None
        self.groups = 0
        self.step, self.micro = -1, 0
        self.words: dict[int, str] = {}
        _around(trainer, "train", self.train)
        _around(trainer, "_generate_and_score_completions", self.generate)
        _around(trainer, "_calculate_rewards", self.score)
        _around(trainer, "_get_per_token_logps_and_entropies", self.forward)
        _around(trainer, "_compute_loss", self.compute)
        if stages:
            _around(trainer, "log", self.log)

    def recording(self) -> bool:
        """Whether something is to be recorded."""
        return not self.writer.closed and bool(self.trainer.model.training)

    def safely(self, run: Callable[..., Any], *args: Any) -> Any:
        """What ``run`` returns; None where it fails, which ends the recording alone."""
        try:
            return run(*args)
        except Exception as error:
            self.writer.fail(error)
            return None

    def train(self, train: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The training, and then the rest of the file."""
        try:
            return train(*args, **kwargs)
        finally:
            self.safely(self._write_waiting)
            self.writer.flush()

    def log(self, log: Callable[..., Any], logs: dict[str, Any], *args: Any, **more: Any) -> Any:
        """What TRL logs, which the last record of the step expects, where it is of one step."""
        result = log(logs, *args, **more)
        self.safely(self._log, logs)
        return result

    def _log(self, logs: Mapping[str, Any]) -> None:
        if "loss" not in logs or not self.trainer.model.training:
            return
        step = self.trainer.state.global_step
        if step - self.logged_at == 1 and self.trainer.accelerator.num_processes == 1:
            self.expected["step_loss"] = number(logs["loss"])
            self.expected["step_metrics"] = {
                name: value
                for name, one in logs.items()
                if name != "loss" and isinstance(value := number(one), int | float)
            }
        self.logged_at = step
        self._write_waiting()

    def _write_waiting(self) -> None:
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            self.writer.write(waiting)

    def forward(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Log-probs and entropies, which are kept while somebody waits for them."""
        result = forward(*args, **kwargs)
        if self.scored is not None:
            self.scored.append(result)
        return result

    def score(self, score: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The rewards of all processes, by reward function."""
        self.rewards = score(*args, **kwargs)
        return self.rewards

    def generate(self, generate: Callable[..., Any], inputs: Any) -> Any:
        """A generation batch, with what its rows are to carry through the shuffle."""
        if not self.safely(self.recording):
            return generate(inputs)
        output, passes = self._watch(generate, inputs)
        output.update(self.safely(self._carried, output, passes) or {})
        self.rewards = None
        return output

    def compute(self, compute: Callable[..., Any], model: Any, inputs: Any) -> Any:
        """The loss of a micro-batch, which is recorded on the way."""
        before = self.safely(self._before, inputs)
        if before is None:
            return compute(model, inputs)
        loss, passes = self._watch(compute, model, inputs)
        self.safely(self._record, inputs, loss, passes, *before)
        return loss

    def _carried(self, output: Mapping[str, Any], passes: list[Any]) -> dict[str, Any]:
        """Columns for the rows of a generation batch, one element for each."""
        count = len(output["completion_ids"])
        columns = {
            GROUPS: self._group_ids(output["completion_ids"], count),
            REWARDS: self._own(self.rewards, count).detach().to("cpu", copy=True),
        }
        if self.stages:
            self.generation += 1
            self.generated = count * self.trainer.accelerator.num_processes
            rows = [(self.generation, row) for row in range(self.generated)]
            columns[ROWS] = columns[GROUPS].new_tensor(self._own(rows, count))
        if "old_per_token_logps" not in output and "old_logps" in output:  # RLOO keeps their sums
            for name, one in zip((OLD, REF), passes, strict=False):
                columns[name] = one[0].detach().to("cpu", copy=True)
        for name, column in columns.items():
            if column.shape[0] != count:  # TRL's shuffle would fail on it
                raise ValueError(f"{name} has {column.shape[0]} rows, but the batch has {count}")
        return columns

    def _before(self, inputs: Any) -> tuple[dict[str, Any], dict[str, int]] | None:
        """Settings, and how much is logged, before the loss; None where nothing is recorded."""
        if not self.recording():
            return None
        settings = hyperparameters(self.trainer, inputs)  # TRL moves entropy_coef along
        return settings, {name: len(values) for name, values in self._metrics.items()}

    def _record(
        self,
        inputs: Any,
        loss: Any,
        passes: list[Any],
        settings: dict[str, Any],
        logged: dict[str, int],
    ) -> None:
        if not passes:
            raise ValueError("the loss was computed without TRL's forward pass")
        log_probs, entropies = passes[-1][:2]
        expected = self._expected(loss, log_probs, logged)
        columns = columns_of(inputs, log_probs)
        if {"entropy_coef", "top_entropy_quantile"} & settings.keys():
            columns["entropies"] = copied(entropies)
        step = self.trainer.state.global_step
        self.micro = self.micro + 1 if step == self.step else 0
        self.step = step
        about = {"id": f"{step}/{self.micro}", "step": step, "microbatch": self.micro}
        if self.trainer.accelerator.num_processes > 1:
            about["rank"] = self.trainer.accelerator.process_index
        rest = {"hyperparameters": settings, "framework": framework(self.trainer)}
        # Decoded here: tokenizers do not bear two threads at once.
        tokenizer = getattr(self.trainer, "_tokenizer", self.trainer.processing_class)
        for one in {*columns["completion_ids"].ravel().tolist()} - self.words.keys():
            self.words[one] = tokenizer.decode([one])
        rewards = rewards_of(self.trainer, inputs.get(REWARDS), each_one=self.stages)
        make = partial(made, about, columns, rewards, rest, expected, self.words)
        if not self.stages:
            self.writer.write(make)
            return
        about["bundle"] = self._place(inputs.get(ROWS))
        rest["framework"]["reward_weights"] = self.trainer.reward_weights.tolist()
        self._write_waiting()
        self.waiting, self.expected = make, expected

    def _place(self, rows: Any) -> dict[str, Any]:
        """Which generation the responses of a record are of, and how many records its step has."""
        accumulated = self.trainer.current_gradient_accumulation_steps
        found: dict[str, Any] = {"micro_batches": accumulated}
        if rows is not None and len({*rows[:, 0].tolist()}) == 1:
            found |= {"generation": int(rows[0, 0]), "rows": rows[:, 1].tolist()}
            found["generation_size"] = self.generated
        return found

    def _expected(self, loss: Any, log_probs: Any, logged: dict[str, int]) -> dict[str, Any]:
        """What the trainer computed."""
        expected: dict[str, Any] = {}
        if not self.trainer.aux_loss_enabled:  # the router's loss is no part of the objective
            expected["loss"] = number(loss)
        if self.gradient:
            expected["loss_gradient"] = gradient_of(loss, log_probs)
        if self.trainer.accelerator.num_processes == 1:
            expected["metrics"] = {
                name: values[-1]
                for name, values in self._metrics.items()
                if len(values) > logged.get(name, 0)
            }
        return expected

    def _watch(self, run: Callable[..., Any], *args: Any) -> tuple[Any, list[Any]]:
        """What ``run`` returns, and the forward passes on its way."""
        self.scored = []
        try:
            result = run(*args)
            return result, self.scored
        finally:
            self.scored = None

    def _own(self, everyone: Any, count: int) -> Any:
        """The rows of this process among those of all."""
        first = self.trainer.accelerator.process_index * count
        return everyone[first : first + count]

    def _group_ids(self, like: Any, count: int) -> Any:
        """[R] a number for each row's group that no other generation and process has.

        Rows of one prompt stand side by side, over all processes.
        """
        size = self.trainer.num_generations
        total = count * self.trainer.accelerator.num_processes
        rows = np.arange(total) // size + self.groups
        self.groups += -(-total // size)
        return like.new_tensor(self._own(rows, count).tolist(), device="cpu")

    @property
    def _metrics(self) -> Mapping[str, list[float]]:
        metrics: Mapping[str, list[float]] = self.trainer._metrics["train"]
        return metrics


# ---- a micro-batch → a record, with the hyperparameters that its loss used ----------------------

_ALWAYS = ("epsilon_low", "epsilon_high", "beta", "max_completion_length")
_WHERE_SET = ("delta", "off_policy_mask_threshold")
_OF_LOSS = {
    "sapo": ("sapo_temperature_pos", "sapo_temperature_neg"),
    "vespo": ("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
}
_OWN_LOSS = {"RLOOTrainer": "rloo", "GMPOTrainer": "gmpo"}
"""Trainers with a loss of their own, which no loss_type names."""

_OF_REWARDS = ("scale_rewards", "multi_objective_aggregation")
_CHOICES = (
    "importance_sampling_level",
    "use_bias_correction_kl",
    "off_policy_mask_threshold",
    *_OF_REWARDS,
)
_OWN_CHOICES = {"rloo": ("normalize_advantages",), "gmpo": _OF_REWARDS}
"""What is chosen where, by name, of TRL's settings."""


def framework(trainer: Any) -> dict[str, Any]:
    """Which loss this is, in TRL's words."""
    found = {"name": "trl", "version": version("trl"), "loss_type": loss_type(trainer)}
    own = _OWN_CHOICES.get(found["loss_type"])
    found |= {name: _setting(trainer, name) for name in own or _CHOICES}
    if own is None and _corrects(trainer):
        found["vllm_importance_sampling_mode"] = trainer.vllm_importance_sampling_mode
    return found


def loss_type(trainer: Any) -> str:
    """TRL's loss_type; a name of its own for a trainer that has none."""
    names = {one.__name__ for one in type(trainer).__mro__} & _OWN_LOSS.keys()
    return _OWN_LOSS[names.pop()] if names else str(trainer.loss_type)


def hyperparameters(trainer: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What the loss of a micro-batch is computed with; to be asked before it is."""
    found = {name: _setting(trainer, name) for name in _ALWAYS}
    items = number(inputs.get("num_items_in_batch"))
    found["num_items_in_batch"] = None if items is None else max(items, 1)  # as the loss takes it
    found["gradient_accumulation_steps"] = trainer.current_gradient_accumulation_steps
    found["steps_per_generation"] = trainer.args.steps_per_generation
    named = _WHERE_SET + _OF_LOSS.get(loss_type(trainer), ())
    found |= {name: _setting(trainer, name) for name in named}
    if _setting(trainer, "top_entropy_quantile") not in (None, 1.0):
        found["top_entropy_quantile"] = trainer.top_entropy_quantile
    if getattr(trainer, "_entropy_bonus_enabled", False):
        found["entropy_coef"] = _entropy_coef(trainer)
    if _corrects(trainer):
        found["is_low"] = trainer.vllm_importance_sampling_clip_min
        found["is_high"] = trainer.vllm_importance_sampling_clip_max
    if trainer.accelerator.num_processes > 1:
        found["num_processes"] = trainer.accelerator.num_processes
    unbounded = ("is_low", "is_high")
    return {name: one for name, one in found.items() if one is not None or name in unbounded}


def _setting(trainer: Any, name: str) -> Any:
    return getattr(trainer, name, getattr(trainer.args, name, None))


def _corrects(trainer: Any) -> bool:
    """Whether the loss is weighted by π_old against the engine that sampled."""
    return bool(
        getattr(trainer, "use_vllm", False)
        and getattr(trainer, "vllm_importance_sampling_correction", False)
    )


def _entropy_coef(trainer: Any) -> float:
    """The coefficient that applies; the adaptive one pauses above its target."""
    above = (
        trainer.use_adaptive_entropy and trainer._last_world_entropy > trainer.args.entropy_target
    )
    return 0.0 if above else float(trainer.entropy_coef)


REWARDS, GROUPS, ROWS = "recorded_rewards", "recorded_groups", "recorded_rows"
OLD, REF = "recorded_old_per_token_logps", "recorded_ref_per_token_logps"
"""What rows carry through TRL's shuffle, in addition to what TRL itself lets them carry."""

SAMPLED = "sampling_per_token_logps"


def columns_of(inputs: Mapping[str, Any], log_probs: Any) -> dict[str, Array]:
    """Copies of what the loss was computed from."""
    given = {
        "completion_ids": inputs["completion_ids"],
        "per_token_logps": log_probs,
        "old_per_token_logps": inputs.get("old_per_token_logps", inputs.get(OLD)),
        "ref_per_token_logps": inputs.get("ref_per_token_logps", inputs.get(REF)),
        SAMPLED: inputs.get(SAMPLED),
        "advantages": inputs["advantages"],
        "group_ids": inputs.get(GROUPS),
        "completion_mask": inputs["completion_mask"],
        "tool_mask": inputs.get("tool_mask"),
    }
    return {name: copied(tensor) for name, tensor in given.items() if tensor is not None}


def rewards_of(trainer: Any, table: Any, *, each_one: bool = False) -> dict[str, Array]:
    """[R] the weighted sum of the reward functions, and each of them where there are several.

    Args:
        table: [R, K] what the functions returned.
        each_one: whether a single function is written too.
    """
    if table is None:
        return {}
    each = copied(table)
    weighted = each * copied(trainer.reward_weights)
    if np.isnan(each).all(axis=1).any():  # a response that nobody scored has no reward
        return {}
    found = {"rewards": np.nansum(weighted, axis=1)}
    if each.shape[1] > 1 or each_one:
        found |= {f"rewards/{name}": each[:, k] for k, name in enumerate(trainer.reward_func_names)}
    return found


def _agreed(columns: dict[str, Array], settings: Mapping[str, Any]) -> Array:
    """The policy that TRL takes a token to agree with that the engine did not score.

    That is the old one in the correction, whose ratio is 1 there, and the current one in the
    off-policy mask, whose divergence is 0 there. Where both are on no number says both.
    """
    new = columns["per_token_logps"]
    corrected = "vllm_importance_sampling_mode" in settings
    return columns.get("old_per_token_logps", new) if corrected else new


def made(
    about: dict[str, Any],
    columns: dict[str, Array],
    rewards: dict[str, Array],
    rest: dict[str, Any],
    expected: dict[str, Any],
    words: Mapping[int, str],
) -> dict[str, Any]:
    """The record; run by the writer's thread."""
    shown = columns.pop("completion_mask")
    mask = shown * columns.pop("tool_mask", np.ones_like(shown))
    ids = ragged(columns["completion_ids"], widths(shown))
    found = about | {"tokens": [[words[one] for one in row.tolist()] for row in ids]}
    if SAMPLED in columns:
        agreed = _agreed(columns, rest["framework"])
        columns[SAMPLED] = np.where(np.isnan(columns[SAMPLED]), agreed, columns[SAMPLED])
    if "group_ids" in columns:
        found["group_ids"] = columns.pop("group_ids")
    scores = {name: values.astype(np.float64) for name, values in rewards.items()}
    return record_of(found, columns, shown, mask, scores | rest, expected)
