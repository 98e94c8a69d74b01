"""The papers' decoder equations as loops over the target positions of one sentence."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from tests.models import reference as paper
from tests.models.reference import Array, Parameters, State, product, sigma, within


class Sentence(NamedTuple):
    """One sentence as a reference decoder reads it.

    Args:
        words: Embedded previous word of each target position, [I, E].
        annotations: Annotations of the source, [J, H].
        summary: The encoder's summary vector, [S].
        finals: Last state of each encoder layer.
    """

    words: Array
    annotations: Array
    summary: Array
    finals: tuple[State, ...] = ()


class Position(NamedTuple):
    """Results at one target position: the readout, the state it depends on, c_i, and the attention weights if any."""

    readout: Array
    state: Array
    context: Array
    alpha: Array | None = None


def deep_output(p: Parameters, s: Array, y: Array, c: Array) -> Array:
    """t_i = [max(t~_{i,2j-1}, t~_{i,2j})]_j with t~_i = U_o s + V_o E y_{i-1} + C_o c_i (backup slides, A.2.2)."""
    t = _readout(p, s, y, c)
    return np.array([max(t[2 * j], t[2 * j + 1]) for j in range(len(t) // 2)])


def tanh_output(p: Parameters, s: Array, y: Array, c: Array) -> Array:
    """t_i = tanh(W_t1 s_i + W_t2 E y_{i-1} + W_t3 c_i) (Sennrich et al. 2017, section 3)."""
    return np.tanh(_readout(p, s, y, c))


def _readout(p: Parameters, s: Array, y: Array, c: Array) -> Array:
    return (
        product(p["state.weight"], s) + p["state.bias"] + product(p["word.weight"], y) + product(p["context.weight"], c)
    )


def first(p: Parameters, vector: Array) -> Array:
    """s_0 = tanh(W v + b)."""
    return np.tanh(product(p["initial.weight"], vector) + p["initial.bias"])


def mean(annotations: Array) -> Array:
    return sum(annotations) / len(annotations)


def attend(p: Parameters, query: Array, annotations: Array) -> tuple[Array, Array]:
    """Return the additive attention weights alpha_ij of all j, and c_i."""
    alpha = paper.softmax(paper.energies(within(p, "attention.score"), query, annotations))
    return alpha, paper.context(alpha, annotations)


def bahdanau(
    p: Parameters, sentence: Sentence, cell: str, output: Callable[..., Array] = deep_output
) -> Iterator[Position]:
    """Bahdanau et al. 2015, A.1.2 and A.2.2; the output reads s_{i-1}, the state BEFORE the update of this step."""
    own, state = within(p, "cell"), paper.start(cell, first(p, sentence.summary))
    for y in sentence.words:
        s = state[0]
        alpha, c = attend(p, s, sentence.annotations)
        yield Position(output(within(p, "deep_output"), s, y, c), s, c, alpha)
        state = paper.CELLS[cell](own, paper.inputs(own, y) + product(p["context.weight"], c), state)


def cohn(p: Parameters, sentence: Sentence, cell: str) -> Iterator[Position]:
    """Cohn et al. 2016, section 2; the first state is zero, and the output reads the NEW state."""
    own, D = within(p, "cell"), len(p["deep_output.context.weight"])
    state = paper.start(cell, np.zeros(D))
    for y in sentence.words:
        alpha, c = attend(p, state[0], sentence.annotations)
        state = paper.CELLS[cell](own, paper.inputs(own, y) + product(p["context.weight"], c), state)
        t = state[0] + product(p["deep_output.context.weight"], c) + product(p["deep_output.word.weight"], y)
        yield Position(np.tanh(t), state[0], c, alpha)


def bi_scale(p: Parameters, sentence: Sentence) -> Iterator[Position]:
    """Chung et al. 2016, section 4.2.

    The faster layer reads the slower layer through its own previous gate. The slower layer reads the faster one and
    is updated in proportion to the new gate.
    """
    D = p["fast.weight"].shape[1]
    start = first(p, mean(sentence.annotations))
    h1, h2, g1, g2 = start[:D], start[D:], np.zeros(D), np.zeros(D)
    W, b, U, down = p["word.weight"], p["word.bias"], p["fast.weight"], p["down.weight"]
    V, b2, T, C = p["up.weight"], p["up.bias"], p["slow.weight"], p["context.weight"]
    for y in sentence.words:
        alpha, c = attend(p, h2, sentence.annotations)
        new_g1, new_h1 = (
            bend(
                product(W[own], y)
                + product(U[own], (1 - g1) * h1)
                + product(down[own], g1 * h2)
                + product(C[own], c)
                + b[own]
            )
            for bend, own in ((sigma, slice(0, D)), (np.tanh, slice(D, 2 * D)))
        )
        new_g2, h2_tilde = (
            bend(
                product(V[own], new_g1 * new_h1)
                + product(T[own], (1 - g2) * h2)
                + product(C[2 * D :][own], c)
                + b2[own]
            )
            for bend, own in ((sigma, slice(0, D)), (np.tanh, slice(D, 2 * D)))
        )
        g1, h1, g2, h2 = new_g1, new_h1, new_g2, (1 - new_g1) * h2 + new_g1 * h2_tilde
        both = np.concatenate([h1, h2])
        yield Position(tanh_output(within(p, "deep_output"), both, y, c), both, c, alpha)


def rnnencdec(p: Parameters, sentence: Sentence, cell: str) -> Iterator[Position]:
    """Bahdanau et al. 2015, A.2.2, with the encoder's last state as the context of every position."""
    own, c = within(p, "cell"), sentence.summary
    state = paper.start(cell, first(p, c))
    for y in sentence.words:
        yield Position(deep_output(within(p, "deep_output"), state[0], y, c), state[0], c)
        state = paper.CELLS[cell](own, paper.inputs(own, y) + product(p["context.weight"], c), state)


