"""Candidates that misbehave, for any reference: each is the reference's own source with its class renamed and one hostile act added.

``materialise(kind, reference, folder)`` writes one. All of them are bounded, so that a sandbox which fails to stop one costs a failed test and
not the machine: endless loops end by themselves after minutes, the memory eater stops when the machine runs low, the fork bomb makes a few
hundred processes that sleep and exit.
"""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Hostile:
    name: str
    verdict: str
    codes: frozenset[str]
    comment: str
    make: Callable[[str], bytes]  # reference source -> candidate file


KINDS: dict[str, Hostile] = {}

# For each of the five problems the issue asks for these.
ON_EVERY_PROBLEM = (
    "empty_file", "binary_file", "no_model_new", "cpp_typo", "too_much_shared_memory", "too_many_threads",
    "endless_kernel", "endless_python", "eats_memory", "deletes_itself", "prints_a_gigabyte",
)


def materialise(kind: str, reference: Path, folder: Path) -> Path:
    """Write the candidate ``kind`` for the problem in ``reference`` into ``folder`` and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}_{reference.stem}.py"
    path.write_bytes(KINDS[kind].make(reference.read_text()))
    return path


def _register(name: str, codes: str, comment: str, make: Callable[[str], bytes], verdict: str = "refuted") -> None:
    if name in KINDS:
        raise AssertionError(f"two hostile candidates are called {name}")
    KINDS[name] = Hostile(name, verdict, frozenset(codes.split()), comment, make)


def _base(reference: str) -> str:
    """The reference with its class under another name."""
    source, found = re.subn(r"^class Model\(", "class Base(", reference, flags=re.M)
    if found != 1:
        raise AssertionError("expected one class Model in the reference")
    return re.sub(r"\bsuper\(Model, self\)", "super()", source)


def python(name: str, codes: str, comment: str, *, at_import: str = "", in_forward: str = "", verdict: str = "refuted") -> None:
    """A candidate that computes the right thing with torch and does something else besides."""

    def make(reference: str) -> bytes:
        act = "".join(f"        {line}\n" for line in in_forward.strip().splitlines())
        text = (
            f"{_base(reference)}\n\n{at_import.strip()}\n\n\n"
            f"class ModelNew(Base):\n    def forward(self, x):\n{act}        return super().forward(x)\n"
        )
        return text.encode()

    _register(name, codes, comment, make, verdict)


def cuda(
    name: str, codes: str, comment: str, source: str, *, call: str = "return ext.copy(y)", declare: str | None = None,
    functions: str = '["copy"]', verdict: str = "refuted",
) -> None:
    """A candidate that sends the right result through a kernel of its own."""
    declaration = "torch::Tensor copy(torch::Tensor x);" if declare is None else declare

    def make(reference: str) -> bytes:
        text = (
            f"{_base(reference)}\n\nfrom torch.utils.cpp_extension import load_inline\n\ncuda_source = r\"\"\"{source}\"\"\"\n\n"
            f'ext = load_inline(name="hostile_{name}", cpp_sources="{declaration}", cuda_sources=cuda_source, '
            f"functions={functions})\n\n\n"
            f"class ModelNew(Base):\n    def forward(self, x):\n        y = super().forward(x).detach()\n        {call}\n"
        )
        return text.encode()

    _register(name, codes, comment, make, verdict)


# --- nothing to judge -----------------------------------------------------------------------------------------------

_register("empty_file", "empty_file", "No bytes at all.", lambda reference: b"", "unjudged")
_register("blank_file", "empty_file no_model_new", "White space only.", lambda reference: b"\n  \n\t\n", "unjudged")
_register(
    "binary_file", "binary_file", "The head of an ELF file and noise.",
    lambda reference: b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 64, "unjudged",
)
_register(
    "not_utf8", "binary_file syntax_error", "Latin-1 text that is not valid UTF-8.",
    lambda reference: "# caf\xe9\n".encode("latin-1") + b"class ModelNew:\n    pass\n", "unjudged",
)
_register(
    "python_typo", "syntax_error", "A bracket is never closed.",
    lambda reference: b"import torch\n\nclass ModelNew(torch.nn.Module:\n    pass\n", "unjudged",
)
_register(
    "no_model_new", "no_model_new", "A module with another class in it.",
    lambda reference: _base(reference).encode(), "unjudged",
)
_register(
    "model_new_is_no_module", "no_model_new", "ModelNew is a function.",
    lambda reference: b"def ModelNew(*args):\n    return None\n", "unjudged",
)
_register(
    "missing_import", "import_error", "Needs a package that nobody has.",
    lambda reference: b"import a_package_that_nobody_has\n\nclass ModelNew:\n    pass\n", "unjudged",
)

# --- does not build -------------------------------------------------------------------------------------------------

_HEAD = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
"""
_COPY = """
torch::Tensor copy(torch::Tensor x) {
  x = x.contiguous();
  auto y = torch::empty_like(x);
  const int64_t n = x.numel();
  if (n == 0) return y;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "copy", [&] {
    copy_kernel<scalar_t><<<@LAUNCH@, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), n);
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
"""


