"""Faults that a column of a dump shows, each from a merged fix or a confirmed report."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trials.product import Record
from trials.simulate.batch import END, PAD
from trials.simulate.noise import bfloat16
from trials.simulate.policy import Random
from trials.strangers.dumps import healthy, key, lengthened, made, rowwise

MISMATCH = r"mismatch|outlier|mean.?weight|ratio|off.?policy|noise"


@dataclass(frozen=True)
class Fault:
    """A wrong column.

    Attributes:
        name, thread: as of a mistake.
        make: records with the fault, at one of the ``strengths``.
        wanted: what a finding that names it says, as a regular expression on code and message.
        also: errors that are honest consequences, besides.
        mild: whether a note (an info) is enough.
        refused: whether an error of the input (exit 3) that names it is an answer.
    """

    name: str
    thread: str
    make: Callable[[Random, Any], list[Record]]
    wanted: str
    strengths: tuple[Any, ...] = (None,)
    also: str = MISMATCH
    mild: bool = False
    refused: bool = False

    def named_by(self, text: str) -> bool:
        return re.search(self.wanted, text, re.IGNORECASE) is not None

    def excused(self, text: str) -> bool:
        return self.named_by(text) or re.search(self.also, text, re.IGNORECASE) is not None


def _rolled(by: int) -> Callable[[list[Any], int], Any]:
    return lambda row, at: row[by:] + row[:by]


def _old_shifted(random: Random, by: int) -> list[Record]:
    found = made(random, healthy(random, dump={"padding": ""})).written()
    rowwise(found, "log_probs_old", _rolled(by))
    return found


def _leading_zero(random: Random, _: Any) -> list[Record]:
    """The engine's column begins with a 0 for the prompt's last token, and loses its last."""
    found = made(random, healthy(random, dump={"padding": ""})).written()
    rowwise(found, "log_probs_rollout", lambda row, at: [0.0, *row[:-1]])
    return found


def _raw_temperature(random: Random, temperature: float) -> list[Record]:
    """Sampled and trained at T, but the engine gives the log-probs of T = 1."""
    return made(
        random, healthy(random, sampling={"temperature": temperature, "engine": 1.0})
    ).written()


def _divided(random: Random, temperature: float) -> list[Record]:
    """The engine's log-probs (of T = 1) divided by T, where the logits should have been."""
    setup = healthy(random, sampling={"temperature": temperature, "engine": 1.0})
    found = made(random, setup).written()
    rowwise(found, "log_probs_rollout", lambda row, at: [x / temperature for x in row])
    return found


def _truncated(random: Random, kept: tuple[str, float]) -> list[Record]:
    return made(
        random, healthy(random, sampling={kept[0]: kept[1], "trainer_kept": False})
    ).written()


def _filler(random: Random, what: str) -> list[Record]:
    """Rows filled up behind the end of text, with ids of ``what``, and all of it counted."""
    run = made(random, healthy(random, dump={"padding": "", "layout": "record"}))
    longest = int(run.batch.lengths.max())
    more = np.minimum(longest - run.batch.lengths, 40)
    total = int(more.sum())
    plausible = -np.exp(random.normal(-2.0, 1.2, total))
    fill = {
        "ids": END if what == "end" else PAD,
        "mask": 1,
        **{
            name: (plausible + 0.02 * random.standard_normal(total)).clip(max=0.0)
            for name in run.batch.columns
        },
    }
    return lengthened(run, more, fill).written()


def _end_masked(random: Random, share: float) -> list[Record]:
    """Finished responses whose end of text the mask leaves out."""
    run = made(random, healthy(random, dump={"padding": "right", "ids": True}))
    mask = np.ones(int(run.batch.lengths.sum()), dtype=int)
    ends = run.batch.ends[run.batch.finished] - 1
    mask[ends[random.random(len(ends)) < share]] = 0
    run.batch.mask = mask
    return run.written()


def _end_dropped(random: Random, _: Any) -> list[Record]:
    """Every end of text is filtered from ids and log-probs."""
    found = made(random, healthy(random, dump={"padding": ""})).written()
    names = [name for name in found[0] if isinstance(found[0][name], list)]
    for record in found:
        ids = record[key(record, "ids")]
        for row, values in enumerate(ids):
            if values[-1] != END:
                continue
            for name in names:
                column = record[name]
                if isinstance(column[0], list) and len(column[row]) == len(values):
                    column[row] = column[row][:-1]
    return found


