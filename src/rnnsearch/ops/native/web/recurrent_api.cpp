// Any recurrent model for the browser: a flat interface for JavaScript over search.cpp, compiled to
// WebAssembly.
//
// JavaScript reads the program of the engine file (engine/program.py) and does what is outside of
// cells, layers and search. The offsets of every step are checked here.
#include "../decoder.h"
#include "../source_features.h"
#include "request.h"

extern "C" {
int64_t decoder_beam(const Decoder* d, const PackedMatrix* output, const SourceBatch* sources,
                     const SearchOptions* options, const BeamOptions* beam, int64_t B,
                     const float* state, const Hypotheses* result, int32_t threads);
void cell_sequence(const Decoder* d, const int64_t* lengths, int64_t B, int64_t J, int64_t reversed,
                   const float* x, float* state, float* outputs, int32_t threads);
}

namespace {

// Limits of engine/program.py.
constexpr int64_t MAX_SIZE = 1 << 20;  // of anything
constexpr int64_t MAX_EMBEDDING = 1 << 14;
constexpr int64_t MAX_ITEMS = 1 << 12;  // operations of a step; layers and steps of a model

enum RowKind : uint8_t { SUMS, VALUES, READS, INPUTS };

/// An operand of an operation: offset[index] begins a range of `times` * size elements of a row.
struct OperandRange {
    OpType op;
    uint8_t index;
    RowKind row;
    uint8_t times = 1;
    bool optional = false;  // the offset may be -1
};
// clang-format off
constexpr OperandRange OPERANDS[] = {
    {INPUT, 0, SUMS}, {INPUT, 1, INPUTS},
    {READ, 0, READS}, {READ, 1, VALUES}, {READ, 2, VALUES, 1, true},
    {PRODUCT, 0, SUMS},
    {SIGMOID, 0, VALUES}, {SIGMOID, 1, SUMS}, {SIGMOID, 2, VALUES, 1, true},
    {TANH, 0, VALUES}, {TANH, 1, SUMS}, {TANH, 2, VALUES, 1, true},
    {GRU, 0, VALUES}, {GRU, 1, VALUES}, {GRU, 2, SUMS}, {GRU, 3, VALUES}, {GRU, 4, VALUES},
    {GRU, 5, VALUES, 1, true},
    {LSTM, 0, VALUES}, {LSTM, 1, VALUES}, {LSTM, 2, VALUES, 4}, {LSTM, 3, SUMS, 4},
    {LSTM, 4, VALUES}, {LSTM, 5, VALUES},
    {ADDITIVE, 1, SUMS}, {ADDITIVE, 2, VALUES}, {DOT, 1, VALUES},
    {ADD, 0, VALUES}, {ADD, 1, VALUES}, {ADD, 2, VALUES},
    {NORM, 0, SUMS}, {NORM, 1, SUMS}, {NORM, 2, VALUES},
    {CENTRE, 1, VALUES}, {LOG_POSITION, 0, SUMS},
    {MAXOUT, 0, VALUES}, {MAXOUT, 1, SUMS, 2}, {TANH_VALUES, 0, VALUES}, {TANH_VALUES, 1, VALUES},
    {SSRU, 0, VALUES}, {SSRU, 1, VALUES}, {SSRU, 2, VALUES}, {SSRU, 3, SUMS, 2},
    {SSRU, 4, VALUES}, {SSRU, 5, VALUES},
};
// clang-format on

/// Owner of objects that are numbered in the order of their creation.
template <class T>
struct Registry {
    T* items[MAX_ITEMS] = {};
    int64_t count = 0;

    ~Registry() {
        for (int64_t n = 0; n < count; n++) destroy(items[n]);
    }
    /// Returns an object by its number, or null.
    T* get(int64_t number) const {
        return in_range(number, 0, count - 1) ? items[number] : nullptr;
    }
    /// Returns a new object, or null if there are too many.
    T* add() {
        T* item = count < MAX_ITEMS ? create_zeroed<T>() : nullptr;
        if (item) items[count++] = item;
        return item;
    }
    /// Returns the number of the last object; if it is invalid, removes it and returns -1.
    int32_t commit(bool valid) {
        if (valid) return int32_t(count - 1);
        destroy(items[--count]);
        return -1;
    }
};

/// A step of a cell or of the decoder, with the arrays that it reads.
struct Step {
    Decoder decoder;
    Attention attention;  // a key size of 0: the step does not attend
    Buffer<Op> ops;
    Buffer<float> bias, parameters, score_vector;
    Buffer<int64_t> states;
    Buffer<Feature> features;
    Op readout;
    bool needs_centres;

