// A run: its findings, its series, and the steps whose groups the page has.

const WHY = { finding: "step of a finding", end: "first or last step", sampled: "random step", all: "" };

const LEFT = 78;

// So many pixels are between two numbers of a horizontal axis.
const ROOM = 44;

// A positive series that spans more has a logarithmic axis.
const DECADE = 10;

const LEGEND = "▲ and ▼ mark the step where a finding began. Top right: the value at the last step or under the pointer.";
const DOTS = " Dots: steps whose groups are on this page, orange where a finding begins, the step before, and where it is worst; click a chart to open the nearest.";

// A run of so many steps has a bold line as well, of medians.
const LONG = 20;

// So many pixels wide, the findings of an event are folded but for the first.
const NARROW = 600;

class RunView {
  constructor(run) {
    this.run = run;
    this.steps = Object.keys(run.kept).map(Number).sort((a, b) => a - b);
    this.charts = make("div.charts");
    this.others = make("div.charts");
    const [, folded, constant] = this.sorted();
    const more = folded.length + constant.length;
    this.element = make(
      "article.run",
      {},
      make("p.verdict", {}, sentences([this.verdict(), ...run.outlook], run)),
      run.alone ? make("p.hint", {}, sentences([run.alone], run)) : null,
      make("h2", {}, "Findings"),
      this.findings(),
      ...this.parts(),
      ...this.against(),
      make("h2", {}, "Series"),
      make("p.hint", {}, [LEGEND, ...this.lines()].join("")),
      this.charts,
      more ? make("details", {}, make("summary", {}, `${more} more series`), this.others, constantSentence(constant)) : null,
      ...this.logged(),
      ...(this.steps.length ? [make("h2", {}, "Steps"), this.list()] : []),
      make("p.hint", {}, keptSentence(run, this.steps)),
    );
  }

  *lines() {
    const { others = [], steps } = this.run;
    if (this.steps.length) yield DOTS;
    if (steps.length >= LONG) yield ` Bold: the median of ${2 * reach(steps) + 1} steps.`;
    if (others.length) yield ` Dashed: ${others.join("; ")}.`;
  }

  // Without its first clause where that is the title: always where nothing went wrong.
  verdict() {
    const [first, ...rest] = this.run.verdict.split("; ");
    const wrong = this.run.findings.some(({ severity }) => severity === "warning");
    const said = !wrong || document.title.toLowerCase().includes(first.split(" (")[0]);
    return (said ? rest : [first, ...rest]).join("; ");
  }

  findings() {
    const { findings, checks, fixes } = this.run;
    if (!findings.length) return make("p", {}, "None.");
    const of = (wanted) => findings.filter(({ severity }) => severity === wanted);
    const [wrong, moved] = [of("warning"), of("info")];
    const events = checks.map((check, at) => this.event(wrong.filter(({ event }) => event === at), check, fixes[at]));
    const words = `${moved.length} other ${moved.length === 1 ? "change, not a fault by itself" : "changes, not faults by themselves"}`;
    return make(
      "div",
      {},
      make("ol.findings", {}, ...events),
      moved.length ? make("details", {}, make("summary", {}, words), make("ul.findings", {}, ...moved.map((one) => this.finding(one)))) : null,
    );
  }

  // The first finding of an event, the others, the findings of check in its worst record, and what is usually done.
  event([first, ...others], check, fix) {
    if (!first) return null;
    const item = this.finding(first);
    const said = check.map((words) => make("li", {}, make("b", {}, "check"), ` ${words}`));
    if (fix) said.push(make("li", {}, make("b", {}, "fix"), ` ${fix}`));
    const when = (one) => (one.onset > first.onset ? "then " : "also ");
    if (said.length) item.append(make("ul.findings", {}, ...said));
    if (!others.length) return item;
    const ordered = [...others].sort((a, b) => a.onset - b.onset);
    const list = make("ul.findings", {}, ...ordered.map((one) => this.finding(one, when(one))));
    const words = `${others.length} more ${others.length === 1 ? "finding" : "findings"} with it`;
    const open = innerWidth > NARROW ? "" : null;
    item.append(make("details", { open }, make("summary", {}, words), list));
    return item;
  }

