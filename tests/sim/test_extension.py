"""load_inline on the simulated device: what extensions use works, what load_inline would reject is rejected."""

import pytest

from crucible.build.extension import Chunk, Extension, _first_flavour

FEATURES = '''
cuda = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_fp16.h>
#include <vector>
#define CHECK_CUDA(x) TORCH_CHECK(x.is_cuda(), #x " must be a CUDA tensor")
#define DIV(a, b) (((a) + (b) - 1) / (b))
__constant__ float c_scale[2];
namespace {
template <typename scalar_t>
__global__ void __launch_bounds__(256) scale(
    torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> x,
    torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> y) {
  const int r = blockIdx.y * blockDim.y + threadIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
  if (r < x.size(0) && c < x.size(1)) y[r][c] = x[r][c] * static_cast<scalar_t>(c_scale[0]);
}
}  // namespace
template <typename T, int BLOCK>
__global__ void rowsum(const T* __restrict__ x, T* out, int n) {
  extern __shared__ __align__(sizeof(T)) unsigned char raw[];
  T* s = reinterpret_cast<T*>(raw);
  __shared__ T total[1];
  T v = 0;
  for (int i = threadIdx.x; i < n; i += BLOCK) v += x[(int64_t)blockIdx.x * n + i];
  s[threadIdx.x] = v;
  __syncthreads();
  for (int o = BLOCK / 2; o >= 32; o >>= 1) {
    if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];
    __syncthreads();
  }
  v = threadIdx.x < 32 ? s[threadIdx.x] : T(0);
  #pragma unroll
  for (int o = 16; o > 0; o /= 2) v += __shfl_down_sync(0xffffffff, v, o);
  if (threadIdx.x == 0) total[0] = v;
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(out + blockIdx.x, total[0]);
}
template <typename T>
__global__ void deduced(T* p, float k, int64_t n) { CUDA_KERNEL_LOOP(i, n) p[i] = max(p[i], T(k)) + min(0, 1); }
std::vector<torch::Tensor> run(const at::Tensor& x) {
  CHECK_CUDA(x);
  TORCH_CHECK(x.device().is_cuda() && x.device().type() == torch::kCUDA);
  const at::cuda::OptionalCUDAGuard device_guard(device_of(x));
  auto y = torch::empty_like(x);
  auto o = torch::zeros({x.size(0)}, torch::TensorOptions().dtype(x.dtype()).device(torch::kCUDA));
  float h[2] = {3.f, 0.f};
  AT_CUDA_CHECK(cudaMemcpyToSymbol(c_scale, h, sizeof(h)));
  dim3 blockDim(16, 16), gridDim(DIV(x.size(1), 16), DIV(x.size(0), 16));
  cudaStream_t stream = at::cuda::getCurrentCUDAStream().stream();
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "scale", ([&] {
    scale<scalar_t><<<gridDim, blockDim, 0, stream>>>(
        x.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
        y.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>());
  }));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "rowsum", [&] {
    constexpr int B = 128;
    rowsum<scalar_t, B><<<x.size(0), B, B * sizeof(scalar_t), at::cuda::getCurrentCUDAStream()>>>(
        y.data_ptr<scalar_t>(), o.data_ptr<scalar_t>(), x.size(1));
    deduced<<<static_cast<int>(DIV(y.numel(), 256)), 256>>>(y.data_ptr<scalar_t>(), 0.f, y.numel());
  });
  cudaError_t err = cudaGetLastError();
  if (err != cudaSuccess) throw std::runtime_error(cudaGetErrorString(err));
  return {y, o};
}
void bad(torch::Tensor x) { deduced<<<1, 2048>>>(x.data_ptr<float>(), 0.f, x.numel()); C10_CUDA_KERNEL_LAUNCH_CHECK(); }
void past(torch::Tensor x) { deduced<<<1, 64>>>(x.data_ptr<float>(), 0.f, x.numel() + 3); }
void past_by_config(torch::Tensor x) {
  cudaLaunchConfig_t config = {};
  config.gridDim = 1;
  config.blockDim = 64;
  const int count = x.numel() + 3;
  const cudaError_t refused = cudaLaunchKernelEx(&config, deduced<float>, x.data_ptr<float>(), 0.f, count);
  if (refused != cudaSuccess) throw std::runtime_error(cudaGetErrorString(refused));
}
"""
from torch.utils.cpp_extension import load_inline
ext = load_inline(
    name="features",
    cpp_sources=["std::vector<torch::Tensor> run(const at::Tensor& x);",
                 "void bad(torch::Tensor x); void past(torch::Tensor x);", "void past_by_config(torch::Tensor x);"],
    cuda_sources=[cuda], functions=["run", "bad", "past", "past_by_config"],
    extra_cuda_cflags=["-O3", "--use_fast_math"])
for dtype in (torch.float32, torch.float64):
    x = torch.randn(37, 211, device="cuda", dtype=dtype)
    y, o = ext.run(x)
    assert torch.allclose(y, (3 * x).clamp_min(0)) and torch.allclose(o, 3 * x.sum(1), atol=1e-4), dtype
assert device.reports() == [], device.reports()
assert [l["kernel"].split("<")[0] for l in device.launches()[:3]] == ["scale", "rowsum", "deduced"]
try:
    ext.run(torch.randn(3, 3))
except RuntimeError as error:
    assert "x must be a CUDA tensor" in str(error)
else:
    raise AssertionError("a CPU tensor passed for a CUDA one")
try:
    ext.bad(torch.zeros(4).cuda())
except RuntimeError as error:
    assert "invalid configuration" in str(error), error
else:
    raise AssertionError("a launch of 2048 threads was accepted")
for past in (ext.past, ext.past_by_config):
    device.reset()
    try:
        past(torch.zeros(32).cuda())
    except RuntimeError as error:
        assert "crucible-sim" in str(error)
    else:
        raise AssertionError("an out-of-bounds access went unnoticed")
    (report,) = device.reports()
    assert report["code"] == "out_of_bounds" and report["kernel"].startswith("deduced"), report
    assert report["tensor"] == "x", report
    source = open(__file__).read().splitlines()
    assert "CUDA_KERNEL_LOOP" in source[report["line"] - 1], report
'''


