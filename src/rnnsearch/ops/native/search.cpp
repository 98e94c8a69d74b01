// Search with any decoder whose step is a list of operations (recurrence.h): one position of many
// hypotheses, greedy search and beam search; and the sequence of an encoder's cell, which is such a
// list, too. A decoder may attend to several sources, each with its own attention.
//
// In beam search, operations that do not depend on the word run once for all hypotheses with equal
// states.
//
// Weights are packed once, in the type of the products; everything else is in fp32. In shapes: B
// sentences, N hypotheses, J positions of a source, J_all positions of all sources, S = state_size
// plus the feature states of all source positions, C columns of the output layer.
#include "beam_search.h"
#include "decoder.h"
#include "ops.h"
#include "shared_states.h"

namespace {

/// Offsets of the attention to one source in the buffers of a step.
struct AttentionOffsets {
    Index alphas;  // in a row of weights [J_all]
    Index states;  // of its feature states in a state [S]
    // Of the arrays in `Workspace` that have this source's size.
    Index positions, counts, head_alphas, feature_inputs;
};

/// Rows of a position, and inputs of products in their type.
struct StepRows {
    const Decoder& d;
    Buffer<float> sums, values, previous, reads, prepared;
    Buffer<Index> prepared_offsets;  // of each operation

    StepRows(const Decoder& d, Index N)
        : d(d), sums(N * d.sums_size), values(N * d.values_size), previous(N * d.values_size),
          reads(N * d.reads_size), prepared_offsets(d.num_ops) {
        Index size = 0;
        for (Index p = 0; p < d.num_ops; p++) {
            prepared_offsets[p] = size;
            if (d.ops[p].type == PRODUCT)
                size += N * ((const PackedMatrix*)d.ops[p].weight)->row_words();
        }
        prepared.allocate(size);
    }
    StepRow<float> operator[](Index n) {
        StepRow<float> r = {};
        r.sums = &sums[n * d.sums_size];
        r.values = &values[n * d.values_size];
        r.previous = &previous[n * d.values_size];
        r.reads = &reads[n * d.reads_size];
        r.active = true;
        return r;
    }
    /// Copies states, which are adjacent, to the values of the previous position.
    void set_previous(Index n, const float* states) {
        for (Index k = 0; k < d.num_states; k++) {
            memcpy(&previous[n * d.values_size + d.states[2 * k]], states,
                   d.states[2 * k + 1] * sizeof(float));
            states += d.states[2 * k + 1];
        }
    }
};

/// Buffers of a step for N rows of B sentences.
struct Workspace {
    const Decoder& d;
    const OperationOrder order;
    Index alphas_size = 0;          // J_all
    Index feature_states_size = 0;  // of a row, for all source positions
    Index state_size;               // S
    Buffer<AttentionOffsets> at;
    StepRows rows, shared_rows;  // of hypotheses, and of distinct states
    SharedStates shared;
    Buffer<float> alphas, readout, feature_inputs, word, x;
    Buffer<Index> positions, counts;

    // output: null for the cell of an encoder. shares: true if hypotheses may have equal states.
    Workspace(const Decoder& d, const SourceBatch* sources, const PackedMatrix* output, Index B,
              Index N, bool shares)
        : d(d), order(d, output ? output->inputs : 0), at(d.num_attentions), rows(d, N),
          shared_rows(d, shares ? N : 0), readout(output ? N * output->row_words() : 0) {
        if (d.word_projection) {
            word.allocate(N * d.word_projection->row_words());
            x.allocate(N * d.x_size);
        }
        allocate_attentions(sources, B, N);
        state_size = d.state_size + feature_states_size;
    }

