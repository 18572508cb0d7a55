"""``grpo eval --on ray -o FOLDER``: rows in numbered files, which workers write."""

from __future__ import annotations

from grpo_cli.commands.eval.formats.format import Printing
from grpo_cli.commands.eval.printing import PrintingOptions
from grpo_cli.commands.eval.run import Run
from grpo_cli.engine import Reader
from grpo_cli.engine.cluster.parts import Manifest, Parts
from grpo_cli.errors import UsageError
from grpo_cli.variants.plan import Plan
from grpo_cli.version import VERSION


def manifest_of(
    options: PrintingOptions, wanted: Printing, plan: Plan, reader: Reader
) -> Manifest | None:
    """The manifest of the parts that are asked for; None where one file or stream is.

    Raises:
        UsageError: where rows cannot go to parts, or there are some of something else.
    """
    if not options.to_folder:
        if options.resume:
            raise UsageError("--resume goes on with the parts of a folder: -o FOLDER/")
        return None
    assert options.output is not None
    if not reader.on_cluster:
        raise UsageError(f"--output: {options.output} is a folder; parts are for --on")
    if options.kind not in ("jsonl", "csv") or options.level == "batch" or options.limit:
        raise UsageError("parts hold all rows: --format jsonl or csv, no --limit or --level batch")
    head = ",".join(wanted.names).encode() + b"\n" if options.kind == "csv" else b""
    parts = Parts(options.output, f".{options.kind}", head)
    about = {
        "grpo": VERSION,
        "objective": [plan.variant, *sorted({**plan.swapped, **plan.flags}.items()), plan.batch],
        "rows": [options.kind, options.level, wanted.names, wanted.nested],
        "reading": [repr(reader.reading), reader.skip],
        "inputs": reader.inputs,
        "task size": reader.task_bytes,
    }
    return Manifest(parts, about, resume=options.resume)


def write_parts(run: Run, manifest: Manifest, *, quiet: bool) -> int:
    """Has the parts written; returns the exit code."""
    complete = False
    try:
        for _ in run:
            pass
        complete = run.complete
    finally:
        manifest.close(complete=complete)
    return run.finish(told_in_table=False, quiet=quiet)
