"""``grpo match``: which conventions reproduce a number that a trainer logged."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from grpo_cli.commands.match.ask import ask
from grpo_cli.commands.match.view import print_matches
from grpo_cli.commands.options.objective import OneBatchOptions, Rtol, number
from grpo_cli.commands.options.option import option
from grpo_cli.commands.options.output import PageOptions
from grpo_cli.commands.options.source import (
    Files,
    LoadingOptions,
    WorkOptions,
    finish,
    paths,
    print_notes,
)
from grpo_cli.engine.reader import ONE_STEP
from grpo_cli.errors import UsageError
from grpo_cli.terminal.progress import waiting

NO = 1


def _text(value: str) -> str:
    """A number, kept as it was typed: its digits say how exact it is."""
    number(value)
    return value


def _logged(name: str, text: str) -> Any:
    return option(f"--{name}", "NUMBER", text, parser=_text)


def match_number(
    *,
    files: Files = None,
    loss: Annotated[str | None, _logged("loss", "Logged loss, with all its digits.")] = None,
    target_objective: Annotated[
        str | None, _logged("objective", "Logged objective, instead of a loss.")
    ] = None,
    clip_fraction: Annotated[
        str | None, _logged("clip-fraction", "Logged clip fraction of the same step.")
    ] = None,
    gradient_norm: Annotated[
        str | None, _logged("gradient-norm", "Logged gradient norm (and --kl X: logged KL).")
    ] = None,
    logged_at: Annotated[
        list[str] | None,
        option("--logged", "NAME=PATH", "Read the number from records: loss=metrics.loss."),
    ] = None,
    rtol: Rtol = None,
    betas: Annotated[
        str | None,
        option("--betas", "A,B,…", "Values of β to try; default: β is solved for.", "Objective"),
    ] = None,
    objective: OneBatchOptions,
    loading: LoadingOptions,
    work: WorkOptions,
    page: PageOptions,
) -> int:
    """Find the conventions that give a number you logged.

    \b
    grpo match rollouts.jsonl --loss 0.054325
    grpo match rollouts.jsonl --loss 0.0543 --kl 0.0123 --gradient-norm 1.27
    grpo match run.jsonl --logged loss=metrics.loss

    Tries every variant (with -v only that one), then each with one or two stages
    replaced, and prints the likeliest match first. Your digits set the tolerance:
    0.0256 means ±0.00005, and what float32 may have rounded is added; with --rtol
    only that counts. What you set by flags stays fixed. Exits with 1 if nothing gives
    the number, or if every match may be chance.

    Also tried: variants as earlier releases had them, the flipped sign, and the factors
    of gradient accumulation and data parallelism. If β is unknown, solves for it, and
    for max_completion_length and ε where no usual one fits; a solved ε is of both
    bounds, or of one. A convention is likely if it has at most two changes, or is a
    variant of the framework whose field names the records use. A match by chance does
    not exit with 1 if it is the variant that the records name.
    """  # noqa: D301 - \b is for the help's formatter
    for place in files or ():
        if re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", str(place)) and not Path(place).exists():
            raise UsageError(f"{place}: no such file; for the logged number write --loss {place}")
    kl, objective = _kl_number(objective)
    given = {"loss": loss, "objective": target_objective, "kl": kl}
    given |= {"clip_fraction": clip_fraction, "gradient_norm": gradient_norm}
    plan, places = objective.plan(strict=False).of_one_batch(), paths(files)
    source = loading.reader(places, work)
    with waiting("trying conventions (up to 30 s for large data)", wanted=not page.quiet):
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
    page.write(
        made,
        lambda console, screen: print_matches(console, screen, made),
        rows=made.matches or made.nearest,
        beyond="cut",
        notes=source.notes() | pooled,
    )
    print_notes(pooled, quiet=page.quiet)
    code = finish(source, as_json=page.json, quiet=page.quiet)
    return code or (0 if made.reproduced or made.consistent else NO)


def _kl_number(objective: OneBatchOptions) -> tuple[str | None, OneBatchOptions]:
    """The KL that was logged, where --kl gives a number and not the name of an estimator."""
    given = objective.kl
    if given is None or not re.match(r"[+-]?\.?\d", given):
        return None, objective
    return _text(given), replace(objective, kl=None)
