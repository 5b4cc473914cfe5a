// Recurrent networks: the cells that PyTorch fuses on CUDA, and cuDNN's whole networks, by the host's own.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <exception>
#include <thread>

#include "torch/references.h"

namespace simulator {
namespace {

using at::Tensor;

Tensor plus(const Tensor& sum, const Tensor& bias) { return bias.defined() ? sum + bias : sum; }

// input gates, hidden gates, cell, biases (2)
void lstm_cell(Stack& stack, const Stack&) {
  const Tensor gates = plus(plus(float_at(stack, 0) + float_at(stack, 1), float_at(stack, 3)), float_at(stack, 4));
  const std::vector<Tensor> parts = gates.chunk(4, 1);
  const Tensor input = parts[0].sigmoid(), forget = parts[1].sigmoid(), candidate = parts[2].tanh(), output = parts[3].sigmoid();
  const Tensor cell = forget * float_at(stack, 2) + input * candidate;
  set_results(stack, {output * cell.tanh(), cell, at::cat({input, forget, candidate, output}, 1)});
}

// gradients of hidden and cell, cell before, cell after, gates, has_bias
void lstm_cell_backward(Stack& stack, const Stack&) {
  const Tensor before = float_at(stack, 2), after = float_at(stack, 3);
  Tensor hidden_gradient = float_at(stack, 0), cell_gradient = float_at(stack, 1);
  if (!hidden_gradient.defined()) hidden_gradient = at::zeros_like(after);
  if (!cell_gradient.defined()) cell_gradient = at::zeros_like(after);
  const std::vector<Tensor> gates = float_at(stack, 4).chunk(4, 1);
  const Tensor &input = gates[0], &forget = gates[1], &candidate = gates[2], &output = gates[3];
  const Tensor activation = after.tanh();
  const Tensor gradient = hidden_gradient * output * (1 - activation * activation) + cell_gradient;
  const Tensor gates_gradient = at::cat({gradient * candidate * input * (1 - input), gradient * before * forget * (1 - forget),
                                         gradient * input * (1 - candidate * candidate), hidden_gradient * activation * output * (1 - output)},
                                        1);
  set_results(stack, {gates_gradient, gradient * forget, stack[5].toBool() ? gates_gradient.sum(0) : Tensor()});
}

// input gates, hidden gates, hidden, biases (2); the second result is what the backward needs
void gru_cell(Stack& stack, const Stack&) {
  const Tensor hidden = float_at(stack, 2);
  const std::vector<Tensor> of_input = plus(float_at(stack, 0), float_at(stack, 3)).chunk(3, 1);
  const std::vector<Tensor> of_hidden = plus(float_at(stack, 1), float_at(stack, 4)).chunk(3, 1);
  const Tensor reset = (of_input[0] + of_hidden[0]).sigmoid(), update = (of_input[1] + of_hidden[1]).sigmoid();
  const Tensor candidate = (of_input[2] + reset * of_hidden[2]).tanh();
  set_results(stack, {candidate + update * (hidden - candidate), at::cat({reset, update, candidate, hidden, of_hidden[2]}, 1)});
}

void gru_cell_backward(Stack& stack, const Stack&) {
  const Tensor gradient = float_at(stack, 0);
  const std::vector<Tensor> kept = float_at(stack, 1).chunk(5, 1);
  const Tensor &reset = kept[0], &update = kept[1], &candidate = kept[2], &hidden = kept[3], &of_hidden = kept[4];
  const bool has_bias = stack[2].toBool();
  const Tensor update_gradient = gradient * (hidden - candidate) * update * (1 - update);
  const Tensor candidate_gradient = gradient * (1 - update) * (1 - candidate * candidate);
  const Tensor reset_gradient = candidate_gradient * of_hidden * reset * (1 - reset);
  const Tensor input_gates = at::cat({reset_gradient, update_gradient, candidate_gradient}, 1);
  const Tensor hidden_gates = at::cat({reset_gradient, update_gradient, candidate_gradient * reset}, 1);
  set_results(stack, {input_gates, hidden_gates, gradient * update, has_bias ? input_gates.sum(0) : Tensor(),
                      has_bias ? hidden_gates.sum(0) : Tensor()});
}

struct Network {
  Tensor input, hidden, cell;
  std::vector<Tensor> weights;
  int64_t mode;  // cuDNN's: 0 relu, 1 tanh, 2 LSTM, 3 GRU
  int64_t layers;
  bool batch_first, train, bidirectional, has_biases;
  double dropout;
  std::vector<int64_t> batch_sizes;  // of packed sequences
  uint64_t seed = 0;
};

// `shift`: how many arguments the operator has between the states and the mode.
Network network_at(const Stack& stack, size_t shift) {
  Network network;
  network.input = float_at(stack, 0);
  for (const Tensor& weight : stack[1].toTensorVector()) network.weights.push_back(weight.to(at::kFloat));
  network.hidden = float_at(stack, 4);
  network.cell = float_at(stack, 5);
  const size_t first = 6 + shift;
  network.mode = stack[first].toInt();
  const bool has_projection = stack[first + 2].toInt() > 0;
  network.layers = stack[first + 3].toInt();
  network.batch_first = stack[first + 4].toBool();
  network.dropout = stack[first + 5].toDouble();
  network.train = stack[first + 6].toBool();
  network.bidirectional = stack[first + 7].toBool();
  network.batch_sizes = stack[first + 8].toIntVector();
  const size_t directions = network.layers * (network.bidirectional ? 2 : 1);
  network.has_biases = network.weights.size() == directions * (has_projection ? 5 : 4);
  return network;
}

// Output, hidden and, of an LSTM, cell.
std::vector<Tensor> run(const Network& n) {
  const bool packed = !n.batch_sizes.empty();
  const Tensor sizes = packed ? at::tensor(at::IntArrayRef(n.batch_sizes)) : Tensor();
  if (n.mode == 2) {
    const std::vector<Tensor> states{n.hidden, n.cell};
    const auto result = packed ? at::lstm(n.input, sizes, states, n.weights, n.has_biases, n.layers, n.dropout, n.train, n.bidirectional)
                               : at::lstm(n.input, states, n.weights, n.has_biases, n.layers, n.dropout, n.train, n.bidirectional, n.batch_first);
    return {std::get<0>(result), std::get<1>(result), std::get<2>(result)};
  }
  const auto with = [&](auto of_packed, auto of_padded) {
    const auto result = packed ? of_packed(n.input, sizes, n.hidden, n.weights, n.has_biases, n.layers, n.dropout, n.train, n.bidirectional)
                               : of_padded(n.input, n.hidden, n.weights, n.has_biases, n.layers, n.dropout, n.train, n.bidirectional, n.batch_first);
    return std::vector<Tensor>{std::get<0>(result), std::get<1>(result)};
  };
  const auto gru = [](auto&&... arguments) { return at::gru(arguments...); };
  const auto rnn_tanh = [](auto&&... arguments) { return at::rnn_tanh(arguments...); };
  const auto rnn_relu = [](auto&&... arguments) { return at::rnn_relu(arguments...); };
  if (n.mode == 3) return with(gru, gru);
  return n.mode == 1 ? with(rnn_tanh, rnn_tanh) : with(rnn_relu, rnn_relu);
}

// Runs `work` in a thread of its own, which has neither the caller's modes nor its autograd, with the host's generator seeded.
template <typename Work>
void run_apart(uint64_t seed, Work work) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const Tensor state = generator.get_state();
  const int threads = at::get_num_threads();
  std::exception_ptr failure;
  std::thread thread([&] {
    try {
      at::set_num_threads(threads);
      generator.set_current_seed(seed);
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  });
  thread.join();
  generator.set_state(state);
  if (failure) std::rethrow_exception(failure);
}

// cuDNN keeps the state of dropout in a buffer: the seed, which the simulated cuDNN puts at its start, and here beside it how
// many masks were made. The mask's seed is kept for the backward in the reserve space.
uint64_t next_dropout_seed(const Tensor& dropout_state) {
  if (!dropout_state.defined() || dropout_state.nbytes() < 16) return 0;
  auto* const state = static_cast<uint64_t*>(dropout_state.data_ptr());
  return state[0] + 0x9e3779b97f4a7c15ull * ++state[1];
}

// input, weights, stride, buffer, hidden, cell, mode, hidden size, projection, layers, ..., batch sizes, dropout state
void network_forward(Stack& stack, const Stack& genuine) {
  Network network = network_at(stack, 0);
  if (network.dropout > 0 && network.train) network.seed = next_dropout_seed(tensor_at(stack, 15));
  const Tensor reserve = tensor_at(genuine, 3);
  if (reserve.defined() && reserve.nbytes() >= 8) *static_cast<uint64_t*>(reserve.data_ptr()) = network.seed;
  std::vector<Tensor> results;
  run_apart(network.seed, [&] {
    const c10::AutoGradMode without(false);
    results = run(network);
  });
  set_results(stack, {results[0], results[1], results.size() > 2 ? results[2] : Tensor()});
}

// input, weights, stride, buffer, hidden, cell, output, gradients (3), mode, ..., batch sizes, dropout state, reserve, wanted
void network_backward(Stack& stack, const Stack&) {
  Network network = network_at(stack, 4);
  const Tensor output_gradients[] = {float_at(stack, 7), float_at(stack, 8), float_at(stack, 9)};
  const Tensor reserve = tensor_at(stack, 20);
  if (reserve.defined() && reserve.nbytes() >= 8) network.seed = *static_cast<const uint64_t*>(reserve.const_data_ptr());
  const bool has_cell = network.cell.defined();
  std::vector<Tensor> gradients;
  run_apart(network.seed, [&] {
    std::vector<Tensor> inputs;
    const auto make_input = [&](Tensor& tensor) {
      tensor = tensor.detach().clone().requires_grad_(true);
      inputs.push_back(tensor);
    };
    make_input(network.input);
    make_input(network.hidden);
    if (has_cell) make_input(network.cell);
    for (Tensor& weight : network.weights) make_input(weight);
    const std::vector<Tensor> results = run(network);
    std::vector<Tensor> outputs, given;
    for (size_t i = 0; i < results.size(); ++i) {
      if (!output_gradients[i].defined()) continue;
      outputs.push_back(results[i]);
      given.push_back(output_gradients[i]);
    }
    gradients = torch::autograd::grad(outputs, inputs, given, std::nullopt, false, true);
  });
  const auto first_weight = gradients.begin() + (has_cell ? 3 : 2);
  set_results(stack, {gradients[0], gradients[1], has_cell ? gradients[2] : Tensor(), std::vector<Tensor>(first_weight, gradients.end())});
}

}  // namespace

void add_recurrent(ReferenceTable& table) {
  table["aten::_thnn_fused_lstm_cell"] = lstm_cell;
  table["aten::_thnn_fused_lstm_cell_backward_impl"] = lstm_cell_backward;
  table["aten::_thnn_fused_gru_cell"] = gru_cell;
  table["aten::_thnn_fused_gru_cell_backward"] = gru_cell_backward;
  table["aten::_cudnn_rnn"] = network_forward;
  table["aten::_cudnn_rnn_backward"] = network_backward;
}

}  // namespace simulator
