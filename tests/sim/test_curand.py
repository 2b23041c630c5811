"""cuRAND's device generators: Philox against published answers, XORWOW against its own definition, distributions."""

import numpy as np
import pytest
import wrapper_cases as w

from crucible.sim import kernel as sim

KERNELS = r"""
#include <curand_kernel.h>
__global__ void philox(const unsigned* in, unsigned* out) {
    curandStatePhilox4_32_10_t s;
    curand_init(0, 0, 0, &s);
    s.ctr = make_uint4(in[0], in[1], in[2], in[3]);
    s.key = make_uint2(in[4], in[5]);
    skipahead(0ull, &s);
    uint4 r = curand4(&s);
    out[0] = r.x; out[1] = r.y; out[2] = r.z; out[3] = r.w;
}
// The same draws one by one and by skipping; `far` jumps over half of a sequence twice and over a whole one.
__global__ void skipping(unsigned* out, unsigned long long offset) {
    curandState a, b;
    curandStatePhilox4_32_10_t p, q;
    curand_init(1234, 5, 0, &a); curand_init(1234, 5, offset, &b);
    curand_init(1234, 5, 0, &p); curand_init(1234, 5, offset, &q);
    for (unsigned long long i = 0; i < offset; ++i) { curand(&a); curand(&p); }
    out[0] = curand(&a); out[1] = curand(&b); out[2] = curand(&p); out[3] = curand(&q);
    curand_init(99, 0, 0, &a); curand_init(99, 0, 0, &b);
    skipahead_sequence(3ull, &a);
    skipahead_sequence(1ull, &b); skipahead_sequence(2ull, &b);
    out[4] = curand(&a); out[5] = curand(&b);
}
template <class S> __global__ void draw(float* uniform, float* normal, S* states) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    curand_init(42, i, 0, &states[i]);   // states in global memory, as programs keep them
    for (int k = 0; k < 64; ++k) {
        uniform[i * 64 + k] = curand_uniform(&states[i]);
        normal[i * 64 + k] = curand_normal(&states[i]);
    }
}
"""


@pytest.fixture(scope="module")
def kernels():
    exports = {"philox": "philox", "skipping": "skipping"}
    exports |= {"draw_xorwow": "draw<curandState>", "draw_philox": "draw<curandStatePhilox4_32_10_t>"}
    return sim.Kernel(KERNELS, exports)


@pytest.mark.parametrize(
    ("given", "answer"),
    [  # counter and key -> output, from the known-answer tests published with the algorithm
        ([0] * 6, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 6, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_known_answers(kernels, given, answer):
    out = np.zeros(4, np.uint32)
    kernels("philox", 1, 1, [np.array(given, np.uint32), out])
    np.testing.assert_array_equal(out, np.array(answer, np.uint32))


@pytest.mark.parametrize("offset", [0, 1, 2, 3, 4, 7, 1000])
def test_skipping_is_drawing(kernels, offset):
    out = np.zeros(6, np.uint32)
    kernels("skipping", 1, 1, [out, offset])
    assert out[0] == out[1] and out[2] == out[3] and out[4] == out[5]


@pytest.mark.parametrize("name", ["xorwow", "philox"])
def test_distributions(kernels, name):
    uniform, normal = (np.zeros((256, 64), np.float32) for _ in range(2))
    kernels(f"draw_{name}", 4, 64, [uniform, normal, sim.DeviceArray(256 * 96, np.uint8)])
    assert uniform.min() > 0 and uniform.max() <= 1
    assert abs(uniform.mean() - 0.5) < 0.01 and abs(uniform.var() - 1 / 12) < 0.003
    assert abs(normal.mean()) < 0.03 and abs(normal.var() - 1) < 0.05
    # neighbouring sequences and neighbouring draws are unrelated
    assert abs(np.corrcoef(uniform[:-1].ravel(), uniform[1:].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(uniform[:, :-1].ravel(), uniform[:, 1:].ravel())[0, 1]) < 0.03


def test_four_at_a_time_continue_the_stream():
    _, words = w.run("random_philox")
    assert len(np.unique(words.reshape(-1, 24)[:, :7])) > 0.99 * words.reshape(-1, 24)[:, :7].size
