"""Training on a GPU: the same learning as on a CPU. Skipped where there is none."""

import signal
from typing import Any

import pytest
import torch

from rnnsearch.accel import cuda_graphs
from rnnsearch.accel.cuda_graphs import PassRecorder
from rnnsearch.errors import Interrupted
from tests.training.toys import PLAIN

pytestmark = pytest.mark.cuda


def test_a_gpu_learns_what_a_cpu_learns(learn, monkeypatch):
    recorders = []
    monkeypatch.setattr(
        cuda_graphs, "PassRecorder", lambda *given: recorders.append(PassRecorder(*given)) or recorders[-1]
    )
    training = {"max_updates": 30, "evaluate_every": 10, "clip_norm": 1.0}
    told = {device: learn(device, PLAIN, device=device, **training) for device in ("cpu", "cuda")}
    for here, there in zip(told["cpu"].updates, told["cuda"].updates, strict=True):
        assert there["nll_per_word"] == pytest.approx(here["nll_per_word"], rel=1e-2)
    for here, there in zip(told["cpu"].evaluations, told["cuda"].evaluations, strict=True):
        assert there["dev_nll"] == pytest.approx(here["dev_nll"], rel=1e-2)
    assert any(len(each) for each in recorders), "nothing was recorded"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_on_a_gpu_goes_on(learn, precision):
    adam = {"device": "cuda", "precision": precision, "max_updates": 12, "evaluate_every": 4}
    straight = learn("straight", **adam)

    def interrupt(update: int) -> None:
        if update == 5:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="at update 5"):
        learn("broken", after=interrupt, **adam)
    broken = learn("broken", resume=True, **adam)
    last = [told.updates[-1]["nll_per_word"] for told in (straight, broken)]
    assert last[0] == pytest.approx(last[1], rel=1e-3)


def test_a_batch_too_large_for_the_memory_is_split(learn, monkeypatch):
    from rnnsearch.models.translation_model import TranslationModel

    encode = TranslationModel.encode

    def cramped(self: TranslationModel, sources: Any, *rest: Any) -> Any:
        (source,) = sources.values()
        if torch.is_grad_enabled() and len(source.ids) > 4:
            torch.empty(1 << 46, dtype=torch.uint8, device=source.ids.device)
        return encode(self, sources, *rest)

    monkeypatch.setattr(TranslationModel, "encode", cramped)
    told = learn(device="cuda", max_updates=2)
    assert any("do not fit into memory; split and tried again" in message for message in told.messages)
