// Fuzzing of recurrent models in general (web/recurrent_api.cpp): steps of arbitrary integers are
// rejected, or access only the memory that they were given.
#include "fuzzing.h"

struct RecurrentModel;
extern "C" {
RecurrentModel* recurrent_create(uint32_t, uint32_t, uint32_t, const void*, uint32_t, const float*,
                                 uint32_t);
void recurrent_destroy(RecurrentModel*);
int32_t recurrent_add_layer(RecurrentModel*, int32_t, uint32_t, uint32_t, const void*, uint32_t,
                            const float*, uint32_t, const float*, uint32_t);
int32_t recurrent_add_step(RecurrentModel*, double, double, const int32_t*, uint32_t, const float*,
                           uint32_t, const float*, uint32_t, const float*, uint32_t);
const float* recurrent_apply_layer(RecurrentModel*, int32_t, const float*, uint32_t);
const float* recurrent_run_cell(RecurrentModel*, int32_t, int32_t, const float*, uint32_t,
                                const int32_t*, uint32_t);
const float* recurrent_final_states(const RecurrentModel*);
int32_t recurrent_set_token_bytes(RecurrentModel*, const int32_t*, uint32_t);
int32_t recurrent_check_request(const RecurrentModel*, const int32_t*, uint32_t);
int32_t recurrent_search(const RecurrentModel*, int32_t, int32_t, double, double, const int32_t*,
                         uint32_t, const float*, uint32_t, const float*, uint32_t, const uint8_t*,
                         uint32_t, const float*, uint32_t, const float*, uint32_t, const float*,
                         uint32_t);
}

namespace {

constexpr int32_t V = 20, S = 30, E = 7, D = 6, K = 10, H = 8, FEATURE_WIDTH = 16,
                  FEATURE_UNITS = 5;
constexpr int32_t INPUT = 0, READ = 1, PRODUCT = 2, SIGMOID = 3, GRU = 5, ADDITIVE = 7, DOT = 8;

/// Type of the source features of a step.
enum FeatureType { NO_FEATURES, SUM, FEATURE_GRU };

/// The integers that describe the operations of a step.
struct Operations {
    std::vector<int32_t> ints;
    int32_t count = 0;

