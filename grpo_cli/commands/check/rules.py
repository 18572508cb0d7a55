"""Every rule, in the order in which they look at a record."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from grpo_cli.commands.check import alignment, groups, lengths, prompts, ratios, scale, values
from grpo_cli.commands.check.finding import Finding
from grpo_cli.commands.check.record_view import View

Pair = tuple[str, str]

RECORD_RULES: tuple[Callable[[View], Iterator[Finding]], ...] = (
    values.not_finite,
    values.probabilities,
    lengths.mask,
    lengths.padding,
    prompts.prompt_included,
    ratios.on_policy,
    ratios.extreme_given,
    groups.dead_group,
    groups.near_dead_group,
    groups.reward_noise,
    groups.singleton_group,
    groups.uneven_groups,
    lengths.length_cap,
)
"""What each record is asked."""

PAIR_RULES: tuple[Callable[[View, Pair], Iterator[Finding]], ...] = (
    alignment.shifted,
    scale.log_base,
    scale.temperature,
    scale.constant_log_ratio,
    ratios.extreme_ratio,
    ratios.rollout_mismatch,
)
"""What each pair of columns is asked, until one finds something: it explains the rest."""

SAMPLE_RULES: tuple[Callable[[View], Iterator[Finding]], ...] = (scale.entropy_base,)
"""What a sample of tokens is asked: one record, or several short ones together."""

EXPLAINED = frozenset({"padding", "probabilities", "not-finite", "prompt-included"})
"""Findings after which pairs are not compared: they are not of the same tokens."""


def look(view: View) -> Iterator[Finding]:
    """What the rules find in one record."""
    found = [one for rule in RECORD_RULES for one in rule(view)]
    yield from found


def compare(view: View) -> Iterator[Finding]:
    """What the rules find in the pairs of columns of a sample of tokens."""
    told: set[tuple[str, str]] = set()
    for pair in view.pairs:
        for rule in PAIR_RULES:
            found = [one for one in rule(view, pair) if (one.code, _culprit(one)) not in told]
            told |= {(one.code, _culprit(one)) for one in found}
            if found:
                yield from found
                break
    for sample in SAMPLE_RULES:
        yield from sample(view)


def _culprit(one: Finding) -> str:
    return str(one.evidence.get("culprit", one.evidence.get("columns")))
