"""A later list of mistakes, which nobody who builds has read; ``../strangers`` has become known.

Some that were read are not on it, since no dump shows them: factors that the ranks put on the
parameters' gradients alone (verl#5798, hamishivi/tmax#9); numbers of optimiser steps (SkyRL#1529);
metrics that are logged wrong (NeMo-RL#3900, trl#5353); rewards that were shaped wrong before they
were written (OpenRLHF#1252, SkyRL#2104); a reference with half of an adapter (unsloth-zoo#832);
experts replayed for other tokens (AReno#524); old log-probs recomputed by the current policy, which
look like those of a first mini-batch (miles#1829, SkyRL#1315); rewards on a slot of padding where
nothing is discounted (trl#3750).
"""
