"""The benchmark of large vocabularies at toy size."""

from benchmarks import vocabulary


def test_a_part_has_fewer_words_than_the_vocabulary(monkeypatch, tmp_path):
    monkeypatch.setattr(vocabulary, "seconds_of", lambda work, *_: (work(), 0.5)[1])
    for way in vocabulary.WAYS:
        found = vocabulary.measured(9_000, way, batches=2, folder=tmp_path)
        assert {"parts": 20 < found["words"] < 900, "NCE": found["words"] == 500}.get(way, True)
        assert found["update"] == found["search"] == 0.5 and found["mib"] > 0


def test_the_curves_are_of_every_way():
    rows = [[f"{size:,}", way, size, 1e6 / size, 900.0, 100.0, 50.0] for size in (8_000, 30_000) for way in "abcdef"]
    figure = vocabulary.curves(rows)
    *_, memory = figure.axes
    assert [len(axes.get_lines()) for axes in figure.axes] == [6, 6, 6]
    assert memory.get_lines()[5].get_xydata().tolist() == [[8_000.0, 800.0], [30_000.0, 800.0]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list("abcdef")
