"""gettext catalogues: open entries, plural forms, bytes that stay, and the judgement of GNU msgfmt."""

import shutil
import subprocess

import polib
import pytest

from rnnsearch.errors import DataError
from rnnsearch.text.documents import read_document
from rnnsearch.text.documents.plural_forms import default_plural_forms, parse_plural_forms
from rnnsearch.text.markup.protected import NO_PRINTF, PRINTF


def fill(content: str | bytes, target: str = "de", text: str = "<<{}>>") -> bytes:
    """Return a catalogue with `text` around each segment as its translation, after a check by msgfmt."""
    document = read_document("a.po", content.encode() if isinstance(content, str) else content, "en", target)
    filled = document.fill([text.format(segment) for segment in document.segments])
    if shutil.which("msgfmt"):
        command = ["msgfmt", "-c", "--use-fuzzy", "-o", "-", "-"]
        process = subprocess.run(command, input=filled, capture_output=True, check=False)
        assert process.returncode == 0, f"{process.stderr.decode()}\n{filled.decode(errors='replace')}"
    return filled


def header(*fields: str) -> str:
    lines = "".join(f'"{field}\\n"\n' for field in ("Content-Type: text/plain; charset=UTF-8", *fields))
    return f'msgid ""\nmsgstr ""\n{lines}\n'


PO = """# head
msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\n"

#  translator
#. programmer
#: a.c:1 b.c:2
#| msgid "old one"
msgid   "one"
msgstr ""

#,c-format , no-wrap
msgid "two %d"
msgstr "zwei %d"
#, c-format
msgctxt "many"
msgid "a file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""


#~ msgid "old"
#~ msgstr ""

msgid ""
"th"
"ree\\n"
msgstr ""
"""


def test_only_missing_translations_change():
    assert fill(PO).decode() == (
        PO.replace('UTF-8\\n"', 'UTF-8\\n"\n"Language: de\\n"\n"Plural-Forms: nplurals=2; plural=(n != 1);\\n"')
        .replace('#| msgid "old one"', '#, fuzzy\n#| msgid "old one"')
        .replace('msgid   "one"\nmsgstr ""', 'msgid   "one"\nmsgstr "<<one>>"')
        .replace("#, c-format\nmsgctxt", "#, fuzzy, c-format\nmsgctxt")
        .replace('msgstr[0] ""', 'msgstr[0] "<<a file>>"')
        .replace('msgstr[1] ""', 'msgstr[1] "<<%d files>>"')
        .replace('msgid ""\n"th"', '#, fuzzy\nmsgid ""\n"th"')
        .replace('"ree\\n"\nmsgstr ""', '"ree\\n"\nmsgstr ""\n"<<three\\n"\n">>\\n"')
    )


def test_library_reads_the_result():
    filled = polib.pofile(fill(PO.replace("#,c", "#, c")).decode())
    one, two, many, three = (entry for entry in filled if not entry.obsolete)
    assert (one.msgstr, one.flags, one.occurrences) == ("<<one>>", ["fuzzy"], [("a.c", "1"), ("b.c", "2")])
    assert two.msgstr == "zwei %d"
    assert many.msgstr_plural == {0: "<<a file>>", 1: "<<%d files>>"}
    assert three.msgstr == "<<three\n>>\n"


def test_complete_catalogue_stays_identical():
    content = fill(PO).replace(b"\n", b"\r\n")
    document = read_document("a.po", content, "en", "de")
    assert (document.segments, document.fill([])) == ([], content)


PLURAL = '{}msgid "One file was removed."\nmsgid_plural "%d files were removed."\n'
ONE, MANY = "<<One file was removed.>>", "<<%d files were removed.>>"
POLISH = "n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2"
RUSSIAN = "n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2"
SLOVENIAN = "n%100==1 ? 1 : n%100==2 ? 2 : n%100==3 || n%100==4 ? 3 : 0"
ARABIC = "n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5"


