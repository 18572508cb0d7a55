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
  const planes = Object.values(head.columns).join("");
  const source = { bytes, d: 4 + size, s: bytes.length - count * planes.replace(/[^s]/g, "").length };
  const { clip, place, ...named } = Object.fromEntries(Object.entries(head.columns).map(([name, letters]) => [name, take(source, count, letters)]));
  const columns = {};
  const record = { ...head, starts, count, clip: Int8Array.from(firstHalves(clip)), place: firstHalves(place), columns };
  for (const [name, off] of Object.entries(named)) columns[name] = guessed(record, name, off);
  record.quantities = QUANTITIES.filter(({ column }) => columns[column]).map((one) => new Quantity(one, columns[one.column]));
  return record;
}

const firstHalves = (halves) => halves.filter((_, at) => at % 2 === 0);

// A column from those before it, and the bits in which it differs from that: page.py guesses alike.
function guessed(record, name, off) {
  const of = guess(record)[name];
  if (!of) return new Float64Array(off.buffer);
  const values = new Float64Array(record.count).map((_, t) => of(t)).map((one) => (Number.isFinite(one) ? one + 0 : 0));
  const bits = new Uint32Array(values.buffer);
  off.forEach((other, at) => (bits[at] ^= other));
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

// `count` numbers of eight bytes, as their halves. Of each byte a letter: "0" is 0 in all of them; others follow each other
// in the stream, those that deflate ("d") before those that are stored ("s").
function take(source, count, letters) {
  const { bytes } = source;
  const result = new Uint8Array(count * 8);
  [...letters].forEach((letter, plane) => {
    if (letter === "0") return;
    const begin = source[letter];
    for (let i = 0; i < count; i++) result[i * 8 + plane] = bytes[begin + i];
    source[letter] += count;
  });
  return new Uint32Array(result.buffer);
}
