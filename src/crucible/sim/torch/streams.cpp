// The current stream of each host thread, for torch's Python and C++ interfaces alike.
#include <cstddef>

extern "C" {
int cudaStreamCreateWithFlags(void** stream, unsigned flags);

static thread_local void* current = nullptr;

void* crucible_current_stream() { return current; }
void crucible_set_current_stream(void* stream) { current = stream; }

void* crucible_pool_stream() {
  void* stream = nullptr;
  cudaStreamCreateWithFlags(&stream, /*non-blocking*/ 1);
  return stream;
}
}
