"""Documents to translate: parsing, filling in translations, and errors."""

import random

import polib
import pytest

from rnnsearch.errors import DataError
from rnnsearch.text.documents import FORMATS, MAX_ENTRY_LINES, read_document


def upper(name: str, content: bytes) -> bytes:
    """The file with each segment in capitals for a translation."""
    document = read_document(name, content, "en", "de")
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


def test_tsv_fills_empty_cells_of_the_second_column():
    content = "one\nzwei\tzwo\nthree\t\tnote\r\n\tx\n\nfour\t "
    assert upper("a.TSV", content.encode()).decode() == "one\tONE\nzwei\tzwo\nthree\tTHREE\tnote\r\n\tx\n\nfour\tFOUR"
    document = read_document("a.tsv", b"one", "en", "de")
    assert document.fill(["a\tb"]) == b"one\ta b"


TMX = """<?xml version="1.0"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en" datatype="plaintext" segtype="sentence" adminlang="en"
 creationtool="x" creationtoolversion="1" o-tmf="x"/><body>
<tu><note>kept</note><tuv xml:lang="en-GB"><seg>one &amp; <hi>two</hi><ph>{1}</ph> three</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>done</seg></tuv><tuv xml:lang="DE"><seg>fertig</seg></tuv></tu>
<tu><tuv xml:lang="fr"><seg>autre</seg></tuv></tu>
<tu><tuv lang="en"><seg>four</seg></tuv><tuv xml:lang="de"><seg/></tuv></tu>
</body></tmx>"""


def test_tmx_gets_missing_variants():
    document = read_document("a.tmx", TMX.encode("utf-16"), "en", "de")
    assert document.segments == ["one & two three", "four"]
    filled = document.fill(["eins <\x07>", "vier"]).decode()
    assert '<!DOCTYPE tmx SYSTEM "tmx14.dtd">' in filled
    assert '<tuv xml:lang="de"><seg>eins &lt;&gt;</seg></tuv></tu>' in filled
    assert filled.count('xml:lang="de"') == 2
    assert '<tuv xml:lang="DE"><seg>fertig</seg></tuv>' in filled
    assert "<note>kept</note>" in filled
    again = read_document("a.tmx", filled.encode(), "en", "de")
    assert again.segments == []
    assert read_document("a.tmx", filled.encode(), "de", "en").segments == []


PO = """# head
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\\n"

#: a.c:1
msgid "one"
msgstr ""

#, c-format
msgid "two %d"
msgstr "zwei %d"

msgctxt "many"
msgid "a file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""

#~ msgid "old"
#~ msgstr ""
"""


def test_po_fills_and_marks_missing_translations():
    filled = polib.pofile(upper("a.po", PO.encode()).decode())
    one, two, many, old = filled
    assert (one.msgstr, one.flags, one.occurrences) == ("ONE", ["fuzzy"], [("a.c", "1")])
    assert (two.msgstr, two.flags) == ("zwei %d", ["c-format"])
    assert many.msgstr_plural == {0: "A FILE", 1: "%D FILES"}
    assert old.obsolete
    assert filled.metadata["Language"] == "de"


def test_po_content_is_never_opened_as_a_path(tmp_path):
    secret = tmp_path / "secret.po"
    secret.write_text('msgid "secret"\nmsgstr ""\n', encoding="utf-8")
    with pytest.raises(DataError, match="must be a PO file"):
        read_document("a.po", str(secret).encode(), "en", "de")


def test_tmx_keeps_namespace_prefixes():
    tmx = b'<tmx xmlns="urn:tmx" xmlns:x="urn:x"><tu x:id="1"><tuv xml:lang="en"><seg>one</seg></tuv></tu></tmx>'
    filled = upper("a.tmx", tmx).decode()
    assert '<tu x:id="1"><tuv xml:lang="en"><seg>one</seg></tuv><tuv xml:lang="de"><seg>ONE</seg></tuv></tu>' in filled
    assert '<tmx xmlns="urn:tmx" xmlns:x="urn:x">' in filled