def cho(p: Parameters, sentence: Sentence) -> Iterator[Position]:
    """Cho et al. 2014, A.1.2; the reset gate multiplies both products, and the output reads the NEW state."""
    W, b, U, C = p["word.weight"], p["word.bias"], p["recurrent.weight"], p["context.weight"]
    c = np.tanh(product(p["summary.weight"], sentence.summary) + p["summary.bias"])
    h = first(p, c)
    D = len(h)
    for y in sentence.words:
        new = np.empty(D)
        for k in range(D):
            z = sigma(W[k] @ y + b[k] + U[k] @ h + C[k] @ c)
            r = sigma(W[D + k] @ y + b[D + k] + U[D + k] @ h + C[D + k] @ c)
            candidate = np.tanh(W[2 * D + k] @ y + b[2 * D + k] + r * (U[2 * D + k] @ h + C[2 * D + k] @ c))
            new[k] = z * h[k] + (1 - z) * candidate
        h = new
        yield Position(deep_output(within(p, "deep_output"), h, y, c), h, c)


def transition(p: Parameters, cell: str, x: Array | None, state: State) -> State:
    """Return the next state of one cell; without inputs, GRU_k(0, s), the cell reads only its biases."""
    return paper.CELLS[cell](p, p["input.bias"] if x is None else paper.inputs(p, x), state)


def conditional(
    p: Parameters, cell: str, y: Array, state: State, annotations: Array, transitions: int
) -> tuple[State, Array, Array]:
    """s' = GRU_1(E y, s), c = ATT(s'), GRU_2(c, s'), then transitions (Miceli Barone et al. 2017, section 3.1)."""
    between = transition(within(p, "word"), cell, y, state)
    alpha, c = attend(p, between[0], annotations)
    state = transition(within(p, "context"), cell, c, between)
    for k in range(transitions):
        state = transition(within(p, f"transitions.cells.{k}"), cell, None, state)
    return state, alpha, c


def cgru(p: Parameters, sentence: Sentence, cell: str, transitions: int = 0) -> Iterator[Position]:
    """Sennrich et al. 2017, section 3; the cell `torch-gru` is the GRU of Nematus."""
    h = sentence.annotations
    state = paper.start(cell, first(p, mean(h)))
    for y in sentence.words:
        state, alpha, c = conditional(within(p, "cell"), cell, y, state, h, transitions)
        yield Position(tanh_output(within(p, "output"), state[0], y, c), state[0], c, alpha)


def bideep(p: Parameters, sentence: Sentence, layers: int, residual_from: int | None) -> Iterator[Position]:
    """Miceli Barone et al. 2017, section 3.3, with Bahdanau's GRU and one transition per layer."""
    h = sentence.annotations
    s = [(part,) for part in np.split(first(p, mean(h)), layers)]
    for y in sentence.words:
        s[0], alpha, c = conditional(within(p, "first"), "gru", y, s[0], h, 1)
        (w,) = s[0]
        for r in range(1, layers):
            own = within(p, f"upper.{r - 1}")
            s[r] = transition(within(own, "cell"), "gru", np.concatenate([w, c]), s[r])
            s[r] = transition(within(own, "transitions.cells.0"), "gru", None, s[r])
            w = s[r][0] + w if residual_from is not None and r + 1 >= residual_from else s[r][0]
        yield Position(tanh_output(within(p, "output"), w, y, c), w, c, alpha)


def sutskever(p: Parameters, sentence: Sentence, residual_from: int | None) -> Iterator[Position]:
    """Sutskever et al. 2014; the decoder depends on the source only through its first states."""
    states = list(sentence.finals)
    for y in sentence.words:
        h = paper.stack("lstm", within(p, "stack"), states, y, residual_from)
        yield Position(h, h, np.zeros(0))


def h_tilde(p: Parameters, c: Array, h: Array, kind: str) -> Array:
    """h~_t = tanh(W_c [c_t; h_t]) (Luong et al. 2015, eq. 5).

    JoeyNMT adds a bias: tanh(W_c [c_t; h_t] + b). OpenNMT-py's `mlp` has no tanh: W_c [c_t; h_t] + b.
    """
    sums = product(p["attentional.combine.weight"], np.concatenate([c, h]))
    assert (kind == "tanh") == ("attentional.combine.bias" not in p)
    sums = sums if kind == "tanh" else sums + p["attentional.combine.bias"]
    return sums if kind == "linear" else np.tanh(sums)


