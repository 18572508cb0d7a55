// A step: its numbers and those of the steps around it, its responses by length and reward, and its groups.

// So many groups have a colour each.
const PALETTE = 8;

// By so many standard deviations a number is unusual.
const UNUSUAL = 3;

// The size of a dot, in pixels.
const DOT = 4.5;

// So many responses of a dot are listed.
const LISTED = 8;

// Responses of equal length and reward have a dot each, so many pixels apart at least, within so many.
const DISTANCE = 3;
const COLUMN = 40;

// The room on either side of the first and the last place.
const MARGIN = 18;

// A group by its record, which it shares with others of its step or not.
function groupWords(groups, at) {
  const { record, group, source } = groups[at];
  const several = groups.some((one) => one.record === record && one.source === source && one.group !== group);
  return `${several ? `group ${shown(group)} of ` : ""}record ${shown(record)}`;
}

class StepView {
  constructor(run, step) {
    this.run = run;
    this.step = step;
    this.at = run.steps.indexOf(step);
    this.groups = run.groups[step] ?? [];
    this.figure = make("figure.groups");
    this.stacked = make("p.hint");
    this.single = this.groups.every(({ labelled, responses }) => labelled && responses === 1);
    this.names = this.groups.map(({ group }, at) => (this.single ? group : at));
    this.hasLengths = this.groups.every(({ lengths = [] }) => lengths.every((length) => length !== null));
    this.kinds = [...new Set(this.names)];
    this.found = run.findings.filter(({ onset, worst_step: worst }) => onset === step || worst === step);
    this.element = make(
      "article.step",
      {},
      ...(new Set(run.files).size > 1 ? [make("p", {}, run.files[this.at])] : []),
      ...this.verdict(),
      ...(step === run.last_good ? [make("p.verdict", {}, "The last good step.")] : []),
      make("div.columns", {}, make("section", {}, ...this.metrics()), this.groups.length ? make("section", {}, make("h2", {}, this.heading()), this.figure, this.stacked) : null),
      run.alone ? make("p.hint", {}, sentences([run.alone], run)) : null,
      ...(this.groups.length ? this.table() : []),
    );
  }

  // What is wrong here, its likely cause and fix, and the command that shows it.
  verdict() {
    const [one] = this.found;
    if (!one) return [];
    const { facts } = this.run.events[one.event];
    return [
      make("p.verdict", {}, `${arrow(one)} ${one.sentence}`, placeLinks(this.run, one, this.step)),
      facts.length ? summary(facts, one.severity === "warning") : null,
      commandLine((one.onset === this.step ? one.command : one.worst_command) ?? ""),
    ];
  }

  heading() {
    const [groups, responses] = [this.groups.length, this.groups.reduce((sum, group) => sum + group.responses, 0)];
    const counts = this.single ? this.kinds.length : groups;
    return `${shown(responses)} response${responses === 1 ? "" : "s"} of ${shown(counts)} group${counts === 1 ? "" : "s"}, by ${this.hasLengths ? "length" : "group"} and reward`;
  }

  // ---- numbers

  // The metrics of findings in their order, then the unusual ones, the most unusual first; and the others, folded.
  *metrics() {
    const { run, at, found, step } = this;
    const around = run.around[step] ?? {};
    const rows = run.metrics
      .filter(({ usual, name, values }) => values[at] !== null && (usual || this.findingOf(name)))
      .map(({ name, about, values }) => ({ name, about, value: values[at], around: this.levels(name, around[name] ?? [null, null, null]) }));
    const size = ({ around: [, , deviation] }) => Math.abs(deviation ?? 0);
    const place = ({ name }) => [...found.map(({ metric }) => metric), name].indexOf(name);
    const first = rows.filter((row) => place(row) < found.length || size(row) >= UNUSUAL);
    first.sort((a, b) => place(a) - place(b) || size(b) - size(a));
    const others = rows.filter((row) => !first.includes(row));
    if (first.length) yield* [make("h2", {}, "Metrics that stand out"), this.metricTable(first)];
    const table = this.metricTable(others);
    if (others.length && first.length) yield make("details", {}, make("summary", {}, `${others.length} other metrics`), table);
    else if (others.length) yield* [make("h2", {}, "Metrics"), table];
    yield make("p.hint", {}, "Before: median of up to 30 earlier steps. After: of up to 12 later steps. Deviation: from the steps before, in their robust standard deviations. With fewer than five steps before, the steps after are used.", this.found.length ? " ▲ ▼: a finding begins at this step; ○: a finding is worst at this step." : "");
  }

