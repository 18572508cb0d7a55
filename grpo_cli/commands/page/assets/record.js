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
    return make("p.hint", {}, `These numbers are those of the whole record; this group has ${responses.length} of its ${all} responses.`);
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
    this.histogramTitle.textContent = `Number of tokens by ${quantity.words}`;
    this.histogram.replaceChildren(...histogram(this.record, quantity, this.histogram.clientWidth || 700));
    const tokens = this.outlierTokens();
    const count = Math.min(this.state.top, tokens.length);
    this.outlierTitle.textContent = count ? `The ${count} most extreme tokens by ${quantity.words}` : "";
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
    const names = ["log_probs_new", "ratio", "advantage", "kl", "mismatch", "contribution", "gradient"];
    const present = names.filter((name) => columns[name]);
    if (!present.includes(quantity.column) && quantity.name !== "ratio") present.push(quantity.column);
    const heads = ["response", "position", ...(this.positions ? [] : ["token"]), ...present.map((name) => NAMES[name] ?? name), "clip"];
    const rows = tokens.map((t) => {
      const r = this.responses.responseOf(t);
      const position = columns.position ? columns.position[t] : t - starts[r];
      const link = make("button.link", { type: "button", onclick: () => this.state.jumps.go(this.record, t) }, String(position));
      const side = SIDES[clip[t]];
      const word = make("bdi", {}, words[place[t]].replaceAll("↵\n", "↵"));
      const numbers = present.map((name) => shown(columns[name][t], 4));
      return [shown(this.record.responses[r].response), link, ...(this.positions ? [] : [word]), ...numbers, side ? `${MARKS[side]} ${side}` : "·"];
    });
    fill(this.outliers, heads, rows);
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
  for (const number of numbers) {
    const last = parts[parts.length - 1];
    if (last && last[1] === number - 1) last[1] = number;
    else parts.push([number, number]);
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

// How many tokens have which value; what is beyond an edge is in the last bin.
function histogram(record, quantity, width) {
  const [height, foot] = [130, 22];
  const values = record.columns[quantity.column];
  const bins = Math.min(61, Math.floor(width / 7), 2 * Math.ceil(Math.sqrt(values.length)) + 1);
  const isRatio = quantity.name === "ratio";
  const ends = isRatio && record.clip_range ? record.clip_range.filter((end) => end > 0.05) : [];
  const edge = Math.max(1.3 * Number(quantity.scale), ...ends.map((end) => 1.4 * Math.abs(Math.log(end))), 1e-9);
  const counts = new Array(bins).fill(0);
  for (const value of values) {
    const share = (Math.max(-edge, Math.min(edge, value - quantity.middle)) + edge) / (2 * edge);
    if (share >= 0) counts[Math.min(Math.floor(share * bins), bins - 1)]++;
  }
  const log = Math.max(...counts) >= LOGARITHMIC;
  const size = (count) => (log ? Math.log1p(count) : count);
  const most = size(Math.max(...counts, 1));
  const at = (value) => ((value + edge) / (2 * edge)) * width;
  const formatted = (value) => shown(isRatio ? Math.exp(value) : value + quantity.middle, 4);
  const parts = counts.map((count, bin) => {
    const tall = (height * size(count)) / most;
    const [low, high] = [-edge + (2 * edge * bin) / bins, -edge + (2 * edge * (bin + 1)) / bins];
    const title = draw("title", {}, `${shown(count)} tokens from ${formatted(low)} to ${formatted(high)}`);
    return draw("rect", { class: "bin", x: at(low), y: height - tall, width: width / bins - 1, height: tall }, title);
  });
  for (const [index, end] of ends.entries()) {
    const x = at(Math.log(end));
    const side = end < 1 ? -4 : 4;
    parts.push(draw("line", { class: "clip", x1: x, x2: x, y1: 0, y2: height }));
    const anchor = end < 1 ? "end" : "start";
    parts.push(draw("text", { class: "clip", x: x + side, y: 11, "text-anchor": anchor }, `${index ? "▴" : "▾"} ${shown(end)}`));
  }
  parts.push(draw("line", { class: "axis", x1: 0, x2: width, y1: height, y2: height }));
  for (const [share, anchor] of [[-1, "start"], [-0.5, "middle"], [0, "middle"], [0.5, "middle"], [1, "end"]]) {
    parts.push(draw("text", { x: at(share * edge), y: height + 15, "text-anchor": anchor }, formatted(share * edge)));
  }
  const label = `histogram of ${quantity.words}`;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height + foot}`, role: "img", "aria-label": label }, ...parts);
  return [svg, make("figcaption", {}, `highest bar: ${shown(Math.max(...counts))} of ${shown(values.length)} tokens${log ? " (heights on a log scale)" : ""}`)];
}
