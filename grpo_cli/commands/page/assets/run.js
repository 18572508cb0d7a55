// A run: its findings, its series, and the steps whose groups the page has.

const WHY = { onset: "a finding begins", worst: "worst step of a finding", before: "step before a finding", end: "first or last step", sampled: "random step", all: "" };

class RunView {
  constructor(run) {
    this.run = run;
    this.joinLosses();
    this.steps = Object.keys(run.kept).map(Number).sort((a, b) => a - b);
    this.charts = new Charts(run, (at) => this.open(at), () => this.refresh());
    this.shown = make("div.charts");
    this.folded = make("div.charts");
    this.logs = make("div.charts");
    this.more = make("details", { ontoggle: () => this.refresh() }, make("summary"), this.folded);
    this.constant = make("p.hint");
    this.element = make(
      "article.run",
      {},
      ...this.verdict(),
      run.alone ? make("p.hint", {}, sentences([run.alone], run)) : null,
      ...this.parts(),
      ...this.against(),
      make("h2", {}, "Series"),
      this.controls(),
      make("p.hint.key", {}, ...this.key()),
      this.shown,
      this.more,
      this.constant,
      ...this.findings(),
      ...this.logged(),
      ...(this.steps.length ? [make("h2", {}, "Steps"), this.list()] : []),
      make("p.hint", {}, keptSentence(run, this.steps)),
    );
  }

  // The loss that was recorded has the one that was computed in its chart; tables of steps have both.
  joinLosses() {
    const [recorded, computed] = ["recorded_loss", "loss"].map((name) => this.run.metrics.find((one) => one.name === name));
    if (!recorded || !computed || recorded.others) return;
    recorded.others = [computed.values];
    recorded.dashed = "recomputed";
    computed.joined = true;
  }

  // What is drawn in charts.
  *key() {
    const { against, others = [], steps, findings, events, last_good: good } = this.run;
    const wrong = findings.some(({ severity }) => severity === "warning");
    if (findings.length) yield* [make("span.onset", {}, "▲ ▼"), ` a ${wrong ? "finding" : "change"} begins; `];
    if (wrong) yield* [make("span.worst", {}, "○"), " its worst step; "];
    const each = [...new Set(events.map(({ last_good }) => last_good))].filter((step) => step !== null);
    if (good !== null) yield* [make("span.good", {}, "●"), each.length > 1 ? ` last good steps (${each.join(", ")}), one before each event; ` : ` last good step (${good}); `];
    if (this.steps.length && this.steps.length < steps.length) yield* [make("span.stored", {}, "ı"), " a step with groups on this page; "];
    if (steps.length >= LONG) yield `bold: the median of ${2 * reach(steps) + 1} steps; `;
    if (others.length) yield* [make("span.other", {}, "dashed"), `: ${others.join("; ")}, its value in parentheses; `];
    if (against) yield* [make("span.other", {}, "≠"), " they differ from here on; "];
    yield `drag over a range of steps to zoom all charts, double-click to reset${this.steps.length ? ", click to open a step" : ""}.`;
  }

  // A box that narrows the series, and the range of steps.
  controls() {
    const { run, charts } = this;
    const number = (at) => make("input", { type: "number", "aria-label": at ? "last step" : "first step", onchange: () => charts.zoom(...this.ends.map(({ value }) => nearestPlace(run.steps, Number(value)))) });
    this.ends = [number(0), number(1)];
    this.search = make("input", { type: "search", placeholder: "name of a series", "aria-label": "series by name", oninput: () => this.refresh() });
    this.all = make("button", { type: "button", onclick: () => charts.reset() }, "all steps");
    return make("div.controls", {}, make("label", {}, "find ", this.search), make("label", {}, "steps ", this.ends[0], " to ", this.ends[1]), this.all);
  }

  // The evidence, the likely cause, the fix, the last good step and the other events below a title that says what happened.
  verdict() {
    const { verdict, facts, findings, events, against } = this.run;
    const title = against ? make("p.verdict", {}, sentences([verdict.split("; ")[0]], this.run)) : null; // the page's is about the other run
    const wrong = findings.some(({ severity }) => severity === "warning");
    const content = (name, words) => (name === "also" ? link(`#event-${events.findIndex(({ title }) => title === words)}`, words) : words);
    const rows = facts.map(([name, words]) => [name, content(name, words)]);
    const main = events.findIndex((event) => event.main);
    if (main >= 0) rows.unshift(["evidence", this.evidence(main)]);
    return [title, summary(rows, wrong)];
  }

