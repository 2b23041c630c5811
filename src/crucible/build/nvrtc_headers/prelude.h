// What a kernel in a torch extension may use besides CUDA itself, for NVRTC, which has neither the C++ standard library
// nor torch: fixed-width integers, limits, type traits, std math, packed accessors, c10::Half. Device side only.
#pragma once
#define CRUCIBLE_NVRTC 1

#include <cuda_fp16.h>
#include <cuda_bf16.h>

// ---- C headers -----------------------------------------------------------------------------------------------------
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;  // as in NVIDIA's own headers for NVRTC
typedef uint64_t uintptr_t;
typedef int64_t intptr_t;
typedef long ssize_t;
typedef unsigned int uint;

#define INT8_MIN (-128)
#define INT8_MAX 127
#define INT16_MIN (-32768)
#define INT16_MAX 32767
#define UINT8_MAX 255
#define UINT16_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295u
#define INT32_MAX INT_MAX
#define INT32_MIN INT_MIN
#define UINT32_MAX UINT_MAX
#define INT64_MAX 9223372036854775807ll
#define INT64_MIN (-INT64_MAX - 1)
#define UINT64_MAX 18446744073709551615ull
#define LONG_MAX INT64_MAX
#define LONG_MIN INT64_MIN
#define LLONG_MAX 9223372036854775807ll
#define LLONG_MIN (-LLONG_MAX - 1)
#define SIZE_MAX UINT64_MAX
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define DBL_MAX 1.7976931348623157e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_EPSILON 2.2204460492503131e-16
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#ifndef HUGE_VALF
#define HUGE_VALF INFINITY
#endif
#define M_E 2.71828182845904523536
#define M_LOG2E 1.44269504088896340736
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440

