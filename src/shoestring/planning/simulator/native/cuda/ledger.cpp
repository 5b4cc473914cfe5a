#include "ledger.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "arena.h"
#include "configuration.h"
#include "devices.h"
#include "interface.h"

namespace simulator {
namespace {

constexpr uint32_t slot_count = 256;
constexpr size_t ledger_bytes = sizeof(LedgerHeader) + slot_count * sizeof(LedgerSlot);
constexpr char magic[] = "SHOELEDG";

struct ProcessState {
  bool exists = false;
  uint64_t started = 0;  // 0: not known
};

// Whether a process exists and when it started, which tells it from a later one with the same number. One that has ended and
// that its parent has not waited for does not count: a GPU would have its memory back.
ProcessState process_state(pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {kill(pid, 0) == 0 || errno == EPERM, 0};
  char text[1024];
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  if (length <= 0) return {};
  text[length] = '\0';
  const char* field = std::strrchr(text, ')');  // the name before it may contain anything
  if (field == nullptr || field[1] == '\0') return {};
  const char state = field[2];
  if (state == 'Z' || state == 'X') return {};
  constexpr int first_field = 3;  // the state, after the name
  constexpr int start_field = 22;
  ++field;
  for (int skipped = first_field; skipped < start_field && field != nullptr; ++skipped) field = std::strchr(field + 1, ' ');
  return {true, field != nullptr ? std::strtoull(field + 1, nullptr, 10) : 0};
}

bool lives(const LedgerSlot& slot) {
  if (slot.pid == 0) return false;
  const ProcessState state = process_state(slot.pid);
  return state.exists && (state.started == 0 || slot.started == 0 || state.started == slot.started);
}

void fill_header(LedgerHeader* header) {
  header->version = 2;
  header->slots = slot_count;
  header->gpus = static_cast<uint32_t>(configuration().gpus);
  header->slot_bytes = sizeof(LedgerSlot);
  header->memory = configuration().memory;
  std::memcpy(header->magic, magic, sizeof header->magic);
}

}  // namespace

// A lock on the file, which the kernel releases however its holder ends, and on this process's threads.
class Ledger::Lock {
 public:
  explicit Lock(Ledger& ledger) : guard_(ledger.mutex_), file_(ledger.file_) {
    if (ledger.header_ == nullptr) {
      ledger.open_unlocked();
      file_ = ledger.file_;
    }
    if (file_ >= 0)
      while (flock(file_, LOCK_EX) != 0 && errno == EINTR) {
      }
  }
  ~Lock() {
    if (file_ >= 0) flock(file_, LOCK_UN);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  std::lock_guard<std::mutex> guard_;
  int file_;
};

Ledger& Ledger::get() {
  static auto* const instance = new Ledger;
  return *instance;
}

void Ledger::open_unlocked() {
  if (const char* folder = simulator_folder()) open_file(folder);
  if (header_ == nullptr) open_private();
  slots_ = reinterpret_cast<LedgerSlot*>(header_ + 1);
}

void Ledger::open_file(const char* folder) {
  const std::string path = std::string(folder) + "/ledger";
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) return;
  flock(file, LOCK_EX);
  struct stat status {};
  fstat(file, &status);
  const bool is_new = status.st_size < static_cast<off_t>(ledger_bytes);
  // On a full disk a page without a place there would end the process when it is first written.
  if (is_new && posix_fallocate(file, 0, ledger_bytes) != 0) {
    close(file);
    return;
  }
  void* mapped = mmap(nullptr, ledger_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) {
    close(file);
    return;
  }
  header_ = static_cast<LedgerHeader*>(mapped);
  if (is_new) fill_header(header_);
  flock(file, LOCK_UN);
  file_ = file;
}

void Ledger::open_private() {
  void* mapped = mmap(nullptr, ledger_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) std::abort();
  header_ = static_cast<LedgerHeader*>(mapped);
  fill_header(header_);
}

// A slot for this process: its own of before an exec, whose memory is gone, otherwise one that was never used, otherwise one of a
// process that has ended.
LedgerSlot* Ledger::own_slot() {
  if (own_ != nullptr) return own_;
  LedgerSlot* const end = slots_ + slot_count;
  const pid_t pid = getpid();
  LedgerSlot* slot = std::find_if(slots_, end, [pid](const LedgerSlot& candidate) { return candidate.pid == pid; });
  if (slot == end) slot = std::find_if(slots_, end, [](const LedgerSlot& candidate) { return candidate.pid == 0; });
  if (slot == end) slot = std::find_if(slots_, end, [](const LedgerSlot& candidate) { return !lives(candidate); });
  if (slot == end) return nullptr;
  *slot = LedgerSlot{};
  slot->pid = pid;
  slot->started = process_state(slot->pid).started;
  slot->arena_begin = Arena::get().begin();
  slot->arena_end = Arena::get().end();
  for (int device = 0; device < most_gpus; ++device)
    slot->gpus[device] = static_cast<int8_t>(is_device_number(device) ? gpu_of(device) : -1);
  return own_ = slot;
}

uint64_t Ledger::sum(int gpu, bool only_living) {
  uint64_t bytes = 0;
  for (uint32_t index = 0; index < slot_count; ++index) {
    const LedgerSlot& slot = slots_[index];
    if (slot.pid == 0) break;  // slots are filled in order
    if (slot.used[gpu] == 0) continue;
    if (!only_living || &slot == own_ || lives(slot)) bytes += slot.used[gpu];
  }
  return bytes;
}

bool Ledger::take(int gpu, size_t bytes) {
  Lock lock(*this);
  LedgerSlot* slot = own_slot();
  if (slot == nullptr) return false;
  // Whether processes live is only asked if it matters: for each one a file of /proc has to be read.
  uint64_t used = sum(gpu, false);
  if (used + bytes > header_->memory) used = sum(gpu, true);
  if (used + bytes > header_->memory) return false;
  slot->used[gpu] += bytes;
  slot->peak[gpu] = std::max(slot->peak[gpu], slot->used[gpu]);
  if (used + bytes > header_->peak[gpu]) header_->peak[gpu] = std::max(header_->peak[gpu], sum(gpu, true));
  return true;
}

void Ledger::give(int gpu, size_t bytes) {
  Lock lock(*this);
  if (own_ != nullptr) own_->used[gpu] -= std::min<uint64_t>(bytes, own_->used[gpu]);
}

size_t Ledger::used(int gpu) {
  Lock lock(*this);
  return sum(gpu, true);
}

std::vector<ProcessUse> Ledger::processes(int gpu) {
  Lock lock(*this);
  std::vector<ProcessUse> living;
  for (uint32_t index = 0; index < slot_count && slots_[index].pid != 0; ++index) {
    const LedgerSlot& slot = slots_[index];
    if (slot.used[gpu] > 0 && lives(slot)) living.push_back({slot.pid, slot.used[gpu]});
  }
  return living;
}

void Ledger::forget_after_fork() {
  // The child shares its parent's open file and so its lock; it closes only its own number for it.
  if (file_ >= 0) close(file_);
  if (header_ != nullptr) munmap(header_, ledger_bytes);
  // Another thread of the parent may have held the mutex; its owner does not exist here.
  new (this) Ledger;
}

}  // namespace simulator
