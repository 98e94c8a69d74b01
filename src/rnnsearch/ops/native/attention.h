// Attention of one query over the real positions of one source sentence, and its way back (Bahdanau et al. 2015, appendix
// A.1.2; Luong et al. 2015, eq. 7). A head has its own part of the keys and of the annotations.
#pragma once

#include "vectors.h"

struct Sentence {
    const Index* real;  // source positions that are not padding
    Index count, source, key, annotation, heads;
    float centre, spread;  // p_t and sigma of the factor exp(-(j - p_t)^2 / (2 sigma^2)) of weights; spread 0: no factor

    // The part of it within `reach` of the centre (Luong et al. 2015, section 3.2).
    Sentence within(Index reach, float centre, float spread) const {
        Index begin = 0, end = count;
        while (begin < end && fabsf(real[begin] - centre) > reach) begin++;
        while (end > begin && fabsf(real[end - 1] - centre) > reach) end--;
        return {real + begin, end - begin, source, key, annotation, heads, centre, spread};
    }
    float factor(Index j) const {
        const float d = (j - centre) / spread;
        return spread > 0 ? expf(-0.5f * d * d) : 1.0f;
    }
};

// The real positions of a mask [source], in order; how many there are.
static inline Index real_positions(const uint8_t* mask, Index source, Index* real) {
    Index count = 0;
    for (Index j = 0; j < source; j++)
        if (mask[j]) real[count++] = j;
    return count;
}

template <class T>
static inline float dot(const T* a, const float* b, Index n) {
    Vec s = {};
    for (Index k = 0; k < n; k += LANES) s += load(a + k, n - k) * load(b + k, n - k);
    return sum(s);
}

// y += a x
static inline void add_scaled(float* y, float a, const float* x, Index n) {
    for (Index k = 0; k < n; k += LANES) store(y + k, load(y + k, n - k) + a * load(x + k, n - k), n - k);
}

// What features show of each source position, numbers [source, width], and what a score's hidden layer gets of them: times
// W_f [width, key].
struct Shown {
    const float *numbers, *weight;
    Index width;
};

// q + k_j + W_f f_j, before the tanh of an additive score: `m` numbers from `a` on
template <class T>
static inline Vec additive_sum(const T* keys, const float* q, const Shown& f, Index key, Index j, Index a, Index m) {
    Vec x = load(keys + j * key + a, m) + load(q + a, m);
    for (Index k = 0; k < f.width; k++) x += f.numbers[j * f.width + k] * load(f.weight + k * key + a, m);
    return x;
}

// e_j = v^T tanh(q + k_j + W_f f_j) of the numbers begin .. end
template <class T>
static inline float additive_energy(const T* keys, const float* q, const float* v, const Shown& f, Index key, Index j,
                                    Index begin, Index end) {
    Vec e = {};
    for (Index a = begin; a < end; a += LANES)
        e += load(v + a, end - a) * hyperbolic_tangent(additive_sum(keys, q, f, key, j, a, end - a));
    return sum(e);
}

// alpha [heads, source] = softmax of the energies that stand there, times the factor, context [annotation] = sum_j alpha_j h_j
template <class T>
static void weigh(const Sentence& s, const T* h, float* alpha, float* context) {
    const Index own = s.annotation / s.heads;
    for (Index head = 0; head < s.heads; head++, alpha += s.source) {
        float most = -1e30f, total = 0;
        for (Index n = 0; n < s.count; n++) most = greater(most, alpha[s.real[n]]);
        for (Index n = 0; n < s.count; n++) {
            const Index j = s.real[n];
            alpha[j] = exponential(all(alpha[j] - most))[0];
            total += alpha[j];
        }
        for (Index n = 0; n < s.count; n++) alpha[s.real[n]] *= s.factor(s.real[n]) / total;
        const Index end = (head + 1) * own;
        for (Index k = head * own; k < end; k += LANES) {
            Vec c = {};
            for (Index n = 0; n < s.count; n++)
                c += alpha[s.real[n]] * load(h + s.real[n] * s.annotation + k, end - k);
            store(context + k, c, end - k);
        }
    }
}

