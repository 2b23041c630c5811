// How an extension offers its functions to Python without pybind11, whose headers would triple every compile.
// Used for functions= lists and for PYBIND11_MODULE blocks that only call m.def(name, function, docstring);
// anything richer is compiled with the real pybind11 (CRUCIBLE_PYBIND11).
#pragma once
#include <ATen/core/ivalue.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace crucible::bind {

using c10::IValue;

struct Entry {
  std::string name, doc, signature;
  size_t arity;
  std::function<IValue(std::vector<IValue>&)> call;
};

// Thrown for an argument of the wrong type; Python sees a TypeError, as it would from pybind11.
struct WrongType : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// ---- one C++ parameter type each: its name, what Python value it accepts, how to get it ----------------------------

template <class T, class = void>
struct Arg;

#define CRUCIBLE_ARG(TYPE, NAME, ACCEPTS, GET)                     \
  template <>                                                      \
  struct Arg<TYPE> {                                               \
    static std::string name() { return NAME; }                     \
    static bool accepts(const IValue& v) { return ACCEPTS; }       \
    static TYPE get(const IValue& v) { return GET; }               \
  };
CRUCIBLE_ARG(at::Tensor, "torch.Tensor", v.isTensor() || v.isNone(), v.isNone() ? at::Tensor() : v.toTensor())
CRUCIBLE_ARG(bool, "bool", v.isBool(), v.toBool())
CRUCIBLE_ARG(std::string, "str", v.isString(), v.toStringRef())
CRUCIBLE_ARG(at::Scalar, "number", v.isInt() || v.isDouble() || v.isBool(), v.toScalar())
CRUCIBLE_ARG(at::ScalarType, "torch.dtype", v.isInt(), v.toScalarType())
CRUCIBLE_ARG(at::Device, "torch.device", v.isDevice(), v.toDevice())
#undef CRUCIBLE_ARG

template <class T>
struct Arg<T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>>> {
  static std::string name() { return "int"; }
  static bool accepts(const IValue& v) { return v.isInt() || v.isBool(); }
  static T get(const IValue& v) { return static_cast<T>(v.isBool() ? v.toBool() : v.toInt()); }
};

template <class T>
struct Arg<T, std::enable_if_t<std::is_floating_point_v<T>>> {
  static std::string name() { return "float"; }
  static bool accepts(const IValue& v) { return v.isDouble() || v.isInt() || v.isBool(); }
  static T get(const IValue& v) {
    return static_cast<T>(v.isDouble() ? v.toDouble() : v.isInt() ? static_cast<double>(v.toInt()) : v.toBool());
  }
};

template <class T>
struct Arg<std::optional<T>> {
  static std::string name() { return "Optional[" + Arg<T>::name() + "]"; }
  static bool accepts(const IValue& v) { return v.isNone() || Arg<T>::accepts(v); }
  static std::optional<T> get(const IValue& v) {
    if (v.isNone()) return std::nullopt;
    return Arg<T>::get(v);
  }
};

