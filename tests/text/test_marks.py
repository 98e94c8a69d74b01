"""Tags and protected stretches: all come out, each once, nested as they were, around the words that are linked."""

import html
import random
import re
from collections import Counter

import pytest

from rnnsearch.text.alignments import words
from rnnsearch.text.markup.marks import PROTECTED, MarkedText

TAG = re.compile(r"</?[a-zA-Z][^>]*>")


def links(pharaoh: str) -> list[tuple[int, int]]:
    return [(int(s), int(t)) for s, _, t in (link.partition("-") for link in pharaoh.split())]


def diagonal(text: str) -> list[tuple[int, int]]:
    return [(n, n) for n in range(len(words(text)))]


@pytest.mark.parametrize(
    ("source", "target", "linked", "expected"),
    [
        ("A <b>man</b> sits.", "Ein Mann sitzt.", "0-0 1-1 2-2", "Ein <b>Mann</b> sitzt."),
        ("A <b>man</b>.", "Ein Mann.", "0-0 1-1", "Ein <b>Mann</b>."),
        ("A <b>man.</b>", "Ein Mann.", "0-0 1-1", "Ein <b>Mann.</b>"),
        ("<p>A <i>red</i> car.</p>", "Ein rotes Auto.", "0-0 1-1 2-2", "<p>Ein <i>rotes</i> Auto.</p>"),
        ("<i>He</i> <b>eats it</b>", "Das isst er", "0-2 1-1 2-0", "<b>Das isst</b> <i>er</i>"),
        ("<b>do not</b> go", "ne va pas", "0-0 1-2 2-1", "<b>ne</b> va pas"),  # a run, without what is another's
        ("<a href='x'><b>ice</b> cream</a> now", "Eis jetzt", "0-0 1-0 2-1", "<a href='x'><b>Eis</b></a> jetzt"),
        ('One <x id="1"/> two', "Eins zwei", "0-0 1-1", 'Eins <x id="1"/> zwei'),
        ("One two<x/>", "Eins zwei", "0-0 1-1", "Eins zwei<x/>"),
        ("one<br/>two", "eins zwei", "0-0 1-1", "eins <br/>zwei"),
        ("a &lt; b &amp; c", "a < b & c", "0-0", "a &lt; b &amp; c"),
        (
            "Run <code>a &amp;&amp; <i>b</i></code> now",
            "Jetzt a und b starten",
            "0-4 1-1 2-2 3-3 4-0",
            "Jetzt <code>a &amp;&amp; <i>b</i></code> starten",
        ),
        (
            'Ask <span translate="no">Ann <i>Lee</i></span> now',
            "Frag jetzt Frau Lee",
            "0-0 1-2 2-3 3-1",
            'Frag jetzt <span translate="no">Ann <i>Lee</i></span>',
        ),
        (
            "Use <code> and then <kbd>rm -rf</kbd> now",
            "Nimm und dann das jetzt",
            "0-0 1-1 2-2 3-3 4-3 5-4",
            "Nimm <code> und dann <kbd>rm -rf</kbd> jetzt",
        ),
        ("<code>a <code>b</code> go", "a b geh", "0-0 1-1 2-2", "<code>a <code>b</code> geh"),
        ("Run (<code>{x}()</code>), Ann", "Starte ({X}()), Ann", "0-0 1-1 2-2", "Starte (<code>{x}()</code>), Ann"),
        ("go<kbd>X</kbd>go", "los X los", "0-0 1-1 2-2", "los <kbd>X</kbd> los"),
        ("<b>gone</b> here", "hier", "1-0", "<b></b>hier"),
        ("a </b> stray <i> tag", "ein loses Zeichen", "0-0 1-1 2-2", "ein </b> loses <i> Zeichen"),
        ("<b>all</b>", "", "", "<b></b>"),
    ],
)
def test_marks_surround_linked_words(source, target, linked, expected):
    assert MarkedText(source).place(target, links(linked)) == expected


