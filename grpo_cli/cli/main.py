"""The command ``grpo``: its commands, and how each way of ending becomes an exit code."""

from __future__ import annotations

import signal
import sys
import traceback
from importlib.metadata import version
from typing import Annotated

import typer

from grpo_cli.cli.check import check
from grpo_cli.cli.compare import compare
from grpo_cli.cli.eval import evaluate
from grpo_cli.cli.explain import explain_topic
from grpo_cli.cli.failure import say, tell
from grpo_cli.cli.match import match_number
from grpo_cli.cli.split import split_batch
from grpo_cli.cli.show import show
from grpo_cli.cli.variants import list_variants
from grpo_cli.cli.verify import verify
from grpo_cli.errors import GrpoError

BUG = 70

app = typer.Typer(
    name="grpo",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"grpo {version('grpo-cli')}")
        raise typer.Exit


@app.callback()
def _grpo(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            help="Print the version.",
            is_eager=True,
            callback=lambda wanted: _print_version(wanted=wanted),
        ),
    ] = False,
) -> None:
    """What a GRPO-family objective is on the data you have, token by token.

    \b
    grpo eval rollouts.jsonl --variant dr
    zcat dump.jsonl.gz | grpo eval --level token --format jsonl | jq .loss
    """  # noqa: D301 - \b is for the help's formatter
    del version


app.command("eval")(evaluate)
app.command("compare")(compare)
app.command("match")(match_number)
app.command("split")(split_batch)
app.command("explain")(explain_topic)
app.command("verify")(verify)
app.command("check")(check)
app.command("show")(show)
app.command("variants")(list_variants)


def main() -> None:
    """Runs the command and exits: 0, 2 usage, 3 input, 70 a bug, 130 Ctrl-C, 141 closed pipe."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        app()
    except GrpoError as error:
        tell(error)
        sys.exit(error.exit_code)
    except OSError as error:
        reason = error.strerror or str(error)
        say(f"{error.filename}: {reason}" if error.filename else reason)
        sys.exit(GrpoError.exit_code)
    except Exception:
        traceback.print_exc()
        sys.exit(BUG)


if __name__ == "__main__":
    main()
