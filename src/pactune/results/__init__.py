"""The result of a run, its verdict and plots, and the callbacks that a run calls.

A run adds rows to its history and ends in a `Result`. Nothing in this room runs a model. A new method of the result or
a new event for callbacks belongs here.
"""
