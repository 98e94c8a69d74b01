// Runs the recurrences of recurrence.h, forward and backward. Each thread takes some sentences
// through all positions.
#include "recurrence.h"

#include "ops.h"

namespace {

constexpr Index CHUNKS_PER_THREAD = 2;  // that the sentences are split into

/// Work on the sentences begin .. end by one thread. In shapes, R is the number of these sentences.
template <class T>
struct ChunkRunner {
    const Recurrence& rec;
    const PackedMatrix* matrices;  // one per operation; only those of PRODUCT are set
    const Index begin, rows;
    Buffer<float> sums, d_values, d_previous, d_reads;         // [R, row size]
    Buffer<float> d_energy, feature_inputs, d_feature_inputs;  // [J], [J, features.width] twice
    Buffer<float> d_hidden, d_alpha;                           // [J, A], [J]
    Buffer<float> d_feature_states;                            // [R, J, features.state_size]
    Buffer<float> d_previous_states;                           // [J, features.state_size]
    Buffer<Index> positions, counts;  // [R, J], [R], unmasked source positions
    // Of v_a, then of each operation, from the last to the first.
    float* d_parameters = nullptr;

    ChunkRunner(const Recurrence& rec, const PackedMatrix* matrices, Index begin, Index end)
        : rec(rec), matrices(matrices), begin(begin), rows(end - begin),
          positions(rows * rec.source_length), counts(rows) {
        for (Index m = 0; m < rows; m++)
            counts[m] = unmasked_positions(rec.source_mask + (begin + m) * rec.source_length,
                                           rec.source_length, &positions[m * rec.source_length]);
    }

    // Row m of this chunk, at position i, of the tensors of the recurrence.
    SourceView source(Index m) const {
        return {&positions[m * rec.source_length],
                counts[m],
                rec.source_length,
                rec.key_size,
                rec.annotation_size,
                rec.heads,
                0,
                0};
    }
    /// The source positions in the window of a position.
    SourceView window(const Op& op, Index m, Index i, const StepRow<T>& r) const {
        if (rec.window_radius < 0) return source(m);
        const float centre = op.offset[3] < 0 ? rec.window_centres[(begin + m) * rec.positions + i]
                                              : r.values[op.offset[3]];
        return source(m).window(rec.window_radius, centre, rec.window_sigma);
    }
    const T* keys(Index m) const {
        return (const T*)rec.keys + (begin + m) * rec.source_length * rec.key_size;
    }
    const T* annotations(Index m) const {
        return (const T*)rec.annotations + (begin + m) * rec.source_length * rec.annotation_size;
    }
    float* alphas(Index m, Index i) const {
        return rec.alphas + ((begin + m) * rec.positions + i) * rec.heads * rec.source_length;
    }
    float* feature_states(Index m, Index i) const {
        return rec.feature_states + ((begin + m) * (rec.positions + 1) + i) * rec.source_length *
                                        rec.features.state_size;
    }
    const float* prepared(Index m) const {
        return rec.prepared + (begin + m) * rec.source_length * rec.features.prepared_size;
    }
    T* reads(Index m, Index i) const {
        return (T*)rec.reads + ((begin + m) * rec.positions + i) * rec.reads_size;
    }
    T* d_sums(Index m, Index i) const {
        return (T*)rec.d_sums + ((begin + m) * rec.positions + i) * rec.sums_size;
    }
    const float* mask(const Op& op, Index m, Index i) const {
        return op.mask ? op.mask + (begin + m) * op.mask_row_stride + i * op.mask_position_stride
                       : nullptr;
    }

    StepRow<T> row(Index m, Index i) const {
        float* first = rec.values + (begin + m) * (rec.positions + 1) * rec.values_size;
        const Index current = rec.reversed ? i : i + 1, previous = rec.reversed ? i + 1 : i;
        StepRow<T> r = {};
        r.sums = sums.data + m * rec.sums_size;
        r.values = first + current * rec.values_size;
        r.previous = first + previous * rec.values_size;
        r.reads = reads(m, i);
        r.active = !rec.active || rec.active[(begin + m) * rec.positions + i];
        r.d_values = d_values.data + m * rec.values_size;
        r.d_previous = d_previous.data + m * rec.values_size;
        r.d_reads = d_reads.data + m * rec.reads_size;
        if (rec.d_sums) r.d_sums = d_sums(m, i);
        return r;
    }

