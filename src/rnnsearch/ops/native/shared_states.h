// Hypotheses of one sentence that continue the same hypothesis have equal states: everything that a
// step computes before it reads the word is computed once for them.
//
// In shapes: N hypotheses, U distinct states, S size of a state.
#pragma once

#include "decoder.h"

/// Groups hypotheses with equal states.
struct SharedStates {
    Buffer<int64_t> first;  // the first hypothesis of each group [U]
    Buffer<int64_t> group;  // the group of each hypothesis [N]
    int64_t count = 0;      // U, the number of groups

    void all_distinct(int64_t N) {
        first.allocate(N);
        group.allocate(N);
        for (int64_t n = 0; n < N; n++) first[n] = group[n] = n;
        count = N;
    }
    /// Compares the states [N, S] of each sentence, which has `per_sentence` adjacent hypotheses.
    void find(const float* state, int64_t S, int64_t N, int64_t per_sentence) {
        first.allocate(N);
        group.allocate(N);
        count = 0;
        for (int64_t n = 0; n < N; n++) {
            int64_t same = n / per_sentence * per_sentence;
            while (same < n && memcmp(state + same * S, state + n * S, S * sizeof(float))) same++;
            group[n] = same < n ? group[same] : count;
            if (same == n) first[count++] = n;
        }
    }
};

enum class Row { SUMS, VALUES, READS };
enum class Access { READS, WRITES, ADDS };

/// Calls f(row, begin, size, access) for every range of the rows of a position that an operation
/// accesses; values of the previous position are left out.
template <class F>
void for_each_range(const Decoder& d, const Op& op, F f) {
    const int64_t *at = op.offset, n = op.size;
    auto sums = [&](int k, int64_t size, Access access) {
        if (at[k] >= 0) f(Row::SUMS, at[k], size, access);
    };
    auto value = [&](int k, int64_t size, Access access = Access::READS) {
        if (at[k] >= 0 && !(op.previous >> k & 1)) f(Row::VALUES, at[k], size, access);
    };
    switch (op.type) {
        case INPUT:
        case LOG_POSITION: return sums(0, n, Access::ADDS);
        case READ:
            f(Row::READS, at[0], n, Access::WRITES);
            value(1, n);
            return value(2, n);
        case PRODUCT: f(Row::READS, at[1], at[2], Access::READS); return sums(0, n, Access::ADDS);
        case SIGMOID:
        case TANH:
            sums(1, n, Access::READS);
            value(2, n);
            return value(0, n, Access::WRITES);
        case GRU:
            sums(2, n, Access::READS);
            value(3, n);
            value(4, n);
            value(5, n);
            if (at[5] >= 0) sums(6, n, Access::READS);
            value(1, at[5] >= 0 ? 2 * n : n, Access::WRITES);
            return value(0, n, Access::WRITES);
        case LSTM:
        case SSRU:
            sums(3, op.type == LSTM ? 4 * n : 2 * n, Access::READS);
            value(4, n);
            value(5, n);
            value(2, op.type == LSTM ? 4 * n : n, Access::WRITES);
            value(1, n, Access::WRITES);
            return value(0, n, Access::WRITES);
        case ADDITIVE:
        case DOT: {
            const Attention& attention = d.attentions[op.source];
            if (op.type == ADDITIVE) {
                sums(1, n, Access::READS);
                value(2, n, Access::WRITES);
            } else {
                value(1, n);
            }
            value(3, 1);
            for (int64_t k = 0; k < attention.features.count; k++)
                if (const Feature& feature = attention.features.items[k]; feature.units) {
                    const int64_t size = 3 * feature_width(feature);
                    f(Row::SUMS, feature.query_sums, size, Access::READS);
                    f(Row::VALUES, feature.query_values, size, Access::WRITES);
                }
            return value(0, attention.annotation_size, Access::WRITES);
        }
        case ADD:
            value(1, n);
            value(2, n);
            return value(0, n, Access::WRITES);
        case NORM:
            sums(1, n, Access::READS);
            value(2, n, Access::WRITES);
            value(3, 1, Access::WRITES);
            return sums(0, n, Access::ADDS);
        case CENTRE: value(1, n); return value(0, 1, Access::WRITES);
        case MAXOUT: sums(1, 2 * n, Access::READS); return value(0, n, Access::WRITES);
        case TANH_VALUES: value(1, n); return value(0, n, Access::WRITES);
    }
}

