"""`check_hypergradient` compares a hypergradient with slow references.

The references replay a run in float64 and take finite differences, so they share no derivative with the estimators. An
estimator that promises a new kind of derivative needs a reference here.
"""
