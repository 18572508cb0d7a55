"""Batches that a loss was computed on, as TRL, verl or a home-made loop would dump them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trials.product import Record
from trials.simulate.noise import FLOAT32, Engine
from trials.simulate.policy import Random, Sharpness
from trials.simulate.run import simulate
from trials.simulate.setup import Dump, Moves, Rewards, Setup, Text
from trials.simulate.write import KEYS, records
from trials.strangers.plain import Case, Recipe, Rows, evaluated

FAMILIES = ("trl", "verl", "paper")


@dataclass(frozen=True)
class Wish:
    """What a batch must have for a mistake to be there at all; None leaves it to chance.

    Attributes:
        families: whose loss.
        reductions: which denominators.
        beta: whether there is a KL penalty.
        sequence: whether the ratio is the sequence's.
        judged: whether the record has advantages; else rewards, and the loss makes them.
        rewards: "binary", "continuous", "close" (rewards that nearly tie), "rare" (one success).
        mask: "", "tools" (answers of tools left out), "cut" (truncated rows left out).
        cut: how many rows are cut at least, where they are left out.
        steps: accumulation steps to draw from.
        generation: how many times as many the generation batch has.
        move: how far the policy is from the old one.
        more: settings of the recipe, or ranges to draw them from.
        rollout: whether the engine's log-probs are in the record.
        groups: prompts.
        sizes: responses to each.
    """

    families: tuple[str, ...] = FAMILIES
    reductions: tuple[str, ...] = ()
    beta: bool | None = None
    sequence: bool | None = False
    judged: bool | None = None
    rewards: str = ""
    mask: str | None = None
    cut: int = 1
    steps: tuple[int, ...] = (1, 2, 4)
    generation: tuple[float, ...] = (1,)
    move: float = 0.25
    more: tuple[tuple[str, Any], ...] = ()
    rollout: bool | None = None
    groups: tuple[int, ...] = (1, 2, 3)
    sizes: tuple[int, ...] = (4, 6, 8)


REDUCTIONS = {
    "trl": ("response", "token", "constant", "items"),
    "verl": ("token", "response"),
    "paper": ("response", "token", "constant"),
}
_TRL = {"response": "grpo", "token": "bnpo", "constant": "dr_grpo", "items": "dapo"}
_VERL = {"token": "token-mean", "response": "seq-mean-token-mean"}
_PAPER = {"response": "grpo", "token": "dapo", "constant": "dr"}


@dataclass(frozen=True)
class Drawn:
    """A record without what is expected of it, the case behind it, and how it is asked for."""

    record: Record
    case: Case
    words: tuple[str, ...]


def pick(random: Random, values: Any) -> Any:
    return values[int(random.integers(len(values)))]


def drawn(random: Random, wish: Wish, count: int = 1) -> list[Drawn]:
    """Batches of one run that a wish can be seen in."""
    families = [
        family
        for family in wish.families
        if not wish.reductions or set(REDUCTIONS[family]) & set(wish.reductions)
    ]
    family = str(pick(random, families))
    allowed = [
        name for name in REDUCTIONS[family] if not wish.reductions or name in wish.reductions
    ]
    reduction = str(pick(random, allowed))
    beta = wish.beta if wish.beta is not None else bool(random.random() < 0.5)
    if family == "paper" and wish.beta is None:
        beta = reduction == "response"
    recipe = _recipe(random, family, reduction, wish, beta)
    setup = _setup(random, family, wish, beta)
    found = []
    for at in range(count):
        record, rows = _rows(random, setup, wish, at)
        items = float(int(rows.mask.sum() * recipe.steps * random.uniform(0.8, 1.25)))
        own = replace(recipe, items=items)
        found.append(Drawn(record, Case(rows, own), _named(record, own)))
    return found


def expected(case: Case, record: Record) -> dict[str, Any]:
    """The loss and gradient as a trainer in float32 writes them, in the shape of the record."""
    value, slopes = evaluated(case)
    shape = record[_key(record, "log_probs_new")]
    written = case.rows.written.astype(bool)
    rows = []
    for row, values in enumerate(shape):
        full = np.zeros(len(values))
        full[: int(written[row].sum())] = slopes[row, written[row]]
        rows.append(full.astype(np.float32).astype(float).tolist())
    return {"loss": float(np.float32(value)), "loss_gradient": rows}


def _setup(random: Random, family: str, wish: Wish, beta: bool) -> Setup:
    group = int(pick(random, wish.sizes))
    judged = wish.judged if wish.judged is not None else bool(random.random() < 0.5)
    if family == "paper" and wish.judged is None:
        judged = False
    kind = wish.rewards or str(pick(random, ("binary", "continuous")))
    tools = wish.mask == "tools"
    return Setup(
        prompts=int(pick(random, wish.groups)),
        group=8 if kind == "rare" else group,
        sharpness=Sharpness(sure=float(random.uniform(0.2, 0.7)), sure_to=14.0),
        engine=Engine(spread=0.12) if wish.rollout else FLOAT32,
        trainer=FLOAT32,
        moves=Moves(
            update=wish.move * random.uniform(0.8, 1.6),
            reference=0.3,
            same_pass=False,
            stale=0.1 if wish.rollout else 0.0,
        ),
        rewards=Rewards(
            kind="continuous" if kind in ("continuous", "close") else "binary",
            given="group-std" if judged else "",
        ),
        text=Text(
            length=float(random.uniform(14, 30)),
            spread=0.6,
            shortest=6 if tools else 4,
            longest=int(random.integers(30, 60)),
            turns=3 if tools else 1,
        ),
        dump=Dump(
            words={"paper": "own"}.get(family, family),
            ref=beta,
            rollout=bool(wish.rollout),
            ids=bool(random.random() < 0.5),
            padding="right" if wish.mask or random.random() < 0.4 else "",
        ),
    )


def _rows(random: Random, setup: Setup, wish: Wish, at: int) -> tuple[Record, Rows]:
    for _ in range(50):
        batch = simulate(setup, random)
        lengths = batch.lengths
        scores = batch.rewards
        if wish.rewards == "rare":
            scores = np.zeros(len(lengths))
            scores[:: setup.group] = 1.0
        elif wish.rewards == "close":
            scores = np.round(1.0 + 0.01 * scores, 4)
        batch.rewards = scores
        if batch.advantages is not None:
            batch.advantages = _judged(scores, batch.groups)
        alive = all(np.ptp(scores[batch.groups == g]) > 0 for g in np.unique(batch.groups))
        left_out = len(lengths) - int(batch.finished.sum())
        if alive and (wish.mask != "cut" or wish.cut <= left_out < len(lengths)):
            break
    record = records(batch, setup.dump, random, f"batch-{at}")[0]
    if wish.mask == "cut":
        for row, done in enumerate(batch.finished):
            if not done:
                record[_key(record, "mask")][row] = [0] * len(record[_key(record, "mask")][row])
    if batch.advantages is not None:
        record.pop("rewards")
    return record, _padded(record, batch, scores)


def _judged(scores: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Group-normalised in float32, as TRL gives them."""
    found = np.zeros(len(scores), dtype=np.float32)
    for group in np.unique(groups):
        own = scores[groups == group].astype(np.float32)
        found[groups == group] = (own - own.mean()) / (own.std(ddof=1) + np.float32(1e-4))
    return found.astype(float)