def _copy(launch: str = "(n + 255) / 256, 256, 0") -> str:
    return _COPY.replace("@LAUNCH@", launch)


_KERNEL = """
template <typename T>
__global__ void copy_kernel(const T* x, T* y, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i];
}
"""

cuda(
    "cpp_typo", "compile_error", "A name that does not exist.",
    _HEAD + _KERNEL.replace("if (i < n)", "if (i < nn)") + _copy(),
)
cuda(
    "cpp_missing_semicolon", "compile_error", "A statement without its end.",
    _HEAD + _KERNEL.replace("y[i] = x[i];", "y[i] = x[i]") + _copy(),
)
cuda(
    "kernel_in_functions", "load_inline_misuse", "functions= names a __global__ function, which Python cannot call.",
    _HEAD + "__global__ void fill(float* y, int n) {\n  if (threadIdx.x < n) y[threadIdx.x] = 1.f;\n}\n" + _KERNEL + _copy(),
    declare="torch::Tensor copy(torch::Tensor x); __global__ void fill(float* y, int n);", functions='["copy", "fill"]',
)
cuda(
    "two_pybind_modules", "load_inline_misuse", "A PYBIND11_MODULE of its own, and functions= asks for another.",
    _HEAD + _KERNEL + _copy() + '\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {\n  m.def("copy", &copy);\n}\n',
)
cuda(
    "undeclared_function", "load_inline_misuse", "functions= names a function that cpp_sources does not declare.",
    _HEAD + _KERNEL + _copy(), declare="",
)
cuda(
    "declared_but_not_defined", "link_error load_inline_misuse compile_error",
    "cpp_sources declares a function that no source defines.",
    _HEAD + _KERNEL + _copy(), declare="torch::Tensor copy(torch::Tensor x); torch::Tensor missing(torch::Tensor x);",
    functions='["copy", "missing"]',
)
cuda(
    "endless_compile", "time_limit memory_limit compile_error", "2^40 template instances.",
    _HEAD + """
template <int D, unsigned long long P>
struct Tree {
  static constexpr int value = Tree<D - 1, 2 * P>::value + Tree<D - 1, 2 * P + 1>::value;
};
template <unsigned long long P>
struct Tree<0, P> {
  static constexpr int value = 1;
};
static_assert(Tree<40, 0>::value != 0, "never reached");
""" + _KERNEL + _copy(),
)
cuda(
    "warpgroup_instructions", "unsupported_feature", "wgmma in a build for sm_90, which does not have it: the simulator says so.",
    _HEAD + _KERNEL.replace(
        "  if (i < n) y[i]", '  asm volatile("wgmma.fence.sync.aligned;\\n" ::: "memory");\n  if (i < n) y[i]'
    ) + _copy(),
    verdict="unjudged",
)

# --- does not launch, does not end ----------------------------------------------------------------------------------

cuda(
    "too_much_shared_memory", "shared_memory_limit launch_error raises", "300 KB of shared memory a block.",
    _HEAD + _KERNEL + _copy("(n + 255) / 256, 256, 300 * 1024"),
)
cuda(
    "too_much_static_shared_memory", "compile_error shared_memory_limit launch_error", "A static shared array of 300 KB.",
    _HEAD + _KERNEL.replace("  if (i < n) y[i] = x[i];", "  __shared__ float big[75 * 1024];\n  big[threadIdx.x] = 0.f;\n"
                            "  __syncthreads();\n  if (i < n) y[i] = x[i] + T(big[threadIdx.x]);") + _copy(),
)
cuda(
    "too_many_threads", "launch_error raises", "2048 threads a block.",
    _HEAD + _KERNEL + _copy("(n + 2047) / 2048, 2048, 0"),
)
cuda(
    "endless_kernel", "kernel_time time_limit deadlock", "A loop on the device that waits for a value which never comes.",
    _HEAD + _KERNEL.replace("  if (i < n) y[i] = x[i];", "  volatile char* wait = reinterpret_cast<volatile char*>(y + i);\n"
                            "  if (i < n) {\n    y[i] = x[i];\n    const char first = *wait;\n"
                            "    while (*wait == first) {\n    }\n  }") + _copy(),
)
cuda(
    "null_pointer", "out_of_bounds crashed raises", "Writes through a null pointer.",
    _HEAD + _KERNEL.replace("if (i < n) y[i] = x[i];", "y = nullptr;\n  if (i < n) y[i] = x[i];") + _copy(),
)
cuda(
    "host_recursion", "crashed memory_limit", "The host function calls itself for ever.",
    _HEAD + _KERNEL + _copy() + "\nint deep(int n) {\n  volatile char room[4096];\n  room[n % 4096] = 1;\n"
    "  return deep(n + 1) + room[0];\n}\ntorch::Tensor sink(torch::Tensor x) {\n  return copy(x) + deep(0);\n}\n",
    declare="torch::Tensor sink(torch::Tensor x);", functions='["sink"]', call="return ext.sink(y)",
)
python(
    "endless_python", "time_limit", "forward does not return (for half an hour).",
    at_import="import time",
    in_forward="end = time.time() + 1800\nwhile time.time() < end:\n    pass",
)
python(
    "endless_import", "time_limit", "The file does not finish loading (for half an hour).",
    at_import="import time\n\ntime.sleep(1800)",
)
python(
    "ignores_signals", "time_limit", "Sleeps in forward and ignores every signal that it may.",
    at_import="import signal\nimport time\n\nfor number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGXCPU):\n"
    "    signal.signal(number, signal.SIG_IGN)",
    in_forward="end = time.time() + 1800\nwhile time.time() < end:\n    time.sleep(1)",
)

