// The page: which quantity, which order, which token; the bar, the keys, and jumps.

const HELP = [
  ["← →", "token"],
  ["↑ ↓", "response"],
  ["n p", "next, previous clipped token"],
  ["o i", "next, previous of the furthest tokens"],
  ["m", "the most clipped response"],
  ["f", "fold or unfold; F all"],
  ["c", "next colour"],
  ["s", "next order"],
  ["Esc", "close, then one level up"],
];

class Page {
  constructor(settings) {
    this.top = settings.top;
    this.quantityName = settings.color_by;
    this.sort = "written";
    this.current = null;
    this.printing = false;
    this.tip = new Tip();
    this.main = document.querySelector("main");
    this.bar = make("nav.toolbar", { "aria-label": "tokens" });
    this.main.before(this.bar);
    this.listen();
  }

  quantity(record) {
    return record.quantities.find(({ name }) => name === this.quantityName) ?? record.quantities[0];
  }

  open(record) {
    record.only ??= null;
    this.current = null;
    this.tip.hide();
    this.view = this.showing = new RecordView(record, this);
    this.main.replaceChildren(this.view.element);
    this.drawBar(record);
    this.refresh();
  }

  refresh() {
    if (this.view) this.drawLegend();
    this.showing.refresh();
  }

  // What has no tokens: a run, a step.
  plain(showing) {
    this.view = null;
    this.current = null;
    this.tip.hide();
    this.showing = showing;
    this.main.replaceChildren(showing.element);
    this.bar.replaceChildren();
    scrollTo(0, 0);
    this.refresh();
  }

  // Where we are in a run, and the way back.
  crumbs(run, step, group) {
    this.path ??= this.bar.parentNode.insertBefore(make("nav.crumbs", { "aria-label": "where" }), this.bar);
    const known = run.kept[step] !== undefined;
    const parts = [known ? link("#", "run") : make("b", {}, "run")];
    if (known) parts.push(" › ", group === null ? make("b", {}, `step ${step}`) : link(`#step-${step}`, `step ${step}`));
    if (group !== null) {
      const { group: name, record } = run.groups[step][group];
      parts.push(" › ", make("b", {}, `group ${shown(name)} of record ${shown(record)}`));
    }
    this.path.replaceChildren(...parts);
  }

  // A response and the position of a token, as the record has them.
  goTo(response, position) {
    const { record, responses } = this.view;
    const r = record.responses.findIndex((one) => one.response === response);
    scrollTo(0, 0);
    if (r < 0) return;
    const [begin, end] = responses.range(r);
    let t = begin;
    const place = (at) => (record.columns.position ? record.columns.position[at] : at - begin);
    while (t < end - 1 && place(t) !== (position ?? place(begin))) t++;
    if (begin < end) this.go(record, t);
  }

  up() {
    const { step, group } = address();
    if (step !== null) location.hash = group === null ? "" : `step-${step}`;
  }

  // ---- the bar

  drawBar(record) {
    const choice = (label, options, chosen, change) => {
      const select = make("select", { "aria-label": label, onchange: () => change(select.value) });
      for (const [value, words] of options) {
        select.append(make("option", { value, selected: value === chosen ? "" : null }, words));
      }
      return select;
    };
    const button = (words, title, action) => make("button", { type: "button", title, onclick: action }, words);
    this.colorSelect = choice(
      "colour by",
      record.quantities.map(({ name }) => [name, name.replaceAll("_", " ")]),
      this.quantity(record).name,
      (name) => this.recolor(name),
    );
    this.sortSelect = choice(
      "order",
      Object.entries(SORTS).map(([name, { words }]) => [name, words]),
      this.sort,
      (name) => this.reorder(name),
    );
    this.legend = make("span.legend");
    this.bar.replaceChildren(
      make("label", {}, "colour ", this.colorSelect),
      this.legend,
      make("label", {}, "order ", this.sortSelect),
      make(
        "span.jumps",
        {},
        button("fold all", "F", () => this.foldAll()),
        button("most clipped", "m", () => this.mostClipped()),
        button("‹ clipped", "p", () => this.nextClipped(-1)),
        button("clipped ›", "n", () => this.nextClipped(1)),
        button("‹ outlier", "i", () => this.nextOutlier(-1)),
        button("outlier ›", "o", () => this.nextOutlier(1)),
      ),
      make("details.keys", {}, make("summary", {}, "keys"), this.keys()),
    );
  }

