// Capture and graphs of the runtime. Where CUDA 13 gave a name of CUDA 12 other arguments, both forms are here.
#include <cstdio>
#include <cstring>
#include <unordered_map>

#include "copies.h"
#include "devices.h"
#include "interface.h"
#include "kernels.h"
#include "streams.h"

using namespace simulator;

namespace {

// cudaGraphEdgeData (driver_types.h): from_port, to_port, type, reserved[5].
struct EdgeData {
  unsigned char bytes[8];
};

Graph* graph_of(void* handle) { return static_cast<Graph*>(handle); }

std::vector<Node*> nodes_of(void* const* handles, size_t count) {
  std::vector<Node*> nodes;
  for (size_t index = 0; index < count; ++index) nodes.push_back(static_cast<Node*>(handles[index]));
  return nodes;
}

// Writes nodes as CUDA does: without an array their number, otherwise as many as there is room for.
void write_nodes(const std::vector<Node*>& nodes, void** handles, size_t* count) {
  if (handles != nullptr) {
    const size_t room = *count;
    for (size_t index = 0; index < room; ++index) handles[index] = index < nodes.size() ? nodes[index] : nullptr;
  }
  *count = nodes.size();
}

int add_node(void** node, void* graph, void* const* dependencies, size_t count, NodeKind kind, std::function<void()> work) {
  *node = graph_of(graph)->add(kind, std::move(work), nodes_of(dependencies, count));
  return error::success;
}

int instantiate(void** executable, void* graph, uint64_t flags) {
  *executable = new ExecutableGraph{graph_of(graph)->nodes, flags};
  return error::success;
}

int capture_info(void* handle, int* status, unsigned long long* id, void** graph, void* const** dependencies,
                 const EdgeData** edges, size_t* count) {
  Stream* stream = stream_of(handle);
  const CaptureStatus found = capture_status(*stream);
  *status = static_cast<int>(found);
  if (graph != nullptr) *graph = nullptr;
  if (dependencies != nullptr) *dependencies = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = 0;
  if (found == CaptureStatus::none) return error::success;
  if (id != nullptr) *id = stream->capture->id;
  if (graph != nullptr) *graph = stream->capture->graph;
  stream->handed_out = stream->ends;
  if (dependencies != nullptr) *dependencies = reinterpret_cast<void* const*>(stream->handed_out.data());
  if (count != nullptr) *count = stream->handed_out.size();
  return error::success;
}

int update_dependencies(void* handle, void** dependencies, size_t count, unsigned flags) {
  constexpr unsigned replace = 1;  // cudaStreamSetCaptureDependencies
  Stream* stream = stream_of(handle);
  if (capture_status(*stream) == CaptureStatus::none) return report(903);
  const std::vector<Node*> nodes = nodes_of(dependencies, count);
  if (flags & replace) stream->ends.clear();
  stream->ends.insert(stream->ends.end(), nodes.begin(), nodes.end());
  return error::success;
}

}  // namespace

EXPORT int cudaStreamBeginCapture(void* stream, int mode) {
  if (const Error failed = enter_current()) return report(failed);
  return report(begin_capture(stream_of(stream), static_cast<CaptureMode>(mode), nullptr, {}));
}

EXPORT int cudaStreamBeginCaptureToGraph(void* stream, void* graph, void* const* dependencies, const EdgeData*, size_t count,
                                         int mode) {
  if (const Error failed = enter_current()) return report(failed);
  return report(
      begin_capture(stream_of(stream), static_cast<CaptureMode>(mode), graph_of(graph), nodes_of(dependencies, count)));
}

EXPORT int cudaStreamEndCapture(void* stream, void** graph) {
  Graph* captured = nullptr;
  const Error result = end_capture(stream_of(stream), &captured);
  if (graph != nullptr) *graph = captured;
  return report(result);
}

EXPORT int cudaStreamIsCapturing(void* stream, int* status) {
  *status = static_cast<int>(capture_status(*stream_of(stream)));
  return error::success;
}

EXPORT int cudaThreadExchangeStreamCaptureMode(int* mode) {
  *mode = static_cast<int>(exchange_capture_mode(static_cast<CaptureMode>(*mode)));
  return error::success;
}

