"""Presets: valid, trainable, and equal to the papers' settings."""

import tomllib
from functools import reduce

import pytest
import torch

from rnnsearch import config
from rnnsearch.config import ModelConfig, merge, preset_names, resolve
from rnnsearch.data.batches import make_batch
from rnnsearch.data.characters import Characters, WordCharacters
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.language_model import LanguageModel
from rnnsearch.models.translation_model import CharacterCounts
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.systems.language import LanguageSystem
from rnnsearch.systems.multiway import MultiwaySystem
from rnnsearch.systems.translation import build
from rnnsearch.systems.validation import check
from rnnsearch.text.tokenizer import SpelledIds
from rnnsearch.text.vocabulary import UNK
from rnnsearch.text.words import train_words
from rnnsearch.training.schedules import SCHEDULES

MULTIWAY = "multiway-small"
LANGUAGE_MODELS = [name for name in preset_names() if name.startswith("lm-")]
SMALL = [name for name in preset_names() if name.endswith("-small") and name not in (MULTIWAY, *LANGUAGE_MODELS)]
BAHDANAU = {
    "text": {"type": "words", "vocabulary": 30_004},
    "model": {"embedding": 620, "encoder.cell": "gru", "encoder.size": 1000, "init.type": "normal", "init.scale": 0.01}
    | {"decoder.cell": "gru", "decoder.size": 1000, "decoder.maxout": 500, "decoder.first": "zero", "tie": "none"}
    | dict.fromkeys([f"dropout.{name}" for name in ("embedding", "annotations", "readout", "word")], 0.0),
    "data": {"cleaning.drop_duplicates": False, "cleaning.drop_identical": False, "cleaning.max_words": 1_000_000},
    "training": {"batch.sentences": 80, "batch.sort_batches": 20, "clip_norm": 1.0, "normalise": "sentences"}
    | {"batch.shuffle": "once"}
    | {"optimiser.type": "adadelta", "optimiser.rho": 0.95, "optimiser.epsilon": 1e-6, "schedule.type": "constant"}
    | {"label_smoothing": 0.0, "precision": "fp32", "clip_value": None},
    "search": {"beam": 12, "length_penalty": 0.0},
}
RNNSEARCH = {
    "model": {"encoder.type": "bidirectional", "decoder.type": "bahdanau", "attention.score": "additive"}
    | {"attention.size": 1000, "attention.window": "global", "init.alignment_scale": 0.001}
}
RNNENCDEC = {"model": {"encoder.type": "unidirectional", "decoder.type": "rnnencdec", "attention": None}}
LSTMS = {
    "model": {f"{side}.{key}": value for side in ("encoder", "decoder") for key, value in
              {"cell": "lstm", "layers": 4, "size": 1000}.items()}
    | {"embedding": 1000, "encoder.direction": "forward", "decoder.bridge": "copy"}
    | {"init.type": "uniform", "init.recurrent": "same"},
    "data": {"cleaning.drop_duplicates": False, "cleaning.max_ratio": 1e6},
    "search": {"length_penalty": 0.0},
    "training": {"clip_norm": 5.0, "batch.sentences": 128, "normalise": "sentences", "optimiser.type": "sgd"},
}  # fmt: skip
LUONG = {
    "text": {"type": "words", "vocabulary": 50_004, "target_vocabulary": None},
    "model": {"init.scale": 0.1, "init.biases": "none", "encoder.reads_end": False},
    "training": {"optimiser.learning_rate": 1.0, "schedule.every": 1.0, "max_length": 50, "clip_embeddings": False},
}
FEEDING = {
    "model": {"encoder.reverse": True, "decoder.type": "luong-input-feeding", "decoder.readout": 1000}
    | {"dropout.embedding": 0.2, "dropout.layers": 0.2, "dropout.feeding": 0.2, "dropout.readout": 0.0},
    "training": {"schedule.start": 8.0, "max_epochs": 12.0},
}
PAPERS = {
    **{f"rnnsearch-{n}": [BAHDANAU, RNNSEARCH, {"training": {"max_length": n}}] for n in (30, 50)},
    **{f"rnnencdec-{n}": [BAHDANAU, RNNENCDEC, {"training": {"max_length": n}}] for n in (30, 50)},
    "cho-2014": [
        *(BAHDANAU, RNNENCDEC),
        {
            "text": {"vocabulary": 15_004},
            "model": {"embedding": 100, "encoder.cell": "cho-gru", "decoder.cell": None, "decoder.type": "cho"},
            "training": {"batch.sentences": 64},
        },
    ],
    "jean-2015": [
        *(BAHDANAU, RNNSEARCH),
        {"text": {"vocabulary": 500_004}, "objective": {"partition": 15_000}, "training": {"max_length": 50}},
    ],
    "coverage-2016": [
        *(BAHDANAU, RNNSEARCH, {"training": {"max_length": 80}, "search": {"beam": 10}}),
        {"model": {"attention.features": ["coverage-neural"], "attention.coverage_size": 10}},
    ],
    "cohn-2016": [
        {
            "model": {"attention.features": ["position", "markov", "fertility-local"], "attention.neighbours": 1}
            | {"decoder.type": "cohn"}
        }
    ],
    "sutskever-2014": [
        LSTMS,
        {
            "text": {"type": "words", "vocabulary": 160_004, "target_vocabulary": 80_004},
            "model": {"encoder.reverse": True, "decoder.type": "sutskever", "attention": None, "init.scale": 0.08}
            | {"init.biases": "same"},
            "training": {"optimiser.learning_rate": 0.7, "max_epochs": 7.5, "schedule.start": 5.0}
            | {"schedule.every": 0.5},
        },
    ],
    "luong-base": [
        *(LSTMS, LUONG, {"training": {"schedule.start": 5.0, "max_epochs": 10.0}}),
        {"model": {"encoder.reverse": False, "decoder.type": "sutskever", "attention": None}},
    ],
    **{
        f"luong-global-{score}": [
            *(LSTMS, LUONG, FEEDING),
            {"model": {"attention.score": score, "attention.window": "global"}},
        ]
        for score in ("dot", "general", "location")
    },
    "luong-global-concat": [*(LSTMS, LUONG, FEEDING), {"model": {"attention.score": "concat-identity"}}],
    **{
        f"luong-{window}": [
            *(LSTMS, LUONG, FEEDING),
            {"model": {"attention.score": "general", "attention.window": window, "attention.width": 10}},
        ]
        for window in ("local-m", "local-p")
    },
    "neubig-mlp": [{"model": {"decoder.type": "neubig", "attention.score": "concat", "decoder.bridge": "annotation"}}],
    "rnmt-plus": [
        {
            "text": {"type": "bpe", "vocabulary": 32_000, "joint": True},
            "model": {
                "encoder.layers": 6,
                "encoder.size": 1024,
                "encoder.direction": "both",
                "encoder.residual_from": 3,
            }
            | {"decoder.layers": 8, "decoder.size": 1024, "decoder.residual_from": 3, "decoder.cell": "rnmt-lstm"}
            | {"encoder.cell": "rnmt-lstm", "attention.score": "multi-head-additive", "attention.heads": 4}
            | {
                "dropout.embedding": 0.3,
                "dropout.attention": 0.3,
                "dropout.layer_outputs": 0.3,
                "dropout.readout": 0.0,
            },
            "training": {"label_smoothing": 0.1, "optimiser.type": "adam", "optimiser.beta1": 0.9}
            | {"schedule.type": "rnmt-plus", "clip_deviations": 4.0, "clip_norm": None, "l2": 1e-5}
            | {"optimiser.beta2": 0.999, "optimiser.epsilon": 1e-6},
        },
    ],
    "bi-scale": [
        {
            "text": {"type": "bpe", "target_type": "characters", "vocabulary": 24_440},
            "model": {"embedding": 512, "encoder.type": "bidirectional", "encoder.cell": "torch-gru"}
            | {"encoder.size": 512, "attention.size": 1024, "decoder.type": "bi-scale", "decoder.size": 1024}
            | {"decoder.readout": 512, "init.scale": 0.01, "init.recurrent": "orthogonal"},
            "training": {"batch.sentences": 128, "batch.sort_batches": 20, "optimiser.type": "adam"}
            | {"optimiser.learning_rate": 1e-4, "clip_norm": 1.0, "max_length": 500},
        },
    ],
    "hybrid-luong": [
        *(LSTMS, LUONG, FEEDING),
        {
            "text": {"vocabulary": 10_004},
            "model": {"embedding": 1024, "encoder.size": 1024, "encoder.reverse": False, "decoder.size": 1024}
            | {"decoder.readout": 1024, "attention.score": "general", "attention.window": "global"}
            | {"source_characters.type": "lstm", "source_characters.words": "unknown", "source_characters.layers": 2}
            | {"target_characters.size": 1024, "target_characters.layers": 2, "target_characters.reads_hidden": True},
            "training": {"schedule.start": 4.0, "schedule.every": 0.5, "max_epochs": 6.0},
        },
    ],
    "lm-kim": [
        {
            "text": {"type": "words"},
            "model": {"characters.type": "cnn", "characters.embedding": 15, "characters.widths": 7}
            | {"characters.filters": 50, "characters.max_filters": 200, "characters.highway": 2}
            | {"characters.projection": False, "network.cell": "lstm", "network.layers": 2, "network.size": 650}
            | {"init.type": "uniform", "init.scale": 0.05, "dropout.layers": 0.5, "dropout.readout": 0.5}
            | {"dropout.embedding": 0.0},
            "training": {"batch.sentences": 20, "optimiser.type": "sgd", "optimiser.learning_rate": 1.0}
            | {"schedule.type": "plateau", "schedule.factor": 0.5, "clip_norm": 5.0, "max_epochs": 25},
        },
    ],
    "low-resource": [
        {
            "text": {"type": "bpe", "vocabulary": 2000},
            "model": {"embedding": 512, "encoder.size": 1024, "decoder.size": 1024, "tie": "target", "lexical": True}
            | {"encoder.cell": "layer-norm-gru", "decoder.cell": "layer-norm-gru", "dropout.embedding": 0.5}
            | {"dropout.state": 0.5, "dropout.readout": 0.5, "dropout.word": 0.3},
            "training": {"batch.tokens": 1000, "label_smoothing": 0.2, "max_length": 200, "evaluate_every": 1000}
            | {"optimiser.type": "adam", "optimiser.learning_rate": 5e-4, "patience": 10},
            "search": {"beam": 5},
        },
    ],
}
"""The settings of the papers, by dotted path below a table; later entries override earlier ones.

Bahdanau et al. 2015, sections 4.1-4.2 and appendices A and B; Luong et al. 2015, section 4.1; Sutskever et al. 2014,
section 3.4; the authors' code of Chung et al. 2016, Luong & Manning 2016 and Kim et al. 2016.
"""


