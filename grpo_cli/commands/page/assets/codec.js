// Reads what codec.py wrote: base64 → deflate → a head of JSON, and columns of exact float64.

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
  const source = { bytes, at: 4 + size };
  const clip = new Int8Array(take(source, count, 1).buffer);
  const place = new Uint32Array(take(source, count, 4).buffer);
  const columns = { free: Float64Array.from(clip, (side) => (side === 0 ? 1 : 0)) };
  const record = { ...head, starts, count, clip, place, columns };
  for (const [name, spec] of Object.entries(head.columns)) {
    columns[name] = readColumn(source, spec, record);
  }
  return record;
}

// `count` numbers of `width` bytes, put together again from their planes.
function take(source, count, width) {
  const { bytes, at } = source;
  const result = new Uint8Array(count * width);
  for (let plane = 0; plane < width; plane++) {
    const begin = at + plane * count;
    for (let i = 0; i < count; i++) result[i * width + plane] = bytes[begin + i];
  }
  source.at += count * width;
  return result;
}

function readColumn(source, spec, record) {
  const { count } = record;
  if (spec.way === "each") {
    const values = new Float64Array(take(source, record.lengths.length, 8).buffer);
    const result = new Float64Array(count);
    values.forEach((value, r) => result.fill(value, record.starts[r], record.starts[r + 1]));
    return result;
  }
  if (spec.way === "f8") return new Float64Array(take(source, count, 8).buffer);
  if (spec.way === "f4") return Float64Array.from(new Float32Array(take(source, count, 4).buffer));
  const whole = new Int32Array(take(source, count, 4).buffer);
  if (spec.way === "dec") {
    const power = Number(`1e${spec.digits}`);
    return Float64Array.from(whole, (value) => value / power);
  }
  return near(whole, new Float64Array(take(source, spec.far, 8).buffer), spec.of, record);
}

const FAR = -(2 ** 31);

// Adds the differences to the bits of what the expression gives.
function near(steps, far, expression, record) {
  const result = Float64Array.from(calculated(expression, record));
  const bits = new Uint32Array(result.buffer);
  let next = 0;
  for (let at = 0; at < steps.length; at++) {
    if (steps[at] === FAR) result[at] = far[next++];
    else if (steps[at] !== 0) {
      const low = bits[2 * at] + steps[at];
      bits[2 * at] = low >>> 0;
      bits[2 * at + 1] += Math.floor(low / 2 ** 32);
    }
  }
  return result;
}

function calculated(expression, record) {
  if (typeof expression === "string") return record.columns[expression];
  if (typeof expression === "number") return new Float64Array(record.count).fill(expression);
  const [operator, ...operands] = expression;
  const [left, right] = operands.map((one) => calculated(one, record));
  const result = new Float64Array(record.count);
  const apply = OPERATORS[operator];
  for (let at = 0; at < result.length; at++) result[at] = apply(left[at], right?.[at]);
  return result;
}

const OPERATORS = {
  "+": (a, b) => a + b,
  "-": (a, b) => a - b,
  "*": (a, b) => a * b,
  exp: (x) => power(x, false),
  expm1: (x) => power(x, true),
};

const TERMS = [1];
for (let term = 1, factorial = 1; term <= 13; term++) {
  factorial *= term;
  TERMS.push(1 / factorial);
}
const pair = new Uint32Array(2);
const double = new Float64Array(pair.buffer);

// The same operations in the same order as codec.py's, hence the same bits; Math.exp has others.
function power(x, lessOne) {
  if (!(Math.abs(x) < 700)) return 0;
  const twos = Math.floor(x * 1.4426950408889634 + 0.5);
  const rest = x - twos * 6.93147180369123816490e-1 - twos * 1.90821492927058770002e-10;
  let sum = TERMS[13];
  for (let term = 12; term > 1; term--) sum = sum * rest + TERMS[term];
  const small = rest + rest * rest * sum;
  if (lessOne && twos === 0) return small;
  pair[0] = 0;
  pair[1] = (twos + 1023) << 20;
  const scaled = (small + 1) * double[0];
  return lessOne ? scaled - 1 : scaled;
}
