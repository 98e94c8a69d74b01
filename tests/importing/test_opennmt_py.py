"""Imported models against plain loops of OpenNMT-py's equations; what has no counterpart; files that mean harm."""

import argparse
import contextlib
import pickle
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import torch

from rnnsearch.errors import ConfigError, ModelError
from rnnsearch.importers import import_opennmt_py
from rnnsearch.translator.loading import load
from tests.importing.endless import ENDLESS
from tests.importing.opennmt_py import OPTIONS, SPECIALS, Model

LINES = ["a b@@ c d ▁e f a b@@", "c", "f  what a d", "</s> ▁e e d a", "d d d a f"]
"""With words that are unknown, one that is nothing, and one that is spelled like the end of a sentence."""
KINDS = {
    "lstm general feeding": {},
    "gru mlp feeding bridge": {"rnn_type": "GRU", "global_attention": "mlp", "bridge": True},
    "two lstm dot": {"layers": 2, "global_attention": "dot", "input_feed": 0},
    "two gru general feeding, one way": {"rnn_type": "GRU", "layers": 2, "encoder_type": "rnn"},
    "three lstm mlp bridge": {"layers": 3, "global_attention": "mlp", "input_feed": 0, "bridge": True},
    "two lstm bridge, one way": {"layers": 2, "bridge": True, "encoder_type": "rnn"},
    "gru alone": {"rnn_type": "GRU", "global_attention": "none", "input_feed": 0},
    "shared": {"share_decoder_embeddings": True},
}


def imported(tmp_path: Path, of: Model, /, **changed: object) -> Path:
    import_opennmt_py(of.save(tmp_path / "model.pt", **changed), tmp_path / "model", "en", "de")
    return tmp_path / "model"


@pytest.mark.parametrize("kind", KINDS)
def test_it_translates_as_the_original(kind, tmp_path):
    model = Model.drawn(**KINDS[kind])
    translator = load(imported(tmp_path, model))
    said = set()
    for beam, n_best in ((5, 3), (1, 1)):
        found = translator.n_best(LINES, translator.options(beam, n_best))
        for line, own in zip(LINES, found, strict=True):
            expected = model.translate(line.replace("</s>", "unknown"), beam, n_best)
            assert [one.text for one in own] == [text for text, _ in expected]
            if beam > 1:
                assert [one.score for one in own] == pytest.approx([score for _, score in expected], abs=1e-5)
            said.add(own[0].text)
    assert len(said) > 3


def test_its_probabilities_and_attention_are_of_the_words_alone(tmp_path):
    model = Model.drawn()
    translator = load(imported(tmp_path, model))
    (found,) = translator.score(["a b@@ c"], ["u w@@ x"])
    annotations, state = model.start("a b@@ c")
    names, expected, y = model.symbols["tgt"], [], 2
    for word in ("u", "w@@", "x", "</s>"):
        log_p, state = model.step(annotations, state, y)
        y = names.index(word)
        expected.append(float(log_p[y]))
    assert found.token_scores == pytest.approx(expected, abs=1e-5)
    assert found.attention is not None
    assert found.attention[:, :3].sum(1) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"encoder_type": "transformer"},
            'encoder_type = "transformer" has no counterpart here; it may be "rnn", "brnn"',
        ),
        ({"decoder_type": "cnn"}, 'decoder_type = "cnn" has no counterpart here'),
        ({"rnn_type": "SRU"}, 'rnn_type = "SRU" has no counterpart here; it may be "LSTM", "GRU"'),
        ({"copy_attn": True}, "copy_attn = true has no counterpart here; it may be false"),
        ({"coverage_attn": True}, "coverage_attn = true has no counterpart here"),
        ({"context_gate": "both"}, 'context_gate = "both" has no counterpart here'),
        ({"position_encoding": True}, "position_encoding = true has no counterpart here"),
        ({"generator_function": "sparsemax"}, 'generator_function = "sparsemax" has no counterpart here'),
        ({"model_task": "lm"}, 'model_task = "lm" has no counterpart here'),
        ({"lora_layers": ["linear_values"]}, 'lora_layers = ["linear_values"] has no counterpart here'),
        ({"global_attention": "none"}, "input_feed without global_attention has no counterpart here"),
    ],
)
def test_an_option_without_a_counterpart_is_refused_by_its_name(changed, said, tmp_path):
    model = Model.drawn()
    model = model._replace(options=model.options | changed)
    with pytest.raises(ModelError) as error:
        imported(tmp_path, model)
    assert said in str(error.value)
    assert not (tmp_path / "model").exists()


def test_weights_that_nobody_reads_are_refused(tmp_path):
    model = Model.drawn()
    model.decoder.copy = torch.nn.Linear(1, 1)
    with pytest.raises(ModelError, match=r"decoder\.copy\.bias has no counterpart here"):
        imported(tmp_path, model)


