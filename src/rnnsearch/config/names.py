"""The parts without options of their own: their names and what each is. Imports no torch."""

from __future__ import annotations

from typing import Annotated

from rnnsearch.config.choice import NameIn

CELLS = {
    "gru": "The GRU of Bahdanau et al.: 1 - z carries the old state, the reset acts before U.",
    "cho-gru": "The unit of Cho et al.: z carries the old state, the reset acts before U.",
    "torch-gru": "PyTorch's GRU, one fused call over a whole source sentence: z carries the old state, the reset acts "
    "after U.",
    "lstm": "Long short-term memory, without peepholes.",
    "tanh": "The plain recurrent cell.",
    "layer-norm-gru": "The GRU with layer normalisation of W x and U h (Ba et al. 2016).",
    "layer-norm-lstm": "The LSTM with layer normalisation of W x, U h and the memory (Ba et al. 2016).",
    "gate-norm-lstm": "The LSTM with layer normalisation of each gate's sum (after Chen et al. 2018).",
    "rnmt-lstm": "The same without a tanh on its output, h' = o * c' (RNMT+: Chen et al. 2018).",
    "ssru": "The simpler simple recurrent unit (Kim et al. 2019): a gate and no product with the state. For "
    "decoders of small, fast models.",
}
BRIDGES = {
    "zero": "First states of zeros.",
    "copy": "The encoder's last states, layer by layer, of equal sizes and kinds.",
    "learned": "A tanh layer over them, for any sizes.",
    "learned-top": "A tanh layer over the top one's for each layer of the decoder (JoeyNMT's `bridge`).",
    "rectified": "A layer of max(0, x) over those of all layers together, h and memory cells each by their own, "
    "for any sizes (OpenNMT-py's `bridge`).",
}
NORMALISERS = {
    "softmax": "The softmax (Bahdanau et al., eq. 6).",
    "sparsemax": "The nearest distribution, which is 0 at many positions (Martins & Astudillo 2016). Needs `pip "
    "install entmax`.",
    "entmax15": "Between the two (Peters et al. 2019). Needs `pip install entmax`.",
    "hard": "One position: drawn from the softmax in training, the best in search (Xu et al. 2015). Needs "
    "`[objective.reinforce]`.",
    "exponential": "exp(e), which sum to anything: with the even score and the mixture window, Graves 2013.",
    "monotonic": "Reads on from where it stopped and learns where to stop (Raffel et al. 2017): expected weights in "
    "training, one position in search.",
    "linear-chain": "Neighbouring positions are chosen together: the marginals of a chain (after Kim et al. 2017).",
}
ALIGNMENT_LOSSES = {
    "cross-entropy": "Minus the sum of gold times log of the weights.",
    "squared-error": "Half the squared difference.",
    "product": "Minus the logarithm of the sum of gold times the weights.",
}
LENGTH_NORMS = {
    "power": "The length.",
    "gnmt": "(5 + length) / 6 (Wu et al. 2016).",
    "power-with-bos": "The length and the symbol before the first (OpenNMT-py's `avg`).",
}
STOPS = {
    "bound": "When `beam` hypotheses have finished, or none that goes on can still be better. Where one finishes, the "
    "next best takes its place; one cut at its maximal length is worse than any that has finished.",
    "top": "When the best continuation of a step is the end of a sentence (OpenNMT-py). Where one finishes, its place "
    "is empty until the next step; what is cut at its maximal length counts as finished.",
}

Cell = Annotated[str, NameIn(CELLS)]
Bridge = Annotated[str, NameIn(BRIDGES)]
NormaliserName = Annotated[str, NameIn(NORMALISERS)]
AlignmentLoss = Annotated[str, NameIn(ALIGNMENT_LOSSES)]
LengthNorm = Annotated[str, NameIn(LENGTH_NORMS)]
Stop = Annotated[str, NameIn(STOPS)]
