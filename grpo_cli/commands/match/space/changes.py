"""The changes that are tried in each row, and what each costs in bits.

A bit halves how likely a convention is before the number is seen: a row as it is published costs
nothing, a stage changed in it some bits (there are so many stages and choices that could have been
changed), a factor or a β of its own several. Of two conventions that give one number the one of
fewer bits comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from grpo_cli.hyperparameters import Value
from grpo_cli.variants import EARLIER, STAGES, VARIANTS
from grpo_cli.variants.plan import Plan, plan
from grpo_cli.variants.trainer import USUAL

UNBOUND: Mapping[str, float] = {"epsilon_low": 1.0, "epsilon_high": 1e16}
"""ε that clip nothing on their side: no ratio is below 0, and none that large."""


EPSILONS: Mapping[tuple[float, float], float] = {
    (0.2, 0.2): 1.0,
    (0.2, 0.28): 1.0,
    (0.2, 0.3): 4.0,
    **{(0.2, high): 6.0 for high in (0.22, 0.25, 0.4)},
    **{(one, one): 4.0 for one in (0.1, 0.15, 0.25, 0.28, 0.3, 0.4, 0.5)},
    **{(one, one): 9.0 for one in (0.0001, 0.001, 0.01, 0.02, 0.05, 1.0)},
    (0.2, UNBOUND["epsilon_high"]): 5.0,
    **{(UNBOUND["epsilon_low"], high): 6.0 for high in (0.2, 0.28)},
}
"""ε below and above that are tried as well as the row's own if none is given, and their bits.

0.2 is the default of TRL, verl, OpenRLHF, slime, SkyRL and NeMo-RL; 0.2 and 0.28 are DAPO's, and
those of most recipes of verl, slime and NeMo-RL that set both.
"""

OF_SEQUENCES: Mapping[tuple[float, float], float] = {(3e-4, 4e-4): 2.0, (3e-4, 3e-4): 4.0}
"""Further ε where the ratio is a sequence's: the GSPO paper's, which all frameworks recommend."""


BETAS: Mapping[float, float] = {
    **dict.fromkeys((0.0015, 0.0025, 0.015, 0.025, 0.12, 0.125, 0.15, 0.25, 0.35), 7.0),
    **{float(f"{digit}e{power}"): 5.0 for power in (-4, -3, -2, -1) for digit in range(1, 10)},
    **dict.fromkeys((0.3, 0.5, 1.0), 7.0),
    **dict.fromkeys((0.4, 0.6, 0.7, 0.8, 0.9), 9.0),
    **dict.fromkeys((0.005, 0.02, 0.04, 0.05, 0.1), 3.0),
    **dict.fromkeys((0.001, 0.01), 2.0),
    0.0: 1.0,
}
"""β tried if none is given, and its bits: the usual ones, others of one digit, some of two.

0 is the default of TRL, and of verl and slime without a KL loss; 0.001 is verl's and SkyRL's with
one, 0.01 OpenRLHF's and NeMo-RL's, 0.04 the paper's and ms-swift's, 0.05 open-instruct's, 0.1
AReaL's, 0.2 ROLL's. No default or recipe that was found has more.
"""


LENGTH = "max_completion_length"

LENGTHS = (128, 256, 512, 768, 1000, 1024, 1536, 2048, 3072, 4096, 8192, 16384, 32768)
"""Constant lengths tried if none is given; so is the width that the records are padded to."""


_BATCH_STDS: tuple[dict[str, Value], ...] = (
    {"std_ddof": 1, "std_eps": 1e-4},
    {"std_ddof": 1, "std_eps": 1e-8},
)
"""One std over the batch: TRL's, where scale_rewards="batch", and with the papers' constant."""


STEPS = {2: 2.0, 4: 2.0, 8: 2.0, 16: 3.0, 32: 4.0, 64: 5.0}
"""Accumulation steps tried if none are given, and their bits."""


_CHANGE, _SECOND, _RARE = 4.0, 1.0, 3.0
_SETTING = 2.0
"""Bits of another value of one of a choice's settings, less than those of another choice."""


_DERIVED = {"unsloth": "trl", "ms-swift": "trl", "liger": "trl"}
"""Frameworks that compute the loss on another one's fields."""


