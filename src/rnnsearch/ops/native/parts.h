// What each part of a step does to one row at one position, onward and, beside it, back.
#pragma once

#include "source_features.h"
#include "recurrence.h"

constexpr float EPSILON = 1e-5f;  // added to a variance (NORM)

// What belongs to one row (sentence) at one position.
template <class T>
struct Row {
    float *sums, *own, *before;  // sums, values, values of the position before
    T *reads;
    // Backward: d of own and before, of reads; d of sums, which products read
    float *d_own, *d_before, *d_reads;
    T* d_sums;
    bool real;

    const float* value(const Part& p, int k) const { return (p.before >> k & 1 ? before : own) + p.at[k]; }
    float* d_value(const Part& p, int k) const { return (p.before >> k & 1 ? d_before : d_own) + p.at[k]; }
};

static inline void add(float* to, Vec d, Index n) { store(to, load(to, n) + d, n); }

// INPUT: sums at[0] += x at[1].
template <class T>
static void input(const Part& p, const Row<T>& r, const T* x) {
    for (Index k = 0; k < p.size; k += LANES)
        add(r.sums + p.at[0] + k, load(x + p.at[1] + k, p.size - k), p.size - k);
}

// READ: reads at[0] = values at[1], times values at[2] where given, times the mask where given.
template <class T>
static void read(const Part& p, const Row<T>& r, const float* mask) {
    const float *a = r.value(p, 1), *b = p.at[2] < 0 ? nullptr : r.value(p, 2);
    for (Index k = 0; k < p.size; k += LANES) {
        const Index n = p.size - k;
        Vec v = load(a + k, n);
        if (b) v *= load(b + k, n);
        if (mask) v *= load(mask + k, n);
        store(r.reads + p.at[0] + k, v, n);
    }
}

template <class T>
static void read_back(const Part& p, const Row<T>& r, const float* mask) {
    const float *a = r.value(p, 1), *b = p.at[2] < 0 ? nullptr : r.value(p, 2);
    float *d_a = r.d_value(p, 1), *d_b = b ? r.d_value(p, 2) : nullptr;
    for (Index k = 0; k < p.size; k += LANES) {
        const Index n = p.size - k;
        Vec d = load(r.d_reads + p.at[0] + k, n);
        if (mask) d *= load(mask + k, n);
        if (b) add(d_b + k, d * load(a + k, n), n);
        add(d_a + k, b ? d * load(b + k, n) : d, n);
    }
}

// SIGMOID, TANH: values at[0] = f(sums at[1]); where the position is not real, the values at[2], if there are any.
template <class T, Vec (*F)(Vec)>
static void activate(const Part& p, const Row<T>& r) {
    if (!r.real && p.at[2] >= 0) {
        memcpy(r.own + p.at[0], r.value(p, 2), p.size * sizeof(float));
        return;
    }
    for (Index k = 0; k < p.size; k += LANES) {
        const Index n = p.size - k;
        store(r.own + p.at[0] + k, F(load(r.sums + p.at[1] + k, n)), n);
    }
}

template <class T, bool SIGMA>
static void activate_back(const Part& p, const Row<T>& r) {
    const bool stays = !r.real && p.at[2] >= 0;
    for (Index k = 0; k < p.size; k += LANES) {
        const Index n = p.size - k;
        Vec f = load(r.own + p.at[0] + k, n), d = load(r.d_own + p.at[0] + k, n);
        if (stays) add(r.d_value(p, 2) + k, d, n);
        store(r.d_sums + p.at[1] + k, stays ? Vec{} : d * (SIGMA ? f * (1.0f - f) : 1.0f - f * f), n);
    }
}

