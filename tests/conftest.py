"""What holds for every test."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import forked
import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job ignores Ctrl-C,
    signal.signal(signal.SIGINT, signal.default_int_handler)  # and so would what the tests start
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup ignores

# What several folders ask: the experiment's trials, and every command on usual data.
sys.path += [str(Path(__file__).parent / name) for name in ("benchmarks", "house")]

# Neither the workers nor what the tests start compile what is imported again each time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

with suppress(ImportError):  # where clusters and parity are tested these are not needed
    import hypothesis
    import mpmath

    # One for all that use it, as in vectors/oracle/batch.py, which is run without pytest too.
    mpmath.mp.dps = 60

    # A busy machine is no fault: no test asserts on time.
    slow = [hypothesis.HealthCheck.too_slow]
    examples = 100 if "GRPO_MORE" in os.environ else 30  # .ci/run tries more
    hypothesis.settings.register_profile(
        "patient", deadline=None, suppress_health_check=slow, max_examples=examples
    )
    hypothesis.settings.load_profile("patient")


def pytest_configure(config: pytest.Config) -> None:
    """The package is tested as users run it: pytest rewrites the asserts of a plugin's package."""
    config.pluginmanager.rewrite_hook._must_rewrite.discard("grpo_cli")
    import command  # noqa: F401 - not before the line above


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked ``more`` are those of ``.ci/run``, which sets GRPO_MORE."""
    if "GRPO_MORE" not in os.environ:
        config.hook.pytest_deselected(
            items=[one for one in items if one.get_closest_marker("more")]
        )
        items[:] = [one for one in items if one.get_closest_marker("more") is None]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays: garbage is not looked for in it, a third of collecting's time.

    And afterwards seldom: the thresholds are Python's times a hundred.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(70_000, 10, 10)
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[pytest.CollectReport]:
    """One worker at a time imports a file: what the first has compiled the others only read."""
    with Path(__file__).open() as own:
        fcntl.flock(own, fcntl.LOCK_EX)
        return (yield)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def quick() -> Iterator[Path]:
    """A folder with a ``grpo`` and a ``pytest`` that spare the imports."""
    with forked.started() as folder:
        yield folder


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Bytes are no test's name: packed data hold the time, and workers must agree on the names."""
    return f"{argname} of {len(val)} bytes" if isinstance(val, bytes) else None
