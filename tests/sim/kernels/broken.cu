// Broken kernels, one mistake each. The line with the mistake (where the report must point) is marked BUG.

__device__ float warp_sum(float v) {
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

// ---- out_of_bounds
__global__ void read_past(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) y[i] = x[i];                                // BUG
}
__global__ void write_past(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = i < n ? x[i] : 0.f;                              // BUG
}
__global__ void read_before(const float* x, float* y, int n) {
    int i = threadIdx.x;
    if (i < n) y[i] = x[i] + x[i - 1];                      // BUG
}
__global__ void far_before(const float* x, float* y, int n) {
    int i = threadIdx.x;
    if (i < n) y[i] = x[(long)i * -20000000000L];           // BUG
}
__global__ void far_away(const float* x, float* y, int n) {
    int i = threadIdx.x;
    if (i < n) y[i] = x[(long)i * 1000000];                 // BUG
}
__global__ void vector_tail(const float* x, float* y, int n) {
    int i = threadIdx.x * 4;
    if (i < n) {
        float4 v = *reinterpret_cast<const float4*>(x + i); // BUG
        for (int k = 0; k < 4; k++) if (i + k < n) y[i + k] = (&v.x)[k];
    }
}
__global__ void shared_overrun(const float* x, float* y) {
    __shared__ float a[7];
    __shared__ float b[8];
    b[threadIdx.x] = 0.f;
    __syncthreads();
    a[threadIdx.x] = x[threadIdx.x];                        // BUG
    __syncthreads();
    y[threadIdx.x] = a[0] + b[threadIdx.x];
}
__global__ void shared_pointer_overrun(const float* x, float* y) {
    __shared__ float only[16];
    float* p = only;
    for (int i = 0; i < threadIdx.x; i++) p++;
    *p = x[threadIdx.x];                                    // BUG
    __syncthreads();
    y[threadIdx.x] = only[0];
}
__global__ void dynamic_overrun(const float* x, float* y) {
    extern __shared__ float s[];
    s[threadIdx.x] = x[threadIdx.x];                        // BUG
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x];
}
__global__ void local_overrun(const float* x, float* y, int k) {
    float acc[4] = {0, 1, 2, 3};
    acc[k] += x[threadIdx.x];                               // BUG
    y[threadIdx.x] = acc[0] + acc[k & 3];
}
__global__ void null_pointer(const float* x, const float* bias, float* y) {
    y[threadIdx.x] = x[threadIdx.x] + bias[threadIdx.x];    // BUG
}
__global__ void atomic_past(int* counts, const int* x) {
    atomicAdd(&counts[x[threadIdx.x]], 1);                  // BUG
}
__device__ int deep(int n, const int* x) {                  // BUG either
    volatile char frame[1024];
    frame[0] = (char)n;                                     // BUG
    return n <= 0 ? frame[0] : deep(n - 1, x) + frame[0] + x[0];
}
__global__ void stack_overflow(const int* x, int* y) {
    y[threadIdx.x] = deep(100000, x);
}

// ---- misaligned
__global__ void misaligned(const float* x, float* y) {
    const float4* p = reinterpret_cast<const float4*>(x + 1);
    y[threadIdx.x] = p[threadIdx.x].x;                      // BUG
}

// ---- uninitialised_read
__global__ void accumulate(const float* x, float* y, int n) {
    int i = threadIdx.x;
    if (i < n) y[i] += x[i];                                // BUG
}
__global__ void shared_unwritten(const float* x, float* y) {
    __shared__ float s[64];
    if (threadIdx.x < 32) s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    float v = s[threadIdx.x];
    y[threadIdx.x] = v * 2.f;                               // BUG
}
__global__ void bins_not_cleared(const int* x, float* counts) {
    __shared__ float bins[8];
    atomicAdd(&bins[x[threadIdx.x] & 7], 1.f);
    __syncthreads();
    if (threadIdx.x < 8) atomicAdd(&counts[threadIdx.x], bins[threadIdx.x]);   // BUG
}
__global__ void atomic_unwritten(int* counts) {
    atomicAdd(&counts[threadIdx.x], 1);                     // BUG
}

