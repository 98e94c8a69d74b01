"""The speed benchmark: its arithmetic on values that can be checked by hand, and a complete run at toy size."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import harness
from benchmarks.speed import child, curves, model, plan, rivals
from benchmarks.speed.__main__ import main
from benchmarks.speed.limit import Counts, flops, products
from benchmarks.speed.model import RIVALS_SIZE, Sizes
from benchmarks.speed.phases import PHASES, PhaseTimer
from benchmarks.speed.plan import Measurement, Rows
from benchmarks.speed.table import REFERENCE, Results, report, targets
from benchmarks.speed.tokens import TOY_PARTS, Tokens
from rnnsearch.accel import registry
from rnnsearch.config import resolve
from rnnsearch.data.batches import make_batch
from rnnsearch.data.prepare import prepare
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.decoders.decoder import Decoder
from rnnsearch.objectives.likelihood import Likelihood

OPENNMT_PARAMETERS = 9_434_504  # from the log of OpenNMT-py 3.5.1 with the rivals' settings and input feeding

SCRIPT = """\
# timed rc=0 wall=210.62s cpu=141.36s maxrss=1355MiB foreign_cpu=-0.1s log=/x/run/train.log
train_speed: updates 50..150 in 135.0s = 0.741 up/s, 47.4 sent/s, 697 tgt tok/s (no EOS), 744 with EOS
# timed rc=0 wall=8.73s cpu=3.79s maxrss=482MiB foreign_cpu=13.6s log=/x/run/dec.g64.one.log
# timed rc=0 wall=16.03s cpu=7.35s maxrss=482MiB foreign_cpu=24.5s log=/x/run/dec.g64.log
g64: 1000 sents 9871 hyp-tokens full=16.03s one-sentence=8.73s -> 136.85 sent/s 1351 tok/s 7.31 ms/sent
b64: 1000 sents 9102 hyp-tokens full=25.56s one-sentence=8.28s -> 57.81 sent/s 526 tok/s 17.30 ms/sent
g1: 200 sents 214 hyp-tokens full=4.48s one-sentence=3.44s -> 18.27 sent/s 195 tok/s 54.74 ms/sent
BLEU greedy: 8.07  beam5: 8.84
train_tgt_tok_per_s=697 decode_b64_beam5_sent_per_s=57.81 decode_b64_greedy_sent_per_s=136.85 decode_b1_greedy_ms=54.74
"""


def build_model(sizes, vocabulary):
    return harness.build_model(model.model(sizes), *vocabulary)


def markdown(results):
    return "\n".join(report(results))


def test_model_size_is_within_two_percent_of_opennmt_py():
    vocabulary = (model.vocabulary_size(4381), model.vocabulary_size(5762))
    count = sum(p.numel() for p in build_model(RIVALS_SIZE, vocabulary).parameters())
    assert (vocabulary, count) == ((4384, 5760), 9_619_584)
    assert abs(count / OPENNMT_PARAMETERS - 1) < 0.02


def multiplications(sizes: Sizes, vocabulary: int, source: list[int], target: list[int]) -> int:
    """Count the multiplications of the forward pass sentence by sentence and position by position."""
    E, H, D, A, R = sizes.embedding, sizes.encoder, sizes.decoder, sizes.attention, sizes.readout
    count = 0
    for J, I in zip(source, target, strict=True):
        for _ in range(J):
            for _ in ("forward", "backward"):
                count += 3 * H * E + 3 * H * H
            count += A * 2 * H
        count += D * H
        for _ in range(I):
            count += A * D  # W_a s
            for _ in range(J):
                count += A + 2 * H  # v^T tanh(...), alpha h
            count += 3 * D * E + 3 * D * D + 3 * D * 2 * H
            count += R * (D + E + 2 * H)
            count += vocabulary * R
    return count


def test_limit_counts_products_without_padding():
    sizes = Sizes(embedding=3, encoder=4, decoder=6, attention=5, readout=7, batch=4)
    source, target = [3, 3, 3, 3], [2, 2, 2, 2]
    counted = flops(products(sizes, 11, Counts.of(source, target)))
    # The backward pass has two products of the same size: the input gradient and the weight gradient.
    assert counted == 3 * 2 * multiplications(sizes, 11, source, target)


def test_different_lengths_change_the_limit_only_by_rounding_in_attention():
    sizes = Sizes(embedding=30, encoder=40, decoder=60, attention=50, readout=70, batch=3)
    source, target = [2, 9, 4], [3, 8, 5]
    counted = flops(products(sizes, 500, Counts.of(source, target)))
    assert counted == pytest.approx(6 * multiplications(sizes, 500, source, target), rel=0.01)


def test_script_output_is_parsed():
    row = rivals.parse(SCRIPT)
    assert row["train_tokens_per_second"] == 697
    assert (row["train_peak_mib"], row["train_seconds"]) == (1355, 210.62)
    assert (row["greedy_tokens_per_second"], row["beam_tokens_per_second"]) == (1351, 526)
    assert (row["one_by_one_ms"], row["one_sentence_seconds"]) == (54.74, 3.44)
    assert (row["bleu_greedy"], row["bleu_beam"]) == (8.07, 8.84)
    with pytest.raises(RuntimeError, match=r"it failed: see /x/run/train\.log"):
        rivals.parse(SCRIPT.replace("rc=0", "rc=1", 1))
    with pytest.raises(RuntimeError, match="a decoding is missing"):
        rivals.parse(SCRIPT.replace("g1: ", "g2: "))
    assert rivals.parse_parameters("[x INFO] * number of parameters: 9434504\n") == OPENNMT_PARAMETERS
    assert rivals.parse_parameters("nothing") is None


def test_invalid_options_are_reported_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PEERS", str(tmp_path))
    assert main(["--rivals", "moses", "--scratch", str(tmp_path / "s")]) == 1
    assert main(["--rivals", "onmt", "--peers", str(tmp_path), "--scratch", str(tmp_path / "s")]) == 1
    assert main(["--rivals", "none", "--data", str(tmp_path), "--scratch", str(tmp_path / "s")]) == 1
    assert main(["--rivals", "none", "--minutes", "4", "--scratch", str(tmp_path / "s")]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert "--rivals must be some of onmt, joeynmt, eole, or none; got moses" in errors[0]
    assert "--peers must be the folder of the rivals' scripts (onmt.sh, " in errors[1]
    assert f"got {tmp_path};" in errors[1]
    assert errors[2].endswith(f"got {tmp_path}")
    assert errors[3].endswith("--minutes needs --device cuda")


def test_scripts_are_found_in_the_folder_of_the_rivals(tmp_path, monkeypatch):
    (tmp_path / "lib.sh").touch()
    assert rivals.scripts(tmp_path) == tmp_path
    monkeypatch.setenv("PEERS_SCRIPTS", str(tmp_path))
    assert rivals.scripts(None) == tmp_path


def case(batch, beam, tokens):
    return {
        "beam": beam,
        "batch": batch,
        "tokens_per_second": tokens,
        "sentences_per_second": tokens / 10,
        "warm_tokens_per_second": tokens,
    }


def made_up_results() -> Results:
    """Return results with round ratios."""
    fed, not_fed = (rivals.parse(SCRIPT.replace("tok_per_s=697", f"tok_per_s={speed}")) for speed in (697, 1000))
    versions = {"processor": "P", "instructions": "AVX2", "torch": "t", "python": "3", "date": "d"}
    results = Results({"cores": 2, "threads": 2, **versions})
    results.rivals.extend([("A, fed", True, {**fed, "updates": 150}), ("B", False, {**not_fed, "updates": 1816})])
    shared = {"parameters": 7, "memory_mib": {"100": 400.0, "200": 410.0}, "peak_mib": 1355 / 2}
    results.trainings.extend(
        [
            ("fp32", "fp32", {**shared, "tokens_per_second": 1394.0}),
            ("bf16", "bf16", {**shared, "tokens_per_second": 3485.0}),
        ]
    )
    parts = {p: {"seconds": 1.0, "flops_per_second": 1e9, "tokens_per_second": 6970.0} for p in ("fp32", "bf16")}
    results.limit.update({"flops": 10**9, "counts": Counts(64, 800, 1000, 13000)._asdict(), **parts})
    results.decodings.extend([("fp32", "greedy", case(64, 1, 2702)), ("fp32", "greedy", case(256, 1, 13510))])
    results.decodings.extend([("fp32", "beam 5", case(64, 5, 1578))])
    results.decodings.extend([("int8", "greedy, int8", case(64, 1, 13510)), ("bf16", "greedy", case(64, 1, 1))])
    results.one_by_one.append(("1 thread", {"mean_ms": 5.474, "p50_ms": 5.0, "p99_ms": 9.0}))
    results.one_by_one.append(("int8, 1 thread", {"mean_ms": 1.0, "p50_ms": 1.0, "p99_ms": 1.0}))
    nll = {REFERENCE: 3.0, "bf16": 3.03, "fp32": 2.9}
    results.quality.update(
        {
            "updates": 9,
            "training": {title: {"nll": [mean], "mean": mean} for title, mean in nll.items()},
            "search": {
                title: {"greedy": bleu, "beam 5": 30.0}
                for title, bleu in ((REFERENCE, 30.0), ("fp32", 30.0), ("bf16", 29.95), ("int8", 28.0))
            },
        }
    )
    results.start_up.update({"help_seconds": 0.15, "one_sentence_seconds": 1.72})
    results.to_bleu.update({"title": "bf16", "target": 35.5, "history": [(454, 42.124, 35.6)], "seconds": 42.124})
    return results


def test_targets_compare_ratios_with_bounds():
    results = made_up_results()
    fastest = "relative to the fastest rival"
    context_fed = "relative to the fastest context-fed rival"
    dev_nll = "dev NLL per word after equal updates, mean of seeds"
    reached = {target.name: (target.value, target.met) for target in targets(results)}
    assert reached == {
        f"training, best precision, {context_fed}": (pytest.approx(5.0), True),
        f"training, best precision, {fastest}": (pytest.approx(3.485), True),
        f"training, fp32, {context_fed} (or at least 70% of its limit)": (pytest.approx(2.0), True),
        f"greedy, batch 64, {fastest}": (pytest.approx(2.0), False),
        f"beam 5, batch 64, full softmax, {fastest}": (pytest.approx(3.0), False),
        f"greedy, batch 64, candidate lists or int8, {fastest}": (pytest.approx(10.0), True),
        f"beam 5, batch 64, candidate lists or int8, {fastest}": (None, None),
        f"greedy latency, {fastest}": (pytest.approx(0.1), True),
        "greedy latency": (5.474, True),
        "peak memory in training, relative to the smallest rival": (pytest.approx(0.5), True),
        "time to 35.5 BLEU, relative to four epochs of OpenNMT-py": (pytest.approx(0.2), True),
        f"{dev_nll}, increase over {REFERENCE}": (pytest.approx(0.01), False),
        f"BLEU with the same weights, full softmax, difference to {REFERENCE}": (pytest.approx(0.05), True),
        "`rnnsearch --help`": (0.15, True),
        f"one sentence from a cold start, {fastest}": (pytest.approx(0.5), True),
    }


def test_either_of_two_fp32_targets_is_enough():
    results = made_up_results()
    slow = replace(results, limit={**results.limit, "fp32": {**results.limit["fp32"], "tokens_per_second": 1500.0}})
    slow.rivals[0][2]["train_tokens_per_second"] = 1300.0
    fp32 = "training, fp32, relative to the fastest context-fed rival, at least 1.80x; or fraction of the fp32 limit"
    assert {target.name: target.met for target in targets(slow)}[fp32]


def test_report_has_ratios_and_targets():
    text = markdown(made_up_results())
    assert "| rnnsearch, bf16 | 3,485 | 5.00x | 3.48x | 50% | 678 | 400 / 410 |" in text
    assert "| A, fed | 697 | 1.00x | 0.70x |  | 1,355 |  |" in text
    assert "| rnnsearch, fp32 | greedy | 64 | 2,702 | 270.2 | 2.00x | 2,702 |  |" in text
    assert "| B | 1,816 | 3.51 | 8.84 |" in text
    assert f"mean of seeds, increase over {REFERENCE} | at most 0.50% | 1.00% | no |" in text


def test_rivals_tokens_reach_the_model_unchanged(tmp_path):
    words = ["der", "Mann@@", ",", "'s", "...", "&", "@-@", "ß", "12", "x@@"]
    for part, lines in {"train": [words, words[::-1]], "val": [words[:3]], "test": [words[2:]]}.items():
        text = "".join(f"{' '.join(line)}\n" for line in lines)
        for language in ("en", "de"):
            (tmp_path / f"{part}.bpe.{language}").write_text(text, encoding="utf-8")
            (tmp_path / f"vocab.{language}.txt").write_text("".join(f"{w}\n" for w in words), encoding="utf-8")
    tokens = Tokens(tmp_path, tmp_path, test="test")
    tokens.write(tmp_path / "text")
    written = (tmp_path / "text" / "test.de").read_text(encoding="utf-8").splitlines()
    assert tokens.units_of(written) == tokens.lines("test", "de")
    config = resolve(model.run_file(tokens, tmp_path / "text", Sizes(4, 4, 4, 4, 4, 2)))
    prepared = prepare(config, tmp_path / "prepared")
    assert [len(side) for side in prepared.train.row(0)] == [10, 10]
    assert len(set(prepared.train.row(0)[1].tolist())) == 10
    assert prepared.facts["unknown"] == dict.fromkeys(prepared.facts["sides"], 0.0)


def test_without_rivals_tokens_are_made_from_text_and_converted_back(tmp_path, monkeypatch):
    monkeypatch.setenv("PEERS", str(tmp_path / "nothing"))
    monkeypatch.setenv("PEERS_SCRIPTS", str(tmp_path / "nothing"))
    text = {"en": ["A dog, red.", "Two red dogs run!"], "de": ["Ein Hund, rot.", "Zwei rote Hunde laufen!"]}
    for language, lines in text.items():
        for part in ("train", "val", "test_2016_flickr"):
            (tmp_path / f"{part}.{language}").write_text("".join(f"{line}\n" for line in 2 * lines), encoding="utf-8")
    with pytest.raises(ValueError, match="--peers must be"):
        rivals.load_tokens(None, tmp_path, None)
    tokens = rivals.load_tokens(None, tmp_path, tmp_path / "tokens")
    tokens.write(tmp_path / "text")
    written = (tmp_path / "text" / "test.de").read_text(encoding="utf-8").splitlines()
    assert all(line.split()[0] != "unseen" for line in written)
    assert tokens.bleu(written) == pytest.approx(100.0)


def test_phase_timer_changes_neither_results_nor_classes():
    batch = make_batch([([5, 6, 7], [4, 5]), ([9], [6, 7, 8])], [0, 1])
    values = []
    for marked in (False, True):
        rnnsearch = build_model(Sizes(4, 4, 6, 5, 5, 2), (12, 12))
        timer = PhaseTimer(torch.device("cpu"))
        if marked:
            timer.attach(rnnsearch)
        timer.start()
        loss = Likelihood()(rnnsearch, batch, BatchRng(1)).total
        loss.backward()
        values.append((loss.item(), [p.grad.clone() for p in rnnsearch.parameters()]))
    assert values[0][0] == values[1][0]
    assert all(torch.equal(a, b) for a, b in zip(values[0][1], values[1][1], strict=True))
    backward = {"backward: softmax", "backward: readout", "backward: recurrence"}
    assert backward | {"encode", "recurrence", "readout"} <= timer.seconds.keys() <= set(PHASES)
    assert type(rnnsearch.decoder).unroll is Decoder.unroll


def test_use_definitions_disables_fast_implementations(monkeypatch):
    batch = make_batch([([5, 6, 7], [4, 5]), ([9], [6, 7, 8])], [0, 1])
    rnnsearch = build_model(Sizes(4, 4, 6, 5, 5, 2), (12, 12))
    fast_loss = Likelihood()(rnnsearch, batch, None).total.item()
    monkeypatch.setattr(
        registry, "FAST_IMPLEMENTATIONS", dict(registry.FAST_IMPLEMENTATIONS)
    )  # restored after the test
    child.use_definitions()
    rnnsearch = build_model(Sizes(4, 4, 6, 5, 5, 2), (12, 12))
    steps = []
    step = type(rnnsearch.decoder).step
    monkeypatch.setattr(type(rnnsearch.decoder), "step", lambda *args: (steps.append(1), step(*args))[1])
    assert Likelihood()(rnnsearch, batch, None).total.item() == pytest.approx(fast_loss, rel=1e-6)
    assert len(steps) == 4


def test_rows_are_reused_while_their_settings_match(tmp_path):
    calls = []

    def measure():
        calls.append(1)
        return {"value": len(calls)}

    assert [Rows(tmp_path).get("a", {"n": n}, measure)["value"] for n in (1, 1, 2, 2)] == [1, 1, 2, 2]
    assert [Rows(tmp_path).get("b", "", lambda n: {"value": n}, n)["value"] for n in (1, 2)] == [1, 2]


@pytest.fixture
def peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a rival's script that prints a stored output."""
    folder = tmp_path / "peers"
    folder.mkdir()
    (folder / "eole.sh").write_text(f"cat <<'X'\n{SCRIPT}X\n", encoding="utf-8")
    monkeypatch.setenv("PEERS", str(tmp_path / "installed"))
    return folder


