"""``grpo compare``: several variants on the same data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Annotated

import typer

from grpo_cli.commands.compare.compare import Comparison
from grpo_cli.commands.compare.view import print_comparison
from grpo_cli.commands.options import complete
from grpo_cli.commands.options.bundle import bundled
from grpo_cli.commands.options.loading import LoadingOptions, finish
from grpo_cli.commands.options.objective import Files, StageOptions, paths
from grpo_cli.commands.options.page import PageOptions
from grpo_cli.errors import InputError, UsageError
from grpo_cli.hyperparameters import HyperparameterError, Value, canonical
from grpo_cli.terminal.messages import failures, say
from grpo_cli.variants import VARIANTS
from grpo_cli.variants.plan import Plan, plan

_USUAL = "grpo,dr,dapo,bnpo,gspo,cispo"

Names = Annotated[
    str,
    typer.Option(
        "--variants",
        "-v",
        metavar="A,B,…",
        help="The objectives; patterns as 'trl/*' are allowed, and all is every one. "
        "Cosines are with the first.",
        autocompletion=complete.variant_list,
    ),
]


@bundled
def compare(
    *,
    files: Files = None,
    variants: Names = _USUAL,
    stages: StageOptions,
    loading: LoadingOptions,
    page: PageOptions,
) -> None:
    """Evaluate several variants on the same data, side by side.

    \b
    grpo compare rollouts.jsonl --variants grpo,dr,dapo
    grpo compare rollouts.jsonl --variants all --json | jq '.variants[].loss'

    The data is read once. Flags apply to every variant that takes them, and a
    record's hyperparameters as in eval. Variants that the data cannot serve
    are listed with the reason. Exit codes: 0 done, 2 usage, 3 bad input.
    """  # noqa: D301 - \b is for the help's formatter
    with failures(as_json=page.json):
        plans = _plans(_names(variants), stages, quiet=page.quiet)
        source = loading.reader(paths(files))
        comparison = Comparison(plans, source)
        rows, skipped = comparison.rows(), comparison.reasons()
        document = {"variants": rows, "skipped": skipped, **comparison.counts}
        page.write(
            document,
            lambda console, screen: print_comparison(console, screen, document),
            failed=not rows,
            rows=rows,
            beyond="cut",
            notes=source.notices,
        )
        code = finish(source, as_json=page.json, quiet=page.quiet)
        if not rows:
            code = InputError.exit_code
            say("the data can serve none of these variants")
    raise typer.Exit(code)


def _names(given: str) -> list[str]:
    """The variants that are asked for, each once, under the names that they are listed by."""
    found: dict[str, None] = {}
    for name in filter(None, (part.strip() for part in given.split(","))):
        found |= dict.fromkeys(_matching(name))
    if not found:
        raise UsageError("--variants: no name given")
    return list(found)


def _matching(name: str) -> Iterable[str]:
    if name == "all":
        return VARIANTS
    if any(mark in name for mark in "*?["):
        matching = [one for one in VARIANTS if fnmatchcase(one, name)]
        if not matching:
            raise UsageError(f"--variants: no variant matches {name!r}; see grpo variants")
        return matching
    return [plan(name).variant]


def _plans(names: list[str], stages: StageOptions, *, quiet: bool) -> list[Plan]:
    """Each variant with the flags that it takes.

    Raises:
        UsageError: for a flag that none of them takes.
    """
    flags = _canonical(stages.hyperparameters)
    bare = [plan(name, stages=stages.stages, batch=stages.batch) for name in names]
    for flag in flags:
        without = [one.variant for one in bare if flag not in one.takes()]
        if len(without) == len(bare):
            raise UsageError(f"{flag}: none of the variants takes it")
        if without and not quiet:
            say(f"note: {flag} is not for {', '.join(without)}")
    return [_with(one, flags, stages) for one in bare]


def _with(bare: Plan, flags: Mapping[str, Value], stages: StageOptions) -> Plan:
    taken = bare.takes()
    own = {flag: value for flag, value in flags.items() if flag in taken}
    return plan(bare.variant, stages=stages.stages, hyperparameters=own, batch=stages.batch)


def _canonical(given: Mapping[str, object]) -> Mapping[str, Value]:
    try:
        return canonical(given)
    except HyperparameterError as error:
        raise UsageError(str(error)) from None