  finding(finding, before = "") {
    const { onset, worst_step: worst, worst: place } = finding;
    const group = place ? groupOf(this.run, worst, place) : -1;
    const links = this.steps.length ? [link(`#step-${onset}`, `step ${onset}`)] : [];
    if (worst !== onset && this.steps.length) links.push(link(`#step-${worst}`, `worst: step ${worst}`));
    if (group >= 0) {
      const token = place.token === null ? "" : `-token-${place.token}-by-${finding.by}`;
      links.push(link(`#step-${worst}-group-${group}-response-${place.response}${token}`, evidence(finding)));
    }
    return make("li", {}, make("b", {}, before + finding.kind), ` ${finding.sentence} `, make("span.links", {}, ...links), before ? null : make("code", {}, finding.command));
  }

  // Which part of the run carries its changes, in the words of the command.
  parts() {
    const { by } = this.run;
    if (!by) return [];
    return [make("h2", {}, `By ${by.field}`), make("ul.findings", {}, ...by.verdicts.map((words) => make("li", {}, words)))];
  }

  // How the series differ from those of another run, in the words of the command.
  against() {
    const { against, others } = this.run;
    if (!against) return [];
    const row = ([name, words]) => make("li", {}, make("b", {}, name), ` ${words}`);
    return [make("h2", {}, `Against ${others[0]}`), make("p", {}, sentences([against.verdict], this.run)), make("ul.findings", {}, ...Object.entries(against.metrics).map(row))];
  }

  // What the trainer logged: whether it is what was recomputed, and its own series.
  logged() {
    const { log } = this.run;
    this.logs = make("div.charts");
    if (!log) return [];
    const said = log.series.filter((one) => one.said).map((one) => make("li", {}, one.said));
    const heading = make("h2", {}, `The log, under the names of ${log.framework}`);
    return [heading, said.length ? make("ul.findings", {}, ...said) : null, make("details", {}, make("summary", {}, `${log.series.length} logged series`), this.logs)];
  }

  list() {
    const { kept } = this.run;
    const links = this.steps.map((step) => {
      const item = link(`#step-${step}`, kept[step] === "finding" ? `${step} ▲` : String(step));
      item.title = WHY[kept[step]];
      return item;
    });
    return make("p.steps-list", {}, ...links);
  }

  // Series that are open (of findings, then those that differ from another run, then the main ones), folded, and constant.
  sorted() {
    const { metrics, findings, against } = this.run;
    const place = ({ name }) => findings.findIndex(({ metric }) => metric === name);
    const found = metrics.filter((metric) => place(metric) >= 0).sort((a, b) => place(a) - place(b));
    const others = metrics.filter((metric) => place(metric) < 0);
    const varied = others.filter((metric) => !isConstant(metric));
    const rank = ({ name, main, usual }) => (against && name in against.metrics ? 3 : main ? 2 : usual ? 1 : 0);
    varied.sort((a, b) => rank(b) - rank(a));
    const open = [...found, ...varied.filter((metric) => rank(metric) > 1)];
    const rest = varied.filter((metric) => rank(metric) < 2);
    return [open.length ? open : rest, open.length ? rest : [], others.filter(isConstant)];
  }

  refresh() {
    const drawn = (metric) => this.figure(metric);
    const [open, folded] = this.sorted();
    this.charts.replaceChildren(...open.map(drawn));
    this.logs.replaceChildren(...(this.run.log?.series ?? []).map(drawn));
    this.others.replaceChildren(...folded.map(drawn));
  }

  figure(metric) {
    const { run } = this;
    const width = Math.max(Math.min(this.charts.clientWidth, 1200) < 560 ? this.charts.clientWidth : 340, 240);
    const value = make("b");
    const name = `${metric.name}${range(metric).log ? " (log scale)" : ""}`;
    const caption = make("figcaption", {}, make("span", {}, name), value);
    const other = (at) => (metric.others ?? []).filter((values) => values[at] !== null).map((values) => ` (${shown(values[at])})`).join("");
    const tell = (at) => (value.textContent = `step ${run.steps[at]}: ${shown(metric.values[at])}${other(at)}`);
    tell(run.steps.length - 1);
    const svg = series(run, metric, width);
    const nearest = (event) => {
      const box = svg.getBoundingClientRect();
      const share = ((event.clientX - box.left) / box.width) * width;
      return Math.round(Math.max(0, Math.min(1, (share - LEFT) / (width - LEFT - 6))) * (run.steps.length - 1));
    };
    svg.addEventListener("pointermove", (event) => tell(nearest(event)));
    svg.addEventListener("pointerleave", () => tell(run.steps.length - 1));
    svg.addEventListener("click", (event) => {
      const step = run.steps[nearest(event)];
      if (!this.steps.length) return;
      const near = [...this.steps].sort((a, b) => Math.abs(a - step) - Math.abs(b - step))[0];
      location.hash = `step-${near}`;
    });
    return make("figure.chart", {}, caption, metric.about ? make("p.about", {}, metric.about) : null, svg);
  }
}

