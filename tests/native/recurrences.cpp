// Properties of recurrences: the forward pass equals a reference interpreter of the same program in
// fp64, and the backward pass equals finite differences of it.
#include "test_utils.h"

EXPORT void recurrence_forward_fp32(Index, const Recurrence*);
EXPORT void recurrence_forward_bf16(Index, const Recurrence*);
EXPORT void recurrence_backward_fp32(Index, const Recurrence*);
EXPORT void recurrence_backward_bf16(Index, const Recurrence*);

namespace {

constexpr Index N = 3, I = 4, J = 5, D = 6;  // D: size of every state, key and annotation
constexpr uint8_t ACTIVE[N * I] = {1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 0, 0};
constexpr uint8_t SOURCE_MASK[N * J] = {1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0};

/// An output of the recurrence and the gradient of the loss with respect to it.
struct Output {
    Index offset, size;
    Doubles d;  // [N, I, size]
};

/// A program and its reference interpreter.
struct Program {
    std::vector<Op> ops;
    Index x_size, sums_size, values_size, reads_size, heads;
    bool reversed;
    Index window_radius;
    double window_sigma, score_scale;
    Doubles x, bias, keys, annotations, score_vector, initial;
    std::vector<Doubles>
        weights;  // one per operation: weight of PRODUCT, NORM, CENTRE; mask of READ, ADD
    std::vector<Output> outputs;
    Doubles d_alphas;
    std::vector<Feature> features;
    Doubles prepared;
    Doubles values, alphas;  // results of `run`

