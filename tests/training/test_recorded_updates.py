"""Recorded updates equal ordinary ones. A recorder that calls the function again stands for CUDA graphs."""

import pytest
import torch

from rnnsearch.accel import cuda_graphs
from rnnsearch.data.batches import make_batch
from rnnsearch.errors import TrainingError
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.objectives import penalties
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.systems.translation import build
from rnnsearch.training import recorded_updates, updates
from rnnsearch.training.recorded_updates import Step, UpdateRecorder, unsupported_reason
from tests.training.toys import HARD_ATTENTION, SGD

ADADELTA = {"type": "adadelta", "learning_rate": 1.0, "rho": 0.95, "epsilon": 1e-6}
UPDATES = 14  # more than two epochs, so that most shapes occur several times


@pytest.fixture
def record(monkeypatch):
    """Let the training loop record updates on a CPU, and return the list of its recorders."""
    recorders = []

    class Recorder(recorded_updates.UpdateRecorder):
        def __init__(self, step, _record):
            super().__init__(step, lambda work, _generator: work)
            recorders.append(self)
            self.replayed = 0

        def run(self, *args):
            values = super().run(*args)
            self.replayed += values is not None
            return values

    monkeypatch.setattr(updates, "graphs_are_enabled", lambda _: True)
    monkeypatch.setattr(updates, "CudaGraphs", lambda _: None)
    monkeypatch.setattr(updates, "UpdateRecorder", Recorder)
    return recorders


TRAININGS = {
    "adam": {"clip_norm": 1.0},
    "sgd": {"optimiser": SGD, "schedule": {"type": "linear", "warmup": 3}},
    "adadelta, words": {"optimiser": ADADELTA, "normalise": "tokens", "l2": 0.01},
    "adaptive clipping": {"clip_deviations": 4.0, "label_smoothing": 0.1},
    "bf16": {"precision": "bf16"},
}


@pytest.mark.parametrize("name", TRAININGS)
def test_recorded_training_equals_ordinary_training(name, learn, read_checkpoint, request):
    training = {"max_updates": UPDATES, **TRAININGS[name]}
    ordinary = learn("ordinary", **training)
    recorders = request.getfixturevalue("record")
    recorded = learn("recorded", **training)
    (recorder,) = recorders
    assert recorder.replayed > 3
    tolerance = 1e-2 if name == "bf16" else 1e-4
    for row, other in zip(recorded.updates, ordinary.updates, strict=True):
        for column in ("nll_per_word", "gradient_norm"):
            assert row[column] == pytest.approx(other[column], rel=tolerance)
        assert row["learning_rate"] == pytest.approx(other["learning_rate"])
    tensors, state = read_checkpoint("recorded")
    others, other_state = read_checkpoint("ordinary")
    assert state["norms"] == pytest.approx(other_state["norms"])
    for key, tensor in tensors.items():
        assert (tensor - others[key]).norm() <= tolerance * others[key].norm() + 1e-6, key


@pytest.mark.usefixtures("record")
def test_passes_of_ordinary_updates_are_not_recorded_separately(learn, monkeypatch):
    pauses = []
    forward = Likelihood.__call__

    def note_pauses(self, model, batch, rng):
        pauses.append(len(cuda_graphs._pauses))
        return forward(self, model, batch, rng)

    monkeypatch.setattr(Likelihood, "__call__", note_pauses)
    learn(max_updates=1)
    assert 1 in pauses  # the run is timed with a pass of its own first


@pytest.mark.usefixtures("record")
def test_loss_that_is_not_finite_stops_before_a_checkpoint(learn, tmp_path, monkeypatch):
    monkeypatch.setattr(recorded_updates, "update_results", lambda *_: torch.full((3,), torch.nan))
    with pytest.raises(TrainingError, match="no checkpoint contains it"):
        learn(max_updates=UPDATES, evaluate_every=100)
    assert not (tmp_path / "run" / "checkpoints" / "last").exists()


def test_updates_that_depend_on_more_than_shapes_are_not_recorded(record, learn):
    learn("hard", HARD_ATTENTION, max_updates=2)
    learn("rates", optimiser=ADADELTA, schedule={"type": "linear", "warmup": 3}, max_updates=2)
    learn("clipping", optimiser=ADADELTA, clip_deviations=4.0, max_updates=2)
    learn("two", batch={"accumulate": 2}, max_updates=2)
    assert not record


def test_reasons(configure):
    config = configure(max_updates=1)
    model = build(config.model, 12, 12, seed=1)
    batch = make_batch([([4, 5], [6])], [0])
    assert unsupported_reason(model, Likelihood(0.1), batch) is None
    hard = Likelihood(0.0, penalties(configure(HARD_ATTENTION, max_updates=1).objective))
    assert "penalties" in str(unsupported_reason(model, hard, batch))
    assert "maximum likelihood" in str(unsupported_reason(torch.nn.Linear(1, 1), Likelihood(), batch))


def test_padded_tokens_have_no_loss(configure):
    """Token positions are rounded up with positions of padding."""
    model = build(configure(max_updates=1).model, 12, 12, seed=1)
    batch = make_batch([([4, 5], [6, 7, 8]), ([4], [6])], [0, 1])
    mask = batch.target.mask
    positions = recorded_updates._token_positions(mask, mask.numel())
    assert positions[: batch.target.num_tokens].tolist() == batch.target.token_positions.tolist()
    assert not mask.flatten()[positions[batch.target.num_tokens :]].any()
    readout = torch.randn(mask.numel(), model.decoder.readout_size)
    ids = batch.target.ids.flatten()
    for smoothing in (0.0, 0.1):
        whole = model.output.losses(readout, ids, smoothing)
        real = model.output.losses(readout[mask.flatten()], ids[mask.flatten()], smoothing)
        torch.testing.assert_close(whole[0], real[0])
        torch.testing.assert_close(whole[1][mask.flatten()], real[1])


def test_recording_without_room_for_a_batch_is_replaced(configure):
    model = build(configure(max_updates=1).model, 12, 12, seed=1)
    few = make_batch([([4, 5], [6, 7, 8, 9, 4, 5, 6, 7]), *[([4], [6])] * 7], range(8))
    many = make_batch([([4, 5], [6, 7, 8, 9, 4, 5, 6, 7])] * 8, range(8))
    optimiser = torch.optim.Adam(model.parameters(), fused=True)
    losses = []

    def loss(batch, rng):
        losses.append(Likelihood()(model, batch, rng))
        return losses[-1]

    step = Step(loss, lambda: (torch.zeros(()), None), optimiser, torch.device("cpu"), "fp32")
    recorded = []
    recorder = UpdateRecorder(step, lambda work, _: recorded.append(work) or work)
    assert recorder.run(few, 1, 1) is None  # the first of its shape
    for batch, recordings in [(few, 1), (few, 1), (many, 2), (few, 2), (many, 2)]:
        nll = recorder.run(batch, 1, 1)[0].item()
        with torch.no_grad():
            expected = Likelihood()(model, batch, BatchRng(1)).nll.item()
        assert nll == pytest.approx(expected, rel=1e-5)
        assert (len(recorded), len(recorder)) == (recordings, 1)


def test_passes_are_recorded_if_updates_cannot_be(record, learn, monkeypatch):
    def fail(*_):
        raise RuntimeError("no graphs")

    monkeypatch.setattr(recorded_updates, "_RecordedUpdate", fail)
    recorder = learn(max_updates=UPDATES)
    assert len(recorder.updates) == UPDATES
    assert not record[0].works
    assert not cuda_graphs._pauses