// GRU: h' at[0], candidate at[1] = tanh(sums at[2]), z at[3], h at[4]; h' = (1 - z) h + z candidate, or with at[7] = 1
// h' = z h + (1 - z) candidate. Where r at[5] is given, sums at[6] times it are added before the tanh (PyTorch's GRU); they
// are kept behind the candidate.
template <class T>
static void gru(const Part& p, const Row<T>& r) {
    const float *z = r.own + p.at[3], *old = r.value(p, 4), *reset = p.at[5] < 0 ? nullptr : r.own + p.at[5];
    float *next = r.own + p.at[0], *candidate = r.own + p.at[1];
    if (!r.real) {
        memcpy(next, old, p.size * sizeof(float));
        return;
    }
    for (Index k = 0; k < p.size; k += LANES) {
        const Index n = p.size - k;
        Vec sum = load(r.sums + p.at[2] + k, n), h = load(old + k, n), u = load(z + k, n);
        if (reset) {
            Vec fed = load(r.sums + p.at[6] + k, n);
            store(candidate + p.size + k, fed, n);
            sum += load(reset + k, n) * fed;
        }
        Vec c = hyperbolic_tangent(sum);
        store(candidate + k, c, n);
        store(next + k, p.at[7] ? c + u * (h - c) : h + u * (c - h), n);
    }
}

template <class T>
static void gru_back(const Part& p, const Row<T>& r) {
    const float *z = r.own + p.at[3], *old = r.value(p, 4), *reset = p.at[5] < 0 ? nullptr : r.own + p.at[5];
    const float *d_next = r.d_own + p.at[0], *candidate = r.own + p.at[1];
    float *d_old = r.d_value(p, 4), *d_z = r.d_own + p.at[3];
    for (Index k = 0; k < p.size; k += LANES) {
        const Index n = p.size - k;
        Vec d = load(d_next + k, n);
        if (!r.real) {
            add(d_old + k, d, n);
            store(r.d_sums + p.at[2] + k, Vec{}, n);
            if (reset) store(r.d_sums + p.at[6] + k, Vec{}, n);
            continue;
        }
        Vec c = load(candidate + k, n), h = load(old + k, n), u = load(z + k, n), to_new = p.at[7] ? 1.0f - u : u;
        add(d_z + k, d * (p.at[7] ? h - c : c - h), n);
        add(d_old + k, d * (1.0f - to_new), n);
        Vec d_sum = d * to_new * (1.0f - c * c);
        store(r.d_sums + p.at[2] + k, d_sum, n);
        if (!reset) continue;
        add(r.d_own + p.at[5] + k, d_sum * load(candidate + p.size + k, n), n);
        store(r.d_sums + p.at[6] + k, d_sum * load(reset + k, n), n);
    }
}

// LSTM and SSRU, where the position is not real: h' at[0] and c' at[1] are h at[5] and c at[4].
template <class T>
static void state_stays(const Part& p, const Row<T>& r) {
    memcpy(r.own + p.at[1], r.value(p, 4), p.size * sizeof(float));
    memcpy(r.own + p.at[0], r.value(p, 5), p.size * sizeof(float));
}

// The sums at[3] of so many gates have no part in it.
template <class T>
static void state_stays_back(const Part& p, const Row<T>& r, int gates) {
    for (Index k = 0; k < p.size; k += LANES) {
        const Index n = p.size - k;
        add(r.d_value(p, 5) + k, load(r.d_own + p.at[0] + k, n), n);
        add(r.d_value(p, 4) + k, load(r.d_own + p.at[1] + k, n), n);
        for (int gate = 0; gate < gates; gate++) store(r.d_sums + p.at[3] + gate * p.size + k, Vec{}, n);
    }
}

