"""Which trainer a batch comes from: its settings, its keys, and what is asked of ``grpo``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trials.product import KEYS, Record
from trials.strangers.losses import Case, Recipe, Rows, advantages, evaluated
from trials.strangers.world import END, PAD, Random, Spec, World, bfloat16, drawn
from trials.tape import Array

FAMILIES = {
    "paper": ("response", "token", "sum"),
    "trl": ("response", "token", "sum", "items"),
    "verl": ("token", "response"),
    "slime": ("response",),
    "rows": ("token",),
    "span": ("token",),
}
_PAPER = {"response": "grpo", "token": "dapo", "sum": "dr"}
_TRL = {"response": "grpo", "token": "bnpo", "sum": "dr_grpo", "items": "dapo"}
_VERL = {"token": "token-mean", "response": "seq-mean-token-mean"}


@dataclass(frozen=True)
class Wish:
    """What a batch must have for a mistake to be there; None leaves it to chance.

    Attributes:
        families, reductions: whose losses, and which denominators.
        beta: whether there is a KL penalty.
        spec, recipe, words, framework: changes of the run and of the trainer.
        columns: further columns: "rollout", "entropies", "token_ids".
        masked: whether a mask leaves out rows that were cut ("cut"), with two of them at least.
        given: whether the record has advantages in the place of rewards.
        tied: whether the first group's rewards are all the same.
    """

    families: tuple[str, ...] = ("paper", "trl", "verl", "slime")
    reductions: tuple[str, ...] = ()
    beta: bool | None = None
    spec: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    hyper: dict[str, Any] = field(default_factory=dict)
    framework: dict[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    masked: str = ""
    given: bool = False
    tied: bool = False


@dataclass(frozen=True)
class Drawn:
    """A record without what is expected of it, the case behind it, and the command's words."""

    record: Record
    case: Case

    @property
    def words(self) -> tuple[str, ...]:
        return self.case.recipe.words


def pick(random: Random, values: Any) -> Any:
    return values[int(random.integers(len(values)))]


def asked(random: Random, wish: Wish, count: int = 1) -> list[Drawn]:
    """Batches of one run, as large as those of a small one; some columns are bfloat16."""
    options = [
        (family, one)
        for family in wish.families
        for one in FAMILIES[family]
        if not wish.reductions or one in wish.reductions
    ]
    family, reduction = pick(random, options)
    beta = bool(random.random() < 0.4) if wish.beta is None else wish.beta
    beta = beta and family in ("paper", "trl", "verl")
    spec = replace(_spec(random, family), **wish.spec)
    recipe = _recipe(random, family, reduction, beta, wish)
    found = []
    for at in range(count):
        for _ in range(60):
            world = drawn(random, spec)
            cut = int((~world.finished).sum())
            if wish.masked != "cut" or 2 <= cut < len(world.lengths) - 2:
                break
        if wish.tied:
            own = world.groups == 0
            world.rewards[own] = world.rewards[own].max()
        for name in COARSE[: int(random.integers(6))]:
            world.columns[name] = bfloat16(world.columns[name]).astype(float)
        found.append(_drawn(random, world, recipe, wish, f"batch-{at}"))
    return found


COARSE = ("log_probs_rollout", "log_probs_ref", "log_probs_old")
"""Columns that trainers keep in bfloat16: none, or the first of these."""


def _spec(random: Random, family: str) -> Spec:
    agent = family in ("rows", "span")
    size = int(pick(random, (4, 6, 8, 16)))
    prompts = int(random.integers(2, 5)) if size < 16 else 2
    length = float(random.uniform(25, 80)) * min(1.0, 24 / (size * prompts))
    return Spec(
        prompts=prompts,
        size=size,
        length=max(length, 22.0) / (2 if agent else 1),
        spread=float(random.uniform(0.3, 0.7)),
        shortest=2,
        longest=200,
        turns=(1, 1) if not agent else (2, 3),
        tools=(4, 16),
        rows=family == "rows",
        sure=float(random.uniform(0.4, 0.7)),
        engine=float(random.uniform(0.0, 0.03)),
        trainer=0.0,
        update=float(random.uniform(0.1, 0.4)),
        rewards=str(pick(random, ("binary", "binary", "graded"))),
    )


