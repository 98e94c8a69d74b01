// Any recurrent model for a browser: a flat interface for JavaScript over search.cpp. Scripts read the file's program
// (engine/program.py), and do what stands around cells, layers and search; the ranges of every step are checked here.
#include "../decoder.h"
#include "../source_features.h"
#include "request.h"

extern "C" {
int64_t decoder_beam(const Decoder* d, const Matrix* output, const Batch* m, const Choice* choice, const Beam* beam,
                     int64_t B, const float* state, const Hypotheses* made, int32_t threads);
void cell_sequence(const Decoder* d, const int64_t* lengths, int64_t B, int64_t J, int64_t backward, const float* x,
                   float* state, float* outputs, int32_t threads);
}

namespace {

// Of engine/program.py.
constexpr int64_t MOST = 1 << 20;         // of any size
constexpr int64_t MOST_INPUTS = 1 << 14;  // numbers of an embedded word
constexpr int64_t MOST_PARTS = 1 << 12;   // of a step; and layers and steps of a model
constexpr int64_t PLACES = 8;             // of a part

enum Row : uint8_t { SUMS, VALUES, READS, INPUTS };

// Which `at` of a part begins a range of which row, and how many times its size.
struct Range {
  What what;
  uint8_t at;
  Row row;
  uint8_t times = 1;
  bool optional = false;  // may be -1
};
constexpr Range RANGES[] = {
    {INPUT, 0, SUMS}, {INPUT, 1, INPUTS},
    {READ, 0, READS}, {READ, 1, VALUES}, {READ, 2, VALUES, 1, true},
    {PRODUCT, 0, SUMS},
    {SIGMOID, 0, VALUES}, {SIGMOID, 1, SUMS}, {SIGMOID, 2, VALUES, 1, true},
    {TANH, 0, VALUES}, {TANH, 1, SUMS}, {TANH, 2, VALUES, 1, true},
    {GRU, 0, VALUES}, {GRU, 1, VALUES}, {GRU, 2, SUMS}, {GRU, 3, VALUES}, {GRU, 4, VALUES}, {GRU, 5, VALUES, 1, true},
    {LSTM, 0, VALUES}, {LSTM, 1, VALUES}, {LSTM, 2, VALUES, 4}, {LSTM, 3, SUMS, 4}, {LSTM, 4, VALUES}, {LSTM, 5, VALUES},
    {ADDITIVE, 1, SUMS}, {ADDITIVE, 2, VALUES}, {DOT, 1, VALUES},
    {ADD, 0, VALUES}, {ADD, 1, VALUES}, {ADD, 2, VALUES},
    {NORM, 0, SUMS}, {NORM, 1, SUMS}, {NORM, 2, VALUES}, {CENTRE, 1, VALUES}, {CLOCK, 0, SUMS},
    {MAXOUT, 0, VALUES}, {MAXOUT, 1, SUMS, 2}, {BEND, 0, VALUES}, {BEND, 1, VALUES},
    {SSRU, 0, VALUES}, {SSRU, 1, VALUES}, {SSRU, 2, VALUES}, {SSRU, 3, SUMS, 2}, {SSRU, 4, VALUES}, {SSRU, 5, VALUES},
};

// Things that are numbered as they come, and go with their owner.
template <class T>
struct Numbered {
  T* each[MOST_PARTS] = {};
  int64_t count = 0;

  ~Numbered() {
    for (int64_t n = 0; n < count; n++) drop(each[n]);
  }
  T* of(int64_t number) const { return within(number, 0, count - 1) ? each[number] : nullptr; }
  // A new one; null where there are too many.
  T* more() {
    T* made = count < MOST_PARTS ? zeroed<T>() : nullptr;
    if (made) each[count++] = made;
    return made;
  }
  // The number of the last one; where it is no good it goes, and -1.
  int32_t kept(bool good) {
    if (good) return int32_t(count - 1);
    drop(each[--count]);
    return -1;
  }
};

// A step of a cell or of the decoder, with what it reads.
struct Machine {
  Decoder step;
  Buffer<Part> parts;
  Buffer<float> bias, own, vector;
  Buffer<int64_t> states;
  Buffer<Feature> features;
  Part readout;
  bool needs_centres;

