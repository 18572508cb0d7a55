"""The kinds of clean batches that ``check`` has nothing to warn of."""

from trials.kinds.dumps import DUMPS
from trials.kinds.engines import ENGINES

KINDS = (*ENGINES, *DUMPS)
"""24 kinds."""

NAMES = {kind.name: kind for kind in KINDS}
