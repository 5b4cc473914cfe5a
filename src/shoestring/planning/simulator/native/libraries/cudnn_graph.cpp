// cuDNN's graph interface: every graph of operations has one engine, without knobs and notes, and plans of it do nothing when
// executed.
//
// A descriptor is a set of attributes. One that is given to another as an attribute is kept by its content, so that the program may
// destroy the first; one that the program passes to be filled receives the content.
//
// Declarations after cudnn_graph.h of cuDNN 9.10.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "configuration.h"
#include "interface.h"

namespace {

constexpr int SUCCESS = 0;
constexpr int BAD_PARAM = 2000;

// cudnnBackendDescriptorType_t
enum Kind {
  ENGINE = 2,
  ENGINE_CONFIGURATION = 3,
  CONVOLUTION_FORWARD = 10,
  CONVOLUTION_BACKWARD_FILTER = 11,
  CONVOLUTION_BACKWARD_DATA = 12,
};

// cudnnBackendAttributeName_t
enum Name {
  HEURISTIC_GRAPH = 201,
  HEURISTIC_RESULTS = 202,
  CONFIGURATION_ENGINE = 300,
  CONFIGURATION_WORKSPACE = 303,
  CONFIGURATION_SHARED_MEMORY = 304,
  PLAN_CONFIGURATION = 401,
  PLAN_WORKSPACE = 402,
  PLAN_TEXT = 405,
  GRAPH_OPERATIONS = 801,
  GRAPH_ENGINES = 802,
  ENGINE_GRAPH = 1300,
  ENGINE_INDEX = 1301,
};

// cudnnBackendAttributeType_t
enum Type { BOOLEAN = 2, FLOAT = 4, DOUBLE = 5, POINTER = 6, DESCRIPTOR = 15, CHARACTER = 24, FRACTION = 26 };

size_t bytes_of(int type) {
  switch (type) {
    case BOOLEAN: case CHARACTER: return 1;
    case 0: case 3: case DOUBLE: case POINTER: case DESCRIPTOR: return 8;  // 0: a handle, 3: an integer of 64 bits
    case FRACTION: return 16;
    default: return 4;  // floats, integers of 32 bits, and enumerations
  }
}

struct Content;

struct Attribute {
  int64_t count = 0;
  std::string bytes;                               // of values
  std::vector<std::shared_ptr<Content>> contents;  // of descriptors
};

struct Content {
  int kind = 0;
  std::map<int, Attribute> attributes;

  std::shared_ptr<Content> single(int name) const {
    const auto found = attributes.find(name);
    return found != attributes.end() && !found->second.contents.empty() ? found->second.contents.front() : nullptr;
  }
};

// What a program holds.
struct Descriptor {
  std::shared_ptr<Content> content = std::make_shared<Content>();
};

Descriptor& descriptor(void* pointer) { return *static_cast<Descriptor*>(pointer); }

Attribute containing(std::shared_ptr<Content> content) {
  Attribute attribute;
  attribute.count = 1;
  attribute.contents.push_back(std::move(content));
  return attribute;
}

std::shared_ptr<Content> configuration_of(const std::shared_ptr<Content>& graph) {
  auto engine = std::make_shared<Content>();
  engine->kind = ENGINE;
  if (graph != nullptr) engine->attributes[ENGINE_GRAPH] = containing(graph);
  auto configuration = std::make_shared<Content>();
  configuration->kind = ENGINE_CONFIGURATION;
  configuration->attributes[CONFIGURATION_ENGINE] = containing(std::move(engine));
  return configuration;
}

bool is_convolution(const std::shared_ptr<Content>& operation) {
  return operation->kind >= CONVOLUTION_FORWARD && operation->kind <= CONVOLUTION_BACKWARD_DATA;
}

// Convolutions need the workspace that the configuration states; what else is built from graphs needs none here.
int64_t workspace(const Content& configuration) {
  const auto engine = configuration.single(CONFIGURATION_ENGINE);
  const auto graph = engine != nullptr ? engine->single(ENGINE_GRAPH) : nullptr;
  if (graph == nullptr) return 0;
  const auto operations = graph->attributes.find(GRAPH_OPERATIONS);
  if (operations == graph->attributes.end()) return 0;
  const auto& contents = operations->second.contents;
  const bool has_convolution = std::any_of(contents.begin(), contents.end(), is_convolution);
  return has_convolution ? static_cast<int64_t>(simulator::configuration().convolution_workspace) : 0;
}

// Writes one value, as far as the program asks for it.
template <typename Value>
int answer(Value value, int64_t requested, int64_t* count, void* place) {
  if (count != nullptr) *count = 1;
  if (place != nullptr && requested > 0) std::memcpy(place, &value, sizeof value);
  return SUCCESS;
}

// Fills the program's descriptors with contents.
int answer(const std::vector<std::shared_ptr<Content>>& contents, int64_t requested, int64_t* count, void* place) {
  const auto available = static_cast<int64_t>(contents.size());
  if (count != nullptr) *count = available;
  if (place == nullptr) return SUCCESS;
  auto** descriptors = static_cast<Descriptor**>(place);
  for (int64_t index = 0; index < std::min(requested, available); ++index)
    if (descriptors[index] != nullptr) descriptors[index]->content = contents[static_cast<size_t>(index)];
  return SUCCESS;
}

}  // namespace

