// cub::DeviceScan: whole-array running totals, in order of the items.
#pragma once

#include "cub/device/dispatch.cuh"

namespace cub {
struct DeviceScan {
    template <class IN, class OUT, class OP, class T, class N>
    static cudaError_t ExclusiveScan(void* temp, size_t& bytes, IN in, OUT out, OP op, T initial, N count,
                                     cudaStream_t stream = 0) {
        if (detail::asks_for_size(temp, bytes)) return cudaSuccess;
        return detail::run_as_kernel("cub::DeviceScan", stream, [=] {
            detail::value_of<IN> running = initial;
            for (N i = 0; i < count; ++i) {
                auto item = in[i];  // in and out may be the same array
                out[i] = running;
                running = op(running, item);
            }
        });
    }
    template <class IN, class OUT, class OP, class N>
    static cudaError_t InclusiveScan(void* temp, size_t& bytes, IN in, OUT out, OP op, N count,
            cudaStream_t stream = 0) {
        if (detail::asks_for_size(temp, bytes)) return cudaSuccess;
        return detail::run_as_kernel("cub::DeviceScan", stream, [=] {
            if (count == 0) return;
            detail::value_of<IN> running = in[0];
            out[0] = running;
            for (N i = 1; i < count; ++i) out[i] = running = op(running, in[i]);
        });
    }
    template <class IN, class OUT, class N>
    static cudaError_t ExclusiveSum(void* temp, size_t& bytes, IN in, OUT out, N count, cudaStream_t stream = 0) {
        return ExclusiveScan(temp, bytes, in, out, cub::Sum(), detail::value_of<IN>(0), count, stream);
    }
    template <class IN, class OUT, class N>
    static cudaError_t InclusiveSum(void* temp, size_t& bytes, IN in, OUT out, N count, cudaStream_t stream = 0) {
        return InclusiveScan(temp, bytes, in, out, cub::Sum(), count, stream);
    }
};
}  // namespace cub