// A metric's name, as nll, keeps its small letter.
const sentences = (parts, { metrics }) =>
  parts.filter(Boolean).map((words) => `${words.replace(/^[a-z]+(?=[ :])/, (word) => begun(word, metrics))}.`).join(" ");
const begun = (word, metrics) => (metrics.some(({ name }) => name === word) ? word : `${word[0].toUpperCase()}${word.slice(1)}`);

// What the place of a finding is, with its number.
function evidence({ by, direction, worst: { value } }) {
  const [words, about] = EVIDENCE[by] ?? ["its worst token", ""];
  const which = typeof words === "string" ? words : words[direction === "down" ? 1 : 0];
  return about ? `${which} (${about(shown(value, 4))})` : which;
}

const EVIDENCE = {
  log_prob: [["its least likely token", "its most likely token"], (value) => `−log π ${value}`],
  ratio: ["its most extreme ratio", (value) => `|log ρ| ${value}`],
  kl: ["its token with the largest KL", (value) => `k3 ${value}`],
  mismatch: ["its token with the largest mismatch", (value) => `|log π_trainer − log π_engine| ${value}`],
  length: [["its longest response", "its shortest response"], (value) => `${value} tokens`],
  gradient: ["its record with the largest gradient", (value) => `norm ${value}`],
};

const isConstant = (metric) => !(range(metric).high > range(metric).low);

function constantSentence(metrics) {
  const words = metrics.map((metric) => `${metric.name} ${shown(range(metric).low)}`);
  return words.length ? make("p.hint", {}, `Constant: ${words.join(", ")}.`) : null;
}

// How many steps on either side a smoothed value is the median of, which keeps steps sharp.
const reach = (steps) => Math.max(2, Math.round(steps.length / 40));

function smooth(values, width) {
  return values.map((own, at) => {
    const near = values.slice(Math.max(at - width, 0), at + width + 1).filter((value) => value !== null);
    return own === null ? null : near.sort((a, b) => a - b)[near.length >> 1];
  });
}

function link(href, words) {
  return make("a", { href }, words);
}

function keptSentence(run, steps) {
  const counts = {};
  for (const why of Object.values(run.kept)) counts[why] = (counts[why] ?? 0) + 1;
  const all = steps.length === run.steps.length;
  const parts = [];
  if (!steps.length) return "A page of records (grpo report FOLDER) has the groups and tokens of each step as well.";
  if (all) parts.push(`The page has the groups of all ${shown(steps.length)} steps.`);
  else {
    const why = Object.entries(counts).map(([name, count]) => `${shown(count)} ${KEPT[name]}`);
    parts.push(`The page has the series of all ${shown(run.steps.length)} steps and the groups of ${shown(steps.length)}: ${why.join(", ")}.`);
  }
  parts.push(`It has the tokens of the worst groups of each step and of ${shown(run.sampled)} random ones (seed ${run.seed}).`);
  if (run.lost) parts.push(`${shown(run.lost)} of these groups have no tokens, to keep the page small (--tokens).`);
  return parts.join(" ");
}

const KEPT = { finding: "of findings", end: "first or last", sampled: "random", all: "others" };

// The group of a step that a place is in; −1 where the page does not have it.
function groupOf(run, step, place) {
  return (run.groups[step] ?? []).findIndex(
    (group) => group.source === place.source && group.record === place.record && group.pointed.includes(place.response),
  );
}

// The least and largest value of a series and of those beside it; `log`: on a logarithmic axis.
function range({ log, values, others = [] }) {
  let [low, high, least] = [Infinity, -Infinity, Infinity];
  for (const value of [...values, ...others.flat()]) {
    if (value === null) continue;
    [low, high] = [Math.min(low, value), Math.max(high, value)];
    if (value > 0) least = Math.min(least, value);
  }
  return { low, high, least, log: log && low >= 0 && high > least * DECADE };
}

