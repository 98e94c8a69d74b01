// Matrix products y = x W^T + b with weights laid out once: panels of 2 * LANES outputs, in fp32, in bf16 pairs, or in
// bytes by fours. Each element is summed in the same order whatever the number of rows, so a batch never changes a result.
#pragma once
#include "vectors.h"

constexpr int PANEL = 2 * LANES;
enum Kind : int32_t { FP32 = 0, BF16 = 1, INT8 = 2 };
constexpr float GREATEST = 127.0f;  // magnitude of a weight or an input in int8
constexpr int32_t MIDDLE = 128;     // inputs in int8 are stored as bytes without a sign: 0 as this

// A weight in int8 is its row's scale times -127 .. 127; an input, its own row's scale times the byte less 128.
struct Matrix {
  const void* panels;  // fp32: [outputs / PANEL][inputs][PANEL]; bf16: [outputs / PANEL][inputs / 2][PANEL][2]; int8: by 4
  const float* bias;   // [outputs rounded up to panels]
  float* scale;        // [outputs rounded up to panels], of each row of weights; int8 alone, as the next
  int32_t* excess;     // what 128 in place of every input adds to the sum
  int64_t outputs;
  int64_t inputs;
  int32_t kind;
  int64_t panel_count() const { return (outputs + PANEL - 1) / PANEL; }
  int64_t each() const { return kind == FP32 ? 1 : kind == BF16 ? 2 : 4; }
  int64_t depth() const { return (inputs + each() - 1) / each(); }  // of the panels, in numbers of 4 bytes
  int64_t width() const { return depth() + (kind == INT8); }        // of a prepared row of x: the scale stands behind it
};

// All kinds step through 4 bytes of x a row: one fp32, a pair of bf16, or four bytes. In int8 the sum's bits are an int32's.
template <int KIND>
static inline Vec multiply_add(Vec sum, Vec w, float x) {
  if constexpr (KIND == FP32) return sum + w * x;
  if constexpr (KIND == INT8) {
#ifdef __AVX512VNNI__
    __m512i bytes = _mm512_castps_si512(_mm512_set1_ps(x));
    return (Vec)_mm512_dpbusd_epi32((__m512i)(__m512)sum, bytes, (__m512i)(__m512)w);
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
    __m256i bytes = _mm256_castps_si256(_mm256_set1_ps(x));
    return (Vec)_mm256_dpbusd_avx_epi32((__m256i)(__m256)sum, bytes, (__m256i)(__m256)w);
#else
    uint32_t bytes;
    std::memcpy(&bytes, &x, 4);
    VecInt total = (VecInt)sum, four = (VecInt)w;
    for (int i = 0; i < 4; i++) total += ((four << (24 - 8 * i)) >> 24) * (int32_t)((bytes >> (8 * i)) & 255);
    return (Vec)total;
#endif
  }
#ifdef __AVX512BF16__
  __m512 xs = _mm512_set1_ps(x);
  return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)(__m512i)xs, (__m512bh)(__m512i)(__m512)w);
#else
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  uint32_t even = bits << 16, odd = bits & 0xffff0000u;
  float a, b;
  std::memcpy(&a, &even, 4);
  std::memcpy(&b, &odd, 4);
  VecInt pair = (VecInt)w;
  return sum + (Vec)(pair << 16) * a + (Vec)(pair & (int32_t)0xffff0000u) * b;
#endif
}

// What a sum begins with, and what a sum of a row of x is.
template <int KIND>
static inline Vec first_sum(const Matrix& W, int64_t column) {
  if constexpr (KIND != INT8) return load(W.bias + column);
  return (Vec)(-(VecInt)load((const float*)(W.excess + column)));
}

template <int KIND>
static inline Vec last_sum(const Matrix& W, int64_t column, Vec sum, const float* x) {
  if constexpr (KIND != INT8) return sum;
  return __builtin_convertvector((VecInt)sum, Vec) * (load(W.scale + column) * x[W.depth()]) + load(W.bias + column);
}

static inline void store_some(float* y, Vec v, int64_t count) {
  if (count >= LANES) store(y, v);
  else for (int64_t i = 0; i < count; i++) y[i] = v[i];
}

// ROWS rows of x by PANELS panels, from panel p on.
template <int KIND, int ROWS, int PANELS>
static inline void tile(const Matrix& W, const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t p) {
  const int64_t depth = W.depth();
  const float* w = (const float*)W.panels + p * depth * PANEL;
  Vec sums[ROWS][PANELS * 2];
  for (int c = 0; c < PANELS * 2; c++) {
    Vec b = first_sum<KIND>(W, p * PANEL + c * LANES);
    for (int r = 0; r < ROWS; r++) sums[r][c] = b;
  }
  for (int64_t k = 0; k < depth; k++) {
    Vec ws[PANELS * 2];
#pragma GCC unroll 8
    for (int c = 0; c < PANELS * 2; c++) ws[c] = load(w + (c / 2) * depth * PANEL + k * PANEL + (c % 2) * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) {
      const float xs = x[r * x_stride + k];
#pragma GCC unroll 8
      for (int c = 0; c < PANELS * 2; c++) sums[r][c] = multiply_add<KIND>(sums[r][c], ws[c], xs);
    }
  }
  for (int r = 0; r < ROWS; r++)
    for (int c = 0; c < PANELS * 2; c++) {
      const int64_t column = p * PANEL + c * LANES;
      if (column >= W.outputs) continue;
      store_some(y + r * y_stride + column, last_sum<KIND>(W, column, sums[r][c], x + r * x_stride), W.outputs - column);
    }
}

