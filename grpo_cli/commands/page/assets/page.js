// The page: which quantity, which order, which token; the bar, the keys, and jumps.

// The table of more records is folded.
const MANY = 30;

// A step, and what began there or is farthest from usual there.
function stepTitle({ events, findings }, step) {
  const begun = findings.find(({ onset }) => onset === step);
  const worst = findings.find((one) => one.worst_step === step);
  const event = begun && events[begun.event];
  if (event?.title.startsWith(`step ${step}: `)) return `${capital(event.title)}.`;
  if (begun) return `Step ${shown(step)}: ${begun.metric} ${{ up: "rose", down: "fell" }[begun.direction] ?? "changed"}.`;
  return `Step ${shown(step)}${worst ? `: ${worst.metric} is ${worst.direction === "down" ? "smallest" : "largest"}.` : ""}`;
}

// A group, and why the page has its tokens: what it is worst in of its step, or a random choice.
function groupTitle({ groups, sampled }, step, at) {
  const { worst_in: worst, pointed } = groups[step][at];
  const names = worst.map((name) => KINDS[name] ?? name).join(", ");
  const others = groups[step].filter((group) => !group.pointed.length).length;
  const random = others > sampled ? `: random, as ${shown(sampled)} of the ${shown(others)} groups without a largest value` : "";
  const why = names ? `: the step's largest ${names}` : pointed.length ? ": a finding is worst here" : random;
  return `Step ${shown(step)}, ${groupWords(groups[step], at)}${why}.`;
}

// What is largest somewhere, in words.
const KINDS = { ratio: "|log ratio|", kl: "KL", nll: "−log π", length: "length", gradient: "gradient" };

class Page {
  constructor(settings) {
    this.top = settings.top;
    this.quantityName = settings.color_by;
    this.sort = "written";
    this.current = null;
    this.printing = false;
    this.tip = new Tip();
    this.main = document.querySelector("main");
    this.bar = new Toolbar(this);
    this.jumps = new Jumps(this);
    this.main.before(this.bar.element);
    this.listen();
  }

  quantity(record) {
    const { quantities } = record;
    const named = (wanted) => quantities.find(({ name }) => name === wanted);
    const [first] = quantities;
    return named(this.quantityName) ?? (Number(first.scale) ? first : named("gradient")) ?? first;
  }

  open(record) {
    record.only ??= null;
    this.leave();
    this.current = null;
    this.tip.hide();
    this.view = this.showing = new RecordView(record, this);
    this.main.replaceChildren(this.view.element);
    this.bar.draw(record);
    this.refresh();
  }

  refresh() {
    if (this.view) this.bar.refresh();
    this.showing.refresh();
  }

  leave() {
    if (this.showing) this.showing.top = scrollY;
  }

  // What has no tokens: a run, a step.
  plain(showing) {
    this.leave();
    this.view = null;
    this.current = null;
    this.tip.hide();
    this.showing = showing;
    this.main.replaceChildren(showing.element);
    this.bar.clear();
    this.refresh();
    scrollTo(0, showing.top ?? 0); // a run that was left stays where it was
  }

  // The way back from a step or a group to the run.
  crumbs(run, step, group) {
    this.path ??= this.main.parentNode.insertBefore(make("nav.crumbs", { "aria-label": "where" }), this.bar.element);
    const known = run.kept[step] !== undefined;
    this.path.hidden = !known;
    const heading = document.querySelector("h1");
    this.heading ??= heading.textContent;
    const verdict = stepTitle(run, step);
    heading.textContent = !known ? this.heading : group === null ? verdict : groupTitle(run, step, group);
    document.title = heading.textContent;
    const parts = [known ? link("#", "run") : make("b", {}, "run")];
    if (known) parts.push(" › ", group === null ? make("b", {}, `step ${step}`) : link(`#step-${step}`, `step ${step}`));
    if (group !== null) parts.push(" › ", make("b", {}, groupWords(run.groups[step], group)));
    if (known && group === null) {
      const steps = Object.keys(run.kept).map(Number).sort((a, b) => a - b);
      const at = steps.indexOf(step);
      const neighbour = (place, words) => parts.push(Object.assign(link(`#step-${steps[place]}`, words), { className: "neighbour" }));
      if (at > 0) neighbour(at - 1, `‹ step ${steps[at - 1]}`);
      if (at + 1 < steps.length) neighbour(at + 1, `step ${steps[at + 1]} ›`);
    }
    this.path.replaceChildren(...parts);
  }

