// Fuzzing of the browser's engine under AddressSanitizer: models of all sizes, arrays of wrong
// sizes, and requests of arbitrary integers. Every array has exactly its size, so that any access
// beyond its end is seen.
#include <stdio.h>

#include "fuzzing.h"

struct RNNsearchModel;
extern "C" {
RNNsearchModel* rnnsearch_create(int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t,
                                 int32_t, int32_t, int32_t);
void rnnsearch_destroy(RNNsearchModel*);
int32_t rnnsearch_set_array(RNNsearchModel*, int32_t, uint32_t, uint32_t, const void*, uint32_t,
                            const float*, uint32_t, const float*, uint32_t);
int32_t rnnsearch_finish(RNNsearchModel*, const float*, uint32_t);
int32_t rnnsearch_set_token_bytes(RNNsearchModel*, const int32_t*, uint32_t);
int32_t rnnsearch_translate(const RNNsearchModel*, const int32_t*, uint32_t, double, double);
}

constexpr int V = 20, S = 30, E = 7, TABLES = 13, ARRAYS = 15;

/// Returns a complete model; arrays of wrong sizes must be rejected on the way.
static RNNsearchModel* create_model(int32_t dtype, int32_t pool, int32_t encoder, int32_t units) {
    const int32_t H = (encoder + 15) / 16 * 16, D = (units + 15) / 16 * 16, A = 16, R = 14,
                  G = 3 * D + R;
    const int32_t shapes[ARRAYS][2] = {{3 * H, E},         {2 * H, H}, {H, H},     {3 * H, E},
                                       {2 * H, H},         {H, H},     {A, 2 * H}, {D, H},
                                       {A + 2 * D + R, D}, {G, 2 * H}, {D, D},     {G, E},
                                       {V, R / pool},      {S, E},     {V, E}};
    RNNsearchModel* m = rnnsearch_create(dtype, encoder, units, pool, A, R, S, V, E, E);
    if (!m) abort();
    for (int32_t index = 0; index < ARRAYS; index++) {
        const int32_t rows = shapes[index][0], columns = shapes[index][1], count = rows * columns;
        std::vector<int8_t> bytes(count);
        std::vector<float> values(count), scale(rows, 0.01f);
        for (int32_t i = 0; i < count; i++) {
            bytes[i] = random_below(255) - 127;
            values[i] = bytes[i] * 0.01f;
        }
        for (int32_t change = -1; change <= 1; change += 2) {
            auto set = [&](int32_t outputs, int32_t scale_count, int32_t bias_count) {
                return rnnsearch_set_array(m, index, outputs, columns, values.data(), count,
                                           scale_count ? scale.data() : nullptr, scale_count,
                                           bias_count ? scale.data() : nullptr, bias_count);
            };
            if (set(rows + change, 0, 0) || set(rows, rows + change, 0) ||
                set(rows, 0, rows + change))
                abort();
        }
        if (rnnsearch_finish(m, values.data(), A)) abort();  // arrays are missing
        const bool is_int8 = dtype == 2;
        if (!rnnsearch_set_array(m, index, rows, columns,
                                 is_int8 ? (void*)bytes.data() : values.data(), count, scale.data(),
                                 is_int8 ? rows : 0, scale.data(), index < TABLES ? rows : 0))
            abort();
    }
    std::vector<float> vector(A, 0.3f);
    std::vector<int32_t> token_bytes(V, 2);
    if (rnnsearch_finish(m, vector.data(), A - 1) || !rnnsearch_finish(m, vector.data(), A))
        abort();
    if (!rnnsearch_set_token_bytes(m, token_bytes.data(), V)) abort();
    return m;
}

int main() {
    for (int n = 0; n < 2000; n++) {
        int32_t s[10];
        for (int32_t& size : s)
            size = random_below(4) ? random_below(40) - 4 : INT32_MAX - random_below(3);
        if (RNNsearchModel* m =
                rnnsearch_create(s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9]))
            rnnsearch_destroy(m);
    }
    const std::vector<int32_t> requests[] = {
        {1, 2, 1, 0, 1, 0, 3, 5, 4, 5, 3, 7},
        {2, 3, 2, 1, 0, 0, 4, 2, 6, 5, 4, 5, 6, 3, 9, 3},
        {1, 2, 2, 0, 0, 1, 3, 9, 4, 5, 3, 0, 4, 0, 1, 3, 4, 6, 5, 6, 7, 8, 9, 10},
    };
    int counts[3] = {};  // rejected, NaN, successful
    for (int round = 0; round < 12; round++) {
        RNNsearchModel* m = create_model(round % 3, round % 2 + 1, 3 + 5 * round, 2 + 4 * round);
        for (int n = 0; n < 1000; n++) {
            std::vector<int32_t> request = requests[random_below(3)];
            if (n) mutate(request);
            int32_t* exact = (int32_t*)malloc(request.size() * sizeof(int32_t));
            memcpy(exact, request.data(), request.size() * sizeof(int32_t));
            counts[rnnsearch_translate(m, exact, request.size(), 1.0, random_below(2)) + 1]++;
            free(exact);
        }
        rnnsearch_destroy(m);
    }
    if (!counts[0] || !counts[2] || counts[1]) return 1;
    fuzz_recurrent(counts);
    printf("%d rejected, %d succeeded\n", counts[0], counts[2]);
    return 0;
}
