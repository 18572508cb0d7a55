// Charts of series over steps. All of them have one range of steps and one step under the pointer.

const [LEFT, RIGHT, TALL, FOOT] = [70, 8, 112, 18];

// The least width of a chart, and the gap to the next, as in the style sheet.
const [LEAST_WIDE, GAP] = [290, 22];

// So many pixels has a digit of an axis.
const DIGIT = 7;

// A positive series spans at least this share of its largest value, unless something was found in it: else noise looks like an event.
const LEAST_SPAN = 0.2;

// By so much of the distance of two marks a value may be beyond the last one.
const SLACK = 0.05;

// A positive series that spans more has a logarithmic axis.
const DECADE = 10;

// A run of so many steps has a bold line as well, of medians.
const LONG = 100;

// So many medians are on a bold line.
const SMOOTH = 200;

// A pointer that moved so many pixels marks a range.
const DRAG = 6;

// Within so many milliseconds a second click resets the range.
const DOUBLE = 300;

class Charts {
  // `open` is called with the place of a step that is clicked, `changed` after another range.
  constructor(run, open, changed) {
    Object.assign(this, { run, open, changed, all: [] });
    this.range = this.whole;
  }

  get whole() {
    return [0, this.run.steps.length - 1];
  }

  get isWhole() {
    return String(this.range) === String(this.whole);
  }

  // Draws charts into elements, [[element, metrics], …]; the first one is as wide as the others.
  draw(places) {
    const all = places[0][0].clientWidth || 700;
    const columns = columnsOf(all);
    const width = Math.floor((all - GAP * (columns - 1)) / columns);
    const drawn = places.map(([, metrics]) => metrics.map((metric) => new Chart(this, metric, width)));
    places.forEach(([element], at) => element.replaceChildren(...drawn[at].map((chart) => chart.element)));
    this.all = drawn.flat();
  }

  zoom(one, other) {
    const [, end] = this.whole;
    this.range = [Math.max(Math.min(one, other), 0), Math.min(Math.max(one, other), end)];
    this.changed();
  }

  // The step of each chart that is pointed at; null: the last one.
  point(at) {
    const [first, last] = this.range;
    this.at = at === null ? null : Math.max(first, Math.min(last, at));
    for (const chart of this.all) chart.point(this.at);
  }

  select(ends) {
    this.selected = ends;
    for (const chart of this.all) chart.select(ends);
  }

  // Opens a step, unless a second click follows that resets the range.
  click(at) {
    clearTimeout(this.opening);
    this.opening = setTimeout(() => this.open(at), this.isWhole ? 0 : DOUBLE);
  }

  reset() {
    clearTimeout(this.opening);
    this.zoom(...this.whole);
  }

  key(event) {
    const [first, last] = this.range;
    const at = this.at ?? last;
    const reach = Math.max((last - first) >> 2, 1);
    const actions = {
      ArrowLeft: () => this.point(at - 1),
      ArrowRight: () => this.point(at + 1),
      Enter: () => this.open(at),
      "+": () => this.zoom(at - reach, at + reach),
      "-": () => this.zoom(first - 2 * reach, last + 2 * reach),
      Escape: () => this.reset(),
    };
    const action = event.ctrlKey || event.metaKey || event.altKey ? null : actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }
}

class Chart {
  constructor(charts, metric, width) {
    Object.assign(this, { charts, metric, width, findings: charts.run.findings.filter((one) => one.metric === metric.name) });
    this.scale();
    this.value = make("b");
    this.cursor = draw("g", { class: "cursor" }, draw("line", { y1: 0, y2: TALL }), draw("circle", { r: 3 }));
    this.area = draw("rect", { class: "area", y: 0, height: TALL });
    const { steps } = charts.run;
    const name = `${metric.name}${this.log ? " (log)" : ""}`;
    const label = `${name}, steps ${steps[charts.range[0]]} to ${steps[charts.range[1]]}; arrow keys move by a step, Enter opens it, + and − zoom, Escape resets`;
    this.svg = draw("svg", { viewBox: `0 0 ${width} ${TALL + FOOT}`, role: "img", tabindex: 0, "aria-label": label }, ...this.axes(), this.area, ...this.lines(), ...this.marks(), this.cursor);
    this.element = make("figure.chart", {}, make("figcaption", {}, make("span", { title: name }, name), this.value), make("p.about", { title: metric.about }, `${metric.about ?? ""}${metric.dashed ? ` (dashed: ${metric.dashed})` : ""}`), this.svg);
    this.point(null);
    this.select(null);
    this.listen();
  }

