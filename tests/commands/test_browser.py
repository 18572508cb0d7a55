"""The page in a real browser: what is seen there, the numbers it reads, and what it asks for."""

from __future__ import annotations

import json
import math
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from chromium import Chromium
from trended import drifting, write

pytestmark = pytest.mark.browser

DATA = Path(__file__).parent.parent / "data" / "rollouts" / "trl-1.16.0-grpo.jsonl"
WIDTHS = (1400, 800, 400)
LEVEL = ("--level", "token", "-f", "jsonl", "--nest")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    made = Chromium(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture
def browse(browser, grpo, tmp_path):
    """Draws a record as a page and opens it."""

    def run(path, *flags: str, width: int = 1400, dark: bool = False) -> Chromium:
        out = tmp_path / "page.html"
        assert grpo("show", str(path), "--html", str(out), *flags).exit_code == 0
        browser.size(width, dark=dark)
        browser.open(out)
        return browser

    yield run
    assert browser.problems == []
    assert [url for url in browser.requests if not url.startswith("file:")] == []
    assert len(browser.requests) <= 1


def evaluated(grpo, path, number: int, *flags: str) -> dict:
    lines = grpo("eval", str(path), "--batch", "record", *LEVEL, *flags).stdout
    return json.loads(lines.splitlines()[number])


def column(record: dict, name: str) -> list[float]:
    return [value for one in record["responses"] for value in one["tokens"][name]]


TOKEN_COLUMNS = (
    *("log_ratio", "ratio", "advantage", "surrogate", "kl", "weight", "contribution", "gradient"),
)


@pytest.mark.parametrize("variant", ["grpo", "dr", "gspo", "cispo", "sapo", "gmpo", "dapo"])
def test_every_number_is_the_float64_of_eval(browse, grpo, variant):
    tab = browse(DATA, "--record", "grpo/3", "-v", variant)
    record = evaluated(grpo, DATA, 3, "-v", variant)
    for name in TOKEN_COLUMNS:
        read = tab.run(f"page.view.record.columns.{name} && [...page.view.record.columns.{name}]")
        wanted = column(record, name) if record["responses"][0]["tokens"][name] else [None]
        assert read == wanted or (read is None and not any(wanted)), name
    sides = tab.run("[...page.view.record.clip].map((side) => SIDES[side])")
    assert sides == column(record, "clip")


KINDS = {
    "float64": lambda values: values,
    "float32": lambda values: values.astype(np.float32).astype(np.float64),
    "five digits": lambda values: np.round(values, 5),
    "whole": lambda values: np.round(values),
}


@pytest.mark.parametrize(("kind", "tokens"), [*((kind, 400) for kind in KINDS), ("float64", 9000)])
def test_log_probs_are_those_of_the_file_and_ratios_their_exponentials(browse, dump, kind, tokens):
    """Of 27,000 tokens the stored bytes are in several blocks of the stream."""
    random = np.random.default_rng(7)
    new = -random.exponential(2.0, (3, tokens))
    old = np.minimum(new + random.normal(0, 0.2, new.shape), 0.0)
    new[0, :4] = [-0.0, -1e-300, -300.0, -690.0]
    old[0, :4] = [-800.0, -5e-324, -0.0, -690.0]
    engine = np.minimum(old + random.normal(0, 0.01, new.shape), 0.0)
    names = ("log_probs_new", "log_probs_old", "log_probs_rollout")
    files = {name: KINDS[kind](one) for name, one in zip(names, (new, old, engine), strict=True)}
    record = {name: one.tolist() for name, one in files.items()} | {"rewards": [1.0, 0.0, 0.5]}
    tab = browse(dump(record | {"log_probs_ref": None}), "-v", "dr")
    for name, values in files.items():
        assert tab.run(f"[...page.view.record.columns.{name}]") == values.ravel().tolist()
    ratios = tab.run("[...page.view.record.columns.ratio].map(String)")
    change = (files["log_probs_new"] - files["log_probs_old"]).ravel()
    for read, log_ratio in zip(ratios, change.tolist(), strict=True):
        expected = math.exp(log_ratio) if log_ratio < 709.7 else math.inf
        assert float(read.replace("Infinity", "inf")) == pytest.approx(expected, rel=1e-15)
    mismatch = files["log_probs_old"] - files["log_probs_rollout"]
    assert tab.run("[...page.view.record.columns.mismatch]") == mismatch.ravel().tolist()


def test_a_real_record_is_seen(browse, grpo):
    tab = browse(DATA, "--record", "grpo/3")
    record = evaluated(grpo, DATA, 3)
    text = tab.run("document.body.innerText")
    assert "record grpo/3" in text
    assert f"{record['objective']:.6g}" in text
    assert tab.run("document.querySelectorAll('bdi.t').length") == record["tokens"]
    ratios = column(record, "ratio")
    assert f"all: {min(ratios):.4g} to {max(ratios):.4g}" in text, "the scale names its extremes"
    assert tab.run("document.title").endswith(
        f", {sum(map(bool, column(record, 'clip')))} of {record['tokens']} tokens clipped"
    )
    for side in ("low", "high"):
        count = column(record, "clip").count(side)
        assert tab.run(f"document.querySelectorAll('bdi.t.{side}').length") == count > 0
    assert tab.run("page.quantity(page.view.record).name") == "ratio"
    words = tab.texts("svg text.clip")
    beyond = [sum(one < 0.8 for one in ratios), sum(one > 1.2 for one in ratios)]
    told = [f"{count} of {len(ratios)}" for count in beyond]
    assert words == [f"▾ below 0.8: {told[0]}", f"▴ above 1.2: {told[1]}"]
    low, high = (column(record, "clip").count(side) for side in ("low", "high"))
    caption = tab.run("document.querySelector('.histogram figcaption').textContent")
    assert f"clipped: ▾ {low}, ▴ {high}" in caption
    assert ("the sign of the advantage decides" in caption) is ([low, high] != beyond)
    bars = [re.findall(r"\d[\d.e-]*", one) for one in tab.texts("rect.bin title")]
    edges = {float(end) for _, *ends in bars for end in ends}
    assert {0.8, 1.2} <= edges, "bars end at the clip bounds"
    assert sum(int(count) for count, *_ in bars) == len(ratios)
    above = sum(int(count) for count, low, _ in bars if float(low) >= 1.2)
    assert above == beyond[1] > 0


def test_a_scale_ends_at_what_occurs_and_no_button_leads_nowhere(browse, dump):
    old = [[-1.0] * 40, [-1.0] * 40]
    new = [[-1.0 + 0.001 * at for at in range(40)], [-1.0 - 0.002 * at for at in range(40)]]
    logs = {"log_probs_new": new, "log_probs_old": old, "log_probs_ref": None}
    tab = browse(dump(logs | {"rewards": [1.0, 0.0]}), "-v", "dr")
    scale = tab.run("document.querySelector('.legend').innerText")
    assert "1.04" in scale
    assert "≥" not in scale, "no token is above the largest ratio"
    buttons = "[...document.querySelectorAll('.jumps button')].map((one) => one.innerText)"
    titles = buttons.replace("innerText", "title.split(' (')[0]")
    ways = ["previous extreme token", "next extreme token"]
    assert tab.run(titles)[1:] == ways, "nothing is clipped"
    browse(DATA, "--record", "grpo/3")
    assert {"previous clipped token", "next clipped token", *ways} <= {*tab.run(titles)}
    assert tab.run(buttons)[-2:] == ["previous", "next"]


def test_the_colour_is_the_number_s(browse, grpo):
    tab = browse(DATA, "--record", "grpo/3", "--by", "gradient")
    record = evaluated(grpo, DATA, 3)
    looks = (
        "[...document.querySelectorAll('bdi.t')].map((one) => +one.className.match(/s(\\d+)/)[1])"
    )
    for name, by in (("gradient", "gradient"), ("kl", "kl"), ("ratio", "log_ratio")):
        tab.run(f"page.recolor('{name}')")
        steps = tab.run(looks)
        values = column(record, by)
        order = np.argsort(values, kind="stable")
        assert (np.diff(np.array(steps)[order]) >= 0).all(), "no step down as the number grows"
        assert all((step - 5) * value >= 0 for step, value in zip(steps, values, strict=True))
        assert len(set(steps)) > 4


def test_a_token_has_the_digits_of_tables_and_all_of_them_as_titles(browse, grpo):
    tab = browse(DATA, "--record", "grpo/3")
    tokens = evaluated(grpo, DATA, 3)["responses"][0]["tokens"]
    box = "document.querySelectorAll('bdi.t')[2].getBoundingClientRect()"
    x, y = tab.run(f"(() => {{ const b = {box}; return [b.left + 2, b.top + 8]; }})()")
    tab.point(x, y)
    told = tab.run("page.tip.element.innerText")
    assert re.search(rf"ratio ρ\s+{tokens['ratio'][2]:.4g}\b", told)
    assert re.search(rf"advantage A\s+{tokens['advantage'][2]:.4g}\b", told)
    assert f"▾ clipped {tokens['clip'][2]} at 0.8" in told
    tab.run("page.jumps.go(page.view.record, 2)")
    assert tab.run("page.tip.element.innerText") == told
    record = [json.loads(line) for line in DATA.read_text().splitlines()][3]
    titles = tab.run("[...document.querySelectorAll('.tip data')].map((one) => +one.title)")
    exact = [tokens["gradient"][2], tokens["kl"][2], record["per_token_logps"][0][2]]
    assert {*exact} <= {*titles}


def test_keys_jump_to_the_clipped_and_to_the_outliers(browse, grpo):
    tab = browse(DATA, "--record", "grpo/3")
    record = evaluated(grpo, DATA, 3)
    clip, sizes = column(record, "clip"), np.abs(column(record, "log_ratio"))
    clipped = [at for at, side in enumerate(clip) if side]
    for wanted in clipped[:3]:
        tab.press("n")
        assert tab.run("page.current") == wanted
    tab.press("p")
    assert tab.run("page.current") == clipped[1]
    for wanted in np.argsort(-sizes, kind="stable")[:3].tolist():
        tab.press("o")
        assert tab.run("page.current") == wanted
    tab.press("ArrowRight")
    assert tab.run("document.querySelectorAll('bdi.current').length") == 1
    tab.press("Escape")
    assert tab.run("page.current") is None


def test_order_and_folds(browse, grpo):
    tab = browse(DATA, "--record", "grpo/3")
    responses = evaluated(grpo, DATA, 3)["responses"]
    ids = "[...document.querySelectorAll('section.response')].map((one) => +one.id.slice(9))"
    for name, field in (("length", "length"), ("clipped", "clip_fraction"), ("advantage",) * 2):
        tab.run(f"page.reorder('{name}')")
        wanted = sorted(range(8), key=lambda r: (-responses[r][field], r))
        assert tab.run(ids) == wanted
    tab.press("F")
    assert tab.run("document.querySelectorAll('.tokens:not([hidden])').length") == 0
    tab.press("F")
    assert tab.run("document.querySelectorAll('.tokens:not([hidden])').length") == 8


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True])
def test_every_width_light_and_dark(browse, width, dark):
    tab = browse(DATA, "--record", "grpo/3", width=width, dark=dark)
    root = "document.documentElement"
    assert tab.run(f"{root}.scrollWidth - {root}.clientWidth") == 0
    wide = "[...document.querySelectorAll('.wide')]"
    assert tab.run(f"{wide}.every((one) => one.scrollWidth <= one.clientWidth)"), "no column is cut"
    style = tab.run(
        "(({color, backgroundColor}) => [color, backgroundColor])(getComputedStyle(document.body))"
    )
    ink, paper = (sum(map(float, re.findall(r"[\d.]+", one)[:3])) / 3 for one in style)
    assert ink - paper > 150 if dark else ink - paper < -150


