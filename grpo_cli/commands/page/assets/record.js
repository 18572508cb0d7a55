// One record: its totals, its prompts, the histogram, the outliers, the responses.

const TOTALS = ["objective", "loss", "policy", "kl", "gradient_norm", "clip_fraction", "ratio_mean", "groups", "response_count", "tokens"];

class RecordView {
  constructor(record, state) {
    this.record = record;
    this.state = state;
    this.responses = new Responses(record, state);
    this.histogram = make("figure.histogram");
    this.outliers = make("table.outliers");
    this.outlierTitle = make("h2");
    this.element = make(
      "article.record",
      {},
      make("dl.totals", {}, ...TOTALS.map((name) => this.total(name))),
      this.part(),
      ...this.prompts(),
      make("h2", {}, "Responses"),
      record.named ? null : make("p.hint", {}, `Tokens by their ${this.positions ? "positions" : "ids"} (the record has no token strings).`),
      this.responses.element,
      this.histogramTitle = make("h2"),
      this.histogram,
      this.outlierTitle,
      make("div.wide", {}, this.outliers),
    );
    if (record.count <= 20000) this.responses.toggleAll(true);
    else this.responses.toggle(this.responses.all[this.responses.order[0]], true);
    this.fresh = false;
  }

  // Whether the tokens are drawn as their positions, having neither text nor an id.
  get positions() {
    return !this.record.named && !this.record.by_ids;
  }

  total(name) {
    const text = shown(this.record[name]);
    return make("div", {}, make("dt", {}, name.replaceAll("_", " ")), make("dd", {}, text));
  }

  // The page of a run has one group of a record that has several.
  part() {
    const { responses, response_count: all } = this.record;
    if (responses.length === all) return null;
    return make("p.hint", {}, `These numbers cover the whole record; this group has ${responses.length} of its ${all} responses.`);
  }

  *prompts() {
    const { prompts } = this.record;
    if (!prompts.length) return;
    const each = new Map();
    prompts.forEach((text, r) => each.set(text, [...(each.get(text) ?? []), r]));
    for (const [text, rows] of each) {
      const whose = each.size === 1 ? "Prompt" : `Prompt of response${rows.length > 1 ? "s" : ""} ${ranges(rows)}`;
      const open = each.size === 1 && text.length < 2000;
      yield make("details.prompt", { open: open ? "" : null }, make("summary", {}, whose), make("pre", { dir: "auto" }, text));
    }
  }

  // What depends on the quantity.
  refresh() {
    const quantity = this.state.quantity(this.record);
    this.responses.recolor();
    this.histogramTitle.textContent = `Number of tokens by ${quantity.title}`;
    this.histogram.replaceChildren(...histogram(this.record, quantity, this.histogram.clientWidth || 700));
    const tokens = this.outlierTokens();
    const count = Math.min(this.state.top, tokens.length);
    this.outlierTitle.textContent = count ? `The ${count} most extreme tokens by ${quantity.title}` : "";
    this.listOutliers(tokens.slice(0, count), quantity);
  }

  // The tokens furthest from the middle, the furthest first; at least 20 to jump to.
  outlierTokens() {
    const quantity = this.state.quantity(this.record);
    if (this.ranked?.name === quantity.name) return this.ranked.tokens;
    const values = this.record.columns[quantity.column];
    const size = (t) => Math.abs(values[t] - quantity.middle);
    const ranges = this.responses.order.map((r) => this.responses.range(r));
    const tokens = furthestOf(ranges, size, Math.max(20, this.state.top));
    this.ranked = { name: quantity.name, tokens };
    return tokens;
  }

  listOutliers(tokens, quantity) {
    const { columns, clip, words, place, starts } = this.record;
    const names = ["log_probs_new", "log_probs_old", "ratio", "advantage", "kl", "mismatch", "contribution", "gradient"];
    const present = names.filter((name) => columns[name]);
    if (!present.includes(quantity.column) && quantity.name !== "ratio") present.push(quantity.column);
    const heads = ["response", "position", ...(this.positions ? [] : ["token"]), ...present.map((name) => NAMES[name] ?? name), "clip"];
    const rows = tokens.map((t) => {
      const r = this.responses.responseOf(t);
      const position = columns.position ? columns.position[t] : t - starts[r];
      const link = make("button.link", { type: "button", onclick: () => this.state.jumps.go(this.record, t) }, String(position));
      const word = make("bdi", {}, words[place[t]].replaceAll("↵\n", "↵"));
      const numbers = present.map((name) => number(columns[name][t]));
      return [shown(this.record.responses[r].response), link, ...(this.positions ? [] : [word]), ...numbers, clipWords(SIDES[clip[t]])];
    });
    fill(this.outliers, heads, rows, NAMES[quantity.column] ?? (quantity.name === "ratio" ? "ratio" : quantity.column));
  }
}

