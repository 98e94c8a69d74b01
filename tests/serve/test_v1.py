"""Our own API."""

import asyncio
import json
import math
import shutil
from itertools import product

import numpy as np
import pytest
from starlette.testclient import TestClient

import rnnsearch
from rnnsearch import config as run_config
from rnnsearch.config.data import InlineTermsConfig
from rnnsearch.serve.app import create_app
from rnnsearch.serve.limits import Settings
from rnnsearch.systems.ensemble_folder import gather
from rnnsearch.systems.folder import CONFIG, load_system, save_system
from rnnsearch.text.terms import Glossary
from rnnsearch.translator.confidence import CONFIDENCE, learned
from rnnsearch.utils.files import write_text

TEXT = "the dog sees a big bird. The small cat sees the dog!\n\nthe cat"


def test_models(http):
    before = http.get("/v1/models").json()["models"]
    assert http.post("/v1/translate", json={"text": "der Hund", "source": "de"}).status_code == 200
    after = http.get("/v1/models").json()["models"]
    assert [row["loaded"] for row in before] == [False, False]
    assert [row["loaded"] for row in after] == [False, True]
    names = {"source_name": "English", "target_name": "German"}
    one = {"name": "en-de", "source": "en", "target": "de", **names, "attention": True, "aligner": False, "score": None}
    one["calibrated"] = False
    assert before[0] == {**one, "loaded": False}
    assert after[1]["attention"] is False


def test_what_an_answer_holds(http, folders):
    response = http.post("/v1/translate", json={"text": TEXT, "n_best": 2, "attention": True})
    assert response.status_code == 200, response.text
    answer = response.json()
    assert (answer["model"], answer["source"], answer["target"]) == ("en-de", "en", "de")
    [text] = answer["translations"]
    translator = rnnsearch.load(folders[0])
    sentences = ["the dog sees a big bird.", "The small cat sees the dog!", "the cat"]
    known = translator.n_best(sentences, translator.options(n_best=2))
    assert [row["source"] for row in text["sentences"]] == sentences
    for row, (a, b), best in zip(text["sentences"], text["target_spans"], known, strict=True):
        assert TEXT[row["start"] : row["end"]] == row["source"]
        assert text["text"][a:b] == row["best"][0]["text"]
        assert len(row["best"]) == 2
        for found, t in zip(row["best"], best, strict=True):
            assert found["text"] == t.text
            assert found["log_prob"] == pytest.approx(t.log_prob, rel=1e-4)
            assert found["tokens"] == list(t.tokens)
            assert [word["text"] for word in found["words"]] == list(t.words)
            assert [found["text"][w["start"] : w["end"]] for w in found["words"]] == list(t.words)
            assert [t.source[w["start"] : w["end"]] for w in found["source_words"]] == list(t.source_words)
            np.testing.assert_allclose(found["attention"], t.word_attention, atol=1e-4)
            assert [tuple(link) for link in found["alignment"]] == list(t.alignment)
            inside = sum(s for s, word in zip(t.token_scores, t.token_words, strict=True) if word >= 0)
            assert sum(word["score"] for word in found["words"]) == pytest.approx(inside, abs=1e-4)
            for word, scores in zip(found["words"], t.word_token_scores, strict=True):
                assert word["probability"] == pytest.approx(math.exp(sum(scores) / len(scores)), abs=1e-5)


def test_terms_of_a_glossary_are_there(http):
    glossary = {"dog": "Baum", "big bird": "Katze"}
    both = {"text": [TEXT, "the bird"], "beam": 6}
    answer = http.post("/v1/translate", json={**both, "glossary": glossary}).json()["translations"]
    free = http.post("/v1/translate", json=both).json()["translations"]
    first, second, third = [row["best"][0]["text"] for row in answer[0]["sentences"]]
    assert "Baum" in first
    assert "Katze" in first
    assert "Baum" in second
    assert third == free[0]["sentences"][2]["best"][0]["text"]
    assert answer[1]["text"] == free[1]["text"]


