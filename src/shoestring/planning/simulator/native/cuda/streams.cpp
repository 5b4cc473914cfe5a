#include "streams.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include "devices.h"
#include "interface.h"
#include "ledger.h"

namespace simulator {
namespace {

std::recursive_mutex capture_mutex;
std::atomic<int> active_captures{0};
thread_local CaptureMode thread_mode = CaptureMode::global;

std::vector<std::shared_ptr<Capture>>& captures() {
  static auto* const active = new std::vector<std::shared_ptr<Capture>>;
  return *active;
}

uint64_t next_stream_id() {
  static std::atomic<uint64_t> next{most_gpus + 1};
  return next++;
}

double milliseconds_now() {
  const auto since_boot = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(since_boot).count();
}

void join_unlocked(Stream* stream, const std::shared_ptr<Capture>& capture) {
  stream->capture = capture;
  stream->ends.clear();
  capture->streams.push_back(stream);
}

void depend_unlocked(Stream* stream, const std::vector<Node*>& nodes) {
  for (Node* node : nodes)
    if (std::find(stream->ends.begin(), stream->ends.end(), node) == stream->ends.end()) stream->ends.push_back(node);
}

// Ends a capture for all of its streams.
void finish_unlocked(const std::shared_ptr<Capture>& capture) {
  for (Stream* stream : capture->streams) {
    stream->capture.reset();
    stream->ends.clear();
  }
  auto& active = captures();
  active.erase(std::remove(active.begin(), active.end(), capture), active.end());
  --active_captures;
}

// See the documentation of cudaThreadExchangeStreamCaptureMode.
bool forbids(const Capture& capture) {
  if (thread_mode == CaptureMode::relaxed || capture.mode == CaptureMode::relaxed) return false;
  if (capture.thread == std::this_thread::get_id()) return true;
  return thread_mode == CaptureMode::global && capture.mode == CaptureMode::global;
}

}  // namespace

Stream* new_stream(unsigned flags, int priority) {
  auto* stream = new Stream;
  stream->device = current_device();
  stream->flags = flags;
  stream->priority = std::clamp(priority, -5, 0);
  stream->id = next_stream_id();
  return stream;
}

void delete_stream(Stream* stream) {
  {
    std::lock_guard<std::recursive_mutex> guard(capture_mutex);
    if (stream->capture) {
      auto& members = stream->capture->streams;
      members.erase(std::remove(members.begin(), members.end(), stream), members.end());
      stream->capture->is_invalid = true;
    }
  }
  delete stream;
}

Stream* stream_of(void* handle) {
  constexpr uintptr_t last_special_handle = 2;  // cudaStreamLegacy 1, cudaStreamPerThread 2
  if (reinterpret_cast<uintptr_t>(handle) > last_special_handle) return static_cast<Stream*>(handle);
  static Stream defaults[most_gpus];
  Stream* stream = &defaults[current_device()];
  stream->device = current_device();
  stream->id = static_cast<uint64_t>(current_device()) + 1;
  return stream;
}

bool is_capturing(void* stream) { return active_captures > 0 && stream_of(stream)->capture != nullptr; }

void submit(void* handle, NodeKind kind, const std::function<void()>& work) {
  if (active_captures > 0) {
    std::lock_guard<std::recursive_mutex> guard(capture_mutex);
    Stream* stream = stream_of(handle);
    if (stream->capture) {
      const bool has_own_work = *simulator_depth() == 0;
      Graph* graph = stream->capture->graph;
      stream->ends = {graph->add(kind, has_own_work ? work : nullptr, std::move(stream->ends))};
      return;
    }
  }
  if (work) work();
}

CaptureStatus capture_status(const Stream& stream) {
  if (active_captures == 0) return CaptureStatus::none;
  std::lock_guard<std::recursive_mutex> guard(capture_mutex);
  if (!stream.capture) return CaptureStatus::none;
  return stream.capture->is_invalid ? CaptureStatus::invalidated : CaptureStatus::active;
}

Error begin_capture(Stream* stream, CaptureMode mode, Graph* graph, const std::vector<Node*>& dependencies) {
  std::lock_guard<std::recursive_mutex> guard(capture_mutex);
  if (stream->id <= most_gpus) return error::capture_unsupported;  // the default stream cannot be captured
  if (stream->capture) return error::invalid_value;
  static uint64_t next_id = 1;
  auto capture = std::make_shared<Capture>();
  capture->id = next_id++;
  capture->owns_graph = graph == nullptr;
  capture->graph = graph != nullptr ? graph : new_graph();
  capture->origin = stream;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  join_unlocked(stream, capture);
  depend_unlocked(stream, dependencies);
  captures().push_back(capture);
  ++active_captures;
  return error::success;
}

Error end_capture(Stream* stream, Graph** graph) {
  std::lock_guard<std::recursive_mutex> guard(capture_mutex);
  const std::shared_ptr<Capture> capture = stream->capture;
  if (graph != nullptr) *graph = nullptr;
  if (!capture) return error::invalid_value;
  if (capture->origin != stream) return error::capture_unmatched;
  if (capture->mode != CaptureMode::relaxed && capture->thread != std::this_thread::get_id()) return error::capture_wrong_thread;
  Error result = capture->is_invalid ? error::capture_invalidated : error::success;
  for (const Stream* member : capture->streams)
    if (result == error::success && !are_reached(member->ends, stream->ends)) result = error::capture_unjoined;
  finish_unlocked(capture);
  if (result != error::success) {
    if (capture->owns_graph) delete capture->graph;
  } else if (graph != nullptr) {
    *graph = capture->graph;
  }
  return result;
}

Error refuse_while_capturing() {
  if (active_captures == 0) return error::success;
  std::lock_guard<std::recursive_mutex> guard(capture_mutex);
  Error result = error::success;
  for (const auto& capture : captures()) {
    if (!forbids(*capture)) continue;
    capture->is_invalid = true;
    result = error::capture_unsupported;
  }
  return result;
}

Error refuse_wait(Stream* stream) {
  if (active_captures == 0) return error::success;
  std::lock_guard<std::recursive_mutex> guard(capture_mutex);
  if (!stream->capture) return error::success;
  stream->capture->is_invalid = true;
  return error::capture_unsupported;
}

CaptureMode exchange_capture_mode(CaptureMode mode) { return std::exchange(thread_mode, mode); }

Error record_event(Event* event, Stream* stream) {
  std::lock_guard<std::recursive_mutex> guard(capture_mutex);
  event->was_captured = stream->capture != nullptr;
  event->capture = stream->capture;
  event->ends = stream->ends;
  event->is_recorded = true;
  event->milliseconds = milliseconds_now();
  return error::success;
}

Error wait_for_event(Stream* stream, const Event& event) {
  if (active_captures == 0) return error::success;
  std::lock_guard<std::recursive_mutex> guard(capture_mutex);
  const std::shared_ptr<Capture> capture = event.capture.lock();
  const bool is_active = capture && std::find(captures().begin(), captures().end(), capture) != captures().end();
  if (!is_active) {
    if (!stream->capture || !event.is_recorded) return error::success;
    // A captured stream cannot wait for work outside of its graph.
    constexpr Error capture_isolation = 905;
    stream->capture->is_invalid = true;
    return capture_isolation;
  }
  if (stream->capture && stream->capture != capture) {
    stream->capture->is_invalid = capture->is_invalid = true;
    return error::capture_merge;
  }
  if (!stream->capture) join_unlocked(stream, capture);
  depend_unlocked(stream, event.ends);
  return error::success;
}

Error query_event(const Event& event) {
  if (active_captures == 0) return error::success;
  if (event.was_captured && !event.capture.expired()) return error::captured_event;
  return refuse_while_capturing();
}

}  // namespace simulator

