"""What a model that reads, spells or copies words goes with: every fault."""

import pytest

from rnnsearch.config import resolve
from rnnsearch.errors import ConfigError
from rnnsearch.systems.build import build

BASE = {"preset": "small", "data": {"source": "en", "target": "de", "corpus": "x"}}
READ, WRITTEN = "model.source_characters={type='cnn'}", "model.target_characters={size=8}"
WORDS = "text={type='words'}"


def test_words_alone_are_read_and_spelled_by_their_characters(faults):
    assert faults(BASE, WORDS, READ, WRITTEN, "objective.spelling=0.5") == []
    symbols = 'text.type = "bpe", whose symbols can spell every word; remove it'
    assert faults(BASE, READ, WRITTEN) == [
        f"model.source_characters: has no effect with {symbols}",
        f"model.target_characters: has no effect with {symbols}",
    ]
    assert faults(BASE, WORDS, READ, "objective.spelling=0.5") == [
        "objective.spelling: has no effect with a model that spells no words; remove it"
    ]
    assert [fault.partition(";")[0] for fault in faults(BASE, WORDS, READ, "objective.symmetry=1.0")] == [
        "model.source_characters: has no effect with objective.symmetry, which turns source and target about"
    ]
    blind = faults({**BASE, "preset": "rnnencdec-small"}, READ, WRITTEN)
    assert blind == [
        "model.target_characters: has no effect with the rnnencdec decoder, which does not attend; remove it"
    ]
    assert faults(BASE, WORDS, WRITTEN, "search.replace_unknown=copy") == [
        "search.replace_unknown: has no effect with a model that spells unknown words; remove it"
    ]
    assert faults(BASE, WORDS, "model.source_characters={type='ngrams', shortest=4, longest=3}") == [
        "model.source_characters.longest: must be at least model.source_characters.shortest (4); got 3"
    ]
    assert faults(BASE, WORDS, "model.source_characters={type='ngrams', embedding=3}") == [
        'model.source_characters.embedding: has no effect with the ngrams composition; remove it (or say "unset")'
    ]


def test_parts_of_the_vocabulary(faults):
    parted = "objective.partition=500"
    assert faults(BASE, parted) == []
    assert faults({**BASE, "preset": "rnnencdec-small"}, parted) == []
    for more in ("text.bpe_dropout=0.1", "objective.symmetry=1.0"):
        [fault] = faults(BASE, parted, more)
        assert fault.startswith(f"objective.partition: has no effect with {more.partition('=')[0]}, which")
    assert faults(BASE, "objective.partition=0") == ["objective.partition: must be greater than or equal to 1; got 0"]


def test_what_a_pointer_goes_with(faults):
    pointer = "model.pointer={size=8}"
    assert faults(BASE, WORDS, pointer, READ, "search.replace_unknown=copy") == []
    assert faults(BASE, pointer) == [
        'model.pointer: has no effect with text.type = "bpe", whose symbols can spell every word; remove it'
    ]
    assert faults(BASE, WORDS, pointer, WRITTEN) == [
        "model.pointer: has no effect with model.target_characters, which spells what it would copy; remove it"
    ]
    hard = ("model.attention.normaliser=hard", "objective.reinforce.baseline=learned")
    for more, why in ((("objective.symmetry=1.0",), "which turns"), (hard, "which is no distribution")):
        found = faults(BASE, WORDS, pointer, *more)
        assert [fault.partition(":")[0] for fault in found] == ["model.pointer"] and why in found[0]
    assert faults({**BASE, "preset": "rnnencdec-small"}, pointer) == [
        "model.pointer: has no effect with the rnnencdec decoder, which does not attend; remove it"
    ]


COPYNET = "model.decoder={type='copynet',size=512,cell='gru'}"


def test_what_copynet_goes_with(faults):
    alone = (COPYNET, "model.tie=none")
    assert faults(BASE, *alone) == faults(BASE, WORDS, *alone, READ) == []
    wait = "model.attention={window='wait-k',wait=3}"
    for more in ("model.pointer={size=8}", WRITTEN, "objective.symmetry=1.0", wait):
        [fault] = [fault for fault in faults(BASE, WORDS, *alone, more) if "copynet" in fault]
        name = more.partition("=")[0].removesuffix("attention") + ("attention.window" if more == wait else "")
        assert fault.startswith(f'model.decoder.type = "copynet": does not go with {name}') and "remove one" in fault
    contrast = faults(BASE, *alone, "objective.contrast={type='nce',samples=8}", "training.label_smoothing=0.0")
    assert contrast == ['objective.contrast: does not go with model.decoder.type = "copynet"; remove one']
    found = faults(BASE, *alone, "model.output={type='hierarchical'}", "training.label_smoothing=0.0")
    assert found == ['model.output.type: "hierarchical" does not go with model.decoder.type = "copynet"; remove one']