  // Which of several records is shown, and its heading.
  choice({ records, left_out: more, ranked }, at) {
    const { title, place, signature } = records[at];
    const write = (where, words) => document.querySelector(where).replaceChildren(...unbroken(words));
    document.title = ranked ? ranked.title : title;
    write("h1", document.title);
    write("header p", ranked ? place.replace(/:\d+$/, "") : place);
    write("footer code:last-child", signature);
    if (records.length < 2 && !more) return;
    this.path ??= this.main.parentNode.insertBefore(make("nav.crumbs", { "aria-label": "where" }), this.bar.element);
    const select = make("select", { "aria-label": "record", onchange: () => (location.hash = `record-${select.value}`) });
    const option = (name, number) => make("option", { value: number, selected: number === at ? "" : null }, name);
    select.append(...records.map(({ name }, number) => option(name, number)));
    const count = make("span", {}, ` of ${shown(records.length)} on this page${more ? `; ${more}` : ""}`);
    const alone = ranked ? make("h2", {}, `${title} (evaluated alone; ${place})`) : "";
    this.path.replaceChildren(make("label", {}, "record ", select), count, alone);
    if (ranked && !this.batch) this.path.before((this.batch = this.wholeBatch(ranked, records)));
  }

  // The numbers of the batch, its records with the way to each, and the tokens that stand out.
  wholeBatch(ranked, records) {
    const totals = Object.entries(ranked.total).map(([name, value]) => make("div", {}, make("dt", {}, name.replaceAll("_", " ")), make("dd", {}, shown(value))));
    const table = make("table");
    const cells = ({ name, numbers }, at) => [link(`#record-${at}`, name), ...numbers.map((value) => number(value))];
    fill(table, ["record", "reward", "loss alone", "responses", "tokens", "clip fraction", "gradient norm"], records.map(cells));
    const list = make("details", { open: records.length <= MANY ? "" : null }, make("summary", {}, make("b", {}, "Records, each evaluated alone")), make("div.wide", {}, table));
    const hints = ranked.notes.map((note) => make("p.hint", {}, `${capital(note)}.`));
    return make("section.batch", {}, make("dl.totals", {}, ...totals), ...hints, list, this.rankedTokens(ranked));
  }

  // The tokens of all records that stand out, with the way to each.
  rankedTokens({ heading, names, rows }) {
    const table = make("table");
    const worded = rows.some(([, , position, token]) => token !== String(position)); // or these are the tokens' names
    const percent = (one) => make("data", { value: one, title: String(one) }, `${(100 * one).toFixed(2)}%`);
    const isShare = (name) => name.endsWith("share");
    const value = (one, at) => (names[at] === "clip" ? clipWords(one) : isShare(names[at]) && typeof one === "number" ? percent(one) : number(one));
    const cells = ([record, response, position, token, at, ...numbers]) => {
      const way = at === null ? record : link(`#record-${at}-response-${response}-token-${position}`, record);
      return [way, shown(response), shown(position), ...(worded ? [token] : []), ...numbers.map(value)];
    };
    fill(table, ["record", "response", "position", ...(worded ? ["token"] : []), ...names], rows.map(cells), names[0]);
    const words = make("b", {}, capital(heading));
    return make("details", { open: "" }, make("summary", {}, words), make("div.wide", {}, table));
  }

  up() {
    const { step, group } = address();
    if (step !== null) location.hash = group === null ? "" : `step-${step}`;
  }

  recolor(name) {
    this.quantityName = name;
    this.refresh();
  }

  reorder(name) {
    this.sort = name;
    this.bar.refresh();
    this.view.responses.arrange();
  }

  foldAll() {
    const { responses } = this.view;
    const open = !responses.all.some((view) => view.open);
    responses.toggleAll(open);
  }

  // ---- the chosen token

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
    if (token) this.tip.show(this.view.record, this.view.responses, this.current, token);
    else this.tip.hide();
  }

  say(words) {
    this.notice ??= document.body.appendChild(make("p.notice", { role: "status" }));
    this.notice.textContent = words;
    clearTimeout(this.hush);
    this.hush = setTimeout(() => this.notice.replaceChildren(), 2500);
  }

  // ---- events

  listen() {
    const tokenOf = (event) => event.target.closest?.("bdi.t");
    this.main.addEventListener("pointerover", (event) => {
      const token = tokenOf(event);
      if (token && event.pointerType !== "touch") {
        this.tip.show(this.view.record, this.view.responses, token.t, token);
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
      ArrowRight: () => this.jumps.step(1),
      ArrowLeft: () => this.jumps.step(-1),
      ArrowDown: () => this.jumps.stepResponse(1),
      ArrowUp: () => this.jumps.stepResponse(-1),
      n: () => this.jumps.nextClipped(1),
      p: () => this.jumps.nextClipped(-1),
      o: () => this.jumps.nextOutlier(1),
      i: () => this.jumps.nextOutlier(-1),
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

  // On paper is what is unfolded, all of it.
  print() {
    this.printing = true;
    this.tip.hide();
    for (const view of this.view?.responses.all ?? []) {
      drawStrip(this.view.responses, view);
      if (view.open) for (const piece of view.pieces) this.view.responses.drawPiece(piece);
    }
  }
}

