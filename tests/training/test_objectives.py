"""Every objective trains, resumes bit for bit and loads; training both directions writes two models."""

import json
import os
import signal
from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import load_file

from rnnsearch.config import merge
from rnnsearch.data.workers import Pool
from rnnsearch.errors import ConfigError, Interrupted, ModelError, TrainingError
from rnnsearch.export import onnx
from rnnsearch.export.engine_file import unsupported_reason
from rnnsearch.systems.folder import load_system
from tests.training.toys import ALIGNED, HARD_ATTENTION

CGRU_READOUT = {"decoder": {"type": "cgru", "cell": "gru", "size": 9, "readout": 5}}
SUPERVISED = {"supervision": {"type": "cross-entropy"}}
ACTOR_CRITIC = {"type": "actor-critic", "critic_size": 4, "critic_updates": 2, "critic_learning_rate": 2.0}
ACTOR_CRITIC |= {"likelihood": 0.1, "gamma_theta": 0.3, "gamma_phi": 0.2}
GREEDY_ACTOR = {"type": "greedy-actor", "actor_size": 5, "critic_size": 4, "critic_updates": 2, "samples": 2}
FORWARD = {
    "encoder": {"type": "unidirectional", "cell": "gru", "size": 6},
    "decoder": {"type": "cohn", "cell": "gru", "size": 9},
}
READ_WRITE = {"type": "read-write", "agent_size": 5, "baseline_size": 4, "samples": 2, "entropy": 0.1}
OBJECTIVES = {
    "doubly stochastic": {"objective": {"doubly_stochastic": 0.1}},
    "fertility": {"objective": {"fertility": {"size": 4, "weight": 0.2}}},
    "cross-entropy": {"objective": SUPERVISED},
    "squared error": {"objective": {"supervision": {"type": "squared-error", "weight": 2.0, "unaligned": "end"}}},
    "read words": {"objective": {"supervision": {"type": "cross-entropy", "word": "read"}}, "model": CGRU_READOUT},
    "minimum risk": {"objective": {"sequence": {"type": "mrt", "samples": 3, "likelihood": 0.1}}},
    "scheduled sampling": {
        "objective": {
            "sequence": {"type": "scheduled-sampling", "decay": {"type": "linear", "minimum": 0.2, "updates": 4}}
        }
    },
    "REINFORCE": {"objective": {"sequence": {"type": "reinforce", "samples": 2, "reward": {"type": "ter"}}}},
    "REINFORCE, average": {"objective": {"sequence": {"type": "reinforce", "baseline": {"type": "average"}}}},
    # 6 updates per epoch: the likelihood, then 2 and 4 words of REINFORCE
    "MIXER": {
        "objective": {
            "sequence": {"type": "mixer", "cross_entropy_epochs": 0.3, "epochs_per_step": 0.3, "step": 2}
            | {"reward": {"type": "chrf"}, "likelihood": 0.1}
        }
    },
    "actor-critic": {"objective": {"sequence": ACTOR_CRITIC}},
    # Its dev NLL may rise, so both runs must choose the best weights among the same ones.
    "greedy actor": {
        "objective": {"sequence": GREEDY_ACTOR},
        "training": {"begin_from": "first", "evaluate_every": 1},
    },
    "beam search": {
        "objective": {"sequence": {"type": "bso", "beam": 3, "epochs_per_beam": 0.1, "cost": "bleu"}},
        "search": {"length_penalty": 0.0, "stop": "top"},
        "training": {"metric": "bleu", "dev_bleu": True},
    },
    "average baseline": merge(HARD_ATTENTION, {"objective": {"reinforce": {"decay": 0.9, "entropy": 0.01}}}),
    "learned baseline": {**HARD_ATTENTION, "objective": {"reinforce": {"baseline": "learned"}}},
    "symmetry with all": {
        "objective": {"symmetry": 0.3, "doubly_stochastic": 0.1, "fertility": {"size": 4}, **SUPERVISED}
    },
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("case", OBJECTIVES)
def test_every_objective_trains_resumes_and_loads(learn, configure, aligned, tmp_path, case, precision):
    tables = merge(ALIGNED, OBJECTIVES[case])
    if "begin_from" in tables.get("training", {}):
        learn("first", ALIGNED, data=aligned, max_updates=1)
        tables = merge(tables, {"training": {"begin_from": str(tmp_path / "first")}})
    recorder = learn("whole", tables, data=aligned, max_updates=5, precision=precision)
    assert len(recorder.updates) == 5
    for end in (3, 5):
        learn("parts", tables, data=aligned, resume=True, max_updates=end, precision=precision)
    objective = tables["objective"]
    for suffix in ("", "-reverse") if "symmetry" in objective else ("",):
        whole = load_system(tmp_path / f"whole{suffix}")
        parts = load_system(tmp_path / f"parts{suffix}")
        for (name, a), (_, b) in zip(whole.model.named_parameters(), parts.model.named_parameters(), strict=True):
            assert torch.equal(a, b), name
        assert (whole.model.auxiliary is None) != configure(tables, max_updates=1).objective.has_parameters
    assert load_system(tmp_path / "whole").config.objective == configure(tables, max_updates=1).objective


def test_supervision_rejects_data_without_links(learn):
    tables = {"objective": SUPERVISED, "data": {"alignments": ["train.align"]}}
    with pytest.raises(TrainingError, match="has no word alignments to supervise attention with; prepare it again"):
        learn(tables=tables, max_updates=1)


def test_symmetric_run_writes_two_models(learn, tmp_path):
    recorder = learn(tables={"objective": {"symmetry": 0.5}}, max_updates=6, evaluate_every=2, average=2)
    assert len(recorder.evaluations) == 3
    assert any("mean of the last 2" in message for message in recorder.messages)
    forward, reverse = load_system(tmp_path / "run"), load_system(tmp_path / "run-reverse")
    assert (reverse.config.data.source, reverse.config.data.target) == ("bb", "aa")
    assert reverse.config.data.train == ["train.bb|train.aa"]
    for folder, pair in (("run", ["aa", "bb"]), ("run-reverse", ["bb", "aa"])):
        facts = json.loads((tmp_path / folder / "training.json").read_text())
        assert facts["pair"] == pair
        assert facts["updates"] == 6
        assert facts["parameters"] == sum(p.numel() for p in forward.model.parameters())
        assert (tmp_path / folder / "card.md").is_file()


def test_existing_reverse_model_is_not_overwritten(learn, tmp_path):
    (tmp_path / "run-reverse").mkdir()
    (tmp_path / "run-reverse" / "model.safetensors").write_bytes(b"precious")
    with pytest.raises(TrainingError, match="run-reverse: holds a model without a checkpoint"):
        learn(tables={"objective": {"symmetry": 0.5}}, max_updates=2)
    assert (tmp_path / "run-reverse" / "model.safetensors").read_bytes() == b"precious"


def test_critic_has_a_learning_rate_and_is_left_out_of_other_warm_starts(learn, tmp_path):
    learn("critic", {"objective": {"sequence": ACTOR_CRITIC}}, max_updates=1)
    system = load_system(tmp_path / "critic")
    trained, critic = system.parameter_groups()
    assert [trained.learning_rate_factor, critic.learning_rate_factor] == [1.0, 2.0]
    assert critic.parameters == list(system.model.auxiliary.actor_critic.critic.parameters())
    assert len(trained.parameters) + len(critic.parameters) == len(list(system.model.parameters()))
    recorder = learn("likelihood", max_updates=1, begin_from=str(tmp_path / "critic"))
    assert any("warm start" in message for message in recorder.messages)
    assert load_system(tmp_path / "likelihood").model.auxiliary is None


@pytest.mark.parametrize(
    ("changes", "is_inherited"),
    [({"samples": 2}, True), ({"reward": {"type": "chrf"}}, False), ({"critic_size": 5}, False)],
)
def test_critic_is_inherited_for_the_same_reward_and_size(learn, tmp_path, changes, is_inherited):
    learn("critic", {"objective": {"sequence": ACTOR_CRITIC}}, max_updates=2)
    sequence = {**ACTOR_CRITIC, "critic_updates": 0, **changes}
    tables = {"objective": {"sequence": sequence}}
    recorder = learn("next", tables, max_updates=1, begin_from=str(tmp_path / "critic"))
    [message] = [message for message in recorder.messages if "warm start" in message]
    assert ("new parameters are initialised as usual" in message) != is_inherited


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_agent_resumes_bit_for_bit(learn, tmp_path, precision):
    """Last weights are compared, because those with the best reward depend on when a run was evaluated."""
    learn("first", {"model": FORWARD}, max_updates=1)
    tables = {"model": FORWARD, "objective": {"sequence": READ_WRITE}}
    options = {"metric": "reward", "dev_bleu": True, "precision": precision, "begin_from": str(tmp_path / "first")}
    learn("whole", tables, max_updates=5, **options)
    for end in (3, 5):
        learn("parts", tables, resume=True, max_updates=end, **options)
    whole, parts = (
        load_file(tmp_path / run / "checkpoints" / "last" / "model.safetensors") for run in ("whole", "parts")
    )
    assert whole.keys() == parts.keys()
    for name, tensor in whole.items():
        assert torch.equal(tensor, parts[name]), name


def test_agent_is_trained_and_the_model_is_not(learn, tmp_path):
    learn("first", {"model": FORWARD}, max_updates=1)
    tables = {"model": FORWARD, "objective": {"sequence": READ_WRITE}, "training": {"metric": "reward"}}
    recorder = learn("agent", tables, max_updates=4, evaluate_every=2, begin_from=str(tmp_path / "first"))
    first, system = load_system(tmp_path / "first"), load_system(tmp_path / "agent")
    weights = dict(system.model.named_parameters())
    for name, parameter in first.model.named_parameters():
        assert torch.equal(parameter, weights[name]), name
    assert system.model.agent.write.weight.any() and system.model.auxiliary.agent_baseline.weight > 0
    assert {"reward", "quality", "lagging", "proportion"} <= recorder.updates[-1].keys()
    for row in recorder.evaluations:
        assert 0 < row["dev_proportion"] <= 1 and "dev_lagging" in row and row["dev_bleu"] is None
    best = [row["best"] for row in recorder.evaluations]
    assert best[1] == (recorder.evaluations[1]["dev_reward"] > recorder.evaluations[0]["dev_reward"])
    with pytest.raises(ConfigError, match=r"agent has an agent .* begin from the model that the agent was trained on"):
        learn("second", {"model": FORWARD}, max_updates=1, begin_from=str(tmp_path / "agent"))


def test_warm_start_from_an_actor_without_one_is_rejected(learn, tmp_path):
    learn("first", max_updates=1)
    learn("actor", {"objective": {"sequence": GREEDY_ACTOR}}, max_updates=1, begin_from=str(tmp_path / "first"))
    with pytest.raises(ConfigError, match=r"actor has an actor .* begin from the model that the actor was trained on"):
        learn("second", max_updates=1, begin_from=str(tmp_path / "actor"))


def test_random_start_is_reported(learn):
    recorder = learn("random", {"objective": {"sequence": {"type": "mrt", "samples": 2}}}, max_updates=1)
    assert "training.begin_from is not set, but mrt learns little from random translations" in recorder.messages


def test_only_the_actor_and_its_critic_are_trained(learn, tmp_path):
    learn("first", max_updates=2)
    learn("actor", {"objective": {"sequence": GREEDY_ACTOR}}, max_updates=4, begin_from=str(tmp_path / "first"))
    first = dict(load_system(tmp_path / "first").model.named_parameters())
    system = load_system(tmp_path / "actor")
    for name, parameter in system.model.named_parameters():
        if name in first:
            assert torch.equal(parameter, first[name])
        else:
            assert name.startswith(("actor.", "auxiliary.state_critic."))
    assert system.model.actor.action.weight.abs().max() > 0
    assert "an actor" in unsupported_reason(system.config, system.model)
    assert "the actor that changes its decoder's states" in onnx.unsupported_reason(system.model)
    with pytest.raises(ModelError, match="posterior attention needs a decoder without an actor"):
        system.require("posterior")


@pytest.mark.parametrize("interrupted", [False, True])
def test_processes_of_rewards_end_with_training(learn, monkeypatch, interrupted):
    pools = []
    close = Pool.__exit__
    monkeypatch.setattr(Pool, "__exit__", lambda pool, *error: pools.append(pool) or close(pool, *error))

    def after(update):
        if interrupted and update == 2:
            os.kill(os.getpid(), signal.SIGINT)

    sequence = {"type": "reinforce", "samples": 12, "baseline": {"type": "average"}, "reward": {"type": "chrf"}}
    with pytest.raises(Interrupted) if interrupted else nullcontext():
        learn(tables={"objective": {"sequence": sequence}}, max_updates=3, after=after)
    processes = [process for pool in pools for process in pool._processes]
    assert len(processes) >= 2
    assert all(process.poll() is not None for process in processes)
