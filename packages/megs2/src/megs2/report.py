"""What the comparison's tables and figure show."""

from __future__ import annotations

from shared.tables import Metric, Report

REPORT = Report(
    method="smoothed",
    baselines=["plain"],
    metrics=[Metric("accuracy", "accuracy", percent=True)],
    titles={"digits": "Digits, 8 x 8"},
    labels={"smoothed": "label smoothing", "plain": "cross-entropy"},
)
