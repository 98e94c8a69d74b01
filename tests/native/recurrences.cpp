// Recurrences, onward beside plain loops over the same program in fp64, and back beside its differences.
#include "laws.h"

EXPORT void recurrence_onward_fp32(Index, const Recurrence*);
EXPORT void recurrence_onward_bf16(Index, const Recurrence*);
EXPORT void recurrence_back_fp32(Index, const Recurrence*);
EXPORT void recurrence_back_bf16(Index, const Recurrence*);

namespace {

constexpr Index N = 3, I = 4, J = 5, D = 6;  // D: of every state, key and annotation
constexpr uint8_t REAL[N * I] = {1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 0, 0};
constexpr uint8_t MASK[N * J] = {1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0};

struct Output {
    Index at, size;
    Numbers d;
};

struct Program {
    std::vector<Part> parts;
    Index x_size, sums_size, values_size, reads_size, heads;
    bool backward;
    Index reach;
    double spread, scale;
    Numbers x, bias, keys, annotations, vector, first;
    std::vector<Numbers> weights;  // one a part: of PRODUCT, NORM, CENTRE; READ's and ADD's masks
    std::vector<Output> outputs;
    Numbers d_alphas;
    std::vector<Feature> features;
    Numbers prepared;
    Numbers values, alphas;  // what a run makes

