// cuDNN's older interface: descriptors of tensors, filters, activations and dropout.
// Declarations after cudnn_ops.h of cuDNN 9.10.
#include "libraries/cudnn_descriptors.h"

#include <algorithm>

#include "interface.h"
#include "libraries/library.h"

using simulator::DropoutDescriptor;
using simulator::TensorDescriptor;

namespace {

constexpr int SUCCESS = 0;

// The library does not document the size; one state of a generator for each thread that may run is of this order.
constexpr size_t DROPOUT_STATES = size_t{1} << 20;

TensorDescriptor& tensor(void* description) { return *static_cast<TensorDescriptor*>(description); }

void copy_sizes(const std::vector<int>& sizes, int requested, int* place) {
  if (place != nullptr) std::copy_n(sizes.begin(), std::min<size_t>(sizes.size(), static_cast<size_t>(std::max(requested, 0))),
      place);
}

template <typename Value>
void set(Value* place, Value value) {
  if (place != nullptr) *place = value;
}

}  // namespace

EXPORT int cudnnCreateTensorDescriptor(void** description) { return simulator::give<TensorDescriptor>(description); }
EXPORT int cudnnDestroyTensorDescriptor(void* description) { return simulator::take_back<TensorDescriptor>(description); }

EXPORT int cudnnSetTensorNdDescriptor(void* description, int type, int dimensions, const int* sizes, const int* strides) {
  TensorDescriptor& set = tensor(description);
  set.type = type;
  set.sizes.assign(sizes, sizes + dimensions);
  set.strides.assign(strides, strides + dimensions);
  return SUCCESS;
}

EXPORT int cudnnGetTensorNdDescriptor(void* description, int requested, int* type, int* dimensions, int* sizes, int* strides) {
  const TensorDescriptor& described = tensor(description);
  set(type, described.type);
  set(dimensions, static_cast<int>(described.sizes.size()));
  copy_sizes(described.sizes, requested, sizes);
  copy_sizes(described.strides, requested, strides);
  return SUCCESS;
}

EXPORT int cudnnCreateFilterDescriptor(void** description) { return simulator::give<TensorDescriptor>(description); }
EXPORT int cudnnDestroyFilterDescriptor(void* description) { return simulator::take_back<TensorDescriptor>(description); }

EXPORT int cudnnSetFilterNdDescriptor(void* description, int type, int format, int dimensions, const int* sizes) {
  TensorDescriptor& set = tensor(description);
  set.type = type;
  set.format = format;
  set.sizes.assign(sizes, sizes + dimensions);
  return SUCCESS;
}

EXPORT int cudnnGetFilterNdDescriptor(void* description, int requested, int* type, int* format, int* dimensions, int* sizes) {
  const TensorDescriptor& described = tensor(description);
  set(type, described.type);
  set(format, described.format);
  set(dimensions, static_cast<int>(described.sizes.size()));
  copy_sizes(described.sizes, requested, sizes);
  return SUCCESS;
}

EXPORT int cudnnCreateActivationDescriptor(void** description) { return simulator::give(description); }
EXPORT int cudnnDestroyActivationDescriptor(void* description) { return simulator::take_back(description); }
EXPORT int cudnnSetActivationDescriptor(void*, int, int, double) { return SUCCESS; }

EXPORT int cudnnCreateDropoutDescriptor(void** description) { return simulator::give<DropoutDescriptor>(description); }
EXPORT int cudnnDestroyDropoutDescriptor(void* description) { return simulator::take_back<DropoutDescriptor>(description); }

EXPORT int cudnnDropoutGetStatesSize(void*, size_t* bytes) {
  *bytes = DROPOUT_STATES;
  return SUCCESS;
}

// The seed and the number of draws so far are kept in the states, which the program owns and may save.
EXPORT int cudnnSetDropoutDescriptor(void* description, void*, float probability, void* states, size_t bytes,
                                     unsigned long long seed) {
  *static_cast<DropoutDescriptor*>(description) = {probability, states, seed};
  if (states != nullptr && bytes >= 2 * sizeof seed) {
    static_cast<unsigned long long*>(states)[0] = seed;
    static_cast<unsigned long long*>(states)[1] = 0;
  }
  return SUCCESS;
}

EXPORT int cudnnRestoreDropoutDescriptor(void* description, void*, float probability, void* states, size_t,
                                         unsigned long long seed) {
  *static_cast<DropoutDescriptor*>(description) = {probability, states, seed};
  return SUCCESS;
}

EXPORT int cudnnGetDropoutDescriptor(void* description, void*, float* probability, void** states, unsigned long long* seed) {
  const auto& described = *static_cast<DropoutDescriptor*>(description);
  set(probability, described.probability);
  set(states, described.states);
  set(seed, described.seed);
  return SUCCESS;
}