#ifdef __AVX512F__
constexpr int TILE_ROWS = 12;
#else
constexpr int TILE_ROWS = 4;
#endif

template <int KIND, int ROWS>
static void rows_by_panels(const Matrix& W, const float* x, int64_t xs, float* y, int64_t ys, int64_t begin, int64_t end) {
  int64_t p = begin;
  if constexpr (ROWS <= 2)
    for (; p + 4 <= end; p += 4) tile<KIND, ROWS, 4>(W, x, xs, y, ys, p);
  if constexpr (ROWS > 2 && ROWS <= 5)
    for (; p + 2 <= end; p += 2) tile<KIND, ROWS, 2>(W, x, xs, y, ys, p);
  for (; p < end; p++) tile<KIND, ROWS, 1>(W, x, xs, y, ys, p);
}

template <int KIND, int ROWS>
static void last_rows(const Matrix& W, const float* x, int64_t xs, float* y, int64_t ys, int64_t begin, int64_t end, int64_t rows) {
  if (rows == ROWS) return rows_by_panels<KIND, ROWS>(W, x, xs, y, ys, begin, end);
  if constexpr (ROWS > 1) last_rows<KIND, ROWS - 1>(W, x, xs, y, ys, begin, end, rows);
}

template <int KIND>
static void product_of(const Matrix& W, const float* x, int64_t rows, float* y, int64_t y_stride, int64_t begin, int64_t end) {
  const int64_t xs = W.width();
  if (rows <= TILE_ROWS) return last_rows<KIND, TILE_ROWS>(W, x, xs, y, y_stride, begin, end, rows);
  for (int64_t p = begin; p < end; p++) {  // a panel stays in the cache while all rows pass by it
    int64_t r = 0;
    for (; r + TILE_ROWS <= rows; r += TILE_ROWS) tile<KIND, TILE_ROWS, 1>(W, x + r * xs, xs, y + r * y_stride, y_stride, p);
    if (r < rows) last_rows<KIND, TILE_ROWS>(W, x + r * xs, xs, y + r * y_stride, y_stride, p, p + 1, rows - r);
  }
}

// Outputs of panels begin .. end for all rows; x as `prepare` left it, rows of W.width() numbers of 4 bytes.
static inline void product(const Matrix& W, const float* x, int64_t rows, float* y, int64_t y_stride, int64_t begin, int64_t end) {
  if (rows == 0) return;
  if (W.kind == BF16) product_of<BF16>(W, x, rows, y, y_stride, begin, end);
  else if (W.kind == INT8) product_of<INT8>(W, x, rows, y, y_stride, begin, end);
  else product_of<FP32>(W, x, rows, y, y_stride, begin, end);
}

// The scale by which numbers become -127 .. 127: of their greatest magnitude; NaN if one of them is NaN or infinite.
static inline float scale_of(const float* x, int64_t count) {
  Vec most_of = all(0), odd = all(0);
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) {
    const Vec v = load(x + i);
    most_of = most(most_of, most(v, -v));
    odd += v * 0.0f;
  }
  float greatest = 0, rest = sum(odd);
  for (int k = 0; k < LANES; k++) greatest = std::max(greatest, most_of[k]);
  for (; i < count; i++) {
    greatest = std::max(greatest, std::abs(x[i]));
    rest += x[i] * 0.0f;
  }
  return (greatest > 0 ? greatest / GREATEST : 1.0f) + rest;
}

// One row of x in int8, its scale behind it.
static inline void prepare_bytes(const Matrix& W, const float* x, float* out) {
  const float scale = scale_of(x, W.inputs), inverse = scale == scale ? 1.0f / scale : 0.0f;
  uint8_t* bytes = (uint8_t*)out;
  int64_t i = 0;
#ifdef __AVX512F__
  for (; i + 16 <= W.inputs; i += 16) {
    __m512i n = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(inverse)));
    __m128i packed = _mm512_cvtepi32_epi8(_mm512_add_epi32(n, _mm512_set1_epi32(MIDDLE)));
    std::memcpy(bytes + i, &packed, 16);
  }
#endif
  for (; i < W.inputs; i++) bytes[i] = scale == scale ? (uint8_t)(std::lrint(x[i] * inverse) + MIDDLE) : MIDDLE;
  for (; i < 4 * W.depth(); i++) bytes[i] = MIDDLE;
  out[W.depth()] = scale;
}

// One row of x in the products' type, `out` of W.width() numbers of 4 bytes.
static inline void prepare(const Matrix& W, const float* x, float* out) {
  if (W.kind == INT8) return prepare_bytes(W, x, out);
  if (W.kind == FP32) {
    std::memcpy(out, x, W.inputs * 4);
    return;
  }
  uint16_t* halves = (uint16_t*)out;
  narrow(x, halves, W.inputs);
  if (W.inputs % 2) halves[W.inputs] = 0;
}
