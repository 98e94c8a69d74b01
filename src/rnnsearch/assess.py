"""The name under which scripts know `rnnsearch.evaluate.assess`."""

from rnnsearch.evaluate.assess import Assessment, assess, record, training_counts

__all__ = ["Assessment", "assess", "record", "training_counts"]
