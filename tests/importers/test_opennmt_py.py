"""Import of OpenNMT-py models, compared with a reference implementation; unsupported and hostile checkpoints."""

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
from tests.importers.opennmt_py import OPTIONS, SPECIALS, Model
from tests.importers.recursive_list import RECURSIVE_LIST

LINES = ["a b@@ c d ▁e f a b@@", "c", "f  what a d", "</s> ▁e e d a", "d d d a f"]
"""Source sentences, with unknown words, two spaces in a row, and a word like the end-of-sentence token."""
MODELS = {
    "lstm general feeding": {},
    "gru mlp feeding bridge": {"rnn_type": "GRU", "global_attention": "mlp", "bridge": True},
    "two lstm dot": {"layers": 2, "global_attention": "dot", "input_feed": 0},
    "two gru general feeding, unidirectional": {"rnn_type": "GRU", "layers": 2, "encoder_type": "rnn"},
    "three lstm mlp bridge": {"layers": 3, "global_attention": "mlp", "input_feed": 0, "bridge": True},
    "two lstm bridge, unidirectional": {"layers": 2, "bridge": True, "encoder_type": "rnn"},
    "gru without attention": {"rnn_type": "GRU", "global_attention": "none", "input_feed": 0},
    "tied output": {"share_decoder_embeddings": True},
}


def import_model(tmp_path: Path, model: Model, /, **entries: object) -> Path:
    """Save a model with other entries of the checkpoint, import it, and return the model folder."""
    import_opennmt_py(model.save(tmp_path / "model.pt", **entries), tmp_path / "model", "en", "de")
    return tmp_path / "model"


@pytest.mark.parametrize("name", MODELS)
def test_imported_model_gives_the_same_n_best_lists(name, tmp_path):
    model = Model.random(**MODELS[name])
    translator = load(import_model(tmp_path, model))
    best_texts = set()
    for beam, n_best in ((5, 3), (1, 1)):
        n_best_lists = translator.n_best(LINES, translator.options(beam, n_best))
        for line, translations in zip(LINES, n_best_lists, strict=True):
            expected = model.translate(line.replace("</s>", "unknown"), beam, n_best)
            assert [translation.text for translation in translations] == [text for text, _ in expected]
            if beam > 1:
                scores = [translation.score for translation in translations]
                assert scores == pytest.approx([score for _, score in expected], abs=1e-5)
            best_texts.add(translations[0].text)
    assert len(best_texts) > 3


def test_imported_model_gives_the_same_probabilities(tmp_path):
    model = Model.random()
    translator = load(import_model(tmp_path, model))
    (scored,) = translator.score(["a b@@ c"], ["u w@@ x"])
    annotations, state = model.start("a b@@ c")
    tokens = model.vocabularies["tgt"]
    expected = []
    y = 2  # BOS
    for word in ("u", "w@@", "x", "</s>"):
        log_p, state = model.step(annotations, state, y)
        y = tokens.index(word)
        expected.append(float(log_p[y]))
    assert scored.token_scores == pytest.approx(expected, abs=1e-5)
    assert scored.attention is not None
    assert scored.attention[:, :3].sum(1) == pytest.approx(1.0, abs=1e-5)  # without the end of the sentence


@pytest.mark.parametrize(
    ("options", "message"),
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
def test_unsupported_option_is_rejected(options, message, tmp_path):
    model = Model.random()
    model = model._replace(options=model.options | options)
    with pytest.raises(ModelError) as error:
        import_model(tmp_path, model)
    assert message in str(error.value)
    assert not (tmp_path / "model").exists()


def test_unused_weights_are_rejected(tmp_path):
    model = Model.random()
    model.decoder.copy = torch.nn.Linear(1, 1)
    with pytest.raises(ModelError, match=r"decoder\.copy\.bias has no counterpart here"):
        import_model(tmp_path, model)


def test_weights_of_wrong_shapes_are_rejected(tmp_path):
    model = Model.random()
    model.vocabularies["src"].append("more")
    with pytest.raises(ModelError, match="must have 11 embeddings of source tokens; got 10"):
        import_model(tmp_path, model)
    model = Model.random()
    model.decoder.attn.linear_out = torch.nn.Linear(2, 2, bias=False)
    with pytest.raises(
        ModelError, match=r"do not fit together: decoder\.attentional\.combine\.weight would be \(2, 2\)"
    ):
        import_model(tmp_path, model)
    model = Model.random()
    del model.encoder.rnn.weight_hh_l0
    with pytest.raises(ModelError, match=r"it has no encoder\.rnn\.weight_hh_l0"):
        import_model(tmp_path, model)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"model": None}, "it has no 'model'"),
        ({"generator": None}, "it has no 'generator'"),
        ({"vocab": {"src": "abc", "tgt": []}}, "its vocabulary 'src' is not a list of tokens"),
        ({"vocab": {"src": [*SPECIALS, "a", "a"], "tgt": []}}, "'a' is duplicated"),
        ({"vocab": {"src": ["a"], "tgt": ["b"]}}, "one has no <blank>"),
        ({"vocab": {"src": [], "tgt": [], "src_feats": [["x"]]}}, "source features (n_src_feats)"),
        ({"vocab": {"src": SPECIALS, "tgt": SPECIALS, "decoder_start_token": "</s>"}}, 'decoder_start_token = "</s>"'),
        (
            {"vocab": {"src": SPECIALS, "tgt": SPECIALS, "decoder_start_token": RECURSIVE_LIST}},
            "decoder_start_token = a list",
        ),
        ({"model": {"x": 1}}, "its weights are not named matrices and vectors"),
        ({"opt": 3}, "its options or vocabularies have another form"),
        ({"opt": Counter("ab"), "more": Path("x")}, "contains more than weights, options and tokens"),
    ],
)
def test_malformed_checkpoints_are_rejected_in_one_line(entries, message, tmp_path):
    with pytest.raises(ModelError) as error:
        import_model(tmp_path, Model.random(), **entries)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