    void allocate_attentions(const SourceBatch* sources, Index B, Index N) {
        AttentionOffsets end = {};
        for (Index a = 0; a < d.num_attentions; a++) {
            const Index J = sources[a].length;
            at[a] = end;
            end.alphas += J;
            end.states += J * d.attentions[a].features.state_size;
            end.positions += B * J;
            end.counts += B;
            end.head_alphas += N * d.attentions[a].heads * J;
            end.feature_inputs += N * J * d.attentions[a].features.width;
        }
        alphas_size = end.alphas;
        feature_states_size = end.states;
        alphas.allocate(end.head_alphas);
        feature_inputs.allocate(end.feature_inputs);
        positions.allocate(end.positions);
        counts.allocate(end.counts);
        for (Index a = 0; a < d.num_attentions; a++)
            for (Index b = 0; b < B; b++) {
                const Index J = sources[a].length;
                counts[at[a].counts + b] = unmasked_positions(sources[a].mask + b * J, J,
                                                              &positions[at[a].positions + b * J]);
            }
    }
};

/// Attends to the source of an operation at target position t, for row n of sentence b.
///
/// feature_states, next_feature_states: of all attentions, before and after this position. alpha:
/// [J_all], mean over the heads; only the weights of this source are written.
void attend_to_source(const Op& op, const StepRow<float>& r, const SourceBatch& source, Index n,
                      Index b, Index t, const float* feature_states, float* next_feature_states,
                      float* alpha, Workspace& w) {
    const Attention& attention = w.d.attentions[op.source];
    const AttentionOffsets& at = w.at[op.source];
    const Index J = source.length;
    const SourceView all = {
        &w.positions[at.positions + b * J], w.counts[at.counts + b], J, attention.key_size,
        attention.annotation_size,          attention.heads,         0, 0};
    SourceView window = all;
    if (attention.window_radius >= 0) {
        const Index known = min(t, source.num_centres - 1);
        const float centre = op.offset[3] >= 0
                                 ? r.values[op.offset[3]]
                                 : source.window_centres[b * source.num_centres + known];
        window = window.window(attention.window_radius, centre, attention.window_sigma);
    }
    float* head_alphas = &w.alphas[at.head_alphas + n * attention.heads * J];  // [heads, J]
    float* inputs = &w.feature_inputs[at.feature_inputs + n * J * attention.features.width];
    const FeatureInputs features = {inputs, (const float*)op.weight,
                                    op.type == ADDITIVE ? attention.features.width : 0};
    const float* states = feature_states + at.states;
    float* next_states = next_feature_states + at.states;
    if (features.width) read_features(attention.features, all, states, inputs);
    attend(op, r, window, source.keys + b * J * attention.key_size,
           source.annotations + b * J * attention.annotation_size, attention.score_vector,
           attention.score_scale, features, head_alphas);
    if (features.width) {
        save_queries(attention.features, r.sums, r.values);
        memcpy(next_states, states, J * attention.features.state_size * sizeof(float));
        update_features(attention.features, all, features.weight,
                        source.prepared + b * J * attention.features.prepared_size, r.values,
                        head_alphas, states, next_states);
    }
    for (Index j = 0; j < J; j++) {
        float total = 0;
        for (Index head = 0; head < attention.heads; head++) total += head_alphas[head * J + j];
        alpha[at.alphas + j] = total / attention.heads;
    }
}

/// The arguments of one position of N hypotheses.
struct Position {
    const SourceBatch* sources;   // one per attention of the step
    const int64_t *sentence, *y;  // [N], row of the batch and previous token
    const float* x;               // projected inputs, x_stride apart; null: rows of the word table
    Index x_stride, N, per_sentence;
    const float* state;   // [N, S]
    float *next, *alpha;  // [N, S]; [N, J_all], mean over the heads
};

/// Runs an operation, which is not a product, in row r of hypothesis n.
void run_in_row(const Op& op, const StepRow<float>& r, const Position& position, Index n,
                Workspace& w) {
    const Index b = position.sentence[n];
    if (op.type == INPUT)
        return add_input(op, r,
                         position.x ? position.x + n * position.x_stride
                                    : w.d.word_table + position.y[n] * w.d.x_size);
    const float* state = position.state + n * w.state_size;
    const Index t = Index(state[w.state_size - 1]);
    if (op.type == LOG_POSITION) return add_log_position(op, r, t);
    if (op.type == ADDITIVE || op.type == DOT)
        return attend_to_source(op, r, position.sources[op.source], n, b, t, state,
                                position.next + n * w.state_size,
                                position.alpha + n * w.alphas_size, w);
    const bool reads_count = op.type == CENTRE && w.d.num_attentions;
    const Index count = reads_count ? w.counts[w.at[op.source].counts + b] : 0;
    run_op(op, r, (const float*)nullptr, count);
}

/// Runs the operations begin .. end of the order in `count` rows, by all threads of the team.
///
/// hypothesis(i): that of row i. begin_row(i): called before the first operation of a row.
template <class Hypothesis, class Begin>
void parallel_ops(Team& team, Index begin, Index end, StepRows& rows, Index count,
                  const Position& position, Hypothesis hypothesis, Begin begin_row, Workspace& w) {
    const Decoder& d = w.d;
    auto op = [&](Index k) -> const Op& { return d.ops[w.order.ops[k]]; };
    Index row_cycles = 2 * d.values_size;
    for (Index a = 0; a < d.num_attentions; a++)
        row_cycles += position.sources[a].length *
                      (2 * d.attentions[a].key_size + d.attentions[a].annotation_size / 4);
    for (Index p = begin; p < end;) {
        // Operations p .. products run row by row; products .. after are products of all rows,
        // whose inputs are prepared in the same pass over the rows.
        Index products = p;
        while (products < end && op(products).type != PRODUCT) products++;
        Index after = products;
        while (after < end && op(after).type == PRODUCT) after++;
        team.parallel_for(count, row_cycles, [&](Index i) {
            if (p == begin) begin_row(i);
            const StepRow<float> r = rows[i];
            for (Index k = p; k < products; k++) run_in_row(op(k), r, position, hypothesis(i), w);
            for (Index k = products; k < after; k++) {
                const PackedMatrix& W = *(const PackedMatrix*)op(k).weight;
                prepare_row(
                    W, r.reads + op(k).offset[1],
                    &rows.prepared[rows.prepared_offsets[w.order.ops[k]] + i * W.row_words()]);
            }
        });
        for (Index k = products; k < after; k++) {
            const PackedMatrix& W = *(const PackedMatrix*)op(k).weight;
            float* to = rows.sums.data + op(k).offset[0];
            parallel_product(team, W, &rows.prepared[rows.prepared_offsets[w.order.ops[k]]], count,
                             {to, d.sums_size}, to, d.sums_size);
        }
        p = after;
    }
}

/// Runs the operations that do not depend on the word once per distinct state.
void parallel_shared_ops(Team& team, const Position& position, Workspace& w) {
    const Decoder& d = w.d;
    auto first = [&](Index u) { return w.shared.first[u]; };
    auto begin_row = [&](Index u) {
        memcpy(w.shared_rows[u].sums, d.bias, d.sums_size * sizeof(float));
        w.shared_rows.set_previous(
            u, position.state + first(u) * w.state_size + w.feature_states_size);
    };
    parallel_ops(team, 0, w.order.num_shared, w.shared_rows, w.shared.count, position, first,
                 begin_row, w);
}

/// Copies the results of `parallel_shared_ops` that other operations need to hypothesis n.
void copy_shared_results(const Position& position, Index n, Workspace& w) {
    const Index u = w.shared.group[n], first = w.shared.first[u];
    const StepRow<float> from = w.shared_rows[u], to = w.rows[n];
    memcpy(to.sums, from.sums, w.d.sums_size * sizeof(float));
    for (Index k = 0; k < w.order.num_copied; k++) {
        const OperationOrder::Range& range = w.order.copied[k];
        const bool is_value = range.row == Row::VALUES;
        memcpy((is_value ? to.values : to.reads) + range.begin,
               (is_value ? from.values : from.reads) + range.begin, range.size * sizeof(float));
    }
    for (Index a = 0; a < w.d.num_attentions && n != first; a++) {
        if (!w.order.attentions[a]) continue;
        const Index J = position.sources[a].length;
        memcpy(position.alpha + n * w.alphas_size + w.at[a].alphas,
               position.alpha + first * w.alphas_size + w.at[a].alphas, J * sizeof(float));
        memcpy(position.next + n * w.state_size + w.at[a].states,
               position.next + first * w.state_size + w.at[a].states,
               J * w.d.attentions[a].features.state_size * sizeof(float));
    }
}

/// Computes the next states of N hypotheses at one position, by all threads of the team.
void parallel_advance(Team& team, const Position& position, Workspace& w) {
    const Decoder& d = w.d;
    const Index N = position.N;
    bool shares = false;
    if (position.per_sentence > 1 && w.order.num_shared) {
        w.shared.find(position.state, w.state_size, N, position.per_sentence);
        shares = w.shared.count < N;
    }
    if (shares) parallel_shared_ops(team, position, w);
    auto begin_row = [&](Index n) {
        w.rows.set_previous(n, position.state + n * w.state_size + w.feature_states_size);
        if (shares) return copy_shared_results(position, n, w);
        memcpy(w.rows[n].sums, d.bias, d.sums_size * sizeof(float));
    };
    parallel_ops(
        team, shares ? w.order.num_shared : 0, d.num_ops, w.rows, N, position,
        [](Index n) { return n; }, begin_row, w);
    team.parallel_for(N, w.state_size / 4, [&](Index n) {
        const StepRow<float> r = w.rows[n];
        float* to = position.next + n * w.state_size + w.feature_states_size;
        for (Index k = 0; k < d.num_states; k++) {
            memcpy(to, r.values + d.states[2 * k], d.states[2 * k + 1] * sizeof(float));
            to += d.states[2 * k + 1];
        }
        *to = position.state[(n + 1) * w.state_size - 1] + 1;  // t
    });
}

/// Like `parallel_advance`, followed by the output layer: logits [N, C]. Without x, words are
/// projected.
void parallel_step(Team& team, const PackedMatrix& output, Position position, float* logits,
                   Workspace& w) {
    const Decoder& d = w.d;
    const Index N = position.N;
    if (!position.x && !d.word_table) {
        parallel_project_words(team, *d.word_projection, d.embeddings, d.int8_embeddings,
                               d.embedding_scales, position.y, N, w.word.data, w.x.data);
        position.x = w.x.data;
    }
    position.x_stride = d.x_size;
    parallel_advance(team, position, w);
    team.parallel_for(N, output.inputs, [&](Index n) {
        prepare_row(output, w.rows[n].reads + d.readout->offset[0],
                    &w.readout[n * output.row_words()]);
    });
    parallel_product(team, output, w.readout.data, N, {output.bias, 0}, logits, output.outputs);
}

}  // namespace

