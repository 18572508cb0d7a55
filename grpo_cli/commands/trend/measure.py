"""The numbers of a chunk by response, by record and by token, added up by step.

What frameworks log is rarely a mean over a step's tokens. TRL and verl average a micro-batch (a
record), and then the micro-batches; slime averages a sample, and then the samples, those without a
token that counts as 0. The numbers for that are computed only where their names are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Batch, Segments, borders
from grpo_cli.commands.trend.metadata import (
    TEXT,
    add_metadata,
    environments,
    repetition,
    words_of,
)
from grpo_cli.commands.trend.origins import RecordStep
from grpo_cli.commands.trend.sums import (
    EACH,
    NO_NUMBER,
    PLACE,
    Ragged,
    StepSums,
    bins,
    first_largest,
)
from grpo_cli.engine.chunk import Chunk
from grpo_cli.objective.advantage.weighed import WEIGHTS, summed
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.kl import k3
from grpo_cli.objective.terms import ENTROPY, KL, POLICY, spread_over
from grpo_cli.records.formats.texts import NoLogProbsError

Unit = Literal["records", "groups", "responses", "tokens"]
Kept = NDArray[np.bool_]


def rewards_of(chunk: Chunk, breakdown: Breakdown | None) -> F64 | None:
    """[R] the reward of each response, its functions weighted as the objective weighs them.

    Where it does not (advantages are given), as the record says.

    Raises:
        HyperparameterError: where there are not as many weights as functions.
    """
    rewards = chunk.batch.rewards
    if rewards is None or rewards.ndim == 1:
        return rewards
    values = {} if breakdown is None else breakdown.objective.advantage.values
    weights = values.get(WEIGHTS, chunk.settings.get(WEIGHTS))
    return chunk.batch.summed_rewards if weights is None else summed(rewards, weights)


def _given_advantages(batch: Batch) -> F64 | None:
    """[R] the advantages that records hold; of those by token each response's first."""
    if batch.token_advantages is None:
        return batch.advantages
    responses = batch.responses
    found = np.full(responses.count, NO_NUMBER)
    filled = responses.lengths > 0
    found[filled] = batch.token_advantages[responses.starts[filled]]
    return found


_LIKELY = -7.0
"""The log-prob from which on responses of a group are equal by chance: one of 150 of eight."""


def _hashes(chunk: Chunk) -> I64:
    """[R] a number that copies share: responses with equal log-probs; 0 of none.

    The engine's, where there are any: equal tokens of two forward passes differ by rounding. Those
    of a group with equal ids are copies too, unless they are so likely that chance repeats them.
    """
    batch = chunk.batch
    new, old, engine = batch.log_probs_new, batch.log_probs_old, batch.log_probs_rollout
    if new is None and engine is None:
        return np.zeros(batch.responses.count, dtype=np.int64)
    columns = [one for one in (engine, new, old) if one is not None]
    found: I64 = batch.responses.sum(_hashed(columns[0]))
    kept, ids = words_of(chunk, "token_ids")
    parts = Segments(batch.responses.lengths[kept])
    chances = np.maximum.reduce([batch.responses.sum(one) for one in columns])[kept]
    keys = parts.sum(_hashed(ids + _PRIME * (parts.positions + 1)))
    keys += _PRIME * batch.groups[kept]
    rows, keys = np.flatnonzero(kept)[chances < _LIKELY], keys[chances < _LIKELY]
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    found[rows] = found[rows[first[place]]]
    return found


def _first_tokens(chunk: Chunk) -> dict[str, NDArray[Any]]:
    """[R] the first token of each response, and the reference's log-prob of it; NaN of none."""
    batch = chunk.batch
    filled = batch.responses.lengths > 0
    found = {"first": np.zeros(len(filled), np.int64), "first_ref": np.full(len(filled), NO_NUMBER)}
    rows = [row for one in chunk.records for row in one.token_ids or one.tokens or ()]
    if batch.log_probs_ref is None or len(rows) != len(filled) or not all(map(len, rows)):
        return found
    places = batch.responses.starts[filled]
    values = batch.log_probs_ref[places]
    if batch.positions is not None:
        values = np.where(batch.positions[places] == 0, values, NO_NUMBER)
    found["first"][:] = [x if isinstance(x, int) else crc32(f"{x}".encode()) for x, *_ in rows]
    found["first_ref"][filled] = values
    return found


