// Properties of the functions of rnnsearch.cpp: the encoder, a step, greedy search and top-k equal
// simple loops in fp64.
#include "test_utils.h"

EXPORT void pack(const float*, const PackedMatrix*);
EXPORT int64_t panel_width();
EXPORT void rnnsearch_encode(const EncoderWeights*, const float*, const int64_t*, int64_t, int64_t,
                             float*, float*, int32_t);
EXPORT void rnnsearch_step(const DecoderWeights*, const PackedMatrix*, const SourceMemory*,
                           const int64_t*, int64_t, int64_t, const float*, float*, float*, float*,
                           float*, int32_t);
EXPORT int64_t rnnsearch_greedy(const DecoderWeights*, const PackedMatrix*, const SourceMemory*,
                                const SearchOptions*, int64_t, float*, const GreedyResult*,
                                int32_t);
EXPORT void log_sum_exp_rows(const float*, int64_t, int64_t, float*, int32_t);
EXPORT void topk_continuations(const float*, const float*, int64_t, int64_t, int64_t, int64_t,
                               int64_t*, int32_t);

namespace {

// D, A, H and O fill whole vectors.
constexpr Index B = 3, J = 5, E = 10, D = 16, A = 32, H = 2 * D, O = 16, V = 37;
constexpr int64_t LENGTHS[B] = {5, 3, 1};

/// A random layer, as a packed matrix and as its definition.
struct Linear {
    Index outputs, inputs;
    Doubles weight, bias;
    std::vector<float> panels, b, scale;
    std::vector<int32_t> correction;

    Linear(Index outputs, Index inputs) : outputs(outputs), inputs(inputs) {
        const Index rounded = (outputs + panel_width() - 1) / panel_width() * panel_width();
        weight = random_values<float>(outputs * inputs);
        bias = random_values<float>(rounded);
        panels.resize(rounded * inputs);
        b = from_doubles<float>(bias);
        scale.resize(rounded);
        correction.resize(rounded);
    }
    PackedMatrix packed() {
        const PackedMatrix W = {panels.data(), b.data(), scale.data(), correction.data(),
                                outputs,       inputs,   FP32};
        pack(from_doubles<float>(weight).data(), &W);
        return W;
    }
    Doubles operator()(const double* x) const {
        Doubles y(bias.begin(), bias.begin() + outputs);
        for (Index n = 0; n < outputs; n++)
            for (Index k = 0; k < inputs; k++) y[n] += weight[n * inputs + k] * x[k];
        return y;
    }
};

void test_encoder() {
    Linear in[2] = {{3 * D, E}, {3 * D, E}}, gates[2] = {{2 * D, D}, {2 * D, D}},
           candidate[2] = {{D, D}, {D, D}};
    EncoderWeights weights = {};
    for (int d = 0; d < 2; d++)
        weights.directions[d] = {in[d].packed(), gates[d].packed(), candidate[d].packed()};
    weights.size = D;
    const Doubles x = random_values<float>(B * J * E);
    std::vector<float> annotations(B * J * H), summary(B * D);
    rnnsearch_encode(&weights, from_doubles<float>(x).data(), LENGTHS, B, J, annotations.data(),
                     summary.data(), THREADS);
    Doubles expected(B * J * H), expected_summary;
    for (Index b = 0; b < B; b++)
        for (int d = 0; d < 2; d++) {
            Doubles h(D), reset(D);
            for (Index t = 0; t < LENGTHS[b]; t++) {
                const Index j = d ? LENGTHS[b] - 1 - t : t;
                const Doubles input = in[d](&x[(b * J + j) * E]), recurrent = gates[d](h.data());
                for (Index k = 0; k < D; k++)
                    reset[k] = logistic(input[D + k] + recurrent[D + k]) * h[k];
                const Doubles from_reset = candidate[d](reset.data());
                for (Index k = 0; k < D; k++) {
                    h[k] += logistic(input[k] + recurrent[k]) *
                            (tanh(input[2 * D + k] + from_reset[k]) - h[k]);
                    expected[(b * J + j) * H + d * D + k] = h[k];
                }
            }
            if (d) expected_summary.insert(expected_summary.end(), h.begin(), h.end());
        }
    check("encoder", to_doubles(annotations), expected, FP32_TOLERANCE);
    check("encoder", to_doubles(summary), expected_summary, FP32_TOLERANCE);
}

/// A random decoder and source, for the native code and as its definition.
struct TestDecoder {
    Index pool;
    Linear from_state = {A + 2 * D + O, D}, from_context = {3 * D + O, H}, candidate = {D, D};
    Linear from_word = {3 * D + O, E}, output;
    Doubles vector = random_values<float>(A), embeddings = random_values<float>(V * E);
    Doubles annotations = random_values<float>(B * J * H), keys;
    std::vector<float> v = from_doubles<float>(vector), e = from_doubles<float>(embeddings);
    std::vector<float> h = from_doubles<float>(annotations), k, key_exponentials;
    float max_key[B] = {};
    PackedMatrix columns;
    DecoderWeights weights = {};
    SourceMemory source = {};

