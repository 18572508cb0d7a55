"""Ray: one that is started here, or a cluster that is there."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from grpo_cli.engine.cluster.tasks import ClusterError, versions
from grpo_cli.errors import GrpoError, UsageError

_STORE = 1 << 30  # bytes of shared memory, where Ray is started here
_RETRIES = 5
_IDLE = 60_000  # milliseconds until a worker that has nothing to do is ended
_BEGUN = 300.0  # seconds for the first worker of a Ray that is started here
_ENDED = 10.0  # seconds for Ray to end in order
_ATTEMPTS = 3
# Ray's words where the process that the head starts for each client ended at once, or kept silent.
_NOT_SERVED = (
    *("Starting Ray client server failed", "Proxy failed to Connect to backend"),
    *("psutil.ZombieProcess", "psutil.NoSuchProcess"),  # the head looks at one that has just ended
)
_LOOK_AGAIN = 5.0  # seconds after which a cluster may have grown


class Session:
    """A connection to Ray; there is one in a process.

    Attributes:
        ray: the package.
        here: whether it was started here.
    """

    def __init__(self, address: str | None, jobs: int | None) -> None:
        self.ray = _package()
        self.here = address is None
        self._folder = ""
        self._looked = 0.0
        self._size = 1, 1
        self._functions: dict[Any, Any] = {}
        self._first: Any = None
        self._started = 0.0
        atexit.register(self.close)
        with _kept_signals(), _connecting(address):
            if address is None:
                self._start(jobs)
            else:
                self._join(address)

    def _start(self, jobs: int | None) -> None:
        from grpo_cli.engine.pool import cores

        self._folder = tempfile.mkdtemp(prefix="grpo-ray-")
        self.ray.init(
            address="local",
            num_cpus=jobs or cores(),
            object_store_memory=_STORE,
            include_dashboard=False,
            _temp_dir=self._folder,
            # Ray's client waits for ever for workers of the first job that die as they start.
            _system_config={
                "idle_worker_killing_time_threshold_ms": _IDLE,
                "prestart_worker_first_driver": False,
            },
            **_QUIET,
        )
        self._first, self._started = self.call(versions), time.monotonic()

    def _join(self, address: str) -> None:
        """Joins a cluster, to which this package travels.

        Asks again where the cluster could not start the process that is to serve this one.
        """
        package = {"py_modules": [str(Path(__file__).parents[2])]}
        for left in reversed(range(_ATTEMPTS)):
            try:
                self.ray.init(address=address, runtime_env=package, **_QUIET)
                return
            except Exception as error:
                if not left or not any(words in str(error) for words in _NOT_SERVED):
                    raise
                self.ray.shutdown()

    def call(self, function: Any, *arguments: Any, **options: Any) -> Any:
        """Has a worker call a function; the references to what it returns.

        A task that takes no core has a worker besides those of the cores, which Ray soon ends, and
        starts again for the next: that is for reading from afar, and too dear for what is short.
        """
        if function not in self._functions:
            self._functions[function] = self.ray.remote(function)
        wanted = {"max_retries": _RETRIES, "num_cpus": 1, **options}
        return self._functions[function].options(**wanted).remote(*arguments)

    def size(self) -> tuple[int, int]:
        """How many cores and machines the cluster has; it may grow and shrink."""
        if time.monotonic() - self._looked > _LOOK_AGAIN:
            self._looked = time.monotonic()
            cores = max(1, int(self.ray.cluster_resources().get("CPU", 1)))
            self._size = cores, sum(bool(node["Alive"]) for node in self.ray.nodes())
        return self._size

    def check_begun(self) -> None:
        """Refuses to wait longer for the first worker of a Ray that was started here.

        Raises:
            ClusterError: where none has begun in five minutes.
        """
        if self._first is not None and time.monotonic() - self._started > _BEGUN:
            if not self.ray.wait([self._first], timeout=0)[0]:
                raise ClusterError(f"cannot start Ray: no worker started within {_BEGUN:.0f} s")
            self._first = None

    def close(self) -> None:
        """Ends what was started here, and what is under way elsewhere.

        A Ray that lost a process may wait for it for ever; then its others are killed.
        """
        if not within(_ENDED, self.ray.shutdown):
            from ray._private import worker

            atexit.unregister(worker.shutdown)  # which would wait again
            if worker._global_node is not None:
                worker._global_node.kill_all_processes(check_alive=False, allow_graceful=False)
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def within(seconds: float, function: Callable[[], object]) -> bool:
    """Whether a call is over in time; its errors are ignored."""

    def run() -> None:
        with suppress(Exception):
            function()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "CRITICAL"}
_SESSIONS: dict[str | None, Session] = {}


def session(on: str, jobs: int | None) -> Session:
    """The connection to what ``--on`` names; of a Ray that is started here, with so many cores.

    Raises:
        UsageError: where that is not understood, or the package is missing.
        ClusterError: where it cannot be reached, or has other versions.
    """
    if on != "ray" and not (on.startswith("ray://") and on.rpartition(":")[2].isdecimal()):
        raise UsageError(f"--on: expected ray or ray://HOST:PORT, got {on!r}")
    address = (os.environ.get("RAY_ADDRESS") or None) if on == "ray" else on
    if address not in _SESSIONS:
        for other in list(_SESSIONS.values()):
            other.close()
        _SESSIONS.clear()
        _SESSIONS[address] = Session(address, jobs)
    return _SESSIONS[address]


def nodes() -> int:
    """How many machines the cluster has that is connected; none where none is."""
    return sum(connected.size()[1] for connected in _SESSIONS.values())


def _package() -> Any:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or it warns
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_task_oom_retries", str(_RETRIES))  # without end otherwise
    try:
        import ray
    except ImportError:
        raise UsageError("--on ray needs Ray: pip install 'ray[client]'") from None
    return ray


@contextmanager
def _kept_signals() -> Iterator[None]:
    """Signals that end the command are handled as before; Ray takes them for itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    kept = {number: signal.getsignal(number) for number in (getattr(signal, one) for one in names)}
    came: int | None = None
    try:
        yield
    except SystemExit as end:  # Ray's own, with the signal for its code
        came = end.code if isinstance(end.code, int) else None
        raise
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
        if came is not None and came in kept:
            signal.raise_signal(came)


@contextmanager
def _connecting(address: str | None) -> Iterator[None]:
    """Whatever goes wrong with connecting is one line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except GrpoError:
        raise
    except Exception as error:  # Ray raises that
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        traced = any("Traceback" in line for line in lines)  # of a server: its end says what it is
        reason = lines[-1] if traced else " ".join(lines[:3]) or type(error).__name__
        what = "cannot start Ray" if address is None else f"cannot connect to Ray at {address}"
        raise ClusterError(f"{what}: {reason}") from None