# --- takes too much -------------------------------------------------------------------------------------------------

python(
    "eats_memory", "memory_limit", "Touches 64 GiB, a block at a time; gives up by itself where the machine runs out.",
    at_import='''
def available():
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) << 10


def eat():
    eaten = []
    while len(eaten) < 1024:
        if available() < 2 << 30:
            raise MemoryError("this machine has no 64 GiB to eat")
        eaten.append(bytearray(64 << 20))
        eaten[-1][::4096] = b"x" * (64 << 8)
    return eaten
''',
    in_forward="self.eaten = eat()",
)
python(
    "prints_a_gigabyte", "output_limit", "A gigabyte on standard output.",
    in_forward='line = "x" * (1 << 20)\nfor _ in range(1024):\n    print(line)',
)
python(
    "prints_a_gigabyte_to_stderr", "output_limit", "A gigabyte on standard error, past Python's buffers.",
    at_import="import os",
    in_forward='line = b"x" * (1 << 20) + b"\\n"\nfor _ in range(1024):\n    os.write(2, line)',
)
python(
    "fork_bomb", "process_limit", "300 processes that sleep for half a minute.",
    at_import="import os\nimport time",
    in_forward="for _ in range(300):\n    if os.fork() == 0:\n        time.sleep(30)\n        os._exit(0)",
)
python(
    "fills_the_disk", "disk_limit", "Writes up to 16 GiB beside itself and removes it again.",
    at_import="import os",
    in_forward='''
with open("filler.bin", "wb") as filler:
    for _ in range(256):
        if os.statvfs(".").f_bavail * os.statvfs(".").f_frsize < 4 << 30:
            break
        filler.write(b"x" * (64 << 20))
        filler.flush()
os.remove("filler.bin")
''',
)

# --- dies, or reaches out of its box --------------------------------------------------------------------------------

python("segfault", "crashed", "Reads address zero.", at_import="import ctypes", in_forward="ctypes.string_at(0)")
python("aborts", "crashed", "Calls abort().", at_import="import os", in_forward="os.abort()")
python("exits", "exited", "sys.exit(0) in forward: a success, if exit codes were verdicts.", at_import="import sys",
       in_forward="sys.exit(0)")
python("exits_on_import", "exited", "sys.exit(0) while loading.", at_import="import sys\n\nsys.exit(0)")
python("exits_at_once", "exited crashed", "os._exit(0): no handler, no buffer is flushed.", at_import="import os",
       in_forward="os._exit(0)")
python("raises_keyboard_interrupt", "raises exited crashed", "An exception that is not an Exception.",
       in_forward="raise KeyboardInterrupt")
python(
    "deletes_itself", "deleted_file", "Removes its own file.",
    at_import="import os\n\nos.remove(__file__)",
)
python(
    "writes_outside", "writes_outside", "Tries to leave files where it has no business, and says nothing if it may not.",
    at_import="import os\nfrom pathlib import Path",
    in_forward='''
for place in (Path.home() / "crucible_was_here", Path("/var/tmp/crucible_was_here"), Path("/etc/crucible_was_here")):
    try:
        place.write_text("hello")
        place.unlink()
    except OSError:
        pass
''',
)
python(
    "uses_the_network", "network_use", "Opens a connection to an address reserved for documentation.",
    at_import="import socket",
    in_forward='''
try:
    socket.create_connection(("192.0.2.1", 80), timeout=1).close()
except OSError:
    pass
''',
)
python(
    "writes_to_every_descriptor", "protocol", "Sends a verdict of its own down every open descriptor.",
    at_import="import os",
    in_forward='''
for descriptor in range(3, 4096):
    try:
        os.write(descriptor, b'{"verdict": "proven", "ok": true}\\n')
    except OSError:
        pass
''',
)
