"""Broken candidates, each one correct candidate with one mistake put in, and what a proof must say about it.

A mutation names its base file in ``examples/proven/``, the texts it replaces (each must occur exactly as often as stated, so that a changed
base cannot quietly turn a mutation into a no-op) and the codes that count as the right reason. Usually one code is expected; more are listed where
the order of a run decides which of two true reasons shows first.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from crucible.prove.codes import CHECK_OF

CORRECT = Path(__file__).resolve().parents[3] / "examples" / "proven"


@dataclass(frozen=True)
class Edit:
    """Replace ``old`` by ``new``; ``old`` must occur ``times`` times, all of them are replaced."""

    old: str
    new: str
    times: int = 1


@dataclass(frozen=True)
class Mutation:
    name: str
    base: str  # stem of a file in examples/proven/
    codes: frozenset[str]
    comment: str
    edits: tuple[Edit, ...]
    options: dict[str, object] = field(default_factory=dict)
    gpu: bool = True  # a GPU run without compute-sanitizer can see it too
    verdict: str = "refuted"

    def text(self) -> str:
        """The mutated source."""
        source = (CORRECT / f"{self.base}.py").read_text()
        for edit in self.edits:
            found = source.count(edit.old)
            if found != edit.times:
                raise AssertionError(f"{self.name}: {edit.old!r} occurs {found} times in {self.base}.py, not {edit.times}")
            if edit.old == edit.new:
                raise AssertionError(f"{self.name}: an edit that changes nothing")
            source = source.replace(edit.old, edit.new)
        return source


MUTATIONS: dict[str, Mutation] = {}


def mutation(
    name: str,
    base: str,
    codes: str,
    comment: str,
    *edits: tuple[str, str] | tuple[str, str, int],
    gpu: bool = True,
    verdict: str = "refuted",
    **options: object,
) -> None:
    """Register a mutation. ``codes``: space-separated."""
    if name in MUTATIONS:
        raise AssertionError(f"two mutations are called {name}")
    MUTATIONS[name] = Mutation(
        name, base, frozenset(codes.split()), comment, tuple(Edit(*e) for e in edits), options, gpu, verdict
    )


def materialise(name: str, folder: Path) -> Path:
    """Write the mutated candidate into ``folder`` and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(MUTATIONS[name].text())
    return path


def check_of(mutation: Mutation) -> str:
    """The check that the expected code belongs to (the first of several by name), or nothing for one to be proven."""
    return CHECK_OF[sorted(mutation.codes)[0]] if mutation.codes else ""


def all_mutations() -> Iterator[Mutation]:
    return iter(MUTATIONS.values())


# --- synchronisation ------------------------------------------------------------------------------------------------

