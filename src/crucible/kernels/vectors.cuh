// Neighbours in memory, 16 bytes of the file's element type at a time.
//
// A walk goes over places `from` .. `to`. Where its tensors begin alike (all elements of one place at the same distance
// from a multiple of a vector's length) it is a few single elements, then vectors, then a few single ones; else all are
// single. A thread asks for IN_FLIGHT vectors before it waits for the first.
//   CRUCIBLE_VECTORS     0: single elements only, for comparisons
//   CRUCIBLE_IN_FLIGHT   how many vectors a thread asks for at once
//   CRUCIBLE_STREAMING   1: what nothing reads again leaves the caches first
#pragma once

#include "common.cuh"

#ifndef CRUCIBLE_VECTORS
#define CRUCIBLE_VECTORS 1
#endif
#ifndef CRUCIBLE_IN_FLIGHT
#define CRUCIBLE_IN_FLIGHT 2
#endif
#ifndef CRUCIBLE_STREAMING
#define CRUCIBLE_STREAMING 1
#endif

namespace crucible {

constexpr int VECTOR = 16 / sizeof(scalar), IN_FLIGHT = CRUCIBLE_IN_FLIGHT;

template <int BYTES>
struct WordOf { using type = uint4; };
template <>
struct WordOf<8> { using type = uint2; };
template <>
struct WordOf<4> { using type = unsigned; };
template <>
struct WordOf<2> { using type = unsigned short; };

// So many elements of any type: 16 bytes, or several times that, or less.
template <class T>
struct Vector {
  using Word = typename WordOf<VECTOR * sizeof(T)>::type;
  static constexpr int WORDS = VECTOR * sizeof(T) / sizeof(Word);
  T elements[VECTOR];
  __device__ __forceinline__ const T& operator[](int u) const { return elements[u]; }
  __device__ __forceinline__ T& operator[](int u) { return elements[u]; }
};

// Of a tensor that this kernel only reads; `LAST`: and that nothing reads after it.
template <bool LAST = false, class T>
__device__ __forceinline__ Vector<T> read_vector(const T* at) {
  using V = Vector<T>;
  const auto* const from = reinterpret_cast<const typename V::Word*>(at);
  typename V::Word words[V::WORDS];
#pragma unroll
  for (int i = 0; i < V::WORDS; ++i) words[i] = LAST && CRUCIBLE_STREAMING ? __ldcs(from + i) : __ldg(from + i);
  V v;
  memcpy(&v, words, sizeof(V));
  return v;
}

template <bool LAST = false, class T>
__device__ __forceinline__ void write_vector(T* at, const Vector<T>& v) {
  using V = Vector<T>;
  auto* const to = reinterpret_cast<typename V::Word*>(at);
  typename V::Word words[V::WORDS];
  memcpy(words, &v, sizeof(V));
#pragma unroll
  for (int i = 0; i < V::WORDS; ++i) {
    if constexpr (LAST && CRUCIBLE_STREAMING) {
      __stcs(to + i, words[i]);
    } else {
#if CRUCIBLE_WIDE
      __stwb(to + i, words[i]);  // at an address from 64-bit numbers the compiler would store a word's parts one by one
#else
      to[i] = words[i];
#endif
    }
  }
}

// How far elements lie from where a vector may begin: the same for all, or -1.
template <class T>
__host__ __device__ __forceinline__ int alike(const T* at) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(at) / sizeof(T) % VECTOR);
}
template <class T, class... Others>
__host__ __device__ __forceinline__ int alike(const T* at, const Others*... others) {
  const int one = alike(at), other = alike(others...);
  return one == other ? one : -1;
}

// The places of a walk as vectors and single elements.
struct Stretch {
  Index from, to, begin, vectors;
  __host__ __device__ __forceinline__ Index singles() const { return to - from - vectors * VECTOR; }
  __host__ __device__ __forceinline__ Index single(int64_t k) const {
    const Index place = from + static_cast<Index>(k);
    return place < begin ? place : place + vectors * VECTOR;
  }
};

// `distance`: of the element at place 0 from where a vector may begin, or less than 0 where there are none.
__host__ __device__ __forceinline__ Stretch stretch(int64_t first, int64_t last, int distance) {
  const Index from = static_cast<Index>(first), to = static_cast<Index>(last), wanted = -(from + distance) & (VECTOR - 1);
  if (!CRUCIBLE_VECTORS || distance < 0 || wanted >= to - from) return {from, to, to, 0};
  return {from, to, from + wanted, (to - from - wanted) / VECTOR};
}

}  // namespace crucible
