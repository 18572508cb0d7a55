"""The parity run: ``pytest tests/parity`` with the extra ``parity`` installed.

The ordinary run does not collect this directory. Here a missing framework is a failure, never a
skip: a comparison that did not happen must not look like one that agreed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from .agreement import AGREEMENT

NEEDED = ("torch", "trl", "verl")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-golden",
        action="store_true",
        help="write tests/golden/*.json from the frameworks' own numbers, and the agreement",
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.exit(
            f"tests/parity needs {', '.join(missing)}: pip install '.[parity]'", returncode=1
        )


@pytest.fixture(scope="session")
def writing(request: pytest.FixtureRequest) -> bool:
    """Whether this run writes the golden files."""
    return bool(request.config.getoption("--write-golden"))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == 0 and session.config.getoption("--write-golden", default=False):
        AGREEMENT.write()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The same sums in every run, and no fight for cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
