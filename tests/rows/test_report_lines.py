"""Lines of tokens are made column by column: the same bytes as cell by cell."""

from __future__ import annotations

from csv import reader
from io import BytesIO, StringIO
from itertools import repeat

import numpy as np
import orjson
import pytest
from files import each

from grpo_cli.commands.emit import BARE, CSV, JSONL, TEXT_FORMATS
from grpo_cli.commands.eval import lines as lines_module
from grpo_cli.commands.eval.formats import first_quoted, format_of, write_text
from grpo_cli.commands.eval.lines import encode_lines
from grpo_cli.commands.eval.nested import encode_nested
from grpo_cli.commands.eval.printing import Printing, PrintingOptions
from grpo_cli.commands.eval.run import notes
from grpo_cli.engine.rows.fields import COLUMNS, FIELDS, RECORD_CONTEXT, RESPONSE_CONTEXT
from grpo_cli.engine.rows.rows import rows
from grpo_cli.engine.rows.source import one_number

FORMATS = {**TEXT_FORMATS, "only": BARE}
WORDS = ['a,"b"', "%s", "100%", "{}", "\0", "\n", "é", ""]


def record(lengths: list[int], seed: int, **more: object) -> dict:
    draw = np.random.default_rng(seed)
    column = [(-draw.exponential(0.5, length)).tolist() for length in lengths]
    other = [(-draw.exponential(0.5, length)).tolist() for length in lengths]
    rewards = draw.integers(0, 2, len(lengths)).astype(float).tolist()
    return {"log_probs_new": column, "log_probs_old": other, "rewards": rewards} | more


RECORDS = {
    "plain": [record([3, 1, 0, 5], 1), record([2, 2], 2)],
    "words": [
        record([8, 8], 3, id='%s,"x"', tokens=[WORDS, WORDS[::-1]], group_ids=["%d", "a,b"]),
        record([2], 4, tokens=[["a", "a"]], token_ids=[[7, 7]]),
    ],
    "on policy": [record([4, 4], 5) | {"log_probs_old": record([4, 4], 5)["log_probs_new"]}],
    "infinite": [
        {"log_probs_new": [[-0.1, -0.1]], "log_probs_old": [[-0.1, -800.0]], "rewards": [1]}
    ],
    "masked": [record([5, 4], 6, mask=[[1, 0, 1, 0, 1], [0, 0, 0, 0]])],
    "long": [record([150, 70], 7)],
    "long, short and none": [
        record([*[3] * 300, 70, 2], 9),
        record([0, 0], 10),
        record([0, 64, 63, *[1] * 600, 0], 11),
    ],
    "ends alike": [
        record([3], 8, log_probs_new=[[-1.0, -0.5, -1.0]], log_probs_old=[[-1.2, -0.6, -1.2]])
    ],
}


def cell_by_cell(evaluated, fields, lines) -> list[bytes]:
    """Each line of its own cells."""
    found = []
    for row in rows(*evaluated, "token"):
        text = ""
        for response in row["responses"]:
            tokens = response["tokens"]
            count = len(tokens["position"])
            columns = []
            for name in fields:
                if name in (*RECORD_CONTEXT, *RESPONSE_CONTEXT):
                    columns.append(repeat((row if name in RECORD_CONTEXT else response)[name]))
                    continue
                values = tokens.get(name)
                values = values.tolist() if isinstance(values, np.ndarray) else values
                columns.append(repeat(None) if values is None else values)
            for _, *values in zip(range(count), *columns, strict=False):
                text += lines.line([lines.cell(value) for value in values], fields) + "\n"
        found.append(text.encode())
    return found


@each("fields", [COLUMNS["token"], FIELDS["token"], ("clip", "kl"), ("id",)])
@each("lines", FORMATS)
@each("records", RECORDS)
def test_lines_of_tokens(evaluated, records, lines, fields):
    made, lines = evaluated(*RECORDS[records], variant="dr"), FORMATS[lines]
    found = encode_lines(*made, level="token", fields=fields, lines=lines)
    assert found == cell_by_cell(made, fields, lines)


@pytest.mark.parametrize("tokens", [1, 7, 64])
def test_however_tokens_are_put_together(evaluated, monkeypatch, tokens):
    made = evaluated(*RECORDS["long, short and none"], variant="dr")
    fields = FIELDS["token"]
    expected = encode_lines(*made, level="token", fields=fields, lines=CSV)
    monkeypatch.setattr(lines_module, "_TOKENS", tokens)
    assert encode_lines(*made, level="token", fields=fields, lines=CSV) == expected


@pytest.mark.parametrize("records", RECORDS.values(), ids=[*RECORDS])
def test_columns_of_one_number(evaluated, records):
    made = evaluated(*records, variant="dr")
    expected = [
        orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) for row in rows(*made, "token")
    ]
    found = encode_nested(*made, level="token", fields=None)
    assert found == [one.replace(b"\x7f", rb"\u007f") for one in expected]
    lines = encode_nested(*made, level="token", fields=None, lines=True)
    assert lines == [one + b"\n" for one in found]


