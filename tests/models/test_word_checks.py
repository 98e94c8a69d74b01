"""Validation of models that read, spell or copy words, and of the text options they depend on."""

import pytest

from rnnsearch.config import resolve
from rnnsearch.errors import ConfigError
from rnnsearch.systems.translation import build

BASE = {"preset": "small", "data": {"source": "en", "target": "de", "corpus": "x"}}
SOURCE_CHARACTERS = "model.source_characters={type='cnn'}"
TARGET_CHARACTERS = "model.target_characters={size=8}"
WORDS = "text={type='words'}"
PREPARED_LINKS = "alignment links refer to the tokens of the prepared data; remove objective.supervision"


def test_character_models_need_words(problems):
    assert problems(BASE, WORDS, SOURCE_CHARACTERS, TARGET_CHARACTERS, "objective.spelling=0.5") == []
    subwords = 'text.type = "bpe", whose vocabulary covers every word; remove it'
    assert problems(BASE, SOURCE_CHARACTERS, TARGET_CHARACTERS) == [
        f"model.source_characters: has no effect with {subwords}",
        f"model.target_characters: has no effect with {subwords}",
    ]
    assert problems(BASE, WORDS, SOURCE_CHARACTERS, "objective.spelling=0.5") == [
        "objective.spelling: has no effect with a model that does not spell words; remove it"
    ]
    assert [
        message.partition(";")[0] for message in problems(BASE, WORDS, SOURCE_CHARACTERS, "objective.symmetry=1.0")
    ] == ["model.source_characters: cannot be combined with objective.symmetry, which swaps source and target"]
    without_attention = problems({**BASE, "preset": "rnnencdec-small"}, SOURCE_CHARACTERS, TARGET_CHARACTERS)
    assert without_attention == [
        "model.target_characters: has no effect with the rnnencdec decoder, which has no attention; remove it"
    ]
    assert problems(BASE, WORDS, TARGET_CHARACTERS, "search.replace_unknown=copy") == [
        "search.replace_unknown: has no effect with a model that spells unknown words; remove it"
    ]
    assert problems(BASE, WORDS, "model.source_characters={type='ngrams', shortest=4, longest=3}") == [
        "model.source_characters.longest: must be at least shortest (4); got 3"
    ]
    assert problems(BASE, WORDS, "model.source_characters={type='cnn', widths=2, projection=false}") == [
        "model.source_characters.projection: must be true, or model.embedding must be the number of all filters (75); "
        "got 256"
    ]
    assert problems(BASE, WORDS, "model.source_characters={type='ngrams', embedding=3}") == [
        'model.source_characters.embedding: has no effect with the ngrams composition; remove it (or set it to "unset")'
    ]


def test_partition_needs_fixed_segmentation_and_one_direction(problems):
    partition = "objective.partition=500"
    assert problems(BASE, partition) == []
    assert problems({**BASE, "preset": "rnnencdec-small"}, partition) == []
    assert problems(BASE, partition, "text.bpe_dropout=0.1") == [
        "objective.partition: has no effect with text.bpe_dropout, which changes the segmentation; remove it"
    ]
    shortlist = ("objective.shortlist={}", "training.label_smoothing=0.0")
    assert problems(BASE, *shortlist, "text.bpe_dropout=0.1") == [
        "objective.shortlist: has no effect with text.bpe_dropout, which changes the segmentation; remove it"
    ]
    assert problems(BASE, partition, "objective.symmetry=1.0") == [
        "objective.partition: cannot be combined with objective.symmetry, which swaps source and target; remove one"
    ]
    assert problems(BASE, "objective.partition=0") == ["objective.partition: must be greater than or equal to 1; got 0"]


def test_pointer_rejects_incompatible_options(problems):
    pointer = "model.pointer={size=8}"
    assert problems(BASE, WORDS, pointer, SOURCE_CHARACTERS, "search.replace_unknown=copy") == []
    assert problems(BASE, pointer) == [
        'model.pointer: has no effect with text.type = "bpe", whose vocabulary covers every word; remove it'
    ]
    assert problems(BASE, WORDS, pointer, TARGET_CHARACTERS) == [
        "model.pointer: has no effect with model.target_characters, which spells the words to copy; remove it"
    ]
    hard = ("model.attention.normaliser=hard", "objective.reinforce.baseline=learned")
    symmetry = ("objective.symmetry=1.0",)
    for settings, reason in ((symmetry, "which swaps"), (hard, "which is not a distribution")):
        [message] = problems(BASE, WORDS, pointer, *settings)
        assert message.startswith("model.pointer:") and reason in message
    assert problems({**BASE, "preset": "rnnencdec-small"}, pointer) == [
        "model.pointer: has no effect with the rnnencdec decoder, which has no attention; remove it"
    ]


COPYNET = "model.decoder={type='copynet',size=512,cell='gru'}"


