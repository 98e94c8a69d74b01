// Beam search over any step function, one call per batch: the fast implementation of search/beam.py
// and search/backtrace.py, with the same rules for finished hypotheses and for when a sentence
// stops.
//
// In shapes: B sentences of the batch, A of them unfinished, K hypotheses per sentence (the beam),
// J source positions, C columns of the output layer, T maximum number of steps.
#pragma once

#include "greedy_search.h"

/// Array that grows at its end and keeps its contents.
template <class T>
struct GrowingArray {
    T* data = nullptr;
    int64_t size = 0, capacity = 0;
    GrowingArray() = default;
    GrowingArray(const GrowingArray&) = delete;
    ~GrowingArray() { free(data); }
    /// Appends `count` uninitialised elements and returns them.
    T* append(int64_t count) {
        if (size + count > capacity) {
            capacity = max(2 * capacity, size + count + 64);
            if (uint64_t(capacity) > MAX_ALLOCATION_BYTES / sizeof(T)) abort();
            data = (T*)realloc(data, capacity * sizeof(T));
            if (!data) abort();
        }
        size += count;
        return data + size - count;
    }
    T& operator[](int64_t i) { return data[i]; }
};

/// Finds the `count` highest of prefix[k] + scores[k, c] over the K rows of a sentence, highest
/// first.
///
/// scores: [K, C]. prefix: [K]. index: [count], flat indices k * C + c; of equal values the lowest
/// index comes first, and NaN counts as the highest value. value: [count], the sums. Returns the
/// number found, which is at most K * C.
static inline int64_t topk(const float* scores, const float* prefix, int64_t K, int64_t C,
                           int64_t count, int64_t* index, float* value) {
    int64_t filled = 0;
    auto insert = [&](float x, int64_t at) {  // insertion sort
        float v = x != x ? INFINITY : x;
        if (filled == count && !(v > value[count - 1])) return;
        int64_t i = filled < count ? filled++ : count - 1;
        for (; i > 0 && value[i - 1] < v; i--) {
            value[i] = value[i - 1];
            index[i] = index[i - 1];
        }
        value[i] = v;
        index[i] = at;
    };
    for (int64_t k = 0; k < K; k++) {
        const float *row = scores + k * C, row_prefix = prefix[k];
        int64_t c = 0;
        for (; c < C && filled < count; c++) insert(row[c] + row_prefix, k * C + c);
        for (; c + LANES <= C; c += LANES) {  // most vectors have no value above the threshold
            Vec x = load(row + c) + row_prefix;
            const float threshold = value[count - 1];
            VecInt above = ~(x <= broadcast(threshold));  // true for NaN
            bool any = false;
            for (int i = 0; i < LANES; i++) any |= above[i] != 0;
            if (any)
                for (int i = 0; i < LANES; i++) insert(x[i], k * C + c + i);
        }
        for (; c < C; c++) insert(row[c] + row_prefix, k * C + c);
    }
    return filled;
}

/// Options of beam search in addition to SearchOptions. Mirrored by a ctypes structure.
///
/// If a sentence must begin with given bytes, columns must be tokens (`token_ids` null). Which
/// tokens may come next is then a nested list in CSR form: byte i of sentence b is number
/// byte_offsets[b] + i among all bytes, and the tokens allowed there are
/// allowed[allowed_offsets[n]] .. allowed[allowed_offsets[n + 1]], where n is that number.
struct BeamOptions {
    int64_t width, n_best;
    // Norm of log-probabilities: length ^ length_penalty, or GNMT's ((5 + length) / 6) ^
    // length_penalty.
    int64_t gnmt_norm;
    double length_penalty;
    float coverage_penalty;
    const uint8_t* coverage_mask;  // [B, J], the source tokens to cover
    // [B, num_forced], columns that each translation begins with; -1 behind the last.
    const int64_t* forced;
    int64_t num_forced;
    const int64_t* byte_offsets;     // [B + 1]; null: no bytes are given
    const int64_t* allowed_offsets;  // [byte_offsets[B] + 1]
    const int64_t* allowed;          // [allowed_offsets[byte_offsets[B]]]
    const int64_t* token_bytes;      // [V], length of each token in bytes
};

/// The n_best hypotheses of each sentence, best first. Mirrored by a ctypes structure.
struct Hypotheses {
    int64_t T;
    int64_t* tokens;             // [B, n_best, T]
    float* scores;               // [B, n_best, T], log-probabilities
    float* alphas;               // [B, n_best, T, J], attention weights
    int64_t *length, *finished;  // [B, n_best]; length 0: there are fewer hypotheses
};

/// Lower bound of a source position's total attention in the coverage penalty.
constexpr float MIN_COVERAGE = 1e-6f;

