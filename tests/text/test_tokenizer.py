"""Laws of both segmentations: reversible, offsets in the raw text, no special ids from it, whole files."""

import json
import os
import subprocess
import sys

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from rnnsearch.errors import DataError, ModelError
from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.text.vocabulary import BOS, EOS, PAD, SPACE_MARKER, SPECIALS, UNK


def test_special_tokens_come_first(tokenizer):
    assert tuple(tokenizer.token(id) for id in (PAD, UNK, BOS, EOS)) == SPECIALS
    assert tokenizer.tokens()[:4] == list(SPECIALS)
    assert len(tokenizer) == len(tokenizer.tokens()) == len(set(tokenizer.tokens()))


def test_join_inverts_ids_of_training_text(tokenizer, lines):
    ids = tokenizer.ids(lines)
    assert not any(UNK in one for one in ids)
    assert [tokenizer.join(one) for one in ids] == lines


@pytest.mark.parametrize("kind", ["bpe", "parted", "unigram", "parted_unigram"])
def test_join_inverts_ids_for_bpe(kind, request, odd):
    bpe = request.getfixturevalue(kind)
    for text, ids in zip(odd, bpe.ids(odd), strict=True):
        assert bpe.join(ids) == text
        assert not set(ids) & {PAD, UNK, BOS, EOS}


def test_join_inverts_ids_of_known_words(words, odd):
    known = [s for s in words.segment(odd) if not s.has_unknown]
    assert known
    assert all(words.join(s.ids) == s.text for s in known)


def test_texts_of_unknown_words_are_exact(words, odd):
    found = words.segment(odd)
    assert any(len(s.spelled_ids.unknown) > 1 for s in found)
    for s in found:
        places = [place for place, id in enumerate(s.ids) if id == UNK]
        assert s.spelled_ids == s.ids and len(places) == len(s.spelled_ids.unknown)
        assert words.join_with_offsets(s.ids, dict(zip(places, s.spelled_ids.unknown, strict=True))).text == s.text


def test_raw_text_produces_no_special_token_but_unk(tokenizer, odd):
    assert not any({PAD, BOS, EOS} & set(ids) for ids in tokenizer.ids(odd))


def test_special_names_in_training_text_stay_plain_text():
    from rnnsearch.text.subwords import train_bpe
    from rnnsearch.text.words import train_words

    lines = ["a </s> b<unk> <pad> <s> <0x41> </s></s>"] * 50
    for tokenizer in (train_bpe(lines, 400, 1), train_words(lines, 100, 1)):
        (ids,) = tokenizer.ids(lines[:1])
        assert not set(ids) & {PAD, UNK, BOS, EOS}
        assert tokenizer.join(ids) == lines[0]
        assert tokenizer.tokens().count("</s>") == 1


def test_segment_agrees_with_ids(tokenizer, odd):
    segmented = tokenizer.segment(odd)
    assert [s.ids for s in segmented] == tokenizer.ids(odd)
    assert [s.text for s in segmented] == odd
    assert all(s.tokens == [tokenizer.token(id) for id in s.ids] for s in segmented)
    assert all(len(s.ids) == len(s.offsets) for s in segmented)


def covered(segmented: Segmented) -> str:
    """The text that the offsets cover, each character once."""
    return "".join(segmented.text[i] for i in sorted({i for a, b in segmented.offsets for i in range(a, b)}))


def test_offsets_cover_the_text_except_spaces(tokenizer, odd):
    for segmented in tokenizer.segment(odd):
        assert covered(segmented) == segmented.text.replace(" ", "")
        assert segmented.offsets == sorted(segmented.offsets)
        assert all(0 <= a <= b <= len(segmented.text) for a, b in segmented.offsets)


def test_offsets_select_the_text_of_tokens(tokenizer, odd):
    for segmented in tokenizer.segment(odd):
        if SPACE_MARKER in segmented.text:
            continue
        for symbol, id, (start, end) in zip(segmented.tokens, segmented.ids, segmented.offsets, strict=True):
            if id != UNK and not symbol.startswith("<0x"):
                assert segmented.text[start:end] == symbol.removeprefix(SPACE_MARKER)