// ---- race_shared
__global__ void no_barrier(const float* x, float* y) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];                        // BUG either
    y[threadIdx.x] = s[63 - threadIdx.x];                   // BUG
}
__global__ void no_second_barrier(const float* x, float* y, int n) {
    __shared__ float s[64];
    float sum = 0.f;
    for (int k = 0; k < n; k++) {
        s[threadIdx.x] = x[k * 64 + threadIdx.x];           // BUG
        __syncthreads();
        for (int i = 0; i < 64; i++) sum += s[i];           // BUG either
    }
    y[threadIdx.x] = sum;
}
__global__ void reduction_in_place(const float* x, float* y) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    for (int o = 32; o > 0; o >>= 1)
        if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];   // BUG
    if (threadIdx.x == 0) y[0] = s[0];
}
__global__ void atomics_no_barrier(const float* x, float* y) {
    __shared__ float sum;
    if (threadIdx.x == 0) sum = 0.f;
    __syncthreads();
    atomicAdd(&sum, x[threadIdx.x]);
    y[threadIdx.x] = sum;                                   // BUG
}
__global__ void zero_no_barrier(const float* x, float* y) {
    __shared__ float sum;
    if (threadIdx.x == 0) sum = 0.f;
    atomicAdd(&sum, x[threadIdx.x]);                        // BUG
    __syncthreads();
    y[threadIdx.x] = sum;
}
__global__ void different_values(int* y) {
    __shared__ int winner;
    winner = threadIdx.x;                                   // BUG
    __syncthreads();
    y[threadIdx.x] = winner;
}
__global__ void half_warp_sync(const float* x, float* y) {
    __shared__ float s[32];
    s[threadIdx.x] = x[threadIdx.x];                        // BUG either
    __syncwarp(threadIdx.x < 16 ? 0x0000ffffu : 0xffff0000u);
    y[threadIdx.x] = s[threadIdx.x ^ 16];                   // BUG
}
__global__ void halves_race(const __half* x, __half* y) {
    __shared__ __half s[64];
    s[threadIdx.x] = x[threadIdx.x];                        // BUG either
    y[threadIdx.x] = s[threadIdx.x ^ 1];                    // BUG
}

// ---- race_global
__global__ void blocks_overlap(float* y) {
    y[threadIdx.x] = (float)blockIdx.x;                     // BUG
}
__global__ void lost_updates(const float* x, float* sum) {
    *sum += x[threadIdx.x];                                 // BUG
}
__global__ void neighbours_in_place(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i + 1 < n) x[i] = x[i + 1] * 0.5f;                  // BUG
}
__global__ void last_block_no_fence(const float* x, float* partial, float* out, unsigned* count) {
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = x[blockIdx.x];
        if (atomicAdd(count, 1u) == gridDim.x - 1) {
            float total = 0.f;
            for (int i = 0; i < gridDim.x; i++) total += partial[i];   // BUG
            *out = total;
        }
    }
}
__device__ int shared_counter;
__global__ void device_variable(int* y) {
    shared_counter = blockIdx.x * 100 + threadIdx.x;        // BUG
    y[threadIdx.x] = shared_counter;
}

__global__ void announced_too_early(const float* x, float* y) {
    __shared__ float s[32];
    const int lane = threadIdx.x & 31;
    if (threadIdx.x < 32) {
        csim_block_arrive(1, 64, "bar.arrive");
        s[lane] = x[lane];                                  // BUG either
    } else {
        csim_block_barrier(1, 64, "bar.sync");
        y[lane] = s[31 - lane];                             // BUG
    }
}

