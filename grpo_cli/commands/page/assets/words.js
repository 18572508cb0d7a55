// Numbers and elements. Text enters the page as text only: nothing is ever parsed as HTML.

function shown(value, digits = 6) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") {
    if (!Number.isFinite(value)) return String(value);
    if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en");
    const rounded = Number(value.toPrecision(digits));
    return Math.abs(rounded) < 1e-4 ? rounded.toExponential() : String(rounded);
  }
  if (Array.isArray(value)) return value.map((one) => shown(one, digits)).join(" ");
  if (typeof value === "object") {
    return Object.entries(value).map(([name, one]) => `${name}=${shown(one, digits)}`).join(" ");
  }
  return String(value);
}

const arrow = ({ direction }) => (direction === "down" ? "▼" : "▲");

// make("a.link", { href: "#x" }, "text", child, …)
function make(kind, attributes = {}, ...children) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Fills a table. Each cell knows its heading: on a narrow screen rows wrap, with the headings in them.
function fill(table, heads, rows) {
  const cell = (content, at) => make(heads[at] === "token" ? "td.word" : "td", { "data-head": heads[at] }, content);
  const head = make("tr", {}, ...heads.map((name) => make(name === "token" ? "th.word" : "th", {}, name)));
  table.replaceChildren(head, ...rows.map((row) => make("tr", {}, ...row.map(cell))));
}

function draw(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const SIDES = { "-1": "low", 0: null, 1: "high" };
const MARKS = { low: "▾", high: "▴" };
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
