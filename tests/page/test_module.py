"""The JavaScript module in a browser: equal results to rnnsearch.runtime, and safe handling of invalid files."""

from __future__ import annotations

import base64
import json
import random
import zlib
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, product
from pathlib import Path
from subprocess import SubprocessError
from typing import Any

import numpy as np
import pytest

from benchmarks.sentences import languages, read_fixture
from rnnsearch.errors import RnnsearchError
from rnnsearch.export.engine_file import export
from rnnsearch.export.web_page import write_module, write_sentence_rules
from rnnsearch.ops.native import building
from rnnsearch.runtime import load
from rnnsearch.text.normalization import Normalization
from rnnsearch.text.piece_patterns import PIECE_PATTERN
from rnnsearch.text.prefixes import PrefixReader
from rnnsearch.text.sentences import rejoin, sentence_spans
from rnnsearch.text.subwords import train_bpe
from rnnsearch.text.tokenizer import Tokenizer, tokenizer_file
from rnnsearch.text.unigram import train_unigram
from rnnsearch.text.words import train_words
from rnnsearch.translator.translation import Translation
from tests.engines import require_native_code, require_web_engine
from tests.properties.test_written_models import MODELS as WRITTEN
from tests.runtime.test_runtime import HOSTILE_HEADERS, TIED, damaged_copies, with_changed_header
from tests.servers import running
from tests.stress.engine_files import corrupt_value
from tests.untrained import BAHDANAU, FAMILY_SEARCH, OTHER_FAMILIES, TEXT, write_model

WEB = Path(__file__).parents[2] / "src/rnnsearch/export/web"
TANH = {**BAHDANAU, "decoder": {"type": "bahdanau-tanh", "cell": "gru", "size": 11, "readout": 7}}
MODELS = {"bpe": TIED, "words": TANH, **OTHER_FAMILIES}
TEXTS = [
    "the small cat sees a bird.", "", "Is it red?", "the dog the dog the dog sees!", "Ünïcode ⁂ and\u00a0more", " a",
    "  ", " \t x", "\tcat", "a\u0085b", "\ufeffx y", "😀😀 dog 👩‍👩‍👧", "don't l'homme d’accord the dog's",
    "!!!???...…",
    "e\u0301te\u0301 \u0301x", "cat\u200bdog", "数 学 house", "\x1c\x1d a", "<unk> </s> <0x41> <pad>",
    "the " * 40 + "cat.", "a_b_c 12,5 3.4%", "𝒳𝒴 \U0001f468\u200d\U0001f469", "x" * 300, "line\u2028sep",
    "«the» „cat“ ‚dog‘.", "5", "2024-05-17 - 3.50", "\u200b\u00ad ", "  • ", "😀 1 👩‍👩‍👧", "!? (3)",
]  # fmt: skip
PREFIXES = ["die kl", "", "Ein ", "der Hund sieht d", "Xyz q"]
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2, "int8": 2e-2, "int4": 2e-2}
"""Maximum difference of scores: floats are summed in another order, and may then be rounded to another byte or bf16."""
FIELDS = {"text": "text", "tokens": "tokens", "source_tokens": "sourceTokens", "finished": "finished",
        "alignment": "alignment", "token_words": "tokenWords", "words": "words"}  # fmt: skip


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        """Do not log requests."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the module, its engine, and several models."""
    require_native_code()
    engine = require_web_engine()
    folder = tmp_path_factory.mktemp("module")
    (folder / "module").mkdir()
    write_module(folder / "module", engine)
    (folder / "page").mkdir()
    (folder / "page/sentences.js").write_bytes((WEB / "page/sentences.js").read_bytes())
    write_sentence_rules(folder / "page")
    (folder / "index.html").write_text("<!doctype html><title>test</title>")
    for name, model in MODELS.items():
        tokenizer = "bpe" if name in ("bpe", "luong") else "words"
        write_model(folder / name, model, tokenizer, search=FAMILY_SEARCH.get(name))
    return folder


@pytest.fixture(scope="module")
def page(folder, browser):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder)))
    with running(server) as address:
        page = browser.new_page()
        page.goto(address)
        page.set_default_timeout(120_000)
        yield page
        page.context.close()


