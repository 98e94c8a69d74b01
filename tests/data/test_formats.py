"""Documents to translate: segments, filling in translations, bytes that stay, and errors. PO: test_po.py."""

import random

import pytest

from rnnsearch.errors import DataError
from rnnsearch.text.documents import FORMATS, read_document


def upper(name: str, content: bytes, source: str = "en", target: str = "de") -> bytes:
    """Return the file with each segment in capitals as its translation."""
    document = read_document(name, content, source, target)
    return document.fill([segment.upper() for segment in document.segments])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one\ntwo\n", "ONE\nTWO\n"),
        ("one\r\n\r\n  two", "ONE\r\n\r\n  TWO"),
        ("\n \n", "\n \n"),
        ("", ""),
        ("\ufeffone", "\ufeffONE"),
    ],
)
def test_text_keeps_its_lines(text, expected):
    assert upper("a.txt", text.encode()).decode() == expected


def test_line_ends_are_not_translated():
    document = read_document("a.txt", "one\f\ntwo\u2028three\r\n".encode(), "en", "de")
    assert document.segments == ["one", "two", "three"]
    assert document.fill(["1", "2", "3"]).decode() == "1\f\n2\u20283\r\n"
    assert document.fill(["1\n2", "", "3"]).decode() == "1 2\f\n\u20283\r\n"


def test_tsv_fills_empty_cells_of_the_second_column():
    content = "one\nzwei\tzwo\nthree\t\tnote\r\n\tx\n\nfour\t "
    assert upper("a.TSV", content.encode()).decode() == "one\tONE\nzwei\tzwo\nthree\tTHREE\tnote\r\n\tx\n\nfour\tFOUR"
    document = read_document("a.tsv", b"one", "en", "de")
    assert document.fill(["a\tb\n"]) == b"one\ta b"


TMX = """<?xml version="1.0"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en" datatype="plaintext" segtype="sentence" adminlang="en"
 creationtool='x' creationtoolversion="1" o-tmf="x" /><body>
<!-- kept -->
<tu><note><![CDATA[kept & kept]]></note><tuv xml:lang="en-GB"><seg>one &amp; <hi>two</hi> three</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>done</seg></tuv><tuv xml:lang="DE"><seg>fertig</seg></tuv></tu>
<tu><tuv xml:lang="fr"><seg>autre</seg></tuv></tu>
<tu><tuv lang="en"><seg>four</seg></tuv><tuv  xml:lang="de"><seg/></tuv></tu>
</body></tmx>"""


def test_tmx_gets_missing_variants():
    document = read_document("a.tmx", TMX.encode("utf-16"), "en", "de")
    assert document.segments == ["one & two three", "four"]
    assert document.marked_segments[0] == "one &amp; <hi>two</hi> three"
    filled = document.fill_marked(["eins <hi>zwei</hi>\x07", "vier &lt;&gt;"])
    expected = TMX.replace(
        "three</seg></tuv>", 'three</seg></tuv><tuv xml:lang="DE"><seg>eins <hi>zwei</hi></seg></tuv>'
    )
    expected = expected.replace("<seg/>", "<seg>vier &lt;&gt;</seg>")
    assert filled == expected.encode("utf-16")
    assert read_document("a.tmx", filled, "en", "de").segments == []
    assert read_document("a.tmx", filled, "de", "en").segments == []
    assert document.fill(["eins <\x07>", ""]).count(">".encode("utf-16-le")) > 0
    assert "eins &lt;&gt;" in document.fill(["eins <\x07>", ""]).decode("utf-16")


@pytest.mark.parametrize("empty", ["<target></target>", "<target/>"])
def test_empty_xliff_target_is_marked_as_machine_translation(empty):
    unit = f'<trans-unit id="1"><source>one</source>{empty}</trans-unit>'
    content = f'<xliff version="1.2"><file source-language="en" target-language="de"><body>{unit}</body></file></xliff>'
    document = read_document("a.xlf", content.encode(), "en", "de")
    target = '<target state="needs-review-translation" state-qualifier="mt-suggestion">eins</target>'
    assert document.fill(["eins"]).decode() == content.replace(empty, target)


def memory(*units: str) -> bytes:
    return f'<tmx version="1.4"><header/><body>{"".join(f"<tu>{unit}</tu>" for unit in units)}</body></tmx>'.encode()


def variant(language: str, text: str) -> str:
    return f'<tuv xml:lang="{language}"><seg>{text}</seg></tuv>'


ENGLISH = variant("en", "Fish.")


