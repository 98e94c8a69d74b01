// Basic definitions of the native code: exports, index arithmetic, aligned buffers, and even
// partitions.
//
// Only C headers are included, so that any C++ compiler can build the code without a C++ standard
// library.
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

/// Type of all sizes, indices and strides.
using Index = int64_t;

static inline Index min(Index a, Index b) { return a < b ? a : b; }
static inline Index max(Index a, Index b) { return a > b ? a : b; }
static inline float max(float a, float b) { return a > b ? a : b; }

/// Limit of a single allocation; byte counts could overflow where `size_t` has 32 bits.
constexpr size_t MAX_ALLOCATION_BYTES = SIZE_MAX / 2;

/// Uninitialised array of `size` elements in whole, aligned cache lines; freed by the destructor.
///
/// Aborts if the system has no memory left: the code is built without exceptions.
template <class T>
struct Buffer {
    T* data = nullptr;
    Index size = 0;

    Buffer() = default;
    explicit Buffer(Index size) { allocate(size); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { free(data); }

    /// Ensures capacity for `count` elements and returns them; if the buffer grows, its contents
    /// are lost.
    T* allocate(Index count) {
        if (count <= size && data) return data;
        free(data);
        if (uint64_t(max(count, 1)) > MAX_ALLOCATION_BYTES / sizeof(T)) abort();
        void* memory = nullptr;
        const size_t bytes = (size_t(max(count, 1)) * sizeof(T) + 63) / 64 * 64;
#ifdef _WIN32
        memory = malloc(bytes);
#else
        if (posix_memalign(&memory, 64, bytes)) memory = nullptr;
#endif
        if (!memory) abort();
        data = (T*)memory;
        size = count;
        return data;
    }
    /// Like `allocate`, with the first `count` elements set to zero.
    T* zeros(Index count) { return (T*)memset(allocate(count), 0, count * sizeof(T)); }
    T& operator[](Index i) { return data[i]; }
    const T& operator[](Index i) const { return data[i]; }
};

/// Half-open range of chunk `index`, if 0 .. n is split into `count` chunks of nearly equal size.
struct Chunk {
    Index begin, end;
    Chunk(Index n, Index index, Index count)
        : begin(n * index / count), end(n * (index + 1) / count) {}
    Index size() const { return end - begin; }
};
