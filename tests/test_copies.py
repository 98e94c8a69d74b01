"""Models that copy or spell words write text, never `<unk>`, in every type of search."""

import numpy as np
import pytest
import torch

import rnnsearch
from rnnsearch.search.candidates import learn_candidate_tables, save_candidate_tables
from rnnsearch.search.decode import force_decode_all
from rnnsearch.systems.folder import save_system
from rnnsearch.text.vocabulary import UNK
from tests.untrained import BAHDANAU, untrained

KINDS = {
    "pointer": BAHDANAU | {"pointer": {"size": 5}},
    "copynet": BAHDANAU | {"decoder": {"type": "copynet", "cell": "gru", "size": 11}},
    "hybrid": BAHDANAU | {"source_characters": {"type": "lstm", "words": "unknown"}, "target_characters": {"size": 8}},
}
SOURCES = ["the Quagga sees a Zebu.", "Zoe sees the bird", "the cat"]


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory):
    folder, system = tmp_path_factory.mktemp(request.param) / "en-de", untrained(KINDS[request.param])
    with torch.no_grad():
        for name, bias in system.model.named_parameters():
            if name in ("output.bias", "output.words.bias"):
                bias[UNK] += 3.0  # otherwise no unknown word would be among the n best
    save_system(folder, system)
    translator = rnnsearch.load(folder)
    texts = [source.ids for source in translator.source.segment(SOURCES)]
    targets = [
        target.ids for target in translator.target.segment(["die kleine Quagga sieht", "Zoe sieht", "die Katze"])
    ]
    save_candidate_tables(
        folder, learn_candidate_tables(texts, targets, len(translator.source), len(translator.target))
    )
    return folder


def require_text(source, translation):
    assert "<unk>" not in translation.text
    for one in translation.replaced:
        assert one.by != "copy" or one.source in source


def texts(found):
    return [[t.text for t in best] for best in found]


def test_n_best_texts_match_their_hypotheses(folder):
    translator = rnnsearch.load(folder)
    options = translator.options(beam=4, n_best=4)
    found = translator.n_best(SOURCES, options)
    for source, best in zip(SOURCES, found, strict=True):
        assert len(best) == 4
        for t in best:
            require_text(source, t)
        assert texts(translator.n_best([source], options)) == [[t.text for t in best]], (
            "the other sentences of a batch must not matter"
        )
    assert any(t.replaced for best in found for t in best)


def test_copied_words_report_copy_weights(folder):
    """The weights are those of search results, of given translations and of an ensemble."""
    for given in (folder, [folder, folder]):
        translator = rnnsearch.load(given)
        if not translator.system.can("copy"):
            continue
        found = [best for own in translator.n_best(SOURCES, translator.options(beam=3, n_best=3)) for best in own]
        sources = translator.system.segment_sources([t.source for t in found])
        ids = [[translator.target.tokens().index(token) for token in t.tokens if token != "</s>"] for t in found]
        weights = translator.system.copy_attention([source.spelled_ids for source in sources], ids)
        plain = translator.system.reference_scorer()
        attended = force_decode_all(
            plain, [s.spelled_ids for s in sources], ids, make_batch=translator.system.make_sources
        )
        differs = 0
        for t, own, other in zip(found, weights, attended, strict=True):
            expected = next(iter(own.values()))[: len(t.tokens)]
            np.testing.assert_allclose(t.attention, expected, rtol=1e-4, atol=1e-5)
            differs += abs(other.weights[: len(t.tokens)] - expected).max() > 0.1
        assert differs
    scored = rnnsearch.load(folder).score(SOURCES[:1], ["die Katze sieht"])[0]
    if rnnsearch.load(folder).system.can("copy"):
        again = rnnsearch.load(folder)
        [own] = again.system.copy_attention(
            [again.system.segment_sources(SOURCES[:1])[0].spelled_ids], again.target.ids(["die Katze sieht"])
        )
        np.testing.assert_allclose(scored.attention, next(iter(own.values())), rtol=1e-4, atol=1e-5)


def test_prefix_words_stay_known_or_unknown(folder):
    translator = rnnsearch.load(folder)
    given = ["die Quagga", "Zoe", ""]
    for t, prefix, source in zip(translator.n_best(SOURCES, prefixes=given), given, SOURCES, strict=True):
        assert t[0].text.startswith(prefix)
        require_text(source, t[0])


def test_ensemble_of_a_model_with_itself_equals_the_model(folder):
    options = rnnsearch.load(folder).options(beam=3, n_best=2)
    alone, twice = (
        rnnsearch.load(folder).n_best(SOURCES, options),
        rnnsearch.load([folder, folder]).n_best(SOURCES, options),
    )
    assert texts(twice) == texts(alone)


def test_candidate_lists_limit_generated_but_not_copied_words(folder):
    translator = rnnsearch.load(folder, candidates=1)
    assert translator.candidates is not None
    for source in SOURCES:
        [sentence] = translator.source.segment([source])
        listed = translator.candidates(
            translator.system.make_sources([sentence.spelled_ids], translator.search.scorer.device)
        )
        assert len(listed) < len(translator.target)
        [best] = translator.n_best([source], translator.options(beam=3, n_best=3))
        for t in best:
            require_text(source, t)
            said = {translator.target.token(int(id)) for id in listed}
            assert said.issuperset(t.tokens)
