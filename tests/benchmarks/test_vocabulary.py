"""The benchmark of large vocabularies at toy size."""

from benchmarks import vocabulary


def test_softmax_of_a_part_is_smaller_than_the_vocabulary(monkeypatch, tmp_path):
    monkeypatch.setattr(vocabulary, "best_seconds", lambda function, *_: (function(), 0.5)[1])
    for method in vocabulary.METHODS:
        row = vocabulary.measure(9_000, method, batches=2, folder=tmp_path)
        if method == "parts":
            assert 20 < row["words"] < 900
        elif method == "NCE":
            assert row["words"] == 500
        assert row["update"] == row["search"] == 0.5
        assert row["mib"] > 0


def test_figure_has_a_curve_per_method():
    rows = []
    for size in (8_000, 30_000):
        rows += [[f"{size:,}", method, size, 1e6 / size, 900.0, 100.0, 50.0] for method in "abcdef"]
    figure = vocabulary.plot(rows)
    *_, memory = figure.axes
    assert [len(axes.get_lines()) for axes in figure.axes] == [6, 6, 6]
    assert memory.get_lines()[5].get_xydata().tolist() == [[8_000.0, 800.0], [30_000.0, 800.0]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list("abcdef")
