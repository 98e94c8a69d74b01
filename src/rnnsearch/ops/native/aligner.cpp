// Expectation step and posteriors of the word aligner: the fast implementation of `align/hmm.py`,
// whose NumPy code is the definition. `align/native.py` calls these functions.
//
// Sentence pairs are processed one by one. The matrices of a pair are [I, J] for p(t | s), with
// rows of targets, and [J, I] for p(s | t); their rows are padded with zeros to whole vectors.
//
// Results do not depend on the number of threads: each sentence pair is computed by one thread, and
// expected counts are added in the order of the sentences. For this, pairs are processed in blocks.
// First, all threads compute posteriors. Then each thread adds up those of its part of the
// vocabulary.
//
// Axes: J source tokens, I target tokens.
#include "thread_team.h"
#include "vectors.h"

namespace {

constexpr Index MAX_BLOCK_PAIRS = 1024;
constexpr Index BLOCK_CELLS_PER_THREAD = 1
                                         << 14;  // the counts of a block then fit into the L2 cache
constexpr Index HMM_BLOCK_CELLS_PER_THREAD = 1 << 15;  // most pairs were removed before
constexpr Index GROUP_SIZE = 4;                        // sentence pairs that are computed together
constexpr Index READ_SIZE = 4;        // tokens that are read together, as in `align/sentences.py`
constexpr Index TYPICAL_CELLS = 500;  // position pairs of a sentence pair
constexpr float EPSILON = 1e-30f;
#if defined(__AVX512F__)
constexpr int MAX_VECTORS = 4;  // of a sum that are computed together
#else
constexpr int MAX_VECTORS = 2;  // there are fewer registers
#endif

/// Sentences of one language as ids of chunks (stretches between spaces), and the tokens of each
/// chunk.
struct Texts {
    const int32_t* chunks;
    const int64_t* starts;        // of each sentence in `chunks`, and the end
    const int32_t* tokens;        // of all chunks, and READ_SIZE - 1 more
    const int64_t* token_starts;  // of each chunk in `tokens`, and the end

    Index length(Index n) const {
        Index total = 0;
        for (Index k = starts[n]; k < starts[n + 1]; k++)
            total += token_starts[chunks[k] + 1] - token_starts[chunks[k]];
        return total;
    }
    /// Writes the tokens of sentence n, and up to READ_SIZE - 1 undefined ones.
    void read(Index n, int32_t* ids) const {
        for (Index k = starts[n]; k < starts[n + 1]; k++) {
            const Index begin = token_starts[chunks[k]], size = token_starts[chunks[k] + 1] - begin;
            // Most chunks have at most READ_SIZE tokens: this loop has nearly always one iteration.
            for (Index m = 0; m < size; m += READ_SIZE)
                memcpy(ids + m, tokens + begin + m, READ_SIZE * sizeof(int32_t));
            ids += size;
        }
    }
};

/// Set of token pairs: a bit per pair, in words of 32 bits, and the number of pairs before each
/// word. The index of a pair is its rank.
struct PairSet {
    uint32_t *bits, *before;
    Index words_per_source;

    Index row(Index source) const { return source * words_per_source; }
    void prefetch(Index source) const {
        for (Index k = 0; k < words_per_source; k += 16) __builtin_prefetch(bits + row(source) + k);
    }
    /// Numbers the pairs and returns how many there are.
    Index count(Index num_words) const {
        uint32_t total = 0;
        for (Index k = 0; k < num_words; k++) {
            before[k] = total;
            total += __builtin_popcount(bits[k]);
        }
        return total;
    }
};

static inline bool contains(const uint32_t* row, int32_t target) {
    return row[target >> 5] >> (target & 31) & 1;
}
/// Index of a pair if the set contains it.
static inline uint32_t rank(const PairSet& pairs, Index row, int32_t target) {
    const Index word = row + (target >> 5);
    const uint32_t lower = pairs.bits[word] & ((1u << (target & 31)) - 1);
    return pairs.before[word] + __builtin_popcount(lower);
}

/// Values of a token pair in learning, next to each other because both are used together.
struct PairValues {
    float base;   // p(emitted | state) times a scale of the state
    float count;  // expected number of links
};

/// Parameters of one direction: the scale of each state, p(emitted | null), and the weights c of
/// the jumps -max_jump .. max_jump.
struct Direction {
    const float *scale, *null, *jumps;
};

static inline Index padded(Index n) { return (n + LANES - 1) / LANES * LANES; }

/// Sum of all lanes, pairwise.
static inline float pairwise_sum(Vec v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#else
    float lanes[LANES];
    store(lanes, v);
    for (int width = LANES / 2; width; width /= 2)
        for (int l = 0; l < width; l++) lanes[l] += lanes[l + width];
    return lanes[0];
#endif
}

/// Weights c(d) of one direction for all jumps between positions of a sentence, in both orders, and
/// their sums.
struct Jumps {
    Index max_jump, limit, stride;
    // LANES copies of c(m - limit - r), r = 0 .. LANES, and of c(limit - m + r), so that each
    // vector that is loaded is aligned.
    Buffer<float> ascending, descending;
    Buffer<double> sums;  // sum of c(d) for d < m - limit