// LSTM: h' at[0], c' at[1], gates i, f, o, candidate at[2] of sums at[3]; c at[4], h at[5].
// c' = f c + i candidate, h' = o tanh(c'), or with at[6] = 1 h' = o c' (Chen et al. 2018).
template <class T>
static void lstm(const Part& p, const Row<T>& r) {
    const Index D = p.size;
    const float *sums = r.sums + p.at[3], *old = r.value(p, 4);
    float *h = r.own + p.at[0], *c = r.own + p.at[1], *gates = r.own + p.at[2];
    if (!r.real) return state_stays(p, r);
    for (Index k = 0; k < D; k += LANES) {
        const Index n = D - k;
        Vec i = sigmoid(load(sums + k, n)), f = sigmoid(load(sums + D + k, n)), o = sigmoid(load(sums + 2 * D + k, n));
        Vec g = hyperbolic_tangent(load(sums + 3 * D + k, n)), now = f * load(old + k, n) + i * g;
        store(gates + k, i, n);
        store(gates + D + k, f, n);
        store(gates + 2 * D + k, o, n);
        store(gates + 3 * D + k, g, n);
        store(c + k, now, n);
        store(h + k, p.at[6] ? o * now : o * hyperbolic_tangent(now), n);
    }
}

template <class T>
static void lstm_back(const Part& p, const Row<T>& r) {
    if (!r.real) return state_stays_back(p, r, 4);
    const Index D = p.size;
    const float *gates = r.own + p.at[2], *now = r.own + p.at[1], *old = r.value(p, 4);
    const float *d_h = r.d_own + p.at[0], *d_c = r.d_own + p.at[1];
    float* d_old = r.d_value(p, 4);
    T* d_sums = r.d_sums + p.at[3];
    for (Index k = 0; k < D; k += LANES) {
        const Index n = D - k;
        Vec d = load(d_h + k, n), e = load(d_c + k, n);
        Vec i = load(gates + k, n), f = load(gates + D + k, n), o = load(gates + 2 * D + k, n);
        Vec g = load(gates + 3 * D + k, n), c = load(now + k, n), read = p.at[6] ? c : hyperbolic_tangent(c);
        e += p.at[6] ? d * o : d * o * (1.0f - read * read);
        store(d_sums + k, e * g * i * (1.0f - i), n);
        store(d_sums + D + k, e * load(old + k, n) * f * (1.0f - f), n);
        store(d_sums + 2 * D + k, d * read * o * (1.0f - o), n);
        store(d_sums + 3 * D + k, e * i * (1.0f - g * g), n);
        add(d_old + k, e * f, n);
    }
}

// SSRU: h' at[0], c' at[1], f at[2] of sums f, candidate at[3]; c at[4], h at[5].
// c' = f c + (1 - f) candidate, h' = max(0, c') (Kim et al. 2019).
template <class T>
static void ssru(const Part& p, const Row<T>& r) {
    const Index D = p.size;
    const float *sums = r.sums + p.at[3], *old = r.value(p, 4);
    float *h = r.own + p.at[0], *c = r.own + p.at[1], *gate = r.own + p.at[2];
    if (!r.real) return state_stays(p, r);
    for (Index k = 0; k < D; k += LANES) {
        const Index n = D - k;
        Vec f = sigmoid(load(sums + k, n)), candidate = load(sums + D + k, n);
        Vec now = candidate + f * (load(old + k, n) - candidate);
        store(gate + k, f, n);
        store(c + k, now, n);
        store(h + k, most(Vec{}, now), n);  // of NaN: NaN
    }
}

// (1 - f) (c - candidate) is c - c', so the candidate need not be kept.
template <class T>
static void ssru_back(const Part& p, const Row<T>& r) {
    if (!r.real) return state_stays_back(p, r, 2);
    const Index D = p.size;
    const float *gate = r.own + p.at[2], *now = r.own + p.at[1], *old = r.value(p, 4);
    const float *d_h = r.d_own + p.at[0], *d_c = r.d_own + p.at[1];
    float* d_old = r.d_value(p, 4);
    T* d_sums = r.d_sums + p.at[3];
    for (Index k = 0; k < D; k += LANES) {
        const Index n = D - k;
        Vec d = load(d_h + k, n), e = load(d_c + k, n);
        Vec f = load(gate + k, n), c = load(now + k, n);
        e += c > 0.0f ? d : Vec{};
        store(d_sums + k, e * f * (load(old + k, n) - c), n);
        store(d_sums + D + k, e * (1.0f - f), n);
        add(d_old + k, e * f, n);
    }
}