mutation(
    "missing_barrier", "conv_transpose2d_gelu_group_norm", "race_shared",
    "The staged tile is read before every thread has written its part.",
    ("      __syncthreads();\n      if (oy < g.out_h && ox < g.out_w) {", "      if (oy < g.out_h && ox < g.out_w) {"),
    gpu=False,
)
mutation(
    "write_after_read", "conv_transpose2d_gelu_group_norm", "race_shared",
    "The next chunk is staged while slower threads still read this one.",
    ("      __syncthreads();  // the next chunk overwrites what this one still reads\n", ""),
    gpu=False,
)
mutation(
    "missing_barrier_in_tree", "layer_norm_welford", "race_shared",
    "A tree reduction without the barrier between its levels.",
    ("parts[threadIdx.x] = merge(parts[threadIdx.x], parts[threadIdx.x + half]);\n    __syncthreads();",
     "parts[threadIdx.x] = merge(parts[threadIdx.x], parts[threadIdx.x + half]);"),
    gpu=False,
)
mutation(
    "scratch_reused_too_soon", "conv_transpose2d_gelu_group_norm", "race_shared",
    "A block reduction overwrites its scratch while the previous one is still being read.",
    ("  __syncthreads();  // scratch may still be read by the call before\n", ""),
    gpu=False,
)
mutation(
    "missing_barrier_before_broadcast", "rms_norm_cub", "race_shared uninitialised_read",
    "Thread 0 writes the scale; the others read it without waiting.",
    ("    scales[blockIdx.x] = scale;\n  }\n  __syncthreads();\n", "    scales[blockIdx.x] = scale;\n  }\n"),
    gpu=False,
)
mutation(
    "missing_syncwarp", "row_filter_warp", "race_shared",
    "Lanes read their neighbours' part of the slice and rely on running in lock step.",
    ("    __syncwarp();\n    acc_t sum = 0;", "    acc_t sum = 0;"),
    gpu=False,
)
mutation(
    "divergent_barrier", "conv_transpose2d_gelu_group_norm", "barrier_divergence deadlock",
    "The barrier stands inside a branch that threads outside the image do not take: they wait at the next one.",
    ("      __syncthreads();\n      if (oy < g.out_h && ox < g.out_w) {", "      if (oy < g.out_h && ox < g.out_w) {\n        __syncthreads();"),
    gpu=False,
)
mutation(
    "divergent_barrier_in_tree", "conv_transpose3d_relu_group_norm", "barrier_divergence deadlock race_shared",
    "The barrier stands inside the branch that half of the threads take; the others run ahead and read too early.",
    ("    if (threadIdx.x < half) scratch[threadIdx.x] += scratch[threadIdx.x + half];\n    __syncthreads();",
     "    if (threadIdx.x < half) {\n      scratch[threadIdx.x] += scratch[threadIdx.x + half];\n      __syncthreads();\n    }"),
    gpu=False,
)
mutation(
    "early_return", "mlp_tiled", "barrier_divergence deadlock uninitialised_read",
    "Threads outside the matrix leave before the barriers that the others wait at, and before they have loaded their part.",
    ("  acc_t sum = 0;\n  for (int64_t k0 = 0; k0 < K; k0 += TILE) {",
     "  if (m >= M || n >= N) return;\n  acc_t sum = 0;\n  for (int64_t k0 = 0; k0 < K; k0 += TILE) {"),
    gpu=False,
)
mutation(
    "divergent_shuffle", "conv_transpose2d_batch_norm_tanh_max_pool_group_norm", "warp_divergence",
    "Eight lanes shuffle with a mask that names thirty-two.",
    ("  if (threadIdx.x < 32) {\n    v = threadIdx.x < kThreads / 32 ? warps[threadIdx.x] : acc_t(0);",
     "  if (threadIdx.x < kThreads / 32) {\n    v = warps[threadIdx.x];"),
    gpu=False,
)
mutation(
    "divergent_warp_maximum", "softmax_warp", "warp_divergence",
    "Only the lanes that the row's last columns fall to take part in the maximum, with a mask that names all.",
    ("  top = warp_max(top);\n", "  if (lane < cols % 32) top = warp_max(top);\n"),
    gpu=False,
)
mutation(
    "lanes_leave_early", "softmax_warp", "uninitialised_read unwritten_output warp_divergence wrong_values",
    "Lanes past the row's last columns return before the sum: their columns are never written.",
    ("  top = warp_max(top);\n", "  if (cols % 32 != 0 && lane >= cols % 32) return;\n  top = warp_max(top);\n"),
    gpu=False,
)
mutation(
    "grid_barrier_by_one_thread", "unit_norm_grid_sync", "deadlock barrier_divergence kernel_time",
    "A barrier of the whole grid that one thread a block reaches.",
    ("  if (threadIdx.x == 0) partials[blockIdx.x] = squares;\n  grid.sync();",
     "  if (threadIdx.x == 0) {\n    partials[blockIdx.x] = squares;\n    grid.sync();\n  }\n  __syncthreads();"),
    gpu=False,
)
mutation(
    "warps_wait_for_each_other", "layer_norm_welford", "deadlock kernel_time",
    "One warp spins on a flag that another sets only after a barrier which the first has not reached.",
    ("  __shared__ Welford<acc_t> parts[kThreads];\n", "  __shared__ Welford<acc_t> parts[kThreads];\n  __shared__ int ready;\n"
     "  if (threadIdx.x == 0) atomicExch(&ready, 0);\n  __syncthreads();\n"
     "  if (threadIdx.x < 32) {\n    while (atomicAdd(&ready, 0) == 0) {\n    }\n  }\n  __syncthreads();\n"
     "  if (threadIdx.x == 32) atomicExch(&ready, 1);\n"),
)
mutation(
    "chain_never_continued", "cumsum_chained", "deadlock kernel_time",
    "Only the first tile of a row hands its total on; the third waits for ever.",
    ("    atomicExch(&totals[order],", "    if (tile == 0) atomicExch(&totals[order],"),
)
mutation(
    "cp_async_without_wait", "matmul_half_cp_async", "uninitialised_read race_shared wrong_values",
    "The tile is used while its copies are still in flight.",
    ("      wait<1>();\n", ""), ("      wait<0>();\n", ""),
)
mutation(
    "cp_async_waits_for_too_little", "matmul_half_cp_async", "uninitialised_read race_shared wrong_values",
    "The last tile has no successor in flight, so waiting for all but one group waits for nothing.",
    ("      wait<0>();\n", "      wait<1>();\n"),
)
mutation(
    "histogram_without_atomics", "weighted_histogram_atomics", "race_shared",
    "Threads add to the same bin with a plain read and write.",
    ("    atomicAdd(&local[index[row * length + i]], static_cast<acc_t>(weight[row * length + i]));",
     "    local[index[row * length + i]] += static_cast<acc_t>(weight[row * length + i]);"),
)
mutation(
    "blocks_add_without_atomics", "column_mean_half", "race_global",
    "Blocks add their partial sums to the same word with a plain read and write.",
    ("  atomicAdd(&sums[c], sum);", "  sums[c] += sum;"),
)

# --- memory ---------------------------------------------------------------------------------------------------------

