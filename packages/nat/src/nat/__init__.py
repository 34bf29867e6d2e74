"""Nasty adversarial training."""
