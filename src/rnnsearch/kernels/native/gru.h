// The gates of Bahdanau et al.'s GRU, h' = (1 - z) h + z tanh(. + U [r h]), forward and backward, a row at a time.
#pragma once

#include "rows.h"

namespace rnnsearch {

// z and r of one row [2 D], and the reset state r h, which the candidate's product reads.
// x: the inputs' share of z, r; from_h: the recurrent share; extra: one more (the context's), or null.
template <class X, class T>
void gates(Index D, const X* x, const float* from_h, const float* extra, const float* h, float* zr, T* reset) {
    for (Index d = 0; d < D; d += LANES) {
        Index n = D - d;
        Vec z = load(x + d, n) + load(from_h + d, n), r = load(x + D + d, n) + load(from_h + D + d, n);
        if (extra) {
            z += load(extra + d, n);
            r += load(extra + D + d, n);
        }
        z = sigmoid(z);
        r = sigmoid(r);
        store(zr + d, z, n);
        store(zr + D + d, r, n);
        store(reset + d, r * load(h + d, n), n);
    }
}

// The candidate and the new state of one row; `keep` is 0 where the step leaves the state as it is.
template <class X>
void candidate_and_state(Index D, const X* x, const float* from_reset, const float* extra, const float* h,
                         const float* z, float keep, float* candidate, float* next) {
    for (Index d = 0; d < D; d += LANES) {
        Index n = D - d;
        Vec g = load(x + d, n) + load(from_reset + d, n);
        if (extra) g += load(extra + d, n);
        Vec c = hyperbolic_tangent(g), old = load(h + d, n);
        store(candidate + d, c, n);
        store(next + d, old + load(z + d, n) * keep * (c - old), n);
    }
}

// Backward, first half: d of the candidate's pre-activation and of z's, from d_next, d of the new state.
template <class T>
void candidate_backward(Index D, const float* d_next, const float* h, const float* z, const float* candidate,
                        float keep, T* d_candidate, T* d_z) {
    for (Index d = 0; d < D; d += LANES) {
        Index n = D - d;
        Vec g = load(d_next + d, n), u = load(z + d, n), c = load(candidate + d, n), used = u * keep;
        store(d_candidate + d, g * used * (1.0f - c * c), n);
        store(d_z + d, g * (c - load(h + d, n)) * used * (1.0f - u), n);
    }
}

// Backward, second half, from d_reset, d of r h: d of r's pre-activation, and what goes past the gates' product to
// d of the old state, written over d_next.
template <class T>
void reset_backward(Index D, const float* d_reset, const float* h, const float* zr, float keep, T* d_r,
                    float* d_next) {
    for (Index d = 0; d < D; d += LANES) {
        Index n = D - d;
        Vec g = load(d_reset + d, n), z = load(zr + d, n), r = load(zr + D + d, n);
        store(d_r + d, g * load(h + d, n) * r * (1.0f - r), n);
        store(d_next + d, load(d_next + d, n) * (1.0f - z * keep) + g * r, n);
    }
}

}  // namespace rnnsearch
