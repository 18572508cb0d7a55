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
from pathlib import Path
from typing import Any

from grpo_cli.hooks.columns import gradient_of, number
from grpo_cli.hooks.verl_record import (
    BYPASS,
    arguments,
    bypass_settings,
    columns_of,
    hyperparameters,
    made,
    parts,
)
from grpo_cli.hooks.writer import Writer, of_rank, warn_of_end

PolicyLoss = Callable[..., Any]


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
        loss: a function of verl's signature; its name says what the loss is called,
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
        self.path = Path(path)
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

        @wraps(loss)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            result = loss(*args, **kwargs)
            try:
                if not self._ended:
                    self._record(name, arguments(loss, args, kwargs), *parts(result))
            except Exception as error:
                self._fail(error)
            return result

        recorded.recorder = self  # type: ignore[attr-defined]
        return recorded

    @property
    def _ended(self) -> bool:
        return self.closed or ("writer" in vars(self) and self.writer.closed)

    def _fail(self, error: Exception) -> None:
        """Ends the recording, which is said once; the loss is what it is."""
        self.closed = True
        if "writer" in vars(self):
            self.writer.fail(error)
        else:  # the file was never opened
            warn_of_end(self.path, error, 0)

    def _record(
        self, name: str, given: Mapping[str, Any], loss: Any, metrics: Mapping[str, Any]
    ) -> None:
        columns = columns_of(name, given)
        weighted = "rollout_is_weights" in columns
        logged = {key: number(value) for key, value in metrics.items()}
        if weighted:  # verl's weights are finished, so this loss is kept and not compared
            expected: dict[str, Any] = {"metrics": {**logged, "weighted_policy_loss": number(loss)}}
        else:
            expected = {"policy_loss": number(loss), "metrics": logged}
        if self.gradient and not weighted:
            expected["loss_gradient"] = gradient_of(loss, given["log_prob"])
        about: dict[str, Any] = {"name": "verl", "version": version("verl"), "policy_loss": name}
        if given.get("loss_agg_mode") is not None:
            about["loss_agg_mode"] = given["loss_agg_mode"]
        if name == BYPASS:
            about["rollout_correction"] = bypass_settings(given["config"])
        settings = hyperparameters(given.get("config"), columns["response_mask"])
        rest = {"hyperparameters": settings, "framework": about}
        self.writer.write(partial(made, self.count, columns, rest, expected))
        self.count += 1


def _rank() -> tuple[int, int]:
    """This process among the others: its number, and how many there are."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
