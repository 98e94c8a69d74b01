"""The JavaScript module in a browser: equal results to rnnsearch.runtime, and safe handling of invalid files."""

from __future__ import annotations

import base64
import json
import random
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import SubprocessError
from typing import Any

import numpy as np
import pytest

from rnnsearch.errors import RnnsearchError
from rnnsearch.export.engine_file import export
from rnnsearch.export.web_page import write_module
from rnnsearch.ops.native import building
from rnnsearch.runtime import load
from rnnsearch.text import words
from rnnsearch.text.prefixes import Prefixes
from rnnsearch.text.sentences import rejoin, sentence_spans
from rnnsearch.text.subwords import train_bpe
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.text.unigram import train_unigram
from rnnsearch.text.words import train_words
from tests.engines import engine_for_browsers, require_native_code
from tests.laws.test_written_models import MODELS as WRITTEN
from tests.runtime.test_runtime import HOSTILE, TIED, damages, rewritten
from tests.servers import running
from tests.stress.engine_files import corrupt_value
from tests.untrained import BAHDANAU, OTHERS, SEARCH, TEXT, write_model

WEB = Path(__file__).parents[2] / "src/rnnsearch/export/web"
TANH = {**BAHDANAU, "decoder": {"type": "bahdanau-tanh", "cell": "gru", "size": 11, "readout": 7}}
MODELS = {"bpe": TIED, "words": TANH, **OTHERS}
TEXTS = [
    "the small cat sees a bird.", "", "Is it red?", "the dog the dog the dog sees!", "Ünïcode ⁂ and\u00a0more", " a",
    "  ", " \t x", "\tcat", "a\u0085b", "\ufeffx y", "😀😀 dog 👩‍👩‍👧", "don't l'homme d’accord the dog's",
    "!!!???...…",
    "e\u0301te\u0301 \u0301x", "cat\u200bdog", "数 学 house", "\x1c\x1d a", "<unk> </s> <0x41> <pad>",
    "the " * 40 + "cat.", "a_b_c 12,5 3.4%", "𝒳𝒴 \U0001f468\u200d\U0001f469", "x" * 300, "line\u2028sep",
    "«the» „cat“ ‚dog‘.",
]  # fmt: skip
PREFIXES = ["die kl", "", "Ein ", "der Hund sieht d", "Xyz q"]
ROUNDING = {"fp32": 1e-4, "bf16": 2e-2, "int8": 2e-2, "int4": 2e-2}
"""Of scores: states and scores are fp32 everywhere, whose sums and functions are rounded in another order here; what is
rounded to bytes or to bf16 next may then be a neighbour."""
SAME = {"text": "text", "tokens": "tokens", "source_tokens": "sourceTokens", "finished": "finished",
        "alignment": "alignment", "token_words": "tokenWords", "words": "words"}  # fmt: skip


def served(folder: Path) -> Iterator[str]:
    """The address of a folder's files while it is in use."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *given: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    with running(server) as address:
        yield address


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With the module, its engine, and a few engine files."""
    require_native_code()
    engine = engine_for_browsers()
    made = tmp_path_factory.mktemp("module")
    (made / "module").mkdir()
    write_module(made / "module", engine)
    (made / "page").mkdir()
    (made / "page/sentences.js").write_bytes((WEB / "page/sentences.js").read_bytes())
    (made / "index.html").write_text("<!doctype html><title>test</title>")
    for name, model in MODELS.items():
        write_model(made / name, model, "bpe" if name in ("bpe", "luong") else "words", search=SEARCH.get(name))
    return made


@pytest.fixture(scope="module")
def page(folder, browser):
    for address in served(folder):
        made = browser.new_page()
        made.goto(address)
        made.set_default_timeout(120_000)
        yield made
        made.context.close()


def called(page: Any, body: str, given: Any) -> Any:
    """What an async function's body gives, of `given`; errors as {"error": ...}."""
    script = f"""async (given) => {{
        const module = await import("/module/index.js");
        try {{ {body} }} catch (error) {{
            if (!(error instanceof module.RnnsearchError)) throw error;
            return {{ error: error.message }};
        }}
    }}"""
    return page.evaluate(script, given)


TRANSLATED = "const t = await module.load(given.file); return await t.translate(given.texts, given.options);"


