// Definitions of the operations of a step (recurrence.h), forward and backward, on one row at one
// position.
#pragma once

#include "recurrence.h"
#include "source_features.h"

constexpr float LAYER_NORM_EPSILON = 1e-5f;  // added to the variance

/// The data of one sentence at one position.
template <class T>
struct StepRow {
    float *sums, *values, *previous;  // previous: the values of the previous position
    T* reads;
    // Backward: gradients of the values, of the previous values, of the reads, and of the sums
    // (inputs of products).
    float *d_values, *d_previous, *d_reads;
    T* d_sums;
    bool active;  // if false, states are carried over unchanged

    /// Returns operand k of an operation, which is among the values of this or the previous
    /// position.
    const float* operand(const Op& op, int k) const {
        return (op.previous >> k & 1 ? previous : values) + op.offset[k];
    }
    float* d_operand(const Op& op, int k) const {
        return (op.previous >> k & 1 ? d_previous : d_values) + op.offset[k];
    }
};

/// Adds up to LANES of n elements: to += d.
static inline void accumulate(float* to, Vec d, Index n) { store(to, load(to, n) + d, n); }

/// INPUT: sums[0] += x[1].
template <class T>
static void add_input(const Op& op, const StepRow<T>& r, const T* x) {
    for (Index k = 0; k < op.size; k += LANES)
        accumulate(r.sums + op.offset[0] + k, load(x + op.offset[1] + k, op.size - k), op.size - k);
}

/// READ: reads[0] = values[1], times values[2] if given, times the mask if given.
template <class T>
static void read(const Op& op, const StepRow<T>& r, const float* mask) {
    const float *a = r.operand(op, 1), *b = op.offset[2] < 0 ? nullptr : r.operand(op, 2);
    for (Index k = 0; k < op.size; k += LANES) {
        const Index n = op.size - k;
        Vec v = load(a + k, n);
        if (b) v *= load(b + k, n);
        if (mask) v *= load(mask + k, n);
        store(r.reads + op.offset[0] + k, v, n);
    }
}

template <class T>
static void read_backward(const Op& op, const StepRow<T>& r, const float* mask) {
    const float *a = r.operand(op, 1), *b = op.offset[2] < 0 ? nullptr : r.operand(op, 2);
    float *d_a = r.d_operand(op, 1), *d_b = b ? r.d_operand(op, 2) : nullptr;
    for (Index k = 0; k < op.size; k += LANES) {
        const Index n = op.size - k;
        Vec d = load(r.d_reads + op.offset[0] + k, n);
        if (mask) d *= load(mask + k, n);
        if (b) accumulate(d_b + k, d * load(a + k, n), n);
        accumulate(d_a + k, b ? d * load(b + k, n) : d, n);
    }
}

/// SIGMOID, TANH: values[0] = f(sums[1]); at an inactive position values[2], if given.
template <class T, Vec (*F)(Vec)>
static void activation(const Op& op, const StepRow<T>& r) {
    if (!r.active && op.offset[2] >= 0) {
        memcpy(r.values + op.offset[0], r.operand(op, 2), op.size * sizeof(float));
        return;
    }
    for (Index k = 0; k < op.size; k += LANES) {
        const Index n = op.size - k;
        store(r.values + op.offset[0] + k, F(load(r.sums + op.offset[1] + k, n)), n);
    }
}

template <class T, bool SIGMA>
static void activation_backward(const Op& op, const StepRow<T>& r) {
    const bool carried = !r.active && op.offset[2] >= 0;
    for (Index k = 0; k < op.size; k += LANES) {
        const Index n = op.size - k;
        Vec f = load(r.values + op.offset[0] + k, n), d = load(r.d_values + op.offset[0] + k, n);
        if (carried) accumulate(r.d_operand(op, 2) + k, d, n);
        store(r.d_sums + op.offset[1] + k,
              carried ? Vec{} : d * (SIGMA ? f * (1.0f - f) : 1.0f - f * f), n);
    }
}

