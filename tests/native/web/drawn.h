// Numbers drawn anew in every program alike, and what becomes of integers that may be anything.
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

inline int32_t drawn(int32_t n) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return int32_t((state >> 33) % n);
}

// Some of them odd, now and then fewer.
inline void changed(std::vector<int32_t>& ints) {
    for (int change = drawn(3); change > 0; change--) {
        const int32_t odd[] = {drawn(30) - 3, INT32_MAX - drawn(3), INT32_MIN + drawn(3), 1 << drawn(12)};
        ints[drawn(ints.size())] = odd[drawn(4)];
    }
    if (!drawn(9)) ints.resize(drawn(ints.size()));
}
