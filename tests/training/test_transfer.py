"""`[training.transfer]`: rows by token, frozen and reinitialised components; tokenizers of some languages."""

import shutil
from typing import Any

import pytest
import torch

from rnnsearch.config import resolve
from rnnsearch.data.batches import make_batch
from rnnsearch.data.prepare import prepare
from rnnsearch.errors import ConfigError, Interrupted
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.systems.folder import SYSTEMS, load_system, save_system
from rnnsearch.systems.system import System, named_components
from rnnsearch.systems.transfer import transfer_weights
from rnnsearch.systems.warm_start import load_initial_weights
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.text.vocabulary import SPECIALS
from rnnsearch.text.words import train_words
from rnnsearch.training.optimisers import make_optimiser
from rnnsearch.training.run import check
from rnnsearch.utils.weights import named_weights, read_weights
from tests.training.test_resume import OPTIMISERS, InterruptAt
from tests.training.toys import WORDS, random_sentences, write_split
from tests.untrained import BAHDANAU, OTHER_FAMILIES, TEXT

LANGUAGE_MODEL = {"kind": "language-model", "embedding": 6, "network": {"type": "recurrent", "cell": "gru", "size": 5}}
COPYNET = {
    "embedding": 12,
    "encoder": {"type": "bidirectional", "cell": "gru", "size": 10},
    "attention": {"score": "additive", "size": 9},
    "decoder": {"type": "copynet", "cell": "gru", "size": 11},
}
JOINT = train_words([line for lines in TEXT.values() for line in lines], 400, 1)


def make(
    languages: str,
    transfer: dict[str, Any] | None = None,
    model: dict[str, Any] = BAHDANAU,
    tokenizer: Tokenizer | None = None,
    seed: int = 1,
) -> System[Any]:
    """Return an initialised system, such as de-en, whose vocabularies are the words of `TEXT`, or `tokenizer`."""
    *sources, target = languages.split("-")
    training = {"max_updates": 1, "optimiser": {"type": "sgd", "learning_rate": 1.0}, "seed": seed}
    if transfer is not None:
        training |= {"begin_from": "parent", "transfer": transfer}
    data = {"target": target, "train": ["x.tsv"]} | (
        {"source": sources[0] if len(sources) == 1 else sources} if sources else {}
    )
    config = resolve({"data": data, "text": {"type": "words"}, "model": model, "training": training})
    tokenizers = {language: tokenizer or train_words(TEXT[language], 340, 1) for language in languages.split("-")}
    return SYSTEMS[config.model.kind].make(config, tokenizers, seed)


def transferred(
    parent: System[Any], languages: str, transfer: dict[str, Any], tmp_path: Any, **options: Any
) -> tuple[System[Any], dict[str, torch.Tensor], str]:
    """Return a child with the weights of a parent, the weights that it was initialised with, and the message."""
    child = make(languages, transfer, seed=2, **options)
    assert not [problem for problem in check(child.config) if "transfer" in problem]
    fresh = {name: tensor.detach().clone() for name, tensor in named_weights(child.model).items()}
    return child, fresh, transfer_weights(child, parent, tmp_path)


def assert_rows_by_token(child: Tokenizer, parent: Tokenizer, new: Any, old: Any, fresh: Any) -> None:
    """Check that each row is that of the parent's token of the same name, or as it was initialised."""
    ids = {name: id for id, name in enumerate(parent.names())}
    assert any(name in ids for name in child.names()[len(SPECIALS) :])
    assert any(name not in ids for name in child.names())
    for id, name in enumerate(child.names()):
        assert torch.equal(new[id], old[ids[name]] if name in ids else fresh[id]), name


def test_source_rows_follow_their_tokens(tmp_path):
    parent = make("de-en")
    child, fresh, message = transferred(parent, "fr-en", {"source": "token"}, tmp_path)
    old, new = named_weights(parent.model), named_weights(child.model)
    name = "source_embedding.weight"
    assert_rows_by_token(child.source, parent.source, new[name], old[name], fresh[name])
    assert all(torch.equal(new[name], old[name]) for name in old.keys() - {"source_embedding.weight"})
    common = len({*child.source.names()} & {*parent.source.names()})
    size = len(child.source)
    assert message == (
        f"transfer from {tmp_path}; source (de to fr): {size} tokens, {common} by their characters, "
        f"{size - common} new; target (en): the same {len(child.target)} tokens"
    )


