"""What the comparison's tables and figure show."""

from __future__ import annotations

from shared.tables import Metric, Report

REPORT = Report(
    method="nat",
    baselines=["vanilla", "pgd_at", "at_mix", "trades", "mart", "pgd_at_awp", "ω = 0"],  # the last in the ablations
    metrics=[
        Metric("worst", "worst case", percent=True),
        Metric("clean", "clean", percent=True),
        Metric("average", "average", percent=True),
        Metric("aa", "AutoAttack", percent=True),
        Metric("pgd20", "PGD-20", percent=True),
        Metric("cw40", "CW-40", percent=True),
        Metric("entropy", "entropy (nats)", higher_is_better=False, digits=3),
        Metric("margin", "logit margin", digits=2),
    ],
    titles={
        "digits": "Digits, 8 x 8",
        "mnist5k": "MNIST, 5,000 images",
        "ablations": "Ablations on the digits",
    },
    labels={
        "nat": "NAT",
        "vanilla": "vanilla",
        "pgd_at": "PGD-AT (X' only)",
        "at_mix": "AT on X and X' (ω = 0)",
        "trades": "TRADES",
        "mart": "MART",
        "pgd_at_awp": "PGD-AT + AWP",
    },
)
