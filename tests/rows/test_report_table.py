"""Tables: whole numbers on any width, visible strings, and the lines that say what a 0 means."""

from __future__ import annotations

import io

import orjson
import pytest
from files import each

from grpo_cli.commands.eval.formats import format_of
from grpo_cli.commands.eval.nested import encode_nested as encode_json
from grpo_cli.commands.eval.printing import Printing
from grpo_cli.commands.eval.run import notes
from grpo_cli.commands.eval.view import print_rows, summary
from grpo_cli.engine.rows.fields import TABLE, names, spare
from grpo_cli.terminal.numbers import aligned, shown, token_text, visible
from grpo_cli.terminal.screen import Screen, written

RECORD = {
    "log_probs_new": [[-0.9, -0.2, -0.4], [-1.1]],
    "log_probs_old": [[-1.0, -0.6, -0.4], [-0.7]],
    "log_probs_ref": [[-1.0, -0.6, -0.4], [-0.7]],
    "rewards": [1.0, 0.0],
    "tokens": [["[red]", "\n", " a"], ["[/oops]"]],
}
TOTAL = dict.fromkeys(names("batch"), 0) | {
    "denominator_of": "responses",
    "records": 1,
    "groups": 2,
    "responses": 4,
    "tokens": 8,
    "kl": None,
}


def table(evaluated, level, *, screen=Screen(), limit=0, fields=None, count=1):  # noqa: B008
    pieces = encode_json(*evaluated(*[RECORD] * count, variant="grpo"), level=level, fields=None)
    console = screen.console()
    printing, records = Printing(level, fields, limit), [*map(orjson.loads, pieces)]

    def size(record):
        return sum(abs(g) for one in record["responses"] for g in one["tokens"]["gradient"])

    shown = print_rows(console, screen, printing, records, limit, size)
    return shown, written(console)


@each("level", ["record", "response", "token"])
@each("width", [20, 60, 80, 100, 140, None])
def test_numbers_are_whole_on_any_width(evaluated, level, width):
    _, text = table(evaluated, level, screen=Screen(width))
    assert "…" not in text
    assert "..." not in text
    if width and width >= 80:
        assert max(map(len, text.splitlines())) <= width or "hidden" in text
        rows = [line for line in text.splitlines() if not line.startswith("hidden")]
        assert max(map(len, rows)) <= width
    if width is None:
        assert "hidden" not in text


def test_limit_counts_rows_of_the_level(evaluated):
    assert table(evaluated, "record", limit=2, count=3)[0] == 2
    assert table(evaluated, "response", limit=3, count=3)[0] == 3
    assert table(evaluated, "token", limit=5, count=3)[0] == 5
    assert table(evaluated, "token", limit=0, count=3)[0] == 12


def test_strings_are_shown_as_they_are(evaluated):
    _, text = table(evaluated, "token")
    assert "[red]" in text
    assert "[/oops]" in text
    assert "\\n" in text
    assert "␣a" in text


def test_colour_marks_the_clip_and_the_share(evaluated):
    _, text = table(evaluated, "token", screen=Screen(200, color=True))
    assert "\x1b[1;35mhigh" in text
    assert "\x1b[1;36mlow" in text
    _, plain = table(evaluated, "token")
    assert "\x1b" not in plain


def test_shares_of_a_record_add_up(evaluated):
    _, text = table(evaluated, "token")
    shares = [float(line.split()[-1][:-1]) for line in text.splitlines() if line.endswith("%")]
    assert len(shares) == 4
    assert sum(shares) == pytest.approx(100.0, abs=0.03)


def test_chosen_fields_are_never_hidden(evaluated):
    names = ("signature", "objective", "id")
    _, text = table(evaluated, "record", screen=Screen(40), fields=names)
    assert "adv:group-std" in text
    assert "hidden" not in text
    assert text.split()[:3] == list(names)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.1, "0.1"),
        (1 / 3, "0.333333"),
        (-1.5e-9, "-1.5e-09"),
        (12345678, "12,345,678"),
        (float("inf"), "inf"),
        ("a\x1b[31m", "a\\x1b[31m"),
        ({"fmt": 1.0, "acc": 0.5}, "fmt=1 acc=0.5"),
        ([1.0, 0.5], "1 0.5"),
        ("x" * 50, "x" * 39 + "…"),
    ],
)
def test_cells(value, text):
    assert shown(value) == text


def test_tokens_show_their_edges():
    assert token_text("  a b ") == "␣␣a b␣"
    assert token_text("  ") == "␣␣"
    assert token_text("\t\u200b\u202e") == "\\t\\u200b\\u202e"
    assert visible("日本") == "日本"


def test_points_stand_under_each_other():
    assert aligned(["1", "-0.25", "1e-09", "–"]) == [" 1    ", "-0.25 ", " 1e-09", " –    "]


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"tokens": 0}, "no token counts: J = 0"),
        ({"on_policy_records": 1, "gradient_norm": 0.5}, "the gradient norm is 0.5"),
        ({"on_policy_records": 12, "records": 40}, "12 of 40 records: all ratios are exactly 1"),
        ({"dead_groups": 2}, "every group is dead: all advantages are 0"),
        ({"dead_groups": 1}, "1 of 2 groups is dead"),
        ({"empty_responses": 3}, "3 of 4 responses without a token"),
    ],
)
def test_notes_say_what_a_zero_means(change, note):
    (said,) = notes(TOTAL | change)
    assert note in said
    console = Screen().console()
    console.print(summary(TOTAL | change, "x|y"))
    assert said in written(console)


def test_nothing_to_note():
    assert [*notes(TOTAL)] == []


def json_of(pieces):
    """The document of an evaluation of so many records."""

    class Run:
        empty, complete, signature, total = False, True, "signed", {"loss": 0.5}

        def __iter__(self):
            yield from ([piece] for piece in pieces)

    stream = io.BytesIO()
    format_of("json").write(Run(), Printing("record", None, 0), "dr", stream)
    return orjson.loads(stream.getvalue())


@pytest.mark.parametrize("count", [0, 1, 3])
def test_documents_are_valid_however_many_records(count):
    wanted = {"variant": "dr", "signature": "signed", "total": {"loss": 0.5}}
    found = json_of([orjson.dumps({"id": number}) for number in range(count)])
    assert found == wanted | {"records": [{"id": n} for n in range(count)]}


def test_a_long_document_waits_on_disk(monkeypatch):
    monkeypatch.setattr("grpo_cli.commands.eval.formats._IN_MEMORY", 10)
    assert len(json_of([b'{"id":1}'] * 100)["records"]) == 100


FIRST_TO_GO = {
    "record": "line denominator clip_fraction_low clip_fraction_high ratio_min groups policy "
    "ratio_mean response_count source kl dead_groups ratio_max tokens clip_fraction",
    "response": "clip_fraction_low clip_fraction_high ratio_min weight policy ratio_mean group kl "
    "ratio_max clip_fraction length",
    "token": "token_id weight advantage surrogate correction kl log_ratio",
}


@pytest.mark.parametrize("level", FIRST_TO_GO)
def test_what_a_narrow_table_goes_without(level: str) -> None:
    """The first to go first; never who it is, J, the loss and what the level is looked at for."""
    fields = TABLE[level]
    expected = FIRST_TO_GO[level].split()
    ranks = {field.name: field.spare for field in fields if field.spare}
    assert sorted(ranks.values()) == [*range(1, len(expected) + 1)]
    assert spare(level) == expected
    hidden = {"denominator_of", "variant", "signature"} if level == "record" else set()
    assert {field.name for field in fields if field.hidden} == hidden