HOSTILE = ["</script><img src=x onerror=alert(1)>", "\u2028", "\u202eabc", "[red]", "<b>x</b>"]


def test_hostile_strings_are_text(browse, dump):
    logs = [[-0.1, -0.9, -0.3, -1.0, -2.0]]
    record = {"id": HOSTILE[0], "prompt": HOSTILE[0] + HOSTILE[2], "tokens": [HOSTILE]}
    names = ("log_probs_new", "log_probs_old", "log_probs_ref")
    tab = browse(dump(record | {"rewards": [1.0]} | dict.fromkeys(names, logs)))
    assert tab.run("document.querySelectorAll('img, b.x, main script').length") == 0
    words = tab.texts("bdi.t")
    assert words == [HOSTILE[0], "\\u2028", "\\u202eabc", "[red]", "<b>x</b>"]
    assert tab.run("document.querySelector('pre').textContent") == HOSTILE[0] + "\\u202eabc"
    assert tab.run("document.title").endswith(HOSTILE[0][:38] + "…") or HOSTILE[0] in tab.run(
        "document.title"
    )


def big(dump, responses: int = 64, length: int = 2000):
    random = np.random.default_rng(3)
    shape = (responses, length)
    new = -random.exponential(0.7, shape)
    others = (np.minimum(new + random.normal(0, size, shape), 0.0) for size in (0.08, 0.1))
    columns = dict(zip(("new", "old", "ref"), (new, *others), strict=True))
    words = np.array([f"Ġw{number}" for number in range(20_000)] + ["Ċ"])
    places = np.minimum((random.pareto(0.8, shape) * 20).astype(int), len(words) - 1)
    record = {f"log_probs_{name}": values.tolist() for name, values in columns.items()}
    rewards = (random.random(responses) < 0.5).astype(float).tolist()
    return dump(record | {"tokens": words[places].tolist(), "rewards": rewards})