    void prepare(const float* weights, Index max_jump_, Index max_length) {
        max_jump = max_jump_;
        limit = padded(max_length) + LANES;
        stride = 2 * limit;
        ascending.allocate(LANES * stride);
        descending.allocate(LANES * stride);
        for (Index r = 0; r < LANES; r++)
            for (Index m = 0; m < stride; m++) {
                ascending[r * stride + m] = weights[index(m - limit - r)];
                descending[r * stride + m] = weights[index(limit - m + r)];
            }
        sums.allocate(stride + 1);
        sums[0] = 0;
        for (Index m = 0; m < stride; m++) sums[m + 1] = sums[m] + ascending[m];
    }
    /// Index of the weight of a jump.
    Index index(Index d) const { return min(max(d, -max_jump), max_jump) + max_jump; }
    /// c(d), and those of longer jumps.
    const float* from(Index d) const { return ascending.data + limit + d; }
    /// Sum of c(l - start) for l in 0 .. J.
    float total(Index start, Index J) const {
        return max(float(sums[limit - start + J] - sums[limit - start]), EPSILON);
    }
    /// y[k] = sum over n < N of x[n] c(k - n) for k in 0 .. padded(N), for G vectors x that are
    /// padded with zeros.
    template <int G>
    void sum_ascending(const float* x, Index N, float* y) const {
        sum<G>(ascending.data, x, N, y);
    }
    /// y[k] = sum over n < N of x[n] c(n - k).
    template <int G>
    void sum_descending(const float* x, Index N, float* y) const {
        sum<G>(descending.data, x, N, y);
    }

  private:
    /// V vectors of G sums, which share the loads of the weights. CHAINS partial sums hide the
    /// latency of additions.
    template <int G, int V>
    void columns(const float* table, const float* x, Index N, float* y) const {
        constexpr int CHAINS = G * V >= 8 ? 1 : G * V >= 4 ? 2 : 4;
        const Index size = padded(N);
        Vec sums[CHAINS][G][V] = {};
        for (Index n = 0; n < N; n += CHAINS)
            for (int chain = 0; chain < CHAINS; chain++) {
                const Index r = n % LANES + chain;
                const float* row = table + r * stride + limit - (n - n % LANES);
                Vec weights[V];
                for (int v = 0; v < V; v++) weights[v] = load(row + v * LANES);
                for (int g = 0; g < G; g++) {
                    const Vec factor = broadcast(x[g * size + n + chain]);
                    for (int v = 0; v < V; v++) sums[chain][g][v] += factor * weights[v];
                }
            }
        for (int g = 0; g < G; g++)
            for (int v = 0; v < V; v++) {
                Vec total = sums[0][g][v];
                for (int chain = 1; chain < CHAINS; chain++) total += sums[chain][g][v];
                store(y + g * size + v * LANES, total);
            }
    }
    template <int G>
    void sum(const float* table, const float* x, Index N, float* y) const {
        const Index size = padded(N);
        Index k = 0;
        for (; k + MAX_VECTORS * LANES <= size; k += MAX_VECTORS * LANES)
            columns<G, MAX_VECTORS>(table + k, x, N, y + k);
        switch ((size - k) / LANES) {
            case 1: columns<G, 1>(table + k, x, N, y + k); break;
            case 2: columns<G, 2>(table + k, x, N, y + k); break;
            case 3: columns<G, 3>(table + k, x, N, y + k); break;
        }
    }
};

/// Memory of one thread for the posteriors of a group of G sentence pairs in one direction.
struct Workspace {
    Buffer<float> emission, posterior;  // [emitted, G, padded states]
    Buffer<float> starts, futures;      // the same, only for jump counts
    Buffer<float> null, scale;          // [emitted, G]
    Buffer<float> state_scale, normaliser, state, start, predicted, future;  // [G, padded states]