def _recipe(random: Random, family: str, reduction: str, beta: bool, wish: Wish) -> Recipe:
    low = float(pick(random, (0.1, 0.2, 0.2)))
    high = float(pick(random, (0.2, 0.2, 0.28, 0.3)))
    recipe = Recipe(
        reduction=reduction,
        low=low,
        high=high,
        beta=float(pick(random, (0.03, 0.05, 0.1))) if beta else 0.0,
        length=1.0,
    )
    if family == "trl":
        recipe = replace(
            recipe,
            keys="trl",
            eps=1e-4,
            length=float(pick(random, (64, 128, 256))),
            steps=int(pick(random, (1, 2, 4))),
            weighted=bool(random.random() < 0.5),
        )
    elif family == "verl":
        recipe = replace(recipe, keys="verl", eps=1e-6, lone=True, dual=3.0)
    elif family == "slime":
        recipe = replace(recipe, eps=1e-6, words=("-v", "slime/grpo"))
    elif family == "rows":
        recipe = _rows(random, recipe)
    else:
        name = _PAPER[reduction]
        kl = ("--kl", "k3") if beta and name != "grpo" else ()
        recipe = replace(recipe, std=name != "dr", words=("-v", name, *kl))
    recipe = replace(recipe, **wish.recipe)
    if wish.words:
        recipe = replace(recipe, words=wish.words)
    return recipe


def _rows(random: Random, recipe: Recipe) -> Recipe:
    """Trainers whose rows are turns, and whose groups are of trajectories."""
    name = str(pick(random, ("paper", "skyrl", "verl")))
    if name == "paper":
        words = ("-v", "dapo", "--advantage", "trajectory-group-std")
        return replace(recipe, advantage="trajectory", eps=1e-8, words=words)
    dual = 3.0 if name == "verl" else None
    words = ("-v", "verl/multi_trajectories" if name == "verl" else "skyrl/step_wise")
    return replace(recipe, advantage="trajectory", eps=1e-6, lone=True, dual=dual, words=words)


def _drawn(random: Random, world: World, recipe: Recipe, wish: Wish, name: str) -> Drawn:
    keys = KEYS[recipe.keys]
    mask = (~world.tool).astype(int)
    if wish.masked == "cut":
        mask = mask * np.repeat(world.finished, world.lengths)
    padded = bool(mask.min() == 0 or random.random() < 0.35)
    width = int(world.lengths.max()) + (int(random.integers(0, 4)) if padded else 0)
    record: Record = {"id": name}

    def write(column: str, values: Array, pad: Any = 0.0) -> None:
        rows = world.split(values)
        if padded:
            rows = [row + [pad] * (width - len(row)) for row in rows]
        record[keys.get(column, column)] = rows

    names = ["log_probs_new", "log_probs_old"]
    names += ["log_probs_ref"] if recipe.beta else []
    names += ["log_probs_rollout"] if "rollout" in wish.columns else []
    for column in names:
        write(column, world.columns[column])
    if padded:
        write("mask", mask, 0)
    if random.random() < 0.5 or "token_ids" in wish.columns:
        write("token_ids", world.ids, PAD)
    # Lists before this one drew more: so seeds keep their batches.
    random.standard_normal(len(world.ids))
    if "entropies" in wish.columns:
        write("entropies", world.entropies.astype(np.float32).astype(float))
    rows = _padded(world, width, mask)
    if world.spec.rows:
        record["trajectory_ids"] = [f"t{one}" for one in world.trajectories]
    if wish.given:
        given = normalise(rows, recipe)
        rows = replace(rows, given=given)
        record["advantages"] = given.tolist()
    else:
        record["rewards"] = world.rewards.tolist()
    record[keys.get("group_ids", "group_ids")] = [f"q{one}" for one in world.groups]
    recipe = replace(recipe, items=float(int(mask.sum() * recipe.steps * random.uniform(0.8, 1.3))))
    _settings(record, recipe, wish)
    return Drawn(record, Case(rows, recipe))


