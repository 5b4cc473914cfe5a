// A rank's part of a communicator: joining, waiting for the others, and noticing that one of them is gone.
//
// Everything is synchronous. A rank that waits sleeps, and looks now and then whether the processes of the others still exist, so
// that
// the end of one is noticed within a fraction of a second; after the configured number of seconds it gives up.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>

#include "libraries/nccl_segment.h"
#include "libraries/nccl_types.h"

namespace simulator::nccl {

class Communicator {
 public:
  Communicator(const Ticket& ticket, int ranks, int rank, int device);

  int ranks() const { return ranks_; }
  int rank() const { return rank_; }
  int device() const { return device_; }
  const Segment& segment() const { return segment_; }

  Status join();
  // Splits this communicator. The new one, which still has to be joined, is nullptr for ranks without a color.
  Status split(int color, int key, Communicator*& created);
  void leave();  // others that still wait for this rank are told
  void abort();  // what this rank waits for in other threads ends with an error

  // Waits until `is_done`, which depends on a word that the rank that makes it true changes and wakes. It ends with an error if a
  // rank
  // that matters is gone.
  Status wait(std::atomic<uint32_t>& word, const std::function<bool()>& is_done, const std::function<bool(int)>& matters);
  Status barrier();
  // A barrier that also checks that all ranks called the same: this kind, with this many bytes, and root.
  Status agree(Kind kind, size_t bytes, int root);
  Status fail(Failure failure, int rank);  // tells all ranks

  // The first error, which ncclCommGetAsyncError tells.
  Status error() const { return static_cast<Status>(error_.load()); }
  Status record(Status status);
  std::string message() const;

  // Held while an operation runs: NCCL does not let two threads use a communicator at once, but programs do.
  std::mutex& running() { return running_; }

 private:
  Status look_for(int rank);  // an error if this rank is gone
  Status explain();           // an error from what the shared memory says
  std::string calls() const;  // what two ranks called that differ

  Ticket ticket_;
  int ranks_;
  int rank_;
  int device_;
  Segment segment_;
  std::mutex running_;
  std::atomic<bool> is_aborted_{false};
  std::atomic<bool> has_left_{false};
  std::atomic<int> error_{SUCCESS};
  mutable std::mutex message_lock_;
  std::string message_;
};

}  // namespace simulator::nccl
