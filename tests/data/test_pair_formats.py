"""Sentence pairs from translation memories, catalogues and tables."""

import gzip

import pytest

from rnnsearch.data.corpus import read_lines, read_rows
from rnnsearch.errors import DataError

TMX = """<?xml version="1.0"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header/><body>
<tu><tuv xml:lang="EN-US"><seg>The dog <bpt i="1">&lt;b&gt;</bpt>sleeps<ept i="1">&lt;/b&gt;</ept>
   in the garden.</seg></tuv><tuv xml:lang="de"><seg>Der Hund schläft im Garten.</seg></tuv></tu>
<tu><tuv lang="fr"><seg>Le chat.</seg></tuv><tuv lang="en"><seg>The cat &amp; I.</seg></tuv></tu>
<tu><tuv xml:lang="de-AT"><seg/></tuv><tuv xml:lang="de-DE"><seg>Fisch.</seg></tuv>
<tuv xml:lang="en"><seg>Fish.</seg></tuv></tu>
</body></tmx>
"""
TMX_PAIRS = [
    ("The dog sleeps in the garden.", "Der Hund schläft im Garten."),
    ("The cat & I.", ""),
    ("Fish.", "Fisch."),
]
XLIFF_1 = """<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
<file source-language="en" target-language="de">
<body><trans-unit id="1"><source>Open <ph id="1">%s</ph></source><seg-source>no</seg-source><target>Öffne</target>
<alt-trans><source>other</source><target>andere</target></alt-trans></trans-unit>
<trans-unit id="2"><source>Close</source></trans-unit></body></file></xliff>
"""
XLIFF_2 = """<xliff version="2.0" xmlns="urn:oasis:names:tc:xliff:document:2.0"
srcLang="de" trgLang="en"><file id="f"><unit id="u">
<segment><source>Öffne <pc id="1">jetzt</pc></source><target>Open now</target></segment></unit></file></xliff>
"""
PO = """msgid ""
msgstr "Plural-Forms: nplurals=2; plural=(n != 1);\\n"

#, c-format
msgid "One file"
msgid_plural "%d files"
msgstr[0] "Eine Datei"
msgstr[1] "%d Dateien"

#, fuzzy
msgid "Guess"
msgstr "Falsch"

msgid ""
"Two "
"lines"
msgstr "Zwei\\n"
"Zeilen"
"""


def pairs(path, content=None, languages=("en", "de")):
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [row.texts for row in read_rows([path.name], path.parent, len(languages), languages=languages)]


def test_tmx_units_are_rows(tmp_path):
    path = tmp_path / "memory.tmx"
    assert pairs(path, TMX) == TMX_PAIRS
    assert pairs(path, languages=("de", "en"))[0] == TMX_PAIRS[0][::-1]
    assert pairs(path, languages=("en", "fr", "de"))[1] == ("The cat & I.", "Le chat.", "")
    assert pairs(tmp_path / "utf16.tmx", TMX.replace('"1.0"', '"1.0" encoding="utf-16"').encode("utf-16")) == TMX_PAIRS
    assert pairs(tmp_path / "memory.TMX.gz", gzip.compress(TMX.encode())) == TMX_PAIRS


def test_exact_region_is_preferred(tmp_path):
    units = [f'<tuv xml:lang="{code}"><seg>{code}</seg></tuv>' for code in ("pt-PT", "pt-BR", "en-GB")]
    tmx = f"<tmx><body><tu>{''.join(units)}</tu></body></tmx>"
    assert pairs(tmp_path / "a.tmx", tmx, ("en", "pt-BR")) == [("en-GB", "pt-BR")]
    assert pairs(tmp_path / "a.tmx", None, ("en", "pt")) == [("en-GB", "pt-PT")]


def test_xliff_units_are_rows_in_either_direction(tmp_path):
    assert pairs(tmp_path / "a.xlf", XLIFF_1) == [("Open", "Öffne"), ("Close", "")]
    assert pairs(tmp_path / "b.xliff", XLIFF_2) == [("Open now", "Öffne jetzt")]
    assert pairs(tmp_path / "b.xliff", None, ("de", "en")) == [("Öffne jetzt", "Open now")]


