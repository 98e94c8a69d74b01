// RNNsearch without gradients: the bidirectional GRU encoder, one step of the decoder, greedy and
// beam search; and functions that all models share: products with packed weights, log-sum-exp of
// rows, and the best columns.
//
// The definitions are models/encoders.py, models/decoders/bahdanau.py, models/outputs.py,
// search/beam.py and search/topk.py; property tests compare these fast implementations with them.
//
// In shapes: B sentences, N hypotheses, J source positions, E embedding size, D state size, A key
// size, H annotation size, O readout size, C columns of the output layer. D, A and H fill whole
// vectors.
#include "rnnsearch.h"

#include "beam_search.h"
#include "shared_states.h"
#include "thread_team.h"

namespace {

/// Largest magnitude of queries and keys for which energies are computed from factored
/// exponentials: those of sums of two such values are far from overflow.
constexpr float MAX_FACTORED = 40.0f;

float max_magnitude(const float* x, int64_t count) {
    float m = 0;
    for (int64_t i = 0; i < count; i++) m = max(m, fabsf(x[i]));
    return m;
}

}  // namespace

/// Returns the number of weight rows per panel.
EXPORT int64_t panel_width() { return LANES; }

/// Packs a weight [outputs, inputs] in fp32 into W's buffers, in W's type; rows that fill the last
/// panel are zero.
EXPORT void pack(const float* weight, const PackedMatrix* W) {
    const int64_t inputs = W->inputs;
    memset(W->panels, 0, W->panel_count() * W->panel_size() * 4);
    for (int64_t row = 0; row < W->outputs; row++) {
        const float* from = weight + row * inputs;
        if (W->dtype == FP32)
            for (int64_t i = 0; i < inputs; i++) ((float*)W->panels)[W->index(row, i)] = from[i];
        if (W->dtype == BF16)
            for (int64_t i = 0; i < inputs; i++) {
                bfloat16 narrow[LANES];
                store(narrow, broadcast(from[i]));
                ((bfloat16*)W->panels)[W->index(row, i)] = narrow[0];
            }
        if (W->dtype != INT8) continue;
        const float scale = int8_scale(from, inputs);  // NaN if the row is not finite
        const float inverse = scale == scale ? 1.0f / scale : 0.0f;
        int32_t sum = 0;
        for (int64_t i = 0; i < inputs && scale == scale; i++)
            sum += ((int8_t*)W->panels)[W->index(row, i)] = (int8_t)lrintf(from[i] * inverse);
        W->scale[row] = scale;
        W->correction[row] = INT8_ZERO_POINT * sum;
    }
}

/// Packs an int8 weight [outputs, inputs] of values -127 .. 127 with a scale per row [outputs]; W
/// must be in int8.
EXPORT void pack_int8(const int8_t* weight, const float* scale, const PackedMatrix* W) {
    const int64_t inputs = W->inputs;
    memset(W->panels, 0, W->panel_count() * W->panel_size() * 4);
    for (int64_t row = 0; row < W->outputs; row++) {
        int32_t sum = 0;
        for (int64_t i = 0; i < inputs; i++)
            sum += ((int8_t*)W->panels)[W->index(row, i)] = weight[row * inputs + i];
        W->scale[row] = scale[row];
        W->correction[row] = INT8_ZERO_POINT * sum;
    }
}

/// Computes y [rows, outputs] = x [rows, inputs] W^T + b.
EXPORT void linear(const PackedMatrix* W, const float* x, int64_t rows, float* y, int32_t threads) {
    Buffer<float> prepared(rows * W->row_words());
    parallel_region(threads, [&](Team& team) {
        team.parallel_for(rows, W->inputs, [&](int64_t r) {
            prepare_row(*W, x + r * W->inputs, &prepared[r * W->row_words()]);
        });
        parallel_product(team, *W, prepared.data, rows, {W->bias, 0}, y, W->outputs);
    });
}

