"""Training of multi-way models: one direction trains like a bilingual model, and runs resume bit for bit."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import rnnsearch
from rnnsearch.config import RunConfig
from rnnsearch.data.batch import Direction
from rnnsearch.data.prepare import prepare
from rnnsearch.data.prepared import Prepared
from rnnsearch.errors import ConfigError, DataError, Interrupted
from rnnsearch.evaluation.adaptation import MIN_PAIRS, AdaptationOptions, adapt
from rnnsearch.objectives.multiway import MultiwayLikelihood
from rnnsearch.systems.dev_scores import DevScore
from rnnsearch.systems.extraction import extract
from rnnsearch.systems.folder import load_system, save_system
from rnnsearch.systems.multiway import MultiwayEvaluator, mean_score
from rnnsearch.systems.warm_start import load_initial_weights
from rnnsearch.training.run import check, train
from rnnsearch.translator.translator import Translator
from rnnsearch.utils.weights import named_weights, read_weights
from tests.training.test_resume import InterruptAt
from tests.training.toys import Recorder, do_nothing, random_sentences, toy_config
from tests.untrained import untrained_multiway

FIRST = Direction(("aa",), "cc")
SECOND = Direction(("bb",), "cc")
MULTIWAY: dict[str, Any] = {
    "data": {"source": ["aa", "bb"], "target": "cc", "train": ["train.tsv"], "dev": "dev.tsv", "aligner": False},
    "model": {"kind": "multiway"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts in three languages; no row has all of them, and none has both aa and bb."""
    folder = tmp_path_factory.mktemp("multiway")
    rows = [(" ".join(row), " ".join(row[::-1]), " ".join(sorted(row))) for row in random_sentences(1, 100, 2, 6)]
    for name, part in {"train": rows[:60], "dev": rows[60:80]}.items():
        lines = [f"{a if n % 3 else ''}\t{b if n % 3 == 0 else ''}\t{c}\n" for n, (a, b, c) in enumerate(part)]
        (folder / f"{name}.tsv").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def configure(folder: Path) -> Callable[..., RunConfig]:
    """Return a function that makes a config; keywords override `[training]`."""

    def make(directions: list[str] | str | None = None, **training: Any) -> RunConfig:
        data = {} if directions is None else {"directions": directions}
        return toy_config(folder, MULTIWAY, {"data": data, "training": training})

    return make