  keys() {
    return make("dl", {}, ...HELP.map(([key, words]) => make("div", {}, make("dt", {}, key), make("dd", {}, words))));
  }

  drawLegend() {
    const quantity = this.quantity(this.view.record);
    const scale = Number(quantity.scale);
    const end = (sign) => shown(quantity.name === "ratio" ? Math.exp(sign * scale) : quantity.middle + sign * scale, 4);
    const steps = COLORS.map((_, step) => make(`i.s${step}`));
    this.legend.replaceChildren(
      make("span", {}, end(-1)),
      make("span.steps", {}, ...steps),
      make("span", {}, end(1)),
      make("span.low", {}, "▾ clipped low"),
      make("span.high", {}, "▴ clipped high"),
    );
  }

  recolor(name) {
    this.quantityName = name;
    this.colorSelect.value = name;
    this.refresh();
  }

  reorder(name) {
    this.sort = name;
    this.sortSelect.value = name;
    this.view.responses.arrange();
  }

  foldAll() {
    const { responses } = this.view;
    const open = !responses.all.some((view) => view.open);
    responses.toggleAll(open);
  }

  // ---- jumps

  go(record, t) {
    const token = this.view.responses.token(t, { unfold: true });
    this.choose(t);
    token.scrollIntoView({ block: "center" });
    this.tell();
  }

  choose(t) {
    this.current = t;
    this.mark();
  }

  mark() {
    if (!this.view) return;
    document.querySelector("bdi.current")?.classList.remove("current");
    if (this.current === null) return;
    this.view.responses.token(this.current)?.classList.add("current");
    requestAnimationFrame(() => this.view && this.current !== null && this.tell()); // it may have moved
  }

  tell() {
    const token = this.current === null ? null : this.view.responses.token(this.current);
    if (token) this.tip.show(this.view.record, this.view.responses, this.current, token, { exact: true });
    else this.tip.hide();
  }

  nextClipped(direction) {
    const { record, responses } = this.view;
    const order = responses.order;
    if (!order.length) return;
    const [first, last] = [order[0], order[order.length - 1]];
    const start = this.current ?? (direction > 0 ? record.starts[first] - 1 : record.starts[last + 1]);
    let place = this.current === null ? (direction > 0 ? 0 : order.length - 1) : order.indexOf(responses.responseOf(start));
    let t = start + direction;
    for (; order[place] !== undefined; place += direction) {
      const [begin, end] = responses.range(order[place]);
      if (t < begin || t >= end) t = direction > 0 ? begin : end - 1;
      for (; t >= begin && t < end; t += direction) if (record.clip[t]) return this.go(record, t);
      t = -1;
    }
    this.say(record.clip.some((side) => side) ? "no further clipped token" : "no token is clipped");
  }

  nextOutlier(direction) {
    const tokens = this.view.outlierTokens();
    if (!tokens.length) return this.say("every token is in the middle");
    const place = tokens.indexOf(this.current);
    const next = place < 0 ? (direction > 0 ? 0 : tokens.length - 1) : (place + direction + tokens.length) % tokens.length;
    this.go(this.view.record, tokens[next]);
  }

  mostClipped() {
    const { record, responses } = this.view;
    const [best] = [...responses.order].sort((a, b) => clipped(record, b) - clipped(record, a));
    if (best === undefined || !(clipped(record, best) > 0)) return this.say("no token is clipped");
    responses.toggle(responses.all[best], true);
    let t = record.starts[best];
    while (!record.clip[t]) t++;
    this.go(record, t);
    responses.all[best].element.scrollIntoView({ block: "start" });
    this.tell();
  }

  say(words) {
    this.notice ??= document.body.appendChild(make("p.notice", { role: "status" }));
    this.notice.textContent = words;
    clearTimeout(this.hush);
    this.hush = setTimeout(() => this.notice.replaceChildren(), 2500);
  }

  step(direction) {
    const { record, responses } = this.view;
    const r = this.current === null ? null : responses.responseOf(this.current);
    const t = r === null ? record.starts[responses.order[0]] : this.current + direction;
    const [begin, end] = responses.range(r ?? responses.order[0]);
    if (t >= begin && t < end) this.go(record, t);
  }

  stepResponse(direction) {
    const { record, responses } = this.view;
    const { order } = responses;
    let place = this.current === null ? -1 : order.indexOf(responses.responseOf(this.current));
    if (place < 0 && direction < 0) place = order.length;
    for (place += direction; order[place] !== undefined; place += direction) {
      const [begin, end] = responses.range(order[place]);
      if (end > begin) return this.go(record, begin);
    }
  }

