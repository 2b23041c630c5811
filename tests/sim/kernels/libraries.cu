// Small kernels on cooperative groups, cub, cuRAND and the pipeline functions; same shape as instructions.cu.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cub/block/block_exchange.cuh>
#include <cub/block/block_load.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_store.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>
#include <cuda_pipeline.h>
#include <stdint.h>

#if __has_include(<curand_kernel.h>)
#include <curand_kernel.h>
#define HAVE_CURAND 1
#endif

namespace cg = cooperative_groups;

#define WORDS_IN(n) const uint32_t* x = in + blockIdx.x * (n); const int t = threadIdx.x
#define WORDS_OUT(n) uint32_t* y = out + blockIdx.x * (n)
#define KERNEL(name) extern "C" __global__ void name(const uint32_t* in, uint32_t* out)

// ---- cooperative groups, 64 threads
KERNEL(groups) {
    WORDS_IN(64); WORDS_OUT(64 * 24);
    uint32_t* o = y + t * 24;
    const uint32_t v = x[t];
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    auto four = cg::tiled_partition<4>(warp);
    o[0] = block.thread_rank() + 1000 * block.size(); o[1] = warp.thread_rank() + 100 * warp.meta_group_rank();
    o[2] = four.thread_rank() + 100 * four.meta_group_rank() + 10000 * four.meta_group_size();
    o[3] = warp.shfl(v, 7); o[4] = four.shfl_down(v, 1); o[5] = four.shfl_up(v, 2); o[6] = four.shfl_xor(v, 3);
    o[7] = four.ballot(v & 1); o[8] = four.any(v & 1) + 2 * four.all(v & 1); o[9] = four.match_any(v & 1);
    o[10] = cg::reduce(warp, v, cg::plus<uint32_t>()); o[11] = cg::reduce(four, v, cg::less<uint32_t>());
    o[12] = cg::reduce(warp, (int)v, cg::greater<int>());
    o[13] = cg::inclusive_scan(warp, v); o[14] = cg::exclusive_scan(four, v, cg::plus<uint32_t>());
    o[15] = o[16] = o[17] = o[18] = 0;
    if (v & 2) {
        cg::coalesced_group active = cg::coalesced_threads();
        o[15] = active.thread_rank() + 100 * active.size();
        o[16] = active.shfl(v, 0); o[17] = cg::reduce(active, v & 255, cg::plus<uint32_t>());
        o[18] = active.ballot(v & 1);
    }
    warp.sync();
    auto label = cg::labeled_partition(warp, (int)(v & 3));
    o[19] = label.thread_rank() + 100 * label.size();
    auto half = cg::binary_partition(warp, (v & 4) != 0);
    o[20] = half.thread_rank() + 100 * half.size() + 10000 * half.meta_group_rank();
    o[21] = cg::this_grid().thread_rank(); o[22] = cg::this_grid().size(); o[23] = block.group_index().x;
    block.sync();
}

// ---- cub, 128 threads
KERNEL(cub_block) {
    WORDS_IN(512); WORDS_OUT(512 * 4);
    using Load = cub::BlockLoad<uint32_t, 128, 4, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
    using Store = cub::BlockStore<uint32_t, 128, 4, cub::BLOCK_STORE_TRANSPOSE>;
    using Reduce = cub::BlockReduce<int, 128>;
    using Scan = cub::BlockScan<int, 128>;
    using Sort = cub::BlockRadixSort<uint32_t, 128, 4, int>;
    using Exchange = cub::BlockExchange<uint32_t, 128, 4>;
    using Warp = cub::WarpReduce<int>;
    using WarpScan = cub::WarpScan<int>;
    __shared__ union {
        Load::TempStorage load; Store::TempStorage store; Reduce::TempStorage reduce; Scan::TempStorage scan;
        Sort::TempStorage sort; Exchange::TempStorage exchange;
    } temp;
    __shared__ Warp::TempStorage warp_temp[4];
    __shared__ WarpScan::TempStorage warp_scan_temp[4];
    uint32_t items[4]; int values[4], sums[4], total, one;
    Load(temp.load).Load(x, items);
    __syncthreads();
    for (int i = 0; i < 4; ++i) values[i] = (int)(items[i] & 0xffff) - 0x8000;
    int sum = Reduce(temp.reduce).Sum(values);
    __syncthreads();
    int part = Reduce(temp.reduce).Sum(values[0], 77);
    __syncthreads();
    int largest = Reduce(temp.reduce).Reduce(values[1], [](int a, int b) { return a > b ? a : b; });
    __syncthreads();
    Scan(temp.scan).ExclusiveSum(values, sums, total);
    __syncthreads();
    Scan(temp.scan).InclusiveScan(values[2], one, [](int a, int b) { return a > b ? a : b; });
    __syncthreads();
    int lane_sum = Warp(warp_temp[t / 32]).Sum(values[3]), lane_scan;
    WarpScan(warp_scan_temp[t / 32]).InclusiveSum(values[3], lane_scan);
    uint32_t* o = y + 1024;
    o[t] = t == 0 ? sum : total; o[128 + t] = t == 0 ? part : one; o[256 + t] = t == 0 ? largest : lane_scan;
    o[384 + t] = t % 32 == 0 ? lane_sum : 0;
    for (int i = 0; i < 4; ++i) { y[512 + 4 * t + i] = (uint32_t)sums[i]; values[i] = 4 * t + i; items[i] &= 0xff; }
    Sort(temp.sort).Sort(items, values, 2, 8);
    __syncthreads();
    Exchange(temp.exchange).BlockedToStriped(items, items);
    __syncthreads();
    Store(temp.store).Store(y, items);
    for (int i = 0; i < 4; ++i) y[1536 + 4 * t + i] = (uint32_t)values[i];
}

