"""Training of multi-way models with tasks: mixing ratios, dev scores, resumption, and text in single languages."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import rnnsearch
from rnnsearch.config import RunConfig
from rnnsearch.data.prepare import prepare
from rnnsearch.data.prepared import Prepared
from rnnsearch.errors import ConfigError, Interrupted, ModelError
from rnnsearch.objectives.multiway import MultiwayLikelihood
from rnnsearch.systems.dev_scores import DevScore
from rnnsearch.systems.folder import load_system
from rnnsearch.training.run import check, train
from rnnsearch.translator.translator import Translator
from rnnsearch.utils.weights import read_weights
from tests.command_line import run
from tests.training.test_multiway import MULTIWAY
from tests.training.test_resume import InterruptAt
from tests.training.toys import Recorder, do_nothing, random_sentences, toy_config

TASKS = {"autoencoding": {"cc": 0.5}, "language_model": {"cc": 0.25}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of aa and cc, and of bb and cc, and monolingual text in cc."""
    folder = tmp_path_factory.mktemp("tasks")
    rows = [(" ".join(row), " ".join(row[::-1]), " ".join(sorted(row))) for row in random_sentences(1, 130, 2, 6)]
    for name, part in {"train": rows[:60], "dev": rows[60:80]}.items():
        lines = [f"{a if n % 3 else ''}\t{b if n % 3 == 0 else ''}\t{c}\n" for n, (a, b, c) in enumerate(part)]
        (folder / f"{name}.tsv").write_text("".join(lines))
    (folder / "mono.cc").write_text("".join(f"{c}\n" for _, _, c in rows[80:]))
    return folder


@pytest.fixture(scope="module")
def configure(folder: Path) -> Callable[..., RunConfig]:
    """Return a function that makes a config; keywords override `[training]`."""

    def make(tasks: dict[str, Any] | None, directions: Any = None, **training: Any) -> RunConfig:
        data: dict[str, Any] = {"train": ["train.tsv", "||mono.cc"], "directions": directions or ["aa-cc", "bb-cc"]}
        if tasks is not None:
            data["tasks"] = tasks
        return toy_config(folder, MULTIWAY, {"data": data, "training": training})

    return make


