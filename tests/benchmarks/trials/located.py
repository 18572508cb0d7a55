"""Whether ``verify`` says where a loss is wrong: the stage that each mistake of the lists is in.

Several stages are those of a mistake that is at the border of two, or whose numbers are those of
another on any data (a factor that everything has).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STAGES: Mapping[str, str] = {
    # the first list
    "micro-batch's own tokens for num_items_in_batch": "aggregate",
    "num_items_in_batch and accumulation steps too": "aggregate",
    "not divided by accumulation steps": "aggregate",
    "generation batch for the optimiser's": "aggregate",
    "mean over all tokens for mean over responses": "aggregate",
    "mean over responses for mean over all tokens": "aggregate",
    "sum over sequences for their mean": "aggregate",
    "padded width for the constant length": "aggregate",
    "token mean of each prompt for that of the batch": "aggregate",
    "mean of micro-batch means": "aggregate",
    "times the number of ranks": "aggregate loss",
    "KL averaged over a padded tensor": "kl",
    "KL of masked tokens counted": "kl mask",
    "mask of tools not applied": "mask",
    "mask one token early or late": "mask",
    "mask inverted": "mask",
    "end of text left out": "mask tokens",
    "first token left out": "mask tokens",
    "truncated tokens in the denominator": "aggregate",
    "mean over the responses that have tokens": "aggregate",
    "std without Bessel's correction": "advantage",
    "std of the batch for the group's": "advantage",
    "mean and std of the batch": "advantage",
    "not divided by the std": "advantage",
    "leave-one-out baseline": "advantage",
    "leave-one-out baseline over the std": "advantage",
    "epsilon inside the root": "advantage",
    "every response is its own group": "advantage",
    "groups taken across prompts": "advantage",
    "advantages whitened again, padding in the mean": "advantage",
    "advantages clipped": "advantage",
    "advantage of a sequence averaged over its padding": "advantage aggregate",
    "log ratio for the ratio": "ratio surrogate",
    "ratio to the policy itself": "ratio",
    "ratio without a gradient": "ratio surrogate",
    "product of the response's ratios": "ratio",
    "token's log ratio over the length": "ratio",
    "token's ratio for the sequence's": "ratio",
    "old log-probs one token off": "input ratio",
    "engine's log-probs for the old policy's": "input ratio",
    "old log-probs in bfloat16": "input ratio",
    "correction for the engine left out": "correction",
    "weights of a sequence summed for multiplied": "correction",
    "no clip": "surrogate",
    "upper epsilon ignored": "surrogate",
    "cispo as a clipped ratio": "surrogate",
    "delta of the two-sided clip ignored": "surrogate",
    "no dual clip": "surrogate",
    "KL subtracted": "kl",
    "KL of the reference to the policy": "kl",
    "KL as the square of the log ratio": "kl",
    "KL as the log ratio": "kl",
    "KL not weighted by the ratio": "kl",
    "KL left out": "kl",
    "sign of the loss": "loss aggregate",
    # the second list
    "clip from epsilon up": "surrogate",
    "KL without a gradient": "kl",
    "KL in the reward as well": "advantage",
    "CISPO's bound counted from one": "surrogate",
    "engine's weight with a gradient": "correction",
    "engine's weights not truncated": "correction",
    "engine's weights beyond the cap dropped": "correction",
    "sequence's weight a mean": "correction",
    "rejected tokens in the denominator": "aggregate correction",
    "off-policy mask by the old policy": "correction surrogate",
    "entropy over the tokens of the generation batch": "entropy",
    "entropy of truncated rows": "entropy",
    "log ratio centred over the batch": "ratio",
    "LUSPO over the padded width": "aggregate",
    "baseline of the finished responses": "advantage",
    "first response's reward as the baseline": "advantage",
    "reward functions not weighted": "advantage",
    "uneven groups cut at one size": "advantage",
    "lone response without an advantage": "advantage",
    "whitened by halves of each row": "advantage",
    "discount by the absolute position": "advantage",
    "tokens of tied groups left out": "aggregate mask",
    "own mean of each response for Dr. GRPO's sum": "aggregate",
    "a row counted twice": "aggregate tokens",
    "return cut off by a tool's answer": "advantage",
    "GAE steps over tools' tokens": "advantage",
    "critic's value behind the end": "advantage",
    "KL of tools' tokens in the returns": "advantage kl",
    "advantages at the places of the last turn": "advantage",
    "a trajectory counts once for each turn": "advantage",
    "advantages of interleaved turns": "advantage",
    "every trajectory a group of its own": "advantage",
    "a trajectory's turns as the group": "advantage",
    "turns compared by their number": "advantage",
    "a ratio for each turn": "ratio",
    "tools' tokens in the sequence's ratio": "ratio mask",
    "each turn weighs alike": "aggregate",
    "returns run on into another trajectory": "advantage",
    "the last turn alone is trained": "mask",
    "tokens of older weights left out": "mask correction",
    "tools' tokens in the denominator": "aggregate mask",
}
"""Mistake → its stages."""


def located(document: dict[str, Any] | None, name: str) -> tuple[bool, bool, int]:
    """Whether the first record that differs is located, in the right stage, and among how many."""
    for record in (document or {}).get("records", []):
        first = record.get("first")
        if not record.get("agrees", True) and first:
            stages = {*first.get("located", [])}
            return bool(stages), bool(stages & {*STAGES[name].split()}), len(stages)
    return False, False, 0