  // The values that are shown, and where they are.
  scale() {
    const { charts: { run: { steps }, range: [first, last] }, metric, width } = this;
    const seen = (values) => values.slice(first, last + 1);
    const shownValues = { ...metric, values: seen(metric.values), others: metric.others?.map(seen) };
    let { low, high, least, log } = range(shownValues);
    if (log) low = least; // a 0 is at the bottom
    else if (low > 0 && low < high / 2) low = 0;
    this.constant = high > low ? null : low;
    const missing = low > 0 && !log && !this.findings.length ? LEAST_SPAN * high - (high - low) : 0;
    if (missing > 0 && this.constant === null) [low, high] = [low - missing / 2, high + missing / 2];
    if (this.constant !== null) [low, high] = [low - (Math.abs(low) || 1), high + (Math.abs(high) || 1)];
    if (!log && this.constant === null) {
      const width = stride(low, high, 4); // ends at marks
      [low, high] = [Math.floor(low / width + SLACK) * width, Math.ceil(high / width - SLACK) * width];
      this.numbers = ticks(low, high, 4, width);
    } else this.numbers = log ? decades(low, high) : [this.constant];
    const scaled = log ? (value) => Math.log(Math.max(value, low)) : (value) => value;
    const span = Math.max(steps[last] - steps[first], 1);
    Object.assign(this, { low, high, log });
    this.xOf = (step) => LEFT + ((step - steps[first]) / span) * (width - LEFT - RIGHT);
    this.x = (at) => this.xOf(steps[at]);
    this.y = (value) => 6 + (1 - (scaled(value) - scaled(low)) / (scaled(high) - scaled(low))) * (TALL - 12);
  }

  // The step from which on another run differs; null: none, or from the first on.
  get parting() {
    const { against, steps } = this.charts.run;
    const since = against?.metrics[this.metric.name]?.since ?? steps[0];
    return since === steps[0] ? null : since;
  }

  isSeen(at) {
    return at >= this.charts.range[0] && at <= this.charts.range[1];
  }

  *axes() {
    const { low, numbers, width, x, y } = this;
    const { run: { steps }, range: [first, last] } = this.charts;
    for (const mark of numbers) {
      yield draw("text", { x: LEFT - 8, y: y(mark) + 4, "text-anchor": "end" }, Math.abs(mark) < 1e5 ? shown(mark, 4) : mark.toExponential());
      yield draw("line", { class: mark === 0 && low < 0 ? "axis zero" : "axis faint", x1: LEFT - 4, x2: width, y1: y(mark), y2: y(mark) });
    }
    if (this.metric.unit) yield draw("text", { class: "unit", transform: `translate(9 ${TALL / 2}) rotate(-90)`, "text-anchor": "middle" }, this.metric.unit);
    yield draw("line", { class: "axis", x1: LEFT - 4, x2: width, y1: TALL, y2: TALL });
    yield draw("text", { x: LEFT - 18, y: TALL + 13, "text-anchor": "end" }, "step");
    const marked = [...this.findings.map(({ onset }) => onset), this.parting].filter((step) => step !== null);
    const onsets = marked.map((step) => steps.indexOf(step)).filter((at) => this.isSeen(at));
    const room = (step, at) => (DIGIT / 2) * (`${step}`.length + `▲ ${steps[at]}`.length + 2); // half of either number, and a space
    const free = (step) => onsets.every((at) => Math.abs(this.xOf(step) - x(at)) > room(step, at));
    for (const step of ticks(steps[first], steps[last], Math.max(Math.min(Math.floor(width / 50), steps[last] - steps[first]), 1)).filter(free)) {
      yield draw("text", { x: this.xOf(step), y: TALL + 13, "text-anchor": "middle" }, String(step));
    }
  }