    void add(What what, Index size, std::vector<Index> at, Index before = 0, Numbers weight = {}) {
        Part p = {};
        p.what = what, p.size = size, p.before = before;
        for (size_t k = 0; k < 8; k++) p.at[k] = k < at.size() ? at[k] : -1;
        parts.push_back(p);
        weights.push_back(weight);
    }
    void run();
    double loss() {
        run();
        double total = 0;
        for (const Output& out : outputs)
            for (Index n = 0; n < N * I; n++)
                for (Index k = 0; k < out.size; k++) {
                    const Index i = n % I + !backward;
                    total += out.d[n * out.size + k] * values[(n / I * (I + 1) + i) * values_size + out.at + k];
                }
        for (size_t a = 0; a < alphas.size(); a++) total += d_alphas[a] * alphas[a];
        return total;
    }
    Numbers differences(Numbers& of) {
        Numbers found;
        for (double& x : of) {
            const double at = x, by = 1e-5;
            x = at + by;
            const double more = loss();
            x = at - by;
            found.push_back((more - loss()) / (2 * by));
            x = at;
        }
        return found;
    }
    void attend(const Part& p, Index n, Index i, double* own, const double* query, double* alpha, const Numbers& shown,
                const Numbers& weight);
    Features all() const;
    Numbers show(const Numbers& memory) const;
    Numbers remember(Index n, const double* alpha, const double* sums, const Numbers& weight, const Numbers& memory) const;
};

Features Program::all() const {
    Features found = {features.data(), Index(features.size()), 0, 0, 0};
    for (const Feature& f : features) {
        found.width += f.units ? UNIT : 2 * f.neighbours + 1;
        found.memory += f.units ? UNIT : 1;
        found.prepared += f.units ? 3 * UNIT : 1;
    }
    return found;
}

// What the score sees of each position.
Numbers Program::show(const Numbers& memory) const {
    Numbers found;
    const Index size = all().memory;
    for (Index j = 0; j < J; j++) {
        Index at = 0;
        for (const Feature& f : features) {
            for (Index u = 0; u < UNIT && f.units; u++) found.push_back(memory[j * size + at + u]);
            for (Index k = j - f.neighbours; k <= j + f.neighbours && !f.units; k++)
                found.push_back(k < 0 || k >= J ? 0 : memory[k * size + at]);
            at += f.units ? UNIT : 1;
        }
    }
    return found;
}

Numbers Program::remember(Index n, const double* alpha, const double* sums, const Numbers& weight,
                          const Numbers& memory) const {
    Numbers found = memory;
    for (Index j = 0; j < J; j++) {
        if (!MASK[n * J + j]) continue;
        const double *own = &prepared[(n * J + j) * all().prepared], *w = &weight[all().width * D];
        const double* old = &memory[j * all().memory];
        double* now = &found[j * all().memory];
        for (const Feature& f : features) {
            if (!f.units) {
                *now++ = f.keeps * *old++ + alpha[j] * *own++;
                continue;
            }
            double gate[3 * UNIT];
            for (Index g = 0; g < 3; g++)
                for (Index u = 0; u < UNIT; u++) {
                    const Index k = g * UNIT + u;
                    gate[k] = own[k] + sums[f.fixed + k] + alpha[j] * w[k];
                    for (Index v = 0; v < f.units; v++)
                        gate[k] += w[3 * UNIT * (1 + v) + k] * old[v] * (g < 2 ? 1 : gate[UNIT + v]);
                    gate[k] = g < 2 ? logistic(gate[k]) : tanh(gate[k]);
                }
            for (Index u = 0; u < UNIT; u++) now[u] = old[u] + gate[u] * (gate[2 * UNIT + u] - old[u]);
            now += UNIT, old += UNIT, own += 3 * UNIT, w += 3 * UNIT * (UNIT + 1);
        }
    }
    return found;
}

// One position of one sentence's attention.
void Program::attend(const Part& p, Index n, Index i, double* own, const double* query, double* alpha,
                     const Numbers& shown, const Numbers& weight) {
    const Index width = all().width;
    const Index own_size = D / heads;
    for (Index k = 0; k < D; k++) own[p.at[0] + k] = 0;
    for (Index head = 0; head < heads; head++, alpha += J) {
        double total = 0;
        for (Index j = 0; j < J; j++) {
            alpha[j] = 0;
            if (!MASK[n * J + j] || (reach >= 0 && fabs(j - own[p.at[3]]) > reach)) continue;
            const double* key = &keys[(n * J + j) * D];
            double energy = 0;
            for (Index k = 0; k < D && p.what == DOT; k++) energy += scale * key[k] * query[k];
            for (Index k = head * own_size; k < (head + 1) * own_size && p.what == ADDITIVE; k++) {
                double hidden = key[k] + query[k];
                for (Index f = 0; f < width; f++) hidden += weight[f * D + k] * shown[j * width + f];
                energy += vector[k] * tanh(hidden);
            }
            total += alpha[j] = exp(energy);
        }
        for (Index j = 0; j < J; j++) {
            alpha[j] /= total;
            if (spread > 0) alpha[j] *= exp(-0.5 * pow((j - own[p.at[3]]) / spread, 2));
            for (Index k = head * own_size; k < (head + 1) * own_size; k++)
                own[p.at[0] + k] += alpha[j] * annotations[(n * J + j) * D + k];
        }
    }
}

void Program::run() {
    values.assign(N * (I + 1) * values_size, 0);
    alphas.assign(N * I * heads * J, 0);
    for (Index n = 0; n < N; n++) {
        double* rows = &values[n * (I + 1) * values_size];
        Numbers memory(J * all().memory);
        memcpy(rows + (backward ? I : 0) * values_size, &first[n * values_size], values_size * sizeof(double));
        for (Index t = 0; t < I; t++) {
            const Index i = backward ? I - 1 - t : t;
            double *own = rows + (i + !backward) * values_size, *last = rows + (i + backward) * values_size;
            const bool real = REAL[n * I + i];
            Numbers sums = bias, reads(reads_size);
            for (size_t number = 0; number < parts.size(); number++) {
                const Part& p = parts[number];
                const Numbers& w = weights[number];
                const Index S = p.size, *at = p.at;
                auto value = [&](int k) { return (p.before >> k & 1 ? last : own) + at[k]; };
                double mean = 0, square = 0;
                for (Index k = 0; k < S; k++) {
                    if (p.what == INPUT) sums[at[0] + k] += x[(n * I + i) * x_size + at[1] + k];
                    if (p.what == READ)
                        reads[at[0] + k] = value(1)[k] * (at[2] < 0 ? 1 : value(2)[k]) * (w.empty() ? 1 : w[n * S + k]);
                    for (Index r = 0; r < at[2] && p.what == PRODUCT; r++)
                        sums[at[0] + k] += w[k * at[2] + r] * reads[at[1] + r];
                    if (p.what == SIGMOID || p.what == TANH) {
                        const double s = sums[at[1] + k];
                        own[at[0] + k] = p.what == SIGMOID ? logistic(s) : tanh(s);
                    }
                    if (p.what == ADD)
                        own[at[0] + k] = value(1)[k] * (w.empty() ? 1 : w[n * S + k]) + (at[2] < 0 ? 0 : value(2)[k]);
                    if (p.what == GRU) {
                        const double c = tanh(sums[at[2] + k]), h = value(4)[k], z = own[at[3] + k];
                        own[at[0] + k] = real ? h + z * (c - h) : h;
                    }
                    if (p.what == LSTM) {
                        const double* gate = &sums[at[3] + k];
                        const double c = logistic(gate[S]) * value(4)[k] + logistic(gate[0]) * tanh(gate[3 * S]);
                        own[at[1] + k] = real ? c : value(4)[k];
                        own[at[0] + k] = real ? logistic(gate[2 * S]) * tanh(c) : value(5)[k];
                    }
                    if (p.what == NORM) mean += sums[at[1] + k] / S;
                    if (p.what == CENTRE) mean += w[k] * own[at[1] + k];
                    if (p.what == CLOCK) sums[at[0] + k] += log(2 + at[1] + i) * w[k];
                }
                for (Index k = 0; k < S && p.what == NORM; k++) square += pow(sums[at[1] + k] - mean, 2) / S;
                for (Index k = 0; k < S && p.what == NORM; k++)
                    sums[at[0] + k] += w[k] * (sums[at[1] + k] - mean) / sqrt(square + 1e-5) + w[S + k];
                int words = 0;
                for (Index j = 0; j < J; j++) words += MASK[n * J + j];
                if (p.what == CENTRE) own[at[0]] = words * logistic(mean);
                if (p.what != ADDITIVE && p.what != DOT) continue;
                double* alpha = &alphas[(n * I + i) * heads * J];
                attend(p, n, i, own, p.what == DOT ? value(1) : &sums[at[1]], alpha, show(memory), w);
                if (!features.empty()) memory = remember(n, alpha, sums.data(), w, memory);
            }
        }
    }
}

// RNNsearch's decoder, of two heads.
template <class T>
Program gru() {
    Program p = {};
    p.x_size = 3 * D, p.heads = 2, p.reach = -1;
    const Index s = 0, z = D, r = 2 * D, candidate = 3 * D, query = 4 * D, context = 5 * D;
    const Index gates = 0, inner = 2 * D, asked = 3 * D;
    p.values_size = 6 * D, p.sums_size = 4 * D, p.reads_size = 3 * D;
    p.add(READ, D, {0, s}, 2);
    p.add(PRODUCT, D, {asked, 0, D}, 0, draw<T>(D * D));
    p.add(ADDITIVE, D, {context, asked, query});
    p.add(READ, D, {D, context}, 0, draw<float>(N * D));
    p.add(INPUT, 2 * D, {gates, 0});
    p.add(INPUT, D, {inner, 2 * D});
    p.add(PRODUCT, 2 * D, {gates, 0, D}, 0, draw<T>(2 * D * D));
    p.add(PRODUCT, 3 * D, {gates, D, D}, 0, draw<T>(3 * D * D));
    p.add(SIGMOID, 2 * D, {z, gates});
    p.add(READ, D, {2 * D, s, r}, 2);
    p.add(PRODUCT, D, {inner, 2 * D, D}, 0, draw<T>(D * D));
    p.add(GRU, D, {s, candidate, inner, z, s, -1, -1, 0}, 16);
    p.outputs = {{s, D, draw<float>(N * I * D)}, {context, D, draw<float>(N * I * D)}};
    return p;
}

// From the last position to the first: an LSTM of normed sums, asking within a window, and a sum of values.
template <class T>
Program lstm() {
    Program p = {};
    p.x_size = 4 * D, p.heads = 1, p.backward = true, p.reach = 2, p.spread = 1.5, p.scale = 0.5;
    const Index h = 0, c = D, gates = 2 * D, kept = 6 * D, inverse = 10 * D, asks = inverse + 1, middle = asks + D;
    const Index context = middle + 1, dropped = context + D, together = dropped + D, sums = 0, raw = 4 * D, asked = 8 * D;
    p.values_size = together + D, p.sums_size = 9 * D, p.reads_size = 2 * D;
    p.add(READ, D, {0, h}, 2);
    p.add(PRODUCT, 4 * D, {raw, 0, D}, 0, draw<T>(4 * D * D));
    p.add(NORM, 4 * D, {sums, raw, kept, inverse}, 0, draw<float>(8 * D));
    p.add(INPUT, 4 * D, {sums, 0});
    p.add(LSTM, D, {h, c, gates, sums, c, h, 0}, 16 + 32);
    p.add(READ, D, {D, h});
    p.add(PRODUCT, D, {asked, D, D}, 0, draw<T>(D * D));
    p.add(TANH, D, {asks, asked});
    p.add(CENTRE, D, {middle, asks}, 0, draw<float>(D));
    p.add(DOT, D, {context, asks, -1, middle});
    p.add(ADD, D, {dropped, context}, 0, draw<float>(N * D));
    p.add(ADD, D, {together, h, dropped}, 2, draw<float>(N * D));
    p.outputs = {{c, D, draw<float>(N * I * D)}, {together, D, draw<float>(N * I * D)}};
    return p;
}

// An additive score with features: a GRU of three units, sums of which neighbours are seen, and the target position.
template <class T>
Program coverage() {
    Program p = {};
    p.x_size = D, p.heads = 1, p.reach = -1;
    const Index s = 0, query = D, context = 2 * D, kept = 3 * D, asked = D, fixed = 2 * D, units = 3;
    p.values_size = 3 * D + 3 * UNIT, p.sums_size = 2 * D + 3 * UNIT, p.reads_size = 2 * D;
    p.features = {{units, 0, 0, fixed, kept}, {0, 1, 1, -1, -1}};
    Numbers own = draw<float>(p.all().width * D + 3 * UNIT * (UNIT + 1)), share = draw<T>(3 * UNIT * D);
    for (Index k = 0; k < 3 * UNIT * (UNIT + 1); k++)
        if (k % UNIT >= units) own[p.all().width * D + k] = 0;
    for (Index k = 0; k < 3 * UNIT * D; k++)
        if (k / D % UNIT >= units) share[k] = 0;
    p.prepared = draw<float>(N * J * p.all().prepared);
    for (Index k = 0; k < Index(p.prepared.size()); k++) {
        const Index place = k % p.all().prepared;
        if (place < 3 * UNIT && place % UNIT >= units) p.prepared[k] = 0;
    }
    p.add(READ, D, {0, s}, 2);
    p.add(PRODUCT, D, {asked, 0, D}, 0, draw<T>(D * D));
    p.add(PRODUCT, 3 * UNIT, {fixed, 0, D}, 0, share);
    p.add(CLOCK, D, {asked, 0}, 0, draw<float>(D));
    p.add(ADDITIVE, D, {context, asked, query}, 0, own);
    p.add(READ, D, {D, context});
    p.add(INPUT, D, {0, 0});
    p.add(PRODUCT, D, {0, D, D}, 0, draw<T>(D * D));
    p.add(TANH, D, {s, 0});
    p.outputs = {{s, D, draw<float>(N * I * D)}, {context, D, draw<float>(N * I * D)}};
    return p;
}

template <class T, class F, class B>
void law(const char* what, Program p, F onward, B back, double tolerance) {
    p.x = draw<T>(N * I * p.x_size), p.bias = draw<float>(p.sums_size), p.keys = draw<T>(N * J * D);
    p.annotations = draw<T>(N * J * D), p.vector = draw<float>(D), p.first = draw<float>(N * p.values_size);
    p.d_alphas = draw<float>(N * I * p.heads * J);
    const auto bias = as<float>(p.bias), vector = as<float>(p.vector), d_alphas = as<float>(p.d_alphas);
    const auto x = as<T>(p.x), keys = as<T>(p.keys), annotations = as<T>(p.annotations);
    std::vector<std::vector<float>> weights(p.parts.size()), gradients(p.parts.size()), outer(p.outputs.size());
    for (size_t n = 0; n < p.parts.size(); n++) {
        Part& part = p.parts[n];
        weights[n] = as<float>(p.weights[n]);
        gradients[n].resize(weights[n].size());
        const bool masked = part.what == READ || part.what == ADD;
        if (masked && !weights[n].empty()) part.mask = weights[n].data(), part.mask_row = part.size;
        if (!masked) part.weight = weights[n].data();
        part.gradient = gradients[n].data();
    }
    std::vector<Outside> outside;
    for (size_t n = 0; n < p.outputs.size(); n++) {
        outer[n] = as<float>(p.outputs[n].d);
        outside.push_back({outer[n].data(), p.outputs[n].at, p.outputs[n].size, 0});
    }
    std::vector<float> values(N * (I + 1) * p.values_size), alphas(p.d_alphas.size()), d_keys(keys.size());
    std::vector<float> d_vector(D), d_first(p.first.size());
    std::vector<T> reads(N * I * p.reads_size), d_sums(N * I * p.sums_size), d_contexts(N * I * D), d_h(keys.size());
    for (Index n = 0; n < N; n++)
        for (Index k = 0; k < p.values_size; k++)
            values[(n * (I + 1) + (p.backward ? I : 0)) * p.values_size + k] = float(p.first[n * p.values_size + k]);
    Recurrence r = {};
    r.rows = N, r.positions = I, r.backward = p.backward, r.x_size = p.x_size, r.sums_size = p.sums_size;
    r.values_size = p.values_size, r.reads_size = p.reads_size, r.source = J, r.key = D, r.annotation = D;
    r.heads = p.heads, r.parts = Index(p.parts.size()), r.part = p.parts.data(), r.bias = bias.data(), r.x = x.data();
    r.real = REAL, r.keys = keys.data(), r.annotations = annotations.data(), r.mask = MASK, r.vector = vector.data();
    r.scale = float(p.scale), r.reach = p.reach, r.spread = float(p.spread), r.values = values.data();
    r.reads = reads.data(), r.alphas = alphas.data(), r.outside = outside.data(), r.outsides = Index(outside.size());
    r.d_alphas = d_alphas.data(), r.d_sums = d_sums.data(), r.d_contexts = d_contexts.data(), r.d_vector = d_vector.data();
    const auto prepared = as<float>(p.prepared);
    std::vector<float> memory(N * (I + 1) * J * p.all().memory), d_prepared(prepared.size());
    r.features = p.all(), r.prepared = prepared.data(), r.memory = memory.data(), r.d_prepared = d_prepared.data();
    r.d_annotations = d_h.data(), r.d_keys = d_keys.data(), r.d_first = d_first.data();
    onward(THREADS, &r);
    back(THREADS, &r);

    p.run();
    check(what, of(alphas), p.alphas, tolerance);
    for (const Output& out : p.outputs) {
        Numbers found, expected;
        for (Index n = 0; n < N * (I + 1) * out.size; n++) {
            found.push_back(values[n / out.size * p.values_size + out.at + n % out.size]);
            expected.push_back(p.values[n / out.size * p.values_size + out.at + n % out.size]);
        }
        check(what, found, expected, tolerance);
    }
    check(what, of(d_keys), p.differences(p.keys), tolerance);
    check(what, of(d_h), p.differences(p.annotations), tolerance);
    check(what, of(d_first), p.differences(p.first), tolerance);
    check(what, of(d_prepared), p.differences(p.prepared), tolerance);
    if (p.heads == 2) check(what, of(d_vector), p.differences(p.vector), tolerance);
    Numbers d_bias(p.sums_size), d_x(p.x.size());
    for (Index n = 0; n < N * I; n++) {
        for (Index k = 0; k < p.sums_size; k++) d_bias[k] += wide(d_sums[n * p.sums_size + k]);
        for (Index k = 0; k < p.x_size; k++) d_x[n * p.x_size + k] = wide(d_sums[n * p.sums_size + k]);
    }
    check(what, d_bias, p.differences(p.bias), tolerance);
    check(what, d_x, p.differences(p.x), tolerance);
    for (size_t n = 0; n < p.parts.size(); n++) {
        const Part& part = p.parts[n];
        Numbers found = of(gradients[n]);
        for (Index k = 0; part.what == PRODUCT && k < Index(found.size()); k++)
            for (Index m = 0; m < N * I; m++)
                found[k] += wide(d_sums[m * p.sums_size + part.at[0] + k / part.at[2]]) *
                            wide(reads[m * p.reads_size + part.at[1] + k % part.at[2]]);
        if (part.what != READ && part.what != ADD && !found.empty()) check(what, found, p.differences(p.weights[n]), tolerance);
    }
}

}  // namespace

void laws_of_recurrences() {
    law<float>("gru fp32", gru<float>(), recurrence_onward_fp32, recurrence_back_fp32, EXACT);
    law<float>("lstm fp32", lstm<float>(), recurrence_onward_fp32, recurrence_back_fp32, EXACT);
    law<float>("coverage fp32", coverage<float>(), recurrence_onward_fp32, recurrence_back_fp32, EXACT);
    law<bfloat16>("coverage bf16", coverage<bfloat16>(), recurrence_onward_bf16, recurrence_back_bf16, ROUGH);
    law<bfloat16>("gru bf16", gru<bfloat16>(), recurrence_onward_bf16, recurrence_back_bf16, ROUGH);
    law<bfloat16>("lstm bf16", lstm<bfloat16>(), recurrence_onward_bf16, recurrence_back_bf16, ROUGH);
}