def sums_of_rewards(records: Sequence[tuple[RecordStep, NoLogProbsError]]) -> StepSums:
    """The sums of records that have no log-probs: a row for each, of one group."""
    signals = [record.signal for _, record in records]
    widths = np.array([len(one.rewards) for one in signals], dtype=np.int64)
    rewards = [NO_NUMBER if one is None else one for each in signals for one in each.rewards]
    lengths = [-1 if one is None else one for each in signals for one in each.lengths]
    unknown = np.full(len(rewards), NO_NUMBER)
    rows = {
        "reward": np.array(rewards, dtype=np.float64),
        "length": np.array(lengths, dtype=np.int64),
    } | dict.fromkeys(("advantage", "log_ratio", "first_ref"), unknown)
    rows |= dict.fromkeys(("hash", "first", "group"), np.zeros(len(rewards), dtype=np.int64))
    columns = {("row", name): Ragged(widths, values) for name, values in rows.items()}
    names = Ragged(np.ones_like(widths), _objects([one.group for one in signals]))
    return StepSums(
        np.array([step.row for step, _ in records], dtype=np.int64),
        [(record.source or "", step.field) for step, record in records],
        columns | {("row", "label"): names, ("row", "prompt"): names},
    )


class ChunkSums:
    """The sums of the steps of a chunk: a row for records of one step that follow each other.

    Args:
        chunk: records with what a report shows of them, each with its step as its batch.
        breakdown: of the chunk; None where the objective cannot be evaluated.
        rewards: [R] as ``rewards_of`` has them.
        by: as ``--batch`` has it.
        logged: whether the sums of frameworks' metrics are wanted too.
    """

    def __init__(
        self,
        chunk: Chunk,
        breakdown: Breakdown | None,
        rewards: F64 | None,
        by: str = "input",
        *,
        logged: bool = False,
    ) -> None:
        self._chunk, batch, self._logged = chunk, chunk.batch, logged
        steps: Sequence[RecordStep] = chunk.of_batches  # type: ignore[assignment]  # of with_steps
        marks = borders([step.row for step in steps])
        records, groups, responses, tokens = map(Segments, np.diff(batch.edges(marks)))
        self._units = {"records": records, "responses": responses, "tokens": tokens}
        self._filled = tokens.lengths > 0
        self._places = _objects([(one.source, one.line, one.name) for one in chunk.records])
        unknown = np.full(batch.responses.count, NO_NUMBER)
        new, old = batch.log_probs_new, batch.log_probs_old
        moves = unknown if new is None or old is None else batch.responses.mean(new - old)
        rows = {
            "reward": unknown if rewards is None else rewards,
            "advantage": unknown if (given := _given_advantages(batch)) is None else given,
            "log_ratio": moves,
            "length": batch.responses.lengths,
            "hash": _hashes(chunk),
            "group": batch.groups - responses.spread(groups.starts),
        } | _first_tokens(chunk)
        self.sums = StepSums(
            np.array([steps[at].row for at in marks[:-1]]),
            [(chunk.records[at].source, steps[at].field) for at in marks[:-1]],
            {("row", name): Ragged(responses.lengths, values) for name, values in rows.items()},
        )
        self._columns = self.sums.columns
        for name, names in zip(("label", "prompt"), _labels_and_prompts(chunk), strict=True):
            self._columns["row", name] = Ragged(groups.lengths, _objects(names))
        self.sums.add_count("tokens", tokens.lengths)
        self.sums.add_count("samples", responses.lengths)
        if batch.positions is not None:
            filled = batch.responses.lengths > 0
            late = np.zeros(len(filled), np.int64)
            late[filled] = batch.positions[batch.responses.starts[filled]] > 0
            self.sums.add_count("masked_start", responses.sum(late))
        if breakdown is not None:
            self._add_objective(breakdown, by)
        if functions := functions_of(chunk):
            self.sums.functions |= dict.fromkeys(functions)
        for name, values in functions.items():
            self._average(name, "responses", values, ~np.isnan(values))
        for name, kept in environments(steps, batch.records.lengths):
            if rewards is not None:
                self._average(name, "responses", rewards, kept & ~np.isnan(rewards))
        shares = repetition(chunk)
        if not np.isnan(shares).all():
            self._average("repetition", "responses", shares, ~np.isnan(shares))
        if batch.responses.total:
            with np.errstate(over="ignore", divide="ignore"):
                self._measure_tokens(breakdown)
        add_metadata(self.sums, chunk, steps, records.index)

    # ---- adding up --------------------------------------------------------------------------

    def _sum(
        self, name: Any, unit: Unit, values: F64, family: str = "sum", kept: Kept | None = None
    ) -> Ragged:
        """Adds numbers of tokens, responses or records, those that are kept, to a column."""
        widths = self._units[unit].lengths
        if kept is not None and not kept.all():
            widths, values = self._units[unit].sum(kept.astype(np.int64)), values[kept]
        column = self._columns[family, name] = Ragged(widths, values)
        return column

    def _average(self, name: str, unit: Unit, values: F64, kept: Kept | None = None) -> None:
        """Adds numbers to a sum, and how many these are to the count of its name."""
        self.sums.add_count(name, self._sum(name, unit, values, kept=kept).widths)

    def _by_token(self, name: str, values: F64, count: str = "") -> None:
        """Adds a number of each token, and how many tokens there are to a count."""
        self._sum(name, "responses", self._chunk.batch.responses.sum(values))
        if count:
            self.sums.add_count(count, self._units["tokens"].lengths)

    def _distribute(self, name: str, values: F64) -> None:
        """Adds the distribution of numbers of tokens, and the largest."""
        self._columns["bins", name] = Ragged(self._units["tokens"].lengths, bins(values))
        self._sum(name, "tokens", values, "largest")

    def _with_tokens(self, unit: Unit) -> Kept:
        """Which responses or records are of steps that have a token."""
        return self._units[unit].spread(self._filled)

    # ---- the objective ----------------------------------------------------------------------

    def _add_objective(self, breakdown: Breakdown, by: str) -> None:
        """Adds what J and its gradient are made of: the sums of responses, or means of records."""
        records, tokens = self._units["records"], self._units["tokens"]
        unit: Unit = "records" if by == "record" else "responses"
        values, products = breakdown.weighted, breakdown.products
        before = breakdown.counted_before
        if by == "record":
            values = breakdown.record_values
            products = [(POLICY, POLICY, breakdown.record_gradient_squares)]
            before = dict.fromkeys((POLICY, KL, ENTROPY), np.arange(records.total + 1.0))
        for term in breakdown.terms:
            factors, numbers = term.coefficient, values[term.name]
            factors = factors if by == "record" else spread_over(factors, breakdown.batch.records)
            column = self._sum(term.name, unit, numbers, "term")
            times = np.broadcast_to(factors, numbers.shape)
            self._columns["term", term.name] = column._replace(times=times)
        for name, other, product in products:
            self._sum((name, other), unit, product, "product")
        starts, lengths = self._units[unit].starts, self._units[unit].lengths
        for name, counted in before.items():
            self.sums.add_count(f"counted/{name}", counted[starts + lengths] - counted[starts])
        if breakdown.kl_unknown:
            self.sums.add_count("kl_unknown", records.lengths)
        self.sums.add_count("records", records.lengths)
        self.sums.add_count("evaluated_tokens", tokens.lengths)
        self.sums.add_count("clipped_low", tokens.sum((breakdown.clip < 0).astype(np.int64)))
        self.sums.add_count("clipped_high", tokens.sum((breakdown.clip > 0).astype(np.int64)))
        self._sum("ratio", "responses", breakdown.ratio_sums)

    # ---- tokens -----------------------------------------------------------------------------

    def _measure_tokens(self, breakdown: Breakdown | None) -> None:
        batch = self._chunk.batch
        lengths = batch.responses.lengths.astype(np.float64)
        self._find("length", "responses", lengths)
        new, old = batch.log_probs_new, batch.log_probs_old
        if new is not None:
            self._by_token("log_prob", new, "log_prob")
            self._find("nll", "tokens", -new)
        if batch.entropies is not None:
            self._by_token("entropy", batch.entropies, "entropy")
        if breakdown is not None:
            self._measure_ratios(breakdown)
        if batch.log_probs_ref is not None and new is not None:
            self._measure_kl(new - batch.log_probs_ref)
            others = batch.log_probs_ref != (new if old is None else old)
            self.sums.add_count("ref_not_old", self._units["tokens"].sum(others.astype(np.int64)))
        trainer = new if old is None else old
        if batch.log_probs_rollout is not None and trainer is not None:
            self._measure_mismatch(trainer - batch.log_probs_rollout)
            if self._logged and new is not None:
                self._measure_engine(trainer, new, batch.log_probs_rollout)
        if self._logged and breakdown is not None:
            self._measure_logged(breakdown)

    def _measure_ratios(self, breakdown: Breakdown) -> None:
        tokens = self._units["tokens"]
        self._by_token("ratio_squared", breakdown.ratio * breakdown.ratio)
        self._distribute("log_ratio", breakdown.log_ratio)
        self._find("gradient", "records", breakdown.record_gradient_squares)
        steepest = self._columns["worst", "gradient"].values
        steepest["value"] = np.sqrt(steepest["value"])
        moved = tokens.sum((breakdown.ratio != 1.0).astype(np.int64))
        self.sums.add_count("moved", moved)
        self._find("ratio", "tokens", np.abs(breakdown.log_ratio), moved > 0)

    def _measure_kl(self, difference: F64) -> None:
        """The policy against the reference, with ``difference`` d = log π_θ − log π_ref."""
        self._by_token("kl_k1", difference, "kl")
        estimate = k3(difference)[0]
        del difference  # a column of a large file is some MB
        self._by_token("kl_k3", estimate)
        self._find("kl", "tokens", estimate)

    def _measure_mismatch(self, difference: F64) -> None:
        """The trainer against the engine, with ``difference`` d = log π_trainer − log π_engine."""
        excess = np.expm1(difference)  # w − 1: near 1 a sum of w would lose its digits
        self._by_token("mismatch_square_excess", excess * (excess + 2.0))
        self._by_token("mismatch_excess", excess)
        del excess
        if self._logged:
            self._by_token("inverse_excess", np.expm1(-difference))
        self._by_token("mismatch_d", difference, "mismatch")
        size = np.abs(difference, out=difference)
        self._by_token("mismatch_size", size)
        self._by_token("mismatch_both", np.exp(size))
        self._distribute("mismatch", size)
        self._find("mismatch", "tokens", size)

    # ---- what frameworks log ----------------------------------------------------------------

    def _measure_engine(self, old: F64, new: F64, rollout: F64) -> None:
        """The policy, and the policy before the update, against the engine."""
        distance, size = np.abs(np.exp(old) - np.exp(rollout)), np.abs(old - rollout)
        self._by_token("probs_diff", distance, "probs_diff")
        self._by_token("probs_diff_2", distance * distance, "probs_diff_2")
        self._by_token("new_k3", k3(rollout - new)[0], "new_k3")
        means = self._chunk.batch.responses.mean(size)
        self._average("sample_logp_difference", "responses", means, self._with_tokens("responses"))
        self._sum("probs_diff_max", "tokens", distance, "largest")

    def _measure_logged(self, breakdown: Breakdown) -> None:
        batch = self._chunk.batch
        bound = breakdown.clip * (np.sign(breakdown.advantage) == breakdown.clip)
        clipped = {"low": bound < 0, "high": bound > 0, "region": bound != 0}
        columns = {f"clip_{name}": side.astype(np.float64) for name, side in clipped.items()}
        columns["clip"] = (breakdown.clip != 0).astype(np.float64)
        optional = {"kl": breakdown.kl, "entropy": batch.entropies}
        columns |= {name: values for name, values in optional.items() if values is not None}
        if batch.log_probs_old is not None and batch.log_probs_new is not None:
            columns["ppo_kl"] = batch.log_probs_old - batch.log_probs_new
        tokens, with_tokens = batch.record_tokens, self._with_tokens("responses")
        for name, values in columns.items():
            means = batch.responses.mean(values)
            self._average(f"sample_{name}", "responses", means, with_tokens)
            if name == "ppo_kl":  # as verl's compute_policy_loss has it; slime does not clamp
                values = np.clip(values, -20.0, 20.0)
            self._average(f"record_{name}", "records", tokens.mean(values), tokens.lengths > 0)
        if breakdown.correction is not None:
            self._measure_weights(breakdown, breakdown.correction)
        self._measure_loss(breakdown)

    def _measure_loss(self, breakdown: Breakdown) -> None:
        """What micro-batches add to TRL's loss, where a denominator counts the micro-batches.

        A loss divided by gradient_accumulation_steps is added up over as many micro-batches: the
        mean of the records times their number. One divided by what the step holds is added up.
        """
        objective = breakdown.objective
        own = {KL: objective.kl_aggregate, ENTROPY: objective.entropy_aggregate}
        averaged, summed_up = np.zeros((2, breakdown.batch.records.count))
        scaled = False
        for term in breakdown.active:
            counts: Mapping[str, Any] = (own.get(term.name) or objective.aggregate).values
            part = -term.coefficient * breakdown.record_value(term.name)
            if "num_items_in_batch" in counts:
                ranks = counts.get("num_processes") or 1
                if counts["num_items_in_batch"] is None:
                    return
                summed_up += part / ranks
                scaled |= ranks != 1
            else:
                steps = counts.get("gradient_accumulation_steps") or 1
                averaged += part * steps
                scaled |= steps != 1
        if scaled:
            self._average("loss_averaged", "records", averaged)
            self._sum("loss_summed", "records", summed_up)

    def _measure_weights(self, breakdown: Breakdown, weights: F64) -> None:
        """TRL's ratios as they are after truncation, one a token, or one a sequence."""
        unit: Unit = "tokens"
        kept, responses = None, breakdown.batch.responses
        if "sequence" in breakdown.objective.correction.name:
            unit, weights, kept = "responses", responses.mean(weights), responses.lengths > 0
        self._average("weights", unit, weights, kept)
        self._sum("weights_max", unit, weights, "largest", kept)
        self._sum("weights_min", unit, -weights, "largest", kept)

    # ---- places -----------------------------------------------------------------------------

    def _find(self, name: str, unit: Unit, sizes: F64, noted: Kept | None = None) -> None:
        """The largest of each step that has tokens, where it is to be noted."""
        batch = self._chunk.batch
        noted = self._filled if noted is None else self._filled & noted
        places = first_largest(sizes, self._units[unit])[noted]
        inside = np.full(len(places), -1)
        if unit == "tokens":
            responses = np.searchsorted(batch.responses.starts, places, side="right") - 1
            inside = places - batch.responses.starts[responses]
            inside = inside if batch.positions is None else batch.positions[places]
        else:
            responses = batch.records.starts[places] if unit == "records" else places
        found = np.empty(len(places), PLACE)
        owners = np.searchsorted(batch.records.starts, responses, side="right") - 1
        found["value"], found["token"] = sizes[places], inside
        found["response"] = responses - batch.records.starts[owners]
        found["record"] = self._places[owners]
        self._columns["worst", name] = Ragged(noted.astype(np.int64), found)


