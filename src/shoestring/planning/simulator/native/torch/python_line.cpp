// CPython's functions are looked up in the process: this library is linked with none of its versions.
#include "torch/python_line.h"

#include <dlfcn.h>

#include <cstdlib>

namespace simulator {
namespace {

struct Python {
  template <typename Function>
  static void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  }

  Python() {
    find(is_initialized, "Py_IsInitialized");
    find(is_finalizing, "Py_IsFinalizing");  // since 3.13
    if (is_finalizing == nullptr) find(is_finalizing, "_Py_IsFinalizing");
    find(ensure, "PyGILState_Ensure");
    find(release, "PyGILState_Release");
    find(this_thread, "PyGILState_GetThisThreadState");
    find(frame, "PyEval_GetFrame");
    find(back, "PyFrame_GetBack");
    find(code, "PyFrame_GetCode");
    find(line, "PyFrame_GetLineNumber");
    find(attribute, "PyObject_GetAttrString");
    find(text, "PyUnicode_AsUTF8");
    find(decrement, "Py_DecRef");
    find(increment, "Py_IncRef");
    find(clear, "PyErr_Clear");
  }

  bool complete() const {
    return is_initialized && is_finalizing && ensure && release && this_thread && frame && back && code && line && attribute &&
           text && decrement && increment && clear;
  }

  int (*is_initialized)();
  int (*is_finalizing)();
  int (*ensure)();
  void (*release)(int);
  void* (*this_thread)();
  void* (*frame)();
  void* (*back)(void*);
  void* (*code)(void*);
  int (*line)(void*);
  void* (*attribute)(void*, const char*);
  const char* (*text)(void*);
  void (*decrement)(void*);
  void (*increment)(void*);
  void (*clear)();
};

std::string file_of(const Python& python, void* frame) {
  std::string name;
  void* const code = python.code(frame);
  if (void* const file = python.attribute(code, "co_filename")) {
    if (const char* text = python.text(file)) name = text;
    python.decrement(file);
  }
  python.clear();
  python.decrement(code);
  return name;
}

bool is_in_folder(const std::string& file, const char* folder) {
  return folder != nullptr && *folder != '\0' && file.rfind(folder, 0) == 0;
}

// Frames that are passed over: those of PyTorch, and of the functions that observe the program in place of PyTorch's.
bool is_of_torch(const std::string& file) {
  return file.find("site-packages/torch/") != std::string::npos || file.find("<frozen") == 0 ||
         is_in_folder(file, std::getenv("SHOESTRING_SIMULATOR_INSIDE"));
}

}  // namespace

std::optional<PythonLine> python_line() {
  static const Python python;
  // A thread of PyTorch's own has no state and would be given one.
  if (!python.complete() || !python.is_initialized() || python.is_finalizing() || python.this_thread() == nullptr) return std::nullopt;
  const int held = python.ensure();
  std::optional<PythonLine> found;
  void* frame = python.frame();
  if (frame != nullptr) python.increment(frame);
  for (int depth = 0; frame != nullptr && depth < 50; ++depth) {
    const std::string file = file_of(python, frame);
    const bool of_torch = is_of_torch(file);
    if (!found || !of_torch) found = PythonLine{file, python.line(frame)};
    void* const outer = of_torch ? python.back(frame) : nullptr;
    python.decrement(frame);
    frame = outer;
  }
  if (frame != nullptr) python.decrement(frame);
  python.release(held);
  return found;
}

}  // namespace simulator