def test_128_000_tokens_are_one_page(browse, dump, tmp_path):
    tab = browse(big(dump))
    size = (tmp_path / "page.html").stat().st_size
    assert size < 12_000_000, size
    assert tab.run("page.view.record.count") == 128_000
    assert tab.run("document.querySelectorAll('*').length") < 12_000, "only what is near is drawn"
    tab.press("o")
    assert tab.run("document.querySelectorAll('bdi.current').length") == 1
    tab.press("F")
    tab.press("F")
    assert tab.run("page.view.responses.all.every((view) => view.open)")
    assert tab.run("document.querySelectorAll('bdi.t').length") < 20_000


def test_on_paper_stands_what_is_unfolded(browse, dump):
    tab = browse(big(dump, responses=6, length=3000))
    tab.call("Emulation.setEmulatedMedia", media="print")
    tab.run("page.print()")
    assert tab.run("document.querySelectorAll('bdi.t').length") == 6 * 3000
    assert tab.run("getComputedStyle(document.querySelector('.jumps')).display") == "none"
    tab.call("Emulation.setEmulatedMedia", media="")
    pdf = tab.pdf()
    assert pdf.startswith(b"%PDF")
    assert pdf.count(b"/Type /Page\n") > 3


@pytest.fixture
def browse_run(browser, grpo, tmp_path):
    """Draws a run that goes wrong as a page and opens it."""
    records = drifting(tmp_path / "run")
    out = tmp_path / "page.html"
    flags = ("-v", "dr", "--jobs", "1", "-o", str(out))
    assert grpo("report", str(tmp_path / "run"), *flags).exit_code == 0
    browser.size(1400)
    browser.open(out)
    yield browser, records, tmp_path / "run"
    assert browser.problems == []
    assert len(browser.requests) <= 1


@pytest.fixture
def browse_rows(browser, grpo, tmp_path):
    """Draws a run of such records as a page and opens it."""

    def run(rows, *flags: str, width: int = 800) -> Chromium:
        path, out = write(tmp_path / "run.jsonl", rows), str(tmp_path / "page.html")
        assert grpo("report", str(path), *flags, "-o", out).exit_code == 0
        browser.size(width)
        browser.open(tmp_path / "page.html")
        return browser

    yield run
    assert browser.problems == []