def resolved(name, *settings):
    languages = {"target": "fr"} if name.startswith("lm-") else {"source": "en", "target": "fr"}
    return resolve({"preset": name, "data": {**languages, "corpus": "x"}}, settings)


@pytest.mark.parametrize("name", preset_names())
def test_preset_is_valid_with_only_data_and_survives_dump(name):
    # Actor and agent need a trained model, which a preset cannot name.
    settings = ["training.begin_from=runs/small"] if name in ("greedy-actor", "read-write") else []
    before = resolved(name, *settings)
    assert check(before) == []
    assert resolve(tomllib.loads(config.dump(before))) == before


@pytest.mark.parametrize("name", PAPERS)
def test_preset_has_the_papers_settings(name):
    preset = resolved(name).model_dump()
    for table, options in reduce(merge, PAPERS[name]).items():
        for path, expected in options.items():
            value = reduce(lambda inner, key: (inner or {}).get(key), path.split("."), preset[table])
            assert value == expected, f"{table}.{path}"


def test_halving_schedules_match_the_papers():
    # The rate is halved after five epochs, then every half epoch (Sutskever et al.) or every epoch (Luong et al.).
    for name, epochs, factors in (
        ("sutskever-2014", [4.9, 5, 5.4, 5.5, 6, 7.4], [1, 1 / 2, 1 / 2, 1 / 4, 1 / 8, 1 / 32]),
        ("luong-base", [4.9, 5, 5.9, 6, 9.9], [1, 1 / 2, 1 / 2, 1 / 4, 1 / 32]),
        ("luong-local-p", [7.9, 8, 8.9, 9, 11.9], [1, 1 / 2, 1 / 2, 1 / 4, 1 / 16]),
    ):
        schedule = SCHEDULES["halving"](resolved(name).training.schedule)
        assert [schedule.factor(1000, float(epoch)) for epoch in epochs] == factors