@pytest.mark.parametrize(
    ("name", "text", "kept"),
    [
        ("urls", "see https://a.org/b?c=d, or www.x.de.", ["https://a.org/b?c=d", "www.x.de"]),
        ("emails", "to ann.lee@mail.example.org.", ["ann.lee@mail.example.org"]),
        ("placeholders", "{name} has %d of {{all}} at %(price)s: 5% off", ["{name}", "%d", "{{all}}", "%(price)s"]),
        ("codes", "B2B, v1.2.3 and AB-1234x on the 21st of 2019", ["B2B", "v1.2.3", "AB-1234x"]),
        ("numbers", "In 2019, 21,000.5 men at 10:30; 5.", ["2019", "21,000.5", "10:30", "5"]),
    ],
)
def test_protected_types_are_detected(name, text, kept):
    marked = MarkedText(text, tags=False, protect=[name])
    assert [mark.content for mark in marked.marks] == kept
    assert marked.text == text
    for mark in marked.marks:
        assert text[mark.start : mark.end] == mark.content


@pytest.mark.parametrize(
    ("target", "linked", "expected"),
    [
        ("Es gab 21.000 Hunde", "0-0 1-1 2-2 3-3", "Es gab 21,000 Hunde"),  # as linked
        ("Es gab 21,000 Hunde", "0-0 1-1 2-0 3-3", "Es gab 21,000 Hunde"),  # where it stands already
        ("Es gab viele Hunde", "0-0 1-1 3-3", "Es gab viele 21,000 Hunde"),  # beside its neighbours
        ("", "", "21,000"),
    ],
)
def test_protected_text_is_unchanged(target, linked, expected):
    assert MarkedText("There were 21,000 dogs", False, ["numbers"]).place(target, links(linked)) == expected


def test_protected_text_stays_in_its_element():
    marked = MarkedText("Pay <b>no 20 &lt; 30 <i>EUR</i></b> in 2019", protect=PROTECTED)
    target = "Zahl 2019 keine 21 < 30 EUR"
    found = marked.place(target, links("0-0 1-2 2-3 3-4 4-5 5-6 7-1"))
    assert found == "Zahl 2019 <b>keine 20 &lt; 30 <i>EUR</i></b>"


@pytest.mark.parametrize(
    ("source", "target", "linked", "expected"),
    [
        ("Hello {{name}}. Bye", "Hallo {{Name}}. Tschüss", "0-0 1-1 2-2", "Hallo {{name}}. Tschüss"),
        ("Hello ({name}) you", "Hallo ({Name}) du", "0-0 1-1 2-2", "Hallo ({name}) du"),
        ("Hello {name}, you won", "Hallo { Name }, du hast", "0-0 1-1 1-2 1-3 2-4", "Hallo {name}, du hast"),
        ("You have %d mails", "Du hast % d Mails", "0-0 1-1 2-2 3-3", "Du hast %d Mails"),
        ("It cost $5.00 or €3", "Es kostete 5,00 $ oder 3 €", "2-2 2-3 4-5", "Es kostete 5.00 $ oder 3 €"),
        ("The file {count} files", "Die {count}Dateien", "0-0 1-0 2-1 3-1", "Die {count}Dateien"),
        ("The %d files", "Die %dDateien", "0-0 1-1 2-1", "Die %dDateien"),
        ("{name}'s file", "{name}s Datei", "0-0 1-1", "{name}s Datei"),
        ("{name}'s file", "{Name}s Datei", "0-0 1-1", "{name}s Datei"),
        ("Pay {a}{b} now", "Zahl {B}{A} jetzt", "0-0 1-1 2-2", "Zahl {b}{a} jetzt"),
        ("See www.x.de now", "Sieh die www.x.de-Seite", "0-0 1-2 2-1", "Sieh die www.x.de-Seite"),
        ("5 km or 5,000 km", "5.000km oder 5km", "0-2 1-2 2-1 3-0 4-0", "5,000km oder 5km"),
        ("1,000,000 of them", "1 000 000 von ihnen", "1-3 2-4", "1,000,000 von ihnen"),
        ("In 2019 it was 7", "2018 war es 7", "0-0", "2019 war es 7"),  # the only ones left
        ("In 2019 it was 12", "2018 war es zwölf", "4-3", "2019 war es 12"),
        ("Ten dogs, 3 cats", "10 Hunde, drei Katzen", "0-0 1-1 2-2 3-3", "10 Hunde, 3 Katzen"),
    ],
)
def test_protected_text_replaces_its_altered_form(source, target, linked, expected):
    assert MarkedText(source, False, PROTECTED).place(target, links(linked)) == expected


