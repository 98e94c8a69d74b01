// Matrix products y = x W^T + b with weights laid out once: panels of 2 * LANES outputs, in fp32 or in bf16 pairs.
// Each element is summed in the same order whatever the number of rows, so a batch never changes a result.
#pragma once
#include "vectors.h"

constexpr int PANEL = 2 * LANES;
enum Kind : int32_t { FP32 = 0, BF16 = 1 };

struct Matrix {
  const void* panels;  // fp32: [outputs / PANEL][inputs][PANEL]; bf16: [outputs / PANEL][inputs / 2][PANEL][2]
  const float* bias;   // [outputs rounded up to panels]
  int64_t outputs;
  int64_t inputs;
  int32_t kind;
  int64_t panel_count() const { return (outputs + PANEL - 1) / PANEL; }
  int64_t depth() const { return kind == BF16 ? (inputs + 1) / 2 : inputs; }  // in numbers of 4 bytes
};

// Both kinds step through 4 bytes of x a row: one fp32, or a pair of bf16.
template <int KIND>
static inline Vec multiply_add(Vec sum, Vec w, float x) {
  if constexpr (KIND == FP32) return sum + w * x;
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
    Vec b = load(W.bias + p * PANEL + c * LANES);
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
      if (column < W.outputs) store_some(y + r * y_stride + column, sums[r][c], W.outputs - column);
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
  const int64_t xs = W.depth();
  if (rows <= TILE_ROWS) return last_rows<KIND, TILE_ROWS>(W, x, xs, y, y_stride, begin, end, rows);
  for (int64_t p = begin; p < end; p++) {  // a panel stays in the cache while all rows pass by it
    int64_t r = 0;
    for (; r + TILE_ROWS <= rows; r += TILE_ROWS) tile<KIND, TILE_ROWS, 1>(W, x + r * xs, xs, y + r * y_stride, y_stride, p);
    if (r < rows) last_rows<KIND, TILE_ROWS>(W, x + r * xs, xs, y + r * y_stride, y_stride, p, p + 1, rows - r);
  }
}

// Outputs of panels begin .. end for all rows; x as `prepare` left it, rows of W.depth() numbers of 4 bytes.
static inline void product(const Matrix& W, const float* x, int64_t rows, float* y, int64_t y_stride, int64_t begin, int64_t end) {
  if (rows == 0) return;
  if (W.kind == BF16) product_of<BF16>(W, x, rows, y, y_stride, begin, end);
  else product_of<FP32>(W, x, rows, y, y_stride, begin, end);
}

// One row of x in the products' type, `out` of W.depth() numbers of 4 bytes.
static inline void prepare(const Matrix& W, const float* x, float* out) {
  if (W.kind == FP32) {
    std::memcpy(out, x, W.inputs * 4);
    return;
  }
  uint16_t* halves = (uint16_t*)out;
  narrow(x, halves, W.inputs);
  if (W.inputs % 2) halves[W.inputs] = 0;
}
