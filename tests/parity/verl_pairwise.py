"""A covering array over verl 0.9.1's settings: each configuration run by verl, judged by verify.

    cd tests && python -m parity.verl_pairwise --write

A tiny policy (a table of logits by the token before) is trained for two steps on one batch. KL in
the reward, rollout correction, advantages and loss are verl's own functions, put together as its
trainer and its actor do: ``apply_kl_penalty``, ``compute_rollout_correction_and_add_to_batch`` or
``apply_bypass_mode``, ``compute_advantage``, ``ppo_loss``. Our hook records the policy losses; the
whole loss, with KL and entropy, is a record beside them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import verl
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import (
    apply_bypass_mode,
    compute_rollout_correction_and_add_to_batch,
)
from verl.utils import tensordict_utils
from verl.utils.torch_functional import masked_mean

from grpo_cli.hooks.columns import ragged, record_of, widths
from grpo_cli.hooks.verl import Recorder, bypass_settings, hyperparameters

from .pairwise import Array, Configuration, Record, run
from .verl_functions import TABLE, actor_config, load

STEPS = 2
GROUPS, SIZE, WIDTH, WORDS = 3, 4, 7, 9

PAIRS = TABLE["pairs"]
NUMBERS: dict[str, dict[str, Any]] = PAIRS["numbers"]
"""The numbers of policy losses. dro_beta has no default: verl raises without it. clip_cov takes out
all candidates, since verl draws them at random."""
THRESHOLDS: dict[str, list[Any]] = PAIRS["thresholds"]
"""rollout_rs → a narrow threshold and a wide one."""
OPTIONS: dict[str, list[Any]] = PAIRS["actor"]
"""verl's settings and their values; kl_loss_type None is use_kl_loss False, kl_penalty None is
use_kl_in_reward False. Bypass mode has losses of its own, and its weights and rejection in them;
``decoupled`` says whether the others are corrected with those settings."""
RAISES = {"loss_mode": "dro", "numbers": "no dro_beta"}
"""A pair for which verl raises, which is run beside the array."""


def _allowed(one: Configuration) -> bool:
    """Not weights that were divided by their mean over a batch of which a record has a part."""
    divided = _decoupled(one) and one["rollout_is"] and one["rollout_is_batch_normalize"]
    return not (divided and _by_micro(one))


def _bypass(one: Configuration) -> bool:
    return bool(one["loss_mode"].startswith("bypass_mode"))


def _decoupled(one: Configuration) -> bool:
    return one["decoupled"] and not _bypass(one)


def _by_micro(one: Configuration) -> bool:
    """Whether the losses of a step's micro-batches do not add up to that of the whole."""
    if one["micro_batches"] == 1:
        return False
    total = one["loss_agg_mode"] == "token-sum" and one["loss_mode"] != "sapo"
    alone = one["global_batch_info"] == "none" and not total
    own = one["loss_mode"] in ("geo_mean", "kl_cov", "clip_cov")
    return alone or own or (_bypass(one) and one["rollout_is_batch_normalize"])


def ppo_loss() -> Any:
    """verl's; the package of its datasets, of which it needs one constant, needs PIL."""
    name = "verl.utils.dataset"
    if name not in sys.modules:
        package = ModuleType(name)
        package.__path__ = [f"{verl.__path__[0]}/utils/dataset"]
        sys.modules[name] = package
    from verl.workers.utils import losses

    return losses.ppo_loss


TRAINER = load(
    Path(verl.__path__[0]) / "trainer/ppo/ray_trainer.py",
    ["apply_kl_penalty", "compute_advantage"],
    core_algos=core_algos,
    masked_mean=masked_mean,
    AdvantageEstimator=core_algos.AdvantageEstimator,
)
"""Functions of a module that cannot be imported without Ray and torchdata."""


