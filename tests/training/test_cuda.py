"""Training on a GPU, compared with a CPU. Skipped without a GPU."""

import signal
from typing import Any

import pytest
import torch

from rnnsearch.accel import cuda_graphs
from rnnsearch.accel.cuda_graphs import PassRecorder
from rnnsearch.errors import Interrupted
from tests.training.toys import WITHOUT_DROPOUT

pytestmark = pytest.mark.cuda


def test_gpu_training_is_close_to_cpu_training(learn, monkeypatch):
    recorders = []
    monkeypatch.setattr(
        cuda_graphs, "PassRecorder", lambda *args: recorders.append(PassRecorder(*args)) or recorders[-1]
    )
    training = {"max_updates": 30, "evaluate_every": 10, "clip_norm": 1.0}
    cpu = learn("cpu", WITHOUT_DROPOUT, device="cpu", **training)
    gpu = learn("cuda", WITHOUT_DROPOUT, device="cuda", **training)
    for cpu_row, gpu_row in zip(cpu.updates, gpu.updates, strict=True):
        assert gpu_row["nll_per_word"] == pytest.approx(cpu_row["nll_per_word"], rel=1e-2)
    for cpu_row, gpu_row in zip(cpu.evaluations, gpu.evaluations, strict=True):
        assert gpu_row["dev_nll"] == pytest.approx(cpu_row["dev_nll"], rel=1e-2)
    assert any(len(recorder) for recorder in recorders), "no CUDA graph was recorded"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_resumed_run_on_gpu_is_close_to_uninterrupted_run(learn, precision):
    training = {"device": "cuda", "precision": precision, "max_updates": 12, "evaluate_every": 4}
    straight = learn("straight", **training)

    def interrupt(update: int) -> None:
        if update == 5:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="interrupted at update"):
        learn("broken", after=interrupt, **training)
    broken = learn("broken", resume=True, **training)
    assert straight.updates[-1]["nll_per_word"] == pytest.approx(broken.updates[-1]["nll_per_word"], rel=1e-3)


def test_batch_that_exceeds_gpu_memory_is_split(learn, monkeypatch):
    from rnnsearch.models.translation_model import TranslationModel

    encode = TranslationModel.encode

    def encode_few_rows(self: TranslationModel, sources: Any, *args: Any) -> Any:
        (source,) = sources.values()
        if torch.is_grad_enabled() and len(source.ids) > 4:
            torch.empty(1 << 46, dtype=torch.uint8, device=source.ids.device)  # raises OutOfMemoryError
        return encode(self, sources, *args)

    monkeypatch.setattr(TranslationModel, "encode", encode_few_rows)
    recorder = learn(device="cuda", max_updates=2)
    assert any("do not fit into memory; split and tried again" in message for message in recorder.messages)