@pytest.mark.parametrize(
    ("model", "tables"),
    [
        (BAHDANAU, ["target_embedding.weight", "output.weight", "output.bias"]),
        ({**BAHDANAU, "lexical": True}, ["target_embedding.weight", "output.weight", "output.lexical", "output.bias"]),
        (OTHER_FAMILIES["luong"], ["target_embedding.weight", "output.bias"]),
        ({**BAHDANAU, "pointer": {"size": 5}}, ["target_embedding.weight", "output.words.weight", "output.words.bias"]),
        (COPYNET, ["target_embedding.weight", "output.words.weight", "output.words.bias"]),
    ],
    ids=["bahdanau", "lexical", "tied", "pointer", "copynet"],
)
def test_target_rows_follow_their_tokens_in_every_table(model, tables, tmp_path):
    parent = make("en-de", model=model)
    child, fresh, _ = transferred(parent, "en-fr", {"target": "token"}, tmp_path, model=model)
    old, new = named_weights(parent.model), named_weights(child.model)
    for name in tables:
        assert_rows_by_token(child.target, parent.target, new[name], old[name], fresh[name])
    assert all(torch.equal(new[name], old[name]) for name in old.keys() - {*tables})


def test_table_of_both_sides_is_mapped_once(tmp_path):
    model = {**OTHER_FAMILIES["luong"], "tie": "all"}
    parent = make("de-en", model=model, tokenizer=train_words(TEXT["de"] + TEXT["en"], 340, 1))
    child, fresh, _ = transferred(parent, "fr-en", {"source": "token"}, tmp_path, model=model, tokenizer=JOINT)
    old, new = named_weights(parent.model), named_weights(child.model)
    for name in ("source_embedding.weight", "output.bias"):
        assert_rows_by_token(child.source, parent.source, new[name], old[name], fresh[name])
    with pytest.raises(ConfigError, match='target: must be "token", like training'):
        transferred(parent, "fr-en", {"source": "token", "target": "random"}, tmp_path, model=model, tokenizer=JOINT)


def test_random_rows_are_a_seeded_permutation_of_the_parents(tmp_path):
    parent = make("de-en")
    child, _, message = transferred(parent, "fr-en", {"source": "random"}, tmp_path)
    again, _, _ = transferred(parent, "fr-en", {"source": "random"}, tmp_path)
    other = make("fr-en", {"source": "random"}, seed=3)
    transfer_weights(other, parent, tmp_path)
    old, new = parent.model.source_embedding.weight, child.model.source_embedding.weight
    assert torch.equal(new, again.model.source_embedding.weight)
    assert not torch.equal(new, other.model.source_embedding.weight)
    count = len(SPECIALS)
    assert torch.equal(new[:count], old[:count])
    rows = {tuple(row) for row in old[count:].tolist()}
    assigned = [tuple(row) for row in new[count:].tolist()]
    assert {*assigned} <= rows
    assert len({*assigned}) == min(len(rows), len(assigned))
    assert f"source (de to fr): {len(child.source)} tokens, {len(child.source)} at random, 0 new" in message


def test_dictionary_assigns_rows_of_translations(tmp_path):
    path = tmp_path / "fr-de.tsv"
    path.write_text(
        "chat\tKatze\t0.9\t3\nchat\tHund\t0.1\t1\nchien\tgroßen Vogel\t1\t1\noiseau\tSchiff\t1\t1\nx\tder\n"
    )
    parent = make("de-en")
    transfer = {"source": "dictionary", "source_dictionary": str(path)}
    child, fresh, message = transferred(parent, "fr-en", transfer, tmp_path)
    old, new = parent.model.source_embedding.weight, child.model.source_embedding.weight

    def row(system: System[Any], word: str) -> int:
        ((id,),) = system.source.ids([word])
        return id

    assert torch.equal(new[row(child, "chat")], old[row(parent, "Katze")])
    mean = (old[row(parent, "großen")] + old[row(parent, "Vogel")]) / 2
    torch.testing.assert_close(new[row(child, "chien")], mean)
    unknown = row(child, "oiseau")  # the parent does not know its translation
    assert torch.equal(new[unknown], fresh["source_embedding.weight"][unknown])
    assert torch.equal(new[: len(SPECIALS)], old[: len(SPECIALS)])
    assert "tokens, 2 by dictionary, " in message and "by their characters" in message


