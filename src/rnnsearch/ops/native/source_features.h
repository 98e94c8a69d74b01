// Features of source positions inside an additive score: numbers that depend on the weights of the target positions before
// (Tu et al. 2016, section 3.1; Cohn et al. 2016, sections 3.2 and 3.3). They are remembered a row for each source
// position: `sums` of weights, or a GRU of some units that reads weight, annotation and query.
#pragma once

#include "attention.h"

struct Feature {
    int64_t units;       // of the GRU; 0: sums, C'_j = keeps C_j + alpha_j rate_j
    int64_t neighbours;  // k: the score sees C_{j-k} .. C_{j+k} of sums
    int64_t keeps;
    int64_t fixed, kept;  // GRU: the query's share, sums at `fixed`, which are kept in values at `kept`
};

// All features of a step. Their own weights: W_f [width, key] of all, then of each GRU the weight of alpha [3 d] and
// [U_z U_r U] [d, 3 d], a row for each number that is read, d its units rounded up to whole vectors.
struct Features {
    const Feature* each;
    int64_t count;
    int64_t width;     // of what the score sees of a position
    int64_t memory;    // of what is remembered of a position
    int64_t prepared;  // of what is computed once a sentence: the rate of sums; the annotations' share [3 d] of a GRU
};

constexpr Index UNIT = 16;  // sizes are rounded up to multiples of this

static inline Index width_of(const Feature& f) { return f.units ? (f.units + UNIT - 1) / UNIT * UNIT : 2 * f.neighbours + 1; }
static inline Index memory_of(const Feature& f) { return f.units ? width_of(f) : 1; }
static inline Index prepared_of(const Feature& f) { return f.units ? 3 * width_of(f) : 1; }
static inline Index own_weights(const Feature& f) { return f.units ? 3 * width_of(f) * (width_of(f) + 1) : 0; }
static inline Index own_weights(const Features& all, Index key) {
    Index size = all.width * key;
    for (Index n = 0; n < all.count; n++) size += own_weights(all.each[n]);
    return size;
}

// Where a feature begins in each of the rows.
struct At {
    Index weights, seen = 0, memory = 0, prepared = 0;

    At(const Features& all, Index key) : weights(all.width * key) {}
    void pass(const Feature& f) {
        seen += width_of(f);
        memory += memory_of(f);
        prepared += prepared_of(f);
        weights += own_weights(f);
    }
};

// A GRU at one source position: z, r and candidate [3 d], and r C.
struct Gates {
    Buffer<float> all, reset;

    explicit Gates(Index d) : all(3 * d), reset(d) {}

    void run(const Feature& f, const float* weights, const float* prepared, const float* fixed, float alpha,
             const float* old) {
        const Index d = width_of(f);
        const float *of_alpha = weights, *U = weights + 3 * d;
        for (Index k = 0; k < 3 * d; k += LANES)
            store(&all[k], load(prepared + k, 3 * d - k) + load(fixed + k, 3 * d - k) + alpha * load(of_alpha + k, 3 * d - k),
                  3 * d - k);
        for (Index u = 0; u < f.units; u++) add_scaled(all.data, old[u], U + u * 3 * d, 2 * d);
        for (Index k = 0; k < 2 * d; k += LANES) store(&all[k], sigmoid(load(&all[k], 2 * d - k)), 2 * d - k);
        for (Index u = 0; u < d; u++) reset[u] = all[d + u] * old[u];
        for (Index u = 0; u < f.units; u++) add_scaled(&all[2 * d], reset[u], U + u * 3 * d + 2 * d, d);
        for (Index k = 2 * d; k < 3 * d; k += LANES)
            store(&all[k], hyperbolic_tangent(load(&all[k], 3 * d - k)), 3 * d - k);
    }
};

// seen [source, width] from memory [source, memory]
static void see(const Features& all, const Sentence& s, const float* memory, float* seen) {
    At at(all, s.key);
    for (Index n = 0; n < all.count; n++) {
        const Feature& f = all.each[n];
        for (Index m = 0; m < s.count; m++) {
            const Index j = s.real[m];
            float* to = seen + j * all.width + at.seen;
            if (f.units) memcpy(to, memory + j * all.memory + at.memory, width_of(f) * sizeof(float));
            for (Index k = -f.neighbours; k <= f.neighbours && !f.units; k++)
                to[k + f.neighbours] = j + k < 0 || j + k >= s.source ? 0.0f : memory[(j + k) * all.memory + at.memory];
        }
        at.pass(f);
    }
}

static void see_backward(const Features& all, const Sentence& s, const float* d_seen, float* d_memory) {
    At at(all, s.key);
    for (Index n = 0; n < all.count; n++) {
        const Feature& f = all.each[n];
        for (Index m = 0; m < s.count; m++) {
            const Index j = s.real[m];
            const float* from = d_seen + j * all.width + at.seen;
            if (f.units) add_scaled(d_memory + j * all.memory + at.memory, 1.0f, from, width_of(f));
            for (Index k = -f.neighbours; k <= f.neighbours && !f.units; k++)
                if (j + k >= 0 && j + k < s.source) d_memory[(j + k) * all.memory + at.memory] += from[k + f.neighbours];
        }
        at.pass(f);
    }
}

