// Shared by the property tests of the native code: reproducible random values, rounding, and
// comparison with references that are computed by simple loops in fp64.
#pragma once

#include <stdio.h>

#include <vector>

#include "greedy_search.h"
#include "recurrence.h"
#include "rnnsearch.h"

using Doubles = std::vector<double>;

constexpr Index THREADS = 3;
constexpr double FP32_TOLERANCE = 2e-5;  // relative error of a whole tensor
constexpr double BF16_TOLERANCE = 2e-2;

extern int failures;

/// Returns a uniform random number in -1 .. 1 that fp32 can represent; the sequence is the same in
/// every run.
inline double random_uniform() {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return float(int32_t(state >> 32)) / 2147483648.0f;
}

inline bfloat16 to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return {uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
inline double to_double(bfloat16 x) {
    const uint32_t bits = uint32_t(x.bits) << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline double to_double(float x) { return x; }
inline void assign(float& to, double x) { to = float(x); }
inline void assign(bfloat16& to, double x) { to = to_bf16(float(x)); }

/// Returns random values that type T can represent.
template <class T>
Doubles random_values(Index count, double scale = 1) {
    Doubles values(count);
    for (double& x : values) {
        T rounded;
        assign(rounded, random_uniform() * scale);
        x = to_double(rounded);
    }
    return values;
}
template <class T>
std::vector<T> from_doubles(const Doubles& x) {
    std::vector<T> values(x.size());
    for (size_t i = 0; i < x.size(); i++) assign(values[i], x[i]);
    return values;
}
template <class T>
Doubles to_doubles(const T* x, size_t count) {
    Doubles values(count);
    for (size_t i = 0; i < count; i++) values[i] = to_double(x[i]);
    return values;
}
template <class T>
Doubles to_doubles(const std::vector<T>& x) {
    return to_doubles(x.data(), x.size());
}

/// Prints the relative error in the Euclidean norm, and counts a failure if it exceeds the
/// tolerance.
inline void check(const char* name, const Doubles& actual, const Doubles& expected,
                  double tolerance) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < expected.size(); i++) {
        difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
        norm += expected[i] * expected[i];
    }
    const double error = sqrt(difference) / (sqrt(norm) + 1e-12);
    const bool ok = actual.size() == expected.size() && error <= tolerance;
    failures += !ok;
    printf("%s %s: %.1e\n", ok ? "ok" : "FAILED", name, error);
}

inline double logistic(double x) { return 1 / (1 + exp(-x)); }

void test_products();
void test_threads();
void test_recurrences();
void test_search();
