#include "libraries/nccl_processes.h"

#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>

namespace simulator::nccl {

namespace {

struct Status {
  bool is_known = false;
  char state = ' ';
  uint64_t start = 0;
};

// Reads /proc/NUMBER/stat (proc(5)): after the command's name in parentheses come the state and, as field 22, the time of the
// start.
Status status_of(int32_t number) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/stat", number);
  Status status;
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return status;
  char text[1024];
  const size_t length = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  text[length] = '\0';
  const char* field = std::strrchr(text, ')');
  if (field == nullptr) return status;
  unsigned long long start = 0;
  const char format[] = " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu";
  if (std::sscanf(field + 1, format, &status.state, &start) != 2) return status;
  status.start = start;
  status.is_known = true;
  return status;
}

}  // namespace

Process Process::current() {
  const auto number = static_cast<int32_t>(getpid());
  return {number, status_of(number).start};
}

bool Process::exists() const {
  const Status status = status_of(number);
  if (status.is_known) return status.state != 'Z' && status.state != 'X' && (start == 0 || status.start == start);
  return kill(number, 0) == 0 || errno == EPERM;
}

void sleep_while(std::atomic<uint32_t>& word, uint32_t seen, int milliseconds) {
  static_assert(sizeof word == sizeof(uint32_t));
  const timespec time{milliseconds / 1000, milliseconds % 1000 * 1000000L};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

double seconds_now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace simulator::nccl
