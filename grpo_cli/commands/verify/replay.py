"""The stages of a bundle that span records: rewards, advantages, a step's loss and its metrics.

Each stage is replayed from the numbers that the trainer recorded of the stage before, so a
difference is found where it arises and not again in what follows from it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from grpo_cli.batch import F64, I64, Batch, Segments
from grpo_cli.bundle import Chain, Seal
from grpo_cli.commands.verify.answer import Replay, ReplayedStage, StageDifference, Verdict
from grpo_cli.commands.verify.compare import Tolerance
from grpo_cli.commands.verify.quantities import QUANTITIES
from grpo_cli.engine.micro_batches import rules_of
from grpo_cli.errors import GrpoError, InputError
from grpo_cli.hyperparameters import Value
from grpo_cli.objective import statistics
from grpo_cli.objective.inputs import Inputs
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.terms import POLICY
from grpo_cli.records import MicroBatch, Raw, Record
from grpo_cli.records.choose.batches import batch_of
from grpo_cli.records.parse.scores import is_number
from grpo_cli.records.places import got
from grpo_cli.records.unread import FUNCTION, STEP_FIELDS
from grpo_cli.variants.plan import Plan

STAGES = ("settings", "rewards", "advantages", "tokens", "loss", "step loss", "metrics")
"""In the order in which a trainer computes them."""

_AS_LOSS = ("aggregate", "policy", "objective", "loss")
_LOSSES = ("loss", "policy_loss")


class Part(NamedTuple):
    """What a record of a bundle adds to the stages that span records. R responses.

    Attributes:
        name, source, line: the record.
        seal: its ``bundle``.
        plan: what computes advantages of rewards, in this trainer.
        settings: its hyperparameters.
        framework: the name of what trained on it.
        rewards, advantages: [R]; None where they are not there, or differ between tokens.
        functions: reward function → [R] what it returned.
        weights: what each of the functions counts.
        groups: [R] the label of each response's group.
        lengths: [R] tokens.
        run, step: which optimiser step it is of; None where it does not say.
        place: its rank and micro-batch.
        losses: the micro-batch's own, by name.
        metrics, step_metrics: what the trainer logged of the micro-batch, and of its step.
        step_loss: the step's.
        signature: of the loss, as it is evaluated here; None where a flag asks for another.
    """

    name: str | int | float
    source: str
    line: int | None
    seal: Seal
    plan: Plan
    settings: Mapping[str, Value]
    framework: str
    rewards: F64 | None
    advantages: F64 | None
    functions: Mapping[str, F64]
    weights: F64 | None
    groups: Sequence[Hashable]
    lengths: I64
    run: Hashable
    step: Hashable
    place: MicroBatch
    losses: Mapping[str, float]
    metrics: Mapping[str, float]
    step_metrics: Mapping[str, float]
    step_loss: float | None
    signature: str | None


def part_of(raw: Raw, read: Record, seal: Seal, plan: Plan, signature: str | None) -> Part:
    """Takes from a record what the stages need.

    Raises:
        InputError: for a number that is none.
    """
    value, expected = raw.value, read.expected or {}
    said = value.get("framework")
    framework = said if isinstance(said, dict) else {}
    count = len(read.widths)
    functions = {
        key.removeprefix(FUNCTION): array
        for key in value
        if key.startswith(FUNCTION) and (array := _row(value[key], count)) is not None
    }
    weights = framework.get("reward_weights") or [1.0] * len(functions)
    labels = read.group_labels or range(count)
    step = next((value[name] for name in STEP_FIELDS if name in value), None)
    written = Segments(np.array(read.widths, dtype=np.int64))
    mask = np.ones(written.total, dtype=np.int64)
    if read.mask is not None:
        mask = np.frombuffer(read.mask, dtype=np.bool_).astype(np.int64)
    return Part(
        name=read.name,
        source=read.source,
        line=read.line,
        seal=seal,
        plan=plan,
        settings=read.hyperparameters,
        framework=str(framework.get("name", "")),
        rewards=_row(read.rewards, count),
        advantages=_by_response(read.advantages, written, mask),
        functions=functions,
        weights=_row(weights, len(functions)),
        groups=[labels[index] for index in read.groups or [0] * count],
        lengths=written.sum(mask),
        run=value.get("run_id"),
        step=step if isinstance(step, str | int | float) else None,
        place=batch_of(raw, raw, ()).micro_batch,
        losses=_numbers({name: expected.get(name) for name in _LOSSES}, "expected", read),
        metrics=_numbers(expected.get("metrics") or {}, "expected.metrics", read),
        step_metrics=_numbers(expected.get("step_metrics") or {}, "expected.step_metrics", read),
        step_loss=_numbers({"step_loss": expected.get("step_loss")}, "expected", read).get(
            "step_loss"
        ),
        signature=signature,
    )


def _row(values: Any, count: int) -> F64 | None:
    """[R] numbers, null as NaN; None for anything else."""
    try:
        found = np.array([np.nan if one is None else one for one in values], dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if found.shape == (count,) else None


def _by_response(advantages: Any, written: Segments, mask: I64) -> F64 | None:
    """[R] advantages; NaN for a response without tokens, None where its tokens' differ."""
    if not isinstance(advantages, bytes):
        return _row(advantages, written.count)
    tokens = np.frombuffer(advantages, dtype=np.float64)
    owner, kept = written.index[mask == 1], tokens[mask == 1]
    found = np.full(written.count, np.nan)
    found[owner[::-1]] = kept[::-1]  # each response's first
    return found if np.array_equal(found[owner], kept) else None


