"""An evaluation as a stream of pieces that ends, early or not, with its totals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from grpo_cli.commands.eval.notes import notes
from grpo_cli.commands.options.source import tell_errors, tell_skipped
from grpo_cli.engine import Evaluation
from grpo_cli.errors import GrpoError, InputError, UsageError
from grpo_cli.terminal.messages import say, tell

BAD_INPUT = InputError.exit_code


Advised = Callable[[GrpoError], GrpoError]


class Run:
    """Iterates an evaluation; remembers the error that stopped it, and tells of those it skips.

    What came before an error is still printed, so the error is printed last (``finish``).
    """

    def __init__(
        self, evaluation: Evaluation, *, as_json: bool, advised: Advised = lambda error: error
    ) -> None:
        self._advised = advised
        self._evaluation = evaluation
        self._as_json = as_json
        self._told = 0
        self._error: GrpoError | None = None

    def __iter__(self) -> Iterator[list[Any]]:
        try:
            for pieces in self._evaluation:
                self._tell_skipped()
                yield pieces
        except UsageError:
            raise
        except GrpoError as error:
            self._error = error
        self._tell_skipped()

    def _tell_skipped(self) -> None:
        self._told = tell_errors(self._evaluation.skipped, self._told, as_json=self._as_json)

    @property
    def total(self) -> dict[str, Any]:
        """The totals of everything evaluated."""
        return self._evaluation.total

    @property
    def batches(self) -> list[dict[str, Any]]:
        """The totals of each batch, where ``--batch`` names fields."""
        return self._evaluation.batches

    def gradient_size(self, row: Mapping[str, Any]) -> float:
        """Σ |gradient| over the tokens of the batch that a record's row belongs to."""
        return self._evaluation.gradient_size(row)

    @property
    def signature(self) -> str:
        """The signature of what ran."""
        return self._evaluation.signature

    @property
    def notices(self) -> list[str]:
        """What there was to say of the files, which ``finish`` tells."""
        return list(self._evaluation.notices)

    @property
    def complete(self) -> bool:
        """Whether the whole input was evaluated, but for records that were to be skipped.

        Of a batch that was not read whole no total is printed: a script would take it for one.
        """
        return self._error is None

    @property
    def empty(self) -> bool:
        """Whether nothing could be evaluated: there is nothing to print."""
        failed = self._error is not None or self._told > 0
        return failed and not self.total["records"]

    def finish(self, *, told_in_table: bool, quiet: bool) -> int:
        """Tells what there is to know about the numbers, then what went wrong.

        Returns:
            The exit code.
        """
        if not quiet:
            said = [] if told_in_table or self.empty else notes(self.total)
            for note in [*self._evaluation.notices, *said]:
                say(f"note: {note}")
        skipped = self._evaluation.skipped
        tell_skipped(skipped, skipped.count + self.total["records"])
        if self._error is not None:
            tell(self._advised(self._error), as_json=self._as_json)
            return self._error.exit_code
        return BAD_INPUT if skipped else 0
