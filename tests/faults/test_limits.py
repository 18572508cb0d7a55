"""Little memory, few files, few processes, another locale, many runs side by side."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from fuzz.product import COMMAND, environment

from faults import TIMES, some
from faults.runs import Run, clean, limited, until

EVAL = ("eval", "-v", "dr", "--level", "token", "-f", "jsonl")


def test_little_memory(folder):
    """One line of 60 MB where there are 150 MB above what the packages take."""
    row = ", ".join(["-0.5"] * 10_000_000)
    Path("in.jsonl").write_text(f'{{"log_probs_new": [[{row}]], "rewards": [1]}}\n')
    free = 150 << 20
    for words in (EVAL, ("check",), ("convert",)):
        with Run(*words, "in.jsonl", preexec_fn=limited(AS=_addresses() + free)) as run:
            code, _, err = run.end()
        assert (code, b"Traceback" in err, err.count(b"\n")) == (3, False, 1)


def _addresses() -> int:
    """What a command maps before it reads anything."""
    with Run("eval", "-", stdin=subprocess.PIPE) as run:
        until(lambda: b"numpy" in Path(f"/proc/{run.process.pid}/maps").read_bytes(), 5)
        until(lambda: False, 0.5)
        status = Path(f"/proc/{run.process.pid}/status").read_text()
    return int(status.partition("VmPeak:")[2].split()[0]) << 10


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_few_files(large, jobs, request):
    """As many as standard streams take, and a few."""
    for most in some((6, 4, 5, 7, 8, 9, 10, 11), 1):
        with Run(*EVAL, "--jobs", jobs, str(large), preexec_fn=limited(NOFILE=most)) as run:
            assert run.out.read(10) is not None
            run.out.close()
            err = run.process.stderr.read()
            code = run.process.wait(60)
        if b"ImportError" in err or b"importlib" in err or b"init_import_site" in err:
            continue  # Python itself needs more
        assert code in (-13, 3), err[-300:]
        assert b"Traceback" not in err


def test_few_processes(large):
    """No worker can be started. The limit does not hold for root, who becomes somebody else."""
    somebody = [
        *("setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups"),
        *(f"--{kind}-caps=+dac_override,+dac_read_search" for kind in ("inh", "ambient")),
    ]
    start = somebody if os.geteuid() == 0 else []
    if start and shutil.which("setpriv") is None:
        pytest.skip("needs setpriv, or a user other than root")
    done = subprocess.run(
        [*start, "bash", "-c", 'ulimit -u 1; exec "$@"', "-", *COMMAND, *EVAL, "-j", "2", large],
        env=environment({"OPENBLAS_NUM_THREADS": "1"}), capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count(b"\n")) == (3, 1)
    assert clean(done.stderr)


@pytest.mark.parametrize("locale", some(["C", "POSIX", "de_DE.ISO-8859-1", "tr_TR.UTF-8", ""], 1))
@pytest.mark.parametrize(
    "words", some([("show", "-v", "dr"), EVAL, ("check",), ("explain", "-v", "dr")], 2)
)
def test_the_same_bytes_in_any_locale(words, locale):
    text = '{"log_probs_new": [[-0.5, -1.0]], "tokens": [["é", "日本"]], "rewards": [1]}\n'
    Path("ä.jsonl").write_text(text, encoding="utf-8")
    with Run(*words, "ä.jsonl", env={"LC_ALL": "C.UTF-8"}) as run:
        wanted = run.end()
    with Run(*words, "ä.jsonl", env={"LC_ALL": locale, "LANG": locale}) as run:
        assert run.end() == wanted
    assert wanted[0] == 0
    assert clean(wanted[2])


def test_many_runs_side_by_side(small):
    """Each with its own output, and all of them with the same one beside."""
    count = 8 if TIMES == 1 else 50
    runs = [Run(*EVAL, "-o", f"out{at}", str(small)) for at in range(count)]
    same = [Run(*EVAL, "-o", "same", str(small)) for _ in range(count // 2)]
    ended = [run.end() for run in (*runs, *same)]
    assert {code for code, _, _ in ended} == {0}
    made = {path.read_bytes() for path in Path().iterdir()}
    assert len(made) == 1
    assert sorted(path.name for path in Path().iterdir()) == sorted(
        [*(f"out{at}" for at in range(count)), "same"]
    )