@pytest.mark.parametrize("precision", ["int4", "int8", "bf16", "fp32"])
@pytest.mark.parametrize("kind", MODELS)
def test_the_same_translations(page, folder, kind, precision):
    file = folder / f"{kind}-{precision}.rnn"
    export(folder / kind, file, precision)
    alone = load(file)
    mixed = [TEXTS[0], "", *TEXTS[2:5]]
    for texts, n_best, beam, prefixes in (
        (TEXTS, 1, 1, None),
        (TEXTS, 1, None, None),
        (TEXTS, 4, 4, None),
        (mixed, 2, 3, [PREFIXES[0], "", *PREFIXES[2:]]),
    ):
        options = {"nBest": n_best, "beam": beam, "prefixes": prefixes}
        given = {name: value for name, value in options.items() if value is not None}
        found = called(page, TRANSLATED, {"file": f"/{file.name}", "texts": texts, "options": given})
        expected = alone.n_best(texts, n_best, beam, prefixes)
        assert [len(own) for own in found] == [len(own) for own in expected]
        for own, wanted in zip(found, expected, strict=True):
            for one, other in zip(own, wanted, strict=True):
                for name, here in SAME.items():
                    assert json.loads(json.dumps(getattr(other, name))) == one[here], (other.source, name)
                assert one["tokenScores"] == pytest.approx(other.token_scores, abs=ROUNDING[precision])
                assert one["score"] == pytest.approx(other.score, abs=ROUNDING[precision])
                assert (one["wordAttention"] is None) == (other.word_attention is None)
                assert (one["attention"] is None) == (other.attention is None)
                if other.attention is not None:
                    np.testing.assert_allclose(one["attention"], other.attention, atol=ROUNDING[precision])


@pytest.mark.parametrize("family", WRITTEN)
def test_every_family(page, folder, family):
    """In bytes, whose scales every array has."""
    file = folder / f"{family}.rnn"
    drawn = {name: BAHDANAU[name] for name in ("embedding", "init")}
    model = write_model(folder / f"model-{family}", drawn | WRITTEN[family])
    export(model, file, "int8")
    texts = [text for text in TEXTS if len(text) < 60]
    given = {"file": f"/{file.name}", "texts": texts, "options": {"nBest": 2, "beam": 3}}
    for own, wanted in zip(called(page, TRANSLATED, given), load(file).n_best(texts, 2, 3), strict=True):
        assert [one["text"] for one in own] == [other.text for other in wanted]
        for one, other in zip(own, wanted, strict=True):
            assert one["tokenScores"] == pytest.approx(other.token_scores, abs=ROUNDING["int8"])


def test_one_text_and_the_model_are_told_of(page, folder):
    export(folder / "words", folder / "m.rnn")
    body = """const bytes = await (await fetch("/m.rnn")).arrayBuffer(); const t = await module.load(bytes);
        return [(await t.translate("the cat")).text, (await t.translate("the cat", {nBest: 2})).length, t.languages];"""
    text, count, languages = called(page, body, None)
    assert (text, count, languages) == (load(folder / "m.rnn").translate("the cat").text, 2, ["en", "de"])


@pytest.mark.parametrize(
    ("texts", "options", "said"),
    [
        (["a"], {"nBest": 3, "beam": 2}, "nBest must be between 1 and the beam"),
        (["a"], {"beam": 0}, "nBest must be between 1 and the beam"),
        (["a"], {"prefixes": []}, "prefixes must be one a sentence"),
        ([""], {"prefixes": ["der"]}, "is of an empty sentence"),
        (["\ud800"], {}, "valid Unicode"),
        ([3], {}, "a text must be a string"),
        (["a " * 20_000], {}, "longer than the engine takes"),
    ],
)
def test_bad_questions(page, folder, texts, options, said):
    export(folder / "words", folder / "m.rnn")
    body = "const t = await module.load('/m.rnn'); if (given[0][0] === 'half') given[0] = ['\\ud800'];"
    given = ["half" if text == "\ud800" else text for text in texts]
    found = called(page, f"{body} return await t.translate(given[0], given[1]);", [given, options])
    assert said in found["error"]


