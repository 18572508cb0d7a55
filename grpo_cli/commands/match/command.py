"""``grpo match``: which conventions reproduce a number that a trainer logged."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, Any

import typer

from grpo_cli.commands.match.ask import ask
from grpo_cli.commands.match.view import print_distances, print_matches
from grpo_cli.commands.options.everywhere import bundled
from grpo_cli.commands.options.objective import ObjectiveOptions, number
from grpo_cli.commands.options.output import PageOptions
from grpo_cli.commands.options.source import (
    Files,
    LoadingOptions,
    WorkOptions,
    finish,
    paths,
    tell_notes,
)
from grpo_cli.engine.reader import ONE_STEP
from grpo_cli.terminal.messages import failures

NO = 1


def _text(value: str) -> str:
    """A number, kept as it was typed: its digits say how exact it is."""
    number(value)
    return value


def _target(name: str, what: str) -> Any:
    return typer.Option(
        f"--{name}", metavar="NUMBER", help=f"{what}", parser=_text, show_default=False
    )


@bundled
def match_number(
    *,
    files: Files = None,
    loss: Annotated[
        str | None, _target("loss", "The loss that was logged, with all its digits.")
    ] = None,
    target_objective: Annotated[
        str | None, _target("objective", "The objective, where that was logged instead.")
    ] = None,
    clip_fraction: Annotated[
        str | None, _target("clip-fraction", "The clip fraction that was logged with it.")
    ] = None,
    gradient_norm: Annotated[
        str | None, _target("gradient-norm", "The gradient norm likewise; --kl X the KL.")
    ] = None,
    logged_at: Annotated[
        list[str] | None,
        typer.Option(
            "--logged",
            metavar="NAME=PATH",
            help="Where the records carry a number, as loss=metrics.loss; again for kl=PATH, "
            "gradient_norm=PATH, clip_fraction=PATH.",
            show_default=False,
        ),
    ] = None,
    rtol: Annotated[
        float | None,
        typer.Option(
            "--rtol",
            metavar="NUMBER",
            parser=number,
            help="Relative tolerance. Default: half a unit of the last digit typed.",
            show_default=False,
        ),
    ] = None,
    betas: Annotated[
        str | None,
        typer.Option(
            "--betas",
            metavar="A,B,…",
            help="Values of β to try. Default: the given one, or β is solved for.",
            show_default=False,
        ),
    ] = None,
    plot: Annotated[
        bool, typer.Option("--plot", help="How far off each is, as bars in place of the list.")
    ] = False,
    objective: ObjectiveOptions,
    loading: LoadingOptions,
    work: WorkOptions,
    page: PageOptions,
) -> None:
    """Find the conventions that reproduce a logged loss.

    \b
    grpo match rollouts.jsonl --loss 0.054325
    grpo match rollouts.jsonl --loss 0.0543 --kl 0.0123 --gradient-norm 1.27
    grpo match run.jsonl --logged loss=metrics.loss

    The tolerance follows from the digits: 0.0256 means ±0.00005. Every
    variant is tried unmodified, then with one or two stages changed, with the
    other sign, and with the factors of accumulation and data parallelism. β
    and ε are solved for where they are not known; values that no framework's
    defaults or recipes have count against a match. Stages that flags swap stay
    as they are. Variants that are equal on the data are one answer, that of the
    framework whose field names the records use first; --full shows their
    signatures. Exit codes: 0 found, 1 nothing reproduces the number, or no
    more than chance would, 2 usage, 3 bad input.
    """  # noqa: D301 - \b is for the help's formatter
    with failures(as_json=page.json):
        kl, objective = _kl_number(objective)
        given = {"loss": loss, "objective": target_objective, "kl": kl}
        given |= {"clip_fraction": clip_fraction, "gradient_norm": gradient_norm}
        plan, places = objective.of_one_batch(), paths(files)
        source = loading.reader(places, work)
        made = ask(
            plan,
            source,
            places,
            loading.words,
            numbers={name: text for name, text in given.items() if text is not None},
            at=logged_at or (),
            rtol=rtol,
            betas=[] if betas is None else [number(one.strip()) for one in betas.split(",")],
        )
        pooled = {} if logged_at else source.pooled(plan.batch, ONE_STEP)
        draw = print_distances if plot else print_matches
        page.write(
            made,
            lambda console, screen: draw(console, screen, made),
            rows=made.matches or made.nearest,
            beyond="cut",
            notes=source.notes() | pooled,
        )
        tell_notes(pooled, quiet=page.quiet)
        code = finish(source, as_json=page.json, quiet=page.quiet)
    raise typer.Exit(code or (0 if made.reproduced else NO))


def _kl_number(objective: ObjectiveOptions) -> tuple[str | None, ObjectiveOptions]:
    """The KL that was logged, where --kl gives a number and not the name of an estimator."""
    given = objective.kl
    if given is None or not re.match(r"[+-]?\.?\d", given):
        return None, objective
    return _text(given), replace(objective, kl=None)
