"""The detailed API: fields of translations, glossaries, confidence, ensembles and errors."""

import asyncio
import json
import math
import shutil
from html import unescape
from itertools import product

import numpy as np
import pytest
from starlette.testclient import TestClient

import rnnsearch
from rnnsearch import config as run_config
from rnnsearch.config.data import InlineTermsConfig
from rnnsearch.serve.app import create_app
from rnnsearch.serve.limits import Settings
from rnnsearch.serve.schemas import TranslateResponse
from rnnsearch.systems.ensemble_folder import write_ensemble
from rnnsearch.systems.folder import CONFIG, load_system, save_system
from rnnsearch.text.terms import Glossary
from rnnsearch.translator.confidence import CALIBRATION_FILE, learn_calibration
from rnnsearch.utils.files import write_text
from tests.serve.test_files import file, final_status
from tests.untrained import BAHDANAU, untrained, with_context

TEXT = "the dog sees a big bird. The small cat sees the dog!\n\nthe cat"


def test_models_are_listed_with_their_state(http):
    before = http.get("/v1/models").json()["models"]
    assert http.post("/v1/translate", json={"text": "der Hund", "source": "de"}).status_code == 200
    after = http.get("/v1/models").json()["models"]
    assert [row["loaded"] for row in before] == [False, False]
    assert [row["loaded"] for row in after] == [False, True]
    names = {"source_name": "English", "target_name": "German"}
    details = {"sources": [], "pivot": None, "pivot_name": None, "attention": True, "aligner": False}
    details |= {"calibrated": False, "simultaneous": False, "score": None}
    assert before[0] == {"name": "en-de", "source": "en", "target": "de", **names, **details, "loaded": False}
    assert after[1]["attention"] is False


def test_response_has_the_attributes_of_translations(http, folders):
    response = http.post("/v1/translate", json={"text": TEXT, "n_best": 2, "attention": True})
    # It is written in parts.
    assert TranslateResponse.model_validate_json(response.content).model_dump_json().encode() == response.content
    assert response.status_code == 200, response.text
    body = response.json()
    assert (body["model"], body["source"], body["target"]) == ("en-de", "en", "de")
    [text] = body["translations"]
    translator = rnnsearch.load(folders[0])
    sentences = ["the dog sees a big bird.", "The small cat sees the dog!", "the cat"]
    expected = translator.n_best(sentences, translator.options(n_best=2))
    assert [row["source"] for row in text["sentences"]] == sentences
    for row, (a, b), translations in zip(text["sentences"], text["target_spans"], expected, strict=True):
        assert TEXT[row["start"] : row["end"]] == row["source"]
        assert text["text"][a:b] == row["best"][0]["text"]
        assert len(row["best"]) == 2
        for result, t in zip(row["best"], translations, strict=True):
            assert result["text"] == t.text
            assert result["log_prob"] == pytest.approx(t.log_prob, rel=1e-4)
            assert result["tokens"] == list(t.tokens)
            assert [word["text"] for word in result["words"]] == list(t.words)
            assert [result["text"][w["start"] : w["end"]] for w in result["words"]] == list(t.words)
            assert [t.source[w["start"] : w["end"]] for w in result["source_words"]] == list(t.source_words)
            np.testing.assert_allclose(result["attention"], t.word_attention, atol=1e-4)
            assert [tuple(link) for link in result["alignment"]] == list(t.alignment)
            word_scores = sum(s for s, word in zip(t.token_scores, t.token_words, strict=True) if word >= 0)
            assert sum(word["score"] for word in result["words"]) == pytest.approx(word_scores, abs=1e-4)
            for word, scores in zip(result["words"], t.word_token_scores, strict=True):
                assert word["probability"] == pytest.approx(math.exp(sum(scores) / len(scores)), abs=1e-5)