def _numbers(values: Any, path: str, read: Record) -> dict[str, float]:
    if not isinstance(values, Mapping):
        message = f"expected an object, got {got(values)}"
        raise InputError(message, path=read.prefix + path, source=read.source, line=read.line)
    for name, value in values.items():
        if value is not None and not is_number(value):
            where = f"{read.prefix}{path}.{name}"
            message = f"expected a number, got {got(value)}"
            raise InputError(message, path=where, source=read.source, line=read.line)
    return {name: float(value) for name, value in values.items() if value is not None}


def stage_of(stage: str, causes: Sequence[str], *, other_weights: bool = False) -> str:
    """The stage of a bundle that a difference within a record belongs to.

    Args:
        stage: the stage of the objective that makes what differs first.
        causes: the stages of its causes.
        other_weights: whether each response's gradient is a multiple of grpo's.
    """
    known = causes[0] if causes else stage
    if known in _AS_LOSS or (not causes and stage == "gradient" and other_weights):
        return "loss"
    return {"advantage": "advantages", "metrics": "metrics"}.get(known, "tokens")


# ---- comparing ----------------------------------------------------------------------------------


@dataclass
class Tally:
    """What became of one stage.

    Attributes:
        compared, differing: numbers.
        largest: by how much two of them differ at most.
        first: where two first differ.
        skipped: why some could not be replayed.
    """

    compared: int = 0
    differing: int = 0
    largest: float = 0.0
    first: StageDifference | None = None
    skipped: dict[str, None] = field(default_factory=dict)

    def compare(
        self,
        part: Part,
        key: str,
        pair: tuple[F64, F64],
        within: float,
        scale: float | None = None,
        *,
        by_response: bool = False,
    ) -> None:
        """Adds numbers of one record: the trainer's, and grpo's."""
        yours, ours = pair
        known = np.isfinite(ours)
        size = np.maximum(np.abs(yours), np.abs(ours))
        largest = float(np.nanmax(np.abs(ours), initial=0.0)) if scale is None else scale
        with np.errstate(invalid="ignore"):
            off = np.abs(yours - ours)
            differs = known & ~(off <= within * (size + 0.1 * largest))
        self.compared += int(known.sum())
        if not differs.any():
            return
        self.differing += int(differs.sum())
        self.largest = max(self.largest, float(np.nanmax(off[differs], initial=0.0)))
        at = int(np.argmax(differs))
        if self.first is None:
            place = at if by_response else None
            numbers = float(yours[at]), float(ours[at])
            self.first = StageDifference(
                part.name, part.source, part.line, key, place, None, *numbers
            )

    def answer(self, stage: str) -> ReplayedStage:
        """The stage's answer."""
        return ReplayedStage(
            stage=stage,
            compared=self.compared,
            differing=self.differing,
            largest=self.largest,
            first=self.first,
            skipped=tuple(self.skipped),
        )