// ---- c10 and at: element types ---------------------------------------------------------------------------------------
namespace c10 {
struct alignas(2) Half {
  unsigned short x;
  Half() = default;
  __device__ Half(float v) : x(__half_as_ushort(__float2half(v))) {}
  __device__ Half(const __half& v) : x(__half_as_ushort(v)) {}
  __device__ operator float() const { return __half2float(__ushort_as_half(x)); }
  __device__ operator __half() const { return __ushort_as_half(x); }
};
struct alignas(2) BFloat16 {
  unsigned short x;
  BFloat16() = default;
  __device__ BFloat16(float v) : x(__bfloat16_as_ushort(__float2bfloat16(v))) {}
  __device__ BFloat16(const __nv_bfloat16& v) : x(__bfloat16_as_ushort(v)) {}
  __device__ operator float() const { return __bfloat162float(__ushort_as_bfloat16(x)); }
  __device__ operator __nv_bfloat16() const { return __ushort_as_bfloat16(x); }
};
#define CRUCIBLE_COMPARE(T, op)                                                                   \
  __device__ inline bool operator op(T a, T b) { return float(a) op float(b); }                   \
  __device__ inline bool operator op(T a, float b) { return float(a) op b; }                      \
  __device__ inline bool operator op(float a, T b) { return a op float(b); }                      \
  __device__ inline bool operator op(T a, double b) { return float(a) op b; }                     \
  __device__ inline bool operator op(double a, T b) { return a op float(b); }                     \
  __device__ inline bool operator op(T a, int b) { return float(a) op float(b); }                 \
  __device__ inline bool operator op(int a, T b) { return float(a) op float(b); }
#define CRUCIBLE_ARITHMETIC(T)                                                                    \
  __device__ inline T operator+(T a, T b) { return T(float(a) + float(b)); }                      \
  __device__ inline T operator-(T a, T b) { return T(float(a) - float(b)); }                      \
  __device__ inline T operator*(T a, T b) { return T(float(a) * float(b)); }                      \
  __device__ inline T operator/(T a, T b) { return T(float(a) / float(b)); }                      \
  __device__ inline T operator-(T a) { return T(-float(a)); }                                     \
  __device__ inline T& operator+=(T& a, T b) { return a = a + b; }                                \
  __device__ inline T& operator-=(T& a, T b) { return a = a - b; }                                \
  __device__ inline T& operator*=(T& a, T b) { return a = a * b; }                                \
  __device__ inline T& operator/=(T& a, T b) { return a = a / b; }                                \
  __device__ inline float operator+(T a, float b) { return float(a) + b; }                        \
  __device__ inline float operator-(T a, float b) { return float(a) - b; }                        \
  __device__ inline float operator*(T a, float b) { return float(a) * b; }                        \
  __device__ inline float operator/(T a, float b) { return float(a) / b; }                        \
  __device__ inline float operator+(float a, T b) { return a + float(b); }                        \
  __device__ inline float operator-(float a, T b) { return a - float(b); }                        \
  __device__ inline float operator*(float a, T b) { return a * float(b); }                        \
  __device__ inline float operator/(float a, T b) { return a / float(b); }                        \
  __device__ inline T operator+(T a, int b) { return a + T(float(b)); }                           \
  __device__ inline T operator-(T a, int b) { return a - T(float(b)); }                           \
  __device__ inline T operator*(T a, int b) { return a * T(float(b)); }                           \
  __device__ inline T operator/(T a, int b) { return a / T(float(b)); }                           \
  CRUCIBLE_COMPARE(T, <) CRUCIBLE_COMPARE(T, >) CRUCIBLE_COMPARE(T, <=) CRUCIBLE_COMPARE(T, >=)   \
  CRUCIBLE_COMPARE(T, ==) CRUCIBLE_COMPARE(T, !=)
CRUCIBLE_ARITHMETIC(Half)
CRUCIBLE_ARITHMETIC(BFloat16)
#undef CRUCIBLE_ARITHMETIC
#undef CRUCIBLE_COMPARE

namespace cuda { namespace compat {
#define CRUCIBLE_COMPAT(name)                                          \
  __device__ inline float name(float x) { return ::name##f(x); }       \
  __device__ inline double name(double x) { return ::name(x); }
CRUCIBLE_COMPAT(exp) CRUCIBLE_COMPAT(log) CRUCIBLE_COMPAT(sqrt) CRUCIBLE_COMPAT(rsqrt) CRUCIBLE_COMPAT(tanh)
CRUCIBLE_COMPAT(sin) CRUCIBLE_COMPAT(cos) CRUCIBLE_COMPAT(erf) CRUCIBLE_COMPAT(ceil) CRUCIBLE_COMPAT(floor)
CRUCIBLE_COMPAT(log1p) CRUCIBLE_COMPAT(expm1) CRUCIBLE_COMPAT(tan)
#undef CRUCIBLE_COMPAT
__device__ inline float abs(float x) { return ::fabsf(x); }
__device__ inline double abs(double x) { return ::fabs(x); }
__device__ inline float max(float x, float y) { return ::fmaxf(x, y); }
__device__ inline double max(double x, double y) { return ::fmax(x, y); }
__device__ inline float min(float x, float y) { return ::fminf(x, y); }
__device__ inline double min(double x, double y) { return ::fmin(x, y); }
__device__ inline float pow(float x, float y) { return ::powf(x, y); }
__device__ inline double pow(double x, double y) { return ::pow(x, y); }
}}
}

// ---- the C++ standard library, as far as kernels use it ----------------------------------------------------------------
namespace std {
using ::int8_t; using ::int16_t; using ::int32_t; using ::int64_t;
using ::uint8_t; using ::uint16_t; using ::uint32_t; using ::uint64_t;
using ::size_t;
typedef long ptrdiff_t;
typedef decltype(nullptr) nullptr_t;

template <class T, T v> struct integral_constant {
  static constexpr T value = v;
  using value_type = T;
  using type = integral_constant;
  __device__ constexpr operator T() const { return v; }
};
template <bool b> using bool_constant = integral_constant<bool, b>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;
template <class T, class U> struct is_same : false_type {};
template <class T> struct is_same<T, T> : true_type {};
template <class T, class U> inline constexpr bool is_same_v = is_same<T, U>::value;
template <bool, class T, class F> struct conditional { using type = T; };
template <class T, class F> struct conditional<false, T, F> { using type = F; };
template <bool b, class T, class F> using conditional_t = typename conditional<b, T, F>::type;
template <bool, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { using type = T; };
template <bool b, class T = void> using enable_if_t = typename enable_if<b, T>::type;
template <class T> struct remove_reference { using type = T; };
template <class T> struct remove_reference<T&> { using type = T; };
template <class T> struct remove_reference<T&&> { using type = T; };
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> struct remove_const { using type = T; };
template <class T> struct remove_const<const T> { using type = T; };
template <class T> using remove_const_t = typename remove_const<T>::type;
template <class T> struct remove_volatile { using type = T; };
template <class T> struct remove_volatile<volatile T> { using type = T; };
template <class T> struct remove_cv { using type = remove_const_t<typename remove_volatile<T>::type>; };
template <class T> using remove_cv_t = typename remove_cv<T>::type;
template <class T> struct remove_pointer { using type = T; };
template <class T> struct remove_pointer<T*> { using type = T; };
template <class T> using remove_pointer_t = typename remove_pointer<T>::type;
template <class T> struct decay { using type = remove_cv_t<remove_reference_t<T>>; };
template <class T> using decay_t = typename decay<T>::type;
template <class...> using void_t = void;
template <class T> struct is_floating_point
    : bool_constant<is_same_v<remove_cv_t<T>, float> || is_same_v<remove_cv_t<T>, double>> {};
template <class T> inline constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <class T> struct is_integral : false_type {};
#define CRUCIBLE_INTEGRAL(T) template <> struct is_integral<T> : true_type {};
CRUCIBLE_INTEGRAL(bool) CRUCIBLE_INTEGRAL(char) CRUCIBLE_INTEGRAL(signed char) CRUCIBLE_INTEGRAL(unsigned char)
CRUCIBLE_INTEGRAL(short) CRUCIBLE_INTEGRAL(unsigned short) CRUCIBLE_INTEGRAL(int) CRUCIBLE_INTEGRAL(unsigned)
CRUCIBLE_INTEGRAL(long) CRUCIBLE_INTEGRAL(unsigned long) CRUCIBLE_INTEGRAL(long long)
CRUCIBLE_INTEGRAL(unsigned long long)
#undef CRUCIBLE_INTEGRAL
template <class T> inline constexpr bool is_integral_v = is_integral<T>::value;
template <class T> struct is_arithmetic : bool_constant<is_integral_v<T> || is_floating_point_v<T>> {};
template <class T> inline constexpr bool is_arithmetic_v = is_arithmetic<T>::value;
template <class T> struct is_unsigned : bool_constant<is_integral_v<T> && (T(-1) > T(0))> {};
template <class T> struct is_signed : bool_constant<is_arithmetic_v<T> && !is_unsigned<T>::value> {};

// std::move and std::forward are built into NVRTC.
template <class T> __device__ constexpr void swap(T& a, T& b) { T c = a; a = b; b = c; }
template <class T> __device__ constexpr const T& max(const T& a, const T& b) { return a < b ? b : a; }
template <class T> __device__ constexpr const T& min(const T& a, const T& b) { return b < a ? b : a; }
template <class T> __device__ constexpr const T& clamp(const T& v, const T& lo, const T& hi) {
  return v < lo ? lo : hi < v ? hi : v;
}
template <class T, size_t n> struct array {
  T items[n];
  __device__ constexpr T& operator[](size_t i) { return items[i]; }
  __device__ constexpr const T& operator[](size_t i) const { return items[i]; }
  __device__ static constexpr size_t size() { return n; }
};

template <class T> struct numeric_limits { static constexpr bool is_specialized = false; };
#define CRUCIBLE_LIMITS(T, lo, hi, sign)                          \
  template <> struct numeric_limits<T> {                          \
    static constexpr bool is_specialized = true;                  \
    static constexpr bool is_integer = true;                      \
    static constexpr bool is_signed = sign;                       \
    __device__ static constexpr T min() { return lo; }            \
    __device__ static constexpr T lowest() { return lo; }         \
    __device__ static constexpr T max() { return hi; }            \
  };
CRUCIBLE_LIMITS(bool, false, true, false)
CRUCIBLE_LIMITS(signed char, INT8_MIN, INT8_MAX, true)
CRUCIBLE_LIMITS(unsigned char, 0, UINT8_MAX, false)
CRUCIBLE_LIMITS(short, INT16_MIN, INT16_MAX, true)
CRUCIBLE_LIMITS(unsigned short, 0, UINT16_MAX, false)
CRUCIBLE_LIMITS(int, INT_MIN, INT_MAX, true)
CRUCIBLE_LIMITS(unsigned, 0, UINT_MAX, false)
CRUCIBLE_LIMITS(long, INT64_MIN, INT64_MAX, true)
CRUCIBLE_LIMITS(unsigned long, 0, UINT64_MAX, false)
CRUCIBLE_LIMITS(long long, LLONG_MIN, LLONG_MAX, true)
CRUCIBLE_LIMITS(unsigned long long, 0, UINT64_MAX, false)
#undef CRUCIBLE_LIMITS
#define CRUCIBLE_LIMITS(T, lo, hi, eps, inf, nan)                          \
  template <> struct numeric_limits<T> {                                   \
    static constexpr bool is_specialized = true;                           \
    static constexpr bool is_integer = false;                              \
    static constexpr bool is_signed = true;                                \
    __device__ static constexpr T min() { return lo; }                     \
    __device__ static constexpr T lowest() { return -hi; }                 \
    __device__ static constexpr T max() { return hi; }                     \
    __device__ static constexpr T epsilon() { return eps; }                \
    __device__ static constexpr T infinity() { return inf; }               \
    __device__ static constexpr T quiet_NaN() { return nan; }              \
  };
CRUCIBLE_LIMITS(float, FLT_MIN, FLT_MAX, FLT_EPSILON, __builtin_bit_cast(float, 0x7f800000), __builtin_bit_cast(float, 0x7fc00000))
CRUCIBLE_LIMITS(double, DBL_MIN, DBL_MAX, DBL_EPSILON, __builtin_bit_cast(double, 0x7ff0000000000000), __builtin_bit_cast(double, 0x7ff8000000000000))
#undef CRUCIBLE_LIMITS
template <> struct numeric_limits<c10::Half> {
  __device__ static c10::Half lowest() { return -65504.f; }
  __device__ static c10::Half max() { return 65504.f; }
  __device__ static c10::Half min() { return 6.103515625e-05f; }
  __device__ static c10::Half epsilon() { return 9.765625e-04f; }
  __device__ static c10::Half infinity() { return INFINITY; }
};
template <> struct numeric_limits<c10::BFloat16> {
  __device__ static c10::BFloat16 lowest() { return -3.38953139e38f; }
  __device__ static c10::BFloat16 max() { return 3.38953139e38f; }
  __device__ static c10::BFloat16 min() { return FLT_MIN; }
  __device__ static c10::BFloat16 epsilon() { return 7.8125e-03f; }
  __device__ static c10::BFloat16 infinity() { return INFINITY; }
};

#define CRUCIBLE_MATH(name)                                            \
  __device__ inline float name(float x) { return ::name##f(x); }       \
  __device__ inline double name(double x) { return ::name(x); }
CRUCIBLE_MATH(exp) CRUCIBLE_MATH(exp2) CRUCIBLE_MATH(expm1) CRUCIBLE_MATH(log) CRUCIBLE_MATH(log2)
CRUCIBLE_MATH(log10) CRUCIBLE_MATH(log1p) CRUCIBLE_MATH(sqrt) CRUCIBLE_MATH(cbrt) CRUCIBLE_MATH(sin)
CRUCIBLE_MATH(cos) CRUCIBLE_MATH(tan) CRUCIBLE_MATH(asin) CRUCIBLE_MATH(acos) CRUCIBLE_MATH(atan)
CRUCIBLE_MATH(sinh) CRUCIBLE_MATH(cosh) CRUCIBLE_MATH(tanh) CRUCIBLE_MATH(erf) CRUCIBLE_MATH(erfc)
CRUCIBLE_MATH(floor) CRUCIBLE_MATH(ceil) CRUCIBLE_MATH(round) CRUCIBLE_MATH(trunc) CRUCIBLE_MATH(rint)
CRUCIBLE_MATH(lgamma) CRUCIBLE_MATH(tgamma) CRUCIBLE_MATH(fabs)
#undef CRUCIBLE_MATH
#define CRUCIBLE_MATH(name)                                                              \
  __device__ inline float name(float x, float y) { return ::name##f(x, y); }             \
  __device__ inline double name(double x, double y) { return ::name(x, y); }
CRUCIBLE_MATH(pow) CRUCIBLE_MATH(atan2) CRUCIBLE_MATH(fmod) CRUCIBLE_MATH(fmax) CRUCIBLE_MATH(fmin)
CRUCIBLE_MATH(hypot) CRUCIBLE_MATH(copysign)
#undef CRUCIBLE_MATH
__device__ inline float fma(float x, float y, float z) { return ::fmaf(x, y, z); }
__device__ inline double fma(double x, double y, double z) { return ::fma(x, y, z); }
__device__ inline float abs(float x) { return ::fabsf(x); }
__device__ inline double abs(double x) { return ::fabs(x); }
__device__ inline int abs(int x) { return x < 0 ? -x : x; }
__device__ inline long abs(long x) { return x < 0 ? -x : x; }
__device__ inline long long abs(long long x) { return x < 0 ? -x : x; }
__device__ inline bool isnan(float x) { return x != x; }
__device__ inline bool isnan(double x) { return x != x; }
__device__ inline bool isinf(float x) { return ::fabsf(x) == INFINITY; }
__device__ inline bool isinf(double x) { return ::fabs(x) == INFINITY; }
__device__ inline bool isfinite(float x) { return ::fabsf(x) < INFINITY; }
__device__ inline bool isfinite(double x) { return ::fabs(x) < INFINITY; }
}

// ---- torch, device side ------------------------------------------------------------------------------------------------
namespace at {
using c10::Half;
using c10::BFloat16;
template <class T> struct DefaultPtrTraits { using PtrType = T*; };
template <class T> struct RestrictPtrTraits { using PtrType = T* __restrict__; };
template <class T, size_t n, template <class> class Traits = DefaultPtrTraits, class I = int64_t> class TensorAccessor {
 public:
  using PtrType = typename Traits<T>::PtrType;
  __device__ TensorAccessor(PtrType data, const I* sizes, const I* strides)
      : data_(data), sizes_(sizes), strides_(strides) {}
  __device__ TensorAccessor<T, n - 1, Traits, I> operator[](I i) const {
    return TensorAccessor<T, n - 1, Traits, I>(data_ + strides_[0] * i, sizes_ + 1, strides_ + 1);
  }
  __device__ I size(I i) const { return sizes_[i]; }
  __device__ I stride(I i) const { return strides_[i]; }
  __device__ PtrType data() const { return data_; }
 protected:
  PtrType data_;
  const I* sizes_;
  const I* strides_;
};
template <class T, template <class> class Traits, class I> class TensorAccessor<T, 1, Traits, I> {
 public:
  using PtrType = typename Traits<T>::PtrType;
  __device__ TensorAccessor(PtrType data, const I* sizes, const I* strides)
      : data_(data), sizes_(sizes), strides_(strides) {}
  __device__ T& operator[](I i) const { return data_[strides_[0] * i]; }
  __device__ I size(I i) const { return sizes_[i]; }
  __device__ I stride(I i) const { return strides_[i]; }
  __device__ PtrType data() const { return data_; }
 protected:
  PtrType data_;
  const I* sizes_;
  const I* strides_;
};
template <class T, size_t n, template <class> class Traits = DefaultPtrTraits, class I = int64_t>
class GenericPackedTensorAccessor {
 public:
  using PtrType = typename Traits<T>::PtrType;
  __device__ TensorAccessor<T, n - 1, Traits, I> operator[](I i) const {
    return TensorAccessor<T, n - 1, Traits, I>(data_ + strides_[0] * i, sizes_ + 1, strides_ + 1);
  }
  __device__ I size(I i) const { return sizes_[i]; }
  __device__ I stride(I i) const { return strides_[i]; }
  __device__ PtrType data() const { return data_; }
 protected:
  PtrType data_;
  I sizes_[n];
  I strides_[n];
};
template <class T, template <class> class Traits, class I> class GenericPackedTensorAccessor<T, 1, Traits, I> {
 public:
  using PtrType = typename Traits<T>::PtrType;
  __device__ T& operator[](I i) const { return data_[strides_[0] * i]; }
  __device__ I size(I i) const { return sizes_[i]; }
  __device__ I stride(I i) const { return strides_[i]; }
  __device__ PtrType data() const { return data_; }
 protected:
  PtrType data_;
  I sizes_[1];
  I strides_[1];
};
template <class T, size_t n, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericPackedTensorAccessor<T, n, Traits, int32_t>;
template <class T, size_t n, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericPackedTensorAccessor<T, n, Traits, int64_t>;
template <class T, size_t n, template <class> class Traits = DefaultPtrTraits, class I = int64_t>
using PackedTensorAccessor = GenericPackedTensorAccessor<T, n, Traits, I>;

template <class T, bool cuda = true> struct AccumulateType { using type = T; };
template <> struct AccumulateType<Half, true> { using type = float; };
template <> struct AccumulateType<BFloat16, true> { using type = float; };
template <> struct AccumulateType<__half, true> { using type = float; };
template <> struct AccumulateType<__nv_bfloat16, true> { using type = float; };
template <> struct AccumulateType<int, true> { using type = int64_t; };
template <class T, bool cuda> using acc_type = typename AccumulateType<T, true>::type;
template <class T> struct OpMathType { using type = typename AccumulateType<T, true>::type; };
template <> struct OpMathType<int> { using type = int; };
template <class T> using opmath_type = typename OpMathType<T>::type;
namespace native {}
namespace cuda { namespace detail {} }
template <class T> __device__ constexpr T ceil_div(T a, T b) { return (a + b - 1) / b; }
}
namespace torch {
using namespace at;
namespace autograd {}
}
namespace c10 { using at::acc_type; }

__device__ inline void gpuAtomicAdd(float* p, float v) { atomicAdd(p, v); }
__device__ inline void gpuAtomicAdd(double* p, double v) { atomicAdd(p, v); }
__device__ inline void gpuAtomicAdd(int* p, int v) { atomicAdd(p, v); }
__device__ inline void gpuAtomicAdd(int64_t* p, int64_t v) {
  atomicAdd(reinterpret_cast<unsigned long long*>(p), static_cast<unsigned long long>(v));
}
__device__ inline void gpuAtomicAdd(c10::Half* p, c10::Half v) { atomicAdd(reinterpret_cast<__half*>(p), __half(v)); }
__device__ inline void gpuAtomicAdd(c10::BFloat16* p, c10::BFloat16 v) {
  atomicAdd(reinterpret_cast<__nv_bfloat16*>(p), __nv_bfloat16(v));
}
template <class T, class V> __device__ inline void gpuAtomicAddNoReturn(T* p, V v) { gpuAtomicAdd(p, static_cast<T>(v)); }

#define C10_DEVICE __device__
#define C10_HOST __host__
#define C10_HOST_DEVICE __host__ __device__
#define C10_ALWAYS_INLINE inline
#define C10_RESTRICT __restrict__
#define C10_UNUSED
#define C10_LAUNCH_BOUNDS_1(n) __launch_bounds__(n)
#define C10_LAUNCH_BOUNDS_2(n, m) __launch_bounds__(n, m)
#define C10_WARP_SIZE 32
#define C10_LIKELY(x) (x)
#define C10_UNLIKELY(x) (x)
#define CUDA_KERNEL_ASSERT(x) ((void)0)
#define CUDA_KERNEL_LOOP_TYPE(i, n, type)                                                                      \
  for (type i = static_cast<type>(blockIdx.x) * blockDim.x + threadIdx.x; i < (n); i += blockDim.x * gridDim.x)
#define CUDA_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP_TYPE(i, n, int)
#define CUDA_1D_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP_TYPE(i, n, int)
#ifndef assert
#define assert(x) ((void)0)
#endif