def call(page: Any, body: str, arg: Any) -> Any:
    """Return the result of an async function with this body and the parameter `arg`; {"error": ...} for an error."""
    script = f"""async (arg) => {{
        const module = await import("/module/index.js");
        try {{ {body} }} catch (error) {{
            if (!(error instanceof module.RnnsearchError)) throw error;
            return {{ error: error.message }};
        }}
    }}"""
    return page.evaluate(script, arg)


TRANSLATE = "const t = await module.load(arg.file); return await t.translate(arg.texts, arg.options);"


@pytest.mark.parametrize("precision", ["int4", "int8", "bf16", "fp32"])
@pytest.mark.parametrize("model", MODELS)
def test_translations_equal_those_of_the_runtime(page, folder, model, precision):
    file = folder / f"{model}-{precision}.rnn"
    export(folder / model, file, precision)
    runtime = load(file)
    tolerance = TOLERANCE[precision]
    mixed = [TEXTS[0], "", *TEXTS[2:5]]
    for texts, n_best, beam, prefixes in (
        (TEXTS, 1, 1, None),
        (TEXTS, 1, None, None),
        (TEXTS, 4, 4, None),
        (mixed, 2, 3, [PREFIXES[0], "", *PREFIXES[2:]]),
    ):
        options = {"nBest": n_best, "beam": beam, "prefixes": prefixes}
        options = {name: value for name, value in options.items() if value is not None}
        arg = {"file": f"/{file.name}", "texts": texts, "options": options}
        results = call(page, TRANSLATE, arg)
        expected = runtime.n_best(texts, n_best, beam, prefixes)
        assert [len(n_best_list) for n_best_list in results] == [len(n_best_list) for n_best_list in expected]
        for result, other in zip(chain(*results), chain(*expected), strict=True):
            check_equal(result, other, tolerance)


def check_equal(result: dict[str, Any], expected: Translation, tolerance: float) -> None:
    """Check that a translation of the module equals one of the runtime, up to rounding of floats."""
    for python_name, name in FIELDS.items():
        assert json.loads(json.dumps(getattr(expected, python_name))) == result[name], (expected.source, name)
    assert result["tokenScores"] == pytest.approx(expected.token_scores, abs=tolerance)
    assert result["score"] == pytest.approx(expected.score, abs=tolerance)
    assert (result["wordAttention"] is None) == (expected.word_attention is None)
    assert (result["attention"] is None) == (expected.attention is None)
    if expected.attention is not None:
        np.testing.assert_allclose(result["attention"], expected.attention, atol=tolerance)


@pytest.mark.parametrize("family", WRITTEN)
def test_all_model_families_translate(page, folder, family):
    """In int8, the precision in which arrays have scales."""
    file = folder / f"{family}.rnn"
    common = {name: BAHDANAU[name] for name in ("embedding", "init")}
    model = write_model(folder / f"model-{family}", common | WRITTEN[family])
    export(model, file, "int8")
    texts = [text for text in TEXTS if len(text) < 60]
    arg = {"file": f"/{file.name}", "texts": texts, "options": {"nBest": 2, "beam": 3}}
    results = chain(*call(page, TRANSLATE, arg))
    expected = chain(*load(file).n_best(texts, 2, 3))
    for result, other in zip(results, expected, strict=True):
        assert result["text"] == other.text
        assert result["tokenScores"] == pytest.approx(other.token_scores, abs=TOLERANCE["int8"])


def test_single_text_and_languages(page, folder):
    export(folder / "words", folder / "m.rnn")
    body = """const bytes = await (await fetch("/m.rnn")).arrayBuffer(); const t = await module.load(bytes);
        return [(await t.translate("the cat")).text, (await t.translate("the cat", {nBest: 2})).length, t.languages];"""
    text, count, languages = call(page, body, None)
    assert (text, count, languages) == (load(folder / "m.rnn").translate("the cat").text, 2, ["en", "de"])


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (["a"], {"nBest": 3, "beam": 2}, "nBest must be between 1 and the beam"),
        (["a"], {"beam": 0}, "nBest must be between 1 and the beam"),
        (["a"], {"prefixes": []}, "prefixes must be one per text"),
        ([""], {"prefixes": ["der"]}, "is empty but has a prefix"),
        (["\ud800"], {}, "valid Unicode"),
        ([3], {}, "a text must be a string"),
        (["a " * 20_000], {}, "too long for the engine"),
    ],
)
def test_invalid_requests_are_rejected(page, folder, texts, options, message):
    export(folder / "words", folder / "m.rnn")
    # A lone surrogate cannot be passed to the browser.
    body = """const t = await module.load("/m.rnn");
        const texts = arg[0].map((text) => (text === "surrogate" ? "\\ud800" : text));
        return await t.translate(texts, arg[1]);"""
    texts = ["surrogate" if text == "\ud800" else text for text in texts]
    result = call(page, body, [texts, options])
    assert message in result["error"]


