"""Objectives as `torch.nn.Module`s, and the joint objectives that a configuration can name.

Python callers can pass any module. A name in a configuration needs a row in OBJECTIVES
(`registry.py`).
"""

from __future__ import annotations

from .contrastive import Contrastive, LabelAware, SupCon
from .cross_entropy import CrossEntropy
from .joint import Adaptation, Joint, Term
from .label_distance import LabelDistance
from .pair_scores import BinaryCrossEntropy, MeanSquared
from .proxy import ProxyNCA
from .registry import OBJECTIVES, RECIPES, build_objective, describe, objective_options
from .soft_triple import SoftTriple
from .text_views import Consistency, InfoNCE, MultipleNegatives, NTXent
from .triplet import Triplet
from .view import VIEWS, View

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
