// RNNsearch for a browser: a flat interface for JavaScript over decoding.cpp, compiled to WebAssembly. A model is made of its
// sizes and given its arrays one by one.
#include "../decoding.h"
#include "request.h"

extern "C" {
void encode(const EncoderWeights* w, const float* x, const int64_t* lengths, int64_t B, int64_t J, float* annotations,
            float* summary, int32_t threads);
int64_t beam(const DecoderWeights* w, const Matrix* output, const Sources* m, const Choice* choice, const Beam* beam,
             int64_t B, const float* state, const Hypotheses* made, int32_t threads);
}

namespace {

constexpr int64_t UNIT = 16;  // sizes are rounded up to this (engine/structs.py)

// The order of engine/rnnsearch.py: its MATRICES, then its TABLES.
enum Part { FORWARD, BACKWARD = 3, KEY = 6, INITIAL, FROM_STATE, FROM_CONTEXT, CANDIDATE, FROM_WORD, OUTPUT, TABLES, PARTS = TABLES + 2 };

struct Shape {
  int64_t outputs, inputs;
  int64_t size() const { return outputs * inputs; }
};

struct Model {
  int32_t kind, pool;
  int64_t H, D, A, R;             // units, rounded up: of one direction, of the state; of the keys, of the readout
  int64_t words[2], embedding[2];  // of source and target
  Layer layers[TABLES];
  Table tables[2] = {};
  Buffer<float> vector;
  Buffer<int64_t> sizes;  // the bytes of each target symbol
  uint32_t given = 0;     // the parts that are there, one bit each; then the vector's, then that of `sizes`
  EncoderWeights encoder;
  DecoderWeights decoder;

  Shape shape(int part) const {
    const int64_t G = 3 * D + R;
    switch (part) {
      case FORWARD: case BACKWARD: return {3 * H, embedding[0]};
      case FORWARD + 1: case BACKWARD + 1: return {2 * H, H};
      case FORWARD + 2: case BACKWARD + 2: return {H, H};
      case KEY: return {A, 2 * H};
      case INITIAL: return {D, H};
      case FROM_STATE: return {A + 2 * D + R, D};
      case FROM_CONTEXT: return {G, 2 * H};
      case CANDIDATE: return {D, D};
      case FROM_WORD: return {G, embedding[1]};
      case OUTPUT: return {words[1], R / pool};
      default: return {words[part - TABLES], embedding[part - TABLES]};
    }
  }
  bool whole() const { return (given | 1u << (PARTS + 1)) == (1u << (PARTS + 2)) - 1; }
};

void embed(const Model& m, int64_t id, float* to) {
  const Table& table = m.tables[0];
  const int64_t E = m.embedding[0];
  if (table.in_bytes)
    for (int64_t i = 0; i < E; i++) to[i] = table.bytes[id * E + i] * table.scale[id];
  else
    memcpy(to, table.numbers.data + id * E, E * sizeof(float));
}

// What the decoder reads of B sentences, and its first states (engine/rnnsearch.py).
struct Memory {
  Buffer<float> annotations, keys, exponentials, reach, state;
  Memory(const Model& m, const Buffer<int64_t>& ids, const Buffer<int64_t>& lengths, int64_t B, int64_t J) {
    const int64_t E = m.embedding[0], D = m.D, A = m.A;
    Buffer<float> x(B * J * E), summary(B * m.H);
    x.zeros(B * J * E);
    for (int64_t b = 0, from = 0; b < B; from += lengths[b++])
      for (int64_t j = 0; j < lengths[b]; j++) embed(m, ids[from + j], &x[(b * J + j) * E]);
    annotations.need(B * J * 2 * m.H);
    encode(&m.encoder, x.data, lengths.data, B, J, annotations.data, summary.data, 1);
    keys.need(B * J * A);
    linear(&m.layers[KEY].matrix, annotations.data, B * J, keys.data, 1);
    exponentials.need(B * J * A);
    reach.zeros(B);
    for (int64_t b = 0; b < B; b++)
      for (int64_t i = b * J * A; i < (b + 1) * J * A; i += LANES) {
        const Vec key = load(&keys[i]);
        for (int k = 0; k < LANES; k++) reach[b] = greater(reach[b], fabsf(key[k]));
        store(&exponentials[i], exponential(key + key));
      }
    state.need(B * D);
    linear(&m.layers[INITIAL].matrix, summary.data, B, state.data, 1);
    for (int64_t i = 0; i < B * D; i += LANES) store(&state[i], hyperbolic_tangent(load(&state[i])));
  }
};

}  // namespace