_EARLIER = 0.5
"""Bits of a row of an earlier release: less than those of a factor."""


def strangeness(row: str, frameworks: Sequence[str], recorded: str = "") -> float:
    """The bits of a row: none for those of the frameworks that the records' names are of.

    Without such names, none for those of papers; one of these outweighs two of a framework.
    The row that the records name has none in any release.
    """
    if is_recorded(row, recorded):
        return 0.0
    room = row.partition("/")[0] if "/" in row else ""
    earlier = _EARLIER if "@" in row else 0.0
    if room in (frameworks or ("",)):
        return earlier
    if not frameworks:
        return earlier + 1.25
    return earlier + (2.0 if not room or _DERIVED.get(room) in frameworks else 4.0)


def bound_bits(surrogate: Mapping[str, Value]) -> float:
    """What a bound that only rare ratios exceed costs a changed row: the plainer comes first."""
    return 2.0 * any(surrogate.get(name) is not None for name in ("dual_clip", "delta"))


def familiarity(row: str, frameworks: Sequence[str], recorded: str) -> tuple[bool, float, int]:
    """Sorts names of a convention: recorded, of the records' frameworks, papers, the catalogue."""
    name = row.partition("@")[0]
    room = name.partition("/")[0]
    other = not is_recorded(row, recorded)
    return other, strangeness(name, frameworks), _ROOMS.index(room) if "/" in name else -1


_ROOMS = sorted(
    dict.fromkeys(name.partition("/")[0] for name in VARIANTS if "/" in name),
    key=_DERIVED.__contains__,
)


def is_recorded(row: str, recorded: str) -> bool:
    """Whether a row is the one that the records name, in whatever release."""
    return row.partition("@")[0] == recorded.partition("@")[0]


@dataclass(frozen=True, eq=False)
class Change:
    """One thing changed in a row; an axis shares its changes among the rows.

    Attributes:
        stages: stage → choice.
        flags: hyperparameters.
        count: how many changes it is; 0 for the row's own choice or a hyperparameter alone.
        bits: what it costs.
    """

    stages: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, Value] = field(default_factory=dict)
    count: int = 0
    bits: float = 0.0

    def and_(self, other: Change) -> Change:
        """Both changes as one."""
        second = _SECOND if self.count and other.count else 0.0
        return Change(
            {**self.stages, **other.stages},
            {**self.flags, **other.flags},
            self.count + other.count,
            self.bits + other.bits + second,
        )


NO_CHANGE = Change()


def change(stage: str, choice: str, rare: float = 0.0, **flags: Value) -> Change:
    """A choice swapped in at a stage."""
    return Change({stage: choice}, flags, 1, _CHANGE + rare)


def rows(base: Plan, frameworks: Sequence[str] = (), recorded: str = "") -> Iterator[Plan]:
    """Every row with the stages and hyperparameters that flags ask for, or the one asked for.

    Those of earlier releases come last; of one that is asked for, these too.

    Args:
        base: the plan, whose own row comes first.
        frameworks: their rows come next, their usual losses first.
        recorded: the row that the records name, which is before these in all its releases.
    """
    usual = {USUAL[name][1] for name in frameworks if name in USUAL}

    def order(name: str) -> tuple[bool, bool, float, bool]:
        other = not is_recorded(name, recorded)
        return other, name in EARLIER, strangeness(name, frameworks), name not in usual

    every = [*VARIANTS, *EARLIER]
    asked = [name for name in EARLIER if name.startswith(f"{base.variant}@")]
    others = asked if base.asked else sorted(every, key=order)
    for name in dict.fromkeys([base.variant, *others]):
        bare = Plan(name, VARIANTS[name], base.swapped, {}, base.batch)
        takes = bare.takes() if base.flags else ()
        flags = {flag: value for flag, value in base.flags.items() if flag in takes}
        if name == base.variant or len(flags) == len(base.flags) or not base.swapped:
            yield Plan(name, VARIANTS[name], base.swapped, flags, base.batch)


def changed(made: Plan, *changes: Change) -> Plan:
    """The plan with the changes, unchecked."""
    stages, flags = dict(made.swapped), dict(made.flags)
    for one in changes:
        stages |= one.stages
        flags |= one.flags
    return Plan(made.variant, made.row, stages, flags, made.batch)