BOUNDED = [
    ("", ""),
    *(("", mark) for mark in ",.;:!?…"),
    *zip("([\"'„“«‹¿¡*~", ")]\"'“”»›?!*~", strict=True),
    ("((", ")),"),
    ("„(", ").“"),
    ("", "'s"),
]
KEPT = [
    "{name}",
    "{{name}}",
    "${host}",
    "%(price)s",
    "v1.2.3",
    "AB-1234x",
    "21,000.5",
    "10:30",
    "ann.lee@mail.example.org",
]
KEPT += ["www.example.org/a?b=c"]


def other_case(_, kept):
    return kept.upper()


def other_separators(_, kept):
    return kept.translate(str.maketrans(",.:", ".,.")) if kept[0].isdigit() else kept.replace("{", "{ ")


def one_character(draw, kept):
    at = draw.choice([n for n, character in enumerate(kept) if character.isalnum()])
    return kept[:at] + draw.choice("89" if kept[at].isdigit() else "pq") + kept[at + 1 :]


def kinds(text):
    return [mark.protected_type for mark in MarkedText(text, False, PROTECTED).marks]


@pytest.mark.parametrize("alter", [other_case, other_separators, one_character])
def test_altered_text_is_replaced_completely(alter):
    draw, asked = random.Random(8), 0
    while asked < 1000:
        source, target, expected, tokens = [], [], [], []
        for _ in range(draw.randrange(1, 6)):
            source.append("".join(draw.choices("abc", k=3)))
            target.append("".join(draw.choices("xyz", k=3)) + draw.choice(["", ",", "."]))
            expected.append(target[-1])
            if draw.random() < 0.5:
                kept, (before, after) = draw.choice(KEPT), draw.choice(BOUNDED)
                altered = alter(draw, kept)
                tokens.append(kept)
                for text, copy in ((source, kept), (target, altered), (expected, kept)):
                    text.append(f"{before}{copy}{after}")
        marked = MarkedText(" ".join(source), False, PROTECTED)
        if tokens and [mark.content for mark in marked.marks] == tokens:  # a URL may hold what stands behind it
            asked += 1
            found = marked.place(" ".join(target), diagonal(" ".join(source)))
            assert found == " ".join(expected), (source, target)


def test_protected_text_occurs_as_often_as_in_the_source():
    draw = random.Random(9)
    for _ in range(2000):
        tokens = draw.choices(KEPT, k=draw.randrange(1, 5))
        source = " ".join(f"ab {kept}" for kept in tokens)
        alter = draw.choice([other_case, other_separators, one_character])
        copies = [draw.choice([kept, alter(draw, kept)]) for kept in tokens]
        copies = [copy if kinds(copy) == kinds(kept) else kept for copy, kept in zip(copies, tokens, strict=True)]
        draw.shuffle(copies)
        target = " ".join(f"xy {copy}," for copy in copies)
        linked = {(draw.randrange(2 * len(tokens)), draw.randrange(2 * len(tokens))) for _ in range(draw.randrange(9))}
        linked = {(s, t) for s, t in linked if not source.split()[s][0].isdigit()}  # its link may be a number in words
        found = MarkedText(source, False, PROTECTED).place(target, linked)
        assert Counter(re.findall(r"[^ ]+(?=,)", found)) == Counter(tokens), (source, target, linked, found)