def test_a_model_that_reads_terms_is_told_them(folders, tmp_path):
    folder = tmp_path / "told"
    shutil.copytree(folders[0], folder)
    config = run_config.load(folder / CONFIG)
    told = config.text.model_copy(update={"inline_terms": InlineTermsConfig(dictionary="none.tsv")})
    write_text(folder / CONFIG, run_config.dump(config.model_copy(update={"text": told})))
    translator, glossary = rnnsearch.load(folder), {"dog": "Baum"}
    [[own]] = translator.n_best([translator.with_terms("the dog", Glossary(glossary))], translator.options(beam=1))
    app = create_app([folder], Settings())
    with TestClient(app, "http://localhost") as http:
        answer = http.post("/v1/translate", json={"text": "the dog", "beam": 1, "glossary": glossary})
    [sentence] = answer.json()["translations"][0]["sentences"]
    assert (sentence["source"], sentence["best"][0]["text"]) == ("the dog", own.text)


def test_terms_are_looked_up_apart_and_in_sentences_that_are_not_too_long(serve, monkeypatch):
    """They were looked up in the event loop, whatever the length of their sentence."""
    looked, terms = list[str](), Glossary.terms

    def looking(glossary: Glossary, text: str) -> tuple[str, ...]:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        looked.append(text)
        return terms(glossary, text)

    monkeypatch.setattr(Glossary, "terms", looking)
    http, glossary = serve(max_symbols=30), {"dog": "Baum"}
    assert http.post("/v1/translate", json={"text": "the dog\nthe cat", "glossary": glossary}).status_code == 200
    assert looked == ["the dog", "the cat"]
    answer = http.post("/v1/translate", json={"text": "the dog " * 20, "glossary": glossary})
    assert answer.status_code == 413
    assert looked == ["the dog", "the cat"]


