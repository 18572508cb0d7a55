"""Every command that is printed runs, and gives the number that is claimed of it."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import command
import pytest
import typer
from command import COMMANDS, application
from files import some
from fuzz.product import run
from planted import record
from rows import NAMES, STAGES

from grpo_cli import evaluate

TESTS = Path(__file__).parent.parent
SAMPLES = TESTS.parent / "samples"

LINES = [
    ["eval"],
    ["explain"],
    ["check"],
    ["verify"],
    ["trend"],
    ["show"],
    ["compare"],
    ["report", "-o", "page.html"],
    ["eval", "-v", "dr", "--level", "token", "--limit", "2"],
    ["explain", "-v", "dr"],
    ["show", "-v", "dr"],
    ["trend", "-v", "dapo", "-p", "dual_clip=null"],
    ["report", "-v", "dapo", "-o", "page.html"],
    ["diff"],
    ["convert", "--limit", "1"],
    ["formats"],
]
"""What each input is given to; ``match``, which takes as long as all of them, has its own cases."""
NARROW = ["--kl", "none", "--epsilon", "0.2", "--batch", "record"]
"""Flags with which ``match`` tries little, and no mistakes, where nothing fits."""


def rows(count: int, **more: Any) -> list[dict[str, Any]]:
    """Rows of one response each, two of a prompt."""
    made = [record(at, [3], [float(at % 2)], **more) for at in range(count)]
    return [
        {"uid": f"prompt {at // 2}", "step": at // 4}
        | {name: one[0] for name, one in row.items() if name not in ("id",)}
        for at, row in enumerate(made)
    ]


def drifting(steps: int) -> list[dict[str, Any]]:
    """A run whose engine leaves the trainer, with ids that a shell has to be told of."""
    found = []
    for step in range(steps):
        one = record(step, [4, 6], [1.0, 0.0], step=step, id=f"it's {step}")
        if step >= steps // 2:
            one["log_probs_rollout"] = [[x - 0.9 for x in row] for row in one["log_probs_old"]]
        found.append(one)
    return found


def without(names: list[str], records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: one for key, one in each.items() if key not in names} for each in records]


def made() -> dict[str, str]:
    """Inputs by name: what there is to suggest something for."""
    usual = [record(seed, [3, 7, 5], [1.0, 0.0, 0.3]) for seed in range(3)]
    trl = {"framework": {"name": "trl", "loss_type": "dapo", "scale_rewards": "none"}}
    given = [one | trl | {"advantages": [1.0, -0.5, 0.0]} for one in usual]
    lines = {
        "a dump.jsonl": without(["log_probs_ref"], usual),
        "no old.jsonl": without(["log_probs_old"], usual),
        "rows.jsonl": rows(8),
        "plain rows.jsonl": without(["log_probs_ref", "log_probs_rollout"], rows(8)),
        "it's a run.jsonl": drifting(30),
        "short run.jsonl": without(["log_probs_old", "log_probs_rollout"], drifting(3)),
        "named.jsonl": [one | trl for one in without(["log_probs_ref"], usual)],
        "given.jsonl": [one | {"expected": {"loss": 0.1 + at}} for at, one in enumerate(given)],
        "zero.jsonl": [one | {"advantages": [0.0] * 3} for one in usual],
        "texts.jsonl": [{"input": "p", "output": "r", "gts": "x", "score": 1.0, "step": 1}],
        "metrics.jsonl": [{"step": 1, "data": {"actor/kl_loss": float("nan"), "loss": 0.1}}],
        "typo.jsonl": [{"logprobs": [[-1.0]], "old_logprob": [[-1.0]], "rewards": [1.0]}],
        "none.jsonl": [],
    }
    found = {name: "".join(f"{json.dumps(one)}\n" for one in each) for name, each in lines.items()}
    found |= {"log.csv": "step,loss\n1,0.5\n", "config.yaml": "step: 1\nloss: 2\n"}
    runs = "".join(f"{json.dumps(one)}\n" for one in drifting(8))
    return found | {"two runs/one.jsonl": runs, "two runs/other one.jsonl": runs}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The inputs, in the folder in which every command runs."""
    place = tmp_path_factory.mktemp("printed")
    (place / "samples").symlink_to(SAMPLES)
    (place / "data").symlink_to(TESTS / "data")
    for name, text in made().items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("COLUMNS", "80")
        yield place


def inputs() -> list[str]:
    """Every sample, every rollout, and what is made."""
    samples = [f"samples/{one.relative_to(SAMPLES)}" for one in SAMPLES.rglob("*.json*")]
    data = [f"data/{one.relative_to(TESTS / 'data')}" for one in (TESTS / "data").rglob("*.jsonl")]
    return [*sorted(samples), *sorted(data), "samples/run", *made(), "two runs", "missing.jsonl"]


