#include "torch/notes.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>

#include "interface.h"
#include "torch/python_line.h"

namespace simulator {
namespace {

constexpr size_t note_limit = 1000;        // different notes of a process
constexpr size_t reason_characters = 200;

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char character : text) {
    if (character == '"' || character == '\\') {
      result += '\\';
      result += character;
    } else {
      result += static_cast<unsigned char>(character) < 0x20 ? ' ' : character;
    }
  }
  return result + "\"";
}

struct Notes {
  std::mutex mutex;
  std::map<std::string, uint64_t> counts;  // by the line without its count
  pid_t process = getpid();
};

// Never destroyed: operators run while the process exits as well.
Notes& notes() {
  static auto* const only = new Notes;
  return *only;
}

// Lines are appended with one write each, as other libraries of the process write to the same file.
void append(const std::string& text) {
  const char* folder = simulator_folder();
  if (folder == nullptr) return;
  const std::string path = std::string(folder) + "/notes." + std::to_string(getpid());
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) return;
  const ssize_t written = write(file, text.data(), text.size());
  static_cast<void>(written);  // there is no one to tell
  close(file);
}

std::string line(const std::string& start, uint64_t count) { return "{" + start + ",\"count\":" + std::to_string(count) + "}\n"; }

void append_counts() {
  Notes& all = notes();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (all.process != getpid()) return;  // a child that was forked: these are its parent's
  std::string text;
  for (const auto& [start, count] : all.counts) {
    if (count > 1) text += line(start, count);
  }
  if (!text.empty()) append(text);
}

void note(const std::string& start) {
  Notes& all = notes();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (all.counts.empty()) std::atexit(append_counts);
  const auto found = all.counts.find(start);
  if (found != all.counts.end()) {
    ++found->second;
  } else if (all.counts.size() < note_limit) {
    all.counts[start] = 1;
    append(line(start, 1));
  }
}

}  // namespace

void note_assumed(const std::string& operator_name, const std::string& reason) {
  const std::string first_line = reason.substr(0, reason.find('\n')).substr(0, reason_characters);
  note("\"kind\":\"assumed\",\"operator\":" + quoted(operator_name) + ",\"reason\":" + quoted(first_line));
}

void note_read(const std::string& operator_name) {
  std::string start = "\"kind\":\"read\",\"operator\":" + quoted(operator_name);
  if (const auto where = python_line()) {
    start += ",\"file\":" + quoted(where->file) + ",\"line\":" + std::to_string(where->line);
  }
  note(start);
}

}  // namespace simulator
