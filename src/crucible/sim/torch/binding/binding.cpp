// Python's side of crucible_bind.h: load a library, offer its entries as functions of a module.
#include <Python.h>
#include <dlfcn.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "crucible_bind.h"
#include "crucible_bind_bare.h"

using crucible::bind::Value;

namespace {

// One function of a library.
struct Entry {
  std::string name, doc;
  std::vector<std::string> types;  // of its parameters
  std::function<Value(Value*)> call;
  std::string signature() const {
    std::string text = name + "(";
    for (const std::string& type : types) text += (&type == types.data() ? "" : ", ") + type;
    return text + ")";
  }
};
using Entries = std::vector<Entry>;

// An argument that no C++ function can take.
struct WrongType : std::runtime_error {
  using std::runtime_error::runtime_error;
};

const char* kind_name(const Value& value) {
  static const char* names[] = {"None", "Tensor", "Bool", "Int", "Double", "String", "Device", "Tuple", "List"};
  return names[value.kind];
}

Value from_python(PyObject* object) {
  if (object == Py_None) return Value();
  if (THPVariable_Check(object)) return THPVariable_Unpack(object);
  if (PyBool_Check(object)) return object == Py_True;
  if (PyLong_Check(object)) return static_cast<int64_t>(PyLong_AsLongLong(object));
  if (PyFloat_Check(object)) return PyFloat_AsDouble(object);
  if (PyUnicode_Check(object)) return std::string(PyUnicode_AsUTF8(object));
  if (THPDevice_Check(object)) return reinterpret_cast<THPDevice*>(object)->device;
  if (THPDtype_Check(object)) return static_cast<int64_t>(reinterpret_cast<THPDtype*>(object)->scalar_type);
  if (PyTuple_Check(object) || PyList_Check(object)) {
    std::vector<Value> items;
    for (Py_ssize_t i = 0, n = PySequence_Size(object); i < n; ++i) {
      PyObject* item = PySequence_GetItem(object, i);
      items.push_back(from_python(item));
      Py_DECREF(item);
    }
    return Value(Value::TUPLE, std::move(items));
  }
  if (PyIndex_Check(object)) {  // numpy integers and the like
    PyObject* number = PyNumber_Index(object);
    const int64_t value = PyLong_AsLongLong(number);
    Py_DECREF(number);
    return value;
  }
  throw WrongType(std::string("an argument of type ") + Py_TYPE(object)->tp_name + " cannot be passed to C++");
}

PyObject* to_python(const Value& value) {
  switch (value.kind) {
    case Value::TENSOR: return THPVariable_Wrap(value.tensor);
    case Value::BOOL: return PyBool_FromLong(value.whole);
    case Value::INT: return PyLong_FromLongLong(value.whole);
    case Value::FLOAT: return PyFloat_FromDouble(value.real);
    case Value::STRING: return PyUnicode_FromString(value.text.c_str());
    case Value::TUPLE: {
      PyObject* out = PyTuple_New(value.items.size());
      for (size_t i = 0; i < value.items.size(); ++i) PyTuple_SET_ITEM(out, i, to_python(value.items[i]));
      return out;
    }
    case Value::LIST: {
      PyObject* out = PyList_New(value.items.size());
      for (size_t i = 0; i < value.items.size(); ++i) PyList_SET_ITEM(out, i, to_python(value.items[i]));
      return out;
    }
    default: Py_RETURN_NONE;
  }
}

PyObject* call(PyObject* self, PyObject* args) {
  HANDLE_TH_ERRORS
  const auto* entry = static_cast<const Entry*>(PyCapsule_GetPointer(self, "crucible.entry"));
  const size_t given = PyTuple_GET_SIZE(args), arity = entry->types.size();
  if (given != arity) {
    PyErr_Format(PyExc_TypeError, "%s takes %zu arguments (%zu given)", entry->signature().c_str(), arity, given);
    return nullptr;
  }
  try {
    std::vector<Value> values;
    for (size_t i = 0; i < given; ++i) values.push_back(from_python(PyTuple_GET_ITEM(args, i)));
    if (PyErr_Occurred()) return nullptr;
    const Value answer = entry->call(values.data());
    if (!answer.is(Value::WRONG)) return to_python(answer);
    PyErr_Format(PyExc_TypeError, "%s(): argument %zu must be %s, got %s", entry->name.c_str(), size_t(answer.whole + 1),
                 entry->types[answer.whole].c_str(), kind_name(values[answer.whole]));
    return nullptr;
  } catch (const WrongType& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
    return nullptr;
  }
  END_HANDLE_TH_ERRORS
}

void add(void* entries, const char* name, const char* doc, crucible::bind::Function function, crucible::bind::Call call,
         const crucible::bind::Name* names, size_t arity) {
  Entry entry{name, doc, {}, [=](Value* values) { return call(function, values); }};
  for (size_t i = 0; i < arity; ++i) {
    std::string& type = entry.types.emplace_back();
    names[i]([](void* to, const char* text) { *static_cast<std::string*>(to) += text; }, &type);
  }
  static_cast<Entries*>(entries)->push_back(std::move(entry));
}

void add_bare(void* entries, const char* name, const char* doc, size_t arity, bool answers,
              crucible::bind::BareFunction function, crucible::bind::BareCall call) {
  static_cast<Entries*>(entries)->push_back({name, doc, std::vector<std::string>(arity, "int"), [=](Value* values) -> Value {
    std::vector<int64_t> numbers;
    for (size_t i = 0; i < arity; ++i) {
      if (!crucible::bind::Arg<int64_t>::accepts(values[i])) return {Value::WRONG, static_cast<int64_t>(i)};
      numbers.push_back(values[i].whole);
    }
    const int64_t answer = call(function, numbers.data());
    return answers ? Value(answer) : Value();
  }});
}

PyObject* load(PyObject*, PyObject* args) {
  const char *path, *name;
  if (!PyArg_ParseTuple(args, "ss", &path, &name)) return nullptr;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    PyErr_SetString(PyExc_ImportError, dlerror());
    return nullptr;
  }
  auto* fill = reinterpret_cast<void (*)(crucible::bind::Add, void*)>(dlsym(library, "crucible_module"));
  auto* fill_bare = reinterpret_cast<void (*)(crucible::bind::BareAdd, void*)>(dlsym(library, "crucible_bare_module"));
  if (!fill && !fill_bare) {
    PyErr_Format(PyExc_ImportError, "%s offers no functions", path);
    return nullptr;
  }
  auto* entries = new Entries;  // live as long as the process, like the library
  HANDLE_TH_ERRORS
  fill ? fill(&add, entries) : fill_bare(&add_bare, entries);
  END_HANDLE_TH_ERRORS
  PyObject* out = PyModule_New(name);
  for (const Entry& entry : *entries) {
    auto* method = new PyMethodDef{entry.name.c_str(), &call, METH_VARARGS, entry.doc.c_str()};
    PyObject* capsule = PyCapsule_New(const_cast<Entry*>(&entry), "crucible.entry", nullptr);
    PyObject* function = PyCFunction_New(method, capsule);
    Py_DECREF(capsule);
    PyModule_AddObject(out, entry.name.c_str(), function);
  }
  PyModule_AddStringConstant(out, "__file__", path);
  return out;
}

PyMethodDef methods[] = {{"load", &load, METH_VARARGS, "load(path, name) -> module with the library's functions"},
                         {nullptr, nullptr, 0, nullptr}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "crucible_binding", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit_crucible_binding() { return PyModule_Create(&definition); }
