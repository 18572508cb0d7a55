"""``grpo eval --on ray -o FOLDER``: rows in numbered files, which workers write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from grpo_cli.commands.emit import CSV
from grpo_cli.commands.eval.parquet import write_batches
from grpo_cli.commands.eval.printing import Printing, PrintingOptions
from grpo_cli.commands.eval.run import Run
from grpo_cli.commands.options.place import part_folder
from grpo_cli.engine import Reader
from grpo_cli.engine.cluster.parts import Pack, PartFolder, Parts, joined
from grpo_cli.errors import UsageError
from grpo_cli.variants.plan import Plan

_PACKS: Mapping[str, Callable[[Printing], Pack]] = {
    "jsonl": lambda _: joined,
    "csv": lambda wanted: partial(joined, head=CSV.head(wanted.names)),
    "parquet": lambda _: write_batches,
}
"""Format → what makes a part of its rows."""


def folder_of(options: PrintingOptions, wanted: Printing, plan: Plan, reader: Reader) -> PartFolder:
    """The folder of the parts that are asked for.

    Raises:
        UsageError: where rows cannot go to parts, or there are some of something else.
    """
    assert options.output is not None
    if options.kind not in _PACKS or options.level == "batch" or options.limit:
        kinds = ", ".join(_PACKS)
        raise UsageError(f"parts need --format {kinds}; leave out --limit and --level batch")
    parts = Parts(options.output, f".{options.kind}", _PACKS[options.kind](wanted))
    about = {
        "objective": [plan.variant, *sorted({**plan.swapped, **plan.flags}.items()), plan.batch],
        "rows": [options.kind, options.level, wanted.names, wanted.nested],
    }
    return part_folder(parts, reader, about, resume=options.resume)


def write_parts(run: Run, folder: PartFolder, *, quiet: bool) -> int:
    """Has the parts written; returns the exit code."""
    complete = False
    try:
        for _ in run:
            pass
        complete = run.complete
    finally:
        folder.close(complete=complete)
    return run.finish(notes_in_table=False, quiet=quiet)
