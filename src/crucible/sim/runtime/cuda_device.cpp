// The CUDA runtime API: devices, function attributes, launches by address. (Streams and events: streams.cpp; memory:
// cuda_memory.cpp.)
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>

#include "arena.h"
#include "config.h"
#include "cuda_errors.h"
#include "limits.h"

using namespace csim;

namespace {
cudaError_t fail(cudaError_t e) { return set_last_error(e); }
cudaError_t state() { return sticky_error(); }
}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* n) {
    *n = 1;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : fail(cudaErrorInvalidDevice); }
cudaError_t cudaDeviceReset(void) { return cudaSuccess; }
cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) { return cudaSuccess; }
cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit) {
    *value = 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig) { return cudaSuccess; }
cudaError_t cudaFuncSetSharedMemConfig(const void*, cudaSharedMemConfig) { return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
    *can = 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* v) {
    *v = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* v) {
    *v = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
cudaError_t cudaProfilerStop(void) { return cudaSuccess; }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
    if (device != 0) return fail(cudaErrorInvalidDevice);
    const Limits& l = limits();
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s (sm_%d)", l.name, config.compute_capability);
    p->totalGlobalMem = size_t(80) << 30;
    p->sharedMemPerBlock = l.shared_per_block;
    p->sharedMemPerBlockOptin = l.shared_per_block_optin;
    p->sharedMemPerMultiprocessor = l.shared_per_processor;
    p->reservedSharedMemPerBlock = l.shared_reserved;
    p->regsPerBlock = 65536;
    p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = l.threads_per_processor;
    p->maxBlocksPerMultiProcessor = l.blocks_per_processor;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->totalConstMem = 65536;
    p->major = config.compute_capability / 10;
    p->minor = config.compute_capability % 10;
    p->multiProcessorCount = l.processors;
    p->l2CacheSize = int(l.l2_bytes);
    p->concurrentKernels = 1;
    p->asyncEngineCount = 3;
    p->unifiedAddressing = 1;
    p->memoryBusWidth = 5120;
    p->textureAlignment = 512;
    p->memPitch = 2147483647;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    if (device != 0) return fail(cudaErrorInvalidDevice);
    const Limits& l = limits();
    switch (attribute) {
        case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
        case cudaDevAttrMaxBlockDimX:
        case cudaDevAttrMaxBlockDimY: *value = 1024; break;
        case cudaDevAttrMaxBlockDimZ: *value = 64; break;
        case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
        case cudaDevAttrMaxGridDimY:
        case cudaDevAttrMaxGridDimZ: *value = 65535; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = int(l.shared_per_block); break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = int(l.shared_per_block_optin); break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = int(l.shared_per_processor); break;
        case cudaDevAttrReservedSharedMemoryPerBlock: *value = int(l.shared_reserved); break;
        case cudaDevAttrTotalConstantMemory: *value = 65536; break;
        case cudaDevAttrWarpSize: *value = 32; break;
        case cudaDevAttrMaxRegistersPerBlock:
        case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
        case cudaDevAttrMultiProcessorCount: *value = l.processors; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = l.threads_per_processor; break;
        case cudaDevAttrMaxBlocksPerMultiprocessor: *value = l.blocks_per_processor; break;
        case cudaDevAttrComputeCapabilityMajor: *value = config.compute_capability / 10; break;
        case cudaDevAttrComputeCapabilityMinor: *value = config.compute_capability % 10; break;
        case cudaDevAttrL2CacheSize: *value = int(l.l2_bytes); break;
        case cudaDevAttrCooperativeLaunch:
        case cudaDevAttrConcurrentKernels:
        case cudaDevAttrUnifiedAddressing:
        case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
        case cudaDevAttrClockRate: *value = 1500000; break;
        default: *value = 0; break;
    }
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value < 0 || !set_dynamic_shared_limit(function, size_t(value))) return fail(cudaErrorInvalidValue);
        return cudaSuccess;
    }
    return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void* function) {
    memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = 1024;
    a->numRegs = 32;
    a->maxDynamicSharedSizeBytes = int(dynamic_shared_limit(function));
    a->binaryVersion = a->ptxVersion = config.compute_capability;
    return cudaSuccess;
}
cudaError_t cudaFuncSetCacheConfig(const void*, cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads, size_t shared_bytes) {
    *blocks = blocks_per_processor(threads, shared_bytes);
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* f, int threads,
                                                                   size_t shared_bytes, unsigned) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, f, threads, shared_bytes);
}
cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void*, int, int) {
    *bytes = limits().shared_per_block_optin;
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* f, dim3 grid, dim3 block, void** args, size_t shared_bytes, cudaStream_t s) {
    return launch_erased(f, grid, block, args, shared_bytes, s, false);
}
cudaError_t cudaLaunchCooperativeKernel(const void* f, dim3 grid, dim3 block, void** args, size_t shared_bytes,
                                        cudaStream_t s) {
    return launch_erased(f, grid, block, args, shared_bytes, s, true);
}
cudaError_t csim_launch_attributes(const cudaLaunchConfig_t* c, bool* cooperative) {
    for (unsigned i = 0; i < c->numAttrs; i++) {
        if (c->attrs[i].id == cudaLaunchAttributeCooperative) *cooperative |= c->attrs[i].val.cooperative != 0;
        if (c->attrs[i].id == cudaLaunchAttributeClusterDimension) return fail(cudaErrorNotSupported);
    }
    return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* f, void** args) {
    bool cooperative = false;
    const cudaError_t refused = csim_launch_attributes(c, &cooperative);
    if (refused != cudaSuccess) return refused;
    return launch_erased(f, c->gridDim, c->blockDim, args, c->dynamicSmemBytes, c->stream, cooperative);
}
}