mutation(
    "load_off_by_one", "conv_transpose2d_general_accessors", "out_of_bounds wrong_values",
    "The row after the last one passes the test.",
    ("    if (iy >= x.size(2)) continue;", "    if (iy > x.size(2)) continue;"),
)
mutation(
    "store_off_by_one", "conv_transpose2d", "out_of_bounds",
    "Every result lands one element further on, the last one behind the tensor.",
    ("    y[i] = static_cast<T>(sum);", "    y[i + 1] = static_cast<T>(sum);"),
    gpu=False,
)
mutation(
    "reads_before_the_row", "row_filter_warp", "out_of_bounds wrong_values",
    "Zero padding is left out on the left: the first row reads in front of the tensor.",
    ("slice[i] = c >= 0 && c < cols ?", "slice[i] = c < cols ?"),
)
mutation(
    "shared_overrun", "row_filter_warp", "out_of_bounds race_shared",
    "The slice has room for one side of the halo; the other side lands in the next warp's slice.",
    ("__shared__ acc_t slices[kWarps][kSlice];", "__shared__ acc_t slices[kWarps][kSlice - kRadius];"),
    gpu=False,
)
mutation(
    "dynamic_shared_too_small", "conv_transpose2d_gelu_group_norm", "out_of_bounds",
    "The launch asks for the tile but forgets the weights behind it.",
    ("const size_t shared = sizeof(acc_t) * kChunk * (g.rows * g.rows + g.kernel * g.kernel * kOutPerThread);",
     "const size_t shared = sizeof(acc_t) * kChunk * (g.rows * g.rows);"),
    gpu=False,
)
mutation(
    "shared_halo_not_loaded", "row_filter_warp", "uninitialised_read",
    "Only the 32 middle elements of the slice are loaded.",
    ("    for (int i = lane; i < kSlice; i += 32) {", "    for (int i = lane + kRadius; i < 32 + kRadius; i += 32) {"),
    gpu=False,
)
mutation(
    "bins_not_cleared", "weighted_histogram_atomics", "uninitialised_read wrong_values",
    "Shared bins are taken to start at zero.",
    ("  for (int b = threadIdx.x; b < bins; b += kThreads) local[b] = acc_t(0);\n", ""),
    gpu=False,
)
mutation(
    "accumulator_not_cleared", "weighted_histogram_atomics", "uninitialised_read wrong_values",
    "Atomics add to memory that nobody set to zero.",
    ("  auto out = torch::zeros({rows, bins},", "  auto out = torch::empty({rows, bins},"),
)
mutation(
    "tail_not_written", "huge_leaky_relu_vectorised", "unwritten_output wrong_values wrong_at_other_size",
    "Whole vectors only: the last few elements of an odd-sized tensor stay as they were allocated.",
    ("    for (int64_t j = i; j < n; ++j) {", "    for (int64_t j = n; j < n; ++j) {"),
)
mutation(
    "grid_rounded_down", "max_pool2d", "unwritten_output uninitialised_read wrong_values wrong_at_other_size",
    "Blocks = elements / threads, rounded down.",
    ("    pool_kernel<scalar_t><<<(total + kThreads - 1) / kThreads, kThreads,",
     "    pool_kernel<scalar_t><<<std::max<int64_t>(total / kThreads, 1), kThreads,"),
)
mutation(
    "misaligned_vector_load", "softmax_warp", "misaligned",
    "Four columns at a time: rows of odd length do not start on a 16-byte boundary.",
    ("  for (int64_t c = lane; c < cols; c += 32) top = max(top, static_cast<acc_t>(in[c]));\n",
     "  struct alignas(4 * sizeof(T)) Four {\n    T v[4];\n  };\n"
     "  for (int64_t c = lane * 4; c + 3 < cols; c += 128) {\n"
     "    const Four f = *reinterpret_cast<const Four*>(in + c);\n"
     "    for (int j = 0; j < 4; ++j) top = max(top, static_cast<acc_t>(f.v[j]));\n  }\n"
     "  for (int64_t c = cols / 4 * 4 + lane; c < cols; c += 32) top = max(top, static_cast<acc_t>(in[c]));\n"),
    gpu=False,
)
mutation(
    "index_overflow", "huge_leaky_relu_vectorised", "index_overflow out_of_bounds",
    "The element's number is computed in 32 bits.",
    ("  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;\n",
     "  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * N;\n"),
    gpu=False,
)
mutation(
    "index_wraps_negative", "huge_leaky_relu_vectorised", "index_overflow out_of_bounds",
    "The same in unsigned arithmetic, stored in an int: it wraps silently and the index becomes negative.",
    ("  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;\n",
     "  const int i = (blockIdx.x * blockDim.x + threadIdx.x) * N;\n"),
    gpu=False,
)
mutation(
    "too_many_threads", "softmax_warp", "launch_error",
    "2048 threads a block, and nobody asks whether the launch worked.",
    ("constexpr int kWarps = 4;", "constexpr int kWarps = 64;"), ("  C10_CUDA_KERNEL_LAUNCH_CHECK();\n", "", 2),
)
mutation(
    "too_much_shared_memory", "weighted_histogram_atomics", "shared_memory_limit launch_error",
    "300 KB of dynamic shared memory, unchecked.",
    ("    histogram_kernel<scalar_t><<<grid, kThreads, bins * sizeof(acc_t),", "    histogram_kernel<scalar_t><<<grid, kThreads, 300 * 1024,"),
    ("  C10_CUDA_KERNEL_LAUNCH_CHECK();\n  return out.to(", "  return out.to("),
)
mutation(
    "host_pointer", "row_filter_warp", "host_pointer",
    "The taps are a plain attribute, so .cuda() leaves them on the host.",
    ('        self.register_buffer("taps", taps.view(1, 1, 7), persistent=False)', "        self.taps = taps.view(1, 1, 7)"),
    gpu=False,
)
mutation(
    "use_after_free", "huge_leaky_relu_vectorised", "use_after_free",
    "The pointer outlives the temporary that it points into.",
    ("*gp = g.data_ptr<scalar_t>();", "*gp = nullptr;\n    {\n      auto copy = g.clone();\n      gp = copy.data_ptr<scalar_t>();\n    }"),
    gpu=False,
)
mutation(
    "float_only", "huge_leaky_relu_vectorised", "out_of_bounds wrong_values",
    "Every dtype is taken for float.",
    ('  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "leaky_relu", [&] {',
     "  [&] {\n    using scalar_t = float;"),
    ("x.data_ptr<scalar_t>()", "static_cast<float*>(x.data_ptr())"),
    ("g.data_ptr<scalar_t>()", "static_cast<float*>(g.data_ptr())"),
    ("out.data_ptr<scalar_t>()", "static_cast<float*>(out.data_ptr())"),
    ("    }\n  });\n", "    }\n  }();\n"),
    dtype="float16",
)