def test_what_extensions_use(run_on_device):
    run_on_device(FEATURES)


def test_compile_error_names_the_line_of_the_file(run_on_device):
    run_on_device('''
        from crucible.build import BuildError
        from torch.utils.cpp_extension import load_inline
        cuda = """
        __global__ void k(float* p) { p[0] = 1 }
        void f(torch::Tensor x) { k<<<1, 1>>>(x.data_ptr<float>()); }
        """
        try:
            load_inline(name="typo", cpp_sources="void f(torch::Tensor x);", cuda_sources=cuda, functions=["f"])
        except BuildError as error:
            assert error.kind == "compile_error" and error.file == "script.py", vars(error)
            assert "p[0] = 1 }" in error.source_line, vars(error)
            assert len(str(error)) < 400
        else:
            raise AssertionError("a typo compiled")
    ''')


def test_misuse_is_rejected_with_a_remedy(run_on_device):
    run_on_device('''
        from crucible.build import BuildError
        from torch.utils.cpp_extension import load_inline
        kernel = ("__global__ void k(float* p) { p[0] = 1; }\\n"
                  "void f(torch::Tensor x) { k<<<1, 1>>>(x.data_ptr<float>()); }\\n")
        module = 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", &f); }\\n'
        wrong = {
            "__global__ kernel": dict(cpp_sources="void k(float* p);", cuda_sources=kernel, functions=["k"]),
            "does not declare": dict(cpp_sources="", cuda_sources=kernel, functions=["f"]),
            "PYBIND11_MODULE": dict(
                cpp_sources="void f(torch::Tensor x);", cuda_sources=kernel + module, functions=["f"]),
            "binds no function": dict(cpp_sources="void f(torch::Tensor x);", cuda_sources=kernel),
        }
        for words, arguments in wrong.items():
            try:
                load_inline(name="misuse", **arguments)
            except BuildError as error:
                assert error.kind == "load_inline_misuse" and words in str(error) and error.hint, (words, str(error))
            else:
                raise AssertionError(words)
    ''')