  int64_t room(Row row) const {
    switch (row) {
      case SUMS: return step.sums_size;
      case VALUES: return step.values_size;
      case READS: return step.reads_size;
      default: return step.x_size;
    }
  }
  int64_t row_size() const { return step.sums_size + 2 * step.values_size + step.reads_size; }
  bool holds(int64_t begin, int64_t size, Row row) const { return 0 <= begin && begin <= room(row) - size; }
};

struct Network {
  int64_t words[2], embedding;  // of source and target; of target words
  Table targets;
  Numbered<Layer> layers;
  Numbered<Machine> machines;
  Buffer<int64_t> sizes;  // the bytes of each target symbol
  bool spells;
  Buffer<float> made, state;  // what was asked for last
};

template <class T>
bool copied(Buffer<T>& to, const T* from, uint32_t count, int64_t wanted) {
  if (count != wanted) return false;
  memcpy(to.need(wanted), from, wanted * sizeof(T));
  return true;
}

bool read_features(Machine& m, Reader& said) {
  Features& all = m.step.features;
  all.count = said.next(0, MOST_PARTS);
  if (!said.good) return false;
  all.each = m.features.zeros(all.count);
  for (int64_t n = 0; n < all.count; n++) {
    Feature& f = m.features[n];
    f.units = said.next(0, MOST_INPUTS), f.neighbours = said.next(0, MOST_PARTS), f.keeps = said.next(INT32_MIN, INT32_MAX);
    f.fixed = said.next(INT32_MIN, INT32_MAX), f.kept = said.next(INT32_MIN, INT32_MAX);
    if (f.units && !(m.holds(f.fixed, prepared_of(f), SUMS) && m.holds(f.kept, prepared_of(f), VALUES))) return false;
    all.width += width_of(f), all.memory += memory_of(f), all.prepared += prepared_of(f);
  }
  return said.good && (!all.count || (m.step.heads == 1 && m.vector.size));
}

// Whether all that a part reads and writes lies in its rows; `own`: how many numbers it has of its own.
bool fits(const Machine& m, const Part& p, const Layer* layer, int64_t own) {
  const Decoder& d = m.step;
  for (const Range& range : RANGES)
    if (range.what == p.what && !(range.optional && p.at[range.at] == -1) &&
        !m.holds(p.at[range.at], p.size * range.times, range.row))
      return false;
  switch (p.what) {
    case PRODUCT:
      return layer && layer->matrix.outputs == p.size && layer->matrix.inputs == p.at[2] && m.holds(p.at[1], p.at[2], READS);
    case GRU: return p.at[5] < 0 || (m.holds(p.at[1], 2 * p.size, VALUES) && m.holds(p.at[6], p.size, SUMS));
    case NORM: return own == 2 * p.size && m.holds(p.at[3], 1, VALUES);
    case CENTRE: return own == p.size && m.holds(p.at[0], 1, VALUES);
    case CLOCK: return own == p.size;
    case ADDITIVE: case DOT:
      return p.size == d.key && m.holds(p.at[0], d.annotation, VALUES) && within(p.at[3], -1, d.values_size - 1) &&
             (p.what == ADDITIVE) == (m.vector.size > 0) &&
             own == (d.features.count ? own_weights(d.features, d.key) : 0);
  }
  return true;
}

// Its parts: what, size, before, the layer of a product, where its own numbers begin and how many they are, then PLACES.
bool read_parts(const Network& net, Machine& m, Reader& said) {
  Decoder& d = m.step;
  d.parts = said.next(0, MOST_PARTS);
  if (!said.good) return false;
  d.part = m.parts.zeros(d.parts);
  int64_t attending = 0;
  for (int64_t n = 0; n < d.parts; n++) {
    Part& p = m.parts[n];
    p.what = said.next(INPUT, SSRU), p.size = said.next(1, MOST), p.before = said.next(0, 255);
    const Layer* layer = net.layers.of(said.next(-1, MOST_PARTS));
    const int64_t begin = said.next(0, m.own.size), own = said.next(0, m.own.size);
    for (int64_t& at : p.at) at = said.next(-1, INT32_MAX);
    if (!said.good || begin + own > m.own.size || !fits(m, p, layer, own)) return false;
    p.weight = p.what == PRODUCT ? (const void*)&layer->matrix : own ? &m.own[begin] : nullptr;
    if (p.what != ADDITIVE && p.what != DOT) continue;
    attending++;
    m.needs_centres = d.reach >= 0 && p.at[3] < 0;
  }
  return attending == (d.key > 0);
}

// The layer that its words go through, and where the output layer begins to read.
bool read_words(const Network& net, Machine& m, Reader& said) {
  Decoder& d = m.step;
  const Layer* words = net.layers.of(said.next(-1, MOST_PARTS));
  m.readout.what = READ, m.readout.at[0] = said.next(-1, MOST);
  d.readout = &m.readout;
  if (!words) return said.good;
  const Table& table = net.targets;
  d.from_word = &words->matrix;
  d.embeddings = table.in_fp32(), d.bytes = table.rows_of_bytes(), d.scales = table.scales();
  return said.good && words->matrix.outputs == d.x_size && words->matrix.inputs == net.embedding;
}

// The sizes of its rows and of what it attends to (a key of 0: nothing), and its states.
bool read_shape(Machine& m, Reader& said) {
  Decoder& d = m.step;
  int64_t* const sizes[] = {&d.x_size, &d.sums_size, &d.values_size, &d.reads_size, &d.key, &d.annotation};
  for (int64_t* size : sizes) *size = said.next(0, MOST);
  d.heads = said.next(1, MOST), d.reach = said.next(-1, MOST), d.states = said.next(1, MOST_PARTS);
  if (!said.good || (d.key && (d.key % d.heads || d.annotation % d.heads || !d.annotation))) return false;
  said.read(m.states, 2 * d.states, 0, MOST);
  for (int64_t n = 0; n < d.states && said.good; n++) {
    if (m.states[2 * n + 1] < 1 || !m.holds(m.states[2 * n], m.states[2 * n + 1], VALUES)) return false;
    d.state_size += m.states[2 * n + 1];
  }
  d.state = m.states.data, d.state_size++;
  return said.good;
}

}  // namespace

