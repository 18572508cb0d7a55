// A step: its numbers, its responses by length and reward, and its groups.

const GROUP_SORTS = {
  written: ["as written", () => 0],
  reward: ["reward", (group) => group.reward_mean],
  length: ["length", (group) => group.length_mean],
  clipped: ["clip fraction", (group) => group.clip_fraction],
  ratio: ["most extreme ratio", (group) => Number(group.log_ratio_max)],
};

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
    this.table = make("table");
    const options = Object.entries(GROUP_SORTS).map(([value, [words]]) => make("option", { value }, words));
    this.select = make("select", { "aria-label": "order", onchange: () => this.arrange() }, ...options);
    const found = run.findings.filter(({ onset, worst_step: worst }) => onset === step || worst === step);
    this.element = make(
      "article.step",
      {},
      ...(new Set(run.files).size > 1 ? [make("p", {}, run.files[this.at])] : []),
      ...found.map((one) => make("p.said", {}, `${arrow(one)} ${one.sentence}`)),
      make("dl.totals", {}, ...this.numbers()),
      this.legend(),
      make("h2", {}, this.heading()),
      make("p.hint", {}, "A dot is a response. Filled: the tokens of its group are on this page; click one to open it. ▲ in the table: a token or a response that a finding or an extreme of the step points at."),
      run.alone ? make("p.hint", {}, sentences([run.alone], run)) : null,
      this.figure,
      make("label.order", {}, "order ", this.select),
      make("div.wide", {}, this.table),
    );
    this.arrange();
  }

  heading() {
    const [groups, responses] = [this.groups.length, this.groups.reduce((sum, group) => sum + group.responses, 0)];
    const named = this.several();
    if (named !== null) return `${shown(responses)} responses in as many records (${shown(named)} group${named === 1 ? "" : "s"}), by length and reward`;
    return `${shown(responses)} response${responses === 1 ? "" : "s"} of ${shown(groups)} group${groups === 1 ? "" : "s"}, by length and reward`;
  }

  // How many groups the records are of, where each is one response of a named group; else null.
  several() {
    const names = new Set(this.groups.map(({ group }) => group));
    return this.groups.every(({ labelled, responses }) => labelled && responses === 1) ? names.size : null;
  }

  *numbers() {
    for (const metric of this.run.metrics) {
      const value = metric.values[this.at];
      if (metric.usual && value !== null) yield make("div", { title: metric.about ?? "" }, make("dt", {}, metric.name), make("dd", {}, shown(value)));
    }
  }

  legend() {
    const known = this.run.metrics.filter(({ usual, values, about }) => about && usual && values[this.at] !== null);
    const rows = known.map(({ name, about }) => make("div", {}, make("dt", {}, name), make("dd", {}, about)));
    return make("details.names", {}, make("summary", {}, "What these numbers are"), make("dl", {}, ...rows));
  }

  href(at) {
    return `#step-${this.step}-group-${at}`;
  }

  arrange() {
    const value = GROUP_SORTS[this.select.value][1];
    const order = this.groups.map((_, at) => at);
    if (this.select.value !== "written") {
      order.sort((a, b) => (value(this.groups[b]) ?? -Infinity) - (value(this.groups[a]) ?? -Infinity) || a - b);
    }
    const many = new Set(this.groups.map(({ group }) => group)).size > 1;
    const single = this.several() !== null; // whose columns of several responses say nothing
    const spread = single ? [[], [], []] : [["responses"], ["reward std"], ["longest"]];
    const heads = ["record", ...(many ? ["group"] : []), ...spread[0], "reward", ...spread[1], "length", ...spread[2], "clipped", "largest |log ρ|", ...(single ? [] : ["tokens"])];
    fill(this.table, heads, order.map((at) => this.row(at, many, single)));
  }

  row(at, many, single) {
    const group = this.groups[at];
    const name = shown(group.record);
    const pointed = group.pointed.length ? " ▲" : "";
    const tokens = `${shown(group.tokens)}${pointed}`;
    return [
      group.block ? link(this.href(at), `${name}${single ? pointed : ""}`) : name,
      ...(many ? [shown(group.group)] : []),
      ...(single ? [] : [shown(group.responses)]),
      shown(group.reward_mean),
      ...(single ? [] : [shown(group.reward_std)]),
      shown(group.length_mean),
      ...(single ? [] : [shown(group.length_max)]),
      shown(group.clip_fraction),
      shown(group.log_ratio_max),
      ...(single ? [] : [group.block ? link(this.href(at), tokens) : shown(group.tokens)]),
    ];
  }

  refresh() {
    const known = this.groups.some((group) => group.reward_mean !== null);
    this.figure.replaceChildren(...(known ? [this.scatter(Math.min(this.figure.clientWidth || 700, 760))] : []));
  }

  scatter(width) {
    const [height, left, foot] = [260, 66, 34];
    const points = [...this.groups.entries()].filter(([, group]) => group.reward_mean !== null);
    const scale = (values, from, to) => {
      let [low, high] = [Math.min(...values), Math.max(...values)];
      const marks = high > low ? ticks(low, high, 5) : [low];
      if (!(high > low)) [low, high] = [low - 0.5, high + 0.5];
      return { ticks: marks, at: (value) => from + ((value - low) / (high - low)) * (to - from) };
    };
    const x = scale(points.flatMap(([, group]) => group.lengths), left + 10, width - 14);
    const y = scale(points.flatMap(([, group]) => group.rewards), height - 10, 24);
    const parts = [
      draw("line", { class: "axis", x1: left, x2: width, y1: height, y2: height }),
      draw("line", { class: "axis", x1: left, x2: left, y1: 0, y2: height }),
      ...y.ticks.map((tick) => draw("text", { x: left - 8, y: y.at(tick) + 4, "text-anchor": "end" }, shown(tick, 4))),
      ...y.ticks.map((tick) => draw("line", { class: "axis", x1: left - 4, x2: left, y1: y.at(tick), y2: y.at(tick) })),
      ...x.ticks.map((tick) => draw("text", { x: x.at(tick), y: height + 16, "text-anchor": "middle" }, shown(tick, 4))),
      ...x.ticks.map((tick) => draw("line", { class: "axis", x1: x.at(tick), x2: x.at(tick), y1: height, y2: height + 4 })),
      draw("text", { x: left - 8, y: 12, "text-anchor": "end" }, "reward"),
      draw("text", { x: width - 4, y: height + 31, "text-anchor": "end" }, "length in tokens"),
    ];
    for (const [at, group] of points) parts.push(...this.points(at, group, x, y));
    return draw("svg", { viewBox: `0 0 ${width} ${height + foot}`, role: "group", "aria-label": "responses by length and reward" }, ...parts);
  }

  // A dot for each response of a group.
  *points(at, group, x, y) {
    for (const [number, reward] of group.rewards.entries()) {
      const [cx, cy] = [x.at(group.lengths[number]), y.at(reward)];
      const words = `response ${number} of ${groupWords(this.groups, at)}: reward ${shown(reward)}, length ${shown(group.lengths[number])}`;
      const circle = draw("circle", { class: group.block ? "kept" : "bare", cx, cy, r: 4.5 }, draw("title", {}, words));
      if (!group.block) yield circle;
      else yield draw("a", { href: this.href(at), "aria-label": words }, circle);
    }
  }
}