def test_side_streams_and_dropped_launches(run_on_device):
    run_on_device('''
        from torch.utils.cpp_extension import load_inline
        ext = load_inline(name="one", cpp_sources="void one(torch::Tensor x);", functions=["one"], cuda_sources="""
        #include <ATen/cuda/CUDAContext.h>
        __global__ void k(float* p) { p[threadIdx.x] = 1; }
        void one(torch::Tensor x) { k<<<1, 4, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>()); }
        """)
        x = torch.zeros(4, device="cuda")
        side = torch.cuda.Stream()

        def pending():
            return [launch["pending"] for launch in device.launches()]

        ext.one(x); assert pending() == [False]
        device.reset()
        with torch.cuda.stream(side):
            ext.one(x)
        assert pending() == [True]                       # nobody waited
        torch.cuda.current_stream().wait_stream(side)
        assert pending() == [False]
        with torch.cuda.stream(side):
            ext.one(x)
        event = torch.cuda.Event(); event.record(side); event.synchronize()
        assert pending() == [False, False]
        with torch.cuda.stream(side):
            ext.one(x)
        torch.cuda.synchronize(); assert not any(pending())

        x.zero_(); device.reset(); device.configure(drop_launches=True); ext.one(x)
        assert x.sum().item() == 0 and len(device.launches()) == 1
        device.configure(drop_launches=False); ext.one(x)
        assert x.sum().item() == 4
    ''')


def test_extensions_without_torch(run_on_device):
    """Pointers and sizes need nothing of torch's headers; what needs them after all gets them."""
    run_on_device('''
        from crucible.build import BuildError
        from torch.utils.cpp_extension import load_inline
        cuda = """
        #include <cuda_runtime.h>
        #include <stdexcept>
        __global__ void k(float* p, int n) { if (threadIdx.x < n) p[threadIdx.x] = 1; }
        void fill(uint64_t p, int64_t n, int threads) {
          if (n < 0) throw std::runtime_error("a negative size");
          k<<<1, threads>>>(reinterpret_cast<float*>(p), static_cast<int>(n));
        }
        int64_t added(int64_t a, int b) { return a + b; }
        unsigned seven() { return 7; }
        double halved(double x) { return x / 2; }
        """

        def flavour(module):
            return open(module.__file__.rsplit("/", 1)[0] + "/flavour").read()

        declared = """
        #include <pybind11/pybind11.h>
        #include <cstdint>
        void fill(uint64_t p, int64_t n, int threads);
        """
        binding = declared + """
        PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("fill", &fill, "fills"); }"""
        bare = load_inline(name="bare", cpp_sources=binding, cuda_sources=cuda)
        listed = load_inline(name="listed", cpp_sources=declared, cuda_sources=cuda, functions=["fill"])
        whole = "#include <cstdint>\\nint64_t added(int64_t a, int b); unsigned seven();"
        counted = load_inline(name="counted", cpp_sources=whole, cuda_sources=cuda, functions=["added", "seven"])
        assert counted.added(1 << 40, -3) == (1 << 40) - 3 and counted.seven() == 7
        declared_other = "double halved(double x);"
        other = load_inline(name="other", cpp_sources=declared_other, cuda_sources=cuda, functions=["halved"])
        assert [flavour(m) for m in (bare, listed, counted, other)] == ["bare", "bare", "bare", "thin"]
        assert other.halved(3) == 1.5 and bare.fill.__doc__ == "fills"
        for module in (bare, listed):
            x = torch.zeros(4, device="cuda")
            module.fill(x.data_ptr(), 3, 32)
            assert x.tolist() == [1, 1, 1, 0] and device.reports() == []
            for arguments, kind, words in (
                ((x.data_ptr(), -1, 32), RuntimeError, "a negative size"),
                ((x.data_ptr(), 1.5, 32), TypeError, "argument 2 must be int"),
                ((x.data_ptr(), 1), TypeError, "takes 3 arguments"),
            ):
                try:
                    module.fill(*arguments)
                except kind as error:
                    assert words in str(error), error
                else:
                    raise AssertionError(words)
        try:
            bare.fill(x.data_ptr(), 5, 32)
        except RuntimeError as error:
            assert "crucible-sim" in str(error)
        (report,) = device.reports()
        assert report["code"] == "out_of_bounds" and report["tensor"] == "p", report
        assert "p[threadIdx.x] = 1" in open(__file__).read().splitlines()[report["line"] - 1], report
        try:
            load_inline(name="typo", cpp_sources=declared, cuda_sources=cuda.replace("] = 1;", "] = 1"),
                        functions=["fill"])
        except BuildError as error:
            assert error.kind == "compile_error" and "expected" in str(error), error
        else:
            raise AssertionError("a typing error compiled")
    ''')