/// Runs the bidirectional encoder.
///
/// x: [B, J, E], embedded words. lengths: [B], not increasing. annotations: [B, J, 2 D], 0 on
/// padding. summary: [B, D], the backward state at the first position.
EXPORT void rnnsearch_encode(const EncoderWeights* w, const float* x, const int64_t* lengths,
                             int64_t B, int64_t J, float* annotations, float* summary,
                             int32_t threads) {
    const int64_t D = w->size, E = w->directions[0].input.inputs;
    const PackedMatrix& in = w->directions[0].input;
    Buffer<int64_t> first(B + 1);  // row of each sentence's first word, with padding removed
    first[0] = 0;
    for (int64_t b = 0; b < B; b++) first[b + 1] = first[b] + lengths[b];
    const int64_t words = first[B];
    Buffer<float> prepared(words * in.row_words()), projected[2];
    for (auto& direction : projected)
        direction.allocate(words * 3 * D);  // [words, 3 D]: z, r, candidate
    memset(annotations, 0, B * J * 2 * D * sizeof(float));
    parallel_region(threads, [&](Team& team) {
        team.parallel_for(B, J * E, [&](int64_t b) {
            for (int64_t j = 0; j < lengths[b]; j++)
                prepare_row(in, x + (b * J + j) * E, &prepared[(first[b] + j) * in.row_words()]);
        });
        for (int d = 0; d < 2; d++)
            parallel_product(team, w->directions[d].input, prepared.data, words,
                             {w->directions[d].input.bias, 0}, projected[d].data, 3 * D);
        // A task is one direction of a group of sentences, from the first to the last position.
        const int64_t groups = max(1, min(B, (team.num_threads + 1) / 2));
        team.parallel_for(2 * groups, MANY_CYCLES, [&](int64_t task) {
            const int64_t d = task % 2, g = task / 2;
            const int64_t from = B * g / groups, to = B * (g + 1) / groups;
            const GRUWeights& gru = w->directions[d];
            Buffer<float> h, reset(D), zr(B * 2 * D), c(B * D), prepared_h(B * D + B);
            h.zeros(B * D);
            for (int64_t t = 0; t < lengths[from]; t++) {
                const int64_t j = d == 0 ? t : lengths[from] - 1 - t;
                int64_t n = 0;  // sentences of the group that are long enough
                while (from + n < to && lengths[from + n] > j) n++;
                for (int64_t r = 0; r < n; r++)
                    prepare_row(gru.gates, &h[r * D], &prepared_h[r * gru.gates.row_words()]);
                product(gru.gates, prepared_h.data, gru.gates.row_words(), n, {gru.gates.bias, 0},
                        zr.data, 2 * D, 0, gru.gates.panel_count());
                for (int64_t r = 0; r < n; r++) {
                    const float* input = &projected[d][(first[from + r] + j) * 3 * D];
                    float* gates = &zr[r * 2 * D];
                    for (int64_t i = 0; i < 2 * D; i += LANES)
                        store(gates + i, vec_sigmoid(load(gates + i) + load(input + i)));
                    for (int64_t i = 0; i < D; i += LANES)
                        store(&reset[i], load(gates + D + i) * load(&h[r * D + i]));
                    prepare_row(gru.candidate, reset.data,
                                &prepared_h[r * gru.candidate.row_words()]);
                }
                const PackedMatrix& U = gru.candidate;
                product(U, prepared_h.data, U.row_words(), n, {U.bias, 0}, c.data, D, 0,
                        U.panel_count());
                for (int64_t r = 0; r < n; r++) {
                    const float* input = &projected[d][(first[from + r] + j) * 3 * D + 2 * D];
                    const float* z = &zr[r * 2 * D];
                    float* out = annotations + ((from + r) * J + j) * 2 * D + d * D;
                    for (int64_t i = 0; i < D; i += LANES) {
                        Vec old = load(&h[r * D + i]);
                        Vec next =
                            old +
                            load(z + i) * (vec_tanh(load(&c[r * D + i]) + load(input + i)) - old);
                        store(&h[r * D + i], next);
                        store(out + i, next);
                    }
                }
            }
            if (d == 1) memcpy(summary + from * D, h.data, (to - from) * D * sizeof(float));
        });
    });
}