def follow(tab: Chromium, address: str) -> None:
    tab.run(f"location.hash = '{address}'")
    tab.run("new Promise((done) => setTimeout(done, 150))")


def test_from_the_run_to_the_token_that_went_wrong(browse_run, grpo):
    tab, records, folder = browse_run
    assert "mismatch." in tab.run("document.querySelector('.summary').textContent")
    lines = "[...document.querySelectorAll('.event .command')].map((one) => one.innerText)"
    commands = tab.run(lines)
    marks = ["step ", "all findings", "worst at step "]
    assert [mark in one for mark, one in zip(marks, commands[:3], strict=True)] == [True] * 3
    worst = "[...document.querySelectorAll('.links a')].find((one) => /token/.test(one.hash)).hash"
    address = tab.run(worst)
    follow(tab, address)
    assert re.match(
        r"Step \d+, record .*: the step's largest .*mismatch", tab.run("document.title")
    )
    step, _, response, position = map(int, re.findall(r"-(\d+)", address))
    name = tab.run("page.view.record.id")
    record = next(one for one in records if one["id"] == name)
    assert record["step"] == step
    sizes = [
        abs(old - engine)
        for one in (one for one in records if one["step"] == step)
        for row in zip(one["log_probs_old"], one["log_probs_rollout"], strict=True)
        for old, engine in zip(*row, strict=True)
    ]
    trainer = record["log_probs_old"][response][position]
    engine = record["log_probs_rollout"][response][position]
    assert abs(trainer - engine) == max(sizes)
    assert tab.run("page.view.record.columns.mismatch[page.current]") == trainer - engine
    assert f"{trainer - engine:.4g}" in tab.run("page.tip.element.innerText")
    assert tab.run("page.quantity(page.view.record).name") == "mismatch"
    assert tab.run("document.querySelector('pre').textContent") == record["prompt"]
    path = str(folder / f"step_{step}.jsonl")
    lines = grpo("eval", path, "-v", "dr", "--record", name, "--level", "token", "--json").stdout
    (evaluated,) = json.loads(lines)["records"]
    assert tab.run("[...page.view.record.columns.ratio]") == column(evaluated, "ratio")


def test_a_step_says_what_began_there_with_its_cause_and_fix(browse_run):
    tab, _, _ = browse_run
    title, facts = tab.run("document.title"), tab.texts(".summary > *")
    onset, worst, group, token = tab.run("[...document.querySelectorAll('.summary a')].map(String)")
    assert worst in group
    assert group.partition("-by-")[0] in token
    family = "document.querySelector('.family')"
    assert tab.run(f"{family}.querySelector('a')") is None, "where it is worst is in the line above"
    assert "→" in tab.run(f"{family}.textContent")
    for address in (onset, worst):
        follow(tab, "#" + address.partition("#")[2])
        assert ["evidence", *tab.texts(".summary > *")] == [
            *facts[:1],
            *facts[2 : facts.index("last good step")],
        ]
        assert token.partition("#")[2] in tab.run("document.querySelector('.verdict').innerHTML")
        (step,) = re.findall(r"step-(\d+)", address)
        assert tab.run("document.title").startswith(f"Step {step}: ")
        assert (tab.run("document.title") == title) == (address == onset)
    assert tab.run("document.querySelector('header .hint').textContent").startswith(
        "dr, surrogate "
    )
    follow(tab, "#" + worst.partition("#")[2])
    follow(tab, tab.run("document.querySelector('table a[href*=group]').hash"))
    assert tab.run("page.quantity(page.view.record).name") == "mismatch", "as the finding"


def test_the_recorded_loss_is_drawn_with_the_one_that_is_computed(browse_rows, tmp_path):
    rows = [
        {
            "step": step,
            "log_probs": [[-1.0, -2.0 - 0.01 * step], [-1.5, -1.0]],
            "log_probs_old": [[-1.1, -2.0], [-1.5, -1.1]],
            "rewards": [1.0, 0.0],
            "loss": 0.1 * step,
        }
        for step in range(20)
    ]
    browser = browse_rows(rows, width=1400)
    charts = "[...document.querySelectorAll('.chart')]"
    chart = f"{charts}.find((one) => /recorded_loss/.test(one.textContent))"
    assert browser.run(f"{chart}.querySelectorAll('path.other').length") == 1
    assert "(dashed: recomputed)" in browser.run(f"{chart}.textContent")
    open_charts = "[...document.querySelectorAll('.charts')[0].querySelectorAll('figcaption span')]"
    assert "loss" not in browser.run(f"{open_charts}.map((one) => one.textContent)")
    follow(browser, "#step-0")
    after_the_charts = browser.texts("td")
    assert "loss" in after_the_charts
    browser.open((tmp_path / "page.html").rename(tmp_path / "same.html"), "#step-0")
    assert browser.texts("td") == after_the_charts


def test_an_address_has_its_own_title_and_decimal_points_are_below_each_other(browse_run):
    tab, _, _ = browse_run
    title = tab.run("document.title")
    follow(tab, "#step-99")
    assert tab.run("[document.title, page.notice.textContent]") == [
        title,
        "This page has no step 99.",
    ]
    follow(tab, "#step-39")
    assert tab.run("document.title").startswith("Step 39")
    numbers = [one for one in tab.texts("td:nth-child(2)") if re.match(r"-?\d.*\.", one)]
    groups = "document.querySelectorAll('table').length"
    assert len(numbers) > 4
    assert len({len(one) - one.index(".") for one in numbers}) <= tab.run(groups)


