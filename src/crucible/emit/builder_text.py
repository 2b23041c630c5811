"""The Python that every generated file has: which kernels are built, plans of calls, memory, checks."""

# What the builder has besides in a file where some boxes on Hopper may be narrower than the first.
NARROWER = {
    "box": '''def _box(dtype, device, blocks, *ways):
    """Which boxes Hopper's own instructions take, by cycles of a tile and tiles; other engines have but the first."""
    if not _hopper(device) or _grade(dtype, device, {conv}) not in (1, 3):
        return 0
    if _SIMULATED:  # sizes are small there, and each of a few calls is to meet other boxes
        return hash((len(_PLANS), *ways)) % len(ways)
    cycles = [each * -(-tiles // blocks) for each, tiles in ways]
    best = min(cycles)
    return 0 if cycles[0] < 1.05 * best else cycles.index(best)  # what is hardly faster is not compiled


''',
    "boxes": ", *boxes",
    "said": """

    Boxes: which each convolution takes that has several. Without need none but the first are compiled.
    """,
    "given": ", bool(boxes and (any(boxes) or _SIMULATED))",
    "narrower": ", narrower",
    "chosen": ", int(narrower)",
    "flag": ', f"-DCRUCIBLE_NARROWER={narrower}"',
    "also": "{narrower}",
}

