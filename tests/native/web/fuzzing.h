// Random integers, the same in every run, and mutations of valid input.
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

/// Returns a random integer in 0 .. n - 1.
inline int32_t random_below(int32_t n) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return int32_t((state >> 33) % n);
}

/// Replaces up to two integers by others, which may be extreme, and sometimes drops the last ones.
inline void mutate(std::vector<int32_t>& ints) {
    for (int count = random_below(3); count > 0; count--) {
        const int32_t values[] = {random_below(30) - 3, INT32_MAX - random_below(3),
                                  INT32_MIN + random_below(3), 1 << random_below(12)};
        ints[random_below(ints.size())] = values[random_below(4)];
    }
    if (!random_below(9)) ints.resize(random_below(ints.size()));
}

void fuzz_recurrent(int counts[3]);