def replay(parts: Sequence[Part], tallies: Mapping[str, Tally], tolerance: Tolerance) -> None:
    """Replays the stages that span records, each from what was recorded of the one before."""
    for part in parts:
        _settings(part, tallies["settings"])
        _rewards(part, tallies["rewards"], tolerance.rtol)
    for cohort in _cohorts(parts, tallies["advantages"]):
        _advantages(cohort, tallies["advantages"], tolerance.rtol)
    for step, seen in _steps(parts):
        _step(step, seen, tallies, tolerance)


def _settings(part: Part, tally: Tally) -> None:
    """Compares the signature with the one that the bundle was made with; versions may differ."""
    said = part.seal.get("signature")
    if part.signature is None or not isinstance(said, str):
        return
    tally.compared += 1
    yours, ours = (text.rpartition("|v:")[0].split("|") for text in (said, part.signature))
    if yours == ours:
        return
    tally.differing += 1
    if tally.first is None:
        pairs = [pair for pair in zip(yours, ours, strict=False) if pair[0] != pair[1]]
        words = pairs[0] if pairs else (said, part.signature)
        tally.first = StageDifference(
            part.name, part.source, part.line, "signature", None, None, *words
        )


def _rewards(part: Part, tally: Tally, rtol: float) -> None:
    """Raw rewards → their weighted sum; a function that gave none counts nothing."""
    if part.rewards is None or not part.functions:
        tally.skipped["no rewards/NAME: the raw rewards were not recorded"] = None
        return
    if part.weights is None:
        tally.skipped["framework.reward_weights has not one number per reward function"] = None
        return
    each = np.stack([*part.functions.values()], axis=1)
    found = np.nansum(each * part.weights, axis=1)
    tally.compare(part, "rewards", (part.rewards, found), rtol, by_response=True)


# ---- advantages ---------------------------------------------------------------------------------


@dataclass
class _Cohort:
    """The responses whose advantages were computed together.

    Attributes:
        parts: the records with some of them.
        rows: for each record, [R] the places of its responses in the cohort.
    """

    parts: list[Part] = field(default_factory=list)
    rows: list[list[Hashable]] = field(default_factory=list)


def _cohorts(parts: Iterable[Part], tally: Tally) -> Iterator[_Cohort]:
    """By generation, where records say it; else by step; else each record is one."""
    found: dict[Hashable, _Cohort] = defaultdict(_Cohort)
    for at, part in enumerate(parts):
        if part.rewards is None or part.advantages is None:
            what = "rewards" if part.rewards is None else "one advantage per response"
            tally.skipped[f"no {what} in a record"] = None
            continue
        generation, rows = part.seal.get("generation"), part.seal.get("rows")
        known = is_number(generation) and isinstance(rows, list) and len(rows) == len(part.groups)
        if not known:
            rows = [(at, row) for row in range(len(part.groups))]
        kind = "step" if part.step is not None else "record"
        own = part.step if part.step is not None else at
        key = ("generation", generation) if known else (kind, own)
        cohort = found[part.run, key]
        cohort.parts.append(part)
        cohort.rows.append(rows if known and isinstance(rows, list) else [*(rows or [])])
    for cohort in found.values():
        size = cohort.parts[0].seal.get("generation_size")
        there = len({*map(repr, (row for rows in cohort.rows for row in rows))})
        if is_number(size) and there < size:  # type: ignore[operator]
            text = f"a generation has {there} of its {size} responses here, and needs all of them"
            tally.skipped[text] = None
        else:
            yield cohort


