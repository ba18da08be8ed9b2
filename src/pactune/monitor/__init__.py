"""The regularizer of Eq. 5, measured inside a training loop that somebody else owns."""

from pactune.monitor.coherence import CoherenceMonitor

__all__ = ["CoherenceMonitor"]
