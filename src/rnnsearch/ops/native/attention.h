// Attention of one query over one source sentence, forward and backward (Bahdanau et al. 2015,
// appendix A.1.2; Luong et al. 2015, eq. 7). With several heads, each has an equal slice of the
// keys and of the annotations.
//
// In shapes: J source positions, A key size, H annotation size, M heads.
#pragma once

#include "vectors.h"

/// The source positions of one sentence that a query attends to.
struct SourceView {
    const Index* positions;  // [count], those that are attended to, in ascending order
    Index count;
    Index length;  // J, padding included
    Index key_size, annotation_size, heads;
    // Weights are multiplied by exp(-(j - centre)^2 / (2 sigma^2)), unless sigma is 0.
    float centre, sigma;

    /// Returns the view of the positions within `radius` of the centre (Luong et al. 2015,
    /// section 3.2).
    SourceView window(Index radius, float centre, float sigma) const {
        Index begin = 0, end = count;
        while (begin < end && fabsf(positions[begin] - centre) > radius) begin++;
        while (end > begin && fabsf(positions[end - 1] - centre) > radius) end--;
        return {positions + begin, end - begin, length, key_size,
                annotation_size,   heads,       centre, sigma};
    }
    float gaussian(Index j) const {
        const float d = (j - centre) / sigma;
        return sigma > 0 ? expf(-0.5f * d * d) : 1.0f;
    }
};

/// Writes the positions where mask [length] is set, in ascending order, and returns their number.
static inline Index unmasked_positions(const uint8_t* mask, Index length, Index* positions) {
    Index count = 0;
    for (Index j = 0; j < length; j++)
        if (mask[j]) positions[count++] = j;
    return count;
}

template <class T>
static inline float dot(const T* a, const float* b, Index n) {
    Vec s = {};
    for (Index k = 0; k < n; k += LANES) s += load(a + k, n - k) * load(b + k, n - k);
    return sum(s);
}

/// y += a x
static inline void add_scaled(float* y, float a, const float* x, Index n) {
    for (Index k = 0; k < n; k += LANES)
        store(y + k, load(y + k, n - k) + a * load(x + k, n - k), n - k);
}

/// Features of the source positions [J, width], and the weight W_f [width, A] by which they enter
/// an additive score.
struct FeatureInputs {
    const float *values, *weight;
    Index width;
};

/// Returns elements a .. a + n of q + k_j + W_f f_j, the argument of the tanh of an additive score.
template <class T>
static inline Vec additive_sum(const T* keys, const float* q, const FeatureInputs& f,
                               Index key_size, Index j, Index a, Index n) {
    Vec x = load(keys + j * key_size + a, n) + load(q + a, n);
    for (Index k = 0; k < f.width; k++)
        x += f.values[j * f.width + k] * load(f.weight + k * key_size + a, n);
    return x;
}

/// Returns e_j = v^T tanh(q + k_j + W_f f_j) over the key elements begin .. end of one head.
template <class T>
static inline float additive_energy(const T* keys, const float* q, const float* v,
                                    const FeatureInputs& f, Index key_size, Index j, Index begin,
                                    Index end) {
    Vec e = {};
    for (Index a = begin; a < end; a += LANES)
        e += load(v + a, end - a) * vec_tanh(additive_sum(keys, q, f, key_size, j, a, end - a));
    return sum(e);
}

/// Turns energies into weights and returns the context: alpha = softmax(alpha) times the Gaussian,
/// c = sum_j alpha_j h_j.
///
/// h: [J, H]. alpha: [M, J], energies in place. context: [H].
template <class T>
static void softmax_and_context(const SourceView& s, const T* h, float* alpha, float* context) {
    const Index head_size = s.annotation_size / s.heads;
    for (Index head = 0; head < s.heads; head++, alpha += s.length) {
        float top = -1e30f, total = 0;
        for (Index n = 0; n < s.count; n++) top = max(top, alpha[s.positions[n]]);
        for (Index n = 0; n < s.count; n++) {
            const Index j = s.positions[n];
            alpha[j] = vec_exp(broadcast(alpha[j] - top))[0];
            total += alpha[j];
        }
        for (Index n = 0; n < s.count; n++)
            alpha[s.positions[n]] *= s.gaussian(s.positions[n]) / total;
        const Index end = (head + 1) * head_size;
        for (Index k = head * head_size; k < end; k += LANES) {
            Vec c = {};
            for (Index n = 0; n < s.count; n++)
                c += alpha[s.positions[n]] *
                     load(h + s.positions[n] * s.annotation_size + k, end - k);
            store(context + k, c, end - k);
        }
    }
}