// ---- barrier_divergence
__global__ void half_at_barrier(const float* x, float* y) {
    if (threadIdx.x < 32) {
        y[threadIdx.x] = x[threadIdx.x];
        __syncthreads();                                    // BUG either
    } else {
        y[threadIdx.x] = 0.f;
        __syncthreads();                                    // BUG
    }
}
__global__ void skips_barrier(const float* x, float* y) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x < 48) __syncthreads();                  // BUG either
    y[threadIdx.x] = s[63 - threadIdx.x];
    __syncthreads();                                        // BUG
    s[threadIdx.x] = 0.f;
}
__global__ void loop_counts_differ(const int* n, float* y) {
    for (int i = 0; i < n[threadIdx.x]; i++) __syncthreads();   // BUG either
    y[threadIdx.x] = warp_sum(1.f);
    __syncthreads();                                        // BUG
}
// ---- warp_divergence
__global__ void half_shuffle(const float* x, float* y) {
    float v = x[threadIdx.x];
    if (threadIdx.x < 16) v = __shfl_down_sync(0xffffffffu, v, 8);   // BUG either
    __syncthreads();                                        // BUG
    y[threadIdx.x] = v;
}
__global__ void two_shuffles(const float* x, float* y) {
    float v = x[threadIdx.x];
    if (threadIdx.x & 1) v = __shfl_sync(0xffffffffu, v, 0);   // BUG either
    else v = __shfl_sync(0xffffffffu, v, 1);                // BUG
    y[threadIdx.x] = v;
}
__global__ void exited_lanes(const float* x, float* y, int n) {
    if (threadIdx.x >= n) return;
    const float sum = warp_sum(x[threadIdx.x]);
    y[threadIdx.x] = sum;                                   // BUG
}
__global__ void not_in_mask(const float* x, float* y) {
    y[threadIdx.x] = __shfl_sync(0x0000ffffu, x[threadIdx.x], 0);   // BUG
}

// ---- index_overflow, deadlock, kernel_time, launch_error
__global__ void overflow_then_touch(const float* x, float* y, int big) {
    const int t = threadIdx.x;
    int i = (t + 2) * big;                                  // BUG
    y[threadIdx.x] = x[i];
}
__global__ void divide_by_zero(const int* x, int* y) {
    y[threadIdx.x] = 7 / x[threadIdx.x];                    // BUG
}
__global__ void waits_forever(volatile int* flag, int* y) {
    while (*flag == 0) {                                    // BUG
    }
    y[threadIdx.x] = 1;
}
__global__ void lock_in_warp(int* lock, int* y) {
    while (atomicCAS(lock, 0, 1) != 0) {                    // BUG
    }
    y[threadIdx.x] = 1;                                     // and never unlocks
}
__global__ void endless(float* y) {
    float v = 1.f;
    for (;;) {                                              // BUG
        v = v * 1.0001f + 0.5f;                             // BUG either
        if (v < 0.f) break;                                 // BUG either
    }
    y[threadIdx.x] = v;
}
__global__ void endless_with_memory(float* y) {
    unsigned i = 0;
    while (true) {
        y[i % 32] = (float)i;                               // BUG
        i++;                                                // BUG either
        if (y[i % 32] < -1.f) break;                        // BUG either
    }
}
__global__ void asserts(const int* x, int* y) {
    assert(x[threadIdx.x] < 100);                           // BUG
    y[threadIdx.x] = x[threadIdx.x];
}
__global__ void traps(const int* x, int* y) {
    if (x[0] == 1) __trap();                                // BUG
    y[0] = 1;
}
__global__ void grid_sync_without(float* y) {
    y[0] = 1.f;
    csim_grid_sync("grid.sync()");                          // BUG
}

__global__ void child(int* y) { y[0] = 1; }
__global__ void launches_a_kernel(int* y) {
    child<<<1, 1>>>(y);                                     // BUG
}

// ---- shared_memory_limit
__global__ void too_much_static(float* y) {
    __shared__ float a[8192];
    __shared__ float b[8192];
    a[threadIdx.x] = 1.f;                                   // BUG either
    b[threadIdx.x] = 1.f;                                   // BUG
    __syncthreads();
    y[threadIdx.x] = a[threadIdx.x ^ 1] + b[threadIdx.x ^ 1];
}

// ---- use_after_free and host_pointer: nothing is wrong here but what is passed in
__global__ void copy(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];                                 // BUG
}
