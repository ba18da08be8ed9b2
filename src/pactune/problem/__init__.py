"""What is trained on what: data sources, losses, the model's θ and the hyperparameters λ, seen as pure functions.

`Problem` puts a model, a hyperparameter module and data together. A new hook for hyperparameters belongs in `hooks`, a
new ready-made hyperparameter module in `hyper`, a new kind of data set in `data`.
"""

from pactune.problem.problem import Problem

__all__ = ["Problem"]