def cases() -> Iterator[list[str]]:
    """Command lines whose outputs are read; in turn other commands on each input."""
    found = [*inputs()]
    for turn in range(len(LINES)):
        for at, file in enumerate(found):
            name, *flags = LINES[(at + turn) % len(LINES)]
            files = [file, file] if name == "diff" else [] if name == "formats" else [file]
            yield [name, *files, *flags]


USAGE = [
    ["a dump.jsonl", "--beta", "0"],
    ["gspo"],
    ["lint", "a dump.jsonl"],
    ["--json", "eval", "a dump.jsonl"],
    ["eval", "a dump.jsonl", "-v", "dappo"],
    ["eval", "a dump.jsonl", "--kl", "k9"],
    ["eval", "a dump.jsonl", "-p", "epsilonn=1"],
    ["compare", "a dump.jsonl", "-v", "nothing*"],
    ["explain", "nothing"],
    ["help", "nothing"],
    ["help"],
    ["vectors"],
    ["vectors", "nothing"],
    ["variants"],
    ["variants", "--changes"],
    ["explain", "gspo"],
    ["explain", "k3"],
    ["explain", "clip/dual-capped"],
    ["show", "a dump.jsonl", "--html"],
    ["trend", "rows.jsonl", "-v", "dr", "--group-by", "uid"],
    ["trend", "it's a run.jsonl", "-v", "dr", "--where", "step>=0", "-p", "dual_clip=null"],
    ["eval", "samples/run/trainer_state.json"],
]
MATCHES = [
    (["a dump.jsonl"], "dapo", ["--loss"]),
    (["it's a run.jsonl", "--where", "step<3"], "dr", ["--objective"]),
    (["rows.jsonl", "--group-by", "uid"], "trl/dapo", ["--loss"]),
    (["samples/trl_grpo.jsonl"], "gspo", ["--loss"]),
    (["data/rollouts/trl-1.16.0-dapo.jsonl"], "dapo", ["--loss"]),
]


def outputs(arguments: list[str]) -> str:
    """What a command prints, and the page that it writes."""
    page = Path("page.html")
    page.unlink(missing_ok=True)
    found = run(arguments)
    assert found.code != 70, (arguments, found.err)
    assert not found.trouble, arguments
    text = (found.out + b"\n" + found.err).decode()
    if page.exists():
        text += re.sub(r"<[^>]*>", " ; ", html.unescape(page.read_text()))
    return text


def _allowed(one: Printed, file: str) -> tuple[int, ...]:
    """Bad input is no fault of a line that names no file, or a file that is bad in other ways.

    A command alone is a name in prose, which may need flags. Logs of a step are too short for
    ``--against``, as the line says.
    """
    if len(one.words) == 1 or "--against" in one.words:
        return (2, 3)
    general = any(map(is_placeholder, one.words))
    return (3,) if general or "bad_" in file or "--json" in one.words else ()


def failures(arguments: list[str], folder: Path, known: set[tuple[str, ...]]) -> Iterator[str]:
    """The commands that are printed and cannot be run."""
    file = next((word for word in arguments[1:] if Path(word).exists()), "a dump.jsonl")
    for one in printed(outputs(arguments)):
        words = filled(one.words, file, folder)
        if tuple(words) in known:
            continue
        known.add(tuple(words))
        words += NARROW if words[0] == "match" else []
        found = run(words)
        if found.trouble or found.code not in (0, 1, *_allowed(one, file)):
            said = found.err.decode().strip() or found.trouble
            yield f"grpo {shlex.join(arguments)}\n   prints {one.text}\n   which says {said}"


def test_what_a_command_line_in_prose_is() -> None:
    """Its flags with their values, what there is, and words in capitals; prose ends it."""
    text = (
        "grpo: this is a log: grpo explain 'a dump.jsonl' reads it, grpo trend RUN --log LOG "
        "puts it beside; grpo eval FILE… --beta 0, or grpo eval FILE… -v dapo (which has none)\n "
        " grpo show 'it'\"'\"'s a run.jsonl' --record 'it'\"'\"'s 3' \\\n    --by ratio  # "
        "step 3, token #1\n(run grpo check for all findings) or grpo explain gspo; grpo variants."
    )
    assert [one.words for one in printed(text)] == [
        ("explain", "a dump.jsonl"),
        ("trend", "RUN", "--log", "LOG"),
        ("eval", "FILE…", "--beta", "0"),
        ("eval", "FILE…", "-v", "dapo"),
        ("show", "it's a run.jsonl", "--record", "it's 3", "--by", "ratio"),
        ("check",),
        ("explain", "gspo"),
        ("variants",),
    ]