@pytest.mark.parametrize(
    ("target", "forms", "expected"),
    [
        ("ja", "nplurals=1; plural=0;", [MANY]),
        ("de", "nplurals=2; plural=n != 1;", [ONE, MANY]),
        ("de", "nplurals=2; plural=(n == 1)", [MANY, ONE]),
        ("fr", "nplurals=2; plural=(n > 1);", [ONE, MANY]),
        ("pl", f"nplurals=3; plural=({POLISH});", [ONE, MANY, MANY]),
        ("ru", f"nplurals=3; plural=({RUSSIAN});", [MANY] * 3),
        ("sl", f"nplurals=4; plural=({SLOVENIAN});", [MANY] * 4),
        ("ar", f"nplurals=6; plural=({ARABIC});", [MANY, ONE, MANY, MANY, MANY, MANY]),
    ],
)
def test_plural_forms_follow_the_header(target, forms, expected):
    start = PLURAL.format(header(f"Language: {target}", f"Plural-Forms: {forms}"))
    missing = f'#, c-format\n{start}msgstr[0] ""\n'.replace("#, c-format\n", "", 1)
    filled = polib.pofile(fill(missing, target).decode())
    assert filled[0].msgstr_plural == dict(enumerate(expected))
    # The form of 1 has the number wherever msgid has it.
    filled = polib.pofile(fill(missing.replace('"One', '"%d'), target).decode())
    one = parse_plural_forms(forms).form_of_one
    if len(expected) > 1:
        assert filled[0].msgstr_plural[one] == "<<%d file was removed.>>"


def test_half_filled_entries_are_completed():
    start = PLURAL.format(header("Language: pl", f"Plural-Forms: nplurals=3; plural=({POLISH});"))
    filled = fill(f'{start}msgstr[0] "Jeden"\nmsgstr[2] ""\n', "pl").decode()
    assert filled.endswith(f'msgstr[0] "Jeden"\nmsgstr[1] "{MANY}"\nmsgstr[2] "{MANY}"\n')
    assert read_document("a.po", filled.encode(), "en", "pl").segments == []


def test_template_gets_the_header_of_its_language():
    template = header("Language: ", "Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;").replace("UTF-8", "CHARSET")
    filled = fill(f'#, fuzzy\n{PLURAL.format(template)}msgstr[0] ""\nmsgstr[1] ""\n', "pt-BR", "\xe9{}").decode()
    catalogue = polib.pofile(filled)
    assert catalogue.metadata["Language"] == "pt_BR"
    assert catalogue.metadata["Plural-Forms"] == "nplurals=2; plural=(n > 1);"
    assert filled.startswith('#, fuzzy\nmsgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n')
    catalogue = polib.pofile(fill(PLURAL.format("") + 'msgstr[0] ""\n', "cs", "\xe9{}").decode())
    assert len(catalogue[0].msgstr_plural) == 3


def test_encoding_of_the_file_is_kept_if_it_has_all_characters():
    content = header("Language: de").replace("UTF-8", "ISO-8859-1") + 'msgid "caf\xe9"\nmsgstr ""\n'
    expected = content.replace('msgid "caf', '#, fuzzy\nmsgid "caf')
    filled = fill(content.encode("latin-1"), text="{}")
    assert filled == expected.replace('msgstr ""\n', 'msgstr "caf\xe9"\n').replace(
        'msgid ""\nmsgstr "caf\xe9"', 'msgid ""\nmsgstr ""'
    ).encode("latin-1")
    assert b"charset=UTF-8" in fill(content.encode("latin-1"), text="{}\u0416")
    assert b"charset=UTF-8" in fill(content.replace("ISO-8859-1", "ASCII").replace("\xe9", "e"), text="{}\u0416")


def test_ends_and_escapes_of_texts():
    cases = {
        "\\tTom\\n": '"\\tTom\\n"',
        "\\nTom": '""\n"\\n"\n"Tom"',
        'a \\"b\\"\\\\': '"a \\"b\\"\\\\"',
        "\\x41\\101": '"AA"',
    }
    for text, expected in cases.items():
        assert f"\nmsgstr {expected}\n".encode() in fill(f'{header()}msgid "{text}"\nmsgstr ""\n', text="{}")
    filled = fill(f'{header()}msgid "\\nTom\\n"\nmsgstr ""\n', text="x\x07").decode()
    assert 'msgstr ""\n"\\n"\n"x\\a\\n"' in filled


