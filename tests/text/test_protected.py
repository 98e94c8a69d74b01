"""Recognition of text that must stay letter for letter."""

import pytest

from rnnsearch.text.markup.protected import (
    DEFAULT_PROTECTED,
    NO_PRINTF,
    PRINTF,
    PROTECTED,
    find_protected,
    protected_pattern,
)
from rnnsearch.text.sentences import sentence_spans

WHOLE = [
    line.strip()
    for line in """
        %s | %d | %i | %u | %ld | %lu | %lld | %zu | %x | %c | %.2f | %05d | %-10s | %+d | %.*f | %*d | %1$.2f | %12$s
        %@ | %1$@ | %I64d | %% | %(price).2f | %(n)5d | %(name)s | %{name} | %<n>s | %<n>.2f | #{name} | {} | {0}
        {name!r:>10} | {0:N2} | {name} | {{name}} | {{{name}}} | ${host} | $t(menu.file) | $NAME$ | %name% | %1% | %1
        %L1 | %n | __name__ | @@name@@ | [[name]] | <%=name%> | [X29X] | [X7X] | (((1))) | ⟦3⟧ | <x/>
        <1> | </1> | <2/>
        {{ name }} | { name } | {first name} | {n, plural, one {# file} other {# files}} | <file> | <a href="b"> | </a>
        <x id="29"></x> | <x id="1"/> | <ph id="1">{0}</ph> | <span id="7"></span> | www.a.org/b | HTTPS://EXAMPLE.ORG/A
        https://a.org/x(y) | https://a.org/b?c=d&e=f#g | ann.lee@mail.example.org
    """.replace("\n", "|").split("|")
    if line.strip()
]


@pytest.mark.parametrize("text", WHOLE)
def test_protected_text_is_found_whole(text):
    assert [match[0] for match in find_protected(f"Open {text} now", DEFAULT_PROTECTED)] == [text]
    # At the end of a sentence and in brackets.
    assert [match[0] for match in find_protected(f"Open ({text}).", DEFAULT_PROTECTED)] == [text]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Copying %dKB.", ["%d"]),
        ("%sの", ["%s"]),
        ("%d%% full", ["%d", "%%"]),
        ("Page %1 of %2.", ["%1", "%2"]),
        ("100% sure, 50%of 5 % d", []),
        ("{ open", []),
        ("a } b {c}", ["{c}"]),
        ("(see https://a.org/x(y)).", ["https://a.org/x(y)"]),
        ("https://a.org, www.x.de!", ["https://a.org", "www.x.de"]),
        ("见https://a.org/b。", ["https://a.org/b"]),
        ("xwww.a.org", []),
        ("[1] and [a] and [see 3]", []),
        ("_ and __ and ____", []),
        ("5 < 6 > 3", []),
    ],
)
def test_default_types(text, found):
    assert [match[0] for match in find_protected(text, DEFAULT_PROTECTED)] == found


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("codes", "B2B, v1.2.3-beta and AB-1234x on the 21st of 2019", ["B2B", "v1.2.3-beta", "AB-1234x"]),
        ("numbers", "In 2019, 21,000.5 men at 10:30; 5.", ["2019", "21,000.5", "10:30", "5"]),
        ("numbers", "-5 to +5, 5-10 km, 2024-05-17, 555-1234", ["-5", "+5", "5-10", "2024-05-17", "555-1234"]),
        ("numbers", "1 000 000, 1'000 and $5.50", ["1 000 000", "1'000", "5.50"]),
        ("numbers", "192.168.0.1, 12/5, 50%, AB-17, 3rd", ["192.168.0.1", "12/5", "50"]),
    ],
)
def test_optional_types(name, text, found):
    assert [match[0] for match in find_protected(text, [name])] == found


def test_recognisers_are_shared():
    types = [*DEFAULT_PROTECTED, *reversed(DEFAULT_PROTECTED)]
    assert protected_pattern(types) is protected_pattern(DEFAULT_PROTECTED)


def test_grammars():
    text = "% d of 100%s"
    assert [match[0] for match in find_protected(text, PROTECTED[:3], PRINTF)] == ["% d", "%s"]
    assert find_protected(text, PROTECTED[:3]) == []
    assert find_protected("%s", PROTECTED[:3], NO_PRINTF) == []


def test_matches_have_offsets_and_types():
    text = "{name} at www.a.org"
    for match in protected_pattern(PROTECTED).finditer(text):
        assert text[slice(*match.span())] == match[0] == match.text
    assert [match.type for match in find_protected(text, PROTECTED)] == ["placeholders", "urls"]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Go. {n, plural, one {A file. It} other {# files}} on. Stop.", 2),
        ("Go {0}. Stop {1}.", 2),
        ("{a. b", 1),
        ('See <a title="A. B. C">it</a>. Go.', 2),
        ("{n, plural,\n  one {x}\n  other {y}}\nGo.", 2),
        ("%s. %s", 2),
    ],
)
def test_sentences_do_not_end_inside_placeholders(text, sentences):
    spans = sentence_spans(text, "en")
    assert len(spans) == sentences
    for match in find_protected(text, DEFAULT_PROTECTED):
        assert any(start <= match.start and match.end <= end for start, end in spans)