def tokenizers() -> dict[str, Tokenizer]:
    text = [*TEXT["en"], *TEXT["de"], "l'homme don't"]
    bpe = train_bpe(text, 360, 1)
    return {
        "words": train_words(text, 30, 1),
        "bpe": bpe,
        "bpe with rare tokens split": bpe.without_tokens(range(len(bpe) - 12, len(bpe))),
        "characters": train_bpe(text, 280, 1),
        "unigram": train_unigram(text, 330, 1),
        "normalising words": train_words(text, 30, 1).normalizing(Normalization("standard", "fr")),
        "normalising": bpe.normalizing(Normalization("punctuation", "tr")),
    }


def random_texts(count: int) -> list[str]:
    """Return texts of unusual characters and words."""
    rng = random.Random(5)
    alphabet = [
        *"aé\u0301ßA1_ .,!'’-\t\u00a0\u200c\u200d\u2028數ชा😀𝒳<>",
        "the ",
        "dog's",
        " Vogel",
        "Katze",
        "\x85",
        "\ufeff",
    ]
    return ["".join(rng.choices(alphabet, k=rng.randrange(1, 14))) for _ in range(count)]


def test_tokenizers_equal_those_of_python(page):
    body = """const { Tokenizer } = await import("/module/tokenizer.js");
        const { PRETOKEN_PATTERN } = await import("/module/pretokenizer.js");
        const { Prefixes } = await import("/module/prefixes.js");
        const t = new Tokenizer(arg.tokenizer), prefixes = new Prefixes(t);
        return [PRETOKEN_PATTERN, arg.texts.map((text) => t.encode(text)), arg.ids.map((ids) => t.decode(ids)),
            arg.texts.map((text) => { const { ids, rest } = prefixes.read(text); return [ids, rest]; })];"""
    texts = [*TEXTS[:-3], *random_texts(150)]
    rng = random.Random(2)
    for name, tokenizer in tokenizers().items():
        ids = [[rng.randrange(len(tokenizer)) for _ in range(rng.randrange(12))] for _ in range(200)]
        arg = {"tokenizer": tokenizer.json, "texts": texts, "ids": ids}
        pattern, encoded, decoded, constraints = call(page, body, arg)
        assert pattern == PIECE_PATTERN
        prefixes = PrefixReader(tokenizer)
        for text, result, expected in zip(texts, encoded, tokenizer.segment(texts), strict=True):
            assert (result["ids"], result["tokens"]) == (expected.ids, expected.tokens), (name, text)
            assert [tuple(span) for span in result["offsets"]] == utf16_spans(expected.text, expected.offsets), (
                name,
                text,
            )
        for text, constraint in zip(texts, constraints, strict=True):
            prefix = prefixes.read(text)
            assert constraint == json.loads(json.dumps([prefix.ids, prefix.continuations])), (name, text)
        for sequence, result in zip(ids, decoded, strict=True):
            assert result["text"] == tokenizer.join_with_offsets(sequence).text, (name, sequence)