/// The hypotheses of a beam search: live ones, ended ones, and the tokens of all of them as a tree.
class BeamState {
    /// A token of a hypothesis, linked to the preceding one.
    struct TokenNode {
        int64_t previous, token;
        int64_t alpha_row;  // in `alphas`
        float score;
    };
    struct EndedHypothesis {
        int64_t sentence, last, length;
        int64_t order;     // in which hypotheses ended
        int64_t finished;  // 1 if it ended with EOS
        double score;
    };

    const SearchOptions& options;
    const BeamOptions& beam;
    const int64_t B, J, K, M;  // M: candidates per sentence and step
    GrowingArray<TokenNode> nodes;
    GrowingArray<float> alphas;  // [rows of all steps, J]
    GrowingArray<EndedHypothesis> ended;
    Buffer<double> best;  // [B, n_best], the highest scores of finished hypotheses, ascending
    Buffer<int64_t> finished_count;
    // Of the A unfinished sentences: last node, number of given bytes done [A, K]; candidates' flat
    // indices [A, M].
    Buffer<int64_t> last, bytes_done, old_last, candidates;
    // Log-probability and coverage penalty of each hypothesis [A, K], total attention per source
    // position [A, K, J], values of the candidates [A, M].
    Buffer<float> log_prob, old_coverage, coverage, attention, old_attention, value;

    double length_norm(double length) const {
        return pow(beam.gnmt_norm ? (5.0 + length) / 6.0 : length, beam.length_penalty);
    }
    bool has_coverage() const { return beam.coverage_penalty > 0 && K > 1; }
    void end(int64_t b, int64_t node, int64_t length, float log_prob, float coverage,
             bool finished) {
        const double score = double(log_prob) / length_norm(length) + coverage;
        *ended.append(1) = {b, node, length, ended.size, finished, score};
    }

  public:
    // Rows of the next step: sentence [A], and [A * K] each: previous token, row of the last step
    // that the hypothesis continues, and sentence.
    Buffer<int64_t> sentence, y, row, row_sentence;
    int64_t A;          // unfinished sentences
    int64_t width = 1;  // hypotheses of each: 1 at first, then K
    int64_t steps = 0;

    BeamState(const SearchOptions& options, const BeamOptions& beam, int64_t B, int64_t J)
        : options(options), beam(beam), B(B), J(J), K(beam.width), M(K == 1 ? 1 : 2 * K),
          best(B * beam.n_best), finished_count(B), last(B * K), bytes_done(B * K), old_last(B * K),
          candidates(B * M), log_prob(B * K), old_coverage(B * K), coverage(B * K),
          attention(B * K * J), old_attention(B * K * J), value(B * M), sentence(B), y(B * K),
          row(B * K), row_sentence(B * K), A(B) {
        finished_count.zeros(B);
        attention.zeros(B * K * J);
        for (int64_t i = 0; i < B * beam.n_best; i++) best[i] = -INFINITY;
        for (int64_t b = 0; b < B; b++) {
            sentence[b] = row_sentence[b] = b;
            y[b] = options.bos;
            last[b * K] = -1;
            log_prob[b * K] = 0;
            bytes_done[b * K] = 0;
        }
    }

    /// Sets disallowed columns of the scores x [C] of row n to -inf.
    void mask_disallowed(int64_t n, float* x, int64_t C) {
        const int64_t b = row_sentence[n];
        const int64_t forced =
            steps < beam.num_forced ? beam.forced[b * beam.num_forced + steps] : -1;
        if (forced >= 0) {
            const float score = x[forced];
            for (int64_t c = 0; c < C; c++) x[c] = -INFINITY;
            x[forced] = score;
            return;
        }
        const int64_t at =
            beam.byte_offsets ? beam.byte_offsets[b] + bytes_done[n / width * K + n % width] : 0;
        if (beam.byte_offsets && at < beam.byte_offsets[b + 1]) {
            const int64_t from = beam.allowed_offsets[at], to = beam.allowed_offsets[at + 1];
            float* scores = (float*)malloc((to - from + 1) * sizeof(float));
            if (!scores) abort();
            for (int64_t i = from; i < to; i++) scores[i - from] = x[beam.allowed[i]];
            for (int64_t c = 0; c < C; c++) x[c] = -INFINITY;
            for (int64_t i = from; i < to; i++) x[beam.allowed[i]] = scores[i - from];
            free(scores);
        }
        for (int64_t i = 0; i < options.num_banned; i++) x[options.banned[i]] = -INFINITY;
    }

