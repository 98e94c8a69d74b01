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
constexpr Index BLOCK_CELLS_PER_THREAD = 1 << 14;  // the counts of a block then fit into the L2 cache
constexpr Index TYPICAL_CELLS = 500;  // position pairs of a sentence pair
constexpr float EPSILON = 1e-30f;

/// Sentences of one language as ids of chunks (stretches between spaces), and the tokens of each
/// chunk.
struct Texts {
    const int32_t* chunks;
    const int64_t* starts;  // of each sentence in `chunks`, and the end
    const int32_t* tokens;
    const int64_t* token_starts;  // of each chunk in `tokens`, and the end

    Index length(Index n) const {
        Index total = 0;
        for (Index k = starts[n]; k < starts[n + 1]; k++)
            total += token_starts[chunks[k] + 1] - token_starts[chunks[k]];
        return total;
    }
    /// Writes the tokens of sentence n.
    void read(Index n, int32_t* ids) const {
        for (Index k = starts[n]; k < starts[n + 1]; k++)
            for (Index m = token_starts[chunks[k]]; m < token_starts[chunks[k] + 1]; m++)
                *ids++ = tokens[m];
    }
};

/// Set of token pairs: a bit per pair, in words of 32 bits, and in the upper half of each word the
/// number of pairs before it. The index of a pair is its rank.
struct PairSet {
    uint64_t* words;
    Index words_per_source;

    uint64_t* row(Index source) const { return words + source * words_per_source; }
};

static inline bool contains(const uint64_t* row, int32_t target) {
    return row[target >> 5] >> (target & 31) & 1;
}
/// Index of a pair if the set contains it.
static inline uint32_t rank(const uint64_t* row, int32_t target) {
    const uint64_t word = row[target >> 5];
    const uint32_t before = uint32_t(word) & ((1u << (target & 31)) - 1);
    return uint32_t(word >> 32) + __builtin_popcount(before);
}

/// Values of a token pair in learning, next to each other because both are used together.
struct PairValues {
    float base;   // p(emitted | state) times a scale of the state
    float count;  // expected number of links
};

/// Parameters of one direction: the scale of each state, p(emitted | null), and the weights c of the
/// jumps -max_jump .. max_jump.
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
    // LANES copies of c(m - limit - r), r = 0 .. LANES, and of c(limit - m + r), so that each vector
    // that is loaded is aligned.
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
    /// y[k] = sum over n < N of x[n] c(k - n) for k in 0 .. padded(N); x is padded with zeros.
    void sum_ascending(const float* x, Index N, float* y) const { sum(ascending.data, x, N, y); }
    /// y[k] = sum over n < N of x[n] c(n - k).
    void sum_descending(const float* x, Index N, float* y) const { sum(descending.data, x, N, y); }

  private:
    /// V vectors of a sum. CHAINS independent sums hide the latency of additions.
    template <int V, int CHAINS>
    void columns(const float* table, const float* x, Index N, float* y) const {
        Vec sums[CHAINS][V] = {};
        for (Index n = 0; n < N; n += CHAINS)
            for (int chain = 0; chain < CHAINS; chain++) {
                const Index r = n % LANES + chain;
                const float* row = table + r * stride + limit - (n - n % LANES);
                const Vec factor = broadcast(x[n + chain]);
                for (int v = 0; v < V; v++) sums[chain][v] += factor * load(row + v * LANES);
            }
        for (int v = 0; v < V; v++) {
            Vec total = sums[0][v];
            for (int chain = 1; chain < CHAINS; chain++) total += sums[chain][v];
            store(y + v * LANES, total);
        }
    }
    void sum(const float* table, const float* x, Index N, float* y) const {
        const Index size = padded(N);
        Index k = 0;
        for (; k + 4 * LANES <= size; k += 4 * LANES) columns<4, 2>(table + k, x, N, y + k);
        switch ((size - k) / LANES) {
            case 1: columns<1, 4>(table + k, x, N, y + k); break;
            case 2: columns<2, 4>(table + k, x, N, y + k); break;
            case 3: columns<3, 4>(table + k, x, N, y + k); break;
        }
    }
};