@pytest.mark.more
def test_every_command_that_is_printed_can_be_run(folder: Path) -> None:
    known: set[tuple[str, ...]] = set()
    every = [*some([*cases()], 24), *USAGE]
    failed = [said for arguments in every for said in failures(arguments, folder, known)]
    assert len(known) > 20
    assert not failed, "\n".join(failed)


@pytest.mark.more
def test_the_commands_of_the_front_page_can_be_run(folder: Path) -> None:
    lines = run(["--help"]).out.decode().splitlines()
    found = [one for line in lines for one in printed(line)]
    assert len(found) > 15
    for one in found:
        narrow = NARROW if one.words[0] == "match" else []
        ended = run([*filled(one.words, "a dump.jsonl", folder), *narrow])
        assert ended.code not in (2, 70), (one.text, ended.err)


@pytest.mark.more
@pytest.mark.parametrize(("words", "variant", "flag"), some(MATCHES, 1))
def test_what_match_suggests_gives_the_number_that_it_claims(
    words: list[str], variant: str, flag: list[str]
) -> None:
    """To the last bit, but for what awk multiplies it with."""
    name = flag[0].removeprefix("--")
    level = ["--level", "batch", "--only", name]
    value = float(f"{float(run(['eval', *words, '-v', variant, *level]).out):.8g}")
    _give_what_they_claim(run(["match", *words, *flag, repr(value), "--json"]).out)


