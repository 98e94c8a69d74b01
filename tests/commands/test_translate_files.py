"""`rnnsearch translate -i` of files that are not lines of text."""

import pytest

CAT = "the small cat sees the dog."
BIRD = "the old bird finds the tree."
UNIT = '<tu><tuv xml:lang="en"><seg>{}</seg></tuv>{}</tu>'
TMX = '<tmx version="1.4"><header/><body>{}</body></tmx>'


@pytest.fixture(scope="module")
def translations(cli, model):
    """Return the German sentences of the two English ones."""
    cat, bird = cli("translate", model, stdin=f"{CAT}\n{BIRD}\n").lines
    return cat, bird


def test_formats_are_recognised_by_name_or_content(cli, model, translations, tmp_path):
    cat, bird = translations
    srt = "1\r\n00:00:01,000 --> 00:00:02,000\r\n{}\r\n\r\n2\r\n00:00:03,000 --> 00:00:04,000\r\n{}\r\n"
    po = 'msgid ""\nmsgstr ""\n"Language: de\\n"\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n{}'
    html = "<p\nx='1'>{}</p>\r\n<!-- x --><b\nid=1>{}</b>"
    entries = f'msgid "{CAT}\\n"\n"{BIRD}"\nmsgstr ""\n'
    variant = '<tuv xml:lang="de"><seg>{}</seg></tuv>'
    files = {
        "a.html": (html.format(CAT, BIRD), html.format(cat, bird)),
        "a.tmx": (TMX.format(UNIT.format(CAT, "")), TMX.format(UNIT.format(CAT, variant.format(cat)))),
        "a.PO": (po.format(entries), po.format(f'#, fuzzy\n{entries}"{cat}\\n"\n"{bird}"\n')),
        "a.srt": (srt.format(CAT, BIRD), srt.format(cat, bird)),
        "a.txt": (srt.format(CAT, BIRD), srt.format(cat, bird)),
    }
    for name, (content, expected) in files.items():
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + content.encode())
        result = cli("translate", model, "-i", tmp_path / name, "-o", tmp_path / "out")
        assert (result.code, result.out, result.err) == (0, "", ""), name
        assert (tmp_path / "out").read_bytes().decode() == f"\ufeff{expected}", name
    assert cli("translate", model, "-i", tmp_path / "a.tmx").out == f"\ufeff{files['a.tmx'][1]}"


def test_flags_of_a_po_entry_select_its_placeholders(cli, model, tmp_path):
    # "% s" is a directive of printf with a space flag, and hardly one elsewhere.
    entry = 'msgid "the small cat % s sees the dog."\nmsgstr ""\n'
    header = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    results = {}
    for flag in ("c-format", "no-c-format"):
        path = tmp_path / f"{flag}.po"
        path.write_text(f"{header}#, {flag}\n{entry}")
        results[flag] = cli("translate", model, "-i", path).out.rpartition("msgstr ")[2]
    assert "% s" in results["c-format"]
    assert "% s" not in results["no-c-format"]


def test_second_column_of_tsv_files_is_filled(cli, model, translations, tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text(f"{CAT}\t\t3\n{BIRD}\tder Vogel\n", encoding="utf-8")
    assert cli("translate", model, "-i", path).out == f"{CAT}\t{translations[0]}\t3\n{BIRD}\tder Vogel\n"
    path.write_text(f"{CAT}\n", encoding="utf-8")
    assert cli("translate", model, "-i", path).lines == [translations[0]]


def test_unsupported_files_and_text_in_place_of_a_model_are_errors(cli, model, user_error, tmp_path):
    path = tmp_path / "letter.docx"
    path.write_bytes(b"PK")
    assert user_error("translate", model, "-i", path).startswith(
        f"{path}: .docx files are not supported; save the text"
    )
    text = tmp_path / "a.txt"
    text.write_text(CAT)
    result = cli("translate", model, text)
    assert result.code == 2
    assert f"{text} is not a model; name the file to translate by -i" in " ".join(result.err.split())


def test_file_without_open_texts_is_copied(cli, model, tmp_path):
    content = TMX.format(UNIT.format(CAT, '<tuv xml:lang="de-AT"><seg>x</seg></tuv>'))
    (tmp_path / "a.tmx").write_text(content)
    result = cli("translate", model, "-i", tmp_path / "a.tmx")
    assert (result.code, result.out) == (0, content)
    assert result.err == f"{tmp_path / 'a.tmx'}: nothing to translate\n"


def test_texts_that_are_too_long_stay(cli, model, translations, tmp_path):
    (tmp_path / "a.html").write_text(f"<p>{CAT}</p><p>{'the cat ' * 30}</p>")
    result = cli("translate", model, "-i", tmp_path / "a.html", "--max-source", 20)
    assert (result.code, result.out) == (0, f"<p>{translations[0]}</p><p>{'the cat ' * 30}</p>")
    assert "text:2: must have at most 20" in result.err
    assert "it is not translated" in result.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--format", "json"], "--format needs lines of text as input"),
        (["--alignments", "links"], "--alignments needs lines of text as input"),
        (["--engine", "local", "-o", "out"], "--engine needs lines of text as input"),
    ],
)
def test_options_of_lines_are_rejected(cli, model, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.po").write_text(f'msgid "{CAT}"\nmsgstr ""\n')
    result = cli("translate", model, "-i", "a.po", *arguments)
    assert result.code == 2
    assert said in " ".join(result.err.replace("\u2502", " ").split())


def test_invalid_file_is_an_error_of_one_line(cli, model, tmp_path):
    (tmp_path / "a.tmx").write_text("<tmx>")
    result = cli("translate", model, "-i", tmp_path / "a.tmx", "-o", tmp_path / "out")
    assert (result.code, (tmp_path / "out").exists()) == (1, False)
    assert result.err.startswith(f"rnnsearch: {tmp_path / 'a.tmx'}: must be TMX; got no element found")


def test_model_without_attention_translates_files_without_markup(cli, one_vector, tmp_path):
    (tmp_path / "a.po").write_text(f'msgid "{CAT}"\nmsgstr ""\n')
    result = cli("translate", one_vector, "-i", tmp_path / "a.po")
    assert result.code == 0
    assert 'msgstr "d' in result.out
