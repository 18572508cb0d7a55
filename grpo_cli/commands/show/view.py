"""The tokens of a batch that stand out, its token strings, or one record as coloured text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from grpo_cli.commands.eval.view import short_signature
from grpo_cli.commands.show.batch import COLUMN, Shown, readable_token
from grpo_cli.commands.show.picture import (
    COLORS,
    MARKS,
    Picture,
    Response,
    decoder,
    flowing,
    ranked_by,
    sign,
)
from grpo_cli.engine.rows.fields import SHARES
from grpo_cli.terminal.grid import (
    Column,
    column,
    fitting_texts,
    grid,
    print_hidden,
    total_width,
    with_short_names,
)
from grpo_cli.terminal.numbers import brief, counted, percent, record_name, shown, token_text
from grpo_cli.terminal.palette import style
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen

Row = Mapping[str, Any]

_AROUND = {40: 40, 24: 40, 16: 40, 12: 40, 8: 24, 6: 20, 4: 16}
"""Cells of text before and after a token → those of the token at most: as many as there is room for
after the columns that fit with the fewest."""

_TOKENS = (
    *("ratio", "advantage", "clip", "kl", "difference", "mismatch", "log_prob", "surrogate"),
    *("weight", "contribution", "contribution_share", "gradient", "share"),
)
_USUAL = ("ratio", "advantage", "clip", "contribution")
_SPARE = ("advantage", "contribution", "contribution_share", "gradient_share", "gradient", "ratio")
"""Columns that a narrow terminal leaves out, the first to go first, but for what ranks the rows."""

_SPARE_STRINGS = (
    *("log_ratio_mean", "clip_fraction_low", "clip_fraction_high", "mismatch_mean"),
    *("advantage_mean", "gradient", "ratio_mean", "gradient_share"),
)


def print_shown(
    console: Console, screen: Screen, answer: Shown, names: Sequence[str] | None = None
) -> None:
    """Prints the batch in a line, how much of it the rows carry, and the rows, or these columns."""
    if not answer.total:
        return
    total = answer.total
    totals = f"loss {shown(total['loss'])}, gradient norm {brief(total['gradient_norm'])}"
    whole = f"{counted(total['records'], 'record')}, {counted(total['tokens'], 'token')}"
    line = f"{answer.variant} on {whole}: {totals}"
    console.print(wrapped(Text(line, "bold"), screen.width, 2))
    console.print(wrapped(Text(answer.heading, "bold"), screen.width, 2))
    if not answer.rows:
        return
    _print_formula(console, screen, answer.by)
    if names is not None:
        console.print(grid([column(n, [row[n] for row in answer.rows]) for n in names]))
    elif answer.of == "token":
        print_tokens(console, screen, answer.rows, answer.by)
    else:
        _print_columns(console, screen, [*_of_strings(answer.rows)], _SPARE_STRINGS)
    print_signature(console, screen, answer.signature)


def _print_formula(console: Console, screen: Screen, by: str) -> None:
    """Prints the formula of what ranks the rows, if it has one."""
    if ": " in COLORS[by]:
        console.print(wrapped(Text(COLORS[by], "dim"), screen.width, 2))


def print_signature(console: Console, screen: Screen, signature: str) -> None:
    """Prints which objective the numbers above are of."""
    console.print()
    label = "signature  "
    console.print(Text(f"{label}{short_signature(signature, screen.width, len(label))}", "dim"))


def print_tokens(
    console: Console, screen: Screen, rows: Sequence[Row], by: str, *, of_record: bool = False
) -> None:
    """Prints a row for each token, in its text; without the record where there is only one."""
    same = all(row["ratio"] == 1.0 and not row["clip"] for row in rows)  # these columns say nothing
    first = ("clip", "ratio") if same else ()
    spare = tuple(name for name in (*first, *_SPARE) if name not in (by, f"gradient_{by}"))

    def made(around: int) -> list[Column]:
        columns = [*_of_tokens(rows, by, around)][of_record:]
        return with_short_names(columns, "record", spare, screen)

    least = made(min(_AROUND))
    hidden = fitting_texts(least, "token", spare, screen.width)[1]
    for around in _AROUND:
        columns = [one for one in made(around) if one.name not in hidden]
        if screen.width is None or total_width(columns) <= screen.width:
            console.print(grid(columns))
            print_hidden(console, screen, hidden)
            return
    _print_columns(console, screen, least, spare)


def _print_columns(
    console: Console, screen: Screen, columns: Sequence[Column], spare: Sequence[str]
) -> None:
    kept, hidden = fitting_texts(columns, "token", spare, screen.width)
    console.print(grid(kept))
    print_hidden(console, screen, hidden)


def _of_tokens(rows: Sequence[Row], by: str, around: int) -> Iterator[Column]:
    share = "contribution_share" if by == "contribution" else "share"
    names = [name for name in _TOKENS if name in (*_USUAL, by, share)]
    for name in takewhile("id".__ne__, rows[0]):  # the fields of --batch
        yield column(name, [row[name] for row in rows], numeric=False)
    yield column("record", [row["id"] for row in rows], numeric=False)
    if len({(row["id"], row["group"]) for row in rows}) > len({row["id"] for row in rows}):
        yield column("group", [row["group"] for row in rows], numeric=False)
    yield column("response", [row["response"] for row in rows])
    if any(row.get("turn") for row in rows):
        yield column("turn", [row["turn"] for row in rows])
    texts, ids = (any(row.get(of) is not None for row in rows) for of in ("token", "token_id"))
    if not (texts or ids):
        yield column("token_position", [row["position"] for row in rows])
    else:
        yield column("position", [row["position"] for row in rows])
        cells = _in_their_text(rows, around)
        yield Column("token" if texts else "token_id", cells, numeric=False)
    for name in names:
        values = [row[name] for row in rows]
        if name == "clip":
            yield column(name, [side or "·" for side in values], show=str)
        elif name not in SHARES or name == by or {*map(percent, values)} != {percent(0.0)}:
            yield _numbers(name, values)  # a share that is too small to be printed is left out


def _of_strings(rows: Sequence[Row]) -> Iterator[Column]:
    texts = [row["token"] for row in rows]
    decode = decoder([one for one in texts if isinstance(one, str)])
    named = [flowing(decode(one)) if isinstance(one, str) else shown(one) for one in texts]
    yield column("token", [_one_line(text) for text in named], show=token_text)
    for name in rows[0]:
        values = [row[name] for row in rows]
        if name != "token" and any(value is not None for value in values):
            yield _numbers(name, values)


def _numbers(name: str, values: Sequence[Any]) -> Column:
    title = "gradient_share" if name == "share" else name
    return column(title, values, show=percent if name in SHARES else brief, numeric=True)


def _in_their_text(rows: Sequence[Row], around: int) -> list[Text]:
    """Each token between « and », with the text before and after it, in as many cells each."""
    texts = [_around(row, around) for row in rows]
    widest = max((cell_len(before) for before, _ in texts), default=0)
    cells = []
    for row, (before, after) in zip(rows, texts, strict=True):
        if row["before"] is None:
            cells.append(Text(token_text(readable_token(row))))
            continue
        token = Text(token_text(_one_line(readable_token(row))))
        token.truncate(_AROUND[around], overflow="ellipsis")
        pad = " " * (widest - cell_len(before))
        cells.append(
            Text.assemble((pad + before, "dim"), (f"«{token.plain}»", "bold"), (after, "dim"))
        )
    return cells


def _around(row: Row, room: int) -> tuple[str, str]:
    """The text before and after a token."""
    before, after = (_one_line(flowing(row[side])) if row[side] else "" for side in _SIDES)
    return _last_words(before, room), _last_words(after[::-1], room)[::-1]


_SIDES = ("before", "after")


def _last_words(text: str, room: int) -> str:
    """The end of a text that has room: whole words, or the last letters of one behind ``…``."""
    kept = text
    while cell_len(kept) > room:
        kept = kept[1:]
    if len(kept) == len(text) or text[-len(kept) - 1] == " ":
        return kept
    words = kept[kept.find(" ") :] if " " in kept else ""
    return words if words.strip() else f"…{kept[1:]}"


def _one_line(text: str) -> str:
    return text.replace("↵\n", "↵")


# ---- one record as coloured text ----------------------------------------------------------------

_MOST = 4_000
"""Tokens printed, and responses; a page holds them all."""


def print_heat(
    console: Console, screen: Screen, picture: Picture, rows: Sequence[Mapping[str, Any]], by: str
) -> None:
    """Prints the record, its legend, the tokens, and a table of those that stand out ``by``."""
    for line in _head(picture, screen):
        console.print(line)
    if picture.numbers:
        console.print(Text(f"tokens by their {picture.numbers} (the record has no token strings)"))
    room = _MOST
    for response in picture.responses[:_MOST]:
        console.print()
        console.print(wrapped(Text(response.title, "bold"), screen.width, 2))
        if response.completion:
            console.print(wrapped(Text(response.completion), screen.width, 2))
        shown_here = min(len(response.texts), max(room, 0))
        text = _text(picture, response, shown_here, signs=not screen.color)
        console.print(text, overflow="fold", width=screen.width)
        room -= len(response.texts)
    if (more := len(picture.responses) - _MOST) > 0:
        console.print(Text(f"\n… {counted(more, 'more response')}", "dim"))
    if any(row[COLUMN.get(by, by)] for row in rows):
        words = f"the {counted(len(rows), 'token')} with the largest {ranked_by(by)}"
        console.print(Text(f"\n{words}", "bold"))
        if by != picture.color_by:  # whose formula is in the legend
            _print_formula(console, screen, by)
        print_tokens(console, screen, rows, by, of_record=True)
    print_signature(console, screen, picture.record["signature"])


def not_printed(picture: Picture) -> int:
    """How many tokens are not printed."""
    return max(sum(len(response.texts) for response in picture.responses) - _MOST, 0)


def _head(picture: Picture, screen: Screen) -> Iterator[Text]:
    record = picture.record
    name = record_name(record["id"], record["line"])
    step = f" of step {shown(record['step'])}" if record.get("step") is not None else ""
    of = f"{step}, {record['variant']}, evaluated alone"
    totals = f"loss {shown(record['loss'])}, gradient norm {brief(record['gradient_norm'])}"
    yield wrapped(Text.assemble((name, "bold"), f"{of}: {totals}"), screen.width, 2)
    if picture.remark:
        yield wrapped(Text(picture.remark, "bold"), screen.width, 2)
    elif picture.clipped:
        yield wrapped(Text(picture.clipped), screen.width, 2)
    yield from _legend(picture, screen)


def _legend(picture: Picture, screen: Screen) -> Iterator[Text]:
    """The meaning of colours and marks; in two lines where one has no room for it."""
    marks = [(f"  {mark} clipped {side}", "underline") for side, mark in MARKS.items()]
    if not picture.scale:
        return
    low, high = (f" {end} " for end in picture.ends)
    first, *between, last = picture.steps
    bar = [(low, style(first)), *(("  ", style(step)) for step in between), (high, style(last))]
    if not screen.color:
        bar = [(f" {mark} {bound} ", "") for mark, bound in picture.bounds]
    heading, scale = Text(f"{picture.heading}: "), Text.assemble(*bar, *marks)
    line = Text.assemble(heading, scale)
    fits = screen.width is None or line.cell_len <= screen.width
    yield from (line,) if fits else (heading, scale)


def _text(picture: Picture, response: Response, count: int, *, signs: bool) -> Text:
    """The tokens in colour, or with ``signs`` for it."""
    text = Text()
    gap = "" if response.named else " "
    clips = response.row["tokens"]["clip"][:count]
    steps = [picture.step(value) for value in response.values[:count].tolist()]
    for word, step, clip in zip(response.texts, steps, clips, strict=False):
        body = word.removesuffix("\n")
        inner = body.rstrip(" ") if signs else body  # or a sign would seem the next token's
        marks = (sign(step) if signs else "") + MARKS.get(clip, "")
        text.append(inner, " ".join(filter(None, (style(step), "underline" if clip else ""))))
        text.append(marks + word[len(inner) :])
        if gap:
            text.append(gap)
    if not response.texts:
        text.append("(no unmasked token)", "dim")
    return text
