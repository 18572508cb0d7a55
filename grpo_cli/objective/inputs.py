"""What stage functions read by name: the batch's columns and what earlier stages made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, Batch
from grpo_cli.errors import InputError
from grpo_cli.objective.arithmetic.groups import Groups, Penalised
from grpo_cli.objective.arithmetic.turns import order_turns
from grpo_cli.objective.choice import Bound, Parameters
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.results import PerToken

NEEDS = {
    "log_probs_new": "log-probs under the current policy",
    "log_probs_old": "log-probs under the old policy",
    "log_ratio_ref": "log-probs under the reference",
    "log_probs_ref": "log-probs under the reference",
    "log_probs_rollout": "log-probs from the inference engine",
    "probs_old": "it with ratios, to compare π_θ = ρ·π_old with the reference",
    "rewards": "one reward per response",
    "task_rewards": "one reward per response",
    "reward_columns": "one reward per response and reward function",
    "advantages": "one advantage per response or per token",
    "entropies": "one entropy per token",
    "values": "a critic's value of each token",
    "sum_pi_squared": "the sum of squared probabilities over the vocabulary, per token",
    "reward_baselines": "the reward of a greedy response to the prompt, per response",
    "turn_rewards": "one reward per turn",
    "turn_scores": "one reward per turn, or one per response",
    "states": "the id of the state in which each turn began",
    "token_rewards": "one reward per token",
}
"""What to say of a column that a record lacks."""

_WRITTEN = {
    "log_ratio_ref": "log_probs_ref",
    "token_log_ratio": "log_probs_old",
    "task_rewards": "rewards",
    "reward_columns": "rewards",
    "turn_scores": "turn_rewards",
    "states": "state_ids",
}


class MissingColumnError(InputError):
    """The records lack a column that a stage needs."""


class MisnamedColumnError(InputError):
    """The records lack a column that is needed, and nothing reads a key that may be it."""

    @classmethod
    def of(cls, column: str, needed_by: str, misnamed: tuple[str, str]) -> MisnamedColumnError:
        """The error, without a place.

        Args:
            column: which.
            needed_by: what does: a variant, or a command.
            misnamed: the key, and how it is read.
        """
        key, advice = misnamed
        may_be = advice.startswith(f"--map {column}={key} reads it")
        asked = "is it this key? Then" if may_be else "this key is not read"
        message = f"{column} is missing, but {needed_by} needs it; {asked}: {advice}"
        return cls(message, path=key)


def refuse_misnamed(batch: Batch, objective: Objective) -> None:
    """Stops where the objective needs log-probs that records may have under another name.

    Raises:
        MisnamedColumnError: with the key, and how it is read.
    """
    lacking = [name for name in objective.needed_log_probs if name in batch.misnamed]
    if lacking:
        first, *others = lacking
        error = MisnamedColumnError.of(
            first, f"the variant {objective.name}", batch.misnamed[first]
        )
        error.message += "".join(f"; {name}: {batch.misnamed[name][1]}" for name in others)
        raise error


def missing(name: str, bound: Bound, stage: str, detail: str = "") -> MissingColumnError:
    """The error for a column that a bound stage needs and the records lack.

    Args:
        name: the column, as the stage function calls it.
        bound, stage: what needs it.
        detail: what else to say of the column, as ", which other records have".
    """
    wanted = NEEDS.get(name, name.replace("_", " "))
    without = "; --beta 0 works without it" if name == "log_ratio_ref" and stage == "kl" else ""
    return MissingColumnError(
        f"missing; the {stage} stage ({bound.name}) needs {wanted}{detail}{without}",
        path=_WRITTEN.get(name, name),
        record=0,
    )


class Inputs:
    """The batch and what the stages have made of it so far, by name.

    The names are the parameters of the stage functions: the fields of ``Batch`` and

    - ``groups``: the responses' groups (``Groups``); ``lengths``: [R] tokens of each response;
    - ``trajectories``: the responses' trajectories (``Groups``), and ``turns``: the tokens cut into
      turns (``Segments``); each response is one of both where the records do not say otherwise;
    - ``turn_order``: the turns of each trajectory in order (``TurnOrder``);
    - ``states``: the turns that began in one state of one group (``Groups``);
    - ``turn_scores``: [turns] the reward of each turn; where the records give rewards of responses
      alone, each is that of the response's last turn;
    - ``counted``: [N] whether the denominators count a token; None where they count all;
    - ``token_log_ratio``: [N] log π_θ − log π_old, in nats as all log-probs are;
    - ``log_ratio_ref``: [N] log π_θ − log π_ref, in nats;
    - ``advantage``: [N]; ``response_advantage``: [R], None where they differ between the tokens of
      a response; ``log_ratio``, ``ratio``: [N], at the level of the ratio stage;
    - ``rewards``: [R], less the KL where that is in the reward; ``task_rewards``: [R] without it;
      ``reward_columns``: [R, K] where there are several reward functions;
    - ``reward_weights``: [K] what each of them counts; None where they count alike;
    - ``token_penalty``: [N] what the KL takes off the reward at each token; ``penalties``: [R] what
      it takes off each response's reward, None where nothing does;
    - ``moments``: the batch statistics that an advantage asked for.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._made: dict[str, Any] = {}

    def __setitem__(self, name: str, value: object) -> None:
        self._made[name] = value

    def penalise(self, penalties: F64) -> None:
        """Takes a number off each reward, [R]."""
        task_rewards, groups = self.get("task_rewards"), self.get("groups")
        rewards = task_rewards - penalties
        self._made |= {"rewards": rewards, "penalties": penalties}
        self["groups"] = Penalised(groups, rewards, task_rewards, penalties)

    def count_only(self, kept: NDArray[np.bool_] | None) -> None:
        """Has the denominators count these tokens, [N]; None: all."""
        responses = self.get("responses")
        self["counted"] = kept
        self["lengths"] = (
            responses.lengths if kept is None else responses.sum(kept.astype(np.int64))
        )

    def call(self, bound: Bound, stage: str) -> Any:
        """Runs a bound stage on the columns that it reads.

        Raises:
            InputError: where the records lack a column that it needs.
        """
        columns = self._columns(bound.choice.parameters, bound, stage)
        return bound.choice.function(*columns, **self._values(bound))

    def _values(self, bound: Bound) -> Mapping[str, Any]:
        """The hyperparameters; those that differ by record with a number per token or response."""
        if not bound.varied:
            return bound.values
        levels, records = bound.choice.levels, self._batch.records
        units = {"ByToken": self._batch.record_tokens, "ByResponse": records}
        spread = {name: units[levels[name]].spread(one) for name, one in bound.varied.items()}
        return {**bound.values, **spread}

    def measure(self, bound: Bound, stage: str) -> Any:
        """Runs the function that takes a bound stage's sample for batch statistics."""
        function, takes = bound.choice.measure, bound.choice.measured
        assert function is not None
        given = self._values(bound)
        values = {name: given[name] for name in takes.hyperparameters}
        return function(*self._columns(takes, bound, stage), **values)

    def _columns(self, takes: Parameters, bound: Bound, stage: str) -> list[Any]:
        found = [self.get(name) for name in takes.columns]
        for name, value in zip(takes.columns, found, strict=True):
            if value is None and name not in takes.optional:
                known = name == "log_ratio_ref" and self._batch.log_probs_ref is not None
                raise missing("probs_old" if known else name, bound, stage)
        return found

    def get(self, name: str) -> Any:
        """The column, or None where the records lack what it is made of."""
        if name not in self._made:
            maker = _MAKERS.get(name)
            self._made[name] = getattr(self._batch, name) if maker is None else maker(self._batch)
        return self._made[name]


