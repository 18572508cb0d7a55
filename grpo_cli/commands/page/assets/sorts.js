// What responses can be ordered by.

function clipCounts(record, r) {
  let [low, high] = [0, 0];
  for (let t = record.starts[r]; t < record.starts[r + 1]; t++) {
    if (record.clip[t] < 0) low++;
    else if (record.clip[t] > 0) high++;
  }
  return { low, high };
}

const fact = (name) => (record, r) => Number(record.responses[r][name] ?? -Infinity);

const SORTS = {
  written: { words: "as written", value: () => 0 },
  reward: { words: "reward", value: (record, r) => total(record.responses[r].reward) },
  advantage: { words: "advantage", value: fact("advantage") },
  length: { words: "length", value: fact("length") },
  clipped: { words: "clip fraction", value: fact("clip_fraction") },
  contribution: { words: "contribution", value: fact("contribution") },
  gradient: { words: "gradient norm", value: fact("gradient_norm") },
  outlier: { words: "largest token", value: (record, r, quantity) => largest(record, r, quantity) },
};

function total(reward) {
  if (reward === null) return -Infinity;
  if (typeof reward === "object") return Object.values(reward).reduce((sum, one) => sum + Number(one), 0);
  return Number(reward);
}

function largest(record, r, quantity) {
  const values = record.columns[quantity.column];
  let most = 0;
  for (let t = record.starts[r]; t < record.starts[r + 1]; t++) {
    most = Math.max(most, Math.abs(values[t] - quantity.middle));
  }
  return most;
}
