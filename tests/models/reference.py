"""The papers' equations as NumPy loops over single units: the reference for the package's modules.

The code is neither fast nor short: each line is a line of the paper. `p` contains a module's parameters by name.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
Parameters = Mapping[str, Array]
State = tuple[Array, ...]


def sigma(x: float) -> float:
    return 1.0 / (1.0 + np.exp(-x))


def product(W: Array, x: Array) -> Array:
    """Return W x, summed element by element."""
    return np.array([sum(W[k, m] * x[m] for m in range(len(x))) for k in range(len(W))])


def inputs(p: Parameters, x: Array) -> Array:
    """Return the input term of every gate: W x + b, or LN(W x) if the cell normalises it separately."""
    share = product(p["input.weight"], x)
    if "input.bias" in p:
        return share + p["input.bias"]
    if "norm_input_gates.gain" in p:
        n = len(p["norm_input.gain"])
        gates = norm(share[: 2 * n], p["norm_input_gates.gain"], p["norm_input_gates.bias"])
        return np.concatenate([gates, norm(share[2 * n :], p["norm_input.gain"], p["norm_input.bias"])])
    return norm(share, p["norm_input.gain"], p["norm_input.bias"]) if "norm_input.gain" in p else share


def norm(a: Array, gain: Array, bias: Array) -> Array:
    """g (a - mu) / sigma + b, element by element, with 1e-5 added to the variance (Ba et al. 2016, eq. 4)."""
    mean = sum(a) / len(a)
    variance = sum((number - mean) ** 2 for number in a) / len(a)
    deviation = (variance + 1e-5) ** 0.5
    return np.array([g * (number - mean) / deviation + b for number, g, b in zip(a, gain, bias, strict=True)])


def gru(p: Parameters, share: Array, state: State) -> State:
    """Bahdanau et al. 2015, A.1.1: s' = (1 - z) s + z s~, s~ = tanh(W x + U [r s])."""
    return _papers_gru(p, share, state, old_with_z=False)


def cho_gru(p: Parameters, share: Array, state: State) -> State:
    """Cho et al. 2014, eq. 5-8: h' = z h + (1 - z) h~."""
    return _papers_gru(p, share, state, old_with_z=True)


def _papers_gru(p: Parameters, share: Array, state: State, old_with_z: bool) -> State:
    (h,) = state
    n = len(h)
    U_z, U_r, U = p["recurrent_gates.weight"][:n], p["recurrent_gates.weight"][n:], p["recurrent.weight"]
    z = [sigma(share[k] + U_z[k] @ h) for k in range(n)]
    r = [sigma(share[n + k] + U_r[k] @ h) for k in range(n)]
    new = np.empty(n)
    for k in range(n):
        reset = sum(U[k, m] * (r[m] * h[m]) for m in range(n))
        candidate = np.tanh(share[2 * n + k] + reset)
        new[k] = z[k] * h[k] + (1 - z[k]) * candidate if old_with_z else (1 - z[k]) * h[k] + z[k] * candidate
    return (new,)


def torch_gru(p: Parameters, share: Array, state: State) -> State:
    """`torch.nn.GRU`, as documented by PyTorch; the reset gate multiplies the product and its bias."""
    (h,) = state
    n = len(h)
    U_r, U_z, U = (p["recurrent.weight"][b * n : (b + 1) * n] for b in range(3))
    b_r, b_z, b = (p["recurrent.bias"][k * n : (k + 1) * n] for k in range(3))
    new = np.empty(n)
    for k in range(n):
        r = sigma(share[k] + U_r[k] @ h + b_r[k])
        z = sigma(share[n + k] + U_z[k] @ h + b_z[k])
        candidate = np.tanh(share[2 * n + k] + r * (U[k] @ h + b[k]))
        new[k] = (1 - z) * candidate + z * h[k]
    return (new,)