def _key(record: Record, name: str) -> str:
    return (
        next(words[name] for words in KEYS.values() if words.get(name) in record)
        if name not in record
        else name
    )


def _padded(record: Record, batch: Any, scores: np.ndarray) -> Rows:
    def column(name: str) -> np.ndarray:
        key = name if name in record else None
        for words in KEYS.values():
            key = key or (words[name] if words.get(name) in record else None)
        if key is None:
            return np.zeros(shape)
        found = np.zeros(shape)
        for row, values in enumerate(record[key]):
            found[row, : len(values)] = values
        return found

    shape = (len(batch.lengths), max(map(len, record[_key(record, "log_probs_new")])))
    written = (np.arange(shape[1]) < batch.lengths[:, None]).astype(float)
    mask = (
        column("mask")
        if any(words.get("mask", "mask") in record for words in KEYS.values())
        else written.copy()
    )
    return Rows(
        new=column("log_probs_new"),
        old=column("log_probs_old"),
        ref=column("log_probs_ref"),
        rollout=column("log_probs_rollout"),
        mask=mask,
        written=written,
        rewards=np.asarray(scores, dtype=float),
        given=batch.advantages,
        groups=batch.groups,
        finished=batch.finished,
    )


def _recipe(random: Random, family: str, reduction: str, wish: Wish, beta: bool) -> Recipe:
    sequence = wish.sequence
    if sequence is None:
        sequence = family == "trl" and random.random() < 0.2
    steps = int(pick(random, wish.steps)) if family == "trl" else 1
    found = Recipe(
        family=family,
        reduction=reduction,
        low=0.02 if sequence else float(pick(random, (0.1, 0.2, 0.2))),
        high=0.03 if sequence else float(pick(random, (0.2, 0.2, 0.28))),
        beta=float(pick(random, (0.02, 0.04, 0.1))) if beta else 0.0,
        sequence=bool(sequence),
        weighted_kl=family == "trl" and bool(random.random() < 0.5),
        eps={"trl": 1e-4, "verl": 1e-6, "paper": 1e-8}[family],
        std=not (family == "paper" and reduction == "constant"),
        length=float(pick(random, (64, 128, 256))) if family == "trl" else None,
        steps=steps,
        generation=max(1, int(steps * pick(random, wish.generation))),
        dual=3.0 if family == "verl" else None,
    )
    more = {
        name: pick(random, value) if isinstance(value, tuple) else value
        for name, value in wish.more
    }
    return replace(found, **more)


