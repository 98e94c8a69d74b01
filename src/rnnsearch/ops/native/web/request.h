// What the engine for browsers is given by scripts: weights, and requests for translations, which are lists of integers.
// Whatever they hold, nothing is read or written but what lies in them: sizes, symbols and places are checked here.
#pragma once

#include "../beam_search.h"

#define FOR_SCRIPTS(NAME) extern "C" __attribute__((export_name(#NAME)))

extern "C" {
void pack(const float* weight, const Matrix* W);
void pack_bytes(const int8_t* weight, const float* scale, const Matrix* W);
void linear(const Matrix* W, const float* x, int64_t rows, float* y, int32_t threads);
}

constexpr int64_t MOST_UNITS = 1 << 13;   // of a layer: some rows stand on the stack
constexpr int64_t MOST_WORDS = 1 << 20;   // of a vocabulary
constexpr int64_t MOST_ROWS = 1 << 10;    // hypotheses at a time
constexpr int64_t MOST_NUMBERS = 1 << 26;  // of weights of attention, or of scores, at a time
constexpr int64_t PAD = 0, UNK = 1, BOS = 2, EOS = 3;  // text/vocabulary.py

static inline bool within(int64_t x, int64_t least, int64_t most) { return least <= x && x <= most; }

static inline bool are_vocabularies(int64_t source, int64_t target) {
  return within(source, EOS + 1, MOST_WORDS) && within(target, EOS + 1, MOST_WORDS);
}

// A new thing all of whose parts are well when they are zero; null where there is no room.
template <class T>
T* zeroed() { return (T*)calloc(1, sizeof(T)); }

template <class T>
void drop(T* thing) {
  thing->~T();
  free(thing);
}

// Integers, one after the other.
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

// A weight [outputs, inputs] of so many numbers: bytes with a scale for each row, or fp32 where there are no scales; and its
// bias, if it has one.
struct Layer {
  Matrix matrix = {};
  Buffer<float> panels, bias, scale;
  Buffer<int32_t> excess;

  // Whether all of it has the sizes that it must have: it is laid out.
  bool lay(int64_t kind, int64_t outputs, int64_t inputs, const void* values, uint32_t numbers, const float* scales,
           uint32_t scale_count, const float* biases, uint32_t bias_count) {
    if (numbers != outputs * inputs || (scale_count && (scale_count != outputs || kind != INT8))) return false;
    if (bias_count && bias_count != outputs) return false;
    matrix.outputs = outputs, matrix.inputs = inputs, matrix.kind = int32_t(kind);
    const int64_t rounded = matrix.panel_count() * LANES;
    matrix.panels = panels.need(matrix.panel_count() * matrix.panel_size());
    matrix.bias = bias.zeros(rounded), matrix.scale = scale.zeros(rounded), matrix.excess = excess.zeros(rounded);
    if (bias_count) memcpy(matrix.bias, biases, bias_count * sizeof(float));
    if (scale_count) pack_bytes((const int8_t*)values, scales, &matrix);
    else pack((const float*)values, &matrix);
    return true;
  }
};

// Embeddings [words, size], of so many numbers, in bytes with a scale for each word or in fp32.
struct Table {
  bool in_bytes;
  Buffer<int8_t> bytes;
  Buffer<float> numbers, scale;

  const float* in_fp32() const { return in_bytes ? nullptr : numbers.data; }
  const int8_t* rows_of_bytes() const { return in_bytes ? bytes.data : nullptr; }
  const float* scales() const { return in_bytes ? scale.data : nullptr; }

  bool lay(int64_t words, int64_t size, const void* values, uint32_t count, const float* scale_of, uint32_t scale_count) {
    if (count != words * size || (scale_count && scale_count != words)) return false;
    in_bytes = scale_count;
    if (in_bytes) memcpy(bytes.need(count), values, count);
    else memcpy(numbers.need(count), values, count * sizeof(float));
    memcpy(scale.need(scale_count), scale_of, scale_count * sizeof(float));
    return true;
  }
};

// The bytes of each target symbol.
static inline bool read_sizes(Buffer<int64_t>& to, const int32_t* sizes, uint32_t count) {
  to.need(count);
  for (uint32_t i = 0; i < count; i++) {
    if (!within(sizes[i], 0, 1 << 20)) return false;
    to[i] = sizes[i];
  }
  return true;
}