def test_copynet_rejects_incompatible_options(problems):
    copynet = (COPYNET, "model.tie=none")
    assert problems(BASE, *copynet) == problems(BASE, WORDS, *copynet, SOURCE_CHARACTERS) == []
    for setting, name in (
        ("model.pointer={size=8}", "model.pointer"),
        (TARGET_CHARACTERS, "model.target_characters"),
        ("objective.symmetry=1.0", "objective.symmetry"),
        ("model.attention={window='wait-k',wait=3}", "model.attention.window"),
    ):
        [message] = [message for message in problems(BASE, WORDS, *copynet, setting) if "copynet" in message]
        assert message.startswith(f'model.decoder.type = "copynet": cannot be combined with {name}')
        assert "remove one" in message
    unsmoothed = (*copynet, "training.label_smoothing=0.0")
    assert problems(BASE, *unsmoothed, "objective.contrast={type='nce',samples=8}") == [
        'objective.contrast: cannot be combined with model.decoder.type = "copynet"; remove one'
    ]
    assert problems(BASE, *unsmoothed, "model.output={type='hierarchical'}") == [
        'model.output.type = "hierarchical": cannot be combined with model.decoder.type = "copynet"; remove one'
    ]


def test_text_types_of_source_and_target_may_differ(problems):
    mixed = ("text={type='words', target_type='bpe', joint=false}", SOURCE_CHARACTERS)
    assert problems(BASE, *mixed, "text.bpe_dropout=0.1") == []
    assert [message.partition(" ")[0] for message in problems(BASE, *mixed, TARGET_CHARACTERS)] == [
        "model.target_characters:"
    ]
    assert problems(BASE, "text.target_type=characters") == [
        "text.joint: needs one `type` for both languages; got bpe and characters (`target_type`)"
    ]
    characters_out = ("text.target_type=characters", "text.joint=false")
    assert problems(BASE, *characters_out, "search.max_ratio=8") == []
    assert problems(BASE, *characters_out) == [
        "search.max_ratio: must be at least 5 for a target of characters, because it limits the characters per source "
        "token; got 2"
    ]
    assert problems(BASE, "text.type=characters") == []
    assert problems(BASE, "text.type=characters", "text.bpe_dropout=0.1") == [
        'text.bpe_dropout: has no effect with text.type = "characters"; remove it'
    ]


def test_inline_terms_reject_incompatible_options(problems):
    inline = "text.inline_terms={dictionary='terms.tsv'}"
    assert problems(BASE, inline) == problems(BASE, inline, "text.bpe_dropout=0.1", "text.type='bpe'") == []
    assert problems(BASE, inline, WORDS) == [
        'text.inline_terms: cannot be combined with text.type = "words", which has no tokens for the term markers; '
        "remove one"
    ]
    symmetric = problems(BASE, inline, "objective.symmetry=1.0")
    assert [message for message in symmetric if "inline_terms" in message] == [
        "text.inline_terms: cannot be combined with objective.symmetry, which swaps source and target; remove one"
    ]
    links = ("data.alignments=aligner", "objective.supervision={type='cross-entropy'}")
    files = {"preset": "small", "data": {"source": "en", "target": "de", "train": ["x.tsv"]}}
    assert f"text.inline_terms: {PREPARED_LINKS}" in problems(files, inline, *links)
    [message] = problems(BASE, "text.inline_terms={dictionary='terms.tsv',share=0}")
    assert message.startswith("text.inline_terms.share: must be")


def test_unigram_sampling_needs_unigram(problems):
    sampled = ("text.type=unigram", "text.unigram_sampling=0.2")
    assert problems(BASE, *sampled) == problems(BASE, *sampled, "text.joint=true", "text.side_min_count=50") == []
    assert problems(BASE, "text.unigram_sampling=0.2") == [
        'text.unigram_sampling: has no effect with text.type = "bpe"; remove it'
    ]
    assert problems(BASE, *sampled, "text.bpe_dropout=0.1") == [
        'text.bpe_dropout: has no effect with text.type = "unigram"; remove it'
    ]
    links = ("data.alignments=aligner", "objective.supervision={type='cross-entropy'}")
    assert problems(BASE, *sampled, *links) == [f"text.unigram_sampling: {PREPARED_LINKS}"]


def test_tied_embeddings_need_one_vocabulary(problems):
    assert problems(BASE) == problems(BASE, "model.tie=all") == []
    assert problems(BASE, "model.tie=all", "text.joint=false") == [
        'model.tie: "all" needs one vocabulary for both languages: set text.joint = true'
    ]
    assert problems(BASE, "text={type='words', joint=true}") == [
        'text.joint: has no effect with text.type = "words"; remove it'
    ]
    unused = "text.side_min_count: has no effect with"
    assert problems(BASE, "text.joint=false", "text.side_min_count=50") == [f"{unused} two vocabularies; remove it"]
    characters = ("text.type=characters", "text.joint=true", "text.side_min_count=50")
    assert problems(BASE, *characters) == [f'{unused} text.type = "characters"; remove it']
    assert problems(BASE, "text.joint=true", "text.side_min_count=50") == []
    assert problems(BASE, "text={type='words', bpe_dropout=0.1}") == [
        'text.bpe_dropout: has no effect with text.type = "words"; remove it'
    ]
    links = ("data.alignments=aligner", "objective.supervision={type='cross-entropy'}")
    assert problems(BASE, *links) == []
    assert problems(BASE, *links, "text.bpe_dropout=0.1") == [f"text.bpe_dropout: {PREPARED_LINKS}"]
    with pytest.raises(ConfigError, match=r'model\.tie: "all" needs equal vocabularies; got 20 and 21 tokens'):
        build(resolve(BASE, ["model.tie=all"]).model, 20, 21, seed=1)