  *lines() {
    const { charts: { run, range: [first, last] }, metric: { values, others = [] }, x, y, width } = this;
    const line = (kind, of) => draw("path", { class: kind, d: path(of, x, y, width, first, last + 1) });
    for (const other of others) yield line("line other", other);
    const long = values.length >= LONG;
    yield line(long ? "line pale" : "line", values);
    if (long) yield line("smooth", smooth(values, reach(run.steps), first, last + 1));
  }

  // Where its findings begin and are worst, the last good step, and the steps that can be opened.
  *marks() {
    const { charts: { run }, metric: { values }, x, y } = this;
    const dot = (kind, at, r) => (this.isSeen(at) && values[at] !== null ? [draw("circle", { class: kind, cx: x(at), cy: y(values[at]), r })] : []);
    const all = Object.keys(run.kept).length === run.steps.length;
    const stored = all ? [] : [...run.steps.keys()].filter((at) => this.isSeen(at) && run.kept[run.steps[at]] !== undefined);
    yield draw("path", { class: "stored", d: stored.map((at) => `M${x(at).toFixed(1)} ${TALL}v-5`).join("") });
    const parted = this.parting === null ? -1 : run.steps.indexOf(this.parting);
    if (this.isSeen(parted)) {
      yield draw("line", { class: "other", x1: x(parted), x2: x(parted), y1: 0, y2: TALL });
      if (!this.findings.some(({ onset }) => onset === this.parting)) yield draw("text", { class: "other", x: x(parted), y: TALL + 13, "text-anchor": "middle" }, `≠ ${this.parting}`);
    }
    const labels = []; // the middle and half the width of each
    for (const finding of [...this.findings].sort((a, b) => a.onset - b.onset)) {
      const [at, worst] = [finding.onset, finding.worst_step].map((step) => run.steps.indexOf(step));
      const info = finding.severity === "info"; // no fault by itself
      const kind = info ? "onset info" : "onset";
      if (this.isSeen(at)) {
        yield draw("line", { class: kind, x1: x(at), x2: x(at), y1: 0, y2: TALL });
        const words = `${arrow(finding)} ${finding.onset}`;
        const half = (DIGIT / 2) * words.length;
        const free = labels.every(([middle, other]) => Math.abs(x(at) - middle) >= half + other + DIGIT);
        if (free) yield draw("text", { class: kind, x: x(at), y: TALL + 13, "text-anchor": "middle" }, words);
        if (free) labels.push([x(at), half]);
      }
      if (!info) yield* dot("worst", worst, 4);
    }
    const wrong = this.findings.filter(({ severity }) => severity === "warning");
    const good = new Set(wrong.map(({ event }) => run.events[event].last_good));
    for (const step of good) yield* dot("good", run.steps.indexOf(step), 4);
  }

  point(at) {
    const { charts: { run, range: [, last] }, metric } = this;
    const place = at ?? last;
    const others = (metric.others ?? []).map((values) => values[place]).filter((one) => one !== null);
    const value = metric.values[place];
    const [own, ...rest] = [value, ...others].map((one) => shown(one, others.length ? 3 : 4));
    this.value.replaceChildren(`step ${run.steps[place]}: ${own}`, ...rest.map((one) => make("data.other", {}, ` (${one})`)));
    this.cursor.setAttribute("transform", `translate(${this.x(place)} 0)`);
    this.cursor.style.display = at === null ? "none" : "";
    this.cursor.lastChild.setAttribute("cy", value === null ? -9 : this.y(value));
  }

  select(ends) {
    this.area.style.display = ends ? "" : "none";
    if (!ends) return;
    const [from, to] = ends.map(this.x).sort((a, b) => a - b);
    this.area.setAttribute("x", from);
    this.area.setAttribute("width", to - from);
  }

  // The place of the step that is nearest to a pointer.
  nearest(clientX) {
    const { steps } = this.charts.run;
    const box = this.svg.getBoundingClientRect();
    const share = (((clientX - box.left) / box.width) * this.width - LEFT) / (this.width - LEFT - RIGHT);
    const [first, last] = this.charts.range;
    return nearestPlace(steps, steps[first] + share * (steps[last] - steps[first]));
  }

