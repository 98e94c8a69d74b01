// Recurrent features of source positions inside an additive score: coverage (Tu et al. 2016,
// section 3.1), fertility and sums of alignments (Cohn et al. 2016, sections 3.2 and 3.3).
//
// They depend on the attention weights of the previous target positions. The state of a feature has
// one row per source position: a sum of weights, or the state of a GRU that reads the weight, the
// annotation and the query.
#pragma once

#include "attention.h"

/// One feature. Mirrored by a ctypes structure.
struct Feature {
    int64_t units;       // of the GRU; 0: a sum of weights, C'_j = accumulates C_j + alpha_j rate_j
    int64_t neighbours;  // k, for sums: the score reads C_{j-k} .. C_{j+k}
    int64_t accumulates;   // for sums: 1 to add to the previous sum, 0 to replace it
    int64_t query_sums;    // for GRUs: offset of the projected query in the sums
    int64_t query_values;  // for GRUs: offset of its copy in the values
};

/// All features of a step. Mirrored by a ctypes structure.
///
/// Their parameters are, in this order: W_f [width, A] of all features; then for each GRU the
/// weight of alpha [3 d] and [U_z U_r U] [d, 3 d], one row per unit that is read; d is the number
/// of units rounded up to whole vectors.
struct Features {
    const Feature* items;
    int64_t count;
    int64_t width;       // values per position that the score reads
    int64_t state_size;  // values per position that are carried to the next target position
    // Values per position that are computed once per sentence: the rate of a sum, or a GRU's
    // projection of the annotation [3 d].
    int64_t prepared_size;
};

/// Sizes are rounded up to multiples of this; no vector is longer.
constexpr Index UNIT_MULTIPLE = 16;

static inline Index feature_width(const Feature& f) {
    return f.units ? (f.units + UNIT_MULTIPLE - 1) / UNIT_MULTIPLE * UNIT_MULTIPLE
                   : 2 * f.neighbours + 1;
}
static inline Index feature_state_size(const Feature& f) { return f.units ? feature_width(f) : 1; }
static inline Index feature_prepared_size(const Feature& f) {
    return f.units ? 3 * feature_width(f) : 1;
}
static inline Index parameter_count(const Feature& f) {
    return f.units ? 3 * feature_width(f) * (feature_width(f) + 1) : 0;
}
static inline Index parameter_count(const Features& features, Index key_size) {
    Index size = features.width * key_size;
    for (Index n = 0; n < features.count; n++) size += parameter_count(features.items[n]);
    return size;
}

/// Offsets of a feature in the parameters and in the rows of inputs, states and prepared values.
struct FeatureOffsets {
    Index parameters, inputs = 0, state = 0, prepared = 0;

    FeatureOffsets(const Features& features, Index key_size)
        : parameters(features.width * key_size) {}
    void advance(const Feature& f) {
        inputs += feature_width(f);
        state += feature_state_size(f);
        prepared += feature_prepared_size(f);
        parameters += parameter_count(f);
    }
};

/// The gates of a feature's GRU at one source position: z, r and candidate [3 d], and the reset
/// state r C [d].
struct FeatureGates {
    Buffer<float> gates, reset;

    explicit FeatureGates(Index d) : gates(3 * d), reset(d) {}

    /// Computes the gates from the previous state [d]. prepared, query: [3 d], projected annotation
    /// and query.
    void compute(const Feature& f, const float* parameters, const float* prepared,
                 const float* query, float alpha, const float* state) {
        const Index d = feature_width(f);
        const float *alpha_weight = parameters, *U = parameters + 3 * d;
        for (Index k = 0; k < 3 * d; k += LANES)
            store(&gates[k],
                  load(prepared + k, 3 * d - k) + load(query + k, 3 * d - k) +
                      alpha * load(alpha_weight + k, 3 * d - k),
                  3 * d - k);
        for (Index u = 0; u < f.units; u++) add_scaled(gates.data, state[u], U + u * 3 * d, 2 * d);
        for (Index k = 0; k < 2 * d; k += LANES)
            store(&gates[k], vec_sigmoid(load(&gates[k], 2 * d - k)), 2 * d - k);
        for (Index u = 0; u < d; u++) reset[u] = gates[d + u] * state[u];
        for (Index u = 0; u < f.units; u++)
            add_scaled(&gates[2 * d], reset[u], U + u * 3 * d + 2 * d, d);
        for (Index k = 2 * d; k < 3 * d; k += LANES)
            store(&gates[k], vec_tanh(load(&gates[k], 3 * d - k)), 3 * d - k);
    }
};

/// Writes what the score reads of the features, inputs [J, width], from their states [J,
/// state_size].
static void read_features(const Features& features, const SourceView& s, const float* states,
                          float* inputs) {
    FeatureOffsets at(features, s.key_size);
    for (Index n = 0; n < features.count; n++) {
        const Feature& f = features.items[n];
        for (Index m = 0; m < s.count; m++) {
            const Index j = s.positions[m];
            float* to = inputs + j * features.width + at.inputs;
            if (f.units)
                memcpy(to, states + j * features.state_size + at.state,
                       feature_width(f) * sizeof(float));
            for (Index k = -f.neighbours; k <= f.neighbours && !f.units; k++)
                to[k + f.neighbours] = j + k < 0 || j + k >= s.length
                                           ? 0.0f
                                           : states[(j + k) * features.state_size + at.state];
        }
        at.advance(f);
    }
}

