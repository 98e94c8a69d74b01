"""The Python API: `rnnsearch.load`, `Translator` and `Translation`."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rnnsearch
from rnnsearch.data.batch import Stream
from rnnsearch.errors import ConfigError, ModelError, RnnsearchError
from rnnsearch.models.translation_model import only_memory
from rnnsearch.ops.native.library import library
from rnnsearch.search.sampling import Sampling
from rnnsearch.systems.folder import save_system
from rnnsearch.translator.translation import Translation, one_line
from rnnsearch.translator.translator import Translator
from tests.translations import translation
from tests.untrained import BAHDANAU, RNNENCDEC, TEXT, write_model

ENGLISH, GERMAN = TEXT["en"], TEXT["de"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "en-de", BAHDANAU)


@pytest.fixture(scope="module")
def translator(folder: Path) -> Translator:
    return rnnsearch.load(str(folder))


def test_public_names():
    classes = {"PivotTranslator", "RnnsearchError", "TextModel", "Translation", "Translator"}
    assert set(rnnsearch.__all__) == classes | {"__version__", "load", "load_text_model", "pivot"}
    for name in rnnsearch.__all__:
        assert getattr(rnnsearch, name)
    misspelt = "laod"
    with pytest.raises(AttributeError, match="module 'rnnsearch' has no attribute 'laod'"):
        getattr(rnnsearch, misspelt)


def test_string_returns_one_translation_and_list_returns_list(translator):
    one = translator.translate(ENGLISH[0])
    assert isinstance(one, Translation)
    many = translator.translate([ENGLISH[1], ENGLISH[0]])
    assert isinstance(many, list)
    assert [t.source for t in many] == [ENGLISH[1], ENGLISH[0]]
    assert many[1].text == one.text
    assert many[1].score == pytest.approx(one.score, rel=1e-5)
    assert translator.translate([]) == []


LISTS: dict[str, Callable[[Translator, Any], Any]] = {
    "n_best": lambda translator, value: translator.n_best(value),
    "n_best_in_order": lambda translator, value: translator.n_best_in_order(value, [0, 0]),
    "segment": lambda translator, value: translator.segment(value),
    "score": lambda translator, value: translator.score(value, ["a", "b"]),
    "targets of score": lambda translator, value: translator.score(["a", "b"], value),
    "align": lambda translator, value: translator.align(value, ["a", "b"]),
    "targets of align": lambda translator, value: translator.align(["a", "b"], value),
    "log_probs": lambda translator, value: translator.log_probs(value, ["a", "b"]),
    "cross_entropies": lambda translator, value: translator.cross_entropies(value, ["a", "b"]),
    "states": lambda translator, value: translator.states(value),
    "has_unknown": lambda translator, value: translator.has_unknown(value, ["a", "b"]),
    "translate_marked": lambda translator, value: translator.translate_marked(value),
}


@pytest.mark.parametrize("call", LISTS.values(), ids=LISTS)
def test_functions_of_lists_reject_a_single_text(translator, call):
    with pytest.raises(RnnsearchError, match=r"^sentences must be a list, such as \[text\] for one text; got str$"):
        call(translator, "ab")
    assert len(call(translator, ("a", "b"))) == 2


def test_prefixes_and_terms_must_be_lists(translator):
    with pytest.raises(RnnsearchError, match="prefixes must be a list with a text per sentence; got a text"):
        translator.n_best(["a"], prefixes="b")
    for terms in ("b", ["Hund"]):
        with pytest.raises(RnnsearchError, match="terms must be a list with a list per sentence; got a text"):
            translator.n_best(["a"], terms=terms)


def test_attributes_of_translations_are_consistent(translator):
    for t in translator.translate(ENGLISH):
        assert t.source_tokens == (*translator.source.segment([t.source])[0].symbols, "</s>")
        assert len(t.tokens) == len(t.token_scores)
        assert (t.tokens[-1] == "</s>") == t.finished
        assert t.log_prob == pytest.approx(sum(t.token_scores), rel=1e-5)
        assert t.score == pytest.approx(t.log_prob / len(t.tokens), rel=1e-5)
        assert all(score <= 0 for score in t.token_scores)
        assert t.attention.shape == (len(t.tokens), len(t.source_tokens))
        np.testing.assert_allclose(t.attention.sum(axis=1), 1.0, rtol=1e-5)
        assert t.words == tuple(t.text.split())
        assert t.source_words == tuple(t.source.split())
        assert t.word_attention.shape == (len(t.words), len(t.source_words))
        assert {j for _, j in t.alignment} == set(range(len(t.words)))
        for i, j in t.alignment:
            assert i == int(t.word_attention[j].argmax())
        ends = len(t.tokens) - t.finished
        assert {j for _, j in t.token_alignment} == set(range(ends))
        for i, j in t.token_alignment:
            assert i == int(t.attention[j, :-1].argmax()), "EOS of the source has no link"


def test_word_attention_combines_that_of_tokens(tmp_path):
    made = rnnsearch.load(write_model(tmp_path / "bpe", BAHDANAU, "bpe"))
    [t] = made.score(["the big dogs"], ["der Hund"])
    assert len(t.source_tokens) - 1 > len(t.source_words), "a word must have several tokens"
    starts = [n for n, symbol in enumerate(t.source_tokens[:-1]) if symbol.startswith("▁")] + [len(t.source_tokens) - 1]
    rows = [n for n, symbol in enumerate(t.tokens[:-1]) if symbol.startswith("▁")] + [len(t.tokens) - 1]
    for j in range(len(t.words)):
        for i in range(len(t.source_words)):
            block = t.attention[rows[j] : rows[j + 1], starts[i] : starts[i + 1]]
            assert t.word_attention[j, i] == pytest.approx(block.sum(axis=1).mean(), rel=1e-5)


def test_forced_scores_equal_search_scores(translator):
    """The property holds if the text is segmented into the same tokens."""
    found = translator.translate(ENGLISH)
    forced = translator.score(ENGLISH, [t.text for t in found])
    compared = 0
    for a, b in zip(found, forced, strict=True):
        if a.finished and a.tokens == b.tokens:
            compared += 1
            assert b.log_prob == pytest.approx(a.log_prob, rel=1e-4)
            np.testing.assert_allclose(b.attention, a.attention, atol=1e-5)
    texts = translator.score(ENGLISH, GERMAN)
    assert [t.text for t in texts] == GERMAN
    assert all(t.finished for t in texts)
    swapped = translator.score([ENGLISH[1]], [GERMAN[0]])
    assert swapped[0].log_prob != pytest.approx(texts[0].log_prob, abs=1e-4)


def test_n_best_lists_respect_options(translator):
    [best] = translator.n_best([ENGLISH[0]], translator.options(n_best=6))
    assert len(best) == 6
    order = [(t.finished, t.score) for t in best]
    assert order == sorted(order, reverse=True), "finished hypotheses come first"
    options = translator.options()
    assert (options.beam, options.length_penalty, options.max_ratio, options.max_extra) == (3, 1.0, 1.0, 4)
    assert translator.options(n_best=6).beam == 6, "the beam must hold the n best"
    options = translator.options(length_penalty=None, no_repeat_ngram=3, coverage_penalty=0.2, min_length=2)
    assert (options.length_penalty, options.no_repeat_ngram) == (1.0, 3)
    assert (options.coverage_penalty, options.min_length) == (0.2, 2)
    with pytest.raises(TypeError, match=r'got "lenght_penalty" \(did you mean "length_penalty"\?\)'):
        translator.options(lenght_penalty=0.6)
    with pytest.raises(RnnsearchError, match=r"beam must be at least n_best \(4\); got 1"):
        translator.options(beam=1, n_best=4)
    short = translator.translate(ENGLISH[0], translator.options(max_length=2))
    assert len(short.tokens) - short.finished <= 2
    banned = translator.n_best(ENGLISH, translator.options(beam=8, n_best=8, ban_unknown=True))
    assert not any("<unk>" in t.tokens for best in banned for t in best)


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of a model whose bias makes it output only `<unk>`."""
    folder = write_model(tmp_path_factory.mktemp("forgetful") / "en-de", BAHDANAU)
    made = rnnsearch.load(folder)
    with torch.no_grad():
        made.model.output.bias[1] = 100.0
    save_system(folder, made.system)
    return folder