def test_up_and_down_a_run(browse_run):
    tab, _, _ = browse_run
    count = "document.querySelectorAll('.chart svg').length"
    found = tab.run(count)
    assert found > 7
    tab.run("document.querySelector('.run details:has(.charts) summary').click()")
    tab.settle()
    assert tab.run(count) > 2 * found, "folded charts are drawn when they are seen"
    assert tab.run("document.querySelectorAll('.chart line.onset').length") > 0
    follow(tab, "#step-39")
    table = "[...document.querySelectorAll('table')].at(-1)"
    assert tab.run(f"{table}.rows.length") == 4
    heads = tab.run(f"[...{table}.rows[0].cells].map((one) => one.textContent)")
    for at, down in ((heads.index("length"), True), (heads.index("record"), False)):
        sort = f"{table}.rows[0].cells[{at}]"
        cells = f"[...{table}.rows].slice(1).map((row) => row.cells[{at}].textContent)"
        for way in (down, not down):
            tab.run(f"{sort}.querySelector('button').click()")
            read = [one.removesuffix(" ▲") for one in tab.run(cells)]
            keys = [float(one) for one in read] if at else read
            assert keys == sorted(keys, reverse=way)
            direction = "descending" if way else "ascending"
            assert tab.run(f"{sort}.getAttribute('aria-sort')") == direction
    dots = "[...document.querySelectorAll('figure.groups circle')]"
    assert tab.run(f"{dots}.length") == 12, "every response has a dot"
    assert not tab.run(f"{dots}.some((one) => one.matches('.mixed'))"), "of the colour of its group"
    places = "(one) => [one.textContent.match(/reward ([^,]+)/)[1], one.cy.baseVal.value]"
    heights = {(reward, height) for reward, height in tab.run(f"{dots}.map({places})")}
    above = max(height for reward, height in heights if reward == "1")
    assert above < min(height for reward, height in heights if reward == "0")
    across = "(one) => [+one.textContent.match(/length (\\d+)/)[1], one.cx.baseVal.value]"
    columns = {(length, place) for length, place in tab.run(f"{dots}.map({across})")}
    assert len(columns) == len({length for length, _ in columns}), "a length has one place"
    link = tab.run("document.querySelector('figure.groups a').getAttribute('href')")
    follow(tab, link)
    assert tab.run("document.querySelectorAll('bdi.t').length") > 0
    for where in ("step 39", "run"):
        tab.press("Escape")
        tab.press("Escape") if tab.run("location.hash").count("-") > 2 else None
        tab.run("new Promise((done) => setTimeout(done, 150))")
        assert tab.run("document.querySelector('.crumbs b').textContent") == where


def test_charts_zoom_together_and_are_found_by_name(browse_run):
    tab, _, _ = browse_run
    box = "document.querySelectorAll('.chart svg')[1].getBoundingClientRect()"
    tab.run("document.querySelectorAll('.chart svg')[1].scrollIntoView({ block: 'center' })")
    left, top, wide = tab.run(f"(({{left, top, width}}) => [left, top, width])({box})")

    def place(step: float) -> tuple[float, float]:
        return left + 70 + step / 39 * (wide - 78), top + 50

    ends = "[...document.querySelectorAll('.controls [type=number]')].map(({ value }) => +value)"
    assert tab.run(ends) == [0, 39]
    tab.drag(place(30.2), place(9.9))
    assert tab.run(ends) == [10, 30]
    assert tab.run("location.hash") == "", "a range opens no step"
    labels = "[...document.querySelectorAll('.chart svg')].map((one) => one.ariaLabel)"
    assert all("steps 10 to 30" in one for one in tab.run(labels))
    numbers = "[...document.querySelectorAll('.run > .charts svg')].at(-1).textContent"
    assert all(number in tab.run(numbers) for number in ("10", "20", "30"))
    for clicks in (1, 2):
        tab.drag(place(20), place(20), clicks)
    tab.run("new Promise((done) => setTimeout(done, 400))")
    assert (tab.run(ends), tab.run("location.hash")) == ([0, 39], "")
    tab.run("document.querySelectorAll('.chart svg')[1].focus()")
    for key in ("ArrowLeft", "ArrowLeft", "ArrowLeft"):
        tab.press(key)
    assert all(one.startswith("step 36: ") for one in tab.texts("figcaption b"))
    tab.press("+")
    assert tab.run(ends) == [27, 39]
    tab.run("page.showing.search.focus()")
    for key in "chi2":
        tab.press(key)
    names = tab.texts("figcaption span")
    assert [one.split()[0] for one in names] == ["mismatch.chi2"]
    tab.run("document.querySelector('.chart svg').focus()")
    tab.press("Enter")
    tab.run("new Promise((done) => setTimeout(done, 150))")
    assert tab.run("location.hash") == "#step-39"