// What the last search found: tokens [B, n, T], scores, alphas [B, n, T, J], lengths [B, n] and whether each is finished.
struct Answer {
  Buffer<int64_t> tokens, length, finished;
  Buffer<float> scores, alphas;
};
inline Answer answer;

// Beam search of B sentences (runtime/search.py). What is asked, in this order: B, beam, n_best, whether the norm is GNMT's,
// P, whether something is spelled; lengths [B], EOS in them, which fall; the most symbols of each translation [B]; the
// sentences' ids; P columns [B, P] to begin with, -1 behind the last; and, where something is spelled, places [B + 1], ways,
// way (beam_search.h).
struct Request {
  int64_t B, K, n, gnmt, P, spelled, J = 0, T = 0;
  double length_penalty, coverage_penalty;
  Buffer<int64_t> lengths, most, ids, forced, places, ways, way;

  // Whether it is one, to a model of so many source and target words; `spells`: whether their bytes are known.
  bool read(const int32_t* asked, uint32_t count, double by_length, double by_coverage, int64_t source_words, int64_t V,
            bool spells) {
    length_penalty = by_length, coverage_penalty = by_coverage;
    if (!(by_length >= 0 && by_length < 1e6 && by_coverage >= 0 && by_coverage < 1e6)) return false;
    Reader reader{asked, int64_t(count)};
    B = reader.next(1, MOST_ROWS), K = reader.next(1, MOST_ROWS), n = reader.next(1, K);
    gnmt = reader.next(0, 1), P = reader.next(0, 1 << 20), spelled = reader.next(0, 1);
    if (!reader.good || B * K > MOST_ROWS || B * K * V > MOST_NUMBERS) return false;
    reader.read(lengths, B, 2, 1 << 20);
    reader.read(most, B, 0, 1 << 22);
    if (!reader.good) return false;
    int64_t symbols = 0;
    for (int64_t b = 0; b < B; b++) {
      if (b && lengths[b] > lengths[b - 1]) return false;
      symbols += lengths[b], T = greater(T, most[b] + 1);
    }
    J = lengths[0];
    if (B * K * J > MOST_NUMBERS / T) return false;
    reader.read(ids, symbols, 0, source_words - 1);
    reader.read(forced, B * P, -1, V - 1);
    if (spelled) {
      reader.read(places, B + 1, 0, 1 << 24);
      if (!reader.good || !rises(places, B + 1)) return false;
      reader.read(ways, places[B] + 1, 0, 1 << 28);
      if (!reader.good || !rises(ways, places[B] + 1)) return false;
      reader.read(way, ways[places[B]], 0, V - 1);
    }
    return reader.good && !reader.left && (spells || !spelled);
  }

  // The answer of search(choice, beam, made), over `width` source positions: 1; 0 where scores are no numbers.
  template <class F>
  int32_t answered(int64_t width, const int64_t* sizes, F search) const {
    Buffer<uint8_t> covered(B * width);
    for (int64_t b = 0; b < B; b++)
      for (int64_t j = 0; j < width; j++) covered[b * width + j] = j < lengths[b] - 1;
    const int64_t banned[2] = {PAD, BOS};
    const Choice choice = {nullptr, banned, 2, BOS, EOS, most.data};
    const Beam beam = {K, n, gnmt, length_penalty, float(coverage_penalty), covered.data, forced.data, P,
                       spelled ? places.data : nullptr, ways.data, way.data, sizes};
    answer.tokens.zeros(B * n * T), answer.scores.zeros(B * n * T), answer.alphas.zeros(B * n * T * width);
    answer.length.zeros(B * n), answer.finished.zeros(B * n);
    const Hypotheses made = {T, answer.tokens.data, answer.scores.data, answer.alphas.data, answer.length.data,
                             answer.finished.data};
    return search(choice, beam, made) ? 1 : 0;
  }

 private:
  // From 0, each as great as the one before.
  static bool rises(const Buffer<int64_t>& places, int64_t count) {
    for (int64_t i = 1; i < count; i++)
      if (places[i] < places[i - 1]) return false;
    return places[0] == 0;
  }
};
