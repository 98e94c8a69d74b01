// The functions of decoding.cpp beside plain loops in fp64: the encoder, a step, greedy search, the best columns.
#include "laws.h"

EXPORT void pack(const float*, const Matrix*);
EXPORT int64_t panel_width();
EXPORT void encode(const EncoderWeights*, const float*, const int64_t*, int64_t, int64_t, float*, float*, int32_t);
EXPORT void step(const DecoderWeights*, const Matrix*, const Sources*, const int64_t*, int64_t, int64_t, const float*,
                 float*, float*, float*, float*, int32_t);
EXPORT int64_t greedy(const DecoderWeights*, const Matrix*, const Sources*, const Choice*, int64_t, float*, const Greedy*,
                      int32_t);
EXPORT void norms(const float*, int64_t, int64_t, float*, int32_t);
EXPORT void best(const float*, const float*, int64_t, int64_t, int64_t, int64_t, int64_t*, int32_t);

namespace {

constexpr Index B = 3, J = 5, E = 10, D = 16, A = 32, H = 2 * D, O = 16, V = 37;  // D, A, H and O fill whole vectors
constexpr int64_t LENGTHS[B] = {5, 3, 1};

struct Linear {
    Index outputs, inputs;
    Numbers weight, bias;
    std::vector<float> laid, b, scale;
    std::vector<int32_t> excess;

    Linear(Index outputs, Index inputs) : outputs(outputs), inputs(inputs) {
        const Index rounded = (outputs + panel_width() - 1) / panel_width() * panel_width();
        weight = draw<float>(outputs * inputs), bias = draw<float>(rounded);
        laid.resize(rounded * inputs), b = as<float>(bias), scale.resize(rounded), excess.resize(rounded);
    }
    Matrix packed() {
        const Matrix W = {laid.data(), b.data(), scale.data(), excess.data(), outputs, inputs, FP32};
        pack(as<float>(weight).data(), &W);
        return W;
    }
    Numbers operator()(const double* x) const {
        Numbers y(bias.begin(), bias.begin() + outputs);
        for (Index n = 0; n < outputs; n++)
            for (Index k = 0; k < inputs; k++) y[n] += weight[n * inputs + k] * x[k];
        return y;
    }
};

void encoder() {
    Linear in[2] = {{3 * D, E}, {3 * D, E}}, gates[2] = {{2 * D, D}, {2 * D, D}}, inner[2] = {{D, D}, {D, D}};
    EncoderWeights weights = {};
    for (int d = 0; d < 2; d++) weights.direction[d] = {in[d].packed(), gates[d].packed(), inner[d].packed()};
    weights.size = D;
    const Numbers x = draw<float>(B * J * E);
    std::vector<float> found(B * J * H), last(B * D);
    encode(&weights, as<float>(x).data(), LENGTHS, B, J, found.data(), last.data(), THREADS);
    Numbers expected(B * J * H), summary;
    for (Index b = 0; b < B; b++)
        for (int d = 0; d < 2; d++) {
            Numbers h(D), reset(D);
            for (Index t = 0; t < LENGTHS[b]; t++) {
                const Index j = d ? LENGTHS[b] - 1 - t : t;
                const Numbers share = in[d](&x[(b * J + j) * E]), own = gates[d](h.data());
                for (Index k = 0; k < D; k++) reset[k] = logistic(share[D + k] + own[D + k]) * h[k];
                const Numbers fed = inner[d](reset.data());
                for (Index k = 0; k < D; k++) {
                    h[k] += logistic(share[k] + own[k]) * (tanh(share[2 * D + k] + fed[k]) - h[k]);
                    expected[(b * J + j) * H + d * D + k] = h[k];
                }
            }
            if (d) summary.insert(summary.end(), h.begin(), h.end());
        }
    check("encoder", of(found), expected, EXACT);
    check("encoder", of(last), summary, EXACT);
}

struct Decoder {
    Index pool;
    Linear from_state = {A + 2 * D + O, D}, from_context = {3 * D + O, H}, candidate = {D, D};
    Linear from_word = {3 * D + O, E}, output;
    Numbers vector = draw<float>(A), embeddings = draw<float>(V * E), annotations = draw<float>(B * J * H), keys;
    std::vector<float> v = as<float>(vector), e = as<float>(embeddings), h = as<float>(annotations), k, exponentials;
    float reach[B] = {};
    Matrix columns;
    DecoderWeights weights = {};
    Sources sources = {};

    // Keys beyond the bound have exponentials that are not used.
    Decoder(Index pool, double scale) : pool(pool), output(V, O / pool), keys(draw<float>(B * J * A, scale)) {
        k = as<float>(keys);
        for (Index n = 0; n < B * J * A; n++) {
            exponentials.push_back(expf(2 * k[n]));
            reach[n / (J * A)] = fmaxf(reach[n / (J * A)], fabsf(k[n]));
        }
        columns = output.packed();
        weights.from_state = from_state.packed(), weights.from_context = from_context.packed();
        weights.candidate = candidate.packed(), weights.from_word = from_word.packed();
        weights.vector = v.data(), weights.embeddings = e.data();
        weights.size = D, weights.align = A, weights.context = H, weights.readout = O, weights.pool = pool;
        sources = {h.data(), k.data(), exponentials.data(), reach, LENGTHS, J};
    }

