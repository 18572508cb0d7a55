"""A bundle's replay: each stage from the recorded numbers of the stage before; which differs first.

So a difference is found where it arises, and not again in what follows from it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from grpo_cli.batch import F64
from grpo_cli.bundle import Seal
from grpo_cli.commands.verify.answer import Replay, ReplayedStage, StageDifference, Verdict
from grpo_cli.commands.verify.compare import OF_SUMS, Column, Tolerance
from grpo_cli.commands.verify.expected import (
    LOSSES,
    METRIC,
    QUANTITIES,
    Expectation,
    first_tokens,
    read_numbers,
)
from grpo_cli.engine.batches import rules_of
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.errors import GrpoError, InputError
from grpo_cli.objective.accumulation import accumulated
from grpo_cli.objective.terms import POLICY
from grpo_cli.records import MicroBatch, Raw, Record
from grpo_cli.records.choose.grouping import batch_of
from grpo_cli.records.parse.assemble import join
from grpo_cli.records.parse.columns import is_number
from grpo_cli.records.unread import FUNCTION
from grpo_cli.variants.plan import Plan

STAGES = ("rewards", "advantages", "tokens", "loss", "step loss", METRIC)
"""In the order in which a trainer computes them."""


class Part(NamedTuple):
    """A record of a bundle. R responses.

    Attributes:
        record: its numbers.
        seal: its ``bundle``.
        plan: computes advantages from rewards, as its trainer does.
        run: its ``run_id``, as text.
        framework: what it says of its framework.
        functions: ``rewards/NAME`` → [R] what the reward function returned.
        place: its rank and micro-batch.
        numbers: what the trainer computed of it and of its step, by the path in ``expected``.
    """

    record: Record
    seal: Seal
    plan: Plan
    run: str
    framework: Mapping[str, Any]
    functions: Mapping[str, F64]
    place: MicroBatch
    numbers: Mapping[str, float]

    @classmethod
    def of(cls, raw: Raw, record: Record, seal: Seal, plan: Plan) -> Part:
        """Takes from a record what the replay needs.

        Raises:
            InputError: for a number in ``expected`` that is none.
        """
        value, framework = raw.value, raw.value.get("framework")
        count = len(record.widths)
        columns = {key: _row(value[key], count) for key in value if key.startswith(FUNCTION)}
        return cls(
            record=record,
            seal=seal,
            plan=plan,
            run=repr(value.get("run_id")),
            framework=framework if isinstance(framework, dict) else {},
            functions={key: one for key, one in columns.items() if one is not None},
            place=batch_of(raw, raw, ()).micro_batch,
            numbers=read_numbers(record),
        )

    @property
    def generation(self) -> tuple[str, str]:
        """Which batch of responses it is of."""
        return self.run, repr(self.seal.get("generation"))

    @property
    def rewards(self) -> F64 | None:
        """[R] the shaped rewards."""
        return _row(self.record.rewards, len(self.record.widths))

    @property
    def advantages(self) -> F64 | None:
        """[R] advantages; NaN for a response without tokens, None where its tokens' differ."""
        if not isinstance(self.record.advantages, bytes):
            return _row(self.record.advantages, len(self.record.widths))
        batch = Chunk.of([self.record]).batch
        tokens, responses = batch.token_advantages, batch.responses
        assert tokens is not None
        found = first_tokens(tokens, responses)
        return found if np.array_equal(responses.spread(found), tokens) else None

    @property
    def weights(self) -> F64 | None:
        """What each function counts; None where there is not one number for each."""
        given = self.framework.get("reward_weights") or [1.0] * len(self.functions)
        return _row(given, len(self.functions))

    @property
    def groups(self) -> list[str]:
        """[R] the label of each response's group."""
        labels, numbers = self.record.group_labels, self.record.groups
        numbers = numbers or [0] * len(self.record.widths)
        return [repr(number if labels is None else labels[number]) for number in numbers]

    def metrics(self, of: str) -> dict[str, float]:
        """The metrics under ``metrics`` or ``step_metrics``, by name."""
        names = ((path.partition("."), number) for path, number in self.numbers.items())
        return {name: number for (first, _, name), number in names if first == of and name}


def _row(values: object, count: int) -> F64 | None:
    """So many numbers, null as NaN; None for anything else."""
    try:
        found = np.array(values, dtype=np.float64)  # null becomes NaN
    except (TypeError, ValueError, OverflowError):
        return None
    return found if found.shape == (count,) else None


# ---- what is compared ----------------------------------------------------------------------------


