// cub::DeviceRadixSort on plain pointers: a checked kernel copies the items, then they are sorted where they lie.
#pragma once

#include <algorithm>
#include <vector>

#include "cub/block/radix_rank_sort_operations.cuh"
#include "cub/device/dispatch.cuh"

namespace cub {
template <class T> struct DoubleBuffer {
    T* d_buffers[2];
    int selector = 0;
    DoubleBuffer() = default;
    DoubleBuffer(T* current, T* alternate) : d_buffers{current, alternate} {}
    T* Current() { return d_buffers[selector]; }
    T* Alternate() { return d_buffers[selector ^ 1]; }
};

struct DeviceRadixSort {
    template <class K, class N>
    static cudaError_t SortKeys(void* temp, size_t& bytes, const K* in, K* out, N count, int begin = 0,
                                int end = sizeof(K) * 8, cudaStream_t stream = 0) {
        return sort<false>(temp, bytes, in, out, (const NullType*)nullptr, (NullType*)nullptr, count, begin, end,
                stream);
    }
    template <class K, class N>
    static cudaError_t SortKeysDescending(void* temp, size_t& bytes, const K* in, K* out, N count, int begin = 0,
                                          int end = sizeof(K) * 8, cudaStream_t stream = 0) {
        return sort<true>(temp, bytes, in, out, (const NullType*)nullptr, (NullType*)nullptr, count, begin, end,
                stream);
    }
    template <class K, class V, class N>
    static cudaError_t SortPairs(void* temp, size_t& bytes, const K* in, K* out, const V* values, V* values_out,
            N count,
                                 int begin = 0, int end = sizeof(K) * 8, cudaStream_t stream = 0) {
        return sort<false>(temp, bytes, in, out, values, values_out, count, begin, end, stream);
    }
    template <class K, class V, class N>
    static cudaError_t SortPairsDescending(void* temp, size_t& bytes, const K* in, K* out, const V* values,
            V* values_out,
                                           N count, int begin = 0, int end = sizeof(K) * 8, cudaStream_t stream = 0) {
        return sort<true>(temp, bytes, in, out, values, values_out, count, begin, end, stream);
    }

 private:
    template <bool DESCENDING, class K, class V, class N>
    static cudaError_t sort(void* temp, size_t& bytes, const K* in, K* out, const V* values, V* values_out, N count,
                            int begin, int end, cudaStream_t stream) {
        if (detail::asks_for_size(temp, bytes)) return cudaSuccess;
        constexpr bool pairs = !std::is_same_v<V, NullType>;
        cudaError_t error = detail::run_as_kernel("cub::DeviceRadixSort", stream, [=] {
            for (N i = 0; i < count; ++i) {
                out[i] = in[i];
                if constexpr (pairs) values_out[i] = values[i];
            }
        });
        if (error != cudaSuccess) return error;
        std::vector<N> order((size_t)count);
        for (N i = 0; i < count; ++i) order[(size_t)i] = i;
        std::vector<K> keys(out, out + count);
        std::stable_sort(order.begin(), order.end(), [&](N a, N b) {
            uint64_t x = detail::radix_bits(keys[(size_t)a], begin, end), y = detail::radix_bits(keys[(size_t)b],
                    begin, end);
            return DESCENDING ? x > y : x < y;
        });
        for (N i = 0; i < count; ++i) out[i] = keys[(size_t)order[(size_t)i]];
        if constexpr (pairs) {
            std::vector<V> old(values_out, values_out + count);
            for (N i = 0; i < count; ++i) values_out[i] = old[(size_t)order[(size_t)i]];
        }
        return cudaSuccess;
    }
};
}  // namespace cub