    void add(int32_t type, int32_t size, std::vector<int32_t> offsets, int32_t previous = 0,
             int32_t layer = -1, int32_t parameters = 0) {
        offsets.resize(8, -1);
        ints.insert(ints.end(), {type, size, previous, layer, 0, parameters});
        ints.insert(ints.end(), offsets.begin(), offsets.end());
        count++;
    }
};

int32_t feature_parameters(int features) {
    if (features == NO_FEATURES) return 0;
    return features == SUM ? K * 3 : K * FEATURE_WIDTH + 3 * FEATURE_WIDTH * (FEATURE_WIDTH + 1);
}

/// Returns the description of RNNsearch's decoder with a feature and a window, or of a cell if it
/// does not attend.
std::vector<int32_t> step_description(bool attends, bool additive, int features, int32_t radius) {
    const int32_t z = D, r = 2 * D, candidate = 3 * D, query = 4 * D, context = query + K,
                  query_sums = 3 * D;
    Operations ops;
    ops.add(INPUT, 3 * D, {0, 0});
    ops.add(READ, D, {0, 0, -1}, 2);
    if (attends) {
        ops.add(PRODUCT, K, {query_sums, 0, D}, 0, 1);
        if (!additive) ops.add(SIGMOID, K, {query, query_sums, -1});
        const std::vector<int32_t> offsets = {context, additive ? query_sums : query,
                                              additive ? query : -1, -1};
        ops.add(additive ? ADDITIVE : DOT, K, offsets, 0, -1, feature_parameters(features));
        ops.add(READ, H, {D, context, -1});
        ops.add(PRODUCT, 3 * D, {0, D, H}, 0, 2);
    }
    ops.add(PRODUCT, 2 * D, {0, 0, D}, 0, 3);
    ops.add(SIGMOID, 2 * D, {z, 0, -1});
    ops.add(READ, D, {D + H, 0, r}, 2);
    ops.add(PRODUCT, D, {2 * D, D + H, D}, 0, 4);
    ops.add(GRU, D, {0, candidate, 2 * D, z, 0, -1, -1, 0}, 16);
    ops.add(READ, D, {2 * D + H, 0, -1});
    const int32_t gates = 3 * FEATURE_WIDTH, sums = query_sums + K, values = context + H,
                  reads = 3 * D + 2 * H;
    const int32_t key_size = attends ? K : 0, annotation_size = attends ? H : 0;
    std::vector<int32_t> ints = {
        3 * D, sums + gates, values + gates, reads, key_size, annotation_size, 1, radius, 1, 0, D};
    ints.insert(ints.end(), {0, 2 * D + H, features != NO_FEATURES});
    if (features == SUM) ints.insert(ints.end(), {0, 1, 1, 0, 0});
    if (features == FEATURE_GRU) ints.insert(ints.end(), {FEATURE_UNITS, 0, 0, sums, values});
    ints.push_back(ops.count);
    ints.insert(ints.end(), ops.ints.begin(), ops.ints.end());
    return ints;
}

std::vector<float> random_floats(size_t count) {
    std::vector<float> values(count);
    for (float& x : values) x = random_below(201) * 0.01f - 1;
    return values;
}

/// A heap block of exactly the size of its contents, so that AddressSanitizer sees any access
/// beyond its end.
template <class T>
struct ExactBlock {
    T* data;
    uint32_t size;
    explicit ExactBlock(const std::vector<T>& values)
        : data((T*)malloc(values.size() * sizeof(T))), size(values.size()) {
        memcpy(data, values.data(), values.size() * sizeof(T));
    }
    ~ExactBlock() { free(data); }
};

/// Returns a model with all layers; arrays of wrong sizes must be rejected on the way.
RecurrentModel* create_model(int32_t dtype) {
    const int32_t shapes[][2] = {{3 * D, E}, {K, D}, {3 * D, H}, {2 * D, D}, {D, D}, {V, D + H}};
    const ExactBlock<float> table(random_floats(V * E));
    if (recurrent_create(S, V, E, table.data, table.size - 1, nullptr, 0)) abort();
    if (recurrent_create(3, V, E, table.data, table.size, nullptr, 0)) abort();
    RecurrentModel* model = recurrent_create(S, V, E, table.data, table.size, nullptr, 0);
    for (auto& [outputs, inputs] : shapes) {
        const ExactBlock<float> values(random_floats(outputs * inputs)),
            bias(random_floats(outputs));
        auto add = [&](int32_t rows, const float* bias_values, uint32_t bias_count) {
            return recurrent_add_layer(model, dtype, rows, inputs, values.data, values.size,
                                       nullptr, 0, bias_values, bias_count);
        };
        if (add(outputs + 1, nullptr, 0) >= 0) abort();
        if (add(outputs, bias.data, bias.size - 1) >= 0) abort();
        if (add(outputs, bias.data, bias.size) < 0) abort();
    }
    const ExactBlock<int32_t> token_bytes(std::vector<int32_t>(V, 2));
    if (recurrent_set_token_bytes(model, token_bytes.data, V - 1)) abort();
    if (!recurrent_set_token_bytes(model, token_bytes.data, V)) abort();
    return model;
}

/// Runs a search; with `mutated`, the request and the sizes of its arrays may be wrong.
int32_t search(RecurrentModel* model, int32_t step, bool attends, int features, int32_t radius,
               bool mutated) {
    std::vector<int32_t> request = {2, 3, 2, 0, 0, 0, 4, 2, 6, 5, 4, 5, 6, 3, 9, 3};
    if (mutated) mutate(request);
    const int32_t B = 2, J = attends ? 4 : 0;
    const int32_t state_size = features == NO_FEATURES ? 0 : features == SUM ? 1 : FEATURE_WIDTH;
    const int32_t prepared_size = features == NO_FEATURES ? 0
                                  : features == SUM       ? 1
                                                          : 3 * FEATURE_WIDTH;
    auto size = [&](int32_t right) {
        return mutated && !random_below(9) ? random_below(2 * right + 2) : right;
    };
    const ExactBlock<int32_t> ints(request);
    if (recurrent_check_request(model, ints.data, ints.size) < 0 && !mutated) abort();
    std::vector<uint8_t> mask_values(size(B * J));
    for (uint8_t& value : mask_values) value = random_below(3) > 0;
    const ExactBlock<uint8_t> mask(mask_values);
    const ExactBlock<float> keys(random_floats(size(B * J * K))),
        annotations(random_floats(size(B * J * H)));
    const ExactBlock<float> centres(random_floats(radius >= 0 ? size(B * J) : 0));
    const ExactBlock<float> prepared(random_floats(size(B * J * prepared_size)));
    const ExactBlock<float> state(random_floats(size(B * (J * state_size + D + 1))));
    const int32_t output = random_below(9) || !mutated ? 5 : random_below(8) - 1;
    return recurrent_search(model, step, output, 1.0, random_below(2), ints.data, ints.size,
                            keys.data, keys.size, annotations.data, annotations.size, mask.data,
                            mask.size, centres.data, centres.size, prepared.data, prepared.size,
                            state.data, state.size);
}

}  // namespace

/// Adds to the counts of calls that were rejected, that had a NaN, and that succeeded.
void fuzz_recurrent(int counts[3]) {
    for (int round = 0; round < 400; round++) {
        RecurrentModel* model = create_model(round % 3);
        for (int n = 0; n < 20; n++) {
            const bool attends = n % 5, additive = n % 4, mutated = n >= 8;
            const int features = attends && additive ? round % 3 : NO_FEATURES;
            const int32_t radius = attends && n % 3 == 0 ? 1 : -1;
            std::vector<int32_t> description =
                step_description(attends, additive, features, radius);
            if (mutated) mutate(description);
            const ExactBlock<int32_t> ints(description);
            const ExactBlock<float> bias(random_floats(3 * D + K + 3 * FEATURE_WIDTH));
            const ExactBlock<float> parameters(random_floats(feature_parameters(features)));
            const ExactBlock<float> vector(random_floats(attends && additive ? K : 0));
            const int32_t step =
                recurrent_add_step(model, 1.0, 0.0, ints.data, ints.size, bias.data, bias.size,
                                   parameters.data, parameters.size, vector.data, vector.size);
            if (step < 0 && !mutated) abort();
            if (step < 0) {
                counts[0]++;
                continue;
            }
            counts[search(model, step, attends, features, radius, false) + 1]++;
            counts[search(model, step, attends, features, radius, true) + 1]++;
            const ExactBlock<float> x(random_floats(2 * 4 * 3 * D));
            const ExactBlock<int32_t> lengths(
                std::vector<int32_t>{random_below(3) ? 4 : random_below(9), random_below(9) - 1});
            if (recurrent_run_cell(model, step, n % 2, x.data, x.size - random_below(3),
                                   lengths.data, 2))
                counts[2] += recurrent_final_states(model) != nullptr;
            if (recurrent_apply_layer(model, random_below(9) - 1, x.data, random_below(x.size)))
                counts[2]++;
        }
        recurrent_destroy(model);
    }
}
