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
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial, wraps
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from grpo_cli.hooks.columns import Array, copied, gradient_of, number, record_of
from grpo_cli.hooks.writer import Writer, of_rank, warn_of_end

PolicyLoss = Callable[..., Any]


def record(path: str | Path, *, gradient: bool = True, stages: bool = False) -> Recorder:
    """Records every policy loss that verl has registered so far.

    Args:
        path, gradient: as for ``Recorder``.
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
        path, gradient: as for ``Recorder``.
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

            register_optimizer_step_post_hook(lambda *_: setattr(self, "_stepped", True))
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
                if not (self.closed or ("writer" in vars(self) and self.writer.closed)):
                    self._record(name, arguments(loss, args, kwargs), *parts(result))
            except Exception as error:
                self.fail(error)
            return result

        recorded.recorder = self  # type: ignore[attr-defined]
        return recorded

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
        record: dict[str, Any] = {"identity": self.count, "columns": columns}
        record |= {"rest": rest, "expected": expected}
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


# ---- what estimators computed, found again for the rows of a policy loss -------------------------

_KEPT = 2
"""Generations that losses may still be computed of: verl trains one step off at most."""


class Generation(NamedTuple):
    """The responses that one call of an estimator saw.

    Attributes:
        columns: key of a record → [R] its values: rewards, the raw ones where the training says
            them, and groups where the estimator has uids.
        settings: the estimator's name and settings, by verl's names.
        number, size: the call, and how many responses it had.
        places: what identifies a response → its places.
    """

    columns: Mapping[str, Sequence[Any]]
    settings: Mapping[str, Any]
    number: int
    size: int
    places: Mapping[bytes, deque[int]]


class Estimates:
    """Remembers the responses of the last calls of estimators, by the advantages they were given.

    A policy loss sees advantages and no rewards. Responses of the same length with the same
    advantages may be taken for each other, which changes nothing in what is replayed.
    """

    def __init__(self) -> None:
        self.functions: Mapping[str, Sequence[float]] = {}
        self.weights: Sequence[float] | None = None
        self._count = 0
        self._known: deque[Generation] = deque(maxlen=_KEPT)

    def of(
        self, estimator: Callable[..., Any], name: str, fail: Callable[[Exception], None]
    ) -> Any:
        """``estimator``, whose results are remembered under verl's ``name`` for it."""

        @wraps(estimator)
        def remembered(*args: Any, **kwargs: Any) -> Any:
            given = signature(estimator).bind(*args, **kwargs).arguments
            rewards = given.get("token_level_rewards")
            scores = None if rewards is None else copied(rewards.sum(dim=-1))  # some work in place
            result = estimator(*args, **kwargs)
            try:
                if scores is not None:
                    self._remember(name, given, scores, result[0])
            except Exception as error:
                fail(error)
            return result

        return remembered

    def _remember(self, name: str, given: Mapping[str, Any], scores: Array, found: Any) -> None:
        more = {**given.get("kwargs", {}), **given}
        settings: dict[str, Any] = {"adv_estimator": name}
        if more.get("norm_adv_by_std_in_grpo") is not None:
            settings["norm_adv_by_std_in_grpo"] = bool(more["norm_adv_by_std_in_grpo"])
        columns = {"rewards": scores.astype(float).tolist()}
        if more.get("index") is not None:
            columns["group_ids"] = [number(group) for group in more["index"]]
        for key, values in self.functions.items():
            columns[f"rewards/{key}"] = np.asarray(values, float).tolist()
        if self.functions and self.weights is not None:
            settings["reward_weights"] = [*map(float, self.weights)]
        self.functions = {}
        places: dict[bytes, deque[int]] = {}
        for row, seen in enumerate(_keys(copied(found), copied(given["response_mask"]))):
            places.setdefault(seen, deque()).append(row)
        self._known.append(Generation(columns, settings, self._count, len(scores), places))
        self._count += 1

    def find(
        self, advantages: Array, mask: Array
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
        """What a record says of its responses, and the settings; None where one is unknown."""
        keys = _keys(advantages, mask)
        for known in reversed(self._known):
            if not all(key in known.places for key in keys):
                continue
            rows = []
            for key in keys:  # responses that are alike take turns
                rows.append(known.places[key][0])
                known.places[key].rotate(-1)
            found = {name: [column[row] for row in rows] for name, column in known.columns.items()}
            place = {"generation": known.number, "rows": rows, "generation_size": known.size}
            return {**found, "bundle": place}, known.settings
        return None


def _keys(advantages: Array, mask: Array) -> list[bytes]:
    """[R] what identifies each response."""
    singles = np.where(mask != 0, advantages, 0.0).astype(np.float32)
    return [
        row.tobytes() + np.packbits(kept != 0).tobytes()
        for row, kept in zip(singles, mask, strict=True)
    ]


# ---- a call of a policy loss → a record ----------------------------------------------------------

_NEEDED = ("old_log_prob", "log_prob", "advantages", "response_mask")
_OF_CONFIG = ("clip_ratio_c", "tau_pos", "tau_neg", "loss_scale_factor")
_OF_POLICY_LOSS = (
    *("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub"),
    *("kl_cov_ratio", "ppo_kl_coef", "dro_beta"),
)
BYPASS = "bypass_mode"
"""The policy loss that corrects for the engine by itself."""
_OF_BYPASS: Mapping[str, Any] = {
    "loss_type": "ppo_clip",
    "rollout_is": None,
    "rollout_is_threshold": 2.0,
    "rollout_is_batch_normalize": False,
    "rollout_rs": None,
    "rollout_rs_threshold": None,
}
"""What it reads of rollout_correction, and what it takes for what is missing there."""
_OF_BATCH = ("dp_size", "batch_num_tokens", "global_batch_size", "loss_scale_factor")


def arguments(loss: Callable[..., Any], args: Any, kwargs: Any) -> Mapping[str, Any]:
    """What a policy loss was called with, by verl's names.

    Raises:
        TypeError: where it takes something by another name.
    """
    given = signature(loss).bind(*args, **kwargs)
    given.apply_defaults()
    for name in _NEEDED:
        if name not in given.arguments:
            raise TypeError(f"{loss.__name__} has no parameter {name}")
    return given.arguments


def parts(result: Any) -> tuple[Any, Mapping[str, Any]]:
    """The loss and its metrics; a loss of one's own may return more, or the loss alone."""
    if not isinstance(result, tuple):
        return result, {}
    metrics = next((part for part in result[1:] if isinstance(part, Mapping)), {})
    return result[0], metrics


def columns_of(name: str, given: Mapping[str, Any]) -> dict[str, Array]:
    """Copies of what the loss was computed from, under the names of a record.

    In bypass mode the engine's log-probs are given as the old ones, and weights are ignored.
    """
    weights = given.get("rollout_is_weights")
    tensors = {
        "log_probs_new": given["log_prob"],
        "log_probs_old": given["old_log_prob"],
        "log_probs_rollout": given["old_log_prob"] if name == BYPASS else None,
        "advantages": given["advantages"],
        "rollout_is_weights": None if name == BYPASS else weights,
        "response_mask": given["response_mask"],
    }
    return {name: copied(tensor) for name, tensor in tensors.items() if tensor is not None}


def hyperparameters(config: Any, mask: Array) -> dict[str, Any]:
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


def bypass_settings(config: Any) -> dict[str, Any]:
    """What the policy loss of bypass mode read of its configuration, by verl's names."""
    given = config.policy_loss.get("rollout_correction", None)
    return {"bypass_mode": True} | {name: given.get(name, own) for name, own in _OF_BYPASS.items()}


def made(
    identity: int, columns: dict[str, Array], rest: dict[str, Any], expected: dict[str, Any]
) -> dict[str, Any]:
    """The record; run by the writer's thread."""
    shown = columns.pop("response_mask")
    return record_of({"id": identity}, columns, shown, shown, rest, expected)
