"""The arithmetic of docs/cost.md, and that the page contains the output of the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import predict
from benchmarks.predict import (
    Run,
    all_reduce_seconds,
    estimated_table,
    fixed_bytes,
    flops_per_token,
    saved_activation_bytes,
)
from rnnsearch.config import resolve

PAGE = Path(__file__).parents[2] / "docs" / "cost.md"


def test_time_on_one_gpu_is_tokens_by_speed() -> None:
    run = Run(pairs=1000, target_length=36.0, epochs=2.0)
    assert predict.training_hours(run, 10.0, 100.0, 1000, gpus=1) == pytest.approx(2.0)


def test_time_on_eight_gpus_is_an_eighth_plus_all_reduce() -> None:
    run = Run(pairs=1000, target_length=36.0, epochs=2.0, bandwidth=1000.0)
    assert all_reduce_seconds(1000, 8, 1000.0) == pytest.approx(7.0)
    assert all_reduce_seconds(1000, 8, 1000.0, element_bytes=2) == pytest.approx(3.5)
    updates = 1000 * 36 * 2 / 800
    assert predict.training_hours(run, 10.0, 100.0, 1000, gpus=8) == pytest.approx(2.0 / 8 + updates * 7 / 3600)


def test_several_gpus_also_need_buckets() -> None:
    assert (fixed_bytes(10, 1), fixed_bytes(10, 8)) == (160, 200)


def test_flops_per_token_are_about_six_times_the_weights() -> None:
    """A weight has one multiplication and addition in each of three products. Attention is small."""
    weights = predict.num_parameters(predict.load_preset("rnnsearch-50")) - 2 * 30_000 * 620
    assert flops_per_token(512, 25) == pytest.approx(6 * weights, rel=0.05)


def test_saved_activations_grow_with_sentences_but_exclude_vocabulary_scores() -> None:
    data = {"source": "en", "target": "fr", "train": ["none"]}
    model = {
        "embedding": 8,
        "encoder": {"type": "bidirectional", "cell": "gru", "size": 16},
        "attention": {"score": "additive", "size": 24},
        "decoder": {"type": "bahdanau", "cell": "gru", "size": 32, "maxout": 12},
    }

    def saved_bytes(sentences: int, vocabulary: int = 100) -> int:
        tables = {
            "data": data,
            "model": model,
            "text": {"vocabulary": vocabulary},
            "training": {"max_epochs": 1, "optimiser": {"learning_rate": 0.001}},
        }
        return saved_activation_bytes(resolve(tables), sentences, 10)

    increases = [saved_bytes(40) - saved_bytes(20), saved_bytes(60) - saved_bytes(40)]
    assert increases[0] == pytest.approx(increases[1], rel=0.02)
    assert increases[0] > 4 * 20 * 10 * (32 + 64 + 32)  # states, gates and candidates
    assert saved_bytes(60, 5000) - saved_bytes(60) < 4 * 60 * 10 * 4900


def test_estimated_table_scales_the_limit() -> None:
    run = Run(pairs=1000, target_length=25.0, epochs=2.0, flops_per_second=1e9, bandwidth=1e30)
    speed = 1e9 / flops_per_token(512, 25)
    lines = estimated_table(run, 1000, {"bf16": 0.5})
    assert lines[2].startswith(f"| 10% | {0.1 * speed:,.0f} | {50_000 / speed / 360:.1f} h |")
    assert lines[3].startswith(f"| 50%, as bf16 on the CPU | {0.5 * speed:,.0f} |")


def test_measured_table_uses_the_speed_of_the_gpu() -> None:
    run = Run(pairs=1000, target_length=36.0, epochs=2.0, bandwidth=1e30)
    row = {"device": "G", "batch": 10, "tokens_per_second": 10.0, "parameters": 1000}
    assert predict.measured_table(run, [row])[2] == "| G | 10 | 10 | 2.0 h | 0.2 h |"


def test_page_contains_the_output_of_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["predict"])
    predict.main()
    page = PAGE.read_text(encoding="utf-8").splitlines()
    missing = [line for line in capsys.readouterr().out.splitlines() if line not in page]
    assert not missing, "paste the output of `python -m benchmarks.predict` into docs/cost.md"