@pytest.mark.parametrize("width", WIDTHS)
def test_a_run_fits_every_width(browse_run, width):
    tab, _, _ = browse_run
    tab.size(width, dark=width == 800)
    for address in ("#", "#step-39"):
        follow(tab, address)
        for part in ("html", ".wide"):
            parts = f"[...document.querySelectorAll('{part}')]"
            assert tab.run(f"{parts}.every((one) => one.scrollWidth <= one.clientWidth)"), part
    assert "mismatch ▲, length" in tab.run("document.body.innerText"), "where a finding points"
    if width < 600:
        rows = "[...document.querySelectorAll('tr:not(:first-child)')]"
        rows = f"{rows}.filter((one) => one.checkVisibility())"
        assert max(tab.run(f"{rows}.map((one) => one.offsetHeight)")) < 35, "a row is a line"
        seen = "[...row.cells].filter((one) => one.checkVisibility()).length"
        taps = [
            f"(() => {{ const row = {rows}[0]; {tap}; return {seen}; }})()"
            for tap in ("", "row.click()")
        ]
        folded, opened = map(tab.run, taps)
        assert folded < opened == tab.run(f"{rows}[0].cells.length"), "a tap shows all of it"


def test_the_page_is_not_blank_before_its_script_runs_and_draws_every_record(
    browser, browse, grpo, tmp_path
):
    """Bars of contributions share one axis; few tokens are counted on a linear scale."""
    browse(DATA, "--record", "grpo/3").screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 20_000
    still = (tmp_path / "page.html").read_text().partition("<script")[0]
    record = evaluated(grpo, DATA, 3)
    assert f"<dd>{record['loss']:.6g}</dd>" in still
    assert still.count("<bdi ") == record["responses"][0]["length"]
    tab = browse(DATA, width=400)
    for number in (0, 2):
        tab.run(f"location.hash = 'record-{number}'; new Promise((done) => setTimeout(done, 300))")
        wanted = evaluated(grpo, DATA, number)
        alone = tab.run("document.querySelector('.crumbs h2').textContent")
        assert f"record {wanted['id']} of" in alone
        assert "evaluated alone" in alone
        assert tab.run("page.view.record.objective") == wanted["objective"]
    follow(tab, tab.run("document.querySelectorAll('.batch tr a')[1].hash"))
    assert tab.run("page.view.record.id") == evaluated(grpo, DATA, 1)["id"], "a row leads to it"
    way = tab.run("document.querySelector('td a[href*=token]').hash")  # the batch's first token
    follow(tab, way)
    record, response, position = map(int, re.findall(r"\d+", way))
    assert tab.run("page.view.record.id") == evaluated(grpo, DATA, record)["id"]
    told = f"response {response}, token {position}"
    assert told in tab.run("page.tip.element.innerText")
    left = "[...document.querySelectorAll('.bar')].map((one) => one.getBoundingClientRect().left)"
    assert len(set(tab.run(left))) == 1
    captions = []
    for number in range(4):
        tab.run(f"location.hash = 'record-{number}'; new Promise((done) => setTimeout(done, 300))")
        captions.append(tab.run("document.querySelector('.histogram figcaption').textContent"))
    assert any(re.match(r"\d+ tokens;", one) for one in captions), captions


@pytest.mark.parametrize("width", [400, 800, 1400])
def test_the_labels_of_a_histogram_cover_nothing(browse, tmp_path, width):
    """At any width, and its axis has several marks."""
    spans = (-1.78, -0.25, 19), (-0.2, 0.15, 10), (0.2, 0.55, 16)
    change = np.concatenate([np.linspace(*span) for span in spans])
    record = {"log_probs": [(change - 3.0).tolist()], "old_log_probs": [[-3.0] * len(change)]}
    path = write(tmp_path / "a.jsonl", [record | {"advantages": [1.0]}])
    tab = browse(path, "-v", "dr", width=width)
    labels, bars, marks = (
        tab.run(
            f"[...document.querySelectorAll('.histogram {which}')]"
            ".map((one) => one.getBoundingClientRect().toJSON())"
        )
        for which in ("text.clip", "rect.bin", "text[text-anchor=middle]")
    )
    assert len(labels) == 2
    for at, one in enumerate(labels):
        for other in (*labels[at + 1 :], *bars):
            apart = one["bottom"] - 0.5 <= other["top"] or one["right"] <= other["left"]
            apart = apart or other["bottom"] - 0.5 <= one["top"] or other["right"] <= one["left"]
            assert apart or not other["height"], (width, one, other)
    assert len(marks) > 2
    assert all(one["right"] < two["left"] for one, two in pairwise(marks))


def test_the_last_bar_of_a_histogram_says_how_far_its_tokens_are(browse, tmp_path):
    """They are above the axis, which ends near where 98 % of the tokens are."""
    mismatch = [*np.linspace(-0.3, 0.3, 60), 0.75]
    rollout = [-2.0 - one for one in mismatch]
    record = {"log_probs": [[-2.0] * len(rollout)], "log_probs_rollout": [rollout]}
    path = write(tmp_path / "a.jsonl", [record | {"advantages": [1.0]}])
    tab = browse(path, "-v", "dr", "--by", "mismatch")
    words, last = (
        tab.run(f"[...document.querySelectorAll('.histogram {which}')].at(-1).textContent")
        for which in ("text.outside", "rect.bin title")
    )
    assert re.fullmatch(r"≥ 0\.3\d*, max 0\.75", words)
    assert last.endswith(words)
    caption = tab.run("document.querySelector('.histogram figcaption').textContent")
    assert "1 token above the axis, up to 0.75" in caption
    assert tab.run("page.view.histogramTitle.textContent") == "Number of tokens by mismatch"
    assert "mismatch: log π_old" in caption


