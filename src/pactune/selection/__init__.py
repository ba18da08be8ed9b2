"""Feature selection that stops at the true features: forward selection under a PAC-Bayes objective."""

from pactune.selection.selector import ForwardSelector
from pactune.selection.step_size import StepSizeWarning

__all__ = ["ForwardSelector", "StepSizeWarning"]
