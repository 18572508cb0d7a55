"""``grpo trend --follow``: files that grow, are renamed, cut short, replaced, or go back."""

from __future__ import annotations

import gzip
import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command import run
from files import each
from formats import dumps
from trended import steps

from grpo_cli import InputError, UsageError
from grpo_cli.commands.trend import follow as follow_module
from grpo_cli.commands.trend.follow import Follow, _is_lines
from grpo_cli.commands.trend.origins import StepSource
from grpo_cli.commands.trend.step import Flags
from grpo_cli.commands.trend.watch import Watch, read_condition
from grpo_cli.records import PLAIN
from grpo_cli.variants.plan import plan


def line(step: int, reward: float = 1.0) -> str:
    rows = [[-1.0, -0.5 - step / 100], [-0.25]]
    record = {"step": step, "log_probs": rows, "rewards": [reward, 0.0], "id": f"{step}/{reward}"}
    return json.dumps(record) + "\n"


def following(*paths: Path) -> Follow:
    return Follow([str(path) for path in paths], PLAIN, plan("dapo"), StepSource())


def append(path: Path, text: str) -> None:
    with path.open("a") as stream:
        stream.write(text)


def poll_all(follow: Follow) -> None:
    while follow.poll():
        pass


def watching(
    path: Path, *fails: str, fields: str | None = "nll", as_json: bool = False, flags: str = ""
) -> tuple[Watch, Flushed]:
    """A watch of a file, and what it prints into."""
    stream = Flushed()
    watch = Watch(
        following(path),
        stream,
        fields=fields and fields.split(),
        as_json=as_json,
        conditions=[*map(read_condition, fails)],
        flags=Flags(flags.split()),
    )
    return watch, stream


class Flushed(io.BytesIO):
    """What was flushed."""

    flushed = b""

    def flush(self) -> None:
        self.flushed = self.getvalue()

    def lines(self) -> list[str]:
        return self.getvalue().decode().splitlines()


def numbers(follow: Follow) -> list[dict[str, Any]]:
    return [{"step": one.number, "file": one.file, **one.metrics} for one in follow.steps()]


def at_once(path: Path) -> list[dict[str, Any]]:
    """The same steps, read when the file is complete."""
    found = steps(path, "-v", "dapo")
    return [{name: one[name] for name in one if name != "worst"} for one in found]


def rewards(follow: Follow) -> dict[int, Any]:
    return {step.number: step.metrics["reward_mean"] for step in follow.steps()}