BUILDER = '''
_SCALARS = {scalars}
_kept = functools.lru_cache(None)  # what is asked for in every call, and computed in the first


def _grade(dtype, device, tf32):
    """How contractions are computed: 0 ordinary cores, 1 TF32, 2 as good as float32, 3 in the type itself."""
    if {simt}dtype == torch.float64 or torch.cuda.get_device_capability(device) < (8, 0):
        return 0
    if dtype != torch.float32:
        return 3
    return 1 if tf32 else 2


@_kept
def _hopper(device):
    """Whether this chip has Hopper's matrix instructions, the compiler knows them, and the file makes use of them."""
    known = int((torch.version.cuda or "0").split(".")[0]) >= 12
    return int({hopper} and known and torch.cuda.get_device_capability(device) == (9, 0))


def _boxes(dtype, device, precise, hopper, others):
    """How many boxes a convolution has: as good as float32 on Hopper, otherwise on Hopper, elsewhere."""
    if not _hopper(device):
        return others
    return precise if _grade(dtype, device, {conv}) == 2 else hopper


{box}def _kernels(part, dtype, device, elements{boxes}):
    """The compiled kernels for an element type, an index width and the precision that torch's switches allow.{said}"""
    conv, matmul = {conv}, {matmul}
    return _chosen(part, dtype, device, elements > 2**31 - 1, conv, matmul{given})


@_kept
def _chosen(part, dtype, device, wide, conv, matmul{narrower}):
    grades = _grade(dtype, device, conv), _grade(dtype, device, matmul)
    return _compiled(part, dtype, int(wide), *grades, _hopper(device){chosen})


@_kept
def _compiled(part, dtype, wide, conv, matmul, hopper{narrower}):
    flags = [f"-DCRUCIBLE_SCALAR={{_SCALARS[dtype]}}", f"-DCRUCIBLE_WIDE={{wide}}", f"-DCRUCIBLE_CONV={{conv}}",
             f"-DCRUCIBLE_MATMUL={{matmul}}", f"-DCRUCIBLE_HOPPER={{hopper}}"{flag}]
    if hopper:
        flags.append("-gencode=arch=compute_90a,code=sm_90a")
    binding, source = _SOURCES[part]
    bare = "no_implicit_headers" in inspect.signature(load_inline).parameters  # torch's headers cost half a minute
    options = {{"no_implicit_headers": True}} if bare else {{}}
    return load_inline(
        name=f"{name}_{{part}}_{{_SCALARS[dtype]}}{{wide}}{{conv}}{{matmul}}{{hopper}}{also}",
        cpp_sources=binding, cuda_sources=source,
        extra_cflags=["-O1"], extra_cuda_cflags=["-O3", "-std=c++17", *flags], **options,
    )


_SIMULATED = getattr(torch.cuda, "crucible_simulated", False)
# What torch.cuda asks the driver for itself, where torch was built for CUDA.
_current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream)
try:
    if _SIMULATED:
        raise ImportError
    from torch._C._dynamo.guards import _empty_strided_cuda as _new  # in half the time
except ImportError:

    def _new(shape, stride, dtype):
        return torch.empty_strided(shape, stride, dtype=dtype, device="cuda")


def _accumulated(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


# What torch's switches for TF32 say. Since torch 2.9 each operator has its own: asking for all at once may be an error.
_precision = getattr(torch._C, "_get_fp32_precision_getter", None)
if _precision is None:
    _conv_switch = getattr(torch._C, "_get_cudnn_allow_tf32", lambda: torch.backends.cudnn.allow_tf32)
    _matmul_switch = torch.get_float32_matmul_precision
else:
    _conv_switch = functools.partial(_precision, "cuda", "conv")
    _matmul_switch = functools.partial(_precision, "cuda", "matmul")


def _allowed(said):
    """Whether that permits TF32."""
    return said not in (False, "highest", "ieee", "none")


_PLANS = {{}}  # of calls, by all that they depend on
_LAST = {{}}  # for each kind of call the last one: what it depended on, how to know its tensors, its plan
_kind = operator.attrgetter("shape", "dtype", "device")
_is_dense, _pointer = torch.Tensor.is_contiguous, torch.Tensor.data_ptr
try:  # compares a dozen tensors in a microsecond
    from torch._C._dynamo.guards import TensorGuards as _Guards
except ImportError:
    _Guards = None


def _planned(make, tensors, *others):
    """The plan of a call with such tensors, and the tensors, dense. The first call of its kind makes the plan."""
    given = ({switches}others)
    last = _LAST.get(make)
    if last is not None and last[1](*tensors) and last[0] == given:
        return last[2], tensors
    key = (make, given, *map(_kind, tensors))
    plan = _PLANS.get(key)
    if plan is None:
        plan = make(*others, *tensors)
        if len(_PLANS) >= 256:  # where sizes keep changing, old ones go
            _PLANS.clear()
        _PLANS[key] = plan
    if not all(map(_is_dense, tensors)):
        return plan, [t.contiguous() for t in tensors]
    _LAST[make] = given, _like(tensors), plan
    return plan, tensors


def _like(tensors):
    """A function that tells whether tensors have the type, device, shape and strides of these."""
    try:
        shapes = {{"dynamic_dims_sizes": [[*t.shape] for t in tensors]}}
        return _Guards(*tensors, **shapes, dynamic_dims_strides=[[*t.stride()] for t in tensors]).check
    except (TypeError, SystemError, RuntimeError):  # another torch
        return lambda *others: False


def _bytes(dtype):
    """Of an element."""
    return torch.empty((), dtype=dtype, device="meta").element_size()  # dtype.itemsize came with torch 2.1


def _spec(shape, dtype):
    """What _new() takes."""
    return shape, torch.empty(shape, device="meta").stride(), dtype


def _laid_out(stages, buffers, hosts=()):
    """One piece of memory for all buffers, as _new() takes it; then for each buffer where it lies: holder, offset.

    Buffers come with their bytes and the set of stages that use them. Those that are never needed at the same time may
    share memory. Holder 0 is the piece; the others are tensors that are written after the buffer was read for the last
    time, so that what lies in them costs nothing.
    """
    sizes = [size if users & stages else 0 for size, users in buffers]
    if _SIMULATED:  # see _apart()
        return ((1,), (1,), torch.uint8), [n for size in sizes for n in (0, size)]
    holders = [(k, math.prod(s[0]) * _bytes(s[2]), (u & -u).bit_length()) for k, (s, u) in enumerate(hosts, 1) if s]
    holders.append((0, math.inf, math.inf))
    placed, places = [], [(0, 0)] * len(buffers)
    for k in sorted(range(len(buffers)), key=sizes.__getitem__, reverse=True):
        users, size = buffers[k][1] & stages, -(-sizes[k] // 512) * 512
        first, last = (users & -users).bit_length(), users.bit_length()
        for holder, limit, written in holders:
            taken = [p for p in placed if p[0] == holder and p[3] <= last and first <= p[4]]
            starts = sorted([0, *(p[2] for p in taken)])
            at = next(s for s in starts if all(s + size <= p[1] or p[2] <= s for p in taken))
            if last < written and at + size <= limit:
                placed.append((holder, at, at + size, first, last))
                places[k] = holder, at
                break
    total = max((p[2] for p in placed if not p[0]), default=0)
    return ((total,), (1,), torch.uint8), [n for place in places for n in place]


def _apart(memory, counts, buffers):
    """A simulator checks bounds: there each buffer has memory of its own, given as a distance from the piece."""
    alone = [_new((size,), (1,), torch.uint8) for size in counts[1 : 2 * buffers : 2]]
    places = [n for t in alone for n in (0, t.data_ptr() - memory.data_ptr())]
    return alone, (*places, *counts[2 * buffers :])


def _address(tensor):
    return 0 if tensor is None else tensor.data_ptr()


def _splits(rows, lanes, length, times=1):
    """Into how many parts long rows are cut: enough to fill a GPU, none too short. Some are one stretch many times."""
    most = max(1, length // (16 * lanes)) * times
    return max(1, min(most, (131072 if times == 1 else 262144) // max(rows * lanes, 1), 1024))


def _shape_error(name, tensor, expected):
    return RuntimeError(f"ModelNew: expected {{name}} of shape {{expected}}, got {{tuple(tensor.shape)}}")


{checked}


def _device_error(name, own, first):
    if own.type != "cuda":
        return RuntimeError(f"ModelNew: {{name}} is on {{own}}; these kernels need a CUDA device")
    return RuntimeError(f"ModelNew: {{name}} is on {{own}}, other tensors are on {{first}}")
'''


