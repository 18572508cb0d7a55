"""The nodes of a cluster: whether they have the versions that are here, and what has to travel."""

from __future__ import annotations

import platform
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from grpo_cli.engine.cluster.tasks import ClusterError, versions

_SHIPPED = (
    *("orjson", "typer", "rich", "markdown_it", "mdurl", "pygments", "shellingham"),
    "annotated_doc",
)
"""What a worker imports and a node of a cluster may lack; numpy it has to have."""


class Node(NamedTuple):
    """What a node has.

    Attributes:
        place: its address.
        versions: of what numbers may depend on; None where it is not there.
        lacking: the modules of ``_SHIPPED`` that are not.
        system: its operating system and processor.
    """

    place: str
    versions: dict[str, str | None]
    lacking: list[str]
    system: tuple[str, str]

    def check(self, mine: dict[str, str]) -> None:
        """Refuses a node on which numbers might come out otherwise.

        Raises:
            ClusterError: where it has other versions, or lacks what cannot travel.
        """
        same = self.system == (sys.platform, platform.machine())
        for name, theirs in self.versions.items():
            if theirs is None and (name == "numpy" or not same):
                raise ClusterError(f"node {self.place} lacks {name} {mine[name]}: install it there")
            if theirs not in (None, mine[name]):
                raise ClusterError(
                    f"node {self.place} has {name} {theirs}, here it is {mine[name]}: numbers may "
                    "differ; install the same"
                )


def travelling(ray: Any) -> list[str]:
    """The packages that travel with a job: this one, and those that any node lacks.

    Raises:
        ClusterError: where a node has other versions.
    """
    lacking: set[str] = set()
    for node in _nodes(ray):
        node.check(versions())
        lacking |= set(node.lacking)
    return [str(Path(__file__).parents[2]), *map(_folder_of, sorted(lacking))]


def _nodes(ray: Any) -> list[Node]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    names = _SHIPPED

    def look() -> Any:  # runs there, where this package is not
        import importlib.util
        import platform
        import sys

        def version(name: str) -> str | None:
            missing = importlib.util.find_spec(name) is None
            return None if missing else str(importlib.import_module(name).__version__)

        python = ".".join(platform.python_version_tuple()[:2])
        found = {"Python": python, "numpy": version("numpy"), "orjson": version("orjson")}
        lacking = [name for name in names if importlib.util.find_spec(name) is None]
        return found, lacking, (sys.platform, platform.machine())

    nodes = []
    for node in ray.nodes():
        if node["Alive"] and node["Resources"].get("CPU"):
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ray.remote(look).options(num_cpus=0, scheduling_strategy=there)
            nodes.append(Node(node["NodeManagerAddress"], *ray.get(task.remote())))
    return nodes


def _folder_of(module: str) -> str:
    """Where a package is that has to travel.

    Raises:
        ClusterError: where it is not here either.
    """
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ClusterError(f"a node of the cluster lacks {module}, and so does this machine")
    place = Path(spec.origin)
    return str(place.parent if place.name == "__init__.py" else place)
