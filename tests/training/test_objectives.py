"""Every objective trains, goes on bit for bit where it was interrupted, and is read back; two directions are two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rnnsearch import config as run_config
from rnnsearch.data.prepared import Prepared
from rnnsearch.errors import TrainingError
from rnnsearch.systems.folder import load_system
from rnnsearch.training.run import check, train

ADAM = {"type": "adam", "learning_rate": 0.01}
HARD = {"model": {"attention": {"normaliser": "hard"}}}
FITTING = {
    "doubly stochastic": ({"doubly_stochastic": 0.1}, {}),
    "fertility": ({"fertility": {"size": 4, "weight": 0.2}}, {}),
    "cross-entropy": ({"supervision": {"type": "cross-entropy"}}, {}),
    "squared error": ({"supervision": {"type": "squared-error", "weight": 2.0, "unaligned": "end"}}, {}),
    "read words": (
        {"supervision": {"type": "cross-entropy", "word": "read"}},
        {"model": {"decoder": {"type": "cgru", "cell": "gru", "size": 9, "readout": 5}}},
    ),
    "average baseline": ({"reinforce": {"baseline": "average", "decay": 0.9, "entropy": 0.01}}, HARD),
    "learned baseline": ({"reinforce": {"baseline": "learned"}}, HARD),
    "symmetry with all": (
        {
            "symmetry": 0.3,
            "doubly_stochastic": 0.1,
            "fertility": {"size": 4},
            "supervision": {"type": "cross-entropy"},
        },
        {},
    ),
}


@pytest.fixture
def trained(configure: Any, aligned: Prepared, recorder: Any, tmp_path: Path) -> Any:
    """Trains an `[objective]` with other `tables` into a folder; returns what the reporter was told."""

    def run(objective: dict[str, Any], tables: dict[str, Any], name: str = "run", **training: Any) -> Any:
        data = {"alignments": ["train.align"], "dev_alignments": "dev.align"}
        config = configure(run_config.merge(tables, {"objective": objective, "data": data}), optimiser=ADAM, **training)
        assert check(config) == []
        told = recorder()
        train(config, aligned, tmp_path / name, told, resume=True)
        return told

    return run


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("case", FITTING)
def test_every_fitting_objective_trains_goes_on_and_is_read_back(
    trained: Any, configure: Any, tmp_path: Path, case: str, precision: str
) -> None:
    objective, tables = FITTING[case]
    given = configure({"objective": objective}, max_updates=1).objective
    told = trained(objective, tables, "whole", max_updates=5, precision=precision)
    assert len(told.updates) == 5
    for end in (3, 5):
        trained(objective, tables, "parts", max_updates=end, precision=precision)
    for suffix in ("", "-reverse") if "symmetry" in objective else ("",):
        one, two = (load_system(tmp_path / f"{name}{suffix}") for name in ("whole", "parts"))
        for (name, a), (_, b) in zip(one.model.named_parameters(), two.model.named_parameters(), strict=True):
            assert torch.equal(a, b), name
        assert (one.model.auxiliary is None) == ("fertility" not in objective and "reinforce" not in objective)
    assert load_system(tmp_path / "whole").config.objective == given


def test_data_prepared_without_links_are_refused(
    configure: Any, prepared: Prepared, recorder: Any, tmp_path: Path
) -> None:
    objective = {"objective": {"supervision": {"type": "cross-entropy"}}}
    config = configure({**objective, "data": {"alignments": ["train.align"]}}, optimiser=ADAM, max_updates=1)
    with pytest.raises(TrainingError, match="has no word alignments to supervise attention with; prepare it again"):
        train(config, prepared, tmp_path / "run", recorder())


def test_a_run_leaves_two_models(trained: Any, tmp_path: Path) -> None:
    told = trained({"symmetry": 0.5}, {}, max_updates=6, evaluate_every=2, average=2)
    assert len(told.evaluations) == 3
    assert any("mean of the last 2" in message for message in told.messages)
    there, back = load_system(tmp_path / "run"), load_system(tmp_path / "run-reverse")
    assert (back.config.data.source, back.config.data.target) == ("bb", "aa")
    assert back.config.data.train == ["train.bb|train.aa"]
    for folder, pair in (("run", ["aa", "bb"]), ("run-reverse", ["bb", "aa"])):
        facts = json.loads((tmp_path / folder / "training.json").read_text())
        assert facts["pair"] == pair
        assert facts["updates"] == 6
        assert facts["parameters"] == sum(p.numel() for p in there.model.parameters())
        assert (tmp_path / folder / "card.md").is_file()


def test_a_reverse_model_in_the_way_is_kept(trained: Any, tmp_path: Path) -> None:
    (tmp_path / "run-reverse").mkdir()
    (tmp_path / "run-reverse" / "model.safetensors").write_bytes(b"precious")
    with pytest.raises(TrainingError, match="run-reverse: holds a model without a checkpoint"):
        trained({"symmetry": 0.5}, {}, max_updates=2)
    assert (tmp_path / "run-reverse" / "model.safetensors").read_bytes() == b"precious"