const NAMES = {
  log_probs_new: "log π_θ",
  log_probs_old: "log π_old",
  log_probs_ref: "log π_ref",
  log_probs_rollout: "log π_rollout",
};

function ranges(numbers) {
  const parts = [];
  for (const one of numbers) {
    const last = parts[parts.length - 1];
    if (last && last[1] === one - 1) last[1] = one;
    else parts.push([one, one]);
  }
  return parts.map(([first, last]) => (first === last ? first : `${first}–${last}`)).join(", ");
}

function furthestOf(ranges, size, most) {
  let kept = [];
  let least = 0;
  for (const [begin, end] of ranges) {
    for (let t = begin; t < end; t++) {
      if (!(size(t) > least)) continue;
      kept.push(t);
      if (kept.length < 4 * most) continue;
      kept = kept.sort((a, b) => size(b) - size(a) || a - b).slice(0, most);
      least = size(kept[kept.length - 1]);
    }
  }
  return kept.sort((a, b) => size(b) - size(a) || a - b).slice(0, most);
}

// A highest bar of so many tokens makes heights logarithmic.
const LOGARITHMIC = 50;

// So many pixels has the label of a clip bound.
const LABEL = 150;

// From such a factor between the ends of a log scale on, its marks are 1, 2 and 5 times powers of ten.
const FAR = 20;

// The label of a clip bound at x, on the side where there is room.
function label(at, side, width, numbers) {
  const right = side ? at + LABEL < width : at < LABEL;
  const begin = right ? at : at - LABEL;
  return { at, right, begin, end: begin + LABEL, words: `${side ? "▴ above" : "▾ below"} ${numbers}` };
}

// About so many round numbers, but no fewer than the least.
function atLeast(least, low, high, about) {
  let count = Math.max(about, least);
  while (ticks(low, high, count).length < least && count < about + 4 * least) count++;
  return ticks(low, high, count);
}

