#include "torch_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>

#include "notes.h"

namespace simulator {
namespace {

// The folder of this library, where the build puts the other one.
std::string own_folder() {
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(&load_torch_library), &info);
  const std::string path = info.dli_fname != nullptr ? info.dli_fname : "";
  return path.substr(0, path.rfind('/') + 1);
}

void load() {
  const std::string path = own_folder() + "libshoestring_torch.so";
  if (access(path.c_str(), R_OK) != 0) return;  // built without it
  void* library = dlopen(path.c_str(), RTLD_NOW);
  void* start = library != nullptr ? dlsym(library, "simulator_torch_start") : nullptr;
  if (start == nullptr) {
    const char* reason = dlerror();
    std::fprintf(stderr, "shoestring: %s\n", reason != nullptr ? reason : path.c_str());
    append_note("{\"kind\": \"torch_library\", \"error\": " + json_string(reason != nullptr ? reason : "") + "}");
    return;
  }
  reinterpret_cast<void (*)()>(start)();
}

}  // namespace

void load_torch_library() {
  // Whoever comes while it is being loaded goes on without it: loading it may itself use the device.
  static std::atomic<bool> started{false};
  if (started) return;
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD) == nullptr) return;
  if (started.exchange(true)) return;
  load();
}

}  // namespace simulator