    int64_t row_elements(RowKind row) const {
        switch (row) {
            case SUMS: return decoder.sums_size;
            case VALUES: return decoder.values_size;
            case READS: return decoder.reads_size;
            default: return decoder.x_size;
        }
    }
    int64_t workspace_size() const {
        return decoder.sums_size + 2 * decoder.values_size + decoder.reads_size;
    }
    /// Returns true if `size` elements from `begin` on are within a row.
    bool contains(int64_t begin, int64_t size, RowKind row) const {
        return 0 <= begin && begin <= row_elements(row) - size;
    }
};

struct RecurrentModel {
    int64_t words[2];   // vocabulary sizes of source and target
    int64_t embedding;  // size of target embeddings
    EmbeddingTable targets;
    Registry<Layer> layers;
    Registry<Step> steps;
    Buffer<int64_t> token_bytes;  // length of each target token
    bool knows_bytes;
    Buffer<float> output, state;  // results of the last call
};

/// Copies an array, and returns false if it has the wrong size.
template <class T>
bool copy_exact(Buffer<T>& to, const T* from, uint32_t count, int64_t expected) {
    if (count != expected) return false;
    memcpy(to.allocate(expected), from, expected * sizeof(T));
    return true;
}

// The functions below read a description of a step (see recurrent_add_step), and return false if it
// is invalid.

bool read_features(Step& step, IntReader& reader) {
    Features& features = step.attention.features;
    features.count = reader.next(0, MAX_ITEMS);
    if (!reader.ok) return false;
    features.items = step.features.zeros(features.count);
    for (int64_t n = 0; n < features.count; n++) {
        Feature& f = step.features[n];
        f.units = reader.next(0, MAX_EMBEDDING);
        f.neighbours = reader.next(0, MAX_ITEMS);
        f.accumulates = reader.next(INT32_MIN, INT32_MAX);
        f.query_sums = reader.next(INT32_MIN, INT32_MAX);
        f.query_values = reader.next(INT32_MIN, INT32_MAX);
        if (f.units && !(step.contains(f.query_sums, feature_prepared_size(f), SUMS) &&
                         step.contains(f.query_values, feature_prepared_size(f), VALUES)))
            return false;
        features.width += feature_width(f);
        features.state_size += feature_state_size(f);
        features.prepared_size += feature_prepared_size(f);
    }
    return reader.ok && (!features.count || (step.attention.heads == 1 && step.score_vector.size));
}

/// Returns true if all operands of an operation are within their rows, and its weights have the
/// right size.
bool operands_fit(const Step& step, const Op& op, const Layer* layer, int64_t parameters) {
    const Attention& a = step.attention;
    for (const OperandRange& range : OPERANDS)
        if (range.op == op.type && !(range.optional && op.offset[range.index] == -1) &&
            !step.contains(op.offset[range.index], op.size * range.times, range.row))
            return false;
    switch (op.type) {
        case PRODUCT:
            return layer && layer->matrix.outputs == op.size &&
                   layer->matrix.inputs == op.offset[2] &&
                   step.contains(op.offset[1], op.offset[2], READS);
        case GRU:
            return op.offset[5] < 0 || (step.contains(op.offset[1], 2 * op.size, VALUES) &&
                                        step.contains(op.offset[6], op.size, SUMS));
        case NORM: return parameters == 2 * op.size && step.contains(op.offset[3], 1, VALUES);
        case CENTRE: return parameters == op.size && step.contains(op.offset[0], 1, VALUES);
        case LOG_POSITION: return parameters == op.size;
        case ADDITIVE:
        case DOT:
            return op.size == a.key_size &&
                   step.contains(op.offset[0], a.annotation_size, VALUES) &&
                   in_range(op.offset[3], -1, step.decoder.values_size - 1) &&
                   (op.type == ADDITIVE) == (step.score_vector.size > 0) &&
                   parameters == (a.features.count ? parameter_count(a.features, a.key_size) : 0);
    }
    return true;
}

/// Reads the operations: type, size, previous, layer of a product, offset and number of its
/// parameters, then its offsets.
bool read_ops(const RecurrentModel& model, Step& step, IntReader& reader) {
    Decoder& d = step.decoder;
    d.num_ops = reader.next(0, MAX_ITEMS);
    if (!reader.ok) return false;
    d.ops = step.ops.zeros(d.num_ops);
    int64_t attentions = 0;
    for (int64_t n = 0; n < d.num_ops; n++) {
        Op& op = step.ops[n];
        op.type = reader.next(INPUT, SSRU);
        op.size = reader.next(1, MAX_SIZE);
        op.previous = reader.next(0, 255);
        const Layer* layer = model.layers.get(reader.next(-1, MAX_ITEMS));
        const int64_t begin = reader.next(0, step.parameters.size);
        const int64_t count = reader.next(0, step.parameters.size);
        for (int64_t& offset : op.offset) offset = reader.next(-1, INT32_MAX);
        if (!reader.ok || begin + count > step.parameters.size ||
            !operands_fit(step, op, layer, count))
            return false;
        op.weight = op.type == PRODUCT ? (const void*)&layer->matrix
                    : count            ? &step.parameters[begin]
                                       : nullptr;
        if (op.type != ADDITIVE && op.type != DOT) continue;
        attentions++;
        step.needs_centres = step.attention.window_radius >= 0 && op.offset[3] < 0;
    }
    return attentions == d.num_attentions;
}

/// Reads the layer that projects the step's words, and the offset of the output layer's inputs.
bool read_words(const RecurrentModel& model, Step& step, IntReader& reader) {
    Decoder& d = step.decoder;
    const Layer* words = model.layers.get(reader.next(-1, MAX_ITEMS));
    step.readout.type = READ;
    step.readout.offset[0] = reader.next(-1, MAX_SIZE);
    d.readout = &step.readout;
    if (!words) return reader.ok;
    const EmbeddingTable& table = model.targets;
    d.word_projection = &words->matrix;
    d.embeddings = table.fp32();
    d.int8_embeddings = table.int8();
    d.embedding_scales = table.scales();
    return reader.ok && words->matrix.outputs == d.x_size &&
           words->matrix.inputs == model.embedding;
}

/// Reads the sizes of the step's rows and of its keys and annotations (a key size of 0: no
/// attention), and its states.
bool read_shape(Step& step, IntReader& reader) {
    Decoder& d = step.decoder;
    Attention& a = step.attention;
    int64_t* const sizes[] = {&d.x_size,     &d.sums_size, &d.values_size,
                              &d.reads_size, &a.key_size,  &a.annotation_size};
    for (int64_t* size : sizes) *size = reader.next(0, MAX_SIZE);
    a.heads = reader.next(1, MAX_SIZE);
    a.window_radius = reader.next(-1, MAX_SIZE);
    d.num_states = reader.next(1, MAX_ITEMS);
    if (!reader.ok) return false;
    if (a.key_size && (a.key_size % a.heads || a.annotation_size % a.heads || !a.annotation_size))
        return false;
    d.num_attentions = a.key_size > 0;
    d.attentions = &a;
    reader.read(step.states, 2 * d.num_states, 0, MAX_SIZE);
    for (int64_t n = 0; n < d.num_states && reader.ok; n++) {
        if (step.states[2 * n + 1] < 1 ||
            !step.contains(step.states[2 * n], step.states[2 * n + 1], VALUES))
            return false;
        d.state_size += step.states[2 * n + 1];
    }
    d.states = step.states.data;
    d.state_size++;  // t
    return reader.ok;
}

}  // namespace