    /// Returns what the score reads of the features of a sentence; empty if it has no features.
    FeatureInputs inputs_of_features(const Op& op, Index m, Index i) {
        const Features& f = rec.features;
        if (op.type == ADDITIVE && f.count)
            read_features(f, source(m), feature_states(m, i),
                          feature_inputs.allocate(rec.source_length * f.width));
        return {feature_inputs.data, (const float*)op.weight, op.type == ADDITIVE ? f.width : 0};
    }

    void attend_forward(const Op& op, Index m, Index i, const StepRow<T>& r) {
        const FeatureInputs f = inputs_of_features(op, m, i);
        attend(op, r, window(op, m, i, r), keys(m), annotations(m), rec.score_vector,
               rec.score_scale, f, alphas(m, i));
        if (!f.width) return;
        save_queries(rec.features, r.sums, r.values);
        update_features(rec.features, source(m), f.weight, prepared(m), r.values, alphas(m, i),
                        feature_states(m, i), feature_states(m, i + 1));
    }

    /// Turns the gradient of the feature states after a position into that of the states before it,
    /// and writes d_alpha.
    void update_features_backward_at(const Op& op, Index m, Index i, const StepRow<T>& r,
                                     float* d_weights) {
        const Index size = rec.source_length * rec.features.state_size;
        for (Index j = 0; j < rec.source_length; j++)
            d_alpha[j] =
                rec.d_alphas
                    ? rec.d_alphas[((begin + m) * rec.positions + i) * rec.source_length + j]
                    : 0.0f;
        float* d_next = &d_feature_states[m * size];
        update_features_backward(
            rec.features, source(m), (const float*)op.weight, prepared(m), r.values, alphas(m, i),
            feature_states(m, i), d_next, d_previous_states.zeros(size), d_alpha.data,
            rec.d_prepared + (begin + m) * rec.source_length * rec.features.prepared_size,
            d_weights, r.d_sums);
        memcpy(d_next, d_previous_states.data, size * sizeof(float));
    }

    void attend_backward(const Op& op, Index m, Index i, const StepRow<T>& r, float* d_weights) {
        const SourceView s = window(op, m, i, r);
        const FeatureInputs f = inputs_of_features(op, m, i);
        if (f.width) update_features_backward_at(op, m, i, r, d_weights);
        float ignored, *d_centre = op.offset[3] < 0 ? &ignored : r.d_values + op.offset[3];
        const float* d_c = r.d_values + op.offset[0];
        // Stored for annotations_backward, which runs once for all positions.
        T* d_context = (T*)rec.d_contexts + ((begin + m) * rec.positions + i) * s.annotation_size;
        convert(d_c, s.annotation_size, d_context);
        float* d_keys = rec.d_keys + (begin + m) * s.length * s.key_size;
        const Index head_size = s.key_size / s.heads;
        for (Index head = 0; head < s.heads; head++) {
            const Index offset = head * s.length;
            const float* d_weights_of_head = rec.d_alphas;
            if (d_weights_of_head)
                d_weights_of_head +=
                    ((begin + m) * rec.positions + i) * s.heads * s.length + offset;
            softmax_backward(s, head, annotations(m), alphas(m, i) + offset, d_c,
                             f.width ? d_alpha.data : d_weights_of_head, d_energy.data, d_centre);
            if (op.type == DOT)
                dot_backward(s, keys(m), rec.score_scale, r.operand(op, 1), d_energy.data, d_keys,
                             r.d_operand(op, 1));
            else
                additive_backward(s, keys(m), rec.score_vector, r.values + op.offset[2], f,
                                  d_energy.data, head * head_size, (head + 1) * head_size, d_keys,
                                  d_parameters, r.d_sums + op.offset[1], d_hidden.data);
        }
        if (!f.width) return;
        feature_inputs_backward(s, f, d_hidden.data,
                                d_feature_inputs.zeros(rec.source_length * f.width), d_weights);
        read_features_backward(rec.features, source(m), d_feature_inputs.data,
                               &d_feature_states[m * rec.source_length * rec.features.state_size]);
    }

    /// PRODUCT, for all sentences of the chunk: sums[0] += W reads[1].
    void multiply(const Op& op, const PackedMatrix& W, Index i) {
        const Index x_stride = rec.positions * rec.reads_size * sizeof(T) / 4;
        float* y = sums.data + op.offset[0];
        product(W, reads(0, i) + op.offset[1], x_stride, rows, {y, rec.sums_size}, y, rec.sums_size,
                0, W.panel_count());
    }
    /// W is transposed here: d_reads[1] += W^T d_sums[0].
    void multiply_backward(const Op& op, const PackedMatrix& W, Index i) {
        const Index x_stride = rec.positions * rec.sums_size * sizeof(T) / 4;
        float* y = d_reads.data + op.offset[1];
        product(W, d_sums(0, i) + op.offset[0], x_stride, rows, {y, rec.reads_size}, y,
                rec.reads_size, 0, W.panel_count());
    }

