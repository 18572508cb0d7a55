"""The stages of a bundle that span records: rewards, advantages, a step's loss and its metrics.

Each stage is replayed from the numbers that the trainer recorded of the stage before, so a
difference is found where it arises and not again in what follows from it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from grpo_cli.batch import F64, I64, Batch, Segments
from grpo_cli.bundle import Seal
from grpo_cli.commands.verify.expected import LOSSES, METRIC, first_tokens, read_numbers
from grpo_cli.engine.batches import rules_of
from grpo_cli.engine.chunk import Chunk
from grpo_cli.errors import GrpoError, InputError
from grpo_cli.hyperparameters import Value
from grpo_cli.objective import statistics
from grpo_cli.objective.inputs import Inputs
from grpo_cli.objective.terms import POLICY
from grpo_cli.records import MicroBatch, Raw
from grpo_cli.records.choose.grouping import batch_of
from grpo_cli.records.parse.columns import is_number
from grpo_cli.records.parse.scores import is_id
from grpo_cli.records.places import got
from grpo_cli.records.unread import FUNCTION, STEP_FIELDS
from grpo_cli.variants.plan import Plan


class Part(NamedTuple):
    """What a record of a bundle adds to the stages that span records. R responses.

    Attributes:
        name, source, line: the record.
        seal: its ``bundle``.
        plan: computes advantages from rewards, as this trainer does.
        settings: its hyperparameters.
        framework: the name of what trained on it.
        rewards, advantages: [R]; None where they are missing, or differ between tokens.
        functions: ``rewards/NAME`` → [R] what the reward function returned.
        weights: what each of the functions counts; None where there is not one for each.
        groups: [R] the label of each response's group.
        lengths: [R] tokens.
        trajectories: [R] the number of each response's trajectory; None where each is one.
        run, step: which optimiser step it is of; None where it does not say.
        place: its rank and micro-batch.
        numbers: what the trainer computed of it and of its step, by the path in ``expected``.
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
    trajectories: Sequence[int] | None
    run: Hashable
    step: Hashable
    place: MicroBatch
    numbers: Mapping[str, float]
    signature: str | None

    def metrics(self, of: str) -> dict[str, float]:
        """The metrics under ``metrics`` or ``step_metrics``, by name."""
        names = ((path.partition("."), number) for path, number in self.numbers.items())
        return {name: number for (first, _, name), number in names if first == of and name}


_GENERATION = "bundle.generation"
_TURNS = frozenset({"turns", "turn_order", "turn_scores", "turn_rewards", "states"})
"""What an advantage reads that no part has."""


def part_of(raw: Raw, chunk: Chunk, seal: Seal, plan: Plan, signature: str | None) -> Part:
    """Takes from a record, alone in its chunk, what the stages need.

    Raises:
        InputError: for a number that is none, or an id that is neither text nor a number.
    """
    (read,), batch, value = chunk.records, chunk.batch, raw.value
    for path, given in (("run_id", value.get("run_id")), (_GENERATION, seal.get("generation"))):
        if not (given is None or is_id(given)):
            raise InputError(f"expected text or a number, got {got(given)}", path=path)
    framework = value.get("framework")
    framework = framework if isinstance(framework, dict) else {}
    count = batch.responses.count
    columns = {key: _row(value[key], count) for key in value if key.startswith(FUNCTION)}
    functions = {key: column for key, column in columns.items() if column is not None}
    labels = read.group_labels or range(count)
    step = next((value[name] for name in STEP_FIELDS if name in value), None)
    return Part(
        name=read.name,
        source=read.source,
        line=read.line,
        seal=seal,
        plan=plan,
        settings=read.hyperparameters,
        framework=str(framework.get("name", "")),
        rewards=_row(read.rewards, count),
        advantages=_by_response(batch),
        functions=functions,
        weights=_row(framework.get("reward_weights") or [1.0] * len(functions), len(functions)),
        groups=[labels[index] for index in read.groups or [0] * count],
        lengths=batch.responses.lengths,
        trajectories=None if batch.trajectories is None else batch.trajectories.tolist(),
        run=value.get("run_id"),
        step=step if isinstance(step, str | int | float) else None,
        place=batch_of(raw, raw, ()).micro_batch,
        numbers=read_numbers(read),
        signature=signature,
    )


def _row(values: object, count: int) -> F64 | None:
    """[R] numbers, null as NaN; None for anything else."""
    try:
        found = np.array(values, dtype=np.float64)  # null becomes NaN
    except (TypeError, ValueError, OverflowError):
        return None
    return found if found.shape == (count,) else None


def _by_response(batch: Batch) -> F64 | None:
    """[R] advantages; NaN for a response without tokens, None where its tokens' differ."""
    tokens, responses = batch.token_advantages, batch.responses
    if tokens is None:
        return batch.advantages
    found = first_tokens(tokens, responses)
    return found if np.array_equal(responses.spread(found), tokens) else None


class Pair(NamedTuple):
    """Numbers of a record as its trainer and grpo have them.

    Attributes:
        part: the record.
        key: what they are called.
        yours, grpo: [n] the numbers.
        scale: how large the numbers are that they are made of.
    """

    part: Part
    key: str
    yours: F64
    grpo: F64
    scale: float


