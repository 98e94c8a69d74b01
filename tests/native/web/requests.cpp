// The engine for browsers under a sanitizer: models of all sizes, arrays of wrong ones, and requests of whatever integers.
// Everything that is given has exactly its size, so that a read beyond it is seen.
#include <stdio.h>

#include "drawn.h"

struct Model;
extern "C" {
Model* model(int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t);
void forget(Model*);
int32_t lay(Model*, int32_t, uint32_t, uint32_t, const void*, uint32_t, const float*, uint32_t, const float*, uint32_t);
int32_t finish(Model*, const float*, uint32_t);
int32_t spell(Model*, const int32_t*, uint32_t);
int32_t translate(const Model*, const int32_t*, uint32_t, double, double);
}

constexpr int V = 20, S = 30, E = 7, PARTS = 15;

static Model* whole(int32_t kind, int32_t pool, int32_t encoder, int32_t units) {
    const int32_t H = (encoder + 15) / 16 * 16, D = (units + 15) / 16 * 16, A = 16, R = 14, G = 3 * D + R;
    const int32_t shapes[PARTS][2] = {{3 * H, E}, {2 * H, H}, {H, H}, {3 * H, E}, {2 * H, H}, {H, H}, {A, 2 * H}, {D, H},
                                      {A + 2 * D + R, D}, {G, 2 * H}, {D, D}, {G, E}, {V, R / pool}, {S, E}, {V, E}};
    Model* m = model(kind, encoder, units, pool, A, R, S, V, E, E);
    if (!m) abort();
    for (int32_t part = 0; part < PARTS; part++) {
        const int32_t rows = shapes[part][0], columns = shapes[part][1], numbers = rows * columns;
        std::vector<int8_t> bytes(numbers);
        std::vector<float> values(numbers), scale(rows, 0.01f);
        for (int32_t i = 0; i < numbers; i++) bytes[i] = drawn(255) - 127, values[i] = bytes[i] * 0.01f;
        for (int32_t change = -1; change <= 1; change += 2)  // whose sizes do not fit
            if (lay(m, part, rows + change, columns, values.data(), numbers, nullptr, 0, nullptr, 0) ||
                lay(m, part, rows, columns, values.data(), numbers, scale.data(), rows + change, nullptr, 0) ||
                lay(m, part, rows, columns, values.data(), numbers, nullptr, 0, scale.data(), rows + change))
                abort();
        if (finish(m, values.data(), A)) abort();  // not whole yet
        const bool in_bytes = kind == 2;
        if (!lay(m, part, rows, columns, in_bytes ? (void*)bytes.data() : values.data(), numbers, scale.data(),
                 in_bytes ? rows : 0, scale.data(), part < 13 ? rows : 0))
            abort();
    }
    std::vector<float> vector(A, 0.3f);
    std::vector<int32_t> sizes(V, 2);
    if (finish(m, vector.data(), A - 1) || !finish(m, vector.data(), A) || !spell(m, sizes.data(), V)) abort();
    return m;
}

void networks(int counts[3]);

int main() {
    for (int n = 0; n < 2000; n++) {
        int32_t sizes[10];
        for (int32_t& size : sizes) size = drawn(4) ? drawn(40) - 4 : INT32_MAX - drawn(3);
        if (Model* m = model(sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6], sizes[7], sizes[8], sizes[9]))
            forget(m);
    }
    const std::vector<int32_t> requests[] = {
        {1, 2, 1, 0, 1, 0, 3, 5, 4, 5, 3, 7},
        {2, 3, 2, 1, 0, 0, 4, 2, 6, 5, 4, 5, 6, 3, 9, 3},
        {1, 2, 2, 0, 0, 1, 3, 9, 4, 5, 3, 0, 4, 0, 1, 3, 4, 6, 5, 6, 7, 8, 9, 10},
    };
    int counts[3] = {};
    for (int round = 0; round < 12; round++) {
        Model* m = whole(round % 3, round % 2 + 1, 3 + 5 * round, 2 + 4 * round);
        for (int n = 0; n < 1000; n++) {
            std::vector<int32_t> asked = requests[drawn(3)];
            if (n) changed(asked);
            int32_t* exact = (int32_t*)malloc(asked.size() * sizeof(int32_t));
            memcpy(exact, asked.data(), asked.size() * sizeof(int32_t));
            counts[translate(m, exact, asked.size(), 1.0, drawn(2)) + 1]++;
            free(exact);
        }
        forget(m);
    }
    if (!counts[0] || !counts[2] || counts[1]) return 1;
    networks(counts);
    printf("%d refused, %d answered\n", counts[0], counts[2]);
    return 0;
}