def test_normalisation_equals_that_of_the_runtime(page, folder):
    """Texts of all letter cases, with prefixes, translated by a model whose tokenizers normalise."""
    model = folder / "normalising"
    write_model(model, TIED, "bpe")
    for language, name in (("en", "tr"), ("de", "fr")):
        path = model / tokenizer_file(language)
        Tokenizer.load(path).normalizing(Normalization("punctuation", name)).save(path)
    export(model, folder / "normalising.rnn", "fp32")
    runtime = load(folder / "normalising.rnn")
    texts = [
        *TEXTS,
        *random_texts(60),
        "THE SMALL CAT SEES {IT}.",
        "The Small Cat Sees It",
        "A  «CAT» – IS\u00adN'T ŞIK",
    ]
    texts += [text.upper() for text in texts[-20:]]
    prefixes = [("", "Die\u00a0 kl", "DIE KAT", "\ufeffder :", "Der  Hund ")[n % 5] for n in range(len(texts))]
    prefixes = [
        p if runtime.source.segment_sources([text])[0].translatable.ids else ""
        for text, p in zip(texts, prefixes, strict=True)
    ]
    for options in ({"nBest": 1, "beam": 1}, {"nBest": 2, "beam": 3, "prefixes": prefixes}):
        results = call(page, TRANSLATE, {"file": "/normalising.rnn", "texts": texts, "options": options})
        expected = runtime.n_best(texts, options["nBest"], options["beam"], options.get("prefixes"))
        for n, (result, other) in enumerate(zip(results, expected, strict=True)):
            assert other[0].text.startswith(prefixes[n]) or "prefixes" not in options
            for one, translation in zip(result, other, strict=True):
                check_equal(one, translation, TOLERANCE["fp32"])


def utf16_spans(text: str, spans: Any) -> list[tuple[int, int]]:
    """Convert spans of characters to spans of UTF-16 units."""
    offsets = [0]
    for character in text:
        offsets.append(offsets[-1] + (2 if character > "\uffff" else 1))
    return [(offsets[start], offsets[end]) for start, end in spans]


def test_invalid_tokenizers_are_rejected(page):
    valid = json.loads(tokenizers()["bpe"].json)
    body = """const { Tokenizer } = await import("/module/tokenizer.js"); new Tokenizer(arg); return null;"""
    damaged = [{}, [], valid | {"normalizer": None}, valid | {"pre_tokenizer": None}, valid | {"added_tokens": [{}]}]
    damaged += [valid | {"model": valid["model"] | change} for change in (
        {"type": "WordPiece"}, {"dropout": 0.5}, {"merges": [["a", "qq"]]}, {"vocab": {"<pad>": 0, "x": 7}},
        {"vocab": []},
    )]  # fmt: skip
    pattern = {"pattern": {"Regex": "(a+)+$"}}
    damaged.append(valid | {"pre_tokenizer": valid["pre_tokenizer"] | pattern})
    damaged += [valid | {"normalization": settings} for settings in (None, [], {"level": "x", "language": ""})]
    for contents in (*map(json.dumps, damaged), "{"):
        assert "must be one that rnnsearch saved" in call(page, body, contents)["error"]


def test_sentences_equal_those_of_python(page):
    texts = ["Hello there. How are you? Fine!", "Dr. Smith e.g. came. Am 3. Mai kam er. U.S. Army.",
             "  a\n\nb. c. D.  ", "数学。很好！「是。」对", "I am. X. Y went.", "“Yes.” “No!” he said.",
             "1. First 2. Second", "", "a?b. C…D. … E", "a\n\u200b\n5. \u00ad"]  # fmt: skip
    body = """const { sentenceSpans, rejoin } = await import("/page/sentences.js");
        return arg.map(([text, code]) => {
            const spans = sentenceSpans(text, code);
            return [spans, rejoin(text, spans, spans.map((_, n) => "x".repeat(n)), code)];
        });"""
    cases = list(product([*texts, *random_texts(100)], ("en", "de", "zh", "nl", "xx")))
    for language in languages():
        cases += [(text, language) for text, _ in read_fixture(language)]
    for (text, code), (spans, rejoined) in zip(cases, call(page, body, cases), strict=True):
        expected = sentence_spans(text, code)
        assert [tuple(span) for span in spans] == utf16_spans(text, expected), text
        assert rejoined[0] == rejoin(text, expected, ["x" * n for n in range(len(expected))], code)[0]


LOAD_FILES = """const messages = [];
    for (const [name, base64] of arg) {
        try {
            await module.load(Uint8Array.from(atob(base64), (character) => character.charCodeAt(0)));
            messages.push([name, ""]);
        } catch (error) {
            messages.push([name, error instanceof module.RnnsearchError ? error.message : `${error.stack}`]);
        }
    }
    return messages;"""


