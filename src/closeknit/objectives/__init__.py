"""Objectives as `torch.nn.Module`s, and the joint objectives that a configuration can name.

Python callers can pass any module. A name in a configuration needs a row in OBJECTIVES
(`registry.py`).
"""

from __future__ import annotations

from closeknit.objectives.joint import Adaptation, Joint, Term
from closeknit.objectives.losses.contrastive import Contrastive, LabelAware, SupCon
from closeknit.objectives.losses.cross_entropy import CrossEntropy
from closeknit.objectives.losses.label_distance import LabelDistance
from closeknit.objectives.losses.pair_scores import BinaryCrossEntropy, MeanSquared
from closeknit.objectives.losses.proxy import ProxyNCA
from closeknit.objectives.losses.soft_triple import SoftTriple
from closeknit.objectives.losses.text_views import Consistency, InfoNCE, MultipleNegatives, NTXent
from closeknit.objectives.losses.triplet import Triplet
from closeknit.objectives.registry import (
    OBJECTIVES,
    RECIPES,
    build_objective,
    describe,
    objective_options,
)
from closeknit.objectives.view import VIEWS, View

__all__ = [
    "OBJECTIVES",
    "RECIPES",
    "VIEWS",
    "Adaptation",
    "BinaryCrossEntropy",
    "Consistency",
    "Contrastive",
    "CrossEntropy",
    "InfoNCE",
    "Joint",
    "LabelAware",
    "LabelDistance",
    "MeanSquared",
    "MultipleNegatives",
    "NTXent",
    "ProxyNCA",
    "SoftTriple",
    "SupCon",
    "Term",
    "Triplet",
    "View",
    "build_objective",
    "describe",
    "objective_options",
]
