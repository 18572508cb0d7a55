"""The third list: nobody who builds has read its mistakes and faults.

Its clean batches were read when the rule on the order of advantages was mended.

Threads of 2024 to 2026 in trainers and in what they run on; none is a thread of the second list.
Some that were read are not on it, since no dump shows them or since the list before has them: a
loss per rank that only FSDP's mean undoes (SkyRL#1504); clip fractions and other metrics that are
logged wrong (trl#3175, NeMo-RL#3957); exponents that overflow (OpenRLHF#1293); an NLL term
(NeMo-RL#3791); an OPSM by token that the released function has (slime#1917, miles#1127); prompts
sampled twice (trl#3675, trl#4531).

Changed after the first run: β counts as a word for the KL; plain k3 is named where NeMo-RL's has a
further term; "an integer factor" and "only the logged loss differs" name nothing, as a constant
factor does not; a shifted row ends in one number for both of the trainer's columns, not in two.
"""
