// Greedy search over any step function, and functions on rows of scores that every search uses.
//
// In shapes: B sentences, J source positions, N hypotheses, C columns of the output layer, T
// maximum number of steps.
#pragma once

#include "packed_matrix.h"
#include "thread_team.h"

constexpr int64_t TASKS_PER_THREAD = 4;  // that the panels of a product are split into

/// Computes y [rows, y_stride] = x W^T + addend, by all threads of the team; x: prepared rows.
static inline void parallel_product(Team& team, const PackedMatrix& W, const float* x, int64_t rows,
                                    Addend addend, float* y, int64_t y_stride) {
    const int64_t group = rows <= 2 ? 8 : BLOCK_PANELS;  // panels that are multiplied together
    const int64_t groups = (W.panel_count() + group - 1) / group;
    const int64_t max_tasks = TASKS_PER_THREAD * team.num_threads;
    const int64_t panels = (groups + max_tasks - 1) / max_tasks * group;  // per task
    const int64_t cycles = panels * product_cycles(W, rows);
    team.parallel_for((W.panel_count() + panels - 1) / panels, cycles, [&](int64_t task) {
        product(W, x, W.row_words(), rows, addend, y, y_stride, task * panels,
                min((task + 1) * panels, W.panel_count()));
    });
}

/// Computes out [N, outputs] = W e + b for the embeddings e of N words y, by all threads of the
/// team.
///
/// Embeddings are in fp32 or, if that is null, in int8 with a scale per word. prepared: workspace
/// for N prepared rows.
static inline void parallel_project_words(Team& team, const PackedMatrix& W,
                                          const float* embeddings, const int8_t* int8_embeddings,
                                          const float* scales, const int64_t* y, int64_t N,
                                          float* prepared, float* out) {
    const int64_t E = W.inputs;
    team.parallel_for(N, 2 * E, [&](int64_t n) {
        float word[E], *row = prepared + n * W.row_words();
        if (embeddings) return prepare_row(W, embeddings + y[n] * E, row);
        for (int64_t i = 0; i < E; i++) word[i] = scales[y[n]] * int8_embeddings[y[n] * E + i];
        prepare_row(W, word, row);
    });
    parallel_product(team, W, prepared, N, {W.bias, 0}, out, W.outputs);
}

/// Returns log sum_c exp(x_c), given the maximum of x. An infinite maximum or NaN is returned as it
/// is.
static inline float log_sum_exp(const float* x, int64_t count, float maximum) {
    if (!(fabsf(maximum) < INFINITY)) return maximum;
    Vec total = broadcast(0);
    int64_t c = 0;
    for (; c + LANES <= count; c += LANES) total += vec_exp(load(x + c) - maximum);
    float rest = sum(total);
    for (; c < count; c++) rest += expf(x[c] - maximum);
    return maximum + logf(rest);
}

struct Maximum {
    int64_t column;
    float value;
};

/// Returns the first maximum of x; NaN counts as the highest value.
static inline Maximum maximum_of(const float* x, int64_t count) {
    Vec best = broadcast(-INFINITY);
    int64_t c = 0;
    bool has_nan = false;
    for (; c + LANES <= count; c += LANES) {
        Vec v = load(x + c);
        VecInt nan = v != v;
        best = v > best ? v : best;
        for (int i = 0; i < LANES; i++) has_nan |= nan[i] != 0;
    }
    float top = -INFINITY;
    for (int i = 0; i < LANES; i++) top = max(top, best[i]);
    for (; c < count; c++) {
        has_nan |= x[c] != x[c];
        top = max(top, x[c]);
    }
    for (c = 0; c < count; c++)
        if (has_nan ? x[c] != x[c] : x[c] == top) return {c, x[c]};
    return {0, top};
}

/// Returns log sum_c exp(x_c).
static inline float log_sum_exp(const float* x, int64_t count) {
    return log_sum_exp(x, count, maximum_of(x, count).value);
}

/// Constraints of a search. Mirrored by a ctypes structure.
struct SearchOptions {
    const int64_t* token_ids;  // [C], token of each column; null: column c is token c
    const int64_t* banned;     // [num_banned], columns that are never chosen
    int64_t num_banned, bos, eos;
    const int64_t* max_length;  // [B], tokens per translation, EOS not counted
};

/// Results of greedy search. Mirrored by a ctypes structure.
struct GreedyResult {
    int64_t T;
    int64_t* tokens;  // [T, B]
    float* scores;    // [T, B], log-probabilities
    float* alphas;    // [B, T, J], attention weights
    int64_t* length;  // [B], steps; the last token is EOS unless max_length was exceeded
};

/// Runs greedy search on B sentences and returns the number of steps.
///
/// state: [B, D], the initial states; overwritten. step(team, sentence, y, N, state, next, alpha,
/// logits) computes one position of N hypotheses, where sentence [N] has their rows in the batch
/// and y [N] their previous tokens.
template <class S>
static int64_t greedy_search(int32_t threads, S step, int64_t C, const SearchOptions& options,
                             int64_t B, int64_t D, int64_t J, float* state,
                             const GreedyResult& result) {
    Buffer<int64_t> sentence(B), y(B), chosen(B);
    Buffer<float> logits(B * C), next(B * D), alpha(B * J), score(B);
    for (int64_t b = 0; b < B; b++) {
        sentence[b] = b;
        y[b] = options.bos;
    }
    int64_t N = B, t = 0;
    parallel_region(threads, [&](Team& team) {
        while (N > 0 && t < result.T) {
            step(team, sentence.data, y.data, N, state, next.data, alpha.data, logits.data);
            team.parallel_for(N, 3 * C, [&](int64_t n) {
                float* x = &logits[n * C];
                Maximum best = maximum_of(x, C);
                const float norm = log_sum_exp(x, C, best.value);
                for (int64_t i = 0; i < options.num_banned; i++) x[options.banned[i]] = -INFINITY;
                if (x[best.column] != best.value) best = maximum_of(x, C);  // it was banned
                chosen[n] = options.token_ids ? options.token_ids[best.column] : best.column;
                score[n] = best.value - norm;
            });
            // Record the step, and move the unfinished sentences to the front.
            int64_t live = 0;
            for (int64_t n = 0; n < N; n++) {
                const int64_t b = sentence[n];
                result.tokens[t * B + b] = chosen[n];
                result.scores[t * B + b] = score[n];
                memcpy(result.alphas + (b * result.T + t) * J, &alpha[n * J],
                       J * sizeof(float));
                result.length[b] = t + 1;
                if (chosen[n] == options.eos || t + 1 > options.max_length[b]) continue;
                sentence[live] = b;
                y[live] = chosen[n];
                memcpy(state + live * D, &next[n * D], D * sizeof(float));
                live++;
            }
            N = live;
            t++;
        }
    });
    return t;
}
