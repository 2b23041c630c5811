// The C interface between device code compiled by g++ and the simulator's runtime, libcrucible_sim.so.
//
// Everything here is extern "C" so that the runtime, the torch glue and compiled candidates need not share a C++ ABI
// beyond it. Functions marked [fiber] may only be called by device code, that is on the stack of a simulated CUDA
// thread.
#ifndef CSIM_ABI_H
#define CSIM_ABI_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- device memory -------------------------------------------------------------------------------------------------
// One reserved arena, committed lazily. Allocations are page aligned, surrounded by unmapped-for-kernels red zones,
// poisoned with 0xFF, and known to be uninitialised until somebody writes them.
void* csim_malloc(size_t bytes, const char* tag);
void csim_free(void* p);                                      // a later kernel access is a use-after-free
int csim_is_device(const void* p);                            // inside the arena?
int csim_is_live(const void* p);                              // inside an allocation that was not freed?
// size (and base) of the live allocation around p; 0 if none
size_t csim_allocation(const void* p, void** base);
void csim_mark_written(void* p, size_t bytes);                // host code wrote these bytes
// forget what was written there (does not poison the bytes)
void csim_mark_uninitialised(void* p, size_t bytes);
long csim_first_uninitialised(const void* p, size_t bytes);   // offset of the first unwritten byte, -1 if there is none
size_t csim_count_uninitialised(const void* p, size_t bytes);
void csim_name(const void* p, const char* name);              // a name for reports about the allocation around p
size_t csim_bytes_in_use(void);

// ---- control and logs ----------------------------------------------------------------------------------------------
// optional: modules are found by themselves
void csim_module_loaded(const char* so_path, const char* shared_symbols_json);
void csim_source_folder(const char* path);   // where to look for source files that are named without a folder
void csim_configure(const char* json);
const char* csim_reports(void);    // JSON list; valid until the next call
// JSON list: reads of unwritten shared memory that did not (visibly) reach any result
const char* csim_suspects(void);
const char* csim_launches(void);   // JSON list
void csim_reset(void);             // clears the logs and any sticky error
const char* csim_last_message(void);
const char* csim_statistics(void);  // JSON object: accesses, switches, launches

// ---- launching -----------------------------------------------------------------------------------------------------
struct csim_launch_info {
  const char* kernel;        // as written at the launch: "scale<float>"
  const char* args_text;     // argument texts, separated by '\x1f'
  const char* file;
  int line;
  unsigned grid[3], block[3];
  size_t shared_bytes;
  void* stream;
  int cooperative;
  void (*thunk)(void* closure);   // runs the kernel for one thread
  void* closure;                  // holds the argument values; device code may read it
  size_t closure_bytes;
  const void* const* arg_ptrs;    // addresses of the argument values
  const size_t* arg_sizes;
  int arg_count;
  const void* function;           // the kernel's address where it is known, else null
  const void* anchor;             // any code address inside the module that launches
  int max_threads;                // from __launch_bounds__, 0 if unknown
  // names of all kernels of the source, each between commas (",a,b,"), or null: whose __shared__ is whose
  const char* kernels;
};
// 1: a report was filed, the caller must throw csim_last_message()
int csim_launch(const struct csim_launch_info* info);

// ---- identity [fiber] ----------------------------------------------------------------------------------------------
int csim_on_fiber(void);   // callable anywhere
int csim_lane(void);
int csim_warp(void);
int csim_thread(void);           // linear index in the block
int csim_block_threads(void);
void* csim_dynamic_shared(void);
size_t csim_dynamic_shared_bytes(void);
int csim_cooperative(void);      // was this kernel launched cooperatively?

// ---- synchronisation [fiber] ---------------------------------------------------------------------------------------
// All lanes of `mask` bring a slot; `exec` runs once, when the last of them arrives, in that lane's context. Slots are
// indexed by lane, null where the lane is not in the mask, has exited, or does not exist. Orders memory among the
// lanes.
typedef void (*csim_warp_exec)(void* const* slots, unsigned mask);
void csim_warp_collective(unsigned mask, void* slot, csim_warp_exec exec, const char* name);
void csim_warp_collective_at(unsigned mask, void* slot, csim_warp_exec exec, const char* name, int line);
void csim_warp_collective_pc(unsigned mask, void* slot, csim_warp_exec exec, const char* name, int line, void* pc);
// A shuffle read from a lane that is not there: what it got is undefined on a chip and `csim_poison()` in here.
void csim_absent_lane(const char* name, int line, void* pc);
int csim_poison(void);
unsigned csim_activemask(void);
unsigned csim_live_lanes(void);  // lanes of this warp that exist and have not exited
void csim_block_barrier(int id, int threads /* 0: all */, const char* name);
void csim_block_barrier_at(int id, int threads, const char* name, int line);
void csim_block_arrive(int id, int threads, const char* name);       // bar.arrive: counts, does not wait
enum { CSIM_REDUCE_COUNT = 0, CSIM_REDUCE_AND = 1, CSIM_REDUCE_OR = 2 };
int csim_block_reduce(int op, int predicate, const char* name, int line);
void csim_grid_sync(const char* name);
void csim_fence(int scope /* 0 block, 1 device, 2 system */);
void csim_yield(void);           // let others run: __nanosleep, polling loops
long long csim_clock(void);
unsigned long long csim_globaltimer(void);

// ---- checks [fiber] ------------------------------------------------------------------------------------------------
// Bounds, initialisation and race check of one access on behalf of a wrapper. Does nothing on the host or unchecked.
void csim_access(const void* p, size_t n, int is_write, int is_atomic, void* pc);
// An atomic is csim_atomic_begin, the operation itself in uninstrumented code, csim_atomic_end.
void csim_atomic_begin(const void* p, size_t n, int kind /* 0 load, 1 store, 2 read-modify-write */, void* pc);
void csim_atomic_end(const void* p, size_t n);
// does not return on a fiber
void csim_fail(const char* code, const char* fmt, ...) __attribute__((format(printf, 2, 3)));
void csim_assert_fail(const char* expr, const char* file, unsigned line,
                      const char* function) __attribute__((noreturn));
void csim_trap(void);
// A kernel address handed to cudaLaunchKernel as void*: remember how to call it.
const void* csim_register_kernel(const void* function, void (*invoke)(const void* function, void** args),
                                 const size_t* sizes, int count);

#ifdef __cplusplus
}
#endif
#endif