  // ---- events

  listen() {
    const tokenOf = (event) => event.target.closest?.("bdi.t");
    this.main.addEventListener("pointerover", (event) => {
      const token = tokenOf(event);
      if (token && event.pointerType !== "touch") {
        this.tip.show(this.view.record, this.view.responses, token.t, token, { exact: token.t === this.current });
      } else if (!token) this.tell();
    });
    this.main.addEventListener("pointerleave", () => this.tell());
    this.main.addEventListener("click", (event) => {
      const token = tokenOf(event);
      if (!token || String(getSelection())) return;
      this.choose(token.t === this.current ? null : token.t);
      this.tell();
    });
    addEventListener("scroll", () => this.tell(), { passive: true });
    addEventListener("keydown", (event) => this.key(event));
    addEventListener("beforeprint", () => this.print());
    addEventListener("afterprint", () => (this.printing = false));
    let wait;
    addEventListener("resize", () => {
      clearTimeout(wait);
      wait = setTimeout(() => this.showing && !this.printing && this.refresh(), 150);
    });
  }

  key(event) {
    const busy = event.target.closest?.("input, select, textarea");
    if (!this.view && event.key === "Escape") return this.up();
    if (!this.view || busy || event.ctrlKey || event.metaKey || event.altKey) return;
    const cycle = (names, now) => names[(names.indexOf(now) + 1) % names.length];
    const { record } = this.view;
    const actions = {
      ArrowRight: () => this.step(1),
      ArrowLeft: () => this.step(-1),
      ArrowDown: () => this.stepResponse(1),
      ArrowUp: () => this.stepResponse(-1),
      n: () => this.nextClipped(1),
      p: () => this.nextClipped(-1),
      o: () => this.nextOutlier(1),
      i: () => this.nextOutlier(-1),
      m: () => this.mostClipped(),
      F: () => this.foldAll(),
      f: () => this.fold(),
      c: () => this.recolor(cycle(record.quantities.map(({ name }) => name), this.quantity(record).name)),
      s: () => this.reorder(cycle(Object.keys(SORTS), this.sort)),
      Escape: () => (this.current === null ? this.up() : (this.choose(null), this.tip.hide())),
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  fold() {
    const { responses } = this.view;
    const r = this.current === null ? responses.order[0] : responses.responseOf(this.current);
    if (r !== undefined) responses.toggle(responses.all[r]);
    this.tell();
  }

  // On paper stands what is unfolded, all of it.
  print() {
    this.printing = true;
    this.tip.hide();
    for (const view of this.view?.responses.all ?? []) {
      this.view.responses.drawStrip(view);
      if (view.open) for (const piece of view.pieces) this.view.responses.drawPiece(piece);
    }
  }
}

// The parts of an address: #step-3-group-1-response-0-token-17
function address() {
  const part = (name) => {
    const found = location.hash.match(new RegExp(`${name}-(-?\\d+)`));
    return found ? Number(found[1]) : null;
  };
  const by = location.hash.match(/by-(\w+)/)?.[1];
  return { step: part("step"), group: part("group"), response: part("response"), token: part("token"), by };
}

// Shows what the address says: the run, a step, or a group of it.
async function route(page, run) {
  const { step, group, response, token, by } = address();
  const block = group === null ? null : run.groups[step]?.[group]?.block;
  page.crumbs(run, step, block ? group : null);
  if (block) {
    const record = await readBlock(document.getElementById(block).textContent);
    if (address().group !== group || address().step !== step) return;
    if (by) page.quantityName = by;
    page.open(record);
    page.goTo(response, token);
  } else page.plain(run.kept[step] === undefined ? new RunView(run) : new StepView(run, step));
}

async function begin() {
  const settings = JSON.parse(document.querySelector("#settings").textContent);
  const page = new Page(settings);
  const run = document.querySelector("#run");
  if (run) {
    const head = (await readBlock(run.textContent, { tokens: false }));
    addEventListener("hashchange", () => route(page, head));
    await route(page, head);
  } else {
    const record = await readBlock(document.querySelector("#record").textContent);
    record.only = settings.only;
    page.open(record);
  }
  globalThis.page = page;
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

begin().catch((error) => {
  const words = `The numbers of this page cannot be read here (${error.message}). It needs a browser of 2023 or later.`;
  document.querySelector("main").replaceChildren(make("p.problem", {}, words));
});
