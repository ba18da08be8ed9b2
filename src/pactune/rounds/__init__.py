"""One outer step's inner loop for one run: its inputs, its chains, and its outcome.

A round runs T inner steps of every chain and differentiates the objective at the end. `RunInputs` gives each step its
mini-batches and noise, a `Chain` takes the steps, and `combine` turns the chains into one outcome. Change here what a
round measures; change in `engines` how fast its steps run.
"""
