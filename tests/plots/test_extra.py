"""matplotlib is an extra: without it, plots and reports fail at once, and everything else works."""

import pytest

import rnnsearch
from rnnsearch.errors import RnnsearchError
from rnnsearch.evaluation.report import require_writable_outputs, write_run_report
from rnnsearch.metrics import plots
from tests.test_translation import MODEL


@pytest.fixture(autouse=True)
def without_matplotlib(monkeypatch):
    monkeypatch.setattr(plots, "find_spec", lambda _: None)


def test_plots_name_the_package_to_install(tmp_path):
    translation = rnnsearch.load(MODEL).translate("the dog sees a cat")
    for call in (
        translation.plot,
        lambda: translation.plot(tmp_path / "a.png"),
        lambda: require_writable_outputs(tmp_path / "report", None),
        lambda: write_run_report(MODEL, tmp_path / "report.html"),
    ):
        with pytest.raises(RnnsearchError, match=r'need matplotlib: pip install "rnnsearch\[plots\]"'):
            call()


def test_other_outputs_need_no_matplotlib(tmp_path):
    require_writable_outputs(None, tmp_path / "scores.json")