@dataclass
class Tiny:
    """A policy over a few words, and what was sampled from another one."""

    logits: torch.Tensor
    context: torch.Tensor
    tokens: torch.Tensor
    before: torch.Tensor
    mask: torch.Tensor
    fixed: dict[str, torch.Tensor]

    @classmethod
    def made(cls, seed: int) -> Tiny:
        """R = GROUPS·SIZE responses of unequal lengths, some with masked tokens inside."""
        draw = np.random.default_rng(seed)
        rows = GROUPS * SIZE
        lengths = draw.integers(2, WIDTH + 1, size=rows)
        mask = (np.arange(WIDTH) < lengths[:, None]) & (draw.random((rows, WIDTH)) < 0.9)
        mask[:, 0] = True
        tokens = torch.tensor(draw.integers(0, WORDS, (rows, WIDTH)))
        first = torch.tensor(draw.integers(0, WORDS, (rows, 1)))
        before = torch.cat([first, tokens[:, :-1]], dim=1)
        logits = torch.tensor(draw.normal(size=(WORDS, WORDS)), requires_grad=True)
        away = logits.detach() + torch.tensor(draw.normal(size=(WORDS, WORDS))) * 0.4
        scores = torch.zeros(rows, WIDTH, dtype=torch.float64)
        last = WIDTH - 1 - np.argmax(mask[:, ::-1], axis=1)
        scores[np.arange(rows), last] = torch.tensor(draw.choice([0.0, 0.25, 0.5, 1.0], rows))
        noise = torch.tensor(draw.normal(size=(rows, WIDTH))) * 0.2
        context = torch.tensor(draw.normal(size=(rows, WIDTH, WORDS))) * 0.2
        one = cls(logits, context, tokens, before, torch.tensor(mask.astype(np.int64)), {})
        own = one.log_probs(logits.detach())[0]
        one.fixed = {
            "old_log_probs": own,
            "ref_log_prob": one.log_probs(away)[0],
            "rollout_log_probs": torch.clamp(own + noise, max=-1e-6),
            "token_level_scores": scores,
            "token_level_rewards": scores,
            "values": torch.tensor(draw.normal(0.4, 0.3, (rows, WIDTH))),
            "reward_baselines": torch.tensor(draw.normal(0.3, 0.2, rows)),
        }
        return one

    def log_probs(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[R, T] log π of the tokens, and the entropy at each; no two places are alike."""
        table = torch.log_softmax(logits[self.before] + self.context, dim=-1)
        entropy = -(table.exp() * table).sum(-1)
        return table.gather(-1, self.tokens[..., None])[..., 0], entropy


def _correction(one: Configuration) -> dict[str, Any] | None:
    if not (_bypass(one) or _decoupled(one)):
        return None
    rejection = one["rollout_rs"]
    place = ("narrow", "wide").index(one["rollout_rs_threshold"])
    return {
        "bypass_mode": _bypass(one),
        "loss_type": one["loss_mode"].partition(" ")[2] or "ppo_clip",
        "rollout_is": one["rollout_is"],
        "rollout_is_threshold": one["rollout_is_threshold"],
        "rollout_is_batch_normalize": one["rollout_is_batch_normalize"],
        "rollout_rs": rejection,
        "rollout_rs_threshold": THRESHOLDS[rejection][place] if rejection else None,
    }


def train(one: Configuration, folder: Path, number: int) -> list[Record]:
    """Two steps: records of the whole loss, and those of the hook, which writes to ``folder``."""
    kept = dict(core_algos.POLICY_LOSS_REGISTRY)
    path = folder / "hook.jsonl"
    recorder = Recorder(path)
    for name, loss in kept.items():
        core_algos.POLICY_LOSS_REGISTRY[name] = recorder.of(loss, name)
    try:
        records = [*_trained(one, number)]
    finally:
        core_algos.POLICY_LOSS_REGISTRY.update(kept)
        recorder.close()
    hooked = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return records + [one | {"id": f"{number}/hook/{one['id']}"} for one in hooked]


def _trained(one: Configuration, number: int) -> Iterator[Record]:
    torch.manual_seed(number)
    tiny = Tiny.made(number)
    config = _config(one)
    data = _data(tiny, one, _correction(one), config)
    optimizer = torch.optim.Adam([tiny.logits], lr=0.25)
    for step in range(STEPS):
        optimizer.zero_grad()
        parts = [_micro(tiny, one, config, data, rows) for rows in _rows(one)]
        sum(part["loss"] for part in parts).backward()
        for at, (rows, expected) in enumerate(_units(one, parts)):
            yield _record(f"{number}/{step}/{at}", one, tiny, config, data, rows, expected)
        if torch.isfinite(tiny.logits.grad).all():
            optimizer.step()


def _config(one: Configuration) -> Any:
    numbers = dict(NUMBERS[one["numbers"]])
    own = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "kl_loss_coef")
    names = (*own, "entropy_coeff", "loss_scale_factor")
    config = actor_config(one["loss_agg_mode"], numbers)
    for name in names:
        object.__setattr__(config, name, one[name])
    object.__setattr__(config.policy_loss, "loss_mode", one["loss_mode"])
    object.__setattr__(config, "use_kl_loss", one["kl_loss_type"] is not None)
    object.__setattr__(config, "kl_loss_type", one["kl_loss_type"] or "low_var_kl")
    return config


def _data(
    tiny: Tiny, one: Configuration, correction: dict[str, Any] | None, config: Any
) -> DataProto:
    """The batch as the trainer gives it to the actor."""
    uid = np.repeat([f"prompt-{group}" for group in range(GROUPS)], SIZE).astype(object)
    data = DataProto.from_dict(
        {name: value.clone() for name, value in tiny.fixed.items()} | {"response_mask": tiny.mask},
        {"uid": uid},
    )
    if correction and correction["bypass_mode"]:
        settings = OmegaConf.create({})
        apply_bypass_mode(data, correction, settings)
        object.__setattr__(config.policy_loss, "loss_mode", settings.loss_mode)
        object.__setattr__(config.policy_loss, "rollout_correction", correction)
    if one["kl_penalty"]:
        control = core_algos.FixedKLController(0.2)
        data, _ = TRAINER.apply_kl_penalty(data, control, one["kl_penalty"])
    if correction and not correction["bypass_mode"]:
        data, _ = compute_rollout_correction_and_add_to_batch(data, correction)
    norm = one["norm_adv_by_std_in_grpo"]
    return TRAINER.compute_advantage(
        data,
        one["adv_estimator"],
        gamma=one["gamma"],
        lam=one["lam"],
        norm_adv_by_std_in_grpo=norm,
        config=AlgoConfig(gamma=one["gamma"], lam=one["lam"], norm_adv_by_std_in_grpo=norm),
    )


def _rows(one: Configuration) -> list[slice]:
    count = GROUPS * SIZE
    cuts = np.linspace(0, count, one["micro_batches"] + 1).astype(int)
    return [slice(*pair) for pair in pairwise(cuts)]


def _micro(
    tiny: Tiny, one: Configuration, config: Any, data: DataProto, rows: slice
) -> dict[str, Any]:
    """verl's loss of a micro-batch, and what it was made of."""
    log_probs, entropy = (table[rows] for table in tiny.log_probs(tiny.logits))
    count = log_probs.shape[0]
    names = ["response_mask", "old_log_probs", "advantages", "ref_log_prob"]
    names += ["rollout_is_weights"] if "rollout_is_weights" in data.batch else []
    given = TensorDict(
        {name: data.batch[name][rows] for name in names}
        | {
            "prompts": torch.ones(count, 1, dtype=torch.long),
            "responses": tiny.tokens[rows],
            "attention_mask": torch.ones(count, 1 + WIDTH, dtype=torch.long),
        },
        batch_size=count,
    )
    tensordict_utils.assign_non_tensor(given, **_global(one, data))
    after = torch.zeros(count, 1, dtype=torch.float64)  # what follows the last token is not read
    output = {"log_probs": torch.cat([log_probs, after], dim=1).flatten()}
    if one["entropy_coeff"]:
        output["entropy"] = torch.cat([entropy, after], dim=1).flatten()
    loss, metrics = ppo_loss()(config, output, given)
    (gradient,) = torch.autograd.grad(loss, log_probs, retain_graph=True)
    found = {name: metric.aggregate() for name, metric in metrics.items() if name != "kl_coef"}
    return {
        "loss": loss,
        "rows": rows,
        "gradient": gradient.numpy(),
        "log_probs": log_probs.detach().numpy(),
        "entropy": entropy.detach().numpy(),
        "metrics": {name: float(value) for name, value in found.items()},
    }


def _global(one: Configuration, data: DataProto) -> dict[str, Any]:
    if one["global_batch_info"] == "none":
        return {"dp_size": 1, "batch_num_tokens": None, "global_batch_size": None}
    ranks = 2 if one["global_batch_info"] == "two ranks" else 1
    tokens = int(data.batch["response_mask"].sum())
    return {
        "dp_size": ranks,
        "batch_num_tokens": tokens * ranks + 5 * (ranks - 1),
        "global_batch_size": GROUPS * SIZE * ranks,
    }


def _units(
    one: Configuration, parts: list[dict[str, Any]]
) -> Iterator[tuple[slice, dict[str, Any]]]:
    """The rows of each record, and what verl computed of them.

    The micro-batches of a step are one record where verl's losses add up to that of the whole.
    """
    if len(parts) == 1 or _by_micro(one):
        for part in parts:
            yield part["rows"], part
        return
    joined = {
        name: np.concatenate([part[name] for part in parts])
        for name in ("gradient", "log_probs", "entropy")
    }
    joined["loss"] = sum(part["loss"] for part in parts)
    yield slice(0, GROUPS * SIZE), joined | {"metrics": {}}


def _record(
    name: str,
    one: Configuration,
    tiny: Tiny,
    config: Any,
    data: DataProto,
    rows: slice,
    part: dict[str, Any],
) -> dict[str, Any]:
    """The whole loss as a record, as the hook would write it if it saw what verl adds."""
    mask = tiny.mask[rows].numpy()
    lengths = widths(mask)
    table = {name: value[rows].numpy() for name, value in tiny.fixed.items()}
    correction = _correction(one)
    columns = {
        "log_probs_new": part["log_probs"],
        "log_probs_old": data.batch["old_log_probs"][rows].numpy(),
        "log_probs_ref": table["ref_log_prob"],
        "entropies": part["entropy"],
    }
    if correction:
        columns["log_probs_rollout"] = table["rollout_log_probs"]
    settings = hyperparameters(config, mask) | {
        "beta": one["kl_loss_coef"] if one["kl_loss_type"] else 0.0,
        "entropy_coef": one["entropy_coeff"],
    }
    framework = {
        "name": "verl",
        "version": "0.9.1",
        "policy_loss": one["loss_mode"].partition(" ")[0],
        "loss_agg_mode": one["loss_agg_mode"],
    }
    if one["kl_loss_type"]:
        framework["kl_loss_type"] = one["kl_loss_type"]
    if correction and correction["bypass_mode"]:
        framework["rollout_correction"] = bypass_settings(config)
    elif correction:
        framework["rollout_correction"] = correction
    expected: dict[str, Any] = {"loss": float(part["loss"].detach()), "metrics": part["metrics"]}
    expected["loss_gradient"] = np.asarray(part["gradient"])
    more: dict[str, Any] = {}
    if _computes_advantages(one, rows):
        more["rewards"] = table["token_level_scores"].sum(axis=1)
        more["group_ids"] = np.repeat(np.arange(GROUPS), SIZE)
        more["reward_baselines"] = table["reward_baselines"]
        columns["values"] = table["values"]
        expected["advantages"] = ragged(data.batch["advantages"][rows].numpy(), lengths)
        settings |= {"gamma": one["gamma"], "gae_lambda": one["lam"]}
        framework["adv_estimator"] = one["adv_estimator"]
        framework["norm_adv_by_std_in_grpo"] = one["norm_adv_by_std_in_grpo"]
        if one["kl_penalty"]:
            framework["kl_penalty"], framework["use_kl_in_reward"] = one["kl_penalty"], True
            settings["beta"] = 0.2
    else:
        columns["advantages"] = data.batch["advantages"][rows].numpy()
    rest = more | {"hyperparameters": settings, "framework": framework}
    return record_of({"id": name}, columns, mask, mask, rest, expected)


def _computes_advantages(one: Configuration, rows: slice) -> bool:
    """Whether a record gives rewards: it holds the whole batch, and nothing was rejected before.

    An objective has one KL, so that one in the reward leaves none for the loss.
    """
    whole = rows == slice(0, GROUPS * SIZE)
    rejects = _decoupled(one) and one["rollout_rs"] is not None
    return whole and not rejects and not (one["kl_penalty"] and one["kl_loss_type"])


ACTOR = Array("actor", OPTIONS, train, lambda one: str(one["loss_mode"]), _allowed)
RAISING = {name: values[-1] for name, values in OPTIONS.items()} | {"decoupled": False} | RAISES


def raised(folder: Path) -> str:
    """What verl raises for that pair."""
    try:
        train(RAISING, folder, 0)
    except ValueError as error:
        return f"ValueError: {error}"
    return ""


if __name__ == "__main__":
    said = ", ".join(f"{name} {value}" for name, value in RAISES.items())
    run("verl 0.9.1", [ACTOR], raises={raised(Path(tempfile.mkdtemp())): said})