  // The likely cause of an event in numbers, how many others measure the same, and where it is worst.
  evidence(event) {
    const [[first, ...others]] = families(this.run.findings.filter((one) => one.event === event && one.severity === "warning"));
    const count = others.length;
    return make("span", {}, ...this.sentence(first), count ? ` (${count} other ${first.measure} metric${count > 1 ? "s" : ""} moved too)` : "", " ", placeLinks(this.run, first, first.onset));
  }

  findings() {
    const { findings, events } = this.run;
    if (!findings.length) return [];
    const of = (wanted) => findings.filter(({ severity }) => severity === wanted);
    const [wrong, moved] = [of("warning"), of("info")];
    const shownEvents = events.map((event, at) => [event, wrong.filter((one) => one.event === at)]).filter(([, found]) => found.length);
    shownEvents.sort(([a], [b]) => b.main - a.main); // below its summary
    const words = `${moved.length} other ${moved.length === 1 ? "change, not a fault by itself" : "changes, not faults by themselves"}`;
    const sections = shownEvents.map(([event, found], at) => this.event(event, found, shownEvents[at - 1]?.[0].commands ?? [], shownEvents.length > 1));
    return [
      make("h2", {}, wrong.length ? "Details" : "Changes"),
      ...sections,
      moved.length ? make("details", {}, make("summary", {}, words), make("ul.findings", {}, ...moved.map((one) => this.finding([one])))) : "",
    ];
  }

  // Its findings, those that measure one thing together, its title, cause and fix unless the page's head has them, what check says, and commands.
  event({ title, main, facts, check, commands }, findings, before, several) {
    const own = commands.filter((one) => !before.includes(one));
    const each = families(findings);
    const rest = main ? each.slice(1) : each; // the head has its main finding
    const words = [...(main ? [] : facts), ...check.map(checkWords)];
    return make(
      "section.event",
      { id: `event-${findings[0].event}` },
      several ? make("h3", {}, make("b", {}, main ? `more on step ${findings[0].onset}` : title)) : null,
      ...words.map(([name, text]) => make("p", {}, make("b", {}, `${name}: `), text)),
      main ? this.others(each[0]) : null,
      rest.length ? make("ul.findings", {}, ...rest.map((family) => this.finding(family))) : null,
      ...own.map(commandLine),
    );
  }

  // The first of a family in a sentence, the others, as mismatch.ess of mismatch.k3, as numbers after it.
  finding(family) {
    return make("li", {}, ...this.sentence(family[0]), " ", placeLinks(this.run, family[0], family[0].onset), this.others(family));
  }

  others([{ onset }, ...others]) {
    const at = (one) => (one.onset === onset ? "" : ` (step ${one.onset})`);
    return others.length ? make("p.family", {}, "also", ...others.map((one) => make("span.level", {}, ...levels(one), at(one)))) : null;
  }

  // A step and what began there.
  sentence(finding) {
    const { onset, sentence } = finding;
    return [this.steps.length ? link(`#step-${onset}`, `step ${onset}`) : `step ${onset}`, ` ${arrow(finding)} `, sentence.replace(` at step ${onset}:`, ":")];
  }

  // Which part of the run carries its changes, in the words of the command.
  parts() {
    const { by } = this.run;
    if (!by) return [];
    return [make("h2", {}, `By ${by.field}`), make("ul.findings", {}, ...by.verdicts.map((words) => make("li", {}, words)))];
  }

  // How the series differ from those of another run.
  against() {
    const { against, others } = this.run;
    if (!against) return [];
    const table = make("table");
    const heads = ["here", "there", "there − here", "since"];
    const rows = Object.entries(against.metrics).map(([name, row]) => [name, ...heads.map((head) => number(row[head]))]);
    fill(table, ["series", ...heads], rows);
    const hint = "±: half the width of the 95 % confidence interval; since: the step at which the difference begins; the numbers are from that step on.";
    return [make("h2", {}, `Against ${others[0]}`), make("div.wide", {}, table), make("p.hint", {}, hint)];
  }

  // What the trainer logged: whether it is what was recomputed, and its own series.
  logged() {
    const { log } = this.run;
    if (!log) return [];
    const order = ({ verdict }) => ["differs", "unknown", "agrees"].indexOf(verdict.split(" ")[0]);
    const compared = log.series.filter(({ verdict }) => verdict).sort((a, b) => order(a) - order(b));
    const listed = compared.map((one) => make("li", {}, make("b", {}, one.verdict.split(" ")[0]), one.verdict.replace(/^\S+/, "")));
    const heading = make("h2", {}, `The log, under the names of ${log.framework}`);
    return [heading, listed.length ? make("ul.findings", {}, ...listed) : null, make("details", { ontoggle: () => this.refresh() }, make("summary", {}, `${log.series.length} logged series`), this.logs)];
  }