namespace {

/// Buffers of a step for N hypotheses: rows prepared for products, then the results of products.
struct Workspace {
    SharedStates shared;
    Buffer<float> state, context, reset, readout, word, from_state, from_context, from_word, gates,
        candidate;
    Workspace(const DecoderWeights& w, const PackedMatrix& output, int64_t N) {
        state.allocate(N * w.from_state.row_words());
        context.allocate(N * w.from_context.row_words());
        reset.allocate(N * w.candidate.row_words());
        readout.allocate(N * output.row_words());
        from_state.allocate(N * w.from_state.outputs);
        from_context.allocate(N * w.from_context.outputs);
        gates.allocate(N * 3 * w.state_size);
        candidate.allocate(N * w.state_size);
        if (w.word_table) return;
        word.allocate(N * w.from_word.row_words());
        from_word.allocate(N * w.from_word.outputs);
    }
};

/// Computes e_j = v^T tanh(W_a s + U_a h_j) of one hypothesis, energy [J], from its query W_a s
/// [A].
///
/// Uses tanh(q + k) = 1 - 2 / (1 + e^2q e^2k) with stored exponentials of the keys, unless q or k
/// is too large.
void energies(const DecoderWeights& w, const SourceMemory& m, int64_t b, const float* query,
              float* energy) {
    const int64_t A = w.key_size, length = m.lengths[b];
    float query_exponentials[A];
    const bool factored = m.max_key[b] < MAX_FACTORED && max_magnitude(query, A) < MAX_FACTORED;
    Vec v_total = broadcast(0);
    for (int64_t a = 0; a < A; a += LANES) {
        if (factored) store(query_exponentials + a, vec_exp(2.0f * load(query + a)));
        v_total += load(w.score_vector + a);
    }
    const float v_sum = sum(v_total);
    for (int64_t j = 0; j < length; j++) {
        Vec total = broadcast(0), other = broadcast(0);  // two independent sums hide the latency
        if (factored) {
            const float* k = m.key_exponentials + (b * m.length + j) * A;
            int64_t a = 0;
            for (; a + 2 * LANES <= A; a += 2 * LANES) {
                Vec x = min(load(query_exponentials + a) * load(k + a), broadcast(1e37f)) + 1.0f;
                Vec y = min(load(query_exponentials + a + LANES) * load(k + a + LANES),
                            broadcast(1e37f)) +
                        1.0f;
                total += load(w.score_vector + a) * vec_reciprocal(x);
                other += load(w.score_vector + a + LANES) * vec_reciprocal(y);
            }
            for (; a < A; a += LANES)
                total +=
                    load(w.score_vector + a) *
                    vec_reciprocal(
                        min(load(query_exponentials + a) * load(k + a), broadcast(1e37f)) + 1.0f);
            energy[j] = v_sum - 2.0f * sum(total + other);
        } else {
            const float* k = m.keys + (b * m.length + j) * A;
            for (int64_t a = 0; a < A; a += LANES)
                total += load(w.score_vector + a) * vec_tanh(load(query + a) + load(k + a));
            energy[j] = sum(total);
        }
    }
}

/// Computes alpha [J] and the context [H] of one hypothesis from its query [A].
void attend(const DecoderWeights& w, const SourceMemory& m, int64_t b, const float* query,
            float* alpha, float* context) {
    const int64_t length = m.lengths[b], H = w.context_size;
    energies(w, m, b, query, alpha);
    float top = alpha[0], total = 0;
    for (int64_t j = 1; j < length; j++)
        top = alpha[j] > top || alpha[j] != alpha[j] ? alpha[j] : top;
    for (int64_t j = 0; j < length; j++) total += alpha[j] = expf(alpha[j] - top);
    for (int64_t j = 0; j < length; j++) alpha[j] /= total;
    for (int64_t j = length; j < m.length; j++) alpha[j] = 0;
    const float* h = m.annotations + b * m.length * H;
    for (int64_t i = 0; i < H; i += LANES) {
        Vec c = broadcast(0);
        for (int64_t j = 0; j < length; j++) c += load(h + j * H + i) * alpha[j];
        store(context + i, c);
    }
}

/// Computes out = tanh(u + v + c); elements behind the last whole vector go through one padded with
/// zeros.
void tanh_of_sum(const float* u, const float* v, const float* c, float* out, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        store(out + i, vec_tanh(load(u + i) + load(v + i) + load(c + i)));
    float rest[LANES] = {};
    for (int64_t k = i; k < count; k++) rest[k - i] = u[k] + v[k] + c[k];
    store(rest, vec_tanh(load(rest)));
    memcpy(out + i, rest, (count - i) * sizeof(float));
}

/// Computes one position of N hypotheses, by all threads of the team; `s.shared` must describe
/// their states.
///
/// sentence: [N], the row of the batch. y: [N], previous tokens. state, next: [N, D]. alpha: [N,
/// J]. logits: [N, C].
void parallel_step(Team& team, const DecoderWeights& w, const PackedMatrix& output,
                   const SourceMemory& m, const int64_t* sentence, const int64_t* y, int64_t N,
                   const float* state, float* next, float* alpha, float* logits, Workspace& s) {
    const int64_t D = w.state_size, A = w.key_size, H = w.context_size, O = w.readout_size;
    const int64_t S = w.from_state.outputs, C = w.from_context.outputs, G = 3 * D + O;
    const Buffer<int64_t>&first = s.shared.first, &group = s.shared.group;
    const int64_t U = s.shared.count;
    // Once per distinct state: W_a s, U_z s, U_r s and the readout's term [U, A + 2 D + O], then
    // the context's terms [U, 3 D + O].
    team.parallel_for(U, D, [&](int64_t u) {
        prepare_row(w.from_state, state + first[u] * D, &s.state[u * w.from_state.row_words()]);
    });
    parallel_product(team, w.from_state, s.state.data, U, {w.from_state.bias, 0}, s.from_state.data,
                     S);
    if (!w.word_table)
        parallel_project_words(team, w.from_word, w.embeddings, w.int8_embeddings,
                               w.embedding_scales, y, N, s.word.data, s.from_word.data);
    team.parallel_for(U, m.length * (2 * A + H / 4), [&](int64_t u) {
        float context[H];
        attend(w, m, sentence[first[u]], &s.from_state[u * S], alpha + first[u] * m.length,
               context);
        prepare_row(w.from_context, context, &s.context[u * w.from_context.row_words()]);
    });
    parallel_product(team, w.from_context, s.context.data, U, {w.from_context.bias, 0},
                     s.from_context.data, C);
    // Once per hypothesis: gates, the reset state, and the readout.
    team.parallel_for(N, 2 * G, [&](int64_t n) {
        const int64_t u = group[n];
        const float* state_terms = &s.from_state[u * S + A];
        const float* context_terms = &s.from_context[u * C];
        const float* word_terms = w.word_table ? w.word_table + y[n] * G : &s.from_word[n * G];
        float *gates = &s.gates[n * 3 * D], reset[D], hidden[O];
        if (first[u] != n)
            memcpy(alpha + n * m.length, alpha + first[u] * m.length, m.length * sizeof(float));
        for (int64_t i = 0; i < 2 * D; i += LANES)
            store(gates + i,
                  vec_sigmoid(load(context_terms + i) + load(state_terms + i) +
                              load(word_terms + i)));  // z, r
        for (int64_t i = 0; i < D; i += LANES) {
            store(reset + i, load(gates + D + i) * load(state + n * D + i));
            store(gates + 2 * D + i,
                  load(context_terms + 2 * D + i) + load(word_terms + 2 * D + i));
        }
        prepare_row(w.candidate, reset, &s.reset[n * w.candidate.row_words()]);
        // Terms of the readout [O].
        const float *read = state_terms + 2 * D, *c = context_terms + 3 * D;
        const float* v = word_terms + 3 * D;
        if (w.pool == 2)
            for (int64_t i = 0; i < O / 2; i++) {
                const float a = read[2 * i] + v[2 * i] + c[2 * i];
                const float b = read[2 * i + 1] + v[2 * i + 1] + c[2 * i + 1];
                hidden[i] = a > b || a != a ? a : b;
            }
        else tanh_of_sum(read, v, c, hidden, O);
        prepare_row(output, hidden, &s.readout[n * output.row_words()]);
    });
    parallel_product(team, w.candidate, s.reset.data, N, {w.candidate.bias, 0}, s.candidate.data,
                     D);
    parallel_product(team, output, s.readout.data, N, {output.bias, 0}, logits, output.outputs);
    team.parallel_for(N, 2 * D, [&](int64_t n) {
        for (int64_t i = 0; i < D; i += LANES) {
            const float* g = &s.gates[n * 3 * D];
            Vec old = load(state + n * D + i);
            Vec candidate = vec_tanh(load(&s.candidate[n * D + i]) + load(g + 2 * D + i));
            store(next + n * D + i, old + load(g + i) * (candidate - old));
        }
    });
}

}  // namespace