def test_documents_can_be_filled_repeatedly():
    for name, content in (("a.tsv", b"one"), ("a.tmx", TMX.encode()), ("a.po", PO.encode())):
        document = read_document(name, content, "en", "de")
        first = document.fill(document.segments)
        document.fill(["x"] * len(document.segments))
        assert document.fill(document.segments) == first


def test_po_entries_may_have_many_lines():
    text = '"x\\n"\n' * (MAX_ENTRY_LINES // 4)
    entry = f'\nmsgid ""\n{text}msgstr ""\n'
    content = PO + entry * 3 + "#: a:1\n" * 2 * MAX_ENTRY_LINES + entry
    assert len(read_document("a.po", content.encode(), "en", "de").segments) == 3 + 4


BOMB = b'<!DOCTYPE tmx [<!ENTITY a "x"><!ENTITY b "&a;&a;">]><tmx><body>&b;</body></tmx>'


ATTRIBUTES = b'<!DOCTYPE tmx [<!ATTLIST seg x CDATA "long">]><tmx/>'
LINES = b'msgid ""\n' + b'"x"\n' * 2000 + b'msgstr ""\n'


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.docx", b"", 'the file name must end in .txt, .tsv, .tmx, .po; got "a.docx"'),
        ("", b"", "the file name must end in"),
        ("a.txt", b"one\nca\xe9\n", "a.txt:2: must be UTF-8; got byte 0xe9"),
        ("a.tsv", b"\xff", "a.tsv:1: must be UTF-8"),
        ("a.po", b"\xff", "a.po:1: must be UTF-8"),
        ("a.po", b"no catalogue", "a.po: must be a PO file; got"),
        ("a.tmx", b"<tmx>", "a.tmx: must be TMX; got no element found"),
        ("a.tmx", b"<x/>", "a.tmx: must be TMX; got XML with the root <x>"),
        ("a.tmx", BOMB, "a.tmx: must not declare entities or attributes"),
        ("a.tmx", b"<tmx>" + b"<a>" * 2000 + b"</a>" * 2000 + b"</tmx>", "a.tmx: must nest elements at most 50 deep"),
        ("a.tmx", b"", "a.tmx: must be TMX"),
        ("a.tmx", ATTRIBUTES, "a.tmx: must not declare entities or attributes; it does"),
        ("a.po", LINES, "a.po:2001: an entry must have at most 2,000 lines; it has more"),
        ("a.po", LINES.replace(b'"x"', b'#~ "x"'), "a.po:2001: an entry must have"),
        ("a.po", b'msgid ""\nmsgstr "a: b' + b"\\nx" * 2000 + b'"\n', "a.po:2: an entry must have at most 2,000 lines"),
    ],
)
def test_invalid_documents_are_rejected(name, content, said):
    with pytest.raises(DataError) as error:
        read_document(name, content, "en", "de")
    assert str(error.value).startswith(said)


def test_garbage_is_rejected_or_kept():
    """Random bytes around real files: a DataError, or a document that can be filled."""
    draw = random.Random(5)
    seeds = {".txt": b"one\ntwo\n", ".tsv": b"one\ttwo\n", ".tmx": TMX.encode(), ".po": PO.encode()}
    assert seeds.keys() == FORMATS.keys()
    for suffix, content in seeds.items():
        for _ in range(60):
            changed = bytearray(content)
            for _ in range(draw.randrange(1, 6)):
                at = draw.randrange(len(changed))
                changed[at : at + draw.randrange(4)] = draw.choice([b"<", b'"', b"\xff", b"&", b"\n", b"\x00", b"[9]"])
            try:
                document = read_document(f"a{suffix}", bytes(changed), "en", "de")
            except DataError as error:
                assert str(error).startswith(f"a{suffix}")
            else:
                assert isinstance(document.fill(["x"] * len(document.segments)), bytes)