function series(run, metric, width) {
  const [height, foot] = [96, 16];
  const { values, others = [] } = metric;
  let { low, high, least, log } = range(metric);
  if (log) low = least; // a 0 is at the bottom
  else if (low > 0 && low < high / 2) low = 0;
  const constant = high > low ? null : low;
  if (constant !== null) [low, high] = [low - (Math.abs(low) || 1), high + (Math.abs(high) || 1)];
  const last = Math.max(values.length - 1, 1);
  const x = (at) => LEFT + (at / last) * (width - LEFT - 6);
  const scale = log ? (value) => Math.log(Math.max(value, low)) : (value) => value;
  const y = (value) => 6 + (1 - (scale(value) - scale(low)) / (scale(high) - scale(low))) * (height - 12);
  const side = (at, words) => draw("text", { x: LEFT - 8, y: at, "text-anchor": "end" }, words);
  const marks = constant !== null ? [constant] : log ? decades(low, high) : ticks(low, high, 4);
  const steps = run.steps;
  const [begin, end] = [steps[0], steps[steps.length - 1]];
  const onsets = run.findings.filter((one) => one.metric === metric.name).map(({ onset }) => steps.indexOf(onset));
  const free = (at) => [0, last, ...onsets].every((other) => Math.abs(x(at) - x(other)) > ROOM);
  const between = ticks(begin, end, 4).map((step) => steps.indexOf(step)).filter((at) => at > 0 && free(at));
  const parts = [
    ...marks.map((mark) => side(y(mark) + 4, shown(mark, 4))),
    ...marks.map((mark) => draw("line", { class: mark === 0 && low < 0 ? "axis zero" : "axis faint", x1: LEFT - 6, x2: width, y1: y(mark), y2: y(mark) })),
    ...between.map((at) => draw("text", { x: x(at), y: height + 12, "text-anchor": "middle" }, String(steps[at]))),
    draw("line", { class: "axis", x1: LEFT - 6, x2: width, y1: height, y2: height }),
    draw("text", { x: LEFT - 4, y: height + 12 }, `step ${begin}`),
    draw("text", { x: width - 2, y: height + 12, "text-anchor": "end" }, String(end)),
  ];
  for (const finding of run.findings.filter((one) => one.metric === metric.name)) {
    const at = x(run.steps.indexOf(finding.onset));
    parts.push(draw("line", { class: "clip", x1: at, x2: at, y1: 0, y2: height }));
    parts.push(draw("text", { class: "clip", x: at, y: height + 12, "text-anchor": "middle" }, `${arrow(finding)} ${finding.onset}`));
  }
  for (const other of others) parts.push(draw("path", { class: "line other", d: path(other, x, y, width) }));
  const long = values.length >= LONG;
  parts.push(draw("path", { class: long ? "line pale" : "line", d: path(values, x, y, width) }));
  if (long) parts.push(draw("path", { class: "smooth", d: path(smooth(values, reach(run.steps)), x, y, width) }));
  for (const [at, step] of run.steps.entries()) {
    if (run.kept[step] === undefined || values[at] === null) continue;
    parts.push(draw("circle", { class: run.kept[step], cx: x(at), cy: y(values[at]), r: 2.2 }));
  }
  const label = `${metric.name}${log ? ", logarithmic," : ""} from step ${run.steps[0]} to ${run.steps[run.steps.length - 1]}`;
  return draw("svg", { viewBox: `0 0 ${width} ${height + foot}`, role: "img", "aria-label": label }, ...parts);
}

// Powers of ten from low to high, at most four; where there is none, both ends.
function decades(low, high) {
  const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  const by = Math.max(Math.ceil((last - first + 1) / 4), 1);
  const found = Array.from({ length: Math.max(last - first + 1, 0) }, (_, at) => 10 ** (first + at));
  return found.length > 1 ? found.filter((_, at) => at % by === 0) : [low, high];
}

// Round numbers from low to high, about so many.
function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const width = [1, 2, 5, 10].find((one) => one * power >= rough) * power;
  const first = Math.ceil(low / width - 1e-9);
  return Array.from({ length: Math.floor(high / width + 1e-9) - first + 1 }, (_, at) => (first + at) * width);
}

// A line through values. Where several share a pixel its least and largest are kept, in their order.
function path(values, x, y, width) {
  const each = Math.max(1, Math.floor(values.length / width));
  let [line, pen] = ["", "M"];
  for (let at = 0; at < values.length; at += each) {
    for (const one of extremes(values, at, Math.min(at + each, values.length))) {
      line += `${pen}${x(one).toFixed(1)} ${y(values[one]).toFixed(1)}`;
      pen = "L";
    }
    if (values[at] === null && each === 1) pen = "M";
  }
  return line;
}

function extremes(values, begin, end) {
  let [least, most] = [null, null];
  for (let at = begin; at < end; at++) {
    if (values[at] === null) continue;
    if (least === null || values[at] < values[least]) least = at;
    if (most === null || values[at] > values[most]) most = at;
  }
  return least === null ? [] : least === most ? [least] : [Math.min(least, most), Math.max(least, most)];
}
