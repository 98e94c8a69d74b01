// What the kernels need besides vectors: sizes, memory, and a fair share of a count. C's headers alone, so that any C++
// compiler builds them where no C++ library is.
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

using Index = int64_t;

static inline Index smaller(Index a, Index b) { return a < b ? a : b; }
static inline Index greater(Index a, Index b) { return a > b ? a : b; }
static inline float greater(float a, float b) { return a > b ? a : b; }

constexpr size_t MOST_BYTES = SIZE_MAX / 2;  // of one piece of memory: where sizes have 32 bits, they could overflow

// Memory for `size` numbers, whatever stands in it, in whole cache lines; given back at the end of the scope.
template <class T>
struct Buffer {
    T* data = nullptr;
    Index size = 0;

    Buffer() = default;
    explicit Buffer(Index size) { need(size); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { free(data); }

    // Room for `count` numbers; what was there is lost where it grows.
    T* need(Index count) {
        if (count <= size && data) return data;
        free(data);
        if (uint64_t(greater(count, 1)) > MOST_BYTES / sizeof(T)) abort();
        void* found = nullptr;
        const size_t bytes = (size_t(greater(count, 1)) * sizeof(T) + 63) / 64 * 64;
#ifdef _WIN32
        found = malloc(bytes);
#else
        if (posix_memalign(&found, 64, bytes)) found = nullptr;
#endif
        if (!found) abort();
        data = (T*)found;
        size = count;
        return data;
    }
    T* zeros(Index count) { return (T*)memset(need(count), 0, count * sizeof(T)); }
    T& operator[](Index i) { return data[i]; }
    const T& operator[](Index i) const { return data[i]; }
};

// Part `number` of `count` equal parts of n things.
struct Share {
    Index begin, end;
    Share(Index n, Index number, Index count) : begin(n * number / count), end(n * (number + 1) / count) {}
    Index size() const { return end - begin; }
};
