"""Feature selection that stops at the true features: forward selection under a PAC-Bayes objective."""

from pactune.extras import require

require("sklearn")  # before the imports below, which need it

from pactune.selection.selector import ForwardSelector  # noqa: E402
from pactune.selection.step_size import StepSizeWarning  # noqa: E402

__all__ = ["ForwardSelector", "StepSizeWarning"]