    // The logits of one hypothesis; s becomes its next state.
    Numbers plain(Index b, Index y, double* s, double* alpha) const {
        const Numbers own = from_state(s), word = from_word(&embeddings[y * E]);
        Numbers context(H), reset(D), hidden(O / pool);
        double total = 0;
        for (Index j = 0; j < LENGTHS[b]; j++) {
            double energy = 0;
            for (Index a = 0; a < A; a++) energy += vector[a] * tanh(own[a] + keys[(b * J + j) * A + a]);
            total += alpha[j] = exp(energy);
        }
        for (Index j = 0; j < J; j++) {
            alpha[j] = j < LENGTHS[b] ? alpha[j] / total : 0;
            for (Index i = 0; i < H; i++) context[i] += alpha[j] * annotations[(b * J + j) * H + i];
        }
        const Numbers read = from_context(context.data());
        for (Index i = 0; i < D; i++) reset[i] = logistic(read[D + i] + own[A + D + i] + word[D + i]) * s[i];
        const Numbers fed = candidate(reset.data());
        for (Index o = 0; o < O; o++) {
            const double sum = own[A + 2 * D + o] + word[3 * D + o] + read[3 * D + o];
            hidden[o / pool] = pool == 1 ? tanh(sum) : o % 2 ? fmax(hidden[o / 2], sum) : sum;
        }
        for (Index i = 0; i < D; i++) {
            const double z = logistic(read[i] + own[A + i] + word[i]);
            s[i] += z * (tanh(read[2 * D + i] + word[2 * D + i] + fed[i]) - s[i]);
        }
        return output(hidden.data());
    }
};

double log_sum(const Numbers& x) {
    double z = 0;
    for (double each : x) z += exp(each);
    return log(z);
}

void steps(const Decoder& decoder) {
    const Index each = 2, N = B * each;  // the two hypotheses of a sentence share a state
    Numbers state = draw<float>(N * D), next, alphas, logits, sums;
    std::vector<int64_t> y(N);
    for (Index n = 0; n < N; n++) {
        y[n] = n * 5 % V;
        for (Index i = 0; i < D; i++) state[n * D + i] = state[n / 2 * 2 * D + i];
    }
    std::vector<float> given = as<float>(state), to(N * D), alpha(N * J), x(N * V), norm(N), again(N);
    step(&decoder.weights, &decoder.columns, &decoder.sources, y.data(), N, each, given.data(), to.data(), alpha.data(),
         x.data(), norm.data(), THREADS);
    for (Index n = 0; n < N; n++) {
        Numbers one(J);
        const Numbers row = decoder.plain(n / each, y[n], &state[n * D], one.data());
        logits.insert(logits.end(), row.begin(), row.end());
        alphas.insert(alphas.end(), one.begin(), one.end());
        sums.push_back(log_sum(row));
    }
    check("step, states", of(to), state, EXACT);
    check("step, attention", of(alpha), alphas, EXACT);
    check("step, logits", of(x), logits, EXACT);
    check("step, norms", of(norm), sums, EXACT);
    norms(x.data(), N, V, again.data(), THREADS);
    check("norms", of(again), sums, EXACT);
}

void search(const Decoder& decoder) {
    const Index T = 6, eos = 1, banned = 3;
    const int64_t most[B] = {5, 5, 3};
    const Numbers start = draw<float>(B * D);
    std::vector<float> state = as<float>(start), scores(T * B), alphas(B * T * J);
    std::vector<int64_t> tokens(T * B), length(B);
    const Choice choice = {nullptr, &banned, 1, 2, eos, most};
    const Greedy made = {T, tokens.data(), scores.data(), alphas.data(), length.data()};
    greedy(&decoder.weights, &decoder.columns, &decoder.sources, &choice, B, state.data(), &made, THREADS);
    Numbers found, expected, attended, attention;
    for (Index b = 0; b < B; b++) {
        Numbers s(start.begin() + b * D, start.begin() + (b + 1) * D);
        Index y = 2, t = 0;
        for (bool goes_on = true; goes_on; t++) {
            Numbers alpha(J);
            const Numbers x = decoder.plain(b, y, s.data(), alpha.data());
            y = 0;
            for (Index v = 1; v < V; v++) y = v != banned && x[v] > x[y] ? v : y;
            found.push_back(tokens[t * B + b]), found.push_back(scores[t * B + b]);
            expected.push_back(y), expected.push_back(x[y] - log_sum(x));
            attention.insert(attention.end(), alpha.begin(), alpha.end());
            for (Index j = 0; j < J; j++) attended.push_back(alphas[(b * T + t) * J + j]);
            goes_on = y != eos && t + 1 <= most[b] && t + 1 < T;
        }
        found.push_back(length[b]), expected.push_back(t);
    }
    check("greedy", found, expected, EXACT);
    check("greedy, attention", attended, attention, EXACT);
}

void columns() {
    const Index K = 2, C = 61, count = 7;
    Numbers scores = draw<float>(B * K * C, 3), ahead = draw<float>(B * K), expected;
    for (double& x : scores) x = rint(x);  // many are equal
    for (double& x : ahead) x = rint(x);
    std::vector<int64_t> index(B * count);
    best(as<float>(scores).data(), as<float>(ahead).data(), B, K, C, count, index.data(), THREADS);
    for (Index b = 0; b < B; b++) {
        std::vector<bool> taken(K * C);
        for (Index n = 0; n < count; n++) {
            Index top = -1;
            auto total = [&](Index at) { return scores[b * K * C + at] + ahead[b * K + at / C]; };
            for (Index at = 0; at < K * C; at++)
                if (!taken[at] && (top < 0 || total(at) > total(top))) top = at;
            taken[top] = true;
            expected.push_back(top);
        }
    }
    check("best columns", Numbers(index.begin(), index.end()), expected, 0);
}

}  // namespace

void laws_of_search() {
    encoder();
    for (Index pool : {1, 2}) {
        const Decoder decoder(pool, pool == 1 ? 1 : 60);
        steps(decoder);
        search(decoder);
    }
    columns();
}