// What is remembered [source, memory] after a target position whose weights were alpha [source]. values: the row where the
// query's shares are kept.
static void remember(const Features& all, const Sentence& s, const float* weights, const float* prepared,
                     const float* values, const float* alpha, const float* memory, float* next) {
    At at(all, s.key);
    for (Index n = 0; n < all.count; n++) {
        const Feature& f = all.each[n];
        const Index d = memory_of(f);
        Gates gates(f.units ? d : 0);
        for (Index m = 0; m < s.count; m++) {
            const Index j = s.real[m];
            const float *old = memory + j * all.memory + at.memory, *own = prepared + j * all.prepared + at.prepared;
            float* now = next + j * all.memory + at.memory;
            if (!f.units) {
                *now = (f.keeps ? *old : 0.0f) + alpha[j] * *own;
                continue;
            }
            gates.run(f, weights + at.weights, own, values + f.kept, alpha[j], old);
            for (Index u = 0; u < d; u++) now[u] = old[u] + gates.all[u] * (gates.all[2 * d + u] - old[u]);
        }
        at.pass(f);
    }
}

// From d_next, of what is remembered after: writes d_memory, of what was before, and d of the query's shares (in d_sums);
// adds to d_alpha, d_prepared and d_weights.
template <class T>
static void remember_backward(const Features& all, const Sentence& s, const float* weights, const float* prepared,
                              const float* values, const float* alpha, const float* memory, const float* d_next,
                              float* d_memory, float* d_alpha, float* d_prepared, float* d_weights, T* d_sums) {
    At at(all, s.key);
    for (Index n = 0; n < all.count; n++) {
        const Feature& f = all.each[n];
        const Index d = memory_of(f);
        const float *own_weight = weights + at.weights, *U = own_weight + 3 * d;
        float *d_own = d_weights + at.weights, *d_U = d_own + 3 * d;
        Gates gates(f.units ? d : 0);
        Buffer<float> d_gates(3 * d), d_fixed;
        d_fixed.zeros(3 * d);
        for (Index m = 0; m < s.count; m++) {
            const Index j = s.real[m];
            const float *old = memory + j * all.memory + at.memory, *own = prepared + j * all.prepared + at.prepared;
            const float* d_now = d_next + j * all.memory + at.memory;
            float *d_old = d_memory + j * all.memory + at.memory, *d_own_share = d_prepared + j * all.prepared + at.prepared;
            if (!f.units) {
                *d_old = f.keeps ? *d_now : 0.0f;
                d_alpha[j] += *d_now * *own;
                *d_own_share += *d_now * alpha[j];
                continue;
            }
            gates.run(f, own_weight, own, values + f.kept, alpha[j], old);
            const float *z = gates.all.data, *r = z + d, *c = r + d;
            float *d_z = d_gates.data, *d_r = d_z + d, *d_c = d_r + d;
            for (Index u = 0; u < d; u++) {
                d_z[u] = d_now[u] * (c[u] - old[u]) * z[u] * (1 - z[u]);
                d_c[u] = d_now[u] * z[u] * (1 - c[u] * c[u]);
                d_old[u] = d_now[u] * (1 - z[u]);
                d_r[u] = 0;
            }
            for (Index u = 0; u < f.units; u++) {
                const float d_reset = dot(U + u * 3 * d + 2 * d, d_c, d);
                d_r[u] = d_reset * old[u] * r[u] * (1 - r[u]);
                d_old[u] += d_reset * r[u];
                add_scaled(d_U + u * 3 * d + 2 * d, gates.reset[u], d_c, d);
            }
            for (Index u = 0; u < f.units; u++) {
                d_old[u] += dot(U + u * 3 * d, d_z, 2 * d);
                add_scaled(d_U + u * 3 * d, old[u], d_z, 2 * d);
            }
            d_alpha[j] += dot(own_weight, d_z, 3 * d);
            add_scaled(d_own, alpha[j], d_z, 3 * d);
            add_scaled(d_own_share, 1.0f, d_z, 3 * d);
            add_scaled(d_fixed.data, 1.0f, d_z, 3 * d);
        }
        if (f.units)
            for (Index k = 0; k < 3 * d; k += LANES) store(d_sums + f.fixed + k, load(&d_fixed[k], 3 * d - k), 3 * d - k);
        at.pass(f);
    }
}

// The query's shares of GRUs, from sums to where they are kept.
static inline void keep_shares(const Features& all, const float* sums, float* values) {
    for (Index n = 0; n < all.count; n++)
        if (const Feature& f = all.each[n]; f.units)
            memcpy(values + f.kept, sums + f.fixed, 3 * width_of(f) * sizeof(float));
}