using namespace simulator;

EXPORT int* simulator_depth() {
  static thread_local int depth = 0;
  return &depth;
}

EXPORT bool simulator_is_capturing(void* stream) { return is_capturing(stream); }

EXPORT uint64_t simulator_capture_order(void* handle) {
  std::lock_guard<std::recursive_mutex> guard(capture_mutex);
  const Stream* stream = stream_of(handle);
  return stream->capture ? ++stream->capture->order : 0;
}

EXPORT void simulator_capture(void* handle, std::function<void()>* work) {
  const std::unique_ptr<std::function<void()>> owned(work);
  {
    std::lock_guard<std::recursive_mutex> guard(capture_mutex);
    Stream* stream = stream_of(handle);
    if (stream->capture) {
      // Work of values is nothing that CUDA captured, so it becomes a node of its own only if there is none to add it to: the
      // number of nodes then stays the genuine one.
      Graph* graph = stream->capture->graph;
      const bool can_extend = stream->ends.size() == 1 && stream->ends[0] == graph->nodes.back().get() && !stream->ends[0]->work;
      if (can_extend)
        stream->ends[0]->work = std::move(*owned);
      else
        stream->ends = {graph->add(NodeKind::kernel, std::move(*owned), std::move(stream->ends))};
      return;
    }
  }
  (*owned)();
}
