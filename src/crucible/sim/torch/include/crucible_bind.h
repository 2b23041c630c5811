// How an extension offers its functions to Python without pybind11, whose headers would triple every compile.
// Used for functions= lists and for PYBIND11_MODULE blocks that only call m.def(name, function, docstring);
// anything richer is compiled with the real pybind11 (CRUCIBLE_PYBIND11).
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace crucible::bind {

// A Python value on its way to or from C++. Not torch's IValue: its templates cost every compile most of a second.
struct Value {
  enum Kind { NONE, TENSOR, BOOL, INT, FLOAT, STRING, DEVICE, TUPLE, LIST, WRONG };
  Kind kind = NONE;
  at::Tensor tensor;
  int64_t whole = 0;  // of a bool too, of a dtype, which is its number, and of WRONG: which argument has a wrong type
  double real = 0;
  std::string text;
  at::Device device = at::kCPU;
  std::vector<Value> items;

  Value() = default;
  Value(at::Tensor t) : kind(TENSOR), tensor(std::move(t)) {}
  Value(bool b) : kind(BOOL), whole(b) {}
  Value(int64_t n) : kind(INT), whole(n) {}
  Value(double x) : kind(FLOAT), real(x) {}
  Value(std::string s) : kind(STRING), text(std::move(s)) {}
  Value(at::Device d) : kind(DEVICE), device(d) {}
  Value(Kind k, int64_t n) : kind(k), whole(n) {}
  Value(Kind sequence, std::vector<Value> values) : kind(sequence), items(std::move(values)) {}

  bool is(Kind k) const { return kind == k; }
  bool is_number() const { return is(INT) || is(BOOL) || is(FLOAT); }
};

// What the loader (binding.cpp) gives an extension to name its functions to. Strings are put together there: what is
// compiled here is compiled, and instrumented, in every extension.
using Function = void (*)();
using Call = Value (*)(Function function, Value* values);
using Say = void (*)(void* to, const char* text);
using Name = void (*)(Say say, void* to);  // says the name of a parameter's type
using Add = void (*)(void* module, const char* name, const char* doc, Function function, Call call, const Name* names,
                     size_t arity);

// ---- one C++ parameter type each: its name, what Python value it accepts, how to get it ----------------------------

template <class T, class = void>
struct Arg;

#define CRUCIBLE_ARG(TYPE, NAME, ACCEPTS, GET)                     \
  template <>                                                      \
  struct Arg<TYPE> {                                               \
    static void name(Say say, void* to) { say(to, NAME); }         \
    static bool accepts(const Value& v) { return ACCEPTS; }       \
    static TYPE get(const Value& v) { return GET; }               \
  };
CRUCIBLE_ARG(at::Tensor, "torch.Tensor", v.is(Value::TENSOR) || v.is(Value::NONE), v.tensor)
CRUCIBLE_ARG(bool, "bool", v.is(Value::BOOL), v.whole != 0)
CRUCIBLE_ARG(std::string, "str", v.is(Value::STRING), v.text)
CRUCIBLE_ARG(at::Scalar, "number", v.is_number(),
             v.is(Value::FLOAT) ? at::Scalar(v.real) : v.is(Value::BOOL) ? at::Scalar(v.whole != 0) : at::Scalar(v.whole))
CRUCIBLE_ARG(at::ScalarType, "torch.dtype", v.is(Value::INT), static_cast<at::ScalarType>(v.whole))
CRUCIBLE_ARG(at::Device, "torch.device", v.is(Value::DEVICE), v.device)
#undef CRUCIBLE_ARG

template <class T>
struct Arg<T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>>> {
  static void name(Say say, void* to) { say(to, "int"); }
  static bool accepts(const Value& v) { return v.is(Value::INT) || v.is(Value::BOOL); }
  static T get(const Value& v) { return static_cast<T>(v.whole); }
};

template <class T>
struct Arg<T, std::enable_if_t<std::is_floating_point_v<T>>> {
  static void name(Say say, void* to) { say(to, "float"); }
  static bool accepts(const Value& v) { return v.is_number(); }
  static T get(const Value& v) { return static_cast<T>(v.is(Value::FLOAT) ? v.real : static_cast<double>(v.whole)); }
};

template <class T>
struct Arg<std::optional<T>> {
  static void name(Say say, void* to) {
    say(to, "Optional[");
    Arg<T>::name(say, to);
    say(to, "]");
  }
  static bool accepts(const Value& v) { return v.is(Value::NONE) || Arg<T>::accepts(v); }
  static std::optional<T> get(const Value& v) {
    if (v.is(Value::NONE)) return std::nullopt;
    return Arg<T>::get(v);
  }
};

template <class T>
struct Arg<std::vector<T>> {
  static void name(Say say, void* to) {
    say(to, "list[");
    Arg<T>::name(say, to);
    say(to, "]");
  }
  static bool accepts(const Value& v) {
    if (!v.is(Value::TUPLE)) return false;  // every Python sequence arrives as a tuple
    for (const Value& item : v.items)
      if (!Arg<T>::accepts(item)) return false;
    return true;
  }
  static std::vector<T> get(const Value& v) {
    std::vector<T> out;
    for (const Value& item : v.items) out.push_back(Arg<T>::get(item));
    return out;
  }
};

// Parameters that only refer to a list or string need something to refer to while the call runs.
template <class T>
struct Held {
  using type = std::remove_cv_t<std::remove_reference_t<T>>;
};
template <class E>
struct Held<c10::ArrayRef<E>> {
  using type = std::vector<E>;
};
template <class E>
struct Held<const c10::ArrayRef<E>&> {
  using type = std::vector<E>;
};
template <class T>
using held_t = typename Held<T>::type;

// ---- results -------------------------------------------------------------------------------------------------------

inline Value result(at::Tensor t) { return t; }
inline Value result(bool b) { return b; }
inline Value result(const std::string& s) { return s; }
inline Value result(const char* s) { return std::string(s); }
template <class T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, int> = 0>
Value result(T n) {
  return static_cast<int64_t>(n);
}
template <class T, std::enable_if_t<std::is_floating_point_v<T>, int> = 0>
Value result(T x) {
  return static_cast<double>(x);
}
template <class T>
Value result(const std::vector<T>& list);
template <class... T>
Value result(const std::tuple<T...>& items);
template <class A, class B>
Value result(const std::pair<A, B>& items) {
  return {Value::TUPLE, {result(items.first), result(items.second)}};
}
template <class T>
Value result(const std::optional<T>& maybe) {
  return maybe ? result(*maybe) : Value();
}
template <class T>
Value result(const std::vector<T>& list) {
  std::vector<Value> out;
  for (const auto& item : list) out.push_back(result(static_cast<T>(item)));
  return {Value::LIST, std::move(out)};
}
template <class T, size_t N>
Value result(const std::array<T, N>& list) {
  return result(std::vector<T>(list.begin(), list.end()));
}
template <class... T>
Value result(const std::tuple<T...>& items) {
  return std::apply([](const T&... item) { return Value(Value::TUPLE, {result(item)...}); }, items);
}

// ---- a function as an entry ----------------------------------------------------------------------------------------

template <class R, class... A, size_t... I>
Value invoke(R (*function)(A...), Value* values, std::index_sequence<I...>) {
  int64_t wrong = -1;
  ((wrong < 0 && !Arg<held_t<A>>::accepts(values[I]) ? void(wrong = I) : void()), ...);
  if (wrong >= 0) return {Value::WRONG, wrong};
  std::tuple<held_t<A>...> held{Arg<held_t<A>>::get(values[I])...};
  if constexpr (std::is_void_v<R>) {
    function(static_cast<A>(std::get<I>(held))...);
    return Value();
  } else {
    return result(function(static_cast<A>(std::get<I>(held))...));
  }
}

// What a PYBIND11_MODULE block is given in place of a pybind11::module_.
class Module {
 public:
  Module(Add add, void* module) : add_(add), module_(module) {}
  template <class R, class... A>
  Module& def(const char* name, R (*function)(A...), const char* doc = "") {
    static const Name names[] = {&Arg<held_t<A>>::name..., nullptr};
    const Call call = [](Function function, Value* values) {
      return invoke(reinterpret_cast<R (*)(A...)>(function), values, std::index_sequence_for<A...>{});
    };
    add_(module_, name, doc, reinterpret_cast<Function>(function), call, names, sizeof...(A));
    return *this;
  }
  std::string& doc() { return text_; }

 private:
  Add add_;
  void* module_;
  std::string text_;  // nobody reads it
};

}  // namespace crucible::bind

// The block becomes a function that fills a Module; the loader (binding.cpp) calls it by name.
#define CRUCIBLE_MODULE(variable)                                             \
  static void crucible_fill(crucible::bind::Module& variable);                \
  extern "C" void crucible_module(crucible::bind::Add add, void* module) {    \
    crucible::bind::Module made(add, module);                                 \
    crucible_fill(made);                                                      \
  }                                                                           \
  static void crucible_fill(crucible::bind::Module& variable)
#ifndef CRUCIBLE_PYBIND11
#define PYBIND11_MODULE(name, variable) CRUCIBLE_MODULE(variable)
#endif
