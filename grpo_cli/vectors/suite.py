"""What pytest runs with ``--grpo-vectors``: a test for each case and fixture; known failures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_cli.vectors.case import Case, cases
from grpo_cli.vectors.claims import Loss, NotClaimedError, claimed
from grpo_cli.vectors.summary import Outcome, Tally
from grpo_cli.vectors.verdict import Verdict, judge

FIXTURE = "grpo_vectors"
"""What a fixture is called, or begins with where a module has several."""

PROPERTY = "grpo-vectors"
SHOWN = 5


class Suite:
    """Collects the fixtures' cases, and reports on them at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self.tally = Tally()
        self.file = config.getoption("--grpo-vectors-json")

    def pytest_pycollect_makeitem(
        self, collector: pytest.Collector, name: str, obj: object
    ) -> pytest.Collector | None:
        """A fixture of the right name, where pytest looks for tests, becomes its cases."""
        if name.startswith(FIXTURE) and (
            hasattr(obj, "_fixture_function_marker") or hasattr(obj, "_pytestfixturefunction")
        ):
            return Vectors.from_parent(collector, name=name)
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Takes the outcome of a case into the tally, also from another process."""
        for name, value in report.user_properties:
            if name == PROPERTY and (report.when == "call" or report.outcome == "failed"):
                self.tally.outcomes.append(Outcome(**value))  # type: ignore[arg-type]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints the tally, and writes it where the option says."""
        terminalreporter.section("grpo vectors")
        for line in self.tally.lines():
            terminalreporter.write_line(line)
        if self.file:
            text = json.dumps(self.tally.document(), indent=1, ensure_ascii=False)
            Path(self.file).write_text(f"{text}\n", encoding="utf-8")


class Vectors(pytest.Collector):
    """The cases for one fixture; ``broken`` says how it raised, if it did."""

    broken = ""

    def collect(self) -> Iterator[pytest.Function]:
        """One test a case."""
        for case in cases():
            yield Vector.from_parent(self, name=case.id, callobj=_test(case), case=case)

    def prepared(self, request: pytest.FixtureRequest) -> Loss:
        """What the fixture returns; where that raises, pytest shows one traceback."""
        if self.broken:
            pytest.fail(self.broken, pytrace=False)
        try:
            loss: Loss = request.getfixturevalue(self.name)
        except Exception as error:
            self.broken = f"{self.name}: {type(error).__name__}: {error}"
            raise
        return loss


class Vector(pytest.Function):
    """One case on one loss."""

    def __init__(self, *, case: Case, **settings: Any) -> None:
        super().__init__(**settings)
        assert self.parent is not None
        self.outcome = Outcome(self.parent.nodeid, case.id, case.flags)._asdict()
        self.user_properties.append((PROPERTY, self.outcome))


def _test(case: Case) -> Callable[[pytest.FixtureRequest], None]:
    def test(request: pytest.FixtureRequest) -> None:
        node = request.node
        loss = node.parent.prepared(request)
        try:
            verdict = judge(loss.compute, claimed(case, loss.claims), loss.claims)
        except NotClaimedError as reason:
            node.outcome.update(outcome="not claimed", reason=str(reason))
            pytest.skip(f"not claimed: {reason}")
        _conclude(verdict, case, node.outcome)

    return test


def _conclude(verdict: Verdict, case: Case, outcome: dict[str, Any]) -> None:
    if verdict.problems:
        outcome.update(outcome="failed", reason=verdict.problems[0])
        more = len(verdict.problems) - SHOWN
        shown = [*verdict.problems[:SHOWN], *([f"… and {more} more"] if more > 0 else [])]
        pytest.fail("\n".join([f"{case.id}: {case.comment}", *shown]), pytrace=False)
    signature = f"{case.topic}: {verdict.signature}" if verdict.signature else ""
    outcome.update(outcome="passed", signature=signature)
