"""What the comparison's tables and figure show."""

from __future__ import annotations

from shared.tables import Metric, Report

KEPT = ("keep=0.5", "keep=0.3", "keep=0.1")

REPORT = Report(
    method="orderdp",
    baselines=["full", "random", "topq", "infobatch", "ucb", "eps_greedy", "static"],
    metrics=[
        Metric("accuracy", "accuracy", percent=True),
        Metric("seen", "samples seen", higher_is_better=False, percent=True),
        Metric("train_seconds", "training loop (s)", higher_is_better=False, digits=1),
        Metric("loss", "test loss (nats)", higher_is_better=False, digits=3),
    ],
    titles={
        "keep=0.5": "MNIST, 4,000 images, 50 % pruned",
        "keep=0.3": "MNIST, 4,000 images, 70 % pruned",
        "keep=0.1": "MNIST, 4,000 images, 90 % pruned",
        "noise": "70 % pruned, 20 % of the training labels random",
        "ablations": "Ablations, 70 % pruned",
    },
    labels={
        "orderdp": "OrderDP",
        "full": "full training",
        "random": "dynamic random (s = q)",
        "topq": "top q of all (s = n)",
        "infobatch": "InfoBatch",
        "ucb": "UCB",
        "eps_greedy": "ε-greedy",
        "static": "static, scored once",
    },
)