/// Backward pass of `softmax_and_context` for one head: writes d_energy [J] and adds to d_centre.
///
/// h: [J, H]. alpha: [J], weights of the head. d_c: [H]. d_alpha: [J], gradient of the weights from
/// elsewhere; may be null.
template <class T>
static void softmax_backward(const SourceView& s, Index head, const T* h, const float* alpha,
                             const float* d_c, const float* d_alpha, float* d_energy,
                             float* d_centre) {
    const Index head_size = s.annotation_size / s.heads;
    float mean = 0;
    for (Index n = 0; n < s.count; n++) {
        const Index j = s.positions[n];
        const float d =
            dot(h + j * s.annotation_size + head * head_size, d_c + head * head_size, head_size) +
            (d_alpha ? d_alpha[j] : 0.0f);
        d_energy[j] = alpha[j] * d;
        mean += d_energy[j];
        if (s.sigma > 0) *d_centre += d_energy[j] * (j - s.centre) / (s.sigma * s.sigma);
    }
    for (Index n = 0; n < s.count; n++)
        d_energy[s.positions[n]] -= alpha[s.positions[n]] / s.gaussian(s.positions[n]) * mean;
}

/// Backward pass of `additive_energy` over the key elements begin .. end.
///
/// Adds to d_keys [J, A] and d_v [A]; writes d_q [A] and, if there are features, d_hidden [J, A],
/// the gradient of the tanh's argument.
template <class T, class O>
static void additive_backward(const SourceView& s, const T* keys, const float* v, const float* q,
                              const FeatureInputs& f, const float* d_energy, Index begin, Index end,
                              float* d_keys, float* d_v, O* d_q, float* d_hidden) {
    for (Index a = begin; a < end; a += LANES) {
        const Index m = end - a;
        Vec v_a = load(v + a, m), total_d_q = {}, total_d_v = {};
        for (Index n = 0; n < s.count; n++) {
            const Index offset = s.positions[n] * s.key_size + a;
            const float d_e = d_energy[s.positions[n]];
            Vec hidden = vec_tanh(additive_sum(keys, q, f, s.key_size, s.positions[n], a, m));
            total_d_v += d_e * hidden;
            Vec d = d_e * v_a * (1.0f - hidden * hidden);
            total_d_q += d;
            store(d_keys + offset, load(d_keys + offset, m) + d, m);
            if (f.width) store(d_hidden + offset, d, m);
        }
        store(d_q + a, total_d_q, m);
        store(d_v + a, load(d_v + a, m) + total_d_v, m);
    }
}

/// Backward pass of W_f f_j: from d_hidden [J, A], writes d_values [J, width] and adds to d_weight
/// [width, A].
static inline void feature_inputs_backward(const SourceView& s, const FeatureInputs& f,
                                           const float* d_hidden, float* d_values,
                                           float* d_weight) {
    for (Index n = 0; n < s.count; n++) {
        const Index j = s.positions[n];
        const float* d = d_hidden + j * s.key_size;
        for (Index k = 0; k < f.width; k++) {
            d_values[j * f.width + k] = dot(d, f.weight + k * s.key_size, s.key_size);
            add_scaled(d_weight + k * s.key_size, f.values[j * f.width + k], d, s.key_size);
        }
    }
}

/// Backward pass of e_j = scale q^T k_j: adds to d_keys [J, A] and d_q [A].
template <class T>
static void dot_backward(const SourceView& s, const T* keys, float scale, const float* q,
                         const float* d_energy, float* d_keys, float* d_q) {
    for (Index a = 0; a < s.key_size; a += LANES) {
        const Index m = s.key_size - a;
        Vec query = load(q + a, m), total_d_q = {};
        for (Index n = 0; n < s.count; n++) {
            const Index offset = s.positions[n] * s.key_size + a;
            const float d_e = scale * d_energy[s.positions[n]];
            total_d_q += d_e * load(keys + offset, m);
            store(d_keys + offset, load(d_keys + offset, m) + d_e * query, m);
        }
        store(d_q + a, load(d_q + a, m) + total_d_q, m);
    }
}

/// Writes d_h [J, H] of one sentence over I target positions: d_h_j = sum_i alpha_ij d_c_i.
///
/// alphas: [I, M, J]. d_c: [I, H].
template <class T>
static void annotations_backward(const SourceView& s, Index target_length, const float* alphas,
                                 const T* d_c, T* d_h) {
    const Index head_size = s.annotation_size / s.heads;
    memset(d_h, 0, s.length * s.annotation_size * sizeof(T));
    for (Index n = 0; n < s.count; n++)
        for (Index head = 0; head < s.heads; head++) {
            const Index j = s.positions[n], end = (head + 1) * head_size;
            for (Index k = head * head_size; k < end; k += LANES) {
                Vec total = {};
                for (Index i = 0; i < target_length; i++)
                    total += alphas[(i * s.heads + head) * s.length + j] *
                             load(d_c + i * s.annotation_size + k, end - k);
                store(d_h + j * s.annotation_size + k, total, end - k);
            }
        }
}
