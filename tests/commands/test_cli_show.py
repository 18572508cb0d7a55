"""``grpo show`` as users run it: text, colours, pages."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser

import pytest

ESCAPE = "\x1b["
TOKENS = {
    "log_probs_new": [[-0.1, -0.9, -0.3, -0.2, -1.5, -0.4], [-1.0, -2.0]],
    "log_probs_old": [[-0.4, -0.5, -0.3, -0.2, -1.1, -0.9], [-1.0, -1.9]],
    "log_probs_ref": [[-0.3, -0.5, -0.3, -0.2, -1.1, -0.9], [-1.1, -1.9]],
    "rewards": [1.0, 0.0],
    "tokens": [["Ġhi", "[red]", "Ċ", "çķ", "ĮçķĮ", "×©×ľ"], ["<b>&", "[/oops]"]],
}


def test_tokens_are_text_whatever_they_hold(grpo, dump):
    result = grpo("show", str(dump(TOKENS)))
    assert result.exit_code == 0
    assert ESCAPE not in result.stdout
    # Byte-level marks are undone, markup is text, half a character is bytes, line ends show.
    assert "\n hi[red]↵\n\\xe7\\x95\\x8c界של\n" in result.stdout
    assert "\n<b>&[/oops]\n" in result.stdout


@pytest.mark.parametrize(
    ("tokens", "line"),
    [
        ([["▁a", "b"], ["<0x0A>"]], " ab"),
        ([["a\tb", "\u202e\x1b[2J"], [""]], "a\\tb\\u202e\\x1b[2J"),
        ([["ab", "界"], ["x"]], "ab界"),
    ],
)
def test_marks_controls_and_wide_characters(grpo, dump, tokens, line):
    assert line in grpo("show", str(dump({"tokens": tokens}))).stdout.splitlines()


def test_without_strings_ids_or_positions_stand_for_tokens(grpo, dump):
    assert "\n0 1\n" in grpo("show", str(dump({}))).stdout
    assert "\n17 4\n" in grpo("show", str(dump({"token_ids": [[17, 4], [2]]}))).stdout


def test_masked_tokens_keep_their_positions(grpo, dump):
    path = dump({"mask": [[0, 1], [1]]})
    assert "\n1\n" in grpo("show", str(path)).stdout


def test_color_only_where_it_is_wanted(grpo, dump):
    path = str(dump(TOKENS))
    assert ESCAPE not in grpo("show", path).stdout
    assert ESCAPE not in grpo("show", path, "--color", "never").stdout
    always = grpo("show", path, "--color", "always").stdout
    assert re.search(r"\x1b\[4;[0-9;]*48;5;\d+m hi", always), "clipped: underlined"


def test_as_many_colors_as_the_terminal_has(shell, dump):
    line = f"grpo show {dump(TOKENS)} --color always"
    assert "48;2;" in shell(line, COLORTERM="truecolor").stdout
    assert "48;2;" not in shell(line, COLORTERM="").stdout


def test_no_color_on_a_terminal_is_honoured(shell, dump):
    line = f"script -qec '$GRPO show {dump(TOKENS)}' /dev/null"
    command = {"GRPO": f"{sys.executable} -m grpo_cli"}
    assert ESCAPE + "1m" in shell(line, **command).stdout
    assert ESCAPE not in shell(line, NO_COLOR="1", **command).stdout


def test_the_legend_has_the_scale_and_blue_is_up(grpo, dump):
    shown = grpo("show", str(dump(TOKENS)), "--color", "always", "--color-by", "gradient").stdout
    legend = next(line for line in shown.splitlines() if line.startswith("gradient"))
    low, high = (float(one) for one in re.findall(r"m (-?[\d.]+) ", legend))
    assert low == -high < 0
    ratio = grpo("show", str(dump(TOKENS)), "--color-by", "ratio").stdout
    low, high = (float(one) for one in re.findall(r" ([\d.]+) ", ratio.splitlines()[2]))
    assert low * high == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("name", ["contribution", "gradient", "ratio", "kl", "difference"])
def test_the_top_tokens_are_those_with_the_greatest_numbers(grpo, dump, name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    path = str(dump(TOKENS))
    record = json.loads(grpo("eval", path, "-f", "jsonl", "--nest", "--level", "token").stdout)
    sizes = {}
    for response in record["responses"]:
        tokens = response["tokens"]
        values = tokens["log_ratio" if name in ("ratio", "difference") else name]
        for position, value in zip(tokens["position"], values, strict=True):
            sizes[response["response"], position] = abs(value)
    best = sorted(sizes.values(), reverse=True)[:3]
    shown = grpo("show", path, "--top", "3", "--color-by", name).stdout
    (last,) = re.findall(r"─\n((?:.+\n){3})", shown)
    rows = [tuple(map(int, line.split()[:2])) for line in last.splitlines()]
    assert [sizes[row] for row in rows] == pytest.approx(best)


def test_one_response_one_record(grpo, dump):
    path = str(dump({"id": "a"}, TOKENS | {"id": "b"}, {}))
    assert "response 0" not in grpo("show", path, "--response", "1").stdout
    assert grpo("show", path, "--record", "b").stdout.startswith("record b:")
    assert grpo("show", path, "--record", "1").stdout.startswith("record b:")
    assert grpo("show", path, "--record", "2").exit_code == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--response", "9"), "responses 0 to 1"),
        (("--color-by", "taste"), "expected one of contribution"),
        (("--color-by", "kl", "-v", "dr"), "nothing estimated a KL"),
        (("--html", "/nowhere/page.html"), "cannot write"),
    ],
)
def test_usage_errors(grpo, dump, flags, said):
    result = grpo("show", str(dump(TOKENS)), *flags)
    assert result.exit_code == 2
    assert said in result.stderr


def test_missing_columns_are_bad_input(grpo, dump):
    path = str(dump({"log_probs_ref": None}))
    assert grpo("show", path).exit_code == 3
    assert grpo("show", path, "--beta", "0").exit_code == 0


# ---- pictures ------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a browser would ask for, and the tags that are open at the end."""

    VOID = frozenset({"meta", "br", "line"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.tokens: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.outside += [
            value
            for name, value in attributes
            if name in ("src", "href") and not value.startswith("#")
        ]
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "bdi":
            self.tokens.append("")

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "bdi":
            self.tokens[-1] += data


def page(grpo, path, tmp_path, *flags):
    out = tmp_path / "page.html"
    result = grpo("show", path, "--html", str(out), *flags)
    assert (result.exit_code, result.stdout) == (0, "")
    return out.read_text(encoding="utf-8")


def test_the_page_is_whole_escaped_and_alone(grpo, dump, tmp_path):
    text = page(grpo, str(dump(TOKENS)), tmp_path)
    parsed = Page(text)
    assert parsed.open == []
    assert parsed.outside == []
    assert "url(" not in text
    assert "http" not in text
    assert "@import" not in text
    assert parsed.tokens == [
        " hi",
        "[red]",
        "↵\n",
        "\\xe7\\x95",
        "\\x8c界",
        "של",
        "<b>&",
        "[/oops]",
    ]
    assert "<b>" not in text


def test_the_page_survives_hostile_ids(grpo, dump, tmp_path):
    text = page(grpo, str(dump({"id": "</title><script>alert(1)</script>"})), tmp_path)
    assert "<script" not in text


def test_the_page_has_bars_a_histogram_and_the_clip_range(grpo, dump, tmp_path):
    text = page(grpo, str(dump(TOKENS)), tmp_path, "--epsilon-low", "0.1", "--epsilon-high", "0.3")
    assert text.count('class="bars"') == text.count('class="histogram"') == 1
    assert "clip 0.9" in text
    assert "clip 1.3" in text
    assert text.count('<line class="clip"') == 2


def test_the_svg_asks_nothing_of_the_network(grpo, dump, tmp_path):
    out = tmp_path / "picture.svg"
    assert grpo("show", str(dump(TOKENS)), "--svg", str(out)).exit_code == 0
    text = out.read_text(encoding="utf-8")
    assert "url(http" not in text
    assert "@font-face" not in text
    assert "[red]" in text
    again = tmp_path / "again.svg"
    grpo("show", str(dump(TOKENS)), "--svg", str(again))
    assert again.read_text(encoding="utf-8") == text


def test_an_empty_response_and_numbers_alone_can_be_drawn(grpo, dump, tmp_path):
    text = page(
        grpo,
        str(
            dump(
                {
                    "log_probs_new": [[], [-1.0]],
                    "log_probs_old": [[], [-1.0]],
                    "log_probs_ref": [[], [-1.0]],
                }
            )
        ),
        tmp_path,
    )
    assert "(no token counts)" in text
    assert Page(text).open == []
