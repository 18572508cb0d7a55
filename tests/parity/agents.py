"""Writes tests/golden/agents.json: frameworks' functions on trajectories of several turns.

``cd tests && python -m parity.agents OWNER/NAME=CLONE...`` with git clones of the repositories that
are named below, and verl 0.9.1 installed. What ran of sources that are not given stays as it was.
A case has the columns of a batch under the names of ``grpo_cli.batch.Batch``, the choices of ours
that should give the same, the advantages of each token, and what the framework's own loss makes of
these: the loss and ∂(−loss)/∂log π_θ of each token.
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import torch

from .agreement import GOLDEN
from .framework_sources import Clones, in_float64
from .others.prime_rl import loaded

FILE = GOLDEN / "agents.json"
Case = dict[str, Any]
Loss = Callable[["Rows", torch.Tensor, torch.Tensor], torch.Tensor]
"""Rows, log π_θ and advantages, both [R, W] → the loss."""


DOUBLE = SimpleNamespace(**vars(np) | {"float32": np.float64})
"""numpy without float32, as ``in_float64`` leaves torch."""


class Rows:
    """Trajectories as padded rows, a turn each (``split``), or one each with its turns in it.

    Attributes:
        lengths: [R][turns] tokens of each row's turns.
        groups, trajectories: [R].
        rewards: [R]; turn_rewards: [turns].
    """

    def __init__(self, seed: int, *, split: bool) -> None:
        draw = np.random.default_rng(seed)
        turns = [int(n) for n in draw.integers(1, 5, 11)]
        group = np.array([0, 0, 0, 0, 1, 1, 1, 2, 3, 3, 3])  # of trajectories; 2 has one alone
        sizes = [draw.integers(1, 5, count).tolist() for count in turns]
        outcome = draw.integers(0, 9, 11) / 8.0
        outcome[8:] = 0.25  # a dead group
        self.split = split
        self.lengths = [[n] for row in sizes for n in row] if split else sizes
        self.trajectories = np.repeat(np.arange(11), turns) if split else np.arange(11)
        self.groups = group[self.trajectories]
        self.rewards = outcome[self.trajectories]
        self.turn_rewards = draw.integers(0, 9, sum(turns)) / 8.0
        self.steps = np.concatenate([np.arange(count) for count in turns])
        self.states = draw.integers(0, 3, sum(turns)) + 3 * group[np.repeat(np.arange(11), turns)]
        tokens = sum(map(sum, sizes))
        self.old = -draw.exponential(1.0, tokens) - 1e-3
        self.new = np.minimum(self.old + draw.normal(0.0, 0.4, tokens), -1e-3)
        self.values = draw.normal(0.5, 0.4, tokens)
        gap = 0 if split else 2  # tokens of the tool between the turns
        self.mask = np.zeros((len(self.lengths), 30))
        self.turn_ids = np.full(self.mask.shape, -1)
        for i, row in enumerate(self.lengths):
            start = 0
            for number, length in enumerate(row):
                self.mask[i, start : start + length] = 1.0
                self.turn_ids[i, start : start + length] = number
                start += length + gap

    @property
    def ends(self) -> np.ndarray:
        """[R] the last token of each row that counts."""
        return self.mask.shape[1] - 1 - self.mask[:, ::-1].argmax(1)

    def table(self, values: np.ndarray) -> torch.Tensor:
        """[R, W] a token column, padded."""
        found = np.zeros(self.mask.shape)
        found[self.mask > 0] = values
        return torch.tensor(found)

    def scores(self, rewards: np.ndarray) -> torch.Tensor:
        """[R, W] a reward of each row at its last token."""
        found = np.zeros(self.mask.shape)
        found[np.arange(len(found)), self.ends] = rewards
        return torch.tensor(found)

    def columns(self, **changes: Any) -> Case:
        """As ``Batch`` has them."""
        ids = [number for row in self.lengths for number, n in enumerate(row) for _ in range(n)]
        found = {
            "lengths": [sum(row) for row in self.lengths],
            "groups": self.groups,
            "rewards": self.rewards,
            "trajectories": self.trajectories if self.split else None,
            "turn_ids": ids,
            "turn_rewards": self.turn_rewards,
            "state_ids": self.states + 0.0,
            "values": self.values,
            "log_probs_new": self.new,
            "log_probs_old": self.old,
        }
        return {
            key: value.tolist() if isinstance(value, np.ndarray) else value
            for key, value in (found | changes).items()
        }

    def advantages(self, table: torch.Tensor) -> list[float]:
        """[N] a padded table's tokens that count."""
        return _short(table.detach().numpy()[self.mask > 0])


