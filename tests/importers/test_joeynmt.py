"""Import of JoeyNMT models, compared with a reference implementation; unsupported and malformed checkpoints."""

import contextlib

import pytest
import torch

from rnnsearch.accel.program_writer import unsupported_reason
from rnnsearch.errors import ConfigError, ModelError
from rnnsearch.importers import import_joeynmt
from rnnsearch.systems.folder import load_system
from rnnsearch.translator.loading import load
from tests.importers.joeynmt import CONFIG, SPECIALS, Model, config
from tests.importers.recursive_list import RECURSIVE_LIST

LINES = {"a b@@ c d": "u w@@ x", "c": "y", "f  what a": "v u z z", "▁e e d": "x"}
"""Source sentences, with unknown words and two spaces in a row, and targets."""
MODELS = {
    "gru bahdanau feeding": {},
    "lstm luong": {
        "model__encoder__rnn_type": "lstm",
        "model__decoder__rnn_type": "lstm",
        "model__decoder__attention": "luong",
        "model__decoder__input_feeding": False,
    },
    "two lstm over two gru": {
        "model__encoder__num_layers": 2,
        "model__decoder__num_layers": 2,
        "model__decoder__rnn_type": "lstm",
    },
    "three gru over two lstm": {
        "model__encoder__num_layers": 2,
        "model__encoder__rnn_type": "lstm",
        "model__decoder__num_layers": 3,
    },
    "zero initial state": {"model__decoder__init_hidden": "zero", "model__decoder__attention": "luong"},
    "gru luong, no feeding": {"model__decoder__input_feeding": False, "model__decoder__attention": "luong"},
}


def import_model(tmp_path, model, **entries):
    """Save a model with other entries of the checkpoint, import it, and return the model folder."""
    import_joeynmt(model.save(tmp_path / "joey", **entries), tmp_path / "model", "en", "de")
    return tmp_path / "model"


@pytest.mark.parametrize("name", MODELS)
def test_imported_model_gives_the_same_probabilities(name, tmp_path):
    model = Model.random(**MODELS[name])
    translator = load(import_model(tmp_path, model))
    for source, target in LINES.items():
        (scored,) = translator.score([source], [target])
        annotations, state = model.start(source)
        tokens = model.vocabularies["trg"]
        expected = []
        y = 2  # BOS
        for word in (*target.split(" "), "</s>"):
            log_p, state = model.step(annotations, state, y)
            y = tokens.index(word)
            expected.append(float(log_p[y]))
        assert scored.token_scores == pytest.approx(expected, abs=1e-5)
    assert unsupported_reason(load_system(tmp_path / "model").model) is None  # the model can be exported


def test_imported_model_has_the_configured_search(tmp_path):
    """Scores are divided by ((5 + length) / 6) ** 0.7; the length includes EOS."""
    system = load_system(import_model(tmp_path, Model.random()))
    search = system.config.search
    model = system.config.translation
    assert (search.beam, search.length_norm, search.length_penalty) == (3, "gnmt", 0.7)
    assert (model.dropout.embedding, model.dropout.readout) == (0.1, 0.3)
    translation = load(tmp_path / "model").translate("a b@@ c d")
    length = len(translation.token_scores)
    assert translation.score == pytest.approx(translation.log_prob / ((5 + length) / 6) ** 0.7, abs=1e-5)
    assert "Imported from | JoeyNMT, 3.ckpt" in (tmp_path / "model" / "card.md").read_text()