  // Before and after, and the deviation: of a finding that begins here its own levels, which its sentence has.
  levels(name, [before, after, deviation]) {
    const finding = this.findingOf(name);
    const level = ["shift", "drift"].includes(finding?.kind) && finding.onset === this.step;
    const own = level && finding.after !== null && finding.before !== null;
    return own ? [finding.before, finding.after, deviation] : [before, after, deviation];
  }

  findingOf(name) {
    return this.found.find(({ metric }) => metric === name);
  }

  metricTable(rows) {
    const table = make("table");
    const name = ({ name }) => {
      const finding = this.findingOf(name);
      const sign = finding && (finding.onset === this.step ? arrow(finding) : "○");
      return finding ? make("span", { title: finding.sentence }, name, make(`span.${sign === "○" ? "worst" : "onset"}`, {}, ` ${sign}`)) : name;
    };
    const deviation = ([, , size]) => (size === null ? "–" : make("data", { value: size }, `${size < 0 ? "−" : "+"}${shown(Math.abs(size), 2)}`));
    fill(table, ["metric", "before", `step ${this.step}`, "after", "deviation", "what it is"], rows.map((row) => {
      const [before, after] = row.around;
      return [name(row), number(before), make("b", {}, number(row.value)), number(after), deviation(row.around), make("span.about", {}, row.about ?? "")];
    }), `step ${this.step}`);
    return make("div.wide", {}, table);
  }

  // ---- groups

  href(at, response = null) {
    const by = this.found.find(({ worst }) => typeof worst?.token === "number")?.by; // colours the tokens by what was found
    return `#step-${this.step}-group-${at}${response === null ? "" : `-response-${response}`}${by ? `-by-${by}` : ""}`;
  }

  *table() {
    yield make("h2", {}, this.single ? "Responses" : "Groups");
    const many = new Set(this.groups.map(({ group }) => group)).size > 1;
    const spread = this.single ? [[], [], []] : [["responses"], ["reward std"], ["longest"]]; // of one response they say nothing
    const heads = ["record", ...(many ? ["group"] : []), ...spread[0], "reward", ...spread[1], "length", ...spread[2], "clipped", "largest |log ratio|", ...this.extra(), ...(this.single ? [] : ["tokens"]), "worst in"];
    const table = make("table");
    fill(table, heads, this.groups.map((_, at) => this.row(at, many))).forEach((row, at) => {
      row.addEventListener("pointerenter", () => this.mark(at));
      row.addEventListener("pointerleave", () => this.mark(null));
    });
    const words = ["A link leads to the tokens of a group."];
    if (this.groups.some(({ pointed }) => pointed.length)) words.push(" Worst in: the quantities in which this group holds the step's largest value; ▲: a finding points there.");
    if (this.groups.some(({ block }) => block)) yield make("p.hint", {}, ...words);
    yield make("div.wide", {}, table);
  }

  row(at, many) {
    const group = this.groups[at];
    const name = shown(group.record);
    const several = (...cells) => (this.single ? [] : cells);
    const swatch = this.kinds.length <= PALETTE ? make(`i.swatch.${this.color(at)}`) : "";
    const record = group.block ? link(this.href(at), name) : name;
    return [
      make("span", {}, swatch, record),
      ...(many ? [make("span.short", { title: shown(group.group) }, shown(group.group))] : []),
      ...several(shown(group.responses)),
      number(group.reward_mean),
      ...several(number(group.reward_std)),
      number(group.length_mean),
      ...several(shown(group.length_max)),
      number(group.clip_fraction),
      number(group.log_ratio_max),
      ...this.extra().map((name) => number(group[name])),
      ...several(shown(group.tokens || null)),
      this.worstIn(at),
    ];
  }

