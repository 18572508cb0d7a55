"""How many faults that nobody chose do the vectors find: a framework's own functions, mutated.

    cd tests && python -m parity.vectors.planted.rate verl     # or trl

A mutant counts if it changes a loss, a gradient, an advantage or a claimed metric on some random
batch, in a configuration that the vectors run; it is found if some vector fails. The random batches
are for counting only: no case was made from them.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from grpo_cli.vectors import Case, Loss, NotClaimedError, cases, claimed, judge
from grpo_cli.vectors.case import step_of
from grpo_cli.vectors.verdict import answer

from .mutants import mutants

HELD = ("dppo_tv", "dppo_kl", "kl_cov", "clip_cov")

TARGETS: dict[str, dict[str, list[str]]] = {
    "trl": {
        "trl.trainer.grpo_trainer:GRPOTrainer": ["_compute_loss", "get_gamma_weights"],
        "trl.trainer.rloo_trainer:RLOOTrainer": ["_compute_loss"],
    },
    "verl": {
        "verl.trainer.ppo.core_algos:": [
            "agg_loss",
            "kl_penalty",
            "kl_penalty_forward",
            *(
                f"compute_policy_loss_{name}"
                for name in ("vanilla", "gspo", "sapo", "gpg", "geo_mean", "cispo", *HELD)
            ),
            *(
                f"compute_{name}_outcome_advantage"
                for name in ("grpo", "rloo", "opo", "grpo_passk", "reinforce_plus_plus_baseline")
            ),
        ],
        "verl.trainer.ppo.rollout_corr_helper:": ["compute_rollout_correction_weights"],
    },
}

BATCHES = 4
"""Random batches for each configuration."""


def holders(framework: str) -> Iterator[tuple[Any, str]]:
    for place, names in TARGETS[framework].items():
        module, _, kind = place.partition(":")
        holder = import_module(module)
        yield from ((getattr(holder, kind) if kind else holder, name) for name in names)


def put_in(holder: Any, name: str, function: Callable[..., Any]) -> None:
    """In the module or class, and in verl's tables of losses and estimators."""
    setattr(holder, name, function)
    for table in ("POLICY_LOSS_REGISTRY", "ADV_ESTIMATOR_REGISTRY"):
        for key, value in getattr(holder, table, {}).items():
            if inspect.unwrap(value).__name__ == name:
                getattr(holder, table)[key] = function


def runnable(loss: Loss) -> list[Case]:
    found = []
    for case in cases():
        try:
            chosen = claimed(case, loss.claims)
            if not judge(loss.compute, chosen, loss.claims).problems:
                found.append(chosen)
        except (NotClaimedError, ValueError, AssertionError):
            continue
    return found


def at_random(case: Case, draw: np.random.Generator) -> Case:
    """The case's configuration on a batch of four ragged responses to two prompts."""
    lengths = draw.integers(1, 9, size=4)
    old = [-draw.exponential(1.2, n) - 0.3 for n in lengths]
    columns: dict[str, Any] = {"log_probs_old": [row.tolist() for row in old]}
    for name in ("new", "ref", "rollout"):
        rows = [np.minimum(row + draw.normal(0, 0.35, len(row)), -1e-3) for row in old]
        columns[f"log_probs_{name}"] = [row.tolist() for row in rows]
    columns["entropies"] = [draw.uniform(0.0, 2.0, n).tolist() for n in lengths]
    columns["mask"] = [[1, *(draw.random(n - 1) < 0.8).astype(int).tolist()] for n in lengths]
    columns["advantages"] = draw.normal(size=4).tolist()
    several = isinstance(case.input.get("rewards", [0])[0], list)
    columns["rewards"] = draw.choice([0, 0.1, 0.25, 1.0], size=(4, 2) if several else 4).tolist()
    columns["group_ids"], split = [0, 0, 1, 1], [[[0, 1, 2, 3]]]
    choices = {k: "none" if k == "split" else v for k, v in case.choices.items()}
    step = step_of(columns, split)
    return replace(
        case, id="metrics/random", input=columns, split=split, step=step, choices=choices
    )


def numbers(loss: Loss, case: Case) -> list[Any]:
    """Everything that the loss returns and claims, flat; what it raises instead."""
    try:
        found = answer(loss.compute, case)
    except Exception as error:
        return [type(error).__name__]
    logged = found.pop("metrics", {})
    return list(flat([*found.values(), [v for k, v in logged.items() if k in loss.claims.metrics]]))


def flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for inner in value:
            yield from flat(inner)
    else:
        yield value


def same(found: list[Any], wanted: list[Any]) -> bool:
    if len(found) != len(wanted) or any(isinstance(x, str) for x in (*found, *wanted)):
        return found == wanted
    return np.allclose(found, wanted, rtol=1e-6, atol=1e-6, equal_nan=True)


def fails(loss: Loss, case: Case) -> bool:
    try:
        return bool(judge(loss.compute, case, loss.claims).problems)
    except Exception:
        return True


def main(framework: str) -> None:
    warnings.simplefilter("ignore")
    module = import_module(f"parity.vectors.{framework}_vectors")
    loss = Loss(module.answer, getattr(module, framework.upper()))
    vectors = runnable(loss)
    draw = np.random.default_rng(2026)
    configurations = {str((c.choices, c.hyperparameters)): c for c in vectors}.values()
    random = [at_random(case, draw) for case in configurations for _ in range(BATCHES)]
    wanted = [numbers(loss, case) for case in random]
    found = hidden = 0
    for holder, name in holders(framework):
        original = getattr(holder, name)
        for change, mutant in mutants(inspect.unwrap(original)):
            put_in(holder, name, mutant)
            if any(fails(loss, case) for case in vectors):
                found += 1
            elif not all(same(numbers(loss, c), w) for c, w in zip(random, wanted, strict=True)):
                hidden += 1
                print(f"not found, {name}: {change}")
            put_in(holder, name, original)
    print(f"{framework}: {found} of {found + hidden} mutants that show were found")


if __name__ == "__main__":
    main(sys.argv[1])