def test_a_series_that_spans_decades_has_a_logarithmic_axis(browse_rows, tmp_path):
    """Thinned, it still has its least and largest values; the other run is a line of its own."""
    rng = np.random.default_rng(1)
    first, second = (
        [
            {"step": at, "log_probs": [[-1.0, -1.0]], "log_probs_ref": [[-1.0, -1.0 - 0.01 * size]]}
            | {"rewards": [1.0]}
            for at, size in enumerate(np.exp(rng.normal(size=3000)).tolist())
        ]
        for _ in range(2)
    )
    other = str(write(tmp_path / "other.jsonl", second))
    browser = browse_rows(first, "--against", other, "--steps", "1", "--groups", "0")
    charts = "[...document.querySelectorAll('figure.chart')]"
    chart = f"{charts}.find((one) => one.textContent.startsWith('kl_k3'))"
    open_charts = "[...document.querySelectorAll('.run > .charts figcaption span[title]')]"
    names = browser.run(f"{open_charts}.map((one) => one.textContent)")
    assert names == ["loss", "kl_k3 (log)", "gradient_norm (log)", "kl"], "both rows are full"
    folded = "document.querySelector('details .charts').textContent"
    assert "reward_mean" not in browser.run(folded)
    assert "reward_mean 1, " in browser.run("page.showing.constant.textContent")
    assert "(log)" in browser.run(f"{chart}.querySelector('svg').getAttribute('aria-label')")
    assert "(log)" in browser.run(f"{chart}.querySelector('figcaption').textContent")
    assert browser.run(f"{chart}.querySelectorAll('path.line').length") == 2
    colours = browser.run(
        f"[getComputedStyle({chart}.querySelector('figcaption .other')).color,"
        f" getComputedStyle({chart}.querySelector('path.other')).stroke]"
    )
    assert colours[0] == colours[1], "the other run's value has the colour of its line"
    paths = f"[...{chart}.querySelectorAll('path.line')]"
    lines = browser.run(f"{paths}.map((one) => one.getAttribute('d'))")
    heights = [float(one.split()[1]) for line in lines for one in re.split("[ML]", line)[1:]]
    assert (min(heights), max(heights), len(heights) < 3000) == (6.0, 106.0, True)
    assert browser.run(f"{chart}.querySelectorAll('path.smooth').length") == 1
    browser.size(400)
    assert browser.run("smooth([1, 1, 1, null, 9, 9, 9, 9], 1).join()") == "1,1,1,,9,9,9,9", (
        "a median keeps a step where it is"
    )
    medians = "smooth(new Array(20000).fill(1), 500).filter((value) => value === 1).length"
    assert browser.run(medians) == 200, "a long run has no more than can be seen"


def test_the_marks_of_a_large_axis_are_not_cut_off(browse_rows):
    """A KL of 7e10 at one step, and 0 at others, so that its axis is linear."""
    rows = [
        {"step": at, "log_probs": [[-30.0, -30.0]], "rewards": [1.0]}
        | {"log_probs_ref": [[-30.0, -30.0 + 25.0 * (at == 5)]]}
        for at in range(12)
    ]
    browser = browse_rows(rows, "--groups", "0")
    marks = browser.run(
        "[...document.querySelectorAll('figure.chart')]"
        ".find((one) => one.textContent.startsWith('kl_k3'))"
        ".querySelectorAll('text[text-anchor=end]').length"
    )
    assert marks > 2
    lefts = browser.run(
        "[...document.querySelectorAll('figure.chart text[text-anchor=end]')]"
        ".map((one) => one.getBoundingClientRect().left - one.closest('svg')"
        ".getBoundingClientRect().left)"
    )
    assert min(lefts) >= 0


@pytest.mark.more
def test_noise_does_not_fill_a_chart(browse_rows):
    """A series around 1.2 that varies by 1 % has an axis from 1 to 1.4."""
    noise = np.random.default_rng(1).uniform(1.194, 1.206, (30, 8)).tolist()
    noise[3], noise[4] = [1.194] * 8, [1.206] * 8
    rows = ({"step": at, "log_probs": [[-1.0] * 8], "rewards": [1.0]} for at in range(30))
    records = (row | {"entropies": [each]} for row, each in zip(rows, noise, strict=True))
    browser = browse_rows(records, "-v", "dr")
    chart = (
        "[...document.querySelectorAll('.chart')].find((one) => /^entropy/.test(one.textContent))"
    )
    line = browser.run(f"{chart}.querySelector('path.line').getAttribute('d')")
    heights = [float(one.split()[1]) for one in re.split("[ML]", line)[1:]]
    assert max(heights) - min(heights) == pytest.approx(3.0, abs=0.3)
    assert browser.run(f"{chart}.querySelector('text.unit').textContent") == "nats"