def tokenizers() -> dict[str, Tokenizer]:
    text = [*TEXT["en"], *TEXT["de"], "l'homme don't"]
    made = {"words": train_words(text, 30, 1), "bpe": train_bpe(text, 360, 1)}
    made["bpe, rare ones taken apart"] = made["bpe"].without(range(len(made["bpe"]) - 12, len(made["bpe"])))
    made["characters"] = train_bpe(text, 280, 1)
    made["unigram"] = train_unigram(text, 330, 1)
    return made


def drawn(count: int) -> list[str]:
    """Texts of odd characters and of words."""
    draw = random.Random(5)
    odd = [
        *"aé\u0301ßA1_ .,!'’-\t\u00a0\u200c\u200d\u2028數ชा😀𝒳<>",
        "the ",
        "dog's",
        " Vogel",
        "Katze",
        "\x85",
        "\ufeff",
    ]
    return ["".join(draw.choices(odd, k=draw.randrange(1, 14))) for _ in range(count)]


def test_tokenizers_are_those_of_python(page):
    body = """const { Tokenizer } = await import("/module/tokenizer.js");
        const { PIECES } = await import("/module/pieces.js");
        const { Prefixes } = await import("/module/prefixes.js");
        const t = new Tokenizer(given.tokenizer), prefixes = new Prefixes(t);
        return [PIECES, given.texts.map((text) => t.segment(text)), given.ids.map((ids) => t.joined(ids)),
            given.texts.map((text) => { const { ids, rest } = prefixes.read(text); return [ids, rest]; })];"""
    texts, draw = [*TEXTS[:-3], *drawn(150)], random.Random(2)
    for name, tokenizer in tokenizers().items():
        ids = [[draw.randrange(len(tokenizer)) for _ in range(draw.randrange(12))] for _ in range(200)]
        given = {"tokenizer": tokenizer.dumped, "texts": texts, "ids": ids}
        pattern, segmented, joined, begun = called(page, body, given)
        assert pattern == words.PIECES
        prefixes = Prefixes(tokenizer)
        for text, own, wanted, begin in zip(texts, segmented, tokenizer.segment(texts), begun, strict=True):
            assert (own["ids"], own["symbols"]) == (wanted.ids, wanted.symbols), (name, text)
            assert [tuple(span) for span in own["offsets"]] == units(wanted.text, wanted.offsets), (name, text)
            expected = prefixes.read(text)
            assert begin == json.loads(json.dumps([expected.ids, expected.rest])), (name, text)
        for own, found in zip(ids, joined, strict=True):
            assert found["text"] == tokenizer.joined(own).text, (name, own)


def units(text: str, spans: Any) -> list[tuple[int, int]]:
    """Spans in UTF-16 units."""
    at = [0]
    for character in text:
        at.append(at[-1] + 1 + (character > "\uffff"))
    return [(at[start], at[end]) for start, end in spans]


def test_foreign_tokenizers_are_refused(page):
    whole = json.loads(tokenizers()["bpe"].dumped)
    body = """const { Tokenizer } = await import("/module/tokenizer.js"); new Tokenizer(given); return null;"""
    damaged = [{}, [], whole | {"normalizer": None}, whole | {"pre_tokenizer": None}, whole | {"added_tokens": [{}]}]
    damaged += [whole | {"model": whole["model"] | change} for change in (
        {"type": "WordPiece"}, {"dropout": 0.5}, {"merges": [["a", "qq"]]}, {"vocab": {"<pad>": 0, "x": 7}},
        {"vocab": []},
    )]  # fmt: skip
    pattern = {"pattern": {"Regex": "(a+)+$"}}
    damaged.append(whole | {"pre_tokenizer": whole["pre_tokenizer"] | pattern})
    for one in damaged:
        assert "a tokenizer must be one that rnnsearch saved" in called(page, body, json.dumps(one))["error"]
    assert "a tokenizer must be" in called(page, body, "{")["error"]


def test_sentences_are_those_of_python(page):
    texts = ["Hello there. How are you? Fine!", "Dr. Smith e.g. came. Am 3. Mai kam er. U.S. Army.",
             "  a\n\nb. c. D.  ", "数学。很好！「是。」对", "I am. X. Y went.", "“Yes.” “No!” he said.",
             "1. First 2. Second", "", "a?b. C…D. … E"]  # fmt: skip
    body = """const { sentenceSpans, rejoin } = await import("/page/sentences.js");
        return given.map(([text, code]) => {
            const spans = sentenceSpans(text, code);
            return [spans, rejoin(text, spans, spans.map((_, n) => "x".repeat(n)), code)];
        });"""
    given = [(text, code) for text in [*texts, *drawn(100)] for code in ("en", "de", "zh")]
    for (text, code), (spans, whole) in zip(given, called(page, body, given), strict=True):
        own = sentence_spans(text, code)
        assert [tuple(span) for span in spans] == units(text, own), text
        assert whole[0] == rejoin(text, own, ["x" * n for n in range(len(own))], code)[0]