/// GRU: h' = values[0], candidate = values[1], from sums[2], z = values[3] and h = values[4].
///
/// candidate = tanh(sums[2]) and h' = (1 - z) h + z candidate, or h' = z h + (1 - z) candidate if
/// offset[7] is 1. If r = values[5] is given, r sums[6] is added before the tanh (PyTorch's GRU),
/// and sums[6] is stored behind the candidate.
template <class T>
static void gru(const Op& op, const StepRow<T>& r) {
    const float *z = r.values + op.offset[3], *old = r.operand(op, 4);
    const float* reset = op.offset[5] < 0 ? nullptr : r.values + op.offset[5];
    float *next = r.values + op.offset[0], *candidate = r.values + op.offset[1];
    if (!r.active) {
        memcpy(next, old, op.size * sizeof(float));
        return;
    }
    for (Index k = 0; k < op.size; k += LANES) {
        const Index n = op.size - k;
        Vec sum = load(r.sums + op.offset[2] + k, n), h = load(old + k, n), u = load(z + k, n);
        if (reset) {
            Vec recurrent = load(r.sums + op.offset[6] + k, n);
            store(candidate + op.size + k, recurrent, n);
            sum += load(reset + k, n) * recurrent;
        }
        Vec c = vec_tanh(sum);
        store(candidate + k, c, n);
        store(next + k, op.offset[7] ? c + u * (h - c) : h + u * (c - h), n);
    }
}

template <class T>
static void gru_backward(const Op& op, const StepRow<T>& r) {
    const float *z = r.values + op.offset[3], *old = r.operand(op, 4);
    const float* reset = op.offset[5] < 0 ? nullptr : r.values + op.offset[5];
    const float *d_next = r.d_values + op.offset[0], *candidate = r.values + op.offset[1];
    float *d_old = r.d_operand(op, 4), *d_z = r.d_values + op.offset[3];
    for (Index k = 0; k < op.size; k += LANES) {
        const Index n = op.size - k;
        Vec d = load(d_next + k, n);
        if (!r.active) {
            accumulate(d_old + k, d, n);
            store(r.d_sums + op.offset[2] + k, Vec{}, n);
            if (reset) store(r.d_sums + op.offset[6] + k, Vec{}, n);
            continue;
        }
        Vec c = load(candidate + k, n), h = load(old + k, n), u = load(z + k, n);
        Vec update = op.offset[7] ? 1.0f - u : u;  // weight of the candidate
        accumulate(d_z + k, d * (op.offset[7] ? h - c : c - h), n);
        accumulate(d_old + k, d * (1.0f - update), n);
        Vec d_sum = d * update * (1.0f - c * c);
        store(r.d_sums + op.offset[2] + k, d_sum, n);
        if (!reset) continue;
        accumulate(r.d_values + op.offset[5] + k, d_sum * load(candidate + op.size + k, n), n);
        store(r.d_sums + op.offset[6] + k, d_sum * load(reset + k, n), n);
    }
}

/// LSTM and SSRU at an inactive position: h' = values[0] and c' = values[1] become h = values[5]
/// and c = values[4].
template <class T>
static void carry_state(const Op& op, const StepRow<T>& r) {
    memcpy(r.values + op.offset[1], r.operand(op, 4), op.size * sizeof(float));
    memcpy(r.values + op.offset[0], r.operand(op, 5), op.size * sizeof(float));
}

/// Backward pass of `carry_state`; the sums[3] of all gates get a gradient of zero.
template <class T>
static void carry_state_backward(const Op& op, const StepRow<T>& r, int gates) {
    for (Index k = 0; k < op.size; k += LANES) {
        const Index n = op.size - k;
        accumulate(r.d_operand(op, 5) + k, load(r.d_values + op.offset[0] + k, n), n);
        accumulate(r.d_operand(op, 4) + k, load(r.d_values + op.offset[1] + k, n), n);
        for (int gate = 0; gate < gates; gate++)
            store(r.d_sums + op.offset[3] + gate * op.size + k, Vec{}, n);
    }
}