@pytest.fixture(scope="module")
def prepared(configure: Callable[..., RunConfig], tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(configure(None, max_updates=1), tmp_path_factory.mktemp("prepared") / "data")


Learn = Callable[..., Recorder]


@pytest.fixture
def learn(configure: Callable[..., RunConfig], prepared: Prepared, tmp_path: Path) -> Learn:
    """Return a function that trains in the folder `name` and returns the recorded reports."""

    def run(name: str, tasks: dict[str, Any] | None, *, resume: bool = False, **training: Any) -> Recorder:
        recorder = Recorder(training.pop("after", do_nothing))
        config = configure(tasks, **training)
        assert check(config) == []
        recorder.reason = train(config, prepared, tmp_path / name, recorder, resume=resume)
        return recorder

    return run


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of training batches of each direction and task."""
    counts = Counter[str]()
    call = MultiwayLikelihood.__call__

    def counting_call(self: Any, model: Any, batch: Any, rng: Any) -> Any:
        if rng is not None:
            counts[batch.direction.name] += 1
        return call(self, model, batch, rng)

    monkeypatch.setattr(MultiwayLikelihood, "__call__", counting_call)
    return counts


def test_ratios_of_0_train_like_no_tasks_bit_for_bit(learn: Learn, tmp_path: Path):
    plain = learn("plain", None, max_updates=12, evaluate_every=6)
    tasks = {"autoencoding": {"cc": 0.0, "aa": 0}, "language_model": {"cc": 0.0}, "text": "monolingual"}
    recorder = learn("zero", tasks, max_updates=12, evaluate_every=6)
    for name in ("model.safetensors", "checkpoints/last/model.safetensors", "checkpoints/last/optimiser.safetensors"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "zero" / name).read_bytes(), name
    for row, expected in zip(recorder.evaluations, plain.evaluations, strict=True):
        del row["seconds"], expected["seconds"]
        assert row == expected


def test_tasks_are_trained_by_their_ratios_and_change_the_model(learn: Learn, tmp_path: Path, seen: Counter[str]):
    learn("plain", None, max_updates=1)
    seen.clear()
    # An epoch has 5 + 3 batches of translation; the estimate makes a few passes, too.
    recorder = learn("run", TASKS, max_epochs=6)
    assert len(recorder.updates) == 6 * (8 + 4 + 2)
    assert seen["aa-cc"] + seen["bb-cc"] == pytest.approx(48, abs=4)
    assert seen["cc-cc"] == pytest.approx(24, abs=4)
    assert seen["cc"] == pytest.approx(12, abs=4)
    system = load_system(tmp_path / "run", multiway=True)
    assert "encoders.cc.forward_cell.input.weight" in dict(system.model.named_parameters())
    # Tasks are not offered for translation.
    translator = rnnsearch.load(tmp_path / "run")
    assert translator.directions == (("aa", "cc"), ("bb", "cc"))
    with pytest.raises(ModelError, match="does not translate from cc to cc; it has aa-cc, bb-cc"):
        translator.select("cc", "cc")
    translation = run("translate", tmp_path / "run", "--from", "cc", "--to", "cc", stdin="ba\n")
    assert "does not translate from cc to cc" in translation.err
    assert "cc-cc (0.5), cc (0.25)" in run("inspect", tmp_path / "run").out
    assert "| Further tasks (ratio) | cc-cc (0.5), cc (0.25)" in (tmp_path / "run" / "card.md").read_text()
    assert rnnsearch.load(tmp_path / "run").select("aa").translate("ba ce").text is not None


def test_run_with_tasks_resumes_bit_for_bit(learn: Learn, tmp_path: Path):
    tasks = {**TASKS, "text": "monolingual"}
    training = {"max_updates": 20, "evaluate_every": 5, "batch": {"sentences": 8, "temperature": 2.0}}
    learn("straight", tasks, **training)
    for update in (3, 14):
        with pytest.raises(Interrupted):
            learn("broken", tasks, resume=True, after=InterruptAt(update), **training)
    learn("broken", tasks, resume=True, **training)
    last = "checkpoints/last"
    for name in ("model.safetensors", f"{last}/model.safetensors", f"{last}/optimiser.safetensors", "config.toml"):
        assert (tmp_path / "straight" / name).read_bytes() == (tmp_path / "broken" / name).read_bytes(), name


def test_dev_nll_of_tasks_is_reported_but_does_not_select_the_weights(learn: Learn, tmp_path: Path, prepared: Prepared):
    recorder = learn("run", TASKS, max_updates=2, save_directions=True)
    [row] = recorder.evaluations
    assert row["dev_nll"] == pytest.approx((row["dev_nll aa-cc"] + row["dev_nll bb-cc"]) / 2)
    assert row["best_directions"] == ["aa-cc", "bb-cc"]
    assert sorted(path.name for path in (tmp_path / "run" / "directions").iterdir()) == ["aa-cc", "bb-cc"]
    system = load_system(tmp_path / "run", multiway=True)
    copy, _ = system.model.tasks
    texts = [dev.texts[-1] for dev in prepared.dev]
    bilingual = system.select(system.directions[0])
    # The translator of a bilingual model that has the modules of autoencoding.
    tokenizers = {"aa": system.tokenizers["cc"], "cc": system.tokenizers["cc"]}
    view = type(bilingual)(system.model.view(copy), bilingual.config, tokenizers)
    nll = -sum(translation.log_prob for translation in Translator(view).score(texts, texts))
    assert row["dev_task_nll cc-cc"] == pytest.approx(nll / len(texts), rel=1e-4)
    assert row["dev_task_nll cc"] > 0


def test_training_ends_when_all_directions_have_stopped(learn: Learn, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rnnsearch.systems.multiway.mean_score", constant_score)
    recorder = learn("run", TASKS, max_updates=100, evaluate_every=5, direction_patience=1)
    assert recorder.reason == "no direction is left to train (training.direction_patience)"
    assert len(recorder.evaluations) == 2
    assert recorder.evaluations[0].keys() >= {"dev_task_nll cc-cc", "dev_task_nll cc"}


def constant_score(scores: Any) -> DevScore:
    return DevScore(1.0, 1.0, {"bleu": None, **{f"nll {direction.name}": 1.0 for direction in scores}})


def test_tasks_need_text_of_their_language(learn: Learn, configure: Callable[..., RunConfig]):
    tasks = {"autoencoding": {"aa": 0.5}, "text": "monolingual"}
    message = "data.tasks.autoencoding.aa: must have text without a translation in aa; got none"
    with pytest.raises(ConfigError, match=message):
        learn("run", tasks, max_updates=1)
    for wrong, message in {
        ("autoencoding", "de"): r"data.tasks.autoencoding.de: must be one of",
        ("language_model", "aa"): r"tasks.language_model: must have target languages of `directions`, .*; got aa",
    }.items():
        with pytest.raises(ConfigError, match=message):
            configure({wrong[0]: {wrong[1]: 0.5}}, max_updates=1)
    with pytest.raises(ConfigError, match=r"tasks.autoencoding: must have languages of `directions`; got bb"):
        configure({"autoencoding": {"bb": 0.5}}, ["aa-cc"], max_updates=1)
    with pytest.raises(ConfigError, match=r"data.tasks: must have the ratio of some language"):
        configure({"text": "monolingual"}, max_updates=1)
    assert configure({"autoencoding": {"aa": 1.0}, "language_model": {"aa": 0.5}}, max_updates=1).data.tasks


def test_tasks_of_all_directions_are_those_with_text(learn: Learn, tmp_path: Path):
    learn("run", {"language_model": {"aa": 0.5}}, directions="all", max_updates=1)
    assert load_system(tmp_path / "run", multiway=True).config.data.tasks.language_model == {"aa": 0.5}


def test_model_that_shares_everything_is_trained_with_tags(folder: Path, tmp_path: Path):
    tables = {
        "data": {"directions": ["aa-cc", "bb-cc"], "train": ["train.tsv", "||mono.cc"]},
        "text": {"type": "bpe", "vocabulary": 270, "joint": True, "bpe_dropout": 0.2},
        "model": {"sharing": {"encoders": "all", "decoders": "all"}},
        "training": {"max_updates": 6},
    }
    tables["data"]["tasks"] = {"autoencoding": {"cc": 1.0, "aa": 1.0}}
    config = toy_config(folder, MULTIWAY, tables)
    assert check(config) == []
    recorder = Recorder()
    prepared = prepare(config, tmp_path / "data")
    train(config, prepared, tmp_path / "run", recorder)
    assert recorder.evaluations[-1].keys() >= {"dev_task_nll cc-cc", "dev_task_nll aa-aa"}
    system = load_system(tmp_path / "run", multiway=True)
    # aa is written by autoencoding only: the second tag.
    texts = [row.texts[0] for row in prepared.dev if row.texts[0]]
    zero_shot = rnnsearch.load(tmp_path / "run").select("bb", "aa", zero_shot=True)
    nll = -sum(translation.log_prob for translation in zero_shot.score(texts, texts))
    assert recorder.evaluations[-1]["dev_task_nll aa-aa"] == pytest.approx(nll / len(texts), rel=1e-4)
    assert system.select(system.directions[0]).config.data.tag == "<0x04>"
    tables["data"]["tasks"] = {"language_model": {"cc": 1.0}}
    [problem] = check(toy_config(folder, MULTIWAY, tables))
    assert problem.startswith('data.tasks.language_model: cannot be combined with model.sharing.decoders = "all"')


def test_two_languages_with_monolingual_text(tmp_path: Path):
    rows = [(" ".join(row), " ".join(row[::-1])) for row in random_sentences(1, 100, 2, 6)]
    (tmp_path / "train.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows[:40]))
    (tmp_path / "mono.aa").write_text("".join(f"{a}\n" for a, _ in rows[40:60]))
    (tmp_path / "mono.bb").write_text("".join(f"{b}\n" for _, b in rows[60:90]))
    tables: dict[str, Any] = {
        "data": {"source": "aa", "target": "bb", "train": ["train.tsv", "mono.aa|", "|mono.bb"], "dev": "unset"},
        "model": {"kind": "multiway"},
    }
    tables["data"] |= {"dev_size": 5, "aligner": False}
    tables["data"]["tasks"] = {"autoencoding": {"aa": 1.0}, "language_model": {"bb": 1.0}, "text": "monolingual"}
    config = toy_config(tmp_path, tables, {"training": {"max_epochs": 1}})
    assert check(config) == []
    prepared = prepare(config, tmp_path / "data")
    assert all(all(row.texts) for row in prepared.dev)
    ids = prepared.train
    assert [int(ids.present(name).sum()) for name in ids.names] == [35 + 20, 35 + 30]
    recorder = Recorder()
    train(config, prepared, tmp_path / "run", recorder)
    assert recorder.evaluations[-1].keys() >= {"dev_nll aa-bb", "dev_task_nll aa-aa", "dev_task_nll bb"}
    del tables["data"]["tasks"]
    tables["data"]["train"] = ["train.tsv", "mono.aa|"]
    with pytest.raises(ConfigError, match=r'train: must have pairs of text files, .*; got "mono.aa\|"'):
        toy_config(tmp_path, tables, {"training": {"max_epochs": 1}})


def test_bilingual_model_has_no_tasks(folder: Path):
    data = {"source": "aa", "target": "cc", "train": ["train.tsv"], "tasks": TASKS}
    [problem] = check(toy_config(folder, {"data": data, "training": {"max_updates": 1}}))
    assert problem.startswith('data.tasks: has no effect with model.kind = "translation"')


def test_weights_start_from_a_model_with_tasks(learn: Learn, tmp_path: Path):
    learn("parent", TASKS, max_updates=2)
    learn("child", None, max_updates=1, begin_from=str(tmp_path / "parent"))
    parent, child = (read_weights(tmp_path / name / "model.safetensors") for name in ("parent", "child"))
    assert child.keys() < parent.keys()
    for name, weights in child.items():
        torch.testing.assert_close(weights, parent[name], rtol=0, atol=0.011)


def test_tasks_cannot_be_all_that_is_trained(learn: Learn, tmp_path: Path):
    learn("parent", None, directions=["aa-cc"], max_updates=1)
    freeze = ["encoders.aa", "source_embeddings.aa", "decoders.cc", "target_embeddings.cc", "outputs.cc"]
    training = {"begin_from": str(tmp_path / "parent"), "transfer": {"freeze": freeze}}
    with pytest.raises(ConfigError, match=r"training.transfer.freeze: must leave some module of a direction to train"):
        learn("child", {"autoencoding": {"aa": 1.0}}, directions=["aa-cc"], max_updates=1, **training)