def test_damaged_files_are_reported_in_one_sentence(page, folder):
    export(folder / "bpe", folder / "m.rnn")
    whole = (folder / "m.rnn").read_bytes()
    damaged = damaged_copies(whole, random.Random(3))
    hostile = {
        name: change for name, change in HOSTILE_HEADERS.items() if name not in ("invalid calibration", "later version")
    }
    hostile |= {
        "later version": lambda h: h.update(format=99),
        "huge encoder": lambda h: h["sizes"].update(encoder=1 << 30),
        "unknown type": lambda h: h["arrays"]["output"].__setitem__(0, "int1"),
        "prototype as array name": lambda h: h.update(arrays={"__proto__": ["int8", [1], 0]}),
    }
    ignored = {"unknown setting", "banned tokens", "many arrays with the same bytes"}  # harmless here
    damaged |= {name: with_changed_header(whole, change) for name, change in hostile.items() if name not in ignored}
    files = [[name, base64.b64encode(content).decode()] for name, content in damaged.items()]
    for name, message in call(page, LOAD_FILES, files):
        assert message and "\n" not in message and "Error" not in message, (name, message)
    assert call(page, LOAD_FILES, [["undamaged", base64.b64encode(whole).decode()]]) == [["undamaged", ""]]
    missing = call(page, "await module.load('/none.rnn'); return null;", None)
    assert "none.rnn: cannot be fetched: 404" in missing["error"]


@pytest.mark.parametrize("family", OTHER_FAMILIES)
def test_corrupt_programs_are_rejected_or_harmless(page, folder, family):
    export(folder / family, folder / "m.rnn")
    whole = (folder / "m.rnn").read_bytes()
    header_size = int.from_bytes(whole[8:16], "little")
    program = json.loads(zlib.decompress(whole[24 : 24 + header_size]))["program"]
    rng = random.Random(4)
    files = []
    for n in range(80):
        changed = corrupt_value(program, rng)
        file = with_changed_header(whole, lambda header, changed=changed: header.update(program=changed))
        files.append([n, base64.b64encode(file).decode()])
    messages = [message for _, message in call(page, LOAD_FILES, files)]
    assert all("\n" not in message and "Error" not in message for message in messages), messages
    assert sum(map(bool, messages)) > 40


def test_invalid_programs_are_rejected(page, folder):
    export(folder / "bideep", folder / "m.rnn")
    whole = (folder / "m.rnn").read_bytes()
    changes: dict[str, Callable[[Any], Any]] = {
        "unknown function": lambda p: p[2][0].__setitem__(4, "toString"),
        "unknown source": lambda p: p[2][0].__setitem__(1, "constructor"),
        "text for a boolean": lambda p: p[0][0][0].__setitem__(1, "yes"),
        "no layers": lambda p: p[0].__setitem__(0, []),
        "fractional size": lambda p: p[2][0].__setitem__(0, 11.7),
        "too many parts": lambda p: p[3].__setitem__(4, p[3][4] * 4000),
        "missing initial state": lambda p: p[2].pop(),
        "empty program": lambda p: p.clear(),
    }
    files = []
    for name, change in changes.items():
        file = with_changed_header(whole, lambda header, change=change: change(header["program"]))
        files.append([name, base64.b64encode(file).decode()])
    for name, message in call(page, LOAD_FILES, files):
        assert "header is damaged" in message, (name, message)


@pytest.mark.parametrize("change", ["wide decoder", "wide encoder", "unused window centres"])
def test_unusual_valid_programs_translate(page, folder, change):
    """With wide rows, not all sentences fit in memory at once."""
    export(folder / "bideep", folder / "whole.rnn", "fp32")

    def edit(header: dict[str, Any]) -> None:
        encoder, attention, _, step, _ = header["program"]
        if change == "wide decoder":
            step[2] = 200_000
        elif change == "wide encoder":
            encoder[0][0][0][0][2] = 600_000
        else:
            attention[9] = True

    (folder / "m.rnn").write_bytes(with_changed_header((folder / "whole.rnn").read_bytes(), edit))
    texts = ["the dog sees the cat.", "the small bird"] * 16
    results = call(page, TRANSLATE, {"file": "/m.rnn", "texts": texts, "options": {"beam": 5}})
    expected = load(folder / "m.rnn").translate(texts, 5)
    assert [result["text"] for result in results] == [translation.text for translation in expected]


