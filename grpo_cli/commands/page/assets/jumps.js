// From token to token: the next one, the next clipped, the next furthest out.

class Jumps {
  constructor(page) {
    this.page = page;
  }

  go(record, t) {
    const token = this.page.view.responses.token(t, { unfold: true });
    this.page.choose(t);
    token.scrollIntoView({ block: "center" });
    this.page.tell();
  }

  // A response and the position of a token, as the record has them.
  goTo(response, position) {
    const { record, responses } = this.page.view;
    const r = record.responses.findIndex((one) => one.response === response);
    scrollTo(0, 0);
    if (r < 0) return;
    const [begin, end] = responses.range(r);
    let t = begin;
    const place = (at) => (record.columns.position ? record.columns.position[at] : at - begin);
    while (t < end - 1 && place(t) !== (position ?? place(begin))) t++;
    if (begin < end) this.go(record, t);
  }

  nextClipped(direction) {
    const { record, responses } = this.page.view;
    const order = responses.order;
    if (!order.length) return;
    const [first, last] = [order[0], order[order.length - 1]];
    const start = this.page.current ?? (direction > 0 ? record.starts[first] - 1 : record.starts[last + 1]);
    let place = this.page.current === null ? (direction > 0 ? 0 : order.length - 1) : order.indexOf(responses.responseOf(start));
    let t = start + direction;
    for (; order[place] !== undefined; place += direction) {
      const [begin, end] = responses.range(order[place]);
      if (t < begin || t >= end) t = direction > 0 ? begin : end - 1;
      for (; t >= begin && t < end; t += direction) if (record.clip[t]) return this.go(record, t);
      t = -1;
    }
    this.page.say(record.clip.some((side) => side) ? "no further clipped token" : "no token is clipped");
  }

  nextOutlier(direction) {
    const tokens = this.page.view.outlierTokens();
    if (!tokens.length) return this.page.say("all tokens have the same value");
    const place = tokens.indexOf(this.page.current);
    const next = place < 0 ? (direction > 0 ? 0 : tokens.length - 1) : (place + direction + tokens.length) % tokens.length;
    this.go(this.page.view.record, tokens[next]);
  }

  step(direction) {
    const { record, responses } = this.page.view;
    const r = this.page.current === null ? null : responses.responseOf(this.page.current);
    const t = r === null ? record.starts[responses.order[0]] : this.page.current + direction;
    const [begin, end] = responses.range(r ?? responses.order[0]);
    if (t >= begin && t < end) this.go(record, t);
  }

  stepResponse(direction) {
    const { record, responses } = this.page.view;
    const { order } = responses;
    let place = this.page.current === null ? -1 : order.indexOf(responses.responseOf(this.page.current));
    if (place < 0 && direction < 0) place = order.length;
    for (place += direction; order[place] !== undefined; place += direction) {
      const [begin, end] = responses.range(order[place]);
      if (end > begin) return this.go(record, begin);
    }
  }
}