def test_complete_run_at_toy_size_reuses_its_rows(tmp_path, peers, monkeypatch):
    threads = torch.get_num_threads()
    small = replace(plan.smoke(tmp_path / "s", threads, quality=True), rivals=rivals.choose("eole"), scripts=peers)
    try:
        results = Measurement(small).run()
    finally:
        torch.set_num_threads(threads)
    assert json.loads(json.dumps(results.__dict__)) is not None
    assert {title for title, _, _ in results.trainings} == {s.title for s in small.trainings}
    for _, _, row in results.trainings:
        assert row["tokens_per_second"] > 0
        assert row["measured_updates"] == 2
    assert math.isfinite(results.quality["training"]["bf16"]["mean"])
    assert results.to_bleu["history"][0][0] == 2
    assert {row["milliseconds"].keys() >= {"encode", "update"} for _, row in results.phases} == {True}
    text = markdown(results)
    sections = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert sections == [
        *("Targets", "Training", "The limit", "Decoding", "Latency", "Time to 0.0 BLEU", "Start-up"),
        *("Where the time goes", "Quality"),
    ]
    assert TOY_PARTS["train"] == 160 and "160 training pairs" in text
    monkeypatch.setattr(Rows, "_measure", None)
    again = Measurement(small).run()
    assert markdown(again) == text