#if SIMULATED_CUDA_VERSION >= 13000
EXPORT int cudaStreamGetCaptureInfo(void* stream, int* status, unsigned long long* id, void** graph, void* const** dependencies,
                                    const EdgeData** edges, size_t* count) {
  return capture_info(stream, status, id, graph, dependencies, edges, count);
}

EXPORT int cudaStreamUpdateCaptureDependencies(void* stream, void** dependencies, const EdgeData*, size_t count, unsigned flags) {
  return update_dependencies(stream, dependencies, count, flags);
}

EXPORT int cudaGraphNodeGetDependencies(void* node, void** dependencies, EdgeData* edges, size_t* count) {
  if (edges != nullptr) std::memset(edges, 0, *count * sizeof *edges);
  write_nodes(static_cast<Node*>(node)->dependencies, dependencies, count);
  return error::success;
}

EXPORT int cudaGraphAddDependencies(void*, void* const* from, void* const* to, const EdgeData*, size_t count) {
  for (size_t index = 0; index < count; ++index)
    static_cast<Node*>(to[index])->dependencies.push_back(static_cast<Node*>(from[index]));
  return error::success;
}

EXPORT int cudaGraphInstantiate(void** executable, void* graph, unsigned long long flags) {
  return instantiate(executable, graph, flags);
}
#else
EXPORT int cudaStreamGetCaptureInfo_v2(void* stream, int* status, unsigned long long* id, void** graph,
                                       void* const** dependencies, size_t* count) {
  return capture_info(stream, status, id, graph, dependencies, nullptr, count);
}

EXPORT int cudaStreamGetCaptureInfo_v3(void* stream, int* status, unsigned long long* id, void** graph,
                                       void* const** dependencies, const EdgeData** edges, size_t* count) {
  return capture_info(stream, status, id, graph, dependencies, edges, count);
}

EXPORT int cudaStreamUpdateCaptureDependencies(void* stream, void** dependencies, size_t count, unsigned flags) {
  return update_dependencies(stream, dependencies, count, flags);
}

EXPORT int cudaStreamUpdateCaptureDependencies_v2(void* stream, void** dependencies, const EdgeData*, size_t count,
                                                  unsigned flags) {
  return update_dependencies(stream, dependencies, count, flags);
}

EXPORT int cudaGraphNodeGetDependencies(void* node, void** dependencies, size_t* count) {
  write_nodes(static_cast<Node*>(node)->dependencies, dependencies, count);
  return error::success;
}

EXPORT int cudaGraphNodeGetDependencies_v2(void* node, void** dependencies, EdgeData* edges, size_t* count) {
  if (edges != nullptr) std::memset(edges, 0, *count * sizeof *edges);
  return cudaGraphNodeGetDependencies(node, dependencies, count);
}

EXPORT int cudaGraphAddDependencies(void*, void* const* from, void* const* to, size_t count) {
  for (size_t index = 0; index < count; ++index)
    static_cast<Node*>(to[index])->dependencies.push_back(static_cast<Node*>(from[index]));
  return error::success;
}

EXPORT int cudaGraphInstantiate(void** executable, void* graph, unsigned long long flags) {
  return instantiate(executable, graph, flags);
}
#endif

EXPORT int cudaGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long flags) {
  return instantiate(executable, graph, flags);
}

// cudaGraphInstantiateParams (driver_types.h, CUDA 12.8 and 13.0).
struct InstantiateParams {
  unsigned long long flags;
  void* upload_stream;
  void* error_node;
  int result;
};

EXPORT int cudaGraphInstantiateWithParams(void** executable, void* graph, InstantiateParams* params) {
  params->error_node = nullptr;
  params->result = 0;
  return instantiate(executable, graph, params->flags);
}

EXPORT int cudaGraphExecGetFlags(void* executable, unsigned long long* flags) {
  *flags = static_cast<ExecutableGraph*>(executable)->flags;
  return error::success;
}

EXPORT int cudaGraphUpload(void*, void*) { return error::success; }

