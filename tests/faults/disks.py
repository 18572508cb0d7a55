"""A small disk, as far as this machine lets us have one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from fuzz.product import COMMAND, environment

from faults.runs import limited

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