/// Returns a model with these vocabulary sizes and target embeddings [target_words, embedding], or
/// null if they are invalid.
WASM_EXPORT(recurrent_create)
RecurrentModel* recurrent_create(uint32_t source_words, uint32_t target_words, uint32_t embedding,
                                 const void* values, uint32_t value_count, const float* scale,
                                 uint32_t scale_count) {
    if (!valid_vocabularies(source_words, target_words) || !in_range(embedding, 1, MAX_EMBEDDING))
        return nullptr;
    RecurrentModel* model = create_zeroed<RecurrentModel>();
    if (!model) return nullptr;
    model->words[0] = source_words;
    model->words[1] = target_words;
    model->embedding = embedding;
    if (model->targets.set(target_words, embedding, values, value_count, scale, scale_count))
        return model;
    destroy(model);
    return nullptr;
}

WASM_EXPORT(recurrent_destroy) void recurrent_destroy(RecurrentModel* model) { destroy(model); }

/// Adds a layer [outputs, inputs] and returns its number, or -1 if it is invalid.
WASM_EXPORT(recurrent_add_layer)
int32_t recurrent_add_layer(RecurrentModel* model, int32_t dtype, uint32_t outputs, uint32_t inputs,
                            const void* values, uint32_t value_count, const float* scale,
                            uint32_t scale_count, const float* bias, uint32_t bias_count) {
    if (!in_range(dtype, FP32, INT8) || !in_range(outputs, 1, MAX_SIZE) ||
        !in_range(inputs, 1, MAX_SIZE))
        return -1;
    Layer* layer = model->layers.add();
    if (!layer) return -1;
    return model->layers.commit(layer->set(dtype, outputs, inputs, values, value_count, scale,
                                           scale_count, bias, bias_count));
}

