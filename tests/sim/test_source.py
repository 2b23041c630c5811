"""Source rewriting: what is rewritten, what is left alone, and that no line moves."""

import re

import pytest

from crucible.sim.source import mask, rewrite, scan


def same_lines(before: str, after: str) -> None:
    assert before.count("\n") == after.count("\n")


def launch_site(text: str) -> tuple[str, list[str]]:
    """The kernel and argument texts that a rewritten launch passes on."""
    match = re.search(r'::csim::Site\{"((?:[^"\\]|\\.)*)", "((?:[^"\\]|\\.)*)"', text)
    assert match, text
    return match.group(1), match.group(2).split("\\037")


def test_mask_keeps_positions():
    text = 'a = "x; // no"; // yes "quote\nb = \'"\'; /* <<< \n >>> */ c = R"(raw "<<<" \n)"; n = 1\'000; d'
    masked = mask(text)
    assert len(masked) == len(text) and masked.count("\n") == text.count("\n")
    assert "<<<" not in masked and "no" not in masked and masked.endswith("n = 1'000; d")


@pytest.mark.parametrize(
    "launch, kernel, arguments",
    [
        ("k<<<1, 2>>>(a, b);", "k", ["a", "b"]),
        ("k<<<g, b, 0, s>>>();", "k", [""]),
        ("k<float><<<dim3(1, 2), dim3(32)>>>(x.data_ptr<float>(), n);", "k<float>", ["x.data_ptr<float>()", "n"]),
        ("ns::k<A<B<int>>, (4 > 3)><<<1, 1>>>(f(a, b), {1});", "ns::k<A<B<int>>, (4 > 3)>", ["f(a, b)", "{1}"]),
        ("(table[i])<<<1, 1>>>(x);", "(table[i])", ["x"]),
        ("table[i]<<<1, 1>>>(x);", "table[i]", ["x"]),
        ("::k<<<1, 1>>>(x);", "::k", ["x"]),
        ("Trait<T>::kernel<<<1, 1>>>(x);", "Trait<T>::kernel", ["x"]),
        ("pick(n)<<<1, 1>>>(x);", "pick(n)", ["x"]),
        ("k <<< (n + 255) / 256, 256 >>> (x /* in */, y);", "k", ["x", "y"]),
        ("if (n) k<<<1, 1>>>(a<b, c>(d), e);", "k", ["a<b, c>(d)", "e"]),
        ("k<<<1, 1>>>(i < n, j > m);", "k", ["i < n", "j > m"]),
        ('k<<<1, 1>>>("a\\"b,", x);', "k", ['\\"a\\\\\\"b,\\"', "x"]),
    ],
)
def test_launches(launch, kernel, arguments):
    out = rewrite(f"void f() {{ {launch} }}")
    assert launch_site(out) == (kernel, arguments)
    assert "<<<" not in mask(out)


def test_launch_calls_that_name_their_kernel():
    text = """
template <class T, int N> __global__ void scale(T* x, int n) {}
int f() {
  return cudaLaunchKernelEx(After(dim3(n, 2), 64, 0, s),
                            scale<float, 4>, x /* in */,
                            n);
}
"""
    out = rewrite(text)
    assert launch_site(out) == ("scale<float, 4>", ["x", "n"])
    assert "cudaLaunchKernelEx" not in out and out.count("\n") == text.count("\n")
    unknown = "int f() { return cudaLaunchKernelEx(&config, chosen, x); }"
    assert rewrite(unknown) == unknown


def test_launch_over_lines_and_in_macros():
    text = """
void f() {
  scale<
    float>
    <<<grid,
       block, smem>>>
    (x,
     y);   // <<< comment
  done();
}
#define LAUNCH(T) \\
  kernel<T><<<grid, \\
      block>>>( \\
      a, b)
int after;
"""
    out = rewrite(text)
    same_lines(text, out)
    assert out.split("\n")[-2] == "int after;"
    macro = out[out.index("#define") : out.index("int after")]
    assert all(line.endswith("\\") for line in macro.rstrip("\n").split("\n")[:-1])


def test_shift_operators_are_left_alone():
    text = "int f(int a) { return a << 2 >> 1; } std::cout << x << y; vector<vector<vector<int>>> v;"
    assert rewrite(text) == text


def test_null_arguments_become_nullptr():
    assert "(x, nullptr, n)" in rewrite("void f() { k<<<1, 1>>>(x, NULL, n); }")