/// LSTM: h' = values[0], c' = values[1] and gates i, f, o, candidate = values[2], from sums[3], c =
/// values[4], h = values[5].
///
/// c' = f c + i candidate and h' = o tanh(c'), or h' = o c' if offset[6] is 1 (Chen et al. 2018).
template <class T>
static void lstm(const Op& op, const StepRow<T>& r) {
    const Index D = op.size;
    const float *sums = r.sums + op.offset[3], *old = r.operand(op, 4);
    float *h = r.values + op.offset[0], *c = r.values + op.offset[1];
    float* gates = r.values + op.offset[2];
    if (!r.active) return carry_state(op, r);
    for (Index k = 0; k < D; k += LANES) {
        const Index n = D - k;
        Vec i = vec_sigmoid(load(sums + k, n)), f = vec_sigmoid(load(sums + D + k, n));
        Vec o = vec_sigmoid(load(sums + 2 * D + k, n)), g = vec_tanh(load(sums + 3 * D + k, n));
        Vec next = f * load(old + k, n) + i * g;
        store(gates + k, i, n);
        store(gates + D + k, f, n);
        store(gates + 2 * D + k, o, n);
        store(gates + 3 * D + k, g, n);
        store(c + k, next, n);
        store(h + k, op.offset[6] ? o * next : o * vec_tanh(next), n);
    }
}

template <class T>
static void lstm_backward(const Op& op, const StepRow<T>& r) {
    if (!r.active) return carry_state_backward(op, r, 4);
    const Index D = op.size;
    const float *gates = r.values + op.offset[2], *next = r.values + op.offset[1];
    const float* old = r.operand(op, 4);
    const float *d_h = r.d_values + op.offset[0], *d_c = r.d_values + op.offset[1];
    float* d_old = r.d_operand(op, 4);
    T* d_sums = r.d_sums + op.offset[3];
    for (Index k = 0; k < D; k += LANES) {
        const Index n = D - k;
        Vec d = load(d_h + k, n), e = load(d_c + k, n);
        Vec i = load(gates + k, n), f = load(gates + D + k, n), o = load(gates + 2 * D + k, n);
        Vec g = load(gates + 3 * D + k, n), c = load(next + k, n);
        Vec output = op.offset[6] ? c : vec_tanh(c);
        e += op.offset[6] ? d * o : d * o * (1.0f - output * output);
        store(d_sums + k, e * g * i * (1.0f - i), n);
        store(d_sums + D + k, e * load(old + k, n) * f * (1.0f - f), n);
        store(d_sums + 2 * D + k, d * output * o * (1.0f - o), n);
        store(d_sums + 3 * D + k, e * i * (1.0f - g * g), n);
        accumulate(d_old + k, e * f, n);
    }
}

/// SSRU: h' = values[0], c' = values[1] and f = values[2], from sums[3] of f and the candidate, c =
/// values[4], h = values[5].
///
/// c' = f c + (1 - f) candidate and h' = max(0, c') (Kim et al. 2019).
template <class T>
static void ssru(const Op& op, const StepRow<T>& r) {
    const Index D = op.size;
    const float *sums = r.sums + op.offset[3], *old = r.operand(op, 4);
    float *h = r.values + op.offset[0], *c = r.values + op.offset[1];
    float* gate = r.values + op.offset[2];
    if (!r.active) return carry_state(op, r);
    for (Index k = 0; k < D; k += LANES) {
        const Index n = D - k;
        Vec f = vec_sigmoid(load(sums + k, n)), candidate = load(sums + D + k, n);
        Vec next = candidate + f * (load(old + k, n) - candidate);
        store(gate + k, f, n);
        store(c + k, next, n);
        store(h + k, max(Vec{}, next), n);  // NaN stays NaN
    }
}

/// Backward pass of `ssru`. (1 - f) (c - candidate) equals c - c', so the candidate need not be
/// stored.
template <class T>
static void ssru_backward(const Op& op, const StepRow<T>& r) {
    if (!r.active) return carry_state_backward(op, r, 2);
    const Index D = op.size;
    const float *gate = r.values + op.offset[2], *next = r.values + op.offset[1];
    const float* old = r.operand(op, 4);
    const float *d_h = r.d_values + op.offset[0], *d_c = r.d_values + op.offset[1];
    float* d_old = r.d_operand(op, 4);
    T* d_sums = r.d_sums + op.offset[3];
    for (Index k = 0; k < D; k += LANES) {
        const Index n = D - k;
        Vec d = load(d_h + k, n), e = load(d_c + k, n);
        Vec f = load(gate + k, n), c = load(next + k, n);
        e += c > 0.0f ? d : Vec{};
        store(d_sums + k, e * f * (load(old + k, n) - c), n);
        store(d_sums + D + k, e * (1.0f - f), n);
        accumulate(d_old + k, e * f, n);
    }
}

