"""What TRL's GRPOTrainer and RLOOTrainer compute, as records; read from trl 1.16.0.

::

    from grpo_cli.hooks.trl import record

    record(trainer, "rollouts.jsonl")
    trainer.train()

One line for each micro-batch of the training: the log-probs as ``_compute_loss`` saw them, the
loss that it returned before the backward pass, and what it logged. TRL shuffles the rows of a
generation batch before it cuts it into micro-batches; rewards and group ids travel with the rows,
but a micro-batch rarely holds whole groups, so the advantages that a record gives are the ones to
use.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpo_cli.hooks.trl_recording import Recording
from grpo_cli.hooks.writer import Writer, of_rank


def record(
    trainer: Any, path: str | Path, *, gradient: bool = True, stages: bool = False
) -> Writer:
    """Writes every micro-batch that ``trainer`` trains on to ``path``, until the writer is closed.

    The file is complete when ``trainer.train()`` returns; an older one is replaced. With several
    processes each writes what it saw into a file of its own (``rollouts.rank0.jsonl``, ...),
    without TRL's metrics, which are over all of them.

    Args:
        trainer: a GRPOTrainer, an RLOOTrainer, or a subclass with a loss of its own.
        path: where to; packed if it ends in ``.gz``.
        gradient: also write ∂loss/∂per_token_logps, from one more backward pass through the loss
            alone (not through the model).
        stages: write a bundle, which ``grpo verify`` replays stage by stage: also what each
            reward function returned and counts, which responses were generated together, and the
            loss and the metrics that TRL logs of a step.
    """
    accelerator = trainer.accelerator
    own = of_rank(path, accelerator.process_index, accelerator.num_processes)
    writer = Writer(own, sealed=stages)
    Recording(trainer, writer, gradient=gradient, stages=stages)
    return writer