@pytest.mark.parametrize(
    ("target", "variants"),
    [
        ("de", variant("de-AT", "") + variant("de-DE", "Fisch.")),
        ("pt", '<tuv xml:lang="pt-BR"><seg/></tuv>' + variant("pt-PT", "Peixe.")),
        ("zh", variant("zh-TW", " ") + variant("zh-CN", "\u9c7c\u3002")),
        ("de", variant("de", "<ph>{0}</ph>")),
        ("de-DE", variant("de-AT", "<![CDATA[Fisch]]>") + "<tuv xml:lang='de-de'/>"),
    ],
)
def test_translations_of_people_are_never_removed(target, variants):
    content = memory(ENGLISH + variants)
    document = read_document("a.tmx", content, "en", target)
    assert document.segments == []
    assert document.fill([]) == content


@pytest.mark.parametrize(
    ("unit", "filled"),
    [
        (variant("en-GB", "") + variant("en-US", "Fish."), None),
        (
            ENGLISH + variant("de-AT", "") + variant("de", "\n "),
            ENGLISH + variant("de-AT", "") + variant("de", "FISH."),
        ),
        (ENGLISH + "<tuv xml:lang='de'/>", ENGLISH + "<tuv xml:lang='de'><seg>FISH.</seg></tuv>"),
        (ENGLISH + variant("de", "<!-- todo -->"), ENGLISH + variant("de", "FISH.<!-- todo -->")),
        (f"\n  {ENGLISH}\n", f"\n  {ENGLISH}\n  {variant('de', 'FISH.')}\n"),
        (variant("en", " Fish\n  <!-- a --><![CDATA[&]]> chips. "), None),
        ('<tuv lang="en"><seg>Fish.</seg></tuv>', None),
    ],
)
def test_tmx_keeps_everything_around_a_new_variant(unit, filled):
    result = upper("a.tmx", memory(unit))
    if filled is not None:
        assert result == memory(filled)
    else:
        assert unit.encode() in result
    again = read_document("a.tmx", result, "en", "de")
    assert (again.segments, again.fill([])) == ([], result)


def test_tmx_segment_with_line_break_is_one_sentence():
    document = read_document("a.tmx", memory(variant("en", "The dog\n   is <hi\nx='1  2'>asleep</hi>.")), "en", "de")
    assert document.segments == ["The dog is asleep."]
    assert document.marked_segments == ["The dog is <hi\nx='1  2'>asleep</hi>."]


def test_xml_keeps_its_encoding():
    content = '<?xml version="1.0" encoding="ISO-8859-1"?>\r\n<tmx><tu>{}</tu></tmx>'.format(variant("en", "caf\xe9"))
    filled = read_document("a.tmx", content.encode("latin-1"), "en", "de").fill(["Caf\xe9 \u0416"])
    assert filled.decode("latin-1") == content.replace("</tu>", variant("de", "Caf\xe9 &#1046;") + "</tu>")


def test_tmx_keeps_namespace_prefixes():
    tmx = b'<tmx xmlns="urn:tmx" xmlns:x="urn:x"><tu x:id="1"><tuv xml:lang="en"><seg>one</seg></tuv></tu></tmx>'
    filled = upper("a.tmx", tmx).decode()
    assert '<tu x:id="1"><tuv xml:lang="en"><seg>one</seg></tuv><tuv xml:lang="de"><seg>ONE</seg></tuv></tu>' in filled
    assert '<tmx xmlns="urn:tmx" xmlns:x="urn:x">' in filled


XLIFF = """<?xml version='1.0'?>
<xliff version="1.2"><file source-language="en-US" original="a" datatype="plaintext">
<body><group translate="no"><trans-unit id="0"><source>zero</source></trans-unit></group>
<trans-unit id="1">
  <source>one <x id="1"/></source>
  <seg-source><mrk>one</mrk></seg-source>
  <alt-trans><source>a</source><target>b</target></alt-trans>
</trans-unit>
<trans-unit id="2"><source>two</source><target state="new"></target></trans-unit>
<trans-unit id="3"><source>three</source><target>drei</target></trans-unit>
</body></file></xliff>"""


