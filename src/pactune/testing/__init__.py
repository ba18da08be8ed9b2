"""Slow, obvious references that every fast path is tested against, for pactune's own tests and for yours."""

from pactune.testing.frozen import frozen_regularizer, frozen_risk, path_sums, record_path
from pactune.testing.quadratic import Quadratic, QuadraticRun

__all__ = ["Quadratic", "QuadraticRun", "frozen_regularizer", "frozen_risk", "path_sums", "record_path"]