    /// Finds the M best continuations of unfinished sentence a.
    ///
    /// scores: [width, C] of its rows. norms: [width], their log-sum-exp. alpha: [width, J].
    void find_candidates(int64_t a, const float* scores, const float* norms, const float* alpha,
                         int64_t C) {
        float prefix[K], top = -INFINITY;
        for (int64_t k = 0; k < width; k++) top = max(top, log_prob[a * K + k] - norms[k]);
        for (int64_t k = 0; k < width; k++) prefix[k] = log_prob[a * K + k] - norms[k] - top;
        int64_t found = topk(scores, prefix, width, C, M, &candidates[a * M], &value[a * M]);
        for (; found < M; found++) candidates[a * M + found] = -1;
        if (!has_coverage()) return;
        for (int64_t k = 0; k < width; k++) {
            float total = 0, *attended = &attention[(a * K + k) * J];
            for (int64_t j = 0; j < J; j++) {
                attended[j] += alpha[k * J + j];
                if (beam.coverage_mask[sentence[a] * J + j])
                    total += logf(max(MIN_COVERAGE, attended[j] < 1 ? attended[j] : 1.0f));
            }
            coverage[a * K + k] = beam.coverage_penalty * total;
        }
    }

    /// Extends all sentences by their candidates, and returns true if any sentence is unfinished.
    ///
    /// Moves unfinished sentences to the front; `row` and `y` say which row each hypothesis
    /// continues, with which token.
    bool advance(const float* scores, const float* norms, const float* alpha, int64_t C) {
        const int64_t rows = A * width, first_alpha = J ? alphas.size / J : 0;
        if (J) memcpy(alphas.append(rows * J), alpha, rows * J * sizeof(float));
        memcpy(old_last.data, last.data, B * K * sizeof(int64_t));
        memcpy(old_attention.data, attention.data, B * K * J * sizeof(float));
        Buffer<int64_t> old_bytes_done(B * K);
        memcpy(old_bytes_done.data, bytes_done.data, B * K * sizeof(int64_t));
        // Log-probabilities and coverage penalties before this step.
        Buffer<float> previous(B * K), previous_coverage(B * K);
        memcpy(previous.data, log_prob.data, B * K * sizeof(float));
        memcpy(previous_coverage.data, old_coverage.data, B * K * sizeof(float));
        steps++;
        int64_t unfinished = 0;
        for (int64_t a = 0; a < A; a++) {
            const int64_t b = sentence[a];
            const bool at_limit = steps > options.max_length[b];
            bool has_ended[K];  // hypotheses with an EOS at this step
            for (int64_t k = 0; k < K; k++) has_ended[k] = false;
            float top = -INFINITY;
            int64_t live = 0;
            // The first K candidates that do not end live on, in order; slots that remain empty are
            // filled below.
            for (int64_t m = 0; m < M; m++) {
                const int64_t at = candidates[a * M + m];
                if (at < 0) continue;
                const int64_t k = at / C, c = at % C, n = a * width + k;
                const int64_t token = options.token_ids ? options.token_ids[c] : c;
                const float score = scores[n * C + c] - norms[n];
                const float total = previous[a * K + k] + score;
                const float penalty = has_coverage() ? coverage[a * K + k] : 0;
                if (token == options.eos) {
                    if (m >= K || total == -INFINITY) continue;
                    *nodes.append(1) = {old_last[a * K + k], token, first_alpha + n, score};
                    end(b, nodes.size - 1, steps, total, penalty, true);
                    finished_count[b]++;
                    has_ended[k] = true;
                    if (K > 1) insert_best(b, double(total / float(length_norm(steps)) + penalty));
                    continue;
                }
                top = max(top, total);
                if (live == K) continue;
                *nodes.append(1) = {old_last[a * K + k], token, first_alpha + n, score};
                const int64_t to = unfinished * K + live++;
                last[to] = nodes.size - 1;
                log_prob[to] = total;
                old_coverage[to] = penalty;
                row[to] = n;
                y[to] = token;
                bytes_done[to] = bytes_after(b, old_bytes_done[a * K + k], token);
                if (has_coverage())
                    memcpy(&attention[to * J], &old_attention[(a * K + k) * J], J * sizeof(float));
            }
            const bool dead = top == -INFINITY;
            // Unfinished hypotheses fill the n-best list.
            if (at_limit && finished_count[b] < beam.n_best)
                for (int64_t k = 0; k < width; k++)
                    if (!has_ended[k] && previous[a * K + k] > -INFINITY && steps > 1)
                        end(b, old_last[a * K + k], steps - 1, previous[a * K + k],
                            previous_coverage[a * K + k], false);
            bool stops = at_limit || dead || finished_count[b] >= K;
            if (K > 1) {  // stop if no live hypothesis can still enter the n-best list
                const double bound = top / length_norm(double(options.max_length[b]) + 1.0);
                stops |= bound <= best[b * beam.n_best];
            }
            if (stops) continue;
            for (; live < K; live++) {  // copies with probability 0
                const int64_t to = unfinished * K + live;
                last[to] = last[unfinished * K];
                log_prob[to] = -INFINITY;
                old_coverage[to] = 0;
                row[to] = row[unfinished * K];
                y[to] = y[unfinished * K];
                bytes_done[to] = bytes_done[unfinished * K];
            }
            sentence[unfinished] = b;
            for (int64_t k = 0; k < K; k++) row_sentence[unfinished * K + k] = b;
            unfinished++;
        }
        A = unfinished;
        width = K;
        return A > 0;
    }