def test_xliff_gets_missing_targets():
    document = read_document("a.xlf", XLIFF.encode(), "en", "de")
    assert document.marked_segments == ['one <x id="1"/>', "two"]
    filled = document.fill_marked(['eins <x id="1"/>', "zwei &amp;"]).decode()
    new = '<target state="needs-review-translation" state-qualifier="mt-suggestion">eins <x id="1"/></target>'
    expected = XLIFF.replace("></target>", ">zwei &amp;</target>").replace("</seg-source>", f"</seg-source>\n  {new}")
    assert filled == expected.replace('datatype="plaintext"', 'datatype="plaintext" target-language="de"')
    again = read_document("a.xlf", filled.encode(), "en", "de")
    assert (again.segments, again.fill([])) == ([], filled.encode())
    assert read_document("a.xlf", XLIFF.encode(), "fr", "de").segments == []


def test_second_version_of_xliff():
    content = (
        '<xliff version="2.0" srcLang="en"{}><file id="f"><unit id="1"><segment><source>one</source>{}</segment>'
        '<ignorable><source> </source></ignorable></unit><unit id="2" translate="no"><segment><source>two</source>'
        "</segment></unit></file></xliff>"
    )
    document = read_document("a.xliff", content.format("", "").encode(), "en", "de")
    assert document.segments == ["one"]
    assert document.fill(["eins"]).decode() == content.format(' trgLang="de"', "<target>eins</target>")
    other = content.format(' trgLang="fr"', "<target/>").encode()
    assert read_document("a.xliff", other, "en", "de").segments == []
    assert read_document("a.xliff", other, "en", "fr").fill(["un"]) == other.replace(
        b"<target/>", b"<target>un</target>"
    )


HTML = """<!DOCTYPE html>\r
<HTML><head><meta charset="{}"><style>p {{ x: "<b>" }}</style></head>
<body class='a'><!-- kept <p> --><p>\xe9t\xe9 &eacute; <B>one</b></P><pre>\tx</pre></body>"""


def test_html_keeps_everything_but_its_text():
    content = HTML.format("iso-8859-1").encode("latin-1")
    document = read_document("a.html", content, "en", "de")
    assert "\xe9t\xe9 \xe9 one" in document.segments
    assert "a\n  b" not in "".join(document.marked_segments)
    assert document.fill(["" for _ in document.segments]) == content
    translations = ["\u0416 <B>eins</b>" if "one" in segment else "" for segment in document.marked_segments]
    expected = content.decode("latin-1").replace("\xe9t\xe9 &eacute; <B>one</b>", "&#1046; <B>eins</b>")
    assert document.fill_marked(translations) == expected.encode("latin-1")


SRT = """\ufeff1\r
00:00:01,000 --> 00:00:02,500\r
{\\an8}The dog is sleeping\r
in the garden.\r
\r
2
00:00:03,000 --> 00:00:04,000 X1:1
- One & <i>two</i>?
- Three.

3
00:00:05,000 --> 00:00:06,000

"""


def test_subtitles_keep_times_and_lines():
    document = read_document("a.srt", SRT.encode(), "en", "de")
    assert document.segments == ["The dog is sleeping in the garden.", "One & two?", "Three."]
    filled = document.fill_marked(["Der Hund schl\xe4ft im Garten, sagt er.", "Eins &amp; <i>zwei</i>?\n", ""]).decode()
    expected = SRT.replace("The dog is sleeping\r\nin the garden.", "Der Hund schl\xe4ft im\r\nGarten, sagt er.")
    assert filled == expected.replace("- One & <i>two</i>?", "- Eins &amp; <i>zwei</i>?")
    assert read_document("a.txt", SRT.encode(), "en", "de").segments == document.segments
    assert read_document("a.vtt", b"WEBVTT\n\nNOTE\nx\n\n01:00.000 --> 01:02.000\n<b>a\n", "en", "de").segments == ["a"]
    assert read_document("a.txt", b"1\n00:00 is midnight.\n", "en", "de").segments == ["1", "00:00 is midnight."]


def test_subtitle_with_few_words_has_fewer_lines():
    document = read_document("a.srt", b"00:01,0 --> 00:02,0\na\nb\nc\n", "en", "de")
    assert document.fill(["eins zwei"]) == b"00:01,0 --> 00:02,0\neins\nzwei\n"
    assert document.fill(["eins"]) == b"00:01,0 --> 00:02,0\neins\n"


PO = b'msgid ""\nmsgstr ""\n"Language: de\\n"\n\n#: a.c\nmsgid "one %d"\nmsgstr ""\n'
SEEDS = {
    ".txt": b"one\ntwo\n",
    ".tsv": b"one\ttwo\nthree\n",
    ".tmx": TMX.encode(),
    ".po": PO,
    ".html": HTML.format("utf-8").encode(),
    ".srt": SRT.encode(),
    ".xlf": XLIFF.encode(),
}
LINE_ENDS = [(b"\n", b"\n"), (b"\n", b"\r\n")]


