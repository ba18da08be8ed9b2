"""`Tuner` with its settings, the outer run, the choice of ζ, and grids.

`Tuner` holds settings. `OuterRun` holds the state of a run, and `Fit` moves it from outer step to outer step. A new
setting belongs in `settings`, a new rule for ζ in `auto_zeta`.
"""