class Payload:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_hostile_checkpoint_is_not_executed(tmp_path):
    for number, protocol in enumerate((2, 4)):
        path = tmp_path / f"{number}.pt"
        torch.save({"model": Payload(tmp_path / "payload")}, path, pickle_protocol=protocol)
        with pytest.raises(ModelError, match="contains more than weights, options and tokens"):
            import_opennmt_py(path, tmp_path / "model", "en", "de")
    hidden = argparse.Namespace(dropout=Payload(tmp_path / "payload"))
    with pytest.raises(ModelError, match="contains more than weights, options and tokens"):
        import_model(tmp_path, Model.random(), opt=hidden)
    pickle_file = tmp_path / "pickle.pt"
    pickle_file.write_bytes(pickle.dumps({"model": Payload(tmp_path / "payload")}))
    with pytest.raises(ModelError):
        import_opennmt_py(pickle_file, tmp_path / "model", "en", "de")
    assert not (tmp_path / "payload").exists()
    assert not (tmp_path / "model").exists()


def test_damaged_and_missing_files_are_rejected(tmp_path):
    whole = Model.random().save(tmp_path / "whole.pt").read_bytes()
    with pytest.raises(ModelError, match="there is no such checkpoint"):
        import_opennmt_py(tmp_path / "none.pt", tmp_path / "model", "en", "de")
    cut = tmp_path / "cut.pt"
    for end in (0, 10, len(whole) // 2, len(whole) - 30):
        cut.write_bytes(whole[:end])
        with pytest.raises(ModelError):
            import_opennmt_py(cut, tmp_path / "model", "en", "de")
    cut.write_text("not a checkpoint")
    with pytest.raises(ModelError):
        import_opennmt_py(cut, tmp_path / "model", "en", "de")
    assert not (tmp_path / "model").exists()


def test_small_files_cannot_contain_large_tensors(tmp_path):
    """Expanded or empty tensors, other numbers of axes, and a compressed archive."""
    for tensor in (torch.zeros(1, 1).expand(10, 2**24), torch.zeros(3), torch.zeros(2, 2, 2), torch.zeros(0, 2**24)):
        model = Model.random()
        path = model.save(tmp_path / "whole.pt")
        for name in torch.load(path, weights_only=False)["model"]:
            whole = torch.load(path, weights_only=False)
            whole["model"][name] = tensor
            torch.save(whole, tmp_path / "bad.pt")
            with pytest.raises((ModelError, ConfigError)):
                import_opennmt_py(tmp_path / "bad.pt", tmp_path / "model", "en", "de")
    with zipfile.ZipFile(path) as original, zipfile.ZipFile(tmp_path / "small.pt", "w", zipfile.ZIP_DEFLATED) as packed:
        for member in original.infolist():
            packed.writestr(member.filename, original.read(member))
    with pytest.raises(ModelError, match="must be an uncompressed archive"):
        import_opennmt_py(tmp_path / "small.pt", tmp_path / "model", "en", "de")


@pytest.mark.parametrize("value", [None, -1.0, [[]], torch.zeros(2), 2**70, RECURSIVE_LIST])
def test_options_of_any_type_are_accepted_or_rejected(value, tmp_path):
    for name in (*OPTIONS, "n_src_feats", "quant_layers", "src_word_vec_size"):
        model = Model.random()
        model = model._replace(options=model.options | {name: value})
        path = model.save(tmp_path / "model.pt")
        with contextlib.suppress(ModelError, ConfigError):
            import_opennmt_py(path, tmp_path / f"model-{name}", "en", "de")