def count_parameters(run):
    """Return the number of parameters without allocating them."""
    source = run.text.vocabulary or 8000
    vocabularies = (source, run.text.target_vocabulary or source)
    characters = CharacterCounts(200, 200)
    with torch.device("meta"):
        model = build(run.model, *vocabularies, seed=None, objective=run.objective, characters=characters)
    return sum(p.numel() for p in model.parameters())


def test_parameter_count_of_rnnsearch_50():
    # The matrices of the equations in appendix A, and one bias per equation.
    E, n, A, L, V = 620, 1000, 1000, 500, 30004
    gru = 3 * (n * E + n * n + n)
    alignment = A * n + A * 2 * n + A
    decoder = gru + 3 * n * 2 * n + (n * n + n)
    output = 2 * L * (n + E + 2 * n) + 2 * L + V * L + V
    assert count_parameters(resolved("rnnsearch-50")) == 2 * V * E + 2 * gru + alignment + decoder + output


def test_parameter_counts_match_the_papers():
    assert (
        round(count_parameters(resolved("sutskever-2014")) / 1e6) == 384
    )  # "a total of 384M parameters" (section 3.4)
    assert count_parameters(resolved("rnmt-plus")) == pytest.approx(378.9e6, rel=0.01)  # table 1 of the paper


