"""What verl's policy losses compute, as records; read from verl 0.9.1.

verl computes its loss in worker processes. They import the module that the configuration names,
``actor_rollout_ref.model.external_lib=recording``, and ``recording.py`` is::

    from grpo_cli.hooks.verl import record

    record("rollouts.jsonl")

One line for each call of a policy loss, that is for each micro-batch. A policy loss sees neither
tokens, rewards, groups nor the reference, so a record has none of them: its advantages are given,
and its loss is the policy's, without the KL and the entropy that verl adds afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial, wraps
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any

from grpo_cli.hooks.columns import Array, copied, holes, number, per_response, ragged, widths
from grpo_cli.hooks.gradient import gradient_of
from grpo_cli.hooks.writer import Writer, of_rank

PolicyLoss = Callable[..., Any]

_OF_CONFIG = ("clip_ratio_c", "tau_pos", "tau_neg", "loss_scale_factor")
_OF_POLICY_LOSS = (
    "clip_cov_ratio",
    "clip_cov_lb",
    "clip_cov_ub",
    "kl_cov_ratio",
    "ppo_kl_coef",
    "dro_beta",
)
_OF_BATCH = ("dp_size", "batch_num_tokens", "global_batch_size", "loss_scale_factor")


def record(path: str | Path, *, gradient: bool = True) -> Recorder:
    """Records every policy loss that verl has registered so far.

    Args:
        path: where to, as for ``Recorder``.
        gradient: as for ``Recorder``.
    """
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    recorder = Recorder(path, gradient=gradient)
    for name, loss in POLICY_LOSS_REGISTRY.items():
        POLICY_LOSS_REGISTRY[name] = recorder.of(loss, name)
    return recorder


def record_policy_loss(loss: PolicyLoss, path: str | Path, *, gradient: bool = True) -> PolicyLoss:
    """One policy loss with a recorder of its own, its attribute ``recorder``.

    Args:
        loss: a function of verl's signature; what it is called is told from its name,
            ``compute_policy_loss_NAME``.
        path: where to, as for ``Recorder``.
        gradient: as for ``Recorder``.
    """
    name = loss.__name__.removeprefix("compute_policy_loss_")
    return Recorder(path, gradient=gradient).of(loss, name)


class Recorder:
    """Writes the calls of policy losses to a file, which is begun with the first of them.

    Each process of several writes a file of its own (``rollouts.rank0.jsonl``, ...).
    """

    def __init__(self, path: str | Path, *, gradient: bool = True) -> None:
        """Remembers the ``path`` (packed if it ends in ``.gz``) and whether to write the gradient.

        The gradient is ∂policy_loss/∂log_prob, from one more backward pass through the loss alone.
        """
        self.path = path
        self.gradient = gradient
        self.closed = False
        self.count = 0

    @cached_property
    def writer(self) -> Writer:
        """The file, opened in the process that computes a loss, once it does."""
        return Writer(of_rank(self.path, *_rank()))

    def close(self) -> None:
        """Writes what waits; the losses go on unrecorded."""
        if "writer" in vars(self):
            self.writer.close()
        self.closed = True

    def of(self, loss: PolicyLoss, name: str) -> PolicyLoss:
        """``loss``, recorded under verl's ``name`` for it."""
        parameters = signature(loss)

        @wraps(loss)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            result = loss(*args, **kwargs)
            given = parameters.bind(*args, **kwargs)
            given.apply_defaults()
            self._record(name, given.arguments, *result)
            return result

        recorded.recorder = self  # type: ignore[attr-defined]
        return recorded

    def _record(
        self, name: str, given: Mapping[str, Any], loss: Any, metrics: Mapping[str, Any]
    ) -> None:
        if self.closed:
            return
        columns = _columns(given)
        weighted = "rollout_is_weights" in columns
        expected: dict[str, Any] = {
            "weighted_policy_loss" if weighted else "policy_loss": number(loss),
            "metrics": {key: number(value) for key, value in metrics.items()},
        }
        if self.gradient and not weighted:
            expected["loss_gradient"] = gradient_of(loss, given["log_prob"])
        rest = {
            "hyperparameters": _hyperparameters(given["config"], columns["response_mask"]),
            "framework": {
                "name": "verl",
                "version": version("verl"),
                "policy_loss": name,
                "loss_agg_mode": given["loss_agg_mode"],
            },
        }
        self.writer.write(partial(_made, self.count, columns, rest, expected))
        self.count += 1


def _rank() -> tuple[int, int]:
    """This process among the others: its number, and how many there are."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _columns(given: Mapping[str, Any]) -> dict[str, Array]:
    """Copies of what the loss was computed from, under the names of a record."""
    tensors = {
        "log_probs_new": given["log_prob"],
        "log_probs_old": given["old_log_prob"],
        "advantages": given["advantages"],
        "rollout_is_weights": given.get("rollout_is_weights"),
        "response_mask": given["response_mask"],
    }
    return {name: copied(tensor) for name, tensor in tensors.items() if tensor is not None}


def _hyperparameters(config: Any, mask: Array) -> dict[str, Any]:
    """What the loss took from its configuration. β is 0: the KL is added to it afterwards."""
    clip = {
        f"epsilon_{side}": getattr(config, f"clip_ratio_{side}", None) for side in ("low", "high")
    }
    both = getattr(config, "clip_ratio", None)
    found = {name: both if value is None else value for name, value in clip.items()}
    found |= {"beta": 0.0, "response_length": mask.shape[1]}
    found |= {name: getattr(config, name, None) for name in _OF_CONFIG}
    special = getattr(config, "policy_loss", None)
    found |= {name: getattr(special, name, None) for name in _OF_POLICY_LOSS}
    batch = getattr(config, "global_batch_info", None) or {}
    found |= {name: number(batch[name]) for name in _OF_BATCH if name in batch}
    return {name: value for name, value in found.items() if value is not None}


def _made(
    identity: int, columns: dict[str, Array], rest: dict[str, Any], expected: dict[str, Any]
) -> dict[str, Any]:
    """The record; run by the writer's thread."""
    shown = columns.pop("response_mask")
    lengths = widths(shown)
    mask = holes(shown, lengths)
    found: dict[str, Any] = {"id": identity}
    found |= {name: per_response(values, lengths) for name, values in columns.items()}
    if mask is not None:
        found["mask"] = mask
    if "loss_gradient" in expected:
        expected = expected | {"loss_gradient": ragged(expected["loss_gradient"], lengths)}
    return found | rest | {"expected": expected}
