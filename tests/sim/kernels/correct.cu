// Correct kernels of many shapes: the checks must stay silent on all of them, under every schedule.

__constant__ float weights[4];
__device__ unsigned int ticket_counter = 0;
__device__ float device_total = 0.f;

__device__ __forceinline__ float warp_sum(float v) {
    #pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

__global__ void __launch_bounds__(256)
group_norm(const float* __restrict__ x, const float* __restrict__ gamma, const float* __restrict__ beta,
           float* __restrict__ y, int C, int HW, int G, float eps) {
    __shared__ float s1[8], s2[8];
    const int cpg = C / G, n = blockIdx.x / G, g = blockIdx.x % G, len = cpg * HW;
    const long base = ((long)n * C + (long)g * cpg) * HW;
    float a = 0.f, q = 0.f;
    for (int i = threadIdx.x; i < len; i += blockDim.x) {
        float v = __ldg(x + base + i);
        a += v;
        q += v * v;
    }
    a = warp_sum(a);
    q = warp_sum(q);
    if ((threadIdx.x & 31) == 0) {
        s1[threadIdx.x >> 5] = a;
        s2[threadIdx.x >> 5] = q;
    }
    __syncthreads();
    a = q = 0.f;
    for (int i = 0; i < 8; i++) {
        a += s1[i];
        q += s2[i];
    }
    const float mean = a / len, rstd = rsqrtf(q / len - mean * mean + eps);
    for (int i = threadIdx.x; i < len; i += blockDim.x) {
        int c = g * cpg + i / HW;
        y[base + i] = (x[base + i] - mean) * rstd * gamma[c] + beta[c];
    }
}

__global__ void transpose(const float* in, float* out, int rows, int cols) {
    __shared__ float tile[32][33];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8)
        if (x < cols && y + j < rows) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * cols + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x;
    y = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8)
        if (x < rows && y + j < cols) out[(y + j) * rows + x] = tile[threadIdx.x][threadIdx.y + j];
}

__global__ void histogram(const int* x, int* counts, int n) {
    extern __shared__ int local[];
    for (int i = threadIdx.x; i < 64; i += blockDim.x) local[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&local[x[i] & 63], 1);
    __syncthreads();
    for (int i = threadIdx.x; i < 64; i += blockDim.x) atomicAdd(&counts[i], local[i]);
}