  // The metrics of tokens that have a finding here, or are unusual.
  extra() {
    const size = (name) => Math.abs(this.run.around[this.step]?.[name]?.[2] ?? 0);
    return ["entropy", "nll", "kl_k3"].filter((name) => this.findingOf(name) || size(name) >= UNUSUAL);
  }

  // What the step is worst in, of all groups in this one; ▲ where a finding points there.
  worstIn(at) {
    const here = ({ worst_step: worst, worst: place }) => place && worst === this.step && groupOf(this.run, worst, place) === at;
    const kind = ({ by, direction }) => `${direction === "down" && ["length", "log_prob"].includes(by) ? "lowest " : ""}${by === "log_prob" ? "nll" : by}`;
    const found = this.found.filter(here).map(kind);
    const kinds = [...new Set([...found, ...this.groups[at].worst_in])];
    return kinds.length ? make("span.about", {}, kinds.map((one) => (found.includes(one) ? `${one} ▲` : one)).join(", ")) : "–";
  }

  color(at) {
    return this.kinds.length <= PALETTE ? `g${this.kinds.indexOf(this.names[at])}` : "g0";
  }

  // Makes the dots of a group stand out; null: of none.
  mark(at) {
    this.figure.classList.toggle("marking", at !== null);
    for (const dot of this.figure.querySelectorAll("circle")) dot.classList.toggle("marked", at !== null && dot.of.has(this.names[at]));
  }

  // ---- responses by length and reward

  refresh() {
    const known = this.groups.some((group) => group.reward_mean !== null);
    this.figure.replaceChildren(...(known ? [this.scatter(Math.min(this.figure.clientWidth || 700, 760))] : []));
    const parts = known ? [`A dot is a response; those right above each other have equal ${this.hasLengths ? "lengths" : "groups"} and rewards`] : [];
    if (known && this.kinds.length <= PALETTE) parts.push("its colour shows the group, as in the table");
    if (known && this.isStacked) parts.push(`a number: so many responses of equal ${this.hasLengths ? "length" : "group"} and reward${this.hasLengths ? " (grey: of several groups)" : ""}`);
    const bare = this.groups.filter(({ block }) => !block).length;
    if (known && bare && bare < this.groups.length) parts.push("a filled dot: this page has the tokens of the group");
    if (known && bare < this.groups.length) parts.push("click a dot to open its response");
    this.stacked.textContent = parts.length ? `${parts.join("; ")}.` : "";
  }

