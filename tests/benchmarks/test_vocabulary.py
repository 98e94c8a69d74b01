"""The benchmark of large vocabularies at toy size."""

from benchmarks import vocabulary


def test_a_part_has_fewer_words_than_the_vocabulary(monkeypatch, tmp_path):
    monkeypatch.setattr(vocabulary, "seconds_of", lambda work, *_: (work(), 0.5)[1])
    for way in vocabulary.WAYS:
        found = vocabulary.measured(9_000, way, batches=2, folder=tmp_path)
        assert {"parts": 20 < found["words"] < 900, "NCE": found["words"] == 500}.get(way, True)
        assert found["update"] == found["search"] == 0.5 and found["mib"] > 0
