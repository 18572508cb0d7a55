"""Command lines: every command with its flags, their languages spoken well and badly."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from fuzz.templates import LEVELS, names

Draw = random.Random
Words = list[str]

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
_TESTS = ("==", "==", "==", "!=", "!=", "<", "<=", ">", ">=")
_ODD_TESTS = ("=", "===", "=<", "~", "")
_NUMBERS = ("0", "1", "0.2", "1e-8", "10", "0.04", "+.5", "5.", "0.28")
_ODD_NUMBERS = ("-1", "1e308", "1e309", "nan", "inf", "1_0", "", "x", "-0", "1e5", "9" * 400, "½")
_COUNTS = ("1", "2", "3", "0", "7")
_ODD_COUNTS = ("-1", "1000000", "9" * 19, "9" * 30, "x", "", "1.5")
_IDS = ("0", "1", "a", "120", "plain")
_ODD_IDS = ("2", "b", "1.0", "1.1", "chatcmpl-1", "r1", "", "-1", "[")


def _mostly(good: Sequence[str], odd: Sequence[str]) -> Callable[[Draw], str]:
    return lambda draw: draw.choice(odd if draw.random() < 0.15 else good)


def path(draw: Draw) -> str:
    """A place in an object."""
    if draw.random() < 0.08:
        return draw.choice(_ODD_PATHS)
    return draw.choice((*_PATHS, draw.choice(names()["keys"])))


def condition(draw: Draw) -> str:
    """What ``--where`` takes."""
    parts = [
        path(draw) + draw.choice(("", " ")) + _test(draw) + draw.choice(_CONSTANTS)
        for _ in range(draw.choice((1, 1, 1, 2, 3)))
    ]
    return draw.choice((" && ", "&&", "&&", "&&", "&&", "||", " ")).join(parts)


_test = _mostly(_TESTS, _ODD_TESTS)
_number = _mostly(_NUMBERS, _ODD_NUMBERS)
_count = _mostly(_COUNTS, _ODD_COUNTS)
_id = _mostly(_IDS, _ODD_IDS)


def _of(name: str) -> Callable[[Draw], str]:
    return lambda draw: draw.choice(names()[name])


def _any(values: tuple[str, ...]) -> Callable[[Draw], str]:
    return lambda draw: draw.choice(values)


def _assignment(draw: Draw) -> str:
    name = _mostly(names()["settings"], ("", "x", "lr", "é"))(draw)
    equals = _mostly(("=",), ("", "==", " = "))(draw)
    return name + equals + _mostly(_NUMBERS, (*_ODD_NUMBERS, "null", "ratio", "none", "true"))(draw)


def _mapping(draw: Draw) -> str:
    name = draw.choice((*names()["keys"], draw.choice(names()["settings"]), "", "x"))
    return name + _mostly(("=",), ("",))(draw) + path(draw)


def _list_of(one: Callable[[Draw], str]) -> Callable[[Draw], str]:
    return lambda draw: draw.choice((",", ",", ", ", ",,")).join(
        one(draw) for _ in range(draw.choice((1, 1, 2, 3)))
    )


def _pattern(draw: Draw) -> str:
    return draw.choice((draw.choice(names()["variants"]), "trl/*", "dr", "gr?o", "[", "*x", "all"))


def _stage(name: str) -> Callable[[Draw], str]:
    return lambda draw: _mostly(names()[f"choices of {name}"], ("x", ""))(draw)


_VARIANT = {"-v": _of("variants")}
_STAGES: Mapping[str, Callable[[Draw], str]] = {
    **{
        f"--{name}": _stage(name)
        for name in ("advantage", "ratio", "surrogate", "kl", "correction", "aggregate")
    },
    **dict.fromkeys(("--epsilon", "--epsilon-low", "--epsilon-high"), _number),
    "--beta": _mostly(("0", "0", "0.04"), _ODD_NUMBERS),
    "-p": _assignment,
    "--batch": _mostly(("input", "record"), ("x",)),
}
_SOURCE: Mapping[str, Callable[[Draw], str]] = {
    "--from": _of("formats"),
    "--map": _mapping,
    "--where": condition,
    "--group": _id,
    "--group-by": _list_of(path),
    "--group-size": _mostly(("1", "2", "2", "4"), _ODD_COUNTS),
    "--group-anywhere": lambda _: "",
    "--unpack": _mostly(("4G", "500M", "1000"), ("0", "x", "")),
    "--record": _id,
    "--on-error": _mostly(("skip",), ("stop", "x")),
}
_BY_STEP = {**{name: one for name, one in _SOURCE.items() if name != "--record"}, "--step": path}
_PAGE: Mapping[str, Callable[[Draw], str]] = {
    "--json": lambda _: "",
    "-q": lambda _: "",
    "-o": _mostly(
        ("out", "out", "out.parquet"), ("missing/out", ".", "/dev/full", "/dev/null", "-")
    ),
}


def _fields(draw: Draw) -> str:
    level = draw.choice((*LEVELS, "record", "record"))
    return _list_of(_mostly(names()[f"fields of {level}"], ("x", "", "loss")))(draw)


_PRINTING: Mapping[str, Callable[[Draw], str]] = {
    "--level": _any((*LEVELS, "token", "response")),
    "-f": _mostly(("table", "json", "json", "jsonl", "jsonl", "csv", "csv"), ("x",)),
    "--fields": _fields,
    "--only": lambda draw: draw.choice(names()[f"fields of {draw.choice(LEVELS)}"]),
    "--limit": _count,
}
_OF: Mapping[str, Mapping[str, Callable[[Draw], str]]] = {
    "eval": {**_VARIANT, **_STAGES, **_SOURCE, **_PAGE, **_PRINTING},
    "compare": {"--variants": _list_of(_pattern), **_STAGES, **_SOURCE, **_PAGE},
    "match": {
        **_VARIANT, **_STAGES, **_SOURCE, **_PAGE, "--rtol": _number,
        "--betas": _list_of(_number), "--objective": _number,
    },
    "split": {
        **_VARIANT, **_STAGES, **_SOURCE, **_PAGE,
        "--accumulate": _count, "--ranks": _count,
    },
    "explain": {**_VARIANT, **_STAGES, **_SOURCE, **_PAGE, "--response": _count},
    "verify": {
        **_VARIANT, **_STAGES, **_SOURCE, **_PAGE, "--rtol": _number,
        "--atol": _number,
    },
    "check": {**_SOURCE, **_PAGE, "--limit": _count},
    "show": {
        **_VARIANT, **_STAGES, **_SOURCE, "-q": lambda _: "", "--response": _count,
        "--color-by": _any(("gradient", "ratio", "kl", "contribution", "log-ratio", "x")),
        "--top": _count, "--color": _any(("auto", "never", "x")),
        "--html": _any(("out", "missing/x")), "--svg": _any(("out", ".")),
    },
    "trend": {
        **_VARIANT, **_STAGES, **_BY_STEP, "--plot": lambda _: "",
        "-f": _any(("table", "json", "jsonl", "csv", "markdown", "x")),
        "--fail-on": _any(("findings", "loss>0", "kl_k3>0.01", "x>", "")),
    },
    "diff": {**_BY_STEP, "--json": lambda _: "", "--tolerance": _number},
    "report": {
        **_VARIANT, **_STAGES, **_BY_STEP, "--steps": _count, "--groups": _count,
        "--tokens": _count, "--seed": _count, "-o": _any(("out", "missing/out", ".")),
    },
    "convert": {**_SOURCE, **_PAGE, "--to": _any(("jsonl", "parquet", "x"))},
}  # fmt: skip
_LOGGED = [["--logged", f"loss={path}"] for path in ("step", "metrics.kl", "score")]
_NEEDED: Mapping[str, Callable[[Draw], Words]] = {
    "match": lambda draw: draw.choice((["--loss", _number(draw)], *_LOGGED)),
    "split": lambda draw: ["-n", _count(draw)],
    "diff": lambda _: ["FILE"],
}
_WEIGHTS = {
    "eval": 46, "convert": 14, "check": 9, "verify": 9, "show": 7, "compare": 4, "split": 5,
    "explain": 5, "match": 1, "trend": 4, "diff": 2, "report": 2,
}  # fmt: skip
COMMANDS = tuple(_OF)
_LIKELY = ("-v", "--on-error", "--json", "--level", "-f", "--group-by", "--where", "--limit")


def command(draw: Draw) -> tuple[str, Words]:
    """A command and its words, without the file."""
    name = draw.choices(COMMANDS, [_WEIGHTS[one] for one in COMMANDS])[0]
    words = [*_NEEDED[name](draw)] if name in _NEEDED else []
    known = _OF[name]
    for _ in range(draw.choice((0, 0, 1, 1, 1, 2, 2, 3, 5))):
        flag = draw.choice(_LIKELY if draw.random() < 0.5 else (*known,))
        if flag in known and (flag not in _RARE or draw.random() < 0.3):
            value = known[flag](draw)
            words += [flag] if flag in _BARE else [flag, value]
            words += ["--group-anywhere"] * (flag == "--group-by" and draw.random() < 0.3)
    if "-v" in known and "-v" not in words and "--beta" not in words:
        words += draw.choice(_USUAL)
    if draw.random() < 0.01:
        words.insert(draw.randrange(len(words) + 1), draw.choice(("--", "-", "--x", "\x1b", "")))
    return name, words


_RARE = (
    *("--from", "--group", "--record", "--group-anywhere", "--only", "--map", "--response"),
    *("--correction", "--advantage", "--where"),
)
_BARE = ("--json", "-q", "--group-anywhere", "--plot")
_USUAL = (
    ["-v", "dr"],
    ["-v", "trl/dapo"],
    ["-v", "verl/vanilla"],
    ["--beta", "0"],
    ["-v", "gspo"],
    [],
)