@pytest.mark.parametrize("line_end", LINE_ENDS)
@pytest.mark.parametrize("suffix", SEEDS)
def test_files_without_translations_stay_identical(suffix, line_end):
    for mark in (b"", b"\xef\xbb\xbf"):
        content = mark + SEEDS[suffix].removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(*line_end)
        document = read_document(f"a{suffix}", content, "en", "de")
        assert document.segments
        if suffix != ".txt":
            assert document.fill([""] * len(document.segments)) == content
        assert document.fill(["x"] * len(document.segments)) != content


def test_lines_and_cells_without_translation_stay_identical():
    for name, content in (("a.txt", b"\r\n \n"), ("a.tsv", b"a\tb\r\n\tc\n\n"), ("a.html", b"<p></p>\r\n<br>")):
        document = read_document(name, content, "en", "de")
        assert (document.segments, document.fill([])) == ([], content)
    for encoding in ("utf-16", "utf-32"):
        assert upper("a.txt", "one\r\ntwo".encode(encoding)) == "ONE\r\nTWO".encode(encoding)


def test_documents_can_be_filled_repeatedly():
    for suffix, content in SEEDS.items():
        document = read_document(f"a{suffix}", content, "en", "de")
        first = document.fill(document.segments)
        document.fill(["x"] * len(document.segments))
        assert document.fill(document.segments) == first


BOMB = b'<!DOCTYPE tmx [<!ENTITY a "x"><!ENTITY b "&a;&a;">]><tmx><body>&b;</body></tmx>'
EXTERNAL = b'<!DOCTYPE tmx [<!ENTITY a SYSTEM "file:///etc/passwd">]><tmx><body>&a;</body></tmx>'
ATTRIBUTES = b'<!DOCTYPE tmx [<!ATTLIST seg x CDATA "long">]><tmx/>'


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.docx", b"", "the file name must end in .txt, .tsv, .tmx, .po, .html"),
        ("", b"", "the file name must end in"),
        ("a.txt", b"one\nca\xe9\n", "a.txt:2: must be UTF-8; got byte 0xe9"),
        ("a.txt", b"\xff\xfea", "a.txt:1: must be UTF-16-LE; got byte 0x61"),
        ("a.tsv", b"\xff", "a.tsv:1: must be UTF-8"),
        ("a.po", b"\xff", "a.po:1: must be UTF-8"),
        ("a.html", b"<meta charset=punycode>\xff", "a.html:1: must be UTF-8"),
        ("a.tmx", b"<tmx>", "a.tmx: must be TMX; got no element found"),
        ("a.tmx", b"<x/>", "a.tmx: must be TMX; got XML with the root <x>"),
        ("a.tmx", BOMB, "a.tmx: must not declare entities or attributes"),
        ("a.tmx", EXTERNAL, "a.tmx: must not declare entities or attributes"),
        ("a.tmx", b"<tmx>" + b"<a>" * 2000 + b"</a>" * 2000 + b"</tmx>", "a.tmx: must nest elements at most 50 deep"),
        ("a.tmx", b"", "a.tmx: must be TMX"),
        ("a.tmx", ATTRIBUTES, "a.tmx: must not declare entities or attributes; it does"),
    ],
)
def test_invalid_documents_are_rejected(name, content, said):
    with pytest.raises(DataError) as error:
        read_document(name, content, "en", "de")
    assert str(error.value).startswith(said)


def test_garbage_is_rejected_or_kept():
    """Fill files with random bytes in them: a DataError, or all other bytes stay."""
    random_numbers = random.Random(5)
    assert SEEDS.keys() <= FORMATS.keys()
    for suffix, content in SEEDS.items():
        for _ in range(60):
            changed = bytearray(content)
            for _ in range(random_numbers.randrange(1, 6)):
                start = random_numbers.randrange(len(changed))
                new = random_numbers.choice([b"<", b'"', b"\xff", b"&", b"\n", b"\x00", b"[9]"])
                changed[start : start + random_numbers.randrange(4)] = new
            try:
                document = read_document(f"a{suffix}", bytes(changed), "en", "de")
            except DataError as error:
                assert str(error).startswith(f"a{suffix}")
                continue
            if suffix != ".txt":
                assert document.fill([""] * len(document.segments)) == changed
            filled = document.fill(["x"] * len(document.segments))
            assert isinstance(read_document(f"a{suffix}", filled, "en", "de").segments, list)