  list() {
    const { kept, findings, last_good: good } = this.run;
    const links = this.steps.map((step) => {
      const begun = findings.find(({ onset }) => onset === step);
      const worst = findings.some((one) => one.severity === "warning" && one.worst_step === step);
      const sign = begun ? ` ${arrow(begun)}` : worst ? " ○" : "";
      const item = link(`#step-${step}`, step === good ? `${step} ●` : `${step}${sign}`);
      item.title = step === good ? "last good step" : WHY[kept[step]];
      if (kept[step] === "sampled") item.className = "random";
      return item;
    });
    return make("p.steps-list", {}, ...links);
  }

  // The group of the nearest step that the page has.
  open(at) {
    if (this.steps.length) location.hash = `step-${this.steps[nearestPlace(this.steps, this.run.steps[at])]}`;
  }

  // Series that are open (of findings, then those that advice names or that differ from another run, then the main ones, then as
  // many as the last row has room for), folded, and constant.
  sorted() {
    const { metrics, findings, against, events } = this.run;
    const advised = (name) => events.some(({ fix }) => fix && new RegExp(`\\b${name}\\b`).test(fix) && name.includes("_"));
    const ordered = [...findings].sort((a, b) => (a.severity === "info") - (b.severity === "info"));
    const place = ({ name }) => ordered.findIndex(({ metric }) => metric === name);
    const found = metrics.filter((metric) => place(metric) >= 0).sort((a, b) => place(a) - place(b));
    const others = metrics.filter((metric) => place(metric) < 0);
    const varied = others.filter((metric) => !isConstant(metric));
    const rank = ({ name, main, usual, joined }) => (joined ? 0 : advised(name) || (against && name in against.metrics) ? 3 : main ? 2 : usual ? 1 : 0);
    varied.sort((a, b) => rank(b) - rank(a) || (rank(a) < 2 && a.spare - b.spare));
    const open = [...found, ...varied.filter((metric) => rank(metric) > 1)];
    const rest = varied.filter((metric) => rank(metric) < 2);
    const columns = columnsOf(this.shown.clientWidth || 700);
    const spare = open.length ? rest.filter(({ name, joined }) => name !== "objective" && !joined).slice(0, (columns - (open.length % columns)) % columns) : []; // J is −loss
    const folded = open.length ? rest.filter((metric) => !spare.includes(metric)) : [];
    return [open.length ? [...open, ...spare] : rest, folded, others.filter(isConstant)];
  }

  refresh() {
    const { run, charts, more } = this;
    const [open, folded, constant] = this.sorted();
    const logged = run.log?.series ?? [];
    const words = this.search.value.trim().toLowerCase();
    const found = [...open, ...folded, ...constant, ...logged].filter(({ name, about = "" }) => `${name} ${about}`.toLowerCase().includes(words));
    charts.draw([[this.shown, words ? found : open], [this.folded, more.open ? folded : []], [this.logs, this.logs.parentNode?.open ? logged : []]]);
    more.hidden = words || !folded.length;
    more.firstChild.textContent = `${folded.length} more series`;
    const values = constant.map((metric) => `${metric.name} ${shown(range(metric).low, 4)}`);
    this.constant.textContent = words && !found.length ? "No series has this name." : words || !values.length ? "" : `Constant: ${values.join(", ")}.`;
    this.ends.forEach((input, end) => (input.value = run.steps[charts.range[end]]));
    this.all.disabled = charts.isWhole;
  }
}

// Where a finding is worst, from any step: the step, the group, and the token or response.
function placeLinks(run, finding, from) {
  const { worst_step: worst, worst: place } = finding;
  const group = place ? groupOf(run, worst, place) : -1;
  const links = worst !== from && run.kept[worst] !== undefined ? [[link(`#step-${worst}`, `step ${worst}`)]] : [];
  if (group >= 0) {
    const [address, by] = [`#step-${worst}-group-${group}`, finding.by ? `-by-${finding.by}` : ""];
    const token = place.token === null ? "" : `-token-${place.token}`;
    links.push([link(address + by, groupWords(run.groups[worst], group))], [link(`${address}-response-${place.response}${token}${token && by}`, evidence(finding))]);
  }
  return make("span.links", {}, ...(links.length ? ["worst: "] : []), ...links.flatMap((one, at) => (at ? [" › ", ...one] : one)));
}

// Facts by their names, as the likely cause and the fix.
const summary = (facts, wrong) => make(wrong ? "dl.summary.wrong" : "dl.summary", {}, ...facts.flatMap(([name, words]) => [make("dt", {}, name), make("dd", {}, words)]));

// A metric's name, as nll, keeps its small letter.
const sentences = (parts, { metrics }) =>
  parts.filter(Boolean).map((words) => `${words.replace(/^[a-z]+(?=[ :])/, (word) => begun(word, metrics))}.`).join(" ");
