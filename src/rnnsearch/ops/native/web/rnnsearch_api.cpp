// RNNsearch for the browser: a flat interface for JavaScript over rnnsearch.cpp, compiled to
// WebAssembly. A model is created with its sizes and then given its arrays one by one.
#include "../rnnsearch.h"
#include "request.h"

extern "C" {
void rnnsearch_encode(const EncoderWeights* w, const float* x, const int64_t* lengths, int64_t B,
                      int64_t J, float* annotations, float* summary, int32_t threads);
int64_t rnnsearch_beam(const DecoderWeights* w, const PackedMatrix* output, const SourceMemory* m,
                       const SearchOptions* options, const BeamOptions* beam, int64_t B,
                       const float* state, const Hypotheses* result, int32_t threads);
}

namespace {

/// Sizes are rounded up to multiples of this, as in engine/structs.py.
constexpr int64_t UNIT_MULTIPLE = 16;

/// Arrays of a model, in the order of engine/rnnsearch.py: MATRICES, then TABLES.
enum ArrayIndex {
    FORWARD,  // input, gates, candidate
    BACKWARD = 3,
    KEY = 6,
    INITIAL,
    FROM_STATE,
    FROM_CONTEXT,
    CANDIDATE,
    FROM_WORD,
    OUTPUT,
    TABLES,  // source, target
    ARRAYS = TABLES + 2
};

struct Shape {
    int64_t outputs, inputs;
    int64_t size() const { return outputs * inputs; }
};

struct RNNsearchModel {
    int32_t dtype, pool;
    int64_t H, D;                    // sizes of one encoder direction and of the state, rounded up
    int64_t A, R;                    // sizes of keys and readout
    int64_t words[2], embedding[2];  // source, target
    Layer layers[TABLES];
    EmbeddingTable tables[2] = {};
    Buffer<float> score_vector;   // v_a
    Buffer<int64_t> token_bytes;  // length of each target token
    uint32_t received = 0;        // bit mask of what was set: arrays, score vector, token_bytes
    EncoderWeights encoder;
    DecoderWeights decoder;

    Shape shape(int index) const {
        const int64_t G = 3 * D + R;
        switch (index) {
            case FORWARD:
            case BACKWARD: return {3 * H, embedding[0]};
            case FORWARD + 1:
            case BACKWARD + 1: return {2 * H, H};
            case FORWARD + 2:
            case BACKWARD + 2: return {H, H};
            case KEY: return {A, 2 * H};
            case INITIAL: return {D, H};
            case FROM_STATE: return {A + 2 * D + R, D};
            case FROM_CONTEXT: return {G, 2 * H};
            case CANDIDATE: return {D, D};
            case FROM_WORD: return {G, embedding[1]};
            case OUTPUT: return {words[1], R / pool};
            default: return {words[index - TABLES], embedding[index - TABLES]};
        }
    }
    /// Returns true if everything except token_bytes, which is optional, has been set.
    bool is_complete() const { return (received | 1u << (ARRAYS + 1)) == (1u << (ARRAYS + 2)) - 1; }
};

/// Writes the source embedding of a word [E].
void embed(const RNNsearchModel& m, int64_t id, float* to) {
    const EmbeddingTable& table = m.tables[0];
    const int64_t E = m.embedding[0];
    if (table.is_int8)
        for (int64_t i = 0; i < E; i++) to[i] = table.int8_values[id * E + i] * table.scale[id];
    else memcpy(to, table.fp32_values.data + id * E, E * sizeof(float));
}

/// The encoded source of B sentences and the decoder's initial states, as engine/rnnsearch.py
/// computes them.
struct EncodedSource {
    Buffer<float> annotations, keys, key_exponentials, max_key;  // shapes as in SourceMemory
    Buffer<float> state;                                         // [B, D]
    EncodedSource(const RNNsearchModel& m, const Buffer<int64_t>& ids,
                  const Buffer<int64_t>& lengths, int64_t B, int64_t J) {
        const int64_t E = m.embedding[0], D = m.D, A = m.A;
        Buffer<float> x(B * J * E), summary(B * m.H);
        x.zeros(B * J * E);
        for (int64_t b = 0, from = 0; b < B; from += lengths[b++])
            for (int64_t j = 0; j < lengths[b]; j++) embed(m, ids[from + j], &x[(b * J + j) * E]);
        annotations.allocate(B * J * 2 * m.H);
        rnnsearch_encode(&m.encoder, x.data, lengths.data, B, J, annotations.data, summary.data, 1);
        keys.allocate(B * J * A);
        linear(&m.layers[KEY].matrix, annotations.data, B * J, keys.data, 1);
        key_exponentials.allocate(B * J * A);
        max_key.zeros(B);
        for (int64_t b = 0; b < B; b++)
            for (int64_t i = b * J * A; i < (b + 1) * J * A; i += LANES) {
                const Vec key = load(&keys[i]);
                for (int k = 0; k < LANES; k++) max_key[b] = max(max_key[b], fabsf(key[k]));
                store(&key_exponentials[i], vec_exp(key + key));
            }
        state.allocate(B * D);
        linear(&m.layers[INITIAL].matrix, summary.data, B, state.data, 1);
        for (int64_t i = 0; i < B * D; i += LANES) store(&state[i], vec_tanh(load(&state[i])));
    }
};

}  // namespace

