"""The conventions that ``match`` searches: a few choices on each of four axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from grpo_cli.hyperparameters import Value
from grpo_cli.variants import STAGES
from grpo_cli.variants.plan import Plan, plan

EPSILONS = (1e-4, 1e-8, 1e-6, 1e-5, 1e-9, 0.0)
"""What frameworks add to the std: TRL, open-instruct, verl, AReaL, OpenRLHF; and nothing."""

BETAS = (0.001, 0.01, 0.04, 0.1)
"""β where nobody gives one."""

_PAIRS = (
    ("token", "clip"),
    ("token", "unclipped"),
    ("token", "cispo"),
    ("token", "reinforce"),
    ("sequence", "clip"),
    ("product", "clip"),
)
_ESTIMATORS = ("k1", "k2", "k3", "abs")
_OTHER_ADVANTAGES = ("leave-one-out", "raw")


@dataclass(frozen=True)
class Option:
    """One choice on an axis: the stages that it swaps and the hyperparameters that it sets.

    ``cost`` ranks conventions that fit equally well: the plainer one first.
    """

    stages: Mapping[str, str]
    flags: Mapping[str, Value] = field(default_factory=dict)
    cost: int = 1


@dataclass(frozen=True)
class Axes:
    """The options on every axis. The first of each is the plan's own."""

    advantages: Sequence[Option]
    pairs: Sequence[Option]
    kls: Sequence[Option]
    aggregates: Sequence[Option]


def axes(base: Plan, *, rewards: bool, advantages: bool, betas: Sequence[float]) -> Axes:
    """What is searched.

    Args:
        base: what the flags say; a stage that a flag swaps stays as it is.
        rewards: whether the data has rewards.
        advantages: whether it has advantages.
        betas: the values of β to try; none for the given one.
    """
    own = Option({}, {}, cost=0)
    return Axes(
        [*_advantages(base, own, rewards=rewards, advantages=advantages)],
        [own, *_pairs(base)],
        [*_kls(base, own, betas)],
        [*_aggregates(base)],
    )


def _advantages(base: Plan, own: Option, *, rewards: bool, advantages: bool) -> Iterator[Option]:
    yield own
    if "advantage" in base.swapped or not rewards:
        return
    if advantages:
        yield Option({"advantage": base.row.advantage.name})
    yield Option({"advantage": "group-mean"})
    for ddof in (1, 0):
        for eps in EPSILONS:
            flags: dict[str, Value] = {"std_ddof": ddof, "std_eps": eps, "std_min": 0.0}
            yield Option({"advantage": "group-std"}, flags)
    known = STAGES["advantage"].choices
    yield from (Option({"advantage": name}, cost=2) for name in _OTHER_ADVANTAGES if name in known)


def _pairs(base: Plan) -> Iterator[Option]:
    for ratio, surrogate in _PAIRS:
        stages = {"ratio": ratio, "surrogate": surrogate}
        if all(base.swapped.get(stage, name) == name for stage, name in stages.items()):
            yield Option(stages, cost=1 if ratio == "token" else 2)


def _kls(base: Plan, own: Option, betas: Sequence[float]) -> Iterator[Option]:
    fixed = base.swapped.get("kl")
    if not betas:
        yield own
    if fixed is None:
        yield Option({"kl": "none"})
    for name in _ESTIMATORS if fixed is None else (fixed,):
        takes = STAGES["kl"].choices[name].hyperparameters
        for weight in ("none", "ratio") if "kl_weight" in takes else (None,):
            flags: dict[str, Value] = {} if weight is None else {"kl_weight": weight}
            cost = 1 if weight == "none" else 2
            if not betas:
                yield Option({"kl": name}, flags, cost)
            for beta in betas if "beta" in takes else ():
                yield Option({"kl": name}, {**flags, "beta": beta}, cost + 1)


def _aggregates(base: Plan) -> Iterator[Option]:
    own = base.swapped.get("aggregate", base.row.aggregate.name)
    yield Option({"aggregate": own}, cost=0)
    if "aggregate" not in base.swapped:
        for name in STAGES["aggregate"].choices:
            yield Option({"aggregate": name}, cost=2 if "/" in name else 1)


def combined(base: Plan, *options: Option) -> Plan:
    """The base with the options' stages and hyperparameters, but for flags that nothing takes."""
    stages = dict(base.swapped)
    flags: dict[str, Value] = dict(base.flags)
    for option in options:
        stages |= option.stages
        flags |= option.flags
    takes = plan(base.variant, stages=stages, batch=base.batch).takes()
    taken = {name: given for name, given in flags.items() if name in takes}
    return plan(base.variant, stages=stages, hyperparameters=taken, batch=base.batch)
