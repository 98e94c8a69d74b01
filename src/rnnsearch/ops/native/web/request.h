// What JavaScript passes to the WebAssembly engine: weights, and translation requests, which are
// lists of integers.
//
// All of it is untrusted: sizes, tokens and offsets are checked here, so that no input makes the
// engine read or write out of bounds.
#pragma once

#include "../beam_search.h"

#define WASM_EXPORT(NAME) extern "C" __attribute__((export_name(#NAME)))

extern "C" {
void pack(const float* weight, const PackedMatrix* W);
void pack_int8(const int8_t* weight, const float* scale, const PackedMatrix* W);
void linear(const PackedMatrix* W, const float* x, int64_t rows, float* y, int32_t threads);
}

constexpr int64_t MAX_UNITS = 1 << 13;       // per layer: some rows are on the stack
constexpr int64_t MAX_VOCABULARY = 1 << 20;  // tokens
constexpr int64_t MAX_HYPOTHESES = 1 << 10;  // per batch
constexpr int64_t MAX_FLOATS = 1 << 26;      // of attention weights, or of scores, per batch
constexpr int64_t PAD = 0, UNK = 1, BOS = 2, EOS = 3;  // text/vocabulary.py

static inline bool in_range(int64_t x, int64_t low, int64_t high) { return low <= x && x <= high; }

static inline bool valid_vocabularies(int64_t source, int64_t target) {
    return in_range(source, EOS + 1, MAX_VOCABULARY) && in_range(target, EOS + 1, MAX_VOCABULARY);
}

/// Returns a new object of a type for which all zeros is a valid state; null if there is no memory
/// left.
template <class T>
T* create_zeroed() {
    return (T*)calloc(1, sizeof(T));
}

template <class T>
void destroy(T* object) {
    object->~T();
    free(object);
}

/// Reads integers one after the other; `ok` becomes false at the first one that is missing or out
/// of range.
struct IntReader {
    const int32_t* at;
    int64_t left;
    bool ok = true;
    int64_t next(int64_t low, int64_t high) {
        if (left < 1) return ok = false, low;
        left--;
        const int64_t value = *at++;
        if (!in_range(value, low, high)) return ok = false, low;
        return value;
    }
    void read(Buffer<int64_t>& to, int64_t count, int64_t low, int64_t high) {
        if (!ok || count > left) {
            ok = false;
            to.allocate(1);
            return;
        }
        to.allocate(count);
        for (int64_t i = 0; i < count; i++) to[i] = next(low, high);
    }
};

/// A packed weight [outputs, inputs] and its bias, with the memory that they are in.
struct Layer {
    PackedMatrix matrix = {};
    Buffer<float> panels, bias, scale;
    Buffer<int32_t> correction;

    /// Packs a weight, and returns false if an array has the wrong size.
    ///
    /// values: [outputs, inputs], int8 with a scale per row [outputs], or fp32 if scale_count is 0.
    /// biases: [outputs], or none.
    bool set(int64_t dtype, int64_t outputs, int64_t inputs, const void* values,
             uint32_t value_count, const float* scales, uint32_t scale_count, const float* biases,
             uint32_t bias_count) {
        if (value_count != outputs * inputs ||
            (scale_count && (scale_count != outputs || dtype != INT8)))
            return false;
        if (bias_count && bias_count != outputs) return false;
        matrix.outputs = outputs;
        matrix.inputs = inputs;
        matrix.dtype = int32_t(dtype);
        const int64_t rounded = matrix.panel_count() * LANES;
        matrix.panels = panels.allocate(matrix.panel_count() * matrix.panel_size());
        matrix.bias = bias.zeros(rounded);
        matrix.scale = scale.zeros(rounded);
        matrix.correction = correction.zeros(rounded);
        if (bias_count) memcpy(matrix.bias, biases, bias_count * sizeof(float));
        if (scale_count) pack_int8((const int8_t*)values, scales, &matrix);
        else pack((const float*)values, &matrix);
        return true;
    }
};

/// Embeddings [words, size], in int8 with a scale per word, or in fp32.
struct EmbeddingTable {
    bool is_int8;
    Buffer<int8_t> int8_values;
    Buffer<float> fp32_values, scale;

    const float* fp32() const { return is_int8 ? nullptr : fp32_values.data; }
    const int8_t* int8() const { return is_int8 ? int8_values.data : nullptr; }
    const float* scales() const { return is_int8 ? scale.data : nullptr; }

    /// Copies the table, and returns false if an array has the wrong size.
    bool set(int64_t words, int64_t size, const void* values, uint32_t value_count,
             const float* row_scale, uint32_t scale_count) {
        if (value_count != words * size || (scale_count && scale_count != words)) return false;
        is_int8 = scale_count;
        if (is_int8) memcpy(int8_values.allocate(value_count), values, value_count);
        else memcpy(fp32_values.allocate(value_count), values, value_count * sizeof(float));
        memcpy(scale.allocate(scale_count), row_scale, scale_count * sizeof(float));
        return true;
    }
};

