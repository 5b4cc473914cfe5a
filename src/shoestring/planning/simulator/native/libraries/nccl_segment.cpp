#include "libraries/nccl_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>

namespace simulator::nccl {

namespace {

constexpr size_t PAGE = 4096;

size_t whole_pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

// Unlike from one moment to the next and from one process to another.
uint64_t new_number() {
  static std::atomic<uint32_t> made{0};
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  const auto nanoseconds = static_cast<uint64_t>(time.tv_sec) * 1000000000u + static_cast<uint64_t>(time.tv_nsec);
  return nanoseconds * 31 + static_cast<uint64_t>(getpid()) * 1000003 + ++made;
}

}  // namespace

bool create_segment(Ticket& ticket) {
  const int file = static_cast<int>(syscall(SYS_memfd_create, "simulated-nccl", 1u));  // 1: closed in programs that this one starts
  if (file < 0) return false;
  ticket.kind = Ticket::TICKET;
  ticket.number = new_number();
  ticket.owner = Process::current();
  ticket.file = file;
  const std::atomic<uint64_t> number{ticket.number};
  if (pwrite(file, &number, sizeof number, offsetof(Header, number)) == static_cast<ssize_t>(sizeof number)) return true;
  ::close(file);
  return false;
}

size_t Segment::slots_begin() { return whole_pages(sizeof(Header)); }

size_t Segment::bytes() const {
  return whole_pages(boxes_begin() + static_cast<size_t>(ranks_) * static_cast<size_t>(ranks_) * sizeof(Box));
}

Box& Segment::box(int from, int to) const {
  const size_t index = static_cast<size_t>(from) * static_cast<size_t>(ranks_) + static_cast<size_t>(to);
  return *reinterpret_cast<Box*>(memory_ + boxes_begin() + index * sizeof(Box));
}

bool Segment::open(const Ticket& ticket, int ranks, const char*& error) {
  ranks_ = ranks;
  if (ticket.kind != Ticket::TICKET) {
    error = "the identifier was not made by ncclGetUniqueId";
    return false;
  }
  const bool is_owner = ticket.owner.number == getpid();
  int file = ticket.file;
  if (!is_owner) {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", ticket.owner.number, ticket.file);
    file = ::open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) {
      error = "the process that made the identifier has ended, or its memory cannot be opened";
      return false;
    }
  }
  // A number that was given to another file since must not be touched.
  uint64_t number = 0;
  if (pread(file, &number, sizeof number, offsetof(Header,
      number)) != static_cast<ssize_t>(sizeof number) || number != ticket.number) {
    if (!is_owner) ::close(file);
    error = "the communicator of this identifier is complete, or the process that made it has ended";
    return false;
  }
  // Each rank makes the file as large as all need it; the pages are taken when they are written.
  void* memory = ftruncate(file, static_cast<off_t>(bytes())) == 0
                     ? mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                     : MAP_FAILED;
  if (is_owner) {
    own_file_ = file;
  } else {
    ::close(file);
  }
  if (memory == MAP_FAILED) {
    error = "the memory that the ranks share cannot be mapped";
    return false;
  }
  memory_ = static_cast<char*>(memory);
  return true;
}

void Segment::close_file() {
  if (own_file_ >= 0) ::close(own_file_);
  own_file_ = -1;
}

}  // namespace simulator::nccl
