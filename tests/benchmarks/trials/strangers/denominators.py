"""Mistakes of what is averaged: denominators, micro-batches, masks."""

from __future__ import annotations

import numpy as np

from trials.strangers.batches import Wish
from trials.strangers.mistake import Mistake, both
from trials.strangers.plain import Array, Case, Recipe, Rows, reduce

TRL = ("trl",)
KL = r"\b(kl|penalty)\b"


def _rows_at_a_time(count: int) -> object:
    def over(rows: Rows, recipe: Recipe, values: Array) -> Array:
        parts = [slice(at, at + count) for at in range(0, len(rows.mask), count)]
        means = [
            (values * rows.mask)[..., part, :].sum((-2, -1)) / max(rows.mask[part].sum(), 1.0)
            for part in parts
        ]
        return sum(means) / len(means) / recipe.steps

    return over


def _prompts(rows: Rows, recipe: Recipe, values: Array) -> Array:
    """A token mean for each prompt, then a mean over prompts."""
    found = []
    for group in np.unique(rows.groups):
        own = rows.groups == group
        total = (values * rows.mask)[..., own, :].sum((-2, -1))
        found.append(total / rows.mask[own].sum())
    return sum(found) / len(found) / recipe.steps


def _counted(count: object) -> object:
    """A token sum over another count."""

    def over(rows: Rows, recipe: Recipe, values: Array) -> Array:
        return (values * rows.mask).sum((-2, -1)) / count(rows) / recipe.steps  # type: ignore

    return over


def _filled_rows(rows: Rows, recipe: Recipe, values: Array) -> Array:
    means = (values * rows.mask).sum(-1) / np.maximum(rows.lengths, 1.0)
    return means.sum(-1) / (rows.lengths > 0).sum() / recipe.steps


def _everywhere(rows: Rows, recipe: Recipe, values: Array) -> Array:
    """``.mean()`` of a padded tensor."""
    return (values * rows.mask).mean((-2, -1)) / recipe.steps


def _unmasked(rows: Rows, recipe: Recipe, values: Array) -> Array:
    """The sum takes every token that is written, the denominators stay."""
    lengths = np.maximum(rows.lengths, 1.0)
    if recipe.reduction == "response":
        scale = 1.0 / (lengths[:, None] * len(lengths))
    elif recipe.reduction == "token":
        scale = np.array(1.0 / rows.mask.sum())
    else:
        scale = np.array(1.0 / (len(lengths) * (recipe.length or 1.0)))
    return (values * rows.written * scale).sum((-2, -1)) / recipe.steps


def _moved(mask: Array) -> Array:
    """The mask of the next token."""
    return np.concatenate([mask[:, 1:], np.zeros((len(mask), 1))], axis=1)


def _late(mask: Array, written: Array) -> Array:
    return np.concatenate([np.zeros((len(mask), 1)), mask[:, :-1]], axis=1) * written


def _without_end(case: Case) -> Case:
    rows = case.rows
    mask = rows.mask.copy()
    ends = rows.written.sum(axis=1).astype(int) - 1
    mask[np.flatnonzero(rows.finished), ends[rows.finished]] = 0.0
    return case.of(mask=mask)


def _without_start(case: Case) -> Case:
    mask = case.rows.mask.copy()
    mask[:, 0] = 0.0
    return case.of(mask=mask)


def _reduced(**recipe: object) -> object:
    return lambda case: case.by(**recipe)