    void allocate(Index emitted, Index states, Index G, bool counts_jumps) {
        const Index row = G * padded(states);
        emission.allocate(emitted * row);
        posterior.allocate(emitted * row);
        if (counts_jumps) {
            starts.allocate(emitted * row);
            futures.allocate(emitted * row);
        }
        null.allocate(emitted * G);
        scale.allocate(emitted * G);
        state_scale.allocate(row);
        normaliser.allocate(row);
        state.allocate(row);
        start.allocate(row);
        predicted.allocate(row);
        future.allocate(row);
    }
};

/// Adds the expected counts of the jumps between positions: the sum over i of starts[i, j'] c(j -
/// j') futures[i + 1, j], by j - j'. Both matrices have rows of `stride` values.
static void add_jump_counts(const float* starts, const float* futures, Index stride, Index I,
                            Index J, const Jumps& jumps, double* counts) {
    constexpr int ROWS = 4;
    for (Index j0 = 0; j0 < J; j0 += ROWS)
        for (Index k = 0; k < J; k += LANES) {
            Vec sums[ROWS] = {};
            for (Index i = 0; i + 1 < I; i++) {
                const Vec future = load(futures + (i + 1) * stride + k);
                for (int r = 0; r < ROWS; r++)
                    sums[r] += broadcast(starts[i * stride + j0 + r]) * future;
            }
            for (int r = 0; r < ROWS && j0 + r < J; r++) {
                float values[LANES];
                store(values, sums[r] * load(jumps.from(k - j0 - r)));
                for (Index l = 0; l < min(J - k, LANES); l++)
                    counts[jumps.index(k + l - j0 - r)] += values[l];
            }
        }
}

/// Computes the posteriors of G sentence pairs in one direction by the forward-backward algorithm
/// (`hmm_posterior` in `align/hmm.py`).
///
/// (1 - p_0) p(t_i | s_j) is `work.emission` times `work.state_scale`, zero beyond the end of each
/// sentence. `work.null` contains p_0 p(t_i | null), 1 beyond the end, so that the state never
/// changes there. It is replaced by the posterior of the null word; that of the links is written to
/// `work.posterior`.
///
/// @param I longest of the emitted sentences.
/// @param J longest of the conditioning sentences.
/// @param widths length of each conditioning sentence.
/// @param counts_jumps true to fill in `work.starts` and `work.futures`.
template <int G>
static void hmm_posterior(Workspace& work, Index I, Index J, const Index* widths,
                          const Jumps& jumps, bool counts_jumps) {
    const Index S = padded(J);
    float *normaliser = work.normaliser.data, *state = work.state.data, *start = work.start.data;
    float *predicted = work.predicted.data, *future = work.future.data;
    const float* state_scale = work.state_scale.data;
    for (int g = 0; g < G; g++) {
        const Index width = widths[g];
        const float first = 1 / jumps.total(-1, width);
        for (Index j = 0; j < S; j++) {
            const Index k = g * S + j;
            normaliser[k] = j < width ? 1 / jumps.total(j, width) : 0;
            state[k] = predicted[k] = j < width ? jumps.from(1)[j] * first : 0;
            future[k] = 1;
        }
    }
    for (Index i = 0; i < I; i++) {
        for (int g = 0; g < G; g++) {
            const Index row = (i * G + g) * S;
            const float* emission = work.emission.data + row;
            float* moved = work.posterior.data + row;
            const float null = work.null[i * G + g];
            Vec mass = {};
            for (Index k = 0; k < S; k += LANES) {
                const Vec e = load(emission + k) * load(state_scale + g * S + k);
                const Vec m = load(predicted + g * S + k) * e;
                const Vec sum = m + load(state + g * S + k) * null;
                store(moved + k, m);
                store(state + g * S + k, sum);
                mass += sum;
            }
            // Each position is scaled to sum to 1, because products of many probabilities
            // underflow.
            const float scale = 1 / (pairwise_sum(mass) + EPSILON);
            work.scale[i * G + g] = scale;
            for (Index k = g * S; k < (g + 1) * S; k += LANES) {
                const Vec sum = load(state + k) * scale;
                store(state + k, sum);
                store(start + k, sum * load(normaliser + k));
            }
        }
        if (counts_jumps) memcpy(work.starts.data + i * G * S, start, G * S * sizeof(float));
        if (i + 1 < I) jumps.sum_ascending<G>(start, J, predicted);
    }
    float* expected = start;
    for (Index i = I - 1; i >= 0; i--) {
        float factors[G];  // scaled null probabilities
        for (int g = 0; g < G; g++) {
            const Index row = (i * G + g) * S;
            float* posterior = work.posterior.data + row;
            const float scale = work.scale[i * G + g];
            Vec moved = {};
            for (Index k = 0; k < S; k += LANES) {
                const Vec f = load(future + g * S + k) * scale;
                const Vec p = load(posterior + k) * f;
                store(posterior + k, p);
                const Vec e = load(work.emission.data + row + k) * load(state_scale + g * S + k);
                store(expected + g * S + k, e * f);
                moved += p;
            }
            factors[g] = work.null[i * G + g] * scale;
            work.null[i * G + g] = max(1 - pairwise_sum(moved), 0.0f);
        }
        if (counts_jumps) memcpy(work.futures.data + i * G * S, expected, G * S * sizeof(float));
        if (i == 0) break;
        jumps.sum_descending<G>(expected, J, predicted);
        for (int g = 0; g < G; g++)
            for (Index k = g * S; k < (g + 1) * S; k += LANES)
                store(future + k,
                      load(predicted + k) * load(normaliser + k) + load(future + k) * factors[g]);
    }
}

/// Adds the jump counts of pair g of a group with `hmm_posterior<G>`, with S padded states.
static void add_jump_counts(const Workspace& work, Index g, Index G, Index S, Index I, Index J,
                            const Jumps& jumps, double* counts) {
    for (Index j = 0; j < J; j++) counts[jumps.index(j + 1)] += work.posterior[g * S + j];
    add_jump_counts(work.starts.data + g * S, work.futures.data + g * S, G * S, I, J, jumps,
                    counts);
}

/// A sentence pair, and where its results are in the buffers of a block; no jumps if it is -1.
struct PairSlot {
    Index row, J, I, source, target, cells, jumps;
};

/// Consecutive sentence pairs of a block that are computed together.
struct Group {
    Index begin, size;
};

/// Input and output of the expectation step, as in `align/native.py`.
struct ExpectationRequest {
    Texts sources, targets;
    const int64_t* rows;              // numbers of the sentence pairs
    const int32_t *widths, *heights;  // J and I of each row
    Index num_rows;
    PairSet pairs;
    PairValues* values;  // of each pair
    float unseen;        // base value of other pairs
    Direction forward, backward;
    Index max_jump;
    float p_null;
    Index is_hmm;
    Index jump_step;         // jumps are counted in rows at these distances
    double* target_null;     // [target vocabulary]
    double* source_null;     // [source vocabulary]
    double* forward_jumps;   // [2 max_jump + 1]
    double* backward_jumps;  // [2 max_jump + 1]
};

/// Results of the sentence pairs of a block. The links of a sentence pair are those of its token
/// pairs in the set, by source position.
struct Block {
    Index num_pairs = 0, num_groups = 0;
    Buffer<PairSlot> slots;
    Buffer<Group> groups;
    Buffer<int32_t> source_ids, target_ids;
    Buffer<float> source_null, target_null;
    Buffer<Index> link_ends;  // index of the last link of each source position, plus 1
    Buffer<uint32_t> pairs;   // index of the token pair of each link
    Buffer<float> links;      // geometric mean of both posteriors
    Buffer<double> jumps;     // [selected pairs, 2, 2 max_jump + 1]