@pytest.mark.parametrize("beam", [1, 6])
def test_translations_contain_the_terms_of_a_glossary_or_report_them(http, beam):
    glossary = {"dog": "Baum|Bäume", "big bird": "Katze"}
    body = {"text": [TEXT, "the bird"], "beam": beam}
    with_terms = http.post("/v1/translate", json={**body, "glossary": glossary}).json()["translations"]
    without = http.post("/v1/translate", json=body).json()["translations"]
    first, second, third = [row["best"][0] for row in with_terms[0]["sentences"]]
    for best, terms in ((first, glossary), (second, {"dog": glossary["dog"]})):
        for term, forms in terms.items():
            assert (term in best["missing_terms"]) != any(form in best["text"] for form in forms.split("|"))
        assert ("missing terms" in best["warnings"]) == bool(best["missing_terms"])
    assert not second["missing_terms"]
    assert third["text"] == without[0]["sentences"][2]["best"][0]["text"]
    assert with_terms[1]["text"] == without[1]["text"]


def test_glossary_of_the_server_applies_unless_the_request_overrides_it(serve):
    http = serve(glossaries={"en-de": Glossary({"dog": "Baum"})})
    plain = {"q": "the dog", "source": "en", "target": "de"}
    assert "Baum" in http.post("/translate", json=plain).json()["translatedText"]
    for stream in (False, True):
        for glossary, term in (({}, "Baum"), ({"dog": "Katze"}, "Katze"), ({"cat": "Katze"}, "Baum")):
            response = http.post("/v1/translate", json={"text": "the dog", "stream": stream, "glossary": glossary})
            text = response.text.splitlines()[-2] if stream else response.text
            assert term in json.loads(text.removeprefix("data: "))["translations"][0]["text"]
    assert "Baum" not in http.post("/v1/translate", json={"text": "the cat"}).json()["translations"][0]["text"]


def test_model_with_inline_terms_reads_the_glossary(folders, tmp_path):
    folder = tmp_path / "inline"
    shutil.copytree(folders[0], folder)
    config = run_config.load(folder / CONFIG)
    text_config = config.text.model_copy(update={"inline_terms": InlineTermsConfig(dictionary="none.tsv")})
    write_text(folder / CONFIG, run_config.dump(config.model_copy(update={"text": text_config})))
    translator = rnnsearch.load(folder)
    glossary = {"dog": "Baum"}
    text = translator.with_terms("the dog", Glossary(glossary))
    [[expected]] = translator.n_best([text], translator.options(beam=1))
    app = create_app([folder], Settings())
    with TestClient(app, "http://localhost") as http:
        response = http.post("/v1/translate", json={"text": "the dog", "beam": 1, "glossary": glossary})
    [sentence] = response.json()["translations"][0]["sentences"]
    assert (sentence["source"], sentence["best"][0]["text"]) == ("the dog", expected.text)


def test_terms_are_looked_up_in_a_thread_and_not_in_too_long_sentences(serve, monkeypatch):
    searched_texts = []
    matches = Glossary.matches

    def matches_in_thread(glossary, text):
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        searched_texts.append(text)
        return matches(glossary, text)

    monkeypatch.setattr(Glossary, "matches", matches_in_thread)
    http = serve(max_tokens=30)
    glossary = {"dog": "Baum"}
    assert http.post("/v1/translate", json={"text": "the dog\nthe cat", "glossary": glossary}).status_code == 200
    assert searched_texts == ["the dog", "the cat"]
    response = http.post("/v1/translate", json={"text": "the dog " * 20, "glossary": glossary})
    assert response.status_code == 413
    assert searched_texts == ["the dog", "the cat"]


