// Reads what page.py wrote: base64 → deflate → a head of JSON, and columns of exact float64.

async function inflated(base64) {
  const text = atob(base64.trim());
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function readBlock(base64, { tokens = true } = {}) {
  const bytes = await inflated(base64);
  const size = new DataView(bytes.buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + size)));
  if (!tokens) return head;
  const starts = [0];
  for (const length of head.lengths) starts.push(starts[starts.length - 1] + length);
  const count = starts[starts.length - 1];
  const named = Object.entries(head.columns);
  const low = named.reduce((sum, [, way]) => sum + count * (lowPlanes[way] ?? 0), 0);
  const source = { bytes, at: 4 + size, low: bytes.length - low };
  const clip = new Int8Array(take(source, count, 1).buffer);
  const place = new Uint32Array(take(source, count, 4).buffer);
  const columns = {};
  const record = { ...head, starts, count, clip, place, columns };
  const written = {};
  for (const way of Object.keys(lowPlanes)) {
    for (const [name, own] of named) {
      if (own === way) written[name] = readColumn(source, way, record);
    }
  }
  for (const [name, way] of named) {
    columns[name] = way === "x8" || way === "same" ? guessed(record, name, written[name]) : written[name];
  }
  return record;
}

// A column from those before it, and the bits in which it differs from that: page.py guesses alike.
function guessed(record, name, off) {
  const of = guess(record)[name] || (() => 0);
  const values = new Float64Array(record.count).map((_, t) => of(t)).map((one) => (Number.isFinite(one) ? one + 0 : 0));
  const bits = new Uint32Array(values.buffer);
  off?.forEach((other, at) => (bits[at] ^= other));
  return values;
}

function guess({ columns: c, clip, clip_range, kl_coefficient: coefficient }) {
  const [low, high] = clip_range ?? [1, 1];
  const moved = c.log_probs_new && c.log_probs_old && ((t) => c.log_probs_new[t] - c.log_probs_old[t]);
  const free = (t) => c.ratio[t] * c.advantage[t];
  const shrunk = (t) => nearExpm1(c.log_probs_ref[t] - c.log_probs_new[t]);
  const hasKl = c.kl && c.log_probs_ref && c.log_probs_new;
  return {
    log_ratio: moved,
    difference: moved,
    mismatch: c.log_probs_old && c.log_probs_rollout && ((t) => c.log_probs_old[t] - c.log_probs_rollout[t]),
    ratio: (t) => 1 + nearExpm1(c.log_ratio[t]),
    surrogate: (t) => (clip[t] === 0 ? free(t) : (clip[t] > 0 ? high : low) * c.advantage[t]),
    kl: c.log_probs_ref && c.log_probs_new && ((t) => shrunk(t) + (c.log_probs_new[t] - c.log_probs_ref[t])),
    contribution: (t) => c.weight[t] * c.surrogate[t] + (hasKl ? coefficient * c.weight[t] * c.kl[t] : 0),
    gradient: (t) => c.weight[t] * ((clip[t] === 0 ? free(t) : 0) + (hasKl ? coefficient * -shrunk(t) : 0)),
  };
}

const taylor = [];
for (let power = 1, factorial = 1; power <= 14; factorial *= ++power) taylor.unshift(1 / factorial);

function nearExpm1(x) {
  const near = Math.min(Math.max(0.25 * x, -1), 1);
  const quarter = taylor.reduce((sum, factor) => sum * near + factor, 0) * near;
  const half = quarter * (quarter + 2);
  return half * (half + 2);
}

// How many bytes of a number, the lowest, stand behind all others; columns follow each other so.
const lowPlanes = { f8: 7, f4: 3, x8: 0, each: 0 };

// `count` numbers of `width` bytes, put together again from their planes.
function take(source, count, width, low = 0) {
  const { bytes } = source;
  const result = new Uint8Array(count * width);
  for (let plane = 0; plane < width; plane++) {
    const place = plane < low ? "low" : "at";
    const begin = source[place];
    for (let i = 0; i < count; i++) result[i * width + plane] = bytes[begin + i];
    source[place] += count;
  }
  return result;
}

function readColumn(source, way, record) {
  const { count } = record;
  const low = lowPlanes[way];
  if (way === "f8") return new Float64Array(take(source, count, 8, low).buffer);
  if (way === "x8") return new Uint32Array(take(source, count, 8).buffer);
  if (way === "f4") return Float64Array.from(new Float32Array(take(source, count, 4, low).buffer));
  const values = new Float64Array(take(source, record.lengths.length, 8).buffer);
  const result = new Float64Array(count);
  values.forEach((value, r) => result.fill(value, record.starts[r], record.starts[r + 1]));
  return result;
}
