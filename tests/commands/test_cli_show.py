"""``grpo show`` as users run it: text, colours, pages."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import zlib
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from files import expressions
from rich.cells import cell_len

ESCAPE = "\x1b["
LOG_PROBS = ("log_probs_new", "log_probs_old", "log_probs_ref")
TOKENS = {
    "log_probs_new": [[-0.1, -0.9, -0.3, -0.2, -1.5, -0.4], [-1.0, -2.0]],
    "log_probs_old": [[-0.4, -0.5, -0.3, -0.2, -1.1, -0.9], [-1.0, -1.9]],
    "log_probs_ref": [[-0.3, -0.5, -0.3, -0.2, -1.1, -0.9], [-1.1, -1.9]],
    "rewards": [1.0, 0.0],
    "tokens": [["Ġhi", "[red]", "Ċ", "çķ", "ĮçķĮ", "×©×ľ"], ["<b>&", "[/oops]"]],
}


def test_as_many_colors_as_the_terminal_has(shell, dump):
    line = f"grpo show {dump(TOKENS)} --color always"
    assert "48;2;" in shell(line, COLORTERM="truecolor").stdout
    assert "48;2;" not in shell(line, COLORTERM="").stdout


@pytest.mark.more
def test_no_color_on_a_terminal_is_honoured(shell, dump):
    line = f"script -qec '$GRPO show --no-pager {dump(TOKENS)}' /dev/null"
    command = {"GRPO": f"{sys.executable} -m grpo_cli"}
    assert ESCAPE + "1m" in shell(line, **command).stdout
    assert ESCAPE not in shell(line, NO_COLOR="1", **command).stdout


def test_the_legend_has_the_scale_and_blue_is_up(grpo, dump):
    shown = grpo("show", str(dump(TOKENS)), "--color", "always", "--by", "gradient").stdout
    legend = shown[shown.index("gradient: ∂J") :].split("\n", 2)[1]  # below what it is of
    low, high = (float(one) for one in re.findall(r"m [≤≥]?(-?[\d.]+)(?=[ \x1b])", legend))
    rows = json.loads(grpo("eval", str(dump(TOKENS)), "--level", "token", "--json").stdout)
    (record,) = rows["records"]
    tokens = [one["tokens"] for one in record["responses"]]
    gradients, log_ratios = (
        np.concatenate([one[name] for one in tokens]) for name in ("gradient", "log_ratio")
    )
    full = np.quantile(np.abs(gradients[gradients != 0.0]), 0.98)
    assert (low, high) == pytest.approx((max(gradients.min(), -full), gradients.max()), rel=1e-3)
    assert gradients.max() < full  # so that the scale ends before the darkest blue
    ratio = grpo("show", str(dump(TOKENS)), "--color", "always", "--by", "ratio").stdout
    ratio = re.sub(r"\x1b\[[\d;]*m", "", ratio)
    legend = ratio[ratio.index("ratio ρ") :].partition(":")[2].partition("▾")[0]
    low, high = (float(one) for one in re.findall(r" [≤≥]?(\d[\d.]*)(?=\s)", legend))
    full = np.quantile(np.abs(log_ratios[log_ratios != 0.0]), 0.98)
    assert (low, high) == pytest.approx(np.exp([log_ratios.min(), full]), rel=1e-3)


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
    shown = grpo("show", path, "--top", "3", "--by", name).stdout
    (last,) = re.findall(r"─\n((?:.+\n){3})", shown)
    rows = [tuple(map(int, line.split()[:2])) for line in last.splitlines()]
    assert [sizes[row] for row in rows] == pytest.approx(best)


# ---- pictures ------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a browser would ask for, what it would run, and the tags that are open at the end."""

    VOID = frozenset({"meta", "br", "line", "wbr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.data: dict[str, str] = {}
        self.scripts: list[str] = []
        self.text = ""
        self.kind: dict[str, str | None] = {}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.outside += [value for name, value in attributes if name in ("src", "href", "data")]
        if tag not in self.VOID:
            self.open.append(tag)
        self.kind = dict(attributes)
        if tag == "script" and "type" not in self.kind:
            self.scripts.append("")

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            if "id" in self.kind:
                self.data[str(self.kind["id"])] = data
            else:
                self.scripts[-1] += data
        else:
            self.text += data

    def head(self, at: int = 0) -> dict:
        data = zlib.decompress(base64.b64decode(self.data[f"record-{at}"]))
        size = int.from_bytes(data[:4], "little")
        return json.loads(data[4 : 4 + size])


def page(grpo, path, tmp_path, *flags):
    out = tmp_path / "page.html"
    result = grpo("show", path, "--html", str(out), *flags)
    assert (result.exit_code, result.stdout) == (0, "")
    return out.read_text(encoding="utf-8")


SVG = "{http://www.w3.org/2000/svg}"


def picture(grpo, path, tmp_path, *flags):
    """The text of a picture, and its tree."""
    out = tmp_path / "picture.svg"
    assert grpo("show", str(path), "--svg", str(out), *flags).exit_code == 0
    text = out.read_text(encoding="utf-8")
    return text, ElementTree.fromstring(text)


HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "<!--<script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "\u2028\u2029",
    "\u202egnp.exe",
    "${document.title='owned'}`",
    "\x1b[2J\x00",
    "]]>&lt;'\"",
)


def test_the_page_is_whole_and_alone(grpo, dump, tmp_path):
    """And the browser may run its script and no other."""
    text = page(grpo, str(dump(TOKENS)), tmp_path)
    parsed = Page(text)
    assert parsed.open == []
    assert parsed.outside == []
    (script,) = parsed.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert f'content="{policy}"' in text
    assert "http" not in text.replace('http-equiv="Content-Security-Policy"', "").replace(
        "http://www.w3.org/2000/svg", ""
    )
    assert "@import" not in text
    assert parsed.head()["words"] == [
        *(" hi", "[red]", "↵\n", "\\xe7\\x95", "\\x8c界", "של", "<b>&", "[/oops]")
    ]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_ids_prompts_and_tokens_are_text(grpo, dump, tmp_path, hostile):
    record = {"id": hostile, "prompt": hostile, "tokens": [[hostile, hostile], [hostile]]}
    plain = Page(page(grpo, str(dump({"tokens": [["a", "b"], ["c"]]})), tmp_path))
    text = page(grpo, str(dump(record)), tmp_path)
    parsed = Page(text)
    assert parsed.open == []
    assert parsed.outside == []
    assert parsed.scripts == plain.scripts
    assert parsed.data.keys() == plain.data.keys()
    assert not set(text) & set("\u2028\u2029\u202e\x1b\x00")
    assert not set("".join(parsed.head()["words"])) & set("\u2028\u2029\u202e\x1b\x00")
    assert "owned" not in "".join(parsed.scripts)


def test_prompts_and_texts_in_all_their_shapes(grpo, dump, tmp_path):
    """Texts of responses are shown where tokens have none, in the terminal too."""

    def head(**given):
        return Page(page(grpo, str(dump(given)), tmp_path)).head()

    def texts(**given):
        found = head(**{"tokens": None} | given)["completions"]
        lines = grpo("show", str(tmp_path / "dump.jsonl"), "--record", "0").stdout.splitlines()
        titles = [at for at, line in enumerate(lines) if line.startswith("response ")]
        assert [lines[at + 1] for at in titles[: len(found)]] == found
        return found

    path = Path(__file__).parent / "cases" / "prompts.txt"
    names = {"prompts": lambda **given: head(**given)["prompts"], "texts": texts}
    expressions(path, names, by_hand=True)


def test_the_page_tells_the_command_and_the_signature(shell, dump, tmp_path):
    """And has the same bytes every time."""
    line = f"grpo show {dump(TOKENS)} -v dr --html {tmp_path / 'page.html'}"
    pages = []
    for _ in range(2):
        shell(line)
        pages.append((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert pages[0] == pages[1]
    text = Page(pages[0]).text
    assert line in text
    assert "dr|adv:group-mean|" in text


def test_the_figure_is_text_and_asks_nothing_of_the_network(grpo, dump, tmp_path):
    text, tree = picture(grpo, dump(TOKENS), tmp_path, "--response", "0")
    assert "url(" not in text
    assert "<image" not in text
    lines = ["".join(one.itertext()) for one in tree.iter(f"{SVG}text")]
    assert " hi[red]↵" in lines
    assert "\\xe7\\x95\\x8c界של" in lines
    assert any(line.startswith("response 0, reward 1") for line in lines)
    assert not any(line.startswith("response 1") for line in lines)
    assert text.count('path class="low"') == 1, "in the legend"
    assert text.count('path class="high"') - 1 == 2, "those, and one in the legend"


def test_a_figure_has_low_marks_below_and_high_marks_above(grpo, dump, tmp_path):
    _, tree = picture(grpo, dump(TOKENS), tmp_path, "--epsilon-low", "0.05")
    bases = [float(text.attrib["y"]) for text in tree.iter(f"{SVG}text")]
    for path in tree.iter(f"{SVG}path"):
        height = float(path.attrib["d"].split()[1].partition("H")[0].partition("h")[0])
        offsets = {round(height - base, 1) for base in bases}
        assert (4.4 if path.attrib["class"] == "low" else -12.4) in offsets


def test_hostile_tokens_are_text_in_a_figure(grpo, dump, tmp_path):
    record = {"tokens": [[one] for one in HOSTILE], "rewards": [1.0, 0.0] * 4, "id": HOSTILE[0]}
    logs = [[-1.0] for _ in HOSTILE]
    path = dump(record | dict.fromkeys(LOG_PROBS, logs))
    _, tree = picture(grpo, path, tmp_path)
    kinds = {one.tag.split("}")[1] for one in tree.iter()}
    assert kinds <= {"svg", "title", "style", "rect", "text", "tspan", "path"}


@pytest.mark.parametrize("columns", [["1234567890" * 30], ["界" * 300], ["a" * 104, "b"]])
def test_no_line_of_a_figure_is_too_long(grpo, dump, tmp_path, columns):
    record = {"tokens": [columns], "rewards": [1.0]}
    logs = [[-1.0] * len(columns)]
    path = dump(record | dict.fromkeys(LOG_PROBS, logs))
    _, tree = picture(grpo, path, tmp_path)
    words = list(tree.iter(f"{SVG}tspan"))
    assert "".join(word.text or "" for word in words) == "".join(columns)
    ends = [float(word.attrib["x"]) + 6.6 * cell_len(word.text or "") for word in words]
    assert max(ends) <= float(tree.attrib["width"])


def test_an_empty_response_and_numbers_alone_can_be_drawn(grpo, dump, tmp_path):
    empty = {key: [[], [-1.0]] for key in LOG_PROBS}
    head = Page(page(grpo, str(dump(empty)), tmp_path)).head()
    assert head["lengths"] == [0, 1]
    assert head["words"] == ["0"]
    nothing = {key: [[], []] for key in LOG_PROBS}
    assert Page(page(grpo, str(dump(nothing)), tmp_path)).head()["lengths"] == [0, 0]
    full = {key: [[-1.0], [-1.0]] for key in LOG_PROBS}
    figures = [picture(grpo, dump(one), tmp_path)[1] for one in (empty, full)]
    assert len({one.attrib["height"] for one in figures}) == 1
    assert all("".join(text.itertext()) for one in figures for text in one.iter(f"{SVG}text"))


# ---- colours -------------------------------------------------------------------------------------


def test_five_steps_on_each_side_each_darker_than_the_one_before(grpo, dump, tmp_path):
    new = [[-0.1, -1.0, -0.3, -0.2, -1.5, -0.4], [-1.0, -2.0]]  # ratios of one size on either side
    text, _ = picture(grpo, dump(TOKENS | {"log_probs_new": new}), tmp_path)
    scale = re.findall(r'width="12.0"[^>]*fill="#(\w+)"', text)
    lights = [luminance(bytes.fromhex(color)) for color in scale]
    assert len(set(scale)) == 11
    assert lights[5] == pytest.approx(1.0)
    for side in (lights[5::-1], lights[5:]):
        assert min(a - b for a, b in pairwise(side)) > 0.09


def luminance(color: bytes) -> float:
    """The relative luminance of WCAG 2.2."""
    parts = [one / 255 for one in color]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


ENGINE = {"log_probs_rollout": [[-0.1, -0.7, -0.3, -0.2, -1.1, -0.9], [-1.0, -1.9]]}


def test_mismatch_is_the_trainer_against_the_engine(grpo, dump, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = grpo("show", str(dump(TOKENS | ENGINE)), "--by", "mismatch", "--top", "2").stdout
    assert "mismatch: log π_old (trainer) − log π_rollout (engine)" in shown
    rows = [line.split() for line in shown.splitlines()[-4:-2]]
    assert [row[1] for row in rows] == ["0", "1"]
    assert [float(row[-3]) for row in rows] == pytest.approx([-0.4 + 0.1, -0.5 + 0.7], rel=1e-4)


def test_a_page_of_several_records_lists_the_tokens_of_the_batch(grpo, dump, tmp_path):
    path = str(dump(TOKENS | {"id": "a"}, TOKENS | {"id": "b", "rewards": [1.0, 5.0]}))
    settings = json.loads(Page(page(grpo, path, tmp_path, "--top", "5")).data["settings"])
    answer = json.loads(grpo("show", path, "--top", "5", "--json").stdout)
    assert settings["ranked"]["title"].startswith("2 records as one batch: grpo loss ")
    assert settings["ranked"]["heading"].startswith("5 of 16 tokens, largest |grad")
    total = {name: answer["total"][name] for name in settings["ranked"]["total"]}
    assert settings["ranked"]["total"] == total
    lines = grpo("eval", path, "--level", "record", "-f", "jsonl", "--batch", "record").stdout
    for line, one in zip(lines.splitlines(), settings["records"], strict=True):
        names = ("loss", "response_count", "tokens", "clip_fraction", "gradient_norm")
        assert one["numbers"][1:] == [json.loads(line)[name] for name in names]
    assert [one["numbers"][0] for one in settings["records"]] == [0.5, 3.0]
    rows = settings["ranked"]["rows"]
    numbers = ["ratio", "advantage", "clip", "gradient", "share"]
    assert settings["ranked"]["names"] == [name.replace("_", " ") for name in numbers]
    names = ("id", "response", "position", *numbers)
    assert [[*row[:3], *row[5:]] for row in rows] == [
        [row[name] for name in names] for row in answer["rows"]
    ]
    assert {row[0]: row[4] for row in rows} == {"a": 0, "b": 1}
    alone = json.loads(Page(page(grpo, path, tmp_path, "--record", "b")).data["settings"])
    assert alone["ranked"] is None


def test_a_page_has_all_records_that_fit_and_says_what_it_lacks(grpo, dump, tmp_path, monkeypatch):
    """Without a script, too, it shows the first record's numbers and its first response."""
    records = [TOKENS | {"id": name} for name in "abc"]
    text = page(grpo, str(dump(*records)), tmp_path)
    assert [Page(text).head(at)["id"] for at in range(3)] == ["a", "b", "c"]
    assert "gradient norm" in Page(text).text
    assert Page(text).text.count("[red]") == 1
    out = ("--html", str(tmp_path / "page.html"))
    ends = grpo("show", str(dump(*records[:2], "broken")), *out).stderr
    assert "note: the page ends before a record that cannot be read: " in ends
    monkeypatch.setattr("grpo_cli.commands.show.page._MOST", 17)
    fits = grpo("show", str(dump(*records)), *out).stderr
    words = "the page has the first 2 records (at most 17 tokens) and the records of the listed"
    assert f"{words} tokens; --record c draws the next record" in fits
    assert words in Page((tmp_path / "page.html").read_text()).data["settings"]
    path = str(dump(*records, TOKENS | {"id": "d", "rewards": [1.0, 99.0]}))
    grpo("show", path, "-v", "dr", "--top", "2", *out)
    made = Page((tmp_path / "page.html").read_text())
    assert [made.head(at)["id"] for at in range(3)] == ["a", "b", "d"]
    assert [row[4] for row in json.loads(made.data["settings"])["ranked"]["rows"][:2]] == [2, 2]
