// The same for recurrent models of other families: steps of whatever integers are refused, or do nothing outside what they
// were given.
#include "drawn.h"

struct Network;
extern "C" {
Network* network(uint32_t, uint32_t, uint32_t, const void*, uint32_t, const float*, uint32_t);
void dismiss(Network*);
int32_t layer(Network*, int32_t, uint32_t, uint32_t, const void*, uint32_t, const float*, uint32_t, const float*, uint32_t);
int32_t machine(Network*, double, double, const int32_t*, uint32_t, const float*, uint32_t, const float*, uint32_t,
                const float*, uint32_t);
const float* apply(Network*, int32_t, const float*, uint32_t);
const float* sequence(Network*, int32_t, int32_t, const float*, uint32_t, const int32_t*, uint32_t);
const float* last_states(const Network*);
int32_t spelled(Network*, const int32_t*, uint32_t);
int32_t asks(const Network*, const int32_t*, uint32_t);
int32_t search(const Network*, int32_t, int32_t, double, double, const int32_t*, uint32_t, const float*, uint32_t,
               const float*, uint32_t, const uint8_t*, uint32_t, const float*, uint32_t, const float*, uint32_t,
               const float*, uint32_t);
}

namespace {

constexpr int32_t V = 20, S = 30, E = 7, D = 6, K = 10, H = 8, WIDE = 16, UNITS = 5;
constexpr int32_t INPUT = 0, READ = 1, PRODUCT = 2, SIGMOID = 3, GRU = 5, ADDITIVE = 7, DOT = 8;

struct Said {
    std::vector<int32_t> all;
    int32_t parts = 0;

    void part(int32_t what, int32_t size, std::vector<int32_t> at, int32_t before = 0, int32_t layer = -1, int32_t own = 0) {
        at.resize(8, -1);
        all.insert(all.end(), {what, size, before, layer, 0, own});
        all.insert(all.end(), at.begin(), at.end());
        parts++;
    }
};

// What `features` remember: nothing, sums of weights, or a GRU; the numbers that they have of their own.
int32_t own_of(int features) { return features == 0 ? 0 : features == 1 ? K * 3 : K * WIDE + 3 * WIDE * (WIDE + 1); }

// RNNsearch's decoder with a feature, in a window of some reach, or without attention; or a cell.
std::vector<int32_t> decoder(bool attends, bool additive, int features, int32_t reach) {
    const int32_t z = D, r = 2 * D, candidate = 3 * D, query = 4 * D, context = query + K, asked = 3 * D;
    Said said;
    said.part(INPUT, 3 * D, {0, 0});
    said.part(READ, D, {0, 0, -1}, 2);
    if (attends) {
        said.part(PRODUCT, K, {asked, 0, D}, 0, 1);
        if (!additive) said.part(SIGMOID, K, {query, asked, -1});
        const std::vector<int32_t> at = {context, additive ? asked : query, additive ? query : -1, -1};
        said.part(additive ? ADDITIVE : DOT, K, at, 0, -1, own_of(features));
        said.part(READ, H, {D, context, -1});
        said.part(PRODUCT, 3 * D, {0, D, H}, 0, 2);
    }
    said.part(PRODUCT, 2 * D, {0, 0, D}, 0, 3);
    said.part(SIGMOID, 2 * D, {z, 0, -1});
    said.part(READ, D, {D + H, 0, r}, 2);
    said.part(PRODUCT, D, {2 * D, D + H, D}, 0, 4);
    said.part(GRU, D, {0, candidate, 2 * D, z, 0, -1, -1, 0}, 16);
    said.part(READ, D, {2 * D + H, 0, -1});
    const int32_t gates = 3 * WIDE, sums = asked + K, values = context + H, reads = 3 * D + 2 * H;
    std::vector<int32_t> all = {3 * D, sums + gates, values + gates, reads, attends ? K : 0, attends ? H : 0, 1, reach, 1, 0, D};
    all.insert(all.end(), {0, 2 * D + H, features > 0});
    if (features == 1) all.insert(all.end(), {0, 1, 1, 0, 0});
    if (features == 2) all.insert(all.end(), {UNITS, 0, 0, sums, values});
    all.push_back(said.parts);
    all.insert(all.end(), said.all.begin(), said.all.end());
    return all;
}

std::vector<float> floats(size_t count) {
    std::vector<float> found(count);
    for (float& x : found) x = drawn(201) * 0.01f - 1;
    return found;
}

// Whatever it is given has exactly its size.
template <class T>
struct Exact {
    T* data;
    uint32_t size;
    explicit Exact(const std::vector<T>& from) : data((T*)malloc(from.size() * sizeof(T))), size(from.size()) {
        memcpy(data, from.data(), from.size() * sizeof(T));
    }
    ~Exact() { free(data); }
};

Network* made(int32_t kind) {
    const int32_t shapes[][2] = {{3 * D, E}, {K, D}, {3 * D, H}, {2 * D, D}, {D, D}, {V, D + H}};
    const Exact<float> table(floats(V * E));
    if (network(S, V, E, table.data, table.size - 1, nullptr, 0) || network(3, V, E, table.data, table.size, nullptr, 0)) abort();
    Network* net = network(S, V, E, table.data, table.size, nullptr, 0);
    for (auto& [outputs, inputs] : shapes) {
        const Exact<float> values(floats(outputs * inputs)), bias(floats(outputs));
        if (layer(net, kind, outputs + 1, inputs, values.data, values.size, nullptr, 0, nullptr, 0) >= 0) abort();
        if (layer(net, kind, outputs, inputs, values.data, values.size, nullptr, 0, bias.data, bias.size - 1) >= 0) abort();
        if (layer(net, kind, outputs, inputs, values.data, values.size, nullptr, 0, bias.data, bias.size) < 0) abort();
    }
    const Exact<int32_t> sizes(std::vector<int32_t>(V, 2));
    if (spelled(net, sizes.data, V - 1) || !spelled(net, sizes.data, V)) abort();
    return net;
}

// A request, now and then an odd one, with arrays of the right sizes for J symbols, or of odd ones.
int32_t searched(Network* net, int32_t step, bool attends, int features, int32_t reach, bool odd) {
    std::vector<int32_t> asked = {2, 3, 2, 0, 0, 0, 4, 2, 6, 5, 4, 5, 6, 3, 9, 3};
    if (odd) changed(asked);
    const int32_t B = 2, J = attends ? 4 : 0, memory = features == 0 ? 0 : features == 1 ? 1 : WIDE;
    const int32_t prepared = features == 0 ? 0 : features == 1 ? 1 : 3 * WIDE;
    auto size = [&](int32_t right) { return odd && !drawn(9) ? drawn(2 * right + 2) : right; };
    const Exact<int32_t> ints(asked);
    if (asks(net, ints.data, ints.size) < 0 && !odd) abort();
    std::vector<uint8_t> real(size(B * J));
    for (uint8_t& place : real) place = drawn(3) > 0;
    const Exact<uint8_t> mask(real);
    const Exact<float> keys(floats(size(B * J * K))), annotations(floats(size(B * J * H)));
    const Exact<float> centres(floats(reach >= 0 ? size(B * J) : 0)), made(floats(size(B * J * prepared)));
    const Exact<float> state(floats(size(B * (J * memory + D + 1))));
    return search(net, step, drawn(9) || !odd ? 5 : drawn(8) - 1, 1.0, drawn(2), ints.data, ints.size, keys.data, keys.size,
                  annotations.data, annotations.size, mask.data, mask.size, centres.data, centres.size, made.data, made.size,
                  state.data, state.size);
}

}  // namespace

