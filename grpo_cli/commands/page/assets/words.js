// Numbers and elements. Text enters the page as text only: nothing is ever parsed as HTML.

function shown(value, digits = 6) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") {
    if (!Number.isFinite(value)) return String(value);
    if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en");
    const rounded = Number(value.toPrecision(digits));
    const size = Math.abs(rounded);
    if (size >= 1000 && size < 1e15) return rounded.toLocaleString("en");
    if (size >= 1e-4 && size < 1e15) return String(rounded);
    return rounded.toExponential().replace(/e(.)(.)$/, (_, sign, digit) => `e${sign}0${digit}`);
  }
  if (Array.isArray(value)) return value.map((one) => shown(one, digits)).join(" ");
  if (typeof value === "object") {
    return Object.entries(value).map(([name, one]) => `${name}=${shown(one, digits)}`).join(" ");
  }
  return String(value);
}

const arrow = ({ direction }) => ({ down: "▼", up: "▲" })[direction] ?? "◆";

// make("a.link", { href: "#x" }, "text", child, …)
function make(kind, attributes = {}, ...children) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.flatMap((child) => (typeof child === "string" ? unbroken(child) : child ?? [])));
  return element;
}

// Text in which no line ends within a number: browsers may break 5e-05 after its hyphen.
function unbroken(text) {
  return text.split(/(-?\d[\d.]*e-\d+)/).map((part, at) => (at % 2 ? make("span.level", {}, document.createTextNode(part)) : part));
}

const capital = (words) => `${words[0].toUpperCase()}${words.slice(1)}`;

// A rounded number; sorting and pointing have all of them.
const number = (value, digits = 4) => (typeof value === "number" ? make("data", { value, title: String(value) }, shown(value, digits)) : shown(value));

// Fills a table, whose rows are sorted by a click on a heading; a column without any value is left out. On a narrow screen a
// row is a line of its leading cells and `more`, with their headings; a tap shows the others. Returns the rows.
function fill(table, everyHead, everyCell, more) {
  const filled = everyHead.map((_, at) => !everyCell.length || everyCell.some((row) => row[at] !== "–"));
  const [heads, ...rows] = [everyHead, ...everyCell].map((row) => row.filter((_, at) => filled[at]));
  const kind = (name) => (TEXTS.has(name) ? ".word" : "");
  const lead = (name) => (LEADING.has(name) || name === more ? ".lead" : "");
  const cell = (content, at) => make(`td${kind(heads[at])}${lead(heads[at])}`, { "data-head": heads[at] }, content);
  const sort = (name, at) => make("button.sort", { type: "button", onclick: () => sortBy(table, at) }, name);
  const head = make("tr", {}, ...heads.map((name, at) => make(`th${kind(name)}`, { scope: "col" }, sort(name, at))));
  const toggle = ({ target, currentTarget }) => target.closest("a, button") || currentTarget.classList.toggle("open");
  const made = rows.map((row) => make("tr", { onclick: toggle }, ...row.map(cell)));
  heads.forEach((name, at) => TEXTS.has(name) || alignPoints(made.map((row) => row.cells[at])));
  table.replaceChildren(head, ...made);
  return made;
}

// Puts the decimal points of a column below each other, with spaces after the shorter numbers.
function alignPoints(cells) {
  const numbers = cells.filter(({ textContent }) => /^[-−+]?\d/.test(textContent));
  const places = ({ textContent }) => textContent.match(/\.\S*|e\S*|$/)[0].length;
  const most = Math.max(0, ...numbers.map(places));
  for (const cell of numbers) cell.append(" ".repeat(most - places(cell)));
}

// Columns of text, aligned left.
const TEXTS = new Set(["token", "record", "metric", "series", "what it is", "there − here", "worst in"]);

// What a row is, and its main number.
const LEADING = new Set(["response", "position", "token", "record", "metric", "series", "reward", "worst in", "there − here", "deviation"]);

// Sorts by a column, numbers from the largest on and words from the first on; the second time the other way.
function sortBy(table, at) {
  const [head, ...rows] = table.rows;
  const keys = new Map(rows.map((row) => [row, sortKey(row.cells[at])]));
  const numeric = rows.some((row) => typeof keys.get(row) === "number");
  const now = head.cells[at].getAttribute("aria-sort");
  const down = now ? now === "ascending" : numeric;
  const order = (a, b) => (numeric ? a - b : a.localeCompare(b, "en", { numeric: true })) * (down ? -1 : 1);
  const isKnown = (row) => typeof keys.get(row) === (numeric ? "number" : "string");
  for (const cell of head.cells) cell.removeAttribute("aria-sort");
  head.cells[at].setAttribute("aria-sort", down ? "descending" : "ascending");
  const known = rows.filter(isKnown).sort((a, b) => order(keys.get(a), keys.get(b)));
  table.append(...known, ...rows.filter((row) => !isKnown(row))); // what has no number is last
}

function sortKey(cell) {
  const exact = cell.querySelector("data");
  const text = cell.textContent.trim();
  const value = Number(exact ? exact.value : text.replace(/,|[%▲]$/g, "") || NaN);
  return Number.isNaN(value) ? text : value;
}

function draw(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const SIDES = { "-1": "low", 0: null, 1: "high" };
const MARKS = { low: "▾", high: "▴" };
const clipWords = (side) => (side ? `${MARKS[side]} ${side}` : "·");
const STEPS = 5;

// Ten steps, five on either side of none; paler the nearer to the middle.
const COLORS = [];
for (let step = -STEPS; step <= STEPS; step++) {
  const share = (0.12 + 0.63 * (Math.abs(step) / STEPS)).toFixed(3);
  COLORS.push(step === 0 ? "transparent" : `rgb(${step > 0 ? "55 126 200" : "214 66 52"} / ${share})`);
}

function stepOf(value, quantity) {
  const scale = Number(quantity.scale);
  const distance = value - quantity.middle;
  if (!scale || Number.isNaN(distance)) return 0;
  const share = Math.max(-1, Math.min(1, distance / scale));
  return Math.sign(share) * Math.ceil(Math.abs(share) * STEPS - 0.5);
}
