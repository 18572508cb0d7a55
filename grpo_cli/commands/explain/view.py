"""Why a loss is what it is, and the arithmetic of one record as a person would write it down."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from grpo_cli.commands.explain.explain import Described, Explained
from grpo_cli.commands.explain.logged import print_log
from grpo_cli.commands.explain.names import print_choice, print_variant
from grpo_cli.commands.help.words import print_word
from grpo_cli.commands.vectors.command import print_vector
from grpo_cli.objective.kl import NO_REFERENCE
from grpo_cli.terminal.display import chosen
from grpo_cli.terminal.grid import (
    Column,
    broken,
    column,
    fitting,
    grid,
    print_fitting,
    print_hidden,
)
from grpo_cli.terminal.numbers import (
    brief,
    counted,
    decimals,
    equality,
    fixed,
    shown,
    shown_among,
    token_text,
    visible,
)
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen

Entry = Mapping[str, Any]


_PAGES: Mapping[str, Callable[[Console, Screen, Entry], None]] = {
    "choice": print_choice,
    "log": print_log,
    "variant": print_variant,
    "vector": print_vector,
    "word": print_word,
}
"""The kind of what is described → what prints it."""


def draw(console: Console, screen: Screen, found: Explained | Described) -> None:
    """Prints the loss, what J is made of, the reasons and the arithmetic; or a page."""
    if isinstance(found, Described):
        _PAGES[found.kind](console, screen, found.content)
        return
    total, parts = found.total, found.parts
    loss = shown_among(total["loss"], total["gradient_norm"])
    counts = ", ".join(counted(total[f"{noun}s"], noun) for noun in ("record", "response", "token"))
    batch = f" ({counts})" if total["records"] > 1 else ""
    of = "".join(f", {name} {shown(value)}" for name, value in (found.batch or {}).items())
    of += f", the last of {found.batches:,}" if found.batches > 1 else ""
    width = screen.reading
    head = Text.assemble((f"{found.variant}{of}: loss ", "cyan"), (loss, "bold"), batch)
    console.print(wrapped(head, width, 2))
    console.print(wrapped(Text(_made_of(parts, total["objective"])), width, len("objective = ")))
    console.print(Text("\nwhy", "bold"))
    for reason in found.why:
        console.print(wrapped(Text(f"  · {reason['text']}"), width, 4))
    _print_worked(console, screen, found.record, total)


_PARTS = {
    "positive_advantages": "where A > 0",
    "negative_advantages": "where A < 0",
    "kl_penalty": "KL penalty",
    "entropy_bonus": "entropy bonus",
}


def _made_of(parts: Mapping[str, float], objective: float) -> str:
    """The objective as the sum of its parts, as printed."""
    named = {name: value for name, value in parts.items() if value}
    places = decimals([*named.values(), objective])
    places = min(
        max(places, decimals([objective])), places + 2
    )  # as the loss has, if there is room
    if not named:
        return f"objective = {shown(objective)} (every part is 0)"
    texts = [fixed(value, places) for value in named.values()]
    terms = [
        f"{'−' if float(text) < 0 else '+'} {abs(float(text)):.{places}f} ({_PARTS[name]})"
        for name, text in zip(named, texts, strict=True)
    ]
    total = fixed(objective, places)
    return f"objective = {total} {equality(texts, total)} {' '.join(terms).removeprefix('+ ')}"


# ---- one record ---------------------------------------------------------------------------------

_REPEATED = ("position", "token")
"""Columns that each part of a table begins with, where there is no room for all others."""
_HEADERS = {
    "free": "ρ·A",
    "bounded": "clip(ρ)·A",
    "advantage": "A",
    "ratio": "ρ",
    "surrogate": "s",
    "kl": "k",
    "entropy": "H",
    "contribution": "contri-_bution",
}
_SPARE = ("gradient", "log_ratio", _HEADERS["bounded"], _HEADERS["free"])
"""What a narrow screen leaves out, the first to go first: the surrogate is one of the last two."""
_ADDED = ("surrogate", "kl", "entropy", "contribution")
_MOST = 8
"""Responses of which rewards, advantages and sums are listed without ``--full``."""
_GROUPS, _TOKENS = 4, 10
"""Groups, and tokens of responses, that a screen has room for."""


def _print_worked(console: Console, screen: Screen, record: Entry, total: Entry) -> None:
    """Prints a record's advantages, tokens, sums and denominator; ``total`` is of its batch."""
    records = total["records"]
    console.print()
    console.print(wrapped(Text(_title(record, total), "bold"), screen.width, 2))
    _heading(console, "1  advantages")
    _step(console, screen, record["stages"]["advantage"])
    listed = record["groups"] if chosen().full else record["groups"][:_GROUPS]
    for group in listed:
        for line in _group(group, len(record["groups"])):
            console.print(wrapped(Text(f"  {line}"), screen.width, 6))
    if more := len(record["groups"]) - len(listed):
        console.print(Text(f"  … {counted(more, 'more group')} (--full)"))
    _heading(console, "2  tokens")
    beta, no_reference = record["beta"], NO_REFERENCE.choice.summary
    has_kl = beta or record["stages"]["kl"] == no_reference
    for stage in ("ratio", "surrogate", *(["kl"] if has_kl else [])):
        _step(console, screen, record["stages"][stage])
    terms = record["formula"].partition(";")[0]
    terms += f", β = {shown(beta)}" if "β·k" in terms else ""
    _step(console, screen, f"{terms}: each token contributes its term of J.")
    contributions = [response["contribution"] for response in record["responses"]]
    rows = [row for one in record["responses"] for row in one.get("tokens", ())]
    of_tokens = [row["contribution"] for row in rows if row["contribution"]]
    places = max([decimals(contributions), *([decimals(of_tokens)] if of_tokens else [])])
    parts = [fixed(one, places) for one in contributions]
    listed = [one for one in record["responses"] if one.get("tokens")]
    idle = not any(one["contribution"] or one["gradient_norm"] for one in record["responses"])
    if idle and listed and not chosen().full:
        console.print(Text("  every token contributes 0 and has a gradient of 0 (--full for all)"))
        listed = []
    listed = listed if chosen().full else [*_largest(listed)]
    if listed:
        text = "Each number is rounded by itself; sums are of the unrounded numbers."
        _step(console, screen, text)
    if 0 < len(listed) < len(record["responses"]):
        count = f"{len(listed)} of {len(record['responses'])} responses"
        text = f"  below: {count}, those with the largest gradients (--full for all)"
        console.print()
        console.print(wrapped(Text(text), screen.width, 4))
    tables = [[*_columns(one, places)] for one in listed]
    free = (
        "free" in row and not row["clip"] and row["surrogate"] == row["free"]
        for one in listed
        for row in one["tokens"]
    )
    if listed and all(free):
        _step(console, screen, "No token below is clipped: s = ρ·A.")
        unclipped = (_HEADERS["free"], _HEADERS["bounded"], "clip")
        tables = [[one for one in table if one.name not in unclipped] for table in tables]
    widest: dict[str, Column] = {}
    for one in itertools.chain.from_iterable(tables):
        widest[one.name] = max(one, widest.get(one.name, one), key=lambda column: column.width)
    kept, hidden = fitting([*widest.values()], _SPARE, screen.width)
    in_parts = broken(kept, _REPEATED, screen.width)
    for response, columns in zip(listed, tables, strict=True):
        _print_tokens(console, response, columns, in_parts)
    print_hidden(console, screen, hidden, "see --json")
    _heading(console, "3  responses")
    _step(console, screen, record["stages"]["aggregate"])
    _print_responses(console, screen, record, parts)
    _heading(console, "4  sum")
    for line in _sum(record, parts, places, records):
        console.print(wrapped(Text(f"  {line}"), screen.width, 6))