READ = """const refused = [];
    for (const [name, text] of given) {
        try {
            await module.load(Uint8Array.from(atob(text), (one) => one.charCodeAt(0)));
            refused.push([name, ""]);
        } catch (error) {
            refused.push([name, error instanceof module.RnnsearchError ? error.message : `${error.stack}`]);
        }
    }
    return refused;"""


def test_damaged_files_are_told_of(page, folder):
    export(folder / "bpe", folder / "m.rnn")
    whole = (folder / "m.rnn").read_bytes()
    damaged = damages(whole, random.Random(3))
    hostile = {name: change for name, change in HOSTILE.items() if name not in ("calibration", "later")}
    hostile |= {
        "later": lambda h: h.update(format=99),
        "wide": lambda h: h["sizes"].update(encoder=1 << 30),
        "odd": lambda h: h["arrays"]["output"].__setitem__(0, "int1"),
        "names": lambda h: h.update(arrays={"__proto__": ["int8", [1], 0]}),
    }
    unread = {"unknown setting", "symbols that are banned", "the same bytes again and again"}  # no harm in them here
    damaged |= {name: rewritten(whole, change) for name, change in hostile.items() if name not in unread}
    given = [[name, base64.b64encode(content).decode()] for name, content in damaged.items()]
    for name, said in called(page, READ, given):
        assert said and "\n" not in said and "Error" not in said, (name, said)
    assert called(page, READ, [["whole", base64.b64encode(whole).decode()]]) == [["whole", ""]]
    missing = called(page, "await module.load('/none.rnn'); return null;", None)
    assert "none.rnn: cannot be fetched: 404" in missing["error"]


@pytest.mark.parametrize("family", OTHERS)
def test_odd_programs_are_refused_or_do_no_harm(page, folder, family):
    export(folder / family, folder / "m.rnn")
    whole, draw = (folder / "m.rnn").read_bytes(), random.Random(4)
    program = json.loads(zlib.decompress(whole[24 : 24 + int.from_bytes(whole[8:16], "little")]))["program"]
    given = []
    for n in range(80):
        changed = corrupt_value(program, draw)
        file = rewritten(whole, lambda header, changed=changed: header.update(program=changed))
        given.append([n, base64.b64encode(file).decode()])
    said = [told for _, told in called(page, READ, given)]
    assert all("\n" not in told and "Error" not in told for told in said), said
    assert sum(map(bool, said)) > 40


def test_programs_that_are_none(page, folder):
    export(folder / "bideep", folder / "m.rnn")
    whole = (folder / "m.rnn").read_bytes()
    changes: dict[str, Callable[[Any], Any]] = {
        "no function": lambda p: p[2][0].__setitem__(4, "toString"),
        "no source": lambda p: p[2][0].__setitem__(1, "constructor"),
        "no truth": lambda p: p[0][0][0].__setitem__(1, "yes"),
        "no layers": lambda p: p[0].__setitem__(0, []),
        "no size": lambda p: p[2][0].__setitem__(0, 11.7),
        "no end of parts": lambda p: p[3].__setitem__(4, p[3][4] * 4000),
        "more states than first ones": lambda p: p[2].pop(),
        "nothing": lambda p: p.clear(),
    }
    given = []
    for name, change in changes.items():
        file = rewritten(whole, lambda header, change=change: change(header["program"]))
        given.append([name, base64.b64encode(file).decode()])
    for name, said in called(page, READ, given):
        assert "header is damaged" in said, (name, said)