def test_tied_softmax_is_imported(tmp_path):
    tied = {"model__tied_softmax": True}
    with pytest.raises(ModelError, match="embedding_dim = 5 of the source and 6 of the target have no counterpart"):
        import_model(tmp_path, Model.random(**tied))
    model = Model.random(**tied)
    model.modules["src_embed"]["lut"] = torch.nn.Embedding(10, 6)
    model.modules["encoder"]["rnn"] = torch.nn.GRU(6, 4, bidirectional=True, batch_first=True)
    model.modules["decoder"]["output_layer"].weight = model.modules["trg_embed"]["lut"].weight
    system = load_system(import_model(tmp_path, model))
    assert system.config.translation.tie == "target"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"model__encoder__type": "transformer"},
            'model.encoder.type = "transformer" has no counterpart here; it may be "recurrent"',
        ),
        ({"model__decoder__init_hidden": "last"}, 'model.decoder.init_hidden = "last" has no counterpart here'),
        ({"model__encoder__bidirectional": False}, "model.encoder.bidirectional = false has no counterpart here"),
        ({"model__encoder__bidirectional": 1}, "model.encoder.bidirectional = 1 has no counterpart here"),
        ({"model__decoder__embeddings__scale": True}, "model.decoder.embeddings.scale = true has no counterpart here"),
        ({"model__decoder__activation": "relu"}, 'model.decoder.activation = "relu" has no counterpart here'),
        ({"data__src__level": "char"}, 'data.src.level = "char" has no counterpart here'),
        ({"data__special_symbols": {"unk_token": "UNK"}}, "one has no UNK"),
    ],
)
def test_unsupported_option_is_rejected(options, message, tmp_path):
    model = Model.random()._replace(config=config(**options))
    with pytest.raises(ModelError) as error:
        import_model(tmp_path, model)
    assert message in str(error.value)
    assert not (tmp_path / "model").exists()


def test_malformed_and_missing_files_are_rejected(tmp_path):
    path = Model.random().save(tmp_path / "joey")
    output = tmp_path / "model"
    for name, content, message in (
        ("config.yaml", "a: [", "must be a configuration of JoeyNMT"),
        ("config.yaml", "a: 1\n" * 300_000, "must have at most 1,000,000 bytes; got 1,500,000"),
        ("config.yaml", "[" * 100_000, "must be a configuration of JoeyNMT"),
        ("config.yaml", "!!python/object/apply:os.system [ls]", "must be a configuration of JoeyNMT"),
        ("config.yaml", None, "config.yaml: must exist next to the checkpoint"),
        ("src_vocab.txt", "\n".join([*SPECIALS, "a", "a"]), "'a' is duplicated"),
        ("src_vocab.txt", "\n".join([*SPECIALS, "a"]), "must have 5 embeddings of source tokens; got 10"),
        ("trg_vocab.txt", "a\nb\n", "one has no <pad>"),
        ("trg_vocab.txt", None, "trg_vocab.txt: must exist next to the checkpoint"),
    ):
        Model.random().save(tmp_path / "joey")
        (path.parent / name).unlink()
        if content is not None:
            (path.parent / name).write_text(content)
        with pytest.raises(ModelError) as error:
            import_joeynmt(path, output, "en", "de")
        assert message in str(error.value) and "\n" not in str(error.value)
    (path.parent / "trg_vocab.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match="must be text in UTF-8"):
        import_joeynmt(path, output, "en", "de")
    for entries, message in (
        ({"model_state": None}, "no weights named"),
        ({"model_state": {}}, "it has no src_embed"),
    ):
        with pytest.raises(ModelError, match=message):
            import_model(tmp_path, Model.random(), **entries)
    assert not output.exists()


@pytest.mark.parametrize("value", [None, -1.0, [[]], {"a": 1}, 2**70, "x" * 100_000, RECURSIVE_LIST])
def test_options_of_any_type_are_accepted_or_rejected(value, tmp_path):
    paths = [f"{table}__{name}" for table in ("testing", "training") for name in CONFIG[table]]
    paths += [f"model__{part}__{name}" for part in ("encoder", "decoder") for name in CONFIG["model"][part]]
    for number, path in enumerate([*paths, "model", "data", "data__special_symbols", "model__tied_softmax"]):
        model = Model.random()._replace(config=config(**{path: value}))
        with contextlib.suppress(ModelError, ConfigError):
            import_joeynmt(model.save(tmp_path / "joey"), tmp_path / f"model-{number}", "en", "de")