/// ADD: values[0] = values[1], times the mask if given, plus values[2] if given.
template <class T>
static void add_values(const Op& op, const StepRow<T>& r, const float* mask) {
    const float *a = r.operand(op, 1), *b = op.offset[2] < 0 ? nullptr : r.operand(op, 2);
    for (Index k = 0; k < op.size; k += LANES) {
        const Index n = op.size - k;
        Vec v = load(a + k, n);
        if (mask) v *= load(mask + k, n);
        if (b) v += load(b + k, n);
        store(r.values + op.offset[0] + k, v, n);
    }
}

template <class T>
static void add_values_backward(const Op& op, const StepRow<T>& r, const float* mask) {
    float *d_a = r.d_operand(op, 1), *d_b = op.offset[2] < 0 ? nullptr : r.d_operand(op, 2);
    for (Index k = 0; k < op.size; k += LANES) {
        const Index n = op.size - k;
        const Vec d = load(r.d_values + op.offset[0] + k, n);
        accumulate(d_a + k, mask ? d * load(mask + k, n) : d, n);
        if (d_b) accumulate(d_b + k, d, n);
    }
}

/// NORM: sums[0] += gain * (a - mean(a)) / std(a) + bias, where a = sums[1].
///
/// The normalised a is stored in values[2] and 1 / std(a) in values[3], for the backward pass.
template <class T>
static void layer_norm(const Op& op, const StepRow<T>& r) {
    const float *a = r.sums + op.offset[1], *gain = (const float*)op.weight, *bias = gain + op.size;
    float* normalised = r.values + op.offset[2];
    Vec total = {}, squares = {};
    for (Index k = 0; k < op.size; k += LANES) total += load(a + k, op.size - k);
    const float mean = sum(total) / op.size;
    for (Index k = 0; k < op.size; k++) normalised[k] = a[k] - mean;
    for (Index k = 0; k < op.size; k += LANES)
        squares += load(normalised + k, op.size - k) * load(normalised + k, op.size - k);
    const float inverse_std = 1.0f / sqrtf(sum(squares) / op.size + LAYER_NORM_EPSILON);
    r.values[op.offset[3]] = inverse_std;
    for (Index k = 0; k < op.size; k += LANES) {
        const Index n = op.size - k;
        Vec x = load(normalised + k, n) * inverse_std;
        store(normalised + k, x, n);
        accumulate(r.sums + op.offset[0] + k, load(gain + k, n) * x + load(bias + k, n), n);
    }
}

template <class T>
static void layer_norm_backward(const Op& op, const StepRow<T>& r, float* d_weight) {
    const float *gain = (const float*)op.weight, *x = r.values + op.offset[2];
    const float inverse_std = r.values[op.offset[3]];
    const T* d = r.d_sums + op.offset[0];
    Vec total = {}, total_x = {};
    for (Index k = 0; k < op.size; k += LANES) {
        const Index n = op.size - k;
        Vec g = load(d + k, n), scaled = g * load(gain + k, n);
        accumulate(d_weight + k, g * load(x + k, n), n);
        accumulate(d_weight + op.size + k, g, n);
        total += scaled;
        total_x += scaled * load(x + k, n);
    }
    const float mean = sum(total) / op.size, mean_x = sum(total_x) / op.size;
    for (Index k = 0; k < op.size; k += LANES) {
        const Index n = op.size - k;
        Vec scaled = load(d + k, n) * load(gain + k, n);
        store(r.d_sums + op.offset[1] + k, inverse_std * (scaled - mean - load(x + k, n) * mean_x),
              n);
    }
}

/// CENTRE: values[0] = S sigma(v^T values[1]), where S is the number of source positions (Luong et
/// al. 2015, eq. 9).
template <class T>
static void window_centre(const Op& op, const StepRow<T>& r, Index source_count) {
    const float score = dot((const float*)op.weight, r.values + op.offset[1], op.size);
    r.values[op.offset[0]] = source_count * vec_sigmoid(broadcast(score))[0];
}

template <class T>
static void window_centre_backward(const Op& op, const StepRow<T>& r, Index source_count,
                                   float* d_weight) {
    const float c = r.values[op.offset[0]];
    const float d = r.d_values[op.offset[0]] * c * (1.0f - c / source_count);
    const float* v = (const float*)op.weight;
    for (Index k = 0; k < op.size; k += LANES) {
        const Index n = op.size - k;
        accumulate(d_weight + k, d * load(r.values + op.offset[1] + k, n), n);
        accumulate(r.d_values + op.offset[1] + k, d * load(v + k, n), n);
    }
}