# Which types the arguments have: all the same, whatever that is, or those that the file was made for.
ONE_TYPE = '''def _checked(**tensors):
    """The common type and device of the tensors, after a look at all of them."""
    first = next(iter(tensors.values()))
    device, cuda, dtype = first.device, first.is_cuda, None
    for name, t in tensors.items():
        if not cuda or t.device != device:
            raise _device_error(name, t.device, device)
        if t.is_floating_point():
            if dtype is None:
                dtype = t.dtype
            elif t.dtype != dtype:
                raise RuntimeError(f"ModelNew: {name} is {t.dtype}, other tensors are {dtype}")
    dtype = dtype or torch.float32
    if dtype not in _SCALARS:
        raise RuntimeError(f"ModelNew: {dtype} is not supported; use one of {', '.join(map(str, _SCALARS))}")
    return dtype, device'''

SEVERAL_TYPES = '''def _checked(others, **tensors):
    """The type that kernels are built for and the device of the tensors, after a look at all of them."""
    (dtype,) = _SCALARS
    first = next(iter(tensors.values()))
    for name, t in tensors.items():
        if not first.is_cuda or t.device != first.device:
            raise _device_error(name, t.device, first.device)
        expected = others.get(name, dtype)
        if t.is_floating_point() and t.dtype != expected:
            raise RuntimeError(f"ModelNew: {name} is {t.dtype}; made for a Model where it is {expected}")
    return dtype, first.device'''

CONSTANT = '''


def _constant(name, like):
    """A tensor that is part of the Model's code, on the device of another; brought there once."""
    key = (name, like.device)
    if key not in _CONSTANTS:
        _CONSTANTS[key] = _CONSTANTS[name].to(like.device)
    return _CONSTANTS[key]
'''