def _prompt_in(random: Random, share: float) -> list[Record]:
    """Responses that begin with the prompt's tokens, counted; the engine did not sample those."""
    run = made(random, healthy(random, dump={"padding": "", "layout": "record"}))
    found = run.written()
    record = found[0]
    hit = random.random(len(run.batch.lengths)) < share
    hit[int(random.integers(len(hit)))] = True
    for row in np.flatnonzero(hit):
        prompt = run.batch.prompts[run.batch.groups[row]]
        strange = (-np.exp(random.normal(1.0, 0.7, len(prompt)))).tolist()
        for name in ("log_probs_new", "log_probs_old", "log_probs_rollout", "ids"):
            column = record.get(key(record, name))
            if column is None:
                continue
            if name == "ids":
                before: list[Any] = list(prompt)
            elif name == "log_probs_rollout":
                before = [0.0] * len(prompt)
            else:
                before = [x + 0.02 * random.standard_normal() for x in strange]
            column[row] = before + column[row]
    return found


def _zero_tail(random: Random, share: float) -> list[Record]:
    """The engine's column is shorter than the tokens and is filled up with zeros."""
    found = made(random, healthy(random, dump={"padding": ""})).written()

    def cut(row: list[float], at: int) -> list[float]:
        if random.random() > 0.5:
            return row
        kept = int(len(row) * (1.0 - share))
        return row[:kept] + [0.0] * (len(row) - kept)

    rowwise(found, "log_probs_rollout", cut)
    return found


def _zeros(random: Random, name: str) -> list[Record]:
    found = made(random, healthy(random, dump={"padding": ""})).written()
    rowwise(found, name, lambda row, at: [0.0] * len(row))
    return found


def _tools(random: Random, how: str) -> list[Record]:
    """Tool answers have zeros from the engine; the mask counts them, or is inverted or late."""
    run = made(random, healthy(random, text={"turns": 3, "length": 120.0}))
    batch = run.batch
    assert batch.mask is not None
    outside = batch.mask == 0
    for name, values in batch.columns.items():
        if name == "log_probs_rollout":
            values[outside] = 0.0
        else:
            values[outside] = -np.exp(random.normal(0.8, 0.8, int(outside.sum())))
    if "log_probs_old" in batch.columns:
        batch.columns["log_probs_old"][outside] = batch.columns["log_probs_new"][outside]
    if how == "counted":
        batch.mask = np.ones_like(batch.mask)
    elif how == "inverted":
        batch.mask = 1 - batch.mask
    else:
        batch.mask = np.concatenate([[1], batch.mask[:-1]])
    return run.written()


def _retokenised(random: Random, share: float) -> list[Record]:
    """Some turns were decoded and encoded again: the trainer scores other tokens, later shifted."""
    run = made(random, healthy(random, dump={"padding": "", "ids": False}))
    batch = run.batch
    for span in batch.spans():
        if random.random() > share:
            continue
        start = span.start + int((span.stop - span.start) * random.uniform(0.2, 0.7))
        count = span.stop - start
        for name in ("log_probs_new", "log_probs_old"):
            if name in batch.columns:
                values = batch.columns[name]
                merged = -np.exp(random.normal(1.2, 0.6))
                later = np.append(values[start + 2 : span.stop], values[span.stop - 1])
                values[start : span.stop] = np.concatenate([[merged], later])[:count]
    return run.written()


def _rows_mixed(random: Random, share: float) -> list[Record]:
    """Old log-probs of other responses: a reordered batch was not put back in order."""
    setup = healthy(random, text={"spread": 0.0, "longest": 90, "length": 90.0})
    run = made(random, setup)
    batch = run.batch
    old = batch.columns["log_probs_old"].copy()
    spans = list(batch.spans())
    rows = np.flatnonzero(random.random(len(spans)) < share)
    if len(rows) < 2:
        rows = np.arange(2)
    for row, other in zip(rows, np.roll(rows, 1), strict=True):
        a, b = spans[row], spans[other]
        count = min(a.stop - a.start, b.stop - b.start)
        batch.columns["log_probs_old"][a.start : a.start + count] = old[b.start : b.start + count]
    return run.written()


