"""Processes that are killed, stopped, interrupted and ended, at random moments, with two jobs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest
from fuzz.product import environment

from faults import TIMES
from faults.runs import PATIENCE, Run, clean, idle, moments, sizes, until

OLD = "an older result\n"
MANY = 6
"""Of the large file: more than is evaluated before the signal comes."""
EVAL = (
    *("eval", "-v", "dr", "--level", "token", "-f", "jsonl", "--jobs", "2"),
    *("--fields", "gradient"),
)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_no_worker_outlives_a_command_that_is_ended(large, number):
    for moment in moments(f"ended by {number}", 2 * TIMES, 1.0):
        with Run(*EVAL, str(large), stdout=subprocess.DEVNULL) as run:
            time.sleep(moment)
            run.signal(number)
            run.process.wait(PATIENCE)
            assert until(lambda run=run: not run.members), "a worker goes on"


def test_an_older_file_stays_as_it_was_when_a_command_is_ended(large):
    Path("out").write_text(OLD)
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        for moment in moments(f"-o, ended by {number}", TIMES, 0.6):
            with Run(*EVAL, "-o", "out", *[str(large)] * MANY) as run:
                time.sleep(moment)
                run.signal(number)
                run.end()
            assert Path("out").read_text() == OLD


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_nothing_is_left_beside_the_output(large, number):
    with Run(*EVAL, "-o", "out", *[str(large)] * MANY) as run:
        assert until(lambda: any(sizes(Path())))
        if number == signal.SIGINT:
            os.killpg(run.process.pid, number)  # as a terminal does: the workers get it too
        else:
            run.signal(number)
        code, _, err = run.end()
    assert number != signal.SIGINT or (code, clean(err)) == (130, True)
    assert [*Path().iterdir()] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_in_the_temporary_folder(large, folder, number):
    """Standard input that is read twice is kept there (:mod:`tempfile` tries it with 4 bytes)."""
    words = ("eval", "--advantage", "batch-whiten", "--beta", "0", "--level", "batch", "-")
    with large.open("rb") as data, Run(*words, env={"TMPDIR": str(folder)}, stdin=data) as run:
        assert until(lambda: sum(sizes(folder)) > 4096)
        run.signal(number)
        run.end()
    assert [*folder.iterdir()] == []


def test_ctrl_c_while_it_starts():
    """At the moment at which numpy is being imported."""
    command = [sys.executable, "-X", "importtime", "-m", "grpo_cli", "eval", "-v", "dr", "-"]
    process = subprocess.Popen(
        command, stderr=-1, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )  # its input never ends, so it cannot have ended before the signal comes
    said = b""
    for line in process.stderr:
        said += line
        if b"numpy._core" in line:
            process.send_signal(signal.SIGINT)
            break
    said += process.stderr.read()
    process.stderr.close()
    process.stdin.close()
    assert (process.wait(PATIENCE), b"Traceback" in said) == (130, False)


def test_a_stopped_process_goes_on_with_the_same_bytes(large):
    code, wanted, _ = Run(*EVAL, str(large)).end()
    assert code == 0
    for moment in moments("stopped", 2 * TIMES, 1.0):
        with tempfile.TemporaryFile() as out, Run(*EVAL, str(large), stdout=out) as run:
            time.sleep(moment)
            for one in run.members:
                os.kill(one, signal.SIGSTOP)
                time.sleep(0.05)
            for one in run.members:
                os.kill(one, signal.SIGCONT)
            code, _, err = run.end()
            out.seek(0)
            assert (code, clean(err)) == (0, True)
            assert out.read() == wanted


def told_of_the_worker(run):
    """Whether a command ends as it should where a worker was killed."""
    code, _, err = run.end()
    return (code, err.count(b"a worker process died"), clean(err)) == (70, 1, True)


def test_a_worker_that_is_killed_at_work(large):
    with Run(*EVAL, str(large), stdout=subprocess.DEVNULL) as run:
        assert until(lambda: len(run.workers) == 2)
        for one in run.workers:
            os.kill(one, signal.SIGSTOP)
        assert until(lambda: idle([run.process.pid]))  # it waits for what they have not done
        killed, *others = run.workers
        os.kill(killed, signal.SIGKILL)
        for one in others:
            with suppress(ProcessLookupError):  # the command may have ended them by now
                os.kill(one, signal.SIGCONT)
        assert told_of_the_worker(run)


def test_a_worker_that_is_killed_before_it_is_given_more(large):
    """141 is for a standard output that was closed, nothing else. Some of the runs show it."""
    totals = ("eval", "-v", "dr", "--level", "batch", "--jobs", "2")
    for _ in range(2 * TIMES):
        with Run(*totals, *[str(large)] * 4) as run:
            assert until(lambda run=run: len(run.workers) == 2)
            os.kill(run.process.pid, signal.SIGSTOP)
            assert until(lambda run=run: idle(run.workers))  # they have done what they were given
            for one in run.workers:
                os.kill(one, signal.SIGKILL)
            os.kill(run.process.pid, signal.SIGCONT)
            assert told_of_the_worker(run)


def test_a_worker_that_is_killed_while_standard_input_is_read(large):
    """141 is for a standard output that was closed, nothing else."""
    data = large.read_bytes()
    words = ("eval", "-v", "dr", "-f", "jsonl", "--jobs", "2")  # rows of tokens would be two passes
    with Run(*words, "-", stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as run:
        run.process.stdin.write(data)
        run.process.stdin.flush()
        assert until(lambda: len(run.workers) == 2 and idle(run.members))
        for one in run.workers:
            os.kill(one, signal.SIGKILL)
        try:
            run.process.stdin.write(data)
            run.process.stdin.close()
        except BrokenPipeError:  # it has ended
            pass
        code = run.process.wait(PATIENCE)
        err = run.process.stderr.read()
    assert (code, err.count(b"a worker process died")) == (70, 1)