EXPORT int cudaGraphLaunch(void* executable, void* stream) {
  if (const Error failed = enter_current()) return report(failed);
  // In a capture the graph becomes a node of the other; its nodes have to live as long as that.
  const ExecutableGraph graph = *static_cast<ExecutableGraph*>(executable);
  submit(stream, NodeKind::graph, [graph] { graph.run(); });
  return error::success;
}

// cudaGraphExecUpdateResultInfo (driver_types.h).
struct UpdateResult {
  int result;
  void* error_node;
  void* error_from_node;
};

EXPORT int cudaGraphExecUpdate(void* executable, void* graph, UpdateResult* result) {
  static_cast<ExecutableGraph*>(executable)->nodes = graph_of(graph)->nodes;
  if (result != nullptr) *result = UpdateResult{};
  return error::success;
}

EXPORT int cudaGraphCreate(void** graph, unsigned) {
  *graph = new_graph();
  return error::success;
}

EXPORT int cudaGraphClone(void** clone, void* graph) {
  Graph* copy = new_graph();
  std::unordered_map<const Node*, Node*> copies;
  for (const auto& node : graph_of(graph)->nodes) {
    std::vector<Node*> dependencies;
    for (const Node* dependency : node->dependencies) dependencies.push_back(copies[dependency]);
    copies[node.get()] = copy->add(node->kind, node->work, dependencies);
  }
  *clone = copy;
  return error::success;
}

EXPORT int cudaGraphDestroy(void* graph) {
  delete graph_of(graph);
  return error::success;
}

EXPORT int cudaGraphExecDestroy(void* executable) {
  delete static_cast<ExecutableGraph*>(executable);
  return error::success;
}

EXPORT int cudaGraphGetNodes(void* graph, void** nodes, size_t* count) {
  std::vector<Node*> all;
  for (const auto& node : graph_of(graph)->nodes) all.push_back(node.get());
  write_nodes(all, nodes, count);
  return error::success;
}

EXPORT int cudaGraphGetRootNodes(void* graph, void** nodes, size_t* count) {
  std::vector<Node*> roots;
  for (const auto& node : graph_of(graph)->nodes)
    if (node->dependencies.empty()) roots.push_back(node.get());
  write_nodes(roots, nodes, count);
  return error::success;
}

EXPORT int cudaGraphNodeGetType(void* node, int* type) {
  *type = static_cast<int>(static_cast<Node*>(node)->kind);
  return error::success;
}

EXPORT int cudaGraphAddEmptyNode(void** node, void* graph, void* const* dependencies, size_t count) {
  return add_node(node, graph, dependencies, count, NodeKind::empty, nullptr);
}

EXPORT int cudaGraphAddMemcpyNode1D(void** node, void* graph, void* const* dependencies, size_t count, void* to, const void* from,
                                    size_t bytes, int) {
  return add_node(node, graph, dependencies, count, NodeKind::copy, [=] { copy_memory(to, from, bytes); });
}

// cudaMemsetParams (driver_types.h).
struct MemsetParams {
  void* to;
  size_t pitch;
  unsigned value;
  unsigned element_bytes;
  size_t width;
  size_t height;
};

EXPORT int cudaGraphAddMemsetNode(void** node, void* graph, void* const* dependencies, size_t count, const MemsetParams* params) {
  const MemsetParams fill = *params;
  return add_node(node, graph, dependencies, count, NodeKind::fill, [fill] {
    for (size_t row = 0; row < fill.height; ++row)
      fill_memory(static_cast<char*>(fill.to) + row * fill.pitch, &fill.value, fill.element_bytes, fill.width);
  });
}

// cudaHostNodeParams (driver_types.h).
struct HostNodeParams {
  void (*function)(void*);
  void* data;
};

EXPORT int cudaGraphAddHostNode(void** node, void* graph, void* const* dependencies, size_t count, const HostNodeParams* params) {
  const HostNodeParams host = *params;
  return add_node(node, graph, dependencies, count, NodeKind::host, [host] { host.function(host.data); });
}

// cudaKernelNodeParams (driver_types.h).
struct KernelNodeParams {
  void* function;
  Dim3 grid;
  Dim3 block;
  unsigned shared_bytes;
  void** arguments;
  void** extra;
};