/// Adds a step and returns its number, or -1 if it is invalid.
///
/// description: its sizes and states (read_shape), the layer that projects its words and the offset
/// of the output layer's inputs (-1 both, for a cell), its features, and its operations. bias:
/// initial value of the sums. parameters: of its operations. vector: v_a of an additive score, else
/// empty.
WASM_EXPORT(recurrent_add_step)
int32_t recurrent_add_step(RecurrentModel* model, double score_scale, double window_sigma,
                           const int32_t* description, uint32_t count, const float* bias,
                           uint32_t bias_count, const float* parameters, uint32_t parameters_count,
                           const float* vector, uint32_t vector_count) {
    Step* step = model->steps.add();
    if (!step) return -1;
    IntReader reader{description, int64_t(count)};
    Decoder& d = step->decoder;
    Attention& a = step->attention;
    auto is_valid = [&] {
        if (!(fabs(score_scale) <= MAX_SIZE && window_sigma >= 0 && window_sigma <= MAX_SIZE))
            return false;
        if (!read_shape(*step, reader)) return false;
        a.score_scale = float(score_scale);
        a.window_sigma = float(window_sigma);
        if (!read_words(*model, *step, reader) ||
            !copy_exact(step->bias, bias, bias_count, d.sums_size))
            return false;
        if (!copy_exact(step->parameters, parameters, parameters_count, parameters_count))
            return false;
        if (vector_count && !copy_exact(step->score_vector, vector, vector_count, a.key_size))
            return false;
        d.bias = step->bias.data;
        a.score_vector = step->score_vector.data;
        return read_features(*step, reader) && read_ops(*model, *step, reader) && !reader.left;
    };
    return model->steps.commit(is_valid());
}

/// Returns a layer's outputs [rows, outputs] of x [rows, inputs], or null if x has no whole number
/// of rows.
WASM_EXPORT(recurrent_apply_layer)
const float* recurrent_apply_layer(RecurrentModel* model, int32_t layer, const float* x,
                                   uint32_t x_count) {
    const Layer* affine = model->layers.get(layer);
    if (!affine || x_count % affine->matrix.inputs) return nullptr;
    const int64_t rows = x_count / affine->matrix.inputs;
    linear(&affine->matrix, x, rows, model->output.allocate(rows * affine->matrix.outputs), 1);
    return model->output.data;
}

/// Runs a cell over B sentences and returns its outputs [B, J, D], 0 on padding, or null if the
/// sizes do not fit.
///
/// x: [B, J, x_size]; J follows from its size. source_lengths: [B], not increasing. The final
/// states [B, S], each with the position t behind it, are then available from
/// `recurrent_final_states`.
WASM_EXPORT(recurrent_run_cell)
const float* recurrent_run_cell(RecurrentModel* model, int32_t step_number, int32_t reversed,
                                const float* x, uint32_t x_count, const int32_t* source_lengths,
                                uint32_t B) {
    const Step* step = model->steps.get(step_number);
    if (!step) return nullptr;
    const Decoder& d = step->decoder;
    if (d.num_attentions || !d.x_size || !in_range(B, 1, MAX_HYPOTHESES) ||
        x_count % (B * d.x_size))
        return nullptr;
    const int64_t J = x_count / (B * d.x_size), D = d.states[1], S = d.state_size;
    if (B * J * D > MAX_FLOATS || B * step->workspace_size() > MAX_FLOATS) return nullptr;
    Buffer<int64_t> lengths(B);
    for (uint32_t b = 0; b < B; b++) {
        lengths[b] = source_lengths[b];
        if (!in_range(source_lengths[b], 1, b ? lengths[b - 1] : J)) return nullptr;
    }
    model->output.zeros(B * J * D);
    model->state.zeros(B * S);
    cell_sequence(&d, lengths.data, B, J, reversed, x, model->state.data, model->output.data, 1);
    return model->output.data;
}
WASM_EXPORT(recurrent_final_states)
const float* recurrent_final_states(const RecurrentModel* model) { return model->state.data; }