def test_zeros_of_both_signs_are_not_one_number():
    assert one_number(np.zeros(3))
    assert one_number(np.zeros(1))
    for row in ([0.0, -0.0, 0.0], [-0.0, 0.0, 0.0], [0.0, 0.0, -0.0]):
        assert not one_number(np.array(row))


class Told(BytesIO):
    """A stream that knows what was there whenever it was flushed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bytes] = []

    def flush(self) -> None:
        self.seen.append(self.getvalue())


def test_rows_are_told_as_they_come():
    """``grpo eval RUN | head`` has the first rows while others are computed."""

    class Run:
        empty, complete = False, True

        def __iter__(self):
            yield []
            assert stream.seen == []
            yield [b"a\n", b"b\n"]
            assert stream.seen == [b"head\na\nb\n"]
            yield [b"c\n"]

    stream = Told()
    text = JSONL._replace(head=lambda _: b"head\n")
    write_text(text, Run(), Printing("token", None, 0), "dr", stream)
    assert stream.seen == [b"head\na\nb\n", b"head\na\nb\nc\n"]


QUOTED = b'a,"x\ny"\nb,"q""\n\n""z"\n"",plain\n"\n","""\n"\nlast,\n'


@pytest.mark.parametrize("most", range(1, 8))
def test_the_first_rows_of_csv_whose_cells_hold_ends_of_lines(most):
    found, count = first_quoted(QUOTED, most)
    every = [*reader(StringIO(QUOTED.decode(), newline=""))]
    assert [*reader(StringIO(found.decode(), newline=""))] == every[:most]
    assert count == min(most, len(every)) == len(every[:most])
    assert QUOTED.startswith(found)


TOTAL = {"tokens": 9, "denominator": 3.0, "gradient_norm": 0.25, "records": 1_500, "groups": 3}
TOTAL |= {"responses": 4, "on_policy_records": 0, "dead_groups": 0, "empty_responses": 0}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, []),
        ({"tokens": 0, "dead_groups": 3}, ["no token counts: J = 0"]),
        ({"denominator": None}, ["the records' own denominators differ, so"]),
        ({"dead_groups": 3}, ["every group is dead: all advantages are 0"]),
        ({"dead_groups": 1}, ["1 of 3 groups is dead: all their advantages are 0"]),
        ({"dead_groups": 2}, ["2 of 3 groups are dead: all their advantages are 0"]),
        ({"empty_responses": 2}, ["2 of 4 responses without a token that counts"]),
        ({"empty_responses": 1, "responses": 1}, ["1 of 1 response without a token that"]),
        ({"on_policy_records": 1_500}, ["all ratios are exactly 1 (on-policy): the loss value"]),
        ({"on_policy_records": 1_200}, ["1,200 of 1,500 records: all ratios are exactly 1"]),
    ],
)
def test_what_totals_hide(more, said):
    found = [*notes(TOTAL | more)]
    assert len(found) == len(said)
    assert all(one.startswith(start) for one, start in zip(found, said, strict=True))
    if "on_policy_records" in more:
        assert ("the gradient norm is 0.25" in found[0]) == (more["on_policy_records"] == 1_500)


@pytest.mark.parametrize(
    ("value", "in_csv", "bare"),
    [
        *((None, "", ""), (np.inf, "inf", "inf"), (-np.inf, "-inf", "-inf"), (0.1, "0.1", "0.1")),
        *((1.0, "1.0", "1.0"), (7, "7", "7"), (True, "true", "true"), ("plain", "plain", "plain")),
        *(('a "b"', '"a ""b"""', 'a "b"'), ("a,b", '"a,b"', "a,b")),
        ([1.0, 2.0], '"[1.0,2.0]"', "[1.0,2.0]"),
    ],
)
def test_a_value_in_csv_and_bare(value, in_csv, bare):
    assert (CSV.cell(value), BARE.cell(value)) == (in_csv, bare)


@pytest.mark.parametrize(
    ("streams", "level", "tty", "flags", "wanted"),
    [  # a bar stands in the way of rows on the same terminal, and of nothing else
        *((True, "record", True, {}, False), (True, "record", False, {}, True)),
        *((True, "batch", True, {}, True), (False, "record", True, {}, True)),
        (True, "record", True, {"output": "a.csv"}, True),
        (True, "record", True, {"output": "a.csv", "quiet": True}, False),
        (False, "batch", False, {"quiet": True}, False),
    ],
)
def test_where_a_progress_bar_helps(monkeypatch, streams, level, tty, flags, wanted):
    monkeypatch.setattr("sys.stdout.isatty", lambda: tty, raising=False)
    options = PrintingOptions(level=level, **flags)
    assert options.bar(streams=format_of("csv" if streams else "table").streams) == wanted


def test_without_standard_output_a_bar_helps(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    assert PrintingOptions(level="record").bar(streams=True)
