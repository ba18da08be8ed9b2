"""Feature selection that stops at the true features: forward selection under a PAC-Bayes objective.

`ForwardSelector` splits and standardises the rows and adds features one by one. A criterion scores the candidates of a
step; a new criterion belongs beside `least_squares` and `pac_bayes`.
"""

from pactune.selection.selector import ForwardSelector
from pactune.selection.step_size import StepSizeWarning

__all__ = ["ForwardSelector", "StepSizeWarning"]
