"""The options of commands that ask of the data as a whole: what is read, and what if it is bad."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_cli.commands.options.source import (
    ErrorOptions,
    RecordOption,
    SourceOptions,
    WorkOptions,
    tell_errors,
    tell_notes,
    tell_skipped,
)
from grpo_cli.engine import Reader
from grpo_cli.errors import InputError
from grpo_cli.variants.plan import Plan


@dataclass(frozen=True, kw_only=True)
class LoadingOptions(ErrorOptions, RecordOption, SourceOptions):
    """How the input is read."""

    def reader(self, paths: Sequence[str], work: WorkOptions | None = None) -> Reader:
        """The files, read so; by as many as ``work`` says, or one."""
        return Reader(
            paths,
            self.reading(self.record),
            skip=self.on_error == "skip",
            most_errors=self.max_errors,
            jobs=1 if work is None else work.jobs,
            on=None if work is None else work.on,
        )

    @property
    def words(self) -> list[str]:
        """These options as words of a command line."""
        words = super().words + ([] if self.record is None else ["--record", self.record])
        return words + (["--on-error", "skip"] if self.on_error == "skip" else [])


def finish(source: Reader, *plans: Plan, as_json: bool, quiet: bool) -> int:
    """Tells what there is to know of the files; returns the exit code that they lead to."""
    tell_notes(source.notes(*plans), quiet=quiet)
    tell_errors(source.skipped, as_json=as_json)
    tell_skipped(source.skipped)
    return InputError.exit_code if source.skipped else 0