@pytest.mark.parametrize("where", ["the decoder", "the encoder", "a window that follows"])
def test_what_is_legal_and_odd_is_translated(page, folder, where):
    """Rows so wide that not all sentences are taken at once; places that nothing reads."""
    export(folder / "bideep", folder / "whole.rnn", "fp32")

    def change(header: dict[str, Any]) -> None:
        encoder, attention, _, step, _ = header["program"]
        if where == "the decoder":
            step[2] = 200_000
        elif where == "the encoder":
            encoder[0][0][0][0][2] = 600_000
        else:
            attention[9] = True

    (folder / "m.rnn").write_bytes(rewritten((folder / "whole.rnn").read_bytes(), change))
    texts = ["the dog sees the cat.", "the small bird"] * 16
    found = called(page, TRANSLATED, {"file": "/m.rnn", "texts": texts, "options": {"beam": 5}})
    assert [one["text"] for one in found] == [one.text for one in load(folder / "m.rnn").translate(texts, 5)]


def test_hostile_requests_to_the_engine(page):
    """Whatever integers it is asked: an answer, or that this is no request. Nothing traps."""
    body = """
        const { exports: c } = (await WebAssembly.instantiateStreaming(fetch("/module/engine.wasm"), {})).instance;
        c._initialize();
        const m = c.model(0, 10, 11, 2, 16, 16, 30, 20, 8, 8), room = c.room(1 << 20), said = {};
        const fill = (values, at = room) => new Int32Array(c.memory.buffer, at, values.length).set(values);
        const ask = (values, count = values.length) => {
            fill(values);
            const answer = c.translate(m, room, count, 1, 0);
            said[answer] = (said[answer] ?? 0) + 1;
            return answer;
        };
        const good = [1, 2, 1, 0, 1, 0, 3, 5, 4, 5, 3, 7];
        const early = ask(good);
        const shapes = [[48, 8], [32, 16], [16, 16], [48, 8], [32, 16], [16, 16], [16, 32], [16, 16], [64, 16],
            [64, 32], [16, 16], [64, 8], [20, 8], [30, 8], [20, 8]];
        const odd = shapes.map(([a, b], part) =>
            c.lay(m, part, a, b, room, a * b + 1, 0, 0, 0, 0) + c.lay(m, part, a, b, room, a * b, 0, 0, room, 7) +
            c.lay(m, part, 1, a * b, room, a * b, 0, 0, 0, 0));
        shapes.forEach(([a, b], part) => c.lay(m, part, a, b, room, a * b, 0, 0, 0, 0));
        const wrong = [c.lay(m, 15, 1, 1, room, 1, 0, 0, 0, 0), c.lay(m, -1, 1, 1, room, 1, 0, 0, 0, 0),
            c.finish(m, room, 15), c.spell(m, room, 19)];
        const whole = c.finish(m, room, 16), first = ask(good);
        const unspelled = ask([1, 2, 1, 0, 0, 1, 3, 5, 4, 5, 3, 0, 0, 0]);
        let state = 7;
        const draw = (n) => (state = (Math.imul(state, 1103515245) + 12345) >>> 0) % n;
        for (let n = 0; n < 3000; n++) {
            const values = [...good];
            for (let k = draw(3) + 1; k > 0; k--) {
                const odd = [draw(30) - 3, 2 ** 31 - 1 - draw(3), -(2 ** 31) + draw(3), 1 << draw(31)];
                values[draw(values.length)] = odd[draw(4)];
            }
            ask(values, draw(8) ? values.length : draw(values.length));
        }
        return { early, odd, wrong, whole, first, unspelled, said };"""
    found = called(page, body, None)
    assert (found["early"], found["whole"], found["first"], found["unspelled"]) == (-1, 1, 1, -1)
    assert {*found["odd"], *found["wrong"]} == {0}
    assert set(found["said"]) <= {"-1", "0", "1"} and found["said"]["-1"] > 1000, found["said"]


def fails(*_: str) -> None:
    raise SubprocessError("no such thing")


def test_without_zig_it_is_said_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(building, "BUILT", tmp_path)
    monkeypatch.setenv("RNNSEARCH_CACHE", str(tmp_path))
    monkeypatch.setattr(building.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(RnnsearchError, match="pip install ziglang"):
        building.web_engine()
    (tmp_path / building.web_file_name()).touch()
    assert building.web_engine() == tmp_path / building.web_file_name()
    monkeypatch.setattr(building.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(building, "_run", fails)
    (tmp_path / building.web_file_name()).unlink()
    with pytest.raises(RnnsearchError, match="the engine for browsers: no such thing"):
        building.web_engine()