def carrying(kind: str) -> list[dict[str, Any]]:
    """Three steps of two records that carry a loss: the record's, or that of the step."""
    found = [record(at, [3, 7], [1.0, 0.0], step=at // 2, id=f"it's {at}") for at in range(6)]
    for at, one in enumerate(found):
        of = found[at - at % 2 : at - at % 2 + 2] if kind == "of steps" else [one]
        one["metrics"] = {"loss": evaluate(of, "dapo").loss}
        if kind == "of the first of a step" and at % 2:
            del one["metrics"]
    return without(["step", "id"] if kind == "without steps" else [], found)


KINDS = ("of records", "of steps", "of the first of a step")
CHOSEN = ([], ["--where", "step==1"], ["--where", "rewards!=7 && step<2"])
LOGGED = [*product(KINDS, CHOSEN), ("of records", ["--record", "it's 3"]), ("without steps", [])]


@pytest.mark.more
@pytest.mark.parametrize(("kind", "chosen"), some(LOGGED, 1))
def test_what_match_suggests_of_logged_numbers_gives_the_one_that_it_claims(
    folder: Path, kind: str, chosen: list[str]
) -> None:
    lines = "".join(f"{json.dumps(one)}\n" for one in carrying(kind))
    (folder / "carrying.jsonl").write_text(lines)
    words = ["carrying.jsonl", *chosen, "--logged", "loss=metrics.loss"]
    _give_what_they_claim(run(["match", *words, "--json"]).out)


def _give_what_they_claim(answer: bytes) -> None:
    """Each command of an answer prints the number that the answer has for it."""
    document = json.loads(answer)
    released = [one for one in document["released"].values() if isinstance(one, dict)]
    found = [*document["matches"], *released]
    assert document["matches"]
    for one in found:
        command, _, factor = one["command"].partition(" | awk ")
        out = run(shlex.split(command)[1:])
        assert out.code == 0, out.err
        times = re.search(r"\$1 ([*/]) ([\d.e+-]+)", factor)
        number = float(out.out)
        if times is not None:
            number = number * float(times[2]) if times[1] == "*" else number / float(times[2])
        assert number == pytest.approx(one["value"], rel=1e-12, abs=1e-300), one["command"]


VERIFIED = [
    *(f"data/rollouts/{one.name}" for one in sorted((TESTS / "data" / "rollouts").glob("*"))),
    *(f"data/{one.name}" for one in sorted((TESTS / "data").glob("*.jsonl"))),
    *(f"samples/threads/{one.name}" for one in sorted((SAMPLES / "threads").glob("*.jsonl"))),
    "given.jsonl",
]


@pytest.mark.parametrize(
    ("file", "flags"), some([*product(VERIFIED, [[], ["--beta", "0.125"]])], 2)
)
def test_the_flags_that_verify_evaluated_with_evaluate_the_same(
    file: str, flags: list[str]
) -> None:
    """So many records have the signature of its verdict, and those that agree their number."""
    answer = run(["verify", file, *flags, "--causes", "0"])
    if answer.code in (2, 3):
        return  # nothing to verify, or a flag that a row does not take
    document = json.loads(run(["verify", file, *flags, "--causes", "0", "--json"]).out)
    verdicts = {(row["id"], row["line"]): row["signature"] for row in document["records"]}
    notes = re.findall(r"note: (\d+) records? evaluated as (.+)", answer.err.decode())
    assert notes
    for count, words in notes:
        evaluated = run(["eval", file, *shlex.split(words), "--json", "--on-error", "skip"])
        assert evaluated.code in (0, 3), evaluated.err
        rows = json.loads(evaluated.out)["records"]
        same = [row for row in rows if verdicts.get((row["id"], row["line"])) == row["signature"]]
        assert len(same) >= int(count), words


# ---- which commands a page prints ----------------------------------------------------------------


PAGES = Path(__file__).parents[2] / "grpo_cli" / "commands" / "help" / "pages"
_COMMAND = re.compile(rf"(?<![\w/.`'-])grpo ({'|'.join(COMMANDS)})(?![\w-])")
_TOKEN = re.compile(r"""\s*((?:'[^']*'|"[^"]*"|[^\s'"])+)""")
_PLACEHOLDER = re.compile(r"[A-Z]+…?|N")
_END = re.compile(r"[,;:.)`]+$")


class Printed(NamedTuple):
    """A command line in some output.

    Attributes:
        words: as a shell would pass them, without ``grpo``.
        text: as it was printed.
        rest: what follows it.
    """

    words: tuple[str, ...]
    text: str
    rest: str


def printed(output: str) -> Iterator[Printed]:
    """The command lines in some output: ``grpo COMMAND`` and the words that can belong to it.

    Those are its flags with their values, and names of files, variants and other things there are,
    or words in capitals that stand for one. Prose ends a command line.
    """
    text = re.sub(r"\\\n\s*|\n\s+", " ", output)
    for found in _COMMAND.finditer(text):
        words, at = [found[1]], found.end()
        flags, wants = _flags(found[1]), False
        while (token := _TOKEN.match(text, at)) is not None:
            bare = _END.sub("", token[1])
            word = _word(bare)
            if word is None or not (wants or _belongs(word, flags)):
                break
            words.append(word)
            at = token.start(1) + len(bare)
            wants = not wants and "=" not in word and flags.get(word, False)
            if bare != token[1]:
                break
        yield Printed(tuple(words), text[found.start() : at], text[at : at + 200])


def _word(text: str) -> str | None:
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    return words[0] if len(words) == 1 else None


def is_placeholder(word: str) -> bool:
    """Whether a word in capitals stands for another one."""
    return _PLACEHOLDER.fullmatch(word) is not None


def _belongs(word: str, flags: Mapping[str, bool]) -> bool:
    if word.startswith("-") and len(word) > 1 and not word.startswith("->"):
        return True
    if is_placeholder(word) or "*" in word or (len(word) < 256 and Path(word).exists()):
        return True
    return "EXPLAINS" in flags and (word in _names() or word.partition("/")[0] in _names())


@cache
def _names() -> set[str]:
    """Variants, topics, choices of stages, and files of the vectors."""
    topics = {path.stem for path in PAGES.glob("*.md")}
    choices = {name for stage in STAGES.values() for name in (*stage.choices, *stage.aliases)}
    cases = command.answer("vectors")["vectors"]
    return {*NAMES, *topics, *choices, *(one["id"].partition("/")[0] for one in cases)}


@cache
def _flags(command: str) -> Mapping[str, bool]:
    """The flags of a command, and whether a value follows each."""
    group: Any = typer.main.get_command(application(command))
    made = group.commands[command]
    found = {
        name: not (getattr(one, "is_flag", False) or getattr(one, "count", False))
        for one in made.params
        for name in (*one.opts, *one.secondary_opts)
        if name.startswith("-")
    }
    return found | ({"EXPLAINS": False} if command in ("explain", "help", "variants") else {})


def filled(words: tuple[str, ...], file: str, folder: Path) -> list[str]:
    """The words with something that there is in the place of words in capitals."""
    page = str(folder / "page.html")
    there = {
        "FILE": file,
        "RUN": "it's a run.jsonl" if "--log" in words else file,
        "RECORDS": file,
        "FOLDER": file,
        "LOG": "samples/run/trainer_state.json",
        "PAGE": page,
        "CASE": "clip/dual-capped",
        "NAME": "dr",
        "VARIANT": "dr",
        "TOPIC": "runs",
        "N": "1",
        "X": "0.1",
    }
    if words[0] == "help":
        there["NAME"] = "runs"
    return [there.get(word.rstrip("…"), word) for word in words]