@pytest.mark.parametrize("separator", ["\x1c", "\x1d", "\x1e", "\x1f"])
def test_control_separators_are_not_white_space(words, separator):
    """Characters that the word pattern treats differently from Python."""
    [segmented] = words.segment([f"{separator}a bench"])
    assert segmented.texts[:2] == [separator, "a"]
    assert segmented.spelled_ids.unknown[0] == f" {separator}"


def test_bytes_of_a_character_share_its_offsets(bpe):
    (segmented,) = bpe.segment(["é🙂 x語"])
    smile = [o for s, o in zip(segmented.tokens, segmented.offsets, strict=True) if s.startswith("<0xF0")]
    assert smile == [(1, 2)]
    assert segmented.offsets.count((1, 2)) == 4
    assert segmented.offsets.count((4, 5)) == 3


def test_unknown_words_behind_the_last_id_are_ignored(words):
    known = words.ids(["the cat"])[0]
    assert words.join_with_offsets(known, {1: " ☃", 2: " ☂"}).text == "the ☃"
    assert words.join_with_offsets([], {0: "☃"}).text == ""


def test_unknown_words_have_offsets(words):
    (segmented,) = words.segment(["A zebra sits on a bench."])
    assert segmented.has_unknown
    assert segmented.tokens == ["▁A", "<unk>", "▁sits", "▁on", "▁a", "▁bench", "."]
    assert segmented.offsets[1] == (2, 7)
    assert words.join(segmented.ids) == "A <unk> sits on a bench."
    (first, spaced) = words.segment(["Zebras sit", " Zebras"])
    assert first.offsets[0] == (0, 6)
    assert spaced.offsets[-1] == (1, 7)
    assert words.join(first.ids) == "<unk> sit"


def test_join_drops_special_tokens(tokenizer):
    (ids,) = tokenizer.ids(["A man sits."])
    assert tokenizer.join([BOS, *ids, EOS, PAD, PAD]) == "A man sits."


def test_join_replaces_invalid_utf8(bpe):
    byte = bpe.tokens().index("<0xF0>")
    (ids,) = bpe.ids(["A man"])
    assert bpe.join([*ids, byte]) == "A man\ufffd"


def test_empty_inputs(tokenizer):
    assert tokenizer.ids([""]) == [[]]
    assert tokenizer.ids([]) == []
    assert tokenizer.segment([""]) == [Segmented("", [], [], [])]
    assert tokenizer.join([]) == ""


def test_lone_surrogate_raises_data_error(tokenizer):
    with pytest.raises(DataError, match=r"must be valid Unicode; got a lone surrogate in 'b\\ud800'"):
        tokenizer.ids(["a", "b\ud800"])
    with pytest.raises(DataError, match="lone surrogate"):
        tokenizer.segment(["a", "b\ud800"])


def test_library_decoder_agrees_with_join(bpe, odd, tmp_path):
    bpe.save(tmp_path / "t.json")
    core = tokenizers.Tokenizer.from_file(str(tmp_path / "t.json"))
    for text in odd:
        assert core.decode(core.encode(text).ids, skip_special_tokens=False) == text


def test_save_and_load_round_trip(tokenizer, odd, tmp_path):
    path = tmp_path / "source.json"
    tokenizer.save(path)
    loaded = Tokenizer.load(path)
    assert loaded.ids(odd) == tokenizer.ids(odd)
    assert loaded.tokens() == tokenizer.tokens()
    assert loaded.type == tokenizer.type
    assert loaded.fingerprint() == tokenizer.fingerprint()
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_fingerprints_differ(words, bpe, parted):
    assert len({words.fingerprint(), bpe.fingerprint(), parted.fingerprint()}) == 3
    assert len(words.fingerprint()) == 16
    assert (words.type, bpe.type) == ("words", "bpe")


def test_missing_file_raises_model_error(tmp_path):
    with pytest.raises(ModelError, match=r"none\.json: there is no such tokenizer file"):
        Tokenizer.load(tmp_path / "none.json")
    with pytest.raises(ModelError, match="cannot be read"):
        Tokenizer.load(tmp_path)


def test_truncated_file_raises_model_error(bpe, tmp_path):
    path = tmp_path / "t.json"
    bpe.save(path)
    whole = path.read_bytes()
    for share in (0, 0.3, 0.9, 0.999):
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(ModelError, match=r"t\.json: the tokenizer file must be whole JSON; got "):
            Tokenizer.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match="must be whole JSON"):
        Tokenizer.load(path)


