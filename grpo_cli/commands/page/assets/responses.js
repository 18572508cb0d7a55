// The responses of a record: a line of facts, a strip of all tokens, and their text.
//
// Text is drawn in pieces, and only where it is near what is seen: an element for every token of
// a record of 100,000 would take seconds.

const PIECE = 1000;

// The first tokens of a record are drawn before anything is seen: a picture of the page has them.
const AT_ONCE = 4000;

class Responses {
  constructor(record, state) {
    this.record = record;
    this.state = state;
    this.element = make("div.responses");
    this.seen = new IntersectionObserver((entries) => this.appear(entries), { rootMargin: "900px" });
    this.all = record.responses.map((facts, r) => this.response(facts, r));
    this.arrange();
  }

  // ---- elements

  response(facts, r) {
    const view = { r, facts, pieces: [], open: false };
    view.fold = make("button.fold", { type: "button", "aria-expanded": "false" });
    view.fold.addEventListener("click", () => this.toggle(view));
    view.strip = make("canvas.strip", { role: "img", "aria-label": `tokens of response ${r}` });
    view.strip.addEventListener("click", (event) => this.jumpFromStrip(view, event));
    view.strip.view = view;
    view.strip.style.maxWidth = `${12 * facts.length}px`;
    view.text = make("div.tokens", { hidden: "" });
    const title = make("h3", {}, view.fold, make("span.facts", {}, ...this.facts(facts, r)));
    view.element = make("section.response", { id: `response-${r}` }, title, view.strip, view.text);
    this.seen.observe(view.strip);
    view.fold.textContent = `▸ response ${facts.response}`;
    return view;
  }

  *facts(facts, r) {
    const record = this.record;
    const { low, high } = clipCounts(record, r);
    const fact = (name, value) => make("span", {}, `${name} `, make("b", {}, number(value)));
    const bar = make("span.bar", { "aria-hidden": "true", title: "relative to the largest contribution" }, this.bar(facts.contribution));
    yield make("span.first", {}, "contribution ", make("b", {}, number(facts.contribution)), bar); // all bars have one axis
    if (record.groups > 1) yield fact("group", facts.group);
    if (facts.reward !== null) yield fact("reward", facts.reward);
    if (facts.advantage !== null) yield fact("advantage", facts.advantage);
    yield fact("tokens", facts.length);
    if (low) yield fact("▾ clipped low", low);
    if (high) yield fact("▴ clipped high", high);
  }

  bar(value) {
    const sizes = this.record.responses.map((one) => Math.abs(Number(one.contribution)));
    const most = Math.max(...sizes) || 1;
    const share = Math.min(50 * Math.abs(Number(value)) / most, 50);
    const bar = make(value >= 0 ? "i.up" : "i.down");
    bar.style.width = `${share}%`;
    bar.style.left = value >= 0 ? "50%" : `${50 - share}%`;
    return bar;
  }

  // ---- order and folds

  arrange() {
    const { record, state } = this;
    const value = SORTS[state.sort].value;
    const keys = this.all.map(({ r }) => value(record, r, state.quantity(record)));
    const order = this.all.map(({ r }) => r).filter((r) => record.only === null || record.only.includes(r));
    if (state.sort !== "written") order.sort((a, b) => keys[b] - keys[a] || a - b);
    this.order = order;
    this.element.replaceChildren(...order.map((r) => this.all[r].element));
  }

  toggle(view, open = !view.open) {
    if (view.open === open) return;
    view.open = open;
    view.fold.setAttribute("aria-expanded", String(open));
    view.fold.textContent = `${open ? "▾" : "▸"} response ${view.facts.response}`;
    view.text.hidden = !open;
    if (open && !view.pieces.length) this.cut(view);
  }

  toggleAll(open) {
    for (const r of this.order) this.toggle(this.all[r], open);
  }

  cut(view) {
    const [begin, end] = this.range(view.r);
    const text = this.record.completions[view.r];
    if (text) view.text.append(make("p.completion", { dir: "auto" }, text));
    for (let from = begin; from < end; from += PIECE) {
      const piece = make("div.piece");
      Object.assign(piece, { from, to: Math.min(from + PIECE, end), drawn: false });
      piece.style.minHeight = `${this.guessedHeight(piece)}px`;
      view.pieces.push(piece);
      this.seen.observe(piece);
    }
    if (begin === end) view.text.append(make("i", {}, "(no unmasked token)"));
    view.text.append(...view.pieces);
    for (const piece of view.pieces) if (piece.to <= AT_ONCE) this.drawPiece(piece);
  }

  range(r) {
    return [this.record.starts[r], this.record.starts[r + 1]];
  }

  guessedHeight({ from, to }) {
    const { words, place } = this.record;
    let letters = 0;
    for (let t = from; t < to; t++) letters += words[place[t]].length;
    return 26 * Math.ceil((8.4 * letters) / Math.max(this.element.clientWidth, 300));
  }

  // ---- drawing

  appear(entries) {
    for (const { target, isIntersecting } of entries) {
      if (target.view) target.wanted = isIntersecting;
      if (target.view && isIntersecting) drawStrip(this, target.view);
      else if (isIntersecting) this.drawPiece(target);
      else if (target.drawn && !this.state.printing) this.emptyPiece(target);
    }
  }

  drawPiece(piece) {
    if (piece.drawn) return;
    piece.drawn = true;
    const { words, place } = this.record;
    const quantity = this.state.quantity(this.record);
    const tokens = [];
    for (let t = piece.from; t < piece.to; t++) {
      const token = document.createElement("bdi");
      token.textContent = words[place[t]];
      token.className = this.look(t, quantity);
      token.t = t;
      tokens.push(token);
      if (!this.record.named) tokens.push(" ");
    }
    piece.replaceChildren(...tokens);
    piece.style.minHeight = "";
    this.state.mark();
  }

  emptyPiece(piece) {
    if (!piece.offsetHeight) return;
    piece.style.minHeight = `${piece.offsetHeight}px`;
    piece.drawn = false;
    piece.replaceChildren();
  }

  look(t, quantity) {
    const step = stepOf(this.record.columns[quantity.column][t], quantity);
    const side = SIDES[this.record.clip[t]];
    return `t s${step + STEPS}${side ? ` ${side}` : ""}`;
  }

  recolor() {
    const quantity = this.state.quantity(this.record);
    for (const view of this.all) {
      view.painted = null;
      if (view.strip.wanted) drawStrip(this, view);
      for (const piece of view.pieces.filter((one) => one.drawn)) {
        for (const token of piece.querySelectorAll("bdi")) token.className = this.look(token.t, quantity);
      }
    }
    this.state.mark();
  }

  // ---- places

  jumpFromStrip(view, event) {
    const box = view.strip.getBoundingClientRect();
    const [begin, end] = this.range(view.r);
    const share = (event.clientX - box.left) / box.width;
    if (end > begin) this.state.jumps.go(this.record, Math.min(begin + Math.floor(share * (end - begin)), end - 1));
  }

  responseOf(t) {
    const { starts } = this.record;
    let [low, high] = [0, starts.length - 1];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (starts[middle] <= t) low = middle;
      else high = middle;
    }
    return low;
  }

  // The token's element, drawn if it was not; null while its response is folded.
  token(t, { unfold = false } = {}) {
    const view = this.all[this.responseOf(t)];
    if (unfold) this.toggle(view, true);
    if (!view.open) return null;
    const piece = view.pieces.find((one) => t < one.to);
    if (unfold) this.drawPiece(piece);
    return piece.drawn ? piece.querySelectorAll("bdi")[t - piece.from] : null;
  }
}