EXPORT int cudaGraphAddKernelNode(void** node, void* graph, void* const* dependencies, size_t count,
                                  const KernelNodeParams* params) {
  return add_node(node, graph, dependencies, count, NodeKind::kernel,
                  kernel_work(params->function, params->arguments));
}

EXPORT int cudaGraphAddChildGraphNode(void** node, void* graph, void* const* dependencies, size_t count, void* child) {
  const ExecutableGraph nodes{graph_of(child)->nodes, 0};
  return add_node(node, graph, dependencies, count, NodeKind::graph, [nodes] { nodes.run(); });
}

// Nodes whose work depends on values that the device computes are refused: kernels compute none here.
EXPORT int cudaGraphAddNode() { return not_simulated("cudaGraphAddNode"); }
EXPORT int cudaGraphConditionalHandleCreate() { return not_simulated("cudaGraphConditionalHandleCreate"); }

// A picture of the graph in Graphviz's language, as CUDA writes it for debugging, with less in each node.
EXPORT int cudaGraphDebugDotPrint(void* graph, const char* path, unsigned) {
  constexpr const char* names[] = {"KERNEL", "MEMCPY", "MEMSET", "HOST", "GRAPH", "EMPTY", "EVENT_WAIT", "EVENT_RECORD"};
  FILE* file = std::fopen(path, "w");
  if (file == nullptr) return report(error::invalid_value);
  std::fprintf(file, "digraph dot {\nsubgraph cluster_1 {\nlabel=\"graph_%llu\"\n",
               static_cast<unsigned long long>(graph_of(graph)->id));
  std::unordered_map<const Node*, size_t> numbers;
  for (const auto& node : graph_of(graph)->nodes) {
    const size_t number = numbers.size();
    numbers[node.get()] = number;
    std::fprintf(file, "node_%zu [label=\"%zu\\n%s\"];\n", number, number, names[static_cast<int>(node->kind)]);
    for (const Node* dependency : node->dependencies)
      std::fprintf(file, "node_%zu -> node_%zu;\n", numbers[dependency], number);
  }
  std::fprintf(file, "}\n}\n");
  std::fclose(file);
  return error::success;
}

EXPORT int cudaDeviceGraphMemTrim(int) { return error::success; }

EXPORT int cudaDeviceGetGraphMemAttribute(int, int, void* value) {
  *static_cast<uint64_t*>(value) = 0;
  return error::success;
}

EXPORT int cudaDeviceSetGraphMemAttribute(int, int, void*) { return error::success; }

// User objects end their data's life with the last graph that retains them. Their number of references is all that is kept.
struct UserObject {
  void* data;
  void (*destroy)(void*);
  std::atomic<unsigned> references;
};

EXPORT int cudaUserObjectCreate(void** object, void* data, void (*destroy)(void*), unsigned references, unsigned) {
  *object = new UserObject{data, destroy, {references}};
  return error::success;
}

EXPORT int cudaUserObjectRetain(void* object, unsigned count) {
  static_cast<UserObject*>(object)->references += count;
  return error::success;
}

EXPORT int cudaUserObjectRelease(void* handle, unsigned count) {
  auto* object = static_cast<UserObject*>(handle);
  if (object->references.fetch_sub(count) > count) return error::success;
  object->destroy(object->data);
  delete object;
  return error::success;
}

EXPORT int cudaGraphRetainUserObject(void* graph, void* object, unsigned count, unsigned flags) {
  constexpr unsigned moves = 1;  // cudaGraphUserObjectMove: the caller's references become the graph's
  if (!(flags & moves)) cudaUserObjectRetain(object, count);
  // The node that holds the references is none of CUDA's, so it hangs on the last node's work instead of being one.
  std::shared_ptr<void> holder(object, [count](void* held) { cudaUserObjectRelease(held, count); });
  auto& nodes = graph_of(graph)->nodes;
  if (nodes.empty()) graph_of(graph)->add(NodeKind::empty, nullptr, {});
  Node* last = nodes.back().get();
  last->work = [work = std::move(last->work), holder] {
    if (work) work();
  };
  return error::success;
}

EXPORT int cudaGraphReleaseUserObject(void*, void*, unsigned) { return error::success; }