    /// key_scale: with large keys, energies are not computed from factored exponentials.
    TestDecoder(Index pool, double key_scale)
        : pool(pool), output(V, O / pool), keys(random_values<float>(B * J * A, key_scale)) {
        k = from_doubles<float>(keys);
        for (Index n = 0; n < B * J * A; n++) {
            key_exponentials.push_back(expf(2 * k[n]));
            max_key[n / (J * A)] = fmaxf(max_key[n / (J * A)], fabsf(k[n]));
        }
        columns = output.packed();
        weights.from_state = from_state.packed();
        weights.from_context = from_context.packed();
        weights.candidate = candidate.packed();
        weights.from_word = from_word.packed();
        weights.score_vector = v.data();
        weights.embeddings = e.data();
        weights.state_size = D;
        weights.key_size = A;
        weights.context_size = H;
        weights.readout_size = O;
        weights.pool = pool;
        source = {h.data(), k.data(), key_exponentials.data(), max_key, LENGTHS, J};
    }

    /// Returns the logits of one hypothesis; s becomes its next state.
    Doubles reference(Index b, Index y, double* s, double* alpha) const {
        const Doubles state_terms = from_state(s), word_terms = from_word(&embeddings[y * E]);
        Doubles context(H), reset(D), hidden(O / pool);
        double total = 0;
        for (Index j = 0; j < LENGTHS[b]; j++) {
            double energy = 0;
            for (Index a = 0; a < A; a++)
                energy += vector[a] * tanh(state_terms[a] + keys[(b * J + j) * A + a]);
            total += alpha[j] = exp(energy);
        }
        for (Index j = 0; j < J; j++) {
            alpha[j] = j < LENGTHS[b] ? alpha[j] / total : 0;
            for (Index i = 0; i < H; i++) context[i] += alpha[j] * annotations[(b * J + j) * H + i];
        }
        const Doubles context_terms = from_context(context.data());
        for (Index i = 0; i < D; i++)
            reset[i] =
                logistic(context_terms[D + i] + state_terms[A + D + i] + word_terms[D + i]) * s[i];
        const Doubles from_reset = candidate(reset.data());
        for (Index o = 0; o < O; o++) {
            const double sum =
                state_terms[A + 2 * D + o] + word_terms[3 * D + o] + context_terms[3 * D + o];
            hidden[o / pool] = pool == 1 ? tanh(sum) : o % 2 ? fmax(hidden[o / 2], sum) : sum;
        }
        for (Index i = 0; i < D; i++) {
            const double z = logistic(context_terms[i] + state_terms[A + i] + word_terms[i]);
            s[i] +=
                z * (tanh(context_terms[2 * D + i] + word_terms[2 * D + i] + from_reset[i]) - s[i]);
        }
        return output(hidden.data());
    }
};

double log_sum_exp_of(const Doubles& x) {
    double z = 0;
    for (double value : x) z += exp(value);
    return log(z);
}

void test_step(const TestDecoder& decoder) {
    // The two hypotheses of a sentence share a state.
    const Index per_sentence = 2, N = B * per_sentence;
    Doubles state = random_values<float>(N * D), expected_alpha, expected_logits, expected_norm;
    std::vector<int64_t> y(N);
    for (Index n = 0; n < N; n++) {
        y[n] = n * 5 % V;
        for (Index i = 0; i < D; i++) state[n * D + i] = state[n / 2 * 2 * D + i];
    }
    std::vector<float> state_fp32 = from_doubles<float>(state), next(N * D), alpha(N * J),
                       logits(N * V), norm(N);
    rnnsearch_step(&decoder.weights, &decoder.columns, &decoder.source, y.data(), N, per_sentence,
                   state_fp32.data(), next.data(), alpha.data(), logits.data(), norm.data(),
                   THREADS);
    for (Index n = 0; n < N; n++) {
        Doubles row_alpha(J);
        const Doubles row =
            decoder.reference(n / per_sentence, y[n], &state[n * D], row_alpha.data());
        expected_logits.insert(expected_logits.end(), row.begin(), row.end());
        expected_alpha.insert(expected_alpha.end(), row_alpha.begin(), row_alpha.end());
        expected_norm.push_back(log_sum_exp_of(row));
    }
    check("step, states", to_doubles(next), state, FP32_TOLERANCE);
    check("step, attention", to_doubles(alpha), expected_alpha, FP32_TOLERANCE);
    check("step, logits", to_doubles(logits), expected_logits, FP32_TOLERANCE);
    check("step, norms", to_doubles(norm), expected_norm, FP32_TOLERANCE);
    log_sum_exp_rows(logits.data(), N, V, norm.data(), THREADS);
    check("log-sum-exp", to_doubles(norm), expected_norm, FP32_TOLERANCE);
}

void test_greedy(const TestDecoder& decoder) {
    const Index T = 6, eos = 1, banned = 3;
    const int64_t max_length[B] = {5, 5, 3};
    const Doubles initial = random_values<float>(B * D);
    std::vector<float> state = from_doubles<float>(initial), scores(T * B), alphas(B * T * J);
    std::vector<int64_t> tokens(T * B), length(B);
    const SearchOptions options = {nullptr, &banned, 1, 2, eos, max_length};
    const GreedyResult result = {T, tokens.data(), scores.data(), alphas.data(), length.data()};
    rnnsearch_greedy(&decoder.weights, &decoder.columns, &decoder.source, &options, B, state.data(),
                     &result, THREADS);
    Doubles actual, expected, attention, expected_attention;
    for (Index b = 0; b < B; b++) {
        Doubles s(initial.begin() + b * D, initial.begin() + (b + 1) * D);
        Index y = 2, t = 0;
        for (bool unfinished = true; unfinished; t++) {
            Doubles alpha(J);
            const Doubles x = decoder.reference(b, y, s.data(), alpha.data());
            y = 0;
            for (Index v = 1; v < V; v++) y = v != banned && x[v] > x[y] ? v : y;
            actual.push_back(tokens[t * B + b]);
            actual.push_back(scores[t * B + b]);
            expected.push_back(y);
            expected.push_back(x[y] - log_sum_exp_of(x));
            expected_attention.insert(expected_attention.end(), alpha.begin(), alpha.end());
            for (Index j = 0; j < J; j++) attention.push_back(alphas[(b * T + t) * J + j]);
            unfinished = y != eos && t + 1 <= max_length[b] && t + 1 < T;
        }
        actual.push_back(length[b]);
        expected.push_back(t);
    }
    check("greedy", actual, expected, FP32_TOLERANCE);
    check("greedy, attention", attention, expected_attention, FP32_TOLERANCE);
}

void test_topk() {
    const Index K = 2, C = 61, count = 7;
    Doubles scores = random_values<float>(B * K * C, 3), prefix = random_values<float>(B * K),
            expected;
    for (double& x : scores) x = rint(x);  // many are equal
    for (double& x : prefix) x = rint(x);
    std::vector<int64_t> index(B * count);
    topk_continuations(from_doubles<float>(scores).data(), from_doubles<float>(prefix).data(), B, K,
                       C, count, index.data(), THREADS);
    for (Index b = 0; b < B; b++) {
        std::vector<bool> taken(K * C);
        for (Index n = 0; n < count; n++) {
            Index top = -1;
            auto total = [&](Index at) { return scores[b * K * C + at] + prefix[b * K + at / C]; };
            for (Index at = 0; at < K * C; at++)
                if (!taken[at] && (top < 0 || total(at) > total(top))) top = at;
            taken[top] = true;
            expected.push_back(top);
        }
    }
    check("top-k", Doubles(index.begin(), index.end()), expected, 0);
}

}  // namespace

void test_search() {
    test_encoder();
    for (Index pool : {1, 2}) {
        const TestDecoder decoder(pool, pool == 1 ? 1 : 60);
        test_step(decoder);
        test_greedy(decoder);
    }
    test_topk();
}
