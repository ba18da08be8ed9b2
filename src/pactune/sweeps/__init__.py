"""Grids of tuning runs on Ray: `pt.sweep` and `pactune sweep`.

The package is not called `sweep` because importing it would put the module in the place of the function `pt.sweep`.
"""

from pactune.sweeps.result import CellResult, SweepResult
from pactune.sweeps.run import sweep
from pactune.sweeps.spec import Spec, read_spec

__all__ = ["CellResult", "Spec", "SweepResult", "read_spec", "sweep"]
