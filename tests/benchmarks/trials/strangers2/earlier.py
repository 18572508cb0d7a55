"""Kinds of a first list, known for long, that no other experiment plants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trials.product import Record
from trials.strangers.dumps import agent, healthy, written
from trials.strangers.losses import Recipe, Rows, advantages, reduce
from trials.strangers.mistake import Fault, Mistake, both
from trials.strangers.settings import Wish
from trials.strangers.world import Random
from trials.tape import Array

KL = r"\b(kl|penalty|k3)\b"
ENGINE = r"correction|importance.sampling|\btis\b|rollout|vllm|engine|sampling|sampler"
GROUPS = (
    r"(wrong|other|another|different|interleav|mixed|shuffl)\w*.{0,40}group"
    r"|group(s|ing|ed|_ids)?\b.{0,80}(interleav|order|mix|wrong|across|every|shuffl|split"
    r"|consecutive|torn|other|modulo)|interleav|transpos|permut|modulo"
    r"|advantages? .{0,30}(another order|of another response)"
)
TOOLS = Wish(("span",))


def _prompts(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
    owns = [rows.groups == group for group in np.unique(rows.groups)]
    means = [(values * mask)[own].sum((-2, -1)) / mask[own].sum() for own in owns]
    return sum(means) / len(means) / recipe.steps


def _everywhere(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
    return (values * mask).sum((-2, -1)) / mask.size / recipe.steps


def _unmasked(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
    return reduce(rows, recipe, values, rows.written)


def _over_padding(rows: Rows, recipe: Recipe) -> Array:
    return advantages(rows, recipe) * rows.mask.mean(axis=1)


def _interleaved(rows: Rows, recipe: Recipe) -> Array:
    count = len(np.unique(rows.groups))
    return advantages(replace(rows, groups=np.arange(len(rows.groups)) % count), recipe)


def _summed_weights(rows: Rows, recipe: Recipe, adv: Array) -> Array:
    ratios = np.exp((rows.old - rows.rollout) * rows.mask) * rows.mask
    return np.minimum(ratios.sum(axis=1, keepdims=True), recipe.cap) + 0.0 * rows.mask


def _leading_zero(random: Random, _: None) -> list[Record]:
    world = healthy(random)
    values = world.columns["log_probs_rollout"]
    for span in world.spans():
        values[span] = np.append(0.0, values[span][:-1])
    return written(world)


def _inverted(random: Random, _: None) -> list[Record]:
    world = agent(random)
    return written(world, mask=world.tool.astype(int))


MISTAKES = [
    Mistake(
        "token mean of each prompt for that of the batch",
        "verl-project/verl#2776",
        lambda case: case.but(reduce=_prompts),
        r"prompt|(each|per|every|its|a|the) group|by group|groups?'s? (own )?tokens",
        Wish(reductions=("token",)),
    ),
    Mistake(
        "KL averaged over a padded tensor",
        "allenai/open-instruct#535",
        lambda case: case.but(reduce_kl=_everywhere),
        both(KL, r"padd|denominat|averag|aggregat|\bmean\b|reduc|divid|mask|position|weigh|width"),
        Wish(beta=True),
    ),
    Mistake(
        "KL of masked tokens counted",
        "THUDM/slime#1370",
        lambda case: case.but(reduce_kl=_unmasked),
        both(KL, r"mask|tool|left out|all tokens|every token"),
        Wish(("paper", "trl"), ("response", "token", "sum"), beta=True, masked="cut"),
    ),
    Mistake(
        "mask inverted",
        "mll-lab-nu/RAGEN#71",
        lambda case: case.of(mask=case.rows.written - case.rows.mask),
        both(r"mask", r"invert|revers|opposite|exchang|swap|flip|complement|negat|instead"),
        TOOLS,
    ),
    Mistake(
        "advantage of a sequence averaged over its padding",
        "areal-project/AReaL#1346",
        lambda case: case.but(advantages=_over_padding),
        r"padd|width|longest|greatest length|columns|weighted by (the )?length|length-weighted"
        r"|token-?sum",
        Wish(("paper", "trl", "verl"), ("response",)),
    ),
    Mistake(
        "groups taken across prompts",
        "dllm-reasoning/d1#19",
        lambda case: case.but(advantages=_interleaved),
        GROUPS,
        Wish(("paper", "trl", "verl")),
    ),
    Mistake(
        "correction for the engine left out",
        "linkedin/Liger-Kernel#1082",
        lambda case: case.by(correction=""),
        both(
            ENGINE,
            r"\bnone\b|missing|left out|\bno\b|without|not (applied|used)|ignor|unweigh|absent"
            r"|lacks|trl/masks",
        ),
        Wish(
            ("trl",),
            ("response", "token", "sum"),
            recipe={"correction": "token"},
            columns=("rollout",),
            spec={"engine": 0.3},
        ),
    ),
    Mistake(
        "weights of a sequence summed for multiplied",
        "unslothai/unsloth-zoo#870",
        lambda case: case.but(weights=_summed_weights),
        both(ENGINE, r"\bsum|added|adds|not multiplied"),
        Wish(
            ("trl",),
            ("response", "token", "sum"),
            recipe={"correction": "sequence", "cap": 20.0},
            columns=("rollout",),
            spec={"engine": 0.1},
        ),
    ),
    Mistake(
        "engine's log-probs for the old policy's",
        "THUDM/slime#846",
        lambda case: case.of(old=case.rows.rollout),
        r"rollout|sampling|sampled|engine|inference|vllm",
        Wish(("paper", "trl", "verl"), columns=("rollout",), spec={"engine": 0.2}),
    ),
]
FAULTS = [
    Fault(
        "engine's column begins with the prompt's zero",
        "PrimeIntellect-ai/prime-rl#606",
        _leading_zero,
        r"shift|off.by.one|(next|previous) token|first token|leading",
    ),
    Fault(
        "mask inverted",
        "mll-lab-nu/RAGEN#71",
        _inverted,
        r"probability 1|exactly 0|\b0\.0\b|zero|mask|tool|not sampled",
        agent=True,
    ),
]