  scatter(width) {
    const points = [...this.groups.entries()].filter(([, group]) => group.reward_mean !== null);
    const levels = new Set(points.flatMap(([, { rewards }]) => rewards)).size;
    const [height, left, foot] = [Math.min(280, 80 + 50 * levels), 58, 34]; // a row for each reward
    const scale = (values, from, to) => {
      let [low, high] = values.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]);
      const some = [...new Set(values.slice(0, 1000))].sort((a, b) => a - b);
      const marks = some.length <= 3 ? some : ticks(low, high, 5);
      if (!(high > low)) [low, high] = [low - 0.5, high + 0.5];
      return { ticks: marks, at: (value) => from + ((value - low) / (high - low)) * (to - from) };
    };
    const x = scale(points.flatMap(([at, { rewards }]) => rewards.map((_, r) => this.across(at, r))), left + MARGIN, width - MARGIN);
    const y = scale(points.flatMap(([, { rewards }]) => rewards.filter((reward) => reward !== null)), height - 28, 34);
    const parts = [
      draw("line", { class: "axis", x1: left, x2: width, y1: height, y2: height }),
      draw("line", { class: "axis", x1: left, x2: left, y1: 0, y2: height }),
      ...y.ticks.map((tick) => draw("text", { x: left - 8, y: y.at(tick) + 4, "text-anchor": "end" }, shown(tick, 4))),
      ...y.ticks.map((tick) => draw("line", { class: "axis faint", x1: left - 4, x2: width, y1: y.at(tick), y2: y.at(tick) })),
      ...x.ticks.map((tick) => draw("text", { x: x.at(tick), y: height + 16, "text-anchor": "middle" }, shown(tick, 4))),
      ...x.ticks.map((tick) => draw("line", { class: "axis", x1: x.at(tick), x2: x.at(tick), y1: height, y2: height + 4 })),
      draw("text", { x: left - 8, y: 12, "text-anchor": "end" }, "reward"),
      draw("text", { x: width - 4, y: height + 31, "text-anchor": "end" }, this.hasLengths ? "length in tokens" : "group, in the order of the file"),
      ...this.dots(points, x, y),
    ];
    return draw("svg", { viewBox: `0 0 ${width} ${height + foot}`, role: "group", "aria-label": this.heading() }, ...parts);
  }

  // Where a response is across the figure: its length, or its group where lengths are unknown.
  across(at, r) {
    return this.hasLengths ? this.groups[at].lengths[r] : at + 1;
  }

  // A dot for each response; those of equal length and reward are above each other, or many of them one with their number.
  *dots(points, x, y) {
    const places = new Map();
    for (const [at, { rewards }] of points) {
      for (const [r, reward] of rewards.entries()) {
        if (reward === null) continue;
        const place = `${this.across(at, r)} ${reward}`;
        if (!places.has(place)) places.set(place, { cx: x.at(this.across(at, r)), cy: y.at(reward), those: [] });
        places.get(place).those.push({ at, r, reward });
      }
    }
    const rows = [...new Set([...places.values()].map(({ cy }) => cy))].sort((a, b) => a - b);
    const isCrowded = (cy) => rows.some((one) => one < cy && cy - one < 22); // no room for a number above
    const room = rows.slice(1).reduce((least, cy, at) => Math.min(least, cy - rows[at]), COLUMN);
    this.isStacked = [...places.values()].some(({ those }) => those.length > 1 && room / those.length < DISTANCE);
    for (const { cx, cy, those } of places.values()) {
      const gap = Math.min(2 * DOT, room / those.length);
      if (those.length > 1 && gap < DISTANCE) yield this.dot({ cx, cy, those, right: isCrowded(cy) });
      else for (const [at, one] of those.entries()) yield this.dot({ cx, cy: cy + (at - (those.length - 1) / 2) * gap, those: [one] });
    }
  }

  dot({ cx, cy, those, right = false }) {
    const [first] = those;
    const [groups, count] = [new Set(those.map(({ at }) => this.names[at])), those.length];
    const kept = those.find(({ at }) => this.groups[at].block);
    const each = those.slice(0, LISTED).map(({ at, r, reward }) => {
      const length = this.hasLengths ? `, length ${shown(this.groups[at].lengths[r])}` : "";
      return `response ${r} of ${groupWords(this.groups, at)}: reward ${shown(reward, 4)}${length}`;
    });
    const words = [...each, ...(count > LISTED ? [`and ${shown(count - LISTED)} more`] : [])].join("\n");
    const color = groups.size > 1 ? "mixed" : this.color(first.at);
    const circle = draw("circle", { class: `${kept ? "kept" : "bare"} ${color}`, cx, cy, r: DOT }, draw("title", {}, words));
    circle.of = groups;
    const place = right ? { x: cx + 1.6 * DOT, y: cy + 4 } : { x: cx, y: cy - 1.7 * DOT, "text-anchor": "middle" };
    const parts = [circle, ...(count > 1 ? [draw("text", place, shown(count))] : [])];
    const dot = kept ? draw("a", { href: this.href(kept.at, kept.r), "aria-label": words }, ...parts) : draw("g", {}, ...parts);
    dot.addEventListener("pointerenter", () => groups.size === 1 && this.mark(first.at));
    dot.addEventListener("pointerleave", () => this.mark(null));
    return dot;
  }
}