// ---- the pipeline functions, 64 threads
KERNEL(pipelines) {
    WORDS_IN(512); WORDS_OUT(512);
    __shared__ __align__(16) uint32_t a[256], b[256];
    __pipeline_memcpy_async(&a[4 * t], &x[4 * t], 16);
    __pipeline_commit();
    __pipeline_memcpy_async(&b[2 * t], &x[256 + 2 * t], 8, t % 2 ? 4 : 0);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    y[t] = a[255 - t]; y[64 + t] = a[191 - t]; y[128 + t] = a[127 - t]; y[192 + t] = a[63 - t];
    __pipeline_wait_prior(0);
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, b + 128, x + 384, 128 * sizeof(uint32_t));
    cg::wait(block);
    for (int i = t; i < 256; i += 64) y[256 + i] = b[i];
}

// ---- cuRAND, 64 threads: words 0..5 of a block are seed, sequence, offset
#ifdef HAVE_CURAND
KERNEL(random_philox) {
    WORDS_IN(6); WORDS_OUT(64 * 24);
    uint32_t* o = y + t * 24;
    curandStatePhilox4_32_10_t s;
    curand_init(((unsigned long long)x[1] << 32) | x[0], ((unsigned long long)x[3] << 32) + x[2] + t, x[4] & 1023, &s);
    for (int i = 0; i < 7; ++i) o[i] = curand(&s);
    uint4 q = curand4(&s);
    o[7] = q.x; o[8] = q.y; o[9] = q.z; o[10] = q.w;
    o[11] = __float_as_uint(curand_uniform(&s));
    float4 u = curand_uniform4(&s);
    o[12] = __float_as_uint(u.x); o[13] = __float_as_uint(u.w);
    unsigned long long d = (unsigned long long)__double_as_longlong(curand_uniform_double(&s));
    o[14] = (uint32_t)d; o[15] = (uint32_t)(d >> 32);
    skipahead(1000003ull, &s); o[16] = curand(&s);
    skipahead_sequence(5ull, &s); o[17] = curand(&s);
    for (int i = 18; i < 24; ++i) o[i] = curand(&s);
}
KERNEL(random_xorwow) {
    WORDS_IN(6); WORDS_OUT(64 * 16);
    uint32_t* o = y + t * 16;
    curandState s;
    curand_init(((unsigned long long)x[1] << 32) | x[0], (x[2] & 0xffff) + t, x[4], &s);
    for (int i = 0; i < 12; ++i) o[i] = curand(&s);
    o[12] = __float_as_uint(curand_uniform(&s));
    skipahead(12345ull, &s); o[13] = curand(&s);
    skipahead_sequence(7ull, &s); o[14] = curand(&s); o[15] = curand(&s);
}
KERNEL(random_normals) {  // as floats
    WORDS_IN(6); WORDS_OUT(64 * 12);
    uint32_t* o = y + t * 12;
    curandStatePhilox4_32_10_t s;
    curandState r;
    curand_init(x[0], t, 0, &s); curand_init(x[1], t, 0, &r);
    for (int i = 0; i < 3; ++i) o[i] = __float_as_uint(curand_normal(&s));
    float4 n = curand_normal4(&s);
    o[3] = __float_as_uint(n.x); o[4] = __float_as_uint(n.y); o[5] = __float_as_uint(n.z); o[6] = __float_as_uint(n.w);
    for (int i = 7; i < 10; ++i) o[i] = __float_as_uint(curand_normal(&r));
    o[10] = __float_as_uint((float)curand_normal_double(&s)); o[11] = __float_as_uint((float)curand_normal_double(&r));
}
#endif
