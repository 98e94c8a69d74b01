"""Tasks of multi-way models: autoencoding and language modelling with the modules of the directions."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rnnsearch.accel import cuda_graphs
from rnnsearch.accel.cuda_graphs import PassRecorder
from rnnsearch.data.batch import COPY_SUFFIX, Direction
from rnnsearch.data.batches import Batch, make_batch
from rnnsearch.data.tasks import task_ratios
from rnnsearch.errors import ConfigError
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.multiway import count_language_parameters, trained_directions
from rnnsearch.objectives import likelihood
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.ops import linear, loss, recurrence
from rnnsearch.systems.multiway import MultiwaySystem
from rnnsearch.text.vocabulary import BOS, EOS
from tests.models import decoder_equations as equations
from tests.models import reference as paper
from tests.models.decoder_equations import Sentence
from tests.models.reference import Parameters, product, within
from tests.models.test_multiway import direction_parameters
from tests.models.test_translation_model import N, config_of, negative_log_likelihood
from tests.objectives.passes import again
from tests.untrained import BAHDANAU, OTHER_FAMILIES, untrained_multiway

TEXTS = [[5, 6, 7], [8], [9, 4], []]
COPY = Direction((f"de{COPY_SUFFIX}",), "de")
MODEL_OF_DE = Direction((), "de")
TASKS = {"autoencoding": {"de": 0.5}, "language_model": {"de": 0.25}}


def batch_of(task: Direction, texts: list[list[int]] = TEXTS) -> Batch:
    return make_batch([(text,) * (len(task.sources) + 1) for text in texts], range(len(texts)), task)


def language_model_nll(p: Parameters, config: Any, sentence: list[int]) -> float:
    """Return -log p(y) by the decoder's equations over one annotation, and a summary, of zeros."""
    cell = config.decoder.cell
    words = p["target_embedding.weight"][[BOS, *sentence]]
    zeros = Sentence(words, np.zeros((1, 2 * N)), np.zeros(N))
    nll = 0.0
    for y, position in zip([*sentence, EOS], equations.bahdanau(within(p, "decoder"), zeros, cell), strict=True):
        logits = product(p["output.weight"], position.readout) + p["output.bias"]
        nll -= np.log(paper.softmax(logits)[y])
    return nll


def test_nll_of_tasks_equals_the_equations(drawn: Any):
    config = config_of()
    tables = config.model_dump(mode="json", exclude_none=True)
    model, p = drawn(untrained_multiway("en-de", "fr-de", model=tables, tasks=TASKS).model)
    assert model.tasks == (COPY, MODEL_OF_DE)
    parameters = direction_parameters(p, "de", "de")
    expected = sum(negative_log_likelihood(parameters, config, text, text) for text in TEXTS)
    nll = Likelihood()(model.view(COPY), batch_of(COPY), None).nll.item()
    assert nll == pytest.approx(expected, rel=1e-10)
    expected = sum(language_model_nll(parameters, config, text) for text in TEXTS)
    nll = Likelihood()(model.view(MODEL_OF_DE), batch_of(MODEL_OF_DE), None).nll.item()
    assert nll == pytest.approx(expected, rel=1e-10)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("task", [COPY, MODEL_OF_DE], ids=lambda task: task.name)
def test_batch_of_a_task_gives_other_languages_no_gradient(task: Direction):
    system = untrained_multiway("en-de", "fr-de", "en-fr", tasks=TASKS)
    system.objective()(system.model, batch_of(task), BatchRng(1)).total.backward()
    names = {name for name in gradients(system.model) if not name.startswith("attention.")}
    languages = {".".join(name.split(".")[:2]) for name in names}
    target = {"target_embeddings.de", "decoders.de", "outputs.de"}
    assert languages == (target | {"source_embeddings.de", "encoders.de"} if task.sources else target)
    attention = {name: grad for name, grad in gradients(system.model).items() if name.startswith("attention.")}
    if not task.sources:
        # Over one position, weights are 1 whatever the scores are.
        assert all(not grad.any() for grad in attention.values())


@pytest.mark.parametrize("family", [None, "luong", "cohn", "bideep", "ssru"])
@pytest.mark.parametrize("task", [COPY, MODEL_OF_DE], ids=lambda task: task.name)
def test_halves_of_a_batch_have_its_loss_and_gradients(task: Direction, family: str | None):
    table = BAHDANAU if family is None else OTHER_FAMILIES[family]
    system = untrained_multiway("en-de", model={**table, "dropout": {"readout": 0.3, "state": 0.2}}, tasks=TASKS)
    objective = system.objective()
    batch = batch_of(task)

    def rng(rows: range) -> BatchRng:
        numbers = BatchRng(3)
        if len(rows) < len(TEXTS):
            numbers.select_rows(rows, len(TEXTS))
        return numbers

    whole = objective(system.model, batch, rng(range(len(TEXTS)))).total
    whole.backward()
    expected = {name: grad.clone() for name, grad in gradients(system.model).items()}
    system.model.zero_grad()
    total = 0.0
    for half in batch.split():
        loss = objective(system.model, half, rng(range(half.indices[0], half.indices[-1] + 1))).total
        loss.backward()
        total += loss.item()
    assert total == pytest.approx(whole.item(), rel=1e-5)
    for name, gradient in gradients(system.model).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5)