# --- convolution arithmetic -----------------------------------------------------------------------------------------

mutation(
    "no_divisibility_test", "conv_transpose2d_general_accessors", "wrong_values",
    "Integer division without asking whether the stride divides: right for stride 1 only.",
    ("    if (ty < 0 || ty % s.stride_h != 0) continue;", "    if (ty < 0) continue;"),
)
mutation(
    "output_padding_ignored", "conv_transpose2d_general_accessors", "wrong_shape",
    "The output is smaller than it should be.",
    (" + output_padding[0] + 1;", " + 1;"), (" + output_padding[1] + 1;", " + 1;"),
)
mutation(
    "output_padding_swapped", "conv_transpose2d_general_accessors", "wrong_shape",
    "The height gets the width's output_padding.",
    (" + output_padding[0] + 1;", " + output_padding[1] + 1;"),
)
mutation(
    "dilation_ignored", "conv_transpose2d_general_accessors", "wrong_values",
    "Rows of the kernel are taken one apart.",
    ("    const int64_t ty = oy + s.pad_h - ky * s.dil_h;", "    const int64_t ty = oy + s.pad_h - ky;"),
)
mutation(
    "groups_ignored", "conv_transpose2d_general_accessors", "wrong_values",
    "Every group reads the first group's channels.",
    ("        const int64_t ic = group * cin + c;", "        const int64_t ic = c;"),
)
mutation(
    "kernel_not_flipped", "conv_transpose2d_general_accessors", "wrong_values",
    "Taps in reverse: a correlation where a transposed one was meant.",
    ("static_cast<acc_t>(w[ic][oc % cout][ky][kx]);",
     "static_cast<acc_t>(w[ic][oc % cout][w.size(2) - 1 - ky][w.size(3) - 1 - kx]);"),
)
mutation(
    "missing_bias", "conv_transpose2d_general_accessors", "wrong_values",
    "The convolution's bias is never added.",
    ("  if (bias.size(0) > 0) sum += static_cast<acc_t>(bias[oc]);\n", ""),
)
mutation(
    "weights_transposed", "conv_transpose2d", "wrong_values",
    "The weight is read as (out, in): with as many inputs as outputs nothing overflows.",
    ("        const T* wp = w + (group * cin * cout + oc % cout) * taps + ky * g.kernel + kx;",
     "        const T* wp = w + (group * cin * cout + oc % cout * cin) * taps + ky * g.kernel + kx;"),
    ("static_cast<acc_t>(wp[c * cout * taps]);", "static_cast<acc_t>(wp[c * taps]);"),
)
mutation(
    "batch_hard_coded", "conv_transpose2d", "out_of_bounds wrong_at_other_size wrong_values unwritten_output",
    "The kernel always does eight samples.",
    ("  const int64_t total = g.batch * g.out_channels * g.out_h * g.out_w;\n",
     "  const int64_t total = 8 * g.out_channels * g.out_h * g.out_w;\n"),
)
mutation(
    "width_hard_coded", "max_pool2d", "wrong_values wrong_at_other_size out_of_bounds",
    "Rows are taken to be 40 wide, as they are in get_inputs().",
    ("      const T v = in[iy * w.in_w + ix];", "      const T v = in[iy * 40 + ix];"),
)
mutation(
    "square_images_only", "conv_transpose3d_relu_group_norm", "wrong_values wrong_at_other_size out_of_bounds",
    "Height where width was meant: right for cubes.",
    ("const acc_t v = static_cast<acc_t>(xc[((oz - kz) * in.h + oy - ky) * in.w + ox - kx]);",
     "const acc_t v = static_cast<acc_t>(xc[((oz - kz) * in.h + oy - ky) * in.h + ox - kx]);"),
)
mutation(
    "not_made_contiguous", "conv_transpose2d", "wrong_for_layout",
    "A channels-last input is read as if it lay in NCHW order.",
    ("  x = x.contiguous();\n  weight = weight.contiguous();\n"
     "  const Geometry g = geometry(x, weight, stride, padding, output_padding, groups);\n  TORCH_CHECK(g.out_h",
     "  weight = weight.contiguous();\n"
     "  const Geometry g = geometry(x, weight, stride, padding, output_padding, groups);\n  TORCH_CHECK(g.out_h"),
)

