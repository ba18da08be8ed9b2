"""Estimators of scikit-learn over `pt.tune`: `TunedClassifier` and `TunedRegressor`.

`estimators` turns arrays into tensors and back. `targets` says how targets carry weights and units through `pt.tune`,
`modules` makes the module that is trained.
"""

from pactune.extras import require

require("sklearn")  # before the imports below, which need it

from pactune.sklearn.estimators import TunedClassifier, TunedRegressor  # noqa: E402

__all__ = ["TunedClassifier", "TunedRegressor"]