def test_unknown_words_are_copied_or_looked_up(forgetful, tmp_path):
    text = "the small Zebra, sees"
    plain = rnnsearch.load(forgetful).translate(text)
    assert set(plain.tokens) == {"<unk>"}
    copied = rnnsearch.load(forgetful, replace_unknown="copy").translate(text)
    assert "<unk>" not in copied.text
    assert (copied.tokens, copied.token_scores) == (plain.tokens, plain.token_scores)
    pieces = ["the", "small", "Zebra", ",", "sees"]
    assert copied.text.split(" ") == [pieces[int(row[:-1].argmax())] for row in copied.attention]
    dictionary = tmp_path / "words.tsv"
    dictionary.write_text("".join(f"{word}\tzwei Worte\n" for word in pieces), encoding="utf-8")
    looked_up = rnnsearch.load(forgetful, dictionary=dictionary).translate(text)
    assert looked_up.text == " ".join(["zwei Worte"] * len(plain.tokens))
    assert looked_up.word_attention.shape == (2 * len(plain.tokens), 4)
    np.testing.assert_allclose(looked_up.word_attention[0], looked_up.word_attention[1])
    np.testing.assert_allclose(looked_up.word_attention[::2], copied.word_attention, rtol=1e-6)
    assert {j for _, j in looked_up.alignment} == set(range(len(looked_up.words)))
    assert set(copied.word_replaced) == {"copy"}
    assert looked_up.word_replaced == ["dictionary"] * len(looked_up.words)
    assert plain.word_replaced == [None] * len(plain.words)
    assert looked_up.word_token_scores == [[score] for score in plain.token_scores for _ in range(2)]
    prefix = "ein Zebra xy"
    begun = rnnsearch.load(forgetful, dictionary=dictionary).n_best([text], prefixes=[prefix])[0][0]
    assert begun.text.startswith(f"{prefix} zwei Worte"), "the user's prefix must not be replaced"
    assert begun.word_replaced[:4] == [None, None, None, "dictionary"]


