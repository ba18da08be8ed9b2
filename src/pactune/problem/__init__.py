"""The problem: data sets, losses, the model's parameters θ and the hyperparameters λ, as pure functions.

`Problem` puts a model, a hyperparameter module and data together. A new hook for hyperparameters belongs in `hooks`, a
new ready-made hyperparameter module in `hyper`, a new kind of data set in `data`.
"""

from pactune.problem.problem import Problem

__all__ = ["Problem"]