def _largest(responses: Sequence[Entry]) -> Iterator[Entry]:
    """The responses with the largest gradients, in order: one, or up to ``_TOKENS`` tokens."""
    kept: set[int] = set()
    room = _TOKENS
    for one in sorted(responses, key=lambda one: -one["gradient_norm"]):
        room -= len(one["tokens"])
        if room >= 0 or not kept:
            kept.add(one["index"])
    return (one for one in responses if one["index"] in kept)


def _step(console: Console, screen: Screen, text: str) -> None:
    console.print(wrapped(Text(f"  {text}", "dim"), screen.width, 4))


def _heading(console: Console, text: str) -> None:
    console.print(Text(f"\n{text}", "bold"))


def _title(record: Entry, total: Entry) -> str:
    place = record["source"] + (f":{record['line']}" if record["line"] else "")
    name = visible(place) + ("" if record["id"] is None else f" ({shown(record['id'])})")
    if (records := total["records"]) == 1:
        return name
    if total["dead_groups"] and any(one["advantage"] != 0.0 for one in record["responses"]):
        name += ", the first record with an advantage that is not 0"
    return f"{name}, evaluated alone; its loss is not the loss of the {records:,} records above"


def _group(group: Entry, groups: int) -> Iterator[str]:
    head = f"group {shown(group['group'])}: " if groups > 1 else ""
    rewards, count = group["rewards"], len(group["rewards"])
    texts = [f"({shown(one)})" if one < 0 else shown(one) for one in rewards[:_MOST]]
    listed = " + ".join(texts) + (" + …" if count > _MOST else "")
    yield f"{head}r̄ = ({listed}) / {count} = {shown(group['mean'])}"
    if group["std"] is not None:
        free = count - group["std_ddof"]
        yield f"  σ = √(Σ(r − r̄)² / {free}) = {shown(group['std'])}"
    advantages = group["advantages"]
    if advantages is not None:
        named, size = zip(group["responses"], advantages, strict=True), max(map(abs, advantages))
        texts = [f"A{at} = {shown_among(value, size)}" for at, value in list(named)[:_MOST]]
        yield "  " + ", ".join(texts).replace("= ≈", "≈ ") + (", …" if count > _MOST else "")


