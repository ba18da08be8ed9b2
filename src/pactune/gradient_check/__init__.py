"""`check_hypergradient` and the slow references that it compares with.

The references replay a run in float64 and take finite differences, so they share no derivative with the estimators.
"""