// The last block to finish adds up what the others left: __threadfence orders the partial sums before the ticket.
__global__ void last_block_sum(const float* x, float* partial, float* out, unsigned* count, int n) {
    __shared__ float s[128];
    __shared__ bool last;
    float v = 0.f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += x[i];
    s[threadIdx.x] = v;
    __syncthreads();
    for (int o = 64; o > 0; o >>= 1) {
        if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = s[0];
        __threadfence();
        last = atomicInc(count, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float total = 0.f;
        for (unsigned i = 0; i < gridDim.x; i++) total += partial[i];
        *out = total;
    }
}

// Single-pass scan: a block waits for the running total of the one before it. Tickets make the order of blocks
// irrelevant.
__global__ void look_back_scan(const int* x, int* y, volatile int* totals, volatile int* flags, unsigned* tickets,
                               int n) {
    __shared__ int s[64];
    __shared__ int block, before;
    if (threadIdx.x == 0) block = (int)atomicAdd(tickets, 1u);
    __syncthreads();
    const int i = block * 64 + threadIdx.x;
    s[threadIdx.x] = i < n ? x[i] : 0;
    __syncthreads();
    for (int o = 1; o < 64; o <<= 1) {
        int v = threadIdx.x >= o ? s[threadIdx.x - o] : 0;
        __syncthreads();
        s[threadIdx.x] += v;
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        int sum = 0;
        if (block > 0) {
            while (flags[block - 1] == 0) {
            }
            __threadfence();
            sum = totals[block - 1];
        }
        totals[block] = sum + s[63];
        __threadfence();
        flags[block] = 1;
        before = sum;
    }
    __syncthreads();
    if (i < n) y[i] = s[threadIdx.x] + before;
}

// The same without tickets: block b waits for block b - 1, whatever order they start in.
__global__ void chained_blocks(int* values, volatile int* flags) {
    if (threadIdx.x == 0) {
        if (blockIdx.x > 0)
            while (!flags[blockIdx.x - 1]) __nanosleep(100);
        __threadfence();
        values[blockIdx.x] = (blockIdx.x ? values[blockIdx.x - 1] : 0) + 1;
        __threadfence();
        flags[blockIdx.x] = 1;
    }
}

__global__ void spin_lock(int* lock, int* counter) {
    if (threadIdx.x % 32 == 0) {
        while (atomicCAS(lock, 0, 1) != 0) {
        }
        __threadfence();
        *counter = *counter + 1;
        __threadfence();
        atomicExch(lock, 0);
    }
}

__global__ void grid_barrier(const float* x, float* partial, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    __shared__ float s[64];
    s[threadIdx.x] = i < n ? x[i] : 0.f;
    __syncthreads();
    if (threadIdx.x == 0) {
        float v = 0.f;
        for (int k = 0; k < 64; k++) v += s[k];
        partial[blockIdx.x] = v;
    }
    csim_grid_sync("grid.sync()");
    float total = 0.f;
    for (int b = 0; b < gridDim.x; b++) total += partial[b];
    if (i < n) y[i] = s[threadIdx.x] / total;   // static shared memory must survive the switch of blocks
}

__global__ void warp_exchange(const float* x, float* y) {
    __shared__ float s[64];
    const int t = threadIdx.x, half = (t & 31) / 16;
    s[t] = x[t];
    __syncwarp();
    float v = s[t ^ 1];
    __syncwarp();
    s[t] = v;
    // sixteen lanes at a time
    const unsigned mask = half ? 0xffff0000u : 0x0000ffffu;
    __syncwarp(mask);
    float first = s[t & ~15], sum = 0.f;
    for (int k = 0; k < 16; k++) sum += s[(t & ~15) + k];
    __syncwarp(mask);
    if ((t & 15) == 3) s[t & ~15] = 0.f;   // a write after many readers of this half
    __syncwarp(mask);
    y[t] = sum + first + s[t & ~15];
}

// Half of the block produces, the other half consumes; named barriers order them.
__global__ void producer_consumer(const float* x, float* y, int rounds) {
    __shared__ float buffer[64];
    if (threadIdx.x < 64) {
        for (int r = 0; r < rounds; r++) {
            buffer[threadIdx.x] = x[r * 64 + threadIdx.x];
            __barrier_sync_count(1, 128);
            __barrier_sync_count(2, 128);
        }
    } else if (threadIdx.x < 128) {
        for (int r = 0; r < rounds; r++) {
            __barrier_sync_count(1, 128);
            y[r * 64 + threadIdx.x - 64] = buffer[127 - threadIdx.x];
            __barrier_sync_count(2, 128);
        }
    }
    if (threadIdx.x >= 128) y[rounds * 64 + threadIdx.x - 128] = 1.f;   // threads that no barrier concerns
}

// The same with producers that announce a full buffer and do not wait for it to be read, two buffers in turn.
__global__ void announce(const float* x, float* y, int rounds) {
    __shared__ float buffer[2][32];
    const int lane = threadIdx.x & 31;
    if (threadIdx.x < 32) {
        for (int r = 0; r < rounds; r++) {
            if (r >= 2) csim_block_barrier(3 + r % 2, 64, "bar.sync");   // emptied
            buffer[r % 2][lane] = x[r * 32 + lane];
            csim_block_arrive(1 + r % 2, 64, "bar.arrive");              // full
        }
    } else {
        for (int r = 0; r < rounds; r++) {
            csim_block_barrier(1 + r % 2, 64, "bar.sync");
            y[r * 32 + lane] = buffer[r % 2][31 - lane];
            if (r + 2 < rounds) csim_block_arrive(3 + r % 2, 64, "bar.arrive");
        }
    }
}

__global__ void shuffle_types(const double* x, double* y) {
    const int lane = threadIdx.x;
    double d = __shfl_down_sync(0xffffffffu, x[lane], 1);
    long long l = __shfl_xor_sync(0xffffffffu, (long long)lane << 40, 3);
    __half h = __shfl_up_sync(0xffffffffu, __float2half((float)lane), 2);
    __nv_bfloat16 b = __shfl_sync(0xffffffffu, __float2bfloat16((float)lane), 7);
    __half2 h2 = __shfl_sync(0xffffffffu, __floats2half2_rn((float)lane, 1.f), 5, 8);
    unsigned char c = __shfl_sync(0xffffffffu, (unsigned char)lane, 31);
    y[lane] = d + (double)(l >> 40) + __half2float(h) + __bfloat162float(b) + __low2float(h2) + c;
}

__global__ void bytes_and_halves(const unsigned char* a, unsigned char* b, const __half* h, __half* g, int n) {
    __shared__ unsigned char s[256];
    __shared__ __half t[256];
    const int i = threadIdx.x;
    s[i] = i < n ? a[i] : 0;
    t[i] = i < n ? h[i] : __float2half(0.f);
    __syncthreads();
    if (i < n) {
        b[i] = s[n - 1 - i];
        g[i] = __hadd(t[n - 1 - i], h[i]);
    }
    __syncthreads();
    reinterpret_cast<float*>(s)[i / 4] = 1.f;   // four threads store the same value
}

__global__ void same_value(int* flag, const int* x, int n) {
    __shared__ int found;
    if (threadIdx.x == 0) found = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        if (x[i] == 7) found = 1;
    __syncthreads();
    if (found) *flag = 1;
}

__device__ float atomic_max_float(float* address, float value) {
    int* p = (int*)address;
    int old = *p, assumed;
    do {
        assumed = old;
        old = atomicCAS(p, assumed, __float_as_int(fmaxf(value, __int_as_float(assumed))));
    } while (assumed != old);
    return __int_as_float(old);
}
__device__ double atomic_add_double(double* address, double value) {
    unsigned long long* p = (unsigned long long*)address;
    unsigned long long old = *p, assumed;
    do {
        assumed = old;
        old = atomicCAS(p, assumed, __double_as_longlong(value + __longlong_as_double(assumed)));
    } while (assumed != old);
    return __longlong_as_double(old);
}
__device__ void atomic_add_half(__half* address, float value) {
    unsigned int* word = (unsigned int*)((char*)address - ((size_t)address & 2));
    unsigned int old = *word, assumed;
    do {
        assumed = old;
        unsigned short bits = (size_t)address & 2 ? old >> 16 : old & 0xffff;
        float sum = __half2float(__ushort_as_half(bits)) + value;
        bits = __half_as_ushort(__float2half(sum));
        old = (size_t)address & 2 ? (old & 0xffff) | (unsigned)bits << 16 : (old & 0xffff0000) | bits;
        old = atomicCAS(word, assumed, old);
    } while (assumed != old);
}
__global__ void swap_loops(const float* x, double* total, __half* sums, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        atomic_add_double(total, x[i]);
        atomic_add_half(&sums[i % 3], 1.f);
        atomicAdd(&sums[3], __float2half(1.f));
    }
}
__global__ void maxima(const float* x, float* best, int* best_int, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        atomic_max_float(best, x[i]);
        const int v = (int)(x[i] * 1000.f);
        if (v > *best_int) atomicMax(best_int, v);
    }
}