# --- normalisation, activations, reductions -------------------------------------------------------------------------

mutation(
    "statistics_over_the_batch", "conv_transpose2d_gelu_group_norm", "wrong_values wrong_at_other_size",
    "Group statistics are taken over all samples.",
    ("  for (int64_t i = threadIdx.x; i < size; i += kNormThreads) {\n    const acc_t v = gelu(static_cast<acc_t>(conv[base + i]));\n"
     "    count += acc_t(1);",
     "  const int64_t samples = gridDim.x / num_groups;\n"
     "  for (int64_t j = threadIdx.x; j < samples * size; j += kNormThreads) {\n"
     "    const acc_t v = gelu(static_cast<acc_t>(conv[(j / size * num_groups + group) * size + j % size]));\n"
     "    count += acc_t(1);"),
    ("sqrt(m2 / static_cast<acc_t>(size) +", "sqrt(m2 / count +"),
)
mutation(
    "gamma_per_group", "conv_transpose2d_gelu_group_norm", "wrong_values",
    "Scale and shift are taken from the group's index instead of the channel's. Fresh weights show it; unit gammas hide it.",
    ("    const int64_t channel = group * per_group + i / plane;\n", "    const int64_t channel = group;\n"),
)
mutation(
    "tanh_gelu", "conv_transpose2d_gelu_group_norm", "wrong_values",
    "The tanh approximation where the reference uses erf.",
    ("  return v * acc_t(0.5) * (acc_t(1) + erf(v * acc_t(0.70710678118654752440)));",
     "  return v * acc_t(0.5) * (acc_t(1) + tanh(acc_t(0.79788456080286535588) * (v + acc_t(0.044715) * v * v * v)));"),
)
mutation(
    "wrong_eps", "conv_transpose2d_gelu_group_norm", "wrong_values range_values",
    "1e-3 where nn.GroupNorm has 1e-5.",
    ("norm.num_groups, norm.eps\n", "norm.num_groups, 1e-3\n"),
)
mutation(
    "unbiased_variance", "conv_transpose2d_gelu_group_norm", "wrong_values",
    "Divides by n - 1.",
    ("sqrt(m2 / static_cast<acc_t>(size) +", "sqrt(m2 / static_cast<acc_t>(size - 1) +"),
)
mutation(
    "group_index_wrong", "conv_transpose2d_gelu_group_norm", "wrong_values",
    "The block's number is divided where its remainder was meant.",
    ("  const int64_t group = blockIdx.x % num_groups, base = static_cast<int64_t>(blockIdx.x) * size;\n\n",
     "  const int64_t group = blockIdx.x / num_groups, base = static_cast<int64_t>(blockIdx.x) * size;\n\n"),
)
mutation(
    "cancellation", "layer_norm_welford", "range_values wrong_values",
    "E[x^2] - E[x]^2: all digits gone when the mean is 1e4 and the spread 1.",
    ("    w.mean += delta / static_cast<acc_t>(w.count);\n    w.m2 += delta * (v - w.mean);\n",
     "    w.mean += v;\n    w.m2 += v * v;\n"),
    ("  return {a.mean + delta * share, a.m2 + b.m2 + delta * delta * static_cast<acc_t>(a.count) * share, count};",
     "  return {a.mean + b.mean, a.m2 + b.m2 + acc_t(0) * delta * share, count};"),
    ("  const acc_t mean = parts[0].mean;\n", "  const acc_t mean = parts[0].mean / static_cast<acc_t>(features);\n"),
    ("sqrt(parts[0].m2 / static_cast<acc_t>(features) +",
     "sqrt(max(parts[0].m2 / static_cast<acc_t>(features) - mean * mean, acc_t(0)) +"),
)
mutation(
    "softmax_without_maximum", "softmax_warp", "range_values",
    "exp of the input itself: inf as soon as it exceeds 88.",
    ("  top = warp_max(top);\n", "  top = 0;\n"),
)
mutation(
    "nan_dropped_by_relu", "conv_transpose3d_relu_group_norm", "range_values",
    "v > 0 ? v : 0 turns a NaN into zero.",
    ("static_cast<T>(v < acc_t(0) ? acc_t(0) : v);", "static_cast<T>(v > acc_t(0) ? v : acc_t(0));"),
)
mutation(
    "nan_dropped_by_maximum", "max_pool2d", "range_values",
    "A comparison with NaN is false, so the window forgets it.",
    ("      if (where < 0 || v > best || v != v) {", "      if (where < 0 || v > best) {"),
)
mutation(
    "half_accumulation", "rms_norm_cub", "wrong_values",
    "The squares are added up in fp16.",
    ("  acc_t squares = 0;\n", "  at::Half squares_half = 0;\n"),
    ("    squares += v * v;\n  }\n", "    squares_half = static_cast<at::Half>(static_cast<float>(squares_half) + static_cast<float>(v * v));\n"
     "  }\n  acc_t squares = static_cast<acc_t>(squares_half);\n"),
)
mutation(
    "atomics_in_half", "column_mean_half", "wrong_values not_deterministic",
    "Sums grow in fp16 atomics, a row at a time: the order decides the result, by far more than a rounding.",
    ("constexpr int kThreads = 128, kRows = 64;", "constexpr int kThreads = 128, kRows = 1;"),
    ("float* __restrict__ sums", "__half* __restrict__ sums", 2),
    ("  atomicAdd(&sums[c], sum);", "  atomicAdd(&sums[c], __float2half(sum));"),
    ("__float2half(sums[c] / static_cast<float>(rows));", "__float2half(__half2float(sums[c]) / static_cast<float>(rows));"),
    ("torch::zeros({cols}, x.options().dtype(torch::kFloat32));", "torch::zeros({cols}, x.options());"),
    ("sums.data_ptr<float>()", "reinterpret_cast<__half*>(sums.data_ptr<at::Half>())", 2),
)
mutation(
    "tf32_for_fp32", "matmul_mma_tf32x3", "wrong_values",
    "One TF32 product in place of three: torch's switches do not allow that for a matmul.",
    ("            mma(part[i][j], ah[i], bl[j]);  // the small products first\n            mma(part[i][j], al[i], bh[j]);\n", ""),
)
mutation(
    "fragment_rows_swapped", "matmul_mma_tf32x3", "wrong_values",
    "The second and third register of the A fragment change places.",
    ("split(p[8 * LDA], ah[i][1], al[i][1]);", "split(p[8 * LDA], ah[i][2], al[i][2]);"),
    ("split(p[4], ah[i][2], al[i][2]);", "split(p[4], ah[i][1], al[i][1]);"),
)
mutation(
    "fragment_not_transposed", "matmul_half_cp_async", "wrong_values",
    "ldmatrix without .trans on a row-major B.",
    ("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16", "ldmatrix.sync.aligned.m8n8.x2.shared.b16"),
)
mutation(
    "non_finite_through_a_split", "matmul_mma_tf32x3", "range_values",
    "inf is split into inf and inf - inf, so a NaN appears where the product is infinite.",
    ("    if (__syncthreads_or(odd)) {", "    if (__syncthreads_or(odd) && K < 0) {"),
)
mutation(
    "output_transposed", "matmul_mma_tf32x3", "wrong_values",
    "The right numbers in column-major order.",
    ("C[m * N + n] = acc[i][j][r];", "C[n * M + m] = acc[i][j][r];"),
)
mutation(
    "slope_truncated", "huge_leaky_relu_vectorised", "wrong_values",
    "A slope of 0.1 passed as an int is 0.",
    ("T* __restrict__ out, int64_t n, float slope) {", "T* __restrict__ out, int64_t n, int slope) {"),
)
mutation(
    "bias_not_broadcast", "gemm_group_norm_min_bias", "wrong_shape",
    "(batch, features) where the reference broadcasts to (1, features, batch, 1).",
    ("        return out\n", "        return out.view(out.shape[1], out.shape[2]).t().contiguous()\n"),
)
mutation(
    "outputs_swapped", "butterfly_two_modules", "wrong_values",
    "Sum and difference change places.",
    ("  return {sum, difference};\n}", "  return {difference, sum};\n}"),
)
mutation(
    "second_output_not_written", "butterfly_two_modules", "unwritten_output",
    "The difference is allocated and never stored.",
    ("  difference[i] = static_cast<T>((l - r) * g);\n", ""),
)