def test_a_calibrated_model_says_how_sure_it_is(folders, tmp_path):
    own = tmp_path / "sure"
    shutil.copytree(folders[0], own)
    dev = [" ".join(words) for words in product(["the", "cat", "dog", "sees", "big", "bird."], repeat=4)]
    found = rnnsearch.load(own).translate(dev)
    scores = sorted(t.score for t in found if t.words)
    middle = scores[len(scores) // 2]
    learned(found, [t.text if t.score > middle else "x" for t in found]).save(own / CONFIDENCE)
    with TestClient(create_app([own], Settings()), base_url="http://127.0.0.1") as http:
        assert http.get("/v1/models").json()["models"][0]["calibrated"]
        [text] = http.post("/v1/translate", json={"text": TEXT}).json()["translations"]
        best = [row["best"][0] for row in text["sentences"]]
        for found in best:
            sure = [word["confidence"] for word in found["words"]]
            assert found["confidence"] == pytest.approx(sum(sure) / len(sure), abs=1e-6)
        least = sorted(found["confidence"] for found in best)[1]
        asked = {"text": TEXT, "min_confidence": least}
        [some] = http.post("/v1/translate", json=asked).json()["translations"]
        kept = [found["text"] for found in best if found["confidence"] >= least]
        assert len(kept) == 2
        assert some["text"].split() == " ".join(kept).split()
        assert [row["best"][0]["text"] for row in some["sentences"]] == [found["text"] for found in best]


def test_several_models_in_one_folder_are_served_as_one(folders, tmp_path):
    other = tmp_path / "other"
    system = load_system(folders[0])
    for own in system.model.parameters():
        own.data.neg_()
    save_system(other, system)
    both = [folders[0], other]
    gather(tmp_path / "both", both, [load_system(folder) for folder in both], None, "arithmetic")
    text = "the dog sees a big bird."
    [expected], alone = rnnsearch.load(both, mean="arithmetic").translate([text]), rnnsearch.load(folders[0])
    with TestClient(create_app([tmp_path / "both"], Settings()), base_url="http://127.0.0.1") as http:
        [answer] = http.post("/v1/translate", json={"text": text, "n_best": 2}).json()["translations"]
    best = answer["sentences"][0]["best"][0]
    assert (best["text"], best["log_prob"]) == (expected.text, pytest.approx(expected.log_prob, abs=1e-5))
    assert best["log_prob"] != pytest.approx(alone.translate(text).log_prob, abs=1e-3)


def test_min_confidence_needs_calibration(http):
    response = http.post("/v1/translate", json={"text": TEXT, "min_confidence": 0.5})
    assert (response.status_code, response.json()["error"]) == (
        400,
        "min_confidence needs a calibrated model; en-de is not",
    )
    [text] = http.post("/v1/translate", json={"text": TEXT}).json()["translations"]
    assert all(row["best"][0]["confidence"] is None for row in text["sentences"])
    assert all(isinstance(row["best"][0]["warnings"], list) for row in text["sentences"])


def test_alignment_can_be_left_out(http):
    [text] = http.post("/v1/translate", json={"text": "the dog", "alignment": False}).json()["translations"]
    assert text["sentences"][0]["best"][0]["alignment"] == []


def test_without_attention(http):
    for body in ({"text": "der Hund", "model": "de-en", "attention": True}, {"text": "the dog"}):
        [text] = http.post("/v1/translate", json=body).json()["translations"]
        assert text["sentences"][0]["best"][0]["attention"] is None


def test_texts_in_order_and_empty_ones_too(http):
    def translated(text: str | list[str]) -> list[str]:
        answer = http.post("/v1/translate", json={"text": text, "beam": 1}).json()
        return [row["text"] for row in answer["translations"]]

    texts = translated(["the cat", "", " \n", "the dog"])
    assert (texts[1], texts[2]) == ("", " \n")
    assert translated("the dog") == texts[3:]
    assert translated([]) == []


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"text": "a", "model": "en-fr"}, 404, 'model must be one of en-de, de-en; got "en-fr"'),
        ({"text": "a", "model": "en-de", "target": "en"}, 400, "source and target must be a direction served here"),
        ({"text": "a", "colour": 1}, 400, "colour must be left out: there is no such option"),
        ({}, 400, "text must be given"),
        ({"text": "a", "beam": 0}, 400, "beam: "),
        ({"text": "a", "beam": 10_000}, 400, "beam: "),
        ({"text": "a", "prefix": ["b", "c"]}, 400, "prefix must be one for each text (1); got 2"),
        ({"text": "a", "stream": True, "glossary": {"a": "b"}}, 400, "glossary must be left out where stream is true"),
        ({"text": "a", "beam": 1, "glossary": {"a": "der"}}, 400, "a glossary needs a beam of 2 or more; got 1"),
        ({"text": "a", "glossary": {"a": ""}}, 400, "glossary"),
        ({"text": "a b", "glossary": {"b": "\ud800"}}, 400, "glossary.b: "),
        ({"text": "a b", "glossary": {"b \ud800": "c"}}, 400, "glossary.b "),
        ({"text": "a \ud800"}, 400, "text must be valid Unicode"),
        ({"text": "a \ud800", "glossary": {"a": "b"}}, 400, "text must be valid Unicode"),
        ({"text": [""] * 11}, 413, "a request must have at most 10 texts; got 11"),
        ({"text": "a" * 101}, 413, "the text must have at most 100 characters; got 101"),
        ({"text": "x " * 40}, 413, "a sentence must have at most 30 symbols; got "),
    ],
)
def test_faults(serve, body, status, said):
    content = json.dumps(body).encode()  # ASCII: httpx refuses to write a lone surrogate
    http = serve(max_characters=100, max_symbols=30)
    response = http.post("/v1/translate", content=content, headers={"content-type": "application/json"})
    assert response.status_code == status
    assert response.json()["error"].startswith(said)
