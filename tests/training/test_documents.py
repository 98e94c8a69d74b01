"""Training runs on documents: resumed runs equal uninterrupted ones, and dev scores read the contexts."""

from pathlib import Path
from typing import Any

import pytest

import rnnsearch
from rnnsearch.config import resolve
from rnnsearch.data.prepare import prepare
from rnnsearch.errors import Interrupted, RnnsearchError
from rnnsearch.training.run import check, train
from tests.command_line import run
from tests.training.test_resume import InterruptAt
from tests.training.toys import TRAINING, Recorder, random_sentences

LANGUAGE_MODEL = {
    "kind": "language-model",
    "embedding": 8,
    "network": {"type": "recurrent", "cell": "lstm", "size": 9},
    "context": {"size": 5},
}
STREAMS = {"type": "streams", "sentences": 2}
CONTEXTS: dict[str, dict[str, Any]] = {
    "concatenation": {"data": {"context": {"type": "concatenation", "sentences": 2}}},
    "streams": {"data": {"context": STREAMS}, "model": {"sources": {"type": "concatenation"}}},
    "both languages": {"data": {"context": {**STREAMS, "target": True}}, "model": {"sources": {"type": "mean"}}},
    "hierarchical": {
        "data": {"context": STREAMS},
        "model": {
            "sources": {
                "type": "concatenation",
                "encoders": {"aa@previous": {"type": "hierarchical", "cell": "gru", "size": 5}},
            }
        },
    },
    "translations": {
        "data": {"context": {**STREAMS, "source": False, "target": True}},
        "model": {"sources": {"type": "concatenation"}},
    },
}


@pytest.fixture(scope="module")
def documents(configure: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the tables of a corpus of documents of four sentences, and its prepared data."""
    folder = tmp_path_factory.mktemp("documents")
    rows = random_sentences(2, 80, 2, 6)
    for split, part in (("train", rows[:40]), ("dev", rows[40:52])):
        for suffix, step in (("aa", 1), ("bb", -1)):
            lines = [" ".join(row[::step]) + "\n" * (2 if n % 4 == 3 else 1) for n, row in enumerate(part)]
            (folder / f"{split}.{suffix}").write_text("".join(lines))
    files = {"train": [f"{folder}/train.aa|{folder}/train.bb"], "dev": f"{folder}/dev.aa|{folder}/dev.bb"}
    data = {"data": {"documents": True, **files}}
    return data, prepare(configure(data, max_updates=1), folder / "prepared")


@pytest.mark.parametrize("name", CONTEXTS)
def test_resumed_run_equals_uninterrupted_run(learn, documents, assert_same, tmp_path, name):
    tables, data = documents
    tables = {**tables, **CONTEXTS[name], "data": {**tables["data"], **CONTEXTS[name]["data"]}}
    settings = {"data": data, "max_updates": 6, "evaluate_every": 3, "dev_bleu": True}
    recorder = learn("straight", tables, **settings)
    with pytest.raises(Interrupted):
        learn("broken", tables, after=InterruptAt(4), resume=True, **settings)
    learn("broken", tables, resume=True, **settings)
    assert_same("straight", "broken")
    translator = rnnsearch.load(tmp_path / "straight")
    # The dev score is that of the sentences in their documents.
    rows = data.dev
    targets = [row.target for row in rows]
    sources = translator.with_context([row.source for row in rows], [row.document for row in rows], targets)
    log_probs = [pair.log_prob for pair in translator.score(sources, targets)]
    best = min(row["dev_nll"] for row in recorder.evaluations)
    assert best == pytest.approx(-sum(log_probs) / len(rows), rel=1e-4)
    alone = [pair.log_prob for pair in translator.score([row.source for row in rows], [row.target for row in rows])]
    assert sum(alone) != pytest.approx(sum(log_probs), rel=1e-4)


def test_language_model_reads_previous_lines(documents, tmp_path):
    tables, _ = documents
    folder = Path(tables["data"]["dev"].partition("|")[0]).parent
    config = resolve(
        {
            "data": {"target": "bb", "train": [f"{folder}/train.bb"], "dev": f"{folder}/dev.bb", "test_size": 0}
            | {"documents": True, "context": {"type": "streams", "sentences": 2}},
            "text": {"type": "words", "vocabulary": 20},
            "model": LANGUAGE_MODEL,
            "training": {**TRAINING, "max_updates": 6, "evaluate_every": 3},
        }
    )
    assert check(config) == []
    prepared = prepare(config, tmp_path / "data")
    straight = Recorder()
    train(config, prepared, tmp_path / "straight", straight)
    with pytest.raises(Interrupted):
        train(config, prepared, tmp_path / "broken", Recorder(InterruptAt(4)))
    train(config, prepared, tmp_path / "broken", Recorder(), resume=True)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("straight", "broken")]
    assert weights[0] == weights[1]
    model = rnnsearch.load_text_model(tmp_path / "straight")
    rows = prepared.dev
    numbers = [row.document for row in rows]
    in_order = model.document_order().with_context([row.texts[0] for row in rows], numbers)
    log_probs = [text.log_prob for text in model.score(in_order)]
    best = min(row["dev_nll"] for row in straight.evaluations)
    assert best == pytest.approx(-sum(log_probs) / len(rows), rel=1e-4)
    alone = [text.log_prob for text in model.score([row.texts[0] for row in rows])]
    assert alone[0] == pytest.approx(log_probs[0], rel=1e-5)
    assert alone[1] != pytest.approx(log_probs[1], rel=1e-5)
    result = run("lm", "score", tmp_path / "straight", folder / "dev.bb", "--documents")
    lines = (folder / "dev.bb").read_text().split("\n")[:-1]
    assert [line == "" for line in result.lines] == [line == "" for line in lines]
    assert [float(line) for line in result.lines if line] == pytest.approx(log_probs, abs=1e-5)
    assert model.complete(["", "ba"]) != [] and len(model.sample(3)) == 3
    for function in (model.score, model.complete):
        with pytest.raises(RnnsearchError, match=r"sentences must be a list, such as .* for one text; got str"):
            function("ba")
