"""Feature selection that stops at the true features: forward selection under EBIC or a PAC-Bayes objective.

`ForwardSelector` standardises the rows and adds features one by one. A criterion scores the candidates of a step; a new
criterion belongs beside `least_squares` and `pac_bayes`. `comparison` measures how well the choice predicts new rows.
"""

from pactune.extras import require

require("sklearn")  # before the imports below, which need it

from pactune.selection.selector import ForwardSelector  # noqa: E402
from pactune.selection.step_size import StepSizeWarning  # noqa: E402

__all__ = ["ForwardSelector", "StepSizeWarning"]