/// The operations of a step, those first that do not depend on the word.
struct OperationOrder {
    /// Values or reads of a position.
    struct Range {
        Row row;
        int64_t begin, size;
    };

    Buffer<int64_t> ops;     // [num_ops], indices of the operations
    int64_t num_shared = 0;  // operations that do not depend on the word
    Buffer<Range> copied;    // results of these that are read later, except for sums
    int64_t num_copied = 0;
    Buffer<uint8_t> attentions;  // [num_attentions], 1 if it does not depend on the word

    /// readout_size: number of inputs of the output layer; 0 for the cell of an encoder, whose
    /// operations stay in their order.
    OperationOrder(const Decoder& d, int64_t readout_size)
        : ops(d.num_ops), attentions(d.num_attentions) {
        const int64_t sizes[] = {d.sums_size, d.values_size, d.reads_size};
        // Per element of each row, sums, values and reads.
        Flags depends(sizes);  // on the word
        Flags read(sizes);     // by an operation that depends on the word
        Flags shared(sizes);   // written by an operation that does not
        Buffer<uint8_t> word(d.num_ops);
        attentions.zeros(d.num_attentions);
        for (int64_t p = 0; p < d.num_ops; p++) {
            const Op& op = d.ops[p];
            word[p] = op.type == INPUT || !readout_size;
            for_each_range(d, op, [&](Row row, int64_t begin, int64_t size, Access access) {
                if (access != Access::ADDS && depends.any(row, begin, size)) word[p] = 1;
                if (access != Access::READS && read.any(row, begin, size)) word[p] = 1;
            });
            for_each_range(d, op, [&](Row row, int64_t begin, int64_t size, Access access) {
                if (access == Access::READS && word[p]) read.set(row, begin, size);
                if (access != Access::READS) (word[p] ? depends : shared).set(row, begin, size);
            });
            if (!word[p]) ops[num_shared++] = p;
            if (!word[p] && (op.type == ADDITIVE || op.type == DOT)) attentions[op.source] = 1;
        }
        int64_t end = num_shared;
        for (int64_t p = 0; p < d.num_ops; p++)
            if (word[p]) ops[end++] = p;
        for (int64_t k = 0; k < d.num_states; k++)
            read.set(Row::VALUES, d.states[2 * k], d.states[2 * k + 1]);
        if (readout_size) read.set(Row::READS, d.readout->offset[0], readout_size);
        copied.allocate(d.values_size + d.reads_size);
        const Row rows[] = {Row::VALUES, Row::READS};
        for (Row row : rows)
            for (int64_t k = 0; k < sizes[int(row)]; k++) {
                if (!shared.any(row, k, 1) || !read.any(row, k, 1)) continue;
                const bool adjacent =
                    num_copied && copied[num_copied - 1].row == row &&
                    copied[num_copied - 1].begin + copied[num_copied - 1].size == k;
                if (!adjacent) copied[num_copied++] = {row, k, 0};
                copied[num_copied - 1].size++;
            }
    }

  private:
    struct Flags {
        Buffer<uint8_t> rows[3];
        explicit Flags(const int64_t* sizes) {
            for (int row = 0; row < 3; row++) rows[row].zeros(sizes[row]);
        }
        bool any(Row row, int64_t begin, int64_t size) const {
            return memchr(&rows[int(row)][begin], 1, size);
        }
        void set(Row row, int64_t begin, int64_t size) { memset(&rows[int(row)][begin], 1, size); }
    };
};
