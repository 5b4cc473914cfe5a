// Begins the observation of the Python program that uses the simulated GPU, if there is one.
//
// The first use of a device may lie inside of static initialization, under locks of CUDA's or PyTorch's, in a thread
// that does not hold the interpreter's lock, or in the middle of `import torch`. So no Python is run here: the
// interpreter is asked to run a few lines in its main thread, as soon as it is between two instructions of Python.
//
// CPython's functions are looked up at run time: they lie in the executable or in libpython, and in a program that is
// not Python, nowhere. Python's documentation, "C API: Initialization, Finalization, and Threads", describes them.

#include <dlfcn.h>

#include "interface.h"

namespace {

using Object = void;  // PyObject

constexpr int kFileInput = 257;  // Py_file_input of CPython's compile.h, 3.9 to 3.14

// In a namespace of its own, so that the script's `__main__` stays as it is. `sys.path` does as well: the package is
// loaded from the files of its folder, and its name begins with an underscore so that no other has it.
const char* const kStart = R"(
def start():
    import importlib.util, os, sys
    name, folder = "_shoestring_inside", os.environ.get("SHOESTRING_SIMULATOR_INSIDE")
    if not folder:
        return
    module = sys.modules.get(name)
    if module is None:
        path = os.path.join(folder, "__init__.py")
        spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[folder])
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    module.start()

try:
    start()
except Exception:
    pass
)";

template <typename Function>
Function find(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

// Runs in the main thread, which holds the interpreter's lock. It returns 0: another value raises an exception.
int start(void*) {
  const auto new_dictionary = find<Object* (*)()>("PyDict_New");
  const auto builtins = find<Object* (*)()>("PyEval_GetBuiltins");
  const auto set_item = find<int (*)(Object*, const char*, Object*)>("PyDict_SetItemString");
  const auto run = find<Object* (*)(const char*, int, Object*, Object*, void*)>("PyRun_StringFlags");
  const auto clear_error = find<void (*)()>("PyErr_Clear");
  const auto release = find<void (*)(Object*)>("Py_DecRef");
  if (!new_dictionary || !builtins || !set_item || !run || !clear_error || !release) return 0;

  Object* variables = new_dictionary();
  if (variables == nullptr) {
    clear_error();
    return 0;
  }
  Object* result = nullptr;
  if (set_item(variables, "__builtins__", builtins()) == 0)
    result = run(kStart, kFileInput, variables, variables, nullptr);
  if (result == nullptr) clear_error();
  release(result);  // accepts a null pointer
  release(variables);
  return 0;
}

}  // namespace

EXPORT void simulator_observe() {
  const auto is_initialized = find<int (*)()>("Py_IsInitialized");
  const auto call_later = find<int (*)(int (*)(void*), void*)>("Py_AddPendingCall");
  if (is_initialized == nullptr || call_later == nullptr || !is_initialized()) return;
  call_later(start, nullptr);
}
