"""`prepare` warns about corpora whose columns are swapped or in another language."""

import pytest

from rnnsearch.config import DataConfig
from rnnsearch.data.language_check import language_warnings

ENGLISH = "The old dog sleeps in the garden behind our house number {}."
GERMAN = "Der alte Hund schläft im Garten hinter unserem Haus Nummer {}."
FRENCH = "Le vieux chien dort dans le jardin derrière notre maison numéro {}."
SWAPPED = "a.tsv: source and target look swapped: most source sentences are German"


@pytest.mark.parametrize(
    ("source", "target", "warnings"),
    [
        (ENGLISH, GERMAN, []),
        (GERMAN, ENGLISH, [SWAPPED]),
        (FRENCH, GERMAN, ["a.tsv: most source sentences do not look English"]),
        (ENGLISH, FRENCH, ["a.tsv: most target sentences do not look German"]),
        ("OK {}", "Ja {}", []),
    ],
    ids=["right", "swapped", "wrong source", "wrong target", "too short"],
)
def test_warnings_about_languages(tmp_path, source, target, warnings):
    lines = (f"{source.format(n)}\t{target.format(n)}\n" for n in range(30))
    (tmp_path / "a.tsv").write_text("".join(lines), encoding="utf-8")
    data = DataConfig(source="en", target="de", train=["a.tsv"])
    assert language_warnings(data, tmp_path) == warnings


def test_unidentifiable_languages_are_not_checked(tmp_path):
    (tmp_path / "a.tsv").write_text(f"{ENGLISH}\t{GERMAN}\n" * 30, encoding="utf-8")
    assert language_warnings(DataConfig(source="xx", target="de", train=["a.tsv"]), tmp_path) == []
