"""What verl's policy losses compute, as records; read from verl 0.9.1.

verl computes its loss in worker processes. They import the module that the configuration names,
``actor_rollout_ref.model.external_lib=recording``, and ``recording.py`` is::

    from grpo_cli.hooks.verl import record

    record("rollouts.jsonl")

One line for each call of a policy loss, that is for each micro-batch. A policy loss sees neither
tokens, rewards, groups nor the reference, so a record has none of them: its advantages are given,
and its loss is the policy's, without the KL and the entropy that verl adds afterwards.

With ``stages=True`` the file is a bundle, which ``grpo verify`` replays stage by stage. Estimators
are recorded too, and a record then has the rewards and groups of its responses where its loss is
computed in the process that estimated their advantages. A step ends where an optimizer steps::

    recorder = record("step.bundle.jsonl", stages=True)
    recorder.rewards({"accuracy": a, "format": f}, weights=[1.0, 0.5])  # before estimating
    recorder.logged(loss, metrics)  # after the optimizer's step
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Mapping, Sequence
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
from grpo_cli.hooks.verl_stages import Estimates
from grpo_cli.hooks.writer import Writer, of_rank, warn_of_end

PolicyLoss = Callable[..., Any]


def record(path: str | Path, *, gradient: bool = True, stages: bool = False) -> Recorder:
    """Records every policy loss that verl has registered so far.

    Args:
        path: where to, as for ``Recorder``.
        gradient: as for ``Recorder``.
        stages: write a bundle, and record the advantage estimators too.
    """
    from verl.trainer.ppo import core_algos

    recorder = Recorder(path, gradient=gradient, stages=stages)
    losses = core_algos.POLICY_LOSS_REGISTRY
    estimators = core_algos.ADV_ESTIMATOR_REGISTRY if stages else {}
    for name, loss in losses.items():
        losses[name] = recorder.of(loss, name)
    for name, estimator in estimators.items():
        estimators[name] = recorder.estimates.of(estimator, name, recorder.fail)
        own = str(getattr(estimator, "__name__", ""))
        if vars(core_algos).get(own) is estimator:  # verl calls some by name
            setattr(core_algos, own, estimators[name])
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

    def __init__(self, path: str | Path, *, gradient: bool = True, stages: bool = False) -> None:
        """Remembers the ``path`` (packed if it ends in ``.gz``) and what to write.

        Args:
            path: the file.
            gradient: ∂policy_loss/∂log_prob too, from one more backward pass of the loss.
            stages: a bundle.
        """
        self.path = Path(path)
        self.gradient = gradient
        self.stages = stages
        self.closed = False
        self.count = self.step = self.micro = 0
        self.estimates = Estimates()
        self._waiting: dict[str, Any] | None = None
        self._stepped = False

    @cached_property
    def writer(self) -> Writer:
        """The file, opened in the process that computes a loss, once it does."""
        writer = Writer(of_rank(self.path, *_rank()), sealed=self.stages)
        if self.stages:
            from torch.optim.optimizer import register_optimizer_step_post_hook

            register_optimizer_step_post_hook(self._end_step)
            atexit.register(self.close)  # before the writer's own
        return writer

    def rewards(
        self, functions: Mapping[str, Sequence[float]], weights: Sequence[float] | None = None
    ) -> None:
        """Says what the reward functions returned for the responses that are estimated next."""
        self.estimates.functions, self.estimates.weights = functions, weights

    def logged(self, loss: float | None = None, metrics: Mapping[str, float] | None = None) -> None:
        """Says what the training logs of the step that just ended."""
        self._stepped = True
        if self._waiting is not None:
            expected = self._waiting["expected"]
            expected |= {} if loss is None else {"step_loss": number(loss)}
            known = {key: number(value) for key, value in (metrics or {}).items()}
            expected |= {"step_metrics": known} if known else {}

    def _end_step(self, *_: Any) -> None:
        self._stepped = True

    def _write_waiting(self) -> None:
        """Writes the record that waits, which knows then whether it is the last of its step."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        if self._stepped:
            waiting["rest"]["bundle"]["micro_batches"] = self.micro
            self.step, self.micro = self.step + 1, 0
        self._stepped = False
        self.writer.write(partial(made, **waiting))

    def close(self) -> None:
        """Writes what waits; the losses go on unrecorded."""
        if "writer" in vars(self) and not self.closed:
            self._write_waiting()
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
                self.fail(error)
            return result

        recorded.recorder = self  # type: ignore[attr-defined]
        return recorded

    @property
    def _ended(self) -> bool:
        return self.closed or ("writer" in vars(self) and self.writer.closed)

    def fail(self, error: Exception) -> None:
        """Ends the recording, with one warning; the loss does not change."""
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
        rest: dict[str, Any] = {"hyperparameters": settings, "framework": about}
        record: dict[str, Any] = {
            "identity": self.count,
            "columns": columns,
            "rest": rest,
            "expected": expected,
        }
        self.count += 1
        if not self.stages:
            self.writer.write(partial(made, **record))
            return
        self._write_waiting()
        rest |= {"step": self.step, "microbatch": self.micro, "bundle": {}}
        estimated = self.estimates.find(columns["advantages"], columns["response_mask"])
        if estimated is not None:
            rest |= estimated[0]
            about |= estimated[1]
        self.micro += 1
        self._waiting = record


def _rank() -> tuple[int, int]:
    """This process among the others: its number, and how many there are."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