def test_engine_rejects_invalid_requests(page):
    """For any integers, the engine returns a status; it never traps."""
    body = """
        const { exports: c } = (await WebAssembly.instantiateStreaming(fetch("/module/engine.wasm"), {})).instance;
        c._initialize();
        const m = c.rnnsearch_create(0, 10, 11, 2, 16, 16, 30, 20, 8, 8), buffer = c.allocate(1 << 20);
        const setArray = (...args) => c.rnnsearch_set_array(...args);
        const statuses = {};
        const translate = (values, count = values.length) => {
            new Int32Array(c.memory.buffer, buffer, values.length).set(values);
            const status = c.rnnsearch_translate(m, buffer, count, 1, 0);
            statuses[status] = (statuses[status] ?? 0) + 1;
            return status;
        };
        const valid = [1, 2, 1, 0, 1, 0, 3, 5, 4, 5, 3, 7];
        const unfinished = translate(valid); // before the weights are set
        const shapes = [[48, 8], [32, 16], [16, 16], [48, 8], [32, 16], [16, 16], [16, 32], [16, 16], [64, 16],
            [64, 32], [16, 16], [64, 8], [20, 8], [30, 8], [20, 8]];
        const wrongShapes = shapes.map(([a, b], n) =>
            setArray(m, n, a, b, buffer, a * b + 1, 0, 0, 0, 0) + setArray(m, n, a, b, buffer, a * b, 0, 0, buffer, 7) +
            setArray(m, n, 1, a * b, buffer, a * b, 0, 0, 0, 0));
        shapes.forEach(([a, b], n) => setArray(m, n, a, b, buffer, a * b, 0, 0, 0, 0));
        const wrongCalls = [setArray(m, 15, 1, 1, buffer, 1, 0, 0, 0, 0), setArray(m, -1, 1, 1, buffer, 1, 0, 0, 0, 0),
            c.rnnsearch_finish(m, buffer, 15), c.rnnsearch_set_token_bytes(m, buffer, 19)];
        const finished = c.rnnsearch_finish(m, buffer, 16), first = translate(valid);
        const withoutBytes = translate([1, 2, 1, 0, 0, 1, 3, 5, 4, 5, 3, 0, 0, 0]); // a prefix, but no token bytes
        let state = 7;
        const random = (n) => (state = (Math.imul(state, 1103515245) + 12345) >>> 0) % n;
        for (let n = 0; n < 3000; n++) {
            const values = [...valid];
            for (let k = random(3) + 1; k > 0; k--) {
                const extremes = [random(30) - 3, 2 ** 31 - 1 - random(3), -(2 ** 31) + random(3), 1 << random(31)];
                values[random(values.length)] = extremes[random(4)];
            }
            translate(values, random(8) ? values.length : random(values.length));
        }
        return { unfinished, wrongShapes, wrongCalls, finished, first, withoutBytes, statuses };"""
    result = call(page, body, None)
    assert [result[name] for name in ("unfinished", "finished", "first", "withoutBytes")] == [-1, 1, 1, -1]
    assert {*result["wrongShapes"], *result["wrongCalls"]} == {0}
    assert set(result["statuses"]) <= {"-1", "0", "1"}
    assert result["statuses"]["-1"] > 1000


def fail(*_: str) -> None:
    raise SubprocessError("no such thing")


def test_missing_compiler_error_names_package(monkeypatch, tmp_path):
    monkeypatch.setattr(building, "BUNDLED_FOLDER", tmp_path)
    monkeypatch.setenv("RNNSEARCH_CACHE", str(tmp_path))
    monkeypatch.setattr(building.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(RnnsearchError, match="pip install ziglang"):
        building.web_engine_path()
    (tmp_path / building.web_file_name()).touch()
    assert building.web_engine_path() == tmp_path / building.web_file_name()
    monkeypatch.setattr(building.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(building, "_run", fail)
    (tmp_path / building.web_file_name()).unlink()
    with pytest.raises(RnnsearchError, match="the engine for browsers could not be built: no such thing"):
        building.web_engine_path()
