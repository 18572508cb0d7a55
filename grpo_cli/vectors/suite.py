"""What pytest runs with ``--grpo-vectors``: a test for each case and fixture; known failures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from grpo_cli.mistakes import flags
from grpo_cli.vectors.case import Case, cases
from grpo_cli.vectors.claims import Loss, NotClaimedError, claimed
from grpo_cli.vectors.likely import failing
from grpo_cli.vectors.summary import Outcome, Tally
from grpo_cli.vectors.verdict import Verdict, judge

LINK = re.compile(r"https?://\S+")
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

    def prepared(self, request: pytest.FixtureRequest, case: Case) -> tuple[Loss, Xfail | None]:
        """What the fixture returns, and the line of its xfail file that covers the case.

        Where that raises, pytest shows one traceback, not one per case.
        """
        if self.broken:
            pytest.fail(self.broken, pytrace=False)
        try:
            loss: Loss = request.getfixturevalue(self.name)
            listed = read_xfail(self.path.parent / loss.xfail) if loss.xfail else []
        except Exception as error:
            self.broken = f"{self.name}: {type(error).__name__}: {error}"
            raise
        return loss, covering(listed, case)


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
        loss, line = node.parent.prepared(request, case)
        node.outcome["line"] = line.name if line else ""
        try:
            verdict = _verdict(loss, claimed(case, loss.claims), line)
        except NotClaimedError as reason:
            node.outcome.update(outcome="not claimed", reason=str(reason))
            pytest.skip(f"not claimed: {reason}")
        _conclude(verdict, case, line, node.outcome)

    return test


def _verdict(loss: Loss, case: Case, line: Xfail | None) -> Verdict:
    try:
        return judge(loss.compute, case, loss.claims)
    except NotClaimedError:
        raise
    except Exception as error:
        if line is None:
            raise
        return Verdict([f"{type(error).__name__}: {error}"])


def _conclude(verdict: Verdict, case: Case, line: Xfail | None, outcome: dict[str, Any]) -> None:
    outcome["wrong"] = tuple(verdict.wrong)
    if verdict.problems and line:
        outcome.update(outcome="xfailed", reason=line.reason)
        pytest.xfail(line.reason)
    if verdict.problems:
        outcome.update(outcome="failed", reason=verdict.problems[0])
        more = len(verdict.problems) - SHOWN
        shown = [*verdict.problems[:SHOWN], *([f"… and {more} more"] if more > 0 else [])]
        pytest.fail("\n".join([f"{case.id}: {case.comment}", *shown]), pytrace=False)
    if line and line.strict:
        outcome.update(outcome="failed", reason="passes, but is in the xfail file")
        pytest.fail(f"{case.id} passes: remove it from the xfail file", pytrace=False)
    signature = f"{case.topic}: {verdict.signature}" if verdict.signature else ""
    outcome.update(outcome="passed", signature=signature)


class Xfail(NamedTuple):
    """One line: ``name`` is a case's id or a flag."""

    name: str
    reason: str

    @property
    def strict(self) -> bool:
        """A case that is named must fail; one that only has the flag may pass."""
        return "/" in self.name

    @property
    def cases(self) -> frozenset[str]:
        """The case that is named, or those that fail with the mistake."""
        return frozenset([self.name]) if self.strict else failing(self.name)


def read_xfail(path: Path) -> list[Xfail]:
    """The lines of a file; ``#`` begins a comment line.

    Raises:
        ValueError: a name that no vector has, a line without a link, or the same name twice.
    """
    known = {case.id for case in cases()} | set(flags())
    found: dict[str, Xfail] = {}
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not text.strip() or text.startswith("#"):
            continue
        place = f"{path.name}:{number}"
        name, _, reason = text.strip().partition(" ")
        if name not in known:
            raise ValueError(f"{place}: no vector and no flag has the name {name!r}")
        if not LINK.search(reason):
            raise ValueError(f"{place}: {name} needs a reason with a link to the thread")
        if name in found:
            raise ValueError(f"{place}: {name} occurs twice")
        found[name] = Xfail(name, reason.strip())
    return list(found.values())


def covering(lines: list[Xfail], case: Case) -> Xfail | None:
    """The line about a case: of several the one that is about the fewest cases."""
    about = [line for line in lines if case.id in line.cases]
    return min(about, key=lambda line: len(line.cases), default=None)
