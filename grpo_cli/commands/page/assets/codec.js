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
  const source = { bytes, at: 4 + size };
  const clip = new Int8Array(take(source, count, 1).buffer);
  const place = new Uint32Array(take(source, count, 4).buffer);
  const columns = {};
  const record = { ...head, starts, count, clip, place, columns };
  for (const [name, way] of Object.entries(head.columns)) {
    columns[name] = readColumn(source, way, record);
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

function readColumn(source, way, record) {
  const { count } = record;
  if (way === "f8") return new Float64Array(take(source, count, 8).buffer);
  if (way === "f4") return Float64Array.from(new Float32Array(take(source, count, 4).buffer));
  const values = new Float64Array(take(source, record.lengths.length, 8).buffer);
  const result = new Float64Array(count);
  values.forEach((value, r) => result.fill(value, record.starts[r], record.starts[r + 1]));
  return result;
}