_GROUPS: WeakKeyDictionary[Batch, Groups] = WeakKeyDictionary()
"""Batch → its groups, whatever the objective: what several ask of its rewards is computed once."""


def _trajectories(batch: Batch) -> Groups:
    if batch.trajectories is None:
        return Groups(np.arange(batch.responses.count), batch.responses.count)
    return Groups(batch.trajectories, batch.trajectory_count)


def _states(batch: Batch) -> Groups | None:
    if batch.state_ids is None:
        return None
    pairs = batch.groups[batch.responses.index[batch.turns.starts]], batch.state_ids
    found, index = np.unique(np.stack(pairs), axis=1, return_inverse=True)
    return Groups(index.reshape(-1), found.shape[1])


def _turn_scores(batch: Batch) -> F64 | None:
    rewards = batch.summed_rewards
    if batch.turn_rewards is not None or rewards is None:
        return batch.turn_rewards
    owner = batch.responses.index[batch.turns.starts]
    last = np.append(owner[1:] != owner[:-1], True)[: len(owner)]
    return np.where(last, rewards[owner], 0.0)


def _token_log_ratio(batch: Batch) -> F64 | None:
    if batch.log_probs_new is not None and batch.log_probs_old is not None:
        return batch.log_probs_new - batch.log_probs_old
    return None if batch.ratios is None else np.log(batch.ratios)


def _log_ratio_ref(batch: Batch) -> F64 | None:
    if batch.log_probs_new is None or batch.log_probs_ref is None:
        return None
    return batch.log_probs_new - batch.log_probs_ref


_MAKERS: dict[str, Callable[[Batch], Any]] = {
    "groups": lambda batch: _GROUPS.setdefault(batch, Groups(batch.groups, batch.group_count, {})),
    "trajectories": _trajectories,
    "turn_order": lambda batch: order_turns(batch.turns, batch.responses, batch.trajectories),
    "states": _states,
    "turn_scores": _turn_scores,
    "counted": lambda _: None,
    "lengths": lambda batch: batch.responses.lengths,
    "token_log_ratio": _token_log_ratio,
    "log_ratio_ref": _log_ratio_ref,
    "advantages": lambda batch: (
        batch.advantages if batch.token_advantages is None else PerToken(batch.token_advantages)
    ),
    "rewards": lambda batch: batch.summed_rewards,
    "task_rewards": lambda batch: batch.summed_rewards,
    "reward_columns": lambda batch: (
        None if batch.rewards is None else batch.rewards.reshape(batch.responses.count, -1)
    ),
    "token_penalty": lambda batch: np.zeros(batch.responses.total),
    "moments": lambda _: None,
    "penalties": lambda _: None,
    "reward_weights": lambda _: None,
}


def take_penalty(inputs: Inputs, objective: Objective) -> None:
    """Takes the KL off the rewards where it belongs there; the first thing that happens."""
    if objective.kl_in_reward and _scores_reward(inputs, objective):
        penalty: F64 = inputs.call(objective.kl, "kl")
        inputs["token_penalty"] = penalty
        if inputs.get("rewards") is not None:
            inputs.penalise(inputs.get("responses").sum(penalty))


def _scores_reward(inputs: Inputs, objective: Objective) -> bool:
    """Whether a KL in the reward matters: given advantages have it already, and β may be 0."""
    if objective.advantage.choice.given:
        return False
    return objective.kl.values.get("beta") != 0.0 or inputs.get("log_probs_ref") is not None
