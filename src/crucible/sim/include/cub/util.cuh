// What all of cub leans on: operators, key-value pairs, lane helpers, thread-level reductions, simple iterators.
//
// cub for the simulator is ordinary device code in the shape of the real one: warp shuffles, one value a warp through
// TempStorage, a block barrier. So TempStorage that is reused without a barrier is a race here as it is on a chip.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <type_traits>

#include "csim/abi.h"

#ifndef CUB_VERSION
#define CUB_VERSION 200800
#endif
#define CUB_RUNTIME_FUNCTION
#define CUB_MAX(a, b) (((b) > (a)) ? (b) : (a))
#define CUB_MIN(a, b) (((b) < (a)) ? (b) : (a))
#define CUB_PTX_WARP_THREADS 32
#define CSIM_CUB inline __attribute__((always_inline))

namespace cub {
struct NullType {};
template <int N> struct Int2Type { enum { VALUE = N }; };

// ---- operators
struct Sum {
    template <class T, class U> CSIM_CUB auto operator()(const T& a, const U& b) const { return a + b; }
};
struct Difference {
    template <class T, class U> CSIM_CUB auto operator()(const T& a, const U& b) const { return a - b; }
};
struct Division {
    template <class T, class U> CSIM_CUB auto operator()(const T& a, const U& b) const { return a / b; }
};
struct Max {
    template <class T, class U> CSIM_CUB std::common_type_t<T, U> operator()(const T& a, const U& b) const {
        return b > a ? b : a;
    }
};
struct Min {
    template <class T, class U> CSIM_CUB std::common_type_t<T, U> operator()(const T& a, const U& b) const {
        return b < a ? b : a;
    }
};
struct Equality {
    template <class T, class U> CSIM_CUB bool operator()(const T& a, const U& b) const { return a == b; }
};
struct Inequality {
    template <class T, class U> CSIM_CUB bool operator()(const T& a, const U& b) const { return a != b; }
};
template <class OP> struct InequalityWrapper {
    OP op;
    CSIM_CUB explicit InequalityWrapper(OP op) : op(op) {}
    template <class T, class U> CSIM_CUB bool operator()(const T& a, const U& b) const { return !op(a, b); }
};
template <class B> struct CastOp {
    template <class A> CSIM_CUB B operator()(A&& a) const { return (B)a; }
};

template <class KEY, class VALUE> struct KeyValuePair {
    using Key = KEY;
    using Value = VALUE;
    KEY key;
    VALUE value;
    KeyValuePair() = default;
    CSIM_CUB KeyValuePair(const KEY& k, const VALUE& v) : key(k), value(v) {}
    CSIM_CUB bool operator==(const KeyValuePair& o) const { return key == o.key && value == o.value; }
    CSIM_CUB bool operator!=(const KeyValuePair& o) const { return !(*this == o); }
};
// The pair with the larger (smaller) value; of equal ones the one with the smaller key.
struct ArgMax {
    template <class T, class K> CSIM_CUB KeyValuePair<K, T> operator()(const KeyValuePair<K, T>& a,
            const KeyValuePair<K, T>& b) const {
        return b.value > a.value || (b.value == a.value && b.key < a.key) ? b : a;
    }
};
struct ArgMin {
    template <class T, class K> CSIM_CUB KeyValuePair<K, T> operator()(const KeyValuePair<K, T>& a,
            const KeyValuePair<K, T>& b) const {
        return b.value < a.value || (b.value == a.value && b.key < a.key) ? b : a;
    }
};

// ---- where a thread is
CSIM_CUB unsigned LaneId() { return (unsigned)csim_lane(); }
CSIM_CUB unsigned WarpId() { return (unsigned)csim_warp(); }
CSIM_CUB int RowMajorTid(int x, int y, int) {
    return (int)((threadIdx.z * (unsigned)y + threadIdx.y) * (unsigned)x + threadIdx.x);
}
CSIM_CUB unsigned LaneMaskLt() { return (1u << csim_lane()) - 1u; }
CSIM_CUB unsigned LaneMaskLe() { return (2u << csim_lane()) - 1u; }
CSIM_CUB unsigned LaneMaskGt() { return ~LaneMaskLe(); }
CSIM_CUB unsigned LaneMaskGe() { return ~LaneMaskLt(); }

// ---- moving values between lanes; out of range keeps the lane's own value, as the real ones do
template <int LOGICAL, class T> CSIM_CUB T ShuffleIndex(T input, int source, unsigned mask) {
    return __shfl_sync(mask, input, source, LOGICAL);
}
template <int LOGICAL, class T> CSIM_CUB T ShuffleUp(T input, int delta, int, unsigned mask) {
    return __shfl_up_sync(mask, input, delta, LOGICAL);
}
template <int LOGICAL, class T> CSIM_CUB T ShuffleDown(T input, int delta, int, unsigned mask) {
    return __shfl_down_sync(mask, input, delta, LOGICAL);
}
template <class T> CSIM_CUB T ShuffleIndex(T input, int source) { return __shfl_sync(0xffffffffu, input, source); }

// ---- one thread's items
template <int N, class T, class OP> CSIM_CUB T ThreadReduce(const T (&items)[N], OP op) {
    T total = items[0];
    for (int i = 1; i < N; ++i) total = op(total, items[i]);
    return total;
}
template <int N, class T, class OP> CSIM_CUB T ThreadReduce(const T (&items)[N], OP op, T prefix) {
    return op(prefix, ThreadReduce(items, op));
}

enum CacheLoadModifier { LOAD_DEFAULT, LOAD_CA, LOAD_CG, LOAD_CS, LOAD_CV, LOAD_LDG, LOAD_VOLATILE };
enum CacheStoreModifier { STORE_DEFAULT, STORE_WB, STORE_CG, STORE_CS, STORE_WT, STORE_VOLATILE };
template <CacheLoadModifier = LOAD_DEFAULT, class IT> CSIM_CUB auto ThreadLoad(IT p) { return *p; }
template <CacheStoreModifier = STORE_DEFAULT, class IT, class T> CSIM_CUB void ThreadStore(IT p, T value) {
    *p = value;
}

// ---- iterators without memory behind them
template <class T, class OFFSET = ptrdiff_t> class CountingInputIterator {
 public:
    using value_type = T;
    using reference = T;
    using pointer = T*;
    using difference_type = OFFSET;
    using iterator_category = std::random_access_iterator_tag;
    CSIM_CUB CountingInputIterator(const T& first) : value_(first) {}
    CSIM_CUB T operator*() const { return value_; }
    template <class D> CSIM_CUB T operator[](D n) const { return value_ + (T)n; }
    template <class D> CSIM_CUB CountingInputIterator operator+(D n) const { return {value_ + (T)n}; }
    CSIM_CUB CountingInputIterator& operator++() { return ++value_, *this; }

 private:
    T value_;
};
template <class T, class OFFSET = ptrdiff_t> class ConstantInputIterator {
 public:
    using value_type = T;
    CSIM_CUB ConstantInputIterator(const T& value) : value_(value) {}
    CSIM_CUB T operator*() const { return value_; }
    template <class D> CSIM_CUB T operator[](D) const { return value_; }
    template <class D> CSIM_CUB ConstantInputIterator operator+(D) const { return *this; }

 private:
    T value_;
};
template <class T, class OP, class IT, class OFFSET = ptrdiff_t> class TransformInputIterator {
 public:
    using value_type = T;
    CSIM_CUB TransformInputIterator(IT input, OP op) : input_(input), op_(op) {}
    CSIM_CUB T operator*() const { return op_(*input_); }
    template <class D> CSIM_CUB T operator[](D n) const { return op_(input_[n]); }
    template <class D> CSIM_CUB TransformInputIterator operator+(D n) const { return {input_ + n, op_}; }

 private:
    IT input_;
    OP op_;
};

namespace detail {
template <class T> struct Raw {  // storage for T without running its constructor: __shared__ memory has none
    alignas(T) unsigned char bytes[sizeof(T)];
    CSIM_CUB T& value() { return reinterpret_cast<T&>(bytes); }
};
template <class IT> using value_of = std::remove_cv_t<std::remove_reference_t<decltype(*std::declval<IT>())>>;
}  // namespace detail
}  // namespace cub
