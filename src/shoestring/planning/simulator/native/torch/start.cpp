// The entry of this library: the simulated runtime loads it and calls simulator_torch_start when PyTorch first uses a device.
#include <mutex>

#include "configuration.h"
#include "interface.h"
#include "torch/operators.h"
#include "torch/statistics.h"
#include "torch/values.h"

EXPORT void simulator_observe();  // python.cpp

EXPORT void simulator_torch_start() {
  static std::once_flag once;
  std::call_once(once, [] {
    simulator::start_statistics();
    simulator::start_values();
    if (simulator::configuration().record_operators) operators_start();
    simulator_observe();
  });
}

EXPORT void simulator_set_phase(int phase) {
  simulator::set_statistics_phase(phase);
  operators_phase(phase);
}

EXPORT void simulator_set_update(int64_t update) {
  simulator::set_statistics_update(update);
  operators_update(update);
}