    /// Plans the block that starts with row `begin`; returns the row after it. Groups do not depend
    /// on the size of blocks, and so not on the number of threads.
    Index plan(const ExpectationRequest& request, Index begin, Index max_cells) {
        slots.allocate(MAX_BLOCK_PAIRS);
        groups.allocate(MAX_BLOCK_PAIRS);
        Index n = begin, source = 0, target = 0, cells = 0, num_jumps = 0;
        num_pairs = num_groups = 0;
        while (n < request.num_rows && num_pairs + GROUP_SIZE <= MAX_BLOCK_PAIRS) {
            const Index size = request.is_hmm && are_similar(request, n) ? GROUP_SIZE : 1;
            Index group_cells = 0;
            for (Index k = n; k < n + size; k++)
                group_cells += Index(request.widths[k]) * request.heights[k];
            if (num_pairs && cells + group_cells > max_cells) break;
            groups[num_groups++] = {num_pairs, size};
            for (const Index end = n + size; n < end; n++) {
                const Index J = request.widths[n], I = request.heights[n];
                const bool counts_jumps = request.is_hmm && n % request.jump_step == 0;
                const Index jump_slot = counts_jumps ? num_jumps : -1;
                slots[num_pairs++] = {request.rows[n], J, I, source, target, cells, jump_slot};
                if (counts_jumps) num_jumps += 2 * (2 * request.max_jump + 1);
                // `Texts::read` writes more tokens, which must not belong to another thread.
                source += J + READ_SIZE - 1;
                target += I + READ_SIZE - 1;
                cells += I * J;
            }
        }
        source_ids.allocate(source);
        source_null.allocate(source);
        link_ends.allocate(source);
        target_ids.allocate(target);
        target_null.allocate(target);
        pairs.allocate(cells);
        links.allocate(cells);
        jumps.zeros(num_jumps);
        return n;
    }

  private:
    /// True if the lengths of GROUP_SIZE rows differ so little that padding costs less than
    /// separate computation.
    static bool are_similar(const ExpectationRequest& request, Index first) {
        if (first + GROUP_SIZE > request.num_rows) return false;
        Index I = 0, J = 0, separate = 0;
        for (Index n = first; n < first + GROUP_SIZE; n++) {
            I = max(I, Index(request.heights[n]));
            J = max(J, Index(request.widths[n]));
            separate += padded_cells(request.heights[n], request.widths[n]);
        }
        return 4 * GROUP_SIZE * padded_cells(I, J) <= 5 * separate;
    }
    static Index padded_cells(Index I, Index J) { return I * padded(J) + J * padded(I); }
};

/// Memory of one thread for a group of sentence pairs.
struct Workspaces {
    Buffer<int32_t> source_ids, target_ids;
    Workspace forward, backward;
    Buffer<float> factors;
    Buffer<uint32_t> forward_positions, backward_positions;  // of each link in the matrices

    void allocate_links(Index cells) {
        forward_positions.allocate(cells + LANES);
        backward_positions.allocate(cells + LANES);
    }
};

/// Geometric mean of both posteriors of IBM model 1: with emissions g a_j and g b_i, the posteriors
/// are g a_j / Z_i and g b_i / W_j. `work.backward.emission` contains g.
///
/// @param links receives the means as [J, I].
static void model1_links(Workspaces& work, Index I, Index J, const int32_t* s, const int32_t* t,
                         const float* a, const float* b, float* links) {
    const Index SI = padded(I);
    const float* g = work.backward.emission.data;
    float* totals = work.factors.allocate(2 * SI);
    float* scales = totals + SI;  // b_i
    for (Index i = 0; i < SI; i++) {
        totals[i] = (i < I ? work.forward.null[i] : 0) + EPSILON;
        scales[i] = i < I ? b[t[i]] : 0;
    }
    for (Index j = 0; j < J; j++) {
        const float a_j = a[s[j]];
        Vec W = {};
        for (Index k = 0; k < SI; k += LANES) {
            const Vec g_j = load(g + j * SI + k);
            store(totals + k, load(totals + k) + g_j * a_j);
            W += g_j * load(scales + k);
        }
        const float total = pairwise_sum(W) + work.backward.null[j] + EPSILON;
        work.backward.null[j] /= total;
        work.forward.normaliser[j] = sqrtf(a_j / total);
    }
    for (Index i = 0; i < I; i++) {
        work.forward.null[i] /= totals[i];
        totals[i] = sqrtf(scales[i] / totals[i]);
    }
    for (Index j = 0; j < J; j++) {
        const float factor = work.forward.normaliser[j];
        for (Index i = 0; i < I; i++) links[j * I + i] = g[j * SI + i] * totals[i] * factor;
    }
}

/// Number of bits that are set in each lane.
static inline VecUint popcount(VecUint x) {
    x -= x >> 1 & 0x55555555;
    x = (x & 0x33333333) + (x >> 2 & 0x33333333);
    x = (x + (x >> 4)) & 0x0f0f0f0f;
    return x * 0x01010101 >> 24;
}

/// Writes the indices of the token pairs of a row with all targets; each pair is in the set.
static void find_all(const PairSet& set, Index row, const int32_t* t, Index I, uint32_t* pairs) {
    Index i = 0;
#if defined(__AVX512F__)
    const __m512i one = _mm512_set1_epi32(1);
    for (; i + LANES <= I; i += LANES) {
        const __m512i targets = _mm512_loadu_si512(t + i), words = _mm512_srli_epi32(targets, 5);
        const __m512i bit =
            _mm512_sllv_epi32(one, _mm512_and_si512(targets, _mm512_set1_epi32(31)));
        const __m512i lower = _mm512_and_si512(_mm512_i32gather_epi32(words, set.bits + row, 4),
                                               _mm512_sub_epi32(bit, one));
        const __m512i before = _mm512_i32gather_epi32(words, set.before + row, 4);
        _mm512_storeu_si512(pairs + i, _mm512_add_epi32((__m512i)popcount((VecUint)lower), before));
    }
#endif
    for (; i < I; i++) pairs[i] = rank(set, row, t[i]);
}

/// The links of a sentence pair: indices of the token pairs that are in the set, and their
/// positions in matrices with rows of targets and of sources.
struct LinkList {
    uint32_t *pairs, *forward, *backward;
    Index count;
};

/// Distances between the rows of the matrices of both directions.
struct Strides {
    Index forward, backward;
};

/// Appends the links of source position j, whose tokens are in a row of the set.
static void find_row(const PairSet& set, Index row, const int32_t* t, Index I, Index j,
                     Strides strides, LinkList& list) {
    uint32_t *pairs = list.pairs + list.count, *forward = list.forward + list.count;
    uint32_t* backward = list.backward + list.count;
    const uint32_t *bits = set.bits + row, *before = set.before + row;
    Index count = 0;
#if defined(__AVX512F__)
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i forward_step = _mm512_set1_epi32(int(strides.forward));
    for (Index i = 0; i < I; i += LANES) {
        const __mmask16 inside = I - i >= LANES ? 0xffff : (1 << (I - i)) - 1;
        const __m512i targets = _mm512_maskz_loadu_epi32(inside, t + i);
        const __m512i words = _mm512_srli_epi32(targets, 5);
        const __m512i bit = _mm512_sllv_epi32(_mm512_set1_epi32(1),
                                              _mm512_and_si512(targets, _mm512_set1_epi32(31)));
        const __m512i row_bits = _mm512_i32gather_epi32(words, bits, 4);
        const __mmask16 found = _mm512_mask_test_epi32_mask(inside, row_bits, bit);
        const __m512i lower =
            _mm512_and_si512(row_bits, _mm512_sub_epi32(bit, _mm512_set1_epi32(1)));
        const __m512i rank = _mm512_add_epi32(
            (__m512i)popcount((VecUint)lower),
            _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), found, words, before, 4));
        const __m512i positions = _mm512_add_epi32(lanes, _mm512_set1_epi32(int(i)));
        // Compressed in registers, because compressing to memory is slow on some processors.
        // The next elements of `pairs` may belong to another thread.
        const int size = __builtin_popcount(found);
        _mm512_mask_storeu_epi32(pairs + count, (1 << size) - 1,
                                 _mm512_maskz_compress_epi32(found, rank));
        _mm512_storeu_si512(forward + count,
                            _mm512_maskz_compress_epi32(
                                found, _mm512_add_epi32(_mm512_mullo_epi32(positions, forward_step),
                                                        _mm512_set1_epi32(int(j)))));
        _mm512_storeu_si512(
            backward + count,
            _mm512_maskz_compress_epi32(
                found, _mm512_add_epi32(positions, _mm512_set1_epi32(int(j * strides.backward)))));
        count += size;
    }
