#include "libraries/nccl_group.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "interface.h"
#include "libraries/nccl_collectives.h"

namespace simulator::nccl {

namespace {

struct Job {
  Communicator* communicator;
  bool is_join;
  Operation operation;
  void* stream;
};

thread_local int open_groups = 0;
thread_local std::vector<Job> waiting;

std::mutex message_lock;
std::string message;  // of this process: a program may ask in another thread than the one that failed

bool is_message(const Operation& operation) { return operation.kind == Kind::send || operation.kind == Kind::receive; }

// A send or receive on its way, in pieces that fit the box between the two ranks.
class Message {
 public:
  Message(Communicator& communicator, const Operation& operation)
      : communicator_(communicator), operation_(operation), bytes_(operation.count * element_bytes(operation.type)) {
    copies_ = is_moved(operation.type, bytes_);
  }

  bool is_done() const { return is_done_; }
  int peer() const { return operation_.peer; }
  // Messages of one direction to or from one rank go one after the other.
  bool goes_before(const Message& other) const {
    return operation_.kind == other.operation_.kind && operation_.peer == other.operation_.peer;
  }

  // Moves a piece if that is possible without waiting; says whether it was.
  bool advance(Status& status) { return operation_.kind == Kind::send ? send() : receive(status); }

 private:
  bool send() {
    Box& box = communicator_.segment().box(communicator_.rank(), operation_.peer);
    if (box.is_full != 0) return false;
    const size_t piece = copies_ ? std::min(bytes_ - moved_, BOX_BYTES) : 0;
    if (piece > 0) std::memcpy(box.data, static_cast<const char*>(operation_.input) + moved_, piece);
    box.bytes = static_cast<uint32_t>(piece);
    box.message_bytes = bytes_;
    finish_piece(box, 1, piece);
    return true;
  }

  bool receive(Status& status) {
    Box& box = communicator_.segment().box(operation_.peer, communicator_.rank());
    if (box.is_full == 0) return false;
    if (box.message_bytes != bytes_) {
      status = communicator_.fail(Failure::message, operation_.peer);
      return true;
    }
    const size_t piece = box.bytes;
    if (piece > 0) std::memcpy(static_cast<char*>(operation_.output) + moved_, box.data, piece);
    finish_piece(box, 0, piece);
    return true;
  }

  void finish_piece(Box& box, uint32_t is_full, size_t piece) {
    moved_ += piece;
    is_done_ = !copies_ || moved_ == bytes_;
    box.is_full = is_full;
    auto& bell = communicator_.segment().member(operation_.peer).bell;
    ++bell;
    wake_all(bell);
  }