@pytest.fixture(scope="module")
def prepared(configure: Callable[..., RunConfig], tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(configure(max_updates=1), tmp_path_factory.mktemp("prepared") / "data")


Learn = Callable[..., Recorder]


@pytest.fixture
def learn(configure: Callable[..., RunConfig], prepared: Prepared, tmp_path: Path) -> Learn:
    """Return a function that trains in the folder `name` and returns the recorded reports."""

    def run(name: str, directions: list[str] | str | None = None, resume: bool = False, **training: Any) -> Recorder:
        recorder = Recorder(training.pop("after", do_nothing))
        config = configure(directions, **training)
        assert check(config) == []
        recorder.reason = train(config, prepared, tmp_path / name, recorder, resume=resume)
        return recorder

    return run


def test_one_direction_trains_like_a_bilingual_model(folder: Path, learn: Learn, tmp_path: Path):
    training = {"max_updates": 8, "evaluate_every": 4, "clip_norm": 0.5, "dev_bleu": True}
    recorder = learn("multiway", ["aa-cc"], **training)
    lines = [line.split("\t") for line in (folder / "train.tsv").read_text().splitlines()]
    dev = [line.split("\t") for line in (folder / "dev.tsv").read_text().splitlines()]
    for name, rows in {"train": lines, "dev": dev}.items():
        text = "".join(f"{a}\t{c}\n" for a, _, c in rows if a)
        (tmp_path / f"{name}.tsv").write_text(text)
    data = {"source": "aa", "target": "cc", "train": ["train.tsv"], "dev": "dev.tsv", "aligner": False}
    text = {"tokenizers": str(tmp_path / "multiway")} | {"vocabulary": "unset"}
    bilingual = toy_config(tmp_path, {"data": data, "text": text, "training": training})
    reports = Recorder()
    train(bilingual, prepare(bilingual, tmp_path / "data"), tmp_path / "bilingual", reports)

    for row, expected_row in zip(recorder.evaluations, reports.evaluations, strict=True):
        del expected_row["seconds"]
        assert {key: row[key] for key in expected_row} == expected_row
        assert row["dev_bleu aa-cc"] == row["dev_bleu"]
    multiway = load_system(tmp_path / "multiway", multiway=True)
    expected = named_weights(load_system(tmp_path / "bilingual").model)
    view = multiway.select(multiway.direction).model
    for name, weights in named_weights(view).items():
        assert torch.equal(weights, expected[name]), name


def test_run_resumes_bit_for_bit(learn: Learn, tmp_path: Path):
    training = {"max_updates": 12, "evaluate_every": 5, "batch": {"sentences": 8, "temperature": 2.0}}
    learn("straight", "all", **training)
    for update in (3, 7):
        with pytest.raises(Interrupted):
            learn("broken", "all", resume=True, after=InterruptAt(update), **training)
    learn("broken", "all", resume=True, **training)
    last = "checkpoints/last"
    for name in ("model.safetensors", f"{last}/model.safetensors", f"{last}/optimiser.safetensors", "config.toml"):
        assert (tmp_path / "straight" / name).read_bytes() == (tmp_path / "broken" / name).read_bytes(), name


def test_model_that_shares_everything_resumes_bit_for_bit(folder: Path, tmp_path: Path):
    tables = {
        "data": {"directions": "all"},
        "text": {"type": "bpe", "vocabulary": 270, "joint": True, "bpe_dropout": 0.2},
        "model": {"sharing": {"encoders": "all", "decoders": "all"}},
        "training": {"max_updates": 6, "dev_bleu": True},
    }
    config = toy_config(folder, MULTIWAY, tables)
    assert check(config) == []
    prepared = prepare(config, tmp_path / "data")
    train(config, prepared, tmp_path / "straight", Recorder())
    with pytest.raises(Interrupted):
        train(config, prepared, tmp_path / "broken", Recorder(InterruptAt(4)))
    recorder = Recorder()
    train(config, prepared, tmp_path / "broken", recorder, resume=True)
    for name in ("model.safetensors", "checkpoints/last/optimiser.safetensors"):
        assert (tmp_path / "straight" / name).read_bytes() == (tmp_path / "broken" / name).read_bytes(), name
    system = load_system(tmp_path / "broken", multiway=True)
    # The dev set is read with tags, too: the NLL of a direction is that of its bilingual system.
    direction = system.directions[0]
    [source, target] = [direction.sources[0], direction.target]
    columns = [config.data.languages.index(language) for language in (source, target)]
    pairs = [[row.texts[column] for column in columns] for row in prepared.dev]
    pairs = [pair for pair in pairs if all(pair)]
    translator = Translator(system.select(direction))
    nll = -sum(translation.log_prob for translation in translator.score(*map(list, zip(*pairs, strict=True))))
    assert recorder.evaluations[-1][f"dev_nll {direction.name}"] == pytest.approx(nll / len(pairs), rel=1e-4)


def test_all_directions_are_those_with_training_text(learn: Learn, tmp_path: Path):
    learn("run", "all", max_updates=1)
    system = load_system(tmp_path / "run", multiway=True)
    assert [direction.name for direction in system.directions] == ["aa-cc", "bb-cc", "cc-aa", "cc-bb"]
    facts = json.loads((tmp_path / "run" / "training.json").read_text())
    assert facts["directions"] == ["aa-cc", "bb-cc", "cc-aa", "cc-bb"]
    card = (tmp_path / "run" / "card.md").read_text()
    assert card.startswith("# aa-cc, bb-cc, cc-aa, cc-bb, a multi-way recurrent translation model\n")


def test_direction_without_training_text_is_an_error(learn: Learn):
    with pytest.raises(ConfigError, match=r"must have training text with both languages .*; got none for aa-bb"):
        learn("run", ["aa-bb"], max_updates=1)


def test_dev_scores_are_means_and_reported_per_direction(learn: Learn):
    recorder = learn("run", ["aa-cc", "bb-cc"], max_updates=2, dev_bleu=True)
    [row] = recorder.evaluations
    assert row["dev_nll"] == pytest.approx((row["dev_nll aa-cc"] + row["dev_nll bb-cc"]) / 2)
    assert row["dev_bleu"] == pytest.approx((row["dev_bleu aa-cc"] + row["dev_bleu bb-cc"]) / 2)


def test_directions_that_have_stopped_are_not_trained(learn: Learn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: dict[str, int] = {}
    call = MultiwayLikelihood.__call__

    def counting_call(self: Any, model: Any, batch: Any, rng: Any) -> Any:
        if rng is not None:
            seen[batch.direction.name] = seen.get(batch.direction.name, 0) + 1
        return call(self, model, batch, rng)

    monkeypatch.setattr(MultiwayLikelihood, "__call__", counting_call)
    # Only the first evaluation of bb-cc is the best.
    means = iter(range(100))

    def scores(*_: Any) -> DevScore:
        worse = float(next(means))
        return mean_score({FIRST: DevScore(9.0 - worse, 1.0), SECOND: DevScore(1.0 + worse, 1.0)})

    monkeypatch.setattr(MultiwayEvaluator, "score", scores)
    training = {"max_updates": 30, "evaluate_every": 3, "direction_patience": 2}
    recorder = learn("run", ["aa-cc", "bb-cc"], **training)
    stopped = [message for message in recorder.messages if "no longer trained" in message]
    assert stopped == [
        "bb-cc is no longer trained: 2 evaluations without a better dev score (training.direction_patience)"
    ]
    # The third evaluation is after 9 updates; the estimate has made some passes, too.
    assert seen["aa-cc"] > 20 > seen["bb-cc"]
    assert [row["best_directions"] for row in recorder.evaluations[:3]] == [["aa-cc", "bb-cc"], ["aa-cc"], ["aa-cc"]]
    straight = read_weights(tmp_path / "run" / "checkpoints" / "last" / "model.safetensors")
    means = iter(range(100))
    with pytest.raises(Interrupted):
        learn("broken", ["aa-cc", "bb-cc"], after=InterruptAt(17), **training)
    learn("broken", ["aa-cc", "bb-cc"], resume=True, **training)
    broken = read_weights(tmp_path / "broken" / "checkpoints" / "last" / "model.safetensors")
    assert all(torch.equal(broken[name], weights) for name, weights in straight.items())


def test_training_ends_if_no_direction_is_left(learn: Learn, monkeypatch: pytest.MonkeyPatch):
    scores = mean_score({FIRST: DevScore(1.0, 1.0), SECOND: DevScore(1.0, 1.0)})
    monkeypatch.setattr(MultiwayEvaluator, "score", lambda *_: scores)
    recorder = learn("run", ["aa-cc", "bb-cc"], max_updates=100, evaluate_every=2, direction_patience=1)
    assert recorder.reason == "no direction is left to train (training.direction_patience)"
    assert len(recorder.evaluations) == 2


def test_best_weights_of_each_direction_are_a_bilingual_model(
    learn: Learn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = iter([(1.0, 3.0), (2.0, 2.0), (3.0, 3.0)])

    def scores(*_: Any) -> DevScore:
        first, second = next(rows)
        return mean_score({FIRST: DevScore(first, first / 2), SECOND: DevScore(second, second / 2)})

    monkeypatch.setattr(MultiwayEvaluator, "score", scores)
    directions = ["aa-cc", "bb-cc"]
    learn("run", directions, max_updates=3, evaluate_every=1, checkpoint_every=1, save_directions=True)
    for name, update, score in (("aa-cc", 1, 1.0), ("bb-cc", 2, 2.0)):
        folder = tmp_path / "run" / "directions" / name
        translator = rnnsearch.load(folder)
        assert "-".join(translator.languages) == name
        source = name[:2]
        checkpoint = read_weights(tmp_path / "run" / "checkpoints" / f"update-{update}.safetensors")
        expected = checkpoint[f"encoders.{source}.forward_cell.input.weight"]
        assert torch.equal(translator.model.encoder.forward_cell.input.weight, expected)
        facts = json.loads((folder / "training.json").read_text())
        [best] = [row for row in facts["history"] if row["best"] and row["update"] == update]
        assert (best["dev_nll"], best["dev_nll_per_word"]) == (score, score / 2)
        assert (folder / "card.md").read_text().startswith(f"# {source} → cc, a recurrent translation model\n")
        extract(tmp_path / "run", tmp_path / name, source)
        extracted = json.loads((tmp_path / name / "training.json").read_text())
        history = [row["dev_nll"] for row in extracted["history"]]
        assert history == ([1.0, 2.0, 3.0] if source == "aa" else [3.0, 2.0, 3.0])
        assert [row["best"] for row in extracted["history"]] == [True, False, False]
        assert extracted["pair"] == [source, "cc"] and "directions" not in extracted
        assert (tmp_path / name / "card.md").read_text().startswith(f"# {source} → cc, a recurrent translation model\n")


def test_further_language_starts_from_a_trained_model(learn: Learn, tmp_path: Path):
    learn("few", ["aa-cc"], max_updates=3)
    recorder = learn("many", ["aa-cc", "bb-cc", "cc-aa"], max_updates=1, begin_from=str(tmp_path / "few"))
    assert any(message.startswith("warm start from") for message in recorder.messages)
    few = read_weights(tmp_path / "few" / "model.safetensors")
    many = read_weights(tmp_path / "many" / "model.safetensors")
    assert few.keys() < many.keys()
    # One update of Adam changes a weight by at most the learning rate.
    for name, weights in few.items():
        torch.testing.assert_close(many[name], weights, rtol=0, atol=0.011)
    frozen = {"freeze": ["attention", "encoders.aa"], "reinitialise": ["outputs.cc"]}
    learn("frozen", ["aa-cc", "bb-cc"], max_updates=1, begin_from=str(tmp_path / "few"), transfer=frozen)
    kept = read_weights(tmp_path / "frozen" / "model.safetensors")
    for name, weights in few.items():
        if name.startswith(("attention.", "encoders.aa.")):
            assert torch.equal(kept[name], weights), name
    assert (kept["outputs.cc.weight"] - few["outputs.cc.weight"]).abs().max() > 0.011
    assert not torch.equal(few["encoders.aa.forward_cell.input.weight"], many["encoders.bb.forward_cell.input.weight"])


def test_directions_whose_modules_are_all_frozen_are_evaluated_but_not_trained(learn: Learn, tmp_path: Path):
    learn("few", ["aa-cc"], max_updates=1)
    names = ["attention", "encoders.aa", "source_embeddings.aa", "decoders.cc", "target_embeddings.cc", "outputs.cc"]
    training = {"begin_from": str(tmp_path / "few"), "transfer": {"freeze": names}, "direction_patience": 5}
    recorder = learn("many", ["aa-cc", "bb-cc"], max_epochs=1, save_directions=True, **training)
    few = read_weights(tmp_path / "few" / "model.safetensors")
    many = read_weights(tmp_path / "many" / "model.safetensors")
    assert all(torch.equal(many[name], weights) for name, weights in few.items())
    assert recorder.evaluations[0]["best_directions"] == ["aa-cc", "bb-cc"]
    assert (tmp_path / "many" / "directions" / "aa-cc" / "model.safetensors").is_file()
    # The pairs of bb-cc only.
    assert len(recorder.updates) == 3


def test_language_is_added_without_the_text_of_frozen_directions(learn: Learn, folder: Path, tmp_path: Path):
    learn("few", ["aa-cc"], max_updates=3)
    lines = [line.split("\t") for line in (folder / "train.tsv").read_text().splitlines()]
    pairs = [(b, c) for _, b, c in lines if b]
    for index, name in enumerate(("bb", "cc")):
        (tmp_path / f"train.{name}").write_text("".join(f"{pair[index]}\n" for pair in pairs))
    tables: dict[str, Any] = {
        "data": {"train": ["|train.bb|train.cc"], "directions": ["aa-cc", "bb-cc"], "dev": "|train.bb|train.cc"},
        "text": {"tokenizers": {"aa": "few", "cc": "few"}},
        "training": {"max_updates": 2, "begin_from": "few"},
    }
    names = ["attention", "encoders.aa", "source_embeddings.aa", "decoders.cc", "target_embeddings.cc", "outputs.cc"]
    tables["training"]["transfer"] = {"freeze": names}
    config = toy_config(tmp_path, MULTIWAY, tables)
    assert check(config) == []
    prepared = prepare(config, tmp_path / "data")
    recorder = Recorder()
    train(config, prepared, tmp_path / "many", recorder)
    assert "dev_nll bb-cc" in recorder.evaluations[0] and "dev_nll aa-cc" not in recorder.evaluations[0]
    few, many = (read_weights(tmp_path / name / "model.safetensors") for name in ("few", "many"))
    assert few.keys() < many.keys()
    assert all(torch.equal(many[name], weights) for name, weights in few.items())
    sentences = ["ba ce di", "fo gu"]
    old, new = (rnnsearch.load(tmp_path / name).select("aa", "cc").translate(sentences) for name in ("few", "many"))
    assert [translation.score for translation in old] == [translation.score for translation in new]
    # Directions that are trained need text.
    tables["training"]["transfer"] = {"freeze": [name for name in names if name != "encoders.aa"]}
    with pytest.raises(ConfigError, match=r"of each direction, except for frozen ones; got none for aa-cc"):
        train(toy_config(tmp_path, MULTIWAY, tables), prepared, tmp_path / "no", recorder)


def test_target_languages_of_a_shared_decoder_keep_their_order(tmp_path: Path):
    sharing = {"encoders": "all", "decoders": "all"}
    names = ("en-de", "de-en")
    save_system(tmp_path / "parent", untrained_multiway(*names, text_type="bpe", sharing=sharing))

    def load_into(*directions: str) -> list[str]:
        system = untrained_multiway(*directions, text_type="bpe", sharing=sharing)
        training = system.config.training.model_copy(update={"begin_from": str(tmp_path / "parent")})
        return load_initial_weights(replace(system, config=system.config.model_copy(update={"training": training})))

    assert load_into(*names, "en-fr")
    with pytest.raises(ConfigError, match=r"data.directions: must have the target languages .* \(de, en\)") as error:
        load_into("de-en", "en-de")
    assert str(error.value).endswith("because tags are numbered by them; got en, de")


def test_model_that_continues_from_a_tagged_direction_keeps_the_tag(tmp_path: Path):
    sharing = {"encoders": "all", "decoders": "all"}
    save_system(tmp_path / "model", untrained_multiway("en-de", "de-en", text_type="bpe", sharing=sharing))
    extract(tmp_path / "model", tmp_path / "en-de", "en")
    lines = [f"{' '.join(row)}\t{' '.join(row[::-1])}\n" for row in random_sentences(3, 2 * MIN_PAIRS, 2, 6)]
    (tmp_path / "new.tsv").write_text("".join(lines))
    options = AdaptationOptions(settings=("training.max_updates=1",))
    adapt(tmp_path / "en-de", [str(tmp_path / "new.tsv")], tmp_path / "adapted", options, Recorder())
    assert load_system(tmp_path / "adapted").config.data.tag == "<0x04>"
    config = load_system(tmp_path / "en-de").config
    training = config.training.model_copy(update={"begin_from": str(tmp_path / "en-de")})
    data = config.data.model_copy(update={"tag": None})
    system = load_system(tmp_path / "en-de")
    untagged = replace(system, config=config.model_copy(update={"training": training, "data": data}))
    with pytest.raises(ConfigError, match=r'data.tag: must be that of .*, "<0x04>"; got none'):
        load_initial_weights(untagged)


def test_error_about_long_pairs_names_the_direction(learn: Learn):
    with pytest.raises(DataError, match="no training pair of aa-cc has at most 1 tokens per side"):
        learn("run", ["aa-cc", "bb-cc"], max_updates=1, max_length=1)


def test_report_counts_rows(learn: Learn):
    recorder = learn("run", ["aa-cc", "bb-cc"], max_updates=1)
    assert "; 60 training rows; " in recorder.messages[0]