def test_weights_that_do_not_fit_are_refused(tmp_path):
    model = Model.drawn()
    model.symbols["src"].append("more")
    with pytest.raises(ModelError, match="must have 11 embeddings of source symbols; got 10"):
        imported(tmp_path, model)
    model = Model.drawn()
    model.decoder.attn.linear_out = torch.nn.Linear(2, 2, bias=False)
    with pytest.raises(
        ModelError, match=r"do not fit together: decoder\.attentional\.combine\.weight would be \(2, 2\)"
    ):
        imported(tmp_path, model)
    model = Model.drawn()
    del model.encoder.rnn.weight_hh_l0
    with pytest.raises(ModelError, match=r"it lacks encoder\.rnn\.weight_hh_l0"):
        imported(tmp_path, model)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": None}, "it lacks 'model'"),
        ({"generator": None}, "it lacks 'generator'"),
        ({"vocab": {"src": "abc", "tgt": []}}, "its vocabulary 'src' is no list of symbols"),
        ({"vocab": {"src": [*SPECIALS, "a", "a"], "tgt": []}}, "'a' stands there twice"),
        ({"vocab": {"src": ["a"], "tgt": ["b"]}}, "one lacks <blank>"),
        ({"vocab": {"src": [], "tgt": [], "src_feats": [["x"]]}}, "source features (n_src_feats)"),
        ({"vocab": {"src": SPECIALS, "tgt": SPECIALS, "decoder_start_token": "</s>"}}, 'decoder_start_token = "</s>"'),
        ({"vocab": {"src": SPECIALS, "tgt": SPECIALS, "decoder_start_token": ENDLESS}}, "decoder_start_token = a list"),
        ({"model": {"x": 1}}, "its weights are no matrices and vectors by name"),
        ({"opt": 3}, "its options or vocabularies have another form"),
        ({"opt": Counter("ab"), "more": Path("x")}, "holds more than weights, options and words"),
    ],
)
def test_other_files_are_refused_in_a_sentence(changed, said, tmp_path):
    with pytest.raises(ModelError) as error:
        imported(tmp_path, Model.drawn(), **changed)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


class Harm:
    """What would make a file by being read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_hostile_checkpoint_runs_nothing(tmp_path):
    for number, protocol in enumerate((2, 4)):
        path = tmp_path / f"{number}.pt"
        torch.save({"model": Harm(tmp_path / "harmed")}, path, pickle_protocol=protocol)
        with pytest.raises(ModelError, match="holds more than weights, options and words"):
            import_opennmt_py(path, tmp_path / "model", "en", "de")
    hidden = argparse.Namespace(dropout=Harm(tmp_path / "harmed"))
    with pytest.raises(ModelError, match="holds more than weights, options and words"):
        imported(tmp_path, Model.drawn(), opt=hidden)
    plain = tmp_path / "plain.pt"
    plain.write_bytes(pickle.dumps({"model": Harm(tmp_path / "harmed")}))
    with pytest.raises(ModelError):
        import_opennmt_py(plain, tmp_path / "model", "en", "de")
    assert not (tmp_path / "harmed").exists()
    assert not (tmp_path / "model").exists()


def test_damaged_and_missing_files_are_told(tmp_path):
    whole = Model.drawn().save(tmp_path / "whole.pt").read_bytes()
    with pytest.raises(ModelError, match="there is no such checkpoint"):
        import_opennmt_py(tmp_path / "none.pt", tmp_path / "model", "en", "de")
    cut = tmp_path / "cut.pt"
    for end in (0, 10, len(whole) // 2, len(whole) - 30):
        cut.write_bytes(whole[:end])
        with pytest.raises(ModelError):
            import_opennmt_py(cut, tmp_path / "model", "en", "de")
    cut.write_text("no checkpoint")
    with pytest.raises(ModelError):
        import_opennmt_py(cut, tmp_path / "model", "en", "de")
    assert not (tmp_path / "model").exists()


def test_few_numbers_do_not_become_many(tmp_path):
    """Tensors that repeat their numbers, hold none, or have other axes; a compressed archive."""
    for wide in (torch.zeros(1, 1).expand(10, 2**24), torch.zeros(3), torch.zeros(2, 2, 2), torch.zeros(0, 2**24)):
        model = Model.drawn()
        path = model.save(tmp_path / "whole.pt")
        for name in torch.load(path, weights_only=False)["model"]:
            whole = torch.load(path, weights_only=False)
            whole["model"][name] = wide
            torch.save(whole, tmp_path / "bad.pt")
            with pytest.raises((ModelError, ConfigError)):
                import_opennmt_py(tmp_path / "bad.pt", tmp_path / "model", "en", "de")
    with zipfile.ZipFile(path) as stored, zipfile.ZipFile(tmp_path / "small.pt", "w", zipfile.ZIP_DEFLATED) as packed:
        for part in stored.infolist():
            packed.writestr(part.filename, stored.read(part))
    with pytest.raises(ModelError, match="which compresses nothing"):
        import_opennmt_py(tmp_path / "small.pt", tmp_path / "model", "en", "de")


@pytest.mark.parametrize("value", [None, -1.0, [[]], torch.zeros(2), 2**70, ENDLESS])
def test_options_of_any_kind_are_taken_or_told(value, tmp_path):
    for name in (*OPTIONS, "n_src_feats", "quant_layers", "src_word_vec_size"):
        model = Model.drawn()
        model = model._replace(options=model.options | {name: value})
        path = model.save(tmp_path / "model.pt")
        with contextlib.suppress(ModelError, ConfigError):
            import_opennmt_py(path, tmp_path / f"model-{name}", "en", "de")