def _advantages(cohort: _Cohort, tally: Tally, rtol: float) -> None:
    """Shaped rewards → advantages. A response that several records have is in its group once."""
    pairs = [(part, at) for part in cohort.parts for at in range(len(part.groups))]
    rows = [repr(row) for each in cohort.rows for row in each]
    unique = dict(reversed([*zip(rows, pairs, strict=True)]))
    first = cohort.parts[0]
    try:
        found = _evaluated(first, [*unique.values()])
    except GrpoError as error:
        tally.skipped[f"{first.plan.variant}: {error}"] = None
        return
    if found is None:
        why = "the settings do not say how rewards become advantages, or a KL is in them"
        tally.skipped[why] = None
        return
    by_row = dict(zip(unique, found.tolist(), strict=True))
    scale = float(np.nanmax(np.abs(found), initial=0.0))
    for part, each in zip(cohort.parts, cohort.rows, strict=True):
        assert part.advantages is not None
        ours = np.array([by_row[repr(row)] for row in each])
        ours[np.isnan(part.advantages) & (part.lengths == 0)] = np.nan
        pair = part.advantages, ours
        tally.compare(part, "advantages", pair, rtol, scale, by_response=True)


def _evaluated(first: Part, unique: Sequence[tuple[Part, int]]) -> F64 | None:
    """[R] what the plan's advantage stage gives for a cohort; None where it cannot say."""
    settings = dict(first.settings)
    rewards = np.array([part.rewards[at] for part, at in unique if part.rewards is not None])
    plan = first.plan
    objective = plan.objective(settings, advantages_given=False, reference_given=True)
    if "reward_columns" in objective.advantage.choice.columns and first.functions:
        names = [*first.functions]
        rewards = np.array([[part.functions[name][at] for name in names] for part, at in unique])
        if first.weights is not None:
            settings["reward_weights"] = ",".join(map(repr, first.weights.tolist()))
            objective = plan.objective(settings, advantages_given=False, reference_given=True)
    if objective.advantage.choice.given or (
        objective.kl_in_reward and objective.kl.values.get("beta")
    ):
        return None
    labels = {label: number for number, label in enumerate(dict.fromkeys(_labels(unique)))}
    batch = Batch(
        responses=Segments(np.array([part.lengths[at] for part, at in unique], dtype=np.int64)),
        records=Segments(np.array([len(unique)], dtype=np.int64)),
        groups=np.array([labels[label] for label in _labels(unique)], dtype=np.int64),
        group_count=len(labels),
        rewards=rewards,
    )
    return _advantage_stage(batch, objective)


def _labels(unique: Sequence[tuple[Part, int]]) -> list[str]:
    return [repr(part.groups[at]) for part, at in unique]


def _advantage_stage(batch: Batch, objective: Objective) -> F64 | None:
    inputs = Inputs(batch)
    inputs["moments"] = statistics.moments(batch, objective, None)
    with np.errstate(all="ignore"):
        found = inputs.call(objective.advantage, "advantage")
    return found if isinstance(found, np.ndarray) else None


# ---- steps --------------------------------------------------------------------------------------


def _steps(parts: Iterable[Part]) -> Iterator[tuple[list[Part], set[Hashable]]]:
    """The records of each step, in the order of their micro-batches, and earlier generations."""
    found: dict[Hashable, list[Part]] = defaultdict(list)
    for part in parts:
        if part.step is not None:
            found[part.run, part.step].append(part)
    seen: set[Hashable] = set()
    for step in found.values():
        yield step, set(seen)
        seen |= {(part.run, part.seal.get("generation")) for part in step}


def _step(
    step: Sequence[Part], seen: set[Hashable], tallies: Mapping[str, Tally], tolerance: Tolerance
) -> None:
    last = next((part for part in reversed(step) if part.step_loss is not None), None)
    logged = next((part for part in reversed(step) if part.step_metrics), None)
    if last is None and logged is None:
        tallies["step loss"].skipped["a step's loss was not recorded"] = None
        return
    if (why := _incomplete(step)) is not None:
        tallies["step loss"].skipped[why] = None
        return
    if last is not None:
        found = _step_loss(step)
        if isinstance(found, str):
            tallies["step loss"].skipped[found] = None
        else:
            assert last.step_loss is not None
            pair = np.array([last.step_loss]), np.array([found[0]])
            tallies["step loss"].compare(last, "step_loss", pair, tolerance.rtol, found[1])
    if logged is not None:
        ours = _of_generation(step, seen) | _of_micro_batches(step)
        for name in logged.step_metrics.keys() & ours.keys():
            pair = np.array([logged.step_metrics[name]]), np.array([ours[name]])
            scale = max(abs(value) for value in (*_values(step, name), ours[name]))
            key = f"step_metrics.{name}"
            tallies["metrics"].compare(logged, key, pair, tolerance.metrics, scale)


