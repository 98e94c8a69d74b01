"""Source words that have not arrived have no effect in wait-k and monotonic models."""

import torch

from rnnsearch.config import resolve
from rnnsearch.data.batches import Stream
from rnnsearch.search.decode import decode_all
from rnnsearch.search.model_scorer import ModelScorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.systems.translation import build

DATA = {"source": "en", "target": "de", "corpus": "x"}
SIZES = ["model.encoder.size=12", "model.decoder.size=12", "model.decoder.readout=8", "model.embedding=8"]
WAIT = 2


def model_of(preset="wait-k-small", *settings):
    made = resolve({"preset": preset, "data": DATA}, [*SIZES, *settings])
    model = build(made.model, 30, 30, seed=1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7, generator=torch.Generator().manual_seed(parameter.numel()))
    return model.double().eval()


def test_readout_depends_only_on_words_that_have_arrived():
    model = model_of("wait-k-small", f"model.attention.wait={WAIT}")
    source = torch.randint(4, 30, (1, 12), generator=torch.Generator().manual_seed(2))
    target = torch.randint(4, 30, (1, 9), generator=torch.Generator().manual_seed(3))

    def readouts(ids):
        return model.unroll(target, model.encode({"source": Stream.from_ids(ids)})).readout[0]

    whole, seen = readouts(source), []
    for last in range(2, 12):
        other = source.clone()
        other[:, last:] = (other[:, last:] - 3) % 26 + 4
        changed = readouts(other)
        waits = last - WAIT + 1  # number of target positions that read fewer than `last` + 1 tokens
        torch.testing.assert_close(changed[:waits], whole[:waits], rtol=1e-12, atol=1e-12)
        seen.append(not torch.allclose(changed[waits:], whole[waits:]))
    assert sum(seen) > 5, "words that have arrived must change the readout"


def test_unread_words_have_no_effect():
    model = model_of("monotonic-small", "model.attention.size=16")
    target = torch.randint(4, 30, (1, 9), generator=torch.Generator().manual_seed(3))

    def unrolled(ids):
        return model.unroll(target, model.encode({"source": Stream.from_ids(ids)}))

    stopped = []
    for seed in range(40):
        source = torch.randint(4, 30, (1, 12), generator=torch.Generator().manual_seed(seed))
        whole = unrolled(source)
        for last in range(2, 12):
            other = source.clone()
            other[:, last:] = (other[:, last:] - 3) % 26 + 4
            stops = [alpha.nonzero().flatten().tolist() for alpha in whole.reading.alpha[0]]
            read = sum(1 for stop in stops if stop and stop[0] < last)
            torch.testing.assert_close(
                unrolled(other).readout[0, :read], whole.readout[0, :read], rtol=1e-12, atol=1e-12
            )
            stopped.append(read)
    assert max(stopped) > 3 and len(set(stopped)) > 3


def test_greedy_search_of_a_prefix_gives_the_same_start():
    model = model_of("wait-k-small", f"model.attention.wait={WAIT}")
    sources = [[5, 9, 13, 17, 21, 25, 7, 8], [5, 9, 13, 17, 6, 10, 14, 18]]
    options = SearchOptions(beam=1, max_extra=6, max_ratio=1.0)
    one, other = (best[0].ids for best in decode_all(ModelScorer(model), sources, options, 2))
    same = 4 - WAIT + 1
    assert list(one[:same]) == list(other[:same])
    assert len(one) >= same