def test_language_model_is_transferred(tmp_path):
    parent = make("de", model=LANGUAGE_MODEL)
    child, fresh, message = transferred(parent, "fr", {"target": "token"}, tmp_path, model=LANGUAGE_MODEL)
    old, new = named_weights(parent.model), named_weights(child.model)
    for name in ("embedding.weight", "output.weight", "output.bias"):
        assert_rows_by_token(child.target, parent.target, new[name], old[name], fresh[name])
    assert all(torch.equal(new[name], old[name]) for name in old if name.startswith("network."))
    assert message.startswith(f"transfer from {tmp_path}; target (de to fr): ")
    config = make("fr", {"source": "token"}, model=LANGUAGE_MODEL).config
    assert "training.transfer.source: has no effect with a language model; remove it" in check(config)
    multiway = make("fr-en", {"target": "dictionary", "target_dictionary": "x"}, model={**BAHDANAU, "kind": "multiway"})
    assert 'cannot be combined with training.transfer.target = "dictionary"' in "".join(check(multiway.config))
    assert "training.transfer.languages: has no effect" in "".join(
        check(make("fr-en", {"languages": {"fr": "de"}}).config)
    )


def test_reinitialised_components_equal_the_initialisation(tmp_path):
    parent = make("de-en")
    components = ["encoder", "source_embedding", "decoder.attention", "output.bias"]
    larger = {**BAHDANAU, "encoder": {"type": "bidirectional", "cell": "lstm", "size": 10}}
    child, fresh, message = transferred(parent, "fr-en", {"reinitialise": components}, tmp_path, model=larger)
    old, new = named_weights(parent.model), named_weights(child.model)
    for name, tensor in new.items():
        is_new = name.startswith(("encoder.", "source_embedding.", "decoder.attention.")) or name == "output.bias"
        assert torch.equal(tensor, fresh[name] if is_new else old[name]), name
    assert "; reinitialised: encoder, source_embedding, decoder.attention, output.bias; " in message


def test_shared_matrix_belongs_to_both_components(tmp_path):
    model = OTHER_FAMILIES["luong"]
    parent = make("de-en", model=model)
    child, fresh, _ = transferred(parent, "de-en", {"reinitialise": ["output"]}, tmp_path, model=model)
    weights = named_weights(child.model)
    for name in ("target_embedding.weight", "output.bias"):
        assert torch.equal(weights[name], fresh[name])
    frozen = make("de-en", {"freeze": ["output"]}, model=model)
    assert frozen.frozen_parameters() == {frozen.model.target_embedding.weight, frozen.model.output.bias}


FROZEN = ["encoder", "decoder", "source_embedding", "target_embedding"]


@pytest.mark.parametrize(("family", "component"), [(f, c) for f in OTHER_FAMILIES for c in FROZEN])
def test_freezing_does_not_change_other_gradients_of_any_family(family, component):
    assert_other_gradients_are_unchanged(OTHER_FAMILIES[family], component)


@pytest.mark.parametrize("component", [*dict(make("de-en").model.named_children()), "decoder.attention", "output.bias"])
def test_freezing_does_not_change_other_gradients(component):
    assert_other_gradients_are_unchanged(BAHDANAU, component)


def assert_other_gradients_are_unchanged(model: dict[str, Any], component: str) -> None:
    """Check that fast implementations do not depend on which weights need gradients."""
    free = make("de-en", model=model)
    frozen = make("de-en", {"freeze": [component]}, model=model)
    batch = make_batch([([5, 6, 7], [8, 5, 9]), ([9, 4], [6])], [0, 1], free.direction)
    for system in (free, frozen):
        make_optimiser(system.parameter_groups(), system.config.training.optimiser)
        Likelihood()(system.model, batch, BatchRng(3)).total.backward()
    expected = dict(free.model.named_parameters())
    components = {name for name, _ in named_components(frozen.model, [component], "x").items()}
    for name, parameter in frozen.model.named_parameters():
        if name in components:
            assert parameter.grad is None and not parameter.requires_grad
        elif expected[name].grad is None:
            assert parameter.grad is None
        else:
            torch.testing.assert_close(parameter.grad, expected[name].grad)


