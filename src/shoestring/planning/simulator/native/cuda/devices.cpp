#include "devices.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "configuration.h"
#include "ledger.h"
#include "torch_library.h"

namespace simulator {
namespace {

constexpr int first_pci_bus = 4;

std::atomic<bool> initialized{false};
std::atomic<bool> forked_after_initialization{false};
std::atomic<bool> contexts[most_gpus];
std::mutex context_mutex;
thread_local int current = 0;

int gpu_count() { return std::clamp(configuration().gpus, 0, most_gpus); }

// The GPU that an entry of CUDA_VISIBLE_DEVICES names: a number or the beginning of a UUID; -1 if none.
int named_gpu(const std::string& entry) {
  if (entry.rfind("GPU-", 0) == 0) {
    for (int gpu = 0; gpu < gpu_count(); ++gpu) {
      char uuid[64];
      write_uuid_text(gpu, uuid, sizeof uuid);
      if (std::string(uuid).rfind(entry, 0) == 0) return gpu;
    }
    return -1;
  }
  char* end = nullptr;
  const long number = std::strtol(entry.c_str(), &end, 10);
  return end != entry.c_str() && number >= 0 && number < gpu_count() ? static_cast<int>(number) : -1;
}

// As CUDA reads the variable: up to the first entry that names no GPU; nothing at all if a GPU is named twice.
std::vector<int> read_visible_gpus() {
  std::vector<int> visible;
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) {
    for (int gpu = 0; gpu < gpu_count(); ++gpu) visible.push_back(gpu);
    return visible;
  }
  std::string entry;
  for (const char* character = text;; ++character) {
    if (*character != ',' && *character != '\0') {
      if (!std::isspace(static_cast<unsigned char>(*character))) entry += *character;
      continue;
    }
    const int gpu = named_gpu(entry);
    if (gpu < 0) break;
    if (std::find(visible.begin(), visible.end(), gpu) != visible.end()) return {};
    visible.push_back(gpu);
    entry.clear();
    if (*character == '\0') break;
  }
  return visible;
}

// Read at the first use, not when the library is loaded: scripts set the variable before they use CUDA.
const std::vector<int>& visible_gpus() {
  static const auto* const visible = new std::vector<int>(read_visible_gpus());
  return *visible;
}

void after_fork_in_child() {
  if (initialized) forked_after_initialization = true;
  Ledger::get().forget_after_fork();
}

[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, after_fork_in_child);

}  // namespace

Error initialize() {
  if (forked_after_initialization) return error::not_initialized;
  if (device_count() == 0) return error::no_device;
  initialized = true;
  return error::success;
}

int device_count() { return static_cast<int>(visible_gpus().size()); }
bool is_device_number(int device) { return device >= 0 && device < device_count(); }
int gpu_of(int device) { return visible_gpus()[device]; }
int current_device() { return current; }

Error set_current_device(int device) {
  if (const Error failed = initialize()) return failed;
  if (!is_device_number(device)) return error::invalid_device;
  current = device;
  return error::success;
}

Error enter(int device) {
  if (const Error failed = initialize()) return failed;
  if (!is_device_number(device)) return error::invalid_device;
  if (!contexts[device]) {
    std::lock_guard<std::mutex> guard(context_mutex);
    if (!contexts[device]) {
      if (!Ledger::get().take(gpu_of(device), configuration().context)) return error::out_of_memory;
      contexts[device] = true;
    }
  }
  load_torch_library();
  return error::success;
}

Error enter_current() { return enter(current); }
bool has_context(int device) { return is_device_number(device) && contexts[device]; }

void leave(int device) {
  std::lock_guard<std::mutex> guard(context_mutex);
  if (!has_context(device)) return;
  contexts[device] = false;
  Ledger::get().give(gpu_of(device), configuration().context);
}

void write_uuid(int gpu, unsigned char (&bytes)[16]) {
  std::memcpy(bytes, "shoestring-gpu", 14);
  bytes[14] = 0;
  bytes[15] = static_cast<unsigned char>(gpu);
}

void write_uuid_text(int gpu, char* text, int capacity) {
  unsigned char bytes[16];
  write_uuid(gpu, bytes);
  std::string uuid = "GPU-";
  for (int index = 0; index < 16; ++index) {
    if (index == 4 || index == 6 || index == 8 || index == 10) uuid += '-';
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", bytes[index]);
    uuid += digits;
  }
  std::snprintf(text, capacity, "%s", uuid.c_str());
}

int pci_bus(int gpu) { return first_pci_bus + gpu; }

void write_pci_id(int gpu, char* text, int capacity) { std::snprintf(text, capacity, "0000:%02X:00.0", pci_bus(gpu)); }

int gpu_of_pci_id(const char* text) {
  unsigned domain = 0, bus = 0;
  if (std::sscanf(text, "%x:%x", &domain, &bus) != 2) return -1;
  const int gpu = static_cast<int>(bus) - first_pci_bus;
  return gpu >= 0 && gpu < gpu_count() ? gpu : -1;
}

}  // namespace simulator
