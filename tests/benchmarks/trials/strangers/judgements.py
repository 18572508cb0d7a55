"""Mistakes of the advantages: baselines, groups, normalisation, bounds."""

from __future__ import annotations

import numpy as np

from trials.strangers.batches import Wish
from trials.strangers.mistake import Mistake, both
from trials.strangers.plain import Array, Case, Recipe, Rows, by_group, spread

TRL = ("trl",)
REWARDED = {"judged": False, "groups": (2, 3)}


def _judged(by: object) -> object:
    """Other advantages."""
    return lambda case: case.but(advantages=by)


def _centred(rows: Rows) -> Array:
    return rows.rewards - by_group(rows.rewards, rows.groups, np.mean)


def _population(rows: Rows, recipe: Recipe) -> Array:
    return _centred(rows) / (by_group(rows.rewards, rows.groups, np.std) + recipe.eps)


def _batch_std(rows: Rows, recipe: Recipe) -> Array:
    return _centred(rows) / (spread(rows.rewards) + recipe.eps)


def _batch_both(rows: Rows, recipe: Recipe) -> Array:
    return (rows.rewards - rows.rewards.mean()) / (spread(rows.rewards) + recipe.eps)


def _others(rows: Rows, recipe: Recipe) -> Array:
    """Each against the mean of the others of its group."""
    count = by_group(rows.rewards, rows.groups, len)
    return _centred(rows) * count / (count - 1.0)


def _others_over_std(rows: Rows, recipe: Recipe) -> Array:
    return _others(rows, recipe) / (by_group(rows.rewards, rows.groups, spread) + recipe.eps)


def _inside_root(rows: Rows, recipe: Recipe) -> Array:
    var = by_group(rows.rewards, rows.groups, spread) ** 2
    return _centred(rows) / np.sqrt(var + recipe.eps)


def _own_groups(rows: Rows, recipe: Recipe) -> Array:
    """Every trajectory is a group of its own: mean 0, std 1."""
    return rows.rewards / (1.0 + recipe.eps)


def _interleaved(case: Case) -> Case:
    """Groups taken as every n-th row, where they are consecutive."""
    count = len(np.unique(case.rows.groups))
    return case.of(groups=np.arange(len(case.rows.groups)) % count)


def _whitened(case: Case) -> Case:
    """Normalised once more over the tokens, whose mean takes the padding in."""

    def again(rows: Rows, recipe: Recipe) -> Array:
        plain = case.step("advantages")(rows, recipe)[:, None] * rows.mask
        mean = plain.mean()
        var = ((plain - mean) ** 2 * rows.mask).sum() / rows.mask.sum()
        return (plain - mean) / np.sqrt(max(var, 1e-8))

    return case.but(advantages=again)


def _bounded(case: Case, bound: float) -> Case:
    right = case.step("advantages")
    return case.but(advantages=lambda rows, recipe: np.clip(right(rows, recipe), -bound, bound))


def _padded_mean(case: Case) -> Case:
    """One advantage for a sequence: the mean of its tokens' with those of padding, which are 0."""
    right = case.step("advantages")
    return case.but(advantages=lambda rows, recipe: right(rows, recipe) * rows.lengths / rows.width)


MISTAKES = [
    Mistake(
        "std without Bessel's correction",
        "NVIDIA-NeMo/RL#1423",
        _judged(_population),
        r"ddof|bessel|population|biased|G ?[-−–] ?1|n ?[-−–] ?1",
        Wish(**REWARDED),
    ),
    Mistake(
        "std of the batch for the group's",
        "NVIDIA-NeMo/RL#1423",
        _judged(_batch_std),
        both(r"\bstd\b|scale|normali", r"batch|global|across|whole|all (the )?(resp|rew|gro|data)"),
        Wish(reductions=("response", "token", "items"), **REWARDED),
    ),
    Mistake(
        "mean and std of the batch",
        "langfengQ/verl-agent#138",
        _judged(_batch_both),
        both(
            r"\bmean\b|std|baseline|normali|advantage|cent",
            r"batch|global|across|whole|all (the )?(resp|rew|gro|data)|one group|merged|ignor",
        ),
        Wish(reductions=("response", "token", "items"), **REWARDED),
    ),
    Mistake(
        "not divided by the std",
        "thinking-machines-lab/tinker-cookbook#579",
        _judged(lambda rows, recipe: _centred(rows)),
        r"(not|never) divided by.{0,20}std|without (the |a )?std|no std|group-mean|nostd"
        r"|scale_rewards|std.{0,40}(missing|left out|not|absent)|\bdr\b|r [-−–] (r̄|mean)",
        Wish(
            families=("trl", "verl", "paper"), reductions=("response", "token", "items"), **REWARDED
        ),
    ),
    Mistake(
        "leave-one-out baseline",
        "verl-project/verl#882",
        _judged(_others),
        r"leave-?one-?out|rloo|\bloo\b|the others",
        Wish(**REWARDED),
    ),
    Mistake(
        "leave-one-out baseline over the std",
        "NVIDIA-NeMo/RL#1518",
        _judged(_others_over_std),
        r"leave-?one-?out|rloo|\bloo\b|the others|G ?/ ?\(G ?[-−–] ?1\)",
        Wish(reductions=("response", "token", "items"), **REWARDED),
    ),
    Mistake(
        "epsilon inside the root",
        "verl-project/verl#6348",
        _judged(_inside_root),
        r"(inside|under|within|in) the (square )?root|sqrt|variance",
        Wish(TRL, ("response", "token", "items"), rewards="close", **REWARDED),
    ),
    Mistake(
        "every response is its own group",
        "rllm-org/rllm#776",
        _judged(_own_groups),
        r"\braw\b|no baseline|reward(s)? (itself|alone|as)|not cent|without.{0,30}(baseline|mean)"
        r"|(baseline|mean).{0,40}(missing|left out|not)|group(s)? of (one|1)|singleton"
        r"|own group|the reward is",
        Wish(**REWARDED),
    ),
    Mistake(
        "groups taken across prompts",
        "dllm-reasoning/d1#19",
        _interleaved,
        r"(wrong|other|another|different|interleav|mixed|shuffl)\w*.{0,40}group"
        r"|group(s|ing|ed|_ids)?\b.{0,80}(interleav|order|mix|wrong|across|every|shuffl|split"
        r"|consecutive|torn|other|modulo)|interleav|transpos|permut|modulo"
        r"|advantages? .{0,30}(another order|of another response)",
        Wish(**REWARDED),
    ),
    Mistake(
        "advantages whitened again, padding in the mean",
        "NovaSky-AI/SkyRL#1305",
        _whitened,
        r"whiten|normali[sz]ed (again|twice|over|a second)|standardi[sz]|twice"
        r"|advantages?.{0,80}(mean|std|centred).{0,40}(batch|token|padd)",
        Wish(groups=(2, 3)),
    ),
    Mistake(
        "advantages clipped",
        "Goekdeniz-Guelmez/mlx-lm-lora#49",
        _bounded,
        both(r"advantage", r"clip|clamp|bound|\bcap|limit"),
        Wish(rewards="rare", reductions=("response", "token", "items")),
        strengths=(2.0, 1.0),
    ),
    Mistake(
        "advantage of a sequence averaged over its padding",
        "areal-project/AReaL#1346",
        _padded_mean,
        r"padd|width|longest|greatest length|columns|weighted by (the )?length|length-weighted"
        r"|token-?sum",
        Wish(reductions=("response",)),
    ),
]
