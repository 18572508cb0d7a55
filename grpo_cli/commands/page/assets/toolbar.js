// The bar above the tokens: which quantity, which order, and buttons for the jumps.

const HELP = [
  ["← →", "token"],
  ["↑ ↓", "response"],
  ["n p", "next, previous clipped token"],
  ["o i", "next, previous of the most extreme tokens"],
  ["f", "fold or unfold; F all"],
  ["c", "next colour"],
  ["s", "next order"],
  ["Esc", "close; again: one level up"],
];

class Toolbar {
  constructor(page) {
    this.page = page;
    this.element = make("nav.toolbar", { "aria-label": "tokens" });
  }

  draw(record) {
    const { page } = this;
    const choice = (label, options, chosen, change) => {
      const select = make("select", { "aria-label": label, onchange: () => change(select.value) });
      for (const [value, words] of options) {
        select.append(make("option", { value, selected: value === chosen ? "" : null }, words));
      }
      return select;
    };
    const button = (words, title, action) => make("button", { type: "button", title, onclick: action }, words);
    const ways = (what, keys, go) => {
      const way = (words, key, direction) => button(words, `${words} ${what} (${key})`, () => go(direction));
      return make("span.ways", {}, `${what} `, way("previous", keys[1], -1), way("next", keys[0], 1));
    };
    this.colorSelect = choice(
      "colour by",
      record.quantities.map(({ name }) => [name, name.replaceAll("_", " ")]),
      page.quantity(record).name,
      (name) => page.recolor(name),
    );
    this.sortSelect = choice(
      "order",
      Object.entries(SORTS).map(([name, { words }]) => [name, words]),
      page.sort,
      (name) => page.reorder(name),
    );
    this.legend = make("span.legend");
    this.clipped = record.clip.some((side) => side);
    this.element.replaceChildren(
      make("label", {}, "colour ", this.colorSelect),
      this.legend,
      make("label.order", {}, "order ", this.sortSelect),
      make(
        "span.jumps",
        {},
        button("fold all", "fold or unfold all responses (F)", () => page.foldAll()),
        this.clipped ? ways("clipped token", "np", (direction) => page.jumps.nextClipped(direction)) : "",
        ways("extreme token", "oi", (direction) => page.jumps.nextOutlier(direction)),
      ),
      make("details.keys", {}, make("summary", {}, "keys"), this.keys()),
    );
  }

  keys() {
    return make("dl", {}, ...HELP.map(([key, words]) => make("div", {}, make("dt", {}, key), make("dd", {}, words))));
  }

  refresh() {
    const { page } = this;
    this.colorSelect.value = page.quantity(page.view.record).name;
    this.sortSelect.value = page.sort;
    const quantity = page.quantity(page.view.record);
    const scale = Number(quantity.scale);
    const number = (distance) => shown(quantity.name === "ratio" ? Math.exp(distance) : quantity.middle + distance, 4);
    const [low, high] = quantity.range.map((value) => value - quantity.middle);
    // Only colours that occur; the numbers at the ends are the extremes, or where the colour is full.
    const [least, most] = [Math.min(low, 0), Math.max(high, 0)];
    const [from, to] = [least, most].map((distance) => STEPS + stepOf(quantity.middle + distance, quantity));
    const steps = COLORS.map((_, step) => step).filter((step) => step >= from && step <= to);
    const first = make("span", {}, least < -scale ? `≤ ${number(-scale)}` : number(least));
    const last = make("span", {}, most > scale ? `≥ ${number(scale)}` : number(most));
    const all = least < -scale || most > scale ? make("span.hint", {}, `all: ${number(low)} to ${number(high)}`) : "";
    const bar = [first, make("span.steps", {}, ...steps.map((step) => make(`i.s${step}`))), last, all];
    this.legend.replaceChildren(
      ...(scale ? bar : [make("span", {}, `${number(0)} at every token`)]),
      ...(this.clipped ? [make("span.low", {}, "▾ clipped low"), make("span.high", {}, "▴ clipped high")] : []),
    );
  }

  clear() {
    this.element.replaceChildren();
  }
}