def lstm(p: Parameters, share: Array, state: State) -> State:
    """Tutorial, part 2b: h = o tanh(c), c' = f c + i c~."""
    h, c = state
    n = len(h)
    U_i, U_f, U_o, U_c = (p["recurrent.weight"][b * n : (b + 1) * n] for b in range(4))
    new_h, new_c = np.empty(n), np.empty(n)
    for k in range(n):
        i = sigma(share[k] + U_i[k] @ h)
        f = sigma(share[n + k] + U_f[k] @ h)
        o = sigma(share[2 * n + k] + U_o[k] @ h)
        candidate = np.tanh(share[3 * n + k] + U_c[k] @ h)
        new_c[k] = f * c[k] + i * candidate
        new_h[k] = o * np.tanh(new_c[k])
    return new_h, new_c


def tanh(p: Parameters, share: Array, state: State) -> State:
    """Tutorial, part 2a: h' = tanh(W x + U h + b)."""
    (h,) = state
    return (np.array([np.tanh(share[k] + p["recurrent.weight"][k] @ h) for k in range(len(h))]),)


def layer_norm_gru(p: Parameters, share: Array, state: State) -> State:
    """Ba et al. 2016, supplement, eq. 23-25; share is LN(W x)."""
    (h,) = state
    n = len(h)
    U = p["recurrent.weight"]
    gates = share[: 2 * n] + norm(product(U[: 2 * n], h), p["norm_gates.gain"], np.zeros(2 * n))
    fed_back = norm(product(U[2 * n :], h), p["norm.gain"], p["norm.bias"])
    new = np.empty(n)
    for k in range(n):
        z, r = sigma(gates[k]), sigma(gates[n + k])
        new[k] = (1 - z) * h[k] + z * np.tanh(share[2 * n + k] + r * fed_back[k])
    return (new,)


def layer_norm_lstm(p: Parameters, share: Array, state: State) -> State:
    """Ba et al. 2016, supplement, eq. 20-22; share is LN(W x)."""
    h, c = state
    n = len(h)
    a = share + norm(product(p["recurrent.weight"], h), p["norm.gain"], np.zeros(4 * n))
    new_c = np.array([sigma(a[n + k]) * c[k] + sigma(a[k]) * np.tanh(a[3 * n + k]) for k in range(n)])
    read = norm(new_c, p["norm_cell.gain"], p["norm_cell.bias"])
    return np.array([sigma(a[2 * n + k]) * np.tanh(read[k]) for k in range(n)]), new_c


def gate_norm_lstm(p: Parameters, share: Array, state: State) -> State:
    """Chen et al. 2018, section 3; the sum of each gate is normalised separately, and share is W x."""
    h, c = state
    n = len(h)
    a = share + product(p["recurrent.weight"], h)
    i, f, o, new = (norm(a[b * n : (b + 1) * n], p[f"norms.{b}.gain"], p[f"norms.{b}.bias"]) for b in range(4))
    new_c = np.array([sigma(f[k]) * c[k] + sigma(i[k]) * np.tanh(new[k]) for k in range(n)])
    return np.array([sigma(o[k]) * np.tanh(new_c[k]) for k in range(n)]), new_c


def rnmt_lstm(p: Parameters, share: Array, state: State) -> State:
    """Like `gate_norm_lstm`, with h' = o * c'."""
    n = len(state[0])
    a = share + product(p["recurrent.weight"], state[0])
    o = norm(a[2 * n : 3 * n], p["norms.2.gain"], p["norms.2.bias"])
    new_c = gate_norm_lstm(p, share, state)[1]
    return np.array([sigma(o[k]) * new_c[k] for k in range(n)]), new_c


def ssru(_: Parameters, share: Array, state: State) -> State:
    """Kim et al. 2019: c' = f c + (1 - f) W x, h' = max(0, c'); share is W x + b of f, then of the candidate."""
    c = state[1]
    n = len(c)
    f = [sigma(share[k]) for k in range(n)]
    new_c = np.array([f[k] * c[k] + (1 - f[k]) * share[n + k] for k in range(n)])
    return np.array([max(0.0, new_c[k]) for k in range(n)]), new_c


CELLS = {
    "gru": gru,
    "cho-gru": cho_gru,
    "torch-gru": torch_gru,
    "lstm": lstm,
    "tanh": tanh,
    "layer-norm-gru": layer_norm_gru,
    "layer-norm-lstm": layer_norm_lstm,
    "gate-norm-lstm": gate_norm_lstm,
    "rnmt-lstm": rnmt_lstm,
    "ssru": ssru,
}