    void forward() {
        sums.allocate(rows * rec.sums_size);
        for (Index t = 0; t < rec.positions; t++) {
            const Index i = rec.reversed ? rec.positions - 1 - t : t;
            for (Index m = 0; m < rows; m++)
                memcpy(&sums[m * rec.sums_size], rec.bias, rec.sums_size * sizeof(float));
            for (Index n = 0; n < rec.num_ops; n++) {
                const Op& op = rec.ops[n];
                if (op.type == PRODUCT) {
                    multiply(op, matrices[n], i);
                    continue;
                }
                for (Index m = 0; m < rows; m++) {
                    const StepRow<T> r = row(m, i);
                    if (op.type == INPUT)
                        add_input(op, r,
                                  (const T*)rec.x + ((begin + m) * rec.positions + i) * rec.x_size);
                    else if (op.type == ADDITIVE || op.type == DOT) attend_forward(op, m, i, r);
                    else if (op.type == LOG_POSITION) add_log_position(op, r, op.offset[1] + i);
                    else run_op(op, r, mask(op, m, i), counts[m]);
                }
            }
        }
    }

    void backward() {
        d_values.allocate(rows * rec.values_size);
        d_previous.zeros(rows * rec.values_size);
        d_reads.allocate(rows * rec.reads_size);
        d_energy.allocate(rec.source_length);
        d_alpha.allocate(rec.source_length);
        d_hidden.allocate(rec.features.count ? rec.source_length * rec.key_size : 0);
        d_feature_states.zeros(rows * rec.source_length * rec.features.state_size);
        for (Index t = rec.positions - 1; t >= 0; t--) {
            const Index i = rec.reversed ? rec.positions - 1 - t : t;
            // The gradient of the previous position's values becomes that of the values.
            float* spare = d_values.data;
            d_values.data = d_previous.data;
            d_previous.data = spare;
            memset(d_previous.data, 0, rows * rec.values_size * sizeof(float));
            memset(d_reads.data, 0, rows * rec.reads_size * sizeof(float));
            for (Index n = 0; n < rec.num_output_gradients; n++) {
                const OutputGradient& output = rec.output_gradients[n];
                float* to = (output.previous ? d_previous.data : d_values.data) + output.offset;
                for (Index m = 0; m < rows; m++) {
                    const float* d = output.d + ((begin + m) * rec.positions + i) * output.size;
                    for (Index k = 0; k < output.size; k += LANES)
                        accumulate(to + m * rec.values_size + k, load(d + k, output.size - k),
                                   output.size - k);
                }
            }
            float* d_weights = d_parameters + rec.key_size;
            for (Index n = rec.num_ops - 1; n >= 0; n--) {
                const Op& op = rec.ops[n];
                if (op.type == PRODUCT) multiply_backward(op, matrices[n], i);
                for (Index m = 0; m < rows && op.type != PRODUCT && op.type != INPUT; m++) {
                    const StepRow<T> r = row(m, i);
                    switch (op.type) {
                        case READ: read_backward(op, r, mask(op, m, i)); break;
                        case SIGMOID: activation_backward<T, true>(op, r); break;
                        case TANH: activation_backward<T, false>(op, r); break;
                        case GRU: gru_backward(op, r); break;
                        case LSTM: lstm_backward(op, r); break;
                        case SSRU: ssru_backward(op, r); break;
                        case ADD: add_values_backward(op, r, mask(op, m, i)); break;
                        case NORM: layer_norm_backward(op, r, d_weights); break;
                        case CENTRE: window_centre_backward(op, r, counts[m], d_weights); break;
                        case LOG_POSITION:
                            add_log_position_backward(op, r, op.offset[1] + i, d_weights);
                            break;
                        default: attend_backward(op, m, i, r, d_weights);
                    }
                }
                d_weights += parameter_count(op, rec.features);
            }
        }
        memcpy(rec.d_initial + begin * rec.values_size, d_previous.data,
               rows * rec.values_size * sizeof(float));
        if (rec.source_length == 0) return;
        for (Index m = 0; m < rows; m++)
            annotations_backward(
                source(m), rec.positions, alphas(m, 0),
                (const T*)rec.d_contexts + (begin + m) * rec.positions * rec.annotation_size,
                (T*)rec.d_annotations + (begin + m) * rec.source_length * rec.annotation_size);
    }
};

/// The matrices of all PRODUCT operations, packed; transposed for the backward pass.
template <class T>
struct StepMatrices {
    Buffer<PackedMatrix> matrices;  // one per operation
    Buffer<float> panels;