/// Memory of one thread for the posteriors of a sentence pair in one direction.
struct Workspace {
    Buffer<float> emission, posterior, null, stayed, starts, futures;  // matrices and [emitted]
    Buffer<float> normaliser, state, predicted, future;                // [states]

    void allocate(Index emitted, Index states) {
        const Index size = emitted * padded(states);
        emission.allocate(size);
        posterior.allocate(size);
        stayed.allocate(size);
        starts.allocate(size);
        futures.allocate(size);
        null.allocate(emitted);
        normaliser.allocate(padded(states));
        state.allocate(padded(states));
        predicted.allocate(padded(states));
        future.allocate(padded(states));
    }
};

/// Adds the expected counts of the jumps between positions: the sum over i of starts[i, j'] c(j - j')
/// futures[i + 1, j], by j - j'.
static void add_jump_counts(const Workspace& work, Index I, Index J, const Jumps& jumps,
                            double* counts) {
    const Index S = padded(J);
    constexpr int ROWS = 4;
    for (Index j0 = 0; j0 < J; j0 += ROWS)
        for (Index k = 0; k < S; k += LANES) {
            Vec sums[ROWS] = {};
            for (Index i = 0; i + 1 < I; i++) {
                const Vec future = load(work.futures.data + (i + 1) * S + k);
                for (int r = 0; r < ROWS; r++)
                    sums[r] += broadcast(work.starts[i * S + j0 + r]) * future;
            }
            for (int r = 0; r < ROWS && j0 + r < J; r++) {
                float values[LANES];
                store(values, sums[r] * load(jumps.from(k - j0 - r)));
                for (Index l = 0; l < min(J - k, LANES); l++)
                    counts[jumps.index(k + l - j0 - r)] += values[l];
            }
        }
}

/// Computes the posterior of one direction by the forward-backward algorithm (`hmm_posterior` in
/// `align/hmm.py`).
///
/// `work` contains the emissions [I, J], which are overwritten, and p(t_i | null), which is replaced
/// by the posterior of the null word. The posterior of the links is written to `work.posterior`. The
/// jump counts are added to if there are any.
static void hmm_posterior(Workspace& work, Index I, Index J, const Jumps& jumps, float p_null,
                          double* jump_counts) {
    const Index S = padded(J);
    float *normaliser = work.normaliser.data, *state = work.state.data;
    float *predicted = work.predicted.data, *future = work.future.data;
    const float first = 1 / jumps.total(-1, J);
    for (Index j = 0; j < S; j++) {
        normaliser[j] = j < J ? 1 / jumps.total(j, J) : 0;
        state[j] = predicted[j] = j < J ? jumps.from(1)[j] * first : 0;
        future[j] = 1;
    }
    for (Index i = 0; i < I; i++) {
        float* emission = work.emission.data + i * S;
        float* moved = work.posterior.data + i * S;
        float* stayed = work.stayed.data + i * S;
        float* start = work.starts.data + i * S;
        const float null = p_null * work.null[i];
        Vec mass = {};
        for (Index k = 0; k < S; k += LANES) {
            const Vec e = load(emission + k) * (1 - p_null);
            const Vec m = load(predicted + k) * e, s = load(state + k) * null;
            store(emission + k, e);
            store(moved + k, m);
            store(stayed + k, s);
            mass += m + s;
        }
        const float scale = 1 / (pairwise_sum(mass) + EPSILON);
        work.null[i] = null * scale;
        for (Index k = 0; k < S; k += LANES) {
            const Vec m = load(moved + k) * scale, s = load(stayed + k) * scale;
            store(emission + k, load(emission + k) * scale);
            store(moved + k, m);
            store(stayed + k, s);
            store(state + k, m + s);
            store(start + k, (m + s) * load(normaliser + k));
        }
        jumps.sum_ascending(start, J, predicted);
    }
    for (Index i = I - 1; i >= 0; i--) {
        float* moved = work.posterior.data + i * S;
        float* expected = work.futures.data + i * S;
        const float null = work.null[i];
        Vec stayed = {};
        for (Index k = 0; k < S; k += LANES) {
            const Vec f = load(future + k);
            store(moved + k, load(moved + k) * f);
            stayed += load(work.stayed.data + i * S + k) * f;
            store(expected + k, load(work.emission.data + i * S + k) * f);
        }
        work.null[i] = pairwise_sum(stayed);
        jumps.sum_descending(expected, J, predicted);
        for (Index k = 0; k < S; k += LANES)
            store(future + k, load(predicted + k) * load(normaliser + k) + load(future + k) * null);
    }
    if (!jump_counts) return;
    for (Index j = 0; j < J; j++)
        jump_counts[jumps.index(j + 1)] += work.posterior[j];
    add_jump_counts(work, I, J, jumps, jump_counts);
}

