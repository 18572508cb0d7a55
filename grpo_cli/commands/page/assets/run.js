// A run: what was found, its series, the steps that are kept.

const WHY = { finding: "a finding points at it", end: "first or last", sampled: "sampled", all: "kept" };

const LEFT = 64;

class RunView {
  constructor(run) {
    this.run = run;
    this.steps = Object.keys(run.kept).map(Number).sort((a, b) => a - b);
    this.charts = make("div.charts");
    this.others = make("div.charts");
    const more = run.metrics.filter((metric) => !metric.usual && !this.isFound(metric)).length;
    this.element = make(
      "article.run",
      {},
      make("p.said", {}, keptSentence(run, this.steps)),
      make("h2", {}, "Findings"),
      this.findings(),
      make("h2", {}, "Series"),
      make("p.hint", {}, this.steps.length ? "▲ where something began. Dots are steps that are kept: click near one to open it." : "▲ where something began."),
      this.charts,
      more ? make("details", {}, make("summary", {}, `${more} more`), this.others) : null,
      ...this.logged(),
      ...(this.steps.length ? [make("h2", {}, "Steps"), this.list()] : []),
    );
  }

  isFound({ name }) {
    return this.run.findings.some(({ metric }) => metric === name);
  }

  findings() {
    if (!this.run.findings.length) return make("p", {}, "Nothing began: no shift, no drift, no limit passed.");
    return make("ol.findings", {}, ...this.run.findings.map((finding) => this.finding(finding)));
  }

  finding(finding) {
    const { onset, worst_step: worst, worst: place } = finding;
    const group = place ? groupOf(this.run, worst, place) : -1;
    const links = this.steps.length ? [link(`#step-${onset}`, `step ${onset}`)] : [];
    if (worst !== onset && this.steps.length) links.push(link(`#step-${worst}`, `worst: step ${worst}`));
    if (group >= 0) {
      const token = place.token === null ? "" : `-token-${place.token}-by-${finding.by}`;
      const words = place.token === null ? "its longest response" : "its worst token";
      links.push(link(`#step-${worst}-group-${group}-response-${place.response}${token}`, words));
    }
    return make("li", {}, make("b", {}, finding.kind), ` ${finding.sentence} `, make("span.links", {}, ...links), make("code", {}, finding.command));
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

  refresh() {
    const drawn = (metric) => this.figure(metric);
    const first = this.run.metrics.filter((metric) => this.isFound(metric));
    const others = this.run.metrics.filter((metric) => !this.isFound(metric));
    this.charts.replaceChildren(...[...first, ...others.filter(({ usual }) => usual)].map(drawn));
    this.logs.replaceChildren(...(this.run.log?.series ?? []).map(drawn));
    this.others.replaceChildren(...others.filter(({ usual }) => !usual).map(drawn));
  }

  figure(metric) {
    const { run } = this;
    const width = Math.max(Math.min(this.charts.clientWidth, 1200) < 560 ? this.charts.clientWidth : 340, 240);
    const value = make("b");
    const caption = make("figcaption", {}, make("span", {}, metric.name), value);
    const tell = (at) => (value.textContent = `${run.steps[at]}: ${shown(metric.values[at])}`);
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
    return make("figure.chart", {}, caption, svg);
  }
}

function link(href, words) {
  return make("a", { href }, words);
}

function keptSentence(run, steps) {
  const counts = {};
  for (const why of Object.values(run.kept)) counts[why] = (counts[why] ?? 0) + 1;
  const all = steps.length === run.steps.length;
  const parts = [];
  if (!steps.length) return "Series and findings. grpo report keeps the groups and tokens of the steps as well.";
  if (all) parts.push(`All ${shown(steps.length)} steps are kept with their groups.`);
  else {
    const why = Object.entries(counts).map(([name, count]) => `${shown(count)} ${KEPT[name]}`);
    parts.push(`The series are of all ${shown(run.steps.length)} steps; the groups of ${shown(steps.length)} are kept: ${why.join(", ")} (seed ${run.seed}).`);
  }
  parts.push(`Tokens are kept of a step's worst groups and of ${shown(run.sampled)} more, sampled by seed ${run.seed}.`);
  if (run.lost) parts.push(`${shown(run.lost)} of these were left out to keep the page small (--tokens).`);
  return parts.join(" ");
}

const KEPT = { finding: "that findings point at", end: "first or last", sampled: "sampled", all: "others" };

// The group of a step that a place is in; −1 where it is not kept.
function groupOf(run, step, place) {
  return (run.groups[step] ?? []).findIndex(
    (group) => group.source === place.source && group.record === place.record && group.pointed.includes(place.response),
  );
}

function series(run, metric, width) {
  const [height, foot] = [86, 16];
  const values = metric.values;
  const known = values.filter((value) => value !== null);
  let [low, high] = [Math.min(...known), Math.max(...known)];
  if (!(high > low)) [low, high] = [low - (Math.abs(low) || 1), high + (Math.abs(high) || 1)];
  const last = Math.max(values.length - 1, 1);
  const x = (at) => LEFT + (at / last) * (width - LEFT - 6);
  const y = (value) => 6 + (1 - (value - low) / (high - low)) * (height - 12);
  let path = "";
  let pen = "M";
  values.forEach((value, at) => {
    if (value === null) pen = "M";
    else {
      path += `${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = "L";
    }
  });
  const parts = [
    draw("line", { class: "axis", x1: LEFT - 6, x2: width, y1: height, y2: height }),
    draw("text", { x: LEFT - 8, y: 10, "text-anchor": "end" }, shown(high, 4)),
    draw("text", { x: LEFT - 8, y: height - 3, "text-anchor": "end" }, shown(low, 4)),
    draw("text", { x: LEFT - 4, y: height + 12 }, String(run.steps[0])),
    draw("text", { x: width - 2, y: height + 12, "text-anchor": "end" }, String(run.steps[run.steps.length - 1])),
  ];
  for (const finding of run.findings.filter((one) => one.metric === metric.name)) {
    const at = x(run.steps.indexOf(finding.onset));
    parts.push(draw("line", { class: "clip", x1: at, x2: at, y1: 0, y2: height }));
    parts.push(draw("text", { class: "clip", x: at, y: height + 12, "text-anchor": "middle" }, `▲ ${finding.onset}`));
  }
  parts.push(draw("path", { class: "line", d: path }));
  for (const [at, step] of run.steps.entries()) {
    if (run.kept[step] === undefined || values[at] === null) continue;
    parts.push(draw("circle", { class: run.kept[step], cx: x(at), cy: y(values[at]), r: 2.2 }));
  }
  const label = `${metric.name} from step ${run.steps[0]} to ${run.steps[run.steps.length - 1]}`;
  return draw("svg", { viewBox: `0 0 ${width} ${height + foot}`, role: "img", "aria-label": label }, ...parts);
}
