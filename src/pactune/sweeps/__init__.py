"""Grids of tuning runs on Ray: `pt.sweep` and `pactune sweep`.

`run` hands every cell of the grid to Ray as a task, and `worker` fits a cell on a Ray worker. The two communicate
through the journal in the cell's run folder. A new setting of `sweep` belongs in `cell_settings` and, if a TOML file
may give it, in `spec`.

The package is not called `sweep`, because importing it would then replace the function `pt.sweep` by the module.
"""

from pactune.sweeps.result import CellResult, SweepResult
from pactune.sweeps.run import sweep
from pactune.sweeps.spec import Spec, read_spec

__all__ = ["CellResult", "Spec", "SweepResult", "read_spec", "sweep"]