def test_terms_are_in_translations_or_rejected(translator, tmp_path):
    options = translator.options(beam=6, n_best=2)
    known = translator.target.join([10, 11])
    found, free = translator.n_best(ENGLISH[:2], options, terms=[[known], []])
    assert all(known in t.text for t in found)
    assert [t.text for t in free] == [t.text for t in translator.n_best(ENGLISH[1:2], options)[0]]
    assert translator.n_best(ENGLISH[:1], translator.options(beam=1), terms=[[]])
    with pytest.raises(RnnsearchError, match="terms need a beam of at least 2; got 1"):
        translator.n_best(ENGLISH[:1], translator.options(beam=1), terms=[[known]])
    with pytest.raises(RnnsearchError, match=r"terms must be one list per sentence \(1\); got 2"):
        translator.n_best(ENGLISH[:1], options, terms=[[], []])
    words = write_model(tmp_path / "words", BAHDANAU)
    with pytest.raises(RnnsearchError, match='the vocabulary has no token for a word of the term "Quagga"'):
        rnnsearch.load(words).n_best(ENGLISH[:1], options, terms=[["Quagga"]])


def test_model_folder_determines_how_unknown_words_are_replaced(forgetful, tmp_path):
    own = tmp_path / "own"
    shutil.copytree(forgetful, own)
    config = (own / "config.toml").read_text(encoding="utf-8")
    (own / "config.toml").write_text(
        config.replace('replace_unknown = "none"', 'replace_unknown = "dictionary"\ndictionary = "words.tsv"')
    )
    (own / "words.tsv").write_text("the\tdas\n", encoding="utf-8")
    assert "das" in rnnsearch.load(own).translate("the").text.split()
    assert "the" in rnnsearch.load(own, replace_unknown="copy").translate("the").text.split()
    assert "<unk>" in rnnsearch.load(own, replace_unknown="none").translate("the").text


