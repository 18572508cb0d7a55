"""``grpo eval``: the objective of the data, at the level of detail that is asked for."""

from __future__ import annotations

import typer

from grpo_cli.commands.check.first_record import first_error
from grpo_cli.commands.eval.formats import format_of
from grpo_cli.commands.eval.printing import Printing
from grpo_cli.commands.eval.run import Run, row_notes
from grpo_cli.commands.options.objective import ObjectiveOptions
from grpo_cli.commands.options.place import check_parts, destination, print_written
from grpo_cli.commands.options.source import Files, ReadingOptions, RecordOption, paths
from grpo_cli.records.choose.grouping import batch_fields
from grpo_cli.records.choose.where import spelled
from grpo_cli.terminal.progress import Bar


def evaluate(
    *,
    files: Files = None,
    objective: ObjectiveOptions,
    reading: ReadingOptions,
    chosen: RecordOption,
    printing: Printing,
) -> int:
    """Evaluate an objective: loss, KL, clip fraction, gradient norm.

    \b
    grpo eval rollouts.jsonl --variant dr
    zcat dump.jsonl.gz | grpo eval --level token -f jsonl | jq .loss

    Prints totals, then one row per record. The loss is minus the objective.
    """  # noqa: D301 - \b is for the help's formatter
    plan = objective.plan()
    printing = printing.of_batches(tuple(map(spelled, batch_fields(plan.batch))))
    format = format_of(printing.kind)
    places = paths(files)
    reader = reading.reader(places, chosen.record)
    bar = Bar(places, wanted=printing.bar(streams=format.streams), nodes=lambda: reader.nodes)
    encode = None if printing.level == "batch" else format.encode(printing)
    part_folder = None
    if check_parts(printing.output, reader, resume=printing.resume):
        from grpo_cli.commands.eval.parquet import folder_of  # of a cluster

        part_folder = folder_of(printing, plan, reader)
    run = Run(
        reader,
        plan,
        as_json=printing.json or printing.format == "json",
        by_default=objective.variant is None,
        encode=encode,
        bar=bar,
        part_folder=part_folder,
        look=None if printing.quiet else first_error,
        rows=printing.weighs,
        shares=printing.shares,
        having=None if printing.level == "batch" else printing.having,
    )
    if part_folder is not None:
        with part_folder:
            for _ in run:
                pass
            part_folder.complete = run.complete
        return run.finish(quiet=printing.quiet)
    with destination(printing.output) as stream:
        format.write(run, printing, stream)
        stream.flush()
        code = run.finish(
            quiet=printing.quiet,
            printed=run.in_table(printing),
            more=row_notes(run, printing),
            of_rows=encode is not None
            and printing.output is None
            and printing.kind != "table"
            and (format.streams or not run.empty),
        )
        if not run.complete:  # leaving the block so keeps an older file
            raise typer.Exit(code)
    print_written(printing.output, quiet=printing.quiet)
    return code