#else
    for (Index i = 0; i < I; i++) {
        // Without branches, which the processor could not predict.
        const uint32_t word = bits[t[i] >> 5], bit = 1u << (t[i] & 31);
        pairs[count] = before[t[i] >> 5] + __builtin_popcount(word & (bit - 1));
        forward[count] = uint32_t(i * strides.forward + j);
        backward[count] = uint32_t(j * strides.backward + i);
        count += (word & bit) != 0;
    }
#endif
    list.count += count;
}

/// Reads sentence pair `slot` and lists its links, with positions in matrices with these strides.
/// `offset`: number of cells of the group before it.
static LinkList find_links(const ExpectationRequest& request, Workspaces& work, Block& block,
                           const PairSlot& slot, Index offset, Strides strides) {
    int32_t* s = block.source_ids.data + slot.source;
    int32_t* t = block.target_ids.data + slot.target;
    request.sources.read(slot.row, s);
    request.targets.read(slot.row, t);
    LinkList list = {block.pairs.data + slot.cells, work.forward_positions.data + offset,
                     work.backward_positions.data + offset, 0};
    for (Index j = 0; j < slot.J; j++) {
        if (j + 1 < slot.J) request.pairs.prefetch(s[j + 1]);
        find_row(request.pairs, request.pairs.row(s[j]), t, slot.I, j, strides, list);
        block.link_ends[slot.source + j] = slot.cells + list.count;
    }
    for (Index k = 0; k < list.count; k++) __builtin_prefetch(request.values + list.pairs[k], 1);
    return list;
}

/// Computes the posteriors of a sentence pair of a block by IBM model 1. No pair may have been
/// removed.
static void expect_model1(const ExpectationRequest& request, Workspaces& work, Block& block,
                          Index n) {
    const PairSlot slot = block.slots[n];
    const Index I = slot.I, J = slot.J, SI = padded(I);
    int32_t* s = block.source_ids.data + slot.source;
    int32_t* t = block.target_ids.data + slot.target;
    request.sources.read(slot.row, s);
    request.targets.read(slot.row, t);
    uint32_t* pairs = block.pairs.data + slot.cells;
    float* links = block.links.data + slot.cells;
    for (Index j = 0; j < J; j++) {
        if (j + 1 < J) request.pairs.prefetch(s[j + 1]);
        find_all(request.pairs, request.pairs.row(s[j]), t, I, pairs + j * I);
        block.link_ends[slot.source + j] = slot.cells + (j + 1) * I;
        for (Index i = 0; i < I; i++) __builtin_prefetch(request.values + pairs[j * I + i], 1);
    }
    work.forward.allocate(I, J, 1, false);
    work.backward.allocate(J, I, 1, false);
    float* emission = work.backward.emission.data;
    for (Index i = 0; i < I; i++) work.forward.null[i] = request.forward.null[t[i]];
    for (Index j = 0; j < J; j++) {
        work.backward.null[j] = request.backward.null[s[j]];
        for (Index i = 0; i < I; i++) emission[j * SI + i] = request.values[pairs[j * I + i]].base;
        for (Index i = I; i < SI; i++) emission[j * SI + i] = 0;
    }
    model1_links(work, I, J, s, t, request.forward.scale, request.backward.scale, links);
    memcpy(block.target_null.data + slot.target, work.forward.null.data, I * sizeof(float));
    memcpy(block.source_null.data + slot.source, work.backward.null.data, J * sizeof(float));
}

