#include "libraries/nccl_communicator.h"

#include <cstring>

#include "configuration.h"

// The runtime's, if it has it (cuda_runtime_api.h).
extern "C" int cudaDeviceGetPCIBusId(char* text, int capacity, int device) __attribute__((weak));

namespace simulator::nccl {

namespace {

constexpr int SLICE_MILLISECONDS = 50;  // how often a waiting rank looks for the others

constexpr uint32_t FAILURE_BITS = 8;  // of the word that holds the failure and its rank

uint32_t word_of(Presence presence) { return static_cast<uint32_t>(presence); }

bool everyone(int) { return true; }

}  // namespace

Communicator::Communicator(const Ticket& ticket, int ranks, int rank, int device)
    : ticket_(ticket), ranks_(ranks), rank_(rank), device_(device) {}

Status Communicator::record(Status status) {
  int none = SUCCESS;
  if (status != SUCCESS) error_.compare_exchange_strong(none, status);
  return status;
}

std::string Communicator::message() const {
  const std::lock_guard<std::mutex> lock(message_lock_);
  return message_;
}

Status Communicator::join() {
  const char* error = nullptr;
  if (!segment_.open(ticket_, ranks_, error)) {
    const std::lock_guard<std::mutex> lock(message_lock_);
    message_ = error;
    return record(SYSTEM_ERROR);
  }
  Header& header = segment_.header();
  Member& self = segment_.member(rank_);
  uint32_t absent = word_of(Presence::absent);
  if (!self.presence.compare_exchange_strong(absent, word_of(Presence::joining))) return fail(Failure::twice, rank_);
  self.process = Process::current();
  if (cudaDeviceGetPCIBusId != nullptr) cudaDeviceGetPCIBusId(self.gpu, sizeof self.gpu, device_);
  self.presence = word_of(Presence::joined);
  ++header.joined;
  wake_all(header.joined);
  const auto all = static_cast<uint32_t>(ranks_);
  Status status = wait(header.joined, [&] { return header.joined >= all; }, everyone);
  if (status == SUCCESS) status = barrier();
  segment_.close_file();
  if (status != SUCCESS) return status;
  // As NCCL does: a GPU cannot be two ranks.
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank != rank_ && self.gpu[0] != '\0' && std::strncmp(self.gpu, segment_.member(rank).gpu, sizeof self.gpu) == 0)
      return fail(Failure::duplicate, rank);
  }
  return SUCCESS;
}

void Communicator::leave() {
  if (has_left_.exchange(true) || !segment_.is_open()) return;
  segment_.member(rank_).presence = word_of(Presence::left);
  segment_.close_file();
}

void Communicator::abort() {
  is_aborted_ = true;
  leave();
}

std::string Communicator::calls() const {
  const auto text_of = [this](int rank) {
    const uint64_t(&signature)[3] = segment_.member(rank).signature;
    return "rank " + std::to_string(rank) + " called " + name_of(static_cast<Kind>(signature[0])) + " with " +
           std::to_string(signature[1]) + " bytes and root " + std::to_string(signature[2]);
  };
  int other = 0;
  while (other < ranks_ - 1 &&
         std::memcmp(segment_.member(0).signature, segment_.member(other).signature, sizeof(Member::signature)) == 0)
    ++other;
  return text_of(0) + ", " + text_of(other);
}

Status Communicator::look_for(int rank) {
  const Member& member = segment_.member(rank);
  if (member.presence == word_of(Presence::left)) return fail(Failure::left, rank);
  if (member.presence == word_of(Presence::joined) && !member.process.exists()) return fail(Failure::ended, rank);
  return SUCCESS;
}

Status Communicator::fail(Failure failure, int rank) {
  uint32_t none = 0;
  segment_.header().failure.compare_exchange_strong(none,
      static_cast<uint32_t>(rank) << FAILURE_BITS | static_cast<uint32_t>(failure));
  return explain();
}