def test_po_messages_are_rows(tmp_path):
    assert pairs(tmp_path / "de.po", PO) == [
        ("One file", "Eine Datei"),
        ("%d files", "%d Dateien"),
        ("Guess", ""),
        ("Two lines", "Zwei Zeilen"),
    ]


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ('"He said ""no"", then left.",Er sagte nein.\n\n"a\nb",c\n', "utf-8-sig"),
        ('"He said ""no"", then left.";Er sagte nein.\r\n"a\r\nb";c\r\n', "utf-8"),
        ('"He said ""no"", then left."\tEr sagte nein.\r\na b\tc\r\n', "utf-16"),
        ('id,de,en\n1,Er sagte nein.,"He said ""no"", then left."\n2,c,"a\nb"\n', "utf-8"),
        ('id;de-DE;en_US\n1;Er sagte nein.;"He said ""no"", then left."\n2;c;"a\nb"\n', "utf-8"),
        ('He said "no", then left.\tEr sagte nein.\na b\tc\n', "utf-8"),
        ('German,English\nEr sagte nein.,"He said ""no"", then left."\nc,"a\nb"\n', "utf-8"),
        ('Source;Target;Note\n"He said ""no"", then left.";Er sagte nein.;x\na b;c;\n', "utf-8"),
    ],
    ids=["comma", "semicolon", "tab", "codes", "regions", "commas in text", "names", "roles"],
)
def test_csv_rows_are_read_like_those_of_a_spreadsheet(tmp_path, text, encoding):
    assert pairs(tmp_path / "a.csv", text.encode(encoding)) == [
        ('He said "no", then left.', "Er sagte nein."),
        ("a b", "c"),
    ]


def test_xlsx_rows_are_read(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["English", "German"], ["The dog.\nIt sleeps.", "Der Hund."], [None, None], [5, "Fünf"]):
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    assert pairs(tmp_path / "a.xlsx") == [("The dog. It sleeps.", "Der Hund."), ("5", "Fünf")]


def test_rows_name_file_and_unit(tmp_path):
    path = tmp_path / "memory.tmx"
    path.write_text(TMX)
    rows = list(read_rows(["memory.tmx"], tmp_path, languages=("en", "de")))
    assert [row.location for row in rows] == [f"{path}:{number}" for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tmx", "<tmx><body>", "a.tmx:1: must be XML; got an error: no element found"),
        ("a.tmx", '<!DOCTYPE t [<!ENTITY a "b">]><tmx/>', "a.tmx:1: must not declare entities"),
        ("a.tmx", "<a>" * 60, "a.tmx:1: must have at most 50 nested elements"),
        ("a.tmx", f"<tu><tuv><seg>{'a' * (1 << 21)}</seg></tuv></tu>", "a text must have at most"),
        ("a.po", "no catalogue", "a.po: must be a PO file"),
        ("a.csv", b"a,\xff\n", "a.csv:1: must be a table of text in UTF-8"),
        ("a.csv", '"' + "a" * 200_000, "a.csv:1: must be a table of text in UTF-8"),
        ("a.xlsx", "text", "a.xlsx: must be an Excel workbook"),
        ("a.tmx.gz", b"text", "a.tmx.gz: the compressed file is damaged"),
    ],
)
def test_invalid_files_are_errors(tmp_path, name, content, message):
    if name == "a.xlsx":
        pytest.importorskip("openpyxl")
    with pytest.raises(DataError) as error:
        pairs(tmp_path / name, content)
    assert message in str(error.value)


def test_utf_16_text_is_an_error_that_says_how_to_convert(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\n", encoding="utf-16")
    with pytest.raises(DataError, match=r"must be UTF-8; got UTF-16 \(convert it: iconv"):
        list(read_lines(path))
