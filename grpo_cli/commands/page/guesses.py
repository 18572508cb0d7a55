"""What each column of tokens is likely to be, given those before it.

A guess costs nothing when it is wrong: ``codec`` stores what a column differs by. So these are no
second copy of the mathematics: they only make the page small.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import product

from grpo_cli.commands.page.codec import Expression

NEW, OLD, REF, ROLLOUT = "log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout"


def guesses(name: str, known: Collection[str], beta: float) -> Sequence[Expression]:
    """Expressions of known columns that the column may be near to."""
    return [one for one in _all(beta).get(name, ()) if _names(one) <= set(known)]


def _names(expression: Expression) -> set[str]:
    if isinstance(expression, str):
        return {expression}
    if isinstance(expression, list):
        return set().union(*map(_names, expression[1:]))
    return set()


def _all(beta: float) -> Mapping[str, Sequence[Expression]]:
    change = ["-", NEW, REF]
    shrunk = ["expm1", ["-", REF, NEW]]
    k3 = ["+", shrunk, change]
    policy = ["surrogate", ["*", "correction", "surrogate"]]
    moved = [["*", "free", one] for one in policy] + policy
    pulls = [["*", beta, shrunk], ["*", -beta, change]]
    minus_kl = ["*", ["*", -beta, "weight"], "kl"]
    return {
        OLD: [NEW],
        REF: [NEW, OLD],
        ROLLOUT: [OLD, NEW],
        "log_ratio": [["-", NEW, OLD]],
        "ratio": [["exp", "log_ratio"]],
        "difference": [["-", NEW, OLD]],
        "mismatch": [["-", OLD, ROLLOUT], ["-", NEW, ROLLOUT]],
        "surrogate": [["*", "ratio", "advantage"]],
        "kl": [k3, change, ["*", ["*", 0.5, change], change], ["*", "ratio", k3]],
        "contribution": [
            *(["*", "weight", one] for one in policy),
            *(["+", ["*", "weight", one], minus_kl] for one in policy),
        ],
        "gradient": [
            *(["*", "weight", one] for one in moved),
            *(["*", "weight", ["+", one, pull]] for one, pull in product(moved, pulls)),
        ],
    }
