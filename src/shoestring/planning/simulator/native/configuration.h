// What a simulated process is told by its environment. environment.py writes these variables; every native library reads them
// through this header, so that a variable has one spelling and one default.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace simulator {

enum class Values { none, automatic, all };

struct Configuration {
  std::string folder;  // empty: nothing is written
  int gpus = 1;
  std::string name = "Tesla T4";
  int capability_major = 7;
  int capability_minor = 5;
  int multiprocessors = 40;
  size_t memory = 15636627456;  // bytes of each GPU
  size_t context = 0;           // bytes that a context takes on a GPU
  Values values = Values::none;
  size_t value_bytes = 65536;
  size_t convolution_workspace = 0;
  double nccl_wait_seconds = 300;
  bool record_operators = false;
  uint64_t fail_at = 0;  // the number of the segment's allocation that fails, from 1; 0: none

  int capability() const { return capability_major * 10 + capability_minor; }
};

namespace detail {

inline const char* variable(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0' ? text : nullptr;
}

inline uint64_t number(const char* name, uint64_t otherwise) {
  const char* text = variable(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

inline Configuration read_configuration() {
  Configuration read;
  if (const char* folder = variable("SHOESTRING_SIMULATOR_FOLDER")) read.folder = folder;
  read.gpus = static_cast<int>(number("SHOESTRING_SIMULATOR_GPUS", 1));
  if (const char* name = variable("SHOESTRING_SIMULATOR_NAME")) read.name = name;
  if (const char* capability = variable("SHOESTRING_SIMULATOR_CAPABILITY")) {
    char* end = nullptr;
    read.capability_major = static_cast<int>(std::strtol(capability, &end, 10));
    read.capability_minor = *end == '.' ? static_cast<int>(std::strtol(end + 1, nullptr, 10)) : 0;
  }
  read.multiprocessors = static_cast<int>(number("SHOESTRING_SIMULATOR_MULTIPROCESSORS", 40));
  read.memory = number("SHOESTRING_SIMULATOR_MEMORY", read.memory);
  read.context = number("SHOESTRING_SIMULATOR_CONTEXT", 0);
  if (const char* values = variable("SHOESTRING_SIMULATOR_VALUES")) {
    const std::string word = values;
    read.values = word == "all" ? Values::all : word == "auto" ? Values::automatic : Values::none;
  }
  read.value_bytes = number("SHOESTRING_SIMULATOR_VALUE_BYTES", read.value_bytes);
  read.convolution_workspace = number("SHOESTRING_SIMULATOR_CONVOLUTION_WORKSPACE", 0);
  if (const char* seconds = variable("SHOESTRING_SIMULATOR_NCCL_WAIT")) read.nccl_wait_seconds = std::strtod(seconds, nullptr);
  read.record_operators = number("SHOESTRING_SIMULATOR_OPERATORS", 0) != 0;
  read.fail_at = number("SHOESTRING_SIMULATOR_FAIL_AT", 0);
  return read;
}

}  // namespace detail

// Read once in each library. Never destroyed: CUDA's functions are also called while the process exits.
inline const Configuration& configuration() {
  static const Configuration* const read = new Configuration(detail::read_configuration());
  return *read;
}

}  // namespace simulator