def test_tasks_do_not_change_the_initial_weights_of_directions():
    few = dict(untrained_multiway("en-de", "fr-de").model.named_parameters())
    tasks = {"autoencoding": {"de": 0.5, "fr": 0.1}}
    many = dict(untrained_multiway("en-de", "fr-de", tasks=tasks).model.named_parameters())
    assert all(torch.equal(parameter, many[name]) for name, parameter in few.items())
    new = {name.split(".")[1] for name in many.keys() - few.keys()}
    assert new == {"de", "fr"}


def test_autoencoding_adds_the_missing_module_and_allows_zero_shot_translation():
    system = untrained_multiway("en-de", tasks={"autoencoding": {"de": 0.5, "en": 0.5}})
    assert [direction.name for direction in system.directions] == ["en-de"]
    counts = count_language_parameters(system.model)
    assert counts["source"].keys() == counts["target"].keys() == {"en", "de"}
    assert system.select(Direction(("de",), "en")).config.data.tasks is None
    attention = sum(parameter.numel() for parameter in system.model.attention.parameters())
    assert system.num_parameters == attention + sum(sum(by_language.values()) for by_language in counts.values())
    [group] = system.parameter_groups()
    assert set(group.parameters) == set(system.model.parameters())


def test_tasks_with_a_ratio_of_0_have_no_modules():
    tasks = {"autoencoding": {"de": 0.0}, "language_model": {"de": 0}}
    system = untrained_multiway("en-de", tasks=tasks)
    assert system.model.tasks == ()
    assert system.num_parameters == untrained_multiway("en-de").num_parameters


def test_tasks_of_frozen_modules_are_not_trained():
    system = untrained_multiway("en-de", tasks=TASKS)
    names = ("decoders.de.", "outputs.de.", "target_embeddings.de.", "attention.")
    for name, parameter in system.model.named_parameters():
        parameter.requires_grad_(not name.startswith(names))
    assert trained_directions(system.model) == [Direction(("en",), "de"), COPY]


def test_shared_decoder_reads_the_language_of_autoencoding_from_a_tag():
    sharing = {"encoders": "all", "decoders": "all"}
    tasks = {"autoencoding": {"de": 0.5, "en": 0.5}}
    system = untrained_multiway("en-de", "fr-de", text_type="bpe", sharing=sharing, tasks=tasks)
    assert system.num_parameters == untrained_multiway("en-de", text_type="bpe", sharing=sharing).num_parameters
    to_english = system.select(Direction(("fr",), "en"))
    assert to_english.config.data.tag == "<0x05>"
    with pytest.raises(ConfigError, match="needs target languages with the same vocabulary"):
        MultiwaySystem.make(
            untrained_multiway("en-de", text_type="bpe", sharing=sharing, tasks=tasks).config,
            untrained_multiway("en-de", text_type="bpe").tokenizers,
            7,
        )


def test_names_of_tasks():
    ratios = task_ratios(untrained_multiway("en-de", tasks=TASKS).config.data.tasks)
    assert {task.name: ratio for task, ratio in ratios.items()} == {"de-de": 0.5, "de": 0.25}


def test_recorded_language_modelling_equals_the_pass(monkeypatch: pytest.MonkeyPatch):
    # As on a GPU: PyTorch instead of native code.
    monkeypatch.setattr(linear, "product_implementation", lambda *_: linear.TORCH)
    monkeypatch.setattr(recurrence, "can_run", lambda *_: False)
    monkeypatch.setattr(loss, "has_native_loss", lambda *_: False)
    monkeypatch.setattr(cuda_graphs, "MIN_OCCURRENCES", 1)
    system = untrained_multiway("en-de", model={**BAHDANAU, "dropout": {"readout": 0.3}}, tasks=TASKS)
    batches = [batch_of(MODEL_OF_DE), batch_of(MODEL_OF_DE, [[6, 4, 9], [5, 5], [8], [7]])]

    def run(seed: int) -> tuple[float, dict[str, Tensor]]:
        system.model.zero_grad()
        total = system.objective()(system.model, batches[seed % 2], BatchRng(seed)).total
        total.backward()
        return total.item(), {name: grad.clone() for name, grad in gradients(system.model).items() if grad.any()}

    # One pass without recording, one that is recorded, and one replay.
    expected = [run(seed) for seed in range(3)]
    recorder = PassRecorder(again)
    monkeypatch.setattr(likelihood, "run_recorded", recorder.run)
    for seed in range(3):
        total, found = run(seed)
        assert total == pytest.approx(expected[seed][0], rel=1e-5)
        assert found.keys() == expected[seed][1].keys()
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, expected[seed][1][name], rtol=1e-4, atol=1e-6)
    assert len(recorder) == 1