/// Computes one position of N hypotheses, `per_sentence` of each sentence.
///
/// y: [N], previous tokens. state, next: [N, D]. alpha: [N, J]. logits: [N, C]. norm: [N],
/// log-sum-exp of the logits.
EXPORT void rnnsearch_step(const DecoderWeights* w, const PackedMatrix* output,
                           const SourceMemory* m, const int64_t* y, int64_t N, int64_t per_sentence,
                           const float* state, float* next, float* alpha, float* logits,
                           float* norm, int32_t threads) {
    Workspace s(*w, *output, N);
    Buffer<int64_t> sentence(N);
    for (int64_t n = 0; n < N; n++) sentence[n] = n / per_sentence;
    s.shared.find(state, w->state_size, N, per_sentence);
    parallel_region(threads, [&](Team& team) {
        parallel_step(team, *w, *output, *m, sentence.data, y, N, state, next, alpha, logits, s);
        team.parallel_for(N, 2 * output->outputs, [&](int64_t n) {
            norm[n] = log_sum_exp(logits + n * output->outputs, output->outputs);
        });
    });
}

/// Runs greedy search on B sentences; see greedy_search.h.
EXPORT int64_t rnnsearch_greedy(const DecoderWeights* w, const PackedMatrix* output,
                                const SourceMemory* m, const SearchOptions* options, int64_t B,
                                float* state, const GreedyResult* result, int32_t threads) {
    Workspace s(*w, *output, B);
    auto step = [&](Team& team, const int64_t* sentence, const int64_t* y, int64_t N,
                    const float* state, float* next, float* alpha, float* logits) {
        s.shared.all_distinct(N);
        parallel_step(team, *w, *output, *m, sentence, y, N, state, next, alpha, logits, s);
    };
    return greedy_search(threads, step, output->outputs, *options, B, w->state_size, m->length,
                         state, *result);
}