def luong(p: Parameters, sentence: Sentence, residual_from: int | None, kind: str = "tanh") -> Iterator[Position]:
    """Luong et al. 2015, section 3; the state of the top layer attends."""
    states = list(sentence.finals)
    for y in sentence.words:
        h = paper.stack("lstm", within(p, "stack"), states, y, residual_from)
        alpha, c = attend(p, h, sentence.annotations)
        yield Position(h_tilde(p, c, h, kind), h, c, alpha)


def luong_input_feeding(
    p: Parameters, sentence: Sentence, residual_from: int | None, kind: str = "tanh"
) -> Iterator[Position]:
    """Luong et al. 2015, section 3.3; the previous h~ is an input together with the word."""
    states, fed = list(sentence.finals), np.zeros(len(p["attentional.combine.weight"]))
    for y in sentence.words:
        more = product(p["feeding.weight"], fed)
        h = paper.stack("lstm", within(p, "stack"), states, y, residual_from, more)
        alpha, c = attend(p, h, sentence.annotations)
        fed = h_tilde(p, c, h, kind)
        yield Position(fed, fed, c, alpha)


def neubig(p: Parameters, sentence: Sentence, residual_from: int | None) -> Iterator[Position]:
    """Neubig's tutorial, eq. 71-75."""
    F, states = sentence.annotations, list(sentence.finals)
    c = np.zeros(F.shape[1])
    for y in sentence.words:
        more = product(p["context.weight"], c)  # (72): the columns of W for c_{t-1}
        h = paper.stack("lstm", within(p, "stack"), states, y, residual_from, more)
        alpha, c = attend(p, h, F)  # (73), (74), (71)
        yield Position(np.concatenate([h, c]), h, c, alpha)  # (75)


def rnmt_plus(p: Parameters, sentence: Sentence, residual_from: int | None) -> Iterator[Position]:
    """Chen et al. 2018, section 3; the bottom layer attends, and all layers and the output read c_i."""
    annotations = np.stack([product(p["projection.weight"], h) + p["projection.bias"] for h in sentence.annotations])
    states = list(sentence.finals)
    for y in sentence.words:
        alpha, c = attend(p, states[0][0], annotations)
        more = product(p["context.weight"], c)
        x = paper.stack("lstm", within(p, "stack"), states, y, residual_from, more, c)
        yield Position(np.concatenate([x, c]), x, c, alpha)


def addressed(p: Parameters, buffer: Array, s: Array, before: Array) -> Array:
    """w(k) = g w_before(k) + (1 - g) softmax_k v^T tanh(A M(k) + B s).

    Without a query matrix there is no tanh; any term that depends only on s then cancels in the softmax.
    """
    hidden = [product(p["slot.weight"], cell) for cell in buffer]
    if "query.weight" in p:
        hidden = [np.tanh(numbers + product(p["query.weight"], s)) for numbers in hidden]
    else:
        hidden = [numbers + np.sin(s[: len(numbers)].sum()) for numbers in hidden]
    weights = paper.softmax(np.array([p["vector"] @ numbers for numbers in hidden]))
    g = sigma(p["gate.weight"][0] @ s + p["gate.bias"][0])
    return g * before + (1 - g) * weights


def memdec(p: Parameters, sentence: Sentence, cell: str, slots: int, own_heads: bool = False) -> Iterator[Position]:
    """Wang et al. 2016, section 3; each step reads, attends, updates the state, then erases and adds.

    With `own_heads`, reading and writing have separate heads with a tanh, and the buffer starts from learned values.
    """
    own, controller = within(p, "cell"), paper.start(cell, first(p, sentence.summary))
    begin = product(p["first_buffer.weight"], mean(sentence.annotations))
    if own_heads:
        buffer = np.tanh(begin + p["first_buffer.bias"]).reshape(slots, -1)
    else:
        buffer = np.stack([sigma(begin) + noise for noise in p["noise"]])
    read = write = np.full(slots, 1 / slots)
    for y in sentence.words:
        fed_back = product(p["recurrent.weight"], controller[0])
        between = np.tanh(product(p["word.weight"], y) + p["word.bias"] + fed_back)
        read = addressed(within(p, "reader"), buffer, between, read)
        r = sum(w * slot for w, slot in zip(read, buffer, strict=True))
        alpha, c = attend(p, between, sentence.annotations)
        share = paper.inputs(own, np.concatenate([c, r]))
        controller = paper.CELLS[cell](own, share, (between, *controller[1:]))
        s = controller[0]
        write = addressed(within(p, "writer"), buffer, s, write) if own_heads else read
        erase, add = sigma(product(p["erase.weight"], s)), sigma(product(p["add.weight"], s))
        buffer = np.stack([slot * (1 - w * erase) + w * add for w, slot in zip(write, buffer, strict=True)])
        yield Position(deep_output(within(p, "deep_output"), s, y, c), s, c, alpha)