EXPORT int cudnnBackendCreateDescriptor(int kind, void** place) {
  auto* created = new Descriptor();
  created->content->kind = kind;
  *place = created;
  return SUCCESS;
}

EXPORT int cudnnBackendDestroyDescriptor(void* pointer) {
  delete static_cast<Descriptor*>(pointer);
  return SUCCESS;
}

EXPORT int cudnnBackendInitialize(void*) { return SUCCESS; }
EXPORT int cudnnBackendFinalize(void*) { return SUCCESS; }

EXPORT int cudnnBackendSetAttribute(void* pointer, int name, int type, int64_t count, const void* values) {
  if (count < 0 || (count > 0 && values == nullptr)) return BAD_PARAM;
  Attribute attribute;
  attribute.count = count;
  if (type == DESCRIPTOR) {
    auto* const* descriptors = static_cast<Descriptor* const*>(values);
    for (int64_t index = 0; index < count; ++index) {
      if (descriptors[index] == nullptr) return BAD_PARAM;
      attribute.contents.push_back(descriptors[index]->content);
    }
  } else if (count > 0) {
    attribute.bytes.assign(static_cast<const char*>(values), static_cast<size_t>(count) * bytes_of(type));
  }
  descriptor(pointer).content->attributes[name] = std::move(attribute);
  return SUCCESS;
}

EXPORT int cudnnBackendGetAttribute(void* pointer, int name, int type, int64_t requested, int64_t* count, void* place) {
  const std::shared_ptr<Content> content = descriptor(pointer).content;
  switch (name) {
    case HEURISTIC_RESULTS:
      return answer({configuration_of(content->single(HEURISTIC_GRAPH))}, requested, count, place);
    case GRAPH_ENGINES:
      return answer(int64_t{1}, requested, count, place);
    case CONFIGURATION_WORKSPACE:
      return answer(workspace(*content), requested, count, place);
    case CONFIGURATION_SHARED_MEMORY:
      return answer(int32_t{0}, requested, count, place);
    case PLAN_WORKSPACE: {
      const auto configuration = content->single(PLAN_CONFIGURATION);
      return answer(configuration != nullptr ? workspace(*configuration) : int64_t{0}, requested, count, place);
    }
    case PLAN_CONFIGURATION:
      // A plan that was read from a text has no configuration of its own.
      return answer({content->single(name) != nullptr ? content->single(name) : configuration_of(nullptr)}, requested, count,
          place);
    case PLAN_TEXT: {
      const char text[] = "{}";
      if (count != nullptr) *count = 2;
      if (place != nullptr) std::memcpy(place, text, static_cast<size_t>(std::clamp<int64_t>(requested, 0, 2)));
      return SUCCESS;
    }
    default:
      break;
  }
  const auto found = content->attributes.find(name);
  if (found == content->attributes.end()) {
    if (name == ENGINE_INDEX) return answer(int64_t{0}, requested, count, place);
    if (count != nullptr) *count = 0;  // notes, knobs
    return SUCCESS;
  }
  if (type == DESCRIPTOR) return answer(found->second.contents, requested, count, place);
  if (count != nullptr) *count = found->second.count;
  if (place != nullptr && requested > 0)
    std::memcpy(place, found->second.bytes.data(),
                std::min(static_cast<size_t>(requested) * bytes_of(type), found->second.bytes.size()));
  return SUCCESS;
}

EXPORT int cudnnBackendExecute(void*, void*, void*) { return SUCCESS; }

// A plan's work in a CUDA graph: nothing has to be added.
EXPORT int cudnnBackendPopulateCudaGraph(void*, void*, void*, void*) { return SUCCESS; }
EXPORT int cudnnBackendUpdateCudaGraph(void*, void*, void*, void*) { return SUCCESS; }