def test_unsupported_replacement_of_unknown_words_is_rejected(folder, tmp_path):
    with pytest.raises(ConfigError, match='must be one of none, copy, dictionary; got "cpoy"'):
        rnnsearch.load(folder, replace_unknown="cpoy")
    with pytest.raises(ConfigError, match=r'search\.dictionary: must be given for replace_unknown = "dictionary"'):
        rnnsearch.load(folder, replace_unknown="dictionary")
    with pytest.raises(ConfigError, match="the rnnencdec decoder, which has no attention"):
        rnnsearch.load(write_model(tmp_path / "blind", RNNENCDEC), replace_unknown="copy")
    with pytest.raises(ConfigError, match="whose vocabulary covers every text"):
        rnnsearch.load(write_model(tmp_path / "bpe", BAHDANAU, "bpe"), replace_unknown="copy")


@pytest.mark.parametrize("kind", ["words", "bpe"])
def test_translations_begin_with_their_prefixes(tmp_path, kind):
    made = rnnsearch.load(write_model(tmp_path / "model", BAHDANAU, kind))
    prefixes = ["die kl", "", "Der Zebra xy", " ", "ein Vo"]
    texts = [ENGLISH[0], ENGLISH[0], ENGLISH[1], ENGLISH[2], ENGLISH[2]]
    found = made.n_best(texts, made.options(n_best=3), batch_sentences=2, prefixes=prefixes)
    for best, prefix in zip(found, prefixes, strict=True):
        assert best
        assert all(t.text.startswith(prefix) for t in best)
        for t in best:
            assert t.log_prob == pytest.approx(sum(t.token_scores), rel=1e-4)
    free = made.n_best([ENGLISH[0]], made.options(n_best=3))[0]
    assert [t.text for t in found[1]] == [t.text for t in free]
    again = made.n_best([ENGLISH[0]], made.options(), prefixes=[free[0].text])[0][0]
    assert again.text.startswith(free[0].text)


def test_stream_ends_with_greedy_translation(translator):
    for text in (*ENGLISH, "", " "):
        steps, seen = translator.stream(text), list[str]()
        while True:
            try:
                seen.append(next(steps))
            except StopIteration as end:
                whole = end.value
                break
        greedy = translator.translate(text, translator.options(beam=1))
        assert (whole.text, whole.token_scores, whole.alignment) == (greedy.text, greedy.token_scores, greedy.alignment)
        assert len(seen) == sum(token != "</s>" for token in greedy.tokens)
        assert all(whole.text.startswith(part) for part in seen)
        assert not seen or seen[-1] == whole.text


def test_has_unknown(translator):
    sources = [ENGLISH[0], "the zebra sees", ENGLISH[0]]
    targets = [GERMAN[0], GERMAN[0], "das Zebra"]
    assert translator.has_unknown(sources, targets) == [False, True, True]


def test_states_are_last_encoder_states(translator):
    texts = [ENGLISH[1], "", ENGLISH[0], *ENGLISH * 25]
    states = translator.states(texts)
    assert states.shape == (len(texts), 20), "both directions are concatenated"
    np.testing.assert_allclose(states[0], states[4], atol=1e-5, err_msg="whatever the batch")
    for n in (1, 2):
        ids = torch.tensor([[*translator.source.segment([texts[n]])[0].ids, 3]])
        with torch.inference_mode():
            memory = only_memory(translator.model.encode({"source": Stream.from_ids(ids)}))
        forward, backward = memory.annotations[0, -1, :10], memory.annotations[0, 0, 10:]
        np.testing.assert_allclose(states[n], torch.cat([forward, backward]).numpy(), atol=1e-5)
    assert translator.states([]).shape == (0, 20)