def _incomplete(step: Sequence[Part]) -> str | None:
    """Why the records are not all of a step's, or None."""
    said = [part.seal.get("micro_batches") for part in step]
    wanted = next((each for each in said if each is not None), None)
    ranks: dict[Hashable, set[Hashable]] = defaultdict(set)
    for part in step:
        ranks[part.place.rank].add(part.place.number)
    for numbers in ranks.values():
        if is_number(wanted) and len(numbers) < wanted:  # type: ignore[operator]
            return f"step {step[0].step!r} has {len(numbers)} of its {wanted} micro-batches here"
    processes = step[0].settings.get("num_processes")
    if isinstance(processes, int) and processes > len(ranks):
        return f"step {step[0].step!r} has {len(ranks)} of its {processes} ranks here"
    return None


def _step_loss(step: Sequence[Part]) -> tuple[float, float] | str:
    """The step's loss of those of its micro-batches, and their size; why not."""
    name = next((name for name in _LOSSES if all(name in part.losses for part in step)), None)
    if name is None:
        return "the losses of a step's micro-batches were not recorded"
    first = step[0]
    try:
        objective = first.plan.objective(first.settings, advantages_given=True)
    except GrpoError as error:
        return str(error)
    rule = dict(rules_of(objective))[POLICY]
    losses = np.array([part.losses[name] for part in step])
    ranks = len({part.place.rank for part in step})
    if len(step) == 1 or rule == "sum":
        found = losses.sum() / ranks
    elif rule == "mean":
        found = losses.mean()
    elif rule in ("by tokens", "by responses"):
        of = "tokens" if rule == "by tokens" else "responses"
        sizes = [part.lengths.sum() if of == "tokens" else len(part.lengths) for part in step]
        found = losses @ np.array(sizes, dtype=np.float64) / max(sum(sizes), 1)
    else:
        return f"how {objective.name} adds micro-batches up is not known from their losses alone"
    return float(found), float(np.abs(losses).sum())


def _values(step: Sequence[Part], name: str) -> list[float]:
    return [part.metrics[name] for part in step if name in part.metrics]


def _of_micro_batches(step: Sequence[Part]) -> dict[str, float]:
    """What a trainer logs of a step that each micro-batch has: the mean of what is no NaN.

    verl takes the largest, or smallest, of what is named so.
    """
    found = {}
    for name in set.intersection(*({*part.metrics} for part in step)):
        values = np.array(_values(step, name))
        if step[0].framework == "verl" and ("max" in name or "min" in name):
            found[name] = float(values.max() if "max" in name else values.min())
        elif not np.isnan(values).all():
            found[name] = float(np.nanmean(values))
    return found


def _of_generation(step: Sequence[Part], seen: set[Hashable]) -> dict[str, float]:
    """TRL's metrics of rewards, for the generation that the step began."""
    new = {part.seal.get("generation"): part for part in step}
    fresh = [key for key in new if key is not None and (step[0].run, key) not in seen]
    if step[0].framework != "trl" or len(fresh) != 1:
        return {}
    parts = [part for part in step if part.seal.get("generation") == fresh[0]]
    size = parts[0].seal.get("generation_size")
    if sum(len(part.groups) for part in parts) != size:
        return {}
    columns = {f"{FUNCTION}{name}": name for name in parts[0].functions}
    found = {}
    for metric, name in columns.items():
        column = np.concatenate([part.functions[name] for part in parts])
        found[f"{metric}/mean"], found[f"{metric}/std"] = _moments(column)
    shaped = [part.rewards for part in parts if part.rewards is not None]
    if len(shaped) == len(parts):
        found["reward"], found["reward_std"] = _moments(np.concatenate(shaped))
    return found