def stage_of(stage: str, causes: Sequence[str] = (), *, weighted: bool = False) -> str:
    """The stage of a bundle that a difference within a record belongs to.

    Args:
        stage: the stage of the objective that makes what differs first.
        causes: the stages of its causes.
        weighted: whether each response's gradient is a multiple of grpo's.
    """
    known = causes[0] if causes else stage
    if known in ("aggregate", *OF_SUMS) or (not causes and stage == "gradient" and weighted):
        return "loss"
    return {"advantage": "advantages", METRIC: METRIC}.get(known, "tokens")


_STAGE = {key: stage_of(quantity.stage) for quantity in QUANTITIES for key in quantity.keys}
"""Key of ``expected`` → the stage of a bundle; metrics are in none."""


class _Stages:
    """How many numbers of each stage were compared, those that differ, and why some were not."""

    def __init__(self, within: Tolerance) -> None:
        self._within = within
        self.compared: Counter[str] = Counter()
        self.differing: dict[str, list[StageDifference]] = {name: [] for name in STAGES}
        self.skipped: dict[str, dict[str, None]] = {name: {} for name in STAGES}

    def add_verdict(self, part: Part, verdict: Verdict, stage: str | None) -> None:
        """Adds what became of a record.

        Args:
            part: the record.
            verdict: what became of it.
            stage: the stage at which it differs; None where it agrees. Metrics that differ where
                tokens do are no difference of their own.
        """
        own = [_STAGE.get(key, METRIC) for key in verdict.compared]
        self.compared.update(dict.fromkeys(own, 1) | {METRIC: own.count(METRIC)})
        if stage is not None and (first := verdict.first) is not None:
            self.compared[stage] += stage not in own
            place = first.response, first.token
            self._differs(stage, part, first.key, first.expected, first.got, *place)
        for one in verdict.metrics if stage != "tokens" else ():
            self._differs(METRIC, part, one.key, one.expected, one.got)

    def compare(
        self, stage: str, part: Part, key: str, yours: ArrayLike, grpo: ArrayLike, size: float
    ) -> None:
        """Compares numbers of a record, but what grpo has no finite number for.

        Args:
            stage, part, key: what they are.
            yours, grpo: a number, or [n].
            size: how large the numbers are that they are made of.
        """
        yours, grpo = np.atleast_1d(yours), np.atleast_1d(np.where(np.isfinite(grpo), grpo, np.nan))
        given = np.ones(len(yours), dtype=np.bool_)
        expectation = Expectation(key, stage, "response", yours, given)
        column = Column(expectation, grpo, yours, given, np.array([len(yours)]), size, 0.1)
        self.compared[stage] += int((~np.isnan(grpo)).sum())
        for at in np.flatnonzero(~self._within.agree(column, grpo)).tolist():
            row = at if stage in ("rewards", "advantages") else None
            self._differs(stage, part, key, float(yours[at]), float(grpo[at]), row)

    def _differs(
        self, stage: str, part: Part, key: str, yours: float, grpo: float, *at: Any
    ) -> None:
        row, token = (*at, None, None)[:2]
        one = part.record
        found = StageDifference(one.name, one.source, one.line, key, row, token, yours, grpo)
        self.differing[stage].append(found)

    def result(self) -> list[ReplayedStage]:
        """The stages, in order."""
        return [
            ReplayedStage(
                name,
                self.compared[name],
                len(found),
                largest=float(np.nanmax([0.0, *(abs(one.yours - one.grpo) for one in found)])),
                first=found[0] if found else None,
                skipped=(*self.skipped[name],),
            )
            for name, found in self.differing.items()
        ]


def replayed(
    parts: Sequence[Part],
    judged: Iterable[tuple[Verdict, str | None]],
    within: Tolerance,
    sha256: Sequence[str],
) -> Replay:
    """Replays a bundle.

    Args:
        parts: its records.
        judged: the verdict on each record, and the stage at which it differs.
        within: when two numbers agree.
        sha256: the hash of each file; none where only some records are read.

    Raises:
        InputError: where a record of a file has no bundle.
    """
    stages = _Stages(within)
    by_place = {(one.source, one.line, one.name): part for part in parts for one in [part.record]}
    sources = {source for source, *_ in by_place}
    for verdict, stage in judged:
        if part := by_place.get((verdict.source, verdict.line, verdict.id)):
            stages.add_verdict(part, verdict, stage)
        elif sha256 and verdict.source in sources:
            none = "the record has none, but others of the file do: it may have been changed"
            raise InputError(none, path="bundle", source=verdict.source, line=verdict.line)
    for part in parts:
        _replay_rewards(part, stages)
    for batch in _generations(parts):
        _replay_advantages(batch, stages)
    steps: dict[Hashable, list[Part]] = defaultdict(list)
    for part in parts:
        if part.record.step is not None:
            steps[part.run, part.record.step].append(part)
    seen: set[Hashable] = set()
    for step in steps.values():
        new = {part.generation for part in step} - seen
        _replay_step(step, new, stages)
        seen |= new
    found = stages.result()
    return Replay(
        sha256=sha256,
        records=len(parts),
        steps=len(steps),
        responses=sum(len(part.record.widths) for part in parts),
        first_stage=next((one.stage for one in found if one.differing), None),
        stages=found,
    )