def test_a_file_that_grows_gives_what_reading_it_at_once_gives(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    follow = following(tmp_path)
    assert not follow.poll()  # nothing is there yet
    text = "".join(line(step) for step in range(4) for _ in range(2))
    for cut in (100, 333, 334, len(text)):
        path.write_text(text[:cut])
        follow.poll()
        assert not follow.poll()
    assert numbers(follow) == at_once(path)


def test_new_files_in_a_folder(tmp_path: Path) -> None:
    follow = following(tmp_path)
    (tmp_path / "9.jsonl").write_text(line(9))
    assert follow.poll()
    (tmp_path / "10.jsonl.gz").write_bytes(gzip.compress(line(10).encode()))
    assert follow.poll()
    assert not follow.poll()
    assert [*rewards(follow)] == [9, 10]


def test_a_packed_file_is_read_again_and_when_it_is_done(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    follow = following(path)
    data = gzip.compress(line(0).encode())
    path.write_bytes(data[:-9])
    assert not follow.poll()
    assert rewards(follow) == {}
    path.write_bytes(data)
    assert follow.poll()
    assert rewards(follow) == {0: 0.5}
    path.write_bytes(data + gzip.compress(line(1).encode()))
    assert follow.poll()
    assert rewards(follow) == {0: 0.5, 1: 0.5}


@each(
    ("data", "lines"),
    [
        (b'{"step": 1}\n', True),
        (b'{"meta":{"step": 1}}\n', True),  # a brace where a header of eight bytes would end
        (b"\x40\0\0\0\0\0\0\0{", False),  # safetensors
        (b"\x40\0\0\0\0\0\0\0x", True),
        (b"PAR1....", False),
        (b"ARROW1..", False),
        (b"PK\x03\x04....", False),
        (b'[{"step": 1}]', False),
        (b' \n[{"step": 1}]', False),
        (gzip.compress(b"{}"), False),
        (b"", True),
    ],
)
def test_what_is_read_line_by_line(tmp_path: Path, data: bytes, *, lines: bool) -> None:
    (tmp_path / "a").write_bytes(data)
    assert _is_lines(str(tmp_path / "a")) is lines


@pytest.mark.parametrize("flags", [("--on", "local"), ("--html", "a.html"), ("--names", "trl")])
def test_what_follow_does_not_do_is_said(flags: tuple[str, str], tmp_path: Path) -> None:
    result = run("trend", tmp_path, "-v", "dapo", "--follow", *flags)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert flags[0] in result.stderr


def test_two_runs_are_told_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(line(3))
    with pytest.raises(UsageError, match=r"both have step 3, so these are 2 runs"):
        following(tmp_path).poll()


def test_a_renamed_file_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    follow = following(tmp_path)
    path.write_text(line(0))
    follow.poll()
    path.rename(tmp_path / "a.1.jsonl")
    append(tmp_path / "a.1.jsonl", line(1))
    path.write_text(line(2))
    poll_all(follow)
    assert rewards(follow) == {0: 0.5, 1: 0.5, 2: 0.5}


@pytest.mark.parametrize("later", [(), (6, 7, 8)])
def test_a_file_that_is_rotated_is_finished_first(tmp_path: Path, later: tuple[int, ...]) -> None:
    path = tmp_path / "a.jsonl"
    follow = following(path)
    path.write_text("".join(line(step) for step in range(3)))
    poll_all(follow)
    append(path, lines(3, 4))
    path.rename(tmp_path / "a.jsonl.1")
    follow.poll()
    path.write_text("".join(line(step) for step in (4, 5, *later)))
    poll_all(follow)
    assert [*rewards(follow)] == [*range(6), *later]
    assert not [note for note in follow.notices if "from the start" in note]
    path.write_text(line(9))
    poll_all(follow)
    assert [*rewards(follow)] == [0, 1, 2, 3, 4, 9]


def test_a_replaced_file_says_everything_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    follow = following(tmp_path)
    path.write_text(line(0) + line(1))
    follow.poll()
    (tmp_path / "new").write_text(line(0, 3.0) + line(1) + line(2))
    (tmp_path / "new").rename(path)
    poll_all(follow)
    assert rewards(follow) == {0: 1.5, 1: 0.5, 2: 0.5}


def lines(*numbers: int) -> str:
    return "".join(map(line, numbers))


@each(
    ("texts", "found", "said"),
    [
        ([lines(0, 1), line(0, 3.0)], {0: 1.5}, "was cut short"),
        # by a training that is started again: the same inode, and no size that shrinks
        *(
            ([lines(0, 1), other], None, "was rewritten: grpo reads it again from the start")
            for other in (line(0, 3.0) + line(1, 4.0) * 20, lines(0) + line(1, 4.0) + line(2, 5.0))
        ),
        ([lines(9, 3)], {3: 0.5, 9: 0.5}, ":2: the steps go back from 9 to 3"),
        ([lines(0, 1, 2, 3, 4), "+" + line(2, 3.0)], {0: 0.5, 1: 0.5, 2: 1.5},
         ":6: the run was resumed at step 2: 3 steps (2 to 4) were trained again"),
        # back once more, and in one read
        ([lines(0, 1, 2, 3, 4), "+" + line(2, 3.0) + line(3, 3.0), "+" + line(1, 5.0) + line(2)],
         {0: 0.5, 1: 2.5, 2: 0.5}, ":8: the run was resumed at step 1: 3 steps (1 to 3)"),
        # back to a step that was not there yet: whatever comes of it later is added
        (["", *("+" + line(*one) for one in ((5,), (3,), (5, 3.0), (3, 5.0), (4,)))],
         {3: 1.5, 4: 0.5, 5: 1.0}, None),
    ],
)  # fmt: skip
def test_a_file_that_changes(
    texts: list[str], found: Any, said: str | None, tmp_path: Path
) -> None:
    """Those that begin with + are appended; others are all that the file has from then on."""
    path = tmp_path / "a.jsonl"
    path.unlink(missing_ok=True)
    follow = following(path)
    for text in texts:
        append(path, text[1:]) if text[:1] == "+" else path.write_text(text)
        poll_all(follow)
    assert rewards(follow) == (found or rewards(follow))
    assert texts[-1][:1] == "+" or numbers(follow) == at_once(path)
    if said is None:
        assert not [note for note in follow.notices if "trained again" in note]
    else:
        assert any(f"{path}" in note and said in note for note in follow.notices)


def test_a_file_that_is_gone_no_longer_counts(tmp_path: Path) -> None:
    follow = following(tmp_path)
    for name, step in (("a", 0), ("b", 1)):
        (tmp_path / f"{name}.jsonl").write_text(line(step))
    follow.poll()
    (tmp_path / "a.jsonl").unlink()
    assert follow.poll()
    assert rewards(follow) == {1: 0.5}
    assert f"{tmp_path}/a.jsonl was deleted: its records no longer count" in follow.notices


def test_nul_bytes_are_a_write_that_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    follow = following(path)
    path.write_bytes(line(0).encode() + b"\0" * 500)
    assert follow.poll()
    assert not follow.poll()
    with path.open("r+b") as stream:
        stream.seek(len(line(0)))
        stream.write(line(1).encode())
    poll_all(follow)
    assert [*rewards(follow)] == [0, 1]


def test_ranks_add_up(tmp_path: Path) -> None:
    follow = following(tmp_path)
    for rank, reward in enumerate((1.0, 3.0)):
        (tmp_path / f"rank{rank}.jsonl").write_text(line(0, reward) + line(1, reward))
    follow.poll()
    assert rewards(follow) == {0: 1.0, 1: 1.0}


def test_a_bad_record_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    follow = following(path)
    path.write_text(line(0))
    follow.poll()
    append(path, '{"step": 1}\n')
    with pytest.raises(InputError, match=r"a\.jsonl:2"):
        follow.poll()


def test_of_bad_records_the_first_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    far = json.loads(line(0, -1.0)) | {"log_probs_old": [[-2000.0, -0.5], [-0.25]]}
    fine = far | {"log_probs_old": far["log_probs"]}
    path.write_text("".join(json.dumps(one) + "\n" for one in (fine, far, far)))
    with pytest.raises(InputError, match=r"a\.jsonl:2"):
        following(path).poll()


def test_a_line_may_be_longer_than_what_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_module, "_AT_ONCE", 30)
    path = tmp_path / "a.jsonl"
    path.write_text(line(0) + line(1) + line(2)[:-1])
    follow = following(path)
    assert [follow.poll() for _ in range(3)] == [True, True, False]
    assert rewards(follow) == {0: 0.5, 1: 0.5}
    append(path, "\n")
    assert follow.poll()
    assert [*rewards(follow)] == [0, 1, 2]


def test_what_is_printed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    watch, stream = watching(path, "reward_mean>1")
    path.write_text(line(0))
    waits = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        append(path, line(len(waits), 1.0 if len(waits) < 3 else 9.0))

    assert watch.run(0.1, wait) == 1
    assert waits == [0.1] * 4
    printed = stream.lines()
    assert printed[0] == "  step         nll"  # six for a step, ten for a number
    assert [row[:6] for row in printed[1:]] == ["     0", "     1", "     2", "     3"]
    assert {len(row) for row in printed} == {18}


@each("as_json", [False, True])
def test_columns_that_are_asked_for_are_all_that_is_printed(as_json: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(lines(0, 1))
    watch, stream = watching(path, "nll>0", fields="nll file rewards/none/mean", as_json=as_json)
    assert watch.run(0.1, lambda seconds: None) == 1
    first, *_ = stream.lines()[0 if as_json else 1 :]
    if as_json:
        row = json.loads(first)
        assert [*row] == ["step", "file", "nll", "rewards/none/mean"]
        assert (row["step"], row["file"], row["rewards/none/mean"]) == (0, str(path), None)
    else:
        assert [first.split()[at] for at in (0, 2, 3)] == ["0", str(path), "–"]


def test_what_interrupts_prints_the_last_step_first(tmp_path: Path) -> None:
    """Of whatever is left to wait nothing is waited for."""
    path = tmp_path / "a.jsonl"
    path.write_text(lines(0, 1))
    watch, stream = watching(path, as_json=True)
    waits = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        assert stream.flushed.count(b"\n") == 1  # what is printed is not held back
        if len(waits) == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        watch.run(0.25, wait)
    assert waits == pytest.approx([0.1, 0.1, 0.05])
    assert stream.flushed == stream.getvalue()
    assert [json.loads(row)["step"] for row in stream.lines()] == [0, 1]


class Enough(Exception):  # noqa: N818
    """There was enough to see."""


def test_a_finding_is_told_once(tmp_path: Path) -> None:
    """However often what has it is looked at again, here while ten more steps come."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(line(step, 9.0 + step % 3 / 10) for step in range(30)))
    watch, stream = watching(path, fields="reward_mean", as_json=True)
    steps_to_come = iter(range(30, 40))

    def wait(_: float) -> None:
        step = next(steps_to_come, None)
        if step is None:
            raise Enough
        append(path, line(step, 1.0 + step % 3 / 10))

    with pytest.raises(Enough):
        watch.run(0.1, wait)
    printed = [json.loads(row) for row in stream.lines()]
    told = [row["finding"]["metric"] for row in printed if "finding" in row]
    assert told.count("reward_mean") == 1
    assert len(told) == len({*told})


def test_a_finding_is_told_with_what_shows_it(tmp_path: Path) -> None:
    """In words, and with commands; steps between which it comes are lines as before."""
    path = tmp_path / "a.jsonl"
    rewards = [10.0 + step % 3 / 10 - 9.0 * (step > 29) for step in range(40)]
    path.write_text("".join(line(step, reward) for step, reward in enumerate(rewards)))
    watch, stream = watching(path, "findings", fields="reward_mean", flags="-v dapo")
    before = signal.getsignal(signal.SIGINT)
    assert watch.run(0.1) == 1
    assert signal.getsignal(signal.SIGINT) is before
    told = stream.lines()
    assert told[:2] == ["  step  reward_mean", "     0            5"]
    finding, *rest = told[40:]
    assert finding.startswith("step 30  shift  reward_mean fell: median 5.05 before, 0.55 after (")
    words = f"grpo eval {path} --where step==30 --level response -v dapo # step 30"
    assert words in " ".join(" ".join(rest).replace("\\", "").split())


def test_a_metric_that_no_step_has_fails_nothing(tmp_path: Path) -> None:
    """The first steps show it."""
    path = tmp_path / "a.jsonl"
    path.write_text(lines(*range(5)))
    watch, stream = watching(path, "mismatch.k3>0.01")
    with pytest.raises(UsageError, match=r"no step has mismatch.k3; it needs log_probs_rollout"):
        watch.run(0.1)
    assert len(stream.lines()) == 5


@pytest.mark.parametrize("width", [60, 80, 200])
def test_rows_fit_and_what_has_no_room_is_named(tmp_path: Path, monkeypatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    path = tmp_path / "a.jsonl"
    path.write_text(lines(0, 1, 2))
    watch, stream = watching(path, "reward_mean<9", fields=None)
    assert watch.run(0.1) == 1
    printed = stream.lines()
    assert max(map(len, printed)) <= width
    above, head = printed[:-3], printed[-3]
    hidden = " ".join(above).partition(": ")[2].partition(" (")[0]
    names = {*head.split(), *filter(None, hidden.replace(",", "").split())}
    assert {"step", "reward_mean"} <= names
    assert (
        " more (see " in " ".join(" ".join(above).split()) or {"ratio_p999", "mismatch.k3"} <= names
    )
    assert bool(above) == (width < 110)


def test_ctrl_c_prints_the_last_step(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(line(0) + line(1))
    command = [sys.executable, "-m", "grpo_cli", "trend", str(path), "--follow", "-v", "dapo"]
    command += ["--format", "jsonl", "--every", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["step"] == 0
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert json.loads(rest)["step"] == 1
    assert process.returncode == 130


def test_a_first_line_with_settings_is_of_all_lines_whenever_they_come(tmp_path: Path) -> None:
    """UNIPO's: lines of later polls have them too."""
    header, step = dumps.unipo_lines()
    path, text = tmp_path / "a.jsonl", json.dumps(header) + "\n"
    follow = following(path)
    for number in range(1, 4):
        text += json.dumps({**step, "step": number}) + "\n"
        path.write_text(text)
        assert follow.poll()
    assert numbers(follow) == at_once(path)
    path.write_text(text.partition("\n")[2])
    assert numbers(follow) != at_once(path)


def test_a_run_starts_again_where_a_reference_turns_up(tmp_path: Path) -> None:
    """Until then the penalty is left out; then its losses are those of no record without one."""
    path = tmp_path / "a.jsonl"
    path.write_text(line(1) + line(2))
    follow = Follow([str(path)], PLAIN, plan("grpo"), StepSource())
    follow.poll()
    assert None not in [step.metrics["loss"] for step in follow.steps()]
    assert any("the records have no log_probs_ref" in note for note in follow.notices)
    known = json.loads(line(3))
    append(path, json.dumps(known | {"log_probs_ref": known["log_probs"]}) + "\n")
    poll_all(follow)
    losses = [step.metrics["loss"] for step in follow.steps()]
    assert [loss is None for loss in losses] == [True, True, False]
    assert any(note.startswith("loss, KL and ratios are not computed") for note in follow.notices)