/// Runs beam search on B sentences; see beam_search.h.
EXPORT int64_t rnnsearch_beam(const DecoderWeights* w, const PackedMatrix* output,
                              const SourceMemory* m, const SearchOptions* options,
                              const BeamOptions* beam, int64_t B, const float* state,
                              const Hypotheses* result, int32_t threads) {
    Workspace s(*w, *output, B * beam->width);
    auto step = [&](Team& team, const int64_t* sentence, const int64_t* y, int64_t N,
                    int64_t per_sentence, const float* state, float* next, float* alpha,
                    float* logits) {
        s.shared.find(state, w->state_size, N, per_sentence);
        parallel_step(team, *w, *output, *m, sentence, y, N, state, next, alpha, logits, s);
    };
    return beam_search(threads, step, output->outputs, *options, *beam, B, w->state_size, m->length,
                       state, *result);
}

/// Computes norm[n] = log sum_c exp(x[n, c]) for x [rows, columns].
EXPORT void log_sum_exp_rows(const float* x, int64_t rows, int64_t columns, float* norm,
                             int32_t threads) {
    parallel_region(threads, [&](Team& team) {
        team.parallel_for(rows, 2 * columns, [&](int64_t n) {
            norm[n] = log_sum_exp(x + n * columns, columns);
        });
    });
}

/// Finds the `count` highest of prefix[a, k] + scores[a, k, c] of each sentence: index [sentences,
/// count]; see `topk`.
EXPORT void topk_continuations(const float* scores, const float* prefix, int64_t sentences,
                               int64_t K, int64_t C, int64_t count, int64_t* index,
                               int32_t threads) {
    parallel_region(threads, [&](Team& team) {
        team.parallel_for(sentences, K * C, [&](int64_t a) {
            Buffer<float> value(count);
            topk(scores + a * K * C, prefix + a * K, K, C, count, index + a * count, value.data);
        });
    });
}
