// Python's side of crucible_bind.h: load a library, offer its entries as functions of a module.
#include <Python.h>
#include <dlfcn.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <array>

#include "crucible_bind.h"
#include "crucible_bind_bare.h"

using crucible::bind::Entry;
using crucible::bind::IValue;
using crucible::bind::Module;

namespace {

IValue from_python(PyObject* object) {
  if (object == Py_None) return IValue();
  if (THPVariable_Check(object)) return THPVariable_Unpack(object);
  if (PyBool_Check(object)) return object == Py_True;
  if (PyLong_Check(object)) return static_cast<int64_t>(PyLong_AsLongLong(object));
  if (PyFloat_Check(object)) return PyFloat_AsDouble(object);
  if (PyUnicode_Check(object)) return std::string(PyUnicode_AsUTF8(object));
  if (THPDevice_Check(object)) return reinterpret_cast<THPDevice*>(object)->device;
  if (THPDtype_Check(object)) return static_cast<int64_t>(reinterpret_cast<THPDtype*>(object)->scalar_type);
  if (PyTuple_Check(object) || PyList_Check(object)) {
    std::vector<IValue> items;
    for (Py_ssize_t i = 0, n = PySequence_Size(object); i < n; ++i) {
      PyObject* item = PySequence_GetItem(object, i);
      items.push_back(from_python(item));
      Py_DECREF(item);
    }
    return c10::ivalue::Tuple::create(std::move(items));
  }
  if (PyIndex_Check(object)) {  // numpy integers and the like
    PyObject* number = PyNumber_Index(object);
    const int64_t value = PyLong_AsLongLong(number);
    Py_DECREF(number);
    return value;
  }
  throw crucible::bind::WrongType(std::string("an argument of type ") + Py_TYPE(object)->tp_name + " cannot be passed to C++");
}

PyObject* to_python(const IValue& value) {
  if (value.isNone()) Py_RETURN_NONE;
  if (value.isTensor()) return THPVariable_Wrap(value.toTensor());
  if (value.isBool()) return PyBool_FromLong(value.toBool());
  if (value.isInt()) return PyLong_FromLongLong(value.toInt());
  if (value.isDouble()) return PyFloat_FromDouble(value.toDouble());
  if (value.isString()) return PyUnicode_FromString(value.toStringRef().c_str());
  if (value.isTuple()) {
    const auto& items = value.toTupleRef().elements();
    PyObject* out = PyTuple_New(items.size());
    for (size_t i = 0; i < items.size(); ++i) PyTuple_SET_ITEM(out, i, to_python(items[i]));
    return out;
  }
  const auto items = value.toListRef();
  PyObject* out = PyList_New(items.size());
  for (size_t i = 0; i < items.size(); ++i) PyList_SET_ITEM(out, i, to_python(items[i]));
  return out;
}

PyObject* call(PyObject* self, PyObject* args) {
  HANDLE_TH_ERRORS
  const auto* entry = static_cast<const Entry*>(PyCapsule_GetPointer(self, "crucible.entry"));
  const size_t given = PyTuple_GET_SIZE(args);
  if (given != entry->arity) {
    PyErr_Format(PyExc_TypeError, "%s takes %zu arguments (%zu given)", entry->signature.c_str(), entry->arity, given);
    return nullptr;
  }
  try {
    std::vector<IValue> values;
    for (size_t i = 0; i < given; ++i) values.push_back(from_python(PyTuple_GET_ITEM(args, i)));
    if (PyErr_Occurred()) return nullptr;
    return to_python(entry->call(values));
  } catch (const crucible::bind::WrongType& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
    return nullptr;
  }
  END_HANDLE_TH_ERRORS
}

void add_bare(void* module, const char* name, const char* doc, size_t arity, crucible::bind::BareFunction function,
              crucible::bind::BareCall call) {
  Entry entry = crucible::bind::whole_entry(name, arity, [=](const int64_t* values) { call(function, values); });
  entry.doc = doc;
  static_cast<Module*>(module)->entries.push_back(std::move(entry));
}

PyObject* load(PyObject*, PyObject* args) {
  const char *path, *name;
  if (!PyArg_ParseTuple(args, "ss", &path, &name)) return nullptr;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    PyErr_SetString(PyExc_ImportError, dlerror());
    return nullptr;
  }
  auto* fill = reinterpret_cast<void (*)(Module*)>(dlsym(library, "crucible_module"));
  auto* fill_bare = reinterpret_cast<void (*)(crucible::bind::BareAdd, void*)>(dlsym(library, "crucible_bare_module"));
  if (!fill && !fill_bare) {
    PyErr_Format(PyExc_ImportError, "%s offers no functions", path);
    return nullptr;
  }
  auto* module = new Module;  // lives as long as the process, like the library
  HANDLE_TH_ERRORS
  fill ? fill(module) : fill_bare(&add_bare, module);
  END_HANDLE_TH_ERRORS
  PyObject* out = PyModule_New(name);
  for (const Entry& entry : module->entries) {
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