/// Fills in the emissions of pair g of a group in one direction as if no token pair was in the set,
/// the scales of the states and the null probabilities. There are I rows, and S padded states.
static void fill_unseen(Workspace& work, Index g, Index G, Index I, Index S, const int32_t* emitted,
                        Index num_emitted, const int32_t* states, Index num_states,
                        const Direction& direction, float unseen, float p_null) {
    float* scale = work.state_scale.data + g * S;
    for (Index k = 0; k < S; k++)
        scale[k] = k < num_states ? (1 - p_null) * direction.scale[states[k]] : 0;
    for (Index i = 0; i < I; i++) {
        const Vec value = broadcast(i < num_emitted ? unseen : 0);
        for (Index k = 0; k < S; k += LANES) store(work.emission.data + (i * G + g) * S + k, value);
        work.null[i * G + g] = i < num_emitted ? p_null * direction.null[emitted[i]] : 1;
    }
}

/// Multiplies the emissions of one sentence pair by the scales of the states, and sets these to 1.
static void apply_scales(Workspace& work, Index I, Index S) {
    for (Index i = 0; i < I; i++)
        for (Index k = 0; k < S; k++) work.emission[i * S + k] *= work.state_scale[k];
    for (Index k = 0; k < S; k++) work.state_scale[k] = 1;
}

/// Computes the posteriors of G sentence pairs of a block by the hidden Markov model.
template <int G>
static void expect_hmm(const ExpectationRequest& request, const Jumps& forward_jumps,
                       const Jumps& backward_jumps, Workspaces& work, Block& block, Index begin) {
    Index I = 0, J = 0, heights[G], widths[G];
    bool counts_jumps = false;
    const PairSlot* slots = block.slots.data + begin;
    for (int g = 0; g < G; g++) {
        heights[g] = slots[g].I;
        widths[g] = slots[g].J;
        I = max(I, slots[g].I);
        J = max(J, slots[g].J);
        counts_jumps |= slots[g].jumps >= 0;
    }
    const Index SI = padded(I), SJ = padded(J);
    work.forward.allocate(I, J, G, counts_jumps);
    work.backward.allocate(J, I, G, counts_jumps);
    work.allocate_links(G * I * J);
    LinkList lists[G];
    for (int g = 0; g < G; g++) {
        const Index offset = slots[g].cells - slots[0].cells;
        lists[g] = find_links(request, work, block, slots[g], offset, {G * SJ, G * SI});
        const int32_t* s = block.source_ids.data + slots[g].source;
        const int32_t* t = block.target_ids.data + slots[g].target;
        fill_unseen(work.forward, g, G, I, SJ, t, slots[g].I, s, slots[g].J, request.forward,
                    request.unseen, request.p_null);
        fill_unseen(work.backward, g, G, J, SI, s, slots[g].J, t, slots[g].I, request.backward,
                    request.unseen, request.p_null);
    }
    for (int g = 0; g < G; g++) {
        const LinkList list = lists[g];
        float *f = work.forward.emission.data + g * SJ, *b = work.backward.emission.data + g * SI;
        for (Index k = 0; k < list.count; k++)
            f[list.forward[k]] = b[list.backward[k]] = request.values[list.pairs[k]].base;
    }
    hmm_posterior<G>(work.forward, I, J, widths, forward_jumps, counts_jumps);
    hmm_posterior<G>(work.backward, J, I, heights, backward_jumps, counts_jumps);
    const Index num_jumps = 2 * request.max_jump + 1;
    for (int g = 0; g < G; g++) {
        const PairSlot slot = slots[g];
        const LinkList list = lists[g];
        const float* f = work.forward.posterior.data + g * SJ;
        const float* b = work.backward.posterior.data + g * SI;
        float* links = block.links.data + slot.cells;
        for (Index k = 0; k < list.count; k++)
            links[k] = sqrtf(f[list.forward[k]] * b[list.backward[k]]);
        for (Index i = 0; i < slot.I; i++)
            block.target_null[slot.target + i] = work.forward.null[i * G + g];
        for (Index j = 0; j < slot.J; j++)
            block.source_null[slot.source + j] = work.backward.null[j * G + g];
        if (slot.jumps < 0) continue;
        double* counts = block.jumps.data + slot.jumps;
        add_jump_counts(work.forward, g, G, SJ, slot.I, slot.J, forward_jumps, counts);
        add_jump_counts(work.backward, g, G, SI, slot.J, slot.I, backward_jumps,
                        counts + num_jumps);
    }
}

/// Adds the results of a block that belong to tokens whose id modulo `parts` is `part`.
static void add_counts(const ExpectationRequest& request, const Block& block, int part, int parts) {
    const Index num_jumps = 2 * request.max_jump + 1;
    for (Index n = 0; n < block.num_pairs; n++) {
        const PairSlot slot = block.slots[n];
        Index begin = slot.cells;
        for (Index j = 0; j < slot.J; j++) {
            const int32_t s = block.source_ids[slot.source + j];
            const bool is_last = j + 1 == slot.J;
            const bool is_included = s % parts == part;
            if (is_included) request.source_null[s] += block.source_null[slot.source + j];
            // Consecutive tokens of the part have one loop, because the end of a loop costs much.
            if (is_included && !is_last &&
                (parts == 1 || block.source_ids[slot.source + j + 1] % parts == part))
                continue;
            const Index end = block.link_ends[slot.source + j];
            if (is_included)
                for (Index k = begin; k < end; k++)
                    request.values[block.pairs[k]].count += block.links[k];
            begin = end;
        }
        for (Index i = 0; i < slot.I; i++) {
            const int32_t t = block.target_ids[slot.target + i];
            if (t % parts == part) request.target_null[t] += block.target_null[slot.target + i];
        }
        if (part == 0 && slot.jumps >= 0)
            for (Index k = 0; k < num_jumps; k++) {
                request.forward_jumps[k] += block.jumps[slot.jumps + k];
                request.backward_jumps[k] += block.jumps[slot.jumps + num_jumps + k];
            }
    }
}

