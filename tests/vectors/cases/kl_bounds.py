"""The KL far from the reference: what bounds it, and what overflows."""

from __future__ import annotations

from collections.abc import Iterator

from vectors.cases.kl import MEANS, SINGLE, alone
from vectors.cases.vector import PLAIN, Signature, Vector, columns


def extremes() -> Iterator[Vector]:
    for distance in (4, 6):
        yield Vector(
            f"k3-apart-{distance}",
            f"The reference likes the token e^{distance} times better: k3 is far above 10.",
            ["kl-clamp"],
            alone(-7.0, -7.0 + distance, 0.5),
            PLAIN | {"kl": "k3", "beta": 0.25},
            same_under=SINGLE,
            topic="kl-clamp",
            signatures={
                "none": Signature(["TRL 1.16.0", "Liger-Kernel", "the papers"]),
                "10": Signature(
                    ["verl 0.9.1", "SkyRL", "NeMo-RL", "OpenRLHF"], {"kl_output_clamp": 10.0}
                ),
            },
        )
    yield Vector(
        "k3-clamped",
        "Bounds at 20 on the difference and at 10 on the estimate, both given.",
        ["kl-clamp"],
        columns([[-7.0, -7.0]], old=[[-7.0, -7.0]], ref=[[-3.0, -6.0]], advantages=[0.5]),
        PLAIN | {"kl": "k3", "beta": 0.25, "kl_input_clamp": 20.0, "kl_output_clamp": 10.0},
        same_under=MEANS,
    )


def bounds() -> Iterator[Vector]:
    yield Vector(
        "k2-input-clamped",
        "The difference is bounded at 2 before it is squared: no gradient beyond it.",
        ["kl-gradient", "kl-dropped"],
        columns([[-7.0, -3.0]], old=[[-7.0, -3.0]], ref=[[-3.0, -2.0]], advantages=[0.5]),
        PLAIN | {"kl": "k2", "beta": 0.25, "kl_input_clamp": 2.0},
        same_under=MEANS,
    )
    yield Vector(
        "k3-overflow",
        "The reference likes the token e^895.5 times better, which no precision holds.",
        ["kl-overflow"],
        alone(-896.0, -0.5, 0.5),
        PLAIN | {"kl": "k3", "beta": 0.25},
        same_under=SINGLE,
        topic="kl-overflow",
        signatures={
            "10": Signature(["verl 0.9.1", "SkyRL", "NeMo-RL"], {"kl_output_clamp": 10.0}),
            "inf": Signature(["TRL 1.16.0"], value={"loss": "inf", "gradient": [["-inf"]]}),
        },
    )


CASES = [*extremes(), *bounds()]