@pytest.mark.parametrize(
    ("languages", "transfer", "model", "message"),
    [
        ("fr-en", {}, BAHDANAU, 'source: must be "token", "dictionary" or "random", or text.tokenizers must name the'),
        ("fr-en", {"freeze": ["decodr"]}, BAHDANAU, r'freeze: must have names .* "decodr" \(did you mean "decoder"'),
        ("de-en", {"reinitialise": ["enc"]}, BAHDANAU, 'reinitialise: must have names of parameters .* got "enc"'),
        ("de-en", {}, {**BAHDANAU, "embedding": 13}, r"begin_from: needs the \[model\] .* got another model.embedding"),
        (
            "de-en",
            {"reinitialise": ["encoder"]},
            {**BAHDANAU, "encoder": {"type": "bidirectional", "cell": "gru", "size": 9}},
            r"begin_from: decoder\..* must be \(.*18.*\); got \(.*20",
        ),
        ("de-en", {"freeze": list(dict(make("de-en").model.named_children()))}, BAHDANAU, "must leave something"),
    ],
)
def test_what_does_not_fit_is_rejected(languages, transfer, model, message, tmp_path):
    child = make(languages, transfer, model=model)
    with pytest.raises(ConfigError, match=message):
        child.parameter_groups()
        transfer_weights(child, make("de-en"), tmp_path)


def test_other_layouts_need_the_same_tokens(tmp_path):
    characters = {"type": "bilstm", "embedding": 3, "size": 4}
    model = {**BAHDANAU, "source_characters": characters}
    parent = make("de-en", model=model)
    with pytest.raises(ConfigError) as error:
        transfer_weights(make("fr-en", {"source": "token"}, model=model), parent, tmp_path)
    must = 'must be "same" (or reinitialise = ["source_embedding"]), because source_embedding is not a table of tokens'
    assert error.value.problems == [f'training.transfer.source: {must}; got "token"']
    child, fresh, _ = transferred(parent, "fr-en", {"reinitialise": ["source_embedding"]}, tmp_path, model=model)
    assert all(torch.equal(t, fresh[n]) for n, t in named_weights(child.model).items() if n.startswith("source_emb"))
    classes = {**LANGUAGE_MODEL, "output": {"type": "hierarchical", "classes": 3}}
    with pytest.raises(ConfigError, match="because output is not a table of tokens"):
        transfer_weights(make("fr", {"target": "token"}, model=classes), make("de", model=classes), tmp_path)


def test_several_sources_need_the_same_tokens(tmp_path):
    model = {**BAHDANAU, "sources": {"type": "mean"}}
    parent = make("de-fr-en", model=model)
    child, fresh, message = transferred(parent, "de-fr-en", {"reinitialise": ["encoder"]}, tmp_path, model=model)
    old, new = named_weights(parent.model), named_weights(child.model)
    for name, tensor in new.items():
        assert torch.equal(tensor, fresh[name] if name.startswith("encoder.") else old[name]), name
    assert "; the same sources; target (en): the same " in message and "; reinitialised: encoder; " in message
    child, fresh, _ = transferred(parent, "de-fr-en", {"target": "random"}, tmp_path, model=model)
    assert not torch.equal(child.model.output.weight, parent.model.output.weight)
    with pytest.raises(ConfigError, match='source: must be "same" for a model with several sources, or with arrays'):
        transferred(parent, "de-fr-en", {"source": "token"}, tmp_path, model=model)


@pytest.mark.parametrize(
    ("transfer", "message"),
    [
        ({"source": "dictionary"}, 'transfer.source_dictionary: must be given for source = "dictionary"'),
        ({"target_dictionary": "x"}, 'transfer.target_dictionary: has no effect without target = "dictionary"'),
        ({"freeze": ["decoder"], "reinitialise": ["decoder.attention"]}, "freeze: must not have components that are"),
        ({"source": "tokens"}, r'source: must be one of .*; got "tokens" \(did you mean "token"'),
    ],
)
def test_options_without_effect_are_rejected(transfer, message):
    with pytest.raises(ConfigError, match=message):
        make("fr-en", transfer)


