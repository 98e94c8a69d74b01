"""Imported models against plain loops of JoeyNMT's equations; what has no counterpart; files that are none."""

import contextlib

import pytest
import torch

from rnnsearch.accel.program_writer import lacks
from rnnsearch.errors import ConfigError, ModelError
from rnnsearch.importers import import_joeynmt
from rnnsearch.systems.folder import load_system
from rnnsearch.translator.loading import load
from tests.importing.endless import ENDLESS
from tests.importing.joeynmt import CONFIG, SPECIALS, Model, config

LINES = {"a b@@ c d": "u w@@ x", "c": "y", "f  what a": "v u z z", "▁e e d": "x"}
"""Sources, with words that are unknown and one that is nothing, and targets."""
KINDS = {
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
    "zero": {"model__decoder__init_hidden": "zero", "model__decoder__attention": "luong"},
    "gru luong, no feeding": {"model__decoder__input_feeding": False, "model__decoder__attention": "luong"},
}


def imported(tmp_path, model, **changed):
    import_joeynmt(model.save(tmp_path / "joey", **changed), tmp_path / "model", "en", "de")
    return tmp_path / "model"


@pytest.mark.parametrize("kind", KINDS)
def test_its_probabilities_are_the_originals(kind, tmp_path):
    model = Model.drawn(**KINDS[kind])
    translator = load(imported(tmp_path, model))
    for source, target in LINES.items():
        (found,) = translator.score([source], [target])
        annotations, state = model.start(source)
        names, expected, y = model.symbols["trg"], [], 2
        for word in (*target.split(" "), "</s>"):
            log_p, state = model.step(annotations, state, y)
            y = names.index(word)
            expected.append(float(log_p[y]))
        assert found.token_scores == pytest.approx(expected, abs=1e-5)
    assert lacks(load_system(tmp_path / "model").model) is None  # of the engine


def test_its_search_is_what_the_configuration_says(tmp_path):
    """Divided by ((5 + length) / 6) ** 0.7, the end counted."""
    system = load_system(imported(tmp_path, Model.drawn()))
    search, model = system.config.search, system.config.translation
    assert (search.beam, search.length_norm, search.length_penalty) == (3, "gnmt", 0.7)
    assert (model.dropout.embedding, model.dropout.readout) == (0.1, 0.3)
    found = load(tmp_path / "model").translate("a b@@ c d")
    assert found.score == pytest.approx(found.log_prob / ((5 + len(found.token_scores)) / 6) ** 0.7, abs=1e-5)
    assert "Imported from | JoeyNMT, 3.ckpt" in (tmp_path / "model" / "card.md").read_text()


def test_tied_weights_are_one_table(tmp_path):
    tied = {"model__tied_softmax": True}
    with pytest.raises(ModelError, match="embedding_dim = 5 of the source and 6 of the target have no counterpart"):
        imported(tmp_path, Model.drawn(**tied))
    model = Model.drawn(**tied)
    model.part["src_embed"]["lut"] = torch.nn.Embedding(10, 6)
    model.part["encoder"]["rnn"] = torch.nn.GRU(6, 4, bidirectional=True, batch_first=True)
    model.part["decoder"]["output_layer"].weight = model.part["trg_embed"]["lut"].weight
    system = load_system(imported(tmp_path, model))
    assert system.config.translation.tie == "target"


@pytest.mark.parametrize(
    ("changed", "said"),
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
        ({"data__special_symbols": {"unk_token": "UNK"}}, "one lacks UNK"),
    ],
)
def test_an_option_without_a_counterpart_is_refused_by_its_name(changed, said, tmp_path):
    model = Model.drawn()._replace(config=config(**changed))
    with pytest.raises(ModelError) as error:
        imported(tmp_path, model)
    assert said in str(error.value)
    assert not (tmp_path / "model").exists()


def test_files_that_are_none_are_refused_in_a_sentence(tmp_path):
    path, output = Model.drawn().save(tmp_path / "joey"), tmp_path / "model"
    for name, content, said in (
        ("config.yaml", "a: [", "must be a configuration of JoeyNMT"),
        ("config.yaml", "a: 1\n" * 300_000, "must have at most 1,000,000 bytes; got 1,500,000"),
        ("config.yaml", "[" * 100_000, "must be a configuration of JoeyNMT"),
        ("config.yaml", "!!python/object/apply:os.system [ls]", "must be a configuration of JoeyNMT"),
        ("config.yaml", None, "config.yaml: must stand beside the checkpoint"),
        ("src_vocab.txt", "\n".join([*SPECIALS, "a", "a"]), "'a' stands there twice"),
        ("src_vocab.txt", "\n".join([*SPECIALS, "a"]), "must have 5 embeddings of source symbols; got 10"),
        ("trg_vocab.txt", "a\nb\n", "one lacks <pad>"),
        ("trg_vocab.txt", None, "trg_vocab.txt: must stand beside the checkpoint"),
    ):
        Model.drawn().save(tmp_path / "joey")
        (path.parent / name).unlink()
        if content is not None:
            (path.parent / name).write_text(content)
        with pytest.raises(ModelError) as error:
            import_joeynmt(path, output, "en", "de")
        assert said in str(error.value) and "\n" not in str(error.value)
    (path.parent / "trg_vocab.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match="must be text in UTF-8"):
        import_joeynmt(path, output, "en", "de")
    for changed, said in (
        ({"model_state": None}, "no weights by the name"),
        ({"model_state": {}}, "it lacks src_embed"),
    ):
        with pytest.raises(ModelError, match=said):
            imported(tmp_path, Model.drawn(), **changed)
    assert not output.exists()


@pytest.mark.parametrize("value", [None, -1.0, [[]], {"a": 1}, 2**70, "x" * 100_000, ENDLESS])
def test_options_of_any_kind_are_taken_or_told(value, tmp_path):
    paths = [f"{table}__{name}" for table in ("testing", "training") for name in CONFIG[table]]
    paths += [f"model__{part}__{name}" for part in ("encoder", "decoder") for name in CONFIG["model"][part]]
    for number, path in enumerate([*paths, "model", "data", "data__special_symbols", "model__tied_softmax"]):
        model = Model.drawn()._replace(config=config(**{path: value}))
        with contextlib.suppress(ModelError, ConfigError):
            import_joeynmt(model.save(tmp_path / "joey"), tmp_path / f"model-{number}", "en", "de")