/// Sets the length of each target token in bytes, which requests with given bytes need; returns 0
/// if it is invalid.
WASM_EXPORT(recurrent_set_token_bytes)
int32_t recurrent_set_token_bytes(RecurrentModel* model, const int32_t* lengths, uint32_t count) {
    return model->knows_bytes =
               count == model->words[1] && read_token_bytes(model->token_bytes, lengths, count);
}

/// Returns 1 if a request is valid, before its sentences are encoded, else -1.
WASM_EXPORT(recurrent_check_request)
int32_t recurrent_check_request(const RecurrentModel* model, const int32_t* ints, uint32_t count) {
    Request request;
    return request.read(ints, count, 0, 0, model->words[0], model->words[1], model->knows_bytes)
               ? 1
               : -1;
}

/// Runs beam search with a step and an output layer. Returns 1; 0 if a score was NaN; -1 if an
/// argument is invalid.
///
/// ints: see Request; its ids are not read. keys: [B, J, A]. annotations: [B, J, H]. mask: [B, J].
/// centres: [B, J], or empty. prepared: [B, J, prepared_size]. state: [B, S], feature states of J
/// positions, the initial states, and t.
WASM_EXPORT(recurrent_search)
int32_t recurrent_search(const RecurrentModel* model, int32_t step_number, int32_t output_layer,
                         double length_penalty, double coverage_penalty, const int32_t* ints,
                         uint32_t count, const float* keys, uint32_t keys_count,
                         const float* annotations, uint32_t annotations_count, const uint8_t* mask,
                         uint32_t mask_count, const float* centres, uint32_t centres_count,
                         const float* prepared, uint32_t prepared_count, const float* state,
                         uint32_t state_count) {
    const Step* step = model->steps.get(step_number);
    const Layer* output = model->layers.get(output_layer);
    Request request;
    if (!step || !output || output->matrix.outputs != model->words[1] ||
        !step->decoder.word_projection)
        return -1;
    if (step->readout.offset[0] < 0 ||
        !step->contains(step->readout.offset[0], output->matrix.inputs, READS))
        return -1;
    if (!request.read(ints, count, length_penalty, coverage_penalty, model->words[0],
                      model->words[1], model->knows_bytes))
        return -1;
    const Decoder& d = step->decoder;
    const Attention& a = step->attention;
    const int64_t B = request.B, rows = B * request.K;
    const int64_t J = d.num_attentions ? request.J : 0, positions = B * J;
    const int64_t S = J * a.features.state_size + d.state_size;
    if (rows * (step->workspace_size() + S) > MAX_FLOATS) return -1;
    if (rows * J * max(a.features.width, a.heads) > MAX_FLOATS) return -1;
    if (keys_count != positions * a.key_size || annotations_count != positions * a.annotation_size)
        return -1;
    if (mask_count != positions || prepared_count != positions * a.features.prepared_size ||
        state_count != B * S)
        return -1;
    if (centres_count != positions && (centres_count || step->needs_centres)) return -1;
    Buffer<float> initial;
    copy_exact(initial, state, state_count, state_count);
    for (int64_t b = 1; b <= B; b++) initial[b * S - 1] = 0;  // t
    const float* window_centres = centres_count ? centres : nullptr;
    const int64_t num_centres = centres_count ? J : 0;
    const SourceBatch source = {keys, annotations, mask, window_centres, prepared, J, num_centres};
    return request.run(
        J, model->token_bytes.data,
        [&](const SearchOptions& options, const BeamOptions& beam, const Hypotheses& hypotheses) {
            return decoder_beam(&d, &output->matrix, &source, &options, &beam, B, initial.data,
                                &hypotheses, 1);
        });
}