/// LOG_POSITION: sums[0] += log(2 + t) weight at target position t (Cohn et al. 2016, section 3.1:
/// log(1 + i), i from 1).
template <class T>
static void add_log_position(const Op& op, const StepRow<T>& r, Index t) {
    add_scaled(r.sums + op.offset[0], logf(2.0f + t), (const float*)op.weight, op.size);
}

template <class T>
static void add_log_position_backward(const Op& op, const StepRow<T>& r, Index t, float* d_weight) {
    for (Index k = 0; k < op.size; k += LANES)
        accumulate(d_weight + k, logf(2.0f + t) * load(r.d_sums + op.offset[0] + k, op.size - k),
                   op.size - k);
}

/// Returns the number of parameters of an operation, other than the matrix of a PRODUCT.
static inline Index parameter_count(const Op& op, const Features& features) {
    switch (op.type) {
        case NORM: return 2 * op.size;
        case CENTRE:
        case LOG_POSITION: return op.size;
        case ADDITIVE: return parameter_count(features, op.size);
    }
    return 0;
}

/// ADDITIVE: context = values[0], of the query sums[1], which is stored in values[2]. DOT: of the
/// query values[1].
///
/// The centre of a window is values[3] if given. keys: [J, A]. h: [J, H]. vector: v_a [A]. alpha:
/// [M, J], written.
template <class T>
static void attend(const Op& op, const StepRow<T>& r, const SourceView& s, const T* keys,
                   const T* h, const float* vector, float scale, const FeatureInputs& f,
                   float* alpha) {
    memset(alpha, 0, s.heads * s.length * sizeof(float));
    if (op.type == ADDITIVE)
        memcpy(r.values + op.offset[2], r.sums + op.offset[1], s.key_size * sizeof(float));
    const float* q = op.type == ADDITIVE ? r.values + op.offset[2] : r.operand(op, 1);
    const Index head_size = s.key_size / s.heads;
    for (Index head = 0; head < s.heads; head++)
        for (Index n = 0; n < s.count; n++) {
            const Index j = s.positions[n];
            alpha[head * s.length + j] =
                op.type == DOT ? scale * dot(keys + j * s.key_size, q, s.key_size)
                               : additive_energy(keys, q, vector, f, s.key_size, j,
                                                 head * head_size, (head + 1) * head_size);
        }
    softmax_and_context(s, h, alpha, r.values + op.offset[0]);
}

/// MAXOUT: values[0] = maximum of each pair of sums[1]; NaN if either is NaN. Forward only.
template <class T>
static void maxout(const Op& op, const StepRow<T>& r) {
    const float* x = r.sums + op.offset[1];
    for (Index k = 0; k < op.size; k++) {
        const float a = x[2 * k], b = x[2 * k + 1];
        r.values[op.offset[0] + k] = a > b || a != a ? a : b;
    }
}

/// TANH_VALUES: values[0] = tanh(values[1]). Forward only.
template <class T>
static void tanh_values(const Op& op, const StepRow<T>& r) {
    for (Index k = 0; k < op.size; k += LANES) {
        const Index n = op.size - k;
        store(r.values + op.offset[0] + k, vec_tanh(load(r.operand(op, 1) + k, n)), n);
    }
}

/// Runs any operation except INPUT, PRODUCT, ADDITIVE, DOT and LOG_POSITION, which need more than
/// one row's data.
///
/// source_count: number of unmasked source positions.
template <class T>
static inline void run_op(const Op& op, const StepRow<T>& r, const float* mask,
                          Index source_count) {
    switch (op.type) {
        case READ: return read(op, r, mask);
        case SIGMOID: return activation<T, vec_sigmoid>(op, r);
        case TANH: return activation<T, vec_tanh>(op, r);
        case GRU: return gru(op, r);
        case LSTM: return lstm(op, r);
        case ADD: return add_values(op, r, mask);
        case NORM: return layer_norm(op, r);
        case CENTRE: return window_centre(op, r, source_count);
        case MAXOUT: return maxout(op, r);
        case TANH_VALUES: return tanh_values(op, r);
        case SSRU: return ssru(op, r);
    }
}