def test_extensions_with_a_part_of_torch(run_on_device):
    """New tensors are those of torch's own functions, and every kind of value finds its way to C++ and back."""
    run_on_device('''
        from torch.utils.cpp_extension import load_inline

        def flavour(module):
            return open(module.__file__.rsplit("/", 1)[0] + "/flavour").read()

        made = load_inline(name="made", functions=["make"], cuda_sources="", cpp_sources="""
        #include <torch/extension.h>
        std::vector<torch::Tensor> make(torch::Tensor x) {
          auto options = x.options().dtype(torch::kInt32);
          return {torch::empty({2, 3}, options), torch::empty({2, 3, 4, 5}, options, torch::MemoryFormat::ChannelsLast),
                  torch::empty_strided({2, 3}, {1, 2}, options), torch::zeros({3}, options), torch::ones({3}, options),
                  torch::full({2}, 2.5, torch::dtype(torch::kFloat64).requires_grad(true)), torch::empty_like(x),
                  torch::zeros_like(x), torch::ones_like(x, torch::kFloat16), torch::full_like(x, 7),
                  torch::zeros_like(x, x.options(), torch::MemoryFormat::Contiguous)};
        }
        """)
        x = torch.randn(2, 3, 4, 5, device="cuda").to(memory_format=torch.channels_last).requires_grad_()
        on = dict(dtype=torch.int32, device="cuda")
        wanted = [
            torch.zeros(2, 3, **on), torch.zeros(2, 3, 4, 5, **on).to(memory_format=torch.channels_last),
            torch.zeros(3, 2, **on).t(), torch.zeros(3, **on), torch.ones(3, **on),
            torch.full((2,), 2.5, dtype=torch.float64, requires_grad=True), torch.zeros_like(x), torch.zeros_like(x),
            torch.ones_like(x, dtype=torch.float16), torch.full_like(x, 7),
            torch.zeros_like(x, memory_format=torch.contiguous_format),
        ]
        found = made.make(x)
        assert flavour(made) == "thin" and len(found) == len(wanted)
        for i, (a, b) in enumerate(zip(found, wanted)):
            assert (a.shape, a.stride(), a.dtype, a.device) == (b.shape, b.stride(), b.dtype, b.device), i
            assert a.requires_grad == b.requires_grad, i
            assert i in (0, 1, 2, 6) or torch.equal(a, b), i  # those are empty

        names = ["tensor", "several", "numbers", "words", "nothing"]
        values = load_inline(name="all_values", functions=names, cuda_sources="", cpp_sources="""
        #include <torch/extension.h>
        torch::Tensor tensor(const torch::Tensor& x, torch::Device device, torch::ScalarType dtype) {
          return x.to(device, dtype);
        }
        std::tuple<torch::Tensor, std::optional<torch::Tensor>, std::vector<int64_t>> several(
            std::vector<torch::Tensor> list, std::optional<torch::Tensor> maybe, torch::IntArrayRef sizes) {
          return {list.at(1), maybe, sizes.vec()};
        }
        std::pair<double, bool> numbers(int a, float b, bool c, torch::Scalar d) {
          return {a + b + d.toDouble(), !c};
        }
        std::string words(std::string text) { return text + "!"; }
        void nothing() {}
        """)
        assert flavour(values) == "thin"
        y = torch.ones(2)
        assert values.tensor(y, torch.device("cuda"), torch.float64).dtype == torch.float64
        one, maybe, sizes = values.several([x, y], None, (3, 4))
        assert one is y and maybe is None and sizes == [3, 4]
        assert values.several((x, y), x, [])[1] is x
        assert values.numbers(1, 0.5, True, 2) == (3.5, False) and values.numbers(True, 2, False, 0.25) == (3.25, True)
        assert values.words("so") == "so!" and values.nothing() is None
        for call, words in (
            (lambda: values.tensor(1, "cuda", torch.float64), "tensor(): argument 1 must be torch.Tensor, got Int"),
            (lambda: values.several([y, 1], None, []), "argument 1 must be list[torch.Tensor], got Tuple"),
            (lambda: values.several([y], 1.5, []), "argument 2 must be Optional[torch.Tensor], got Double"),
            (lambda: values.numbers(1, 2, 3, 4), "argument 3 must be bool, got Int"),
            (lambda: values.numbers(1), "numbers(int, float, bool, number) takes 4 arguments (1 given)"),
            (lambda: values.words({}), "an argument of type dict cannot be passed to C++"),
        ):
            try:
                call()
            except TypeError as error:
                assert words in str(error), error
            else:
                raise AssertionError(words)

        # Arithmetic with tensors needs more of torch than the names in a text give away.
        more = load_inline(name="more", functions=["twice"], cuda_sources="", cpp_sources="""
        torch::Tensor twice(torch::Tensor x) { return x + x; }
        """)
        assert flavour(more) == "lean" and torch.equal(more.twice(y), y + y)
    ''')


