"""Thin adapters of `CoherenceMonitor` to Lightning, Optuna and Ray Tune. Each module imports its package by itself.

- `pactune.integrations.lightning`: `CoherenceCallback`.
- `pactune.integrations.optuna`: `CoherenceObjective`, `report`, `score`, `best_trial`.
- `pactune.integrations.ray_tune`: `report`.
"""
