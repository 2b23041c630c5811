// The C++ face of asynchronous copies that predates cuda::pipeline.
#pragma once

#include "cuda_pipeline_primitives.h"

namespace nvcuda::experimental {
class pipeline {
 public:
    size_t commit() { return csim::async::commit(), batch_++; }
    void commit_and_wait() { csim::async::wait_all(), ++batch_; }
    void wait(size_t batch) { csim::async::wait_group((uint32_t)(batch_ > batch + 1 ? batch_ - batch - 1 : 0)); }
    template <unsigned N> void wait_prior() { csim::async::wait_group(N); }

 private:
    size_t batch_ = 0;
};
template <class T> inline __attribute__((always_inline)) void memcpy_async(T& target, const T& source, pipeline&) {
    csim::async::copy(&target, &source, sizeof(T), sizeof(T), "memcpy_async");
}
}  // namespace nvcuda::experimental
