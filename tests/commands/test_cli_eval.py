"""``grpo eval`` in this process: formats, levels, fields, errors and their exit codes."""

from __future__ import annotations

import csv
import io
import json

import pytest

BAD = '{"log_probs_new": [[-1.0], [-2.0, 0.5]], "rewards": [1, 0]}'
NAMES = {
    "batch": "objective loss policy kl entropy denominator denominator_of records groups responses "
    "tokens clip_fraction clip_fraction_low clip_fraction_high ratio_mean ratio_min ratio_max "
    "gradient_norm dead_groups empty_responses on_policy_records",
    "record": "id source line objective loss policy kl entropy denominator denominator_of groups "
    "response_count tokens clip_fraction clip_fraction_low clip_fraction_high ratio_mean ratio_min "
    "ratio_max gradient_norm dead_groups variant signature",
    "response": "response group reward advantage length weight policy kl contribution "
    "clip_fraction clip_fraction_low clip_fraction_high ratio_mean ratio_min ratio_max "
    "gradient_norm",
    "token": "position log_ratio ratio clip advantage surrogate kl weight contribution gradient",
}


def names(level):
    return tuple(NAMES[level].split())


def test_json_is_one_document_in_the_order_of_the_fields(grpo, dump):
    result = grpo("eval", str(dump({}, {})), "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 0
    assert list(document) == ["variant", "signature", "total", "records"]
    assert tuple(document["total"]) == names("batch")
    assert [tuple(record) for record in document["records"]] == [names("record")] * 2
    assert [record["id"] for record in document["records"]] == [0, 1]
    assert document["variant"] == "grpo"
    assert document["signature"].startswith("grpo|adv:group-std")
    assert grpo("eval", str(dump({})), "--only", "signature").stdout == document["signature"] + "\n"
    record = json.loads(grpo("eval", str(dump({})), "--level", "token", "--json").stdout)[
        "records"
    ][0]
    assert (*record["responses"][0],) == (*names("response"), "tokens")
    assert (*record["responses"][0]["tokens"],) == names("token")


def test_batch_level_has_totals_alone(grpo, dump):
    """Under the listed name of the row, where an alias was given."""
    path = str(dump({}, {}))
    named = grpo("eval", path, "--json", "-v", "dr_grpo").stdout
    assert json.loads(named)["variant"] == "dr"
    document = json.loads(grpo("eval", path, "--json", "--level", "batch").stdout)
    assert "records" not in document
    (line,) = grpo("eval", path, "-f", "jsonl", "--level", "batch").stdout.splitlines()
    about = {name: document[name] for name in ("variant", "signature")}
    assert json.loads(line) == about | document["total"]
    header, row = csv.reader(
        io.StringIO(grpo("eval", path, "-f", "csv", "--level", "batch").stdout)
    )
    assert tuple(header) == ("variant", "signature", *names("batch"))
    assert float(row[2]) == document["total"]["objective"]


def test_fields_choose_and_order(grpo, dump):
    path = str(dump({}))
    record = json.loads(grpo("eval", path, "-f", "jsonl", "--fields", "loss,objective").stdout)
    assert list(record) == ["loss", "objective"]
    flags = ("-f", "jsonl", "--level", "token", "--fields", "gradient,ratio")
    token = json.loads(grpo("eval", path, *flags, "--nest").stdout)
    assert list(token) == ["id", "responses"]
    assert list(token["responses"][0]) == ["response", "tokens"]
    assert list(token["responses"][0]["tokens"]) == ["gradient", "ratio"]
    lines = [json.loads(line) for line in grpo("eval", path, *flags).stdout.splitlines()]
    assert [list(line) for line in lines] == [["gradient", "ratio"]] * 3
    text = grpo("eval", path, "-f", "csv", "--level", "response", "--fields", "reward,id").stdout
    assert text == "reward,id\n1.0,0\n0.0,0\n"
    batch = grpo("eval", path, "--level", "batch", "--fields", "tokens").stdout
    assert batch.split() == ["tokens", "3"]


def test_only_prints_bare_values(grpo, dump):
    path = str(dump({}, {}))
    loss = json.loads(grpo("eval", path, "--json").stdout)["total"]["loss"]
    assert float(grpo("eval", path, "--only", "loss", "--level", "batch").stdout) == loss
    assert len(grpo("eval", path, "--only", "loss").stdout.splitlines()) == 2
    assert grpo("eval", path, "--only", "length", "--level", "response").stdout == "2\n1\n2\n1\n"
    assert len(grpo("eval", path, "--only", "ratio", "--level", "token").stdout.split()) == 6
    pairs = grpo("eval", path, "--only", "response,position", "--level", "token").stdout
    assert pairs == "0\t0\n0\t1\n1\t0\n" * 2


def test_every_level_can_say_what_was_evaluated(grpo, dump):
    path = str(dump({}))
    signature = json.loads(grpo("eval", path, "--json").stdout)["signature"]
    for level in ("batch", "record", "response", "token"):
        flags = ("--level", level, "--fields", "variant,signature", "-f", "jsonl")
        line = json.loads(grpo("eval", path, *flags).stdout.splitlines()[0])
        assert line == {"variant": "grpo", "signature": signature}


def test_markdown_is_a_table(grpo, dump):
    path = str(dump({"tokens": [["a|b", "c"], ["d"]]}))
    flags = ("--level", "token", "--fields", "token,clip,advantage", "-f", "markdown")
    assert grpo("eval", path, *flags).stdout.splitlines() == [
        "| token | clip | advantage |",
        "| --- | --- | --- |",
        r"| a\|b | – | 0.707107 |",
        "| c | – | 0.707107 |",
        "| d | – | -0.707107 |",
    ]


def test_what_is_read_twice_says_so(grpo, dump):
    """Standard input is kept, under no name of a user's; a file that can be read again is not."""
    path = dump({}, {})
    flags = ("-v", "lite-ppo", "--json")
    file = grpo("eval", str(path), *flags)
    note = (
        "grpo: note: standard input was stored in a temporary file, because two passes are needed\n"
    )
    assert note not in file.stderr
    for words in ((), ("-",)):
        piped = grpo("eval", *words, *flags, stdin=path.read_text())
        assert note in piped.stderr
        assert json.loads(piped.stdout)["total"] == json.loads(file.stdout)["total"]
        assert json.loads(piped.stdout)["records"][0]["source"] == "<stdin>"


def test_a_bad_record_stops_but_keeps_what_came_before(grpo, dump):
    path = str(dump({}, BAD, {}))
    result = grpo("eval", path, "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 3
    assert document["total"] is None
    assert len(document["records"]) == 1
    error = json.loads(result.stderr.splitlines()[-1])["error"]
    assert error["kind"] == "input"
    assert (error["source"], error["line"]) == (path, 2)
    assert error["path"] == "log_probs_new[1][1]"
    lines = grpo("eval", path, "-f", "jsonl")
    assert lines.exit_code == 3
    assert len(lines.stdout.splitlines()) == 1
    note, error = lines.stderr.splitlines()[-2:]
    assert error.startswith(f"grpo: {path}:2: log_probs_new[1][1]: ")
    assert note == (
        "grpo: note: stopped at an error: the rows above are of the records before it, and "
        "there is no total (--on-error skip leaves out records that cannot be read)"
    )
    assert "note: an error" not in grpo("eval", path, "--level", "batch").stderr, "no rows"


@pytest.mark.parametrize("form", ["table", "json", "jsonl", "csv"])
def test_a_bad_first_record_prints_nothing(grpo, dump, form):
    """Nor where every record was skipped."""
    result = grpo("eval", str(dump(BAD)), "-f", form)
    assert (result.exit_code, result.stdout) == (3, "")
    result = grpo("eval", str(dump(BAD)), "-f", form, "--on-error", "skip")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "skipped 1 of 1 record" in result.stderr


def test_bad_records_can_be_skipped(grpo, dump):
    result = grpo("eval", str(dump({}, BAD, {})), "--on-error", "skip", "-f", "jsonl")
    assert result.exit_code == 3
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == [0, 2]
    assert ":2: log_probs_new[1][1]: " in result.stderr
    assert result.stderr.splitlines()[-1] == "grpo: skipped 1 of 3 records"


def test_notes_go_to_stderr_and_q_silences_them(grpo, dump):
    same = dump({"log_probs_old": [[-0.9, -0.2], [-1.1]]})
    result = grpo("eval", str(same), "--json")
    assert "grpo: note: on-policy (every ratio is exactly 1)" in result.stderr
    assert grpo("eval", str(same), "--json", "-q").stderr == ""
    table = grpo("eval", str(same))
    assert "on-policy (every ratio is exactly 1)" in table.stdout
    assert "every ratio" not in table.stderr


def test_a_table_says_how_many_rows_it_left_out(grpo, dump):
    path = str(dump(*[{}] * 60))
    result = grpo("eval", path)
    assert "… 10 more records (use --limit 0 or --format jsonl)" in result.stderr
    assert grpo("eval", path, "--limit", "0").stderr == ""
    assert grpo("eval", path, "-q").stderr == ""
    tokens = grpo("eval", path, "--level", "token", "--limit", "2")
    assert "… 178 more tokens" in tokens.stderr
    assert tokens.stdout.count("record 0, response 0") == 1
    assert "response 1" not in tokens.stdout


def test_several_files_name_their_source(grpo, dump):
    paths = [str(dump({}, name=name)) for name in ("a.jsonl", "b.jsonl")]
    text = grpo("eval", *paths, "-f", "csv", "--fields", "source").stdout
    assert text.split() == ["source", *paths]
    assert "source" in grpo("eval", *paths).stdout


def test_every_format_keeps_to_the_limit(grpo, dump):
    path = str(dump(*[{}] * 5))
    for level in ("record", "response", "token"):
        lines = grpo("eval", path, "--level", level, "-f", "csv", "--limit", "3").stdout
        assert lines.count("\n") == 1 + 3
    assert grpo("eval", path, "-f", "jsonl", "--limit", "3").stdout.count("\n") == 3
    assert grpo("eval", path, "--only", "loss", "--limit", "3").stdout.count("\n") == 3
    assert len(json.loads(grpo("eval", path, "--json", "--limit", "3").stdout)["records"]) == 3
    for level, rest in (("record", "2 more records"), ("response", "7 more"), ("token", "12 more")):
        told = grpo("eval", path, "--beta", "0", "--level", level, "--limit", "3").stderr
        assert f"… {rest}" in told
    long = {"log_probs_new": [[-0.5] * 200, [-0.5] * 7]}
    path = str(dump(long | {"log_probs_old": None, "log_probs_ref": None}))
    told = grpo("eval", path, "-v", "dr", "--level", "token").stderr
    assert "… 7 more tokens" in told


@pytest.mark.parametrize(
    ("zeros", "width", "told"),
    [
        ((3, 1, 0), 9, True), ((4, 2, 1), 9, True),
        ((2, 1, 0), 9, False),  # a policy may be sure of the last words
        ((3, 0, 0), 9, False), ((3, 3, 3), 9, False),
        ((3, 1, 0), None, False),  # rows of several lengths
    ],
)  # fmt: skip
def test_rows_that_look_padded_are_noted(grpo, dump, zeros, width, told):
    rows = [[-0.5] * ((width or 9 + at) - count) + [0.0] * count for at, count in enumerate(zeros)]
    columns = {"log_probs_new": rows, "log_probs_old": rows, "log_probs_ref": None}
    path = str(dump(columns | {"rewards": [1.0, 0.0, 2.0]}))
    result = grpo("eval", path, "-v", "dapo")
    assert result.exit_code == 0
    assert ("if these are padding, they count as tokens" in result.stderr) == told


def test_own_denominators_that_differ_are_mentioned(grpo, dump):
    path = str(dump({"num_items_in_batch": 5}, {"num_items_in_batch": 6}))
    result = grpo("eval", path, "-v", "trl/dapo", "--level", "batch", "--json")
    assert "they are not one batch" in result.stderr


def test_fields_of_a_level_inside_a_document(grpo, dump):
    """A response has those that are asked for of its own level, and its number; so has a token."""
    path = str(dump({}))
    words = ("eval", path, "--beta", "0", "--json", "--fields", "advantage,id,length", "--level")
    (record,) = json.loads(grpo(*words, "response").stdout)["records"]
    assert [*record] == ["id", "responses"]
    assert [[*one] for one in record["responses"]] == [["response", "advantage", "length"]] * 2
    (record,) = json.loads(grpo(*words[:-2], "advantage,id", "--level", "token").stdout)["records"]
    assert [[*one] for one in record["responses"]] == [["response", "tokens"]] * 2
    assert [[*one["tokens"]] for one in record["responses"]] == [["advantage"]] * 2