// ADD: values at[0] = values at[1], times the mask where given, plus values at[2] where given.
template <class T>
static void sum_of(const Part& p, const Row<T>& r, const float* mask) {
    const float *a = r.value(p, 1), *b = p.at[2] < 0 ? nullptr : r.value(p, 2);
    for (Index k = 0; k < p.size; k += LANES) {
        const Index n = p.size - k;
        Vec v = load(a + k, n);
        if (mask) v *= load(mask + k, n);
        if (b) v += load(b + k, n);
        store(r.own + p.at[0] + k, v, n);
    }
}

template <class T>
static void sum_of_back(const Part& p, const Row<T>& r, const float* mask) {
    float *d_a = r.d_value(p, 1), *d_b = p.at[2] < 0 ? nullptr : r.d_value(p, 2);
    for (Index k = 0; k < p.size; k += LANES) {
        const Index n = p.size - k;
        const Vec d = load(r.d_own + p.at[0] + k, n);
        add(d_a + k, mask ? d * load(mask + k, n) : d, n);
        if (d_b) add(d_b + k, d, n);
    }
}

// NORM: sums at[0] += gain * (a - mean(a)) / std(a) + bias of sums a at[1]; the quotient is kept in values at[2], and
// behind it, at[3], 1 / std(a).
template <class T>
static void norm(const Part& p, const Row<T>& r) {
    const float *a = r.sums + p.at[1], *gain = (const float*)p.weight, *bias = gain + p.size;
    float* kept = r.own + p.at[2];
    Vec total = {}, squares = {};
    for (Index k = 0; k < p.size; k += LANES) total += load(a + k, p.size - k);
    const float mean = sum(total) / p.size;
    for (Index k = 0; k < p.size; k++) kept[k] = a[k] - mean;
    for (Index k = 0; k < p.size; k += LANES) squares += load(kept + k, p.size - k) * load(kept + k, p.size - k);
    const float inverse = 1.0f / sqrtf(sum(squares) / p.size + EPSILON);
    r.own[p.at[3]] = inverse;
    for (Index k = 0; k < p.size; k += LANES) {
        const Index n = p.size - k;
        Vec x = load(kept + k, n) * inverse;
        store(kept + k, x, n);
        add(r.sums + p.at[0] + k, load(gain + k, n) * x + load(bias + k, n), n);
    }
}

template <class T>
static void norm_back(const Part& p, const Row<T>& r, float* d_weight) {
    const float *gain = (const float*)p.weight, *x = r.own + p.at[2], inverse = r.own[p.at[3]];
    const T* d = r.d_sums + p.at[0];
    Vec of_d = {}, of_dx = {};
    for (Index k = 0; k < p.size; k += LANES) {
        const Index n = p.size - k;
        Vec g = load(d + k, n), scaled = g * load(gain + k, n);
        add(d_weight + k, g * load(x + k, n), n);
        add(d_weight + p.size + k, g, n);
        of_d += scaled;
        of_dx += scaled * load(x + k, n);
    }
    const float mean = sum(of_d) / p.size, mean_x = sum(of_dx) / p.size;
    for (Index k = 0; k < p.size; k += LANES) {
        const Index n = p.size - k;
        Vec scaled = load(d + k, n) * load(gain + k, n);
        store(r.d_sums + p.at[1] + k, inverse * (scaled - mean - load(x + k, n) * mean_x), n);
    }
}

// CENTRE: value at[0] = S sigma(v . values at[1]), S the source positions that are real (Luong et al. 2015, eq. 9).
template <class T>
static void centre(const Part& p, const Row<T>& r, Index source) {
    const float share = dot((const float*)p.weight, r.own + p.at[1], p.size);
    r.own[p.at[0]] = source * sigmoid(all(share))[0];
}