/// Reads the length of each target token in bytes; returns false if one is out of range.
static inline bool read_token_bytes(Buffer<int64_t>& to, const int32_t* lengths, uint32_t count) {
    to.allocate(count);
    for (uint32_t i = 0; i < count; i++) {
        if (!in_range(lengths[i], 0, 1 << 20)) return false;
        to[i] = lengths[i];
    }
    return true;
}

/// Results of the last search, with the shapes of `Hypotheses`.
struct SearchResult {
    Buffer<int64_t> tokens, length, finished;
    Buffer<float> scores, alphas;
};
inline SearchResult result;

/// A request for a beam search of B sentences, as runtime/search.py makes it.
///
/// The integers are, in this order: B, beam, n_best, whether the length norm is GNMT's, P, whether
/// bytes are given; source lengths [B], EOS included, not increasing; maximum number of tokens of
/// each translation [B]; the sentences' source ids; P forced columns [B, P], -1 behind the last;
/// and, if bytes are given, byte_offsets [B + 1], allowed_offsets and allowed (see BeamOptions).
struct Request {
    int64_t B, K, n, gnmt_norm, P, has_bytes, J = 0, T = 0;
    double length_penalty, coverage_penalty;
    Buffer<int64_t> lengths, max_length, ids, forced, byte_offsets, allowed_offsets, allowed;

    /// Reads a request to a model with these vocabulary sizes, and returns false if it is invalid.
    ///
    /// knows_bytes: whether the lengths of the target tokens in bytes are known.
    bool read(const int32_t* ints, uint32_t count, double length_penalty_, double coverage_penalty_,
              int64_t source_words, int64_t V, bool knows_bytes) {
        length_penalty = length_penalty_;
        coverage_penalty = coverage_penalty_;
        if (!(length_penalty >= 0 && length_penalty < 1e6 && coverage_penalty >= 0 &&
              coverage_penalty < 1e6))
            return false;
        IntReader reader{ints, int64_t(count)};
        B = reader.next(1, MAX_HYPOTHESES);
        K = reader.next(1, MAX_HYPOTHESES);
        n = reader.next(1, K);
        gnmt_norm = reader.next(0, 1);
        P = reader.next(0, 1 << 20);
        has_bytes = reader.next(0, 1);
        if (!reader.ok || B * K > MAX_HYPOTHESES || B * K * V > MAX_FLOATS) return false;
        reader.read(lengths, B, 2, 1 << 20);
        reader.read(max_length, B, 0, 1 << 22);
        if (!reader.ok) return false;
        int64_t total = 0;
        for (int64_t b = 0; b < B; b++) {
            if (b && lengths[b] > lengths[b - 1]) return false;
            total += lengths[b];
            T = max(T, max_length[b] + 1);
        }
        J = lengths[0];
        if (B * K * J > MAX_FLOATS / T) return false;
        reader.read(ids, total, 0, source_words - 1);
        reader.read(forced, B * P, -1, V - 1);
        if (has_bytes) {
            reader.read(byte_offsets, B + 1, 0, 1 << 24);
            if (!reader.ok || !valid_offsets(byte_offsets, B + 1)) return false;
            reader.read(allowed_offsets, byte_offsets[B] + 1, 0, 1 << 28);
            if (!reader.ok || !valid_offsets(allowed_offsets, byte_offsets[B] + 1)) return false;
            reader.read(allowed, allowed_offsets[byte_offsets[B]], 0, V - 1);
        }
        return reader.ok && !reader.left && (knows_bytes || !has_bytes);
    }

    /// Calls search(options, beam, hypotheses) over `source_length` positions, and returns 1, or 0
    /// if a score was NaN.
    template <class F>
    int32_t run(int64_t source_length, const int64_t* token_bytes, F search) const {
        Buffer<uint8_t> coverage_mask(B * source_length);
        for (int64_t b = 0; b < B; b++)
            for (int64_t j = 0; j < source_length; j++)
                coverage_mask[b * source_length + j] = j < lengths[b] - 1;  // all but EOS
        const int64_t banned[2] = {PAD, BOS};
        const SearchOptions options = {nullptr, banned, 2, BOS, EOS, max_length.data};
        const BeamOptions beam = {K,
                                  n,
                                  gnmt_norm,
                                  length_penalty,
                                  float(coverage_penalty),
                                  coverage_mask.data,
                                  forced.data,
                                  P,
                                  has_bytes ? byte_offsets.data : nullptr,
                                  allowed_offsets.data,
                                  allowed.data,
                                  token_bytes};
        result.tokens.zeros(B * n * T);
        result.scores.zeros(B * n * T);
        result.alphas.zeros(B * n * T * source_length);
        result.length.zeros(B * n);
        result.finished.zeros(B * n);
        const Hypotheses hypotheses = {T,
                                       result.tokens.data,
                                       result.scores.data,
                                       result.alphas.data,
                                       result.length.data,
                                       result.finished.data};
        return search(options, beam, hypotheses) ? 1 : 0;
    }

  private:
    /// Returns true if offsets begin with 0 and do not decrease.
    static bool valid_offsets(const Buffer<int64_t>& offsets, int64_t count) {
        for (int64_t i = 1; i < count; i++)
            if (offsets[i] < offsets[i - 1]) return false;
        return offsets[0] == 0;
    }
};