def _advantages(random: Random, how: str) -> list[Record]:
    """Advantages next to their rewards, wrong in one of the ways of the threads."""
    kind = "continuous" if how != "exploded" else "binary"
    run = made(
        random, healthy(random, rewards={"kind": kind, "given": "group-std"}, group=8, prompts=4)
    )
    batch = run.batch
    rewards = batch.rewards
    assert batch.advantages is not None
    right = batch.advantages.copy()
    if how == "raw":
        batch.advantages = rewards.copy()
    elif how == "offset":
        batch.advantages = right + 0.35
    elif how == "small offset":
        batch.advantages = right + 0.1
    elif how == "swapped":
        batch.advantages = random.permutation(right)
    elif how == "negated":
        batch.advantages = -right
    elif how == "exploded":
        for group in np.unique(batch.groups):
            own = batch.groups == group
            batch.rewards[own] = 0.0
            batch.rewards[np.flatnonzero(own)[0]] = 1.0
        batch.advantages = np.where(batch.rewards > 0, 1e6, -1.0 / 7.0 / 0.378)
    else:
        batch.advantages = np.zeros_like(right)
        batch.advantages[::2] = right[::2]
    return run.written()


def _reference_equal(random: Random, _: Any) -> list[Record]:
    """The reference is the policy itself, in every step, while the policy moves."""
    setup = healthy(
        random,
        dump={"ref": True, "layout": "record"},
        moves={"update": 0.1, "same_pass": False},
    )
    found = []
    for step in range(3):
        run = made(random, setup)
        run.batch.columns["log_probs_ref"] = run.batch.columns["log_probs_new"].copy()
        found += [{**record, "step": step} for record in run.written(f"step-{step}")]
    return found


def _duplicated(random: Random, share: float) -> list[Record]:
    """Completions of a group that are the same text: one seed for all samples."""
    run = made(random, healthy(random, dump={"padding": "", "layout": "record"}))
    found = run.written()
    record = found[0]
    groups = run.batch.groups
    for row in range(1, len(groups)):
        first = int(np.flatnonzero(groups == groups[row])[0])
        if row == first or random.random() > share:
            continue
        for column in record.values():
            if isinstance(column, list) and len(column) == len(groups):
                column[row] = column[first]
    return found


def _dead(random: Random, _: Any) -> list[Record]:
    return made(random, healthy(random, rewards={"kind": "solved"})).written()


def _rounded(random: Random, name: str) -> list[Record]:
    found = made(random, healthy(random, dump={"padding": ""})).written()
    rowwise(found, name, lambda row, at: bfloat16(np.array(row, np.float32)).tolist())
    return found


def _sentinel(random: Random, value: float) -> list[Record]:
    """Padding keeps the trainer's sentinel, and no mask leaves it out."""
    run = made(random, healthy(random, dump={"padding": "", "ids": False, "layout": "record"}))
    more = run.batch.lengths.max() - run.batch.lengths
    fill = {"ids": PAD, "mask": 1, **dict.fromkeys(run.batch.columns, value)}
    return lengthened(run, more, fill).written()


def _unlikely(random: Random, _: Any) -> list[Record]:
    """Same-position logits: the token is scored by the logits that its own context gave next."""
    run = made(random, healthy(random))
    values = run.batch.columns["log_probs_old"]
    values[:] = -np.abs(random.normal(9.0, 3.5, len(values)))
    return run.written()


def _shard(random: Random, _: Any) -> list[Record]:
    """A column normalised over the wrong count of shards: every log-prob is off by log TP."""
    found = made(random, healthy(random, dump={"padding": ""})).written()
    rowwise(found, "log_probs_old", lambda row, at: [x - np.log(4.0) for x in row])
    return found


def _stale(random: Random, far: float) -> list[Record]:
    """The engine still samples with the weights of the beginning."""
    return made(random, healthy(random, moves={"stale": far})).written()


def _lone_groups(random: Random, _: Any) -> list[Record]:
    """Every response carries a uid of its own."""
    run = made(random, healthy(random, dump={"layout": "rows", "words": "verl"}))
    found = run.written()
    for at, record in enumerate(found):
        record["uid"] = f"traj-{at}"
        record["prompt"] = f"question {run.batch.groups[at]}"
    return found


def _long_mask(random: Random, _: Any) -> list[Record]:
    found = made(random, healthy(random, dump={"padding": "right", "layout": "record"})).written()
    mask = found[0][key(found[0], "mask")]
    mask[-1] = mask[-1] + [1, 1]
    return found


