"""Ray: one that is started here, or a cluster that is there; and its tasks."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

from grpo_cli.engine.cluster.tasks import ClusterError, Job, Portion, evaluate, versions
from grpo_cli.errors import GrpoError, UsageError
from grpo_cli.records.open.blocks import Range, look
from grpo_cli.records.open.remote import Address

Ref = Any
"""Replaces what a task returned, after its end."""

_STORE = 1 << 30  # bytes of shared memory, where Ray is started here
_RETRIES = 5
_IDLE = 60_000  # milliseconds until a worker that has nothing to do is ended
_BEGUN = 300.0  # seconds for the first worker of a Ray that is started here
_ENDED = 10.0  # seconds for Ray, or for tasks that are given up, to end in order
_ATTEMPTS = 3
# Ray's words where the process that the head starts for each client ended at once, or kept silent.
_NOT_SERVED = (
    *("Starting Ray client server failed", "Proxy failed to Connect to backend"),
    *("psutil.ZombieProcess", "psutil.NoSuchProcess"),  # the head looks at one that has just ended
)
_LOOK_AGAIN = 5.0  # seconds after which a cluster may have grown
_LOOK, _LONG = 1.0, 60.0  # seconds after which Ctrl-C is noticed, and those after which a wait is
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "CRITICAL"}


class Session:
    """A connection to Ray; there is one in a process."""

    def __init__(self, address: str | None, jobs: int | None) -> None:
        self._ray = _package()
        self._here = address is None
        self._folder = ""
        self._looked, self._size = 0.0, (1, 1)
        # A task that takes no core has a worker of its own, which Ray soon ends and
        # starts again for the next: that is for reading from afar, and too dear for what is short.
        task = self._ray.remote(max_retries=_RETRIES)
        self._look, self._evaluate = task(look), task(evaluate)
        self._first: Ref = None
        self._started = 0.0
        atexit.register(self.close)
        with _kept_signals(), _connecting(address), _raised_after_all():
            if address is None:
                self._start(jobs)
            else:
                self._join(address)

    def _start(self, jobs: int | None) -> None:
        from grpo_cli.engine.pool import cores

        self._folder = tempfile.mkdtemp(prefix="grpo-ray-")
        with _temporary_files_in(self._folder):
            self._ray.init(
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
        self._first, self._started = self._ray.remote(versions).remote(), time.monotonic()

    def _join(self, address: str) -> None:
        """Joins a cluster, to which this package travels.

        Asks again where the cluster could not start the process that is to serve this one.
        """
        package = {"py_modules": [str(Path(__file__).parents[2])]}
        for left in reversed(range(_ATTEMPTS)):
            try:
                self._ray.init(address=address, runtime_env=package, **_QUIET)
                return
            except Exception as error:
                if not left or not any(words in str(error) for words in _NOT_SERVED):
                    raise
                self._ray.shutdown()

    def size(self) -> tuple[int, int]:
        """How many cores and machines the cluster has; it may grow and shrink."""
        if time.monotonic() - self._looked > _LOOK_AGAIN:
            self._looked = time.monotonic()
            cores = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
            self._size = cores, sum(bool(node["Alive"]) for node in self._ray.nodes())
        return self._size

    def room(self, jobs: int | None) -> int:
        """How many tasks may be under way, or wait for it, at once."""
        return 2 * self.size()[0] if jobs is None or self._here else jobs

    def put(self, job: Job) -> Ref:
        """Sends what tasks have in common."""
        return self._ray.put(job)

    def look(self, wanted: Range) -> tuple[Ref, Ref]:
        """Counts the lines of a range; keeps the bytes of a remote one."""
        far = {"num_cpus": 0, "scheduling_strategy": "SPREAD"}
        options = far if isinstance(wanted.path, Address) else {}
        count, data = self._look.options(num_returns=2, **options).remote(wanted)
        return count, data

    def evaluate(self, job: Ref, number: int, portion: Portion, *before: Ref) -> Ref:
        """Evaluates a portion."""
        return self._evaluate.remote(job, number, portion, *before)

    def wait(self, refs: Sequence[Ref]) -> list[Ref]:
        """Waits until a task is over; those that are. Says so where it takes long.

        Raises:
            ClusterError: where a Ray that was started here has no worker in five minutes.
        """
        wait, waited = self._ray.wait, 0.0
        while not wait(refs, num_returns=1, timeout=_LOOK, fetch_local=False)[0]:
            if self._first is not None and time.monotonic() - self._started > _BEGUN:
                if not wait([self._first], timeout=0)[0]:
                    raise ClusterError(f"cannot start Ray: no worker started within {_BEGUN:.0f} s")
                self._first = None
            waited += _LOOK
            if waited % _LONG == 0.0:
                text = f"none of {len(refs)} tasks has finished after {waited:.0f} s"
                with suppress(AttributeError, OSError):  # there may be no standard error
                    sys.stderr.write(f"grpo: note: waiting for Ray: {text}\n")
                    sys.stderr.flush()
        over: list[Ref] = wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)[0]
        return over

    def get(self, ref: Ref, place: str) -> Any:
        """What a task returned; ``place`` says in an error what it worked on.

        Raises:
            GrpoError: where it failed.
        """
        try:
            return self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            if isinstance(cause := getattr(error, "cause", None), GrpoError):
                raise cause from None
            raise ClusterError(f"{_why(error)} on {place}; everything before it is done") from None

    def cancel(self, refs: Sequence[Ref], *, wait: bool) -> None:
        """Gives up tasks, and waits where one may yet write a part behind an error."""
        _within(_ENDED, lambda: [self._ray.cancel(ref, force=True) for ref in refs])
        if refs and wait:
            self._ray.wait(refs, num_returns=len(refs), timeout=_ENDED, fetch_local=False)

    def close(self) -> None:
        """Ends what was started here, and what is under way elsewhere.

        A Ray that lost a process may wait for it for ever; then its others are killed. One whose
        start is interrupted does not know all that it began, and leaves agents without a parent.
        What its threads print meanwhile is of processes that are ended here.
        """
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            self._end()

    def _end(self) -> None:
        if not _within(_ENDED, self._ray.shutdown):
            from ray._private import worker

            atexit.unregister(worker.shutdown)  # which would wait again
            if worker._global_node is not None:
                worker._global_node.kill_all_processes(check_alive=False, allow_graceful=False)
        if self._folder:
            _kill_all_of(self._folder)
            shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def _temporary_files_in(folder: str) -> Iterator[None]:
    """Has processes that are started put them there: one that is killed leaves what it has."""
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = folder
    try:
        yield
    finally:
        del os.environ["TMPDIR"]
        if before is not None:
            os.environ["TMPDIR"] = before


def _kill_all_of(folder: str) -> None:
    """Kills the processes that were given the folder, and what these begin meanwhile."""
    import psutil  # Ray brings it along

    found = True
    while found:
        found = False
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.pid != os.getpid() and any(folder in one for one in process.cmdline()):
                    process.kill()
                    process.wait(_ENDED)
                    found = True


def _why(error: Exception) -> str:
    """What happened to a task, in short."""
    kind = type(error).__name__
    if kind == "OutOfMemoryError":
        return "cluster workers ran out of memory"
    if kind in ("WorkerCrashedError", "NodeDiedError", "ActorDiedError"):
        return "cluster workers died repeatedly"
    if "Lost" in kind or "Owner" in kind:
        return "the cluster lost input data"
    cause = getattr(error, "cause", None)
    text = str(cause if cause is not None else error).strip().splitlines()
    return f"a cluster task failed ({type(cause or error).__name__}: {text[-1:] or ''})"


def _within(seconds: float, function: Callable[[], object]) -> bool:
    """Whether a call is over in time; its errors are ignored."""

    def run() -> None:
        with suppress(Exception):
            function()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


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
def _raised_after_all() -> Iterator[None]:
    """Raises at the end what Python ignores: a signal that comes while Ray forks.

    Its handler runs first in a callback after the fork (logging has one), and what a callback
    raises is printed and forgotten, so that Ctrl-C would do nothing.
    """
    ignored: list[BaseException] = []
    before = sys.unraisablehook

    def keep(lost: Any) -> None:
        if isinstance(lost.exc_value, KeyboardInterrupt | SystemExit):
            ignored.append(lost.exc_value)
        else:
            before(lost)

    sys.unraisablehook = keep
    try:
        yield
    finally:
        sys.unraisablehook = before
    if ignored:
        raise ignored[0]


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