// d of the energies of one head, [source], from d_c and, where it is not null, d_alpha, which comes from elsewhere; adds to
// d of the centre
template <class T>
static void energies_backward(const Sentence& s, Index head, const T* h, const float* alpha, const float* d_c,
                              const float* d_alpha, float* d_energy, float* d_centre) {
    const Index own = s.annotation / s.heads;
    float mean = 0;
    for (Index n = 0; n < s.count; n++) {
        const Index j = s.real[n];
        const float d = dot(h + j * s.annotation + head * own, d_c + head * own, own) + (d_alpha ? d_alpha[j] : 0.0f);
        d_energy[j] = alpha[j] * d;
        mean += d_energy[j];
        if (s.spread > 0) *d_centre += d_energy[j] * (j - s.centre) / (s.spread * s.spread);
    }
    for (Index n = 0; n < s.count; n++) d_energy[s.real[n]] -= alpha[s.real[n]] / s.factor(s.real[n]) * mean;
}

// Adds to d_keys [source, key] and d_v [key], writes d_q [key] and, where features show something, d_hidden [source, key]:
// the numbers begin .. end
template <class T, class O>
static void additive_backward(const Sentence& s, const T* keys, const float* v, const float* q, const Shown& f,
                              const float* d_energy, Index begin, Index end, float* d_keys, float* d_v, O* d_q,
                              float* d_hidden) {
    for (Index a = begin; a < end; a += LANES) {
        const Index m = end - a;
        Vec va = load(v + a, m), to_query = {}, to_v = {};
        for (Index n = 0; n < s.count; n++) {
            const Index at = s.real[n] * s.key + a;
            const float d_e = d_energy[s.real[n]];
            Vec hidden = hyperbolic_tangent(additive_sum(keys, q, f, s.key, s.real[n], a, m));
            to_v += d_e * hidden;
            Vec d = d_e * va * (1.0f - hidden * hidden);
            to_query += d;
            store(d_keys + at, load(d_keys + at, m) + d, m);
            if (f.width) store(d_hidden + at, d, m);
        }
        store(d_q + a, to_query, m);
        store(d_v + a, load(d_v + a, m) + to_v, m);
    }
}

// From d_hidden: writes d of the numbers shown [source, width], adds to d_W_f
static inline void shown_backward(const Sentence& s, const Shown& f, const float* d_hidden, float* d_numbers, float* d_W) {
    for (Index n = 0; n < s.count; n++) {
        const Index j = s.real[n];
        const float* d = d_hidden + j * s.key;
        for (Index k = 0; k < f.width; k++) {
            d_numbers[j * f.width + k] = dot(d, f.weight + k * s.key, s.key);
            add_scaled(d_W + k * s.key, f.numbers[j * f.width + k], d, s.key);
        }
    }
}

// Of e_j = scale q^T k_j: adds to d_keys and d_q
template <class T>
static void dot_backward(const Sentence& s, const T* keys, float scale, const float* q, const float* d_energy,
                         float* d_keys, float* d_q) {
    for (Index a = 0; a < s.key; a += LANES) {
        const Index m = s.key - a;
        Vec query = load(q + a, m), to_query = {};
        for (Index n = 0; n < s.count; n++) {
            const Index at = s.real[n] * s.key + a;
            const float d_e = scale * d_energy[s.real[n]];
            to_query += d_e * load(keys + at, m);
            store(d_keys + at, load(d_keys + at, m) + d_e * query, m);
        }
        store(d_q + a, load(d_q + a, m) + to_query, m);
    }
}

// d_h [source, annotation] of one sentence, whose contexts are sums of alpha_ij h_j: sum_i alpha_ij d_c_i
template <class T>
static void annotations_backward(const Sentence& s, Index positions, const float* alphas, const T* d_c, T* d_h) {
    const Index own = s.annotation / s.heads;
    memset(d_h, 0, s.source * s.annotation * sizeof(T));
    for (Index n = 0; n < s.count; n++)
        for (Index head = 0; head < s.heads; head++) {
            const Index j = s.real[n], end = (head + 1) * own;
            for (Index k = head * own; k < end; k += LANES) {
                Vec total = {};
                for (Index i = 0; i < positions; i++)
                    total += alphas[(i * s.heads + head) * s.source + j] * load(d_c + i * s.annotation + k, end - k);
                store(d_h + j * s.annotation + k, total, end - k);
            }
        }
}
