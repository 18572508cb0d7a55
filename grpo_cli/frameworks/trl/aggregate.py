"""TRL's denominators, as GRPOTrainer 1.16.0 computes them while training.

A micro-batch is a record. Most of them are divided by ``gradient_accumulation_steps``, because
the trainer adds up that many micro-batches before it steps; the token mean over the generation
batch (dapo, cispo, vespo) is brought to one accumulation window instead.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from grpo_cli.batch import I64
from grpo_cli.objective.choice import ByResponse, Usual, choice
from grpo_cli.objective.results import Weights, per_token

ITEMS: Usual = {"num_items_in_batch": None, "num_processes": 1}


def over_items(
    lengths: I64, items: ByResponse | None, num_processes: int, accumulation: float = 1
) -> Weights:
    """Σ over tokens ÷ (num_items_in_batch · scale); the tokens of this batch where it is None."""
    ones, scale = np.ones(len(lengths)), accumulation / num_processes
    by = {"÷ num_processes": num_processes, ACCUMULATED: accumulation}
    if items is None:
        return Weights(ones, lengths.astype(np.float64), scale, scaled("tokens", by))
    return Weights(ones, None, items * scale, scaled("num_items_in_batch", by))


def scaled(counted: str, factors: Mapping[str, float], of: str = "") -> str:
    """A denominator in words, with the factors that are not 1."""
    return " ".join([counted, *(text for text, factor in factors.items() if factor != 1)]) + of


ACCUMULATED = "× gradient_accumulation_steps"


@choice(
    "aggregate", "trl/async", global_n_tokens=None, num_processes=1, gradient_accumulation_steps=1
)
def trl_async(
    lengths: I64,
    *,
    global_n_tokens: ByResponse | None,
    num_processes: int,
    gradient_accumulation_steps: int,
) -> Weights:
    """TRL's AsyncGRPOTrainer: Σ over tokens ÷ (tokens per process, at least 1, · accumulation).

    Args:
        global_n_tokens: the tokens of the micro-batch over all processes; None: those here.
    """
    ones = np.ones(len(lengths))
    if global_n_tokens is None:
        tokens = lengths.astype(np.float64)
        of = scaled("tokens", {ACCUMULATED: gradient_accumulation_steps})
        return Weights(ones, tokens, gradient_accumulation_steps, of)
    divisor = np.maximum(global_n_tokens / num_processes, 1.0) * gradient_accumulation_steps
    by = {"÷ num_processes": num_processes, ACCUMULATED: gradient_accumulation_steps}
    return Weights(ones, None, divisor, scaled("global_n_tokens", by))


@choice("aggregate", "trl/grpo", "trl/sapo", gradient_accumulation_steps=1)
def trl_grpo(lengths: I64, *, gradient_accumulation_steps: int) -> Weights:
    """TRL's loss_type grpo and sapo: ``response-mean`` over a micro-batch, ÷ accumulation."""
    by = {ACCUMULATED: gradient_accumulation_steps}
    of = scaled("responses", by, ", of token means")
    return Weights(per_token(lengths), np.ones(len(lengths)), gradient_accumulation_steps, of)


@choice("aggregate", "trl/bnpo", gradient_accumulation_steps=1)
def trl_bnpo(lengths: I64, *, gradient_accumulation_steps: int) -> Weights:
    """TRL's loss_type bnpo: ``token-mean`` over a micro-batch, ÷ gradient_accumulation_steps."""
    of = scaled("tokens", {ACCUMULATED: gradient_accumulation_steps})
    return Weights(
        np.ones(len(lengths)), lengths.astype(np.float64), gradient_accumulation_steps, of
    )


@choice("aggregate", "trl/dr_grpo", total=True, gradient_accumulation_steps=1)
def trl_dr_grpo(
    lengths: I64, *, max_completion_length: ByResponse, gradient_accumulation_steps: int
) -> Weights:
    """TRL's loss_type dr_grpo: ``token-sum-norm``, ÷ gradient_accumulation_steps."""
    by = {ACCUMULATED: gradient_accumulation_steps}
    of = scaled("responses × max_completion_length", by)
    divisor = max_completion_length * gradient_accumulation_steps
    return Weights(np.ones(len(lengths)), np.ones(len(lengths)), divisor, of)


@choice("aggregate", "trl/luspo", total=True, gradient_accumulation_steps=1)
def trl_luspo(lengths: I64, *, gradient_accumulation_steps: int) -> Weights:
    """TRL's loss_type luspo: ``token-sum``, ÷ gradient_accumulation_steps.

    luspo is meant for the sequence ratio: all tokens of a response then have equal terms, and the
    sum is |oᵢ| times the term. TRL before 1.10, and Liger's chunked loss, include padding in the
    mean if there is a KL or a token weight.
    """
    of = scaled("responses", {ACCUMULATED: gradient_accumulation_steps})
    ones = np.ones(len(lengths))
    return Weights(ones, ones, gradient_accumulation_steps, of)


@choice("aggregate", "trl/num-items", num_items_in_batch=None, num_processes=1)
def trl_num_items(
    lengths: I64, *, num_items_in_batch: ByResponse | None, num_processes: int
) -> Weights:
    """TRL's dapo, cispo and vespo before 1.9.1: Σ over tokens ÷ (num_items_in_batch ÷ processes).

    Accumulation and generation steps do not scale it.
    """
    return over_items(lengths, num_items_in_batch, num_processes)


@choice(
    "aggregate",
    "trl/dapo",
    "trl/cispo",
    "trl/vespo",
    num_items_in_batch=None,
    num_processes=1,
    gradient_accumulation_steps=1,
    steps_per_generation=None,
)
def trl_dapo(
    lengths: I64,
    *,
    num_items_in_batch: ByResponse | None,
    num_processes: int,
    gradient_accumulation_steps: int,
    steps_per_generation: int | None,
) -> Weights:
    """TRL's loss_type dapo, cispo and vespo: Σ over tokens ÷ tokens of an accumulation window.

    These are N/P · gradient_accumulation_steps ÷ steps_per_generation: N is the number of tokens of
    the whole generation batch, P the number of processes, and one optimiser step uses
    gradient_accumulation_steps of the batch's steps_per_generation parts. TRL before 1.9.1 divided
    by N/P, as ms-swift does; Liger divides by the tokens of the micro-batch.

    Args:
        steps_per_generation: micro-batches per generation batch; None: as many as accumulated.
    """
    window = gradient_accumulation_steps / (steps_per_generation or gradient_accumulation_steps)
    ones = np.ones(len(lengths))
    by = {"÷ num_processes": num_processes, f"{ACCUMULATED} ÷ steps_per_generation": window}
    if num_items_in_batch is None:
        counts = lengths.astype(np.float64)
        return Weights(ones, counts, window / num_processes, scaled("tokens", by))
    divisor = np.maximum(num_items_in_batch, 1.0) / num_processes * window
    return Weights(ones, None, divisor, scaled("num_items_in_batch", by))
