"""Systems and model folders with random, untrained weights. They can translate, too."""

from pathlib import Path
from typing import Any

from rnnsearch.config import resolve
from rnnsearch.systems.folder import save_system
from rnnsearch.systems.multiway import MultiwaySystem
from rnnsearch.systems.translation import TranslationSystem
from rnnsearch.text.subwords import train_bpe
from rnnsearch.text.words import train_words

TEXT = {
    "en": ["the small cat sees the dog.", "the dog sees a big bird.", "A bird sees the cat! Is it red?"],
    "de": ["die kleine Katze sieht den Hund.", "der Hund sieht einen großen Vogel.", "Ein Vogel sieht die Katze!"],
    "fr": ["le petit chat voit le chien.", "le chien voit un grand oiseau.", "Un oiseau voit le chat !"],
}
"""Training text of the tokenizers, by language."""
BAHDANAU = {
    "embedding": 12,
    "encoder": {"type": "bidirectional", "cell": "gru", "size": 10},
    "attention": {"score": "additive", "size": 9},
    "decoder": {"type": "bahdanau", "cell": "gru", "size": 11, "maxout": 7},
    "init": {"type": "uniform", "scale": 0.8},
}
RNNENCDEC = {
    "embedding": 12,
    "encoder": {"type": "unidirectional", "cell": "gru", "size": 10},
    "decoder": {"type": "rnnencdec", "cell": "gru", "size": 11, "maxout": 7},
}
_STACK = {"cell": "lstm", "size": 10, "layers": 2}
_INIT = {"embedding": 12, "init": {"type": "uniform", "scale": 0.8}}
OTHER_FAMILIES: dict[str, dict[str, Any]] = {
    "luong": _INIT
    | {
        "encoder": {"type": "stacked", "direction": "forward", "reverse": True, **_STACK},
        "attention": {"score": "general", "window": "local-p", "width": 3},
        "decoder": {"type": "luong-input-feeding", "readout": 12, "bridge": "copy", **_STACK},
        "tie": "target",
    },
    "sutskever": _INIT
    | {
        "encoder": {"type": "stacked", "direction": "forward", **_STACK},
        "decoder": {"type": "sutskever", "bridge": "copy", **_STACK},
    },
    "cohn": _INIT
    | {
        "encoder": {"type": "unidirectional", "reverse": True, "cell": "gru", "size": 10},
        "attention": {"score": "additive", "size": 9, "features": ["position", "coverage-neural", "markov"]}
        | {"neighbours": 1, "coverage_size": 5},
        "decoder": {"type": "cohn", "cell": "lstm", "size": 11},
    },
    "bideep": _INIT
    | {
        "encoder": {"type": "bidirectional", "cell": "layer-norm-gru", "size": 10},
        "attention": {"score": "additive", "size": 9},
        "decoder": {
            "type": "bideep",
            "cell": "layer-norm-gru",
            "size": 11,
            "layers": 2,
            "transitions": 1,
            "readout": 7,
        },
    },
    "ssru": _INIT
    | {
        "encoder": {"type": "bidirectional", "cell": "gru", "size": 10},
        "attention": {"score": "additive", "size": 9},
        "decoder": {"type": "luong", "cell": "ssru", "size": 11, "layers": 2, "bridge": "learned", "readout": 12},
    },
}
"""`[model]` tables of other families."""
FAMILY_SEARCH = {"bideep": {"attended_word": "read"}}
"""`[search]` tables of some of the other families."""


def untrained(
    model: dict[str, Any],
    text_type: str = "words",
    languages: tuple[str, ...] = ("en", "de"),
    search: dict[str, Any] | None = None,
    sequence: dict[str, Any] | None = None,
) -> TranslationSystem:
    """Create a system with a `[model]` table and a `[text]` type, from all languages but the last to the last.

    `sequence` is the table of an agent, which begins from a trained model.
    """
    train = {"words": train_words, "bpe": train_bpe}[text_type]
    *sources, target = languages
    begin = {} if sequence is None else {"begin_from": "trained", "metric": "reward"}
    config = resolve(
        {
            "data": {"source": sources[0] if len(sources) == 1 else sources, "target": target, "train": ["x.tsv"]},
            "text": {"type": text_type, "vocabulary": 340},
            "model": model,
            "objective": {} if sequence is None else {"sequence": sequence},
            "training": {"max_updates": 1, "optimiser": {"type": "sgd", "learning_rate": 1.0}, **begin},
            "search": {"beam": 3, "max_ratio": 1.0, "max_extra": 4, **(search or {})},
        }
    )
    return TranslationSystem.make(config, {language: train(TEXT[language], 340, 1) for language in languages}, 7)


def with_context(system: TranslationSystem, **context: Any) -> TranslationSystem:
    """Return an untrained system that reads previous sentences: by default two, concatenated to the source."""
    tables = system.config.model_dump(mode="json", exclude_none=True)
    tables["search"]["precision"] = "fp32"
    tables["data"] |= {"documents": True, "context": {"type": "concatenation", "sentences": 2, **context}}
    if tables["data"]["context"]["type"] == "streams":
        tables["model"]["sources"] = {"type": "concatenation"}
    return TranslationSystem.make(resolve(tables), system.tokenizers, 7)


def untrained_multiway(
    *directions: str,
    model: dict[str, Any] = BAHDANAU,
    text_type: str = "words",
    seed: int = 7,
    sharing: dict[str, str] | None = None,
    tasks: dict[str, Any] | None = None,
) -> MultiwaySystem:
    """Create a multi-way system of English, French and German; if it shares anything, with one vocabulary."""
    train = {"words": train_words, "bpe": train_bpe}[text_type]
    data = {"source": ["en", "fr"], "target": "de", "train": ["x.tsv"], "directions": list(directions)}
    config = resolve(
        {
            "data": data if tasks is None else {**data, "tasks": tasks},
            "text": {"type": text_type, "vocabulary": 340, **({"joint": True} if sharing else {})},
            "model": {**model, "kind": "multiway", "sharing": sharing or {}},
            "training": {"max_updates": 1, "optimiser": {"type": "sgd", "learning_rate": 1.0}},
            "search": {"beam": 3, "max_ratio": 1.0, "max_extra": 4},
        }
    )
    tokenizers = {language: train(TEXT[language], 340, 1) for language in TEXT}
    if sharing:
        tokenizers = dict.fromkeys(TEXT, train([line for text in TEXT.values() for line in text], 340, 1))
    return MultiwaySystem.make(config, tokenizers, seed)


def write_model(
    folder: Path,
    model: dict[str, Any],
    text_type: str = "words",
    languages: tuple[str, ...] = ("en", "de"),
    search: dict[str, Any] | None = None,
) -> Path:
    """Save an untrained system and return its folder."""
    save_system(folder, untrained(model, text_type, languages, search))
    return folder