const begun = (word, metrics) => (metrics.some(({ name }) => name === word) ? word : capital(word));

// Findings of an event by what they measure, a limit by itself, those of its main finding first.
function families(findings) {
  const found = new Map();
  for (const one of [...findings].sort((a, b) => b.first - a.first)) {
    const name = `${one.measure} ${one.kind === "limit" ? one.metric : ""}`;
    found.set(name, [...(found.get(name) ?? []), one]);
  }
  return [...found.values()];
}

const levels = ({ metric, before, after }) => [`${metric} `, make("b", {}, [before, after].filter((one) => one !== null).map((one) => shown(one, 3)).join(" → "))];

// What check says, without the name of the rule, and of which record.
function checkWords(words) {
  const [, when = "", text, record] = words.match(/^(at step \d+: )?(?:[a-z][a-z-]*: )?([^]*?)(?: \((record .*|[\d,]+ records of the step)\))?$/);
  const same = text.match(/^\((.*)\)$/); // all else is in the likely cause
  const says = `grpo check${same ? " says the same" : ""}${record === undefined ? "" : `${same ? " of" : ","} ${record}`}`;
  return [says, when + (same ? same[1] : text)];
}

// A command, below what it shows.
function commandLine(words) {
  const [command, note] = words.split("  # ");
  const spaced = command.split(" ").flatMap((word, at) => [at ? " " : "", make("span", {}, word)]); // lines break between words alone
  const code = make("code", {}, ...spaced);
  const copy = ({ target }) => {
    getSelection().selectAllChildren(code); // where there is no clipboard
    navigator.clipboard?.writeText(command).then(() => (target.textContent = "copied"), () => null);
  };
  return make("div.command", {}, make("span.hint", {}, note ?? ""), make("button.copy", { type: "button", onclick: copy }, "copy"), code);
}

// What the place of a finding is, with its number.
function evidence({ by, direction, worst: { value } }) {
  const [words, about] = EVIDENCE[by] ?? ["its worst token", ""];
  const which = typeof words === "string" ? words : words[direction === "down" ? 1 : 0];
  return about ? `${which} (${about(shown(value, 4))})` : which;
}

const EVIDENCE = {
  log_prob: [["its least likely token", "its record with the lowest mean"], (value) => `−log π ${value}`],
  ratio: ["its most extreme ratio", (value) => `|log ratio| ${value}`],
  kl: ["its token with the largest KL", (value) => `k3 ${value}`],
  mismatch: ["its token with the largest mismatch", (value) => `${value} nats`],
  length: [["its longest response", "its shortest response"], (value) => `${value} tokens`],
  gradient: ["its record with the largest gradient", (value) => `norm ${value}`],
};

function link(href, words) {
  return make("a", { href }, words);
}

function keptSentence(run, steps) {
  if (!steps.length) return "This page is made from a log. A page made from records (grpo report FOLDER -o run.html) also has groups and tokens.";
  if (!Object.keys(run.groups).length) return "The page has no groups of responses: the records have no log-probs.";
  const [ends, random] = ["end", "sampled"].map((why) => steps.filter((step) => run.kept[step] === why));
  const found = steps.length > ends.length + random.length;
  const why = [
    ...(found ? ["those with findings or just before one"] : []),
    ...(ends.length ? [`step${ends.length > 1 ? "s" : ""} ${ends.map((step) => shown(step)).join(" and ")}`] : []),
    ...(random.length ? [`${shown(random.length)} random step${random.length > 1 ? "s" : ""} (grey)`] : []),
  ].map((words, at, { length }) => (at && at === length - 1 ? `and ${words}` : words)).join(", ");
  const all = steps.length === run.steps.length;
  const parts = [all ? `Groups of all ${shown(steps.length)} steps.` : `Groups of ${shown(steps.length)} of the ${shown(run.steps.length)} steps: ${why}.`];
  const tokens = Object.values(run.groups).some((groups) => groups.some(({ block }) => block));
  if (tokens) parts.push(`Tokens of the worst groups of each step and of ${shown(run.sampled)} random ones (seed ${run.seed}).`);
  else if (!run.lost) parts.push("The page has no tokens: the records have no log-probs to evaluate.");
  if (run.lost) parts.push(`${shown(run.lost)} of these groups have no tokens: the page stores at most ${shown(run.most)} tokens, and those of findings (--tokens).`);
  return parts.join(" ");
}

// The group of a step that a place is in; −1 where the page does not have it.
function groupOf(run, step, place) {
  return (run.groups[step] ?? []).findIndex(
    (group) => group.source === place.source && group.record === place.record && group.pointed.includes(place.response),
  );
}