def _short(values: np.ndarray) -> list[float]:
    return [float(f"{x:.12e}") for x in values.tolist()]


def case(source: str, what: str, rows: Rows, table: torch.Tensor, loss: Loss, **ours: Any) -> Case:
    """An advantage, and the loss of it."""
    changes = ours.pop("columns", {})
    found = {"source": source, "function": what, **ours, "batch": rows.columns(**changes)}
    new = rows.table(rows.new).requires_grad_()
    value = loss(rows, new, table.detach().double())
    value.backward()
    assert new.grad is not None
    found |= {"advantages": rows.advantages(table), "loss": value.item()}
    return found | {"gradient": rows.advantages(-new.grad)}


def verl_grpo() -> Any:
    """verl 0.9.1's estimator."""
    from verl.trainer.ppo import core_algos

    return core_algos.compute_grpo_outcome_advantage


def verl_loss(rows: Rows, new: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """verl 0.9.1's vanilla, which rLLM trains with too."""
    from verl.trainer.ppo import core_algos

    from .verl_functions import actor_config

    return core_algos.get_policy_loss_fn("vanilla")(
        old_log_prob=rows.table(rows.old),
        log_prob=new,
        advantages=advantages,
        response_mask=torch.tensor(rows.mask),
        loss_agg_mode="token-mean",
        config=actor_config("token-mean", {}),
    )[0]


class Data:
    """Stands in for a DataProto."""

    def __init__(self, batch: dict[str, torch.Tensor], **non_tensors: np.ndarray) -> None:
        self.batch, self.non_tensor_batch, self.meta_info = batch, non_tensors, {}

    def __len__(self) -> int:
        return len(next(iter(self.batch.values())))

    def __getitem__(self, index: Any) -> Data:
        index = np.asarray(index)
        tensors = {key: value[index] for key, value in self.batch.items()}
        return Data(tensors, **{key: value[index] for key, value in self.non_tensor_batch.items()})

    select_idxs = __getitem__


def estimated(data: Data, **_: Any) -> Data:
    """verl's compute_advantage for grpo."""
    found = verl_grpo()(
        data.batch["token_level_rewards"], data.batch["response_mask"], data.non_tensor_batch["uid"]
    )
    data.batch["advantages"], data.batch["returns"] = found
    return data


def packed(rows: Rows) -> Data:
    return Data(
        {
            "token_level_rewards": rows.scores(rows.rewards),
            "response_mask": torch.tensor(rows.mask),
        },
        uid=np.array([f"p{g}" for g in rows.groups], dtype=object),
        rollout_id_list=np.array([f"t{t}" for t in rows.trajectories], dtype=object),
    )


def verl(clones: Clones) -> Iterator[Case]:
    """compute_advantage_for_multi_trajectories."""
    spec = find_spec("verl")
    assert spec is not None
    root = Clones({"verl": Path(spec.origin or "").parent})
    grpo = SimpleNamespace(AdvantageEstimator=SimpleNamespace(GRPO="grpo"))
    own = root.load(
        "verl",
        "trainer/ppo/v1/utils.py",
        ["compute_advantage_for_multi_trajectories"],
        core_algos=grpo,
        compute_advantage=estimated,
    )
    del clones
    for seed in (1, 2):
        rows = Rows(seed, split=True)
        rows.rewards = rows.rewards + (np.arange(len(rows.rewards)) % 3) / 8.0  # of each output
        keys = [
            f"{g}_{t}_{s}"
            for g, t, s in zip(rows.groups, rows.trajectories, rows.steps, strict=True)
        ]
        data = own.compute_advantage_for_multi_trajectories(packed(rows), keys, "grpo")
        what, row = "compute_advantage_for_multi_trajectories", "verl/multi_trajectories"
        yield case("verl 0.9.1", what, rows, data.batch["advantages"], verl_loss, variant=row)


def skyrl(clones: Clones) -> Iterator[Case]:
    """The trainer's compute_advantages_and_returns with step_wise_trajectories."""
    name, root = "NovaSky-AI/SkyRL", "skyrl/backends/skyrl_train/utils"
    tools = clones.load(name, f"{root}/torch_utils.py", ["masked_mean", "safe_exp_delta"])
    own = clones.load(
        name,
        f"{root}/ppo_utils.py",
        [
            "apply_loss_reduction_to_advantages_minibatch",
            "compute_grpo_outcome_advantage",
            "ppo_policy_loss",
            "reduce_loss",
        ],
        apply_off_policy_correction=lambda loss, *_: (loss, _[-2], {}),
        **vars(tools),
    )

    def estimate(**given: Any) -> Any:
        names = ("token_level_rewards", "response_mask", "index", "grpo_norm_by_std")
        return own.compute_grpo_outcome_advantage(**{key: given[key] for key in names})

    step = clones.load(
        name,
        "skyrl/train/trainer.py",
        ["compute_advantages_and_returns"],
        ppo_utils=SimpleNamespace(compute_advantages_and_returns=estimate),
        logger=SimpleNamespace(info=lambda _: None),
    )
    algorithm = SimpleNamespace(
        advantage_estimator="grpo", gamma=1.0, lambd=1.0, grpo_norm_by_std=True
    )
    trainer = SimpleNamespace(
        cfg=SimpleNamespace(
            generator=SimpleNamespace(step_wise_trajectories=True),
            trainer=SimpleNamespace(algorithm=algorithm),
        ),
        all_metrics={},
    )
    settings = SimpleNamespace(
        eps_clip_low=0.2,
        eps_clip_high=0.2,
        policy_loss_type="regular",
        off_policy_correction=SimpleNamespace(),
    )

    def loss(rows: Rows, new: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
        mask = torch.tensor(rows.mask)
        scaled = own.apply_loss_reduction_to_advantages_minibatch(
            advantages, mask, "token_mean", len(mask), 1
        )
        old = rows.table(rows.old)
        return own.ppo_policy_loss(new, old, scaled, settings, mask, None)[0]

    for seed in (1, 2):
        rows = Rows(seed, split=True)
        rows.rewards = rows.rewards + (np.arange(len(rows.rewards)) % 3) / 8.0
        last = np.append(rows.trajectories[1:] != rows.trajectories[:-1], True)

        mask = torch.tensor(rows.mask)
        data = _Training(rewards=rows.scores(rows.rewards), response_mask=mask, values=None)
        data.metadata = {
            "is_last_step": last.tolist(),
            "uids": [f"p{g}" for g in rows.groups],
            "avg_response_length": 1.0,
        }
        data = step.compute_advantages_and_returns(trainer, data)
        what, row = "compute_advantages_and_returns", "skyrl/step_wise"
        yield case(f"{name} a9564572", what, rows, data["advantages"], loss, variant=row)


class _Training(dict):
    metadata: dict[str, Any]

    def to(self, _: str) -> _Training:
        return self


def agent_lightning(clones: Clones) -> Iterator[Case]:
    """compute_rollout_level_advantage, and the loss per_rollout_mean."""
    name = "microsoft/agent-lightning"
    source = f"{name} c632d8d"
    level = clones.load(
        name,
        "agentlightning/verl/rollout_level_advantage.py",
        [
            "compute_rollout_level_advantage",
            "_required_non_tensor",
            "_required_tensor",
            "_validate_same_uid",
            "_validate_same_reward",
            "_extract_rollout_scalars",
            "_broadcast_rollout_scalars",
        ],
        compute_advantage=estimated,
    )
    import verl.utils.torch_functional as functional

    own = clones.load(
        name,
        "agentlightning/verl/per_rollout_loss.py",
        ["normalize_advantages_by_rollout", "compute_policy_loss_per_rollout_mean"],
        verl_F=functional,
    )

    class Config(SimpleNamespace):
        def get(self, key: str, other: Any) -> Any:
            return getattr(self, key, other)

    config = Config(clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.2, global_batch_info={})

    def loss(rows: Rows, new: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
        mask = torch.tensor(rows.mask)
        scaled = own.normalize_advantages_by_rollout(
            advantages, mask, rows.trajectories.tolist(), num_trained_rows=len(rows.mask)
        )
        old = rows.table(rows.old)
        return own.compute_policy_loss_per_rollout_mean(old, new, scaled, mask, config=config)[0]

    for seed in (1, 2):
        rows = Rows(seed, split=True)
        data, _ = level.compute_rollout_level_advantage(
            packed(rows), adv_estimator="grpo", gamma=1.0, lam=1.0, num_repeat=1
        )
        what, row = "compute_rollout_level_advantage", "agent-lightning/per_rollout_mean"
        yield case(source, what, rows, data.batch["advantages"], loss, variant=row)


def rllm(clones: Clones) -> Iterator[Case]:
    """calculate_grpo_advantages_per_group."""
    name = "rllm-org/rllm"
    own = clones.load(
        name, "rllm/trainer/algorithms/rl_algo.py", ["calculate_grpo_advantages_per_group"]
    )
    rows = Rows(3, split=True)
    last = np.append(rows.trajectories[1:] != rows.trajectories[:-1], True)
    groups, rewards = rows.groups[last], rows.rewards[last]
    found = np.zeros(len(rewards))
    for group in np.unique(groups):
        few = groups == group
        found[few] = own.calculate_grpo_advantages_per_group(rewards[few])[0]
    table = torch.tensor(found[rows.trajectories])[:, None].expand(rows.mask.shape)
    what = "calculate_grpo_advantages_per_group"
    yield case(f"{name} 9beb6e0", what, rows, table, verl_loss, variant="rllm/grpo")


def rllm_before(clones: Clones) -> Iterator[Case]:
    """Grouping by step_ids, of which verl makes advantages."""
    name = "rllm-org/rllm@0.2.1"
    text = clones.text(name, "rllm/engine/agent_workflow_engine.py")
    assert 'step_ids.append(f"{trajectory_id}_step{step_idx}")' in text
    rows = Rows(4, split=True)
    ids = [f"p{g}_step{s}" for g, s in zip(rows.groups, rows.steps, strict=True)]
    index = np.array(ids, dtype=object)
    mask = torch.tensor(rows.mask)
    table, _ = verl_grpo()(rows.scores(rows.turn_rewards), mask, index)
    what = "step_ids as verl's uid"
    yield case("rllm-org/rllm 960d573", what, rows, table, verl_loss, variant="rllm/per_step")


class Proto(Data):
    """What ROLL's functions ask of a DataProto besides."""

    @classmethod
    def from_dict(cls, batch: dict[str, torch.Tensor]) -> Proto:
        return cls(_Tensors(batch))

    def group_by(self, keys: str) -> dict[Any, Proto]:
        labels = self.non_tensor_batch[keys]
        return {one: self._only(np.flatnonzero(labels == one)) for one in dict.fromkeys(labels)}

    def _only(self, at: np.ndarray) -> Proto:
        rest = {key: value[at] for key, value in self.non_tensor_batch.items()}
        return Proto(_Tensors({k: v[at] for k, v in self.batch.items()}), **rest)

    def reorder(self, indices: torch.Tensor) -> None:
        found = self._only(np.asarray(indices))
        self.batch, self.non_tensor_batch = found.batch, found.non_tensor_batch

    def pop(self, key: str) -> None:
        self.batch.pop(key)

    @staticmethod
    def concat(parts: list[Proto]) -> Proto:
        rest = [part.non_tensor_batch for part in parts]
        return Proto(
            _Tensors({k: torch.cat([p.batch[k] for p in parts]) for k in parts[0].batch}),
            **{k: np.concatenate([one[k] for one in rest]) for k in rest[0]},
        )


class _Tensors(dict):
    @property
    def batch_size(self) -> tuple[int]:
        return (len(next(iter(self.values()))),)

    @property
    def device(self) -> str:
        return "cpu"


def roll(clones: Clones) -> Iterator[Case]:
    """compute_agentic_reinforce_return; compute_discounted_returns and agentic_reward_norm."""
    name, source = "alibaba/ROLL", "alibaba/ROLL 8eb27cc2"
    own = clones.load(
        name,
        "roll/pipeline/agentic/utils.py",
        [
            "agentic_reward_norm",
            "build_state_group",
            "compute_agentic_reinforce_return",
            "compute_discounted_returns",
            "compute_response_level_rewards",
        ],
        np=DOUBLE,
        DataProto=Proto,
        Tensor=torch.Tensor,
        Dict=dict,
        List=list,
        RewardNormalizationConfig=lambda grouping, method: _norm(grouping, std=method != "mean"),
    )
    loss = _roll_loss(clones)
    grouped = _norm("traj_group_id", std=True)
    rows = Rows(5, split=False)
    scores = Proto.from_dict({"scores": torch.tensor(rows.rewards)})
    scores.non_tensor_batch["traj_group_id"] = rows.groups
    table = rows.scores(own.agentic_reward_norm(scores, grouped).numpy())
    for gamma in (1.0, 0.7):
        found, _ = own.compute_agentic_reinforce_return(table, gamma, 1.0, torch.tensor(rows.mask))
        what = "compute_agentic_reinforce_return"
        named = {"variant": "roll/agentic_reinforce", "hyperparameters": {"gamma": gamma}}
        yield case(source, what, rows, found, loss, **named)
    rows = Rows(6, split=True)
    for estimator in ("step_reinforce", "gigpo"):
        data = Proto(
            _Tensors({"input_ids": torch.zeros(len(rows.steps))}),
            traj_id=rows.trajectories,
            traj_group_id=rows.groups,
            step=rows.steps,
            step_scores=rows.turn_rewards,
            episode_scores=rows.rewards,
            state_hash=rows.states,
        )
        data = own.compute_discounted_returns(data, estimator, 0.95)
        settings = SimpleNamespace(
            adv_estimator=estimator,
            reward_normalization=grouped,
            reward_clip=None,
            episode_reward_weight=1.0,
            step_reward_weight=1.0,
        )
        data, _ = own.compute_response_level_rewards(data, settings)
        found = data.batch["response_level_rewards"][:, None].expand(rows.mask.shape)
        what = "compute_response_level_rewards"
        yield case(source, what, rows, found, loss, variant=f"roll/{estimator}")


def _roll_loss(clones: Clones) -> Loss:
    """The agentic worker's loss_func, whose strategy gives the log-probs of the rows."""
    name = "alibaba/ROLL"
    tools = clones.load(
        name,
        "roll/utils/functionals.py",
        ["agg_loss", "compute_approx_kl", "masked_mean", "masked_sum"],
        Optional=Optional,
    )
    own = clones.load(
        name, "roll/pipeline/agentic/agentic_actor_worker.py", ["loss_func"], **vars(tools)
    )
    before = clones.load(name, "roll/pipeline/base_worker.py", ["get_old_log_probs_with_cache"])
    settings = SimpleNamespace(
        enable_old_logprobs_recompute=True,
        ratio_type="token",
        use_pg_clip_range=False,
        pg_clip=0.2,
        dual_clip_loss=False,
        loss_agg_mode="seq-mean-token-mean",
        use_kl_loss=False,
        entropy_loss_coef=0.0,
        train_infer_correction=SimpleNamespace(is_weight=SimpleNamespace(enabled=False)),
    )

    def loss(rows: Rows, new: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
        mask, old = torch.tensor(rows.mask), rows.table(rows.old)
        worker = SimpleNamespace(
            pipeline_config=settings,
            strategy=SimpleNamespace(op_compute_log_probs=lambda **_: new),
        )
        worker.get_old_log_probs_with_cache = partial(before.get_old_log_probs_with_cache, worker)
        behind_prompt = torch.nn.functional.pad(mask, (1, 0))
        tensors = {
            "response_mask": behind_prompt,
            "input_ids": behind_prompt,
            "ref_log_probs": old,
            "old_log_probs": old,
            "advantages": advantages,
            "train_infer_is_weight": torch.ones_like(mask),
        }
        data = Data(tensors)
        data.meta_info = {
            "batch_num_tokens": {"response_mask": mask.sum()},
            "global_valid_samples": {"response_mask": (mask.sum(-1) > 0).sum()},
        }
        return own.loss_func(worker, data, None)[0]

    return loss


def _norm(grouping: str, *, std: bool) -> SimpleNamespace:
    kind = "group" if std else None
    return SimpleNamespace(
        grouping=grouping,
        norm_mean_type="group",
        norm_std_type=kind,
        method="mean_std" if std else "mean",
    )


def verl_agent(clones: Clones) -> Iterator[Case]:
    """compute_gigpo_outcome_advantage with mean_std_norm, of a repository that keeps it whole."""
    name = "tmlr-group/RewardFlow"
    functions = ["build_step_group", "compute_gigpo_outcome_advantage", "episode_norm_reward"]
    functions += ["compute_step_discounted_returns", "step_norm_reward", "to_hashable"]
    quiet = {"print": lambda _: None, "uuid": uuid, "np": DOUBLE}
    own = clones.load(name, "gigpo/core_gigpo.py", functions, **quiet)
    once = partial(own.episode_norm_reward, compute_mean_std_cross_steps=False)
    of_trajectories = clones.load(
        name,
        "gigpo/core_gigpo.py",
        [one for one in functions if one != "episode_norm_reward"],
        **quiet,
        episode_norm_reward=once,
    )
    for unit, source in (("turn", own), ("trajectory", of_trajectories)):
        rows = Rows(10, split=True)
        rows.groups = np.minimum(rows.groups, 2) + (rows.groups == 3)
        rows.groups[rows.groups == 2] = 1  # a lone trajectory keeps its raw reward there
        data = Data(
            {"input_ids": torch.zeros(len(rows.groups))},
            rewards=rows.turn_rewards,
            traj_uid=rows.trajectories,
            active_masks=np.ones(len(rows.groups)),
        )
        found, _ = source.compute_gigpo_outcome_advantage(
            rows.scores(rows.rewards),
            source.compute_step_discounted_returns(data, 0.95).double(),
            torch.tensor(rows.mask),
            rows.states,
            rows.groups,
            rows.trajectories,
            mode="mean_std_norm",
        )
        yield case(
            f"{name} 1cdead8",
            "compute_gigpo_outcome_advantage",
            rows,
            found,
            verl_loss,
            variant="gigpo",
            stages={"aggregate": "token-mean"},
            hyperparameters={"outcome_unit": unit},
        )


def prime_rl(clones: Clones) -> Iterator[Case]:
    """score_group of HierarchicalGRPOAlgorithm and RAEAlgorithm, then compute_loss."""
    name = "PrimeIntellect-ai/prime-rl@0.9.0"
    known = {
        "iter_trainable_traces": lambda episodes: (
            (one, t) for one in episodes for t in one.traces
        ),
        "assign_advantages": lambda trace, advantage: setattr(trace, "advantage", advantage),
    }
    grouped, role = (
        clones.load(name, f"src/prime_rl/orchestrator/algo/{file}.py", ["score_group"], **known)
        for file in ("hierarchical_grpo", "rae")
    )
    losses = loaded(clones, name, ["default_loss_fn"])
    settings = SimpleNamespace(adv_tau=1.0, kl_tau=1e-3, dppo_mask_low=0.2, dppo_mask_high=0.2)

    def loss(rows: Rows, new: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
        mask = torch.tensor(rows.mask).bool()
        tables = (new, rows.table(rows.old), None, advantages, mask)
        return losses.compute_loss(
            *(None if table is None else [*table] for table in tables),
            *(None, None, None),
            rl_loss_fn=lambda inputs: losses.default_loss_fn(inputs, settings),
            rl_scale=int(mask.sum()),
            ce_scale=1,
            ref_kl_scale=1,
        )[0]

    for kind, own in (("hierarchical_grpo", grouped), ("rae", role)):
        rows = Rows(11, split=False)
        agents = np.array(["proposer", "solver", "solver", "solver"])[np.arange(11) % 4]
        traces = [
            SimpleNamespace(reward=reward, agent=SimpleNamespace(name=agent))
            for reward, agent in zip(rows.rewards.tolist(), agents, strict=True)
        ]
        state = SimpleNamespace(
            episode_agents={"solver"}, decay=0.9, baselines=defaultdict(lambda: 0.25)
        )
        episode = np.array([0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 1])
        baselines = []
        for group in np.unique(rows.groups):
            members = np.flatnonzero(rows.groups == group)
            episodes = [
                SimpleNamespace(id=e, traces=[traces[i] for i in members if episode[i] == e])
                for e in (0, 1)
            ]
            if kind == "rae":
                for trace in (trace for one in episodes for trace in one.traces):
                    alone = [SimpleNamespace(id=0, traces=[trace])]
                    trace.baseline = state.baselines[trace.agent.name]
                    asyncio.run(own.score_group(state, alone))
            else:
                asyncio.run(own.score_group(state, episodes))
        baselines = [getattr(trace, "baseline", 0.0) for trace in traces]
        states = np.where(agents == "solver", episode + 1, 0)
        table = torch.tensor([trace.advantage for trace in traces])[:, None].expand(rows.mask.shape)
        columns = {
            "state_ids": np.repeat(states, [len(row) for row in rows.lengths]) + 0.0,
            "reward_baselines": np.array(baselines),
            "log_probs_rollout": rows.old,
        }
        yield case(
            "prime-rl 559b447",
            f"{kind}.score_group",
            rows,
            table,
            loss,
            variant=f"prime-rl/{kind}",
            columns=columns,
            stages={"kl": "square-rollout"},
        )


def areal(clones: Clones) -> Iterator[Case]:
    """_compute_turn_level_gae."""
    name = "areal-project/AReaL"
    own = clones.load(
        name, "areal/trainer/ppo/gae.py", ["_compute_turn_level_gae", "_validate_turn_ids"]
    )
    actor = clones.load(name, "areal/utils/functional/functional.py", ["ppo_actor_loss_fn"])

    def loss(rows: Rows, new: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
        old, mask = rows.table(rows.old), torch.tensor(rows.mask).bool()
        tables = (new, old, old, advantages)
        return actor.ppo_actor_loss_fn(*tables, eps_clip=0.4, loss_mask=mask)[0]

    for seed, gamma, decay in ((7, 1.0, 0.95), (8, 0.9, 0.8)):
        rows = Rows(seed, split=False)
        mask = torch.tensor(rows.mask)
        found, _ = own._compute_turn_level_gae(
            rows.scores(rows.rewards),
            rows.table(rows.values),
            mask,
            torch.tensor(rows.turn_ids),
            torch.zeros(len(rows.mask)),
            gamma,
            decay,
        )
        named = {"gamma": gamma, "gae_lambda": decay}
        yield case(
            f"{name} cbff54d",
            "_compute_turn_level_gae",
            rows,
            found,
            loss,
            variant="areal/grpo",
            stages={"advantage": "turn-gae", "correction": "none"},
            hyperparameters=named,
            columns={"turn_rewards": None},
        )


def mt_grpo(clones: Clones) -> Iterator[Case]:
    """_compute_normalized_advantages and _assign_advantages, of completions that use the tool."""
    name = "SiliangZeng/Multi-Turn-RL-Agent"
    folder = "verifiers/trainers"
    normal = clones.load(name, f"{folder}/grpo_env_trainer.py", ["_compute_normalized_advantages"])
    assign = clones.load(name, f"{folder}/mt_grpo_env_trainer.py", ["_assign_advantages"])
    own = clones.load(name, f"{folder}/mt_grpo_env_trainer.py", ["compute_loss"])

    def loss(rows: Rows, new: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
        trainer = SimpleNamespace(
            _get_per_token_logps=lambda *_: new,
            beta=0.0,
            epsilon=0.2,
            num_iterations=2,
            control=SimpleNamespace(should_evaluate=False),
            accelerator=SimpleNamespace(gather_for_metrics=lambda found: found),
            _metrics={"train": defaultdict(list)},
        )
        ids, old = torch.zeros(new.shape), rows.table(rows.old)
        inputs = {"prompt_ids": ids, "prompt_mask": ids, "completion_ids": ids}
        inputs |= {"completion_mask": torch.tensor(rows.mask), "old_per_token_logps": old}
        return own.compute_loss(trainer, None, inputs | {"advantages": advantages})

    for coefficient in (1.0, 0.3):
        rows = _two_turns()
        trainer = SimpleNamespace(
            num_generations=4,
            accelerator=SimpleNamespace(process_index=0, device="cpu"),
            turn_advantage_coef=coefficient,
        )

        def normalised(rewards: np.ndarray, own: Any = trainer, n: int = len(rows.mask)) -> Any:
            return normal._compute_normalized_advantages(own, torch.tensor(rewards), n)[2]

        first = rows.turn_rewards[::2]
        found = assign._assign_advantages(
            trainer,
            torch.tensor(rows.mask),
            normalised(first),
            normalised(rows.rewards),
            normalised(rows.rewards + first),
            [2] * len(rows.mask),
        )
        yield case(
            f"{name} 7dbdd08",
            "_assign_advantages",
            rows,
            found,
            loss,
            variant="mt-grpo",
            hyperparameters={"turn_advantage_coef": coefficient},
        )


def _two_turns() -> Rows:
    """Eight trajectories of two turns, in groups of four; the second turn has no reward of its own.

    A tool's result stands between the turns: the trainer looks for the second change of the mask.
    """
    rows = Rows(9, split=False)
    draw = np.random.default_rng(9)
    sizes = draw.integers(1, 5, (8, 2))
    rows.lengths = sizes.tolist()
    rows.trajectories = np.arange(8)
    rows.groups = np.repeat([0, 1], 4)
    rows.rewards = draw.integers(0, 9, 8) / 8.0
    rows.turn_rewards = np.stack([draw.integers(0, 5, 8) / 4.0, np.zeros(8)], axis=1).ravel()
    tokens = int(sizes.sum())
    rows.old = -draw.exponential(1.0, tokens) - 1e-3
    rows.new = np.minimum(rows.old + draw.normal(0.0, 0.4, tokens), -1e-3)
    rows.values = draw.normal(0.5, 0.4, tokens)
    rows.mask = np.zeros((8, 12))
    for i, (one, two) in enumerate(rows.lengths):
        rows.mask[i, :one] = 1.0
        rows.mask[i, one + 2 : one + 2 + two] = 1.0
    return rows


MAKERS: dict[str, Callable[[Clones], Iterator[Case]]] = {
    "verl": verl,
    "NovaSky-AI/SkyRL": skyrl,
    "microsoft/agent-lightning": agent_lightning,
    "rllm-org/rllm": rllm,
    "rllm-org/rllm@0.2.1": rllm_before,
    "alibaba/ROLL": roll,
    "tmlr-group/RewardFlow": verl_agent,
    "PrimeIntellect-ai/prime-rl@0.9.0": prime_rl,
    "areal-project/AReaL": areal,
    "SiliangZeng/Multi-Turn-RL-Agent": mt_grpo,
}

if __name__ == "__main__":
    in_float64()
    paths = dict(argument.split("=", 1) for argument in sys.argv[1:])
    clones = Clones({name: Path(path) for name, path in paths.items()})
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name, maker in MAKERS.items():
        if name in paths or name == "verl":
            kept[name] = [*maker(clones)]
    text = json.dumps(kept, separators=(",", ":")).replace("},{", "},\n{")
    FILE.write_text(text + "\n")