# ---- rewards and advantages ----------------------------------------------------------------------


def _replay_rewards(part: Part, stages: _Stages) -> None:
    """Raw rewards → their weighted sum; a function that gave none counts nothing."""
    if part.rewards is None or not part.functions:
        stages.skipped["rewards"] |= {"no rewards/NAME: the raw rewards were not recorded": None}
    elif part.weights is None:
        why = "framework.reward_weights does not have one number per reward function"
        stages.skipped["rewards"] |= {why: None}
    else:
        found = np.nansum(np.stack([*part.functions.values()], axis=1) * part.weights, axis=1)
        stages.compare("rewards", part, "rewards", part.rewards, found, _size(found))


def _size(values: F64) -> float:
    return float(np.nanmax(np.abs(values), initial=0.0))


def _generations(parts: Sequence[Part]) -> Iterable[list[Part]]:
    """The records of each pass over a generation, where they say it; else of each step."""
    passes: Counter[Hashable] = Counter()
    batches: dict[Hashable, list[Part]] = defaultdict(list)
    for number, part in enumerate(parts):
        step, rows = part.record.step, part.seal.get("rows")
        key: Hashable = part.run, number if step is None else repr(step)
        if part.seal.get("generation") is not None and isinstance(rows, list) and rows:
            own = [(*part.generation, repr(row)) for row in rows]
            key = *part.generation, passes[own[0]]  # each pass has each row once
            passes.update(own)
        batches[key].append(part)
    return batches.values()


def _replay_advantages(batch: Sequence[Part], stages: _Stages) -> None:
    """Shaped rewards → advantages of what was generated together."""
    found = _advantages(batch)
    if isinstance(found, str):
        stages.skipped["advantages"] |= {found: None}
        return
    cuts = np.cumsum([len(part.record.widths) for part in batch])[:-1]
    for part, own in zip(batch, np.split(found, cuts), strict=True):
        yours = part.advantages
        assert yours is not None
        empty = np.isnan(yours) & (np.array(part.record.widths) == 0)
        stages.compare(
            "advantages", part, "advantages", yours, np.where(empty, np.nan, own), _size(own)
        )


def _advantages(batch: Sequence[Part]) -> F64 | str:
    """[R] what the plan gives for responses that were generated together; why it cannot say."""
    first = batch[0]
    if any(part.rewards is None for part in batch):
        return "no rewards in a record"
    if any(part.advantages is None for part in batch):
        return "no one advantage per response in a record"
    size, there = first.seal.get("generation_size"), sum(len(one.record.widths) for one in batch)
    if is_number(size) and there < size:  # type: ignore[operator]
        return f"the input has only {there} of the {size} responses of a generation"
    settings = dict(first.record.hyperparameters)
    try:
        alike = [replace(one.record, hyperparameters=settings, advantages=None) for one in batch]
        seen: dict[str, int] = {}
        groups = [seen.setdefault(one, len(seen)) for part in batch for one in part.groups]
        made = replace(join(alike), groups=groups)
        chunk = Chunk.of([made])
        objective = chunk.objective(first.plan)
        if objective.advantage.choice.given or (
            objective.kl_in_reward and objective.kl.values.get("beta")
        ):
            return "the settings do not name the advantage, or the reward contains a KL"
        if "reward_columns" in objective.advantage.choice.columns and first.weights is not None:
            each = [np.stack([one.functions[name] for name in first.functions], 1) for one in batch]
            settings["reward_weights"] = ",".join(map(repr, first.weights.tolist()))
            made = replace(made, rewards=np.concatenate(each).tolist(), hyperparameters=settings)
            chunk = Chunk.of([made])
        with np.errstate(all="ignore"):
            found = Evaluator(first.plan).evaluate(chunk).response_advantage
    except (GrpoError, KeyError) as error:
        return f"{first.plan.variant}: {error}"
    return f"{first.plan.variant} has no advantage per response" if found is None else found