def test_calibrated_model_returns_confidence_and_applies_min_confidence(folders, tmp_path):
    folder = tmp_path / "calibrated"
    shutil.copytree(folders[0], folder)
    dev = [" ".join(words) for words in product(["the", "cat", "dog", "sees", "big", "bird."], repeat=4)]
    translations = rnnsearch.load(folder).translate(dev)
    scores = sorted(t.score for t in translations if t.words)
    median = scores[len(scores) // 2]
    references = [t.text if t.score > median else "x" for t in translations]
    learn_calibration(translations, references).save(folder / CALIBRATION_FILE)
    with TestClient(create_app([folder], Settings()), base_url="http://127.0.0.1") as http:
        assert http.get("/v1/models").json()["models"][0]["calibrated"]
        [text] = http.post("/v1/translate", json={"text": TEXT}).json()["translations"]
        best = [row["best"][0] for row in text["sentences"]]
        for result in best:
            confidences = [word["confidence"] for word in result["words"]]
            assert result["confidence"] == pytest.approx(sum(confidences) / len(confidences), abs=1e-6)
        min_confidence = sorted(result["confidence"] for result in best)[1]
        body = {"text": TEXT, "min_confidence": min_confidence}
        [filtered] = http.post("/v1/translate", json=body).json()["translations"]
        confident = [result["text"] for result in best if result["confidence"] >= min_confidence]
        assert len(confident) == 2
        assert filtered["text"].split() == " ".join(confident).split()
        assert [row["best"][0]["text"] for row in filtered["sentences"]] == [result["text"] for result in best]


def test_ensemble_folder_is_served_as_one_model(folders, tmp_path):
    other = tmp_path / "other"
    system = load_system(folders[0])
    for parameter in system.model.parameters():
        parameter.data.neg_()
    save_system(other, system)
    both = [folders[0], other]
    write_ensemble(tmp_path / "both", both, [load_system(folder) for folder in both], None, "arithmetic")
    text = "the dog sees a big bird."
    [expected] = rnnsearch.load(both, mean="arithmetic").translate([text])
    single = rnnsearch.load(folders[0]).translate(text)
    with TestClient(create_app([tmp_path / "both"], Settings()), base_url="http://127.0.0.1") as http:
        [result] = http.post("/v1/translate", json={"text": text, "n_best": 2}).json()["translations"]
    best = result["sentences"][0]["best"][0]
    assert (best["text"], best["log_prob"]) == (expected.text, pytest.approx(expected.log_prob, abs=1e-5))
    assert best["log_prob"] != pytest.approx(single.log_prob, abs=1e-3)


def test_min_confidence_needs_calibration(http):
    response = http.post("/v1/translate", json={"text": TEXT, "min_confidence": 0.5})
    assert response.status_code == 400
    assert response.json()["error"] == "min_confidence needs a calibrated model; en-de is not calibrated"
    [text] = http.post("/v1/translate", json={"text": TEXT}).json()["translations"]
    assert all(row["best"][0]["confidence"] is None for row in text["sentences"])
    assert all(isinstance(row["best"][0]["warnings"], list) for row in text["sentences"])


def test_alignment_can_be_omitted(http):
    [text] = http.post("/v1/translate", json={"text": "the dog", "alignment": False}).json()["translations"]
    assert text["sentences"][0]["best"][0]["alignment"] == []


def test_attention_is_only_sent_if_requested_and_available(http):
    for body in ({"text": "der Hund", "model": "de-en", "attention": True}, {"text": "the dog"}):
        [text] = http.post("/v1/translate", json=body).json()["translations"]
        assert text["sentences"][0]["best"][0]["attention"] is None


def test_order_of_texts_is_kept_and_texts_may_be_empty(http):
    def translated(text: str | list[str]) -> list[str]:
        response = http.post("/v1/translate", json={"text": text, "beam": 1})
        return [row["text"] for row in response.json()["translations"]]

    texts = translated(["the cat", "", " \n", "the dog"])
    assert (texts[1], texts[2]) == ("", " \n")
    assert translated("the dog") == texts[3:]
    assert translated([]) == []


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"text": "a", "model": "en-fr"}, 404, 'model must be one of en-de, de-en; got "en-fr"'),
        ({"text": "a", "model": "en-de", "target": "en"}, 400, "source and target must be a direction served here"),
        ({"text": "a", "colour": 1}, 400, "colour is not an option of this request"),
        ({}, 400, "text is required"),
        ({"text": "a", "beam": 0}, 400, "beam: "),
        ({"text": "a", "beam": 10_000}, 400, "beam: "),
        ({"text": "a", "prefix": ["b", "c"]}, 400, "prefix must be one for each text (1); got 2"),
        ({"text": "a", "glossary": {"a": "|"}}, 400, "the forms of a target term must be separated by one "),
        (
            {"text": "a", "glossary": {"a": "|".join("bcdefghijkl")}},
            400,
            "a target term must have at most 10 forms; got 11",
        ),
        ({"text": "a", "glossary": {"a": "b" * 2011}}, 400, "glossary.a: "),
        ({"text": "a", "glossary": {"a": ""}}, 400, "glossary"),
        ({"text": "a b", "glossary": {"b": "\ud800"}}, 400, "glossary.b: "),
        ({"text": "a b", "glossary": {"b \ud800": "c"}}, 400, "glossary.b "),
        ({"text": "a \ud800"}, 400, "text must be valid Unicode"),
        ({"text": "a \ud800", "glossary": {"a": "b"}}, 400, "text must be valid Unicode"),
        ({"text": [""] * 11}, 413, "a request must have at most 10 texts; got 11"),
        ({"text": "a" * 101}, 413, "the text must have at most 100 characters; got 101"),
        ({"text": "x " * 40}, 413, "a sentence must have at most 30 tokens; got "),
    ],
)
def test_invalid_requests_get_errors(serve, body, status, message):
    content = json.dumps(body).encode()  # ASCII: httpx refuses to write a lone surrogate
    http = serve(max_characters=100, max_tokens=30)
    response = http.post("/v1/translate", content=content, headers={"content-type": "application/json"})
    assert response.status_code == status
    assert response.json()["error"].startswith(message)