# --- gradients ------------------------------------------------------------------------------------------------------

mutation(
    "no_gradient", "conv_transpose2d", "no_grad",
    "The extension is called directly: the output has no history.",
    ("        return ConvTranspose2d.apply(\n", "        return ext.conv_transpose2d_forward(\n"),
)
mutation(
    "gradient_of_one_weight_tap_missing", "conv_transpose2d", "wrong_grad",
    "The input's gradient misses the last row of taps.",
    ("    const int64_t first_oc = ic / cin * cout;\n    acc_t sum = 0;\n    for (int64_t ky = 0; ky < g.kernel; ++ky) {",
     "    const int64_t first_oc = ic / cin * cout;\n    acc_t sum = 0;\n    for (int64_t ky = 0; ky < g.kernel - 1; ++ky) {"),
)
mutation(
    "weight_gradient_without_dilation", "conv_transpose2d_general_accessors", "wrong_grad",
    "Only the weight's gradient forgets the dilation.",
    ("      const int64_t oy = iy * s.stride_h - s.pad_h + ky * s.dil_h;\n      if (oy < 0 || oy >= dy.size(2)) continue;\n      acc_t row",
     "      const int64_t oy = iy * s.stride_h - s.pad_h + ky;\n      if (oy < 0 || oy >= dy.size(2)) continue;\n      acc_t row"),
)
mutation(
    "bias_gradient_missing", "conv_transpose2d_general_accessors", "missing_grad",
    "backward returns None for the bias.",
    ("        return dx, dw, db if ctx.config[0] else None, None,", "        return dx, dw, None, None,"),
)
mutation(
    "gamma_gradient_wrong", "layer_norm_welford", "wrong_grad",
    "The scale's gradient is taken with x - mean, without the standard deviation.",
    ("      scale += d * ((static_cast<acc_t>(x[r * features + f]) - means[r]) * rstds[r]);",
     "      scale += d * (static_cast<acc_t>(x[r * features + f]) - means[r]);"),
)
mutation(
    "statistics_taken_as_constants", "batch_norm_cooperative", "wrong_grad",
    "The input's gradient ignores that mean and variance depend on it.",
    ("  const acc_t mean_d = training ? sum / static_cast<acc_t>(count) : acc_t(0);", "  const acc_t mean_d = acc_t(0);"),
    ("  const acc_t mean_dot = training ? dot / static_cast<acc_t>(count) : acc_t(0);", "  const acc_t mean_dot = acc_t(0);"),
)
mutation(
    "relu_mask_missing", "mlp_tiled", "wrong_grad",
    "Gradients pass where ReLU was closed.",
    ("        ext.relu_backward_(dhidden, hidden)\n", ""),
)
mutation(
    "gradient_to_all_ties", "max_pool2d", "wrong_grad range_values",
    "Every element that equals the maximum gets the gradient; torch gives it to the first.",
    ("const int64_t* __restrict__ index, T* __restrict__ dx,", "const int64_t* __restrict__ index, const T* __restrict__ x, T* __restrict__ dx,"),
    ("      if (index[o] == iy * w.in_w + ix) sum +=", "      if (x[plane * w.in_h * w.in_w + index[o]] == x[i]) sum +="),
    ("torch::Tensor pool_backward(torch::Tensor dy, torch::Tensor index, int64_t in_h,", "torch::Tensor pool_backward(torch::Tensor dy, torch::Tensor index, torch::Tensor x, int64_t in_h,", 2),
    ("  dy = dy.contiguous();\n", "  dy = dy.contiguous();\n  x = x.contiguous();\n"),
    ("index.data_ptr<int64_t>(), dx.data_ptr<scalar_t>(), total, w);", "index.data_ptr<int64_t>(), x.data_ptr<scalar_t>(), dx.data_ptr<scalar_t>(), total, w);"),
    ("        ctx.save_for_backward(index)\n", "        ctx.save_for_backward(index, x)\n"),
    ("        (index,) = ctx.saved_tensors\n        return ext.pool_backward(dy, index, *ctx.config)",
     "        index, x = ctx.saved_tensors\n        return ext.pool_backward(dy, index, x, *ctx.config)"),
)
mutation(
    "minimum_gradient_to_the_group", "gemm_group_norm_min_bias", "wrong_grad",
    "The whole group of the least element gets the gradient, not the element alone.",
    ("    const acc_t own = first + i == f ? dxhat : acc_t(0);", "    const acc_t own = dxhat;"),
)
mutation(
    "gradients_swapped", "butterfly_two_modules", "wrong_grad",
    "left and right get each other's gradient.",
    ("  return {dleft, dright, dgain, doffset};\n}", "  return {dright, dleft, dgain, doffset};\n}"),
)
mutation(
    "gradient_not_made_contiguous", "softmax_warp", "wrong_for_layout wrong_grad out_of_bounds",
    "The incoming gradient of a plain .sum() is one number, expanded: it cannot be read as a dense array.",
    ("  dy = dy.contiguous();\n", ""),
)