  Communicator& communicator_;
  Operation operation_;
  size_t bytes_;
  size_t moved_ = 0;
  bool copies_ = false;
  bool is_done_ = false;
};

bool advance_any(std::vector<Message>& messages, Status& status) {
  bool has_moved = false;
  for (size_t index = 0; index < messages.size() && status == SUCCESS; ++index) {
    if (messages[index].is_done()) continue;
    const bool is_first = std::none_of(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(index),
        [&](const Message& other) {
      return !other.is_done() && other.goes_before(messages[index]);
    });
    if (is_first) has_moved = messages[index].advance(status) || has_moved;
  }
  return has_moved;
}

// Sends and receives of a group progress together, in whatever order the other ranks are ready.
Status run_messages(Communicator& communicator, std::vector<Message> messages) {
  auto& bell = communicator.segment().member(communicator.rank()).bell;
  const auto are_done = [&] { return std::all_of(messages.begin(), messages.end(),
      [](const Message& each) { return each.is_done(); }); };
  // Others may have finished and left.
  const auto is_awaited = [&](int rank) {
    return std::any_of(messages.begin(), messages.end(),
        [&](const Message& each) { return !each.is_done() && each.peer() == rank; });
  };
  Status status = SUCCESS;
  while (status == SUCCESS && !are_done()) {
    const uint32_t heard = bell;
    if (advance_any(messages, status)) continue;
    status = communicator.wait(bell, [&] { return bell != heard; }, is_awaited);
  }
  return status;
}

Status run(Communicator& communicator, const std::vector<Job>& jobs) {
  const std::lock_guard<std::mutex> lock(communicator.running());
  if (communicator.error() != SUCCESS) return communicator.error();
  std::vector<Message> messages;
  for (const Job& job : jobs) {
    Status status = SUCCESS;
    if (job.is_join) {
      status = communicator.join();
    } else if (is_message(job.operation)) {
      messages.emplace_back(communicator, job.operation);
    } else {
      status = run_collective(communicator, job.operation);
    }
    if (status != SUCCESS) return status;
  }
  return run_messages(communicator, std::move(messages));
}

// Runs one communicator's jobs, or leaves them to the graph that their stream captures.
Status run_or_capture(Communicator* communicator, std::vector<Job> jobs) {
  void* stream = jobs.front().stream;
  if (jobs.front().is_join || !simulator_is_capturing(stream)) return run(*communicator, jobs);
  // A replay cannot report an error itself; the communicator does.
  simulator_capture(stream, new std::function<void()>([communicator, jobs = std::move(jobs)] { run(*communicator, jobs); }));
  return SUCCESS;
}

Status run_all(std::vector<Job> jobs) {
  std::vector<std::pair<Communicator*, std::vector<Job>>> parts;  // by communicator, in the order of the first job of each
  for (Job& job : jobs) {
    auto part = std::find_if(parts.begin(), parts.end(), [&](const auto& each) { return each.first == job.communicator; });
    if (part == parts.end()) part = parts.insert(parts.end(), {job.communicator, {}});
    part->second.push_back(std::move(job));
  }
  std::vector<Status> results(parts.size(), SUCCESS);
  // Several communicators in one thread may be ranks that wait for each other. The first runs here; one that is captured has to,
  // since
  // the capture belongs to the thread.
  std::vector<std::thread> threads;
  for (size_t index = 1; index < parts.size(); ++index) {
    if (!parts[index].second.front().is_join && simulator_is_capturing(parts[index].second.front().stream)) {
      results[index] = run_or_capture(parts[index].first, std::move(parts[index].second));
    } else {
      threads.emplace_back([&, index] { results[index] = run(*parts[index].first, parts[index].second); });
    }
  }
  if (!parts.empty()) results[0] = run_or_capture(parts[0].first, std::move(parts[0].second));
  for (std::thread& thread : threads) thread.join();
  for (size_t index = 0; index < parts.size(); ++index) {
    if (results[index] == SUCCESS) continue;
    set_last_message(parts[index].first->message());
    return results[index];
  }
  return SUCCESS;
}

Status submit(Job job) {
  if (open_groups > 0) {
    waiting.push_back(std::move(job));
    return SUCCESS;
  }
  std::vector<Job> jobs;
  jobs.push_back(std::move(job));
  return run_all(std::move(jobs));
}

}  // namespace

void start_group() { ++open_groups; }

Status end_group() {
  if (open_groups == 0) return INVALID_USAGE;
  if (--open_groups > 0) return SUCCESS;
  return run_all(std::exchange(waiting, {}));
}

Status submit(Communicator& communicator, const Operation& operation, void* stream) {
  return submit(Job{&communicator, false, operation, stream});
}

Status submit_join(Communicator& communicator) { return submit(Job{&communicator, true, {}, nullptr}); }

const char* last_message() {
  thread_local std::string copy;  // stays valid until this thread asks again
  const std::lock_guard<std::mutex> lock(message_lock);
  copy = message;
  return copy.c_str();
}

void set_last_message(const std::string& text) {
  const std::lock_guard<std::mutex> lock(message_lock);
  message = text;
}

}  // namespace simulator::nccl