/// Backward pass of `read_features`: adds to d_states [J, state_size].
static void read_features_backward(const Features& features, const SourceView& s,
                                   const float* d_inputs, float* d_states) {
    FeatureOffsets at(features, s.key_size);
    for (Index n = 0; n < features.count; n++) {
        const Feature& f = features.items[n];
        for (Index m = 0; m < s.count; m++) {
            const Index j = s.positions[m];
            const float* from = d_inputs + j * features.width + at.inputs;
            if (f.units)
                add_scaled(d_states + j * features.state_size + at.state, 1.0f, from,
                           feature_width(f));
            for (Index k = -f.neighbours; k <= f.neighbours && !f.units; k++)
                if (j + k >= 0 && j + k < s.length)
                    d_states[(j + k) * features.state_size + at.state] += from[k + f.neighbours];
        }
        at.advance(f);
    }
}

/// Writes the states [J, state_size] after a target position with weights alpha [J].
///
/// prepared: [J, prepared_size]. values: the row of values with the projected queries (see
/// `save_queries`).
static void update_features(const Features& features, const SourceView& s, const float* parameters,
                            const float* prepared, const float* values, const float* alpha,
                            const float* states, float* next_states) {
    FeatureOffsets at(features, s.key_size);
    for (Index n = 0; n < features.count; n++) {
        const Feature& f = features.items[n];
        const Index d = feature_state_size(f);
        FeatureGates gru(f.units ? d : 0);
        for (Index m = 0; m < s.count; m++) {
            const Index j = s.positions[m];
            const float* state = states + j * features.state_size + at.state;
            const float* prepared_j = prepared + j * features.prepared_size + at.prepared;
            float* next = next_states + j * features.state_size + at.state;
            if (!f.units) {
                *next = (f.accumulates ? *state : 0.0f) + alpha[j] * *prepared_j;
                continue;
            }
            gru.compute(f, parameters + at.parameters, prepared_j, values + f.query_values,
                        alpha[j], state);
            for (Index u = 0; u < d; u++)
                next[u] = state[u] + gru.gates[u] * (gru.gates[2 * d + u] - state[u]);
        }
        at.advance(f);
    }
}

/// Backward pass of `update_features`, from d_next_states.
///
/// Writes d_states and the gradient of the projected queries (into d_sums); adds to d_alpha,
/// d_prepared and d_parameters.
template <class T>
static void update_features_backward(const Features& features, const SourceView& s,
                                     const float* parameters, const float* prepared,
                                     const float* values, const float* alpha, const float* states,
                                     const float* d_next_states, float* d_states, float* d_alpha,
                                     float* d_prepared, float* d_parameters, T* d_sums) {
    FeatureOffsets at(features, s.key_size);
    for (Index n = 0; n < features.count; n++) {
        const Feature& f = features.items[n];
        const Index d = feature_state_size(f);
        const float *alpha_weight = parameters + at.parameters, *U = alpha_weight + 3 * d;
        float *d_alpha_weight = d_parameters + at.parameters, *d_U = d_alpha_weight + 3 * d;
        FeatureGates gru(f.units ? d : 0);
        Buffer<float> d_gates(3 * d), d_query;
        d_query.zeros(3 * d);
        for (Index m = 0; m < s.count; m++) {
            const Index j = s.positions[m];
            const float* state = states + j * features.state_size + at.state;
            const float* prepared_j = prepared + j * features.prepared_size + at.prepared;
            const float* d_next = d_next_states + j * features.state_size + at.state;
            float* d_state = d_states + j * features.state_size + at.state;
            float* d_prepared_j = d_prepared + j * features.prepared_size + at.prepared;
            if (!f.units) {
                *d_state = f.accumulates ? *d_next : 0.0f;
                d_alpha[j] += *d_next * *prepared_j;
                *d_prepared_j += *d_next * alpha[j];
                continue;
            }
            gru.compute(f, alpha_weight, prepared_j, values + f.query_values, alpha[j], state);
            const float *z = gru.gates.data, *r = z + d, *c = r + d;
            float *d_z = d_gates.data, *d_r = d_z + d, *d_c = d_r + d;
            for (Index u = 0; u < d; u++) {
                d_z[u] = d_next[u] * (c[u] - state[u]) * z[u] * (1 - z[u]);
                d_c[u] = d_next[u] * z[u] * (1 - c[u] * c[u]);
                d_state[u] = d_next[u] * (1 - z[u]);
                d_r[u] = 0;
            }
            for (Index u = 0; u < f.units; u++) {
                const float d_reset = dot(U + u * 3 * d + 2 * d, d_c, d);
                d_r[u] = d_reset * state[u] * r[u] * (1 - r[u]);
                d_state[u] += d_reset * r[u];
                add_scaled(d_U + u * 3 * d + 2 * d, gru.reset[u], d_c, d);
            }
            for (Index u = 0; u < f.units; u++) {
                d_state[u] += dot(U + u * 3 * d, d_z, 2 * d);  // of z and r, which are adjacent
                add_scaled(d_U + u * 3 * d, state[u], d_z, 2 * d);
            }
            d_alpha[j] += dot(alpha_weight, d_z, 3 * d);  // of z, r and c
            add_scaled(d_alpha_weight, alpha[j], d_z, 3 * d);
            add_scaled(d_prepared_j, 1.0f, d_z, 3 * d);
            add_scaled(d_query.data, 1.0f, d_z, 3 * d);
        }
        if (f.units)
            for (Index k = 0; k < 3 * d; k += LANES)
                store(d_sums + f.query_sums + k, load(&d_query[k], 3 * d - k), 3 * d - k);
        at.advance(f);
    }
}

/// Copies the projected queries of GRUs from the sums to the values, where `update_features` reads
/// them.
static inline void save_queries(const Features& features, const float* sums, float* values) {
    for (Index n = 0; n < features.count; n++)
        if (const Feature& f = features.items[n]; f.units)
            memcpy(values + f.query_values, sums + f.query_sums,
                   3 * feature_width(f) * sizeof(float));
}
