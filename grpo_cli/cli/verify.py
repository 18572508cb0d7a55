"""``grpo verify``: does a record evaluate to what it says it should?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from grpo_cli.cli import complete
from grpo_cli.cli.bundle import bundled
from grpo_cli.cli.failure import failures, say, tell
from grpo_cli.cli.options import Files, StageOptions, VariantOption, paths
from grpo_cli.cli.page import PageOptions
from grpo_cli.cli.values import tolerance
from grpo_cli.diagnose.verify import Tolerance, Verdict, judge
from grpo_cli.diagnose.verify.framework import Chosen, choose, completed
from grpo_cli.errors import InputError
from grpo_cli.records import Raw, Record, cut, raws, record
from grpo_cli.report.verification import print_verification

NO = 1
_ROWS = 5

_HINT = (
    'no record has "expected": put what your own loss returned there, as '
    '{"expected": {"loss": …, "loss_gradient": [[…]], "advantages": […]}}'
)


@dataclass(frozen=True, kw_only=True)
class OwnVariant(VariantOption):
    """Which variant, where the record does not say."""

    variant: Annotated[
        str,
        typer.Option(
            "--variant",
            "-v",
            metavar="NAME",
            help="The objective. Default: what the record's `framework` says, else grpo.",
            autocompletion=complete.variants,
            show_default=False,
        ),
    ] = ""


@dataclass(frozen=True, kw_only=True)
class OwnBatch(StageOptions):
    """What is done to the variant; every record is a batch of its own."""

    batch: Annotated[Literal["input", "record"], typer.Option("--batch", hidden=True)] = "record"


Rtol = Annotated[
    float | None,
    typer.Option(
        "--rtol",
        metavar="NUMBER",
        parser=tolerance,
        help="Relative tolerance. Default: 1e-4, for losses computed in float32.",
        show_default=False,
    ),
]
Atol = Annotated[
    float | None,
    typer.Option(
        "--atol",
        metavar="NUMBER",
        parser=tolerance,
        help="Absolute tolerance. Default: 1e-6 of the largest number beside it.",
        show_default=False,
    ),
]
OnError = Annotated[
    Literal["stop", "skip"],
    typer.Option("--on-error", help="At a bad record: stop there, or go on without it."),
]


@bundled
def verify(
    *,
    files: Files = None,
    variant: OwnVariant,
    stages: OwnBatch,
    rtol: Rtol = None,
    atol: Atol = None,
    on_error: OnError = "stop",
    page: PageOptions,
) -> None:
    """Compare what records expect with what they evaluate to; name the first difference.

    \b
    grpo verify dump.jsonl
    grpo verify dump.jsonl -v trl/dapo --rtol 1e-6

    A record says what its own trainer computed: "expected": {loss or objective,
    policy_loss, advantages, ratio, kl, gradient or loss_gradient, metrics}.
    They are compared in the order of the stages; every record is a batch of
    its own. Exit codes: 0 all agree, 1 one differs, 2 usage, 3 bad input.
    """  # noqa: D301 - \b is for the help's formatter
    with failures(as_json=page.json):
        run = Run(variant.variant, stages, _within(rtol, atol), skip=on_error == "skip")
        rows = [*run.rows(paths(files))]
        run.tell(page)
        if not rows:
            if run.skipped:
                raise typer.Exit(InputError.exit_code)
            raise InputError(_HINT)
        document = run.document(rows)
        page.write(
            document, lambda console, screen: print_verification(console, screen, document)
        )
    raise typer.Exit(run.code(rows))


def _within(rtol: float | None, atol: float | None) -> Tolerance:
    return Tolerance(atol=atol) if rtol is None else Tolerance(rtol, atol)


class Run:
    """The records of files, each judged; remembers what there is to tell afterwards."""

    def __init__(
        self, variant: str, stages: StageOptions, within: Tolerance, *, skip: bool
    ) -> None:
        self._variant = variant
        self._stages = stages
        self._within = within
        self._skip = skip
        self._number = 0
        self.silent = 0
        self.skipped: list[InputError] = []
        self.rows_taken: dict[str, int] = {}
        self.ignored: dict[str, None] = {}

    def rows(self, files: list[str]) -> Iterator[dict[str, Any]]:
        """The verdict of each record that expects anything."""
        for raw in (raw for path in files for block in cut(path) for raw in raws(block)):
            try:
                found = self._judge(raw)
            except InputError as error:
                if not self._skip:
                    raise
                self.skipped.append(error)
                found = None
            if found is not None:
                self.ignored |= dict.fromkeys(found.ignored)
                yield found.row(self._number)
            self._number += 1

    def _judge(self, raw: Raw | InputError) -> Verdict | None:
        found = raw if isinstance(raw, InputError) else record(raw)
        if isinstance(found, InputError):
            raise found
        if found.expected is None:
            self.silent += 1
            return None
        assert isinstance(raw, Raw)
        chosen = self._choose(raw, found)
        words = chosen.words
        self.rows_taken[words] = self.rows_taken.get(words, 0) + 1
        plan = completed(
            chosen,
            advantages_given=found.advantages is not None,
            stages=self._stages.stages,
            hyperparameters=self._stages.hyperparameters,
        )
        return judge(found, plan, self._within)

    def _choose(self, raw: Raw, found: Record) -> Chosen:
        framework = raw.value.get("framework")
        if self._variant or not isinstance(framework, dict):
            return Chosen(self._variant or "grpo")
        try:
            return choose(framework)
        except InputError as error:
            raise InputError(
                error.message,
                path=found.prefix + error.path,
                source=found.source,
                line=found.line,
            ) from None

    def tell(self, page: PageOptions) -> None:
        """Says what was taken for granted."""
        for error in self.skipped:
            tell(error, as_json=page.json)
        if self.skipped:
            say(f"skipped {len(self.skipped)} of {self._number} records")
        if page.quiet:
            return
        if not self._variant:
            self._tell_rows()
        if self.silent and self.silent < self._number:
            say(f'note: {self.silent} of {self._number} records have no "expected"')
        if self.ignored:
            say(f"note: not compared: {', '.join(self.ignored)}")

    def _tell_rows(self) -> None:
        for words, count in list(self.rows_taken.items())[:_ROWS]:
            say(f"note: {count} record{'' if count == 1 else 's'} evaluated as {words}")
        if (more := sum(list(self.rows_taken.values())[_ROWS:])) > 0:
            say(f"note: … and {more} more otherwise (see the signatures of --json)")

    def document(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Everything as ``--json`` prints it."""
        return {
            "agrees": all(row["agrees"] for row in rows),
            "rtol": self._within.rtol,
            "atol": self._within.atol,
            "verified": len(rows),
            "differing": sum(not row["agrees"] for row in rows),
            "without_expected": self.silent,
            "records": rows,
        }

    def code(self, rows: list[dict[str, Any]]) -> int:
        """The exit code."""
        if not all(row["agrees"] for row in rows):
            return NO
        return InputError.exit_code if self.skipped else 0