def checked(made: Plan) -> Plan:
    """Checks a plan, without the flags that none of its stages takes."""
    takes = made.takes()
    flags = {name: value for name, value in made.flags.items() if name in takes}
    return plan(made.variant, stages=made.swapped, hyperparameters=flags, batch=made.batch)


def advantages(
    base: Plan, own: str, values: Sequence[tuple[str, Value]], *, rewards: bool, groups: bool
) -> tuple[Change, ...]:
    """A row's own advantages and others; other settings of its own std; none without rewards."""
    fixed, given = base.swapped.get("advantage"), dict(values)
    only_std = "std_eps" in given and {"std_ddof", "std_eps", "std_min"} >= given.keys()
    if not rewards or not (fixed is None or only_std):
        return (NO_CHANGE,)
    settings: list[dict[str, Value]] = []
    stds = []
    for ddof in (0, 1):
        for eps in (1e-8, 1e-6, 1e-4, 0.0):
            std: dict[str, Value] = {"std_ddof": ddof, "std_eps": eps}
            flags = std | {"std_min": 0.0}
            if any(base.flags.get(name, value) != value for name, value in flags.items()):
                continue
            other = {name: one for name, one in std.items() if given.get(name, one) != one}
            if only_std and other and other not in settings:
                settings.append(other)
            if own != "group-std" and fixed is None:
                rare = 0.0 if eps == 1e-8 else 1.0
                stds.append(change("advantage", "group-std", rare, **flags))
    stds += [Change({}, one, 1, _SETTING * len(one)) for one in settings]
    if fixed is not None:
        return NO_CHANGE, *stds
    for std in _BATCH_STDS if groups else ():  # of one group they are the group's
        if all(base.flags.get(name, value) == value for name, value in std.items()):
            stds.append(change("advantage", "batch-std", 1.0, **std))
    found = change("advantage", "group-mean"), change("advantage", "leave-one-out"), *stds
    return NO_CHANGE, *found, change("advantage", "raw", _RARE)


def pairs(base: Plan) -> list[Change]:
    """Other ratios, other surrogates, and both."""
    ratios = [change("ratio", "token"), change("ratio", "sequence")]
    ratios.append(change("ratio", "product", _RARE))
    surrogates = [change("surrogate", "unclipped"), change("surrogate", "clip")]
    surrogates += [change("surrogate", "reinforce", 1.0), change("surrogate", "cispo", 1.0)]
    ratios = [] if "ratio" in base.swapped else ratios
    surrogates = [] if "surrogate" in base.swapped else surrogates
    both = [one.and_(other) for one in ratios[:2] for other in surrogates]
    return [*ratios, *surrogates, *both]


def kls(base: Plan) -> list[Change]:
    """Other KL estimators; another weight of the one that a flag names."""
    fixed = base.swapped.get("kl")
    if fixed is not None:
        takes = STAGES["kl"].choices[fixed].hyperparameters
        return [_weighted(fixed)] if "kl_weight" in takes else []
    plain = [change("kl", name) for name in ("none", "k1", "k2", "k3")]
    plain.append(change("kl", "abs", 1.0))
    return plain + [_weighted(name) for name in ("k1", "k2", "k3")]


def _weighted(name: str) -> Change:
    return change("kl", name, 2.0, kl_weight="ratio")


def aggregates(base: Plan, lengths: Sequence[int]) -> list[Change]:
    """Other denominators: the neutral ones; a constant length, where none is known."""
    if "aggregate" in base.swapped:
        return _lengths(base.swapped["aggregate"], lengths, only_length=True)
    plain = ("response-mean", "token-mean", "token-sum", "prompt-mean", "sum")
    found = [change("aggregate", name) for name in plain]
    found.append(change("aggregate", "token-sum-norm"))
    return found + _lengths("token-sum-norm", lengths, only_length=False)


def _lengths(name: str, lengths: Sequence[int], *, only_length: bool) -> list[Change]:
    takes = STAGES["aggregate"].choices[name].hyperparameters
    if LENGTH not in takes:
        return []
    flags: list[dict[str, Value]] = [{LENGTH: length} for length in lengths]
    if only_length:
        return [Change({}, one, 0, 3.0) for one in flags]
    return [Change({"aggregate": name}, one, 1, _CHANGE + 3.0) for one in flags]