    /// Writes the best hypotheses of each sentence.
    void write(const Hypotheses& result) {
        memset(result.length, 0, B * beam.n_best * sizeof(int64_t));
        Buffer<int64_t> written(B);
        written.zeros(B);
        Buffer<uint8_t> done(max(ended.size, 1));
        done.zeros(max(ended.size, 1));
        for (int64_t left = ended.size; left > 0; left--) {  // selection sort: there are few
            int64_t next = -1;
            for (int64_t i = 0; i < ended.size; i++)
                if (!done[i] && (next < 0 || better(ended[i], ended[next]))) next = i;
            done[next] = 1;
            const EndedHypothesis& e = ended[next];
            if (written[e.sentence] == beam.n_best) continue;
            const int64_t r = e.sentence * beam.n_best + written[e.sentence]++;
            result.length[r] = e.length;
            result.finished[r] = e.finished;
            int64_t node = e.last;
            for (int64_t t = e.length - 1; t >= 0; t--, node = nodes[node].previous) {
                result.tokens[r * result.T + t] = nodes[node].token;
                result.scores[r * result.T + t] = nodes[node].score;
                memcpy(result.alphas + (r * result.T + t) * J,
                       alphas.data + nodes[node].alpha_row * J, J * sizeof(float));
            }
        }
    }

  private:
    static bool better(const EndedHypothesis& a, const EndedHypothesis& b) {
        if (a.finished != b.finished) return a.finished > b.finished;
        if (a.score != b.score) return a.score > b.score;
        return a.order < b.order;
    }
    /// Inserts a score into the n best finished scores of a sentence, if it is among them.
    void insert_best(int64_t b, double score) {
        double* scores = &best[b * beam.n_best];
        if (!(score > scores[0])) return;
        int64_t i = 0;
        for (; i + 1 < beam.n_best && scores[i + 1] < score; i++) scores[i] = scores[i + 1];
        scores[i] = score;
    }
    /// Returns how many of the given bytes are done after one more token.
    int64_t bytes_after(int64_t b, int64_t done, int64_t token) const {
        if (!beam.byte_offsets) return 0;
        const bool forced =
            steps <= beam.num_forced && beam.forced[b * beam.num_forced + steps - 1] >= 0;
        if (forced) return 0;
        return min(done + beam.token_bytes[token], beam.byte_offsets[b + 1] - beam.byte_offsets[b]);
    }
};

/// Runs beam search on B sentences from the initial states [B, D].
///
/// `step` is like that of `greedy_search`, with the number of hypotheses per sentence as an
/// argument after N. Returns 1, or 0 if a score was NaN: the results are then undefined.
template <class S>
static int64_t beam_search(int32_t threads, S step, int64_t C, const SearchOptions& options,
                           const BeamOptions& beam, int64_t B, int64_t D, int64_t J,
                           const float* initial, const Hypotheses& result) {
    BeamState search(options, beam, B, J);
    const int64_t max_rows = B * beam.width;
    Buffer<float> state(max_rows * D), next(max_rows * D), logits(max_rows * C);
    Buffer<float> alpha(max_rows * J), norm(max_rows);
    memcpy(state.data, initial, B * D * sizeof(float));
    bool unfinished = B > 0, has_nan = false;
    parallel_region(threads, [&](Team& team) {
        while (unfinished) {
            const int64_t N = search.A * search.width, width = search.width;
            step(team, search.row_sentence.data, search.y.data, N, width, state.data, next.data,
                 alpha.data, logits.data);
            team.parallel_for(N, 2 * C, [&](int64_t n) {
                float* x = &logits[n * C];
                norm[n] = log_sum_exp(x, C);
                if (norm[n] != norm[n]) has_nan = true;
                search.mask_disallowed(n, x, C);
            });
            team.parallel_for(search.A, width * C, [&](int64_t a) {
                search.find_candidates(a, &logits[a * width * C], &norm[a * width],
                                       &alpha[a * width * J], C);
            });
            unfinished = search.advance(logits.data, norm.data, alpha.data, C) && !has_nan;
            const int64_t rows = search.A * search.width;
            for (int64_t n = 0; n < rows; n++)
                memcpy(&state[n * D], &next[search.row[n] * D], D * sizeof(float));
        }
    });
    search.write(result);
    return !has_nan;
}