// How many tokens have which value. Bars end at the clip bounds; what is beyond an edge is in the last bar.
function histogram(record, quantity, width) {
  const [height, left, foot] = [150, 44, 20];
  const values = record.columns[quantity.column];
  const isRatio = quantity.name === "ratio";
  const bounds = isRatio && record.clip_range ? record.clip_range.map((end) => (end > 0.05 ? Math.log(end) : null)) : [null, null];
  const { edges, counts } = binned(values, quantity, bounds, Math.min(60, Math.floor((width - left) / 9), 2 * Math.ceil(Math.sqrt(values.length))));
  const [low, high] = [edges[0], edges[edges.length - 1]];
  const most = Math.max(...counts, 1);
  const log = most >= LOGARITHMIC;
  const size = (count) => (log ? Math.log1p(count) : count);
  const x = (value) => left + ((value - low) / (high - low)) * (width - left - 12);
  const formatted = (value) => shown(isRatio ? Math.exp(value) : value + quantity.middle, 4);
  const beyond = [values.filter((value) => value < bounds[0]).length, values.filter((value) => value > bounds[1]).length];
  const labels = bounds.map((bound, side) => bound !== null && label(x(bound), side, width, `${formatted(bound)}: ${shown(beyond[side])} of ${shown(values.length)}`));
  const stacked = labels.every(Boolean) && labels[0].end > labels[1].begin;
  const top = stacked ? 31 : 16;
  const y = (count) => top + (1 - size(count) / size(most)) * (height - top);
  const parts = [];
  for (const mark of log ? [...new Set([0, ...decades(1, most)])] : ticks(0, most, Math.min(most, 4))) {
    parts.push(draw("line", { class: "axis faint", x1: left - 4, x2: width, y1: y(mark), y2: y(mark) }));
    parts.push(draw("text", { x: left - 8, y: y(mark) + 4, "text-anchor": "end" }, shown(mark)));
  }
  const outside = beyondAxis(values, quantity, low, high);
  const spans = counts.map((_, bin) => `from ${formatted(edges[bin])} to ${formatted(edges[bin + 1])}`);
  const ends = [0, counts.length - 1];
  outside.forEach(({ count, furthest }, side) => {
    if (!count) return;
    const bin = ends[side];
    spans[bin] = `${side ? "≥" : "≤"} ${formatted(edges[side ? bin : 1])}, ${side ? "max" : "min"} ${formatted(furthest)}`;
    const near = counts.filter((_, at) => Math.abs(x(edges[at]) - x(edges[bin])) < LABEL);
    const above = y(Math.max(...near)) - 4;
    if (above < top + 10) return;
    parts.push(draw("text", { class: "outside", x: x(side ? high : low), y: above, "text-anchor": side ? "end" : "start" }, spans[bin]));
  });
  counts.forEach((count, bin) => {
    const title = draw("title", {}, `${shown(count)} token${count === 1 ? "" : "s"} ${spans[bin]}`);
    parts.push(draw("rect", { class: "bin", x: x(edges[bin]) + 0.5, y: y(count), width: Math.max(x(edges[bin + 1]) - x(edges[bin]) - 1, 1), height: height - y(count) }, title));
  });
  labels.forEach((one, side) => {
    if (!one) return;
    parts.push(draw("line", { class: "clip", x1: one.at, x2: one.at, y1: stacked ? top - 4 : 0, y2: height }));
    parts.push(draw("text", { class: "clip", x: one.at + (one.right ? 4 : -4), y: stacked ? 10 + 13 * side : 10, "text-anchor": one.right ? "start" : "end" }, one.words));
  });
  parts.push(draw("line", { class: "axis", x1: left - 4, x2: width, y1: height, y2: height }));
  const [first, last] = isRatio ? [Math.exp(low), Math.exp(high)] : [low + quantity.middle, high + quantity.middle];
  for (const tick of isRatio && last > FAR * first ? decades(first, last) : atLeast(3, first, last, Math.round(width / 110))) {
    const at = x(isRatio ? Math.log(tick) : tick - quantity.middle);
    parts.push(draw("text", { x: at, y: height + 15, "text-anchor": "middle" }, shown(tick, 4)));
  }
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height + foot}`, role: "img", "aria-label": `histogram of ${quantity.title}` }, ...parts);
  const caption = [`${shown(values.length)} tokens${log ? " (vertical: log scale)" : ""}`];
  if (quantity.words.includes(": ")) caption.push(quantity.words);
  if (bounds.some((bound) => bound !== null)) {
    const sides = [-1, 1].map((side) => record.clip.filter((one) => one === side).length);
    const why = sides.every((count, side) => count === beyond[side]) ? "" : " (the sign of the advantage decides)";
    caption.push(`dashed lines: the clip bounds, with the number of tokens beyond each; clipped: ▾ ${shown(sides[0])}, ▴ ${shown(sides[1])}${why}`);
  }
  outside.forEach(({ count, furthest }, side) => {
    const where = side ? "above the axis, up to" : "below the axis, down to";
    if (count) caption.push(`the ${side ? "last" : "first"} bar includes ${shown(count)} token${count === 1 ? "" : "s"} ${where} ${formatted(furthest)}`);
  });
  return [svg, make("figcaption", {}, `${caption.join("; ")}.`)];
}

// How many values are below and above the axis, and the furthest of each. Distances are from the middle.
function beyondAxis(values, { middle }, low, high) {
  const slack = 1e-6 * (high - low);
  const distances = [...values].map((value) => value - middle);
  const sides = [distances.filter((value) => value < low - slack), distances.filter((value) => value > high + slack)];
  return sides.map((found, side) => ({ count: found.length, furthest: found.reduce(side ? (a, b) => Math.max(a, b) : (a, b) => Math.min(a, b), 0) }));
}

// Bars of one width and their counts. Distances are from the middle; a clip bound (null: none) is the end of a bar.
function binned(values, { middle, scale, range }, bounds, most) {
  const known = bounds.filter((bound) => bound !== null);
  const edge = Math.max(1.3 * Number(scale), 1e-9);
  const low = Math.min(Math.max(-edge, Number(range[0]) - middle), ...known.map((bound) => 1.4 * bound));
  const high = Math.max(Math.min(edge, Number(range[1]) - middle), ...known.map((bound) => 1.4 * bound), low + 1e-9);
  const rough = (high - low) / Math.max(most, 1);
  const [begin, end] = known.length === 2 ? known : known.length ? [known[0], known[0] + rough] : [low, high];
  const width = (end - begin) / Math.max(Math.round((end - begin) / rough), 1);
  const first = begin - width * Math.ceil((begin - low) / width - 1e-9);
  const count = Math.max(Math.ceil((high - first) / width - 1e-9), 1);
  const counts = new Array(count).fill(0);
  for (const value of values) {
    const at = Math.floor((value - middle - first) / width + 1e-9);
    if (at === at) counts[Math.max(0, Math.min(count - 1, at))]++;
  }
  return { edges: Array.from({ length: count + 1 }, (_, at) => first + at * width), counts };
}