# ---- steps ---------------------------------------------------------------------------------------


def _replay_step(step: Sequence[Part], new: Collection[Hashable], stages: _Stages) -> None:
    """The loss and the metrics of a step that began the ``new`` generations."""
    last = next((part for part in reversed(step) if "step_loss" in part.numbers), None)
    logged = next((part for part in reversed(step) if part.metrics("step_metrics")), None)
    if not (last or logged):
        stages.skipped["step loss"] |= {"a step's loss was not recorded": None}
    elif why := _incomplete(step):
        stages.skipped["step loss"] |= {why: None}
    else:
        if last:
            loss = _step_loss(step)
            if isinstance(loss, str):
                stages.skipped["step loss"] |= {loss: None}
            else:
                stages.compare("step loss", last, "step_loss", last.numbers["step_loss"], *loss)
        found = _of_generation(step, new) | _of_micro_batches(step)
        known = logged.metrics("step_metrics") if logged else {}
        for name in [name for name in known if name in found]:
            assert logged is not None
            stages.compare(METRIC, logged, f"step_metrics.{name}", known[name], *found[name])


def _incomplete(step: Sequence[Part]) -> str | None:
    """Why the records are not all of a step's, or None."""
    counts = (part.seal.get("micro_batches") for part in step)
    wanted = next((count for count in counts if count is not None), None)
    ranks: dict[Hashable, set[Hashable]] = defaultdict(set)
    for part in step:
        ranks[part.place.rank].add(part.place.number)
    name, least = step[0].record.step, min(map(len, ranks.values()))
    if is_number(wanted) and least < wanted:  # type: ignore[operator]
        return f"the input has only {least} of the {wanted} micro-batches of step {name!r}"
    processes = step[0].record.hyperparameters.get("num_processes")
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
        objective = first.plan.objective(first.record.hyperparameters, advantages_given=True)
    except GrpoError as error:
        return str(error)
    rule = "sum" if len(step) == 1 else dict(rules_of(objective))[POLICY]
    if rule is None or rule == "whole step":
        return f"for {objective.name}, losses of micro-batches do not determine the step's loss"
    ranks: dict[Hashable, list[tuple[float, float]]] = defaultdict(list)
    for part in step:
        held = Chunk.of([part.record]).batch.responses
        size = held.count if rule == "by responses" else held.total
        ranks[part.place.rank].append((part.numbers[name], size))
    return accumulated(rule, [*ranks.values()]), sum(abs(part.numbers[name]) for part in step)


def _of_micro_batches(step: Sequence[Part]) -> dict[str, tuple[float, float]]:
    """What a trainer logs of a step that each micro-batch has, and the size of those.

    It is the mean of what is no NaN; verl takes the largest, or smallest, of what is named so.
    """
    found = {}
    each = [part.metrics("metrics") for part in step]
    for name in set.intersection(*map(set, each)):
        values = np.array([metrics[name] for metrics in each])
        if step[0].framework.get("name") == "verl" and ("max" in name or "min" in name):
            found[name] = float(values.max() if "max" in name else values.min()), _size(values)
        elif not np.isnan(values).all():
            found[name] = float(np.nanmean(values)), _size(values)
    return found


def _of_generation(
    step: Sequence[Part], new: Collection[Hashable]
) -> dict[str, tuple[float, float]]:
    """TRL's metrics of rewards, and their sizes, for the generation that the step began."""
    parts = [part for part in step if part.generation in new]
    size = sum(len(part.record.widths) for part in parts)
    whole = len(new) == 1 and size == parts[0].seal.get("generation_size")
    if step[0].framework.get("name") != "trl" or not whole:
        return {}
    each = {("reward", "reward_std"): [part.rewards for part in parts]} | {
        (f"{name}/mean", f"{name}/std"): [part.functions.get(name) for part in parts]
        for name in parts[0].functions
    }
    found: dict[str, float] = {}
    for (mean, std), columns in each.items():
        given = [one for one in columns if one is not None]
        known = np.concatenate([one[~np.isnan(one)] for one in [np.zeros(0), *given]])
        if len(known) and len(given) == len(columns):
            found[mean] = float(known.mean())
            found[std] = float(known.std(ddof=1)) if len(known) > 1 else 0.0
    return {name: (value, abs(value)) for name, value in found.items()}