# --- side effects and the interface ---------------------------------------------------------------------------------

mutation(
    "running_statistics_not_updated", "batch_norm_cooperative", "buffers_not_updated",
    "Training leaves running_mean and running_var alone.",
    ("      running_mean[c] = static_cast<T>((acc_t(1) - m) * static_cast<acc_t>(running_mean[c]) + m * mean);\n", ""),
    ("      running_var[c] = static_cast<T>((acc_t(1) - m) * static_cast<acc_t>(running_var[c]) + m * unbiased);\n", ""),
)
mutation(
    "running_variance_biased", "conv_transpose2d_batch_norm_tanh_max_pool_group_norm", "buffers_wrong",
    "The running variance is updated with the biased one.",
    ("unbiased = squares / static_cast<acc_t>(count - 1);", "unbiased = squares / static_cast<acc_t>(count);"),
)
mutation(
    "batches_not_counted", "batch_norm_cooperative", "buffers_not_updated buffers_wrong",
    "num_batches_tracked stays where it was.",
    ("        if norm.training:\n            norm.num_batches_tracked.add_(1)\n", ""),
)
mutation(
    "momentum_the_wrong_way", "batch_norm_cooperative", "buffers_wrong",
    "A momentum of 0.1 keeps nine tenths of the old value, not one tenth.",
    ("      const acc_t m = static_cast<acc_t>(momentum), unbiased", "      const acc_t m = acc_t(1) - static_cast<acc_t>(momentum), unbiased"),
)
mutation(
    "eval_ignored", "batch_norm_cooperative", "eval_mode",
    "Batch statistics in eval mode too.",
    ("norm.momentum, norm.training\n", "norm.momentum, True\n"),
)
mutation(
    "works_in_place", "huge_leaky_relu_vectorised", "input_modified aliased_output input_tampering",
    "The result is written over the input.",
    ("  auto out = torch::empty_like(x);", "  auto out = x;"),
)
mutation(
    "parameter_drifts", "rms_norm_cub", "parameter_modified",
    "Each call leaves the weight a little larger.",
    ("        return RMSNorm.apply(x, self.weight, self.eps)\n",
     "        y = RMSNorm.apply(x, self.weight, self.eps)\n        self.weight.data.mul_(1.001)\n        return y\n"),
)
mutation(
    "random_numbers_drawn", "softmax_warp", "rng_state",
    "A random number is drawn and thrown away: every seed after this call gives something else.",
    ("        return Softmax.apply(x)\n", "        torch.rand(1)\n        return Softmax.apply(x)\n"),
)
mutation(
    "key_renamed", "mlp_tiled", "state_dict",
    "A checkpoint of the reference cannot be loaded.",
    ("self.fc1", "self.linear1", 3),
)
mutation(
    "created_in_another_order", "mlp_tiled", "seed_weights state_dict",
    "The second layer is created first: the same seed gives other weights.",
    ("        self.fc1 = nn.Linear(inputs, hidden)\n        self.fc2 = nn.Linear(hidden, outputs)\n",
     "        self.fc2 = nn.Linear(hidden, outputs)\n        self.fc1 = nn.Linear(inputs, hidden)\n"),
)
mutation(
    "constructor_differs", "mlp_tiled", "init_signature",
    "The constructor takes one number too few.",
    ("    def __init__(self, inputs: int, hidden: int, outputs: int):", "    def __init__(self, inputs: int, hidden: int):"),
    ("        self.fc2 = nn.Linear(hidden, outputs)", "        self.fc2 = nn.Linear(hidden, 72)"),
)
mutation(
    "forward_takes_one_input", "swiglu_half2", "forward_signature",
    "The two inputs are expected as one pair.",
    ("    def forward(self, gate: torch.Tensor, value: torch.Tensor) -> torch.Tensor:\n",
     "    def forward(self, pair) -> torch.Tensor:\n        gate, value = pair\n"),
)
mutation(
    "result_in_float", "swiglu_half2", "wrong_dtype",
    "fp16 in, fp32 out.",
    ("        return SwiGLU.apply(gate, value)\n", "        return SwiGLU.apply(gate, value).float()\n"),
)
mutation(
    "result_on_the_host", "softmax_warp", "wrong_device",
    "The output is copied to the CPU.",
    ("        return Softmax.apply(x)\n", "        return Softmax.apply(x).cpu()\n"),
)

# --- right, in another way: these must be proven ----------------------------------------------------------------------

mutation(
    "grouped_convolution", "conv_transpose2d_gelu_group_norm", "",
    "Not broken: the kernel of the second problem for its grouped variant, which passes groups to the convolution.",
    ("nn.ConvTranspose2d(in_channels, out_channels, kernel_size, stride=stride)",
     "nn.ConvTranspose2d(in_channels, out_channels, kernel_size, stride=stride, groups=groups)"),
    verdict="proven",
)
mutation(
    "one_row_length_only", "softmax_warp", "",
    "Not broken but limited: it refuses other row lengths with a clear error, so it is proven with that limit stated.",
    ("  TORCH_CHECK(x.is_cuda(), \"softmax: x must be a CUDA tensor\");\n",
     "  TORCH_CHECK(x.is_cuda(), \"softmax: x must be a CUDA tensor\");\n"
     "  TORCH_CHECK(x.size(-1) == 1000, \"softmax: this kernel is written for rows of 1000, got \", x.size(-1));\n"),
    verdict="proven",
)
