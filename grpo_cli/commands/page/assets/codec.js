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
  const low = named.reduce((sum, [, way]) => sum + count * lowPlanes[way], 0);
  const source = { bytes, at: 4 + size, low: bytes.length - low };
  const clip = new Int8Array(take(source, count, 1).buffer);
  const place = new Uint32Array(take(source, count, 4).buffer);
  const columns = {};
  const record = { ...head, starts, count, clip, place, columns };
  for (const way of Object.keys(lowPlanes)) {
    for (const [name, own] of named) {
      if (own === way) columns[name] = readColumn(source, way, record);
    }
  }
  return record;
}

// How many bytes of a number, the lowest, stand behind all others; columns follow each other so.
const lowPlanes = { f8: 7, f4: 3, each: 0 };

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
  if (way === "f4") return Float64Array.from(new Float32Array(take(source, count, 4, low).buffer));
  const values = new Float64Array(take(source, record.lengths.length, 8).buffer);
  const result = new Float64Array(count);
  values.forEach((value, r) => result.fill(value, record.starts[r], record.starts[r + 1]));
  return result;
}