    StepMatrices(const Recurrence& rec, bool transposed) : matrices(rec.num_ops) {
        Index size = 0;
        for (Index n = 0; n < rec.num_ops; n++) {
            const Op& op = rec.ops[n];
            matrices[n] = {};
            if (op.type != PRODUCT) continue;
            matrices[n].dtype = DTYPE_OF<T>;
            matrices[n].outputs = transposed ? op.offset[2] : op.size;
            matrices[n].inputs = transposed ? op.size : op.offset[2];
            size += matrices[n].panel_count() * matrices[n].panel_size();
        }
        float* next = panels.allocate(size);
        for (Index n = 0; n < rec.num_ops; n++) {
            matrices[n].panels = next;
            if (rec.ops[n].type == PRODUCT)
                next += matrices[n].panel_count() * matrices[n].panel_size();
        }
    }

    void parallel_pack(Team& team, const Recurrence& rec, bool transposed) {
        for (Index n = 0; n < rec.num_ops; n++) {
            if (rec.ops[n].type != PRODUCT) continue;
            const Index inputs = rec.ops[n].offset[2];
            const Index cycles = 2 * matrices[n].panel_size();
            team.parallel_for(matrices[n].panel_count(), cycles, [&](Index panel) {
                pack_panels<T>(matrices[n], (const float*)rec.ops[n].weight,
                               transposed ? 1 : inputs, transposed ? inputs : 1, panel, panel + 1);
            });
        }
    }
};

Index chunk_count(const Recurrence& rec, Index threads) {
    return max(1, min(rec.rows, threads == 1 ? 1 : CHUNKS_PER_THREAD * threads));
}

template <class T>
void forward(Index threads, const Recurrence& rec) {
    StepMatrices<T> step(rec, false);
    const Index chunks = chunk_count(rec, threads);
    parallel_region(threads, [&](Team& team) {
        step.parallel_pack(team, rec, false);
        team.parallel_for(chunks, MANY_CYCLES, [&](Index chunk) {
            const Chunk rows(rec.rows, chunk, chunks);
            ChunkRunner<T>(rec, step.matrices.data, rows.begin, rows.end).forward();
        });
    });
}

template <class T>
void backward(Index threads, const Recurrence& rec) {
    StepMatrices<T> step(rec, true);
    const Index chunks = chunk_count(rec, threads);
    Index parameters = rec.key_size;
    for (Index n = 0; n < rec.num_ops; n++) parameters += parameter_count(rec.ops[n], rec.features);
    Buffer<float> chunk_gradients;  // [chunks, parameters]; added up in the order of the chunks
    chunk_gradients.zeros(chunks * parameters);
    memset(rec.d_keys, 0, rec.rows * rec.source_length * rec.key_size * sizeof(float));
    if (rec.features.count)
        memset(rec.d_prepared, 0,
               rec.rows * rec.source_length * rec.features.prepared_size * sizeof(float));
    parallel_region(threads, [&](Team& team) {
        step.parallel_pack(team, rec, true);
        team.parallel_for(chunks, MANY_CYCLES, [&](Index chunk) {
            const Chunk rows(rec.rows, chunk, chunks);
            ChunkRunner<T> runner(rec, step.matrices.data, rows.begin, rows.end);
            runner.d_parameters = &chunk_gradients[chunk * parameters];
            runner.backward();
        });
    });
    auto reduce = [&](float* to, Index offset, Index size) {
        memset(to, 0, size * sizeof(float));
        for (Index chunk = 0; chunk < chunks; chunk++)
            for (Index k = 0; k < size; k++)
                to[k] += chunk_gradients[chunk * parameters + offset + k];
    };
    reduce(rec.d_vector, 0, rec.key_size);
    Index offset = rec.key_size;
    for (Index n = rec.num_ops - 1; n >= 0; n--) {
        const Index size = parameter_count(rec.ops[n], rec.features);
        if (size) reduce(rec.ops[n].d_weight, offset, size);
        offset += size;
    }
}

}  // namespace

EXPORT void recurrence_forward_fp32(Index threads, const Recurrence* rec) {
    forward<float>(threads, *rec);
}
EXPORT void recurrence_forward_bf16(Index threads, const Recurrence* rec) {
    forward<bfloat16>(threads, *rec);
}
EXPORT void recurrence_backward_fp32(Index threads, const Recurrence* rec) {
    backward<float>(threads, *rec);
}
EXPORT void recurrence_backward_bf16(Index threads, const Recurrence* rec) {
    backward<bfloat16>(threads, *rec);
}
