// CUDA graphs: the work that streams were given while they were captured, in the order of capture, and what it depends on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace simulator {

// Numbers of cudaGraphNodeType (driver_types.h, CUDA 12.8 and 13.0).
enum class NodeKind { kernel = 0, copy = 1, fill = 2, host = 3, graph = 4, empty = 5, wait_event = 6, record_event = 7 };

struct Node {
  NodeKind kind;
  std::function<void()> work;  // empty if a replay has nothing to do, as for a kernel
  std::vector<Node*> dependencies;
};

struct Graph {
  uint64_t id;
  std::vector<std::shared_ptr<Node>> nodes;  // in an order in which they can run

  Node* add(NodeKind kind, std::function<void()> work, std::vector<Node*> dependencies);
};

// An instantiated graph. It keeps its nodes, so the graph may be destroyed.
struct ExecutableGraph {
  std::vector<std::shared_ptr<Node>> nodes;
  uint64_t flags;

  void run() const;
};

Graph* new_graph();

// Whether all of `nodes` come before or are among `ends`.
bool are_reached(const std::vector<Node*>& nodes, const std::vector<Node*>& ends);

}  // namespace simulator