// A model of these sizes, whose arrays are given next; null where they are no sizes of one. encoder, state: not rounded up.
FOR_SCRIPTS(model) Model* model(int32_t kind, int32_t encoder, int32_t state, int32_t pool, int32_t align, int32_t readout,
                                int32_t source_words, int32_t target_words, int32_t source_embedding,
                                int32_t target_embedding) {
  if (!within(kind, FP32, INT8) || !within(pool, 1, 2) || align % UNIT || readout % pool) return nullptr;
  const int32_t sizes[] = {encoder, state, align, readout, source_embedding, target_embedding};
  for (int32_t size : sizes)
    if (!within(size, 1, MOST_UNITS)) return nullptr;
  if (readout < pool || !are_vocabularies(source_words, target_words)) return nullptr;
  Model* m = zeroed<Model>();
  if (!m) return nullptr;
  m->kind = kind, m->pool = pool, m->A = align, m->R = readout;
  m->H = (encoder + UNIT - 1) / UNIT * UNIT, m->D = (state + UNIT - 1) / UNIT * UNIT;
  m->words[0] = source_words, m->words[1] = target_words;
  m->embedding[0] = source_embedding, m->embedding[1] = target_embedding;
  return m;
}

FOR_SCRIPTS(forget) void forget(Model* m) { drop(m); }

// One weight of a model, or a table of embeddings. Returns whether it is as large as it must be.
FOR_SCRIPTS(lay) int32_t lay(Model* m, int32_t part, uint32_t outputs, uint32_t inputs, const void* values,
                             uint32_t numbers, const float* scale, uint32_t scales, const float* bias, uint32_t biases) {
  if (!within(part, 0, PARTS - 1)) return 0;
  const Shape shape = m->shape(part);
  if (outputs != shape.outputs || inputs != shape.inputs || (biases && part >= TABLES)) return 0;
  const bool laid = part >= TABLES
      ? m->tables[part - TABLES].lay(outputs, inputs, values, numbers, scale, scales)
      : m->layers[part].lay(m->kind, outputs, inputs, values, numbers, scale, scales, bias, biases);
  if (laid) m->given |= 1u << part;
  return laid;
}

// v_a, the last array of a model. Returns whether it is whole now.
FOR_SCRIPTS(finish) int32_t finish(Model* m, const float* vector, uint32_t numbers) {
  if (numbers != m->A) return 0;
  memcpy(m->vector.need(numbers), vector, numbers * sizeof(float));
  m->given |= 1u << PARTS;
  if (!m->whole()) return 0;
  for (int d = 0; d < 2; d++)
    m->encoder.direction[d] = {m->layers[3 * d].matrix, m->layers[3 * d + 1].matrix, m->layers[3 * d + 2].matrix};
  m->encoder.size = m->H;
  const Table& target = m->tables[1];
  m->decoder = {m->layers[FROM_STATE].matrix, m->layers[FROM_CONTEXT].matrix, m->layers[CANDIDATE].matrix,
                m->vector.data, m->layers[FROM_WORD].matrix, nullptr,
                target.in_fp32(), target.rows_of_bytes(), target.scales(), m->D, m->A, 2 * m->H, m->R, m->pool};
  return 1;
}

// The bytes of each target symbol, before anything is to be spelled.
FOR_SCRIPTS(spell) int32_t spell(Model* m, const int32_t* sizes, uint32_t count) {
  if (count != m->words[1] || !read_sizes(m->sizes, sizes, count)) return 0;
  m->given |= 1u << (PARTS + 1);
  return 1;
}

// Beam search (Request). Returns 1; 0 where scores are no numbers; -1 for a request that is none.
FOR_SCRIPTS(translate) int32_t translate(const Model* m, const int32_t* asked, uint32_t count, double length_penalty,
                                         double coverage_penalty) {
  Request request;
  const bool spells = m->given >> (PARTS + 1) & 1;
  if (!m->whole() || !request.read(asked, count, length_penalty, coverage_penalty, m->words[0], m->words[1], spells)) return -1;
  const int64_t B = request.B, J = request.J;
  Memory memory(*m, request.ids, request.lengths, B, J);
  const Sources sources = {memory.annotations.data, memory.keys.data, memory.exponentials.data, memory.reach.data,
                           request.lengths.data, J};
  return request.answered(J, m->sizes.data, [&](const Choice& choice, const Beam& asked, const Hypotheses& made) {
    return beam(&m->decoder, &m->layers[OUTPUT].matrix, &sources, &choice, &asked, B, memory.state.data, &made, 1);
  });
}
