"""What the comparison's tables and figure show."""

from __future__ import annotations

from shared.tables import Metric, Report

REPORT = Report(
    method="difflift",
    baselines=["random", "none", "gin", "cycle", "clique", "khop", "knn", "cycle cells", "knn cells"],
    metrics=[
        Metric("accuracy", "accuracy", percent=True),
        Metric("added", "cells added to a graph", digits=1),
        Metric("included", "of the candidates", percent=True),
        Metric("k", "neighbourhood", digits=1),
    ],
    titles={
        "solubility": "Solubility of molecules, hypergraphs, UniGCNII",
        "solubility-cwn": "Solubility, cell complexes, CWN",
        "mutag": "MUTAG, hypergraphs, UniGCNII",
        "mutag-topomodelx": "MUTAG, hypergraphs, UniGIN of TopoModelX",
        "mutag-cwn": "MUTAG, cell complexes, CWN",
        "planted": "Planted groups in random trees, UniGCNII",
        "planted-less-noise": "Planted groups, no trees, a quarter of the noise",
        "planted-cloud": "Planted groups, no trees, UniGCNII",
        "ablations": "Ablations on solubility, hypergraphs",
        "ablations-cwn": "Ablations on solubility, cell complexes",
    },
    labels={
        "difflift": "DiffLift",
        "difflift+": "DiffLift, gradient to distances",
        "random": "the same candidates at random",
        "none": "no lifting",
        "gin": "GIN, no lifting",
        "cycle": "cycles as hyperedges",
        "clique": "cliques",
        "khop": "1-hop balls",
        "knn": "5 nearest by features",
        "cycle cells": "cycles",
        "knn cells": "5 nearest by features, and cycles",
    },
)
