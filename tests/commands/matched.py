"""Records, spaces of conventions that were asked about a number, and what eval gives of each."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from planted import record

from grpo_cli.batch import Batch
from grpo_cli.commands.match.fit import Values, factors_of
from grpo_cli.commands.match.question import InMemory, LoggedNumber, Question
from grpo_cli.commands.match.run import Run
from grpo_cli.commands.match.space.kinds import Kinds
from grpo_cli.commands.match.space.space import Depth, Options, build
from grpo_cli.commands.match.sums.terms import Terms
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import BatchStatistics, Evaluator
from grpo_cli.engine.totals import Totals
from grpo_cli.errors import GrpoError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.records import Raw, assemble
from grpo_cli.records import record as read
from grpo_cli.variants.plan import Plan, plan


def values(*rows: tuple[float, float, float, float, float]) -> Values:
    """Of (policy, KL, β, size, bits)."""
    return Values(*(np.array(column) for column in zip(*rows, strict=True)))


def batch(*rows: dict[str, Any]) -> Batch:
    return assemble([read(Raw(row, "data.jsonl", 1, "", 0)) for row in rows])  # type: ignore[misc]


BARE = {"log_probs_new": [[-1.0], [-2.0]], "rewards": [1.0, 0.0]}


def whole(lengths: Any = (5, 9, 7), rewards: Any = (1.0, 0.0, 0.4), **more: Any) -> Chunk:
    row = record(5, [*lengths], [*rewards], **more)
    made = assemble([read(Raw(row, "data.jsonl", 1, "", 0))])  # type: ignore[list-item]
    return Chunk((), made, {}, advantages_given=False)


def kl_sums(made: Breakdown) -> np.ndarray:
    term = made.term("kl")
    assert term is not None
    return term.sums


def chunk_rollout(chunk: Chunk, far: bool) -> list[list[float]]:
    """The old policy's log-probs, or what is e^0.1 away from them."""
    rows = np.split(chunk.batch.log_probs_old - (0.1 if far else 0.0), [5, 14])
    return [row.tolist() for row in rows]


TOLD = {"entropies": [[0.5, 0.3, 0.9, 0.1, 0.2], [0.4] * 9, [0.7] * 7, [1.1, 0.2]]}

CHUNKS = [
    whole(lengths=[5, 9, 7, 2], rewards=[1.0, 0.0, 0.4, 0.9], groups=[0, 0, 1, 1], **TOLD),
    whole(lengths=[3, 1, 4], rewards=[0.3, 0.0, 0.8], entropies=[[0.2] * 3, [0.6], [0.1] * 4]),
]

SPACES: list[tuple[dict[str, str], str, dict[str, float], list[float]]] = [
    ({"advantage": "group-std", "surrogate": "clip"}, "input", {}, []),
    (
        {"ratio": "token", "aggregate": "token-mean", "surrogate": "clip"},
        "record",
        {"beta": 0.07},
        [],
    ),
    (
        {"kl": "k3", "aggregate": "response-mean", "advantage": "group-mean"},
        "input",
        {"entropy_coef": 0.2},
        [0.3],
    ),
]

NARROW = {"kl": "none", "aggregate": "response-mean", "advantage": "group-mean", "ratio": "token"}

DIRECT_ONLY = {"kl": "none", "aggregate": "response-mean", "surrogate": "bapo"}
"""A policy term that has to be evaluated with each of the advantages."""


@cache
def asked(at: int, text: str, depth: Depth = Depth.PLAIN, of: str = "loss") -> Run:
    """A space that was asked about a number on two records."""
    spaces = [*SPACES, (NARROW, "input", {}, []), (DIRECT_ONLY, "input", {}, [])]
    stages, batch, flags, betas = spaces[at]
    base = plan("grpo", stages=stages, batch=batch, hyperparameters=flags)
    space = build(base, Kinds(CHUNKS[0]), betas, depth)
    run = Run(space, factors_of(base, CHUNKS[0]), batch)
    question = Question(LoggedNumber.parse(of, text), InMemory(CHUNKS), CHUNKS[0])
    with np.errstate(all="ignore"):
        run.ask(question)
    return run


def moments_of(made: Plan) -> BatchStatistics:
    """The statistics of both records."""
    measured = BatchStatistics()
    for one in CHUNKS:
        measured.merge(Evaluator(made).measure(one))
    return measured


def objective_of(made: Plan) -> float | None:
    """J as ``grpo eval`` has it; None where it cannot be."""
    evaluator, totals = Evaluator(made), Totals(made.batch)
    try:
        if evaluator.wants_first_pass:
            evaluator = Evaluator(made, moments_of(made))
        with np.errstate(all="ignore"):
            for one in CHUNKS:
                totals.add(evaluator.evaluate(one))
    except GrpoError:
        return None
    found = sum(totals.parts().values())
    return found if math.isfinite(found) else None


def evaluator_of(name: str, one: Chunk) -> Breakdown:
    return Evaluator(plan(name)).evaluate(one)


def kls_of(one: Chunk, plans: list[Plan]) -> list[np.ndarray]:
    """[R] Σ k of each plan, as a search has them."""
    options = Options(solve=True)
    for at, made in enumerate(plans):
        options.kls.number(at, made)
    return [*Terms(options, one, {}).kls()]


def policies_of(one: Chunk, plans: list[Plan]) -> np.ndarray:
    """[n, R] Σ c·s of each plan with its own advantages, as a search has them."""
    options = Options(solve=True)
    for at, made in enumerate(plans):
        options.directs.number(("", (at, "", "")), made)
    return Terms(options, one, {}).directs(np.eye(one.batch.responses.count))