    void add(OpType type, Index size, std::vector<Index> offsets, Index previous = 0,
             Doubles weight = {}) {
        Op op = {};
        op.type = type;
        op.size = size;
        op.previous = previous;
        for (size_t k = 0; k < 8; k++) op.offset[k] = k < offsets.size() ? offsets[k] : -1;
        ops.push_back(op);
        weights.push_back(weight);
    }
    void run();
    /// Returns the sum of all outputs and alphas, weighted by their gradients.
    double loss() {
        run();
        double total = 0;
        for (const Output& out : outputs)
            for (Index n = 0; n < N * I; n++)
                for (Index k = 0; k < out.size; k++) {
                    const Index i = n % I + !reversed;
                    total += out.d[n * out.size + k] *
                             values[(n / I * (I + 1) + i) * values_size + out.offset + k];
                }
        for (size_t a = 0; a < alphas.size(); a++) total += d_alphas[a] * alphas[a];
        return total;
    }
    /// Returns the gradient of the loss with respect to one of the members, by central differences.
    Doubles finite_differences(Doubles& member) {
        Doubles gradient;
        for (double& x : member) {
            const double original = x, step = 1e-5;
            x = original + step;
            const double above = loss();
            x = original - step;
            gradient.push_back((above - loss()) / (2 * step));
            x = original;
        }
        return gradient;
    }
    void attend(const Op& op, Index n, Index i, double* row, const double* query, double* alpha,
                const Doubles& inputs, const Doubles& weight);
    Features all_features() const;
    Doubles feature_inputs(const Doubles& states) const;
    Doubles next_feature_states(Index n, const double* alpha, const double* sums,
                                const Doubles& weight, const Doubles& states) const;
};

Features Program::all_features() const {
    Features all = {features.data(), Index(features.size()), 0, 0, 0};
    for (const Feature& f : features) {
        all.width += f.units ? UNIT_MULTIPLE : 2 * f.neighbours + 1;
        all.state_size += f.units ? UNIT_MULTIPLE : 1;
        all.prepared_size += f.units ? 3 * UNIT_MULTIPLE : 1;
    }
    return all;
}

/// Returns what the score reads of each source position [J, width].
Doubles Program::feature_inputs(const Doubles& states) const {
    Doubles inputs;
    const Index size = all_features().state_size;
    for (Index j = 0; j < J; j++) {
        Index at = 0;
        for (const Feature& f : features) {
            for (Index u = 0; u < UNIT_MULTIPLE && f.units; u++)
                inputs.push_back(states[j * size + at + u]);
            for (Index k = j - f.neighbours; k <= j + f.neighbours && !f.units; k++)
                inputs.push_back(k < 0 || k >= J ? 0 : states[k * size + at]);
            at += f.units ? UNIT_MULTIPLE : 1;
        }
    }
    return inputs;
}

Doubles Program::next_feature_states(Index n, const double* alpha, const double* sums,
                                     const Doubles& weight, const Doubles& states) const {
    const Features all = all_features();
    Doubles next_states = states;
    for (Index j = 0; j < J; j++) {
        if (!SOURCE_MASK[n * J + j]) continue;
        const double *prepared_j = &prepared[(n * J + j) * all.prepared_size],
                     *w = &weight[all.width * D];
        const double* state = &states[j * all.state_size];
        double* next = &next_states[j * all.state_size];
        for (const Feature& f : features) {
            if (!f.units) {
                *next++ = f.accumulates * *state++ + alpha[j] * *prepared_j++;
                continue;
            }
            double gate[3 * UNIT_MULTIPLE];  // z, r, candidate
            for (Index g = 0; g < 3; g++)
                for (Index u = 0; u < UNIT_MULTIPLE; u++) {
                    const Index k = g * UNIT_MULTIPLE + u;
                    gate[k] = prepared_j[k] + sums[f.query_sums + k] + alpha[j] * w[k];
                    for (Index v = 0; v < f.units; v++)
                        gate[k] += w[3 * UNIT_MULTIPLE * (1 + v) + k] * state[v] *
                                   (g < 2 ? 1 : gate[UNIT_MULTIPLE + v]);
                    gate[k] = g < 2 ? logistic(gate[k]) : tanh(gate[k]);
                }
            for (Index u = 0; u < UNIT_MULTIPLE; u++)
                next[u] = state[u] + gate[u] * (gate[2 * UNIT_MULTIPLE + u] - state[u]);
            next += UNIT_MULTIPLE;
            state += UNIT_MULTIPLE;
            prepared_j += 3 * UNIT_MULTIPLE;
            w += 3 * UNIT_MULTIPLE * (UNIT_MULTIPLE + 1);
        }
    }
    return next_states;
}

/// Attention of one sentence at one position.
void Program::attend(const Op& op, Index n, Index i, double* row, const double* query,
                     double* alpha, const Doubles& inputs, const Doubles& weight) {
    const Index width = all_features().width;
    const Index head_size = D / heads;
    for (Index k = 0; k < D; k++) row[op.offset[0] + k] = 0;
    for (Index head = 0; head < heads; head++, alpha += J) {
        double total = 0;
        for (Index j = 0; j < J; j++) {
            alpha[j] = 0;
            if (!SOURCE_MASK[n * J + j]) continue;
            if (window_radius >= 0 && fabs(j - row[op.offset[3]]) > window_radius) continue;
            const double* key = &keys[(n * J + j) * D];
            double energy = 0;
            for (Index k = 0; k < D && op.type == DOT; k++)
                energy += score_scale * key[k] * query[k];
            for (Index k = head * head_size; k < (head + 1) * head_size && op.type == ADDITIVE;
                 k++) {
                double hidden = key[k] + query[k];
                for (Index f = 0; f < width; f++)
                    hidden += weight[f * D + k] * inputs[j * width + f];
                energy += score_vector[k] * tanh(hidden);
            }
            total += alpha[j] = exp(energy);
        }
        for (Index j = 0; j < J; j++) {
            alpha[j] /= total;
            if (window_sigma > 0)
                alpha[j] *= exp(-0.5 * pow((j - row[op.offset[3]]) / window_sigma, 2));
            for (Index k = head * head_size; k < (head + 1) * head_size; k++)
                row[op.offset[0] + k] += alpha[j] * annotations[(n * J + j) * D + k];
        }
    }
}

void Program::run() {
    values.assign(N * (I + 1) * values_size, 0);
    alphas.assign(N * I * heads * J, 0);
    for (Index n = 0; n < N; n++) {
        double* rows = &values[n * (I + 1) * values_size];
        Doubles feature_states(J * all_features().state_size);
        memcpy(rows + (reversed ? I : 0) * values_size, &initial[n * values_size],
               values_size * sizeof(double));
        for (Index t = 0; t < I; t++) {
            const Index i = reversed ? I - 1 - t : t;
            double *row = rows + (i + !reversed) * values_size,
                   *last = rows + (i + reversed) * values_size;
            const bool active = ACTIVE[n * I + i];
            Doubles sums = bias, reads(reads_size);
            for (size_t number = 0; number < ops.size(); number++) {
                const Op& op = ops[number];
                const Doubles& w = weights[number];
                const Index S = op.size, *at = op.offset;
                auto value = [&](int k) { return (op.previous >> k & 1 ? last : row) + at[k]; };
                double mean = 0, square = 0;
                for (Index k = 0; k < S; k++) {
                    if (op.type == INPUT) sums[at[0] + k] += x[(n * I + i) * x_size + at[1] + k];
                    if (op.type == READ)
                        reads[at[0] + k] = value(1)[k] * (at[2] < 0 ? 1 : value(2)[k]) *
                                           (w.empty() ? 1 : w[n * S + k]);
                    for (Index r = 0; r < at[2] && op.type == PRODUCT; r++)
                        sums[at[0] + k] += w[k * at[2] + r] * reads[at[1] + r];
                    if (op.type == SIGMOID || op.type == TANH) {
                        const double s = sums[at[1] + k];
                        row[at[0] + k] = op.type == SIGMOID ? logistic(s) : tanh(s);
                    }
                    if (op.type == ADD)
                        row[at[0] + k] = value(1)[k] * (w.empty() ? 1 : w[n * S + k]) +
                                         (at[2] < 0 ? 0 : value(2)[k]);
                    if (op.type == GRU) {
                        const double c = tanh(sums[at[2] + k]), h = value(4)[k], z = row[at[3] + k];
                        row[at[0] + k] = active ? h + z * (c - h) : h;
                    }
                    if (op.type == LSTM) {
                        const double* gate = &sums[at[3] + k];
                        const double c =
                            logistic(gate[S]) * value(4)[k] + logistic(gate[0]) * tanh(gate[3 * S]);
                        row[at[1] + k] = active ? c : value(4)[k];
                        row[at[0] + k] = active ? logistic(gate[2 * S]) * tanh(c) : value(5)[k];
                    }
                    if (op.type == NORM) mean += sums[at[1] + k] / S;
                    if (op.type == CENTRE) mean += w[k] * row[at[1] + k];
                    if (op.type == LOG_POSITION) sums[at[0] + k] += log(2 + at[1] + i) * w[k];
                }
                for (Index k = 0; k < S && op.type == NORM; k++)
                    square += pow(sums[at[1] + k] - mean, 2) / S;
                for (Index k = 0; k < S && op.type == NORM; k++)
                    sums[at[0] + k] +=
                        w[k] * (sums[at[1] + k] - mean) / sqrt(square + 1e-5) + w[S + k];
                int source_count = 0;
                for (Index j = 0; j < J; j++) source_count += SOURCE_MASK[n * J + j];
                if (op.type == CENTRE) row[at[0]] = source_count * logistic(mean);
                if (op.type != ADDITIVE && op.type != DOT) continue;
                double* alpha = &alphas[(n * I + i) * heads * J];
                attend(op, n, i, row, op.type == DOT ? value(1) : &sums[at[1]], alpha,
                       feature_inputs(feature_states), w);
                if (!features.empty())
                    feature_states = next_feature_states(n, alpha, sums.data(), w, feature_states);
            }
        }
    }
}

/// RNNsearch's decoder, with two heads.
template <class T>
Program gru_program() {
    Program p = {};
    p.x_size = 3 * D;
    p.heads = 2;
    p.window_radius = -1;
    const Index s = 0, z = D, r = 2 * D, candidate = 3 * D, query = 4 * D, context = 5 * D;
    const Index gates = 0, candidate_sums = 2 * D, query_sums = 3 * D;
    p.values_size = 6 * D;
    p.sums_size = 4 * D;
    p.reads_size = 3 * D;
    p.add(READ, D, {0, s}, 2);
    p.add(PRODUCT, D, {query_sums, 0, D}, 0, random_values<T>(D * D));
    p.add(ADDITIVE, D, {context, query_sums, query});
    p.add(READ, D, {D, context}, 0, random_values<float>(N * D));
    p.add(INPUT, 2 * D, {gates, 0});
    p.add(INPUT, D, {candidate_sums, 2 * D});
    p.add(PRODUCT, 2 * D, {gates, 0, D}, 0, random_values<T>(2 * D * D));
    p.add(PRODUCT, 3 * D, {gates, D, D}, 0, random_values<T>(3 * D * D));
    p.add(SIGMOID, 2 * D, {z, gates});
    p.add(READ, D, {2 * D, s, r}, 2);
    p.add(PRODUCT, D, {candidate_sums, 2 * D, D}, 0, random_values<T>(D * D));
    p.add(GRU, D, {s, candidate, candidate_sums, z, s, -1, -1, 0}, 16);
    p.outputs = {{s, D, random_values<float>(N * I * D)},
                 {context, D, random_values<float>(N * I * D)}};
    return p;
}

/// A reversed LSTM with layer normalisation, which attends within a window, and sums of values.
template <class T>
Program lstm_program() {
    Program p = {};
    p.x_size = 4 * D;
    p.heads = 1;
    p.reversed = true;
    p.window_radius = 2;
    p.window_sigma = 1.5;
    p.score_scale = 0.5;
    const Index h = 0, c = D, gates = 2 * D, normalised = 6 * D, inverse_std = 10 * D;
    const Index query = inverse_std + 1;
    const Index centre = query + D, context = centre + 1, masked = context + D, total = masked + D;
    const Index sums = 0, raw = 4 * D, query_sums = 8 * D;
    p.values_size = total + D;
    p.sums_size = 9 * D;
    p.reads_size = 2 * D;
    p.add(READ, D, {0, h}, 2);
    p.add(PRODUCT, 4 * D, {raw, 0, D}, 0, random_values<T>(4 * D * D));
    p.add(NORM, 4 * D, {sums, raw, normalised, inverse_std}, 0, random_values<float>(8 * D));
    p.add(INPUT, 4 * D, {sums, 0});
    p.add(LSTM, D, {h, c, gates, sums, c, h, 0}, 16 + 32);
    p.add(READ, D, {D, h});
    p.add(PRODUCT, D, {query_sums, D, D}, 0, random_values<T>(D * D));
    p.add(TANH, D, {query, query_sums});
    p.add(CENTRE, D, {centre, query}, 0, random_values<float>(D));
    p.add(DOT, D, {context, query, -1, centre});
    p.add(ADD, D, {masked, context}, 0, random_values<float>(N * D));
    p.add(ADD, D, {total, h, masked}, 2, random_values<float>(N * D));
    p.outputs = {{c, D, random_values<float>(N * I * D)},
                 {total, D, random_values<float>(N * I * D)}};
    return p;
}

/// An additive score with features: a GRU of three units, sums with neighbours, and the target
/// position.
template <class T>
Program coverage_program() {
    Program p = {};
    p.x_size = D;
    p.heads = 1;
    p.window_radius = -1;
    const Index s = 0, query = D, context = 2 * D, feature_values = 3 * D;
    const Index query_sums = D, feature_sums = 2 * D, units = 3;
    p.values_size = 3 * D + 3 * UNIT_MULTIPLE;
    p.sums_size = 2 * D + 3 * UNIT_MULTIPLE;
    p.reads_size = 2 * D;
    p.features = {{units, 0, 0, feature_sums, feature_values}, {0, 1, 1, -1, -1}};
    const Features all = p.all_features();
    Doubles parameters =
        random_values<float>(all.width * D + 3 * UNIT_MULTIPLE * (UNIT_MULTIPLE + 1));
    Doubles query_weight = random_values<T>(3 * UNIT_MULTIPLE * D);
    // Weights of units that only fill the last vector are zero.
    for (Index k = 0; k < 3 * UNIT_MULTIPLE * (UNIT_MULTIPLE + 1); k++)
        if (k % UNIT_MULTIPLE >= units) parameters[all.width * D + k] = 0;
    for (Index k = 0; k < 3 * UNIT_MULTIPLE * D; k++)
        if (k / D % UNIT_MULTIPLE >= units) query_weight[k] = 0;
    p.prepared = random_values<float>(N * J * all.prepared_size);
    for (Index k = 0; k < Index(p.prepared.size()); k++) {
        const Index column = k % all.prepared_size;
        if (column < 3 * UNIT_MULTIPLE && column % UNIT_MULTIPLE >= units) p.prepared[k] = 0;
    }
    p.add(READ, D, {0, s}, 2);
    p.add(PRODUCT, D, {query_sums, 0, D}, 0, random_values<T>(D * D));
    p.add(PRODUCT, 3 * UNIT_MULTIPLE, {feature_sums, 0, D}, 0, query_weight);
    p.add(LOG_POSITION, D, {query_sums, 0}, 0, random_values<float>(D));
    p.add(ADDITIVE, D, {context, query_sums, query}, 0, parameters);
    p.add(READ, D, {D, context});
    p.add(INPUT, D, {0, 0});
    p.add(PRODUCT, D, {0, D, D}, 0, random_values<T>(D * D));
    p.add(TANH, D, {s, 0});
    p.outputs = {{s, D, random_values<float>(N * I * D)},
                 {context, D, random_values<float>(N * I * D)}};
    return p;
}

/// Compares all results and gradients of a program with the reference.
template <class T, class F, class B>
void test_program(const char* name, Program p, F forward, B backward, double tolerance) {
    p.x = random_values<T>(N * I * p.x_size);
    p.bias = random_values<float>(p.sums_size);
    p.keys = random_values<T>(N * J * D);
    p.annotations = random_values<T>(N * J * D);
    p.score_vector = random_values<float>(D);
    p.initial = random_values<float>(N * p.values_size);
    p.d_alphas = random_values<float>(N * I * p.heads * J);
    const auto bias = from_doubles<float>(p.bias), vector = from_doubles<float>(p.score_vector);
    const auto d_alphas = from_doubles<float>(p.d_alphas);
    const auto x = from_doubles<T>(p.x), keys = from_doubles<T>(p.keys),
               annotations = from_doubles<T>(p.annotations);
    std::vector<std::vector<float>> weights(p.ops.size()), d_weights(p.ops.size()),
        d_outputs(p.outputs.size());
    for (size_t n = 0; n < p.ops.size(); n++) {
        Op& op = p.ops[n];
        weights[n] = from_doubles<float>(p.weights[n]);
        d_weights[n].resize(weights[n].size());
        const bool has_mask = op.type == READ || op.type == ADD;
        if (has_mask && !weights[n].empty()) {
            op.mask = weights[n].data();
            op.mask_row_stride = op.size;
        }
        if (!has_mask) op.weight = weights[n].data();
        op.d_weight = d_weights[n].data();
    }
    std::vector<OutputGradient> output_gradients;
    for (size_t n = 0; n < p.outputs.size(); n++) {
        d_outputs[n] = from_doubles<float>(p.outputs[n].d);
        output_gradients.push_back(
            {d_outputs[n].data(), p.outputs[n].offset, p.outputs[n].size, 0});
    }
    std::vector<float> values(N * (I + 1) * p.values_size), alphas(p.d_alphas.size()),
        d_keys(keys.size());
    std::vector<float> d_vector(D), d_initial(p.initial.size());
    std::vector<T> reads(N * I * p.reads_size), d_sums(N * I * p.sums_size), d_contexts(N * I * D),
        d_h(keys.size());
    for (Index n = 0; n < N; n++)
        for (Index k = 0; k < p.values_size; k++)
            values[(n * (I + 1) + (p.reversed ? I : 0)) * p.values_size + k] =
                float(p.initial[n * p.values_size + k]);
    const auto prepared = from_doubles<float>(p.prepared);
    const Features all = p.all_features();
    std::vector<float> feature_states(N * (I + 1) * J * all.state_size),
        d_prepared(prepared.size());
    Recurrence r = {};
    r.rows = N;
    r.positions = I;
    r.reversed = p.reversed;
    r.x_size = p.x_size;
    r.sums_size = p.sums_size;
    r.values_size = p.values_size;
    r.reads_size = p.reads_size;
    r.source_length = J;
    r.key_size = D;
    r.annotation_size = D;
    r.heads = p.heads;
    r.num_ops = Index(p.ops.size());
    r.ops = p.ops.data();
    r.bias = bias.data();
    r.x = x.data();
    r.active = ACTIVE;
    r.keys = keys.data();
    r.annotations = annotations.data();
    r.source_mask = SOURCE_MASK;
    r.score_vector = vector.data();
    r.score_scale = float(p.score_scale);
    r.window_radius = p.window_radius;
    r.window_sigma = float(p.window_sigma);
    r.features = all;
    r.prepared = prepared.data();
    r.feature_states = feature_states.data();
    r.values = values.data();
    r.reads = reads.data();
    r.alphas = alphas.data();
    r.output_gradients = output_gradients.data();
    r.num_output_gradients = Index(output_gradients.size());
    r.d_alphas = d_alphas.data();
    r.d_sums = d_sums.data();
    r.d_contexts = d_contexts.data();
    r.d_annotations = d_h.data();
    r.d_keys = d_keys.data();
    r.d_vector = d_vector.data();
    r.d_initial = d_initial.data();
    r.d_prepared = d_prepared.data();
    forward(THREADS, &r);
    backward(THREADS, &r);

    p.run();
    check(name, to_doubles(alphas), p.alphas, tolerance);
    for (const Output& out : p.outputs) {
        Doubles actual, expected;
        for (Index n = 0; n < N * (I + 1) * out.size; n++) {
            actual.push_back(values[n / out.size * p.values_size + out.offset + n % out.size]);
            expected.push_back(p.values[n / out.size * p.values_size + out.offset + n % out.size]);
        }
        check(name, actual, expected, tolerance);
    }
    check(name, to_doubles(d_keys), p.finite_differences(p.keys), tolerance);
    check(name, to_doubles(d_h), p.finite_differences(p.annotations), tolerance);
    check(name, to_doubles(d_initial), p.finite_differences(p.initial), tolerance);
    check(name, to_doubles(d_prepared), p.finite_differences(p.prepared), tolerance);
    if (p.heads == 2)
        check(name, to_doubles(d_vector), p.finite_differences(p.score_vector), tolerance);
    Doubles d_bias(p.sums_size), d_x(p.x.size());
    for (Index n = 0; n < N * I; n++) {
        for (Index k = 0; k < p.sums_size; k++) d_bias[k] += to_double(d_sums[n * p.sums_size + k]);
        for (Index k = 0; k < p.x_size; k++)
            d_x[n * p.x_size + k] = to_double(d_sums[n * p.sums_size + k]);
    }
    check(name, d_bias, p.finite_differences(p.bias), tolerance);
    check(name, d_x, p.finite_differences(p.x), tolerance);
    for (size_t n = 0; n < p.ops.size(); n++) {
        const Op& op = p.ops[n];
        Doubles actual = to_doubles(d_weights[n]);
        // The gradient of a product's weight is computed by the caller, from the sums' gradients
        // and the reads.
        for (Index k = 0; op.type == PRODUCT && k < Index(actual.size()); k++)
            for (Index m = 0; m < N * I; m++)
                actual[k] += to_double(d_sums[m * p.sums_size + op.offset[0] + k / op.offset[2]]) *
                             to_double(reads[m * p.reads_size + op.offset[1] + k % op.offset[2]]);
        if (op.type != READ && op.type != ADD && !actual.empty())
            check(name, actual, p.finite_differences(p.weights[n]), tolerance);
    }
}

}  // namespace

void test_recurrences() {
    auto test_fp32 = [](const char* name, const Program& program) {
        test_program<float>(name, program, recurrence_forward_fp32, recurrence_backward_fp32,
                            FP32_TOLERANCE);
    };
    auto test_bf16 = [](const char* name, const Program& program) {
        test_program<bfloat16>(name, program, recurrence_forward_bf16, recurrence_backward_bf16,
                               BF16_TOLERANCE);
    };
    test_fp32("gru fp32", gru_program<float>());
    test_fp32("lstm fp32", lstm_program<float>());
    test_fp32("coverage fp32", coverage_program<float>());
    test_bf16("coverage bf16", coverage_program<bfloat16>());
    test_bf16("gru bf16", gru_program<bfloat16>());
    test_bf16("lstm bf16", lstm_program<bfloat16>());
}