Found = tuple[str, Pair | str]
"""A stage, and numbers of it or why some could not be replayed."""


def replayed(parts: Sequence[Part]) -> Iterator[Found]:
    """Yields what the trainer and grpo have of each stage, replayed from the stage before."""
    for part in parts:
        yield "rewards", _rewards(part)
    for found in _advantages(parts):
        yield "advantages", found
    steps = defaultdict(list)
    for part in parts:
        if part.step is not None:
            steps[part.run, part.step].append(part)
    seen: set[Hashable] = set()
    for step in steps.values():
        generations = {(part.run, part.seal.get("generation")) for part in step}
        yield from _step(step, [one for _, one in generations - seen if one is not None])
        seen |= generations


# ---- rewards and advantages ---------------------------------------------------------------------


def _rewards(part: Part) -> Pair | str:
    """Raw rewards → their weighted sum; a function that gave none counts nothing."""
    if part.rewards is None or not part.functions:
        return "no rewards/NAME: the raw rewards were not recorded"
    if part.weights is None:
        return "framework.reward_weights does not have one number per reward function"
    found = np.nansum(np.stack([*part.functions.values()], axis=1) * part.weights, axis=1)
    return Pair(part, "rewards", part.rewards, found, _size(found))


def _size(values: F64) -> float:
    return float(np.nanmax(np.abs(values), initial=0.0))


Row = tuple[str, Part, int]
"""A response: its place in the batch of responses it was generated in, its record and place there.

A response that several records have is in its group once.
"""


def _advantages(parts: Sequence[Part]) -> Iterator[Pair | str]:
    """Shaped rewards → advantages: by generation, where records say it; else by step or record."""
    batches: dict[Hashable, list[Row]] = defaultdict(list)
    for number, part in enumerate(parts):
        if part.rewards is None or part.advantages is None:
            what = "rewards" if part.rewards is None else "one advantage per response"
            yield f"no {what} in a record"
            continue
        generation, rows = part.seal.get("generation"), part.seal.get("rows")
        key = ("record", number) if part.step is None else ("step", part.step)
        if is_number(generation) and isinstance(rows, list) and len(rows) == len(part.groups):
            key = "generation", generation
        else:
            rows = [(number, at) for at in range(len(part.groups))]
        batches[part.run, key] += [(repr(row), part, at) for at, row in enumerate(rows)]
    for batch in batches.values():
        unique = {row[0]: row for row in reversed(batch)}
        size = batch[0][1].seal.get("generation_size")
        if is_number(size) and len(unique) < size:  # type: ignore[operator]
            there = len(unique)
            yield f"the input has only {there} of the {size} responses of a generation"
            continue
        found = _estimated([*unique.values()])
        if isinstance(found, str):
            yield found
            continue
        by_row = dict(zip(unique, found.tolist(), strict=True))
        for _, same in groupby(batch, lambda row: id(row[1])):
            rows = [*same]
            part = rows[0][1]
            assert part.advantages is not None
            ours = np.array([by_row[name] for name, _, _ in rows])
            ours[np.isnan(part.advantages) & (part.lengths == 0)] = np.nan
            yield Pair(part, "advantages", part.advantages, ours, _size(found))


def _estimated(rows: Sequence[Row]) -> F64 | str:
    """[R] what the plan's advantage stage gives for responses; why it cannot say."""
    first = rows[0][1]
    plan, settings = first.plan, dict(first.settings)
    rewards = [part.rewards[at] for _, part, at in rows if part.rewards is not None]
    try:
        objective = plan.objective(settings, advantages_given=False, reference_given=True)
        names = [*first.functions]
        common = names and all({*names} <= {*part.functions} for _, part, _ in rows)
        if common and "reward_columns" in objective.advantage.choice.columns:
            rewards = [[part.functions[name][at] for name in names] for _, part, at in rows]
            if first.weights is not None:
                settings["reward_weights"] = ",".join(map(repr, first.weights.tolist()))
                objective = plan.objective(settings, advantages_given=False, reference_given=True)
        if not _TURNS.isdisjoint(objective.advantage.choice.columns):
            return f"the advantages of {plan.variant} are of turns, which are not replayed"
        in_reward = objective.kl_in_reward and objective.kl.values.get("beta")
        if objective.advantage.choice.given or in_reward:
            return "the settings do not name the advantage, or the reward contains a KL"
        trajectories, count = _numbered(
            (id(part), at if part.trajectories is None else part.trajectories[at])
            for _, part, at in rows
        )
        groups, group_count = _numbered(repr(part.groups[at]) for _, part, at in rows)
        batch = Batch(
            responses=Segments(np.array([part.lengths[at] for _, part, at in rows])),
            records=Segments(np.array([len(rows)])),
            groups=groups,
            group_count=group_count,
            rewards=np.array(rewards),
            trajectories=trajectories,
            trajectory_count=count,
        )
        inputs = Inputs(batch)
        inputs["moments"] = statistics.moments(batch, objective, None)
        with np.errstate(all="ignore"):
            found: F64 = inputs.call(objective.advantage, "advantage")
    except GrpoError as error:
        return f"{plan.variant}: {error}"
    return found