def test_markup_and_characters_of_programs():
    content = header() + 'msgid "a &lt; <b>c</b>"\nmsgstr ""\n\nmsgid "a < &b <file>"\nmsgstr ""\n'
    content += '\nmsgid "A & <a href=\\"x\\">b</a>"\nmsgstr ""\n'
    document = read_document("a.po", content.encode(), "en", "de")
    assert document.segments == ["a < c", "a < &b <file>", "A & b"]
    filled = polib.pofile(document.fill_marked(document.marked_segments).decode())
    assert [entry.msgstr for entry in filled] == [entry.msgid for entry in filled]
    marked = ["x &lt; <b>y</b>", "x &lt; &amp;y", 'X &amp; <a href="x">y</a>']
    filled = polib.pofile(document.fill_marked(marked).decode())
    assert [entry.msgstr for entry in filled] == ["x &lt; <b>y</b>", "x < &y", 'X & <a href="x">y</a>']


def test_long_lines_are_wrapped_if_the_file_wraps():
    words = "word " * 40
    filled = fill(
        f'{header()}msgid ""\n"{words[:70]}"\n"{words[70:140]}"\n"{words[140:]}"\nmsgstr ""\n', text="{}"
    ).decode()
    assert max(map(len, filled.splitlines())) <= 80
    assert polib.pofile(filled)[0].msgstr == words
    filled = fill(f'{header()}msgid "{words}"\nmsgstr ""\n', text="{}").decode()
    assert f'msgstr "{words}"' in filled


def test_content_is_never_opened_as_a_path(tmp_path):
    secret = tmp_path / "secret.po"
    secret.write_text('msgid "secret"\nmsgstr ""\n', encoding="utf-8")
    with pytest.raises(DataError, match="must be a PO file"):
        read_document("a.po", str(secret).encode(), "en", "de")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("no catalogue", 'must be a PO file; got "no catalogue" in line 1'),
        ('msgid "a"\n', 'must be a PO file; got "msgid "a"" in line 1'),
        ('\nmsgid "a"\nmsgstr\n', 'must be a PO file; got "end of file" in line 4'),
        ('msgid "a"\nmsgstr "\n', 'must be a PO file; got """ in line 2'),
        ('msgstr "a"\n', "must be a PO file"),
        ('"a"\n', "must be a PO file"),
        ('msgid "a"\nmsgstr ""\nmsgstr ""\n', "must be a PO file"),
        ('msgid "a"\nmsgid_plural "b"\nmsgstr[99] ""\n', "must be a PO file"),
        (header("Plural-Forms: nplurals=99; plural=0;"), "Plural-Forms must have nplurals from 1 to 20; got 99"),
        (header("Plural-Forms: nplurals=2; plural=n;"), "Plural-Forms must give form numbers below 2"),
        (header("Plural-Forms: nplurals=2; plural=1/n;"), "Plural-Forms must have a valid expression"),
        (header("Plural-Forms: nplurals=2; plural=__import__('os');"), "Plural-Forms must have a valid expression"),
        (header(f"Plural-Forms: nplurals=2; plural={'(' * 200};"), "Plural-Forms must have a valid expression"),
        (header("Plural-Forms: two"), "Plural-Forms must be"),
    ],
)
def test_invalid_catalogues_are_rejected(content, said):
    with pytest.raises(DataError) as error:
        read_document("a.po", content.encode(), "en", "de")
    assert str(error.value).startswith(f"a.po: {said}")


def test_default_plural_forms_are_valid():
    for language, count in {"de": 2, "pt-BR": 2, "ja": 1, "pl": 3, "sl": 4, "ga": 5, "ar": 6, "xx": 2}.items():
        assert default_plural_forms(language).count == count


def test_flags_select_the_grammar_of_placeholders():
    content = b'#, c-format\nmsgid "a"\nmsgstr ""\n\n#, no-c-format, x\nmsgid "b"\nmsgstr ""\n\nmsgid "c"\nmsgstr ""\n'
    assert read_document("a.po", content, "en", "de").grammars == [PRINTF, NO_PRINTF, None]