__global__ void votes(const int* x, int* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
    const bool keep = i < n && x[i] % 3 == 0;
    const unsigned ballot = __ballot_sync(0xffffffffu, keep);
    int r = __popc(ballot & ((1u << lane) - 1));
    r += __any_sync(0xffffffffu, keep) * 100 + __all_sync(0xffffffffu, i < n) * 1000;
    const unsigned same = __match_any_sync(0xffffffffu, i < n ? x[i] : -1);
    r += __popc(same) * 10000;
    if (keep) {
        const unsigned active = __activemask();
        r += (active == ballot) * 100000;
        r += __reduce_add_sync(active, 1u) == __popc(ballot) ? 1000000 : 0;
    }
    if (i < n) y[i] = r;
}

// Threads past the end leave; the others still meet at the barrier, as every chip since Volta allows.
__global__ void early_exit(const float* x, float* y, int n) {
    __shared__ float s[128];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    s[threadIdx.x] = x[i];
    __syncthreads();
    float v = s[threadIdx.x];
    v += __shfl_xor_sync(0xffffffffu, v, 0);
    y[i] = v;
}

__global__ void vectors(const float4* x, float4* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float4 v = x[i];
        v.x *= weights[0];
        v.y *= weights[1];
        v.z *= weights[2];
        v.w *= weights[3];
        y[i] = v;
    }
}