@pytest.mark.parametrize(("name", "millions"), [("lm-kim", 19), ("lm-kim-small", 5)])
def test_parameter_counts_of_character_aware_language_models(name, millions):
    run = resolved(name)
    with torch.device("meta"):
        model = LanguageModel(run.model, run.text.vocabulary, characters=51)
    assert round(sum(p.numel() for p in model.parameters()) / 1e6) == millions  # as in Kim et al. 2016


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_two_updates_of_a_language_model_lower_the_loss(name):
    preset = resolved(name, "model.dropout={}", "model.init.type=glorot")
    words = train_words(["a b c d e f g h i j k l"], 16, 1)
    system = LanguageSystem.make(preset, {"fr": words}, seed=1)
    texts = [text.spelled_ids for text in words.segment(["a b zc d", "l a", "xy a b"])]
    batch = make_batch([(ids,) for ids in texts], range(3), system.direction, system.spellings)
    optimiser = torch.optim.Adam(system.model.parameters(), lr=3e-3)
    objective = system.objective()
    before = objective(system.model, batch, None).nll.item()
    for update in range(2):
        optimiser.zero_grad()
        objective(system.model, batch, BatchRng(update)).total.backward()
        optimiser.step()
    assert objective(system.model, batch, None).nll.item() < before


@pytest.mark.parametrize("name", [name for name in SMALL if name.removesuffix("-small") in PAPERS])
def test_small_variants_are_small_with_the_same_components(name):
    paper = resolved(name.removesuffix("-small"))
    small = resolved(name)
    assert count_parameters(small) < min(16e6, count_parameters(paper) / 4)
    if name == "cohn-2016-small":
        return
    for table, option in (("encoder", "type"), ("encoder", "cell"), ("decoder", "type"), ("attention", "score")):
        tables = [run.model.model_dump()[table] for run in (paper, small)]
        names = [options and options[option].removesuffix("-identity") for options in tables]
        assert names[0] == names[1]


def shrunk(table):
    """Return a `[model]` table with all sizes divided by 16."""
    sizes = {"embedding", "size", "readout", "maxout"}
    divided = {key: value // 16 for key, value in table.items() if key in sizes and isinstance(value, int)}
    inner = {key: shrunk(table[key]) for key in ("encoder", "decoder", "attention") if table.get(key)}
    return table | divided | inner


# Their losses need the classes or copies that a system computes from its corpus: see tests/commands/test_outputs.py and
# test_annotation.py.
CORPUS_DEPENDENT = {"adaptive-small", "class-based-small", "pointer-small"}


@pytest.mark.parametrize("name", [name for name in SMALL if name not in CORPUS_DEPENDENT])
def test_two_updates_of_a_small_variant_lower_the_loss(name):
    small = resolved(name)
    tiny = ModelConfig.model_validate(shrunk(small.model.model_dump()))  # for speed
    words = train_words(["a b c d e f g h i j k l"], 16, 1)
    inventory = Characters(words, known=False)
    counts = CharacterCounts(len(inventory), len(inventory))
    model = build(tiny, 16, 16, seed=1, objective=small.objective, characters=counts)
    rows = [
        (SpelledIds([5, 6, UNK, 8], [" ab"]), SpelledIds([4, 5])),
        (SpelledIds([9]), SpelledIds([6, UNK, UNK, 9], [" k", "c"])),
    ]
    batch = make_batch(rows, [0, 1], spellings=WordCharacters({"source": inventory, "target": inventory}))
    objective = Likelihood(small.training.label_smoothing)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    before = objective(model, batch, None).nll.item()
    for update in range(2):
        optimiser.zero_grad()
        objective(model, batch, BatchRng(update)).total.backward()
        optimiser.step()
    assert objective(model, batch, None).nll.item() < before


def test_multiway_preset_is_small_with_an_encoder_and_a_decoder_per_language():
    data = {"source": ["en", "de"], "target": "fr", "train": ["x.tsv"]}
    run = resolve({"preset": MULTIWAY, "data": data})
    assert check(run) == []
    assert run.model.bilingual() == resolved("small").model
    tokenizers = {language: train_words(["a b c d"], 12, 1) for language in run.data.languages}
    small = MultiwaySystem.make(run, tokenizers, seed=None)
    assert [direction.name for direction in small.directions] == ["en-de", "en-fr", "de-en", "de-fr", "fr-en", "fr-de"]
    size = len(tokenizers["en"])
    with torch.device("meta"):
        model = build(run.model.bilingual(), size, size, seed=None, objective=run.objective)
    attention = sum(p.numel() for p in small.model.attention.parameters())
    assert small.num_parameters == 3 * (sum(p.numel() for p in model.parameters()) - attention) + attention


def test_option_of_another_class_is_rejected_with_a_preset(problems):
    tables = {"preset": "rnnsearch-30", "data": {"source": "en", "target": "fr", "corpus": "x"}}
    messages = problems(tables, "training.optimiser.momentum=0.9", "model.attention.score=adition")
    assert [message.partition(":")[0] for message in messages] == [
        "model.attention.score",
        "training.optimiser.momentum",
    ]