def test_address_and_bounds_are_passed_where_known():
    text = """
#define THREADS 128
__global__ void __launch_bounds__(256) a(int* p) {}
template <typename T> __global__ void __launch_bounds__(THREADS) b(T* p) {}
template <typename T, int N = 4> __global__ void c(T* p) {}
void f() { a<<<1, 1>>>(p); b<<<1, 1>>>(p); c<float><<<1, 1>>>(p); unknown<<<1, 1>>>(p); }
"""
    tails = re.findall(r'__LINE__, (.*?), (\d+), ",a,b,c,"\}', rewrite(text))
    assert tails == [
        ("(const void*)(a)", "256"),
        ("nullptr", "128"),
        ("(const void*)(c<float>)", "0"),
        ("nullptr", "0"),
    ]


@pytest.mark.parametrize(
    "declaration, expected",
    [
        ("extern __shared__ float s[];", "CSIM_DYNAMIC_SHARED(s, float);"),
        ("extern __shared__ __align__(16) unsigned char buf[];", "CSIM_DYNAMIC_SHARED(buf, unsigned char);"),
        ("extern __align__(16) __shared__ char s[];", "CSIM_DYNAMIC_SHARED(s, char);"),
        ("extern __shared__ alignas(128) T tile[];", "CSIM_DYNAMIC_SHARED(tile, T);"),
        ("alignas(16) extern __shared__ float s[];", "CSIM_DYNAMIC_SHARED(s, float);"),
        ("extern volatile __shared__ int v[ ];", "CSIM_DYNAMIC_SHARED(v, volatile int);"),
        ("extern __shared__ A<float, 4> s[];", "CSIM_DYNAMIC_SHARED(s, A<float, 4>);"),
        ("extern __shared__ float rows[][32];", "(*)[][32]>(csim_dynamic_shared());"),
        ("extern __shared__ float s[] __attribute__((aligned(16)));", None),
    ],
)
def test_dynamic_shared(declaration, expected):
    out = rewrite(f"__global__ void k() {{\n  {declaration}\n}}")
    if expected:
        assert expected in out
    same_lines("\n\n", out)


def test_dynamic_shared_at_file_scope():
    text = "namespace n {\nextern __shared__ float s[];\n}\n__global__ void k() { extern __shared__ int t[]; }"
    out = rewrite(text)
    assert "CSIM_DYNAMIC_SHARED_GLOBAL(s, float);" in out and "CSIM_DYNAMIC_SHARED(t, int);" in out


def test_shared_alignas_changes_places():
    assert "alignas(16) __shared__ float s[4];" in rewrite("void k() { __shared__ alignas(16) float s[4]; }")


def test_kernels_as_void_pointers():
    text = """
__global__ void k(int*) {}
template <int N> __global__ void t(int*) {}
void f() {
  cudaLaunchCooperativeKernel((void*)k, g, b, args);
  cudaLaunchKernel((const void*)&t<4>, g, b, args);
  auto p = reinterpret_cast<void*>(k);
  void* other = (void*)x;
}
"""
    out = rewrite(text)
    assert "::csim::kernel_address(k)), g" in out and "::csim::kernel_address(t<4>))" in out
    assert out.count("kernel_address") == 3 and "(void*)x" in out


def test_scan():
    facts = scan("""
#include <cublas_v2.h>
// __global__ void not_this() {}
template <typename T>
__global__ void __launch_bounds__(64)
first(const T* x) {}
__global__ void second(float* y);
static __device__ float helper(float v) { return v; }
torch::Tensor run(torch::Tensor x, int n) {
  first<float><<<1, 2>>>(x.data_ptr<float>());
  const char* text = "second<<<1, 1>>>(y)";
  return x;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
""")
    assert set(facts.kernels) == {"first", "second"}
    assert facts.kernels["first"].max_threads == 64 and facts.kernels["first"].is_template
    assert facts.launched == {"first"}
    assert "run" in facts.host_functions and "helper" not in facts.host_functions
    assert facts.pybind_modules == 1
    assert [(u.name, u.line) for u in facts.unsupported] == [("cuBLAS headers", 2)]


def test_scan_sees_launch_functions():
    facts = scan("__global__ void k(int*) {}\nvoid f() { cudaLaunchCooperativeKernel((void*)k, 1, 1, args); }")
    assert facts.launched == {"k"}
