"""``grpo convert``: any input that can be read → canonical JSONL or Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from grpo_cli.commands.convert.conversion import Conversion, write_lines, write_table
from grpo_cli.commands.options.option import option
from grpo_cli.commands.options.output import Json, Output, Quiet
from grpo_cli.commands.options.place import (
    Resume,
    check_parts,
    destination,
    part_folder,
    tell_written,
    to_folder,
)
from grpo_cli.commands.options.source import (
    ErrorOptions,
    Files,
    RecordOption,
    SourceOptions,
    WorkOptions,
    make_reader,
    paths,
    tell_notes,
)
from grpo_cli.errors import UsageError
from grpo_cli.terminal.destination import standard_output

To = Annotated[
    Literal["jsonl", "parquet"] | None,
    option("--to", "FORMAT", "jsonl or parquet; default: by the name of --output."),
]

Bundle = Annotated[
    bool,
    option("--bundle", "", "Write a bundle: settings, tolerances and a hash, for grpo verify."),
]

PACKS = {"jsonl": write_lines, "parquet": write_table}


def convert(
    *,
    files: Files = None,
    source: SourceOptions,
    chosen: RecordOption,
    to: To = None,
    bundle: Bundle = False,
    output: Output = None,
    resume: Resume = False,
    errors: ErrorOptions,
    work: WorkOptions,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Convert any input to canonical JSONL or Parquet.

    \b
    grpo convert train_data_step7.jsonl --group-size 16 -o step7.jsonl
    grpo convert rollouts.jsonl -o rollouts.parquet
    grpo convert rollouts.jsonl --bundle -o step.bundle.jsonl

    The result evaluates to the same numbers, bit for bit. A bundle is the file
    to send with a bug report: `grpo verify` replays it and names the first stage
    that differs (`grpo help recording`). For rows as CSV, use
    `grpo eval FILE --level token -f csv`. --json prints errors as JSON.
    """  # noqa: D301 - \b is for the help's formatter
    results = standard_output()
    if output is None and results is not None and results.isatty():
        raise UsageError("use -o FILE to save the result, or | to pipe it")
    kind = to or _kind_of(output)
    alone = kind == "parquet" and work.on is None
    used = WorkOptions(jobs=1) if alone else work
    reader = make_reader(paths(files), source.reading(chosen.record), errors, used)
    if bundle and (kind == "parquet" or work.on is not None):
        raise UsageError("--bundle writes JSONL on this machine: leave out --on and Parquet")
    run = Conversion(reader, as_table=kind == "parquet", as_json=json, as_bundle=bundle)
    if check_parts(output, reader, resume=resume):
        about = {"convert": kind}
        with part_folder(str(output), kind, PACKS[kind], reader, about, resume=resume) as folder:
            for _ in run.pieces(folder):
                pass
    else:
        _check_table(kind, work)
        with destination(output) as stream:
            run.write(stream)
        tell_written(output, quiet=quiet)
    tell_notes(reader.notices | run.notices(), quiet=quiet)
    return run.finish()


def _kind_of(output: str | None) -> str:
    """The format that the name of a file asks for; JSONL where it has no ending.

    Raises:
        UsageError: for the ending of another format.
    """
    ending = Path(output or "").suffix
    if ending not in ("", ".jsonl", ".ndjson", ".json", ".parquet") and not to_folder(output):
        name = "the name must end in .jsonl or .parquet, or write JSONL under any name"
        raise UsageError(f"-o {output}: {name} with --to jsonl")
    return "parquet" if ending == ".parquet" else "jsonl"


def _check_table(kind: str, work: WorkOptions) -> None:
    """Refuses to have one Parquet file written by many: where it is cut would change its bytes.

    Raises:
        UsageError: where that is asked for.
    """
    if kind == "parquet" and work.on is not None:
        raise UsageError("--on writes Parquet in parts: -o FOLDER/")
    if kind == "parquet" and work.jobs not in (None, 1):
        raise UsageError(f"--jobs {work.jobs}: one process writes a Parquet file")
