"""Command lines: every command with every flag that it has, spoken well and badly."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import typer.main
from command import COMMANDS as EVERY
from command import application
from hypothesis import strategies as st

from fuzz.changes import LEVELS, names

SEEDS = st.integers(0, 2**32 - 1)
Value = Callable[[random.Random], str]

READ_NO_FILES = ("formats", "variants", "vectors", "help")
COMMANDS = tuple(name for name in EVERY if name not in READ_NO_FILES)
_NOT_TRIED = (
    "--jobs",
    "--on",
    "--resume",
    "--color",
    "--no-pager",
    "--help-all",
)
"""They start processes, wait, or change nothing of what is printed here."""
_OFTEN = (
    *("eval",) * 40, *("convert",) * 12, *("check", "verify", "show", "trend") * 6,
    *[name for name in COMMANDS if name != "match"] * 3, "match",
)  # fmt: skip
"""match takes a second where others take milliseconds."""

_PATHS = (
    *("step", "id", "uid", "env", "prompt", "rewards[0]", "rewards", "meta.step", "choices[0]"),
    *("header.algorithm", "reward", "group_ids", "log_probs_new[0][0]", "a.b.c", "entries[0].step"),
    *("meta_info.prompt_tokens", "token_ids", "tokens[0]", "hyperparameters.beta", "idx", "x"),
    *("group_ids[-1]", "rewards.right", "A", "advantage", "expected.loss", "prompt_idx"),
)
_ODD_PATHS = ("", ".", "[0]", "a..b", "a.[0]", "a[", "a[99999999999999999999]", "a.0", "é", "\x1b")
_CONSTANTS = (
    *("120", "1", "0", "-0.5", "3", "math", '"math"', "'a'", "true", "false", "null", "nan", "inf"),
    *("1e400", "1_0", "0x10", "", '"', "'", "a b", "9" * 30, "9" * 5000, "\u202e", "r1", "½"),
)
_NUMBERS = ("0", "1", "0.2", "1e-8", "10", "0.04", "+.5", "5.", "0.28")
_ODD_NUMBERS = ("-1", "1e308", "1e309", "nan", "inf", "1_0", "", "x", "-0", "1e5", "9" * 400, "½")


def _mostly(good: Sequence[str], odd: Sequence[str]) -> Value:
    return lambda draw: draw.choice(odd if draw.random() < 0.15 else good)


def _known(*lists: str, odd: Sequence[str] = ("x", "")) -> Value:
    """Names that the product lists."""
    return lambda draw: _mostly(names()[draw.choice(lists)], odd)(draw)


def _path(draw: random.Random) -> str:
    """A place in an object."""
    return _mostly((*_PATHS, draw.choice(names()["keys"])), _ODD_PATHS)(draw)


def _list_of(value: Value, joints: Sequence[str] = (",", ",", ", ", ",,")) -> Value:
    return lambda draw: draw.choice(joints).join(
        value(draw) for _ in range(draw.choice((1, 1, 2, 3)))
    )


_number = _mostly(_NUMBERS, _ODD_NUMBERS)
_count = _mostly(("1", "2", "3", "0", "7"), ("-1", "1000000", "9" * 19, "9" * 30, "x", "", "1.5"))
_id = _mostly(("0", "1", "a", "120", "plain"), ("2", "b", "1.0", "chatcmpl-1", "r1", "", "-1", "["))
_test = _mostly(("==", "==", "!=", "<", "<=", ">", ">="), ("=", "===", "=<", "~", ""))


def _condition(draw: random.Random) -> str:
    return _path(draw) + draw.choice(("", " ")) + _test(draw) + draw.choice(_CONSTANTS)


def _assignment(draw: random.Random) -> str:
    name = _known("settings", odd=("", "x", "lr", "é"))(draw)
    value = _mostly(_NUMBERS, (*_ODD_NUMBERS, "null", "ratio", "none", "true"))
    return name + _mostly(("=",), ("", "==", " = "))(draw) + value(draw)


def _mapping(draw: random.Random) -> str:
    return _known("keys", "settings")(draw) + _mostly(("=",), ("",))(draw) + _path(draw)


def _measured(draw: random.Random) -> str:
    """A name of trend's with a limit."""
    name = draw.choice(("findings", "loss", "kl_k3", "reward", "x"))
    return name + draw.choice((">", "<", "")) + _number(draw)


