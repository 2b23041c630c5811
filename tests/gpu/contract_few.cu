// The matrix product of contract_wgmma.cu by the way of few lines, and by the engine without tensor cores, for
// tests/gpu/contract_few.py. What must be given is the same.
#include "contract_wgmma.cu"
#include "contract_few.cuh"

// What to launch: 0 few rows, 1 few columns, whether or not it pays; 2 the engine without tensor cores. Where there is no
// workspace, nothing: the bytes it must have.
template <class P>
static int64_t few_run(const P& p, void* workspace, int what, cudaStream_t stream) {
  if (what == 2) return workspace == nullptr ? 0 : launch_contract<Simt<128, COLUMNS, 8, 8, 8>>(p, 1, stream);
  if (workspace == nullptr) return what == 0 ? few_bytes<FewRows>(p) : few_bytes<FewCols>(p);
  return what == 0 ? launch_contract_few<FewRows, COLUMNS>(p, 1, workspace, stream)
                   : launch_contract_few<FewCols, COLUMNS>(p, 1, workspace, stream);
}

// form and statistics as in contract_wgmma.cu.
extern "C" int64_t few(const void* a, const void* b, const void* bias, void* out, void* count, void* mean, void* m2, int z,
                       int m, int n, int k, int groups, int form, int statistics, void* workspace, int what, void* stream) {
  const auto go = [&](auto p) { return few_run(p, workspace, what, static_cast<cudaStream_t>(stream)); };
  if (statistics == 16) return go(Product<true, true, 16, true> GIVEN);
  if (form == 0) return go(Product<false, false, 0, false> GIVEN);
  if (form == 1) return go(Product<true, false, 0, false> GIVEN);
  if (form == 2) return go(Product<false, true, 0, false> GIVEN);
  return go(Product<true, true, 0, false> GIVEN);
}
