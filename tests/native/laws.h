// What the laws share: numbers drawn anew in every program alike, rounding, and the comparison with plain loops.
#pragma once

#include <stdio.h>

#include <vector>

#include "decoding.h"
#include "greedy_search.h"
#include "recurrence.h"

using Numbers = std::vector<double>;

constexpr Index THREADS = 3;
constexpr double EXACT = 2e-5;  // relative errors of a whole result, of fp32
constexpr double ROUGH = 2e-2;  // and of bf16

extern int failures;

inline double drawn() {  // between -1 and 1, of fp32
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return float(int32_t(state >> 32)) / 2147483648.0f;
}

inline bfloat16 narrow(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return {uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
inline double wide(bfloat16 x) {
    const uint32_t bits = uint32_t(x.bits) << 16;
    float found;
    memcpy(&found, &bits, 4);
    return found;
}
inline double wide(float x) { return x; }
inline void put(float& to, double x) { to = float(x); }
inline void put(bfloat16& to, double x) { to = narrow(float(x)); }

// Numbers that type T has.
template <class T>
Numbers draw(Index count, double scale = 1) {
    Numbers found(count);
    for (double& x : found) {
        T has;
        put(has, drawn() * scale);
        x = wide(has);
    }
    return found;
}
template <class T>
std::vector<T> as(const Numbers& x) {
    std::vector<T> found(x.size());
    for (size_t i = 0; i < x.size(); i++) put(found[i], x[i]);
    return found;
}
template <class T>
Numbers of(const T* x, size_t count) {
    Numbers found(count);
    for (size_t i = 0; i < count; i++) found[i] = wide(x[i]);
    return found;
}
template <class T>
Numbers of(const std::vector<T>& x) {
    return of(x.data(), x.size());
}

inline void check(const char* what, const Numbers& found, const Numbers& expected, double tolerance) {
    double off = 0, size = 0;
    for (size_t i = 0; i < expected.size(); i++) {
        off += (found[i] - expected[i]) * (found[i] - expected[i]);
        size += expected[i] * expected[i];
    }
    const double error = sqrt(off) / (sqrt(size) + 1e-12);
    const bool good = found.size() == expected.size() && error <= tolerance;
    failures += !good;
    printf("%s %s: %.1e\n", good ? "ok" : "FAILED", what, error);
}

inline double logistic(double x) { return 1 / (1 + exp(-x)); }

void laws_of_products();
void laws_of_recurrences();
void laws_of_search();
