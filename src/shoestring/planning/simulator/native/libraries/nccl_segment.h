// The memory that the ranks of a communicator share.
//
// It is an anonymous file (memfd_create) of the process that made the communicator's identifier; the others open it through that
// process's folder in /proc. So it has no name, and nothing stays when processes are killed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "libraries/nccl_processes.h"

namespace simulator::nccl {

constexpr int MAXIMUM_RANKS = 256;
constexpr size_t SLOT_BYTES = size_t{1} << 18;  // what a rank contributes to one step of a collective
constexpr size_t BOX_BYTES = size_t{1} << 16;   // what a rank sends another in one step

// Says where the memory of a communicator is. An identifier of NCCL, 128 bytes, begins with one.
struct Ticket {
  uint64_t kind = 0;    // TICKET
  uint64_t number = 0;  // the same as in the memory, to recognize it
  Process owner;
  int32_t file = -1;

  static constexpr uint64_t TICKET = 0x31746b63694c434e;
};
static_assert(sizeof(Ticket) <= 128);

enum class Failure : uint32_t { none, ended, left, late, mismatch, message, twice, duplicate };

enum class Presence : uint32_t { absent, joining, joined, left };

// What a rank says of itself. The memory begins as zeros.
struct Member {
  std::atomic<uint32_t> presence{0};  // Presence
  std::atomic<uint32_t> bell{0};      // changes when a box from or to this rank does
  Process process;
  char gpu[24] = {};  // its bus identifier
  int32_t color = 0;  // of the split under way
  int32_t key = 0;
  Ticket split;           // of the group that this rank founds
  uint64_t signature[3];  // of the collective under way
};

struct Header {
  std::atomic<uint64_t> number{0};
  std::atomic<uint32_t> joined{0};
  std::atomic<uint32_t> arrived{0};
  std::atomic<uint32_t> phase{0};
  std::atomic<uint32_t> failure{0};  // the first: a Failure, and above its eight bits the rank that it names
  Member members[MAXIMUM_RANKS];
};

// A message, or a part of one, on its way.
struct Box {
  std::atomic<uint32_t> is_full{0};
  uint32_t bytes = 0;
  uint64_t message_bytes = 0;
  char data[BOX_BYTES];
};

// Creates the memory and the ticket to it. The file stays open until `close_file`.
bool create_segment(Ticket& ticket);

class Segment {
 public:
  // Maps the memory for this number of ranks; an error's text is left in `error`.
  bool open(const Ticket& ticket, int ranks, const char*& error);
  void close_file();  // everybody has joined: the owner's file is not needed any more

  bool is_open() const { return memory_ != nullptr; }
  Header& header() const { return *reinterpret_cast<Header*>(memory_); }
  Member& member(int rank) const { return header().members[rank]; }
  char* slot(int rank) const { return memory_ + slots_begin() + static_cast<size_t>(rank) * SLOT_BYTES; }
  Box& box(int from, int to) const;

 private:
  static size_t slots_begin();
  size_t boxes_begin() const { return slots_begin() + static_cast<size_t>(ranks_) * SLOT_BYTES; }
  size_t bytes() const;

  char* memory_ = nullptr;
  int ranks_ = 0;
  int own_file_ = -1;  // if this process is the owner
};

}  // namespace simulator::nccl