def _print_tokens(
    console: Console, response: Entry, columns: Sequence[Column], parts: Sequence[Sequence[str]]
) -> None:
    """Prints a response's tokens, in a table for each part of the columns."""
    head = f"\n  response {response['index']}: {counted(response['length'], 'token')}"
    if response["advantage"] is not None:
        head += f", A = {shown(response['advantage'])}"
    console.print(Text(f"{head}, w = {_weight(response['weight'])}"))
    for at, names in enumerate(parts):
        if at:
            console.print()
        table = [one for one in columns if one.name in names]
        numbers = zip(*(one.cells for one in table if one.name not in _REPEATED), strict=True)
        filled = [any(cell.plain.strip() for cell in row) for row in numbers]  # not empty sums
        cells = ([*itertools.compress(one.cells, filled)] for one in table)
        console.print(grid([one._replace(cells=x) for one, x in zip(table, cells, strict=True)]))


def _columns(response: Entry, places: int) -> Iterator[Column]:
    rows, rest = response["tokens"], response["rest"]
    tail = ([f"{rest['count']:,} others"] if rest else []) + ["sum"]
    yield column("position", [*(str(row["position"]) for row in rows), *tail], show=str)
    if any(row["token"] is not None for row in rows):
        texts = [*(token_text(row["token"] or "") for row in rows), *([""] * len(tail))]
        yield column("token", texts, show=str)
    sums: dict[str, Any] = {
        name: response.get(f"{name}_sum") for name in ("surrogate", "kl", "entropy")
    }
    sums["contribution"] = response["contribution"]
    for name in rows[0]:
        if name in ("position", "token"):
            continue
        values = [row[name] for row in rows]
        if name in _ADDED:
            yield _added(name, values, rest, sums[name], places)
        elif name == "clip":
            texts = [*(_SIDES[int(value)] for value in values), *([""] * len(tail))]
            yield column(name, texts, show=str)
        else:
            texts = [*map(shown, values), *([""] * len(tail))]
            yield _numbers(_HEADERS.get(name, name), texts)


_SIDES = {-1: "low", 0: "·", 1: "high"}


