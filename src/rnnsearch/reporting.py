"""The name under which scripts know `rnnsearch.evaluate.report`."""

from rnnsearch.evaluate.report import read_grouped, write_assessment, write_run_report

__all__ = ["read_grouped", "write_assessment", "write_run_report"]
