"""A variant: a row that binds one choice at each stage, and says where it comes from."""

from __future__ import annotations

from dataclasses import dataclass

from grpo_cli.objective.choice import Bound


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One published objective, or one that a released framework computes.

    Attributes:
        advantage, ratio, surrogate, kl, correction, aggregate: the bound stages.
        kl_aggregate: where the KL is aggregated differently from the policy term.
        entropy: the entropy bonus, for a row that has one; a record's ``entropy_coef`` counts then.
        entropy_aggregate: where the entropy is aggregated differently from the policy term.
        title: what it is called, for people.
        paper: the arXiv id, or "" where there is none.
        note: where the literature and the frameworks disagree with this row.
        aliases: other names it answers to.
        checked: how the row was checked: "paper" (against the paper's formula), "executed" (the
            framework's own code ran beside ours), "golden" (its executed numbers), or "read".
        version: the framework's version that the row reproduces; "" for a paper.
    """

    advantage: Bound
    ratio: Bound
    surrogate: Bound
    kl: Bound
    correction: Bound
    aggregate: Bound
    kl_aggregate: Bound | None = None
    entropy: Bound | None = None
    entropy_aggregate: Bound | None = None
    title: str
    paper: str
    note: str
    aliases: tuple[str, ...] = ()
    checked: str = "paper"
    version: str = ""