def nested(draw: random.Random, depth: int = 0) -> str:
    """Words with elements and points in them, of the usual spacing."""
    parts = []
    for _ in range(draw.randrange(1, 5)):
        kind = draw.random()
        if kind < 0.3 and depth < 5:
            name = draw.choice("abiu")
            parts.append(f'<{name} n="{draw.randrange(99)}">{nested(draw, depth + 1)}</{name}>')
        elif kind < 0.4:
            parts.append(f'<x id="{draw.randrange(99)}"/>')
        else:
            parts.append("".join(draw.choices("abcdeé", k=draw.randrange(1, 6))) + draw.choice(["", "", ",", "&amp;"]))
    return " ".join(parts)


def tags(text: str) -> list[str]:
    return [match[0] for match in TAG.finditer(text)]


def nests(text: str) -> bool:
    opened = []
    for tag in tags(text):
        if tag.startswith("</"):
            if not opened or opened.pop() != tag[2:-1]:
                return False
        elif not tag.endswith("/>"):
            opened.append(tag[1])
    return not opened


def test_identity_links_restore_the_source():
    draw = random.Random(5)
    for _ in range(500):
        source = re.sub(r'<x id="\d+"/>', "", nested(draw)).replace(",", "").replace("&amp;", "")
        marked = MarkedText(source)
        back = marked.place(marked.text, diagonal(marked.text))
        assert closer(back) == closer(source)


def closer(text: str) -> str:
    """No spaces at the inner side of tags, and between elements without a word."""
    return re.sub(r"\s+", "", text)


def test_tags_stay_nested_for_any_links():
    draw = random.Random(6)
    for _ in range(2000):
        source = nested(draw)
        marked = MarkedText(source)
        if not marked.text:
            continue
        target = " ".join("".join(draw.choices("xyz", k=3)) + draw.choice(["", "."]) for _ in range(draw.randrange(9)))
        sizes = len(words(marked.text)), len(words(target))
        linked = (
            {(draw.randrange(sizes[0]), draw.randrange(sizes[1])) for _ in range(draw.randrange(9))}
            if all(sizes)
            else set()
        )
        found = marked.place(target, linked)
        assert Counter(tags(found)) == Counter(tags(source)), (source, found)
        assert nests(found), (source, found)
        assert html.unescape(TAG.sub("", found)).split() == target.split(), (source, found)


def test_malformed_markup_keeps_all_tags():
    draw = random.Random(7)
    pieces = [
        "<b>",
        "</b>",
        "<i>",
        "</i>",
        "<x/>",
        "<code>",
        "</code>",
        "<!-- c -->",
        "<",
        ">",
        "&",
        "a",
        " ",
        "1",
        '"',
    ]
    for _ in range(3000):
        source = "".join(draw.choices(pieces, k=draw.randrange(20)))
        marked = MarkedText(source, protect=PROTECTED)
        found = marked.place(marked.text, diagonal(marked.text))
        assert Counter(tags(found)) == Counter(tags(source)), (source, found)


def test_deep_nesting_is_accepted():
    for source in ("<b>" * 500 + "x" + "</b>" * 500, "<b>a " * 500 + "</b>" * 500, "<i>" * 300 + "<b>x</b>"):
        marked = MarkedText(source)
        found = marked.place(marked.text, diagonal(marked.text))
        assert Counter(tags(found)) == Counter(tags(source))


def test_untranslatable_text_is_unchanged():
    for source in ("<x/> <b></b>", " <code>a</code>  21", "&nbsp;<br>", ""):
        marked = MarkedText(source, protect=["numbers"])
        assert marked.text == ""
        assert marked.place("", []) == source


def test_text_without_marks_is_unchanged():
    assert MarkedText("a < b & c", tags=False).place("x < y & z", []) == "x < y & z"
