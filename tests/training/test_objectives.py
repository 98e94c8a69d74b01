"""Every objective trains, goes on bit for bit where it was interrupted, and is read back; two directions are two."""

import json

import pytest
import torch

from rnnsearch.config import merge
from rnnsearch.errors import TrainingError
from rnnsearch.systems.folder import load_system
from tests.training.toys import ALIGNED, HARD

READ = {"decoder": {"type": "cgru", "cell": "gru", "size": 9, "readout": 5}}
SUPERVISED = {"supervision": {"type": "cross-entropy"}}
FITTING = {
    "doubly stochastic": {"objective": {"doubly_stochastic": 0.1}},
    "fertility": {"objective": {"fertility": {"size": 4, "weight": 0.2}}},
    "cross-entropy": {"objective": SUPERVISED},
    "squared error": {"objective": {"supervision": {"type": "squared-error", "weight": 2.0, "unaligned": "end"}}},
    "read words": {"objective": {"supervision": {"type": "cross-entropy", "word": "read"}}, "model": READ},
    "average baseline": merge(HARD, {"objective": {"reinforce": {"decay": 0.9, "entropy": 0.01}}}),
    "learned baseline": {**HARD, "objective": {"reinforce": {"baseline": "learned"}}},
    "symmetry with all": {
        "objective": {"symmetry": 0.3, "doubly_stochastic": 0.1, "fertility": {"size": 4}, **SUPERVISED}
    },
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("case", FITTING)
def test_every_fitting_objective_trains_goes_on_and_is_read_back(learn, configure, aligned, tmp_path, case, precision):
    tables = merge(ALIGNED, FITTING[case])
    told = learn("whole", tables, data=aligned, max_updates=5, precision=precision)
    assert len(told.updates) == 5
    for end in (3, 5):
        learn("parts", tables, data=aligned, resume=True, max_updates=end, precision=precision)
    objective = tables["objective"]
    for suffix in ("", "-reverse") if "symmetry" in objective else ("",):
        one, two = (load_system(tmp_path / f"{name}{suffix}") for name in ("whole", "parts"))
        for (name, a), (_, b) in zip(one.model.named_parameters(), two.model.named_parameters(), strict=True):
            assert torch.equal(a, b), name
        assert (one.model.auxiliary is None) == ("fertility" not in objective and "reinforce" not in objective)
    assert load_system(tmp_path / "whole").config.objective == configure(tables, max_updates=1).objective


def test_data_prepared_without_links_are_refused(learn):
    tables = {"objective": SUPERVISED, "data": {"alignments": ["train.align"]}}
    with pytest.raises(TrainingError, match="has no word alignments to supervise attention with; prepare it again"):
        learn(tables=tables, max_updates=1)


def test_a_run_leaves_two_models(learn, tmp_path):
    told = learn(tables={"objective": {"symmetry": 0.5}}, max_updates=6, evaluate_every=2, average=2)
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


def test_a_reverse_model_in_the_way_is_kept(learn, tmp_path):
    (tmp_path / "run-reverse").mkdir()
    (tmp_path / "run-reverse" / "model.safetensors").write_bytes(b"precious")
    with pytest.raises(TrainingError, match="run-reverse: holds a model without a checkpoint"):
        learn(tables={"objective": {"symmetry": 0.5}}, max_updates=2)
    assert (tmp_path / "run-reverse" / "model.safetensors").read_bytes() == b"precious"