/// A sentence pair, and where its results are in the buffers of a block; no jumps if it is -1.
struct PairSlot {
    Index row, J, I, source, target, cells, jumps;
};

/// Input and output of the expectation step, as in `align/native.py`.
struct ExpectationRequest {
    Texts sources, targets;
    const int64_t* rows;  // numbers of the sentence pairs
    Index num_rows;
    PairSet pairs;
    PairValues* values;  // of each pair
    Direction forward, backward;
    Index max_jump;
    float p_null;
    Index is_hmm;
    Index jump_step;  // jumps are counted in rows at these distances
    double* target_null;     // [target vocabulary]
    double* source_null;     // [source vocabulary]
    double* forward_jumps;   // [2 max_jump + 1]
    double* backward_jumps;  // [2 max_jump + 1]
};

/// Results of the sentence pairs of a block.
struct Block {
    Index num_pairs = 0;
    Buffer<PairSlot> slots;
    Buffer<int32_t> source_ids, target_ids;
    Buffer<float> source_null, target_null;
    Buffer<uint32_t> pairs;  // index of each token pair, [J, I] per sentence pair
    Buffer<float> links;     // geometric mean of both posteriors, [J, I] per sentence pair
    Buffer<double> jumps;    // [selected pairs, 2, 2 max_jump + 1]

    /// Plans the block that starts with row `begin`; returns the row after it.
    Index plan(const ExpectationRequest& request, Index begin, Index max_cells) {
        slots.allocate(MAX_BLOCK_PAIRS);
        Index n = begin, source = 0, target = 0, cells = 0, num_jumps = 0;
        for (num_pairs = 0; n < request.num_rows && num_pairs < MAX_BLOCK_PAIRS; n++) {
            const Index row = request.rows[n];
            const Index J = request.sources.length(row), I = request.targets.length(row);
            if (num_pairs && cells + I * J > max_cells) break;
            const bool counts_jumps = request.is_hmm && n % request.jump_step == 0;
            slots[num_pairs++] = {row, J, I, source, target, cells, counts_jumps ? num_jumps : -1};
            if (counts_jumps) num_jumps += 2 * (2 * request.max_jump + 1);
            source += J;
            target += I;
            cells += I * J;
        }
        source_ids.allocate(source);
        source_null.allocate(source);
        target_ids.allocate(target);
        target_null.allocate(target);
        pairs.allocate(cells);
        links.allocate(cells);
        jumps.zeros(num_jumps);
        return n;
    }
};

/// Memory of one thread for a sentence pair.
struct Workspaces {
    Buffer<int32_t> source_ids, target_ids;
    Workspace forward, backward;
    Buffer<float> target_factors, source_factors;
};

