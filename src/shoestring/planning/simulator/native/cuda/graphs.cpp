#include "graphs.h"

#include <atomic>
#include <unordered_set>

namespace simulator {

Node* Graph::add(NodeKind kind, std::function<void()> work, std::vector<Node*> dependencies) {
  nodes.push_back(std::make_shared<Node>(Node{kind, std::move(work), std::move(dependencies)}));
  return nodes.back().get();
}

void ExecutableGraph::run() const {
  for (const auto& node : nodes)
    if (node->work) node->work();
}

Graph* new_graph() {
  static std::atomic<uint64_t> next_id{1};
  auto* graph = new Graph;
  graph->id = next_id++;
  return graph;
}

bool are_reached(const std::vector<Node*>& nodes, const std::vector<Node*>& ends) {
  std::unordered_set<const Node*> reached;
  std::vector<Node*> open = ends;
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    if (!reached.insert(node).second) continue;
    open.insert(open.end(), node->dependencies.begin(), node->dependencies.end());
  }
  for (const Node* node : nodes)
    if (reached.count(node) == 0) return false;
  return true;
}

}  // namespace simulator