void networks(int counts[3]) {
    for (int round = 0; round < 400; round++) {
        Network* net = made(round % 3);
        for (int n = 0; n < 20; n++) {
            const bool attends = n % 5, additive = n % 4;
            const int features = attends && additive ? round % 3 : 0;
            const int32_t reach = attends && n % 3 == 0 ? 1 : -1;
            std::vector<int32_t> said = decoder(attends, additive, features, reach);
            const bool odd = n >= 8;
            if (odd) changed(said);
            const Exact<int32_t> ints(said);
            const Exact<float> bias(floats(3 * D + K + 3 * WIDE)), own(floats(own_of(features)));
            const Exact<float> vector(floats(attends && additive ? K : 0));
            const int32_t step = machine(net, 1.0, 0.0, ints.data, ints.size, bias.data, bias.size, own.data, own.size,
                                         vector.data, vector.size);
            if (step < 0 && !odd) abort();
            if (step < 0) {
                counts[0]++;
                continue;
            }
            counts[searched(net, step, attends, features, reach, false) + 1]++;
            counts[searched(net, step, attends, features, reach, true) + 1]++;
            const Exact<float> x(floats(2 * 4 * 3 * D));
            const Exact<int32_t> lengths(std::vector<int32_t>{drawn(3) ? 4 : drawn(9), drawn(9) - 1});
            if (sequence(net, step, n % 2, x.data, x.size - drawn(3), lengths.data, 2)) counts[2] += last_states(net) != nullptr;
            if (apply(net, drawn(9) - 1, x.data, drawn(x.size))) counts[2]++;
        }
        dismiss(net);
    }
}
