// The strip above a response: all of its tokens in a line.

// A column of pixels shows the token that is furthest from the middle among its own.
function drawStrip(responses, view) {
  const { record, state } = responses;
  const quantity = state.quantity(record);
  const width = Math.round(view.strip.clientWidth * devicePixelRatio);
  const name = `${quantity.name} ${width}`;
  if (!width || view.painted === name) return;
  view.painted = name;
  const height = Math.round(view.strip.clientHeight * devicePixelRatio);
  Object.assign(view.strip, { width, height });
  const canvas = view.strip.getContext("2d");
  const [begin, end] = responses.range(view.r);
  const mark = Math.max(2, Math.round(height / 6));
  const edge = getComputedStyle(view.strip).getPropertyValue("--edge");
  const columns = Math.min(width, end - begin);
  for (let column = 0; column < columns; column++) {
    const from = begin + Math.floor((column * (end - begin)) / columns);
    const to = begin + Math.max(Math.floor(((column + 1) * (end - begin)) / columns), from - begin + 1);
    const { step, low, high } = furthest(record, from, to, quantity);
    const left = (column * width) / columns;
    const wide = Math.max(width / columns, 1);
    canvas.fillStyle = COLORS[step + STEPS];
    canvas.fillRect(left, mark, wide, height - 2 * mark);
    canvas.fillStyle = edge;
    if (high) canvas.fillRect(left, 0, wide, mark);
    if (low) canvas.fillRect(left, height - mark, wide, mark);
  }
}

function furthest(record, from, to, quantity) {
  const values = record.columns[quantity.column];
  let [step, low, high] = [0, false, false];
  for (let t = from; t < to; t++) {
    const own = stepOf(values[t], quantity);
    if (Math.abs(own) > Math.abs(step)) step = own;
    low ||= record.clip[t] < 0;
    high ||= record.clip[t] > 0;
  }
  return { step, low, high };
}
