"""The pytest plugin: ``pytest --grpo-vectors``.

pytest imports this module at every start wherever grpo-cli is installed, so it imports nothing;
the rest is read when the option is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the two options."""
    group = parser.getgroup("grpo", "conformance vectors for GRPO losses")
    group.addoption(
        "--grpo-vectors",
        action="store_true",
        help="run the vectors on the losses that fixtures named grpo_vectors return",
    )
    group.addoption(
        "--grpo-vectors-json", metavar="FILE", help="write the results and a badge to FILE"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers what collects and reports, if it was asked for."""
    if config.getoption("--grpo-vectors") or config.getoption("--grpo-vectors-json"):
        from grpo_cli.vectors.suite import Suite

        config.pluginmanager.register(Suite(config), "grpo-vectors-suite")