def test_protected_text_is_copied_and_words_cover_it(http):
    text = "the dog sees {a b} and 25 www.a.org cats"
    for fields, protected in (({}, ["{a b}", "www.a.org"]), ({"protect": ["numbers"]}, ["25"])):
        response = http.post("/v1/translate", json={"text": text, "source": "en", "target": "de", **fields}).json()
        [best] = response["translations"][0]["sentences"][0]["best"]
        assert all(best["text"].count(item) == 1 for item in protected), best["text"]
        assert [word["text"] for word in best["source_words"]] == text.split()
        assert [word["text"] for word in best["words"]] == best["text"].split()
        assert all(i < len(best["source_words"]) and j < len(best["words"]) for i, j in best["alignment"])
    events = http.post("/v1/translate", json={"text": text, "source": "en", "target": "de", "stream": True}).text
    last = json.loads(events.strip().rpartition("data: ")[2])
    assert all(item in last["translations"][0]["text"] for item in ("{a b}", "www.a.org"))


@pytest.mark.parametrize("context", [{}, {"type": "streams", "target": True}], ids=str)
def test_texts_and_files_are_translated_with_the_context_that_the_model_reads(tmp_path, context):
    save_system(tmp_path / "context", with_context(untrained(BAHDANAU, "bpe"), **context))
    translator = rnnsearch.load(tmp_path / "context")
    sentences = ["the small cat sees the dog.", "A bird sees the cat!", "Is it red?"]
    [wanted] = translator.translate_documents([sentences])
    with TestClient(create_app([tmp_path / "context"], Settings()), "http://localhost") as http:
        body = {"text": [" ".join(sentences), sentences[1]]}
        texts = [row["text"] for row in http.post("/v1/translate", json=body).json()["translations"]]
        assert texts[0] == " ".join(translation.text for translation in wanted)
        assert texts[1] == translator.translate(sentences[1]).text != wanted[1].text
        html = "".join(f"<p>{sentence}</p>" for sentence in sentences)
        row = http.post("/translate", json={"q": html, "source": "en", "target": "de", "format": "html"}).json()
        assert unescape(row["translatedText"]) == "".join(f"<p>{translation.text}</p>" for translation in wanted)
        sent = http.post("/v1/files", **file("a.txt", "\n".join(sentences)))
        status = final_status(http, sent.json()["id"])
        assert status["state"] == "done"
        content = http.get(f"/v1/files/{status['id']}/result").text
        assert content.split("\n") == [translation.text for translation in wanted]