/// Computes one position of N hypotheses, `per_sentence` of each sentence, without sharing between
/// them: the reference that `decoder_beam` is compared with.
///
/// sources: one per attention of the decoder. y: [N], previous tokens. x: [N, x_size], projected
/// words, or null. state, next: [N, S]. alpha: [N, J_all]. logits: [N, C]. norm: [N], log-sum-exp
/// of the logits.
EXPORT void decoder_step(const Decoder* d, const PackedMatrix* output, const SourceBatch* sources,
                         const int64_t* y, const float* x, int64_t N, int64_t per_sentence,
                         const float* state, float* next, float* alpha, float* logits, float* norm,
                         int32_t threads) {
    Buffer<int64_t> sentence(N);
    for (Index n = 0; n < N; n++) sentence[n] = n / per_sentence;
    Workspace w(*d, sources, output, N / per_sentence, N, false);
    parallel_region(threads, [&](Team& team) {
        parallel_step(team, *output, {sources, sentence.data, y, x, 0, N, 1, state, next, alpha},
                      logits, w);
        team.parallel_for(N, 2 * output->outputs, [&](Index n) {
            norm[n] = log_sum_exp(logits + n * output->outputs, output->outputs);
        });
    });
}

/// Runs greedy search on B sentences with a decoder that has its words; see greedy_search.h.
EXPORT int64_t decoder_greedy(const Decoder* d, const PackedMatrix* output,
                              const SourceBatch* sources, const SearchOptions* options, int64_t B,
                              float* state, const GreedyResult* result, int32_t threads) {
    Workspace w(*d, sources, output, B, B, false);
    auto step = [&](Team& team, const int64_t* sentence, const int64_t* y, Index N,
                    const float* state, float* next, float* alpha, float* logits) {
        parallel_step(team, *output, {sources, sentence, y, nullptr, 0, N, 1, state, next, alpha},
                      logits, w);
    };
    return greedy_search(threads, step, output->outputs, *options, B, w.state_size, w.alphas_size,
                         state, *result);
}

