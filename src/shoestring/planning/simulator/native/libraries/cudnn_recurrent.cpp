// cuDNN's recurrent networks: where the weights lie in their common memory, and the sizes of workspace and reserve.
//
// The reserve, which a layer saves for the backward pass, is opaque in the library. Its size here is the one that the product's own
// model of recurrent layers states (planning/trace/recurrent.py): for each layer, direction, time step and sample the activated
// gates
// and the new states, and below the last layer one byte of dropout's mask for each output. The workspace holds the gates.
//
// Declarations after cudnn_adv.h of cuDNN 9.10.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "interface.h"
#include "libraries/cudnn_descriptors.h"
#include "libraries/library.h"

using simulator::TensorDescriptor;

namespace {

constexpr int SUCCESS = 0;
constexpr int NO_BIAS = 0;          // CUDNN_RNN_NO_BIAS
constexpr int DOUBLE_BIAS = 2;      // CUDNN_RNN_DOUBLE_BIAS
constexpr int BIDIRECTIONAL = 1;    // CUDNN_BIDIRECTIONAL
constexpr int TRAINING = 1;         // CUDNN_FWD_MODE_TRAINING

struct Cell {
  int gates;
  int saved;  // values saved for each unit of the state
};

Cell cell_of(int mode) {
  switch (mode) {
    case 2: return {4, 6};   // CUDNN_LSTM
    case 3: return {3, 5};   // CUDNN_GRU
    default: return {1, 2};  // CUDNN_RNN_RELU, CUDNN_RNN_TANH
  }
}

struct Network {
  Cell cell{1, 2};
  int bias = NO_BIAS;
  int directions = 1;
  int type = 0;
  int64_t input = 0;
  int64_t hidden = 0;
  int64_t projected = 0;  // the size of the output of each cell; `hidden` without a projection
  int layers = 1;
  bool has_dropout = false;

  int pseudo_layers() const { return layers * directions; }  // a layer in one direction
  bool is_projected() const { return projected != hidden; }
  int biases() const { return bias == NO_BIAS ? 0 : bias == DOUBLE_BIAS ? 2 * cell.gates : cell.gates; }
};

struct Sequence {
  int64_t steps = 0;
  int64_t batch = 0;
};

struct Matrix {
  int64_t rows;
  int64_t columns;
  int64_t elements() const { return rows * columns; }
};

// The matrices of a pseudo layer: for each gate one of the input, then for each gate one of the state, then the projection.
Matrix matrix(const Network& network, int layer, int index) {
  const int gates = network.cell.gates;
  if (index == 2 * gates) return network.is_projected() ? Matrix{network.projected, network.hidden} : Matrix{0, 0};
  if (index >= gates) return {network.hidden, network.projected};
  return {network.hidden, layer < network.directions ? network.input : network.projected * network.directions};
}

int64_t layer_elements(const Network& network, int layer) {
  int64_t elements = 0;
  for (int index = 0; index <= 2 * network.cell.gates; ++index) elements += matrix(network, layer, index).elements();
  return elements;
}

// All matrices lie in front, layer by layer; all biases follow.
int64_t matrix_place(const Network& network, int layer, int index) {
  int64_t place = 0;
  for (int before = 0; before < layer; ++before) place += layer_elements(network, before);
  for (int before = 0; before < index; ++before) place += matrix(network, layer, before).elements();
  return place;
}

int64_t bias_place(const Network& network, int layer, int index) {
  return matrix_place(network, network.pseudo_layers(),
      0) + (static_cast<int64_t>(layer) * network.biases() + index) * network.hidden;
}

void describe(TensorDescriptor* description, int type, int64_t rows, int64_t columns) {
  if (description == nullptr) return;
  description->type = type;
  description->sizes = {1, static_cast<int>(rows), static_cast<int>(columns)};
  description->strides = {static_cast<int>(rows * columns), static_cast<int>(columns), 1};
}

}  // namespace

EXPORT int cudnnCreateRNNDescriptor(void** description) { return simulator::give<Network>(description); }
EXPORT int cudnnDestroyRNNDescriptor(void* description) { return simulator::take_back<Network>(description); }
EXPORT int cudnnCreateRNNDataDescriptor(void** description) { return simulator::give<Sequence>(description); }
EXPORT int cudnnDestroyRNNDataDescriptor(void* description) { return simulator::take_back<Sequence>(description); }

EXPORT int cudnnSetRNNDescriptor_v8(void* description, int, int mode, int bias, int direction, int, int type, int, int, int input,
                                    int hidden, int projected, int layers, void* dropout, unsigned) {
  Network network;
  network.cell = cell_of(mode);
  network.bias = bias;
  network.directions = direction == BIDIRECTIONAL ? 2 : 1;
  network.type = type;
  network.input = input;
  network.hidden = hidden;
  network.projected = projected > 0 ? projected : hidden;
  network.layers = layers;
  network.has_dropout = dropout != nullptr && static_cast<simulator::DropoutDescriptor*>(dropout)->probability > 0;
  *static_cast<Network*>(description) = network;
  return SUCCESS;
}

EXPORT int cudnnSetRNNDataDescriptor(void* description, int, int, int steps, int batch, int, const int*, void*) {
  *static_cast<Sequence*>(description) = {steps, batch};
  return SUCCESS;
}

EXPORT int cudnnGetRNNWeightSpaceSize(void*, void* description, size_t* bytes) {
  const Network& network = *static_cast<Network*>(description);
  *bytes = static_cast<size_t>(bias_place(network, network.pseudo_layers(), 0)) * simulator::element_bytes(network.type);
  return SUCCESS;
}

EXPORT int cudnnGetRNNWeightParams(void*, void* description, int layer, size_t, void* weights, int index, void* matrix_description,
                                   void** matrix_address, void* bias_description, void** bias_address) {
  const Network& network = *static_cast<Network*>(description);
  const size_t element = simulator::element_bytes(network.type);
  const auto at = [&](int64_t place) { return static_cast<char*>(weights) + static_cast<size_t>(place) * element; };
  const Matrix described = matrix(network, layer, index);
  describe(static_cast<TensorDescriptor*>(matrix_description), network.type, described.rows, described.columns);
  describe(static_cast<TensorDescriptor*>(bias_description), network.type, network.hidden, 1);
  if (matrix_address != nullptr) *matrix_address = described.elements() > 0 ? at(matrix_place(network, layer, index)) : nullptr;
  if (bias_address != nullptr) *bias_address = index < network.biases() ? at(bias_place(network, layer, index)) : nullptr;
  return SUCCESS;
}

EXPORT int cudnnGetRNNTempSpaceSizes(void*, void* description, int mode, void* sequence_description, size_t* workspace,
                                     size_t* reserve) {
  const Network& network = *static_cast<Network*>(description);
  const Sequence& sequence = *static_cast<Sequence*>(sequence_description);
  const int64_t units = sequence.steps * sequence.batch * network.directions * network.hidden;
  const auto element = static_cast<int64_t>(simulator::element_bytes(network.type));
  if (workspace != nullptr) *workspace = static_cast<size_t>(units * network.cell.gates * element);
  if (reserve != nullptr) {
    const int64_t saved = units * network.layers * network.cell.saved * element;
    const int64_t masks = network.has_dropout ? units * (network.layers - 1) : 0;
    *reserve = mode == TRAINING ? static_cast<size_t>(saved + masks) : 0;
  }
  return SUCCESS;
}

EXPORT int cudnnRNNForward() { return SUCCESS; }
EXPORT int cudnnRNNBackwardData_v8() { return SUCCESS; }
EXPORT int cudnnRNNBackwardWeights_v8() { return SUCCESS; }
