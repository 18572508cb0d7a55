"""Limits of the system, full disks and broken pipes."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from fuzz.product import COMMAND, environment

from faults import TIMES, some
from faults.runs import Run, clean, limited, on_small_disk, shell, until

# ---- little memory, few files, few processes, another locale, many runs side by side -------------


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


# ---- output that is closed at any byte, disks that are full, folders that cannot be written ------


PRINTED = (
    EVAL,
    (*EVAL, "--jobs", "2"),
    ("eval", "-v", "dr"),
    ("convert", "--to", "parquet"),
    ("eval", "-v", "dr", "--level", "token", "--json"),
    ("eval", "-v", "dr", "--level", "token", "-f", "csv"),
    ("eval", "-v", "dr", "--level", "token", "--only", "gradient"),
    ("convert",),
    ("check", "--json"),
    ("show", "-v", "dr"),
    ("compare", "--variants", "dr,dapo"),
)
ENDED = {-13, 141}
"""A closed pipe: by the signal itself, or as the shell says it."""


@pytest.mark.parametrize("words", some(PRINTED, 4), ids=" ".join)
def test_output_that_is_closed_at_any_byte(small, words):
    draw = random.Random(str(words))
    for _ in range(TIMES):
        with Run(*words, str(small)) as run:
            run.out.read(draw.choice((0, 1, draw.randrange(2_000), draw.randrange(60_000))))
            run.out.close()
            err = run.process.stderr.read()
            code = run.process.wait(60)
        assert code in {0, *ENDED}, err
        assert clean(err)


@pytest.mark.parametrize("words", some(PRINTED, 4), ids=" ".join)
def test_a_full_disk_behind_standard_output(small, words, folder):
    code, _, err = shell(f"grpo {' '.join(words)} {small} > /dev/full", folder)
    errors = [line for line in err.splitlines() if b" note: " not in line]
    assert (code, len(errors), clean(err)) == (3, 1, True)
    assert b"standard output" in errors[0]


@pytest.mark.parametrize("words", [PRINTED[0], ("convert",)], ids=" ".join)
def test_a_full_disk_under_the_output(large, folder, words):
    out = folder / "disk" / "out"
    code, _, err, left = on_small_disk([*words, "-o", str(out), str(large)], folder / "disk")
    errors = [line for line in err.splitlines() if b" note: " not in line]
    assert (code, len(errors), left) == (3, 1, [])
    assert b"out" in errors[0]


TWICE = ("eval", "--advantage", "batch-whiten", "--beta", "0", "--level", "batch")


def test_a_full_disk_under_the_temporary_folder_of_a_document(large, folder):
    """One JSON document is kept there until its totals are known."""
    words = ("eval", "-v", "dr", "--level", "token", "--json", str(large))
    code, _, err, left = on_small_disk(words, folder / "disk", env={"TMPDIR": str(folder / "disk")})
    assert (code, clean(err), left) == (3, True, [])


def test_a_temporary_folder_that_is_not_there(small, folder):
    code, out, err = shell(f"cat {small} | grpo {' '.join(TWICE)} -", folder, TMPDIR="/no/such")
    assert (code, clean(err)) == (0, True)
    assert b"loss" in out


def test_a_folder_that_cannot_be_written(small, folder):
    out = folder / "disk" / "out"
    if os.geteuid():
        (folder / "disk").mkdir(mode=0o500)
        code, _, err = shell(f"grpo eval -v dr -o {out} {small}", folder)
    else:
        words = ["eval", "-v", "dr", "-o", str(out), str(small)]
        code, _, err, _ = on_small_disk(words, folder / "disk", read_only=True)
    assert (code, err.count(b"\n")) == (2, 1)
    assert err.startswith(b"grpo: --output: cannot write ")


@pytest.mark.parametrize("words", ["eval -v dr", "convert", "variants"])
def test_standard_output_that_is_closed_from_the_start(small, folder, words):
    file = "" if words == "variants" else small
    code, _, err = shell(f"grpo {words} {file} >&-", folder)
    assert (code, b"Traceback" in err) == (3, False)


@pytest.mark.parametrize("words", ["eval -v dr", "eval", "verify", "--nonsense"])
def test_standard_error_that_is_closed_from_the_start_or_a_full_disk(small, folder, words):
    usual, _, _ = shell(f"grpo {words} {small}", folder)
    for errors in ("2>&-", "2>/dev/full"):
        code, out, _ = shell(f"grpo {words} {small} {errors}", folder)
        assert (code, b"Traceback" in out) == (usual, False), errors


def test_standard_input_that_is_closed_from_the_start(folder):
    code, _, err = shell("grpo eval -v dr - <&-", folder)
    assert (code, err) == (3, b"grpo: <stdin>: standard input is closed\n")


@pytest.mark.parametrize("words", some(["eval -v dr -f jsonl", "check", "convert"], 1))
def test_standard_output_to_a_file_that_is_read(small, words, folder):
    """The shell empties the file before it is read: an input without records, not a loop."""
    Path("same.jsonl").write_bytes(small.read_bytes())
    code, _, err = shell(f"grpo {words} same.jsonl >> same.jsonl", folder)
    assert code in (0, 1, 3)
    assert clean(err)


def test_output_into_its_own_input(small):
    """``-o`` replaces the input when all of it is read."""
    Path("same.jsonl").write_bytes(small.read_bytes())
    with Run("convert", "-o", "same.jsonl", "same.jsonl") as run:
        assert run.end()[0] == 0
    with Run("convert", str(small), stdout=subprocess.PIPE) as run:
        assert run.end()[1] == Path("same.jsonl").read_bytes()