def _hashed(values: NDArray[Any]) -> I64:
    """[N] a hash of each number, whose sum says which numbers a step or a response has."""
    found: I64 = values.view(np.int64) * _PRIME
    found ^= found >> 29
    found *= _PRIME
    return found


_PRIME = np.int64(0x1E3779B97F4A7C15)


def functions_of(chunk: Chunk) -> dict[str, F64]:
    """[R] the rewards of each of several reward functions; NaN where it gave nothing."""
    batch = chunk.batch
    if batch.rewards is None or batch.rewards.ndim == 1:
        return {}
    names = batch.reward_names or range(batch.rewards.shape[1])
    return {f"{EACH}{name}": column for name, column in zip(names, batch.rewards.T, strict=True)}


def _labels_and_prompts(chunk: Chunk) -> tuple[list[Any], list[Any]]:
    """The name of each group of the chunk, and of its prompt.

    That is the number of the group, or of a record of one group; where these have none the text
    of the prompt (other names may be of one step); and without a text their name.
    """
    labels, prompts = list[Any](), list[Any]()
    owner = np.zeros(chunk.batch.group_count, dtype=np.int64)
    owner[chunk.batch.groups] = chunk.batch.records.index
    counts = np.bincount(owner, minlength=len(chunk.records)).tolist()
    steps: Sequence[RecordStep] = chunk.of_batches  # type: ignore[assignment]  # of with_steps
    for record, step, count in zip(chunk.records, steps, counts, strict=True):
        named = record.group_labels if len(record.group_labels or ()) == count else None
        labels += named or [None] * count
        names = named or [record.id if count == 1 else None] * count
        text = (step.metadata or {}).get(TEXT) if count == 1 else None
        is_text = isinstance(text, str) and (names[0] is None or isinstance(names[0], str))
        prompts += [text] if is_text else names
    return labels, prompts


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    return np.fromiter(values, dtype=object, count=len(values))
