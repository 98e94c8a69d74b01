// The engine for a browser: a flat interface for JavaScript over decoding.cpp, compiled to WebAssembly. A model is made of
// its sizes and given its arrays one by one; a request is a list of integers. Whatever is given, nothing is read or
// written but what lies in it: sizes, symbols and places are checked here, before anything is done with them.
#include "../beam_search.h"
#include "../decoding.h"

#define FOR_SCRIPTS(NAME) extern "C" __attribute__((export_name(#NAME)))

extern "C" {
void pack(const float* weight, const Matrix* W);
void pack_bytes(const int8_t* weight, const float* scale, const Matrix* W);
void linear(const Matrix* W, const float* x, int64_t rows, float* y, int32_t threads);
void encode(const EncoderWeights* w, const float* x, const int64_t* lengths, int64_t B, int64_t J, float* annotations,
            float* summary, int32_t threads);
int64_t beam(const DecoderWeights* w, const Matrix* output, const Sources* m, const Choice* choice, const Beam* beam,
             int64_t B, const float* state, const Hypotheses* made, int32_t threads);
}

namespace {

constexpr int64_t UNIT = 16;              // sizes are rounded up to this (engine/packed.py)
constexpr int64_t MOST_UNITS = 1 << 13;   // of a layer: some rows stand on the stack
constexpr int64_t MOST_WORDS = 1 << 20;   // of a vocabulary
constexpr int64_t MOST_ROWS = 1 << 10;    // hypotheses at a time
constexpr int64_t MOST_NUMBERS = 1 << 26;  // of weights of attention, or of scores, at a time
constexpr int64_t PAD = 0, UNK = 1, BOS = 2, EOS = 3;  // text/vocabulary.py

// The order of engine/rnnsearch.py: its MATRICES, then its TABLES.
enum Part { FORWARD, BACKWARD = 3, KEY = 6, INITIAL, FROM_STATE, FROM_CONTEXT, CANDIDATE, FROM_WORD, OUTPUT, TABLES, PARTS = TABLES + 2 };

struct Shape {
  int64_t outputs, inputs;
  int64_t size() const { return outputs * inputs; }
};

struct Layer {
  Matrix matrix = {};
  Buffer<float> panels, bias, scale;
  Buffer<int32_t> excess;
};

struct Table {
  bool in_bytes;
  Buffer<int8_t> bytes;
  Buffer<float> numbers, scale;
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

struct Answer {
  int64_t B = 0, n = 0, T = 0, J = 0;
  Buffer<int64_t> tokens, length, finished;
  Buffer<float> scores, alphas;
};
Answer answer;

bool within(int64_t x, int64_t least, int64_t most) { return least <= x && x <= most; }

// Integers of a request, one after the other.
struct Reader {
  const int32_t* at;
  int64_t left;
  bool good = true;
  int64_t next(int64_t least, int64_t most) {
    if (left < 1) return good = false, least;
    left--;
    const int64_t found = *at++;
    if (!within(found, least, most)) return good = false, least;
    return found;
  }
  void read(Buffer<int64_t>& to, int64_t count, int64_t least, int64_t most) {
    if (!good || count > left) {
      good = false;
      to.need(1);
      return;
    }
    to.need(count);
    for (int64_t i = 0; i < count; i++) to[i] = next(least, most);
  }
};

// Rises from 0, or from what stands there first, to at most `most`.
bool rises(const Buffer<int64_t>& places, int64_t count, int64_t most) {
  for (int64_t i = 0; i < count; i++)
    if (places[i] < (i ? places[i - 1] : 0) || places[i] > most) return false;
  return places[0] == 0;
}

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

FOR_SCRIPTS(room) void* room(uint32_t bytes) { return malloc(bytes); }
FOR_SCRIPTS(release) void release(void* given) { free(given); }

// A model of these sizes, whose arrays are given next; null where they are no sizes of one. encoder, state: not rounded up.
FOR_SCRIPTS(model) Model* model(int32_t kind, int32_t encoder, int32_t state, int32_t pool, int32_t align, int32_t readout,
                                int32_t source_words, int32_t target_words, int32_t source_embedding,
                                int32_t target_embedding) {
  if (!within(kind, FP32, INT8) || !within(pool, 1, 2) || align % UNIT || readout % pool) return nullptr;
  const int32_t sizes[] = {encoder, state, align, readout, source_embedding, target_embedding};
  for (int32_t size : sizes)
    if (!within(size, 1, MOST_UNITS)) return nullptr;
  if (readout < pool || !within(source_words, EOS + 1, MOST_WORDS) || !within(target_words, EOS + 1, MOST_WORDS)) return nullptr;
  Model* m = (Model*)calloc(1, sizeof(Model));  // all of whose parts are well when they are zero
  if (!m) return nullptr;
  m->kind = kind, m->pool = pool, m->A = align, m->R = readout;
  m->H = (encoder + UNIT - 1) / UNIT * UNIT, m->D = (state + UNIT - 1) / UNIT * UNIT;
  m->words[0] = source_words, m->words[1] = target_words;
  m->embedding[0] = source_embedding, m->embedding[1] = target_embedding;
  return m;
}

FOR_SCRIPTS(forget) void forget(Model* m) {
  m->~Model();
  free(m);
}

// One weight [outputs, inputs] of so many numbers: bytes with a scale for each row, or fp32 where there are no scales; and
// its bias, if it has one. Returns whether it is as large as it must be.
FOR_SCRIPTS(lay) int32_t lay(Model* m, int32_t part, uint32_t outputs, uint32_t inputs, const void* values,
                             uint32_t numbers, const float* scale, uint32_t scales, const float* bias, uint32_t biases) {
  if (!within(part, 0, PARTS - 1)) return 0;
  const Shape shape = m->shape(part);
  if (outputs != shape.outputs || inputs != shape.inputs || numbers != shape.size()) return 0;
  if (scales && scales != shape.outputs) return 0;
  if (biases && (part >= TABLES || biases != shape.outputs)) return 0;
  if (scales && part < TABLES && m->kind != INT8) return 0;
  m->given |= 1u << part;
  if (part >= TABLES) {
    Table& table = m->tables[part - TABLES];
    table.in_bytes = scales;
    if (scales) memcpy(table.bytes.need(numbers), values, numbers);
    else memcpy(table.numbers.need(numbers), values, numbers * sizeof(float));
    memcpy(table.scale.need(scales), scale, scales * sizeof(float));
    return 1;
  }
  Layer& layer = m->layers[part];
  Matrix& W = layer.matrix;
  W.outputs = shape.outputs, W.inputs = shape.inputs, W.kind = m->kind;
  const int64_t rounded = W.panel_count() * LANES;
  W.panels = layer.panels.need(W.panel_count() * W.panel_size());
  W.bias = layer.bias.zeros(rounded), W.scale = layer.scale.zeros(rounded), W.excess = layer.excess.zeros(rounded);
  if (biases) memcpy(W.bias, bias, biases * sizeof(float));
  if (scales) pack_bytes((const int8_t*)values, scale, &W);
  else pack((const float*)values, &W);
  return 1;
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
  const bool bytes = target.in_bytes;
  m->decoder = {m->layers[FROM_STATE].matrix, m->layers[FROM_CONTEXT].matrix, m->layers[CANDIDATE].matrix,
                m->vector.data, m->layers[FROM_WORD].matrix, nullptr,
                bytes ? nullptr : target.numbers.data, bytes ? target.bytes.data : nullptr,
                bytes ? target.scale.data : nullptr, m->D, m->A, 2 * m->H, m->R, m->pool};
  return 1;
}

// The bytes of each target symbol, before anything is to be spelled.
FOR_SCRIPTS(spell) int32_t spell(Model* m, const int32_t* sizes, uint32_t count) {
  if (count != m->words[1]) return 0;
  m->sizes.need(count);
  for (uint32_t i = 0; i < count; i++) {
    if (!within(sizes[i], 0, 1 << 20)) return 0;
    m->sizes[i] = sizes[i];
  }
  m->given |= 1u << (PARTS + 1);
  return 1;
}

// Beam search of B sentences (runtime/search.py). What is asked, in this order: B, beam, n_best, whether the norm is GNMT's,
// P, whether something is spelled; lengths [B], EOS in them, which fall; the most symbols of each translation [B]; the
// sentences' ids; P columns [B, P] to begin with, -1 behind the last; and, where something is spelled, places [B + 1], ways,
// way (beam_search.h). Returns 1; 0 where scores are no numbers; -1 for a request that is none.
FOR_SCRIPTS(translate) int32_t translate(const Model* m, const int32_t* asked, uint32_t count, double length_penalty,
                                         double coverage_penalty) {
  answer.B = 0;
  if (!m->whole() || !(length_penalty >= 0 && length_penalty < 1e6 && coverage_penalty >= 0 && coverage_penalty < 1e6)) return -1;
  Reader reader{asked, int64_t(count)};
  const int64_t B = reader.next(1, MOST_ROWS), K = reader.next(1, MOST_ROWS), n = reader.next(1, K), V = m->words[1];
  const int64_t gnmt = reader.next(0, 1), P = reader.next(0, 1 << 20), spelled = reader.next(0, 1);
  if (!reader.good || B * K > MOST_ROWS || B * K * V > MOST_NUMBERS) return -1;
  Buffer<int64_t> lengths, most, ids, forced, places, ways, way;
  reader.read(lengths, B, 2, 1 << 20);
  reader.read(most, B, 0, 1 << 22);
  if (!reader.good) return -1;
  int64_t symbols = 0, T = 0;
  for (int64_t b = 0; b < B; b++) {
    if (b && lengths[b] > lengths[b - 1]) return -1;
    symbols += lengths[b], T = greater(T, most[b] + 1);
  }
  const int64_t J = lengths[0];
  if (B * K * J > MOST_NUMBERS / T) return -1;
  reader.read(ids, symbols, 0, m->words[0] - 1);
  reader.read(forced, B * P, -1, V - 1);
  if (spelled) {
    reader.read(places, B + 1, 0, 1 << 24);
    if (!reader.good || !rises(places, B + 1, 1 << 24)) return -1;
    const int64_t bytes = places[B];
    reader.read(ways, bytes + 1, 0, 1 << 28);
    if (!reader.good || !rises(ways, bytes + 1, 1 << 28)) return -1;
    const int64_t all_ways = ways[bytes];
    reader.read(way, all_ways, 0, V - 1);
    if (!(m->given >> (PARTS + 1) & 1)) return -1;
  }
  if (!reader.good || reader.left) return -1;

  Memory memory(*m, ids, lengths, B, J);
  Buffer<uint8_t> covered(B * J);
  for (int64_t b = 0; b < B; b++)
    for (int64_t j = 0; j < J; j++) covered[b * J + j] = j < lengths[b] - 1;
  const int64_t banned[2] = {PAD, BOS};
  const Choice choice = {nullptr, banned, 2, BOS, EOS, most.data};
  const Beam beamed = {K, n, gnmt, length_penalty, float(coverage_penalty), covered.data, forced.data, P,
                       spelled ? places.data : nullptr, ways.data, way.data, m->sizes.data};
  const Sources sources = {memory.annotations.data, memory.keys.data, memory.exponentials.data, memory.reach.data,
                           lengths.data, J};
  answer.tokens.zeros(B * n * T), answer.scores.zeros(B * n * T), answer.alphas.zeros(B * n * T * J);
  answer.length.zeros(B * n), answer.finished.zeros(B * n);
  const Hypotheses made = {T, answer.tokens.data, answer.scores.data, answer.alphas.data, answer.length.data,
                           answer.finished.data};
  if (!beam(&m->decoder, &m->layers[OUTPUT].matrix, &sources, &choice, &beamed, B, memory.state.data, &made, 1)) return 0;
  answer.B = B, answer.n = n, answer.T = T, answer.J = J;
  return 1;
}

// What was found: tokens [B, n, T], scores, alphas [B, n, T, J], lengths [B, n] and whether each is finished.
FOR_SCRIPTS(tokens) const int64_t* tokens() { return answer.tokens.data; }
FOR_SCRIPTS(scores) const float* scores() { return answer.scores.data; }
FOR_SCRIPTS(alphas) const float* alphas() { return answer.alphas.data; }
FOR_SCRIPTS(lengths) const int64_t* lengths() { return answer.length.data; }
FOR_SCRIPTS(finished) const int64_t* finished() { return answer.finished.data; }