def test_recording_is_switched_off_by_the_environment():
    assert child.environment(1)["OMP_NUM_THREADS"] == "1" and "RNNSEARCH_GRAPHS" not in child.environment(1)
    assert child.environment(1, recorded=False)["RNNSEARCH_GRAPHS"] == "0"


def test_every_curve_has_points_and_a_figure(tmp_path, monkeypatch):
    for name, values in {"LENGTHS": (16, 24), "VOCABULARIES": (800,), "WIDTHS": (64,), "BATCHES": (16,)}.items():
        monkeypatch.setattr(curves, name, values)
    monkeypatch.setattr(curves, "BEAMS", (1, 2))
    monkeypatch.setattr(curves, "DECODED_BATCHES", (1, 8))
    monkeypatch.setattr(curves, "PAIRS", (1600, 2400))
    section = "\n".join(curves.measure_curves(tmp_path, tmp_path / "scratch", 1, toy=True))
    stored = json.loads((tmp_path / "curves.json").read_text(encoding="utf-8"))
    assert stored.keys() == {"length", "vocabulary", "width", "batch", "beam", "search-batch", "corpus"}
    for name, curve in stored.items():
        assert f"(curve-{name}.png)" in section
        assert (tmp_path / f"curve-{name}.png").stat().st_size > 1000
        assert all(cost > 0 for points in curve["lines"].values() for _, cost in points)
    assert [value for value, _ in stored["corpus"]["lines"]["prepare"]] == [200, 300]
    assert list(stored["length"]["lines"]) == ["fp32", "bf16"]