  listen() {
    const { charts, svg } = this;
    let from = null;
    const on = (name, action) => svg.addEventListener(name, action);
    on("pointerdown", (event) => {
      if (event.button !== 0) return;
      from = event.clientX;
      svg.setPointerCapture(event.pointerId);
    });
    on("pointermove", (event) => {
      const at = this.nearest(event.clientX);
      charts.point(at);
      charts.select(from === null || Math.abs(event.clientX - from) < DRAG ? null : [this.nearest(from), at]);
    });
    on("pointerup", (event) => {
      const ends = charts.selected;
      if (from === null) return;
      from = null;
      charts.select(null);
      if (!ends) charts.click(this.nearest(event.clientX));
      else if (ends[0] !== ends[1]) charts.zoom(...ends);
    });
    on("pointercancel", () => ((from = null), charts.select(null)));
    on("pointerleave", () => charts.point(null));
    on("dblclick", () => charts.reset());
    on("keydown", (event) => charts.key(event));
    on("focus", () => svg.matches(":focus-visible") && charts.point(charts.at ?? null));
    on("blur", () => charts.point(null));
  }
}

// How many charts are in a row.
const columnsOf = (width) => Math.max(Math.floor((width + GAP) / (LEAST_WIDE + GAP)), 1);

function nearestPlace(steps, step) {
  let best = 0;
  for (let at = 1; at < steps.length; at++) if (Math.abs(steps[at] - step) < Math.abs(steps[best] - step)) best = at;
  return best;
}

const isConstant = (metric) => !(range(metric).high > range(metric).low);

// How many steps on either side a smoothed value is the median of, which keeps steps sharp.
const reach = (steps) => Math.max(2, Math.round(steps.length / 40));

// Medians of so many steps on either side, from one place to another: at most SMOOTH of them, and nothing between.
function smooth(values, width, first = 0, last = values.length) {
  const each = Math.max(Math.floor((last - first) / SMOOTH), 1);
  const found = new Array(values.length);
  for (let at = first; at < last; at += each) {
    const near = Float64Array.from(values.slice(Math.max(at - width, 0), at + width + 1).filter((value) => value !== null));
    found[at] = values[at] === null ? null : near.sort()[near.length >> 1];
  }
  return found;
}

// The least and largest value of a series and of its neighbours; `log`: on a logarithmic axis.
function range({ log, values, others = [] }) {
  let [low, high, least] = [Infinity, -Infinity, Infinity];
  for (const value of [...values, ...others.flat()]) {
    if (value === null) continue;
    [low, high] = [Math.min(low, value), Math.max(high, value)];
    if (value > 0) least = Math.min(least, value);
  }
  if (high < low) [low, high] = [0, 0]; // no value at all
  return { low, high, least, log: log && low >= 0 && high > least * DECADE };
}

// Round numbers for a logarithmic axis, at most six: powers of ten, or where these are not enough 1, 2 and 5 times such.
function decades(low, high) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const powers = Array.from({ length: last - first + 1 }, (_, at) => 10 ** (first + at));
  const within = (one) => one >= low * (1 - 1e-9) && one <= high * (1 + 1e-9);
  const found = powers.filter(within);
  if (found.length < 3) return powers.flatMap((one) => [one, 2 * one, 5 * one]).filter(within);
  return found.filter((_, at) => at % Math.ceil(found.length / 4) === 0);
}

// Round numbers from low to high, about so many.
function ticks(low, high, count, width = stride(low, high, count)) {
  if (!(high > low)) return [low];
  const first = Math.ceil(low / width - 1e-9);
  return Array.from({ length: Math.floor(high / width + 1e-9) - first + 1 }, (_, at) => (first + at) * width);
}

// The distance of such numbers.
function stride(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].find((one) => one * power >= rough * (1 - 1e-9)) * power;
}

// A line through values from one place to another. Where several share a pixel its least and largest are kept, in their order.
function path(values, x, y, width, first, last) {
  const each = Math.max(1, Math.floor((last - first) / width));
  let [line, pen] = ["", "M"];
  for (let at = first; at < last; at += each) {
    for (const one of extremes(values, at, Math.min(at + each, last))) {
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
    if (values[at] === null || values[at] === undefined) continue;
    if (least === null || values[at] < values[least]) least = at;
    if (most === null || values[at] > values[most]) most = at;
  }
  return least === null ? [] : least === most ? [least] : [Math.min(least, most), Math.max(least, most)];
}
