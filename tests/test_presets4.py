"""The presets of Sutskever, Luong, Neubig, Tu, Cohn, Chen and Sennrich & Zhang: the papers' settings, spelled out."""

import pytest
import torch

from rnnsearch.config import ModelConfig, ScheduleConfig, preset_names, resolve
from rnnsearch.data.batches import make_batch
from rnnsearch.errors import ConfigError
from rnnsearch.models.draws import Draws
from rnnsearch.objectives.likelihood import likelihood
from rnnsearch.systems.build import build
from rnnsearch.training.run import check
from rnnsearch.training.schedules import SCHEDULES

DATA = {"source": "en", "target": "de", "corpus": "x"}
LUONG = ["global-dot", "global-general", "global-concat", "global-location", "local-m", "local-p"]
PAPERS = [
    *("sutskever-2014", "luong-base", *(f"luong-{name}" for name in LUONG)),
    *("neubig-mlp", "coverage-2016", "cohn-2016", "rnmt-plus", "low-resource"),
]


def config_of(name, *settings):
    config = resolve({"preset": name, "data": DATA}, settings)
    assert check(config) == []
    return config


def parameters_of(config):
    """The model's size, without making it."""
    vocabularies = (config.text.vocabulary, config.text.target_vocabulary or config.text.vocabulary)
    with torch.device("meta"):
        model = build(config.model, *vocabularies, seed=None, objective=config.objective)
    return sum(p.numel() for p in model.parameters())


