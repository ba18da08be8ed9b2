"""The regularizer of Eq. 5, measured inside a training loop that pactune does not run.

`CoherenceMonitor` computes the training and the validation gradient at a step and adds up ‖Δ_t‖². It changes nothing
that the training loop can see. A new setting is checked in `checks`.
"""

from pactune.monitor.coherence import CoherenceMonitor

__all__ = ["CoherenceMonitor"]