def _numbered(labels: Iterable[Hashable]) -> tuple[I64, int]:
    """[n] each label's number, in the order in which they first appear, and how many there are."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(label, len(numbers)) for label in labels]), len(numbers)


# ---- steps --------------------------------------------------------------------------------------


def _step(step: Sequence[Part], new: Sequence[Hashable]) -> Iterator[Found]:
    """The loss and the metrics of a step that began the ``new`` generations."""
    last = next((part for part in reversed(step) if "step_loss" in part.numbers), None)
    logged = next((part for part in reversed(step) if part.metrics("step_metrics")), None)
    if last is None and logged is None:
        yield "step loss", "a step's loss was not recorded"
        return
    if (why := _incomplete(step)) is not None:
        yield "step loss", why
        return
    if last is not None:
        loss = _step_loss(step)
        yield "step loss", loss if isinstance(loss, str) else _one(last, "step_loss", *loss)
    if logged is not None:
        found = _of_generation(step, new) | _of_micro_batches(step)
        for name in logged.metrics("step_metrics"):
            if name in found:
                yield METRIC, _one(logged, f"step_metrics.{name}", *found[name])


def _one(part: Part, key: str, value: float, scale: float) -> Pair:
    return Pair(part, key, np.array([part.numbers[key]]), np.array([value]), scale)


def _incomplete(step: Sequence[Part]) -> str | None:
    """Why the records are not all of a step's, or None."""
    counts = (part.seal.get("micro_batches") for part in step)
    wanted = next((count for count in counts if count is not None), None)
    ranks: dict[Hashable, set[Hashable]] = defaultdict(set)
    for part in step:
        ranks[part.place.rank].add(part.place.number)
    name, least = step[0].step, min(map(len, ranks.values()))
    if is_number(wanted) and least < wanted:  # type: ignore[operator]
        return f"the input has only {least} of the {wanted} micro-batches of step {name!r}"
    processes = step[0].settings.get("num_processes")
    if isinstance(processes, int) and processes > len(ranks):
        return f"the input has only {len(ranks)} of the {processes} ranks of step {name!r}"
    return None


def _step_loss(step: Sequence[Part]) -> tuple[float, float] | str:
    """The step's loss from those of its micro-batches, and their size; why not."""
    name = next((name for name in LOSSES if all(name in part.numbers for part in step)), None)
    if name is None:
        return "the losses of a step's micro-batches were not recorded"
    first = step[0]
    try:
        objective = first.plan.objective(first.settings, advantages_given=True)
    except GrpoError as error:
        return str(error)
    rule = dict(rules_of(objective))[POLICY]
    losses = np.array([part.numbers[name] for part in step])
    if len(step) == 1 or rule == "sum":
        found = losses.sum() / len({part.place.rank for part in step})
    elif rule == "mean":
        found = losses.mean()
    elif rule in ("by tokens", "by responses"):
        tokens = rule == "by tokens"
        sizes = [part.lengths.sum() if tokens else len(part.lengths) for part in step]
        found = losses @ np.array(sizes, dtype=np.float64) / max(sum(sizes), 1)
    else:
        return f"for {objective.name}, losses of micro-batches do not determine the step's loss"
    return float(found), float(np.abs(losses).sum())


def _of_micro_batches(step: Sequence[Part]) -> dict[str, tuple[float, float]]:
    """What a trainer logs of a step that each micro-batch has, and the size of those.

    It is the mean of what is no NaN; verl takes the largest, or smallest, of what is named so.
    """
    found = {}
    each = [part.metrics("metrics") for part in step]
    for name in set.intersection(*map(set, each)):
        values = np.array([metrics[name] for metrics in each])
        if step[0].framework == "verl" and ("max" in name or "min" in name):
            found[name] = float(values.max() if "max" in name else values.min()), _size(values)
        elif not np.isnan(values).all():
            found[name] = float(np.nanmean(values)), _size(values)
    return found


def _of_generation(step: Sequence[Part], new: Sequence[Hashable]) -> dict[str, tuple[float, float]]:
    """TRL's metrics of rewards, and their sizes, for the generation that the step began."""
    parts = [part for part in step if part.seal.get("generation") in new]
    size = sum(len(part.groups) for part in parts)
    if step[0].framework != "trl" or len(new) != 1 or size != parts[0].seal.get("generation_size"):
        return {}
    found = {}
    for name in parts[0].functions:
        columns = [part.functions[name] for part in parts if name in part.functions]
        if len(columns) == len(parts):
            found[f"{name}/mean"], found[f"{name}/std"] = _moments(columns)
    shaped = [part.rewards for part in parts if part.rewards is not None]
    if len(shaped) == len(parts):
        found["reward"], found["reward_std"] = _moments(shaped)
    return {name: (value, abs(value)) for name, value in found.items()}


def _moments(columns: Sequence[F64]) -> tuple[float, float]:
    values = np.concatenate(columns)
    known = values[~np.isnan(values)]
    return float(known.mean()), float(known.std(ddof=1)) if len(known) > 1 else 0.0
