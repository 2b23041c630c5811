// How an extension without torch offers its functions to Python: functions of integers (pointers and sizes) that return
// one or nothing. One of any other kind does not compile here, and the extension is compiled with crucible_bind.h instead.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace crucible::bind {

using BareFunction = void (*)();
// Calls a function with its arguments from an array; its answer, or zero where it has none.
using BareCall = int64_t (*)(BareFunction function, const int64_t* values);
// What the loader (binding.cpp) gives an extension, to name its functions to.
using BareAdd = void (*)(void* module, const char* name, const char* doc, size_t arity, bool answers, BareFunction function,
                         BareCall call);

template <class T>
concept Whole = std::is_integral_v<T> && !std::is_same_v<T, bool>;

template <class R, class... A, size_t... I>
int64_t call_bare(R (*function)(A...), const int64_t* values, std::index_sequence<I...>) {
  if constexpr (std::is_void_v<R>) {
    function(static_cast<A>(values[I])...);
    return 0;
  } else {
    return static_cast<int64_t>(function(static_cast<A>(values[I])...));
  }
}

// What a PYBIND11_MODULE block is given in place of a pybind11::module_.
class BareModule {
 public:
  BareModule(BareAdd add, void* module) : add_(add), module_(module) {}
  template <class R, class... A>
    requires((std::is_void_v<R> || Whole<R>) && (Whole<A> && ...))
  BareModule& def(const char* name, R (*function)(A...), const char* doc = "") {
    add_(module_, name, doc, sizeof...(A), !std::is_void_v<R>, reinterpret_cast<BareFunction>(function),
         [](BareFunction function, const int64_t* values) {
           return call_bare(reinterpret_cast<R (*)(A...)>(function), values, std::index_sequence_for<A...>{});
         });
    return *this;
  }

 private:
  BareAdd add_;
  void* module_;
};

}  // namespace crucible::bind

#ifdef CRUCIBLE_BARE
// The block becomes a function that names everything to the loader.
#define PYBIND11_MODULE(name, variable)                                                       \
  static void crucible_fill(crucible::bind::BareModule& variable);                            \
  extern "C" void crucible_bare_module(crucible::bind::BareAdd add, void* module) {           \
    crucible::bind::BareModule made(add, module);                                             \
    crucible_fill(made);                                                                      \
  }                                                                                           \
  static void crucible_fill(crucible::bind::BareModule& variable)
#endif