/// Longest sentence of the rows.
static Index max_length(const Texts& sources, const Texts& targets, const int64_t* rows, Index n) {
    Index longest = 1;
    for (Index k = 0; k < n; k++)
        longest = max(longest, max(sources.length(rows[k]), targets.length(rows[k])));
    return longest;
}

/// e^digamma(x) for x > 0, accurate to 7 digits: by the asymptotic series of digamma(x + 6), and
/// digamma(x) = digamma(x + 6) - sum over k < 6 of 1 / (x + k).
static float exp_digamma(double x) {
    // With u = x (x + 5), (x + 1) (x + 4) = u + 4 and (x + 2) (x + 3) = u + 6: one division.
    const double u = x * (x + 5);
    const double shift = (2 * x + 5) * ((3 * u + 20) * u + 24) / (u * (u + 4) * (u + 6));
    const double y = x + 6, q = 1 / y, r = q * q;
    const double series =
        q / 2 + r * (1.0 / 12 - r * (1.0 / 120 - r * (1.0 / 252 - r * (1.0 / 240))));
    return float(y * exp(-series - shift));
}

/// Calls body(target, pair) for each pair of a row, in ascending order; the body may remove it.
template <class F>
static void for_each_pair(const PairSet& pairs, Index row, F body) {
    for (Index k = 0; k < pairs.words_per_source; k++) {
        Index pair = pairs.before[row + k];
        for (uint32_t bits = pairs.bits[row + k]; bits; bits &= bits - 1)
            body(k * 32 + __builtin_ctz(bits), pair++);
    }
}

}  // namespace

/// Adds all token pairs of the sentence pairs to a set of pairs; numbers the pairs and returns how
/// many there are. `num_words` is the size of the set.
EXPORT Index aligner_collect_pairs(Index threads, const Texts* sources, const Texts* targets,
                                   const int64_t* rows, Index num_rows, const PairSet* pairs,
                                   Index num_words) {
    Workspaces work[MAX_THREADS];
    auto collect = [&](Index n, Index thread) {
        const Index J = sources->length(rows[n]), I = targets->length(rows[n]);
        int32_t* s = work[thread].source_ids.allocate(J + READ_SIZE);
        int32_t* t = work[thread].target_ids.allocate(I + READ_SIZE);
        sources->read(rows[n], s);
        targets->read(rows[n], t);
        for (Index j = 0; j < J; j++) {
            uint32_t* row = pairs->bits + pairs->row(s[j]);
            for (Index i = 0; i < I; i++) {
                uint32_t* word = row + (t[i] >> 5);
                const uint32_t bit = 1u << (t[i] & 31);
                // Most pairs are there already, and reading is faster than an atomic write.
                if (!(__atomic_load_n(word, __ATOMIC_RELAXED) & bit))
                    __atomic_fetch_or(word, bit, __ATOMIC_RELAXED);
            }
        }
    };
    parallel_region(threads, [&](Team& team) {
        team.parallel_for_with_thread(num_rows, 4 * TYPICAL_CELLS, collect);
    });
    return pairs->count(num_words);
}

/// Adds the expected counts of a round to the counts of the request.
EXPORT void aligner_expect(Index threads, const ExpectationRequest* request) {
    Jumps forward_jumps, backward_jumps;
    Index longest = 1;
    for (Index n = 0; n < request->num_rows; n++)
        longest = max(longest, max(Index(request->widths[n]), Index(request->heights[n])));
    forward_jumps.prepare(request->forward.jumps, request->max_jump, longest);
    backward_jumps.prepare(request->backward.jumps, request->max_jump, longest);
    Block block;
    Workspaces work[MAX_THREADS];
    parallel_region(threads, [&](Team& team) {
        const Index cells_per_thread =
            request->is_hmm ? HMM_BLOCK_CELLS_PER_THREAD : BLOCK_CELLS_PER_THREAD;
        const Index max_cells = cells_per_thread * team.num_threads;
        for (Index next = block.plan(*request, 0, max_cells); block.num_pairs;
             next = block.plan(*request, next, max_cells)) {
            team.parallel_for_with_thread(
                block.num_groups, 20 * TYPICAL_CELLS, [&](Index n, Index thread) {
                    const Group group = block.groups[n];
                    Workspaces& memory = work[thread];
                    if (!request->is_hmm) expect_model1(*request, memory, block, group.begin);
                    else if (group.size == GROUP_SIZE)
                        expect_hmm<GROUP_SIZE>(*request, forward_jumps, backward_jumps, memory,
                                               block, group.begin);
                    else
                        expect_hmm<1>(*request, forward_jumps, backward_jumps, memory, block,
                                      group.begin);
                });
            team.parallel_for(team.num_threads, MANY_CYCLES, [&](Index part) {
                add_counts(*request, block, int(part), int(team.num_threads));
            });
        }
    });
}

/// Sets base = e^digamma(count + prior) and count = 0 for all pairs, and sums count + prior by
/// source and by target token.
EXPORT void aligner_maximise(const PairSet* pairs, Index num_sources, float prior,
                             PairValues* values, double* source_totals, double* target_totals) {
    for (Index s = 0; s < num_sources; s++) {
        double total = 0;
        for_each_pair(*pairs, pairs->row(s), [&](Index t, Index pair) {
            const double count = values[pair].count + double(prior);
            total += count;
            target_totals[t] += count;
            values[pair] = {exp_digamma(count), 0};
        });
        source_totals[s] = total;
    }
}