def test_progress_is_reported(translator):
    told: list[int] = []
    translator.n_best([*ENGLISH, ""], batch_sentences=2, progress=told.append)
    assert told[-1] == 4
    assert told == sorted(told)


@pytest.mark.parametrize("text", ["", " ", "\u2028", "\x00", "</s>", "🙂 \u0301", "a\nb", "\t\t"])
def test_unusual_text_is_translated(translator, text):
    t = translator.translate(text)
    assert t.source == text
    assert (t.text == "" and t.log_prob == 0.0) or text.strip()
    [forced] = translator.score([text], [text])
    assert all(i < len(forced.source_words) and j < len(forced.words) for i, j in forced.alignment)


def test_lone_surrogate_is_rejected(translator):
    with pytest.raises(RnnsearchError, match="text must be valid Unicode"):
        translator.translate("a \ud800")


def test_plot_writes_a_picture(translator, tmp_path):
    t = translator.score([ENGLISH[0]], [GERMAN[0]])[0]
    path = t.plot(str(tmp_path / "bench.png"))
    assert path == tmp_path / "bench.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in t.plot(tmp_path / "bench.svg").read_bytes()
    with pytest.raises(RnnsearchError, match=r"must end in \.png, \.svg or \.pdf; got \"\.txt\""):
        t.plot(tmp_path / "bench.txt")
    assert not (tmp_path / "bench.txt").exists()


def test_empty_texts_cannot_be_plotted(translator, tmp_path):
    for source, target in (("", ""), ("", "der"), ("the", "")):
        with pytest.raises(RnnsearchError) as error:
            translator.score([source], [target])[0].plot(tmp_path / "a.png")
        assert str(error.value) == "there is nothing to plot: the source or the translation has no words"
    assert list(tmp_path.iterdir()) == []


def test_model_without_attention_has_no_alignments(tmp_path):
    made = rnnsearch.load(write_model(tmp_path / "model", RNNENCDEC))
    assert not made.attends
    t = made.translate(ENGLISH[0])
    assert (t.attention, t.word_attention, t.alignment, t.token_alignment) == (None, None, (), ())
    forced = made.score([ENGLISH[0]], [GERMAN[0]])[0]
    with pytest.raises(ModelError) as error:
        forced.plot(tmp_path / "a.png")
    assert str(error.value) == "there is nothing to plot: the model has no attention"
    with pytest.raises(ModelError, match=r"its decoder \(rnnencdec\) has none"):
        made.require_alignments("attention")


def test_saved_model_equals_original(folder, translator, tmp_path):
    copy = tmp_path / "copy"
    save_system(copy, translator.system)
    again = rnnsearch.load(copy)
    for name in ("config.toml", "model.safetensors", "tokenizers/en.json", "tokenizers/de.json"):
        assert (copy / name).read_bytes() == (folder / name).read_bytes()
    for a, b in zip(again.translate(ENGLISH), translator.translate(ENGLISH), strict=True):
        assert (a.text, a.token_scores, a.alignment) == (b.text, b.token_scores, b.alignment)


def test_unknown_device_is_rejected(folder):
    with pytest.raises(ConfigError, match='device: must be auto, cpu, cuda or cuda:N; got "gpu"'):
        rnnsearch.load(folder, device="gpu")
    assert rnnsearch.load(folder, device="auto").translate("the dog").source == "the dog"