Status Communicator::explain() {
  const uint32_t word = segment_.header().failure;
  const int rank = static_cast<int>(word >> FAILURE_BITS);
  const std::string name = "rank " + std::to_string(rank);
  std::string text;
  Status status = REMOTE_ERROR;
  switch (static_cast<Failure>(word & ((1u << FAILURE_BITS) - 1))) {
    case Failure::none:
      text = "the communicator was aborted";
      status = SYSTEM_ERROR;
      break;
    case Failure::ended:
      text = name + " (process " + std::to_string(segment_.member(rank).process.number) + ") has ended";
      break;
    case Failure::left:
      text = name + " has left the communicator";
      break;
    case Failure::late:
      text = name + " waited for the other ranks longer than SHOESTRING_SIMULATOR_NCCL_WAIT seconds";
      status = SYSTEM_ERROR;
      break;
    case Failure::mismatch:
      text = calls();
      status = INVALID_USAGE;
      break;
    case Failure::message:
      text = "a message from or to " + name + " is not of the size that is expected";
      status = INVALID_USAGE;
      break;
    case Failure::twice:
      text = name + " joined the communicator twice";
      status = INVALID_USAGE;
      break;
    case Failure::duplicate:
      text = "Duplicate GPU detected: " + name + " and another are both on " +
             std::string(segment_.member(rank).gpu);
      status = INVALID_USAGE;
      break;
  }
  {
    const std::lock_guard<std::mutex> lock(message_lock_);
    if (message_.empty()) message_ = text;
  }
  return record(status);
}

Status Communicator::wait(std::atomic<uint32_t>& word, const std::function<bool()>& is_done,
                          const std::function<bool(int)>& matters) {
  const double deadline = seconds_now() + configuration().nccl_wait_seconds;
  const Header& header = segment_.header();
  while (true) {
    const uint32_t seen = word;
    // First: what is done stays done, also if a rank has ended since.
    if (is_done()) return SUCCESS;
    if (is_aborted_ || header.failure != 0) return explain();
    sleep_while(word, seen, SLICE_MILLISECONDS);
    if (word != seen) continue;
    for (int rank = 0; rank < ranks_; ++rank) {
      if (rank == rank_ || !matters(rank) || is_done()) continue;
      if (const Status status = look_for(rank); status != SUCCESS) return status;
    }
    if (seconds_now() > deadline) return fail(Failure::late, rank_);
  }
}

Status Communicator::barrier() {
  Header& header = segment_.header();
  const uint32_t phase = header.phase;
  if (header.arrived.fetch_add(1) + 1 == static_cast<uint32_t>(ranks_)) {
    header.arrived = 0;
    ++header.phase;
    wake_all(header.phase);
    return SUCCESS;
  }
  return wait(header.phase, [&] { return header.phase != phase; }, everyone);
}

Status Communicator::agree(Kind kind, size_t bytes, int root) {
  const uint64_t signature[] = {static_cast<uint64_t>(kind), bytes, static_cast<uint64_t>(root)};
  std::memcpy(segment_.member(rank_).signature, signature, sizeof signature);
  if (const Status status = barrier(); status != SUCCESS) return status;
  for (int rank = 0; rank < ranks_; ++rank)
    if (std::memcmp(segment_.member(rank).signature, signature, sizeof signature) != 0) return fail(Failure::mismatch, rank);
  return SUCCESS;
}

Status Communicator::split(int color, int key, Communicator*& created) {
  created = nullptr;
  Member& self = segment_.member(rank_);
  self.color = color;
  self.key = key;
  if (const Status status = barrier(); status != SUCCESS) return status;
  int members = 0;
  int place = 0;
  int founder = -1;  // the first rank of the new communicator
  for (int rank = 0; rank < ranks_; ++rank) {
    const Member& other = segment_.member(rank);
    if (other.color != color) continue;
    ++members;
    if (other.key < key || (other.key == key && rank < rank_)) ++place;
    if (founder < 0 || other.key < segment_.member(founder).key) founder = rank;
  }
  const bool takes_part = color >= 0;
  if (takes_part && founder == rank_ && !create_segment(self.split)) self.split = Ticket{};
  if (const Status status = barrier(); status != SUCCESS || !takes_part) return status;
  created = new Communicator(segment_.member(founder).split, members, place, device_);
  return SUCCESS;
}

}  // namespace simulator::nccl
