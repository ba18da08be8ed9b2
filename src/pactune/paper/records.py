"""The old address of `pactune.paper.weight_decay.records`; to be removed with its last import."""

from pactune.paper.weight_decay.records import RunRecord, StudyRecord, read_studies

__all__ = ["RunRecord", "StudyRecord", "read_studies"]