def _moments(values: F64) -> tuple[float, float]:
    known = values[~np.isnan(values)]
    return float(known.mean()), float(known.std(ddof=1)) if len(known) > 1 else 0.0


# ---- the stages of one record, and the answer ----------------------------------------------------


def add_verdict(
    part: Part, verdict: Verdict, stage: str | None, tallies: Mapping[str, Tally]
) -> None:
    """Adds what became of a record's own stages.

    Args:
        part: the record.
        verdict: what became of it.
        stage: the stage at which it differs; None where it agrees.
        tallies: of all stages. What follows from tokens that differ is no difference of its own.
    """
    of = {STAGE_OF_KEY.get(key, "metrics") for key in verdict.compared}
    for name in of - {"metrics"}:
        tallies[name].compared += 1
    metrics = sum(key not in STAGE_OF_KEY for key in verdict.compared)
    tallies["metrics"].compared += metrics
    place = part.name, part.source, part.line
    if stage is not None and verdict.first is not None:
        found, tally = verdict.first, tallies[stage]
        tally.compared += stage not in of
        tally.differing += found.differing if stage == "metrics" else 1
        tally.largest = max(tally.largest, abs(found.expected - found.got))
        if tally.first is None:
            numbers = found.expected, found.got
            where = found.response, found.token
            tally.first = StageDifference(*place, found.key, *where, *numbers)
    for metric in verdict.metrics if stage != "tokens" else ():
        tally = tallies["metrics"]
        tally.differing += 1
        tally.largest = max(tally.largest, abs(metric.expected - metric.got))
        numbers = metric.expected, metric.got
        tally.first = tally.first or StageDifference(*place, metric.key, None, None, *numbers)


STAGE_OF_KEY = {
    key: stage_of(quantity.stage, ()) for quantity in QUANTITIES for key in quantity.keys
}
"""Key of ``expected`` → the stage of a bundle."""


class Bundle:
    """The records of a bundle, as they come: checked to follow each other, and then replayed.

    Args:
        selects: whether only some records are read, so that not each follows the one before.
    """

    def __init__(self, *, selects: bool) -> None:
        self._selects = selects
        self._chains: dict[str, Chain] = {}
        self._plain: dict[str, Verdict] = {}
        self.parts: list[Part] = []
        self.tallies = {stage: Tally() for stage in STAGES}

    def add(self, part: Part) -> None:
        """Adds a record.

        Raises:
            InputError: where it does not follow the one before.
        """
        self.parts.append(part)
        chain = self._chains.setdefault(part.source, Chain())
        why = chain.add(part.seal)
        if why is not None and not self._selects:
            raise InputError(why, path="bundle", source=part.source, line=part.line)

    def add_plain(self, verdict: Verdict) -> None:
        """Adds a record that is of no bundle."""
        self._plain.setdefault(verdict.source, verdict)

    def result(self, tolerance: Tolerance) -> Replay:
        """Replays all stages.

        Raises:
            InputError: where the last records are missing, or a record of a file has no bundle.
        """
        for source, plain in self._plain.items():
            if source in self._chains and not self._selects:
                none = "the record has none, but others of the file have: it may have been changed"
                raise InputError(none, path="bundle", source=source, line=plain.line)
        for source, chain in self._chains.items():
            if (why := chain.end()) is not None and not self._selects:
                raise InputError(why, path="bundle", source=source)
        replay(self.parts, self.tallies, tolerance)
        parts = self.parts
        stages = [self.tallies[stage].answer(stage) for stage in STAGES]
        lasts = [] if self._selects else [chain.last for chain in self._chains.values()]
        hashes = [str(last["sha256"]) for last in lasts if last]
        return Replay(
            sha256=hashes,
            records=len(parts),
            steps=len({(part.run, part.step) for part in parts if part.step is not None}),
            responses=sum(len(part.groups) for part in parts),
            first_stage=next((each.stage for each in stages if each.differing), None),
            stages=stages,
        )