def normalise(rows: Rows, recipe: Recipe) -> Array:
    return np.asarray(advantages(rows, recipe)).astype(np.float32).astype(float)


def _padded(world: World, width: int, mask: Array) -> Rows:
    def laid(flat: Array) -> Array:
        found = np.zeros((len(world.lengths), width))
        for row, one in enumerate(world.split(flat)):
            found[row, : len(one)] = one
        return found

    columns = world.columns
    return Rows(
        new=laid(columns["log_probs_new"]),
        old=laid(columns["log_probs_old"]),
        ref=laid(columns["log_probs_ref"]),
        rollout=laid(columns["log_probs_rollout"]),
        mask=laid(mask),
        written=laid(np.ones(len(mask))),
        groups=world.groups,
        trajectories=world.trajectories,
        entropies=laid(world.entropies.astype(np.float32)),
        ends=laid(world.ids == END) > 0,
        rewards=world.rewards,
    )


def _settings(record: Record, recipe: Recipe, wish: Wish) -> None:
    hyper: dict[str, Any] = {"epsilon_low": recipe.low, "epsilon_high": recipe.high}
    if recipe.surrogate == "cispo":
        del hyper["epsilon_low"]
    hyper |= {"beta": recipe.beta} if recipe.beta or recipe.words[1:2] == ("grpo",) else {}
    if recipe.entropy:
        hyper["entropy_coef"] = recipe.entropy
    if recipe.delta:
        hyper["delta"] = recipe.delta
    if recipe.top < 1.0:
        hyper["top_entropy_quantile"] = recipe.top
    if recipe.keys == "trl":
        hyper |= {
            "beta": recipe.beta,
            "max_completion_length": int(recipe.length),
            "num_items_in_batch": int(recipe.items),
            "gradient_accumulation_steps": recipe.steps,
            "steps_per_generation": recipe.steps,
        }
        record["framework"] = {
            "name": "trl",
            "version": "1.16.0",
            "loss_type": _TRL[recipe.reduction],
            "importance_sampling_level": "sequence" if recipe.sequence else "token",
            "use_bias_correction_kl": recipe.weighted,
            "scale_rewards": "group",
        }
        if recipe.correction:
            hyper["vllm_importance_sampling_cap"] = recipe.cap
            mode = f"{recipe.correction}_truncate"
            record["framework"]["vllm_importance_sampling_mode"] = mode
    elif recipe.keys == "verl" and not recipe.words:
        hyper |= {"clip_ratio_c": recipe.dual, "beta": recipe.beta}
        record["framework"] = {
            "name": "verl",
            "version": "0.9.1",
            "policy_loss": "vanilla",
            "loss_agg_mode": _VERL[recipe.reduction],
            "adv_estimator": "grpo",
            "kl_loss_type": "low_var_kl",
        }
    elif recipe.words[1:2] == ("skyrl/step_wise",):
        hyper["beta"] = 0.0
    if wish.framework:
        record["framework"] = {**record.get("framework", {}), **wish.framework}
    record["hyperparameters"] = {**hyper, **wish.hyper}


def expected(case: Case, record: Record) -> dict[str, Any]:
    """The loss and its gradient as a trainer in float32 writes them."""
    value, slopes = evaluated(case)
    shape = record[KEYS[case.recipe.keys].get("log_probs_new", "log_probs_new")]
    rows = [slopes[row, : len(one)] for row, one in enumerate(shape)]
    return {
        "loss": float(np.float32(value)),
        "loss_gradient": [row.astype(np.float32).astype(float).tolist() for row in rows],
    }