def test_kind_and_missing_parent_are_rejected(tmp_path):
    save_system(tmp_path / "parent", make("en", model=LANGUAGE_MODEL))
    child = make("fr-en", {"source": "token"})
    child.config._base = tmp_path
    with pytest.raises(ConfigError, match="must be a translation model, like this one; got a language-model model"):
        load_initial_weights(child)
    training = {"max_updates": 1, "optimiser": {"type": "sgd", "learning_rate": 1.0}, "transfer": {}}
    data = {"source": "fr", "target": "en", "train": ["x.tsv"]}
    with pytest.raises(ConfigError, match="training: transfer needs begin_from, the folder of the parent model"):
        resolve({"data": data, "model": BAHDANAU, "training": training})


@pytest.fixture
def child_run(learn, configure, tmp_path):
    """Return a function that trains a child of the run `parent`, with other source words and the parent's target."""
    learn("parent", max_updates=2)
    files = tmp_path / "child"
    files.mkdir()
    rows = random_sentences(5, 40, 2, 6)
    write_split(files, "train", rows)
    write_split(files, "dev", rows[:8])
    for split in ("train", "dev"):
        text = (files / f"{split}.aa").read_text()
        (files / f"{split}.cc").write_text(text.replace(WORDS[0], "other"))
    parent = str(tmp_path / "parent")
    data = {"source": "cc", "train": [f"{files}/train.cc|{files}/train.bb"], "dev": f"{files}/dev.cc|{files}/dev.bb"}
    tables = {"data": data, "text": {"tokenizers": {"bb": parent}}}
    prepared = prepare(configure(tables, max_updates=1), tmp_path / "child-data")

    def run(name: str, resume: bool = False, **options: Any) -> Any:
        transfer = {"source": "token", "freeze": ["target_embedding", "decoder.attention"], "reinitialise": ["encoder"]}
        training = {"begin_from": parent, "transfer": transfer, "l2": 0.01, "max_updates": 4}
        return learn(name, tables, data=prepared, resume=resume, **training | options)

    return run


@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_frozen_weights_stay_and_runs_resume_without_the_parent(child_run, assert_same, tmp_path, name):
    recorder = child_run("straight", optimiser=OPTIMISERS[name])
    with pytest.raises(Interrupted):
        child_run("broken", optimiser=OPTIMISERS[name], after=InterruptAt(2))
    old = read_weights(tmp_path / "parent" / "model.safetensors")
    shutil.move(tmp_path / "parent", tmp_path / "elsewhere")
    child_run("broken", optimiser=OPTIMISERS[name], resume=True)
    assert_same("straight", "broken")
    new = read_weights(tmp_path / "straight" / "model.safetensors")
    frozen = {name for name in old if name.startswith(("target_embedding.", "decoder.attention."))}
    assert {name for name in old.keys() - {"source_embedding.weight"} if torch.equal(old[name], new[name])} == frozen
    total = sum(tensor.numel() for tensor in new.values())
    num_frozen = sum(new[name].numel() for name in frozen)
    messages = "\n".join(recorder.messages)
    assert f"{total:,} parameters ({total - num_frozen:,} trained, {num_frozen:,} frozen); " in messages
    assert "source (aa to cc): 12 tokens, 11 by their characters, 1 new; target (bb): the same 12 tokens" in messages


def test_tokenizers_of_one_language_are_loaded(child_run, configure, tmp_path):
    child_run("child", max_updates=1)
    parent, child = (load_system(tmp_path / name) for name in ("parent", "child"))
    assert child.target.fingerprint() == parent.target.fingerprint()
    assert "other" in "".join(child.source.names())
    parent_folder = str(tmp_path / "parent")
    other = configure({"text": {"tokenizers": {"de": parent_folder}}}, max_updates=1)
    assert "text.tokenizers: must have only languages of [data] (aa, bb); got de" in check(other)
    both = configure({"text": {"tokenizers": {"aa": parent_folder, "bb": parent_folder}}}, max_updates=1)
    message = "has no effect with text.tokenizers for all languages; remove it"
    assert f"text.vocabulary: {message}" in "\n".join(check(both))
    with pytest.raises(ConfigError, match="must be a model folder, or a table of model folders by language"):
        configure({"text": {"tokenizers": 3}}, max_updates=1)