__global__ void device_globals(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&device_total, x[i]);
    __threadfence();
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&ticket_counter, 1u) == gridDim.x - 1;
    __syncthreads();
    if (last && threadIdx.x == 0) {
        *y = device_total;
        ticket_counter = 0;
        device_total = 0.f;
    }
}

// Rows past the end are loaded by nobody; what is computed from them is thrown away.
__global__ void ragged_tile(const float* x, float* y, int rows) {
    __shared__ float tile[8][32];
    const int row = blockIdx.x * 8 + threadIdx.y;
    if (row < rows) tile[threadIdx.y][threadIdx.x] = x[row * 32 + threadIdx.x];
    __syncthreads();
    float sum = 0.f;
    for (int k = 0; k < 32; k++) sum += tile[threadIdx.y][k];
    if (row < rows) y[row * 32 + threadIdx.x] = sum;
}

__global__ void counts(const int* x, int* y) {
    const int p = x[threadIdx.x] > 0;
    const int c = __syncthreads_count(p), a = __syncthreads_and(p), o = __syncthreads_or(p);
    y[threadIdx.x] = c * 4 + (a ? 2 : 0) + (o ? 1 : 0);
}

// Two-dimensional shared and local arrays walked as one.
__global__ void flat_walk(const float* x, float* y) {
    __shared__ float tile[8][16];
    for (int i = threadIdx.x; i < 128; i += 32) tile[0][i] = x[i];
    __syncthreads();
    float sum = 0.f;
    for (int i = 0; i < 128; i++) sum += tile[0][i] * x[127 - i];
    y[threadIdx.x] = sum;
}

// Threads of one block wait for each other through shared memory.
__global__ void relay(int* y) {
    __shared__ volatile int turn;
    if (threadIdx.x == 0) turn = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        while (atomicAdd((int*)&turn, 0) != threadIdx.x / 32) {
        }
        y[threadIdx.x / 32] = turn;
        atomicAdd((int*)&turn, 1);
    }
}

template <typename T, int N> __global__ void scaled(const T* x, T* y, T factor, int n) {
    const int i = blockIdx.x * N + threadIdx.x;
    if (i < n) y[i] = x[i] * factor;
}
void launch_scaled(const float* x, float* y, int n, int* error) {
    scaled<float, 64><<<(n + 63) / 64, 64>>>(x, y, 3.f, n);
    *error = (int)cudaGetLastError();
}

__constant__ float filter[9];
__global__ void convolve(const float* x, float* y, int h, int w) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, r = i / w, c = i % w;
    if (i >= h * w) return;
    float sum = 0.f;
    for (int dr = -1; dr <= 1; dr++)
        for (int dc = -1; dc <= 1; dc++)
            if (r + dr >= 0 && r + dr < h && c + dc >= 0 && c + dc < w)
                sum += filter[(dr + 1) * 3 + dc + 1] * x[(r + dr) * w + c + dc];
    y[i] = sum;
}
