#include "notes.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include "configuration.h"
#include "interface.h"

namespace simulator {
namespace {

// Counts of the functions that were called and are not simulated.
struct Missing {
  std::mutex mutex;
  std::map<std::string, long> calls;
};

// Never destroyed, because functions are also called while the process exits.
Missing& missing() {
  static auto* const instance = new Missing;
  return *instance;
}

std::string missing_note(const std::string& function, long calls) {
  return "{\"kind\": \"missing\", \"function\": " + json_string(function) + ", \"calls\": " + std::to_string(calls) + "}";
}

// The first call of a function was noted when it happened; what exit adds is how many there were. A reader takes the last line.
void note_counts() {
  std::lock_guard<std::mutex> guard(missing().mutex);
  for (const auto& [function, calls] : missing().calls)
    if (calls > 1) append_note(missing_note(function, calls));
}

}  // namespace

void append_note(const std::string& json) {
  const char* folder = simulator_folder();
  if (folder == nullptr) return;
  const std::string path = std::string(folder) + "/notes." + std::to_string(getpid());
  const int file = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) return;
  const std::string line = json + "\n";
  [[maybe_unused]] const ssize_t written = write(file, line.data(), line.size());
  close(file);
}

std::string json_string(const std::string& text) {
  std::string quoted = "\"";
  for (const char character : text) {
    if (character == '"' || character == '\\') {
      quoted += '\\';
      quoted += character;
    } else if (static_cast<unsigned char>(character) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", character);
      quoted += escaped;
    } else {
      quoted += character;
    }
  }
  return quoted + '"';
}

}  // namespace simulator

EXPORT const char* simulator_folder() {
  const std::string& folder = simulator::configuration().folder;
  return folder.empty() ? nullptr : folder.c_str();
}

EXPORT void simulator_missing(const char* function) {
  auto& missing = simulator::missing();
  {
    std::lock_guard<std::mutex> guard(missing.mutex);
    if (missing.calls.empty()) std::atexit(simulator::note_counts);
    if (++missing.calls[function] > 1) return;
  }
  simulator::append_note(simulator::missing_note(function, 1));
}
