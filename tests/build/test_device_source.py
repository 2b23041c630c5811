"""The device-only view of an extension's source: what stays, what goes, and that no line moves."""

from __future__ import annotations

import pytest

from crucible.build.device_source import device_source, mask

pytestmark = pytest.mark.quick

EXTENSION = r"""#include <torch/extension.h>
#include <cuda_fp16.h>
#include <vector>
#define INLINE __device__ __forceinline__
#define CHECK(x) TORCH_CHECK(x.is_cuda(), "x must be { on the \" device")
namespace {
constexpr int kTile = 16;
const float kEps = 1e-5f;
int launches = 0;
std::vector<int> history;
struct Pair { float a, b; };
struct Options { torch::Tensor x; int n; };
enum class Mode { fast, exact };
using acc_t = float;
using torch::Tensor;
constexpr int up(int a, int b) { return (a + b - 1) / b; }
int host_up(int a, int b) { return (a + b - 1) / b; }
INLINE float square(float x) { return x * x; }
__constant__ float table[4] = {1, 2, 3, 4};
template <typename T, int N = 4>
__global__ void __launch_bounds__(kTile * (kTile))
scale(const T* x, T* y) {
  __shared__ T tile[kTile];  // braces in comments } do not count, nor do "strings }"
  y[threadIdx.x] = x[threadIdx.x] * T(N) + T(square(table[0]));
}
}  // namespace
__global__ void plain(float* y);
__global__ void plain(float* y) { y[0] = 1.f; }
torch::Tensor forward(torch::Tensor x) {
  CHECK(x);
  auto y = torch::empty_like(x);
#ifdef FAST
  scale<float, 8><<<1, 32>>>(x.data_ptr<float>(), y.data_ptr<float>());
#else
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "scale", [&] {
    scale<scalar_t><<<1, 32>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>());
  });
#endif
  return y;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &forward, "it's { one"); }
"""


def lines_of(text: str, word: str) -> list[int]:
    return [n for n, line in enumerate(text.split("\n"), 1) if word in line]


def test_every_line_keeps_its_number() -> None:
    view = device_source(EXTENSION)
    assert view.text.count("\n") == EXTENSION.count("\n")
    for word in ("constexpr int kTile", "struct Pair", "enum class Mode", "scale(const T* x", "INLINE float square",
                 "__constant__", "#ifdef FAST", "#else", "using acc_t", "constexpr int up", "kEps"):  # fmt: skip
        assert lines_of(view.text, word) == lines_of(EXTENSION, word), word


@pytest.mark.parametrize(
    "word",
    ["torch/extension.h", "<vector>", "launches", "history", "Options", "host_up", "forward", "PYBIND11_MODULE",
     "m.def", "using torch::Tensor", "AT_DISPATCH", "empty_like", "it's"],
)  # fmt: skip
def test_host_code_goes(word: str) -> None:
    assert word not in device_source(EXTENSION).text


def test_kernels_and_instances() -> None:
    view = device_source(EXTENSION)
    assert [(k.name, k.line) for k in view.kernels] == [("scale", 20), ("plain", 28)]
    assert view.kernels[0].parameters == ["typename T", "int N = 4"]
    assert view.instances == ["scale<float, 8>", "scale<float>", "scale<double>", "scale<c10::Half>"]
    assert view.headers == ["cuda_fp16.h"]


def test_instances_through_local_constants_and_host_templates() -> None:
    view = device_source(
        """
        template <int B, bool F> __global__ void k(float* x) {}
        template <int B> void launch(float* x, bool f) {
            if (f) k<B, true><<<1, B>>>(x); else k<B, false><<<1, B>>>(x);
        }
        void go(float* x) { constexpr int kBig = 256; launch<kBig>(x, true); launch<64>(x, false); }
        """
    )
    assert set(view.instances) == {"k<(256), true>", "k<(256), false>", "k<64, true>", "k<64, false>"}


def test_deduced_arguments_are_guessed_where_they_are_types() -> None:
    source = "template <typename T> __global__ void k(T* x) {}\nvoid go(float* x) { k<<<1, 1>>>(x); }"
    assert device_source(source).guesses == ["k<float>"]
    source = "template <int N> __global__ void k(float (&x)[N]) {}\nvoid go(float* x) { k<<<1, 1>>>(x); }"
    assert device_source(source).not_instantiated == ["k"]


def test_extern_c_and_nested_namespaces_stay_balanced() -> None:
    source = (
        'extern "C" {\n__global__ void a() {}\n}\nnamespace x::y { namespace z {\n__device__ int f() { return 1; }\n} }'
    )
    assert device_source(source).text == source


def test_macro_that_makes_a_kernel_is_kept() -> None:
    source = "#define KERNEL(T) __global__ void k_##T(T* x) { x[0] = 1; }\nKERNEL(float)\nKERNEL(double)\nint n = 0;\n"
    assert "KERNEL(double)" in device_source(source).text


def test_mask_keeps_positions() -> None:
    text = 'a /* { */ "}\\"" \'{\' // }\nb R"x( " )x" c'
    masked = mask(text)
    assert len(masked) == len(text) and masked.split() == ["a", "b", "c"]
