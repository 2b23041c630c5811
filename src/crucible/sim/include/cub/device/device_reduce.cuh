// cub::DeviceReduce: whole-array reductions, in order of the items.
#pragma once

#include "cub/device/dispatch.cuh"

namespace cub {
struct DeviceReduce {
    template <class IN, class OUT, class OP, class T, class N>
    static cudaError_t Reduce(void* temp, size_t& bytes, IN in, OUT out, N count, OP op, T initial,
            cudaStream_t stream = 0) {
        if (detail::asks_for_size(temp, bytes)) return cudaSuccess;
        return detail::run_as_kernel("cub::DeviceReduce", stream, [=] {
            T total = initial;
            for (N i = 0; i < count; ++i) total = op(total, in[i]);
            *out = total;
        });
    }
    template <class IN, class OUT, class N>
    static cudaError_t Sum(void* temp, size_t& bytes, IN in, OUT out, N count, cudaStream_t stream = 0) {
        return Reduce(temp, bytes, in, out, count, cub::Sum(), detail::value_of<IN>(0), stream);
    }
    template <class IN, class OUT, class N>
    static cudaError_t Max(void* temp, size_t& bytes, IN in, OUT out, N count, cudaStream_t stream = 0) {
        using T = detail::value_of<IN>;
        return Reduce(temp, bytes, in, out, count, cub::Max(), std::numeric_limits<T>::lowest(), stream);
    }
    template <class IN, class OUT, class N>
    static cudaError_t Min(void* temp, size_t& bytes, IN in, OUT out, N count, cudaStream_t stream = 0) {
        using T = detail::value_of<IN>;
        return Reduce(temp, bytes, in, out, count, cub::Min(), std::numeric_limits<T>::max(), stream);
    }
    template <class IN, class OUT, class N>
    static cudaError_t ArgMax(void* temp, size_t& bytes, IN in, OUT out, N count, cudaStream_t stream = 0) {
        return arg(temp, bytes, in, out, count, cub::ArgMax(), stream);
    }
    template <class IN, class OUT, class N>
    static cudaError_t ArgMin(void* temp, size_t& bytes, IN in, OUT out, N count, cudaStream_t stream = 0) {
        return arg(temp, bytes, in, out, count, cub::ArgMin(), stream);
    }

 private:
    template <class IN, class OUT, class N, class OP>
    static cudaError_t arg(void* temp, size_t& bytes, IN in, OUT out, N count, OP op, cudaStream_t stream) {
        if (detail::asks_for_size(temp, bytes)) return cudaSuccess;
        return detail::run_as_kernel("cub::DeviceReduce", stream, [=] {
            KeyValuePair<int, detail::value_of<IN>> best(0, in[0]);
            for (N i = 1; i < count; ++i) best = op(best, decltype(best)((int)i, in[i]));
            *out = best;
        });
    }
};

struct DeviceSegmentedReduce {
    template <class IN, class OUT, class B, class E, class OP, class T>
    static cudaError_t Reduce(void* temp, size_t& bytes, IN in, OUT out, int segments, B begins, E ends, OP op,
            T initial,
                              cudaStream_t stream = 0) {
        if (detail::asks_for_size(temp, bytes)) return cudaSuccess;
        return detail::run_as_kernel("cub::DeviceSegmentedReduce", stream, [=] {
            for (int s = 0; s < segments; ++s) {
                T total = initial;
                for (auto i = begins[s]; i < ends[s]; ++i) total = op(total, in[i]);
                out[s] = total;
            }
        });
    }
    template <class IN, class OUT, class B, class E>
    static cudaError_t Sum(void* temp, size_t& bytes, IN in, OUT out, int segments, B begins, E ends,
            cudaStream_t s = 0) {
        return Reduce(temp, bytes, in, out, segments, begins, ends, cub::Sum(), detail::value_of<IN>(0), s);
    }
    template <class IN, class OUT, class B, class E>
    static cudaError_t Max(void* temp, size_t& bytes, IN in, OUT out, int segments, B begins, E ends,
            cudaStream_t s = 0) {
        using T = detail::value_of<IN>;
        return Reduce(temp, bytes, in, out, segments, begins, ends, cub::Max(), std::numeric_limits<T>::lowest(), s);
    }
    template <class IN, class OUT, class B, class E>
    static cudaError_t Min(void* temp, size_t& bytes, IN in, OUT out, int segments, B begins, E ends,
            cudaStream_t s = 0) {
        using T = detail::value_of<IN>;
        return Reduce(temp, bytes, in, out, segments, begins, ends, cub::Min(), std::numeric_limits<T>::max(), s);
    }
};
}  // namespace cub