/// Fills in the emissions of both directions, [I, J] and [J, I], and the null probabilities.
///
/// @param base_pair base values of both directions at cell (j, i).
template <class F>
static void fill_emissions(Workspaces& work, Index I, Index J, const int32_t* s, const int32_t* t,
                           const Direction& forward, const Direction& backward, F base_pair) {
    const Index SI = padded(I), SJ = padded(J);
    work.forward.allocate(I, J);
    work.backward.allocate(J, I);
    float *f = work.forward.emission.data, *b = work.backward.emission.data;
    for (Index i = 0; i < I; i++) {
        for (Index j = J; j < SJ; j++) f[i * SJ + j] = 0;
        work.forward.null[i] = forward.null[t[i]];
    }
    for (Index j = 0; j < J; j++) {
        for (Index i = 0; i < I; i++) base_pair(j, i, f[i * SJ + j], b[j * SI + i]);
        for (Index i = I; i < SI; i++) b[j * SI + i] = 0;
        work.backward.null[j] = backward.null[s[j]];
    }
}

/// Geometric mean of both posteriors of IBM model 1: with emissions g a_j and g b_i, the posteriors
/// are g a_j / Z_i and g b_i / W_j.
static void model1_links(Workspaces& work, Index I, Index J, const int32_t* s, const int32_t* t,
                         const float* a, const float* b, float* links) {
    const Index SI = padded(I);
    float* g = work.backward.emission.data;  // [J, I]
    float* totals = work.target_factors.allocate(SI);
    float* scales = work.source_factors.allocate(SI);  // b_i
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

/// Computes the posteriors of one sentence pair of a block.
static void expect(const ExpectationRequest& request, const Jumps& forward_jumps,
                   const Jumps& backward_jumps, Workspaces& work, Block& block, Index n) {
    const PairSlot slot = block.slots[n];
    const Index I = slot.I, J = slot.J, SI = padded(I), SJ = padded(J);
    int32_t* s = block.source_ids.data + slot.source;
    int32_t* t = block.target_ids.data + slot.target;
    request.sources.read(slot.row, s);
    request.targets.read(slot.row, t);
    uint32_t* pairs = block.pairs.data + slot.cells;
    float* links = block.links.data + slot.cells;
    const PairValues* values = request.values;
    for (Index j = 0; j < J; j++) {
        const uint64_t* row = request.pairs.row(s[j]);
        for (Index i = 0; i < I; i++) {
            pairs[j * I + i] = rank(row, t[i]);
            __builtin_prefetch(values + pairs[j * I + i], 1);
        }
    }
    if (request.is_hmm) {
        fill_emissions(work, I, J, s, t, request.forward, request.backward,
                       [&](Index j, Index i, float& f, float& b) {
                           b = values[pairs[j * I + i]].base;
                           f = b * request.forward.scale[s[j]];
                       });
        float* scales = work.target_factors.allocate(SI);
        for (Index i = 0; i < SI; i++) scales[i] = i < I ? request.backward.scale[t[i]] : 0;
        for (Index j = 0; j < J; j++) {
            float* emission = work.backward.emission.data + j * SI;
            for (Index i = 0; i < SI; i++) emission[i] *= scales[i];
        }
        const Index num_jumps = 2 * request.max_jump + 1;
        double *f_jumps = nullptr, *b_jumps = nullptr;
        if (slot.jumps >= 0) {
            f_jumps = block.jumps.data + slot.jumps;
            b_jumps = f_jumps + num_jumps;
        }
        hmm_posterior(work.forward, I, J, forward_jumps, request.p_null, f_jumps);
        hmm_posterior(work.backward, J, I, backward_jumps, request.p_null, b_jumps);
        const float *f = work.forward.posterior.data, *b = work.backward.posterior.data;
        for (Index j = 0; j < J; j++) {
            for (Index i = 0; i < I; i++) links[j * I + i] = f[i * SJ + j];
            for (Index i = 0; i < I; i++)
                links[j * I + i] = sqrtf(links[j * I + i] * b[j * SI + i]);
        }
    } else {
        fill_emissions(work, I, J, s, t, request.forward, request.backward,
                       [&](Index j, Index i, float& f, float& b) {
                           b = values[pairs[j * I + i]].base;
                       });
        model1_links(work, I, J, s, t, request.forward.scale, request.backward.scale, links);
    }
    memcpy(block.target_null.data + slot.target, work.forward.null.data, I * sizeof(float));
    memcpy(block.source_null.data + slot.source, work.backward.null.data, J * sizeof(float));
}

/// Adds the results of a block that belong to tokens whose id modulo `parts` is `part`.
static void add_counts(const ExpectationRequest& request, const Block& block, int part, int parts) {
    const Index num_jumps = 2 * request.max_jump + 1;
    for (Index n = 0; n < block.num_pairs; n++) {
        const PairSlot slot = block.slots[n];
        for (Index j = 0; j < slot.J; j++) {
            const int32_t s = block.source_ids[slot.source + j];
            if (s % parts != part) continue;
            request.source_null[s] += block.source_null[slot.source + j];
            const uint32_t* pairs = block.pairs.data + slot.cells + j * slot.I;
            const float* links = block.links.data + slot.cells + j * slot.I;
            for (Index i = 0; i < slot.I; i++) request.values[pairs[i]].count += links[i];
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

/// e^digamma(x) for x > 0, accurate to 7 digits: by recurrence up to 6, then by the asymptotic
/// series.
static float exp_digamma(double x) {
    double shift = 0;
    for (; x < 6; x++) shift += 1 / x;
    const double r = 1 / (x * x);
    const double series =
        1 / (2 * x) + r * (1.0 / 12 - r * (1.0 / 120 - r * (1.0 / 252 - r * (1.0 / 240))));
    return float(x * exp(-series - shift));
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
        int32_t* s = work[thread].source_ids.allocate(J);
        int32_t* t = work[thread].target_ids.allocate(I);
        sources->read(rows[n], s);
        targets->read(rows[n], t);
        for (Index j = 0; j < J; j++) {
            uint64_t* row = pairs->row(s[j]);
            for (Index i = 0; i < I; i++) {
                uint64_t* word = row + (t[i] >> 5);
                const uint64_t bit = uint64_t(1) << (t[i] & 31);
                // Most pairs are there already, and reading is faster than an atomic write.
                if (!(__atomic_load_n(word, __ATOMIC_RELAXED) & bit))
                    __atomic_fetch_or(word, bit, __ATOMIC_RELAXED);
            }
        }
    };
    parallel_region(threads, [&](Team& team) {
        team.parallel_for_with_thread(num_rows, 4 * TYPICAL_CELLS, collect);
    });
    Index count = 0;
    for (Index k = 0; k < num_words; k++) {
        const uint32_t bits = uint32_t(pairs->words[k]);
        pairs->words[k] = uint64_t(count) << 32 | bits;
        count += __builtin_popcount(bits);
    }
    return count;
}

/// Adds the expected counts of a round to the counts of the request.
EXPORT void aligner_expect(Index threads, const ExpectationRequest* request) {
    Jumps forward_jumps, backward_jumps;
    const Index longest =
        max_length(request->sources, request->targets, request->rows, request->num_rows);
    forward_jumps.prepare(request->forward.jumps, request->max_jump, longest);
    backward_jumps.prepare(request->backward.jumps, request->max_jump, longest);
    Block block;
    Workspaces work[MAX_THREADS];
    parallel_region(threads, [&](Team& team) {
        const Index max_cells = BLOCK_CELLS_PER_THREAD * team.num_threads;
        for (Index next = block.plan(*request, 0, max_cells); block.num_pairs;
             next = block.plan(*request, next, max_cells)) {
            team.parallel_for_with_thread(
                block.num_pairs, 20 * TYPICAL_CELLS, [&](Index n, Index thread) {
                    expect(*request, forward_jumps, backward_jumps, work[thread], block, n);
                });
            team.parallel_for(team.num_threads, MANY_CYCLES, [&](Index part) {
                add_counts(*request, block, int(part), int(team.num_threads));
            });
        }
    });
}

/// Sets base = e^digamma(count + prior) and count = 0 for all pairs, and sums count + prior by source
/// and by target token.
EXPORT void aligner_maximise(const PairSet* pairs, Index num_sources, float prior,
                             PairValues* values, double* source_totals, double* target_totals) {
    for (Index s = 0; s < num_sources; s++) {
        double total = 0;
        for (Index k = 0; k < pairs->words_per_source; k++) {
            const uint64_t word = pairs->row(s)[k];
            PairValues* value = values + (word >> 32);
            for (uint32_t bits = uint32_t(word); bits; bits &= bits - 1, value++) {
                const double count = value->count + double(prior);
                total += count;
                target_totals[k * 32 + __builtin_ctz(bits)] += count;
                *value = {exp_digamma(count), 0};
            }
        }
        source_totals[s] = total;
    }
}

/// Writes the pairs with at least `min_count`, as source * num_targets + target in ascending order,
/// and their counts; returns their number. With null pointers, it only counts them.
EXPORT Index aligner_frequent_pairs(const PairSet* pairs, Index num_sources, Index num_targets,
                                    const PairValues* values, float min_count,
                                    int64_t* keys, float* key_counts) {
    Index found = 0;
    for (Index s = 0; s < num_sources; s++)
        for (Index k = 0; k < pairs->words_per_source; k++) {
            const uint64_t word = pairs->row(s)[k];
            const PairValues* value = values + (word >> 32);
            for (uint32_t bits = uint32_t(word); bits; bits &= bits - 1, value++) {
                if (value->count < min_count) continue;
                if (keys) {
                    keys[found] = s * num_targets + k * 32 + __builtin_ctz(bits);
                    key_counts[found] = value->count;
                }
                found++;
            }
        }
    return found;
}

/// Adds pairs, as source * num_targets + target in ascending order, to an empty set.
EXPORT void aligner_index_pairs(const int64_t* keys, Index num_keys, Index num_targets,
                                const PairSet* pairs, Index num_words) {
    for (Index n = 0; n < num_keys; n++) {
        const Index s = keys[n] / num_targets, t = keys[n] % num_targets;
        pairs->row(s)[t >> 5] |= uint64_t(1) << (t & 31);
    }
    uint64_t count = 0;
    for (Index k = 0; k < num_words; k++) {
        const uint32_t bits = uint32_t(pairs->words[k]);
        pairs->words[k] = count << 32 | bits;
        count += __builtin_popcount(bits);
    }
}

/// Computes the link probabilities of sentence pairs in both directions with a learned lexicon.
///
/// p(emitted | state) of each pair is in `forward_seen` and `backward_seen`; the scale of a state is
/// that of unseen tokens. For the sentence pair n, links[starts[n] ..] receives p(a_i = j) of p(t | s) as [I, J], and then
/// of p(s | t), also as [I, J].
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
        int32_t* s = work.source_ids.allocate(J);
        int32_t* t = work.target_ids.allocate(I);
        sources->read(rows[n], s);
        targets->read(rows[n], t);
        fill_emissions(work, I, J, s, t, *forward, *backward,
                       [&](Index j, Index i, float& f, float& b) {
                           const uint64_t* row = pairs->row(s[j]);
                           if (contains(row, t[i])) {
                               const uint32_t pair = rank(row, t[i]);
                               f = forward_seen[pair];
                               b = backward_seen[pair];
                           } else {
                               f = forward->scale[s[j]];
                               b = backward->scale[t[i]];
                           }
                       });
        hmm_posterior(work.forward, I, J, forward_jumps, p_null, nullptr);
        hmm_posterior(work.backward, J, I, backward_jumps, p_null, nullptr);
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
