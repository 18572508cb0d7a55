"""Returns and GAE by other rules: other steps of time, another end, another discount."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.verify.causes.case import Case, Cause
from grpo_cli.commands.verify.causes.statistics import own_rewards
from grpo_cli.objective.breakdown import Breakdown


class Rule(NamedTuple):
    """How returns are summed up; each part by the words that name it where it is another one.

    Attributes:
        steps: which tokens are steps of time.
        end: what the critic's value is after the last step.
        gap: what happens where tokens do not count between those that do.
        penalised: whose KL is subtracted from the rewards.
        discount: γ, λ, and whether positions are counted from the start as well.
    """

    steps: str = ""
    end: str = ""
    gap: str = ""
    penalised: str = ""
    discount: str = ""


_PARTS: Mapping[str, tuple[str, ...]] = {
    "steps": ("", "all tokens are steps, also those that the mask leaves out (tools, padding)"),
    "end": ("", "the critic's value behind the last token (padding) follows it, instead of 0"),
    "gap": ("", "the return is reset at each gap of the mask: only the last turn has the reward"),
    "penalised": (
        "",
        "the KL of masked tokens (tools) is in the returns",
        "the KL is not in the returns",
    ),
    "discount": (
        "",
        "discount: γ is 1",
        "discount: λ is 1",
        "discount: γ and λ are exchanged",
        "discount: γ to the power of the absolute position multiplies each advantage again",
    ),
}
_MOST = 512
"""Responses of a record that rules are tried on."""


def returns(case: Case) -> Iterator[Cause]:
    """Yields the rules that differ in one or two parts, where the advantage is a return."""
    own = case.objective.advantage
    if case.gradient is None or "gamma" not in own.values or own.choice.given:
        return
    if case.batch.responses.count > _MOST or case.batch.records.count != 1:
        return
    ours = case.breakdown.advantage
    made = _advantages(case, Rule())
    if made is None or not np.allclose(made, ours, rtol=1e-7, atol=1e-9):
        return
    rules = [Rule(*parts) for parts in product(*_PARTS.values())]
    seen = [ours]
    for rule in sorted(rules, key=lambda rule: sum(map(bool, rule))):
        made = _advantages(case, rule) if 1 <= sum(map(bool, rule)) <= 2 else None
        if made is None or any(np.allclose(made, each, rtol=1e-9) for each in seen):
            continue  # of rules that are one here, the simplest
        seen.append(made)
        words = ", and ".join(filter(None, rule))
        yield Cause("return-rule", words, partial(_with, rule=rule), "advantage")


def _with(case: Case, rule: Rule) -> Breakdown:
    made = _advantages(case, rule)
    if made is None:
        raise ValueError("the record lacks what the rule reads")
    return case.with_advantages(made)


def _advantages(case: Case, rule: Rule) -> F64 | None:
    """[N] the advantages of the tokens that count."""
    rewards, given = own_rewards(case), case.record.columns
    values = case.objective.advantage.values
    if rewards is None:
        return None
    gamma, decay = float(values["gamma"] or 0.0), float(values.get("gae_lambda") or 1.0)
    if "γ is 1" in rule.discount:
        gamma = 1.0
    elif "λ is 1" in rule.discount:
        decay = 1.0
    elif "exchanged" in rule.discount:
        gamma, decay = decay, gamma
    has_critic = "values" in case.objective.advantage.choice.columns
    critic = np.frombuffer(given["values"]) if has_critic and "values" in given else None
    if rule.end and critic is None:
        return None
    penalty = _penalties(case)
    found = np.zeros(case.written.total)
    unpadded = case.unpadded
    for row, (start, length) in enumerate(
        zip(case.written.starts.tolist(), case.written.lengths.tolist(), strict=True)
    ):
        mask = case.mask[start : start + length]
        counted = np.flatnonzero(mask)
        if not len(counted):
            continue
        last = int(counted[-1])
        steps = np.arange(max(int(unpadded[row]), last + 1)) if rule.steps else counted
        running = following = 0.0
        if rule.end and critic is not None and last + 1 < length:
            following = float(critic[start + last + 1])
        after = None
        for at in steps[::-1].tolist():
            if rule.gap and after is not None and after != at + 1:
                running = following = 0.0
            here = 0.0 if critic is None else float(critic[start + at])
            paid = 0.0 if "not in" in rule.penalised else penalty[start + at]
            paid *= mask[at] or bool(rule.steps)
            reward = (float(rewards[row]) if at == last else 0.0) - paid
            if "of masked" in rule.penalised and after is not None:
                reward -= float(penalty[start + at + 1 : start + after].sum())
            running = reward + gamma * following - here + gamma * decay * running
            found[start + at], following, after = running, here, at
        if "absolute" in rule.discount:
            found[start + steps] *= gamma ** np.arange(len(steps))
    return found[case.mask]


def _penalties(case: Case) -> F64:
    """[N as written] β times log π_old − log π_ref where the KL is in the rewards; else 0."""
    given, none = case.record.columns, np.zeros(case.written.total)
    if not case.objective.kl_in_reward or "log_probs_ref" not in given:
        return none
    old = np.frombuffer(given.get("log_probs_old", given["log_probs_new"]))
    beta = float(case.objective.kl.values.get("beta") or 0.0)
    penalties: F64 = beta * (old - np.frombuffer(given["log_probs_ref"]))
    return penalties
