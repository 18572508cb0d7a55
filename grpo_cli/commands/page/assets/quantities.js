// What can colour tokens: the column that gives the colour, its title, what it is, and the value that has none.

const QUANTITIES = [
  ["ratio", "log_ratio", "ratio: ρ = π_θ/π_old (log scale)"],
  ["contribution", "contribution", "contribution to J"],
  ["gradient", "gradient", "gradient: ∂J/∂log π_θ"],
  ["kl", "kl", "KL estimate"],
  ["difference", "difference", "difference: log π_θ − log π_old of the token"],
  ["mismatch", "mismatch", "mismatch: log π_old (trainer) − log π_rollout (engine)"],
  ["advantage", "advantage", "advantage A"],
  ["surrogate", "surrogate", "surrogate s"],
  ["correction", "correction", "correction c (distance from 1)", 1],
  ["weight", "weight", "weight w"],
  ["entropy", "entropies", "entropy of the policy"],
  ["log_prob", "log_probs_new", "log prob: log π_θ"],
].map(([name, column, words, middle = 0]) => ({ name, column, title: name.replaceAll("_", " "), words, middle }));

class Quantity {
  constructor(known, values) {
    Object.assign(this, known);
    this.values = values;
  }

  // The distance from the middle at which the colour is full: 98 % of what is not 0 is within it, as numpy's quantile has it.
  get scale() {
    if (this.full !== undefined) return this.full;
    const sizes = this.values.map((value) => Math.abs(value - this.middle)).filter((size) => size > 0 && size < Infinity).sort();
    const at = 0.98 * (sizes.length - 1);
    const [low, high] = [sizes[Math.floor(at)], sizes[Math.ceil(at)]];
    const share = at - Math.floor(at);
    this.full = !sizes.length ? 0 : share < 0.5 ? low + (high - low) * share : high - (high - low) * (1 - share);
    return this.full;
  }

  get range() {
    const finite = this.values.filter(Number.isFinite);
    this.ends ??= finite.length ? [finite.reduce((a, b) => Math.min(a, b)), finite.reduce((a, b) => Math.max(a, b))] : [this.middle, this.middle];
    return this.ends;
  }
}