def test_other_tokenizers_raise_model_error(bpe, tmp_path):
    path = tmp_path / "t.json"
    bpe.save(path)
    ours = json.loads(path.read_text(encoding="utf-8"))
    other = {**ours["model"], "vocab": {**ours["model"]["vocab"], "<pad>": UNK, "<unk>": PAD}}
    scores = [[symbol, 0.0] for symbol in ("<pad>", "<unk>", "<s>", "</s>", "a")]
    unigram_without_unk = {"type": "Unigram", "unk_id": None, "vocab": scores, "byte_fallback": True}
    gap = {**ours["model"]["vocab"], "zzz": 1 << 31}

    def splitting(**options: object) -> dict[str, object]:
        return {**ours, "pre_tokenizer": {**ours["pre_tokenizer"], **options}}

    faults: dict[str, object] = {
        "got: expected": {"hello": "world"},
        "got one of model WordPiece": json.loads(tokenizers.Tokenizer(models.WordPiece({"a": 0})).to_str()),
        "got a Unigram model with other options": {**ours, "model": unigram_without_unk},
        "got one whose first tokens are not <pad>, <unk>, <s>, </s>": {**ours, "model": other},
        "got one that does not put a space before the text": {**ours, "normalizer": None},
        "got one that does not put a space before": {**ours, "normalizer": {"type": "Prepend", "prepend": "aa"}},
        "got one that does not split the text by one pattern": {**ours, "pre_tokenizer": None},
        "got one that splits the text by another pattern": splitting(pattern={"Regex": "(a+)+$"}),
        "got one that splits the text by another": splitting(pattern={"String": " "}),
        "got one that splits the text by": splitting(behavior="Removed"),
        "got one that splits the text": splitting(invert=True),
        "got a BPE model whose dropout is not None": {**ours, "model": {**ours["model"], "dropout": 0.5}},
        "got a BPE model whose byte_fallback is not True": {**ours, "model": {**ours["model"], "byte_fallback": False}},
        "got one that changes the length of the text": {**ours, "padding": PADDING},
        "got one whose ids do not number the tokens from 0": {**ours, "model": {**ours["model"], "vocab": gap}},
        "got one with added tokens, which raw text could inject": {**ours, "added_tokens": [added(EOS)]},
        "got `rare` that is not a list of token ids": {**ours, "rare": [10**9]},
        "got `rare` that is not a list of": {**ours, "rare": {"5": 6}},
        "got `rare` that is not a": {**ours, "rare": [True]},
    }
    for message, content in faults.items():
        path.write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(ModelError, match=f"must be a tokenizer that rnnsearch saved; {message}"):
            Tokenizer.load(path)


def test_panics_of_the_library_are_errors(bpe):
    core = tokenizers.Tokenizer.from_str(bpe.json)
    core.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex("(a+)+$"), "isolated")
    panicking = Tokenizer(core)
    for segment in (panicking.ids, panicking.segment):
        with pytest.raises(ModelError, match=r"the tokenizers library cannot segment a text: .*retry-limit"):
            segment(["a" * 40 + "b"])


def test_deeply_nested_json_raises_model_error(tmp_path):
    (tmp_path / "t.json").write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(ModelError, match="must be whole JSON; got maximum recursion depth"):
        Tokenizer.load(tmp_path / "t.json")


PADDING = {"strategy": {"Fixed": 1 << 40}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
PADDING |= {"pad_type_id": 0, "pad_token": "x"}


def added(id: int) -> dict[str, object]:
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"id": id, "content": SPECIALS[id], **dict.fromkeys(flags, False)}


FORKING = """
import os, sys
from rnnsearch.text.words import train_words
tokenizer = train_words(["a b c"] * 100, 10, 1)
texts = ["a b c"] * 1000
expected = tokenizer.ids(texts)
child = os.fork()
if child == 0:
    os._exit(0 if tokenizer.ids(texts) == expected else 1)
status = os.waitpid(child, 0)[1]
assert tokenizer.ids(texts) == expected
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_forked_processes_neither_warn_nor_block():
    """The library sees to it, unless the user's TOKENIZERS_PARALLELISM says otherwise."""
    environment = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run(
        [sys.executable, "-c", FORKING],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