/// Removes the pairs with less than `min_count`, or with less than `min_fraction` of the counts of
/// both their tokens, and moves the values of the others together; returns the number of the
/// others. Adds the number of removed pairs of each token to `removed_sources` and
/// `removed_targets`.
EXPORT Index aligner_prune(const PairSet* pairs, Index num_sources, Index num_targets,
                           PairValues* values, float min_count, float min_fraction,
                           double* removed_sources, double* removed_targets) {
    Buffer<double> source_totals, target_totals;
    source_totals.zeros(num_sources);
    target_totals.zeros(num_targets);
    for (Index s = 0; s < num_sources; s++)
        for_each_pair(*pairs, pairs->row(s), [&](Index t, Index pair) {
            source_totals[s] += values[pair].count;
            target_totals[t] += values[pair].count;
        });
    Index kept = 0;
    for (Index s = 0; s < num_sources; s++)
        for_each_pair(*pairs, pairs->row(s), [&](Index t, Index pair) {
            const double count = values[pair].count;
            const double total =
                source_totals[s] < target_totals[t] ? source_totals[s] : target_totals[t];
            if (count >= min_count && count >= min_fraction * total) {
                values[kept++] = values[pair];
            } else {
                pairs->bits[pairs->row(s) + (t >> 5)] &= ~(1u << (t & 31));
                removed_sources[s]++;
                removed_targets[t]++;
            }
        });
    return pairs->count(num_sources * pairs->words_per_source);
}

/// Writes the pairs with at least `min_count`, as source * num_targets + target in ascending order,
/// and their counts; returns their number. With null pointers, it only counts them.
EXPORT Index aligner_frequent_pairs(const PairSet* pairs, Index num_sources, Index num_targets,
                                    const PairValues* values, float min_count, int64_t* keys,
                                    float* key_counts) {
    Index found = 0;
    for (Index s = 0; s < num_sources; s++) {
        for_each_pair(*pairs, pairs->row(s), [&](Index t, Index pair) {
            if (values[pair].count < min_count) return;
            if (keys) {
                keys[found] = s * num_targets + t;
                key_counts[found] = values[pair].count;
            }
            found++;
        });
    }
    return found;
}

/// Adds pairs, as source * num_targets + target in ascending order, to an empty set.
EXPORT void aligner_index_pairs(const int64_t* keys, Index num_keys, Index num_targets,
                                const PairSet* pairs, Index num_words) {
    for (Index n = 0; n < num_keys; n++) {
        const Index s = keys[n] / num_targets, t = keys[n] % num_targets;
        pairs->bits[pairs->row(s) + (t >> 5)] |= 1u << (t & 31);
    }
    pairs->count(num_words);
}

/// Computes the link probabilities of sentence pairs in both directions with a learned lexicon.
///
/// p(emitted | state) of each pair is in `forward_seen` and `backward_seen`; the scale of a state
/// is that of unseen tokens. For the sentence pair n, links[starts[n] ..] receives p(a_i = j) of
/// p(t | s) as [I, J], and then of p(s | t), also as [I, J].
EXPORT void aligner_posteriors(Index threads, const Texts* sources, const Texts* targets,
                               const int64_t* rows, Index num_rows, const PairSet* pairs,
                               const float* forward_seen, const float* backward_seen,
                               const Direction* forward, const Direction* backward, Index max_jump,
                               float p_null, const int64_t* starts, float* links) {
    Jumps forward_jumps, backward_jumps;
    const Index longest = max_length(*sources, *targets, rows, num_rows);
    forward_jumps.prepare(forward->jumps, max_jump, longest);
    backward_jumps.prepare(backward->jumps, max_jump, longest);
    Workspaces thread_work[MAX_THREADS];
    auto compute = [&](Index n, Index thread) {
        Workspaces& work = thread_work[thread];
        const Index J = sources->length(rows[n]), I = targets->length(rows[n]);
        const Index SI = padded(I), SJ = padded(J);
        int32_t* s = work.source_ids.allocate(J + READ_SIZE);
        int32_t* t = work.target_ids.allocate(I + READ_SIZE);
        sources->read(rows[n], s);
        targets->read(rows[n], t);
        work.forward.allocate(I, J, 1, false);
        work.backward.allocate(J, I, 1, false);
        fill_unseen(work.forward, 0, 1, I, SJ, t, I, s, J, *forward, 1, p_null);
        fill_unseen(work.backward, 0, 1, J, SI, s, J, t, I, *backward, 1, p_null);
        // The values are not divided by the scales, which may be 0.
        apply_scales(work.forward, I, SJ);
        apply_scales(work.backward, J, SI);
        for (Index j = 0; j < J; j++)
            for (Index i = 0; i < I; i++)
                if (contains(pairs->bits + pairs->row(s[j]), t[i])) {
                    const uint32_t pair = rank(*pairs, pairs->row(s[j]), t[i]);
                    work.forward.emission[i * SJ + j] = (1 - p_null) * forward_seen[pair];
                    work.backward.emission[j * SI + i] = (1 - p_null) * backward_seen[pair];
                }
        hmm_posterior<1>(work.forward, I, J, &J, forward_jumps, false);
        hmm_posterior<1>(work.backward, J, I, &I, backward_jumps, false);
        float *f = links + starts[n], *b = f + I * J;
        for (Index i = 0; i < I; i++)
            for (Index j = 0; j < J; j++) {
                f[i * J + j] = work.forward.posterior[i * SJ + j];
                b[i * J + j] = work.backward.posterior[j * SI + i];
            }
    };
    parallel_region(threads, [&](Team& team) {
        team.parallel_for_with_thread(num_rows, 20 * TYPICAL_CELLS, compute);
    });
}