def test_each_event_of_a_run_has_its_last_good_step(browse_rows, tmp_path):
    """The reference is another from step 14 on; the reward falls at step 34."""
    draw = np.random.default_rng(0)
    rows = [
        {
            "step": step,
            "log_probs": [[-1.0, -2.0]] * 8,
            "log_probs_ref": (
                np.array([-1.0, -2.0]) - (0.1 if step < 14 else 0.5) - 0.01 * draw.random((8, 2))
            ).tolist(),
            "rewards": [float(draw.random() < (0.5 if step < 34 else 0.0)) for _ in range(8)],
        }
        for step in range(50)
    ]
    browser = browse_rows(rows)
    for width in WIDTHS:
        browser.size(width)
        browser.open(tmp_path / "page.html")
        texts = browser.run(
            "[...document.querySelectorAll('svg text.onset')].map(x => x.textContent)"
        )
        assert {"▲ 14", "▼ 34"} <= {*texts}
        key = browser.run("document.querySelector('.key').textContent")
        assert "last good steps (13, 33), one before each event" in key


@pytest.mark.parametrize("width", WIDTHS)
def test_a_run_says_nothing_twice_and_is_one_column(browse_rows, tmp_path, width):
    """The policy moves at step 20, and the rewards fall at step 45."""
    draw = np.random.default_rng(0)
    rows = []
    for step in range(60):
        new = -draw.exponential(1.0, (8, 40)) - 0.1
        old = np.minimum(new + draw.normal(0, 0.002 if step < 20 else 0.5, new.shape), 0.0)
        rewards = (draw.random(8) < (0.5 if step < 45 else 0.0)).astype(float).tolist()
        logs = {"log_probs": new.tolist(), "old_log_probs": old.tolist()}
        rows.append(logs | {"step": step, "rewards": rewards})
    browser = browse_rows(rows, width=width)
    title, *headings = browser.texts("h1, .event h3")
    assert headings
    assert title.lower().strip(".") not in [one.lower() for one in headings]
    heads = {"likely cause", "fix", "last good step", "evidence", "also"}
    assert {*browser.texts(".summary dt")} == heads
    words = browser.run("document.querySelector('.summary').textContent")
    sentence = re.search(r"\w+ (rose|fell): median [\d.e-]+ before", words)
    details = browser.run("document.querySelector('.event').textContent")
    assert sentence
    assert sentence[0] not in details
    below = "document.querySelector('.event').getBoundingClientRect().top"
    charts = "document.querySelector('.chart').getBoundingClientRect()"
    assert browser.run(f"{charts}.top < 800 && {charts}.top < {below}")
    lefts = browser.run(
        "[...document.querySelector('.event').children].map((x) => x.getBoundingClientRect().left)"
    )
    assert max(lefts) - min(lefts) < 1
    also = "document.querySelector('.summary a[href^=\"#event\"]')"
    assert browser.run(f"{also}.textContent") in headings
    browser.run(f"{also}.click()")
    browser.run("new Promise((done) => setTimeout(done, 150))")
    assert browser.run("scrollY") > 0
    browse_rows(rows, "--against", str(tmp_path / "run.jsonl"), width=width)
    assert {*browser.texts(".summary dt")} == heads


def test_a_command_is_copied(browse_run):
    tab, _, _ = browse_run
    tab.run(
        "Object.defineProperty(navigator, 'clipboard', { configurable: true, value: "
        "{ writeText: async (words) => { globalThis.copied = words; } } })"
    )
    tab.run("document.querySelector('.copy').click()")
    tab.settle()
    command = tab.run("document.querySelector('.command code').innerText")
    assert command.startswith("grpo ")
    assert [tab.run("copied"), tab.run("String(getSelection())")] == [command] * 2
    assert tab.run("document.querySelector('.copy').textContent") == "copied"


@pytest.mark.parametrize("width", WIDTHS)
def test_totals_are_balanced_and_a_token_is_a_line(browse, width):
    tab = browse(DATA, "--record", "grpo/3", width=width)
    lefts = tab.run(
        "[...document.querySelectorAll('.totals div')].map((x) => x.getBoundingClientRect().left)"
    )
    counts = [lefts.count(one) for one in sorted({*lefts})]
    assert len({*counts[:-1]}) <= 1, counts
    rows = "[...document.querySelectorAll('.outliers tr')].slice(1).map((x) => x.offsetHeight)"
    assert max(tab.run(rows)) < 40


def test_an_axis_ends_at_its_marks(browse_run):
    tab, _, _ = browse_run
    ends = tab.run(
        "[...document.querySelectorAll('.chart')].filter((one) => !/[(]log/.test(one.textContent))"
        ".map((one) => [...one.querySelectorAll('line.faint, line.zero')]"
        ".map((line) => line.y1.baseVal.value))"
    )
    assert len(ends) > 3
    assert all((max(one), min(one)) == (106.0, 6.0) for one in ends), ends


def test_no_line_ends_within_a_number(browse_run):
    tab, _, _ = browse_run
    broken = """(() => {
      const walk = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
      const found = [];
      while (walk.nextNode()) for (const one of walk.currentNode.data.matchAll(/[\\d.]+e-\\d+/g)) {
        const range = new Range();
        range.setStart(walk.currentNode, one.index);
        range.setEnd(walk.currentNode, one.index + one[0].length);
        found.push([one[0], range.getClientRects().length]);
      }
      return found; })()"""
    words = "make('p', {}, 'kl 5.06e-05, '.repeat(40))"
    tab.run(f"document.querySelector('.summary dd').replaceChildren({words})")
    for width in range(340, 420, 7):
        tab.size(width)
        found = tab.run(broken)
        assert len(found) >= 40
        assert [one for one in found if one[1] > 1] == []
    tab.size(1400)
