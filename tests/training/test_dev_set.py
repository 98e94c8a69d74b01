"""Dev BLEU during training."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from rnnsearch.config import SearchConfig
from rnnsearch.data.corpus import Row
from rnnsearch.systems import dev_set
from rnnsearch.systems.dev_set import Bleu, DevSet
from rnnsearch.systems.translation import build
from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.utils.distributed import Processes
from tests.untrained import BAHDANAU, untrained


class Characters(Tokenizer):
    """A tokenizer with one token per character."""

    def __init__(self) -> None: ...

    def segment(self, sentences: Sequence[str]) -> list[Segmented]:
        return [
            Segmented(text, [ord(c) for c in text], list(text), [(n, n + 1) for n in range(len(text))])
            for text in sentences
        ]

    def join(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


@pytest.mark.parametrize("language", ["zh", "ja", "th", "lo", "km", "my"])
def test_dev_bleu_uses_tokeniser_of_target_language(language, configure, monkeypatch):
    """Otherwise a sentence without spaces would be one word, entirely right or wrong."""
    references = [f"这个句子的第{n}个部分没有空格" for n in "一二三四五六七八九"]
    system = replace(untrained(BAHDANAU), tokenizers={"en": Characters(), "de": Characters()})
    dev = DevSet([Row(("a", reference), Path(), 1) for reference in references], system, Processes())
    hypotheses = [[SimpleNamespace(ids=dev.target_ids[n][:-1])] for n in dev.own_indices]
    monkeypatch.setattr(dev_set, "decode_all", lambda *_, **__: hypotheses)
    monkeypatch.setattr(dev_set, "fastest_scorer", lambda *_: SimpleNamespace(scorer=None))
    model = build(configure(max_updates=1).model, 20, 20, seed=None)
    assert Bleu(dev, language, SearchConfig())(model) > 80
    assert Bleu(dev, "en", SearchConfig())(model) < 20