def test_precision_of_search_is_selected(folder):
    exact = rnnsearch.load(folder, precision="fp32")
    assert exact.search.description.endswith("fp32")
    with pytest.raises(ConfigError, match='precision: must be one of auto, fp32, bf16, int8; got "int4"'):
        rnnsearch.load(folder, precision="int4")
    with pytest.raises(ConfigError, match=r"^candidates: must be greater than or equal to 0; got -1$"):
        rnnsearch.load(folder, candidates=-1)
    with pytest.raises(ConfigError, match=r"^candidates: must be at most 100; got 500$"):
        rnnsearch.load(folder, candidates=500)
    if library() is not None:
        rough = rnnsearch.load(folder, precision="int8")
        assert rough.search.description.endswith("int8")
        found = [translator.translate("the dog").token_scores[0] for translator in (rough, exact)]
        assert found[0] == pytest.approx(found[1], abs=0.1)
        assert found[0] != found[1]


def test_one_line_replaces_line_ends():
    assert one_line("a\nb\r\nc\u2028d") == "a b  c\u2028d"


@pytest.mark.parametrize("named", ["/etc/passwd", "../secret.tsv", "link.tsv", "deep/../../secret.tsv"])
def test_folder_that_refers_to_files_outside_is_rejected(folder, tmp_path, named):
    copy = tmp_path / "model"
    shutil.copytree(folder, copy)
    (tmp_path / "secret.tsv").write_text("password\tword\n")
    (copy / "link.tsv").symlink_to(tmp_path / "secret.tsv")
    config = (copy / "config.toml").read_text()
    table = f'[search]\nreplace_unknown = "dictionary"\ndictionary = "{named}"\n'
    (copy / "config.toml").write_text(re.sub(r"\[search\]\n(.+\n)*", "", config) + table)
    with pytest.raises(ModelError, match=r"its search\.dictionary must be inside the folder") as error:
        rnnsearch.load(copy)
    assert "password" not in str(error.value)


def test_shapes_are_compared_before_anything_is_allocated(folder, tmp_path):
    copy = tmp_path / "model"
    shutil.copytree(folder, copy)
    config = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(re.sub(r"(?m)^embedding = \d+$", "embedding = 16000000", config))
    with pytest.raises(ModelError, match="does not fit the model of its config"):
        rnnsearch.load(copy)


@pytest.mark.parametrize("blank", [" ", "   ", "\t", "\u00a0", "\u3000 \x1c"])
@pytest.mark.parametrize("kind", ["words", "bpe"])
def test_white_space_has_an_empty_translation(tmp_path, kind, blank):
    made = rnnsearch.load(write_model(tmp_path / "model", BAHDANAU, kind))
    [[empty]], [[one]] = made.n_best([""]), made.n_best([blank])
    assert replace(one, source="", source_words=()) == empty
    assert one.source == blank
    found = made.n_best([ENGLISH[0], blank, ENGLISH[1]], made.options(n_best=2), terms=[[], ["Hund"], []])
    assert [len(own) for own in found] == [2, 1, 2]
    assert (found[1][0].text, made.translate_marked([f"<b>{blank}</b>"])) == ("", [f"<b>{blank}</b>"])
    [forced] = made.score([blank], ["der Hund"])
    assert len(forced.source_tokens) > 1, "the tokenizer reads the source unchanged"


def test_consensus_ranks_cut_off_translations_last_and_ignores_them(translator):
    def made(text: str, log_prob: float, finished: bool = True) -> Translation:
        one = translation(["a"], text.split())
        return replace(one, log_prob=log_prob, finished=finished)

    cut = [made("der der der der", -0.1, finished=False), made("der der der die", -0.1, finished=False)]
    whole = [made("der Hund sieht", -3.0), made("der der der", -9.0), made("ein Hund sieht", -3.1)]
    for variant in (None, Sampling()):
        options = translator.options(5, variant=variant)
        found = translator.by_consensus([cut[0], *whole, cut[1]], options)
        assert found == [*translator.by_consensus(whole, options), *cut]
        assert found[0] == whole[0]
        assert sorted(t.text for t in translator.by_consensus(cut, options)) == sorted(t.text for t in cut)
        assert translator.by_consensus([], options) == []
