// All numbers of one token, with the digits that tables have; every digit of a number is its title.

class Tip {
  constructor() {
    this.element = make("div.tip", { role: "status", "aria-live": "polite", hidden: "" });
    document.body.append(this.element);
  }

  show(record, responses, t, anchor) {
    const r = responses.responseOf(t);
    const { response, reward } = record.responses[r];
    const position = record.columns.position ? record.columns.position[t] : t - record.starts[r];
    const heading = make(
      "p",
      {},
      make("bdi.word", {}, record.words[record.place[t]]),
      make("span", {}, ` response ${response}, token ${position}${typeof reward === "number" ? `, reward ${shown(reward)}` : ""}`),
    );
    const list = make("dl", {});
    for (const [name, value] of facts(record, t)) {
      list.append(make("div", {}, make("dt", {}, name), make("dd", {}, value)));
    }
    this.element.replaceChildren(heading, make("p", {}, clipSentence(record, t)), list);
    this.element.hidden = false;
    this.place(anchor);
  }

  place(anchor) {
    const box = anchor.getBoundingClientRect();
    this.element.style.left = "0"; // where it has its whole width
    const { offsetWidth: width, offsetHeight: height } = this.element;
    const left = Math.max(4, Math.min(box.left, innerWidth - width - 4));
    const below = box.bottom + 6;
    const top = below + height < innerHeight ? below : Math.max(4, box.top - height - 6);
    this.element.style.left = `${left}px`;
    this.element.style.top = `${top}px`;
  }

  hide() {
    this.element.hidden = true;
  }
}

const SHOWN = [
  ["log_probs_new", "log π_θ"],
  ["log_probs_old", "log π_old"],
  ["log_probs_ref", "log π_ref"],
  ["log_probs_rollout", "log π_rollout"],
  ["mismatch", "log π_old − log π_rollout"],
  ["entropies", "entropy"],
  ["log_ratio", "log ratio"],
  ["difference", "log π_θ − log π_old"],
  ["ratio", "ratio ρ"],
  ["advantage", "advantage A"],
  ["surrogate", "surrogate s"],
  ["correction", "correction c"],
  ["kl", "KL estimate"],
  ["weight", "weight w"],
  ["contribution", "contribution"],
  ["gradient", "gradient"],
];

function* facts(record, t) {
  for (const [name, words] of SHOWN) {
    const values = record.columns[name];
    if (values) yield [words, number(values[t])];
    else if (name === "log_probs_old" && record.on_policy && record.columns.log_probs_new) {
      yield [words, "as log π_θ"];
    }
  }
}

function clipSentence(record, t) {
  const side = SIDES[record.clip[t]];
  const ratio = record.columns.ratio[t];
  const range = record.clip_range;
  if (side) {
    const bound = range ? ` at ${shown(range[side === "low" ? 0 : 1])}` : "";
    return `${MARKS[side]} clipped ${side}${bound}: the clip changes the gradient of this token`;
  }
  if (record.columns.advantage?.[t] === 0) return "not clipped: the advantage is 0";
  if (range && (ratio < range[0] || ratio > range[1])) {
    return `not clipped: the ratio is outside ${shown(range[0])} to ${shown(range[1])}, but this bound does not act on this token`;
  }
  return "not clipped";
}