def _named(record: Record, recipe: Recipe) -> tuple[str, ...]:
    """Writes the settings into the record; gives the words of the command."""
    hyper: dict[str, Any] = {"epsilon_low": recipe.low, "epsilon_high": recipe.high}
    if recipe.family == "trl":
        _trl(record, recipe, hyper)
        return ()
    if recipe.beta:
        hyper["beta"] = recipe.beta
    record["hyperparameters"] = hyper
    if recipe.family == "paper":
        name = _PAPER[recipe.reduction] if not recipe.sequence else "gspo"
        more = ("--kl", "k3") if recipe.beta and name != "grpo" else ()
        if not recipe.beta and name == "grpo":
            hyper["beta"] = 0.0
        return ("-v", name, *more)
    hyper |= {"clip_ratio_c": recipe.dual, "beta": recipe.beta}
    record["framework"] = {
        "name": "verl",
        "version": "0.9.1",
        "policy_loss": "vanilla",
        "loss_agg_mode": _VERL[recipe.reduction],
        "adv_estimator": "grpo",
        "kl_loss_type": "low_var_kl",
    }
    return ()


def _trl(record: Record, recipe: Recipe, hyper: dict[str, Any]) -> None:
    hyper |= {
        "beta": recipe.beta,
        "max_completion_length": int(recipe.length or 256),
        "num_items_in_batch": int(recipe.items),
        "gradient_accumulation_steps": recipe.steps,
        "steps_per_generation": recipe.generation,
    }
    if recipe.cispo:
        del hyper["epsilon_low"]
    if recipe.delta is not None:
        hyper["delta"] = recipe.delta
    framework: dict[str, Any] = {
        "name": "trl",
        "version": "1.16.0",
        "loss_type": "cispo" if recipe.cispo else _TRL[recipe.reduction],
        "importance_sampling_level": "sequence" if recipe.sequence else "token",
        "use_bias_correction_kl": recipe.weighted_kl,
        "off_policy_mask_threshold": None,
        "scale_rewards": "group",
    }
    if recipe.correction:
        hyper["vllm_importance_sampling_cap"] = recipe.cap
        framework["vllm_importance_sampling_mode"] = f"{recipe.correction}_truncate"
    record["hyperparameters"], record["framework"] = hyper, framework