def within(p: Parameters, prefix: str) -> dict[str, Array]:
    """Return the parameters of a submodule by their names in it."""
    return {k.removeprefix(f"{prefix}."): v for k, v in p.items() if k.startswith(f"{prefix}.")}


def close(found: Tensor, expected: object) -> None:
    """Raise AssertionError if a result differs from a reference by more than float64 rounding."""
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-7, atol=1e-12)


def start(name: str, h: Array) -> State:
    """Return the state with output h; the memory cell of an LSTM is zero, that of an SSRU is h."""
    if name == "ssru":
        return h, h
    return (h, np.zeros_like(h)) if "lstm" in name else (h,)


def read(name: str, p: Parameters, xs: Sequence[Array], size: int) -> list[State]:
    """Return the cell's states over the rows of xs, from a zero state."""
    state, states = start(name, np.zeros(size)), []
    for x in xs:
        state = CELLS[name](p, inputs(p, x), state)
        states.append(state)
    return states


def encode(name: str, p: Parameters, xs: Sequence[Array], size: int, both_ways: bool) -> tuple[Array, Array, State]:
    """Return annotations, summary and last state of one encoder layer.

    The annotations of a bidirectional layer concatenate both directions (Bahdanau et al. 2015, eq. 7; Cho et al.
    2014, section 2). The last state is the forward state of the last position and the backward state of the first.
    """
    forward = read(name, within(p, "forward_cell"), xs, size)
    if not both_ways:
        return np.stack([state[0] for state in forward]), forward[-1][0], forward[-1]
    backward = read(name, within(p, "backward_cell"), xs[::-1], size)[::-1]
    annotations = [np.concatenate([ahead[0], back[0]]) for ahead, back in zip(forward, backward, strict=True)]
    last = tuple(np.concatenate(parts) for parts in zip(forward[-1], backward[0], strict=True))
    return np.stack(annotations), backward[0][0], last


def stack(
    name: str,
    p: Parameters,
    states: list[State],
    x: Array,
    residual_from: int | None = None,
    more: Array | float = 0.0,
    context: Array | None = None,
    masks: Array | None = None,
) -> Array:
    """Return the output of a stack of cells at one position, and replace its `states`.

    Each layer reads the output of the layer below; upper layers also read `context`. From layer `residual_from`, x^l
    = h^l + x^{l-1} (Wu et al. 2016, eq. 6).

    Args:
        more: Added to the input term of the bottom layer.
        masks: Dropout mask of each layer's output, applied before the residual sum (Chen et al. 2018).
    """
    for l in range(len(states)):
        own = within(p, f"cells.{l}")
        beside = x if l == 0 or context is None else np.concatenate([x, context])
        share = inputs(own, beside) + (more if l == 0 else 0.0)
        states[l] = CELLS[name](own, share, states[l])
        h = states[l][0] if masks is None else states[l][0] * masks[l]
        x = h + x if residual_from is not None and l + 1 >= residual_from else h
    return x


def energies(p: Parameters, s: Array, annotations: Array) -> Array:
    """e_ij = v_a^T tanh(W_a s_{i-1} + U_a h_j) for each j (Bahdanau et al. 2015, A.1.2)."""
    v = p["vector"]
    energies = np.zeros(len(annotations))
    for j, h in enumerate(annotations):
        for k in range(len(v)):
            energies[j] += v[k] * np.tanh(p["query.weight"][k] @ s + p["key.weight"][k] @ h)
    return energies


def softmax(energies: Array) -> Array:
    """alpha_ij = exp(e_ij) / sum_k exp(e_ik)."""
    total = sum(np.exp(e) for e in energies)
    return np.array([np.exp(e) / total for e in energies])


def context(alpha: Array, annotations: Array) -> Array:
    """c_i = sum_j alpha_ij h_j."""
    return sum((a * h for a, h in zip(alpha, annotations, strict=True)), np.zeros(annotations.shape[1]))
