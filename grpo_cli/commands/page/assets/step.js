// A step: its numbers, and its groups by reward and length.

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
      ...found.map(({ sentence }) => make("p.said", {}, `▲ ${sentence}`)),
      make("dl.totals", {}, ...this.numbers()),
      make("h2", {}, `${shown(this.groups.length)} group${this.groups.length === 1 ? "" : "s"} by reward and length`),
      make("p.hint", {}, "Filled dots: groups whose tokens are on this page; click one to open it. ▲ marks groups with the step's worst token of a finding, or its longest response."),
      this.figure,
      make("label.order", {}, "order ", this.select),
      make("div.wide", {}, this.table),
    );
    this.arrange();
  }

  *numbers() {
    for (const metric of this.run.metrics) {
      const value = metric.values[this.at];
      if (metric.usual && value !== null) yield make("div", {}, make("dt", {}, titleOf(metric)), make("dd", {}, shown(value)));
    }
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
    const heads = ["record", ...(many ? ["group"] : []), "responses", "reward", "std", "length", "longest", "clipped", "largest |log ρ|", "tokens"];
    fill(this.table, heads, order.map((at) => this.row(at, many)));
  }

  row(at, many) {
    const group = this.groups[at];
    const name = shown(group.record);
    return [
      group.block ? link(this.href(at), name) : name,
      ...(many ? [shown(group.group)] : []),
      shown(group.responses),
      shown(group.reward_mean),
      shown(group.reward_std),
      shown(group.length_mean),
      shown(group.length_max),
      percent(group.clip_fraction),
      shown(group.log_ratio_max),
      group.block ? link(this.href(at), `${shown(group.tokens)}${group.pointed.length ? " ▲" : ""}`) : shown(group.tokens),
    ];
  }

  refresh() {
    const known = this.groups.some((group) => group.reward_mean !== null);
    this.figure.replaceChildren(...(known ? [this.scatter(Math.min(this.figure.clientWidth || 700, 760))] : []));
  }

  scatter(width) {
    const [height, left, foot] = [230, 66, 34];
    const points = [...this.groups.entries()].filter(([, group]) => group.reward_mean !== null);
    const scale = (values, from, to) => {
      let [low, high] = [Math.min(...values), Math.max(...values)];
      if (!(high > low)) [low, high] = [low - 0.5, high + 0.5];
      return { low, high, at: (value) => from + ((value - low) / (high - low)) * (to - from) };
    };
    const x = scale(points.map(([, group]) => group.length_mean), left + 10, width - 10);
    const y = scale(points.map(([, group]) => group.reward_mean), height - 10, 20);
    const parts = [
      draw("line", { class: "axis", x1: left, x2: width, y1: height, y2: height }),
      draw("line", { class: "axis", x1: left, x2: left, y1: 0, y2: height }),
      draw("text", { x: left - 4, y: 24, "text-anchor": "end" }, shown(y.high, 4)),
      draw("text", { x: left - 4, y: height - 6, "text-anchor": "end" }, shown(y.low, 4)),
      draw("text", { x: left - 4, y: height / 2, "text-anchor": "end" }, "reward"),
      draw("text", { x: left + 10, y: height + 14 }, shown(x.low, 4)),
      draw("text", { x: width - 10, y: height + 14, "text-anchor": "end" }, shown(x.high, 4)),
      draw("text", { x: (left + width) / 2, y: height + 14, "text-anchor": "middle" }, "mean length"),
    ];
    for (const [at, group] of points) parts.push(this.point(at, group, x, y));
    return draw("svg", { viewBox: `0 0 ${width} ${height + foot}`, role: "group", "aria-label": "groups by reward and length" }, ...parts);
  }

  point(at, group, x, y) {
    const [cx, cy] = [x.at(group.length_mean), y.at(group.reward_mean)];
    const words = `${groupWords(this.groups, at)}: reward ${shown(group.reward_mean)}, length ${shown(group.length_mean)}`;
    const kind = group.block ? "kept" : "bare";
    const circle = draw("circle", { class: kind, cx, cy, r: 5.5 }, draw("title", {}, words));
    if (!group.block) return circle;
    const marked = group.pointed.length ? [draw("text", { class: "clip", x: cx, y: cy - 8, "text-anchor": "middle" }, "▲")] : [];
    return draw("a", { href: this.href(at), "aria-label": words }, circle, ...marked);
  }
}
