"""The arithmetic of docs/cost.md, and that the page holds what the command prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import predict
from benchmarks.predict import Run, fixed_bytes, flops_per_symbol, kept_bytes, reckoned_table, sum_seconds
from rnnsearch.config import resolve

PAGE = Path(__file__).parents[2] / "docs" / "cost.md"


def test_one_gpu_takes_the_symbols_by_the_speed() -> None:
    run = Run(pairs=1000, symbols=36.0, epochs=2.0)
    assert predict.training_hours(run, 10.0, 100.0, 1000, gpus=1) == pytest.approx(2.0)


def test_eight_gpus_take_an_eighth_and_the_sums() -> None:
    run = Run(pairs=1000, symbols=36.0, epochs=2.0, bandwidth=1000.0)
    assert sum_seconds(1000, 8, 1000.0) == pytest.approx(7.0)
    assert sum_seconds(1000, 8, 1000.0, number_bytes=2) == pytest.approx(3.5)
    updates = 1000 * 36 * 2 / 800
    assert predict.training_hours(run, 10.0, 100.0, 1000, gpus=8) == pytest.approx(2.0 / 8 + updates * 7 / 3600)


def test_several_processes_hold_buckets_too() -> None:
    assert (fixed_bytes(10, 1), fixed_bytes(10, 8)) == (160, 200)


def test_the_products_of_a_symbol_are_about_six_times_the_weights_they_are_with() -> None:
    """One multiplication and one addition a weight, three times; embeddings are looked up, and attention is small."""
    weights = predict.parameters(predict.configuration("rnnsearch-50")) - 2 * 30_000 * 620
    assert flops_per_symbol(512, 25) == pytest.approx(6 * weights, rel=0.05)


def test_a_pass_keeps_more_of_more_sentences_and_never_the_scores_of_the_vocabulary() -> None:
    base = {"source": "en", "target": "fr", "train": ["none"]}
    model = {
        "embedding": 8,
        "encoder": {"type": "bidirectional", "cell": "gru", "size": 16},
        "attention": {"score": "additive", "size": 24},
        "decoder": {"type": "bahdanau", "cell": "gru", "size": 32, "maxout": 12},
    }

    def kept(sentences: int, vocabulary: int = 100) -> int:
        tables = {
            "data": base,
            "model": model,
            "text": {"vocabulary": vocabulary},
            "training": {"max_epochs": 1, "optimiser": {"learning_rate": 0.001}},
        }
        return kept_bytes(resolve(tables), sentences, 10)

    steps = [kept(40) - kept(20), kept(60) - kept(40)]
    assert steps[0] == pytest.approx(steps[1], rel=0.02)
    assert steps[0] > 4 * 20 * 10 * (32 + 64 + 32)  # states, gates and candidates alone
    assert kept(60, 5000) - kept(60) < 4 * 60 * 10 * 4900


def test_hours_by_shares_of_the_limit() -> None:
    run = Run(pairs=1000, symbols=25.0, epochs=2.0, products=1e9, bandwidth=1e30)
    speed = 1e9 / flops_per_symbol(512, 25)
    lines = reckoned_table(run, 1000, {"bf16": 0.5})
    assert lines[2].startswith(f"| 10% | {0.1 * speed:,.0f} | {50_000 / speed / 360:.1f} h |")
    assert lines[3].startswith(f"| 50%, as bf16 on the CPU | {0.5 * speed:,.0f} |")


def test_hours_by_a_measured_gpu() -> None:
    run = Run(pairs=1000, symbols=36.0, epochs=2.0, bandwidth=1e30)
    row = {"device": "G", "batch": 10, "tokens_per_second": 10.0, "parameters": 1000}
    assert predict.training_table(run, [row])[2] == "| G | 10 | 10 | 2.0 h | 0.2 h |"


def test_the_page_holds_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["predict"])
    predict.main()
    page = PAGE.read_text(encoding="utf-8").splitlines()
    missing = [line for line in capsys.readouterr().out.splitlines() if line not in page]
    assert not missing, "paste what `python -m benchmarks.predict` prints"