// A model of so many words, with the embeddings of the target's [target_words, embedding]; null where they are none.
FOR_SCRIPTS(network) Network* network(uint32_t source_words, uint32_t target_words, uint32_t embedding, const void* values,
                                      uint32_t numbers, const float* scale, uint32_t scales) {
  if (!are_vocabularies(source_words, target_words) || !within(embedding, 1, MOST_INPUTS)) return nullptr;
  Network* net = zeroed<Network>();
  if (!net) return nullptr;
  net->words[0] = source_words, net->words[1] = target_words, net->embedding = embedding;
  if (net->targets.lay(target_words, embedding, values, numbers, scale, scales)) return net;
  drop(net);
  return nullptr;
}

FOR_SCRIPTS(dismiss) void dismiss(Network* net) { drop(net); }

// One more layer [outputs, inputs]: its number, or -1 where it is none.
FOR_SCRIPTS(layer) int32_t layer(Network* net, int32_t kind, uint32_t outputs, uint32_t inputs, const void* values,
                                 uint32_t numbers, const float* scale, uint32_t scales, const float* bias, uint32_t biases) {
  if (!within(kind, FP32, INT8) || !within(outputs, 1, MOST) || !within(inputs, 1, MOST)) return -1;
  Layer* made = net->layers.more();
  return made ? net->layers.kept(made->lay(kind, outputs, inputs, values, numbers, scale, scales, bias, biases)) : -1;
}

// One more step: its number, or -1. What is said of it, in this order: its sizes and states (read_shape), the layer that its
// words go through and where the output layer begins to read (-1 both, of a cell), its features, its parts. bias: what its
// sums begin with; own: what its parts have of their own; vector: v_a of an additive score, else nothing.
FOR_SCRIPTS(machine) int32_t machine(Network* net, double scale, double spread, const int32_t* what, uint32_t count,
                                     const float* bias, uint32_t biases, const float* own, uint32_t owns,
                                     const float* vector, uint32_t vectors) {
  Machine* m = net->machines.more();
  if (!m) return -1;
  Reader said{what, int64_t(count)};
  Decoder& d = m->step;
  auto good = [&] {
    if (!(fabs(scale) <= MOST && spread >= 0 && spread <= MOST) || !read_shape(*m, said)) return false;
    d.scale = float(scale), d.spread = float(spread);
    if (!read_words(*net, *m, said) || !copied(m->bias, bias, biases, d.sums_size)) return false;
    if (!copied(m->own, own, owns, owns) || (vectors && !copied(m->vector, vector, vectors, d.key))) return false;
    d.bias = m->bias.data, d.vector = m->vector.data;
    return read_features(*m, said) && read_parts(*net, *m, said) && !said.left;
  };
  return net->machines.kept(good());
}

// A layer's outputs of rows of so many numbers; null where they are no rows.
FOR_SCRIPTS(apply) const float* apply(Network* net, int32_t layer, const float* x, uint32_t numbers) {
  const Layer* own = net->layers.of(layer);
  if (!own || numbers % own->matrix.inputs) return nullptr;
  const int64_t rows = numbers / own->matrix.inputs;
  linear(&own->matrix, x, rows, net->made.need(rows * own->matrix.outputs), 1);
  return net->made.data;
}