def test_sides_of_different_symbols(faults):
    mixed = ("text={type='words', target_type='bpe', joint=false}", READ)
    assert faults(BASE, *mixed, "text.bpe_dropout=0.1") == []
    assert [fault.partition(" ")[0] for fault in faults(BASE, *mixed, WRITTEN)] == ["model.target_characters:"]
    assert faults(BASE, "text.target_type=characters") == [
        "text: `joint` needs one `type` for both languages; got bpe and characters (`target_type`)"
    ]
    out = ("text.target_type=characters", "text.joint=false")
    assert faults(BASE, *out, "search.max_ratio=8") == []
    assert faults(BASE, *out) == [
        "search.max_ratio: must be at least 5 for a target of characters: translations have so many a source symbol at "
        "most; got 2"
    ]
    assert faults(BASE, "text.type=characters") == []
    assert faults(BASE, "text.type=characters", "text.bpe_dropout=0.1") == [
        'text.bpe_dropout: has no effect with text.type = "characters"; remove it'
    ]


def test_terms_inline_go_with(faults):
    inline = "text.inline_terms={dictionary='terms.tsv'}"
    assert faults(BASE, inline) == faults(BASE, inline, "text.bpe_dropout=0.1", "text.type='bpe'") == []
    words = faults(BASE, inline, WORDS)
    assert words == [
        'text.inline_terms: does not go with text.type = "words", which has no symbols for the marks; remove one'
    ]
    turned = faults(BASE, inline, "objective.symmetry=1.0")
    assert [fault for fault in turned if "inline_terms" in fault] == [
        "text.inline_terms: does not go with objective.symmetry, which turns source and target about; remove one"
    ]
    links = ("data.alignments=aligner", "objective.supervision={type='cross-entropy'}")
    assert "text.inline_terms: links are between symbols as they were prepared; remove objective.supervision" in faults(
        {"preset": "small", "data": {"source": "en", "target": "de", "train": ["x.tsv"]}}, inline, *links
    )
    [fault] = faults(BASE, "text.inline_terms={dictionary='terms.tsv',share=0}")
    assert fault.startswith("text.inline_terms.share: must be")


def test_unigram_sampling_is_of_unigram_symbols(faults):
    sampled = ("text.type=unigram", "text.unigram_sampling=0.2")
    assert faults(BASE, *sampled) == faults(BASE, *sampled, "text.joint=true", "text.side_min_count=50") == []
    assert faults(BASE, "text.unigram_sampling=0.2") == [
        'text.unigram_sampling: has no effect with text.type = "bpe"; remove it'
    ]
    assert faults(BASE, *sampled, "text.bpe_dropout=0.1") == [
        'text.bpe_dropout: has no effect with text.type = "unigram"; remove it'
    ]
    links = ("data.alignments=aligner", "objective.supervision={type='cross-entropy'}")
    assert faults(BASE, *sampled, *links) == [
        "text.unigram_sampling: links are between symbols as they were prepared; remove objective.supervision"
    ]


def test_ties_need_one_vocabulary(faults):
    assert faults(BASE) == faults(BASE, "model.tie=all") == []
    assert faults(BASE, "model.tie=all", "text.joint=false") == [
        'model.tie: "all" needs one vocabulary for both languages: set text.joint = true'
    ]
    assert faults(BASE, "text={type='words', joint=true}") == [
        'text.joint: has no effect with text.type = "words"; remove it'
    ]
    one = "text.side_min_count: has no effect with"
    assert faults(BASE, "text.joint=false", "text.side_min_count=50") == [f"{one} two vocabularies; remove it"]
    letters = ("text.type=characters", "text.joint=true", "text.side_min_count=50")
    assert faults(BASE, *letters) == [f'{one} text.type = "characters"; remove it']
    assert faults(BASE, "text.joint=true", "text.side_min_count=50") == []
    assert faults(BASE, "text={type='words', bpe_dropout=0.1}") == [
        'text.bpe_dropout: has no effect with text.type = "words"; remove it'
    ]
    links = ("data.alignments=aligner", "objective.supervision={type='cross-entropy'}")
    assert faults(BASE, *links) == []
    assert faults(BASE, *links, "text.bpe_dropout=0.1") == [
        "text.bpe_dropout: links are between symbols as they were prepared; remove objective.supervision"
    ]
    with pytest.raises(ConfigError, match=r'model\.tie: "all" needs equal vocabularies; got 20 and 21 symbols'):
        build(resolve(BASE, ["model.tie=all"]).model, 20, 21, seed=1)