_fields = _known(*(f"fields of {level}" for level in LEVELS), odd=("x", "", "loss"))
_target = _mostly(("out", "out.parquet"), ("missing/out", ".", "/dev/full", "/dev/null", "-"))
_VALUES: dict[str, Value] = {
    "--variant": _known("variants"),
    "--variants": _list_of(_mostly(("dr", "trl/*", "gr?o", "gspo", "all"), ("[", "*x"))),
    **{
        f"--{stage}": _known(f"choices of {stage}")
        for stage in ("advantage", "ratio", "surrogate", "kl", "correction", "aggregate")
    },
    "--beta": _mostly(("0", "0", "0.04"), _ODD_NUMBERS),
    "--param": _assignment,
    "--batch": _mostly(("input", "record", "step"), ("x",)),
    "--from": _known("formats"),
    "--map": _mapping,
    "--where": _list_of(_condition, ("&&", " && ", "&&", "&&", "||", " ")),
    "--group": _id,
    "--record": _id,
    "--group-by": _list_of(_path),
    "--step": _path,
    "--fields": _list_of(_fields),
    "--only": _fields,
    "--output": _target,
    "--unpack": _mostly(("4G", "500M", "1000"), ("0", "x", "")),
    "--html": _mostly(("out",), ("missing/x", ".")),
    "--svg": _mostly(("out",), ("missing/x", ".")),
    "--log": _mostly(("in.jsonl",), ("missing", ".")),
    "--by": _mostly(("gradient", "ratio", "kl", "contribution", "log-ratio"), ("x",)),
    "--betas": _list_of(_number),
    "--logged": lambda draw: draw.choice(("loss", "kl", "x")) + "=" + _path(draw),
    "--fail-on": _measured,
}
_LIKELY = ("-v", "--on-error", "--json", "--level", "-f", "--group-by", "--where", "--limit")
_RARE = (
    *("--from", "--group", "--record", "--group-anywhere", "--only", "--map", "--response"),
    *("--correction", "--advantage", "--where", "--html", "--svg", "--log"),
)
_NEEDED: dict[str, tuple[tuple[str, ...], ...]] = {
    "match": (("--loss", "0.2"), ("--loss", "0"), ("--loss", "x"), ("--logged", "loss=metrics.kl")),
    "diff": (("FILE",),),
}
_USUAL = (
    *(("-v", "dr"), ("-v", "trl/dapo"), ("-v", "verl/vanilla"), ("--beta", "0"), ("-v", "gspo")),
    (),
)


@cache
def _flags(command: str) -> list[tuple[str, Value | None]]:
    """What the command says that it takes: a flag, and what draws its value; likely ones often."""
    found: list[tuple[str, Value | None]] = []
    for one in typer.main.get_command(application()).commands[command].params:  # type: ignore[attr-defined]
        if one.param_type_name != "option" or one.opts[0] in _NOT_TRIED or "--help" in one.opts:
            continue
        often = 8 if {*one.opts} & {*_LIKELY} else 1 if one.opts[0] in _RARE else 3
        found += [(one.opts[-1], None if one.is_flag else _value(one))] * often
    return found


def _value(option: Any) -> Value:
    if option.opts[0] in _VALUES:
        return _VALUES[option.opts[0]]
    if choices := getattr(option.type, "choices", None):
        return _mostly((*choices,), ("x", ""))
    return _count if option.type.name in ("int range", "int") else _number


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A command and its words, without the file."""
    command = draw(st.sampled_from(_OFTEN))
    words = [*draw(st.sampled_from(_NEEDED.get(command, ((),))))]
    flags = _flags(command)
    for at, seed in draw(st.lists(st.tuples(st.integers(0, len(flags) - 1), SEEDS), max_size=4)):
        flag, value = flags[at]
        words += [flag] if value is None else [flag, value(random.Random(seed))]
    takes = {flag for flag, _ in flags}
    if "-v" in takes and command != "compare" and not {"-v", "--beta"} & {*words}:
        words += draw(st.sampled_from(_USUAL))
    if draw(st.integers(0, 99)) == 99:
        words.append(draw(st.sampled_from(("--", "-", "--x", "\x1b", ""))))
    return command, words
