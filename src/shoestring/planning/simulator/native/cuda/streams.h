// Streams, events, and the capture of streams into graphs. All work is done at once by the thread that gives it, unless it is
// captured.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "errors.h"
#include "graphs.h"

namespace simulator {

struct Stream;

// Numbers of cudaStreamCaptureMode and cudaStreamCaptureStatus (driver_types.h).
enum class CaptureMode { global = 0, thread_local_ = 1, relaxed = 2 };
enum class CaptureStatus { none = 0, active = 1, invalidated = 2 };

// One capture: it begins in a stream, and others join it by waiting for events that were recorded in it.
struct Capture {
  uint64_t id;
  Graph* graph;
  bool owns_graph;
  Stream* origin;
  CaptureMode mode;
  std::thread::id thread;
  bool is_invalid = false;
  uint64_t order = 0;  // of values with random numbers
  std::vector<Stream*> streams;
};

struct Stream {
  int device = 0;
  unsigned flags = 0;
  int priority = 0;
  uint64_t id = 0;
  std::shared_ptr<Capture> capture;
  std::vector<Node*> ends;  // in a capture: what the next work depends on
  std::vector<Node*> handed_out;  // keeps the array alive that cudaStreamGetCaptureInfo returned
};

struct Event {
  unsigned flags = 0;
  bool is_recorded = false;
  double milliseconds = 0;
  std::weak_ptr<Capture> capture;  // the one that it was last recorded in
  std::vector<Node*> ends;
  bool was_captured = false;
};

constexpr unsigned event_without_timing = 2;

Stream* new_stream(unsigned flags, int priority);
void delete_stream(Stream* stream);
// The stream of a handle; null and the handles 1 and 2 are the current device's default stream.
Stream* stream_of(void* handle);

// Does the work at once, or keeps it for the graph that the stream captures. While an operator with values runs its genuine
// kernel only the node is kept: the values' library adds the operator's work itself.
void submit(void* stream, NodeKind kind, const std::function<void()>& work);

bool is_capturing(void* stream);
CaptureStatus capture_status(const Stream& stream);

Error begin_capture(Stream* stream, CaptureMode mode, Graph* graph, const std::vector<Node*>& dependencies);
Error end_capture(Stream* stream, Graph** graph);

// Whether a call that waits for a device or allocates on it is refused now because a stream is being captured; CUDA then also
// makes the capture invalid.
Error refuse_while_capturing();
// The same for a call that waits for this stream.
Error refuse_wait(Stream* stream);
CaptureMode exchange_capture_mode(CaptureMode mode);

Error record_event(Event* event, Stream* stream);
Error wait_for_event(Stream* stream, const Event& event);
Error query_event(const Event& event);

}  // namespace simulator