def _added(
    name: str, values: Sequence[float], rest: Entry | None, total: float, places: int
) -> Column:
    """A column above its sum."""
    parts = [*values, *([rest[name]] if rest else [])]
    if name != "contribution":
        places = max(decimals(values), decimals([*parts, total]))
    texts = [fixed(one, places) for one in (*parts, total)]
    return _numbers(_HEADERS.get(name, name), texts)


def _print_responses(console: Console, screen: Screen, record: Entry, parts: Sequence[str]) -> None:
    order = sorted(record["responses"], key=lambda one: -abs(one["contribution"]))
    listed = sorted(one["index"] for one in order[: None if chosen().full else _MOST])
    rows = [record["responses"][at] for at in listed]
    rest = sorted({*range(len(parts))} - {*listed})
    places = len(parts[0].partition(".")[2])
    others = sum(record["responses"][at]["contribution"] for at in rest)
    last = [fixed(others, places)] if rest else []
    tail = [*([f"{len(rest):,} others"] if rest else []), "sum"]
    total = fixed(record["objective"], places)
    columns = [column("response", [*map(str, listed), *tail], show=str)]
    names = {"A": "advantage", "tokens": "length", "Σ_s": "surrogate_sum"}
    names |= {"Σ_k": "kl_sum"} if record["beta"] else {}
    names |= {"Σ_H": "entropy_sum"} if "entropy" in record else {}
    for header, name in (names | {"w": "weight", "gradient_norm": "gradient_norm"}).items():
        show = _SHOW.get(name, shown)
        columns.append(_numbers(header, [*(show(row[name]) for row in rows), *[""] * len(tail)]))
    columns.append(_numbers("contribution", [*(parts[at] for at in listed), *last, total]))
    print_fitting(console, screen, columns, ("gradient_norm", "w", "Σ_k"), "response")


def _numbers(header: str, texts: Sequence[str]) -> Column:
    """A column of numbers that are texts already."""
    return column(header, texts, show=str, numeric=True)


def _weight(value: float) -> str:
    """A weight as the fraction that it is, where it is one over a whole number."""
    count = round(1.0 / value) if value else 0
    return f"1/{count:,}" if count and abs(value * count - 1.0) < 1e-9 else shown(value)


_SHOW = {"weight": _weight, "gradient_norm": brief}


def _sum(record: Entry, parts: Sequence[str], places: int, records: int) -> Iterator[str]:
    yield f"denominator {shown(record['denominator'])}: {record['denominator_of']}"
    total = fixed(record["objective"], places)
    if len(parts) <= _MOST:
        listed = " + ".join(f"({part})" if part.startswith("-") else part for part in parts)
        yield f"objective = {listed} {equality(parts, total)} {total}"
    else:
        yield f"objective = Σ contributions = {total}"
    yield from _terms(record, places)
    alone = " of this record alone" if records > 1 else ""
    yield f"loss{alone} = −objective = {fixed(record['loss'], places)}"


def _terms(record: Entry, places: int) -> Iterator[str]:
    """J as the sum of its terms, where the policy is not the only one."""
    words, values, known = ["policy"], [record["policy"]], []
    if record["beta"]:
        words.append("− β·kl")
        values.append(-record["beta"] * record["kl"])
        known += [f"β = {shown(record['beta'])}", f"kl = {shown(record['kl'])}"]
    if "entropy" in record:
        words.append("+ c·H")
        values.append(record["entropy_coef"] * record["entropy"])
        known += [f"c = {shown(record['entropy_coef'])}", f"H = {shown(record['entropy'])}"]
    if known:
        first, *others = (fixed(value, places) for value in values)
        rest = " ".join(map(_with_sign, words[1:], others))
        sign = equality([first, *others], fixed(record["objective"], places))
        yield f"  = {' '.join(words)} {sign} {first} {rest}   ({', '.join(known)})"


def _with_sign(word: str, text: str) -> str:
    """A number behind its sign; a zero has the sign of the term in the formula."""
    negative = text.startswith("-") or (not float(text) and word.startswith("−"))
    return f"{'−' if negative else '+'} {text.removeprefix('-')}"
