"""Section 4.1, Freedman's paradox: choosing a few of 500 features, of which two or none predict the target.

`data` draws the problem, `study` runs all criteria on many draws, `dynamics` computes the predictions of the
Langevin dynamics, and `figures` draws the results. A new criterion is a row of `study.SELECTORS`.
"""