template <class T>
static void centre_back(const Part& p, const Row<T>& r, Index source, float* d_weight) {
    const float c = r.own[p.at[0]], d = r.d_own[p.at[0]] * c * (1.0f - c / source), *v = (const float*)p.weight;
    for (Index k = 0; k < p.size; k += LANES) {
        const Index n = p.size - k;
        add(d_weight + k, d * load(r.own + p.at[1] + k, n), n);
        add(r.d_own + p.at[1] + k, d * load(v + k, n), n);
    }
}

// CLOCK: sums at[0] += log(2 + t) weight at target position t (Cohn et al. 2016, section 3.1: log(1 + i), i from 1).
template <class T>
static void clock(const Part& p, const Row<T>& r, Index t) {
    add_scaled(r.sums + p.at[0], logf(2.0f + t), (const float*)p.weight, p.size);
}

template <class T>
static void clock_back(const Part& p, const Row<T>& r, Index t, float* d_weight) {
    for (Index k = 0; k < p.size; k += LANES)
        add(d_weight + k, logf(2.0f + t) * load(r.d_sums + p.at[0] + k, p.size - k), p.size - k);
}

// Numbers of a part's own weights that are not a matrix.
static inline Index own_weights(const Part& p, const Features& features) {
    switch (p.what) {
        case NORM: return 2 * p.size;
        case CENTRE: case CLOCK: return p.size;
        case ADDITIVE: return own_weights(features, p.size);
    }
    return 0;
}

// ADDITIVE: context at[0] of the query, sums at[1], which are kept in values at[2]. DOT: of values at[1]. The window's
// centre is value at[3], where it is one.
template <class T>
static void attend(const Part& p, const Row<T>& r, const Sentence& s, const T* keys, const T* h, const float* vector,
                   float scale, const Shown& f, float* alpha) {
    memset(alpha, 0, s.heads * s.source * sizeof(float));
    if (p.what == ADDITIVE) memcpy(r.own + p.at[2], r.sums + p.at[1], s.key * sizeof(float));
    const float* q = p.what == ADDITIVE ? r.own + p.at[2] : r.value(p, 1);
    const Index own = s.key / s.heads;
    for (Index head = 0; head < s.heads; head++)
        for (Index n = 0; n < s.count; n++) {
            const Index j = s.real[n];
            alpha[head * s.source + j] = p.what == DOT
                ? scale * dot(keys + j * s.key, q, s.key)
                : additive_energy(keys, q, vector, f, s.key, j, head * own, (head + 1) * own);
        }
    weigh(s, h, alpha, r.own + p.at[0]);
}

// MAXOUT: values at[0] = the greater of each two of sums at[1].
template <class T>
static void maxout(const Part& p, const Row<T>& r) {
    const float* x = r.sums + p.at[1];
    for (Index k = 0; k < p.size; k++) {
        const float a = x[2 * k], b = x[2 * k + 1];
        r.own[p.at[0] + k] = a > b || a != a ? a : b;
    }
}

// BEND: values at[0] = tanh(values at[1]).
template <class T>
static void bend(const Part& p, const Row<T>& r) {
    for (Index k = 0; k < p.size; k += LANES) {
        const Index n = p.size - k;
        store(r.own + p.at[0] + k, hyperbolic_tangent(load(r.value(p, 1) + k, n)), n);
    }
}

// Any part but INPUT, PRODUCT, ADDITIVE, DOT and CLOCK. source: real source positions.
template <class T>
static inline void part_of_step(const Part& p, const Row<T>& r, const float* mask, Index source) {
    switch (p.what) {
        case READ: return read(p, r, mask);
        case SIGMOID: return activate<T, sigmoid>(p, r);
        case TANH: return activate<T, hyperbolic_tangent>(p, r);
        case GRU: return gru(p, r);
        case LSTM: return lstm(p, r);
        case ADD: return sum_of(p, r, mask);
        case NORM: return norm(p, r);
        case CENTRE: return centre(p, r, source);
        case MAXOUT: return maxout(p, r);
        case BEND: return bend(p, r);
        case SSRU: return ssru(p, r);
    }
}