def _broken(random: Random, value: float) -> list[Record]:
    found = made(random, healthy(random, dump={"padding": ""})).written()
    record = found[int(random.integers(len(found)))]
    column = record[key(record, "log_probs_old")]
    column[0][len(column[0]) // 2] = value
    record["not_finite"] = True
    return found


FAULTS = [
    Fault(
        "old log-probs one token off",
        "PrimeIntellect-ai/prime-rl#1525",
        _old_shifted,
        r"shift|off.by.one|(next|previous) token|one token|displac",
        (1, -1),
        r"mismatch|outlier",
    ),
    Fault(
        "engine's column begins with the prompt's zero",
        "PrimeIntellect-ai/prime-rl#606",
        _leading_zero,
        r"shift|off.by.one|(next|previous) token|first token|leading",
    ),
    Fault(
        "engine's log-probs of temperature 1",
        "huggingface/trl#4159",
        _raw_temperature,
        r"temperature",
        (0.6, 0.8, 0.9, 1.2),
    ),
    Fault(
        "log-probs divided by the temperature",
        "PrimeIntellect-ai/prime-rl#697",
        _divided,
        r"temperature|scaled|\btimes\b|divided|factor|multipl|normali|not a distribution",
        (0.6, 0.8),
    ),
    Fault(
        "engine's log-probs over the kept words",
        "huggingface/trl#6789",
        _truncated,
        r"top.?p|top.?k|truncat|renormal|kept|nucleus|support|normali",
        (("top_p", 0.8), ("top_p", 0.9), ("top_k", 20)),
    ),
    Fault(
        "filler behind the end of text counted",
        "bingreeky/MemGen#33",
        _filler,
        r"padd|(after|behind|beyond|past) (the |its )?(first )?(end|eos)|\beos\b.{0,40}(repeat|more"
        r"|several)|filler|end.of.text",
        ("end", "pad"),
    ),
    Fault(
        "end of text masked",
        "huggingface/trl#6357",
        _end_masked,
        r"\beos\b|end.of.text|(last|final) token",
        (1.0, 0.4),
    ),
    Fault(
        "end of text dropped",
        "rasbt/reasoning-from-scratch#185",
        _end_dropped,
        r"\beos\b|end.of.text|unfinished|no response (ends|is finished)|never ends?",
    ),
    Fault(
        "prompt tokens in the response",
        "huggingface/trl#3681",
        _prompt_in,
        r"prompt|prefix|not sampled|zero|exactly 0|probability 1|(same|shared?|common).{0,30}begin"
        r"|beginning",
        (1.0, 0.1),
    ),
    Fault(
        "missing log-probs filled with zeros",
        "rllm-org/rllm#816",
        _zero_tail,
        r"zero|exactly 0|\b0\.0\b|probability 1|filled|placeholder",
        (0.4, 0.1),
    ),
    Fault(
        "a column of zeros",
        "RLinf/RLinf#1043",
        _zeros,
        r"zero|exactly 0|\b0\.0\b|all 0|probability 1|filled|placeholder|constant",
        ("log_probs_old", "log_probs_rollout"),
    ),
    Fault(
        "tool answers counted",
        "unslothai/unsloth#5673",
        _tools,
        r"tool|not sampled|mask|zero|exactly 0|probability 1|environment|observation|filled",
        ("counted",),
    ),
    Fault(
        "mask inverted",
        "mll-lab-nu/RAGEN#71",
        _tools,
        r"mask|tool|not sampled|zero|exactly 0|probability 1|filled",
        ("inverted",),
    ),
    Fault(
        "mask one token late",
        "modelscope/ms-swift#8427",
        _tools,
        r"mask|shift|one token|off.by.one|zero|exactly 0|probability 1",
        ("late",),
    ),
    Fault(
        "turns encoded again",
        "huggingface/trl#5224",
        _retokenised,
        r"retoken|re-?encod|token(s|isation|ization)?.{0,40}(differ|other|mismatch)|shift|misalign"
        r"|displac|other tokens|other text|different tokens|outlier|mismatch",
        (0.5, 0.2),
        r"mean.?weight|ratio",
    ),
    Fault(
        "old log-probs of other responses",
        "PaddlePaddle/FastDeploy#7773",
        _rows_mixed,
        r"(other|another|different|wrong) (response|row|token|order)|order|permut|swap|displac"
        r"|mixed|unrelated|not of these|independent|shuffl|foreign|random",
        (1.0, 0.3),
        r"mismatch|outlier|ratio",
    ),
    Fault(
        "advantages are the rewards",
        "rllm-org/rllm#776",
        _advantages,
        r"advantages?.{0,120}(reward|baseline|cent|mean|group)|raw|uncent",
        ("raw",),
    ),
    Fault(
        "advantages off centre",
        "NovaSky-AI/SkyRL#1305",
        _advantages,
        r"advantages?.{0,160}(cent|mean|sum|offset|constant|shift|zero|normal)|off.?cent",
        ("offset", "small offset"),
    ),
    Fault(
        "advantages of other rows",
        "THUDM/slime#2234",
        _advantages,
        r"advantages?.{0,160}(reward|order|other|wrong|match|agree|explain|correl|rank|fit)",
        ("swapped", "zeroed"),
    ),
    Fault(
        "advantages negated",
        "fla-org/flash-linear-attention#1073",
        _advantages,
        r"advantages?.{0,160}(sign|negat|oppos|wrong way|lower|higher|reward)|sign",
        ("negated",),
    ),
    Fault(
        "advantages exploded",
        "NVIDIA-NeMo/RL#1518",
        _advantages,
        r"advantages?.{0,160}(large|huge|extreme|outlier|explo|great|std|reward|1e\+?0?6|10{6})",
        ("exploded",),
    ),
    Fault(
        "reference is the policy",
        "huggingface/trl#3194",
        _reference_equal,
        r"ref.{0,80}(equal|same|identical|is the policy|copy|as log_probs_new|never)|identical"
        r"|same (numbers|values|column)|copy",
    ),
    Fault(
        "completions of a group repeat",
        "vllm-project/vllm#11898",
        _duplicated,
        r"duplicat|identical|same (text|tokens|response|completion|ids)|repeat",
        (1.0, 0.5),
        "x^",
    ),
    Fault(
        "no group has a signal",
        "huggingface/trl#3452",
        _dead,
        r"dead|no signal|equal rewards|same reward|no (learning )?signal|std|all rewards|zero adv",
        mild=True,
    ),
    Fault(
        "log-probs in bfloat16",
        "PrimeIntellect-ai/prime-rl#568",
        _rounded,
        r"bf16|bfloat|half|precision|rounded|8 bits|16.?bit|digits|coarse|mantissa",
        ("log_probs_old", "log_probs_rollout"),
        mild=True,
    ),
    Fault(
        "sentinels of padding counted",
        "huggingface/trl#2496",
        _sentinel,
        r"padd|sentinel|placeholder|filler|constant|log.?prob.{0,60}(> ?0|positive|above|greater"
        r"|is 1)|\b1(\.0)?\b.{0,40}(not a log|log.?prob)|-1e\+?0?9|-1000000000|improbable|repeat",
        (1.0, -1e9),
        refused=True,
    ),
    Fault(
        "scored by other logits",
        "AI-Hypercomputer/maxtext#2103",
        _unlikely,
        r"shift|unrelated|independent|not of these|other tokens|foreign|random|unlikely|another"
        r"|different (tokens|model|text)|displac|implausible|low|correl",
    ),
    Fault(
        "normaliser off by the ranks",
        "NVIDIA/Megatron-LM#7452",
        _shard,
        r"normali|constant|offset|off by|shifted by|every token|log ?4|1\.386|same amount|lower by"
        r"|softmax|vocab",
    ),
    Fault(
        "engine's weights are old",
        "huggingface/trl#5312",
        _stale,
        r"stale|weights|old(er)? (policy|weights|model)|different (policy|model)|mismatch"
        r"|off.?policy|rollout|engine|outlier|disagree",
        (0.6, 1.2),
        r"ratio",
    ),
    Fault(
        "every response its own group",
        "rllm-org/rllm#776",
        _lone_groups,
        r"group.{0,60}(one|single|\b1\b|size|lone|alone|each)|singleton|lone|one response",
        (None,),
        r"advantage|dead",
    ),
    Fault(
        "mask longer than its row",
        "huggingface/trl#5144",
        _long_mask,
        r"mask.{0,120}(expected|length|long|number|got|has)|(expected|length).{0,80}mask",
        refused=True,
    ),
    Fault(
        "a log-prob that is no number",
        "OpenRLHF/OpenRLHF#1240",
        _broken,
        r"nan|not finite|inf|not a number|no number",
        (float("nan"), float("-inf")),
        refused=True,
    ),
]