/// Runs beam search on B sentences with a decoder that has its words; see beam_search.h.
EXPORT int64_t decoder_beam(const Decoder* d, const PackedMatrix* output,
                            const SourceBatch* sources, const SearchOptions* options,
                            const BeamOptions* beam, int64_t B, const float* state,
                            const Hypotheses* result, int32_t threads) {
    Workspace w(*d, sources, output, B, B * beam->width, beam->width > 1);
    auto step = [&](Team& team, const int64_t* sentence, const int64_t* y, Index N, Index width,
                    const float* state, float* next, float* alpha, float* logits) {
        parallel_step(team, *output,
                      {sources, sentence, y, nullptr, 0, N, width, state, next, alpha}, logits, w);
    };
    return beam_search(threads, step, output->outputs, *options, *beam, B, w.state_size,
                       w.alphas_size, state, *result);
}

/// Runs a cell over the first lengths[b] of J positions of B rows; lengths must not increase from
/// row to row.
///
/// reversed: 1 to run from the last position to the first. x: [B, J, x_size], projected inputs.
/// state: [B, S], the initial states, replaced by the final ones. outputs: [B, J, D], the first
/// state at each position; unchanged on padding.
EXPORT void cell_sequence(const Decoder* d, const int64_t* lengths, int64_t B, int64_t J,
                          int64_t reversed, const float* x, float* state, float* outputs,
                          int32_t threads) {
    Workspace w(*d, nullptr, nullptr, B, B, false);
    Buffer<int64_t> row(B);
    Buffer<float> next(B * w.state_size);
    for (Index b = 0; b < B; b++) row[b] = b;
    const Index D = d->states[1], longest = lengths[0];
    parallel_region(threads, [&](Team& team) {
        for (Index t = 0; t < longest; t++) {
            const Index j = reversed ? longest - 1 - t : t;
            Index N = 0;  // rows that are long enough
            while (N < B && lengths[N] > j) N++;
            const Position position = {nullptr, row.data, nullptr, x + j * d->x_size, J * d->x_size,
                                       N,       1,        state,   next.data,         nullptr};
            parallel_advance(team, position, w);
            team.parallel_for(N, w.state_size / 4, [&](Index n) {
                memcpy(state + n * w.state_size, &next[n * w.state_size],
                       w.state_size * sizeof(float));
                memcpy(outputs + (n * J + j) * D, w.rows[n].values + d->states[0],
                       D * sizeof(float));
            });
        }
    });
}
