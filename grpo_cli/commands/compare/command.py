"""``grpo compare``: several variants on the same data."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from grpo_cli.commands.compare.answer import NAMES, in_order, sum_notes
from grpo_cli.commands.compare.compare import USUAL, compare_plans, names, plans
from grpo_cli.commands.compare.view import print_comparison
from grpo_cli.commands.diff.command import NO, are_two_runs, diff_runs
from grpo_cli.commands.options import complete
from grpo_cli.commands.options.objective import StageOptions
from grpo_cli.commands.options.option import option
from grpo_cli.commands.options.output import PageOptions, fields_option, named_fields
from grpo_cli.commands.options.source import (
    Files,
    LoadingOptions,
    WorkOptions,
    finish,
    paths,
    print_notes,
)
from grpo_cli.errors import InputError
from grpo_cli.terminal.messages import say
from grpo_cli.terminal.numbers import shell_line

Names = Annotated[
    list[str] | None,
    option(
        "--variants -v",
        "A,B,…",
        "Objectives: names, patterns ('trl/*'), or all.",
    ),
]


Own = Annotated[
    bool,
    option(
        "--own",
        "",
        "Each variant's own ε, β, … and advantages, not those of the records.",
        "Objective",
    ),
]
By = Annotated[
    str | None,
    option(
        "--by",
        "COLUMN",
        "Sort the rows by this column, the least first.",
        autocompletion=complete.among(NAMES),
    ),
]

_TWO = (
    "compared as two runs, token by token; {} compares each metric, with its interval; "
    "-v A,B,… evaluates variants on both files as one input"
)
_ONE = "both files are read as one input; {} compares them with each other"


def compare(
    *,
    files: Files = None,
    variants: Names = None,
    own: Own = False,
    stages: StageOptions,
    loading: LoadingOptions,
    work: WorkOptions,
    columns: Annotated[str | None, fields_option(complete.among(NAMES))] = None,
    by: By = None,
    page: PageOptions,
) -> int:
    """Compare variants on the same data, or two runs with each other.

    \b
    grpo compare rollouts.jsonl --variants grpo,dr,dapo
    grpo compare rollouts.jsonl --variants all --json | jq '.variants[].loss'
    grpo compare run-a/rollouts run-b/rollouts

    Settings and advantages of the records replace those of a variant; --own keeps its
    settings, and computes advantages from the rewards. Cosines are with the gradient of
    the first variant. Two runs are compared token by token, as by `grpo diff`.

    A flag applies to the variants that take it. Variants that cannot be evaluated are
    listed with the reason; many variants are listed by their cosine, the least first.
    With --variants, all files are one input. `grpo trend --against` compares the metrics
    of two runs. Files whose names differ only by a step or a rank are one run.
    """  # noqa: D301 - \b is for the help's formatter
    two = files if files is not None and len(files) == 2 else None
    asks_variants = own or by or variants is not None or columns is not None or stages.are_given
    if two is not None and not asks_variants:
        if are_two_runs(two, loading):
            against = shell_line(["grpo", "trend", two[0], "--against", two[1]])
            print_notes([_TWO.format(against)], quiet=page.quiet)
            same = diff_runs((two[0], two[1]), loading, None, None, page)
            return 0 if same else NO
        paths(files)  # what cannot be opened is an error before the note
        print_notes([_ONE.format(shell_line(["grpo", "diff", *two]))], quiet=page.quiet)
    elif two is not None and are_two_runs(two, loading):
        print_notes([_ONE.format(shell_line(["grpo", "diff", *two]))], quiet=page.quiet)
    batch = "input" if stages.batch is None else stages.batch
    wanted = names(",".join(variants or [USUAL]))
    made, notes = plans(wanted, stages.stages, stages.hyperparameters, batch, own=own)
    made = [replace(plan, asked=variants is not None) for plan in made]
    print_notes(notes, quiet=page.quiet)
    source = loading.reader(paths(files), work)
    answer = compare_plans(made, source)
    alone = source.ungrouped(answer.records, answer.groups, answer.responses)
    hidden = source.pooled(batch) | sum_notes(answer) | dict.fromkeys([alone] if alone else [])
    above = page.above(source.other_row(*made) | hidden)
    if by is not None:
        by = complete.known("--by", by, NAMES)
    rows = [one.fields() for one in in_order(answer.variants, by)]
    if (shown := named_fields(columns, rows[0] if rows else NAMES)) is not None:
        rows = [{name: row[name] for name in shown} for row in rows]
    page.write(
        answer.fields() | {"variants": rows},
        lambda console, screen: print_comparison(console, screen, answer, shown, by),
        failed=not rows,
        rows=rows,
        beyond="cut",
        above=above,
        notes=source.notes(*made) | hidden,
    )
    print_notes((note for note in hidden if note not in above), quiet=page.quiet)
    code = finish(source, *made, as_json=page.json, quiet=page.quiet, printed=above)
    if not answer.variants:
        code = InputError.exit_code
        say("none of these variants can be evaluated on this data")
    return code