// A cell over B sentences of inputs x [B, J, x_size], J as many as there are: its outputs [B, J, D], 0 behind their lengths,
// which fall, and its last states, [B, S] with a number behind each; null where they do not fit.
FOR_SCRIPTS(sequence) const float* sequence(Network* net, int32_t machine, int32_t backward, const float* x, uint32_t numbers,
                                            const int32_t* given, uint32_t B) {
  const Machine* m = net->machines.of(machine);
  if (!m || m->step.key || !m->step.x_size || !within(B, 1, MOST_ROWS) || numbers % (B * m->step.x_size)) return nullptr;
  const int64_t J = numbers / (B * m->step.x_size), D = m->step.state[1], S = m->step.state_size;
  if (B * J * D > MOST_NUMBERS || B * m->row_size() > MOST_NUMBERS) return nullptr;
  Buffer<int64_t> lengths(B);
  for (uint32_t b = 0; b < B; b++) {
    lengths[b] = given[b];
    if (!within(given[b], 1, b ? lengths[b - 1] : J)) return nullptr;
  }
  net->made.zeros(B * J * D), net->state.zeros(B * S);
  cell_sequence(&m->step, lengths.data, B, J, backward, x, net->state.data, net->made.data, 1);
  return net->made.data;
}
FOR_SCRIPTS(last_states) const float* last_states(const Network* net) { return net->state.data; }

// The bytes of each target symbol, before anything is to be spelled.
FOR_SCRIPTS(spelled) int32_t spelled(Network* net, const int32_t* sizes, uint32_t count) {
  return net->spells = count == net->words[1] && read_sizes(net->sizes, sizes, count);
}

// Whether it is a request, before its sentences are encoded: 1 or -1.
FOR_SCRIPTS(asks) int32_t asks(const Network* net, const int32_t* asked, uint32_t count) {
  Request request;
  return request.read(asked, count, 0, 0, net->words[0], net->words[1], net->spells) ? 1 : -1;
}

// Beam search (Request, whose ids are not read) with a step and an output layer: over keys [B, J, A], annotations [B, J, H],
// mask [B, J], centres [B, J] or none, what features prepare [B, J, P], and states: what is remembered of each of J positions,
// the first states, t. Returns 1; 0 where scores are no numbers; -1 for a request that is none.
FOR_SCRIPTS(search) int32_t search(const Network* net, int32_t machine, int32_t output, double length_penalty,
                                   double coverage_penalty, const int32_t* asked, uint32_t count, const float* keys,
                                   uint32_t key_numbers, const float* annotations, uint32_t annotation_numbers,
                                   const uint8_t* mask, uint32_t mask_bytes, const float* centres, uint32_t centre_numbers,
                                   const float* prepared, uint32_t prepared_numbers, const float* state, uint32_t states) {
  const Machine* m = net->machines.of(machine);
  const Layer* layer = net->layers.of(output);
  Request request;
  if (!m || !layer || layer->matrix.outputs != net->words[1] || !m->step.from_word) return -1;
  if (m->readout.at[0] < 0 || !m->holds(m->readout.at[0], layer->matrix.inputs, READS)) return -1;
  if (!request.read(asked, count, length_penalty, coverage_penalty, net->words[0], net->words[1], net->spells)) return -1;
  const Decoder& d = m->step;
  const int64_t B = request.B, rows = B * request.K, width = d.key ? request.J : 0, places = B * width;
  const int64_t S = width * d.features.memory + d.state_size;
  if (rows * (m->row_size() + S) > MOST_NUMBERS || rows * width * greater(d.features.width, d.heads) > MOST_NUMBERS) return -1;
  if (key_numbers != places * d.key || annotation_numbers != places * d.annotation || mask_bytes != places) return -1;
  if (prepared_numbers != places * d.features.prepared || states != B * S) return -1;
  if (centre_numbers != places && (centre_numbers || m->needs_centres)) return -1;
  Buffer<float> first;
  copied(first, state, states, states);
  for (int64_t b = 1; b <= B; b++) first[b * S - 1] = 0;  // t
  const Batch batch = {keys, annotations, mask, centre_numbers ? centres : nullptr, prepared, width, centre_numbers ? width : 0};
  return request.answered(width, net->sizes.data, [&](const Choice& choice, const Beam& asked, const Hypotheses& made) {
    return decoder_beam(&d, &layer->matrix, &batch, &choice, &asked, B, first.data, &made, 1);
  });
}
