"""``grpo match``: which conventions reproduce a number that a trainer logged."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from grpo_cli.commands.match.candidate import Target, described
from grpo_cli.commands.match.search import RTOL, Answer, Search
from grpo_cli.commands.match.sums import Data
from grpo_cli.commands.match.view import print_matches
from grpo_cli.commands.options.bundle import bundled
from grpo_cli.commands.options.loading import LoadingOptions, finish
from grpo_cli.commands.options.objective import Files, ObjectiveOptions, paths
from grpo_cli.commands.options.page import PageOptions
from grpo_cli.commands.options.values import number
from grpo_cli.errors import InputError, UsageError
from grpo_cli.terminal.messages import failures, say

NO = 1
_SHOWN = 20


def _target(name: str, what: str) -> Any:
    return typer.Option(
        f"--{name}", metavar="NUMBER", help=f"The {what}.", parser=number, show_default=False
    )


@bundled
def match_number(
    *,
    files: Files = None,
    loss: Annotated[float | None, _target("loss", "loss that was logged")] = None,
    target_objective: Annotated[
        float | None, _target("objective", "objective, where that was logged instead")
    ] = None,
    rtol: Annotated[
        float | None,
        typer.Option(
            "--rtol",
            metavar="NUMBER",
            parser=number,
            help=f"Relative tolerance. Default: {RTOL}, for sums in float32; give more for a "
            "number that was rounded.",
            show_default=False,
        ),
    ] = None,
    betas: Annotated[
        str | None,
        typer.Option(
            "--betas",
            metavar="A,B,…",
            help="Values of β to try. Default: the given one, or a few usual ones.",
            show_default=False,
        ),
    ] = None,
    objective: ObjectiveOptions,
    loading: LoadingOptions,
    page: PageOptions,
) -> None:
    """Find the conventions that reproduce a logged loss.

    \b
    grpo match rollouts.jsonl --loss 0.054325
    grpo match rollouts.jsonl --loss 0.054325 --batch record --aggregate token-mean

    Every variant is tried as it is, and every combination of a standard
    deviation, a clip, a KL and a denominator, then with the other sign and
    the factors of accumulation and data parallelism. Stages that flags swap
    stay as they are. Exit codes: 0 found, 1 nothing reproduces the number,
    2 usage, 3 bad input.
    """  # noqa: D301 - \b is for the help's formatter
    with failures(as_json=page.json):
        target = _checked(loss, target_objective, RTOL if rtol is None else rtol)
        plan, places = objective.plan(), paths(files)
        source = loading.reader(places)
        data = Data([*source])
        if not data.chunks:
            raise InputError("no record can be read")
        answer = Search(plan, data, _numbers(betas)).answer(target)
        document = _document(answer, data, [*places, *loading.words], target)
        page.write(document, lambda console, screen: print_matches(console, screen, document))
        if len(answer.matches) > _SHOWN and not page.quiet:
            say(f"… {len(answer.matches) - _SHOWN} more conventions agree")
        code = finish(source, as_json=page.json, quiet=page.quiet)
    raise typer.Exit(code or (0 if answer.matches else NO))


def _checked(loss: float | None, objective: float | None, rtol: float) -> Target:
    if (loss is None) == (objective is None):
        raise UsageError("give the logged number as --loss X or --objective X, one of them")
    if rtol < 0:
        raise UsageError(f"--rtol: expected a number >= 0, got {rtol}")
    if loss is not None:
        return Target(loss, "loss", rtol)
    return Target(objective or 0.0, "objective", rtol)


def _numbers(betas: str | None) -> list[float]:
    return [] if betas is None else [number(part.strip()) for part in betas.split(",")]


def _document(answer: Answer, data: Data, places: list[str], target: Target) -> dict[str, Any]:
    def rows(found: Any) -> list[dict[str, Any]]:
        return [described(one, data, places, target) for one in found]

    return {
        "target": target.number,
        "target_of": target.of,
        "rtol": target.rtol,
        "matches": rows(answer.matches[:_SHOWN]),
        "ambiguous": answer.ambiguous,
        "match_count": len(answer.matches),
        "tell_apart": list(answer.apart),
        "nearest": rows(answer.nearest),
        "tried": answer.tried,
        "not_tried": dict(answer.reasons),
    }