/// Returns a model without arrays, or null if the sizes are invalid. encoder, state: not rounded
/// up.
WASM_EXPORT(rnnsearch_create)
RNNsearchModel* rnnsearch_create(int32_t dtype, int32_t encoder, int32_t state, int32_t pool,
                                 int32_t align, int32_t readout, int32_t source_words,
                                 int32_t target_words, int32_t source_embedding,
                                 int32_t target_embedding) {
    if (!in_range(dtype, FP32, INT8) || !in_range(pool, 1, 2) || align % UNIT_MULTIPLE ||
        readout % pool)
        return nullptr;
    const int32_t sizes[] = {encoder, state, align, readout, source_embedding, target_embedding};
    for (int32_t size : sizes)
        if (!in_range(size, 1, MAX_UNITS)) return nullptr;
    if (readout < pool || !valid_vocabularies(source_words, target_words)) return nullptr;
    RNNsearchModel* m = create_zeroed<RNNsearchModel>();
    if (!m) return nullptr;
    m->dtype = dtype;
    m->pool = pool;
    m->A = align;
    m->R = readout;
    m->H = (encoder + UNIT_MULTIPLE - 1) / UNIT_MULTIPLE * UNIT_MULTIPLE;
    m->D = (state + UNIT_MULTIPLE - 1) / UNIT_MULTIPLE * UNIT_MULTIPLE;
    m->words[0] = source_words;
    m->words[1] = target_words;
    m->embedding[0] = source_embedding;
    m->embedding[1] = target_embedding;
    return m;
}

WASM_EXPORT(rnnsearch_destroy) void rnnsearch_destroy(RNNsearchModel* m) { destroy(m); }

/// Sets one weight of a model, or one of its embedding tables; returns 0 if its size is wrong.
WASM_EXPORT(rnnsearch_set_array)
int32_t rnnsearch_set_array(RNNsearchModel* m, int32_t index, uint32_t outputs, uint32_t inputs,
                            const void* values, uint32_t value_count, const float* scale,
                            uint32_t scale_count, const float* bias, uint32_t bias_count) {
    if (!in_range(index, 0, ARRAYS - 1)) return 0;
    const Shape shape = m->shape(index);
    if (outputs != shape.outputs || inputs != shape.inputs || (bias_count && index >= TABLES))
        return 0;
    const bool ok = index >= TABLES
                        ? m->tables[index - TABLES].set(outputs, inputs, values, value_count, scale,
                                                        scale_count)
                        : m->layers[index].set(m->dtype, outputs, inputs, values, value_count,
                                               scale, scale_count, bias, bias_count);
    if (ok) m->received |= 1u << index;
    return ok;
}

/// Sets v_a [A], the last array of a model; returns 1 if the model is then complete.
WASM_EXPORT(rnnsearch_finish)
int32_t rnnsearch_finish(RNNsearchModel* m, const float* vector, uint32_t count) {
    if (count != m->A) return 0;
    memcpy(m->score_vector.allocate(count), vector, count * sizeof(float));
    m->received |= 1u << ARRAYS;
    if (!m->is_complete()) return 0;
    for (int d = 0; d < 2; d++)
        m->encoder.directions[d] = {m->layers[3 * d].matrix, m->layers[3 * d + 1].matrix,
                                    m->layers[3 * d + 2].matrix};
    m->encoder.size = m->H;
    const EmbeddingTable& target = m->tables[1];
    m->decoder = {m->layers[FROM_STATE].matrix,
                  m->layers[FROM_CONTEXT].matrix,
                  m->layers[CANDIDATE].matrix,
                  m->score_vector.data,
                  m->layers[FROM_WORD].matrix,
                  nullptr,
                  target.fp32(),
                  target.int8(),
                  target.scales(),
                  m->D,
                  m->A,
                  2 * m->H,
                  m->R,
                  m->pool};
    return 1;
}

/// Sets the length of each target token in bytes, which requests with given bytes need.
WASM_EXPORT(rnnsearch_set_token_bytes)
int32_t rnnsearch_set_token_bytes(RNNsearchModel* m, const int32_t* lengths, uint32_t count) {
    if (count != m->words[1] || !read_token_bytes(m->token_bytes, lengths, count)) return 0;
    m->received |= 1u << (ARRAYS + 1);
    return 1;
}

/// Runs a request (see Request). Returns 1; 0 if a score was NaN; -1 if the request is invalid.
WASM_EXPORT(rnnsearch_translate)
int32_t rnnsearch_translate(const RNNsearchModel* m, const int32_t* ints, uint32_t count,
                            double length_penalty, double coverage_penalty) {
    Request request;
    const bool knows_bytes = m->received >> (ARRAYS + 1) & 1;
    if (!m->is_complete() || !request.read(ints, count, length_penalty, coverage_penalty,
                                           m->words[0], m->words[1], knows_bytes))
        return -1;
    const int64_t B = request.B, J = request.J;
    EncodedSource source(*m, request.ids, request.lengths, B, J);
    const SourceMemory memory = {source.annotations.data,      source.keys.data,
                                 source.key_exponentials.data, source.max_key.data,
                                 request.lengths.data,         J};
    return request.run(
        J, m->token_bytes.data,
        [&](const SearchOptions& options, const BeamOptions& beam, const Hypotheses& hypotheses) {
            return rnnsearch_beam(&m->decoder, &m->layers[OUTPUT].matrix, &memory, &options, &beam,
                                  B, source.state.data, &hypotheses, 1);
        });
}
