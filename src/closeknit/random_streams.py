"""The random streams of a run: which number stands for which use of one seed.

Every use of randomness draws from a stream of its own, seeded by (seed, stream, …). Two objectives that are
compared under one seed thus start from the same classifier and see the same mini-batches.
"""

from __future__ import annotations

DROPOUT = 1
ENCODER = 2  # adapter weights, and the word embeddings of TextCNN
HEADS = 3
OBJECTIVE = 4  # proxies, centers and whatever else an objective learns
MASKING = 5  # which tokens masked-language modelling hides
SURGERY = 6  # the order in which gradients of tasks are projected
