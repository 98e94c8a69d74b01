"""The quality benchmark: its configs are valid, and a system above its bound is reported."""

from __future__ import annotations

import pytest

from benchmarks import quality
from benchmarks.quality import SYSTEMS, Result
from rnnsearch.training.run import check


@pytest.mark.parametrize("name", SYSTEMS)
def test_configs_are_valid(name: str) -> None:
    config = quality.system_config(SYSTEMS[name], threads=1)
    assert not check(config)
    assert config.training.max_updates == quality.UPDATES


@pytest.mark.parametrize(("excess", "verdict"), [(0.02, "yes"), (0.04, "NO")])
def test_nll_above_the_bound_is_an_error(
    excess: float, verdict: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train_system(name: str, system: quality.QualitySystem, _threads: int) -> Result:
        return Result(name, 1000, 1.5, system.measured_nll * (1 + (excess if name == "cgru" else 0)))

    monkeypatch.setattr(quality, "train_system", train_system)
    monkeypatch.setattr("sys.argv", ["quality", "--systems", "cgru", "copynet"])
    if verdict == "NO":
        with pytest.raises(SystemExit) as exit_info:
            quality.main()
        assert exit_info.value.code == 1
    else:
        quality.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| c")]
    assert [row.split(" | ")[-1].rstrip(" |") for row in rows] == [verdict, "yes"]
