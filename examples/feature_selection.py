"""Feature selection
=================

Select features where the validation score would overfit: 300 rows, 200 features, three of them true.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline

from pactune.selection import ForwardSelector

TRUE = [10, 20, 30]

rng = np.random.default_rng(0)
X = rng.normal(size=(1300, 200))
y = X[:, TRUE].sum(axis=1) + 1.5 * rng.normal(size=1300)
X, X_new, y, y_new = X[:300], X[300:], y[:300], y[300:]

print(f"true features: {TRUE}")
for criterion in ("ebic", "pac-bayes", "validation", "aic"):
    selector = ForwardSelector(criterion=criterion, random_state=0)
    model = make_pipeline(selector, LinearRegression()).fit(X, y)
    score = model.score(X_new, y_new)
    print(f"{criterion:10} R² on new rows {score:.3f}, {selector.n_features_} features: {selector.order_.tolist()}")

selector = ForwardSelector(max_features=6).fit(X, y)
print("\nThe path that ebic took, the empty model first:")
print(selector.path_.round(3).to_string(index=False))

# %%
# The criterion along the path has its minimum at the three true features.

figure, axes = plt.subplots()
axes.plot(selector.path_["step"], selector.path_["objective"], "o-")
axes.plot(selector.n_features_, selector.path_["objective"].min(), "o", markersize=12, fillstyle="none")
axes.set(xlabel="number of features", ylabel="EBIC", title="Where the selection stops")
axes.locator_params(axis="x", integer=True)
plt.show()