template <class T>
struct Arg<std::vector<T>> {
  static std::string name() { return "list[" + Arg<T>::name() + "]"; }
  static bool accepts(const IValue& v) {
    if (!v.isTuple()) return false;  // every Python sequence arrives as a tuple
    for (const IValue& item : v.toTupleRef().elements())
      if (!Arg<T>::accepts(item)) return false;
    return true;
  }
  static std::vector<T> get(const IValue& v) {
    std::vector<T> out;
    for (const IValue& item : v.toTupleRef().elements()) out.push_back(Arg<T>::get(item));
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

inline IValue result(at::Tensor t) { return t; }
inline IValue result(bool b) { return b; }
inline IValue result(const std::string& s) { return s; }
inline IValue result(const char* s) { return std::string(s); }
template <class T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, int> = 0>
IValue result(T n) {
  return static_cast<int64_t>(n);
}
template <class T, std::enable_if_t<std::is_floating_point_v<T>, int> = 0>
IValue result(T x) {
  return static_cast<double>(x);
}
template <class T>
IValue result(const std::vector<T>& list);
template <class... T>
IValue result(const std::tuple<T...>& items);
template <class A, class B>
IValue result(const std::pair<A, B>& items) {
  return c10::ivalue::Tuple::create(std::vector<IValue>{result(items.first), result(items.second)});
}
template <class T>
IValue result(const std::optional<T>& maybe) {
  return maybe ? result(*maybe) : IValue();
}
template <class T>
IValue result(const std::vector<T>& list) {
  c10::List<IValue> out(c10::AnyType::get());
  for (const auto& item : list) out.push_back(result(static_cast<T>(item)));
  return IValue(out);
}
template <class T, size_t N>
IValue result(const std::array<T, N>& list) {
  return result(std::vector<T>(list.begin(), list.end()));
}
template <class... T>
IValue result(const std::tuple<T...>& items) {
  return std::apply(
      [](const T&... item) { return IValue(c10::ivalue::Tuple::create(std::vector<IValue>{result(item)...})); }, items);
}

// ---- a function as an entry ----------------------------------------------------------------------------------------

template <class R, class... A, size_t... I>
IValue invoke(R (*function)(A...), std::vector<IValue>& values, const std::string& name, std::index_sequence<I...>) {
  const auto check = [&](size_t i, bool good, const std::string& want) {
    if (!good)
      throw WrongType(name + "(): argument " + std::to_string(i + 1) + " must be " + want + ", got " + values[i].tagKind());
  };
  (check(I, Arg<held_t<A>>::accepts(values[I]), Arg<held_t<A>>::name()), ...);
  std::tuple<held_t<A>...> held{Arg<held_t<A>>::get(values[I])...};
  if constexpr (std::is_void_v<R>) {
    function(static_cast<A>(std::get<I>(held))...);
    return IValue();
  } else {
    return result(function(static_cast<A>(std::get<I>(held))...));
  }
}

// Functions of integers alone (pointers and sizes) are common and often long: one loop serves them all.
inline Entry whole_entry(const std::string& name, size_t arity, std::function<void(const int64_t*)> function) {
  return {name, "", name + "(" + std::to_string(arity) + " int)", arity, [function, name](std::vector<IValue>& values) {
            std::vector<int64_t> numbers;
            for (const IValue& v : values) {
              if (!Arg<int64_t>::accepts(v))
                throw WrongType(name + "(): argument " + std::to_string(numbers.size() + 1) + " must be int, got " + v.tagKind());
              numbers.push_back(Arg<int64_t>::get(v));
            }
            function(numbers.data());
            return IValue();
          }};
}

template <class... A, size_t... I>
void invoke_whole(void (*function)(A...), const int64_t* values, std::index_sequence<I...>) {
  function(static_cast<A>(values[I])...);
}

template <class R, class... A>
Entry entry(const std::string& name, R (*function)(A...), const std::string& doc = "") {
  if constexpr (std::is_void_v<R> && sizeof...(A) > 0 && ((std::is_integral_v<A> && !std::is_same_v<A, bool>) && ...)) {
    return whole_entry(name, sizeof...(A), [function](const int64_t* values) {
      invoke_whole(function, values, std::index_sequence_for<A...>{});
    });
  } else {
  std::string signature = name + "(";
  ((signature += (signature.back() == '(' ? "" : ", ") + Arg<held_t<A>>::name()), ...);
  return {name, doc, signature + ")", sizeof...(A), [function, name](std::vector<IValue>& values) {
            return invoke(function, values, name, std::index_sequence_for<A...>{});
          }};
  }
}

// What a PYBIND11_MODULE block is given in place of a pybind11::module_.
class Module {
 public:
  std::vector<Entry> entries;
  std::string text;
  template <class R, class... A>
  Module& def(const char* name, R (*function)(A...), const char* doc = "") {
    entries.push_back(entry(name, function, doc));
    return *this;
  }
  std::string& doc() { return text; }
};

}  // namespace crucible::bind

// The block becomes a function that fills a Module; the loader (binding.cpp) calls it by name.
#define CRUCIBLE_MODULE(variable)                                                    \
  static void crucible_fill(crucible::bind::Module& variable);                       \
  extern "C" void crucible_module(crucible::bind::Module* module) { crucible_fill(*module); } \
  static void crucible_fill(crucible::bind::Module& variable)
#ifndef CRUCIBLE_PYBIND11
#define PYBIND11_MODULE(name, variable) CRUCIBLE_MODULE(variable)
#endif