def shrunk(table):
    """The sizes of a `[model]` table divided by 16."""
    sizes = {"embedding", "size", "readout", "maxout"}
    divided = {key: value // 16 for key, value in table.items() if key in sizes and isinstance(value, int)}
    inner = {key: shrunk(table[key]) for key in ("encoder", "decoder", "attention") if table.get(key)}
    return table | divided | inner


def halves(schedule, epochs):
    """The factor on the learning rate at each of `epochs`."""
    made = SCHEDULES[schedule.type](schedule)
    return [made.factor(1000, float(epoch)) for epoch in epochs]


def test_every_paper_has_a_small_variant():
    assert {*PAPERS, *(f"{name}-small" for name in PAPERS)} <= set(preset_names())


@pytest.mark.parametrize("name", PAPERS)
def test_small_variants_are_small_and_of_the_same_kind(name):
    paper, small = config_of(name), config_of(f"{name}-small")
    assert parameters_of(small) < 16e6
    assert parameters_of(small) < parameters_of(paper) / 4
    for part in ("encoder", "decoder"):
        if name != "cohn-2016":
            assert getattr(small.model, part).type == getattr(paper.model, part).type
            assert getattr(small.model, part).cell == getattr(paper.model, part).cell
    if paper.model.attention is not None:
        assert small.model.attention.score == paper.model.attention.score
        assert small.model.attention.window == paper.model.attention.window
        assert small.model.attention.features == paper.model.attention.features


@pytest.mark.parametrize("name", [f"{name}-small" for name in PAPERS])
def test_small_variants_learn(name):
    """Two updates with all their dropout lower the loss of a batch; here at a sixteenth of their sizes."""
    config = config_of(name)
    tiny = ModelConfig.model_validate(shrunk(config.model.model_dump()))
    model = build(tiny, 16, 16, seed=1, objective=config.objective)
    batch = make_batch([([5, 6, 7, 8], [4, 5]), ([9], [6, 7, 8, 9])], [0, 1])
    objective, optimiser = likelihood(config.training.label_smoothing), torch.optim.Adam(model.parameters(), lr=3e-3)
    before = objective(model, batch, None).nll.item()
    for update in range(2):
        optimiser.zero_grad()
        objective(model, batch, Draws(update)).total.backward()
        optimiser.step()
    assert objective(model, batch, None).nll.item() < before


def test_sutskever():
    config = config_of("sutskever-2014")
    text, model, training = config.text, config.model, config.training
    assert (text.type, text.vocabulary, text.target_vocabulary) == ("words", 160_004, 80_004)
    assert (model.embedding, model.attention) == (1000, None)
    encoder, decoder = model.encoder, model.decoder
    assert (encoder.type, encoder.cell, encoder.layers, encoder.size) == ("stacked", "lstm", 4, 1000)
    assert (encoder.direction, encoder.reverse) == ("forward", True)
    assert (decoder.type, decoder.cell, decoder.layers, decoder.size) == ("sutskever", "lstm", 4, 1000)
    assert decoder.bridge == "copy"
    assert (model.init.type, model.init.scale, model.init.recurrent) == ("uniform", 0.08, "same")
    optimiser = training.optimiser
    assert (optimiser.type, optimiser.learning_rate, optimiser.momentum) == ("sgd", 0.7, None)
    assert halves(training.schedule, [4.9, 5, 5.4, 5.5, 6, 7.4]) == [1, 1 / 2, 1 / 2, 1 / 4, 1 / 8, 1 / 32]
    assert (training.max_epochs, training.clip_norm, training.batch.sentences) == (7.5, 5.0, 128)
    assert training.normalise == "sentences"
    assert round(parameters_of(config) / 1e6) == 384  # "a total of 384M parameters" (section 3.4)


def test_luong_base_is_the_first_row_of_table_1():
    config = config_of("luong-base")
    model, training = config.model, config.training
    assert (config.text.type, config.text.vocabulary, config.text.target_vocabulary) == ("words", 50_004, None)
    assert (model.embedding, model.attention) == (1000, None)
    encoder, decoder = model.encoder, model.decoder
    assert (encoder.type, encoder.cell, encoder.layers, encoder.size) == ("stacked", "lstm", 4, 1000)
    assert (encoder.direction, encoder.reverse) == ("forward", None)
    assert (decoder.type, decoder.cell, decoder.layers, decoder.size) == ("sutskever", "lstm", 4, 1000)
    assert (model.init.type, model.init.scale, model.init.recurrent) == ("uniform", 0.1, "same")
    assert all(share == 0 for _, share in model.dropout)
    assert (training.optimiser.type, training.optimiser.learning_rate) == ("sgd", 1.0)
    assert halves(training.schedule, [4.9, 5, 5.9, 6, 9.9]) == [1, 1 / 2, 1 / 2, 1 / 4, 1 / 32]
    assert (training.max_epochs, training.clip_norm, training.batch.sentences) == (10, 5.0, 128)
    assert (training.max_length, training.normalise) == (50, "sentences")
    reverse = config_of("luong-base", "model.encoder.reverse=true")
    assert reverse.model.encoder.reverse


@pytest.mark.parametrize("name", LUONG)
def test_luong_with_attention(name):
    config = config_of(f"luong-{name}")
    model, training = config.model, config.training
    base = config_of("luong-base")
    assert model.encoder == base.model.encoder.model_copy(update={"reverse": True})
    decoder = model.decoder
    assert (decoder.type, decoder.cell, decoder.layers) == ("luong-input-feeding", "lstm", 4)
    assert (decoder.size, decoder.readout, decoder.bridge) == (1000, 1000, "copy")
    window, _, score = name.rpartition("-")
    attention = model.attention
    if window == "global":
        assert (attention.window, attention.score, attention.width) == ("global", score, None)
    else:
        assert (attention.window, attention.score, attention.width) == (name, "general", 10)
    assert (model.dropout.embedding, model.dropout.layers, model.dropout.readout) == (0.2, 0.2, 0.2)
    assert halves(training.schedule, [7.9, 8, 8.9, 9, 11.9]) == [1, 1 / 2, 1 / 2, 1 / 4, 1 / 16]
    assert training.max_epochs == 12
    differing = {"schedule": base.training.schedule, "max_epochs": 10}
    assert training.model_copy(update=differing) == base.training
    assert (model.init, model.embedding, config.text) == (base.model.init, base.model.embedding, base.text)


def test_luong_without_input_feeding():
    config = config_of(
        "luong-global-dot",
        *("model.decoder.type=luong", "model.decoder.cell=lstm", "model.decoder.size=1000", "model.decoder.layers=4"),
        *("model.decoder.bridge=copy", "model.decoder.readout=1000"),
    )
    assert config.model.decoder.type == "luong"


def test_neubig():
    model = config_of("neubig-mlp").model
    assert (model.decoder.type, model.attention.score) == ("neubig", "concat")
    assert (model.decoder.bridge, model.decoder.size) == ("copy", 2 * model.encoder.size)


def test_coverage():
    config, base = config_of("coverage-2016"), config_of("rnnsearch-50")
    attention = config.model.attention
    assert (attention.features, attention.coverage_size) == (["coverage-neural"], 10)
    assert config.model.decoder == base.model.decoder
    assert config.training == base.training.model_copy(update={"max_length": 80})
    assert config.search.beam == 10


def test_cohn():
    config = config_of("cohn-2016")
    assert config.model.attention.features == ["position", "markov", "fertility-local"]
    assert config.model.attention.neighbours == 1
    assert config.objective.fertility is not None


def test_rnmt_plus():
    config = config_of("rnmt-plus")
    model, training = config.model, config.training
    encoder, decoder = model.encoder, model.decoder
    assert (encoder.layers, encoder.size, encoder.direction, encoder.residual_from) == (6, 1024, "both", 3)
    assert (decoder.layers, decoder.size, decoder.residual_from) == (8, 1024, 3)
    assert encoder.cell == decoder.cell == "gate-norm-lstm"
    assert (model.attention.score, model.attention.heads) == ("multi-head-additive", 4)
    assert (config.text.type, config.text.vocabulary, config.text.joint) == ("bpe", 32_000, True)
    assert training.label_smoothing == 0.1
    optimiser = training.optimiser
    assert (optimiser.type, optimiser.beta1, optimiser.beta2, optimiser.epsilon) == ("adam", 0.9, 0.999, 1e-6)
    assert parameters_of(config) == pytest.approx(378.9e6, rel=0.01)  # the paper's table 1


def test_low_resource():
    config = config_of("low-resource")
    model, training = config.model, config.training
    assert (config.text.type, config.text.vocabulary) == ("bpe", 2000)
    assert (model.embedding, model.encoder.size, model.decoder.size) == (512, 1024, 1024)
    assert (model.tie, model.lexical) == ("target", True)
    assert model.encoder.cell == model.decoder.cell == "layer-norm-gru"
    dropout = model.dropout
    assert (dropout.embedding, dropout.state, dropout.readout, dropout.word) == (0.5, 0.5, 0.5, 0.3)
    assert (training.batch.tokens, training.label_smoothing, training.max_length) == (1000, 0.2, 200)
    assert (training.optimiser.type, training.optimiser.learning_rate) == ("adam", 5e-4)
    assert (training.evaluate_every, training.patience, config.search.beam) == (1000, 10, 5)


def test_exponential_schedule_falls_evenly_between_two_updates():
    schedule = ScheduleConfig(type="exponential", warmup=10, decay_start=100, decay_end=300, minimum=0.25)
    made = SCHEDULES["exponential"](schedule)
    factors = [made.factor(update, 1.0) for update in (5, 10, 100, 200, 300, 900)]
    assert factors == pytest.approx([0.5, 1, 1, 0.5, 0.25, 0.25])


def test_a_decay_must_end_after_its_start():
    with pytest.raises(ConfigError) as caught:
        config_of("rnmt-plus", "training.schedule.decay_end=5")
    assert caught.value.faults == [
        "training.schedule: decay_end must be after decay_start (1200000); got 5",
    ]


def test_one_vocabulary_has_no_second_size():
    with pytest.raises(ConfigError) as caught:
        config_of("rnmt-plus", "text.target_vocabulary=1000")
    assert caught.value.faults == [
        "text: `target_vocabulary` has no effect with `joint`: both languages have one vocabulary"
    ]