MISTAKES = [
    Mistake(
        "micro-batch's own tokens for num_items_in_batch",
        "linkedin/Liger-Kernel#1082",
        _reduced(reduction="token"),
        r"bnpo|trl/async|num_items_in_batch|(micro-?batch|record|batch)('s)?( own)? tokens"
        r"|own tokens|token-?mean|tokens of (this|the|its) (micro-?batch|record|batch)",
        Wish(TRL, ("items",)),
    ),
    Mistake(
        "num_items_in_batch and accumulation steps too",
        "huggingface/trl#5890",
        lambda case: case.but(
            reduce=lambda rows, recipe, values: reduce(rows, recipe, values) / recipe.steps
        ),
        r"accumulat|micro-?batches|trl/async",
        Wish(TRL, ("items",), steps=(2, 4, 8)),
    ),
    Mistake(
        "not divided by accumulation steps",
        "verl-project/verl#3332",
        lambda case: case.but(
            reduce=lambda rows, recipe, values: reduce(rows, recipe, values) * recipe.steps
        ),
        r"accumulat|micro-?batches",
        Wish(TRL, ("response", "token", "constant"), steps=(2, 4, 8)),
    ),
    Mistake(
        "generation batch for the optimiser's",
        "huggingface/trl#6024",
        lambda case: case.by(generation=case.recipe.steps),
        r"steps_per_generation|accumulat|generation (batch|steps)",
        Wish(TRL, ("items",), steps=(2, 4), generation=(2, 0.5)),
    ),
    Mistake(
        "mean over all tokens for mean over responses",
        "huggingface/trl#3187",
        _reduced(reduction="token"),
        r"token-?mean|bnpo|dapo|over (all )?(the )?tokens|all (of the )?tokens (alike|equal)"
        r"|tokens? (weigh|count)\w* (alike|equal|the same)|(total|number of|all|sum of) tokens"
        r"|every token .{0,30}(alike|same|equal)",
        Wish(reductions=("response",)),
    ),
    Mistake(
        "mean over responses for mean over all tokens",
        "PrimeIntellect-ai/prime-rl#102",
        _reduced(reduction="response"),
        r"response-?mean|(per|each|every|its|their|a) (own )?(response|sequence|row)"
        r"|seq(uence)?-?mean|own length|response'?s? (own )?length|aggregate (trl/)?grpo"
        r"|\bgrpo\b.{0,30}(aggreg|denom)",
        Wish(reductions=("token",)),
    ),
    Mistake(
        "sum over sequences for their mean",
        "verl-project/verl#3741",
        lambda case: case.but(
            reduce=lambda rows, recipe, values: reduce(rows, recipe, values) * len(rows.mask)
        ),
        r"number of (responses|sequences|rows)|responses|sequences|batch size|token-?sum|\bsum\b",
        Wish(reductions=("constant",)),
    ),
    Mistake(
        "padded width for the constant length",
        "verl-project/verl#5366",
        lambda case: case.but(reduce=_counted(lambda rows: len(rows.mask) * rows.width)),
        r"padd|width|longest|greatest|columns|max(imum)? (response )?length of|shape\[",
        Wish(TRL, ("constant",)),
    ),
    Mistake(
        "token mean of each prompt for that of the batch",
        "verl-project/verl#2776",
        lambda case: case.but(reduce=_prompts),
        r"prompt|(each|per|every|its|a|the) group|by group|groups?'s? (own )?tokens",
        Wish(reductions=("token",), groups=(2, 3)),
    ),
    Mistake(
        "mean of micro-batch means",
        "NovaSky-AI/SkyRL#1296",
        lambda case, count: case.but(reduce=_rows_at_a_time(count)),
        r"micro-?batch|mean of means|chunk|(rows|responses) (each|at a time)|mini-?batch"
        r"|sub-?batch|split into|slice|pairs|(2|4|two|four) (rows|responses)",
        Wish(reductions=("token",), groups=(2, 3), sizes=(6,)),
        strengths=(2, 4),
    ),
    Mistake(
        "times the number of ranks",
        "nvidia-cosmos/cosmos-rl#342",
        lambda case, size: Case(case.rows, case.recipe, case.steps, float(size)),
        r"constant factor|\bfactor\b|times|divided by|rank|process|data.?parallel|dp_size|world",
        Wish(groups=(2, 3)),
        strengths=(16, 1 / 16, 3),
        value=False,
    ),
    Mistake(
        "KL averaged over a padded tensor",
        "allenai/open-instruct#535",
        lambda case: case.but(reduce_penalty=_everywhere),
        both(KL, r"padd|denominat|averag|aggregat|\bmean\b|reduc|divid|mask|position|weigh|width"),
        Wish(beta=True),
    ),
    Mistake(
        "KL of masked tokens counted",
        "THUDM/slime#1370",
        lambda case: case.but(reduce_penalty=_unmasked),
        both(KL, r"mask|tool|left out|all tokens|every token"),
        Wish(reductions=("response", "token", "constant"), beta=True, mask="tools"),
    ),
    Mistake(
        "mask of tools not applied",
        "huggingface/trl#4975",
        lambda case: case.of(mask=case.rows.written),
        r"mask.{0,80}(ignor|not (applied|used)|unused|left out|missing|never)|no mask"
        r"|without (the |its )?mask|masked tokens?.{0,40}(count|contribut|train|includ|in|are)"
        r"|unmasked|gradients? (at|on|of) masked|counts? masked",
        Wish(reductions=("response", "token", "constant"), mask="tools"),
    ),
    Mistake(
        "mask one token early or late",
        "modelscope/ms-swift#8427",
        lambda case, late: case.of(
            mask=_late(case.rows.mask, case.rows.written) if late else _moved(case.rows.mask)
        ),
        both(
            r"mask",
            r"shift|off.by.one|misalign|one (token|position|step)|late|early|moved|next|displac",
        ),
        Wish(reductions=("response", "token", "constant"), mask="tools"),
        strengths=(False, True),
    ),
    Mistake(
        "mask inverted",
        "mll-lab-nu/RAGEN#71",
        lambda case: case.of(mask=case.rows.written - case.rows.mask),
        both(r"mask", r"invert|revers|opposite|exchang|swap|flip|complement|negat|instead"),
        Wish(reductions=("response", "token", "constant"), mask="tools"),
    ),
    Mistake(
        "end of text left out",
        "huggingface/trl#6357",
        _without_end,
        r"(last|final) token|\beos\b|end.of.(text|sequence)|end token",
        Wish(reductions=("response", "token", "constant"), mask=""),
    ),
    Mistake(
        "first token left out",
        "verl-project/verl#3287",
        _without_start,
        r"first token|token 0\b|(start|beginning) of (each|every|the) response",
        Wish(reductions=("response", "token", "constant"), mask=""),
    ),
    Mistake(
        "truncated tokens in the denominator",
        "huggingface/trl#6369",
        lambda case: case.but(reduce=_counted(lambda rows: rows.written.sum())),
        both(
            r"denominat|divid|averag|count|\bmean\b",
            r"mask|truncat|cut|padd|written|left out|empty",
        ),
        Wish(reductions=("token",), mask="cut", families=("trl", "paper")),
    ),
    Mistake(
        "mean over the responses that have tokens",
        "MakazhanAlpamys/Soup#744",
        lambda case: case.but(reduce=_filled_rows),
        r"empty|without (any |counted )?tokens|no tokens|non-?empty|fully masked|masked (out )?resp"
        r"|truncated|responses? (that|which|with).{0,20}(have|count|token)|valid (resp|seq)"
        r"|\d+ (of \d+ )?responses|verl/seq-mean-token-mean",
        Wish(reductions=("response",), mask="cut", cut=2, families=("trl", "paper")),
    ),
]
