"""Real processes in sessions of their own, so that none of theirs is overlooked."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from fuzz.product import COMMAND, environment

PATIENCE = 60.0
"""Seconds after which what should have happened has not."""


class Run:
    """A command that goes on while the test does other things."""

    def __init__(self, *words: str, env: dict[str, str] | None = None, **more: Any) -> None:
        settings = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, **more}
        self.process = subprocess.Popen(
            [*COMMAND, *words], stderr=subprocess.PIPE, start_new_session=True,
            env=environment(env or {}), **settings,
        )  # fmt: skip

    @property
    def out(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    @property
    def members(self) -> list[int]:
        """The processes of its session that run, itself among them."""
        return [*_members(self.process.pid)]

    @property
    def workers(self) -> list[int]:
        """The others."""
        return [one for one in self.members if one != self.process.pid]

    def signal(self, number: int) -> None:
        """Sends it a signal; it may have ended."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def end(self, patience: float = PATIENCE) -> tuple[int, bytes, bytes]:
        """Waits until it has ended: exit code, output, errors."""
        try:
            out, err = self.process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError("it hangs") from None
        return self.process.returncode, out or b"", err or b""

    def kill(self) -> None:
        """Ends all of its session."""
        for one in self.members:
            os.kill(one, signal.SIGKILL)
        self.process.communicate()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _members(session: int) -> Iterator[int]:
    for place in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, its = (place / "stat").read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if int(its) == session and state not in "ZX":
            yield int(place.name)


def until(what: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Waits for something; whether it has happened."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if what():
            return True
        time.sleep(0.01)
    return bool(what())


def sizes(folder: Path) -> Iterator[int]:
    """Of a folder's files, without those that vanish meanwhile (:mod:`tempfile` tries folders)."""
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            yield path.stat().st_size


def idle(processes: Sequence[int]) -> bool:
    """Whether they sleep, and take no processor time for a while."""
    before = [*map(_state, processes)]
    time.sleep(0.3)
    return before == [*map(_state, processes)] and all(state == "S" for state, _ in before)


def _state(process: int) -> tuple[str, int]:
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return words[0], int(words[11]) + int(words[12])


def limited(**limits: int) -> Callable[[], None]:
    """For ``preexec_fn``: limits of the process, as ``AS=…``, ``NOFILE=…``, ``FSIZE=…``."""

    def settle() -> None:
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))

    return settle


_NEW, _OLD = "-0.5, -1.0, -0.25, -0.75, -0.125", "-0.625, -1.0, -0.25, -0.5, -0.375"
LINE = (
    f'{{"id": "%s-%d", "log_probs_new": [[{", ".join([_NEW] * 60)}], [{_NEW}]],'
    f' "log_probs_old": [[{", ".join([_OLD] * 60)}], [{_OLD}]], "rewards": [1.0, 0.0]}}\n'
)


def write_records(path: Path, megabytes: float, name: str = "r") -> Path:
    """A file of so many records, all of the same numbers, called ``name-0``, ``name-1``, …"""
    count = int(megabytes * (1 << 20) / len(LINE % (name, 10_000)))
    path.write_text("".join(LINE % (name, at) for at in range(max(count, 20))))
    return path


def moments(name: str, times: int, most: float) -> Iterator[float]:
    """Random moments, the same for the same test."""
    draw = random.Random(name)
    return (draw.uniform(0, most) for _ in range(times))


def clean(err: bytes) -> bool:
    """Whether standard error holds only lines of ours."""
    return all(line.startswith(b"grpo: ") for line in err.splitlines())


def shell(line: str, cwd: Path, **env: str) -> tuple[int, bytes, bytes]:
    """A line of bash in which ``grpo`` is the command."""
    words: Sequence[str] = COMMAND
    start = f'grpo() {{ {" ".join(words)} "$@"; }}; {line}'
    done = subprocess.run(
        ["bash", "-c", start], cwd=cwd, env=environment(env), capture_output=True, check=False,
        stdin=subprocess.DEVNULL, timeout=PATIENCE,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


# ---- a small disk, as far as this machine lets us have one ---------------------------------------


KILOBYTES = 256


@cache
def _unshare() -> Sequence[str] | None:
    """How a file system can be mounted for one command alone; None where it cannot."""
    if shutil.which("unshare") is None:
        return None
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *user, "--mount"]
    tried = subprocess.run(
        [*command, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
    )
    return None if tried.returncode else command


def on_small_disk(
    words: Sequence[str], disk: Path, *, env: dict[str, str] | None = None, read_only: bool = False
) -> tuple[int, bytes, bytes, list[str]]:
    """Runs a command where ``disk`` is a file system of 256 kB, or where files end at 256 kB.

    Returns:
        The exit code, output, errors, and what is left on the disk.
    """
    disk.mkdir(exist_ok=True)
    extra = environment(env or {})
    how = _unshare()
    if how is None:
        done = subprocess.run(
            [*COMMAND, *words], capture_output=True, check=False, env=extra,
            preexec_fn=limited(FSIZE=KILOBYTES << 10), stdin=subprocess.DEVNULL, timeout=120,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr, [one.name for one in disk.iterdir()]
    mode = ",ro" if read_only else ""
    script = (
        f'mount -t tmpfs -o size={KILOBYTES}k{mode} none "$0" || exit 99; "$@"; code=$?;'
        ' ls -A "$0" > left; exit $code'
    )
    done = subprocess.run(
        [*how, "sh", "-c", script, str(disk), *COMMAND, *words],
        capture_output=True, check=False, env=extra, stdin=subprocess.DEVNULL, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr, Path("left").read_text().split()
