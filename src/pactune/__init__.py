"""Tune hyperparameters by gradient under a PAC-Bayes objective."""

__version__ = "0.1.0"