@pytest.mark.parametrize(
    ("text", "flavour"),
    [
        ("#include <cuda_runtime.h>\nvoid f(int64_t p);", "bare"),
        ("constexpr int AT_ONCE = 4; PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {}", "bare"),
        ("#include <torch/extension.h>\ntorch::Tensor f(at::Tensor x) { return torch::empty_like(x); }", "thin"),
        ("#include <ATen/cuda/CUDAContext.h>\nauto f() { return at::cuda::getCurrentCUDAStream(); }", "thin"),
        ("void f(torch::Tensor x) { AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), s, [&] {}); }  // at::matmul", "thin"),
        ("void f(torch::Tensor x) { TORCH_CHECK(x.dtype() == at::kHalf && x.is_cuda()); }", "thin"),
        ("#include <torch/extension.h>\ntorch::Tensor f(torch::Tensor x) { return torch::matmul(x, x); }", "lean"),
        ("torch::Tensor f(torch::Tensor x) { return at::empty_like(x); }", "lean"),
        ("#include <ATen/ATen.h>\nvoid f(at::Tensor x);", "lean"),
        ("#include <torch/extension.h>\nusing namespace at;\nvoid f(Tensor x);", "lean"),
        ("#include <torch/extension.h>\nTORCH_LIBRARY(mine, m) {}", "lean"),
        ("#include <torch/extension.h>\nvoid f(py::object x);", "pybind11"),
    ],
)
def test_how_much_of_torch_a_source_names(text, flavour):
    assert _first_flavour(Extension("name", cuda=(Chunk(text, "file.py", 1),))).name == flavour
