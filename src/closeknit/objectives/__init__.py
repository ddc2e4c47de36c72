"""Objectives as `torch.nn.Module`s, and the joint objectives that a configuration can name.

Python callers can pass any module. A name in a configuration needs a row in OBJECTIVES
(`registry.py`).
"""

from __future__ import annotations

from closeknit.objectives.contrastive import Contrastive, LabelAware, SupCon
from closeknit.objectives.cross_entropy import CrossEntropy
from closeknit.objectives.joint import Adaptation, Joint, Term
from closeknit.objectives.label_distance import LabelDistance
from closeknit.objectives.pair_scores import BinaryCrossEntropy, MeanSquared
from closeknit.objectives.proxy import ProxyNCA
from closeknit.objectives.registry import (
    OBJECTIVES,
    RECIPES,
    build_objective,
    describe,
    objective_options,
)
from closeknit.objectives.soft_triple import SoftTriple
from closeknit.objectives.text_views import Consistency, InfoNCE, MultipleNegatives, NTXent
from closeknit.objectives.triplet import Triplet
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
