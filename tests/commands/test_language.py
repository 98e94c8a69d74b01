"""`rnnsearch lm`: training, scores, samples and completions; errors with models of the other kind."""

import json
import math

import pytest

from rnnsearch import load_text_model
from rnnsearch.errors import ModelError
from rnnsearch.search.sampling import Sampling
from rnnsearch.systems.folder import load_system
from tests.commands.conftest import NOUNS

RUN = """
preset = "lm-lstm"
name = "tiny"
[data]
target = "de"
train = ["train.de"]
dev = "dev.de"
test_size = 0
[text]
type = "words"
[model]
embedding = 24
network = { type = "recurrent", cell = "lstm", size = 24 }
[model.dropout]
embedding = 0.0
readout = 0.0
[training]
batch = { sentences = 20 }
optimiser = { type = "adam", learning_rate = 0.02 }
schedule = { type = "constant" }
precision = "fp32"
max_updates = 300
evaluate_every = 50
threads = 1
"""
FEED_FORWARD = 'model.network={type="feed-forward", order=6, size=24, direct=true}'


@pytest.fixture(scope="module")
def run_file(corpus):
    path = corpus / "lm.toml"
    path.write_text(RUN)
    return path


@pytest.fixture(scope="module")
def lm(cli, run_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lm")
    result = cli("lm", "train", run_file, "--set", f'folder="{folder / "tiny"}"')
    assert result.code == 0, result.err
    assert "rnnsearch lm sample" in result.err
    return folder / "tiny"


def test_score_prints_log_probabilities_and_perplexity(cli, corpus, lm):
    lines = [*(corpus / "test.de").read_text().splitlines(), ""]
    result = cli("lm", "score", lm, stdin="".join(f"{line}\n" for line in lines))
    scores = [float(line) for line in result.lines]
    loaded = load_text_model(lm)
    scored = loaded.score(lines)
    assert scores == pytest.approx([text.log_prob for text in scored], abs=1e-5)
    assert all(text.log_prob == pytest.approx(sum(text.token_scores), abs=1e-4) for text in scored)
    tokens = sum(len(text.token_scores) for text in scored)
    words = sum(len(line.split()) + 1 for line in lines)
    per_token = f"perplexity {math.exp(-sum(scores) / tokens):.2f} per token ({tokens:,}), "
    per_word = f"{math.exp(-sum(scores) / words):.2f} per word ({words:,})"
    assert per_token + per_word in result.err
    shuffled = [" ".join(reversed(line.split())) for line in lines[:-1]]
    assert all(b.log_prob < a.log_prob - 5 for a, b in zip(scored, loaded.score(shuffled), strict=False))
    rows = [json.loads(line) for line in cli("lm", "score", lm, corpus / "test.de", "--format", "json").lines]
    assert [row["text"] for row in rows] == lines[:-1]
    assert rows[0]["log_prob"] == pytest.approx(scores[0], abs=1e-5)
    assert cli("lm", "score", lm, corpus / "test.de", "--format", "none").out == ""


def test_dev_perplexity_of_training_equals_that_of_score(cli, corpus, lm):
    log = [json.loads(line) for line in (lm / "log.jsonl").read_text().splitlines()]
    best = min(row["dev_perplexity"] for row in log if row["kind"] == "dev")
    result = cli("lm", "score", lm, corpus / "dev.de", "--format", "none")
    assert f"perplexity {best:.2f} per token" in result.err


def test_samples_resemble_the_corpus_and_depend_on_the_seed(cli, lm):
    first = cli("lm", "sample", lm, "-n", 60, "--seed", 3).lines
    assert len(first) == 60 and len(set(first)) > 30
    assert sum(line.startswith("der ") and line.split()[2] in NOUNS.values() for line in first) > 50
    assert cli("lm", "sample", lm, "-n", 20, "--seed", 3).lines == first[:20]
    assert cli("lm", "sample", lm, "-n", 60, "--seed", 4).lines != first
    assert len(set(cli("lm", "sample", lm, "-n", 5, "--top-k", 1).lines)) == 1
    short = cli("lm", "sample", lm, "-n", 5, "--max-length", 3).lines
    assert all(len(line.split()) == 3 for line in short)


def test_completions_begin_with_their_input(cli, lm):
    prefixes = ["der kleine Ka", "", "der alte Hund hö", "der rote"]
    result = cli("lm", "complete", lm, "--beam", 3, stdin="".join(f"{line}\n" for line in prefixes))
    assert result.code == 0, result.err
    assert all(line.startswith(prefix) for line, prefix in zip(result.lines, prefixes, strict=True))
    assert result.lines[0].startswith("der kleine Katze ") and result.lines[2].startswith("der alte Hund hört der ")
    loaded = load_text_model(lm)
    n_best_lists = loaded.complete(prefixes, loaded.options(beam=4, n_best=4))
    assert all(len(set(texts)) == 4 for texts in n_best_lists)
    sampled = loaded.complete(prefixes[:1], loaded.options(variant=Sampling(seed=9)))
    assert sampled[0][0].startswith("der kleine Katze ")


def test_feed_forward_model_is_trained_and_resumed(cli, corpus, run_file, lm, tmp_path):
    settings = ["--set", f'folder="{tmp_path / "ff"}"', FEED_FORWARD, "model.tie=none"]
    assert cli("lm", "train", run_file, *settings, "training.max_updates=150").code == 0
    result = cli("lm", "train", run_file, "--resume", *settings)
    assert result.code == 0, result.err
    assert "resuming from update 150" in result.err
    models = [load_text_model(folder) for folder in (lm, tmp_path / "ff")]
    lines = (corpus / "test.de").read_text().splitlines()
    for model in models:
        assert 1 < model.perplexity(model.score(lines)).per_token < 4


def test_other_outputs_and_objectives_train(cli, corpus, run_file, tmp_path):
    for number, settings_of_output in enumerate(
        (
            ['model.output={type="hierarchical", classes=5}', "model.tie=none"],
            ['model.output={type="adaptive", cutoffs=[8, 12], factor=2.0}', "model.tie=none"],
            ['objective.contrast={type="nce", samples=100, power=0.5}'],
            ["objective.partition=15", "training.label_smoothing=0.1"],
        )
    ):
        folder = tmp_path / str(number)
        result = cli("lm", "train", run_file, "--set", f'folder="{folder}"', *settings_of_output)
        assert result.code == 0, result.err
        model = load_text_model(folder)
        lines = (corpus / "test.de").read_text().splitlines()
        assert model.perplexity(model.score(lines)).per_token < 6, settings_of_output


COMPOSED = ["model.tie=none", "model.characters={type='cnn', embedding=8, widths=3, filters=8}"]


def test_model_of_composed_words_is_trained_scored_sampled_and_resumed(cli, corpus, run_file, tmp_path):
    folder = tmp_path / "composed"
    settings = ["--set", f'folder="{folder}"', *COMPOSED, "text.vocabulary=18"]
    assert cli("lm", "train", run_file, *settings, "training.max_updates=100").code == 0
    result = cli("lm", "train", run_file, "--resume", *settings, "training.max_updates=200")
    assert result.code == 0 and "resuming from update 100" in result.err, result.err
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    best = min(row["dev_perplexity"] for row in log if row["kind"] == "dev")
    result = cli("lm", "score", folder, corpus / "dev.de", "--format", "none")
    assert 1 < best < 4 and f"perplexity {best:.2f} per token" in result.err
    assert load_text_model(folder).score(["der kleine Katze <> hört"])[0].tokens.count("<unk>") > 0
    samples = cli("lm", "sample", folder, "-n", 20, "--seed", 3).lines
    assert sum(line.startswith("der ") for line in samples) > 15
    assert cli("lm", "complete", folder, "--beam", 3, stdin="der Baumkatze s\n").lines[0].startswith("der Baumkatze s")
    inspected = cli("inspect", folder).out
    assert "cnn (words all, embedding 8, widths 3, filters 8, highway 1)" in " ".join(inspected.split())


def test_language_model_uses_the_tokenizer_of_a_translation_model(cli, run_file, model, user_error, tmp_path):
    command = ["lm", "train", run_file, "--set"]
    other = tmp_path / "lm"
    plain = tmp_path / "plain"
    settings = ["training.max_updates=1", f'data.prepared="{tmp_path / "data"}"']
    assert cli(*command, f'folder="{other}"', *settings, f'text.tokenizers="{model}"').code == 0
    tokenizer = load_system(model).target
    assert load_text_model(other).tokenizer.fingerprint() == tokenizer.fingerprint()
    message = user_error(*command, f'folder="{plain}"', *settings)
    assert "was prepared with text.tokenizers" in message
    settings[1] = f'data.prepared="{tmp_path / "other-data"}"'
    assert "must be a model folder with a tokenizer for de" in user_error(
        *command, *settings, f'text.tokenizers="{tmp_path}"'
    )
    message = user_error(*command, *settings, f'text.tokenizers="{model}"', "text.type=bpe")
    assert 'text.type: must be "words", the type of the tokenizer for de in' in message and 'got "bpe"' in message
    message = user_error(*command, *settings, f'text.tokenizers="{model}"', "text.vocabulary=100")
    assert "vocabulary: has no effect with `tokenizers`" in message


def test_commands_reject_the_other_type_of_model(cli, corpus, lm, model):
    for command in (["translate", lm], ["score", lm, corpus / "dev.en", corpus / "dev.de"]):
        result = cli(*command, stdin="a\n")
        assert (result.code, "needs a translation model; this is a language model" in result.err) == (1, True)
    result = cli("lm", "sample", model)
    assert (result.code, "this needs a language model; got a translation model" in result.err) == (1, True)
    with pytest.raises(ModelError, match="needs a language model"):
        load_text_model(model)
    result = cli("inspect", lm)
    assert result.code == 0 and "recurrent (cell lstm, size 24, layers 1)" in result.out
    assert "fast implementations of network, output" in result.out
    assert "a language model" in (lm / "card.md").read_text()


def test_translation_commands_reject_language_models(user_error, corpus, lm, model, tmp_path):
    message = "translating needs a translation model; this is a language model (see `rnnsearch lm`)"
    files = [corpus / "dev.en", corpus / "dev.de"]
    before = sorted(lm.iterdir())
    assert user_error("serve", model, lm) == f"{lm}: {message}"
    assert user_error("aligner", lm, *files) == f"{lm}: {message}"
    assert user_error("candidates", lm, *files) == message
    assert user_error("ensemble", lm, lm, "-o", tmp_path / "x") == f"model 1 of the ensemble: {message}"
    assert user_error("ensemble", model, lm, "-o", tmp_path / "x") == f"model 2 of the ensemble: {message}"
    assert user_error("translate", model, lm, stdin="a\n") == f"model 2 of the ensemble: {message}"
    assert sorted(lm.iterdir()) == before and not (tmp_path / "x").exists()


def test_report_of_a_language_model_has_one_language(cli, lm, tmp_path):
    result = cli("report", lm, "-o", tmp_path / "page.html")
    assert result.code == 0, result.err
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<h1>de: tiny</h1>" in page and "de tokens" in page
    assert page.count("<img") == 1, "the learning curves"


LM = {"preset": "lm-lstm", "data": {"target": "de", "train": ["x.de"]}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["data.source=en"], "data.source: must not be given for a language model, which has only a target"),
        (["training.metric=bleu"], 'training.metric: must be "nll" for a language model; got "bleu"'),
        (["model.dropout.attention=0.1"], "model.dropout.attention: has no effect with a language model; remove it"),
        (["model.dropout.layers=0.1"], "model.dropout.layers: has no effect with a network of one layer; remove it"),
        (["model.network.size=10"], "model.network.size must equal model.embedding (384); got 10"),
        (["model.network.layers=0"], "model.network.layers: must be greater than or equal to 1; got 0"),
        (["model.network.residual_from=3"], "must be at most model.network.layers (1); got 3"),
        (["model.network.order=3"], "model.network.order: has no effect with the recurrent network; remove it"),
        (["model.netwrk.size=3"], 'model.netwrk: unknown option (did you mean "network"?)'),
        (["model.dropout.embeding=0.3"], 'model.dropout.embeding: unknown option (did you mean "embedding"?)'),
        (["model.encoder.size=3"], "model.encoder: unknown option"),
        (
            ["model.kind=languag-model"],
            'model.kind: must be one of translation, language-model, multiway; got "languag-model"',
        ),
        ([FEED_FORWARD], "whose input model.network.direct enlarges; remove one"),
        ([FEED_FORWARD, "model.tie=none", "model.dropout.state=0.2"], "has no effect with a feed-forward network"),
        (
            [FEED_FORWARD, "model.tie=none", "model.dropout.layer_outputs=0.2"],
            "layer_outputs: has no effect with a feed",
        ),
        (["objective.symmetry=1.0"], "objective.symmetry: has no effect with a language model; remove it"),
        (["search.candidates=10"], "search.candidates: has no effect with a language model; remove it"),
        (["data.alignments=aligner"], "data.alignments: has no effect with a language model; remove it"),
        (['model.output={type="adaptive", cutoffs=[8]}'], '"adaptive" needs a vocabulary sorted by frequency'),
        (
            ['model.output={type="hierarchical"}'],
            'model.output.type = "hierarchical": cannot be combined with model.tie; remove one',
        ),
        (
            ["text.type=words", "model.characters={type='cnn'}"],
            "model.characters: cannot be combined with model.tie; remove one",
        ),
        (
            ["model.tie=none", "model.characters={type='cnn'}"],
            'model.characters: has no effect with text.type = "bpe", whose vocabulary covers every word; remove it',
        ),
        (
            ["text.type=words", "model.characters={type='lstm'}", "model.context={size=4}"],
            "model.characters: cannot be combined with model.context; remove one",
        ),
        (
            ["text.type=words", "model.tie=none", "model.characters={type='cnn', filters=2, projection=false}"],
            "projection: must be true, or model.embedding must be the number of all filters (42); got 384",
        ),
        (["model.characters={type='cnn', sizes=3}"], "model.characters.sizes: unknown option"),
        (["training.dev_size=0"], "training.dev_size: unknown option"),
        (["data.dev_size=0"], "training.patience: needs a dev set; give data.dev or data.dev_size"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_options_of_translation_models_are_an_error(settings, message, problems):
    listed = problems(LM, *settings)
    assert any(message in problem for problem in listed), listed


def test_presets_are_valid(problems):
    for name in ("lm-lstm", "lm-bengio", "lm-ling", "lm-kim", "lm-kim-small"):
        assert problems({**LM, "preset": name}) == []
