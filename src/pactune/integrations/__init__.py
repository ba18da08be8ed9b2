"""Thin adapters of `CoherenceMonitor` to tools that people already have; each imports its package itself.

- `pactune.integrations.lightning`: `CoherenceCallback`.
- `pactune.integrations.optuna`: `CoherenceObjective`, `report`, `score`, `best_trial`.
- `pactune.integrations.ray_tune`: `report`.
"""
