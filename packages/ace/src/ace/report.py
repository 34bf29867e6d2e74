"""What the comparison's tables and figures show."""

from __future__ import annotations

from shared.tables import Metric, Report

from ace.plots import draw_collapse

REPORT = Report(
    method="ace",
    baselines=["base", "icl", "history", "rewrite"],
    metrics=[
        Metric("accuracy", "accuracy", percent=True),
        Metric("final_retention", "of the facts learned, kept at the end", percent=True),
        Metric("learned", "facts learned", digits=1),
        Metric("tokens", "tokens of the context", digits=0),
        Metric("calls", "calls", digits=0),
        Metric("completion_tokens", "tokens written", digits=0),
    ],
    titles={
        "country": "Country desk, offline",
        "country-online": "Country desk, online",
        "ablations": "Ablations on the country desk",
    },
    labels={
        "ace": "ACE",
        "base": "the model alone",
        "icl": "labelled demonstrations (ICL)",
        "history": "full history",
        "rewrite": "rewritten cheatsheet",
    },
    drawings={"collapse.png": draw_collapse},
)
