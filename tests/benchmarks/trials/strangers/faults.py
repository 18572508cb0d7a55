"""Faults that a column of a dump shows, each from a merged fix or a confirmed report."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trials.product import Record
from trials.simulate.policy import Random
from trials.strangers import columns

ZEROS = r"zero|exactly 0|\b0\.0\b|all 0|filled|placeholder|probability 1"
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


FAULTS = [
    Fault(
        "old log-probs one token off",
        "PrimeIntellect-ai/prime-rl#1525",
        columns.old_shifted,
        r"shift|off.by.one|(next|previous) token|one token|displac",
        (1, -1),
        r"mismatch|outlier",
    ),
    Fault(
        "engine's column begins with the prompt's zero",
        "PrimeIntellect-ai/prime-rl#606",
        columns.leading_zero,
        r"shift|off.by.one|(next|previous) token|first token|leading",
    ),
    Fault(
        "engine's log-probs of temperature 1",
        "huggingface/trl#4159",
        columns.raw_temperature,
        r"temperature",
        (0.6, 0.8, 0.9, 1.2),
    ),
    Fault(
        "log-probs divided by the temperature",
        "PrimeIntellect-ai/prime-rl#697",
        columns.divided,
        r"temperature|scaled|\btimes\b|divided|factor|multipl|normali|not a distribution",
        (0.6, 0.8),
    ),
    Fault(
        "engine's log-probs over the kept words",
        "huggingface/trl#6789",
        columns.truncated,
        r"top.?p|top.?k|truncat|renormal|kept|nucleus|support|normali",
        (("top_p", 0.8), ("top_p", 0.9), ("top_k", 20)),
    ),
    Fault(
        "filler behind the end of text counted",
        "bingreeky/MemGen#33",
        columns.filler,
        r"padd|(after|behind|beyond|past) (the |its )?(first )?(end|eos)|\beos\b.{0,40}(repeat|more"
        r"|several)|filler|end.of.text",
        ("end", "pad"),
    ),
    Fault(
        "end of text masked",
        "huggingface/trl#6357",
        columns.end_masked,
        r"\beos\b|end.of.text|(last|final) token",
        (1.0, 0.4),
    ),
    Fault(
        "end of text dropped",
        "rasbt/reasoning-from-scratch#185",
        columns.end_dropped,
        r"\beos\b|end.of.text|unfinished|no response (ends|is finished)|never ends?"
        r"|unfinished",
        (1.0, 0.5),
        mild=True,
    ),
    Fault(
        "prompt tokens in the response",
        "huggingface/trl#3681",
        columns.prompt_in,
        ZEROS + r"|prompt|prefix|not sampled|(same|shared?|common).{0,30}begin|beginning",
        (1.0, 0.1),
    ),
    Fault(
        "missing log-probs filled with zeros",
        "rllm-org/rllm#816",
        columns.zero_tail,
        ZEROS,
        (0.4, 0.1),
    ),
    Fault(
        "a column of zeros",
        "RLinf/RLinf#1043",
        columns.zeros,
        ZEROS + r"|constant",
        ("log_probs_old", "log_probs_rollout"),
    ),
    Fault(
        "tool answers counted",
        "unslothai/unsloth#5673",
        columns.tools,
        ZEROS + r"|tool|not sampled|mask|environment|observation",
        ("counted",),
    ),
    Fault(
        "mask inverted",
        "mll-lab-nu/RAGEN#71",
        columns.tools,
        ZEROS + r"|mask|tool|not sampled",
        ("inverted",),
    ),
    Fault(
        "mask one token late",
        "modelscope/ms-swift#8427",
        columns.tools,
        ZEROS + r"|mask|shift|one token|off.by.one",
        ("late",),
    ),
    Fault(
        "turns encoded again",
        "huggingface/trl#5224",
        columns.retokenised,
        r"retoken|re-?encod|token(s|isation|ization)?.{0,40}(differ|other|mismatch)|shift|misalign"
        r"|displac|other tokens|other text|different tokens|outlier|mismatch"
        r"|unrelated|not of",
        (0.5, 0.2),
        r"mean.?weight|ratio",
    ),
    Fault(
        "old log-probs of other responses",
        "PaddlePaddle/FastDeploy#7773",
        columns.rows_mixed,
        r"(other|another|different|wrong) (response|row|token|order)|order|permut|swap|displac"
        r"|mixed|unrelated|not of these|independent|shuffl|foreign|random",
        (1.0, 0.3),
        r"mismatch|outlier|ratio",
    ),
    Fault(
        "advantages are the rewards",
        "rllm-org/rllm#776",
        columns.advantages,
        r"advantages?.{0,120}(reward|baseline|cent|mean|group)|raw|uncent",
        ("raw",),
    ),
    Fault(
        "advantages off centre",
        "NovaSky-AI/SkyRL#1305",
        columns.advantages,
        r"advantages?.{0,160}(cent|mean|sum|offset|constant|shift|zero|normal)|off.?cent",
        ("offset", "small offset"),
    ),
    Fault(
        "advantages of other rows",
        "THUDM/slime#2234",
        columns.advantages,
        r"advantages?.{0,160}(reward|order|other|wrong|match|agree|explain|correl|rank|fit)",
        ("swapped", "rolled"),
    ),
    Fault(
        "advantages negated",
        "fla-org/flash-linear-attention#1073",
        columns.advantages,
        r"advantages?.{0,160}(sign|negat|oppos|wrong way|lower|higher|reward)|sign",
        ("negated",),
    ),
    Fault(
        "advantages exploded",
        "NVIDIA-NeMo/RL#1518",
        columns.advantages,
        r"advantages?.{0,160}(large|huge|extreme|outlier|explo|great|std|reward|1e\+?0?6|10{6})",
        ("exploded",),
    ),
    Fault(
        "reference is the policy",
        "huggingface/trl#3194",
        columns.reference_equal,
        r"ref.{0,80}(equal|same|identical|is the policy|copy|as log_probs_new|never)|identical"
        r"|same (numbers|values|column)|copy",
    ),
    Fault(
        "completions of a group repeat",
        "vllm-project/vllm#11898",
        columns.duplicated,
        r"duplicat|identical|same (text|tokens|response|completion|ids)|repeat",
        (1.0, 0.5),
        "x^",
    ),
    Fault(
        "no group has a signal",
        "huggingface/trl#3452",
        columns.dead,
        r"dead|no signal|equal rewards|same reward|no (learning )?signal|std|all rewards|zero adv",
        mild=True,
    ),
    Fault(
        "log-probs in bfloat16",
        "PrimeIntellect-ai/prime-rl#568",
        columns.rounded,
        r"bf16|bfloat|half|precision|rounded|8 bits|16.?bit|digits|coarse|mantissa",
        ("log_probs_old", "log_probs_rollout"),
        mild=True,
    ),
    Fault(
        "sentinels of padding counted",
        "huggingface/trl#2496",
        columns.sentinel,
        r"padd|sentinel|placeholder|filler|constant|log.?prob.{0,60}(> ?0|positive|above|greater"
        r"|is 1)|\b1(\.0)?\b.{0,40}(not a log|log.?prob)|-1e\+?0?9|-1000000000|improbable|repeat",
        (1.0, -1e9),
        refused=True,
    ),
    Fault(
        "scored by other logits",
        "AI-Hypercomputer/maxtext#2103",
        columns.unlikely,
        r"shift|unrelated|independent|not of these|other tokens|foreign|random|unlikely|another"
        r"|different (tokens|model|text)|displac|implausible|low|correl",
    ),
    Fault(
        "normaliser off by the ranks",
        "NVIDIA/Megatron-LM#7452",
        columns.shard,
        r"normali|constant|offset|off by|shifted by|every token|log ?4|1\.386|same amount|lower by"
        r"|softmax|vocab",
    ),
    Fault(
        "engine's weights are old",
        "huggingface/trl#5312",
        columns.stale,
        r"stale|\bweights\b|older|(different|other|another) (policy|model)|mismatch|off.?policy"
        r"|outlier|disagree|unrelated",
        (0.6, 1.2),
        r"ratio",
    ),
    Fault(
        "every response its own group",
        "rllm-org/rllm#776",
        columns.lone_groups,
        r"group.{0,60}(one|single|\b1\b|size|lone|alone|each)|singleton|lone|one response",
        (None,),
        r"advantage|dead",
    ),
    Fault(
        "mask longer than its row",
        "huggingface/trl#5144",
        columns.long_mask,
        r"mask.{0,120}(expected|length|long|number|got|has)|(expected|length).{0,80}mask",
        refused=True,
    ),
    Fault(
        "a log-prob that is no number",
        "OpenRLHF/OpenRLHF#1240",
        columns.broken,
        r"nan|not finite|inf|not a number|no number",
        (float("nan"), float("-inf")),
        refused=True,
    ),
]
